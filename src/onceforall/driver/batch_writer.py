"""Runs one batch on Spark: the user's function, and one job per group of writes that share the
same rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onceforall.common import clock as clocks
from onceforall.common import logs
from onceforall.driver.batch_jobs import JobGroup, groups_of, is_one_group
from onceforall.driver.batch_rows import BatchRows
from onceforall.driver.batch_sinks import BatchSinks
from onceforall.driver.coordinator import Prepared
from onceforall.driver.progress import Outcome
from onceforall.driver.transaction import BatchFunction, BatchTransaction
from onceforall.errors import (
    RefusedRecordError,
    described,
)
from onceforall.failpoints import points as failpoints
from onceforall.protocol.decisions import RunWrites, TakeDigests, WriteKept
from onceforall.protocol.entries import Committable, Digest
from onceforall.protocol.redo import task_of
from onceforall.sink import TaskAttempt, TwoPhaseCommitSink
from onceforall.spark import errors as spark_errors
from onceforall.spark.classic import ClassicJobs
from onceforall.task import kept_rows as kept
from onceforall.task.projections import Projections
from onceforall.task.secret_values import Handover
from onceforall.task.write_task import (
    KeptRows,
    WriteKeptTask,
    WriteSpec,
    WriteTask,
    accepted,
    result_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from onceforall.spark.files import SparkFiles
    from onceforall.spark.surroundings import SparkJobs


logger = logs.logger("onceforall")


TASKS_END_WITHIN_S = 10.0
"""Spark kills the Python worker of a cancelled task after ``spark.python.task.killTimeout``, 2
seconds by default."""


@contextmanager
def _as_exception(where: str) -> Iterator[None]:
    """Turn what is no ``Exception`` and ends no process into one: asyncio's ``CancelledError``, a
    ``BaseExceptionGroup``, a class of the user's. The attempt is to be aborted as by any error.
    """
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"{described(error)} was raised {where}") from error


@dataclass
class SparkBatchWriter:
    """Writes one batch; made anew for each call of ``foreachBatch``.

    Attributes:
        frame: the batch.
        batch: its id.
        function: the user's function.
        sinks: the query's sinks by name.
        query_id: Spark's query id.
        consume_all: whether every partition must be consumed, so that the state stores commit.
        projections: the sinks' columns, kept over batches.
        keeper: decides whether the rows are kept until the batch is complete; None: they are not.
        spark_files: what Spark writes in the checkpoint, made durable before the decision; None: it
            is not (in tests of other things).
        clock: seconds, which go on while the machine is suspended.
        stop_requested: whether the query was asked to stop, so that no job may begin.
        query_name: what people call the query; None: by its id.
        jobs: starts the batch's jobs; None: those of a classic session.
    """

    frame: DataFrame
    batch: int
    function: BatchFunction
    sinks: Mapping[str, TwoPhaseCommitSink]
    query_id: str
    consume_all: bool
    projections: Projections
    keeper: kept.RowKeeper | None = None
    spark_files: SparkFiles | None = None
    clock: Callable[[], float] = clocks.now_s
    stop_requested: Callable[[], bool] = lambda: False
    query_name: str | None = None
    jobs: SparkJobs | None = None
    _results: list[dict[str, Any]] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    _empty: dict[int, Committable] = field(default_factory=dict)
    _undecided_by: int | None = None
    """The generation, while it writes a batch of which nothing is decided."""
    _aborted: bool = False
    outcome: Outcome = "skipped"
    """What has been done so far, for ``progress_of``."""
    _keeping: kept.Keeping | None = None

    @_as_exception("in an attempt at the batch")
    def write(self, decision: RunWrites) -> Prepared:
        """Write and pre-commit; see ``coordinator.BatchWriter``."""
        started = self.clock()
        self.outcome = "written" if decision.redo is None else "written again"
        self._undecided_by = decision.generation if decision.redo is None else None
        self._forget_results()
        with _plain_errors(self.batch, self.stop_requested):
            self._call_and_write(decision)
        return self._confirmed(started, self._digests(), decision)

    @_as_exception("in an attempt at the batch")
    def write_kept(self, decision: WriteKept) -> Prepared:
        """Write lost transactions again from the rows that were kept; see
        ``coordinator.BatchWriter``.
        """
        started = self.clock()
        self.outcome = "written again"
        with _plain_errors(self.batch, self.stop_requested):
            self._write_kept(decision)
        return self._confirmed(started, {}, decision)

    @_as_exception("in an attempt at the batch")
    def digest(self, decision: TakeDigests) -> Mapping[str, tuple[Digest, ...]]:
        """Run the batch again without writing; see ``coordinator.BatchWriter``."""
        self._forget_results()
        self.outcome = "replayed for its state"
        with _plain_errors(self.batch, self.stop_requested):
            self._call_and_write(decision)
        if self.spark_files is not None:
            # The replay has written state, of which Spark's next entry will speak.
            self.spark_files.written().result()
        return self._digests()

    def _forget_results(self) -> None:
        """Forget what an earlier pass came to: kept rows may have been written before, or the
        batch was only looked at.
        """
        self._results.clear()
        self._empty.clear()

    @cached_property
    def _jobs(self) -> SparkJobs:
        return ClassicJobs(self.frame) if self.jobs is None else self.jobs

    @cached_property
    def _sinks(self) -> BatchSinks:
        return BatchSinks(self.sinks, self.query_id, self.batch, self.stop_requested)

    @cached_property
    def _rows(self) -> BatchRows:
        """Over two passes where a write follows a look."""
        is_one_job = getattr(self.function, "writes_as_it_is", False) and is_one_group(
            self.frame, self.sinks, self.projections
        )
        return BatchRows(self.frame, self._jobs, for_state=self.consume_all, is_one_job=is_one_job)

    @cached_property
    def _secrets(self) -> Handover:
        others = {} if self.keeper is None else {kept.SECRETS: self.keeper.place.secrets}
        return Handover(self.sinks, others, in_session=self._jobs.in_session)

    def _confirmed(
        self,
        started: float,
        digests: Mapping[str, tuple[Digest, ...]],
        decision: RunWrites | WriteKept,
    ) -> Prepared:
        failpoints.hit("write.confirm.before")
        prepared = {
            name: _behind(cs, decision.after.get(name), decision.places.get(name))
            for name, cs in self.prepared_so_far().items()
        }
        synced = None if self.spark_files is None else self.spark_files.written()
        committables = self._sinks.confirmed(prepared)
        if synced is not None:
            synced.result()
        failpoints.hit("write.confirm.after")
        lost = self._attempts_lost()
        elapsed_ms = int((self.clock() - started) * 1000)
        return Prepared(committables, digests, elapsed_ms, lost, int(started * 1000))

    def prepared_so_far(self) -> Mapping[str, tuple[Committable, ...]]:
        """Return the committables of the jobs that have ended, not confirmed yet."""
        committables: dict[str, tuple[Committable, ...]] = {}
        prepared = [(result["write"], result.get("committable")) for result in self._results]
        for write, committable in [*prepared, *self._empty.items()]:
            if committable is not None:
                name = self._names[write]
                committables[name] = (*committables.get(name, ()), committable)
        return committables

    def rows_per_sink(self) -> Mapping[str, int]:
        """Return how many rows of the batch are for each sink, as far as its jobs have ended."""
        counts = dict.fromkeys(self._names.values(), 0)
        for result in self._results:
            counts[self._names[result["write"]]] += result["rows"]
        return counts

    @contextmanager
    def _described(self, step: str, sinks: Iterable[str] = ()) -> Iterator[None]:
        """Say in Spark's user interface, and wherever else its jobs are shown, what the jobs
        within do; their group stays Spark's, which is the run's id.
        """
        to = ", ".join(dict.fromkeys(sinks))
        with self._jobs.described(
            f"{self.query_name or self.query_id}, batch {self.batch}: "
            f"{step}{f' ({to})' if to else ''}"
        ):
            yield

    @contextmanager
    def _watched(self, *, several: bool) -> Iterator[None]:
        with ExitStack() as stack:
            if several:
                stack.enter_context(self._described("run the batch"))
            stack.enter_context(self._rows.watched(several=several))
            yield

    def wait_for_tasks(self) -> None:
        """Wait until no task of this run is active, for the attempt is aborted; see
        ``coordinator.BatchWriter``.
        """
        # First, for the JVM may be gone.
        self._aborted = True
        self._jobs.end_tasks(self.clock, TASKS_END_WITHIN_S)

    def forget_aborted(self) -> None:
        """Delete the rows that the attempt kept, if it was aborted: where the query is stopped for
        good, no later batch clears up behind it.

        Worth repeating, for the worker of a killed task may write for another moment.
        """
        if self._aborted and self.keeper is not None and self._undecided_by is not None:
            kept.forget_attempt(self.keeper.place, self._undecided_by, self.batch)

    @_as_exception("by the function of the batch")
    def _call(self, transaction: BatchTransaction, batch: DataFrame) -> None:
        self.function(batch, self.batch, transaction)

    def _call_and_write(self, decision: RunWrites | TakeDigests) -> None:
        try:
            self._call_and_write_pinned(decision)
        finally:
            # What a function gives up stays for the pass that follows, too.
            if not (isinstance(decision, TakeDigests) and decision.writes_next):
                self._rows.release()

    def _call_and_write_pinned(self, decision: RunWrites | TakeDigests) -> None:
        # The state must come from the very rows that are written.
        writes_next = isinstance(decision, TakeDigests) and decision.writes_next
        batch = self._rows.given(again=writes_next)
        # Asked while the function runs, for it may persist what it has made.
        transaction = BatchTransaction(
            self.sinks,
            self.projections,
            lambda frame: frame if frame is batch else self._jobs.pinned(frame, batch),
        )
        failpoints.hit("write.function.before")
        with (
            self._described("run the function of the batch"),
            self._jobs.around_the_function(),
        ):
            self._call(transaction, batch)
        failpoints.hit("write.function.after")
        transaction.close()
        if transaction.failure is not None:
            raise transaction.failure
        self._names = {i: name for i, (name, _) in enumerate(transaction.writes)}
        groups = groups_of(transaction.writes, self.sinks, batch, self.projections)
        self._keeping = self._how_kept(decision, transaction.given)
        consumed = bool(groups) and groups[0].frame is batch
        # A partition whose state store did not commit would fail the next batch.
        for_state = self.consume_all and not consumed
        reads = {id(group.frame): transaction.given_for(group.frame) for group in groups}
        self._rows.share(groups, [*reads.values()] + [batch] * for_state, needed=writes_next)
        with self._watched(several=len(groups) + for_state > 1):
            if for_state:
                with (
                    self._described("run the batch for its state"),
                    self._jobs.interruptible(),
                ):
                    self._rows.of(batch).count()
            task = self._task(decision)
            self._begin(decision, self._names.values())
            for group in groups:
                self._job(
                    replace(group, frame=self._rows.of(group.frame)),
                    replace(task, writes=tuple(self._spec(decision, i) for i in group.writes)),
                )
        if not task.digest_only:
            self._write_empty(task)

    def _begin(self, decision: RunWrites | TakeDigests | WriteKept, names: Iterable[str]) -> None:
        if not isinstance(decision, TakeDigests):
            self._sinks.begin(decision.generation, names)

    def _how_kept(
        self, decision: RunWrites | TakeDigests, frames: Sequence[DataFrame]
    ) -> kept.Keeping | None:
        if self.keeper is None or isinstance(decision, TakeDigests):
            return None
        keeping = self.keeper.keeping(
            self._rows.handed_out, frames, decision.generation, self.batch
        )
        return None if keeping is None else replace(keeping, pad=self._pad_of_rows)

    @property
    def _pad_of_rows(self) -> bytes | None:
        return self._secrets.pads.get(kept.SECRETS)

    def close(self) -> None:
        """Release what is kept between two passes over the batch, and tell the sinks that it is
        over: complete, aborted or left to the next start.
        """
        self._sinks.end()
        self._rows.release()

    def _spec(self, decision: RunWrites | TakeDigests, write: int) -> WriteSpec:
        name = self._names[write]
        reusable = self._reusable(decision).get(name, ())
        return WriteSpec(self.sinks[name], name, write, reusable, pad=self._secrets.pads.get(name))

    def _write_empty(self, task: WriteTask) -> None:
        """Open a transaction on the driver for each write without any row whose sink needs one."""
        written = {
            result["write"] for result in self._results if result.get("committable") is not None
        }
        for write, name in self._names.items():
            wanted = task.redo is None or (write, 0) in task.redo
            if wanted and write not in written and self.sinks[name].capabilities.empty_batches:
                self._empty_transaction(task, write)

    def _empty_transaction(self, task: WriteTask | WriteKeptTask, write: int) -> None:
        name = self._names[write]
        sink = self.sinks[name]
        slot = self._jobs.unused_task_attempt_id() - task.first_task_attempt_id
        ids = (self.query_id, name, task.generation, self.batch, write, 0, slot)
        attempt = TaskAttempt(*ids, incarnation=task.incarnation, secrets=sink.secrets())
        failpoints.hit("write.empty.before")
        transaction = sink.begin_transaction(attempt)
        try:
            committable = accepted(sink, name, sink.pre_commit(transaction), rows=0)
            failpoints.hit("write.empty.after")
        except BaseException:
            sink.discard(transaction)
            raise
        if committable is not None:
            # Nothing is kept of no rows: should this one be lost, it is just opened again.
            rows: dict[str, Any] = {} if self.keeper is None else {"rows": {}}
            self._empty[write] = {**committable, "task": [write, 0], **rows}

    @staticmethod
    def _reusable(decision: RunWrites | TakeDigests) -> Mapping[str, tuple[Committable, ...]]:
        return decision.reusable if isinstance(decision, RunWrites) else {}

    def _task(self, decision: RunWrites | TakeDigests) -> WriteTask:
        base = self._jobs.first_task_attempt_id()
        if isinstance(decision, TakeDigests):
            return WriteTask(
                (), self.query_id, decision.generation, self.batch, base, digest_only=True
            )
        return WriteTask(
            (),
            self.query_id,
            decision.generation,
            self.batch,
            base,
            digest_only=False,
            incarnation=decision.incarnation,
            redo=decision.redo,
            keep_in=self._keeping,
        )

    def _write_kept(self, decision: WriteKept) -> None:
        assert self.keeper is not None
        entries, empty = [], []
        for name, committables in decision.lost.items():
            for committable in committables:
                write, partition = task_of(committable)
                self._names[write] = name
                if not committable["rows"]:
                    empty.append(write)
                    continue
                spec = WriteSpec(self.sinks[name], name, write, pad=self._secrets.pads.get(name))
                entries.append(KeptRows(spec, partition, committable["rows"]))
        self._begin(decision, decision.lost)
        base = self._jobs.first_task_attempt_id()
        task = WriteKeptTask(
            tuple(entries),
            self.query_id,
            decision.generation,
            self.batch,
            base,
            decision.incarnation,
            kept.Keeping(self.keeper.place, required=True, pad=self._pad_of_rows),
        )
        if entries:
            # One number per partition: each entry is a task of its own.
            numbers = self.frame.sparkSession.range(0, len(entries), 1, len(entries))
            with self._described("write kept rows again", [entry.spec.name for entry in entries]):
                self._collect(numbers.mapInArrow(task, result_schema()))
        for write in empty:
            self._empty_transaction(task, write)

    def _job(self, group: JobGroup, task: WriteTask) -> None:
        from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by

        projection = self.projections.of_writes([spec.name for spec in task.writes], group.frame)
        rows = group.frame.select(*projection.columns)
        if group.keys:
            # As the sink writes them: values that differ before a cast may be one key behind it.
            rows = rows.repartition(*(F.col(projection.column(0, key)) for key in group.keys))
        writes = (
            replace(spec, taken=taken)
            for spec, taken in zip(task.writes, projection.writes, strict=True)
        )
        task = replace(task, writes=tuple(writes))
        with self._described(_step_of(task), [spec.name for spec in task.writes]):
            self._collect(rows.mapInArrow(task, result_schema()))

    def _collect(self, frame: DataFrame) -> None:
        if self.stop_requested():
            # Spark interrupts the thread of the batch, which notices it only behind the start of a
            # job.
            raise spark_errors.stopped()
        with self._secrets.around(self._jobs.properties), self._jobs.interruptible():
            failpoints.hit("write.job.before")
            results = [json.loads(row["result"]) for row in frame.collect()]
            failpoints.hit("write.job.after")
        prepared = [result for result in results if "refused" not in result]
        self._results += prepared
        if self._keeping is not None and self.keeper is not None:
            self._results[len(self._results) - len(prepared) :] = self.keeper.seen(prepared)
        refused = [result for result in results if "refused" in result]
        if refused:
            error = RefusedRecordError(refused[0]["refused"])
            error.sink = refused[0].get("sink")
            raise error

    def _digests(self) -> dict[str, tuple[Digest, ...]]:
        digests: dict[str, tuple[Digest, ...]] = {}
        for result in sorted(
            self._results, key=lambda result: (result["write"], result["partition"])
        ):
            key = f"{self._names[result['write']]}/{result['write']}"
            digests[key] = (
                *digests.get(key, ()),
                Digest(result["rows"], int(result["hash_sum"], 16)),
            )
        return digests

    def _attempts_lost(self) -> bool:
        """Tell whether a task attempt may have left an open transaction."""
        return self._jobs.attempts_lost(self._results, self.clock)


def _behind(
    committables: tuple[Committable, ...],
    after: int | None,
    place: Mapping[str, Any] | None,
) -> tuple[Committable, ...]:
    """Return a sink's committables with what the log knows of the batch before them; see ``sink``,
    "The target".
    """
    if after is None or not committables:
        return committables
    first, *others = ({**c, "after": after} for c in committables)
    return (first if place is None else {**first, "after_place": dict(place)}, *others)


def _step_of(task: WriteTask) -> str:
    if task.digest_only:
        return "look at the replay, writing nothing"
    return "write" if task.redo is None else "write lost rows again"


@contextmanager
def _plain_errors(batch: int, stop_requested: Callable[[], bool]) -> Iterator[None]:
    """Turn an error of Spark's into one whose text Spark can take."""
    try:
        yield
    except Exception as error:
        translated = spark_errors.translated(error, stop_requested=stop_requested())
        if translated is error:
            raise
        logger.debug("batch %d: %s", batch, error)
        raise translated from None
