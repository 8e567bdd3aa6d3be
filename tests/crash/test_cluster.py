"""Spark on a cluster of three brokers, while these are killed, restarted and cut off under it."""

import pytest

from onceforall.embedded import EmbeddedKafkaCluster
from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient
from support.driver import Pipeline, assert_exactly_once
from support.moving import coordinator_of, make_whole
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]


@pytest.fixture
def cluster():
    with EmbeddedKafkaCluster() as running:
        running.create_topic("out", 3, config={"min.insync.replicas": "2"})
        yield running


@pytest.fixture
def pipeline(tmp_path, cluster):
    made = Pipeline(tmp_path, cluster.bootstrap_servers, "out")
    yield made
    made.close()


def wait_for_batches(pipeline, driver, count):
    """Wait until that many more batches are complete."""
    goal = len(pipeline.entries("DONE")) + count
    until(
        lambda: len(pipeline.entries("DONE")) >= goal or driver.process.poll() is not None,
        120,
        f"more batches\n{driver.log()}",
    )
    assert driver.process.poll() is None, driver.log()


def open_transactions(cluster):
    client = CoordinatorClient(cluster.bootstrap_servers)
    try:
        return set(client.open_transactions())
    finally:
        client.close()


def test_a_rolling_restart_under_a_running_query_loses_and_doubles_nothing(
    pipeline, cluster, tmp_path
):
    stop_file = tmp_path / "stop"
    driver = pipeline.start(until_batch=10_000, stop_file=str(stop_file))
    for node in cluster.nodes:
        wait_for_batches(pipeline, driver, 2)
        cluster.stop(node)
        cluster.restart(node)
        cluster.wait_until_whole()
    wait_for_batches(pipeline, driver, 2)
    stop_file.touch()
    driver.wait()
    pipeline.run(until_batch=pipeline.batches() + 2)
    assert_exactly_once(pipeline)


def test_a_driver_killed_after_the_decision_together_with_a_broker_completes_the_batch(
    pipeline, cluster
):
    driver = pipeline.start("commit.before=freeze@3")
    driver.wait_for_failpoint("commit.before")
    decided = pipeline.entries("COMMIT")[-1]["body"]["committables"]["out"]
    in_doubt = sorted(open_transactions(cluster) & {c["name"] for c in decided})
    assert in_doubt, "nothing that was decided is open; the test proves nothing"
    cluster.kill(coordinator_of(cluster, in_doubt[0]))
    driver.kill()
    successor = pipeline.start(until_batch=pipeline.batches() + 6)
    successor.wait()
    assert successor.status()["error"] is None, successor.log()
    make_whole(cluster)
    assert_exactly_once(pipeline)


def test_a_broker_cut_off_under_a_running_query_and_woken_loses_and_doubles_nothing(
    pipeline, cluster, tmp_path
):
    stop_file = tmp_path / "stop"
    impatient = {"socket.timeout.ms": 3000, "request.timeout.ms": 3000}
    driver = pipeline.start(until_batch=10_000, stop_file=str(stop_file), sink_options=impatient)
    wait_for_batches(pipeline, driver, 2)
    node = cluster.leader("out", 0)
    cluster.pause(node)
    cluster.wait_until_whole(without=[node])
    wait_for_batches(pipeline, driver, 1)
    cluster.resume(node)
    wait_for_batches(pipeline, driver, 2)
    stop_file.touch()
    driver.wait()
    cluster.wait_until_whole()
    pipeline.run(until_batch=pipeline.batches() + 2)
    assert_exactly_once(pipeline)
