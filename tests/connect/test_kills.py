"""kill -9 of a Spark Connect server, and of the child that takes the batches, which outlives it: a
read_committed reader and a folder's manifest then have each row once."""

import random
import signal

import psutil
import pytest

import onceforall as ofa
from onceforall.embedded.network import free_port
from support.reading import held_back, released, values
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture
def written(pipeline, broker, topic):
    """A pipeline to Kafka and to files."""
    pipeline.config |= {
        "sinks": ["kafka", "files"],
        "bootstrap": broker.bootstrap_servers,
        "topic": topic(partitions=3),
    }
    return pipeline


def assert_exactly_once(pipeline):
    count = 20 * pipeline.batches()
    assert count > 0
    bootstrap, topic = pipeline.config["bootstrap"], pipeline.config["topic"]
    released(bootstrap, topic)
    assert values(bootstrap, topic) == sorted(str(row) for row in range(count))
    rows = ofa.read_files(pipeline.config["files"]).to_arrow().to_pylist()
    assert sorted(row["value"] for row in rows) == list(range(count))


@pytest.mark.parametrize(
    "failpoint",
    [
        pytest.param("append_commit.before=kill-jvm@2", marks=pytest.mark.long),
        "append_commit.after=kill-jvm@2",
        pytest.param("write.job.after=kill-jvm@2", marks=pytest.mark.long),
        pytest.param("kafka.end_txn.after=kill-jvm@6", marks=pytest.mark.long),
        pytest.param("commit.after=kill-jvm@2", marks=pytest.mark.long),
        pytest.param("append_done.before=kill-jvm@2", marks=pytest.mark.long),
        pytest.param("recover.after=kill-jvm", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(
    "door", [pytest.param("write_stream", marks=pytest.mark.long), "exactly_once"]
)
def test_a_server_killed_with_its_child_in_the_middle_of_a_batch_neither_loses_nor_doubles(
    written, failpoint, door
):
    first = written.server(failpoint)
    client = written.start(first, door=door, until_batch=1000)
    first.wait_until_killed()
    client.kill()
    written.run(written.server(), door=door, until_batch=3)
    assert_exactly_once(written)


def test_a_child_that_outlives_its_killed_server_is_fenced_and_ends(written):
    """It was frozen in front of its decision, and wakes when its successor has gone on, on the same
    port."""
    port = free_port()
    first = written.server("append_commit.before=freeze", port=port)
    client = written.start(first, until_batch=1000)
    first.wait_for_failpoint("append_commit.before")
    (zombie,) = first.children()
    first.kill()
    client.kill()
    written.run(written.server(port=port), until_batch=2)
    assert zombie.status() == psutil.STATUS_STOPPED
    assert not (first.passed / "append_commit.after@driver").exists()
    zombie.send_signal(signal.SIGCONT)
    until(lambda: not zombie.is_running(), 60, "the zombie ends")
    assert (first.passed / "append_commit.after@driver").exists(), "it has tried to decide"
    assert {entry["generation"] for entry in written.entries("COMMIT")} == {1}
    assert_exactly_once(written)


@pytest.mark.long
def test_a_server_killed_at_random_moments_neither_loses_nor_doubles(written):
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for _ in range(8):
        server = written.server()
        client = written.start(server, until_batch=1000)
        before = written.batches() if written.checkpoint.is_dir() else 0
        until(lambda n=before, s=server: written.batches() > n, 120, server.said)
        psutil.wait_procs([], timeout=chance.uniform(0, 3))
        server.kill()
        client.kill()
    written.run(written.server(), until_batch=written.batches() + 2)
    assert_exactly_once(written), f"seed {seed}"


def test_a_query_that_is_stopped_in_the_middle_of_a_batch_leaves_nothing_open(written, tmp_path):
    server = written.server("task.pre_commit.before=freeze@3")
    stop_file = tmp_path / "stop"
    client = written.start(server, until_batch=1000, stop_file=str(stop_file))
    server.wait_for_failpoint("task.pre_commit.before")
    (child,) = server.children()
    stop_file.touch()
    assert client.status()["at"] == "run"
    until(lambda: not child.is_running(), 60, server.said)
    assert not held_back(written.config["bootstrap"], written.config["topic"])
    written.run(server, until_batch=written.batches() + 1)
    assert_exactly_once(written)
