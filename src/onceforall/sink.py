"""The contract of a two-phase sink, and its small value types. ``docs/own-sink.md`` builds one;
``onceforall.testing.conformance`` checks one.

A sink is one object that the user creates on the driver, and that is used on both sides: each run
takes a copy (``copy.copy``) for the driver, and pickles it to the executors. In this order, for a
batch:

- *method* (*where*): *when, and how often*
- ``identity`` (driver): at ``start()`` and with the run's query id, before ``check``; after it
  where there was no target yet
- ``holds`` (driver): with ``identity``, where the log knows a batch that must be there; and right
  before each ``recover``, then without a session in its ``StartInfo``
- ``check`` (driver): at ``start()`` and again with the run's query id, before any data moves
- ``columns`` (driver): at ``start()`` and once or more per write: what of the rows the sink takes
- ``recover`` (driver): at each start after ``commit`` of what is decided, after an abort, and now
  and then in a thread of its own
- ``check_beside`` (driver): behind all sinks' ``check``: what of the query's other sinks it can't
  share a batch with
- ``begin_batch`` (driver): before the first task of each attempt at a batch, for sinks that the
  batch is written to; ``end_batch`` when it is over
- ``task_imports`` (driver): at ``start()`` and with the run's query id: what every executor must be
  able to import
- ``secrets`` (driver): once per batch; the tasks find the values in ``TaskAttempt.secrets``
- ``begin_transaction`` (task): once per task attempt and write, before its first row; without rows
  it isn't called at all
- ``invoke`` (task): once per Arrow record batch of at least one row
- ``pre_commit`` (task): once, after the last ``invoke``, on a thread beside those of the task's
  other sinks and writes
- ``discard`` (task): when anything of the task fails, be it another sink: before, after or instead
  of ``pre_commit``
- ``confirm`` (driver): once per batch for all its committables, when all tasks have ended, right
  before the decision
- ``commit`` (driver): after the durable decision, until it has an answer; the same again after a
  crash, in another process
- ``retire`` (driver): after DONE: fence committed transactions whose handles must not be used
  again; and lost ones
- ``abort`` (driver): for an attempt that will never be decided
- ``close`` (driver): at the end of a run, and after the checks of ``start()``

With ``Capabilities.empty_batches`` a write without any row gets a transaction on the driver:
``begin_transaction``, then ``pre_commit``.

**Concurrency.** In a task ``pre_commit`` of two transactions of one object may run at once, nothing
else does. Tasks run in several processes, and one process runs many, one after the other: of
several batches, attempts and queries. On the driver one thread goes through a batch, and another
one may call ``holds`` and ``recover`` at any time beside it. Another process may do all of that for
the same query: a driver that was thought dead and was only frozen, with its tasks.

**Any instruction may be the last.** ``commit``, ``abort``, ``retire`` and ``recover`` are
idempotent: in another process, at once in several, after having been cut off anywhere, and for what
was committed or aborted long ago (``abort`` of something committed does nothing, ``commit`` of
something committed is a success, and adds nothing even when later batches are there by now). Nobody
waits for ever for a lock that a frozen process holds.

**The decision.** ``pre_commit`` and ``confirm`` exhaust every reason to refuse: what they return is
durable, is seen by no reader, and can be completed by any process that knows the committable. After
the decision a sink may be away (``SinkUnavailableError``), but it may not say no.

**What a sink may rely on.**

- ``commit`` has a permit, and only a durable decision makes one. Nothing that a decision names is
  ever given to ``abort``, nor covered by a sweep before it is complete.
- A batch begins when the one before it is complete on every sink.
- A sweep of the run's own generation (``Sweep.own``) comes only when no task of the batch is
  writing any more, except for losing attempts.
- Sweeps of older generations are repeated, so that what a late task leaves behind one is found by
  the next.
- ``TaskAttempt.name`` is given to one attempt only, for ever.

**The target.** A name and an address don't say whether the system behind them is the one that the
last batch went to: a volume may not be mounted, a cluster be rebuilt, a database be restored from a
backup. So ``identity`` tells one target from another, and ``holds`` whether a batch is there. The
commit log keeps, per sink, identity and last batch; what is compared, and what is refused, is the
library's business (``protocol.identity``), before ``check`` makes anything. Two keys of a
committable take part in that:

- ``after``, which the library adds before ``confirm``: the last batch that the log knows to be
  complete in this sink. Where the sink can see that its target doesn't have it, ``confirm``
  refuses. It isn't there where the log knows none.
- ``identity``, which ``confirm`` may put into one committable or several: what the target was at
  that moment. Another one than the log's aborts the attempt.

Where a sink may keep what tells of a batch in several places of its target, and one of them may be
restored without the others, ``confirm`` also says which it is: a JSON object under the key
``place``. It comes back where the sink is asked for that batch: in ``StartInfo.place``, and, with
``after``, under ``after_place`` on the first committable.

**A committable** is a JSON object of less than 64 KiB with no secret in it. Its text ``name`` is
unique among the sink's task attempts of a batch, names the transaction in the world, and is what
``Sweep.covers`` or ``covers_name`` is asked. All committables of a batch are in one entry of the
commit log, which others may read and which later releases of the sink must understand. The library
adds the keys ``task``, ``after``, ``after_place``, ``rows`` (where rows are kept) and, in
``TaskAttempt.reusable``, ``batch``: a sink has none of its own under these names, and hands back
what it doesn't know. The
size is checked by the conformance suite only: the attempt is aborted for any other committable that
breaks these rules (``protocol.contract``), and for what ``confirm`` returns that is not the same
transactions with the library's keys.

A sink may say something for several committables of a batch in one of them only: under the key
``shared``, a JSON object whose keys each mean one content for ever, such as a hash of it. When the
one that says it is lost, the first of the sink's that stay takes over those of its keys that none
of them has, however the lost rows come back; so what stays is understood without what was lost.
What is said of a whole write under another key goes on only where lost rows are given up by a
person's word: the first of the same run that stays of the write gets the keys that none of them
has.

**What to raise.**

- ``OptionError``: the constructor: an argument is out of its range
- ``SchemaError``: ``columns``, ``check``: a column is missing or can't be stored; the message names
  it
- ``SinkCheckError``: ``check``: the system refuses what will be needed; the message names the
  remedy
- ``RefusedRecordError``: ``invoke``, ``pre_commit``, ``confirm``: a row that no replay can write;
  the message shows which. The task isn't repeated
- ``AttemptFailedError``: the same: this attempt failed, and a replay may succeed. Spark repeats a
  failed task as often as it is told to
- ``SinkUnavailableError``: on the driver: no answer from the system. After the decision it is asked
  again until there is one; sweeps and aborts are made later

Any other exception counts as ``AttemptFailedError`` before the decision, and as
``SinkUnavailableError`` after it; so do ``SystemExit``, asyncio's ``CancelledError`` and a
``BaseExceptionGroup``. What else is no ``Exception`` ends the run where it is raised after the
decision: the next start asks the sink again. No message shows a secret.

What a system can no longer commit though it was decided, because it forgot or aborted it by itself,
``commit`` reports as *lost* if there is proof, and as *in doubt* if there is none. The lost is
written again, by a replay of the tasks that wrote it or from kept rows (``redo="durable"``), in new
transactions.

**Pickling.** A pickled sink holds no secret value: its ``__getstate__`` leaves it out, ``secrets``
tells it on the driver, and module ``onceforall.task.secret_values`` brings it to the tasks. A sink
that does so needs a ``__copy__``
that keeps it: the driver's own copy needs the value. With Spark Connect the driver's side runs in
another process than the one that made the sink: there ``restored`` gives a pickled sink its secret
values back, and whatever else its ``__getstate__`` leaves out that the driver's side needs
(``driver_only``). A secret may also be a function, which is
pickled as code and called where it is needed. Connections and locks are made where they are used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from onceforall.errors import UnsupportedQueryError
from onceforall.protocol.entries import Committable
from onceforall.protocol.history import CommitPermit
from onceforall.protocol.names import TransactionName, sink_code
from onceforall.protocol.sweeping import Sweep

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType
    from typing_extensions import Self

__all__ = [
    "BatchAttempt",
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
    """What a sink can do. ``start()`` refuses, with the reason, what can't be exactly-once
    (``protocol.eligibility``).

    Attributes:
        two_phase: a prepared transaction survives the process that prepared it, and another process
            can complete it.
        transaction_timeout_ms: after which time the system aborts an open transaction by itself;
            None: never. The coordinator decides a batch only with enough of it left.
        delivery: ``exactly_once``, ``at_least_once`` or ``none``; the latter two take no part in
            the decision: ``pre_commit`` returns None. With ``exactly_once`` and neither
            ``two_phase`` nor ``idempotent`` the query doesn't start.
        idempotent: writing the same rows once more has no further effect, so that ``exactly_once``
            holds without ``two_phase``; ``pre_commit`` then returns None, when the rows are durable
            and visible.
        output_modes: the output modes of a query that the sink can serve; a query with another one
            doesn't start.
        one_task_per_key: the columns, as ``columns`` names them, whose equal values must all come
            to one task of a batch; the rows are shuffled for that, in a job of this sink's own, and
            a second write to the sink in one batch is refused. Empty: any task may get any row.
        empty_batches: a write without any row still needs a transaction (one that replaces what is
            there); it is then opened on the driver, and gets no ``invoke``.
        replaces_by: the columns by which a row takes the place of one that an earlier batch wrote;
            empty: it doesn't. A ``transform`` that aggregates is then warned about once, for an
            aggregate of one batch would stand where a total was meant.
    """

    two_phase: bool
    transaction_timeout_ms: int | None = None
    delivery: str = "exactly_once"
    idempotent: bool = False
    output_modes: frozenset[str] = frozenset({"append", "update", "complete"})
    one_task_per_key: tuple[str, ...] = ()
    empty_batches: bool = False
    replaces_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class StartInfo:
    """What a sink learns at start, on the driver.

    Attributes:
        query_id: Spark's query id; empty in the check that the first ``start()`` makes, before
            Spark has given one out.
        sink: the sink's name in its query.
        spark: the query's session.
        output_mode: the query's: ``append``, ``update`` or ``complete``.
        place: for ``holds``: what ``confirm`` put under ``place`` for that batch; None: it didn't,
            or nobody knows.
        asked_again: for ``holds``: whether whoever asks comes again anyway (a sweep), so that a
            system that doesn't answer at once need not be waited for.
    """

    query_id: str
    sink: str
    spark: SparkSession | None = None
    output_mode: str = "append"
    place: Mapping[str, Any] | None = None
    asked_again: bool = False


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
        slot: a small number that no other task attempt of this batch has: not a retried one, not a
            speculative one, not one of a resubmitted stage.
        incarnation: raised whenever an attempt of an earlier batch may still be alive:
            (incarnation, slot) is never given out to two attempts that can live at the same time,
            in the whole generation.
        reusable: committables of this sink that are complete without any doubt, each as
            ``CommitReport.completed`` gave it, plus ``"batch"``: a live producer that is exactly in
            this state may go on.
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
        """A name that no other attempt ever has, for whatever the attempt leaves in the world;
        ``Sweep.covers_name`` reads it.
        """
        code = sink_code(self.sink)
        parts = self.generation, self.batch, self.write, self.partition, self.incarnation, self.slot
        return str(TransactionName(self.query_id, code, *parts))


@dataclass(frozen=True)
class LostTransaction:
    """A decided transaction that the system no longer has, or can't tell of, with the system's
    own words.

    Attributes:
        committable: which.
        reason: why, in words that say what would help.
        is_open: it is in doubt though it has not ended, because rows of it are gone: nobody has
            seen any of the others, and to hold it for committed would leave it open.
    """

    committable: Committable
    reason: str
    is_open: bool = False


@dataclass(frozen=True)
class CommitReport:
    """The answers to a ``commit``: every committable is in exactly one of the four.

    Attributes:
        completed: committed now or before, every request answered at the first try: its producer
            may go on.
        retired: committed, but a request for it saw a retry, a timeout or a disconnect: fenced
            after DONE, never used again.
        lost: proved to have no effect, now or ever: aborted by the system itself.
        in_doubt: neither committed nor proved to be lost, and asking again will not help; the
            reason says what would.
    """

    completed: tuple[Committable, ...] = ()
    retired: tuple[Committable, ...] = ()
    lost: tuple[LostTransaction, ...] = ()
    in_doubt: tuple[LostTransaction, ...] = ()


@dataclass(frozen=True)
class BatchAttempt:
    """Which attempt at which batch begins.

    Attributes:
        query_id: Spark's query id, stable over restarts.
        sink: the sink's name in its query.
        generation: the run's generation in the commit log.
        batch: Spark's batch id.
    """

    query_id: str
    sink: str
    generation: int
    batch: int


class TwoPhaseCommitSink(ABC):
    """A sink that takes part in the two-phase commit of a batch.

    The module's docstring says what is called where.
    """

    kind: ClassVar[str] = "sink"
    """A short word for the kind of sink, which is its own and never changes; part of the default
    name.

    A decision has it, and no sink of another kind is asked to complete what this one has prepared.
    """

    @property
    def default_name(self) -> str:
        """The sink's name in its query when the user gives none: its kind and target, the same
        at each start. By default the kind.
        """
        return self.kind

    @property
    def capabilities(self) -> Capabilities:
        """What this sink can do, as configured.

        By default: two-phase commit, and no transaction ever times out.
        """
        return Capabilities(two_phase=True)

    def columns(self, schema: StructType) -> list[Column]:
        """Return the columns that the sink writes, named and cast as ``invoke`` wants them. By
        default all, as they are.

        Raises:
            SchemaError: a column is missing or of a type that the sink cannot write; the message
                names it.
        """
        from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by

        return [F.col(f"`{name.replace('`', '``')}`") for name in schema.names]

    @property
    def lock_order(self) -> tuple[str, ...]:
        """Where the locks that this sink keeps until the decision stand among those of all sinks of
        all queries. By default it keeps none: empty.

        Two queries that write to the same systems could otherwise wait for each other, each for
        what the other one holds until its own decision, which no server sees. The sinks of a query
        that have an order hear of a batch (``begin_batch``) and confirm it one after the other, in
        this order; the others confirm beside them. It must name the thing, not what the user calls
        it, and is asked for after ``check``.
        """
        return ()

    def identity(self, start: StartInfo) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Return what tells the target from any other that may come to lie under the same name and
        address. Nothing is created.

        A small JSON object, the same in every process and for as long as the target is the same: an
        id that the system made, not an address. A later release of the sink may add keys; those
        that both have are compared. By default None.

        Args:
            start: its ``query_id`` may be empty.

        Returns:
            None when there is no target yet, or none any more; or always, and then nothing is ever
            compared.

        Raises:
            OnceForAllError: as ``check``.
        """
        return None

    def holds(self, start: StartInfo, batch: int) -> bool | None:  # noqa: ARG002
        """Tell whether the target has a batch that the log knows to be complete there: a restored
        one may be behind. Nothing is created.

        Args:
            start: whose batch.
            batch: one in which this query wrote to this sink, in whichever of its modes.

        Returns:
            False when it certainly doesn't; None, by default, when that can't be told.

        Raises:
            OnceForAllError: as ``check``.
        """
        return None

    def check(self, start: StartInfo) -> None:
        """Check at start, before any data moves, what would make a later call fail (target, rights,
        limits).

        Raises:
            SinkCheckError, OptionError, SinkUnavailableError: naming the thing and the remedy.
        """

    def check_beside(self, start: StartInfo, others: Mapping[str, TwoPhaseCommitSink]) -> None:
        """Check at start, when all sinks were checked, whether a batch can be written to this sink
        and to the query's other ones.

        Args:
            start: as ``check`` got it.
            others: the query's other sinks by name.

        Raises:
            SinkCheckError: naming both sinks and the remedy.
        """

    def begin_batch(self, batch: BatchAttempt) -> None:
        """Hear that tasks are about to write a batch. By default nothing is done. Nothing may rest
        on it that a crash would break.

        Raises:
            SinkUnavailableError: the system is away; the attempt fails.
        """

    def stop_waiting(self) -> None:
        """End, soon and with any error, what ``begin_batch`` or ``confirm`` waits for in another
        thread: the query was asked to stop, and nothing of the batch is decided.

        Called again and again until they have returned, and perhaps a moment later; it must not
        block and not raise. By default nothing is done: a wait of such a sink holds up the stop,
        and with it the readers of the others, until it is over.
        """

    def stop_committing(self) -> None:
        """End, soon and with any error, what ``commit`` (or a ``retire`` or ``recover`` behind it)
        waits for in another thread: the query was asked to stop some seconds ago, and the next
        start commits again what is left.

        Called again and again until they have returned, and perhaps a moment later; it must not
        block and not raise. By default nothing is done: the stop then waits for the commit.
        """

    def end_batch(self, batch: BatchAttempt) -> None:
        """Hear that this run does nothing more for a batch that ``begin_batch`` named: it is
        complete, aborted, or left to the next start.
        """

    @property
    def task_imports(self) -> Mapping[str, str]:
        """What the sink's tasks import, besides this library: for each module, what to give to
        ``pip install`` for it.

        Each executor that is there is asked at ``start()`` whether it can import them; by default
        nothing.
        """
        return {}

    def secrets(self) -> Mapping[str, str]:
        """Return the secret values, by option, that this sink's tasks need and that a pickle of
        it leaves out.
        """
        return {}

    @property
    def driver_only(self) -> Mapping[str, Any]:
        """What a pickle leaves out besides secret values, for only the driver's side needs it;
        Spark Connect takes it to the server. By default nothing.
        """
        return {}

    @property
    def local_paths(self) -> Sequence[str]:
        """The paths of files and folders that it was given, as they were given. A client of Spark
        Connect refuses relative ones: its working folder isn't the server's. By default none.
        """
        return ()

    def restored(self, secrets: Mapping[str, str], driver_only: Mapping[str, Any]) -> Self:
        """Return this sink, which was unpickled, with what its pickle has left out.

        Args:
            secrets: what ``secrets`` said where the sink was made.
            driver_only: what ``driver_only`` said there.

        Returns:
            A sink whose driver's side works; it may be this one, changed.

        Raises:
            UnsupportedQueryError: by default, where there is something to be restored: the class
                doesn't say how.
        """
        if secrets or driver_only:
            raise UnsupportedQueryError(
                f"{type(self).__name__} keeps {', '.join(sorted({*secrets, *driver_only}))} out of "
                "its pickle, and doesn't say how to get it back on a Spark Connect server. Give "
                "functions in place of the values, or let the class override 'restored'."
            )
        return self

    @abstractmethod
    def begin_transaction(self, attempt: TaskAttempt) -> Any:
        """Open a transaction in a task and return the sink's own object for it.

        It stays in this process. Earlier attempts of the task, and earlier batches' attempts, may
        still be writing theirs.
        """

    @abstractmethod
    def invoke(self, transaction: Any, rows: pa.RecordBatch) -> None:
        """Write rows within the transaction: the columns of ``columns``, at least one row. No
        reader sees them yet.
        """

    @abstractmethod
    def pre_commit(self, transaction: Any) -> Committable | None:
        """Make everything written durable and ready to commit, and return its committable; from
        then on only the driver ends it.

        Returns:
            What another process needs to commit or abort it; None when nothing needs a commit (and
            nothing is left to sweep). Where rows were written, None is for sinks alone whose
            capabilities say ``idempotent``, or another delivery than ``exactly_once``: from any
            other, the task fails.
        """

    def confirm(self, committables: Sequence[Committable]) -> Sequence[Committable]:
        """Look at all prepared transactions of a batch once more, on the driver, right before the
        decision.

        Returns:
            The committables, in their order, each with the library's keys as they were, perhaps
            with what a later proof of their outcome needs. Any other answer aborts the attempt.

        Raises:
            OnceForAllError: the batch must not be decided; the attempt is aborted.
        """
        return committables

    def discard(self, transaction: Any) -> None:
        """Give up a transaction in the task that opened it. Never raises; what it cannot abort, a
        sweep finds. By default nothing.

        It may have pre-committed already: when another sink of the same task fails, the task as a
        whole has failed.
        """

    @abstractmethod
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:
        """Commit all of them, in parallel where it can; idempotent: "already committed" is a
        success.

        Args:
            permit: the proof that a durable decision names these committables; nothing commits
                without one.
            committables: what ``pre_commit`` returned, perhaps in another process, long ago.

        Returns:
            Each committable once. What is no such report stops the run (ProtocolViolationError);
            the batch stays decided, and the next start asks again.

        Raises:
            SinkUnavailableError: no answer for at least one; the coordinator asks again for all.
        """

    @abstractmethod
    def abort(self, committables: Sequence[Committable]) -> None:
        """Abort prepared transactions of an attempt that will never be decided.

        Raises:
            SinkUnavailableError: at least one may still be open; a sweep finds it later.

        What is committed already stays so; what is gone already is no error.
        """

    def retire(self, committables: Sequence[Committable]) -> None:
        """Fence handles, so that a late request finds another epoch: of committed transactions
        after DONE, and of lost ones.

        Raises:
            SinkUnavailableError: at least one is not fenced yet.
        """

    @abstractmethod
    def recover(self, sweep: Sweep) -> int:
        """Find the query's open transactions in the world, abort each that the sweep covers, and
        return how many.

        Ask of each one that can be read back as a whole as this query's, also of those that a sink
        with another name opened.

        Raises:
            SinkUnavailableError: not all could be looked at; the coordinator asks again later.
        """

    def close(self) -> None:
        """Release what the driver's side holds (connections).

        The sink may be used again afterwards.
        """
