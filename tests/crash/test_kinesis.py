"""kill -9 at every step of queries that read from Kinesis, and of queries that write to it: what
was read is in exactly-once sinks once, and what is put is in Kinesis at least once."""

import itertools
import threading
from collections import Counter

import pytest

from support.driver import ROWS_PER_BATCH, Pipeline
from support.kinesis import Stream
from support.sinks import left, make_table, shown
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]

STEPS = [
    "write.after",
    "append_commit.before",
    "append_commit.after",
    "commit.after",
    "append_done.before",
    "append_done.after",
]


@pytest.fixture
def pipeline_of(tmp_path, broker, topic, database):
    """Make a pipeline with these sinks and this configuration."""
    made = []

    def make(*kinds, **config):
        make_table(database)
        more = {"sinks": list(kinds), "files": str(tmp_path / "files"), "database": database}
        made.append(
            Pipeline(
                tmp_path,
                broker.bootstrap_servers,
                topic(partitions=3),
                until_batch=10_000,
                **more,
                **config,
            )
        )
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


class Feed:
    """Puts records into a stream until the test ends, and reshards it now and then."""

    def __init__(self, stream):
        self.stream, self._over = stream, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        turns = itertools.cycle([self.stream.split, self.stream.merge])
        for count in itertools.count(1):
            if self._over.wait(0.3):
                return
            self.stream.put(7)
            if count % 25 == 0:
                next(turns)()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize(
    ("kinds", "points"),
    [
        pytest.param(
            ("files",),
            ["append_commit.before", "append_commit.after"],
            marks=pytest.mark.long,
            id="a-few",
        ),
        pytest.param(
            ("files", "kafka", "postgres"),
            STEPS,
            marks=[pytest.mark.long, pytest.mark.timeout(900)],
            id="all-steps-all-sinks",
        ),
    ],
)
def test_each_record_of_a_stream_is_in_the_sinks_once(kinesis_server, pipeline_of, kinds, points):
    stream = Stream(kinesis_server, shards=2)
    stream.put(20)
    options = stream.options(maxRecordsPerTrigger="40")
    pipeline = pipeline_of(*kinds, kinesis=options)
    with Feed(stream):
        for point in points:
            pipeline.start(f"{point}=kill@3").wait_until_killed()
    stop = pipeline.folder / "stop"
    # A slow machine has fed thousands by now.
    last = pipeline.start(
        stop_file=str(stop), kinesis={**options, "maxRecordsPerTrigger": "100000"}
    )
    expected = Counter(str(n) for n in range(stream.written))

    def everything():
        return all(Counter(shown(pipeline, kind)) >= expected for kind in kinds)

    until(lambda: last.process.poll() is not None or everything(), 120, "all records")
    stop.touch()
    last.wait()
    for kind in kinds:
        found = Counter(shown(pipeline, kind))
        assert (kind, expected - found, found - expected) == (kind, Counter(), Counter())
        assert left(pipeline, kind) == []


@pytest.mark.parametrize(
    ("kinds", "points"),
    [
        pytest.param(
            ("kinesis",), ["append_commit.before"], id="alone-a-few", marks=pytest.mark.long
        ),
        pytest.param(
            ("kinesis",), STEPS, marks=[pytest.mark.long, pytest.mark.timeout(900)], id="alone"
        ),
        pytest.param(
            ("kinesis", "kafka", "postgres"),
            STEPS,
            marks=[pytest.mark.long, pytest.mark.timeout(900)],
            id="beside-kafka-and-postgres",
        ),
    ],
)
def test_each_row_is_in_the_stream_at_least_once_and_in_the_other_sinks_once(
    kinesis_server, pipeline_of, kinds, points
):
    stream = Stream(kinesis_server, shards=2)
    sink = {
        "stream": stream.name,
        "region": kinesis_server.region,
        "endpoint_url": kinesis_server.endpoint,
        "credentials_function": "onceforall.embedded.kinesis:session",
        "record_id": None,
    }
    pipeline = pipeline_of(*kinds, kinesis_sink=sink)
    for point in points:
        pipeline.start(f"{point}=kill@3").wait_until_killed()
    pipeline.run(until_batch=pipeline.batches() + 2)
    expected = Counter(str(row) for row in range(ROWS_PER_BATCH * pipeline.batches()))
    found = Counter(record["Data"].decode() for record in stream.records())
    assert found.keys() == expected.keys()
    # A batch that was killed before its decision was put again, and nothing else.
    assert max(found.values()) > 1
    assert len([1 for times in found.values() if times > 1]) <= ROWS_PER_BATCH * len(points)
    for kind in set(kinds) - {"kinesis"}:
        seen = Counter(shown(pipeline, kind))
        assert (kind, expected - seen, seen - expected) == (kind, Counter(), Counter())
        assert left(pipeline, kind) == []
