"""What a driver program says to its supervisor when its query has ended: an exit code, by which
systemd, Kubernetes, Airflow and others decide whether to start it again.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from onceforall import errors
from onceforall.driver.failures import error_of
from onceforall.errors import (
    AttemptFailedError,
    FencedError,
    OnceForAllError,
    OvertakenError,
    text_of,
)
from onceforall.protocol.messages import CAUSE

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_CAUSE = re.compile(r"(\w+Error): ")
_TRACE = "Traceback (most recent call last)"
_RAISED = re.compile(r"^(?:[\w$]+\.)*(\w+(?:Error|Exception|Interrupt))(?::|$)", re.MULTILINE)
_FAILED = re.compile(rf"{re.escape(_TRACE)}|terminated with exception|\[STREAM_FAILED\]")
_SPARKS_OWN = ("AnalysisException", "ParseException")
"""What Spark says of a program that no restart makes right."""


class ExitCode(enum.IntEnum):
    """How a driver program ends.

    75 and 78 are EX_TEMPFAIL and EX_CONFIG of BSD's ``sysexits.h``; 79 is the first that it doesn't
    use. None of them is one that Python, a shell or a signal gives by itself.
    """

    ENDED = 0
    """The query was stopped, or has done all that there was to do."""
    RESTART = 75
    """Start it again, with growing pauses; page somebody when that goes on."""
    MEND = 78
    """A restart fails again until a person has mended something: page somebody."""
    REPLACED = 79
    """Another run of the query has taken over, or went further: leave this one alone while one is
    alive. Where two overlap and both stop, the later one ends with ``RESTART``.
    """


def exit_code(query_or_exception: StreamingQuery | BaseException | str | None) -> ExitCode:
    """Return the exit code with which a driver program should end.

    Args:
        query_or_exception: what ``error_of`` takes: the query that has ended, or what ``start()``
            or ``awaitTermination()`` raised.

    Returns:
        An ``ExitCode``, by the class attribute ``restart`` of the error; for an
        ``AttemptFailedError`` that of its cause, if it is one of ours. ``RESTART`` for errors of
        others, except for what Spark says of a wrong program (``AnalysisException``). ``ENDED``
        when nothing has failed: for None, and for a text in which no error and no trace is.

    Raises:
        OptionError: the argument is none of these.

    Any restart is safe; the code says whether it helps.
    """
    error = error_of(query_or_exception)
    if error is None:
        text = query_or_exception if isinstance(query_or_exception, str) else ""
        return _of_others_text(text)
    if not isinstance(error, OnceForAllError):
        names = {cls.__name__ for cls in type(error).__mro__}
        return ExitCode.MEND if names & set(_SPARKS_OWN) else ExitCode.RESTART
    if isinstance(error, FencedError) and not isinstance(error, OvertakenError):
        return ExitCode.REPLACED
    return {
        "yes": ExitCode.RESTART,
        "once": ExitCode.RESTART,
        "no": ExitCode.MEND,
        "stopped": ExitCode.ENDED,
    }[_restart(error)]


def _of_others_text(text: str) -> ExitCode:
    """Return the code for a text that tells of no error of ours."""
    raised = _RAISED.search(text, max(0, text.rfind(_TRACE)))
    if raised is None:
        return ExitCode.RESTART if _FAILED.search(text) else ExitCode.ENDED
    return ExitCode.MEND if raised[1] in _SPARKS_OWN else ExitCode.RESTART


def restart_table() -> Iterator[tuple[type[OnceForAllError], errors.Restart]]:
    """Yield each error of this library, parents first, and its ``restart``."""
    todo: list[type[OnceForAllError]] = [OnceForAllError]
    while todo:
        found = todo.pop(0)
        if found.__module__ == errors.__name__:
            yield found, found.restart
            todo = [*found.__subclasses__(), *todo]


def _restart(error: OnceForAllError) -> errors.Restart:
    if type(error) is not AttemptFailedError:
        return error.restart
    if error.__cause__ is not None:
        return error.__cause__.restart if isinstance(error.__cause__, OnceForAllError) else "yes"
    # Read from a text, which has no causes: the message tells it, at one place. What stands
    # elsewhere is somebody's words.
    by_name = {kind.__name__: restart for kind, restart in restart_table()}
    told = _CAUSE.match(text_of(error).partition(CAUSE)[2])
    return "yes" if told is None else by_name.get(told[1], "yes")
