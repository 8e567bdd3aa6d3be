"""What a run asks of Spark, with a classic session: ``foreachBatch`` is called in the driver's
Python, beside the JVM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onceforall.spark import task_counts
from onceforall.spark.determinism import Determinism
from onceforall.spark.errors import cache_was_emptied, computed_twice
from onceforall.spark.execution import check_execution, execution_of
from onceforall.spark.held_caches import HeldCaches
from onceforall.spark.kept_blocks import KeptBlocks
from onceforall.spark.noted_frames import noting
from onceforall.spark.shared_rows import SharedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from onceforall.spark.surroundings import LocalProperties, Shared

__all__ = ["DESCRIPTION", "ClassicJobs", "ClassicRun"]

DESCRIPTION = "spark.job.description"
"""The local property of a thread that has the description of its jobs."""


class ClassicRun:
    """One run of a query of a classic session; see ``surroundings.SparkRun``.

    Args:
        spark: the session of its batches.
        query_id: Spark's id of the query.
        run_id: Spark's id of the run.
        name: the query's name.
        execution: Spark's own object of the running query; None: it is looked for.

    Raises:
        UnsupportedQueryError: Spark does not list the query.
    """

    def __init__(
        self,
        spark: SparkSession,
        query_id: str,
        run_id: str,
        name: str | None = None,
        execution: Any = None,
    ) -> None:
        self.spark = spark
        self.query_id = query_id
        self.run_id = run_id
        self.name = name
        self._execution = execution_of(spark, query_id) if execution is None else execution

    @cached_property
    def _determinism(self) -> Determinism:
        return Determinism(self._execution)

    def check(self) -> None:
        """Refuse what is no plain micro-batch; see ``surroundings.SparkRun``."""
        check_execution(self._execution)

    def checkpoint_location(self) -> str:
        """Return where Spark keeps the query's checkpoint."""
        return str(self._execution.resolvedCheckpointRoot())

    def output_mode(self) -> str:
        """Return the query's output mode."""
        return str(self._execution.outputMode()).lower()

    def is_active(self) -> bool:
        """Tell whether Spark still runs this run."""
        try:
            return bool(self._execution.isActive())
        except Exception:  # noqa: BLE001  the JVM is gone, and so is the query
            return False

    def wants_its_batch(self) -> bool:
        """Tell whether the query was not stopped: a stop cancels the jobs of its batch."""
        return self.is_active()

    def may_take_another(self) -> bool:
        """Tell whether Spark may call another batch: a query that was told to stop is not active,
        and may still begin one.
        """
        try:
            return bool(self._execution.queryExecutionThread().isAlive())
        except Exception:  # noqa: BLE001  the JVM is gone, and so is the query
            return False

    def stop(self) -> None:
        """Ask Spark to stop the query; it returns when the batch has ended."""
        if self.is_active():
            self._execution.stop()

    def why_not(self, batch: DataFrame, frames: Iterable[DataFrame]) -> str | None:
        """Return why a replay may give other rows, as far as Spark's plans tell."""
        return self._determinism.why_not(batch, frames)

    def jobs(self, batch: DataFrame) -> ClassicJobs:
        """Return what starts the jobs of one batch."""
        return ClassicJobs(batch, self.why_not, self._determinism.why_not_given)


class ClassicJobs:
    """The jobs of one batch; see ``surroundings.SparkJobs``.

    Args:
        batch: the batch's frame.
        why_not: tells why a replay of frames may give other rows; see ``ClassicRun.why_not``.
        why_not_given_it: the same, for frames of a batch that gives the same rows again.
    """

    in_session = False

    def __init__(
        self,
        batch: DataFrame,
        why_not: Callable[[DataFrame, Iterable[DataFrame]], str | None] = lambda *_: None,
        why_not_given_it: Callable[[DataFrame, Iterable[DataFrame]], str | None] = lambda *_: None,
    ) -> None:
        self._batch = batch
        self._why_not = why_not
        self._handed_out: list[SharedRows] = []
        self._caches = HeldCaches(batch, why_not_given_it, self._keep)

    @property
    def _context(self) -> Any:
        return self._batch.sparkSession.sparkContext

    @property
    def properties(self) -> LocalProperties:
        """The context, which keeps local properties per thread."""
        context: LocalProperties = self._context
        return context

    @contextmanager
    def described(self, text: str) -> Iterator[None]:
        """Say it in Spark's user interface; the jobs' group stays Spark's, the run's id."""
        context = self._context  # which takes None, too: no description
        before = context.getLocalProperty(DESCRIPTION)
        context.setLocalProperty(DESCRIPTION, text)
        try:
            yield
        finally:
            context.setLocalProperty(DESCRIPTION, before)

    @staticmethod
    def interruptible() -> AbstractContextManager[None]:
        """Do nothing: Spark interrupts the thread of the batch itself."""
        return nullcontext()

    def shared(self, frame: DataFrame) -> SharedRows:
        """Return what keeps a frame's rows below Spark's own cache."""
        for rows in self._caches.computed:
            if rows.frame is frame:
                return rows
        made = SharedRows(frame, lambda: self._why_not(frame, []) is not None)
        self._handed_out.append(made)
        return made

    def _keep(self, batch: DataFrame) -> None:
        for rows in self._handed_out:
            if rows.frame is batch:
                rows.want()

    def pinned(self, frame: DataFrame, batch: DataFrame) -> DataFrame:
        """Return a frame that reads the caches of now; Spark has resolved all else when it was
        made.
        """
        return self._caches.holding(frame, batch)

    def has_computed(self) -> bool:
        """Tell whether ``pinned`` has computed rows at once."""
        return bool(self._caches.computed)

    @contextmanager
    def watching(self, shared: Sequence[Shared], batch: DataFrame) -> Iterator[None]:
        """See that no cache of the function's is emptied within, and that on a cluster what is
        shared is computed once, unless each computation gives the same.
        """
        self._caches.fill()
        own = [rows for rows in shared if isinstance(rows, SharedRows)]
        reason = self._why_other_rows(own, batch)
        blocks = None
        if reason is not None:
            rdds = [rows.rdd for rows in own]
            blocks = KeptBlocks(self._context, [*rdds, *self._caches.rdds])
            if not blocks.compute():
                raise computed_twice(reason)
        try:
            yield
        except Exception as error:
            lost = self._caches.why_lost(error)
            if lost is not None:
                raise computed_twice(lost) from error
            raise
        if not (self._caches.are_as_before() and all(rows.are_kept() for rows in own)):
            raise cache_was_emptied()
        if blocks is not None and not blocks.are_as_before():
            raise computed_twice(str(reason))

    def _why_other_rows(self, shared: Sequence[SharedRows], batch: DataFrame) -> str | None:
        """Return why what is shared may be computed twice, with other rows each time."""
        if self._context._jsc.sc().isLocal():  # noqa: SLF001  Spark tells it in no other way
            return None
        others = [rows.of for rows in shared if rows.frame is not batch]
        return self._why_not(batch, [*others, *self._caches.frames])

    def unpin(self) -> None:
        """Free what ``pinned`` has computed, and the caches that the function has unpersisted."""
        self._caches.release()

    def around_the_function(self) -> AbstractContextManager[None]:
        """Note what the function persists."""
        self._caches.begin()
        noted = self._caches.noted
        jvm_frame: Any = self._batch._jdf  # noqa: SLF001  Spark offers this in no other way
        noted.session = jvm_frame.sparkSession()
        return noting(noted)

    @staticmethod
    def without_ordering(frame: DataFrame) -> DataFrame:
        """Return the same rows as a frame that claims no ordering.

        The frame that ``foreachBatch`` gets says how the stateful plan below it sorts, in terms of
        columns that it may not have; to persist it then fails ("key not found").
        """
        from pyspark.sql import DataFrame as SparkDataFrame

        jvm_frame: Any = frame._jdf  # noqa: SLF001  Spark offers this in no other way
        rows = jvm_frame.queryExecution().toRdd()
        plain = jvm_frame.sparkSession().internalCreateDataFrame(rows, jvm_frame.schema(), False)  # noqa: FBT003  py4j
        return SparkDataFrame(plain, frame.sparkSession)

    def first_task_attempt_id(self) -> int:
        """Return the next id, which thereby is nobody's: small differences, batch by batch."""
        return int(self._context._jsc.sc().taskScheduler().newTaskId())  # noqa: SLF001  Spark tells it in no other way

    def unused_task_attempt_id(self) -> int:
        """Return the next id, which thereby is nobody's."""
        return self.first_task_attempt_id()

    def attempts_lost(
        self, results: Sequence[Mapping[str, Any]], clock: Callable[[], float]
    ) -> bool:
        """Tell it by Spark's own counts of the stages."""
        if any(result["attempt"] > 0 for result in results):
            return True
        stages = {result["stage"] for result in results}
        return task_counts.attempts_lost(self._context, stages, clock)

    def end_tasks(self, clock: Callable[[], float], within_s: float) -> None:
        """Cancel the jobs, and wait until no task of the run is active."""
        context = self._context
        run_id = context.getLocalProperty("spark.jobGroup.id")
        if run_id is not None:
            # A job that began after the stop was asked for: Spark would cancel it when foreachBatch
            # has returned, and that waits for it here.
            context.cancelJobGroup(run_id)
        quiet_since = clock()
        until = quiet_since + within_s
        while (
            now := clock()
        ) < until and now < quiet_since + task_counts.COUNTS_ARE_THERE_WITHIN_S:
            if task_counts.active_tasks(context, run_id):
                quiet_since = clock()
            time.sleep(0.05)
