"""The Pravega source passes the suite for sources."""

from __future__ import annotations

import itertools

import pytest

from onceforall.sources.pravega.options import parse
from onceforall.sources.pravega.source import PravegaReader
from onceforall.testing.sources import SourceUnderTest, check_source, source_cases

pytestmark = pytest.mark.pravega


def test_the_pravega_source_passes_the_suite(events_stream, monkeypatch):
    def new():
        stream = events_stream(segments=2)
        options = parse(
            {**stream.target, "startingPosition": "EARLIEST", "maxRecordsPerTrigger": "8"}
        )
        counts = itertools.cycle([3, 2, 4, 2])

        def put(numbers):
            assert numbers == stream.put(len(numbers))

        return SourceUnderTest(
            make_reader=lambda: PravegaReader(options),
            put=put,
            number=lambda row: int(row["event"]),
            changes={"scaled": lambda: stream.scale(next(counts))},
            faults={"cut off": lambda: cut_off(monkeypatch)},
            in_order=True,
            key=lambda number: number % 7,
            secrets=["no secret is known to it"],
        )

    report = check_source(new)
    assert report.passed == source_cases()
    assert report.skipped == {}


def cut_off(monkeypatch):
    """Let the next answer of a segment store never come: its connection breaks."""
    from onceforall.common.pravega import segments

    receive, left = segments.SegmentStore._receive, [1]

    def broken(self):
        if left and left.pop():
            raise self._broken("cut off by the test")
        return receive(self)

    monkeypatch.setattr(segments.SegmentStore, "_receive", broken)
