"""Old drivers that come back, and two drivers at once: only one of them decides, and nothing is
doubled or lost."""

import signal

import pytest

from onceforall.sinks.kafka.names import parse_name
from support.cluster import Cluster
from support.driver import ROWS_PER_BATCH, assert_exactly_once
from support.embedded import own_broker
from support.reading import held_back, released, values
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.parametrize(
    "failpoint",
    [
        "append_commit.before",
        pytest.param("append_commit.after", marks=pytest.mark.long),
        pytest.param("recover.after", marks=pytest.mark.long),
    ],
)
def test_a_driver_that_was_frozen_replaced_and_woken_is_fenced(pipeline, failpoint):
    zombie = pipeline.start(
        f"{failpoint}=freeze@{1 if failpoint == 'recover.after' else 3}", until_batch=1000
    )
    zombie.wait_for_failpoint(failpoint)
    zombie.signal(signal.SIGSTOP)
    pipeline.run()
    zombie.signal(signal.SIGCONT)
    zombie.wait()
    # Past the decision, Spark's own log may stop it before its next request does.
    assert zombie.status()["error"] is not None
    assert "FencedError" in zombie.log()
    assert_exactly_once(pipeline)


@pytest.mark.long  # the fence is the one that a frozen driver meets
def test_of_two_drivers_on_one_checkpoint_one_stops_and_nothing_is_doubled(pipeline):
    first = pipeline.start(until_batch=1000)
    until(
        lambda: (pipeline.checkpoint / "commits" / "1").exists(),
        90,
        "the first driver's second batch",
    )
    second = pipeline.start()
    second.wait()
    until(
        lambda: first.process.poll() is not None or second.status()["error"] is not None,
        60,
        "one of the two stops",
    )
    first.kill()
    pipeline.run(until_batch=pipeline.batches() + 2)
    assert_exactly_once(pipeline)


@pytest.mark.long  # test_stopping.py stops at other steps
def test_a_stop_that_is_asked_for_while_a_commit_waits_for_the_broker_ends_at_once_and_loses_nothing(
    tmp_path, pipeline_on
):
    with own_broker(tmp_path) as broker:
        pipeline = pipeline_on(broker)
        stop_file = tmp_path / "stop"
        driver = pipeline.start(
            "commit.before=freeze@3", stop_file=str(stop_file), until_batch=1000
        )
        driver.wait_for_failpoint("commit.before")
        broker.freeze()
        driver.signal(signal.SIGCONT)
        until(lambda: "is tried again" in driver.log(), 60, "the commit waits for the broker")
        stop_file.touch()
        driver.wait()
        assert "InDoubtError" in str(driver.status()["error"]), driver.status()
        assert driver.wait_for("stopped.json")["seconds"] < 30
        broker.thaw()
        # The frozen broker may have kept the request and taken it up when it thawed.
        assert len(values(pipeline.bootstrap, pipeline.topic)) in {
            ROWS_PER_BATCH * 2,
            ROWS_PER_BATCH * 3,
        }
        pipeline.run()
        assert_exactly_once(pipeline)


@pytest.mark.long  # test_sinks.py has that of PostgreSQL, with three sinks
def test_a_broker_killed_between_decision_and_commit_delays_the_batch_and_loses_nothing(
    tmp_path, pipeline_on
):
    with own_broker(tmp_path) as broker:
        pipeline = pipeline_on(broker)
        driver = pipeline.start("commit.before=freeze@3")
        driver.wait_for_failpoint("commit.before")
        broker.kill()
        driver.signal(signal.SIGCONT)
        until(lambda: "is tried again" in driver.log(), 60, "the commit waits for the broker")
        broker.restart()
        driver.wait()
        assert driver.status()["error"] is None, driver.log()
        assert_exactly_once(pipeline)


@pytest.mark.long
def test_a_failed_task_attempt_leaves_nothing_visible_and_holds_no_reader(pipeline):
    driver = pipeline.start("task.pre_commit.after=kill@2", master="local[2,4]", until_batch=25)
    driver.wait_for_failpoint("task.pre_commit.after")
    # While the run goes on: at its end it sweeps whatever is left.
    behind = (len(pipeline.entries("COMMIT")) + 4) * ROWS_PER_BATCH
    until(
        lambda: len(values(pipeline.bootstrap, pipeline.topic)) >= behind,
        60,
        "readers get past the failed attempt",
    )
    assert driver.process.poll() is None, "the run was over, so this proves nothing"
    driver.wait()
    assert driver.status()["error"] is None, driver.log()
    assert_exactly_once(pipeline)
    # Should the failed one wake after all, the ids that it may take are nobody's any more.
    names = [
        parse_name(c["name"])[1]
        for entry in pipeline.entries("COMMIT")
        for c in entry["body"]["committables"]["out"]
    ]
    assert {name.incarnation for name in names} == {0, 1}


@pytest.mark.long
def test_a_task_that_fails_for_good_aborts_the_batch_and_a_restart_writes_it(pipeline):
    driver = pipeline.start("task.pre_commit.after=raise@2")
    driver.wait()
    assert "FailpointError" in str(driver.status()["error"]), driver.status()
    released(pipeline.bootstrap, pipeline.topic)
    pipeline.run()
    assert_exactly_once(pipeline)


@pytest.mark.long
def test_tasks_without_rows_open_no_transaction(pipeline):
    pipeline.run(rows_per_batch=2, partitions=4)
    for commit in pipeline.entries("COMMIT"):
        assert len(commit["body"]["committables"]["out"]) == 2
        assert [rows for rows, _ in commit["body"]["digests"]["out/0"]].count(0) == 2
    assert values(pipeline.bootstrap, pipeline.topic) == sorted(
        str(row) for row in range(2 * pipeline.batches())
    )


@pytest.mark.long
def test_a_speculative_attempt_that_lost_changes_nothing(tmp_path, pipeline):
    """Two executors; the attempt that hangs before its pre-commit is overtaken by a copy of
    itself, and wakes afterwards."""
    with Cluster(tmp_path / "cluster") as cluster:
        driver = pipeline.start(
            "task.pre_commit.before=freeze@3",
            master=cluster.url,
            spark={
                "spark.executor.memory": "512m",
                "spark.speculation": "true",
                "spark.speculation.interval": "100ms",
                "spark.speculation.multiplier": "1.5",
                "spark.speculation.quantile": "0.5",
                "spark.speculation.minTaskRuntime": "500ms",
            },
        )
        driver.wait_for_failpoint("task.pre_commit.before")
        frozen = until(
            lambda: [w for w in cluster.python_workers() if w.status() == "stopped"],
            30,
            "the task hangs",
        )
        decided = len(pipeline.entries("DONE"))
        until(
            lambda: len(pipeline.entries("DONE")) > decided or driver.process.poll() is not None,
            90,
            "the copy wins",
        )
        for worker in frozen:
            if worker.is_running():
                worker.resume()
        driver.wait()
        assert driver.status()["error"] is None, driver.log()
        assert_exactly_once(pipeline)


@pytest.mark.long
def test_a_query_that_is_stopped_in_the_middle_of_a_batch_holds_no_reader(tmp_path, pipeline):
    """Three tasks have prepared, one hangs: the stop aborts them all, and the process leaves
    nothing open when it ends."""
    stop_file = tmp_path / "stop"
    driver = pipeline.start(
        "task.pre_commit.before=freeze@3", stop_file=str(stop_file), until_batch=1000
    )
    driver.wait_for_failpoint("task.pre_commit.before")
    until(
        lambda: held_back(pipeline.bootstrap, pipeline.topic) > 0,
        30,
        "the other tasks have prepared",
    )
    stop_file.touch()
    driver.wait()
    released(pipeline.bootstrap, pipeline.topic)
    pipeline.run()
    assert_exactly_once(pipeline)
