"""kill -9 at every step of queries that read from Pravega, and of queries that write to it, alone
and beside Kafka and PostgreSQL: each row is in each sink once, and nothing is left behind."""

import signal
import uuid
from collections import Counter

import pytest

from onceforall.common.pravega.controller import State
from support.driver import ROWS_PER_BATCH
from support.feeding import Feed
from support.sinks import left, shown
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.pravega]

STEPS = [
    "write.after",
    "task.pre_commit.after",
    "append_commit.before",
    "append_commit.after",
    "commit.after",
    "append_done.before",
    "append_done.after",
]


def seen(pipeline, stream, kind):
    if kind == "pravega":
        return Counter(content.decode() for content in stream.contents())
    return Counter(shown(pipeline, kind))


def kill_at(pipeline, point, time):
    driver = pipeline.start(f"{point}=kill@{time}")
    if point.startswith("task."):
        # Of the driver nothing is killed: the attempt fails, and the query stops.
        driver.wait_for_failpoint(point)
        driver.wait()
    else:
        driver.wait_until_killed()


def assert_each_row_once(pipeline, stream, kinds):
    expected = Counter(str(row) for row in range(ROWS_PER_BATCH * pipeline.batches()))
    for kind in kinds:
        found = seen(pipeline, stream, kind)
        assert (kind, expected - found, found - expected) == (kind, Counter(), Counter())
    assert stream.noted().still_open() == []
    for kind in set(kinds) - {"pravega"}:
        assert left(pipeline, kind) == []


@pytest.mark.parametrize(
    ("kinds", "points"),
    [
        pytest.param(
            ("pravega",), ["append_commit.after"], id="alone-a-few", marks=pytest.mark.long
        ),
        pytest.param(
            ("pravega",), STEPS, marks=[pytest.mark.long, pytest.mark.timeout(900)], id="alone"
        ),
        pytest.param(
            ("pravega", "kafka", "postgres"),
            STEPS,
            marks=[pytest.mark.long, pytest.mark.timeout(900)],
            id="beside-kafka-and-postgres",
        ),
    ],
)
def test_each_row_is_in_each_sink_once(events_stream, pipeline_of, kinds, points):
    stream = events_stream(segments=2)
    pipeline = pipeline_of(*kinds, pravega_sink=stream.target)
    for point in points:
        kill_at(pipeline, point, 2)
    pipeline.run(until_batch=pipeline.batches() + 2)
    assert pipeline.batches() > 2
    assert_each_row_once(pipeline, stream, kinds)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("redo", ["replay", "durable"])
@pytest.mark.parametrize("kinds", [("pravega",), ("pravega", "kafka", "postgres")], ids=len)
def test_a_decided_batch_whose_leases_ran_out_is_written_again(
    events_stream, pipeline_of, redo, kinds
):
    stream = events_stream(segments=2)
    options = {"onceforall.redo": redo, "onceforall.decisionReserveMs": 100}
    pipeline = pipeline_of(*kinds, pravega_sink={**stream.target, "lease_s": 60}, options=options)
    pipeline.start("append_commit.after=kill@3").wait_until_killed()
    decided = pipeline.entries("COMMIT")[-1]["body"]["committables"]["pravega"]
    assert decided
    for each in decided:
        until(lambda each=each: state(stream, each) is State.ABORTED, 120, "Pravega aborts them")
    pipeline.run(until_batch=pipeline.batches() + 2)
    assert_each_row_once(pipeline, stream, kinds)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_decided_batch_of_which_a_part_is_lost_is_written_again_once(events_stream, pipeline_of):
    stream = events_stream(segments=2)
    options = {"onceforall.redo": "replay"}
    pipeline = pipeline_of("pravega", pravega_sink=stream.target, options=options)
    pipeline.start("append_commit.after=kill@3").wait_until_killed()
    lost = pipeline.entries("COMMIT")[-1]["body"]["committables"]["pravega"][0]
    stream.controller.abort(stream.name, uuid.UUID(lost["txn"]))
    pipeline.start("append_commit.after=kill").wait_until_killed()
    pipeline.run(until_batch=pipeline.batches() + 2)
    assert_each_row_once(pipeline, stream, ("pravega",))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", ["append_commit.after", "commit.before"])
def test_a_driver_that_wakes_behind_its_decision_adds_nothing_to_what_was_written_again(
    events_stream, pipeline_of, point
):
    stream = events_stream(segments=2)
    options = {"onceforall.redo": "replay", "onceforall.decisionReserveMs": 100}
    pipeline = pipeline_of(
        "pravega", pravega_sink={**stream.target, "lease_s": 25}, options=options
    )
    frozen = pipeline.start(f"{point}=freeze@3", until_batch=1000)
    frozen.wait_for_failpoint(point)
    decided = pipeline.entries("COMMIT")[-1]["body"]["committables"]["pravega"]
    assert decided
    for each in decided:
        until(lambda each=each: state(stream, each) is State.ABORTED, 120, "Pravega aborts them")
    pipeline.run(until_batch=pipeline.batches() + 2)
    frozen.signal(signal.SIGCONT)
    frozen.wait()
    assert frozen.status()["error"] is not None
    pipeline.run(until_batch=pipeline.batches() + 1)
    assert_each_row_once(pipeline, stream, ("pravega",))


def state(stream, committable):
    return stream.controller.state(stream.name, uuid.UUID(committable["txn"]))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kinds", "points"),
    [
        pytest.param(("files",), ["append_commit.before", "append_commit.after"], id="a-few"),
        pytest.param(("files", "kafka", "postgres"), STEPS, id="all-steps-all-sinks"),
    ],
)
def test_each_event_of_a_stream_is_in_the_sinks_once(events_stream, pipeline_of, kinds, points):
    stream = events_stream(segments=2)
    stream.put(20)
    options = {**stream.target, "startingPosition": "EARLIEST", "maxRecordsPerTrigger": "40"}
    pipeline = pipeline_of(*kinds, pravega=options)
    changes = [lambda n=n: stream.scale(n) for n in (3, 2, 4)]
    with Feed(stream, changes):
        for point in points:
            kill_at(pipeline, point, 3)
    stop = pipeline.folder / "stop"
    last = pipeline.start(
        stop_file=str(stop), pravega={**options, "maxRecordsPerTrigger": "100000"}
    )
    expected = Counter(str(n) for n in range(stream.written))

    def everything():
        return all(Counter(shown(pipeline, kind)) >= expected for kind in kinds)

    until(lambda: last.process.poll() is not None or everything(), 120, "all events")
    stop.touch()
    last.wait()
    for kind in kinds:
        found = Counter(shown(pipeline, kind))
        assert (kind, expected - found, found - expected) == (kind, Counter(), Counter())
        assert left(pipeline, kind) == []
