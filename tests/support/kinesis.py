"""Streams of a Kinesis server, and readers of them without Spark."""

from __future__ import annotations

import json
import pickle
import uuid

import boto3

from onceforall.sources.kinesis.options import parse
from onceforall.sources.kinesis.source import KinesisReader


class Stream:
    """A stream, what a test does to it, and readers of it."""

    def __init__(self, server, shards):
        self.server, self.name = server, f"s-{uuid.uuid4().hex[:12]}"
        self.arn = server.create_stream(self.name, shards=shards)
        self.client = boto3.client("kinesis", **server.client_arguments)
        self.written = 0

    def put(self, count, keys=7):
        """Put so many records with the next numbers; return the numbers."""
        numbers = list(range(self.written, self.written + count))
        for at in range(0, count, 500):
            self.client.put_records(
                StreamName=self.name,
                Records=[
                    {"PartitionKey": f"k{n % keys}", "Data": b"%d" % n}
                    for n in numbers[at : at + 500]
                ],
            )
        self.written += count
        return numbers

    def open_shards(self):
        found = self.client.list_shards(StreamName=self.name)["Shards"]
        opened = [s for s in found if "EndingSequenceNumber" not in s["SequenceNumberRange"]]
        return sorted(opened, key=lambda s: int(s["HashKeyRange"]["StartingHashKey"]))

    def split(self, which=0):
        shard = self.open_shards()[which]
        low, high = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
        self.client.split_shard(
            StreamName=self.name,
            ShardToSplit=shard["ShardId"],
            NewStartingHashKey=str((low + high) // 2),
        )

    def merge(self, which=0):
        left, right = self.open_shards()[which : which + 2]
        self.client.merge_shards(
            StreamName=self.name,
            ShardToMerge=left["ShardId"],
            AdjacentShardToMerge=right["ShardId"],
        )

    def options(self, **more):
        base = {"streamName": self.name, **self.server.source_options}
        return {**base, "startingPosition": "TRIM_HORIZON", "retrySeconds": "10", **more}

    def records(self):
        """All records of all shards, a parent's before its children's."""
        found = []
        for shard in self.client.list_shards(StreamName=self.name)["Shards"]:
            iterator = self.client.get_shard_iterator(
                StreamName=self.name, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            while iterator is not None:
                answer = self.client.get_records(ShardIterator=iterator)
                found += answer["Records"]
                iterator = answer.get("NextShardIterator") if answer["Records"] else None
        return found

    def query(self, offset=None, **options):
        return Query(self.options(**options), offset)


class Query:
    """What Spark does with a reader: plans, keeps offsets as JSON, and reads partitions with a
    reader that was pickled. ``restart`` leaves nothing but the offsets."""

    def __init__(self, options, log=None):
        self.options, self.log = options, list(log or [])
        self.reader = KinesisReader(parse(options))

    @property
    def start(self):
        return self.log[-1] if self.log else through_json(self.reader.initialOffset())

    def plan(self):
        """Plan a batch; return whether there is one."""
        start = self.start
        end = through_json(self.reader.latestOffset(start))
        if end == start:
            return False
        self.log.append(end)
        return True

    def ends(self, batch=-1):
        batch %= len(self.log)
        start = self.log[batch - 1] if batch else through_json(self.reader.initialOffset())
        return start, self.log[batch]

    def batches(self, batch=-1):
        """The Arrow batches of each partition of a batch."""
        parts = self.reader.partitions(*self.ends(batch))
        reader = pickle.loads(pickle.dumps(self.reader))
        return [list(reader.read(pickle.loads(pickle.dumps(part)))) for part in parts]

    def rows(self, batch=-1):
        return [row for part in self.batches(batch) for each in part for row in each.to_pylist()]

    def numbers(self, batch=-1):
        return [int(row["data"]) for row in self.rows(batch)]

    def drain(self):
        """Plan and read until nothing comes; return the numbers of each batch."""
        found = []
        while self.plan():
            found.append(self.numbers())
        return found

    def restart(self, **options):
        self.reader.stop()
        self.__init__({**self.options, **options}, self.log)
        return self


def through_json(offset):
    return json.loads(json.dumps(offset))
