"""A model of a Kinesis stream, for histories that no server plays: hours pass in it between two
requests, retention is the history's, and a page ends where chance ends it.

It answers what the source's `Shards` answers. What it does of Kinesis's own accord: an iterator is
good for five minutes and begins at the oldest record where its place is gone, without a word; a
closed shard is listed until its last record is gone; a page may be empty though records are behind
it; and each request takes time, in which retention goes on.
"""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import dataclass, field

from onceforall.sources.kinesis.client import (
    ExpiredIteratorError,
    Page,
    Record,
    ShardGoneError,
    Stream,
)
from onceforall.sources.kinesis.lineage import Shard

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/s"
HOUR_MS = 3_600_000
KEYS = 12
_ITERATOR_MS = 300_000


@dataclass
class ModelShard:
    """A shard of the model.

    Attributes:
        name: its id.
        low: where its share of the hash keys begins, from 0 to 1.
        high: where that ends.
        parents: the ids of the shards that it came from.
        records: what retention has left of it.
        closed_ms: since when it takes no records; None: it takes some.
    """

    name: str
    low: float
    high: float
    parents: tuple[str, ...]
    records: list[Record] = field(default_factory=list)
    closed_ms: int | None = None


class ModelStream:
    """A stream whose clock, shards and retention are a history's.

    The data of a record is its number: how many were put before it.

    Attributes:
        clock_ms: the server's clock.
        retention_ms: how long records are kept.
        put_into: the id of the shard that each record was put into, by its number.
        put: every record, by its number, those that are gone, too.
    """

    def __init__(self, chance, shards, quiet=0.0):
        """Begin with open shards and no record.

        Args:
            chance: the history's `random.Random`.
            shards: how many there are at first.
            quiet: how often a page is empty that need not be.
        """
        self._chance, self._quiet = chance, quiet
        self.clock_ms = 1_760_000_000_000
        self.retention_ms = 24 * HOUR_MS
        self._created = self.clock_ms - 100 * HOUR_MS
        self._numbers = itertools.count(4960 * 10**52, 1_000_003)
        self._names = itertools.count()
        self._shards: dict[str, ModelShard] = {}
        self.put_into: list[str] = []
        self.put: list[Record] = []
        for place in range(shards):
            self._add(place / shards, (place + 1) / shards, ())

    # --- what a history does ----------------------------------------------------------------------

    def fill(self, count):
        """Put so many records, with keys that chance takes, into the shards of their keys."""
        for _ in range(count):
            self.clock_ms += self._chance.choice([0, 1, 5, 50])
            key = self._chance.randrange(KEYS)
            place = (key * 0.0811 + 0.01) % 1
            (shard,) = [one for one in self._open() if one.low <= place < one.high]
            data = b"%d" % len(self.put)
            record = Record(data, f"k{key}", str(next(self._numbers)), self.clock_ms)
            shard.records.append(record)
            self.put.append(record)
            self.put_into.append(shard.name)

    def split(self):
        """Split an open shard, where one has more than a key."""
        if wide := [one for one in self._open() if one.high - one.low > 0.05]:
            shard = self._chance.choice(wide)
            middle = (shard.low + shard.high) / 2
            self._close(shard)
            self._add(shard.low, middle, (shard.name,))
            self._add(middle, shard.high, (shard.name,))

    def merge(self):
        """Merge two open shards that are side by side, where there are two."""
        opened = self._open()
        if len(opened) > 1:
            place = self._chance.randrange(len(opened) - 1)
            left, right = opened[place : place + 2]
            self._close(left, right)
            self._add(left.low, right.high, (left.name, right.name))

    def keep_for(self, hours):
        """Set retention. What is gone by then doesn't come back."""
        self._forget()
        self.retention_ms = hours * HOUR_MS

    def left(self):
        """Return the numbers of the records that are there."""
        self._forget()
        return {int(record.data) for one in self._shards.values() for record in one.records}

    def _add(self, low, high, parents):
        name = f"shardId-{next(self._names):012d}"
        next(self._numbers)
        self._shards[name] = ModelShard(name, low, high, parents)

    def _close(self, *shards):
        self.clock_ms += 10
        for shard in shards:
            shard.closed_ms = self.clock_ms

    def _open(self):
        opened = [one for one in self._shards.values() if one.closed_ms is None]
        return sorted(opened, key=lambda one: one.low)

    def _forget(self):
        oldest = self.clock_ms - self.retention_ms
        for name, shard in list(self._shards.items()):
            shard.records = [each for each in shard.records if each.arrival_ms >= oldest]
            if shard.closed_ms is not None and shard.closed_ms < oldest and not shard.records:
                del self._shards[name]

    # --- what `Shards` answers --------------------------------------------------------------------

    def describe(self, stream):
        """Return the stream and the server's clock, as `Shards` does."""
        self._ask()
        return Stream(ARN, self._created, self.retention_ms), self._seconds()

    def listed(self, arn):
        """Return the shards that are there, by their ids."""
        self._ask()
        return {
            name: Shard(name, one.parents, one.closed_ms is None)
            for name, one in self._shards.items()
        }

    def iterator(self, arn, shard, kind, **where):
        """Return an iterator; a place that is gone makes one of the oldest record.

        Raises:
            ShardGoneError: the shard isn't listed any more.
        """
        self._ask()
        records = self._there(shard).records
        if kind == "AT_TIMESTAMP":
            since = round(where["Timestamp"] * 1000)
            behind = [int(one.sequence_number) for one in records if one.arrival_ms < since]
            after = max(behind, default=0)
        elif kind == "LATEST":
            after = max((int(one.sequence_number) for one in records), default=0)
        else:
            number = int(where.get("StartingSequenceNumber", 0))
            after = number - 1 if kind == "AT_SEQUENCE_NUMBER" else number
        return self._iterator(shard, after)

    def page(self, arn, shard, iterator, limit=10_000):
        """Return what comes next, or a part of it, or nothing.

        Raises:
            ExpiredIteratorError: the iterator is older than five minutes.
            ShardGoneError: the shard isn't listed any more.
        """
        self._ask()
        of, after, given_ms = json.loads(iterator)
        assert of == shard, f"an iterator of {of} is used for {shard}"
        if self.clock_ms - given_ms > _ITERATOR_MS:
            raise ExpiredIteratorError
        closed = self._there(shard).closed_ms is not None
        behind = [one for one in self._there(shard).records if int(one.sequence_number) > after]
        if behind and self._chance.random() < self._quiet:
            found = []
        else:
            found = behind[: min(limit, self._chance.choice([1, 3, 10, 10_000]))]
        rest = behind[len(found) :]
        if found:
            after = int(found[-1].sequence_number)
        following = None if closed and not rest else self._iterator(shard, after)
        behind_ms = max(1, self.clock_ms - rest[0].arrival_ms) if rest else 0
        return Page(found, following, behind_ms, self._seconds())

    def _ask(self):
        """A request takes time, now and then minutes: it is repeated."""
        slow = self._chance.random() < 0.01
        self.clock_ms += 100_000 if slow else self._chance.choice([0, 3, 100, 400])
        self._forget()

    def _there(self, shard):
        if shard not in self._shards:
            raise ShardGoneError(shard)
        return self._shards[shard]

    def _iterator(self, shard, after):
        return json.dumps([shard, after, self.clock_ms])

    def _seconds(self):
        return self.clock_ms // 1000 * 1000


class ModelTime:
    """Stands in for the module `time` where the source's planner looks at it: what the planner
    keeps for a while, and how long a batch may take, go by the model's clock."""

    strftime, gmtime = staticmethod(time.strftime), staticmethod(time.gmtime)

    def __init__(self, stream):
        self._stream = stream

    def monotonic(self):
        """Return the stream's clock in seconds."""
        return self._stream.clock_ms / 1000
