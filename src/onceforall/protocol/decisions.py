"""What the protocol tells the coordinator to do.

Pure, frozen values; each is answered by an event unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onceforall.errors import OnceForAllError
from onceforall.protocol.entries import Claim, Commit, Committable
from onceforall.protocol.history import CommitPermit
from onceforall.protocol.redo import Task
from onceforall.protocol.sweeping import Sweep


@dataclass(frozen=True)
class InspectLog:
    """Read the newest claim, and whether our own chain (-1: we have none) is sealed. Answer:
    LogInspected.
    """

    generation: int


@dataclass(frozen=True)
class ClaimGeneration:
    """Create entry 0 of the next chain. Answer: GenerationClaimed."""

    claim: Claim


@dataclass(frozen=True)
class SealPast:
    """Seal every chain below ours. Answer: PastSealed."""

    generation: int


@dataclass(frozen=True)
class CommitSinks:
    """Commit on every sink, in parallel, until each has answered.

    Answer: SinksCommitted or StopRequested.
    """

    permit: CommitPermit
    committables: Mapping[str, tuple[Committable, ...]]


@dataclass(frozen=True)
class RecoverSinks:
    """Per sink, each on its own: commit what is decided and not done, then sweep, now and again
    later. Answer: SinksRecovered or StopRequested.

    ``commit``: None when nothing is left to complete.
    """

    commit: CommitSinks | None
    sweeps: Mapping[str, Sweep]


@dataclass(frozen=True)
class FenceLost:
    """Fence lost transactions, before they are written again.

    Answer: LostFenced, or StopRequested.
    """

    committables: Mapping[str, tuple[Committable, ...]]


@dataclass(frozen=True)
class RunWrites:
    """Run the user's function and the jobs of its writes. Answer: WritesPrepared or WritesFailed.

    ``generation`` (that of names) and ``incarnation`` are part of the name of every new handle; see
    ``state.Run``. ``redo``: only these tasks write, all others only digest; None: all write.
    ``after``: per sink, the last batch that is complete there as far as the log knows; see
    ``identity.predecessors``. ``places``: see ``identity.places``.
    """

    batch: int
    generation: int
    reusable: Mapping[str, tuple[Committable, ...]]
    incarnation: int = 0
    redo: frozenset[Task] | None = None
    after: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class WriteKept:
    """Write lost transactions again from the rows that were kept beside the log. Answer:
    WritesPrepared or WritesFailed.

    ``generation``: that of names, as in RunWrites; ``after`` and ``places`` are as there, too.
    """

    batch: int
    generation: int
    incarnation: int
    lost: Mapping[str, tuple[Committable, ...]]
    after: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class TakeDigests:
    """Run the user's function again, with writers that only digest. Answer: DigestsTaken or
    WritesFailed.

    ``generation``: that of names, as in RunWrites. ``writes_next``: the same rows may be written
    after that (RunWrites with a ``redo``), so that a stateful query had better compute them once.
    """

    batch: int
    generation: int
    writes_next: bool = False


@dataclass(frozen=True)
class AppendCommit:
    """Append the decision. Answer: DecisionAppended, AppendFenced, AppendTooLate, AppendRefused or
    AppendUnknown.

    ``not_after_ms``: the entry must not be created later than that, on a clock that goes on while
    the machine is suspended; None: at any time.
    """

    generation: int
    commit: Commit
    not_after_ms: int | None = None


@dataclass(frozen=True)
class SweepOwn:
    """Abort what losing task attempts of this batch, or of any before a roll, left open.

    No answer; best effort.
    """

    sweeps: Mapping[str, Sweep]


@dataclass(frozen=True)
class ReturnBatch:
    """Return from ``foreachBatch``: the batch is complete on every sink. No answer."""

    batch: int


@dataclass(frozen=True)
class AppendDone:
    """Append the batch's DONE; may run beside Spark's own commit log. Answer: DoneAppended,
    AppendFenced or AppendUnknown.
    """

    generation: int
    batch: int


@dataclass(frozen=True)
class RetireHandles:
    """Fence handles whose requests saw a retry. No answer; best effort."""

    committables: Mapping[str, tuple[Committable, ...]]


@dataclass(frozen=True)
class AbortAttempt:
    """Abort an attempt that will never be decided. Answer: AttemptAborted."""

    committables: Mapping[str, tuple[Committable, ...]]
    sweeps: Mapping[str, Sweep]


@dataclass(frozen=True)
class ReportDivergence:
    """Tell the user that a replay gave other rows than were decided. No answer."""

    batch: int
    message: str


@dataclass(frozen=True)
class StopRun:
    """Raise this error from ``foreachBatch``.

    No answer. It may be about a sink, and about a transaction there.

    Attributes:
        error: its class. Where the cause is of a class below, it is of that one.
        message: its words.
        sink: the name of the sink that it is about.
        transaction: the name of the transaction that it is about.
        in_own_words: the cause, where it is of this class, doesn't say what a person has to know;
            else it is raised as it is.
    """

    error: type[OnceForAllError]
    message: str
    sink: str | None = None
    transaction: str | None = None
    in_own_words: bool = False


Decision = (
    InspectLog
    | ClaimGeneration
    | SealPast
    | RecoverSinks
    | FenceLost
    | RunWrites
    | WriteKept
    | TakeDigests
    | AppendCommit
    | CommitSinks
    | SweepOwn
    | ReturnBatch
    | AppendDone
    | RetireHandles
    | AbortAttempt
    | ReportDivergence
    | StopRun
)
