"""Writes the stream, reshards it, and knows what must come out.

Views are put in chunks. A query reads shards one behind the other where they split and merge, so
a chunk that it took late would be behind its watermark: the feed goes on only when all but the last
few chunks are taken, by the positions in Spark's own offset log.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from onceforall.demo.kinesis.job import WINDOW_S
from onceforall.errors import DataLossError
from onceforall.sources.kinesis.positions import Offset, Position
from onceforall.spark import checkpoint as spark_checkpoint

CHUNK = 250
"""Views that are put at once, a second of their time apart."""

AHEAD = 6
"""Chunks that may wait to be taken: less than half of the watermark's delay."""

_PAGES = 40
_BEGIN_S = int(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp())
_CLOSING = "closing"
_LONG_AFTER_S = 86_400

Count = tuple[str, int]
"""A page, and the beginning of a window in seconds since 1970."""


class Feed:
    """A stream, what was put in it, and how much of it a query has taken."""

    def __init__(self, client: Any, stream: str, seed: int, chunks: int) -> None:
        """Nothing is put yet.

        Args:
            client: boto3's, of Kinesis.
            stream: its name.
            seed: says which pages are viewed.
            chunks: how many there will be.
        """
        self._client, self._stream = client, stream
        self._random = random.Random(seed)  # noqa: S311  a draw of events, not of secrets
        self.chunks = chunks
        self._waiting: list[dict[str, int]] = []
        self._seen: set[str] = set()
        self._read = -1
        self.put = 0
        self.truth: Counter[Count] = Counter()

    @property
    def is_over(self) -> bool:
        """Whether every chunk is put."""
        return self.put == self.chunks

    def put_chunk(self) -> None:
        """Put the next chunk.

        Raises:
            DataLossError: the server took only a part.
        """
        begin = _BEGIN_S + self.put * CHUNK
        views = [
            (f"page-{int(self._random.triangular(0, _PAGES, 0))}", begin + n) for n in range(CHUNK)
        ]
        self.truth.update((page, at - at % WINDOW_S) for page, at in views)
        self._put(views)
        self.put += 1

    def close(self) -> None:
        """Put a view of a day later, which ends every window but its own. It must come when all
        else is taken.
        """
        self._put([(_CLOSING, _BEGIN_S + self.chunks * CHUNK + _LONG_AFTER_S)])

    def _put(self, views: list[tuple[str, int]]) -> None:
        records = [
            {
                "PartitionKey": page,
                "Data": json.dumps(
                    {
                        "page": page,
                        "at": datetime.fromtimestamp(at, timezone.utc).isoformat(),
                    }
                ).encode(),
            }
            for page, at in views
        ]
        answer = self._client.put_records(StreamName=self._stream, Records=records)
        if answer["FailedRecordCount"]:
            raise DataLossError(
                f"The Kinesis server took {len(records) - answer['FailedRecordCount']} of "
                f"{len(records)} records. Start the demo again."
            )
        last: dict[str, int] = {}
        for each in answer["Records"]:
            number = int(each["SequenceNumber"])
            last[each["ShardId"]] = max(number, last.get(each["ShardId"], 0))
        self._waiting.append(last)

    def waiting(self, checkpoint: Path) -> int:
        """Return how many chunks are put and not in a batch that Spark has completed."""
        completed = spark_checkpoint.last_committed(checkpoint)
        for batch in range(self._read + 1, completed + 1):
            (line,) = spark_checkpoint.offsets_of(checkpoint, batch)
            (stream,) = Offset.from_json(json.loads(line)).streams.values()
            self._seen |= stream.shards.keys()
            self._read = batch
            self._waiting = [
                chunk for chunk in self._waiting if not self._is_taken(chunk, stream.shards)
            ]
        return len(self._waiting)

    def _is_taken(self, chunk: Mapping[str, int], shards: Mapping[str, Position]) -> bool:
        return all(self._is_read(shard, last, shards) for shard, last in chunk.items())

    def _is_read(self, shard: str, last: int, shards: Mapping[str, Position]) -> bool:
        position = shards.get(shard)
        if position is None:
            # One that is read to its end is forgotten when its children are begun.
            return shard in self._seen
        return position.closed or (position.after is not None and int(position.after) >= last)

    def reshard(self) -> str:
        """Split a shard, or merge two; return what was done, for a person."""
        shards = list(self._open_shards())
        # Of one shard nothing can be merged.
        if len(shards) < 2 or (len(shards) < 4 and self._random.random() < 0.7):
            shard = self._random.choice(shards)
            low, high = _range(shard)
            self._client.split_shard(
                StreamName=self._stream,
                ShardToSplit=shard["ShardId"],
                NewStartingHashKey=str((low + high) // 2),
            )
            return f"{shard['ShardId']} is split"
        at = self._random.randrange(len(shards) - 1)
        left, right = shards[at : at + 2]
        self._client.merge_shards(
            StreamName=self._stream,
            ShardToMerge=left["ShardId"],
            AdjacentShardToMerge=right["ShardId"],
        )
        return f"{left['ShardId']} and {right['ShardId']} are merged"

    def _open_shards(self) -> Iterator[Any]:
        found = self._client.list_shards(StreamName=self._stream)["Shards"]
        opened = [
            each for each in found if "EndingSequenceNumber" not in each["SequenceNumberRange"]
        ]
        yield from sorted(opened, key=lambda each: _range(each)[0])


def _range(shard: Mapping[str, Any]) -> tuple[int, int]:
    keys = shard["HashKeyRange"]
    return int(keys["StartingHashKey"]), int(keys["EndingHashKey"])
