"""Where a query stands in its stream: what Spark keeps in its offsets. Pure.

An offset is a stream cut, with what is needed to go on from it::

    {"version": 1, "stream": "clicks/events", "first": 0, "segments": {
        "0": {"offset": 4096, "closed": true},
        "4294967297": {"offset": 128, "from": 0}}}

Each segment's offset lies between two events that were there, so the bytes before it are the same
for ever, and a replay reads them again. ``{"version": 1}`` alone is the beginning: nothing was
looked at yet. It is the same at each start, which matters: Spark doesn't store the first batch's
beginning, but asks for it again when it replays that batch. So the end in which a segment comes
first carries, as ``from``, where it begins in it.

``first`` is the number of the stream's first segment. A stream that is deleted and made again under
its name has another one, for Pravega goes on counting. Where a query goes on with such a stream
nevertheless, ``again`` counts how often it did: segments that it begins anew are then no
continuation of those before, though they may have the same numbers. Offsets without ``first`` were
written before it was noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from onceforall.errors import SourceError

VERSION = 1


@dataclass(frozen=True)
class Position:
    """How far a segment was read.

    Attributes:
        offset: where the next event begins.
        first: where the segment began in the batch in which it came first; None in later ones.
        closed: it is sealed, there is nothing more, and its successors weren't all begun yet.
    """

    offset: int
    first: int | None = None
    closed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return what stands in an offset; what isn't set is left out."""
        every = {"offset": self.offset, "from": self.first, "closed": self.closed or None}
        return {name: value for name, value in every.items() if value is not None}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Position:
        """Read what `to_json` made."""
        return cls(found["offset"], found.get("from"), found.get("closed", False))

    def begun(self) -> Position:
        """Return the position as a batch begins with it: Spark has it, so where the segment began
        needn't be told any more.
        """
        return replace(self, first=None)


@dataclass(frozen=True)
class Offset:
    """How far a query has read a stream, by its segments' numbers.

    Attributes:
        stream: its name; None: nothing was looked at yet.
        segments: the positions.
        first: the number of the stream's first segment; None: it wasn't noted then.
        again: how often the query has begun anew with a stream that isn't the one from before.
    """

    stream: str | None = None
    segments: Mapping[int, Position] = field(default_factory=dict)
    first: int | None = None
    again: int = 0

    def is_of(self, first: int) -> bool:
        """Tell whether this is an offset of the stream that has this first segment.

        Args:
            first: the segment's number.
        """
        if self.first is not None:
            return self.first == first
        # A number's lower half counts through all epochs.
        return all(number & 0xFFFFFFFF >= first for number in self.segments)

    def to_json(self) -> dict[str, Any]:
        """Return Spark's offset."""
        if self.stream is None:
            return {"version": VERSION}
        every = {
            "version": VERSION,
            "stream": self.stream,
            "first": self.first,
            "again": self.again or None,
            "segments": {
                str(number): self.segments[number].to_json() for number in sorted(self.segments)
            },
        }
        return {name: value for name, value in every.items() if value is not None}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Offset:
        """Read Spark's offset.

        Raises:
            SourceError: a later release has written it, or it isn't one of this source.
        """
        if found.get("version") != VERSION:
            raise SourceError(
                f"The checkpoint has an offset of version {found.get('version')!r}, and this "
                f"release of onceforall reads version {VERSION} of its Pravega source. Start the "
                "query with the release and the source that wrote the checkpoint."
            )
        return cls(
            found.get("stream"),
            {
                int(number): Position.from_json(each)
                for number, each in found.get("segments", {}).items()
            },
            found.get("first"),
            found.get("again", 0),
        )


@dataclass(frozen=True)
class Range:
    """Events of one segment that a batch has: the unit that a task reads."""

    segment: int
    start: int
    end: int


def ranges(start: Offset, end: Offset) -> list[Range]:
    """Return what a batch from one offset to another has to read; segments without events have no
    range.

    Raises:
        SourceError: the offsets don't belong together.
    """
    found = []
    for number, position in end.segments.items():
        before = start.segments.get(number) if start.again == end.again else None
        begin = position.first if before is None else before.offset
        if begin is None or begin > position.offset:
            raise SourceError(
                f"The offsets of a batch don't belong together: segment {number} of {end.stream} "
                f"goes from {begin} to {position.to_json()}. Look who has changed the checkpoint."
            )
        if begin < position.offset:
            found.append(Range(number, begin, position.offset))
    return found


def replaced(
    begun: Mapping[int, Position],
    now: Mapping[int, Position],
    successors: Mapping[int, Mapping[int, tuple[int, ...]]],
) -> dict[int, Position]:
    """Return positions where successors of segments that are read to their end have begun, and
    segments whose successors have all begun are gone (but where a predecessor isn't gone yet).

    A successor begins in a later batch than the last events of all its predecessors, for tasks of
    one batch run beside each other: so events with one routing key keep their order over batches.

    Args:
        begun: where the batch begins.
        now: how far it goes.
        successors: of closed segments: their successors, each with all its predecessors.
    """

    def is_over(number: int) -> bool:
        position, before = now.get(number), begun.get(number)
        if position is None:
            # It hasn't begun: it would be gone only where all its successors have begun.
            return False
        at = before.offset if before is not None else position.first
        return position.closed and position.offset == at

    found = dict(now)
    for after in successors.values():
        for number, predecessors in after.items():
            if number not in found and all(map(is_over, predecessors)):
                found[number] = Position(0, first=0)
    while True:
        # What a segment that is still there has as a successor stays, too, however far it was read:
        # it would begin again.
        heirs = {each for number, after in successors.items() if number in found for each in after}
        gone = [
            number
            for number, after in successors.items()
            if number in found and number not in heirs and after and set(after) <= found.keys()
        ]
        if not gone:
            return found
        for number in gone:
            del found[number]
