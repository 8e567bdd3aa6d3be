"""Lets all that is derived from a frame share one computation of its rows.

The jobs of a batch run one after the other, and what each of them reads is derived from the batch
in a way that only its user knows. Were the rows computed for each of them, a value that no
computation gives again would lead a row to both of two sinks, or to none, and a stateful query
would run its operators twice.

Spark's own cache (``DataFrame.persist``) is no place for it. A frame that the user persists is
planned at that moment, by what is cached then; so it would have to be known before the function of
the batch runs whether its rows will be needed more than once. And the cache is the application's:
``clearCache()`` in another query's function empties it between two jobs. So the rows are kept one
level below, by the RDD that all plans of derived frames begin with (``RDD.persist``). Whether it
keeps them is told to it later, when it is known what reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from onceforall.common import logs
from onceforall.errors import text_of
from onceforall.spark.plans import leaves_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.storagelevel import StorageLevel

__all__ = ["SharedRows", "ids_in", "rdds_of"]

logger = logs.logger("onceforall")

_OF_RDD = "LogicalRDD"
_OF_RDDS = frozenset({_OF_RDD, "ExternalRDD", "ExternalRDDScan"})
_SAME_ROWS = frozenset({"CTERelationRef", "UnionLoopRef", "InMemoryRelation"})
"""Leaves that read what stands elsewhere in the plan, or elsewhere at all."""
_READ_AGAIN = ("CartesianProduct", "BroadcastNestedLoopJoin")
"""Joins that compute a side more than once: the first pairs each partition of one side with each of
the other, and computes both anew; the second one, where it is an outer join of some kind, looks
once more for the rows without a partner."""


class SharedRows:
    """The rows of one frame, in a classic session.

    Attributes:
        frame: the same rows; what is derived from it shares them. It takes ``persist``, ``cache``
            and ``unpersist`` as what they mean, that its rows are wanted more than once, and keeps
            them by itself until ``release``, and beyond it until ``unpersist`` where the user has
            persisted it and not unpersisted.
        of: the frame whose rows they are.
        is_final: no job can compute them again.
    """

    def __init__(
        self,
        frame: DataFrame,
        may_differ: Callable[[], bool] = lambda: True,
        *,
        at_once: bool = False,
    ) -> None:
        """Share a frame's rows.

        Args:
            frame: the frame.
            may_differ: tells whether another computation may give other rows.
            at_once: compute them now and for good, as one of Spark's actions, which is what
                completes an ``Observation``.
        """
        self._may_differ = may_differ
        # The only way to an RDD of copies: an execution gives out the same row object again and
        # again, with other content.
        self.frame = frame.localCheckpoint(eager=at_once)
        self.of = frame
        self._is_wanted = self.is_final = at_once
        self._is_users = self._is_released = False
        self._keeps = True
        self._context = frame.sparkSession.sparkContext
        jvm_frame: Any = self.frame._jdf  # noqa: SLF001  Spark offers this in no other way
        self._rdd = jvm_frame.queryExecution().analyzed().rdd()
        self._level = self._rdd.getStorageLevel()
        self._jobs_before = self._jobs()
        if not at_once:
            # Without the checkpoint: what can't be found any more is computed again.
            jvm: Any = self._context._jvm  # noqa: SLF001
            getattr(self._rdd, "checkpointData_$eq")(jvm.scala.Option.empty())
        for name in ("persist", "cache"):
            setattr(self.frame, name, self._want)
        setattr(self.frame, "unpersist", self._leave)  # noqa: B010  mypy takes it for a mistake

    @property
    def rdd(self) -> Any:
        """The JVM's RDD that keeps the rows."""
        return self._rdd

    def want(self) -> None:
        """Keep the rows, whatever reads them."""
        self._is_wanted = True

    def compute(self) -> None:
        """Compute the rows, and keep them; what is lost of them, a job computes again."""
        self.want()
        self._rdd.count()

    def are_kept(self) -> bool:
        """Tell whether they are kept; somebody may unpersist all RDDs that there are."""
        level = self._rdd.getStorageLevel()
        return bool(level.useMemory() or level.useDisk())

    def _want(self, storageLevel: StorageLevel | None = None) -> DataFrame:  # noqa: ARG002, N803  Spark's
        self._is_wanted = self._is_users = True
        self.frame.is_cached = True
        return self.frame

    def _leave(self, blocking: bool = False) -> DataFrame:  # noqa: FBT001, FBT002  Spark's
        self._is_users = False
        # The jobs haven't run yet, unless the batch was done long ago.
        if self._is_released:
            self.release()
        # Under another name Spark's cache may have it.
        return type(self.frame).unpersist(self.frame, blocking)

    def is_read_often(self, frames: Sequence[DataFrame]) -> bool:
        """Tell whether jobs that read these frames, each one, might compute the rows more than once
        if they weren't kept; one job may do so, too.
        """
        if len(frames) > 1:
            return True
        return not all(self._is_read_once(frame._jdf.queryExecution()) for frame in frames)  # noqa: SLF001

    def _is_read_once(self, execution: Any) -> bool:
        """Tell whether it is certain that a job which reads a frame computes no row of ours twice.

        Args:
            execution: the frame's ``QueryExecution``.
        """
        jvm: Any = self._context._jvm  # noqa: SLF001
        plan = execution.analyzed()
        reads = 0
        try:
            for leaf in leaves_of(plan):
                if self._is_ours(leaf):
                    reads += 1
                elif self._may_lead_to_ours(leaf):
                    return False
            if reads > 1:
                return False
            patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
            if not (plan.containsPattern(patterns.JOIN()) or plan.subqueriesAll().nonEmpty()):
                return True
            # What becomes of a correlated subquery may read the rows around it once more.
            if sum(map(self._is_ours, leaves_of(execution.optimizedPlan()))) > 1:
                return False
            planned = execution.executedPlan().toString()
            return not any(name in planned for name in _READ_AGAIN)
        except (Py4JError, TypeError) as error:
            logger.debug("how often a batch is read can't be seen: %s", text_of(error))
            return False

    def _is_ours(self, leaf: Any) -> bool:
        return _name(leaf) == _OF_RDD and int(leaf.rdd().id()) == int(self._rdd.id())

    def _may_lead_to_ours(self, leaf: Any) -> bool:
        """Tell whether a leaf that isn't ours may lead to it: one that other parts of the plan
        stand for, or an RDD that was made of it.
        """
        if _name(leaf) in _SAME_ROWS:
            return True
        if _name(leaf) not in _OF_RDDS:
            return False
        return int(self._rdd.id()) in ids_in(leaf.rdd())

    def keep(self, *, needed: bool) -> bool:
        """Say that all that reads the rows is known, and whether they are needed more than once.

        Returns:
            Whether they are kept: also where the function has asked for it, or has computed all of
            them for itself.
        """
        # What one pass over the batch needs, the next one gets.
        self._is_wanted |= needed
        if self._keeps and not (self._is_wanted or self._is_computed()):
            self._rdd.unpersist(False)  # noqa: FBT003  py4j
            self._keeps = False
        elif self._keeps and not self.is_final and not self.are_kept():
            # No job has read them in front of another one yet.
            self._rdd.persist(self._level)
        return self._keeps

    def _is_computed(self) -> bool:
        """Tell whether all rows are kept already, for something in the function has read them; or
        some, and the function may have seen what they would not be again.
        """
        try:
            if self._jobs() == self._jobs_before:
                return False
            ours = int(self._rdd.id())
            infos = self._context._jsc.sc().getRDDStorageInfo()  # noqa: SLF001
            kept = [int(info.numCachedPartitions()) for info in infos if int(info.id()) == ours]
            if kept and 0 < kept[0] < int(self._rdd.getNumPartitions()):
                return self._may_differ()
            return bool(kept and kept[0])
        except (Py4JError, TypeError) as error:
            logger.debug("what is kept of a batch can't be asked for: %s", text_of(error))
            return False

    def _jobs(self) -> int:
        return int(self._context._jsc.sc().dagScheduler().numTotalJobs())  # noqa: SLF001

    def release(self) -> None:
        """Free the rows, unless the user has persisted them; no error."""
        self._is_released = True
        if self._is_users and self._keeps and self.are_kept():
            return  # When nothing refers to them any more, Spark frees them, too.
        try:
            self._rdd.unpersist(False)  # noqa: FBT003  py4j
        except Exception as error:  # noqa: BLE001  the JVM frees them when nothing refers to them
            logger.debug("the rows of a batch are not freed at once: %s", text_of(error))


def rdds_of(plan: Any) -> list[Any]:
    """Return the RDDs that a logical plan of Spark's reads."""
    return [leaf.rdd() for leaf in leaves_of(plan) if _name(leaf) in _OF_RDDS]


def ids_in(rdd: Any) -> set[int]:
    """Return the ids of an RDD and of all that it was made of."""
    return {int(number) for number in re.findall(r"\[(\d+)\] at ", rdd.toDebugString())}


def _name(leaf: Any) -> str:
    return str(leaf.getClass().getSimpleName())
