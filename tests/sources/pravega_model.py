"""A model of a Pravega stream, for random histories: it is scaled and truncated where chance says,
and an answer to a read ends where chance ends it. It answers what the source's `Segments` answers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from onceforall.common.pravega.answers import GoneError
from onceforall.common.pravega.controller import Successor
from onceforall.common.pravega.names import SegmentOfKeys
from onceforall.common.pravega.segments import Info, event_bytes

KEYS = 12


@dataclass
class ModelSegment:
    """A segment of the model.

    Attributes:
        number: its number, with its epoch.
        low: where its share of the keys begins, from 0 to 1.
        high: where that ends.
        predecessors: the numbers of the segments that it came from.
        data: all that was written to it.
        start: before this offset it is truncated.
        ends: where each event ends, by the event's number.
        sealed: it takes no events.
        deleted: it is truncated as a whole.
    """

    number: int
    low: float
    high: float
    predecessors: tuple[int, ...] = ()
    data: bytes = b""
    start: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    sealed: bool = False
    deleted: bool = False


class ModelStream:
    """A stream whose segments and truncation are a history's.

    The body of an event is its number, how many were written before it, and its key.

    Attributes:
        written: the key and the segment of each event, by its number.
    """

    def __init__(self, chance, segments):
        """Begin with segments that take events, and no event."""
        self._chance = chance
        self._segments: dict[int, ModelSegment] = {}
        self._epoch = 0
        self.written: list[tuple[int, int]] = []
        for place in range(segments):
            self._add(place / segments, (place + 1) / segments, ())
        self._head = dict.fromkeys(self._segments, 0)

    # --- what a history does ----------------------------------------------------------------------

    def fill(self, count):
        """Write so many events, with keys that chance takes."""
        for _ in range(count):
            key = self._chance.randrange(KEYS)
            place = (key * 0.0811 + 0.01) % 1
            (segment,) = [one for one in self._active() if one.low <= place < one.high]
            number = len(self.written)
            segment.data += event_bytes(b"%d.%d" % (number, key))
            segment.ends[number] = len(segment.data)
            self.written.append((key, segment.number))

    def scale(self):
        """Replace some segments that are side by side by others."""
        active = self._active()
        first = self._chance.randrange(len(active))
        old = active[first : first + self._chance.randint(1, 3)]
        self._epoch += 1
        for one in old:
            one.sealed = True
        count = self._chance.randint(1, 3)
        low, width = old[0].low, old[-1].high - old[0].low
        bounds = [low + width * place / count for place in range(count)] + [old[-1].high]
        for begin, end in itertools.pairwise(bounds):
            came_from = [one.number for one in old if one.low < end and begin < one.high]
            self._add(begin, end, tuple(came_from))

    def truncate(self):
        """Truncate the stream at a cut behind the last one."""
        cut = {}
        for number in self._head:
            segment = self._segments[number]
            ends = [end for end in segment.ends.values() if end > segment.start]
            cut[number] = self._chance.choice([segment.start, *ends])
        for _ in range(self._chance.randint(0, 3)):
            self._advance(cut)
        self._head = cut
        kept, waiting = set(cut), list(cut)
        while waiting:
            following = {one.number for one in self.successors(None, waiting.pop())} - kept
            kept |= following
            waiting += following
        for number, segment in self._segments.items():
            segment.start = max(segment.start, cut.get(number, 0))
            segment.deleted = number not in kept

    def left(self):
        """Return the numbers of the events that are there."""
        return {
            number
            for segment in self._segments.values()
            for number, end in segment.ends.items()
            if not segment.deleted and end > segment.start
        }

    def _advance(self, cut):
        """Move a cut behind the segments of one scaling, where it has all of them."""
        for epoch in range(1, self._epoch + 1):
            heirs = [one for one in self._segments.values() if one.number >> 32 == epoch]
            old = {number for one in heirs for number in one.predecessors}
            if old <= cut.keys() and self._chance.random() < 0.7:
                for number in old:
                    del cut[number]
                cut.update({one.number: 0 for one in heirs})
                return

    def _add(self, low, high, predecessors):
        number = self._epoch << 32 | len(self._segments)
        self._segments[number] = ModelSegment(number, low, high, predecessors)

    def _active(self):
        active = [one for one in self._segments.values() if not one.sealed]
        return sorted(active, key=lambda one: one.low)

    # --- what `Segments` and its controller answer ------------------------------------------------

    def ask(self, what):
        """Return what the controller answers: the model is that, too."""
        return what(self)

    def first_segment(self, stream):
        """Return the number of the stream's first segment."""
        return 0

    def segments(self, stream):
        """Return the segments that take events."""
        return [SegmentOfKeys(one.number, one.low, one.high) for one in self._active()]

    def head(self, stream):
        """Return the cut of the last truncation."""
        return dict(self._head)

    def successors(self, stream, number):
        """Return what came of a segment."""
        return [
            Successor(one.number, one.predecessors)
            for one in self._segments.values()
            if number in one.predecessors
        ]

    def info(self, number):
        """Return where a segment begins and ends.

        Raises:
            GoneError: it is truncated as a whole.
        """
        segment = self._there(number)
        return Info(segment.start, len(segment.data), segment.sealed)

    def read(self, number, offset, length):
        """Return bytes of a segment, as few as chance says.

        Raises:
            GoneError: they are truncated.
        """
        segment = self._there(number)
        if offset < segment.start:
            raise GoneError(f"{number} begins at {segment.start}")
        assert offset < len(segment.data), "who reads behind the end waits"
        return segment.data[offset : offset + min(length, self._chance.choice([3, 17, 1000]))]

    def close(self):
        """Nothing is open."""

    def _there(self, number):
        segment = self._segments.get(number)
        if segment is None or segment.deleted:
            raise GoneError(f"no segment {number}")
        return segment
