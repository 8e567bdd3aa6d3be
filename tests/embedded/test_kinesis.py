"""The embedded Kinesis server does what Kinesis's documentation says, where readers rely on it."""

from __future__ import annotations

import boto3
import pytest

from onceforall.embedded import EmbeddedKinesis
from onceforall.embedded.kinesis import session
from onceforall.errors import EmbeddedServerError, OptionError


@pytest.fixture(scope="module")
def server():
    with EmbeddedKinesis() as running:
        yield running


@pytest.fixture
def client(server):
    return boto3.client("kinesis", **server.client_arguments)


def read(client, stream, shard, **more):
    iterator = client.get_shard_iterator(
        StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    return client.get_records(ShardIterator=iterator, **more)


def test_a_closed_shard_keeps_its_records_and_ends_with_its_children(server, client):
    server.create_stream("split")
    put = lambda n: client.put_record(StreamName="split", PartitionKey="k", Data=b"%d" % n)
    first = put(1)
    put(2)
    client.split_shard(
        StreamName="split", ShardToSplit=first["ShardId"], NewStartingHashKey=str(2**127)
    )
    later = put(3)
    assert later["ShardId"] != first["ShardId"]
    assert int(later["SequenceNumber"]) > int(first["SequenceNumber"])
    page = read(client, "split", first["ShardId"], Limit=1)
    assert [r["Data"] for r in page["Records"]] == [b"1"]
    assert page["MillisBehindLatest"] > 0
    page = client.get_records(ShardIterator=page["NextShardIterator"])
    assert [r["Data"] for r in page["Records"]] == [b"2"]
    assert "NextShardIterator" not in page
    assert {c["ShardId"] for c in page["ChildShards"]} == {
        "shardId-000000000001",
        "shardId-000000000002",
    }
    page = read(client, "split", later["ShardId"])
    assert [r["Data"] for r in page["Records"]] == [b"3"]
    assert page["MillisBehindLatest"] == 0


def test_retention_forgets_by_a_clock_that_can_be_set_ahead(server, client):
    server.create_stream("old")
    shard = client.put_record(StreamName="old", PartitionKey="k", Data=b"1")["ShardId"]
    assert len(read(client, "old", shard)["Records"]) == 1
    server.advance_clock(hours=23)
    assert len(read(client, "old", shard)["Records"]) == 1
    server.advance_clock(hours=2)
    assert read(client, "old", shard)["Records"] == []


def test_faults_come_when_they_are_ordered_and_heal(server, client):
    server.create_stream("faulty")
    records = [{"PartitionKey": "k", "Data": b"1"}] * 3
    server.fail("PutRecords", records=[1])
    answer = client.put_records(StreamName="faulty", Records=records)
    assert answer["FailedRecordCount"] == 1
    assert ["ErrorCode" in r for r in answer["Records"]] == [False, True, False]
    server.fail("ListShards", "LimitExceededException", after=1, times=100)
    client.list_shards(StreamName="faulty")
    with pytest.raises(client.exceptions.LimitExceededException):
        client.list_shards(StreamName="faulty")
    server.heal()
    client.list_shards(StreamName="faulty")


def test_records_are_gone_after_a_restart_and_the_address_stays():
    with EmbeddedKinesis() as server:
        arn, endpoint = server.create_stream("s"), server.endpoint
        assert arn == "arn:aws:kinesis:us-east-1:123456789012:stream/s"
        server.restart()
        assert server.endpoint == endpoint
        client = session().client("kinesis", endpoint_url=endpoint)
        assert client.list_streams()["StreamNames"] == []
        server.kill()
        with pytest.raises(EmbeddedServerError):
            server.create_stream("s")


def test_what_is_no_stream_is_refused(server):
    with pytest.raises(OptionError, match="shards is 0"):
        server.create_stream("s", shards=0)
    with pytest.raises(OptionError, match="port"):
        EmbeddedKinesis(port=-1)
