"""Gives the error of a running query back as what it was, and says it in one line of the log.

What ``foreachBatch`` raises is turned into text by py4j, wrapped by Spark's JVM, and comes back as
a ``StreamingQueryException`` with dozens of lines of Java and Python around it. But the function
runs in the process that started the query: so the error itself is kept here, per run (of the newest
``KEPT_RUNS`` runs that failed), and ``error_of`` finds it by the run's id. Where only the text is
left, in another process or in a log, it is read from there: the last line of the Python traceback
is a note that ``tell`` has put there (``NOTE``), with what is known besides the message. Nothing
that is read is executed or imported: a class is found by its name among those that there are.
"""

from __future__ import annotations

import builtins
import json
import logging
import re
import threading
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from onceforall.common.arguments import wrong
from onceforall.errors import (
    OnceForAllError,
    QueryStoppedError,
    described,
    documentation_of,
    text_of,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("onceforall")

KEPT_RUNS = 100
"""Of so many failed runs the errors are kept; of older ones the text is read."""

NOTE = "[onceforall] "
"""What the last line of a traceback of ours begins with; a JSON object follows. (Python 3.10
prints no notes.)"""

_FIELDS = {
    "query_name": str,
    "query_id": str,
    "run_id": str,
    "batch": int,
    "sink": str,
    "transaction": str,
}
_LONGEST_LINE = 2000

_RUN = re.compile(r"\brunId = ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
_QUERY = re.compile(
    r"^Identifier: (?:(.*) )?\[id = ([0-9a-f-]{36}), runId = ([0-9a-f-]{36})\]$", re.MULTILINE
)
_RAISED = re.compile(
    r"^  File .*(?:, in _call_proxy|foreach_batch_worker\.py\", line \d+, in main)\n"
    r"(?:  .*\n)*?(?=\S)",
    re.MULTILINE,
)
"""The frames of the error that left ``foreachBatch``: they begin with py4j's own, or with those of
Spark Connect's worker. Those of its causes, and of tasks in its message, don't."""
_LINE = re.compile(r"(onceforall(?:\.\w+)+)(?:: |$)", re.MULTILINE)
_END = re.compile(
    r"\n(?:\n?JVM stacktrace:|=== Streaming Query ===|\s+at [\w.$/]+\(| ?SQLSTATE: )|[. "
    r"]SQLSTATE: \w+\s*(?:\n|$)"
)


class _Kept:
    """The errors of the runs of this process that failed last, by run id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: OrderedDict[str, BaseException] = OrderedDict()

    def keep(self, run_id: str, error: BaseException) -> None:
        with self._lock:
            # The first one is why the run ended.
            self._errors.setdefault(run_id, error)
            while len(self._errors) > KEPT_RUNS:
                self._errors.popitem(last=False)
            kept = list(self._errors.values())
        # Those of earlier runs once more: frames that had not ended then keep what they hold.
        for each in (error, *kept):
            _forget_locals(each)

    def forget_locals(self, run_id: str) -> None:
        if (error := self.of(run_id)) is not None:
            _forget_locals(error)

    def of(self, run_id: str | None) -> BaseException | None:
        with self._lock:
            return None if run_id is None else self._errors.get(run_id)

    def told_in(self, text: str) -> BaseException | None:
        """Return the error whose class and whole message stand in a text, the newest of several."""
        with self._lock:
            newest_first = list(reversed(self._errors.values()))
        return next(
            (
                error
                for error in newest_first
                if f"{_name(type(error))}: {text_of(error)}\n" in text
            ),
            None,
        )


_kept = _Kept()


def error_of(
    query_or_exception: StreamingQuery | BaseException | str | None,
) -> BaseException | None:
    """Return why a query failed, as a Python exception.

    Args:
        query_or_exception: a ``StreamingQuery``; or what ``awaitTermination()`` raised or
            ``query.exception()`` returned; or any exception with one of ours among its causes; or a
            text, such as a log of another process, with the trace of one.

    Returns:
        None when the query has not failed (also for ``error_of(query.exception())``), or when a
        text tells of no error of ours. One of ``onceforall``'s errors, where it is one: of its own
        class, with its message, which says what to do, and with the fields of ``OnceForAllError``
        (``query_name``, ``query_id``, ``run_id``, ``batch``, ``sink``, ``transaction``,
        ``documentation``). What a function of your own raised is the ``__cause__`` of an
        ``AttemptFailedError``; an error of a Python worker or of another job of Spark's is in that
        one's message. What was given, or for a query its ``StreamingQueryException``, where the
        error is none of ours: Spark could not read the source, say.

    Raises:
        OptionError: the argument is none of these.

    In the process that started the query, the exception is the one that was raised, with its
    traceback and its causes (without the values of local variables), for the last 100 runs that
    failed. Elsewhere it is made anew from the text, without causes; the fields are those that the
    text has (with Python 3.10, no batch, sink and transaction). Each run of a restarted query has
    an error of its own.
    """
    if query_or_exception is None:
        return None
    if isinstance(query_or_exception, str):
        return _of_text(query_or_exception)
    if isinstance(query_or_exception, BaseException):
        return _of_exception(query_or_exception) or query_or_exception
    failure = getattr(query_or_exception, "exception", None)
    if not callable(failure) or not hasattr(query_or_exception, "runId"):
        raise wrong(
            "query_or_exception",
            query_or_exception,
            "the StreamingQuery that start() returned, an exception, or the text of one",
        )
    raised = failure()
    if raised is None:
        return None
    return _kept.of(str(query_or_exception.runId)) or _of_exception(raised) or raised


def tell(
    error: BaseException, *, batch: int, run_id: str, query_id: str, query_name: str | None
) -> None:
    """Take an error that is about to leave ``foreachBatch``: complete its fields, keep it, and say
    it in one line of the log.

    Args:
        error: about to be raised.
        batch: Spark's number of the batch.
        run_id: Spark's id of the run.
        query_id: Spark's id of the query.
        query_name: its name, where it has one.
    """
    found: dict[str, Any] = {
        "query_name": query_name,
        "query_id": query_id,
        "run_id": run_id,
        "batch": batch,
    }
    known = (
        {name: getattr(error, name, None) for name in ("sink", "transaction")}
        if isinstance(error, OnceForAllError)
        else {}
    )
    if isinstance(error, OnceForAllError):
        for name, value in found.items():
            setattr(error, name, value)
    named = query_name or query_id
    if isinstance(error, QueryStoppedError):
        # No failure: the user asked for it, and Spark must recognise it by its text.
        logger.info("query %s was stopped in batch %d: %s", named, batch, _in_one_line(error))
        return
    _kept.keep(run_id, error)
    where = documentation_of(error)
    if hasattr(error, "add_note") and not any(
        note.startswith(NOTE) for note in getattr(error, "__notes__", ())
    ):
        told = {name: value for name, value in (found | known).items() if value is not None}
        error.add_note(NOTE + json.dumps({**told, "documentation": where}, default=str))
    logger.error("query %s failed in batch %d: %s (%s)", named, batch, _in_one_line(error), where)


def from_text(text: str) -> OnceForAllError | None:
    """Return the error of ours that the text of an exception tells of, made anew; None: of none.

    Args:
        text: what Spark made of it, of which nothing is executed.
    """
    raised = _RAISED.search(text)
    if raised is not None:
        line = _LINE.match(text, raised.end())
    else:
        # Not from foreachBatch: an error of start() in a log, say. Its causes stand before it.
        line = next(
            iter(reversed([found for found in _LINE.finditer(text) if _class_named(found[1])])),
            None,
        )
    kind = None if line is None else _class_named(line[1])
    if line is None or kind is None:
        return None
    end = _END.search(text, line.end())
    said = text[line.end() : len(text) if end is None else end.start()]
    message, fields = _without_note(said)
    error: OnceForAllError = kind.__new__(
        kind, message
    )  # not __init__, whose arguments are each class's own
    identified = _QUERY.search(text)
    names = ("query_name", "query_id", "run_id")
    for name, value in dict(
        zip(names, identified.groups() if identified else (), strict=False)
    ).items():
        setattr(error, name, value)
    for name, type_ in _FIELDS.items():
        if isinstance(fields.get(name), type_):
            setattr(error, name, fields[name])
    return error


def _of_exception(error: BaseException) -> BaseException | None:
    ours = next((each for each in _chain(error) if isinstance(each, OnceForAllError)), None)
    return _of_text(text_of(error)) if ours is None else ours


def _of_text(text: str) -> BaseException | None:
    told = from_text(text)
    run_id = _run_in(text) or (None if told is None else told.run_id)
    return _kept.of(run_id) or _kept.told_in(text) or told


def _run_in(text: str) -> str | None:
    found = _RUN.search(text)
    return None if found is None else found[1]


def _without_note(said: str) -> tuple[str, dict[str, Any]]:
    start = said.rfind(f"\n{NOTE}")
    if start != -1:
        try:
            fields, _ = json.JSONDecoder().raw_decode(said[start + 1 + len(NOTE) :])
        except ValueError:
            fields = None
        if isinstance(fields, dict):
            return said[:start], fields
    return said.rstrip("\n"), {}


def _class_named(name: str) -> type[OnceForAllError] | None:
    """Return the class of that name, or what a class of ours that isn't loaded here is at least."""
    todo: list[type[OnceForAllError]] = [OnceForAllError]
    while todo:
        found = todo.pop()
        if _name(found) == name:
            return found
        todo += found.__subclasses__()
    return OnceForAllError if name.endswith("Error") else None


def _name(kind: type[BaseException]) -> str:
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it came from, outermost first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        # Spark's own errors have no __cause__ but one of the JVM's.
        # A user's error may have a truth value.
        came_from = error.__cause__
        if came_from is None and not error.__suppress_context__:
            came_from = error.__context__
        error = came_from


def ended(run_id: str) -> None:
    """Let go of what the error of a run that has ended still holds: while it was told, the frames
    of ``foreachBatch`` had not ended, and held the batch.
    """
    _kept.forget_locals(run_id)


def _forget_locals(error: BaseException) -> None:
    """Let go of what the frames of a traceback hold: frames of data, sessions, connections. Its
    lines stay.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        traceback.clear_frames(each.__traceback__)
        # Also what ``raise ... from None`` hides, and each error of a group (Python 3.11).
        left += [each.__cause__, each.__context__, *_in_group(each)]


def _in_group(error: BaseException) -> Sequence[BaseException]:
    group = getattr(builtins, "BaseExceptionGroup", None)
    if group is None or not isinstance(error, group):
        return ()
    errors: Sequence[BaseException] = error.exceptions
    return errors


def _in_one_line(error: BaseException) -> str:
    line = " ".join(described(error).split())
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} …"
