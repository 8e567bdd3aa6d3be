"""kill -9 of a Spark Connect server, and of the child that takes the batches, which outlives it: a
read_committed reader and a folder's manifest then have each row once."""

import contextlib
import random
import signal
import time

import psutil
import psycopg
import pyspark
import pytest
from confluent_kafka import Producer

import onceforall as ofa
from onceforall.embedded.network import free_port
from support.connect_server import ConnectPipeline
from support.places import remote_place
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


def shows_no_keys():
    """From 4.3 on a server withholds the settings that spark.redaction.regex fits."""
    return tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 3)


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
    "door", ["write_stream", pytest.param("exactly_once", marks=pytest.mark.long)]
)
def test_a_server_killed_with_its_child_in_the_middle_of_a_batch_neither_loses_nor_doubles(
    written, failpoint, door
):
    written.config |= {"door": door, "transform": True}
    first = written.server(failpoint)
    client = written.start(first, until_batch=1000)
    first.wait_until_killed()
    client.kill()
    written.run(written.server(), until_batch=3)
    assert_exactly_once(written)


@pytest.mark.long
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
@pytest.mark.postgres
@pytest.mark.parametrize("step", ["append_commit.before", "append_commit.after"])
def test_counts_are_right_when_the_server_of_a_stateful_query_is_killed(pipeline, database, step):
    """A decided batch runs again for its state, and writes nothing."""
    pipeline.config |= {
        "sinks": ["postgres"],
        "database": database,
        "postgres": {"table": "public.counts", "key": ["k"], "create_table": True},
        "aggregate": True,
        "output_mode": "update",
    }
    first = pipeline.server(f"{step}=kill-jvm@3")
    client = pipeline.start(first, until_batch=1000)
    first.wait_until_killed()
    client.kill()
    second = pipeline.server()
    pipeline.run(second, until_batch=4)
    assert ("is replayed for its state" in second.said()) == (step == "append_commit.after")
    with psycopg.connect(database) as connection:
        counted = sorted(connection.execute("SELECT k, n FROM public.counts").fetchall())
    assert counted == [(k, 2 * pipeline.batches()) for k in range(10)]


@pytest.mark.long
def test_a_decided_transaction_that_is_lost_is_written_again_from_kept_rows(written):
    first = written.server("append_commit.after=kill-jvm@2")
    client = written.start(first, until_batch=1000)
    first.wait_until_killed()
    client.kill()
    decided = max(written.entries("COMMIT"), key=lambda entry: entry["body"]["batch"])
    lost = decided["body"]["committables"]["kafka"][0]["name"]
    other = Producer({"bootstrap.servers": written.config["bootstrap"], "transactional.id": lost})
    other.init_transactions(30)
    second = written.server()
    written.run(second, until_batch=3)
    assert "is written again" in second.said()
    assert_exactly_once(written)


@pytest.mark.long
def test_of_two_servers_on_one_checkpoint_one_stops_and_nothing_is_doubled(written):
    first = written.server()
    client = written.start(first, until_batch=1000)
    until(lambda: written.batches() > 1, 120, first.said)
    second = written.server()
    # Where the first one went further while the second one started, it is the second that stops.
    other = written.start(second, until_batch=written.batches() + 3).status()
    if other["error"] is None:
        assert client.status()["error"] is not None
    client.kill()
    first.close()
    written.run(second, until_batch=written.batches() + 1)
    assert_exactly_once(written)


@pytest.mark.long
def test_a_child_whose_server_is_killed_under_its_job_ends_soon(written):
    """The client of Connect would ask a server that is away for ten minutes."""
    server = written.server("task.pre_commit.before=freeze@3")
    client = written.start(server, until_batch=1000)
    server.wait_for_failpoint("task.pre_commit.before")
    (child,) = server.children()
    server.kill()
    client.kill()
    until(lambda: not child.is_running(), 40, "the child ends")


@pytest.mark.long
def test_a_child_that_is_killed_alone_ends_its_query_and_the_next_start_goes_on(written):
    server = written.server("append_commit.after=kill@2")
    status = written.start(server, until_batch=1000).status()
    assert status["at"] == "run"
    assert status["error"] is not None
    written.run(server, until_batch=2)
    assert_exactly_once(written)


@pytest.mark.long
@pytest.mark.s3
@pytest.mark.usefixtures("_class_archive")
@pytest.mark.parametrize("step", ["append_commit.before", "append_commit.after", "claim.after"])
def test_with_a_checkpoint_on_s3_a_killed_server_neither_loses_nor_doubles(
    request, tmp_path, broker, topic, step
):
    """No JVM is asked: obstore writes the log, with the keys of Spark's settings, or where Spark
    doesn't show these, with those of the server's environment."""
    place, settings = remote_place(request, "s3")
    server = request.getfixturevalue("s3_server")
    environment = {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
    }
    options = {
        "settings": settings,
        "environment": environment if shows_no_keys() else {},
    }
    made = ConnectPipeline(
        tmp_path,
        checkpoint=place,
        sinks=["kafka", "files"],
        bootstrap=broker.bootstrap_servers,
        topic=topic(partitions=3),
    )
    try:
        first = made.server(f"{step}=kill-jvm{'' if step == 'claim.after' else '@2'}", **options)
        client = made.start(first, until_batch=1000)
        first.wait_until_killed()
        client.kill()
        made.run(made.server(**options), until_batch=3)
        assert_exactly_once(made)
    finally:
        made.close()


@pytest.mark.long
def test_executors_of_their_own_are_looked_at_and_write(written):
    """Each is a process, as on a cluster."""
    server = written.server(settings={"spark.master": "local-cluster[2,1,1024]"})
    written.run(server, until_batch=3)
    assert_exactly_once(written)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_server_killed_at_random_moments_neither_loses_nor_doubles(written):
    chance = random.Random(7)
    for _ in range(8):
        server = written.server()
        client = written.start(server, until_batch=1000)
        before = written.batches()
        until(lambda n=before, s=server: written.batches() > n, 120, server.said)
        time.sleep(chance.uniform(0, 3))  # no state is waited for: the moment is chance
        server.kill()
        client.kill()
    written.run(written.server(), until_batch=written.batches() + 2)
    assert_exactly_once(written)


@pytest.mark.long
def test_a_query_that_is_stopped_in_the_middle_of_a_batch_leaves_nothing_open(written, tmp_path):
    # Behind its flush, for before it the producer may have sent nothing that is left open, and in no
    # other sink's job, which may come first.
    server = written.server("kafka.flush.after=delay:60000")
    stop_file = tmp_path / "stop"
    client = written.start(server, until_batch=1000, stop_file=str(stop_file))
    server.wait_for_failpoint("kafka.flush.after")
    until(
        lambda: held_back(written.config["bootstrap"], written.config["topic"]) > 0,
        30,
        "a transaction is open, or the test proves nothing",
    )
    (child,) = server.children()
    stop_file.touch()
    until(lambda: "Asked to cancel jobs with tag" in server.log(), 60, server.log)
    # Spark sends it twice, too, but may be late with the second one.
    with contextlib.suppress(psutil.NoSuchProcess):
        child.terminate()
    assert client.status()["at"] == "run"
    until(lambda: not child.is_running(), 60, server.said)
    assert not held_back(written.config["bootstrap"], written.config["topic"])
    written.run(server, until_batch=written.batches() + 1)
    assert_exactly_once(written)
