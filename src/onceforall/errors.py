"""Every error that onceforall raises, classified by what its catcher must do.

::

    OnceForAllError
    ├── ConfigurationError          mend the program or its settings; nothing has happened yet
    │   ├── OptionError             an option is unknown, malformed, or would break the promise
    │   ├── SchemaError             a column is missing or has a type that the sink cannot write
    │   ├── UnsupportedQueryError   this kind of query, trigger or Spark cannot be exactly-once
    │   ├── SinkCheckError          the system behind a sink refused a check before any data moved
    │   ├── ExecutorCheckError      an executor's Python lacks a module that tasks import
    │   └── MissingExtraError       an optional dependency is not installed (also an ImportError)
    ├── AttemptFailedError          the attempt was aborted; Spark's replay writes it again
    │   ├── RefusedRecordError      a record that no replay can write: mend the data or the limit
    │   ├── BatchTooSlowError       the batch cannot be decided within the transaction timeout
    │   └── QueryStoppedError       the query was stopped in the middle of a batch
    ├── StoppedError                this run must not go on; nothing was aborted by it
    │   ├── FencedError             a newer run owns the query; do not restart this one
    │   ├── InDoubtError            a decided batch is not complete; a restart completes it
    │   │   ├── FormerSinkError       ... once the sink that prepared it is back in the query
    │   │   ├── TransactionLostError  ... a transaction is gone; a restart writes it again
    │   │   └── NondeterministicReplayError  ... but the replay gave other rows
    │   └── OutcomeUnknownError     an append to the commit log got no answer; a restart finds out
    ├── CheckpointMismatchError     checkpoint and log disagree; a human must choose
    │   └── PlanOverwrittenError    ... a replaced run wrote over a plan; a start may mend it
    ├── DivergenceError             a replay gave other rows (``on_divergence="fail"``)
    ├── CommitLogError              the commit log cannot be read or written
    │   ├── CorruptEntryError       an entry is torn or its checksum differs
    │   ├── ForeignEntryError       a file that onceforall did not write lies in the log
    │   └── NewerEntryError         an entry was written by a newer release
    ├── SourceError                 a source can't go on; nothing was skipped
    │   ├── DataLossError           what comes next is gone from the source; a human must choose
    │   └── SourceUnavailableError  it did not answer in time; a restart goes on
    ├── SinkUnavailableError        a sink did not answer; retried until it does
    ├── EmbeddedServerError         a server for demo or tests could not be started
    └── ProtocolViolationError      a bug in onceforall: an event that the protocol does not allow

"Failed" and "outcome unknown" are different errors (after httpx and pyiceberg): the first may be
tried again, the second must first be found out.

An error of a running query crosses Spark's JVM before the program sees it; ``onceforall.error_of``
gives it back as what it was.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Restart = Literal["yes", "once", "no", "stopped"]
"""Whether a supervisor may start the query again by itself: with growing pauses; with a person if
the same error comes at once again; only when a person has mended something; or it was asked to
stop, so as whoever asked likes."""


class OnceForAllError(Exception):
    """The root of all errors of this library. Its text says what happened, to which thing, and what
    to do.

    Attributes:
        query_name: the name that ``queryName`` gave the query.
        query_id: Spark's id of the query, the same over restarts.
        run_id: Spark's id of this run of it.
        batch: Spark's number of the batch that was under way.
        sink: the name of the sink that it is about, in its query.
        transaction: the name of the transaction that it is about (the first one, of several).

    Each is None where it isn't known; what is raised at ``start()`` has none of them.

    The class attribute ``restart`` says whether a supervisor may start the query again by itself
    (`Restart`); that is safe in any case, and of no use after ``no``. ``onceforall.exit_code``
    makes an exit code of it.
    """

    restart: ClassVar[Restart] = "yes"

    query_name: str | None = None
    query_id: str | None = None
    run_id: str | None = None
    batch: int | None = None
    sink: str | None = None
    transaction: str | None = None

    @property
    def documentation(self) -> str:
        """The page and the heading that say more of this kind of error, as a path in the
        project: ``docs/errors.md#fencederror``.
        """
        return documentation_of(self)


def documentation_of(error: BaseException) -> str:
    """Return where the documentation speaks of an error: of the nearest class of this module
    that it is one of.
    """
    named = [cls.__name__ for cls in type(error).__mro__ if cls.__module__ == __name__]
    return f"docs/errors.md#{named[0].lower() if named else 'errors-of-others'}"


def text_of(error: BaseException) -> str:
    """Return an error's text, or its class where it has none.

    It never raises: what others raise may have a ``__str__`` that does, and an abort must not end
    on its message.
    """
    try:
        return str(error) or type(error).__name__
    except BaseException as failure:  # noqa: BLE001  whatever it is, the first error is the one to tell of
        return f"(its text can't be read: {type(failure).__name__})"


def described(error: BaseException) -> str:
    """Return an error's class and text, for a message or the log. It never raises."""
    name, text = type(error).__name__, text_of(error)
    return name if text == name else f"{name}: {text}"


class ConfigurationError(OnceForAllError, ValueError):
    """The program or its settings must be mended; no data has moved."""

    restart: ClassVar[Restart] = "no"


class OptionError(ConfigurationError):
    """An option is unknown, malformed, or would break the promise."""


class SchemaError(ConfigurationError):
    """A column is missing or has a type that the sink cannot write."""


class UnsupportedQueryError(ConfigurationError):
    """This kind of query, trigger or Spark installation cannot be made exactly-once."""


class SinkCheckError(ConfigurationError):
    """The system behind a sink refused a check that is made before any data moves."""


class ExecutorCheckError(ConfigurationError):
    """The Python of an executor can't run the tasks: it lacks this library, has another version
    of it, or lacks what a sink's tasks import.
    """


class MissingExtraError(ConfigurationError, ImportError):
    """An optional dependency is not installed; the message names the extra."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed. Install it with: pip install 'onceforall[{extra}]'"
        )


class AttemptFailedError(OnceForAllError):
    """The attempt at this batch was aborted; nothing of it is visible, and Spark's replay writes
    it again.
    """


class RefusedRecordError(AttemptFailedError):
    """A record that no replay can write; the data or a limit must be changed."""

    restart: ClassVar[Restart] = "no"


class BatchTooSlowError(AttemptFailedError):
    """The batch took so long that its transactions could time out before they are committed."""

    restart: ClassVar[Restart] = "once"


class QueryStoppedError(AttemptFailedError):
    """The query was stopped while a batch was being written; the attempt is aborted, and the
    next start writes it.
    """

    restart: ClassVar[Restart] = "stopped"


class StoppedError(OnceForAllError):
    """This run must not go on.

    It aborted nothing that may be decided: what was decided stays decided.
    """


class FencedError(StoppedError):
    """A newer run of the same query has taken over; this one can no longer decide anything."""

    restart: ClassVar[Restart] = "no"


class OvertakenError(FencedError):
    """Another run went on while this one started, and this one has fenced it since: neither goes
    on, and the next start does.
    """

    restart: ClassVar[Restart] = "once"


class InDoubtError(StoppedError):
    """A decided batch is not complete on every sink; the next start completes it."""


class FormerSinkError(InDoubtError):
    """A decided batch is not complete on a sink that the query no longer has, or that is of another
    kind now; a start with the former sink under that name completes it.
    """

    restart: ClassVar[Restart] = "no"


class TransactionLostError(InDoubtError):
    """A prepared transaction of a decided batch no longer exists, so its rows are not visible;
    the next start writes them again.
    """

    restart: ClassVar[Restart] = "once"


class NondeterministicReplayError(InDoubtError):
    """A lost transaction can't be written again: the replay gave other rows, or the same rows in
    other tasks, than were decided.
    """

    restart: ClassVar[Restart] = "no"


class OutcomeUnknownError(StoppedError):
    """An append to the commit log got no answer; the next start finds out whether it happened."""


class CheckpointMismatchError(OnceForAllError):
    """Spark's checkpoint and the commit log tell different stories; skipping could lose rows,
    writing could double them.
    """

    restart: ClassVar[Restart] = "no"


class PlanOverwrittenError(CheckpointMismatchError):
    """Spark goes on from a plan of the last decided batch that isn't the one that was decided; on
    a store the next start puts that one back.
    """

    restart: ClassVar[Restart] = "once"


class DivergenceError(OnceForAllError):
    """A replay of a decided batch gave other rows than those that were decided."""

    restart: ClassVar[Restart] = "no"


class CommitLogError(OnceForAllError):
    """The commit log cannot be read or written."""


class CorruptEntryError(CommitLogError):
    """An entry is torn, truncated, or does not match its checksum."""

    restart: ClassVar[Restart] = "no"


class ForeignEntryError(CommitLogError):
    """Something that onceforall did not write lies in the commit log."""

    restart: ClassVar[Restart] = "no"


class NewerEntryError(CommitLogError):
    """An entry was written by a newer release of onceforall."""

    restart: ClassVar[Restart] = "no"


class SinkUnavailableError(OnceForAllError):
    """A sink did not answer. What was asked of it may have happened; asking again is safe."""


class SourceError(OnceForAllError):
    """A source can't go on. It has skipped nothing, and a restart begins where it ended."""

    restart: ClassVar[Restart] = "no"


class DataLossError(SourceError):
    """Records that the query hasn't read are gone from the source, or may be."""


class SourceUnavailableError(SourceError):
    """A source did not answer for longer than its retries last."""

    restart: ClassVar[Restart] = "yes"


class EmbeddedServerError(OnceForAllError):
    """A server for demo or tests could not be started; the message says why and what helps."""

    restart: ClassVar[Restart] = "no"


class ProtocolViolationError(OnceForAllError):
    """An event that the protocol does not allow in this state: a bug in onceforall. The state is
    unchanged.
    """

    restart: ClassVar[Restart] = "once"
