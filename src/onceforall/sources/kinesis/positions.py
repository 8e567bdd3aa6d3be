"""Where a query stands in its streams: what Spark keeps in its offsets. Pure.

An offset says for each shard how far it was read, by a record that was seen: never "the newest",
for that would be another record in a replay::

    {"version": 1, "millisBehindLatest": 0, "streams": {"arn:aws:kinesis:…:stream/events": {
        "created": 1760000000000, "retention": 86400000, "shards": {
            "shardId-000000000000": {"from": "4965…2", "after": "4965…9", "count": 8, "time": …},
            "shardId-000000000001": {"timestamp": 1760000000000, "time": …}}}}}

``{"version": 1}`` alone is the beginning: nothing was looked at yet. It is the same at each start,
which matters: Spark doesn't store the first batch's beginning, but asks for it again when it
replays that batch. So the first end carries, as ``from``, where each shard began.

The number of Kinesis records between two positions of a shard is the difference of their counts.
A replay that finds fewer knows that some are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from onceforall.errors import SourceError

VERSION = 1


@dataclass(frozen=True)
class Position:
    """How far a shard was read.

    Attributes:
        after: the sequence number of the last record that was read; None: none yet.
        first: that of the first one.
        count: how many Kinesis records were read.
        at: where nothing was read: begin with this record.
        timestamp: where nothing was read: begin with what arrived at this time, in milliseconds.
            Without ``at`` and ``timestamp`` the shard is read from its oldest record.
        time: what comes next arrived at this time or later, in milliseconds: as long as retention
            reaches back to it, nothing can be missing. None: not known.
        closed: there is nothing more, and its children weren't all begun yet.
    """

    after: str | None = None
    first: str | None = None
    count: int = 0
    at: str | None = None
    timestamp: int | None = None
    time: int | None = None
    closed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return what stands in an offset; what isn't set is left out."""
        every = {
            "from": self.first,
            "after": self.after,
            "count": self.count or None,
            "at": self.at,
            "timestamp": self.timestamp,
            "time": self.time,
            "closed": self.closed or None,
        }
        return {name: value for name, value in every.items() if value is not None}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Position:
        """Read what `to_json` made."""
        return cls(
            after=found.get("after"),
            first=found.get("from"),
            count=found.get("count", 0),
            at=found.get("at"),
            timestamp=found.get("timestamp"),
            time=found.get("time"),
            closed=found.get("closed", False),
        )

    def read(self, first: str, last: str, records: int, time: int) -> Position:
        """Return the position behind records that were read from here.

        Args:
            first: the sequence number of the first of them.
            last: that of the last one.
            records: how many.
            time: when the last one arrived.
        """
        return Position(
            after=last,
            first=self.first or (first if self.count == 0 else None),
            count=self.count + records,
            time=max(time, self.time or 0),
        )

    def begun(self) -> Position:
        """Return the position as a batch begins with it: Spark has it, so where the query began in
        the shard needn't be told any more.
        """
        return replace(self, first=None) if self.count else self

    @property
    def is_beginning(self) -> bool:
        """Nothing says since when all that comes next must be there: whatever is there is right.

        Only within the plan that begins a shard: no offset has such a position of an open one.
        """
        return self.after is None and self.at is None and self.time is None

    @property
    def place(self) -> tuple[str | None, str | None, int | None]:
        """Where the next read begins."""
        return self.after, self.at, self.timestamp


@dataclass(frozen=True)
class StreamPositions:
    """How far a stream was read.

    Attributes:
        created: when the stream was created, in milliseconds: one that was created again under the
            same name is another one.
        shards: the positions, by the shards' ids.
        retention_ms: how long the stream kept records then; None: not known.
    """

    created: int
    shards: Mapping[str, Position] = field(default_factory=dict)
    retention_ms: int | None = None


@dataclass(frozen=True)
class Offset:
    """How far a query has read its streams, by their ARNs."""

    streams: Mapping[str, StreamPositions] = field(default_factory=dict)
    behind_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return Spark's offset."""
        if not self.streams:
            return {"version": VERSION}
        return {
            "version": VERSION,
            "millisBehindLatest": self.behind_ms,
            "streams": {
                arn: {
                    "created": stream.created,
                    "retention": stream.retention_ms,
                    "shards": {
                        shard: stream.shards[shard].to_json() for shard in sorted(stream.shards)
                    },
                }
                for arn, stream in sorted(self.streams.items())
            },
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Offset:
        """Read Spark's offset.

        Raises:
            SourceError: a later release has written it, or it isn't one of this source.
        """
        if found.get("version") != VERSION:
            raise SourceError(
                f"The checkpoint has an offset of version {found.get('version')!r}, and this "
                f"release of onceforall reads version {VERSION} of its Kinesis source. Start the "
                "query with the release and the source that wrote the checkpoint."
            )
        streams = {
            arn: StreamPositions(
                stream["created"],
                {name: Position.from_json(each) for name, each in stream["shards"].items()},
                stream.get("retention"),
            )
            for arn, stream in found.get("streams", {}).items()
        }
        return cls(streams, found.get("millisBehindLatest"))


@dataclass(frozen=True)
class Range:
    """Records of one shard that a batch has: the unit that a task reads.

    Attributes:
        arn: the stream's.
        shard: the shard's id.
        start: the sequence number where it begins.
        inclusive: whether the record there belongs to it.
        end: that of its last record.
        count: how many Kinesis records it has.
    """

    arn: str
    shard: str
    start: str
    inclusive: bool
    end: str
    count: int


def ranges(start: Offset, end: Offset) -> list[Range]:
    """Return what a batch from one offset to another has to read; shards without records have no
    range.
    """
    found = []
    for arn, stream in end.streams.items():
        begun = start.streams[arn].shards if arn in start.streams else {}
        for shard, position in stream.shards.items():
            before = begun.get(shard, Position())
            records = position.count - before.count
            if records == 0 or position.after is None:
                continue
            inclusive = before.after is None
            begin = position.first if inclusive else before.after
            if begin is None or records < 0:
                raise SourceError(
                    f"The offsets of a batch don't belong together: shard {shard} of {arn} goes "
                    f"from {before.to_json()} to {position.to_json()}. Look who has changed the "
                    "checkpoint."
                )
            found.append(Range(arn, shard, begin, inclusive, position.after, records))
    return found


def close(position: Position) -> Position:
    """Return the position of a shard that has nothing more."""
    return replace(position, closed=True)
