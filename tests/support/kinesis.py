"""Streams of a Kinesis server, and readers of them without Spark."""

from __future__ import annotations

import uuid

import boto3

from onceforall.sources.kinesis.options import parse
from onceforall.sources.kinesis.source import KinesisReader
from support.source_query import SourceQuery


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


class Query(SourceQuery):
    """A query of a stream."""

    column = "data"

    def make(self, options):
        return KinesisReader(parse(options))
