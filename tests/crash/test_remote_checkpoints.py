"""Checkpoint and commit log on S3 and on HDFS: kill -9 at the steps of a batch and of a start, two
drivers at once, and Spark's own files overwritten by a run that was replaced. A read_committed
reader then sees each row once."""

import contextlib
import json
import signal

import pytest

from crash.test_lost import lose
from onceforall.embedded import s3a_jars
from onceforall.spark.mending import SET_ASIDE
from onceforall.spark.remote_path import RemotePath
from support.driver import ROWS_PER_BATCH, Pipeline, assert_exactly_once
from support.http_faults import HttpProxy
from support.places import MANAGER, remote_place, s3_client
from support.reading import released, values
from support.waiting import Story, until

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture(
    params=[
        pytest.param("s3", marks=pytest.mark.s3),
        # Files and kept rows on HDFS are written in tests that take less.
        pytest.param("hdfs", marks=[pytest.mark.hdfs, pytest.mark.long]),
    ]
)
def remote(request):
    return remote_place(request, request.param)


@pytest.fixture
def pipeline(tmp_path, broker, topic, remote):
    place, spark = remote
    made = Pipeline(
        tmp_path, broker.bootstrap_servers, topic(partitions=3), checkpoint=place, spark=spark
    )
    yield made
    made.close()


@pytest.mark.long
def test_a_driver_killed_behind_its_decision(pipeline):
    pipeline.start("append_commit.after=kill@3").wait_until_killed()
    pipeline.run()
    assert_exactly_once(pipeline)
    assert {entry["kind"] for entry in pipeline.entries()} == {"CLAIM", "SEAL", "COMMIT", "DONE"}


@pytest.mark.long
@pytest.mark.parametrize("step", ["claim.after", "seal.after", "recover.after"])
def test_a_driver_killed_behind_its_decision_and_again_in_recovery(pipeline, step):
    pipeline.start("append_commit.after=kill@3").wait_until_killed()
    pipeline.start(f"{step}=kill").wait_until_killed()
    pipeline.run()
    assert_exactly_once(pipeline)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "failpoint",
    [
        "store.create.before=kill@9",
        "store.create.after=kill@9",
        "append_commit.before=kill@3",
        "kafka.end_txn.after=kill@6",
        "commit.after=kill@3",
        "append_done.before=kill@3",
        "return_batch.after_done=kill@3",
        "claim.after=kill",
        "bind.pointed=kill",
        "log.append.after=kill@2",
    ],
)
def test_a_driver_killed_at_any_step(pipeline, failpoint):
    pipeline.start(failpoint).wait_until_killed()
    pipeline.run()
    assert_exactly_once(pipeline)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kill", ["append_done.before=kill@5", "append_commit.after=kill@5"])
def test_a_frozen_driver_that_was_replaced_decides_nothing_and_what_it_wrote_over_is_put_back(
    pipeline, kill
):
    """Spark's checkpoint excludes no second writer: what a replaced run writes over the plan of a
    decided batch is put back from the log by the next start."""
    frozen = pipeline.start("append_commit.before=freeze@3", until_batch=99)
    frozen.wait_for_failpoint("append_commit.before")
    successor = pipeline.start(kill)
    successor.wait_until_killed()
    decided = pipeline.entries("COMMIT")[-1]["body"]
    plan = pipeline.checkpoint / "offsets" / str(decided["batch"])
    version, header, *_ = plan.read_text().split("\n")
    other = json.dumps({"offset": 987_654, "timestamp": 1})
    pipeline.checkpoint.client.replace(plan.key, f"{version}\n{header}\n{other}".encode())
    driver = pipeline.run()
    assert "other offsets than were decided" in driver.log()
    assert [each.name for each in (pipeline.checkpoint / SET_ASIDE).iterdir()]
    frozen.signal(signal.SIGCONT)
    frozen.wait()
    assert "FencedError" in str(frozen.status()["error"])
    assert_exactly_once(pipeline)


def rows_left(pipeline):
    rows = pipeline.checkpoint / "onceforall" / "rows"
    return [file.name for folder in rows.iterdir() for file in folder.iterdir()]


@pytest.mark.long
def test_lost_transactions_are_written_again_from_rows_that_were_kept_on_the_store(pipeline):
    kept = {"onceforall.redo": "durable"}
    pipeline.start("append_commit.after=kill@3", options=kept).wait_until_killed()
    decided = pipeline.entries("COMMIT")[-1]["body"]
    assert {each["rows"]["file"].rpartition("/")[2] for each in decided["committables"]["out"]} == (
        set(rows_left(pipeline))
    ), "the rows of the batch in doubt, and no others"
    lose(pipeline, 2)
    pipeline.start("append_commit.before=kill", options=kept).wait_until_killed()
    pipeline.run(options=kept)
    assert_exactly_once(pipeline)
    lost, *again = [e["body"] for e in pipeline.entries("COMMIT") if e["body"]["batch"] == 2]
    assert again[-1]["digests"] == lost["digests"]
    assert rows_left(pipeline) == []


def counts_after(batches):
    """What the stateful query gives, batch by batch: each bucket's count and last value."""
    expected, counted = [], {}
    for batch in range(batches):
        for row in range(batch * ROWS_PER_BATCH, (batch + 1) * ROWS_PER_BATCH):
            n, _ = counted.get(row % 7, (0, 0))
            counted[row % 7] = (n + 1, row)
        expected += [f"{bucket}:{n}:{last}" for bucket, (n, last) in counted.items()]
    return expected


KILLS = [
    "append_commit.before=kill@2",
    "append_commit.after=kill@2",
    "kafka.end_txn.after=kill@3",
    "append_done.before=kill@2",
    "return_batch.after_done=kill@2",
]


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_stateful_query_that_is_killed_twenty_times_counts_right(pipeline):
    """Its state lies on the store, too: what a bucket's count was in each batch tells."""
    pipeline.config["spark"].pop(MANAGER, None)
    kills = 0
    for number in range(20):
        driver = pipeline.start(KILLS[number % len(KILLS)], stateful=True, until_batch=99)
        driver.wait_until_killed()
        kills += 1
    assert kills == 20
    pipeline.run(stateful=True, until_batch=pipeline.batches() + 1)
    released(pipeline.bootstrap, pipeline.topic)
    batches = pipeline.batches()
    assert batches > 15
    seen = values(pipeline.bootstrap, pipeline.topic)
    assert sorted(seen) == sorted(counts_after(batches))


@pytest.mark.long
@pytest.mark.s3
def test_on_s3_each_entry_is_one_put_by_hadoops_client_too(
    tmp_path, broker, topic, s3_server, s3_bucket
):
    with HttpProxy(s3_server.port) as proxy:
        spark = {
            "spark.jars": ",".join(map(str, s3a_jars())),
            **s3_server.spark_settings(),
            "spark.hadoop.fs.s3a.endpoint": proxy.endpoint,
        }
        pipeline = Pipeline(
            tmp_path,
            broker.bootstrap_servers,
            topic(partitions=3),
            checkpoint=RemotePath(s3_client(s3_server, s3_bucket)),
            spark=spark,
        )
        # An answer that is lost is asked for again, and nothing is written twice.
        proxy.lose("PUT", r"chains/00000000/00000005\.json$")
        with contextlib.closing(pipeline):
            driver = pipeline.run()
    assert_exactly_once(pipeline)
    entries = [entry["index"] for entry in pipeline.entries()]
    assert len(entries) >= 13
    for index in entries[3:]:
        key = rf"chains/00000000/{index:08d}\.json$"
        puts = proxy.count("PUT", "create", key)
        assert puts == (2 if index == 5 else 1), (index, driver.log())
        # Only the one whose answer was lost is looked at: S3A asks for its size, then for it.
        assert proxy.count(key=key) - puts == (2 if index == 5 else 0), proxy.counts()


def wait_for_waiting(driver):
    def told():
        return "waits for its store" in driver.log()

    until(lambda: told() or driver.process.poll() is not None, 100, Story(driver.log))
    assert told(), f"the driver ended: {driver.log()}"


@pytest.mark.s3
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_store_of_the_log_that_goes_away_is_waited_for_and_a_stop_ends_the_waiting(
    tmp_path, broker, topic, s3_server, s3_bucket
):
    with HttpProxy(s3_server.port) as proxy, contextlib.ExitStack() as running:
        spark = {
            "spark.jars": ",".join(map(str, s3a_jars())),
            **s3_server.spark_settings(),
            "spark.hadoop.fs.s3a.endpoint": proxy.endpoint,
            # Of the client itself: else one create alone takes minutes to fail.
            "spark.hadoop.fs.s3a.attempts.maximum": "1",
            "spark.hadoop.fs.s3a.retry.limit": "1",
        }
        pipeline = running.enter_context(
            contextlib.closing(
                Pipeline(
                    tmp_path,
                    broker.bootstrap_servers,
                    topic(partitions=3),
                    checkpoint=RemotePath(s3_client(s3_server, s3_bucket)),
                    spark=spark,
                )
            )
        )
        away = proxy.cut("PUT", r"chains/00000000/00000005\.json$", count=100_000)
        driver = pipeline.start()
        wait_for_waiting(driver)
        away.end()
        driver.wait()
        assert_exactly_once(pipeline)
        away = proxy.cut("PUT", r"chains/00000001/00000003\.json$", count=100_000)
        driver = pipeline.start(until_batch=pipeline.batches() + 5)
        wait_for_waiting(driver)
        driver.signal(signal.SIGTERM, jvm=False)
        driver.wait()
        away.end()
        pipeline.run(until_batch=pipeline.batches() + 2)
    assert_exactly_once(pipeline)
