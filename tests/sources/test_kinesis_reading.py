"""The Kinesis source reads each record once, in replays and after restarts the same, whatever the
shards do."""

from __future__ import annotations

import collections
import itertools
import json
import time

import pyarrow as pa
import pytest

from onceforall.errors import DataLossError, OptionError, SourceError
from onceforall.sources.kinesis.positions import Offset


def flat(batches):
    return sorted(itertools.chain(*batches))


def as_bytes(batches):
    """What tasks hand to Spark, byte by byte."""
    found = []
    for part in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part[0].schema) as writer:
            for each in part:
                writer.write_batch(each)
        found.append(sink.getvalue().to_pybytes())
    return found


def test_ten_replays_of_a_range_are_equal_byte_by_byte(stream):
    source = stream(shards=1)
    source.put(1100)
    query = source.query()
    assert query.plan()
    first = as_bytes(query.batches())
    source.put(100)
    source.split()
    assert len(query.batches()[0]) == 2
    assert sum(len(each) for part in query.batches() for each in part) == 1100
    for _ in range(10):
        assert as_bytes(query.restart().batches()) == first


def test_a_row_has_what_kinesis_says_of_its_record(stream):
    source = stream()
    before = time.time()
    answer = source.client.put_record(StreamName=source.name, PartitionKey="a key", Data=b"\0\xff")
    query = source.query()
    assert query.plan()
    (row,) = query.rows()
    arrival = row.pop("approximateArrivalTimestamp").timestamp()
    assert before - 1 < arrival < time.time() + 1
    assert row == {
        "data": b"\0\xff",
        "streamName": source.name,
        "partitionKey": "a key",
        "sequenceNumber": answer["SequenceNumber"],
        "subSequenceNumber": 0,
        "shardId": answer["ShardId"],
    }


def test_without_news_the_offset_stays_the_same(stream):
    source = stream(shards=2)
    source.put(5)
    query = source.query()
    assert flat(query.drain()) == list(range(5))
    start = query.start
    assert query.reader.latestOffset(start) == start
    assert query.reader.partitions(start, start) == []


def test_a_restart_between_any_two_steps_skips_and_repeats_nothing(stream):
    source, seen = stream(shards=2), []
    query = source.query(maxRecordsPerTrigger="5")
    for _ in range(3):
        source.put(9)
        while query.restart().plan():
            seen += query.numbers()
            assert sorted(query.restart().numbers()) == sorted(query.numbers())
    assert sorted(seen) == list(range(27))


def test_the_first_batch_is_the_same_when_its_beginning_is_asked_for_again(stream):
    source = stream(shards=2)
    source.put(20)
    query = source.query(startingPosition="LATEST")
    assert query.plan()
    assert query.numbers() == []
    later = source.put(10)
    assert query.plan()
    assert sorted(query.numbers()) == later
    for _ in range(2):
        query.restart()
        assert query.numbers(0) == []
        assert sorted(query.numbers(1)) == later


def test_a_query_that_began_with_latest_reads_after_a_stop_what_came_meanwhile(stream):
    source = stream(shards=2)
    query = source.query(startingPosition="LATEST")
    assert query.plan()
    query.restart()
    later = source.put(8)
    assert flat(query.drain()) == later


@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M:%S.%fZ", "%Y-%m-%dT%H:%M:%S.%f+00:00"])
def test_a_query_begins_at_a_time(stream, form):
    from datetime import datetime, timezone

    source = stream(shards=2)
    source.put(10)
    source.split(0)
    last = max(
        record["ApproximateArrivalTimestamp"].timestamp()
        for shard in source.client.list_shards(StreamName=source.name)["Shards"]
        for record in source.client.get_records(
            ShardIterator=source.client.get_shard_iterator(
                StreamName=source.name, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
        )["Records"]
    )
    at = datetime.fromtimestamp(last + 0.002, timezone.utc)
    later = source.put(10)
    query = source.query(startingPosition=f"AT_TIMESTAMP {at.strftime(form)}")
    assert flat(query.drain()) == later


@pytest.mark.parametrize(
    ("kind", "left"), [("AT_SEQUENCE_NUMBER", 4), ("AFTER_SEQUENCE_NUMBER", 5)]
)
def test_a_query_begins_at_given_sequence_numbers(stream, kind, left):
    source = stream()
    source.put(10)
    query = source.query()
    assert query.plan()
    number = query.rows()[4]["sequenceNumber"]
    source.split()
    source.put(10)
    start = {"shardId-000000000000": {"iteratorType": kind, "iteratorPosition": number}}
    given = source.query(startingPosition=json.dumps(start))
    assert flat(given.drain()) == list(range(left, 20))
    assert flat([given.restart().numbers(b) for b in range(len(given.log))]) == list(
        range(left, 20)
    )


def test_given_sequence_numbers_must_name_every_shard(stream):
    source = stream(shards=2)
    start = {"shardId-000000000001": {"iteratorType": "TRIM_HORIZON"}}
    with pytest.raises(OptionError, match=r"says nothing of shardId-000000000000"):
        source.query(startingPosition=json.dumps(start)).plan()


# --- limits ---------------------------------------------------------------------------------------


def test_a_batch_has_as_many_records_as_its_limit_and_all_come_in_the_end(stream):
    source = stream(shards=2)
    source.put(50)
    query = source.query(maxRecordsPerTrigger="8")
    batches = query.drain()
    assert flat(batches) == list(range(50))
    assert max(map(len, batches)) <= 8
    assert len(batches) <= 8


def test_a_batch_has_as_many_bytes_as_its_limit_but_one_record_at_least(stream):
    source = stream()
    for _ in range(6):
        source.client.put_record(StreamName=source.name, PartitionKey="k", Data=b"7" * 1000)
    assert [len(b) for b in source.query(maxBytesPerTrigger="2500").drain()] == [2, 2, 2]
    assert [len(b) for b in source.query(maxBytesPerTrigger="1").drain()] == [1] * 6


def test_what_arrives_after_an_available_now_query_has_begun_is_left_for_the_next(stream):
    source = stream(shards=2)
    source.put(10)
    query = source.query(maxRecordsPerTrigger="4")
    query.reader.prepareForTriggerAvailableNow()
    begun = query.reader._until
    while time.time() * 1000 < begun + 5:
        time.sleep(0.01)  # the server's clock must have passed it
    source.put(10)
    assert flat(query.drain()) == list(range(10))
    query.restart()
    assert flat(query.drain()) == list(range(10, 20))


# --- shards that split and merge ------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_shards_that_split_and_merge_lose_nothing_and_keep_keys_in_order(stream, stopped):
    source, batches = stream(shards=2), []
    query = source.query(maxRecordsPerTrigger="30")

    def read():
        if stopped:
            query.restart()
        batches.extend(query.drain())

    source.put(20)
    read()
    source.put(20)
    source.split(0)
    source.put(20)
    if not stopped:
        read()
    source.split(2)
    source.put(20)
    source.merge(1)
    source.put(20)
    if not stopped:
        read()
    source.merge(0)
    source.merge(0)
    source.put(20)
    read()
    assert flat(batches) == list(range(120))
    for key in range(7):
        mine = [n for batch in batches for n in batch if n % 7 == key]
        assert mine == sorted(mine)
    (shards,) = [each["shards"] for each in query.start["streams"].values()]
    assert list(shards) == [source.open_shards()[0]["ShardId"]]


def test_a_child_has_no_record_in_the_batch_that_has_its_parents_last(stream):
    source = stream()
    source.put(10)
    source.split()
    source.put(10)
    query = source.query()
    batches = query.drain()
    assert batches[0] == list(range(10))
    assert flat(batches[1:]) == list(range(10, 20))


def test_the_children_of_a_shard_without_new_records_begin_in_the_same_batch(stream):
    source = stream()
    source.put(10)
    query = source.query()
    query.drain()
    source.split()
    source.put(10)
    assert query.plan()
    assert sorted(query.numbers()) == list(range(10, 20))


def test_a_merged_shard_waits_for_both_its_parents(stream):
    source = stream(shards=2)
    source.put(40)
    source.merge()
    source.put(10)
    query = source.query(maxRecordsPerTrigger="4")
    batches = query.drain()
    last_of_parents = max(i for i, b in enumerate(batches) if any(n < 40 for n in b))
    first_of_child = min(i for i, b in enumerate(batches) if any(n >= 40 for n in b))
    assert last_of_parents < first_of_child
    assert flat(batches) == list(range(50))


def test_several_streams_are_read_together(stream):
    one, other = stream(shards=2), stream()
    one.put(10)
    other.put(5)
    query = one.query(streamName=f"{one.name},{other.arn}")
    assert query.plan()
    found = collections.Counter(row["streamName"] for row in query.rows())
    assert found == {one.name: 10, other.name: 5}
    assert set(query.start["streams"]) == {one.arn, other.arn}


def test_a_stream_that_is_added_begins_and_one_that_is_left_out_is_refused(stream):
    one, other = stream(), stream()
    one.put(3)
    other.put(4)
    query = one.query()
    assert flat(query.drain()) == [0, 1, 2]
    query.restart(streamName=f"{one.name},{other.name}")
    assert flat(query.drain()) == [0, 1, 2, 3]
    with pytest.raises(DataLossError, match=r"don't name any more"):
        query.restart(streamName=one.name).plan()


def test_an_older_pyspark_hears_of_the_last_end_by_partitions_alone(stream):
    source, seen = stream(shards=2), []
    source.put(20)
    query = source.query(maxRecordsPerTrigger="6")
    for _ in range(5):
        query.reader.latestOffset()  # nothing is planned with it
        end = query.reader.latestOffset()
        query.log.append(end)
        seen += query.numbers()
    assert sorted(seen) == list(range(20))
    query.restart()
    query.reader.partitions(query.start, query.start)
    source.put(3)
    query.log.append(query.reader.latestOffset())
    assert sorted(query.numbers()) == [20, 21, 22]


def test_an_offset_of_another_version_is_refused():
    with pytest.raises(SourceError, match=r"version 2"):
        Offset.from_json({"version": 2})


def test_all_that_is_available_ends_with_what_was_there(stream):
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    source = stream(shards=2)
    source.put(30)
    query = source.query(maxRecordsPerTrigger="5")
    query.log.append(query.reader.latestOffset(query.start, ReadAllAvailable()))
    assert sorted(query.numbers()) == list(range(30))
