"""The facts that the coordinator observes and feeds to the protocol. Pure, frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onceforall.protocol.entries import Claim, Committable, Digest
from onceforall.protocol.history import History


@dataclass(frozen=True)
class Lost:
    """A decided transaction that its system no longer has, or can't tell of, with the system's own
    words; ``is_open`` as in ``onceforall.sink.LostTransaction``.
    """

    sink: str
    committable: Committable
    reason: str
    is_open: bool = False


@dataclass(frozen=True)
class SinkAnswers:
    """What one sink answered to a commit; see ``onceforall.sink.CommitReport``."""

    completed: tuple[Committable, ...] = ()
    retired: tuple[Committable, ...] = ()
    lost: tuple[Lost, ...] = ()
    in_doubt: tuple[Lost, ...] = ()


@dataclass(frozen=True)
class BatchRequested:
    """Spark calls ``foreachBatch``.

    Attributes:
        batch: Spark's batch id.
        offsets: where the batch's input ends, a text per source.
        stateful: the query keeps state.
        start: where the input begins; empty at the query's beginning, and where it isn't known any
            more. Only records need it.
        header: what Spark's offset log says of the batch besides the offsets.
        before: what it says so of the batch before; empty where it isn't known.
    """

    batch: int
    offsets: tuple[str, ...]
    stateful: bool
    start: tuple[str, ...] = field(default=(), compare=False)
    header: tuple[str, ...] = ()
    before: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class LogInspected:
    """What the log says before we write to it: its newest claim (None: it is new), and whether
    our own chain is sealed.
    """

    newest: Claim | None
    own_sealed: bool


@dataclass(frozen=True)
class GenerationClaimed:
    """Entry 0 of our chain is durable.

    ``previous`` is the claim of the newest generation below it.
    """

    generation: int
    previous: Claim | None


@dataclass(frozen=True)
class PastSealed:
    """Every chain below ours is sealed.

    Attributes:
        history: what they decided.
        spark_committed: the last batch in Spark's commit log, read after that; -1: none.
        sealed: our chain is, too: it is a newer run that went further.
        spark_unplanned: Spark's offset log lacks ``spark_committed``. Both are looked at behind
            that, and only where it has the batch that Spark asks for.
    """

    history: History
    spark_committed: int
    sealed: bool = False
    spark_unplanned: bool = False


@dataclass(frozen=True)
class SinksRecovered:
    """Every sink has completed what was decided, and was swept. Empty answers: nothing was pending.

    ``sealed``: our chain is sealed (only looked at when something is lost): a successor may have
    completed and fenced it.
    """

    answers: Mapping[str, SinkAnswers]
    sealed: bool = False


@dataclass(frozen=True)
class LostFenced:
    """Nobody can commit the lost transactions any more, however late a request arrives."""


@dataclass(frozen=True)
class DoneAppended:
    """The DONE of the decided batch is durable in our chain."""


@dataclass(frozen=True)
class WritesPrepared:
    """Every write of the batch is pre-committed.

    Attributes:
        committables: per sink.
        digests: per write.
        elapsed_ms: since before the first transaction was opened.
        attempts_lost: a task attempt failed, was speculative, or was resubmitted: it may have left
            an open transaction.
        began_ms: when that was, on the clock of ``AppendCommit.not_after_ms``.
    """

    committables: Mapping[str, tuple[Committable, ...]]
    digests: Mapping[str, tuple[Digest, ...]]
    elapsed_ms: int
    attempts_lost: bool
    began_ms: int = 0


@dataclass(frozen=True)
class WritesFailed:
    """The user's function or a write raised.

    ``committables``: what is known to be prepared nevertheless.
    """

    reason: str
    committables: Mapping[str, tuple[Committable, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class DigestsTaken:
    """A decided batch ran again without writing."""

    digests: Mapping[str, tuple[Digest, ...]]


@dataclass(frozen=True)
class DecisionAppended:
    """COMMIT is durable at this index of our chain: the batch is decided."""

    index: int


@dataclass(frozen=True)
class AppendFenced:
    """Our chain is sealed: a newer run owns the query, and the append did not happen."""


@dataclass(frozen=True)
class AppendTooLate:
    """The entry's time had passed before it could be created: the append did not happen, and
    never will.
    """


@dataclass(frozen=True)
class AppendRefused:
    """The entry can't be written as JSON: the append did not happen, and never will."""

    reason: str


@dataclass(frozen=True)
class AppendUnknown:
    """The append may or may not have happened, and cannot be found out."""

    reason: str


@dataclass(frozen=True)
class SinksCommitted:
    """Every sink answered to the commit of the batch.

    ``sealed``: our chain is sealed (only looked at when something is lost).
    """

    answers: Mapping[str, SinkAnswers]
    sealed: bool = False


@dataclass(frozen=True)
class StopRequested:
    """The query was asked to stop while a commit, or a recovery, still waits for a sink.

    ``said``: what each of them that has answered said last.
    """

    waiting_for: tuple[str, ...]
    said: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AttemptAborted:
    """What could be reached of the failed attempt is aborted; sweeps find the rest.

    Attributes:
        sealed: a newer run has sealed this run's chain, as far as could be seen.
    """

    sealed: bool = False


Event = (
    BatchRequested
    | LogInspected
    | GenerationClaimed
    | PastSealed
    | SinksRecovered
    | LostFenced
    | DoneAppended
    | WritesPrepared
    | WritesFailed
    | DigestsTaken
    | DecisionAppended
    | AppendFenced
    | AppendTooLate
    | AppendRefused
    | AppendUnknown
    | SinksCommitted
    | StopRequested
    | AttemptAborted
)
