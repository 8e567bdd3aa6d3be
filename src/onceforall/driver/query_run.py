"""One coordinator per Spark run: what ``foreachBatch`` calls on the driver.

It finds out, from Spark, which query and which run a call belongs to, refuses kinds of execution
that cannot be exactly-once, opens the commit log in the query's own checkpoint, and hands each
batch to the run's coordinator.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from onceforall.commit_log import LocalStore
from onceforall.common import arguments, logs
from onceforall.common.machine import whoami
from onceforall.common.threads import result_within
from onceforall.driver import failures, place, progress, stopping
from onceforall.driver.batch_writer import SparkBatchWriter
from onceforall.driver.closing import close_all
from onceforall.driver.coordinator import Coordinator, Resources
from onceforall.driver.executors import check_executors
from onceforall.driver.log_folder import (
    bind_log,
    check_state_files,
    rows_place,
)
from onceforall.driver.progress import BatchProgress
from onceforall.driver.settings import Settings
from onceforall.driver.sweeper import Sweeper
from onceforall.driver.targets import (
    check_adopted,
    check_targets,
    identity_of,
    kinds_of,
    last_decision,
)
from onceforall.driver.transaction import BatchFunction
from onceforall.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    StoppedError,
    UnsupportedQueryError,
    described,
    text_of,
)
from onceforall.failpoints import points as failpoints
from onceforall.protocol import contract
from onceforall.protocol.eligibility import why_not
from onceforall.protocol.history import Decided
from onceforall.protocol.judgement import judge_overtaken
from onceforall.protocol.state import RunConfig
from onceforall.protocol.sweeping import Sweep
from onceforall.sink import StartInfo, TwoPhaseCommitSink
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark import workarounds
from onceforall.spark.classic import ClassicRun
from onceforall.spark.execution import name_of
from onceforall.spark.files import SparkFiles
from onceforall.spark.remote_path import AnyPath, RemotePath
from onceforall.spark.state_files import file_manager
from onceforall.spark.stores import Stores
from onceforall.task import kept_rows as kept
from onceforall.task.projections import Projections

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from onceforall.spark.surroundings import SparkRun

T = TypeVar("T")

logger = logs.logger("onceforall")

ROLL_AFTER_ENTRIES = 1000
"""A run goes on in a new generation when its chain is that long, at least; a chain is cleaned
only when it is sealed."""


class ExactlyOnceFunction:
    """The function for ``foreachBatch``: call it with (batch, batch_id).

    It may be used by several queries in turn and over restarts; each run of a query gets a
    coordinator of its own.
    """

    def __init__(
        self,
        function: BatchFunction,
        checkpoint: str,
        sinks: Mapping[str, TwoPhaseCommitSink],
        settings: Settings,
    ) -> None:
        self._function = function
        self._checkpoint = checkpoint
        self._sinks = dict(sinks)
        self._settings = settings
        check_adopted(settings.adopt_target, sinks)
        self._runs: dict[str, QueryRun] = {}
        stopping.arm()
        self._lock = threading.Lock()
        self.__name__ = getattr(function, "__name__", "exactly_once")
        self.__doc__ = getattr(function, "__doc__", None)

    def __reduce__(self) -> NoReturn:
        """Refuse to be sent to a server of Spark Connect.

        Raises:
            UnsupportedQueryError: always.
        """
        raise UnsupportedQueryError(
            "exactly_once was called where no session of Spark Connect was there yet, so it made "
            "a classic session's function, which can't be sent to a server. Make the session "
            "first, or set SPARK_REMOTE, and decorate the function then."
        )

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Take one batch to its end; called by Spark."""
        arguments.refuse_connect(batch, "exactly_once")
        context = batch.sparkSession.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId")
        run_id = context.getLocalProperty("spark.jobGroup.id")
        if not query_id or not run_id:
            raise UnsupportedQueryError(
                "An exactly_once function was called outside a streaming query's foreachBatch; "
                "give it to writeStream.foreachBatch."
            )
        known = self._runs.get(run_id)
        # Calls into the JVM, so not for each batch.
        name = name_of(batch.sparkSession, query_id) if known is None else known.query_name
        with Taking(query_id, run_id, name, batch_id).told():
            run = self._run_of(batch.sparkSession, query_id, run_id, name)
            # A start takes a while, in which the process may have been told to end.
            stopping.PROCESS.refuse_new_work()
            run.take(batch, batch_id, self._function)

    def _run_of(
        self, spark: SparkSession, query_id: str, run_id: str, name: str | None
    ) -> QueryRun:
        with self._lock:
            # Not the run that calls: while it is being stopped it is not active, but its last batch
            # is still its own.
            for ended in [
                key for key, run in self._runs.items() if key != run_id and not run.is_active()
            ]:
                self._runs.pop(ended).close()
            run = self._runs.get(run_id)
            if run is None:
                run = QueryRun.open(
                    ClassicRun(spark, query_id, run_id, name),
                    self._checkpoint,
                    self._sinks,
                    self._settings,
                )
                self._runs[run_id] = run
        return run


@dataclass(frozen=True)
class Taking:
    """One call of ``foreachBatch``, by Spark's ids."""

    query_id: str
    run_id: str
    query_name: str | None
    batch: int

    @contextmanager
    def told(self) -> Iterator[None]:
        """Name the query and the batch in what is logged within, let the end of the process wait
        for it, and say in one line why it fails.

        Raises:
            QueryStoppedError: the process is ending.
            StoppedError: in place of what is no ``Exception``.
        """
        named = self.query_name or self.query_id
        try:
            with logs.about(query=named, batch=self.batch), stopping.PROCESS.batch():
                yield
        except BaseException as error:
            failure = error if isinstance(error, Exception) else _no_exit(error)
            # The last thing that is said of this run: what follows in the log is Spark's trace of
            # the same.
            failures.tell(
                failure,
                batch=self.batch,
                run_id=self.run_id,
                query_id=self.query_id,
                query_name=self.query_name,
            )
            if failure is error:
                raise
            raise failure from error


def _no_exit(error: BaseException) -> StoppedError:
    """Return the error for what is none, such as ``SystemExit``: Spark's caller of Python dies
    of one, and the query would wait for it for ever.
    """
    return StoppedError(
        f"{described(error)} was raised in a batch, which can't end the process. The query ends; "
        "its next start completes or aborts the batch. Let a "
        "function of a batch raise an exception, and end the process where awaitTermination() "
        "raises."
    )


def shortest_timeout_ms(sinks: Mapping[str, TwoPhaseCommitSink]) -> int | None:
    """Return after how many milliseconds the first of the sinks' transactions times out; None:
    none ever does.
    """
    return min(
        (t for s in sinks.values() if (t := s.capabilities.transaction_timeout_ms) is not None),
        default=None,
    )


def check_sinks(
    sinks: Mapping[str, TwoPhaseCommitSink], spark: SparkSession, query_id: str, output_mode: str
) -> None:
    """Refuse sinks that cannot do what is promised, and let every other check what would fail
    later; nothing has moved yet.
    """
    for name, sink in sinks.items():
        reason = why_not(name, sink.capabilities, output_mode)
        if reason is not None:
            raise UnsupportedQueryError(reason)
    starts = {name: StartInfo(query_id, name, spark, output_mode) for name in sinks}
    _check_each({name: partial(sink.check, starts[name]) for name, sink in sinks.items()})
    for name, sink in sinks.items():
        sink.check_beside(
            starts[name], {other: beside for other, beside in sinks.items() if other != name}
        )
    check_executors(spark, sinks)


def _check_each(checks: Mapping[str, Callable[[], None]]) -> None:
    """Check sinks, and tell of all that are to be mended: each start would tell of one more."""
    found: dict[str, ConfigurationError] = {}
    other: tuple[str, Exception] | None = None
    for name, check in checks.items():
        try:
            check()
        except ConfigurationError as error:  # noqa: PERF203  each is told
            found[name] = error
        except Exception as error:
            if not found:
                raise
            # It may pass by itself; what a person has to mend is told first.
            other = other or (name, error)
    if not found:
        return
    told: list[tuple[str, Exception]] = [*found.items()]
    if other is not None:
        told.append(other)
    (_, first), *others = told
    if others:
        more = (f" Sink {name}, too: {text_of(error)}" for name, error in others)
        first.args = (f"{text_of(first)}{''.join(more)}",)
    raise first


class QueryRun:
    """One run of a query: its coordinator, its place in the checkpoint, and its repeated sweeps."""

    def __init__(
        self,
        spark_run: SparkRun,
        checkpoint: AnyPath,
        sinks: Mapping[str, TwoPhaseCommitSink],
    ) -> None:
        self._spark_run = spark_run
        self._query_id = spark_run.query_id
        self.query_name = spark_run.name
        self._checkpoint = checkpoint
        self._sinks = sinks
        self._projections = Projections(sinks)
        # What is on a store is durable when it is there.
        self._spark_files = SparkFiles(checkpoint) if isinstance(checkpoint, Path) else None
        self._sweeper: Sweeper | None = None
        self._taking = False
        self._state_is_checked = False
        self._planned: tuple[int, tuple[str, ...]] = (-2, ())
        self._writer: SparkBatchWriter | None = None
        self._keeper: kept.RowKeeper | None = None
        self._keeps_rows = False
        self._coordinator: Coordinator | None = None

    @classmethod
    def open(
        cls,
        spark_run: SparkRun,
        named_checkpoint: str,
        sinks: Mapping[str, TwoPhaseCommitSink],
        settings: Settings,
    ) -> QueryRun:
        """Begin a run, before its first batch.

        Args:
            spark_run: the run, as Spark knows it.
            named_checkpoint: the checkpoint that the program names.
            sinks: the query's, by name.
            settings: the user's.

        Raises:
            ConfigurationError: something must be mended first.
            CheckpointMismatchError: it isn't this query's checkpoint, or its log contradicts it.
        """
        spark_run.check()
        stores = Stores(spark_run.spark, settings.store)
        named = stores.checkpoint(named_checkpoint)
        location = spark_run.checkpoint_location()
        checkpoint = named if location is None else stores.checkpoint(location)
        if str(named) != str(checkpoint):
            raise CheckpointMismatchError(
                f"exactly_once names the checkpoint {named}, but this query's checkpointLocation "
                f"is {checkpoint}. Name the same one."
            )
        spark_checkpoint.check_is_of_query(checkpoint, spark_run.query_id)
        # A copy per run: a sink's driver side belongs to one run, also when its user gives one
        # object to two queries.
        sinks = {name: copy.copy(sink) for name, sink in sinks.items()}
        try:
            return cls._opened(spark_run, checkpoint, stores, sinks, settings)
        except BaseException:
            # Nobody else knows of these copies, and they have connected already.
            close_all(sinks)
            raise

    @classmethod
    def _opened(
        cls,
        spark_run: SparkRun,
        checkpoint: AnyPath,
        stores: Stores,
        sinks: Mapping[str, TwoPhaseCommitSink],
        settings: Settings,
    ) -> QueryRun:
        spark, query_id, output_mode = spark_run.spark, spark_run.query_id, spark_run.output_mode()
        workarounds.apply(spark)
        starts = {name: StartInfo(query_id, name, spark, output_mode) for name in sinks}
        found = check_targets(
            last_decision(checkpoint, stores), checkpoint, sinks, starts, settings.adopt_target
        )
        failpoints.hit("start.targets_checked")
        check_sinks(sinks, spark, query_id, output_mode)
        # What was not there before may have been made by the check; that has an identity now.
        found |= {
            name: identity_of(sink, starts[name])
            for name, sink in sinks.items()
            if found.get(name) is None
        }
        failpoints.hit("start.sinks_checked")
        run = cls(spark_run, checkpoint, sinks)
        _tell_changed_sinks(last_decision(checkpoint, stores), sinks)
        timeout_ms = shortest_timeout_ms(sinks)
        config = RunConfig(
            query_id=query_id,
            run_id=spark_run.run_id,
            checkpoint=str(checkpoint),
            sinks=tuple(sinks),
            transaction_timeout_ms=timeout_ms,
            decision_reserve_ms=settings.reserve_ms(timeout_ms),
            on_divergence=settings.on_divergence,
            roll_after_entries=max(ROLL_AFTER_ENTRIES, 4 * settings.min_batches_to_retain),
            adopt_checkpoint=settings.adopt_checkpoint,
            in_doubt=settings.in_doubt,
            kept_first=settings.redo == "durable",
            lost_rows=settings.chosen_for_lost_rows(),
            identities=found,
            kinds=kinds_of(sinks),
            need_no_commit=frozenset(
                name
                for name, sink in sinks.items()
                if not contract.needs_a_commit(sink.capabilities)
            ),
            adopt_targets=frozenset(settings.adopt_target),
            owner=whoami(),
            **asdict(place.here(checkpoint)),
        )
        detached = spark_checkpoint.detached_generation(checkpoint) >= 0
        if detached or spark_checkpoint.last_planned(checkpoint) > 0:
            # Not the first batch of a new checkpoint: a function may have been decorated long
            # before its checkpoint was detached.
            spark_checkpoint.check_take_over(checkpoint, settings.takeover)
        if run._spark_files is not None:
            run._spark_files.sync_identity()
        failpoints.hit("start.checkpoint_checked")
        bound = bind_log(checkpoint, settings, stores, tested=True)
        failpoints.hit("start.bound")
        # Behind the binding: a return to onceforall has begun another log by it.
        rows = rows_place(checkpoint, settings, stores)
        config = replace(config, durable=settings.redo != "replay" and rows is not None)
        log = bound.log(
            retain_commits=settings.min_batches_to_retain,
            # A store that is away comes back. A local folder that can't be written stays so until
            # somebody mends it, and is told at once.
            goes_on=None if isinstance(bound.store, LocalStore) else run.waits_for_store,
        )
        sweeper = run._sweeper = Sweeper(
            sinks,
            log,
            is_active=run.is_active,
            may_take_another=run._may_take_another,
            leftovers=run._leftovers,
            forget_aborted=run._forget_aborted,
        )
        if rows is not None:
            # Also where none are kept: earlier runs may have left some.
            run._keeper = kept.RowKeeper(
                rows, required=settings.redo == "durable", why_not=spark_run.why_not
            )
            run._keeps_rows = config.durable
        run._coordinator = Coordinator(
            config,
            Resources(
                log=log,
                sinks=sinks,
                spark_committed=lambda: spark_checkpoint.last_committed(checkpoint),
                spark_planned=lambda number: spark_checkpoint.is_planned(checkpoint, number),
                stop_requested=run.gives_up_waiting,
                wait=time.sleep,
                sweeps_changed=sweeper.repeat,
                batch_done=run._forget_rows,
                within=run._within,
                patiently=sweeper.patiently,
            ),
        )
        stopping.PROCESS.add(run)
        threading.Thread(
            target=logs.carried(run._housekeeping), name="onceforall-sweeper", daemon=True
        ).start()
        return run

    def is_active(self) -> bool:
        """Tell whether Spark still runs this run."""
        return self._spark_run.is_active()

    def take(self, batch: DataFrame, batch_id: int, function: BatchFunction) -> None:
        """Take one batch to its end."""
        assert self._coordinator is not None
        self._taking = True
        try:
            self._take(batch, batch_id, function)
        except BaseException:
            if self._sweeper is not None:
                self._sweeper.soon()
            raise
        finally:
            self._taking = False

    def _take(self, batch: DataFrame, batch_id: int, function: BatchFunction) -> None:
        assert self._coordinator is not None
        if self._spark_files is not None:
            self._spark_files.begin(batch_id)
        stateful = spark_checkpoint.keeps_state(self._checkpoint)
        if stateful and isinstance(self._checkpoint, RemotePath) and not self._state_is_checked:
            # A start before the first batch didn't know it yet. Once, for it takes milliseconds.
            self._state_is_checked = True
            check_state_files(self._checkpoint, *file_manager(batch.sparkSession))
        # Before its first batch has run, a query's state folder does not tell whether it will keep
        # state.
        consume_all = stateful or batch_id == 0
        writer = self._writer = SparkBatchWriter(
            batch,
            batch_id,
            function,
            self._sinks,
            self._query_id,
            consume_all,
            self._projections,
            self._keeper if self._keeps_rows else None,
            self._spark_files,
            stop_requested=self.stop_requested,
            query_name=self.query_name,
            jobs=self._spark_run.jobs(batch),
        )
        started = writer.clock()
        plan = self._plan(batch_id)
        before = self._plan_before(batch_id)
        self._planned = (batch_id, plan)
        try:
            self._coordinator.run_batch(
                batch_id,
                plan[2:],
                stateful,
                writer,
                before[2:],
                header=plan[:2],
                before=before[:2],
            )
            self._tell_progress(batch_id, writer, (writer.clock() - started) * 1000)
        finally:
            writer.close()

    def _plan(self, batch_id: int) -> tuple[str, ...]:
        try:
            return spark_checkpoint.plan_of(self._checkpoint, batch_id)
        except CheckpointMismatchError:
            # A run that went further deletes plans that it needs no more, this one's among them.
            committed = spark_checkpoint.last_committed(self._checkpoint)
            planned = spark_checkpoint.is_planned(self._checkpoint, committed)
            overtaken = judge_overtaken(batch_id, committed, planned=planned)
            if overtaken is None:
                raise
        # Not from the other error: what is read of Spark's text of it is its first.
        raise overtaken.error(overtaken.message)

    def _plan_before(self, batch_id: int) -> tuple[str, ...]:
        """Return the plan of the batch before, at whose end a batch's input begins, and which this
        run has mostly read itself.
        """
        known, plan = self._planned
        if known == batch_id - 1:
            return plan
        return spark_checkpoint.known_plan_of(self._checkpoint, batch_id - 1)

    def stop_requested(self) -> bool:
        """Tell whether the batch under way is to be aborted, or the process is ending."""
        return stopping.PROCESS.begun or not self._spark_run.wants_its_batch()

    def gives_up_waiting(self) -> bool:
        """Tell whether the query was asked to stop, so that what gives no answer isn't asked
        again.
        """
        return stopping.PROCESS.begun or not self.is_active()

    def waits_for_store(self) -> bool:
        """Tell whether a commit log that gives no answer is asked again."""
        return not self.gives_up_waiting()

    def ask_to_stop(self) -> None:
        """Ask Spark to stop the query; see ``stopping.Run``. It returns when the batch has
        ended.
        """
        self._spark_run.stop()

    def settle(self, until_s: float) -> None:
        """Finish what is left when no batch is under way; see ``stopping.Run``."""
        assert self._coordinator is not None
        assert self._sweeper is not None
        if not self._coordinator.settled(until_s - time.monotonic()):
            return
        # Where the process ends now, this sweep is the last until the next start.
        self._sweeper.settle(self._coordinator.leftovers(), until_s - time.monotonic())
        # The store of the kept rows may be away; they cost space only.
        with suppress(TimeoutError):
            self._within(self._forget_aborted, until_s - time.monotonic())

    def _tell_progress(self, batch: int, writer: SparkBatchWriter, total_ms: float) -> None:
        assert self._coordinator is not None
        run = self._coordinator.run
        phase_ms = {
            name: ms for name, ms in self._coordinator.phase_ms.items() if name != "return_batch"
        }
        rows, ids = writer.rows_per_sink(), (self._query_id, run.config.run_id, self.query_name)
        with logs.about(generation=run.generation):
            progress.tell(
                BatchProgress(*ids, run.generation, batch, writer.outcome, rows, phase_ms, total_ms)
            )

    def _within(self, action: Callable[[], T], seconds: float) -> T:
        return result_within(logs.carried(action), seconds, self.gives_up_waiting)

    def _forget_rows(self, batch: int) -> None:
        if self._keeper is not None:
            self._keeper.forget(batch)

    def _forget_aborted(self) -> None:
        try:
            # A new query may have begun in the same folder: its rows have the same places.
            if (
                self._writer is not None
                and spark_checkpoint.query_id(self._checkpoint) == self._query_id
            ):
                self._writer.forget_aborted()
        except Exception as error:  # noqa: BLE001  rows that stay cost space only, and the sweeps must go on
            logger.warning(
                "forgetting the kept rows of an aborted attempt is tried again later: %s",
                text_of(error),
            )

    def close(self) -> None:
        """Release what an ended run holds."""
        assert self._coordinator is not None
        self._coordinator.close()
        if self._spark_files is not None:
            self._spark_files.close()
        if self._sweeper is not None:
            self._sweeper.close()

    def _leftovers(self) -> Mapping[str, Sweep]:
        assert self._coordinator is not None
        return self._coordinator.leftovers()

    def _housekeeping(self) -> None:
        assert self._sweeper is not None
        try:
            self._sweeper.until_the_end()
        finally:
            # Until then the end of the process makes a sweep that would be the last until the next
            # start.
            stopping.PROCESS.remove(self)
            failures.ended(self._spark_run.run_id)

    def _may_take_another(self) -> bool:
        """Tell whether a batch is under way or may still come: a query that was told to stop is
        not active, and may still begin one.
        """
        if self._taking:
            return True
        return self._spark_run.may_take_another()


def _tell_changed_sinks(decided: Decided | None, sinks: Collection[str]) -> None:
    """Log which sinks the query has that no decision names, and which the last one wrote to that
    it has no more.
    """
    if decided is None:
        return
    commit = decided.commit
    wrote = {write.rpartition("/")[0] for write in commit.digests} | {
        name for name, cs in commit.committables.items() if cs
    }
    if new := sorted(set(sinks) - wrote - set(commit.targets)):
        logger.info(
            "new in this query since batch %d, and written from here on: %s",
            commit.batch,
            ", ".join(new),
        )
    if gone := sorted(wrote - set(sinks)):
        logger.info(
            "written in batch %d, and no longer a sink of this query: %s; what was written there "
            "stays",
            commit.batch,
            ", ".join(gone),
        )
