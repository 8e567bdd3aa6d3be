"""What the Pravega source does when a stream is truncated between a look at it and a read."""

from __future__ import annotations

import struct

import pytest

from onceforall.common.pravega.answers import GoneError
from onceforall.common.pravega.segments import Info
from onceforall.errors import DataLossError
from onceforall.sources.pravega.options import parse
from onceforall.sources.pravega.planning import Planner
from onceforall.sources.pravega.positions import Offset, Position
from onceforall.sources.spark_reader import Limits

EVENT = struct.pack(">iI", 0, 2) + b"ab"
LENGTH = len(EVENT)


class Truncated:
    """Segment 0 with ten events, of which the first four are gone by the first read."""

    start = 0

    def ask(self, what):
        return what(self)

    def first_segment(self, stream):
        return 0

    def info(self, number):
        return Info(self.start, 10 * LENGTH, sealed=False)

    def read(self, number, offset, length):
        self.start = 4 * LENGTH
        if offset < self.start:
            raise GoneError("it begins later")
        return (EVENT * 10)[offset : offset + length]


def planned(limits, **options):
    planner = Planner(parse({"controller": "127.0.0.1:1", "scope": "s", "stream": "e", **options}))
    planner._segments = Truncated()
    start = Offset(str(planner._stream), {0: Position(LENGTH, first=0)})
    return planner.plan(start, limits).segments[0]


def test_a_truncation_behind_the_look_is_a_loss_that_is_told():
    with pytest.raises(DataLossError, match="segment 0 from offset 10 on"):
        planned(Limits(rows=2))


def test_what_is_left_is_read_if_the_user_says_so():
    assert planned(Limits(rows=2), failOnDataLoss="false").offset == 6 * LENGTH
