"""kill -9 at every step of a batch and of recovery, on a real broker; a read_committed reader
then sees each row exactly once."""

import pytest

from support.driver import ROWS_PER_BATCH, assert_exactly_once
from support.reading import held_back, values

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.long
def test_a_run_without_faults_writes_each_row_once(pipeline):
    pipeline.run()
    assert_exactly_once(pipeline)


@pytest.mark.parametrize(
    "failpoint",
    [
        pytest.param("append_commit.before=kill@3", marks=pytest.mark.long),
        pytest.param("append_commit.after=kill@3", marks=pytest.mark.long),
        # A part of the requests is sent. Behind an answer they all are, and nothing is left to do.
        "kafka.end_txn.before=kill@6",
        pytest.param("kafka.end_txn.after=kill@6", marks=pytest.mark.long),
        pytest.param("commit.after=kill@3", marks=pytest.mark.long),
        pytest.param("append_done.before=kill@3", marks=pytest.mark.long),
        pytest.param("return_batch.after_done=kill@3", marks=pytest.mark.long),
    ],
)
def test_a_driver_killed_in_the_middle_of_a_batch_neither_loses_nor_doubles(pipeline, failpoint):
    pipeline.start(failpoint).wait_until_killed()
    pipeline.run()
    assert_exactly_once(pipeline)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("append_commit.before=kill@3", "seal.after=kill", marks=pytest.mark.long),
        pytest.param("append_commit.after=kill@3", "claim.after=kill", marks=pytest.mark.long),
        pytest.param(
            "append_commit.after=kill@3", "kafka.end_txn.after=kill", marks=pytest.mark.long
        ),
        pytest.param("append_commit.after=kill@3", "recover.after=kill", marks=pytest.mark.long),
        pytest.param(
            "append_commit.after=kill@3", "append_done.after=kill", marks=pytest.mark.long
        ),
    ],
)
def test_a_driver_killed_again_in_recovery_neither_loses_nor_doubles(pipeline, first, second):
    pipeline.start(first).wait_until_killed()
    pipeline.start(second).wait_until_killed()
    pipeline.run()
    assert_exactly_once(pipeline)


@pytest.mark.long  # nothing is decided there, as at the other steps before the decision
def test_a_driver_killed_while_a_task_writes_neither_loses_nor_doubles(pipeline):
    """The frozen task outlives its driver, like one on another machine, and wakes while the
    successor runs."""
    driver = pipeline.start("task.pre_commit.before=freeze@3")
    driver.wait_for_failpoint("task.pre_commit.before")
    workers = driver.workers()
    driver.signal(9)
    driver.wait_until_killed()
    successor = pipeline.start()
    successor.wait_for("pids.json")
    for worker in workers:
        if worker.is_running():
            worker.resume()
    successor.wait()
    assert successor.status()["error"] is None
    assert_exactly_once(pipeline)


@pytest.mark.long
def test_a_crash_while_the_next_batch_has_reused_a_handle_commits_nothing_undecided(pipeline):
    """DONE is what tells the two transactions apart: they have the same id, producer id and
    epoch."""
    pipeline.start("append_commit.before=kill@4").wait_until_killed()
    commits = pipeline.entries("COMMIT")
    handles = [
        {
            (c["name"], c["producer_id"], c["producer_epoch"])
            for c in commit["body"]["committables"]["out"]
        }
        for commit in commits
    ]
    assert handles[-1] & handles[-2], "no handle was reused; the test proves nothing"
    assert len(values(pipeline.bootstrap, pipeline.topic)) == ROWS_PER_BATCH * len(commits)
    assert held_back(pipeline.bootstrap, pipeline.topic) > 0, (
        "batch 3 is not prepared; the test proves nothing"
    )
    pipeline.run()
    assert_exactly_once(pipeline)


def test_a_stateful_query_killed_after_the_decision_rebuilds_its_state(pipeline):
    pipeline.start("append_commit.after=kill@4", stateful=True).wait_until_killed()
    pipeline.run(stateful=True)
    rows = [value.split(":") for value in values(pipeline.bootstrap, pipeline.topic)]
    expected = []
    for end in range(ROWS_PER_BATCH, ROWS_PER_BATCH * pipeline.batches() + 1, ROWS_PER_BATCH):
        for bucket in range(7):
            members = list(range(bucket, end, 7))
            expected.append([str(bucket), str(len(members)), str(members[-1])])
    assert sorted(rows) == sorted(expected)
