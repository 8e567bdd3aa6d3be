"""kill -9 at every step of queries that read from Kinesis, and of queries that write to it: what
was read is in exactly-once sinks once, and what is put is in Kinesis at least once."""

from collections import Counter

import pytest

from support.driver import ROWS_PER_BATCH
from support.feeding import Feed
from support.kinesis import Stream
from support.sinks import left, shown
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
    with Feed(stream, [stream.split, stream.merge]):
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
