"""kill -9 at every step of queries whose checkpoint and files are on S3 or on HDFS, beside a topic
under one decision: both sinks then have each row once, and the folder has no leftovers."""

import re
import signal
from collections import Counter

import pytest

import onceforall as ofa
from crash.test_sinks import IN_A_BATCH, IN_RECOVERY, chain
from sinks.files_s3.place import prefix_on
from support.driver import ROWS_PER_BATCH, Pipeline
from support.places import remote_place
from support.reading import released, values
from support.waiting import Story, until
from support.web_hdfs import WebHdfs

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.long,
    pytest.mark.timeout(1200),
]

FILES = [
    "file.confirm.after",
    "file.commit.before",
    "file.commit.renamed",
    "file.commit.synced",
    "file.manifest.before",
    "file.manifest.after",
    "file.commit.before_clearing",
    "file.commit.cleared",
]


class Lake:
    """The folder of the sink, as a reader sees it."""

    def __init__(self, request, kind):
        self.kind = kind
        if kind == "s3":
            server = request.getfixturevalue("s3_server")
            self._prefix = prefix_on(server, request.getfixturevalue("s3_bucket"))
            self.url, self._storage = self._prefix.url, self._prefix.storage
        else:
            self.url, self._storage = request.getfixturevalue("hdfs_folder") + "-lake", None
            self._web = WebHdfs(request.getfixturevalue("hdfs_server").web_url, self.url)

    def rows(self):
        files = ofa.read_files(self.url, storage=self._storage)
        return Counter(files.to_arrow().column("value").to_pylist())

    def left(self):
        """What is there of attempts that have ended."""
        if self.kind == "hdfs":
            attempts = self._web.list("_onceforall/staging")
            return [
                file for each in attempts for file in self._web.list(f"_onceforall/staging/{each}")
            ]
        with self._prefix.client() as client:
            uploads = client.list_multipart_uploads(Bucket=self._prefix.bucket).get("Uploads", [])
            return [each["Key"] for each in uploads]


@pytest.fixture(
    params=[
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("hdfs", marks=pytest.mark.hdfs),
    ]
)
def lake(request):
    return Lake(request, request.param)


@pytest.fixture
def pipeline(request, tmp_path, broker, topic, lake):
    place, spark = remote_place(request, lake.kind)
    made = Pipeline(
        tmp_path,
        broker.bootstrap_servers,
        topic(partitions=3),
        checkpoint=place,
        spark=spark,
        sinks=["files", "kafka"],
        files=lake.url,
        until_batch=10_000,
    )
    yield made
    made.close()


def assert_each_row_once(pipeline, lake):
    expected = Counter(str(row) for row in range(ROWS_PER_BATCH * pipeline.batches()))
    assert len(expected) > 2 * ROWS_PER_BATCH
    released(pipeline.bootstrap, pipeline.topic)
    seen = {"files": lake.rows(), "topic": Counter(values(pipeline.bootstrap, pipeline.topic))}
    for name, found in seen.items():
        assert (name, expected - found, found - expected) == (name, Counter(), Counter())
    assert lake.left() == []


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(chain(IN_A_BATCH, []), id="in-a-batch"),
        pytest.param(chain([], IN_RECOVERY), id="in-recovery"),
        pytest.param(chain(FILES, []), id="at-the-files"),
        pytest.param(chain([], FILES[1:]), id="at-the-files-in-recovery"),
    ],
)
def test_a_driver_is_killed_at_each_step(pipeline, lake, points):
    assert points
    for point in points:
        pipeline.start(point).wait_until_killed()
    pipeline.run(until_batch=pipeline.batches() + 2)
    assert_each_row_once(pipeline, lake)


@pytest.mark.parametrize("point", ["file.pre_commit.file_written", "file.pre_commit.after"])
def test_a_task_is_killed_between_writing_and_pre_commit(pipeline, lake, point):
    driver = pipeline.start(f"{point}=kill@3")
    driver.wait_for_failpoint(point)
    driver.wait()
    pipeline.run(until_batch=pipeline.batches() + 2)
    assert_each_row_once(pipeline, lake)


def test_a_driver_that_was_frozen_before_its_decision_and_replaced_changes_nothing(pipeline, lake):

    frozen = pipeline.start("append_commit.before=freeze@3")
    frozen.wait_for_failpoint("append_commit.before")
    pipeline.run(until_batch=pipeline.batches() + 3)
    before = pipeline.batches()
    frozen.signal(signal.SIGCONT)
    frozen.wait()
    assert "FencedError" in str(frozen.status()["error"])
    assert pipeline.batches() == before
    assert_each_row_once(pipeline, lake)


def test_two_drivers_take_turns_by_force(pipeline, lake):
    """Each is started while the other one runs, and fences it: that one notices it at its next
    append, or when a task misses what was swept. Where it has gone further until then, both stop,
    and the next start goes on. Where both plan one batch, Spark stops the later one, which may be
    the new one before it has fenced anybody.
    """
    driver, ends = going_on(pipeline, pipeline.start()), []
    for _ in range(3):
        other = replacing(pipeline, driver)
        ends.append(str(driver.status()["error"]))
        driver = going_on(pipeline, other)
    assert all(re.search("FencedError|CONCURRENT_STREAM_LOG_UPDATE", end) for end in ends), ends
    assert any("FencedError" in end for end in ends), "no run was fenced: the test proves nothing"
    driver.kill()
    pipeline.run(until_batch=pipeline.batches() + 2)
    assert_each_row_once(pipeline, lake)


def replacing(pipeline, driver):
    """Start another driver, again where Spark stops it, until the first one has ended; return it."""
    other = pipeline.start()
    ended = [each.process.poll for each in (driver, other)]
    until(lambda: {poll() for poll in ended} != {None}, 180, Story(driver.log))
    stopped = other.process.poll() is not None and str(other.status()["error"])
    if driver.process.poll() is None and "CONCURRENT_STREAM_LOG_UPDATE" in (stopped or ""):
        return replacing(pipeline, driver)
    driver.wait()
    return other


def going_on(pipeline, driver):
    """Wait until a driver has written two batches, or another one that is started in its place;
    return the one that has.
    """

    def done():
        return driver.log().count("is written: ") >= 2

    until(lambda: done() or driver.process.poll() is not None, 180, Story(driver.log))
    if done():
        return driver
    # The second is what Spark says where its own log has the batch that it enters.
    assert re.search("OvertakenError|CONCURRENT_STREAM_LOG_UPDATE", str(driver.status()["error"]))
    return going_on(pipeline, pipeline.start())
