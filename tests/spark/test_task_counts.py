"""Whether a batch has lost a task attempt is read from counts that Spark's listener bus fills,
perhaps later."""

from types import SimpleNamespace

import pytest

from onceforall.spark.task_counts import COUNTS_ARE_THERE_WITHIN_S, stage_lost_any


def stage(completed, failed=0, attempt=0, tasks=3):
    return SimpleNamespace(
        numTasks=tasks, numCompletedTasks=completed, numFailedTasks=failed, currentAttemptId=attempt
    )


class Context:
    """Spark's counts of a stage, one answer after the other; the last one stays."""

    def __init__(self, *counts):
        self.counts = list(counts)
        self.asked = 0

    def statusTracker(self):  # noqa: N802
        return self

    def getStageInfo(self, _stage):  # noqa: N802
        self.asked += 1
        return self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]


def lost_any(context, clock=lambda: 0.0):
    return stage_lost_any(context, 7, COUNTS_ARE_THERE_WITHIN_S, clock)


@pytest.mark.parametrize("late", [stage(3, failed=1), stage(3, attempt=1), stage(1, failed=1)])
def test_a_lost_attempt_that_spark_counts_later_is_noticed(late):
    assert lost_any(Context(None, stage(0), stage(2), late)) is True


def test_a_stage_without_a_lost_attempt_is_known_as_soon_as_all_of_it_is_counted():
    context = Context(stage(2), stage(3))
    assert lost_any(context) is False
    assert context.asked == 2


def test_counts_that_do_not_come_pass_for_a_lost_attempt():
    times = iter([0.0, 0.5, COUNTS_ARE_THERE_WITHIN_S])
    assert lost_any(Context(stage(2)), lambda: next(times)) is True
