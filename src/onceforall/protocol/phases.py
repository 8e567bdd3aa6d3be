"""Where a run stands, and what it knows there and nowhere else.

Frozen values; only ``machine.step`` makes a next one. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from onceforall.protocol.decisions import StopRun
from onceforall.protocol.entries import Commit, Committable
from onceforall.protocol.events import BatchRequested
from onceforall.protocol.history import Decided
from onceforall.protocol.redo import Redo


@dataclass(frozen=True)
class New:
    """Spark has asked for nothing yet."""

    title: ClassVar[str] = "new"


@dataclass(frozen=True)
class Inspecting:
    """The newest claim is being read, before this run makes one."""

    title: ClassVar[str] = "inspecting"
    request: BatchRequested


@dataclass(frozen=True)
class Claiming:
    """Entry 0 of the next chain is being created."""

    title: ClassVar[str] = "claiming"
    request: BatchRequested


@dataclass(frozen=True)
class Sealing:
    """The chains below ours are being sealed, so that what they decided is final.

    Attributes:
        request: Spark's.
        keeps_names: whether the run goes on under the names that it has, as one that rolls; else it
            takes those of its new generation as soon as all below is sealed.
    """

    title: ClassVar[str] = "sealing"
    request: BatchRequested
    keeps_names: bool


@dataclass(frozen=True)
class Recovering:
    """The sinks commit what the past decided, and abort what it left."""

    title: ClassVar[str] = "recovering"
    request: BatchRequested


@dataclass(frozen=True)
class FencingLost:
    """Lost transactions are being fenced, so that none of them can come back beside what
    replaces it.
    """

    title: ClassVar[str] = "fencing what is lost"
    request: BatchRequested
    decided: Decided
    redo: Redo


@dataclass(frozen=True)
class Looking:
    """The batch runs without writing, to find the lost rows by their digests."""

    title: ClassVar[str] = "looking at the replay"
    request: BatchRequested
    decided: Decided
    redo: Redo


@dataclass(frozen=True)
class WritingAgain:
    """Lost rows of a decided batch are being written, from where they were kept or from a
    replay.
    """

    title: ClassVar[str] = "writing lost rows again"
    request: BatchRequested
    decided: Decided
    redo: Redo


@dataclass(frozen=True)
class ClosingPast:
    """DONE of a batch that the past decided is being appended; Spark may ask for that batch or
    for the next.
    """

    title: ClassVar[str] = "closing the past"
    request: BatchRequested
    decided: Decided


@dataclass(frozen=True)
class Ready:
    """The last batch has its DONE; Spark asks for nothing."""

    title: ClassVar[str] = "ready"


@dataclass(frozen=True)
class Writing:
    """The user's function and its writes run; nothing is decided."""

    title: ClassVar[str] = "writing"
    request: BatchRequested


@dataclass(frozen=True)
class Digesting:
    """A batch that is complete runs again without writing: Spark lost its own record of it, and
    needs the state.
    """

    title: ClassVar[str] = "digesting"
    request: BatchRequested
    decided: Decided


@dataclass(frozen=True)
class Aborting:
    """An attempt that will never be decided is being aborted; the run stops after it."""

    title: ClassVar[str] = "aborting"
    stop: StopRun


@dataclass(frozen=True)
class Deciding:
    """COMMIT is being appended. Until the answer is known it may exist, so nothing that it names is
    aborted.

    Attributes:
        request: the batch that Spark waits for.
        commit: what is appended.
        redo: what of an earlier decision of this batch it replaces; None: the batch is decided for
            the first time.
    """

    title: ClassVar[str] = "deciding"
    request: BatchRequested
    commit: Commit
    redo: Redo | None


@dataclass(frozen=True)
class Committing:
    """COMMIT is durable, and the sinks commit; ``redo`` as in ``Deciding``."""

    title: ClassVar[str] = "committing"
    request: BatchRequested
    decided: Decided
    redo: Redo | None


@dataclass(frozen=True)
class Closing:
    """The batch is complete on every sink, and its DONE is being appended.

    Attributes:
        decided: the batch's decision.
        retired: per sink, handles to be fenced once DONE is durable.
    """

    title: ClassVar[str] = "closing"
    decided: Decided
    retired: Mapping[str, tuple[Committable, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stopped:
    """The run has ended, and says why as often as it is asked.

    Attributes:
        stop: why.
        maybe_decided: what is prepared and named by a COMMIT whose append got no answer: it is
            never aborted by this run.
    """

    title: ClassVar[str] = "stopped"
    stop: StopRun
    maybe_decided: Mapping[str, tuple[Committable, ...]] = field(default_factory=dict)


Phase = (
    New
    | Inspecting
    | Claiming
    | Sealing
    | Recovering
    | FencingLost
    | Looking
    | WritingAgain
    | ClosingPast
    | Ready
    | Writing
    | Digesting
    | Aborting
    | Deciding
    | Committing
    | Closing
    | Stopped
)
