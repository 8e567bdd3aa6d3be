"""What Spark's own counts say of a run's tasks: which still run, and whether one was tried
twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

COUNTS_ARE_THERE_WITHIN_S = 1.0
"""Where Spark's counts of a batch's stages are not whole by then, task attempts count as lost:
that costs a few sweeps. A job that has just begun is in no count yet."""


def active_tasks(context: SparkContext, run_id: str | None) -> int:
    """Return how many tasks of this job group run now, as far as Spark has counted."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(run_id)]
    stages = [
        tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds
    ]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def attempts_lost(context: Any, stages: Iterable[int], clock: Callable[[], float]) -> bool:
    """Tell whether a task attempt of these stages may live beside the one that was counted: a
    failed, a speculative or a resubmitted one.

    Args:
        context: the ``SparkContext``.
        stages: the ids of the stages whose results are there.
        clock: seconds.
    """
    # What the scheduler goes by, and not the session, which may say something else. PySpark's
    # getConf() makes a call into the JVM per setting.
    if str(context._jsc.getConf().get("spark.speculation", "false")).lower() == "true":  # noqa: SLF001
        return True
    until = clock() + COUNTS_ARE_THERE_WITHIN_S
    return any(stage_lost_any(context, stage, until, clock) for stage in stages)


def stage_lost_any(
    context: SparkContext, stage: int, until: float, clock: Callable[[], float]
) -> bool:
    """Tell whether a stage had more attempts than tasks, as soon as Spark's counts of it are whole;
    ``until``: true when they aren't by then.

    Spark counts behind its listener bus, in the order of events: when the last task is counted, so
    is every attempt that failed before. (A task can't tell it: PySpark's ``TaskContext`` lacks
    ``stageAttemptNumber``.)
    """
    while True:
        info = context.statusTracker().getStageInfo(stage)
        if info is not None and (info.numFailedTasks > 0 or info.currentAttemptId > 0):
            return True
        if info is not None and info.numCompletedTasks >= info.numTasks:
            return False
        if clock() >= until:
            return True
        time.sleep(0.002)
