"""Holds what a function has persisted, until its writes are done.

``transaction.write`` only registers: the jobs run when the function has returned, and by then one
that persists, writes and unpersists, as functions for ``foreachBatch`` do, has unpersisted. Each
job would then compute the shared frame anew; values that no replay gives again would lead a row to
both of two writes, or to none.

Spark puts its caches into a plan when it makes a job of it
(``CacheManager.useCachedData``). So a frame that is written is planned with the caches of that
moment, and its plan refers to them: to one that was unpersisted since, too, which is then computed
once more, for all jobs that refer to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from onceforall.common import logs
from onceforall.errors import text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["HeldCaches"]

logger = logs.logger("onceforall")

_CACHE = "InMemoryRelation"


class HeldCaches:
    """Those of one batch's function."""

    def __init__(self, batch: DataFrame) -> None:
        """Hold nothing yet; ``batch`` is the batch's own frame, which the driver keeps itself."""
        self._batch = batch
        self._held: list[tuple[DataFrame, dict[int, Any]]] = []

    def holding(self, frame: DataFrame) -> DataFrame:
        """Return a frame of the same rows that reads the caches which the frame reads now.

        A cache of the batch itself is not held: the driver keeps the batch for all jobs, and it is
        computed once by that.
        """
        jvm: Any = frame._jdf  # noqa: SLF001  Spark offers this in no other way
        try:
            if frame is self._batch or _caches_of_session(jvm).isEmpty():
                return frame
            plan = _planned(jvm)
            caches = dict(_caches_in(self._context, plan))
            own = dict(_caches_in(self._context, _planned(self._batch._jdf)))  # noqa: SLF001
            if caches.keys() <= own.keys():
                return frame
            held = self._context._jvm.org.apache.spark.sql.classic.Dataset.ofRows(  # noqa: SLF001
                jvm.sparkSession(), plan
            )
        except (Py4JError, TypeError) as error:
            # Another Spark may not have it; what a function persists and keeps is not concerned.
            logger.debug("caches are not held: %s", text_of(error))
            return frame
        from pyspark.sql import DataFrame as SparkDataFrame

        self._held.append((frame, caches))
        return SparkDataFrame(held, frame.sparkSession)

    def release(self) -> None:
        """Free the caches that were unpersisted meanwhile; no error."""
        held, self._held = self._held, []
        try:
            kept = {
                number
                for frame, _ in held
                for number, _ in _caches_in(self._context, _planned(frame._jdf))  # noqa: SLF001
            }
            for number, builder in {n: b for _, caches in held for n, b in caches.items()}.items():
                if number not in kept:
                    builder.clearCache(False)  # noqa: FBT003  py4j
        except Exception as error:  # noqa: BLE001  the JVM frees them when nothing refers to them
            logger.debug("caches are not freed at once: %s", text_of(error))

    @property
    def _context(self) -> Any:
        return self._batch.sparkSession.sparkContext


def _caches_of_session(jvm_frame: Any) -> Any:
    return jvm_frame.sparkSession().sharedState().cacheManager()


def _planned(jvm_frame: Any) -> Any:
    """Return a frame's logical plan with the caches of this moment; a frame's own plan may have
    been made before.
    """
    execution = jvm_frame.queryExecution()
    state = jvm_frame.sparkSession().sessionState()
    return state.executePlan(execution.analyzed(), execution.mode()).withCachedData()


def _caches_in(context: Any, plan: Any) -> Iterator[tuple[int, Any]]:
    """Return what the caches of a plan are built by, and a number for each, by which the same one
    is known again.
    """
    # Those of subqueries, too: they are expressions, and no leaves.
    plans = [plan, *_all_of(plan.subqueriesAll())]
    for leaf in (leaf for each in plans for leaf in _all_of(each.collectLeaves())):
        if leaf.getClass().getSimpleName() == _CACHE:
            builder = leaf.cacheBuilder()
            yield context._jvm.System.identityHashCode(builder), builder  # noqa: SLF001


def _all_of(jvm_seq: Any) -> Iterator[Any]:
    for n in range(jvm_seq.size()):
        yield jvm_seq.apply(n)
