"""Holds what a function has persisted, until its writes are done.

``transaction.write`` only registers: the jobs run when the function has returned, and by then one
that persists, writes and unpersists, as functions for ``foreachBatch`` do, has unpersisted. Each
job would then compute the shared frame anew; values that no replay gives again would lead a row to
both of two writes, or to none. ``put_off`` keeps the content until the jobs have run; here is what
else there is to it.

Spark puts its caches into a plan when it makes a job of it
(``CacheManager.useCachedData``). So a frame that is written is planned with the caches of that
moment, and its plan refers to them: to one that was unpersisted since, too, which is then computed
once more, for all jobs that refer to it.

A cache that is emptied while the jobs run, by ``clearCache()`` in another query's function, is
computed once more in the same way, and that is once too often: so it is looked at again behind the
last job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from onceforall.common import logs
from onceforall.errors import text_of
from onceforall.spark import put_off
from onceforall.spark.shared_rows import ids_in, leaves_of, rdds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["HeldCaches"]

logger = logs.logger("onceforall")

_CACHE = "InMemoryRelation"


class HeldCaches:
    """Those of one batch's function."""

    def __init__(self, batch: DataFrame) -> None:
        """Hold nothing yet; ``batch`` is any frame of the batch's session."""
        self._batch = batch
        self._held: list[tuple[DataFrame, dict[int, Any]]] = []
        self._filled: dict[int, int] = {}
        self._rdds: set[int] = set()

    def __bool__(self) -> bool:
        """Whether any is held."""
        return bool(self._held)

    def holding(self, frame: DataFrame) -> DataFrame:
        """Return a frame of the same rows that reads the caches which the frame reads now."""
        jvm: Any = frame._jdf  # noqa: SLF001  Spark offers this in no other way
        try:
            self._hold_rdds(jvm)
            if _caches_of_session(jvm).isEmpty():
                return frame
            plan = _planned(jvm)
            caches = dict(_caches_in(self._context, plan))
            if not caches:
                return frame
            held = self._context._jvm.org.apache.spark.sql.classic.Dataset.ofRows(  # noqa: SLF001
                jvm.sparkSession(), plan
            )
        except (Py4JError, TypeError) as error:
            # Another Spark may not have it; what a function persists and keeps is not concerned.
            logger.debug("caches are not held: %s", text_of(error))
            return frame
        from pyspark.sql import DataFrame as SparkDataFrame

        put_off.begin(self)
        self._held.append((frame, caches))
        return SparkDataFrame(held, frame.sparkSession)

    def needs(self, frame: DataFrame) -> bool:
        """Tell whether the cache of this very frame is held; see ``put_off``."""
        try:
            plan = _planned(frame._jdf)  # noqa: SLF001
            if plan.getClass().getSimpleName() != _CACHE:
                return False
            return any(number in self._caches for number, _ in _caches_in(self._context, plan))
        except (Py4JError, TypeError) as error:
            logger.debug("whether a cache is held can't be seen: %s", text_of(error))
            return False

    def needs_rdd(self, number: int) -> bool:
        """Tell whether a frame was made of this persisted RDD; see ``put_off``."""
        return number in self._rdds

    def _hold_rdds(self, jvm_frame: Any) -> None:
        """Hold what the function persists one level below: RDDs of which it makes frames."""
        # As a text, for each element of a set of Java's is a few calls.
        told = str(self._context._jsc.getPersistentRDDs().keySet().toString())  # noqa: SLF001
        persisted = {int(number) for number in re.findall(r"\d+", told)}
        if len(persisted) < 2:
            return  # The batch's own, at most.
        for rdd in rdds_of(jvm_frame.queryExecution().analyzed()):
            # What the batch itself was made of is older than its function.
            if int(rdd.id()) not in persisted:
                self._rdds |= persisted & ids_in(rdd)
        if self._rdds:
            put_off.begin(self)

    def fill(self) -> None:
        """Remember what is in the caches, or will be, before the first job reads them."""
        self._filled = {number: _filling(builder) for number, builder in self._caches.items()}

    def are_as_before(self) -> bool:
        """Tell whether no cache was emptied since ``fill``."""
        return all(_filling(self._caches[number]) == rdd for number, rdd in self._filled.items())

    def release(self) -> None:
        """Free the caches that were unpersisted meanwhile; no error."""
        held, caches = self._held, self._caches
        self._held, self._filled, self._rdds = [], {}, set()
        if put_off.is_held_by(self):
            put_off.end(self)
        try:
            kept = {
                number
                for frame, _ in held
                for number, _ in _caches_in(self._context, _planned(frame._jdf))  # noqa: SLF001
            }
            for number, builder in caches.items():
                if number not in kept:
                    builder.clearCache(False)  # noqa: FBT003  py4j
        except Exception as error:  # noqa: BLE001  the JVM frees them when nothing refers to them
            logger.debug("caches are not freed at once: %s", text_of(error))

    @property
    def frames(self) -> list[DataFrame]:
        """What the function writes of them."""
        return [frame for frame, _ in self._held]

    @property
    def rdds(self) -> list[Any]:
        """The JVM's RDDs that they consist of; behind ``fill``."""
        return [builder.cachedColumnBuffers() for builder in self._caches.values()]

    @property
    def _caches(self) -> dict[int, Any]:
        return {number: builder for _, caches in self._held for number, builder in caches.items()}

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


def _filling(builder: Any) -> int:
    """Return what tells a cache's content from what it is computed anew as."""
    return int(builder.cachedColumnBuffers().id())


def _caches_in(context: Any, plan: Any) -> Iterator[tuple[int, Any]]:
    """Return what the caches of a plan are built by, and a number for each, by which the same one
    is known again.
    """
    for leaf in leaves_of(plan):
        if leaf.getClass().getSimpleName() == _CACHE:
            builder = leaf.cacheBuilder()
            yield context._jvm.System.identityHashCode(builder), builder  # noqa: SLF001
