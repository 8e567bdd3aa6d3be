"""Holds what a function writes of what it has persisted, until its writes are done.

``transaction.write`` only registers: the jobs run when the function has returned, and by then one
that persists, writes and unpersists, as functions for ``foreachBatch`` do, has unpersisted, be it
by ``unpersist``, ``clearCache``, another view of the name, or in the JVM. Each job would then
compute the shared frame anew; values that no replay gives again would lead a row to both of two
writes, or to none, and the rows would not be those that the function has seen.

So a frame that is written, and reads what was persisted since the batch began, is computed at once,
from the caches of that moment, and kept below Spark's own cache (``shared_rows``): what the
function does with its caches from there on is its own affair. So is one that reads what the
functions of earlier batches have persisted and kept, if computing it again may give other rows.
Where each computation gives the same rows, and what was persisted hasn't been computed yet, nothing
is: the jobs do so, once. Where somebody else has emptied what the function has persisted of the
batch, the attempt fails (``noted_frames``).

What the application has persisted, such as a table that each batch is joined with, may be large. A
frame that reads it is planned with the caches of now (Spark puts its caches into a plan when it
makes a job of it, ``CacheManager.useCachedData``), and its plan refers to them: to one that was
unpersisted since, too, which is then computed once more, for all jobs that refer to it. A cache
that is emptied while the jobs run is computed once more in the same way, and that is once too
often: so it is looked at again behind the last job.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from onceforall.common import logs
from onceforall.errors import text_of
from onceforall.spark.determinism import text_of_plan
from onceforall.spark.errors import cache_was_emptied, computed_twice
from onceforall.spark.kept_blocks import KeptBlocks
from onceforall.spark.noted_frames import Noted, is_cached
from onceforall.spark.plans import leaves_of
from onceforall.spark.shared_rows import SharedRows, ids_in, rdds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["HeldCaches"]

logger = logs.logger("onceforall")

_CACHE = "InMemoryRelation"
_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""What Spark says of a part that was computed for good, and is gone."""

_lock = threading.Lock()
_kept_over: set[int] = set()
"""The ids of RDDs that functions have persisted and kept beyond their batch; of the process, for
another run of the query, or another query, may read them."""


class HeldCaches:
    """Those of one batch's function.

    Args:
        batch: any frame of the batch's session.
        why_not: tells why another computation of frames may give other rows, though the batch gives
            the same; None: it may not. It is given the batch as the function has it, and the
            frames.
        keep: called with the batch where it must give the same rows for that.
    """

    def __init__(
        self,
        batch: DataFrame,
        why_not: Callable[[DataFrame, Iterable[DataFrame]], str | None],
        keep: Callable[[DataFrame], object],
    ) -> None:
        self._batch = batch
        self._why_not = why_not
        self._keep = keep
        self._began = -1
        self._held: list[tuple[DataFrame, dict[int, Any]]] = []
        self._filled: dict[int, int] = {}
        self._blocks: list[KeptBlocks] = []
        self._why_final: str | None = None
        self.computed: list[SharedRows] = []
        """What was computed at once."""
        self.noted = Noted()
        """What the function has persisted; see ``noted_frames``."""

    def begin(self) -> None:
        """Take what is persisted from now on for the function's, which is about to be called."""
        if self._began < 0:
            # Ids of RDDs rise, and a cache gets its RDD when something reads it first.
            self._began = int(self._context._jsc.sc().newRddId())  # noqa: SLF001

    def holding(self, frame: DataFrame, batch: DataFrame) -> DataFrame:
        """Return a frame of the rows that the frame has now.

        Args:
            frame: what the function writes.
            batch: the batch as the function has it.

        Raises:
            AttemptFailedError: what it reads was computed more than once.
        """
        jvm: Any = frame._jdf  # noqa: SLF001  Spark offers this in no other way
        own = {int(rdd.id()) for rdd in rdds_of(batch._jdf.queryExecution().analyzed())}  # noqa: SLF001
        try:
            plan = None if _caches_of_session(jvm).isEmpty() else _planned(jvm)
            caches = {} if plan is None else dict(_caches_in(self._context, plan))
            young = {n: c for n, c in caches.items() if _filling(c) > self._began}
            older = any(_filling(builder) in _kept_over for builder in caches.values())
            of_rdds = self._persisted_rdds_of(jvm, own)
        except (Py4JError, TypeError) as error:
            # Another Spark may not have it; what a function persists and keeps is not concerned.
            logger.debug("caches are not held: %s", text_of(error))
            return frame
        # What is cached already may be another query's, which unpersists it at any time.
        is_young = bool(young or of_rdds or (self.noted.frames and caches))
        if self.noted.frames or is_young or older:
            reason = self._why_not(batch, [frame])
            if reason is not None:
                self._check_noted(jvm, caches, own)
                if is_young or older:
                    return self._now(frame, reason, caches, own)
            elif is_young:
                self._keep(batch)
                if any(builder.isCachedColumnBuffersLoaded() for builder in young.values()):
                    # The function has computed it, perhaps at some expense.
                    return self._now(frame, None, caches, own)
        return self._planned_now(frame, plan, caches) if caches else frame

    def _planned_now(self, frame: DataFrame, plan: Any, caches: dict[int, Any]) -> DataFrame:
        from pyspark.sql import DataFrame as SparkDataFrame

        jvm: Any = frame._jdf  # noqa: SLF001
        held = self._context._jvm.org.apache.spark.sql.classic.Dataset.ofRows(  # noqa: SLF001
            jvm.sparkSession(), plan
        )
        self._held.append((frame, caches))
        return SparkDataFrame(held, frame.sparkSession)

    def _check_noted(self, jvm_frame: Any, caches: dict[int, Any], own: set[int]) -> None:
        """See that a frame finds what the function has persisted of the batch.

        Args:
            jvm_frame: what the function writes.
            caches: what it reads.
            own: the RDD of the batch.

        Raises:
            AttemptFailedError: it would be computed anew.
        """
        plans = [
            each._jdf.queryExecution().analyzed()  # noqa: SLF001
            for each in self.noted.frames
            if not is_cached(each)
        ]
        gone = [
            _lines(plan)
            for plan in plans
            if any(int(rdd.id()) in own or own & ids_in(rdd) for rdd in rdds_of(plan))
        ]
        if not gone:
            return
        lines = _lines(jvm_frame.queryExecution().analyzed())
        for builder in caches.values():
            lines = _without(lines, _lines(builder.logicalPlan()))
        if any(_without(lines, block) != lines for block in gone):
            raise cache_was_emptied()

    def _now(
        self, frame: DataFrame, reason: str | None, caches: dict[int, Any], own: set[int]
    ) -> DataFrame:
        """Return the frame's rows, computed.

        Args:
            frame: what the function writes.
            reason: why its rows may become others; None: they don't.
            caches: what it reads.
            own: the RDD of the batch.
        """
        if reason is not None and not self._context._jsc.sc().isLocal():  # noqa: SLF001
            rdds = rdds_of(frame._jdf.queryExecution().analyzed())  # noqa: SLF001
            below = [*rdds, *(builder.cachedColumnBuffers() for builder in caches.values())]
            numbers = {number for rdd in below for number in ids_in(rdd)}
            blocks = KeptBlocks(self._context, self._persisted(numbers))
            self._blocks.append(blocks)
            if not blocks.compute():
                raise computed_twice(reason)
        before = {
            number: int(buffers.id())
            for number, builder in caches.items()
            if own & ids_in(buffers := builder.cachedColumnBuffers())
        }
        if reason is None and not _observes(frame):
            # What an executor takes along is computed again, as in plain Spark.
            rows = SharedRows(frame)
            self.computed.append(rows)
            rows.compute()
            return rows.frame
        rows = SharedRows(frame, at_once=True)
        self.computed.append(rows)
        self._why_final = reason or "and an Observation has counted them"
        if reason is None:
            return rows.frame
        if not all(blocks.are_as_before() for blocks in self._blocks):
            raise computed_twice(reason)
        if any(_filling(caches[number]) != content for number, content in before.items()):
            raise cache_was_emptied()
        return rows.frame

    def _persisted(self, numbers: set[int]) -> list[Any]:
        """Return those of some RDDs that are persisted, what was made first in front."""
        persisted = self._context._jsc.getPersistentRDDs()  # noqa: SLF001
        found = (persisted.get(number) for number in sorted(numbers))
        return [rdd.rdd() for rdd in found if rdd is not None]

    def _persisted_rdds_of(self, jvm_frame: Any, own: set[int]) -> bool:
        """Tell whether a frame reads RDDs that are persisted one level below Spark's cache, by
        whomever; where they are emptied, nothing tells it.
        """
        ours = own | {int(rows.rdd.id()) for rows in self.computed}
        persisted = self._persisted_ids() - ours
        if not persisted:
            return False
        return any(
            persisted & ids_in(rdd)
            for rdd in rdds_of(jvm_frame.queryExecution().analyzed())
            if int(rdd.id()) not in ours and not rdd.isCheckpointed()
        )

    def _persisted_ids(self) -> set[int]:
        # As a text, for each element of a set of Java's is a few calls.
        told = str(self._context._jsc.getPersistentRDDs().keySet().toString())  # noqa: SLF001
        return {int(number) for number in re.findall(r"\d+", told)}

    def fill(self) -> None:
        """Remember what is in the caches, or will be, before the first job reads them.

        Raises:
            AttemptFailedError: what was computed at once is gone.
        """
        if not self._are_computed():
            raise cache_was_emptied()
        self._filled = {number: _filling(builder) for number, builder in self._caches.items()}

    def are_as_before(self) -> bool:
        """Tell whether nothing was emptied: of the caches since ``fill``, of what was computed
        ever.
        """
        return self._are_computed() and all(
            _filling(self._caches[number]) == rdd for number, rdd in self._filled.items()
        )

    def why_lost(self, error: Exception) -> str | None:
        """Return why no job can compute rows again that it misses; None: it failed of something
        else.

        Args:
            error: of a job.
        """
        return self._why_final if _LOST in str(error) else None

    def _are_computed(self) -> bool:
        return all(rows.are_kept() for rows in self.computed if rows.is_final)

    def release(self) -> None:
        """Free what was computed, and the caches that were unpersisted meanwhile; no error."""
        held, caches = self._held, self._caches
        computed, self.computed = self.computed, []
        noted, self.noted = self.noted, Noted()
        self._held, self._filled, self._blocks, self._why_final = [], {}, [], None
        for rows in computed:
            rows.release()
        try:
            self._remember(noted)
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

    def _remember(self, noted: Noted) -> None:
        """Remember what the function keeps for later batches."""
        kept: set[int] = set()
        for frame in noted.frames:
            if is_cached(frame):
                caches = _caches_in(self._context, _planned(frame._jdf))  # noqa: SLF001
                kept.update(_filling(builder) for _, builder in caches)
        with _lock:
            persisted = self._persisted_ids()
            if noted.others:
                kept.update(number for number in persisted if number > self._began)
            _kept_over.update(kept)
            _kept_over.intersection_update(persisted)

    @property
    def frames(self) -> list[DataFrame]:
        """What the function writes of them."""
        return [*(frame for frame, _ in self._held), *(rows.of for rows in self.computed)]

    @property
    def rdds(self) -> list[Any]:
        """The JVM's RDDs that are kept of them; behind ``fill``."""
        caches = [builder.cachedColumnBuffers() for builder in self._caches.values()]
        return [*caches, *(rows.rdd for rows in self.computed)]

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


def _observes(frame: DataFrame) -> bool:
    """Tell whether an ``Observation`` may wait for a frame."""
    return "CollectMetrics" in text_of_plan(frame._jdf.queryExecution().analyzed())  # noqa: SLF001


def _lines(plan: Any) -> list[str]:
    """Return a plan's nodes as texts, without the numbers of columns, which differ where a frame is
    joined with itself.
    """
    text = re.sub(r"#\d+L?\b", "", text_of_plan(plan))
    return [line.lstrip(" :+-|") for line in text.splitlines() if line.strip()]


def _without(lines: list[str], block: list[str]) -> list[str]:
    """Return a plan's nodes without those of another one, wherever it stands in it."""
    for start in range(len(lines) - len(block) + 1):
        if block and lines[start : start + len(block)] == block:
            return _without([*lines[:start], *lines[start + len(block) :]], block)
    return lines
