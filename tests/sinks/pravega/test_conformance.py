"""The Pravega sink keeps the contract of all sinks: the conformance suite on a real server."""

import pyarrow as pa
import pytest

from onceforall.sinks.pravega import PravegaSink
from onceforall.testing.conformance import SinkUnderTest, check_sink

pytestmark = pytest.mark.pravega

KILLED_INSIDE = {
    f"killed_while_{what}"
    for what in ("writing", "confirming", "committing", "aborting", "recovering")
}
PRELOAD = [
    "grpc",
    "onceforall.common.pravega.controller",
    "onceforall.sinks.pravega.sink",
    "google.protobuf.message_factory",
]


def under_test(stream, controller=None, **more):
    target = {**stream.target, **({} if controller is None else {"controller": controller})}
    make_sink = lambda: PravegaSink(**target)
    watching = make_sink()
    return SinkUnderTest(
        make_sink=make_sink,
        rows=lambda numbers: pa.RecordBatch.from_pydict(
            {
                "event": pa.array([b"%d" % n for n in numbers], pa.binary()),
                "routingKey": pa.array([f"k{n % 5}" for n in numbers]),
            }
        ),
        read=lambda: [int(content) for content in stream.contents()],
        leftovers=lambda: [one["name"] for one in stream.noted().still_open()],
        lose=watching.abort,
        preload=PRELOAD,
        **more,
    )


A_FEW = {
    "commit_in_another_process",
    "recover_leaves_alone_what_it_must",
    "frozen_driver_of_a_decided_batch",
}


def test_the_pravega_sink_passes_a_few_cases_of_the_suite(events_stream):
    report = check_sink(under_test(events_stream(), crash_points=0), only=A_FEW)
    assert set(report.passed) == A_FEW


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_pravega_sink_passes_the_conformance_suite(events_stream):
    report = check_sink(under_test(events_stream(), crash_points=0))
    unseen = {
        "no_secret_is_shown",
        "another_target_has_another_identity",
        "missing_predecessor_is_noticed",
    }
    assert set(report.skipped) == {*unseen, *KILLED_INSIDE}
    assert len(report.passed) == 40


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_pravega_sink_passes_the_cases_with_kills_within_each_call(events_stream):
    report = check_sink(under_test(events_stream(), crash_points=6), only=KILLED_INSIDE)
    assert set(report.passed) == KILLED_INSIDE
