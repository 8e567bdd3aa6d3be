"""The contract of a two-phase sink, and its small value types.

A sink is one object that is created by the user on the driver, pickled to the executors, and used on both sides:

==================  ========  ==========================================================================================
method              where     when
==================  ========  ==========================================================================================
``check``           driver    once per start, before any data moves; raises what would fail later
``columns``         driver    once per write; what of the rows the sink takes
``begin_transaction``  task   once per task attempt that has rows, before the first ``invoke``
``invoke``          task      once per Arrow record batch
``pre_commit``      task      once, after the last ``invoke``; from its return on, only the driver may end the transaction
``confirm``         driver    once per batch and sink, when all tasks have pre-committed, right before the decision
``discard``         task      instead of ``pre_commit`` and after a failure of it; best effort
``commit``          driver    after the durable decision, until it has an answer; again after a crash, in another process
``abort``           driver    for an attempt that will never be decided
``retire``          driver    after DONE: fence committed transactions whose handles must not be used again
``recover``         driver    at each start and now and then: abort what a ``Sweep`` covers
``secrets``         driver    at each job; the tasks find the values in their ``TaskAttempt``
==================  ========  ==========================================================================================

``commit``, ``abort``, ``retire`` and ``recover`` are idempotent and may run in several processes at once. ``pre_commit`` and ``confirm``
exhaust every reason to refuse: after the decision a sink may be away (``SinkUnavailableError``, asked again), but may not say no.

What a system can no longer commit though it was decided, because it forgot or aborted it by itself, a sink reports as *lost* if it
has proof, and as *in doubt* if it has none. The lost is written again, by a replay of the tasks that wrote it or from kept rows
(``redo="durable"``), in new transactions.

A pickled sink holds no secret value: its ``__getstate__`` leaves it out, ``secrets`` tells it on the driver, and module
``onceforall.secrets`` brings it to the tasks. A secret may also be a function, which is pickled as code and called where it is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from onceforall.protocol.entries import Committable
from onceforall.protocol.machine import CommitPermit
from onceforall.protocol.names import TransactionName, sink_code
from onceforall.protocol.sweeping import Sweep

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "Capabilities",
    "CommitPermit",
    "CommitReport",
    "Committable",
    "LostTransaction",
    "StartInfo",
    "Sweep",
    "TaskAttempt",
    "TwoPhaseCommitSink",
]


@dataclass(frozen=True)
class Capabilities:
    """What a sink can do.

    Attributes:
        two_phase: a prepared transaction survives the process that prepared it, and another process can complete it.
        transaction_timeout_ms: after which time the system aborts an open transaction by itself; None: never. The coordinator
            decides a batch only with enough of it left.
        delivery: ``exactly_once``, ``at_least_once`` or ``none``; the latter two take no part in the decision.
        idempotent: writing the same rows once more has no further effect, so that ``exactly_once`` holds without ``two_phase``.
        output_modes: the output modes of a query that the sink can serve.
        one_task_per_key: the columns, as ``columns`` names them, whose equal values must all come to one task of a batch; the rows
            are shuffled for that, in a job of this sink's own. Empty: any task may get any row.
        empty_batches: a write without any row still needs a transaction (one that replaces what is there); it is
            then opened on the driver, and gets no ``invoke``.
    """

    two_phase: bool
    transaction_timeout_ms: int | None = None
    delivery: str = "exactly_once"
    idempotent: bool = False
    output_modes: frozenset[str] = frozenset({"append", "update", "complete"})
    one_task_per_key: tuple[str, ...] = ()
    empty_batches: bool = False


@dataclass(frozen=True)
class StartInfo:
    """What a sink learns at start, on the driver.

    Attributes:
        query_id: Spark's query id; empty in the check that ``start()`` makes before Spark has given one out.
        sink: the sink's name in its query.
        spark: the query's session.
        output_mode: the query's: ``append``, ``update`` or ``complete``.
    """

    query_id: str
    sink: str
    spark: SparkSession | None = None
    output_mode: str = "append"


@dataclass(frozen=True)
class TaskAttempt:
    """Which attempt of which task writes; everything that a name in the world is made of.

    Attributes:
        query_id: Spark's query id, stable over restarts.
        sink: the sink's name in its query.
        generation: the run's generation in the commit log.
        batch: Spark's batch id.
        write: the ordinal of this write within the batch.
        partition: Spark's partition number.
        slot: a small number that no other task attempt of this batch has: not a retried one, not a speculative one, not one of
            a resubmitted stage.
        incarnation: raised whenever an attempt of an earlier batch may still be alive: (incarnation, slot) is never given out to
            two attempts that can live at the same time, in the whole generation.
        reusable: committables of this sink that are complete without any doubt, each as ``CommitReport.completed`` gave it,
            plus ``"batch"``: a live producer that is exactly in this state may go on (design.md §2.2).
        secrets: what the sink's ``secrets`` said on the driver; never shown.
    """

    query_id: str
    sink: str
    generation: int
    batch: int
    write: int
    partition: int
    slot: int
    reusable: tuple[Committable, ...] = ()
    incarnation: int = 0
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """A name that no other attempt ever has, for whatever the attempt leaves in the world; ``Sweep.covers_name`` reads it."""
        code = sink_code(self.sink)
        parts = self.generation, self.batch, self.write, self.partition, self.incarnation, self.slot
        return str(TransactionName(self.query_id, code, *parts))


@dataclass(frozen=True)
class LostTransaction:
    """A decided transaction that the system no longer has, or can't tell of, with the system's own words."""

    committable: Committable
    reason: str


@dataclass(frozen=True)
class CommitReport:
    """The answers to a ``commit``: every committable is in exactly one of the four.

    Attributes:
        completed: committed now or before, every request answered at the first try: its producer may go on.
        retired: committed, but a request for it saw a retry, a timeout or a disconnect: fenced after DONE, never used again.
        lost: proved to have no effect, now or ever: aborted by the system itself.
        in_doubt: neither committed nor proved to be lost, and asking again will not help; the reason says what would.
    """

    completed: tuple[Committable, ...] = ()
    retired: tuple[Committable, ...] = ()
    lost: tuple[LostTransaction, ...] = ()
    in_doubt: tuple[LostTransaction, ...] = ()


class TwoPhaseCommitSink(ABC):
    """A sink that takes part in the two-phase commit of a batch. The module's docstring says what is called where."""

    kind: ClassVar[str] = "sink"
    """A short word for the kind of sink; part of the default name."""

    @property
    def default_name(self) -> str:
        """The sink's name in its query when the user gives none: its kind and target, the same at each start. By default the kind."""
        return self.kind

    @property
    def capabilities(self) -> Capabilities:
        """What this sink can do, as configured. By default: two-phase commit, and no transaction ever times out."""
        return Capabilities(two_phase=True)

    def columns(self, schema: StructType) -> list[Column]:
        """Return the columns that the sink writes, named and cast as ``invoke`` wants them. By default all, as they are.

        Raises:
            SchemaError: a column is missing or of a type that the sink cannot write; the message names it.
        """
        from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by

        return [F.col(f"`{name.replace('`', '``')}`") for name in schema.names]

    def check(self, start: StartInfo) -> None:
        """Check at start, before any data moves, what would make a later call fail (target, rights, limits).

        Raises:
            SinkCheckError, OptionError, SinkUnavailableError: naming the thing and the remedy.
        """

    def secrets(self) -> Mapping[str, str]:
        """Return the secret values, by option, that this sink's tasks need and that a pickle of it leaves out."""
        return {}

    @abstractmethod
    def begin_transaction(self, attempt: TaskAttempt) -> Any:
        """Open a transaction in a task and return the sink's own object for it."""

    @abstractmethod
    def invoke(self, transaction: Any, rows: pa.RecordBatch) -> None:
        """Write rows (the columns of ``columns``) within the transaction."""

    @abstractmethod
    def pre_commit(self, transaction: Any) -> Committable | None:
        """Make everything written durable and ready to commit; return its committable, or None when nothing needs a commit."""

    def confirm(self, committables: Sequence[Committable]) -> Sequence[Committable]:
        """Look at all prepared transactions of a batch once more, on the driver, right before the decision.

        Returns:
            The committables, perhaps with what a later proof of their outcome needs.

        Raises:
            OnceForAllError: the batch must not be decided; the attempt is aborted.
        """
        return committables

    def discard(self, transaction: Any) -> None:
        """Give up a transaction in the task that opened it. Never raises; what it cannot abort, a sweep finds. By default nothing.

        It may have pre-committed already: when another sink of the same task fails, the task as a whole has failed.
        """

    @abstractmethod
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:
        """Commit all of them, in parallel where it can; idempotent: "already committed" is a success.

        Args:
            permit: the proof that a durable decision names these committables; nothing commits without one.
            committables: what ``pre_commit`` returned, perhaps in another process, long ago.

        Raises:
            SinkUnavailableError: no answer for at least one; the coordinator asks again for all.
        """

    @abstractmethod
    def abort(self, committables: Sequence[Committable]) -> None:
        """Abort prepared transactions of an attempt that will never be decided.

        Raises:
            SinkUnavailableError: at least one may still be open; a sweep finds it later.
        """

    def retire(self, committables: Sequence[Committable]) -> None:
        """Fence handles, so that a late request finds another epoch: of committed transactions after DONE, and of lost ones.

        Raises:
            SinkUnavailableError: at least one is not fenced yet.
        """

    @abstractmethod
    def recover(self, sweep: Sweep) -> int:
        """Find the query's open transactions in the world, abort each that the sweep covers, and return how many.

        Ask of each one that can be read back as a whole as this query's, also of those that a sink with another name opened.

        Raises:
            SinkUnavailableError: not all could be looked at; the coordinator asks again later.
        """

    def close(self) -> None:
        """Release what the driver's side holds (connections). The sink may be used again afterwards."""
