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
from onceforall.errors import AttemptFailedError, FencedError, OnceForAllError, text_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_CAUSE = re.compile(r"\b(\w+Error): ")
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
    """Another run of the query has taken over, and goes on: leave this one alone."""


def exit_code(query_or_exception: StreamingQuery | BaseException | str | None) -> ExitCode:
    """Return the exit code with which a driver program should end.

    Args:
        query_or_exception: what ``error_of`` takes: the query that has ended, or what ``start()``
            or ``awaitTermination()`` raised.

    Returns:
        An ``ExitCode``, by the class attribute ``restart`` of the error; for an
        ``AttemptFailedError`` that of its cause, if it is one of ours. ``RESTART`` for errors of
        others, except for what Spark says of a wrong program (``AnalysisException``). ``ENDED``
        when nothing has failed.

    Raises:
        OptionError: the argument is none of these.

    Any restart is safe; the code says whether it helps.
    """
    error = error_of(query_or_exception)
    if error is None:
        return ExitCode.ENDED
    if not isinstance(error, OnceForAllError):
        names = {cls.__name__ for cls in type(error).__mro__}
        return ExitCode.MEND if names & set(_SPARKS_OWN) else ExitCode.RESTART
    if isinstance(error, FencedError):
        return ExitCode.REPLACED
    return {
        "yes": ExitCode.RESTART,
        "once": ExitCode.RESTART,
        "no": ExitCode.MEND,
        "stopped": ExitCode.ENDED,
    }[_restart(error)]


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
    # Read from a text, which has no causes: the message tells it.
    by_name = {kind.__name__: restart for kind, restart in restart_table()}
    told = [by_name[name] for name in _CAUSE.findall(text_of(error)) if name in by_name]
    return told[0] if told else "yes"
