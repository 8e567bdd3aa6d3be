"""What the Kinesis source does when Kinesis refuses, is slow, or has forgotten."""

from __future__ import annotations

import itertools

import pytest

from onceforall.errors import DataLossError, SourceError, SourceUnavailableError
from onceforall.sources.kinesis.client import Shards
from onceforall.sources.kinesis.options import parse


def flat(batches):
    return sorted(itertools.chain(*batches))


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ("GetRecords", "ProvisionedThroughputExceededException"),
        ("GetShardIterator", "KMSThrottlingException"),
        ("ListShards", "LimitExceededException"),
        ("DescribeStreamSummary", "InternalFailure"),
    ],
)
def test_requests_are_repeated(ordered_stream, ordered_server, operation, error):
    source = ordered_stream()
    source.put(10)
    ordered_server.fail(operation, error, times=2)
    query = source.query()
    assert flat(query.drain()) == list(range(10))
    ordered_server.fail("GetRecords", error, times=2)
    assert query.numbers(0) == list(range(10))


def test_iterators_that_expire_are_made_anew(ordered_stream, ordered_server):
    source = ordered_stream(shards=2)
    source.put(10)
    query = source.query()
    query.drain()
    ordered_server.expire_iterators()
    source.put(10)
    assert flat(query.drain()) == list(range(10, 20))
    ordered_server.fail("GetRecords", "ExpiredIteratorException", times=1)
    assert sorted(query.numbers(0)) == list(range(10))


def test_a_server_that_is_away_too_long_is_an_error_and_nothing_is_skipped(
    ordered_stream, ordered_server
):
    source = ordered_stream()
    source.put(10)
    query = source.query(retrySeconds="0.5")
    ordered_server.fail("GetRecords", "ServiceUnavailable", times=100)
    with pytest.raises(SourceUnavailableError, match=r"GetRecords of shardId-0+ of .* in 0 s"):
        query.plan()
    ordered_server.heal()
    assert flat(query.restart().drain()) == list(range(10))


def test_what_repeating_cannot_mend_is_told_at_once(ordered_stream, ordered_server):
    source = ordered_stream()
    ordered_server.fail("GetRecords", "AccessDeniedException")
    with pytest.raises(
        SourceError, match=r"Kinesis refuses GetRecords of .*Check the stream, and the rights"
    ):
        source.query().plan()
    with pytest.raises(SourceError, match=r"There is no Kinesis stream nowhere\."):
        source.query(streamName="nowhere").plan()


def test_the_limits_of_a_shard_are_kept(ordered_stream, ordered_server):
    source = ordered_stream()
    for _ in range(5):
        source.client.put_records(
            StreamName=source.name,
            Records=[{"PartitionKey": "k", "Data": b"7" * 900_000} for _ in range(2)],
        )
    shards = Shards(parse(source.options()).access)
    iterator = shards.iterator(source.arn, "shardId-000000000000", "TRIM_HORIZON")
    ordered_server.keep_limits()
    ordered_server.calls()
    for limit in [2, 2, *[1] * 5]:
        page = shards.page(source.arn, "shardId-000000000000", iterator, limit)
        assert len(page.records) == limit
        iterator = page.following
    for _ in range(2):
        iterator = shards.page(source.arn, "shardId-000000000000", iterator).following
    calls = [c for c in ordered_server.calls() if c["operation"] == "GetRecords"]
    assert [c["error"] for c in calls] == [None] * 9


def test_a_batch_reads_each_shard_twice_and_an_idle_query_leaves_most_requests_to_others(
    ordered_stream, ordered_server
):
    source = ordered_stream(shards=2)
    query = source.query()
    source.put(20)
    query.drain()
    ordered_server.calls()
    source.put(20)
    assert query.plan()
    assert len(query.numbers()) == 20

    def reads():
        calls = ordered_server.calls()
        return [c["time"] for c in calls if c["operation"] == "GetRecords"]

    assert len(reads()) == 4
    for _ in range(4):
        assert not query.plan()
    times = reads()
    assert len(times) == 8
    assert times[-1] - times[2] > 0.9


def test_a_stream_that_is_named_by_its_name_and_by_its_arn_is_read_once(
    ordered_stream, ordered_server
):
    """Once each of its shards was read twice at a time, against the shard's limit."""
    source = ordered_stream(shards=1)
    source.put(20)
    query = source.query(streamName=f"{source.name},{source.arn}")
    ordered_server.calls()
    assert query.plan()
    assert [c["operation"] for c in ordered_server.calls()].count("GetRecords") == 1
    assert query.numbers() == list(range(20))


# --- retention ------------------------------------------------------------------------------------


def test_a_position_that_retention_has_passed_is_an_error_that_says_what_is_lost(
    ordered_stream, ordered_server
):
    source = ordered_stream()
    source.put(10)
    query = source.query()
    query.drain()
    source.put(10)
    ordered_server.advance_clock(hours=25)
    source.put(5)
    with pytest.raises(
        DataLossError,
        match=r"was read up to record 49\d+ .*keeps records for 24 hours: what came next may be gone.*failOnDataLoss",
    ):
        query.restart().plan()
    query.restart(failOnDataLoss="false")
    assert flat(query.drain()) == list(range(20, 25))
    query.restart(failOnDataLoss="true")
    source.put(5)
    assert flat(query.drain()) == list(range(25, 30))


def test_a_query_that_runs_and_falls_behind_retention_stops(ordered_stream, ordered_server):
    source = ordered_stream()
    source.put(10)
    query = source.query()
    query.drain()
    source.put(10)
    ordered_server.advance_clock(hours=25)
    source.put(10)
    with pytest.raises(DataLossError, match="may be gone"):
        query.plan()


def before_each_page(query, do):
    """Let something happen once between a plan's preparations and the answer of GetRecords."""
    shards, todo = query.reader._planning()._shards, [do]
    page = shards.page

    def late(*given):
        if todo:
            todo.pop()()
        return page(*given)

    shards.page = late


@pytest.mark.parametrize("restarted", [True, False])
def test_retention_that_passes_records_while_a_request_is_repeated_is_noticed(
    ordered_stream, ordered_server, restarted
):
    source = ordered_stream()
    source.put(3)
    query = source.query()
    query.drain()
    source.put(2)
    ordered_server.advance_clock(hours=24 - 180 / 3600)
    source.put(1)
    if restarted:
        query.restart()
    before_each_page(query, lambda: ordered_server.advance_clock(hours=0.1))
    with pytest.raises(DataLossError, match="24 hours: what came next may be gone"):
        query.plan()
    query.restart(failOnDataLoss="false")
    assert flat(query.drain()) == [5]


def test_retention_that_passes_records_between_two_pages_is_noticed(ordered_stream, ordered_server):
    source = ordered_stream()
    source.put(3)
    ordered_server.advance_clock(hours=23.9)
    source.put(1)
    query = source.query(startingPosition="AT_TIMESTAMP 2020-01-01T00:00:00Z")
    shards = query.reader._planning()._shards
    page, seen = shards.page, []

    def one_at_a_time(arn, shard, iterator, limit):
        if len(seen) == 1:
            ordered_server.advance_clock(hours=0.2)
        found = page(arn, shard, iterator, 1)
        seen.append(found)
        return found

    shards.page = one_at_a_time
    with pytest.raises(DataLossError, match="may be gone"):
        query.plan()


def test_retention_that_was_made_shorter_while_a_query_runs_is_noticed(
    ordered_stream, ordered_server
):
    source = ordered_stream()
    keep = {"StreamName": source.name}
    source.client.increase_stream_retention_period(**keep, RetentionPeriodHours=168)
    source.put(3)
    query = source.query()
    query.drain()
    source.put(2)
    ordered_server.advance_clock(hours=48)
    source.put(1)
    query.restart()
    before_each_page(
        query,
        lambda: source.client.decrease_stream_retention_period(**keep, RetentionPeriodHours=24),
    )
    with pytest.raises(DataLossError, match="24 hours: what came next may be gone"):
        query.plan()


def test_retention_that_was_made_longer_too_late_brings_nothing_back(
    ordered_stream, ordered_server
):
    source = ordered_stream()
    source.put(3)
    query = source.query()
    query.drain()
    source.put(2)
    ordered_server.advance_clock(hours=25)
    source.put(1)  # what is older is forgotten by a look at the stream
    source.client.list_shards(StreamName=source.name)
    source.client.increase_stream_retention_period(StreamName=source.name, RetentionPeriodHours=168)
    with pytest.raises(DataLossError, match="24 hours: what came next may be gone"):
        query.restart().plan()


def test_what_a_longer_retention_keeps_is_read(ordered_stream, ordered_server):
    source = ordered_stream()
    source.client.increase_stream_retention_period(StreamName=source.name, RetentionPeriodHours=168)
    source.put(3)
    query = source.query()
    query.drain()
    ordered_server.advance_clock(hours=48)
    source.put(2)
    assert flat(query.restart().drain()) == [3, 4]
    ordered_server.advance_clock(hours=165)
    assert query.plan()  # a quiet shard: nothing but its time
    ordered_server.advance_clock(hours=100)
    source.put(2)
    assert flat(query.restart().drain()) == [5, 6]


def test_the_oldest_record_to_begin_with_stays_for_ten_minutes(ordered_stream, ordered_server):
    source = ordered_stream()
    source.put(5)
    ordered_server.advance_clock(hours=23.9)
    source.put(5)
    query = source.query()
    assert query.plan()
    ordered_server.advance_clock(hours=0.16)
    assert query.restart().numbers() == list(range(5, 10))


def test_a_batch_of_which_records_are_gone_says_how_many(ordered_stream, ordered_server):
    source = ordered_stream()
    source.put(10)
    ordered_server.advance_clock(hours=13)
    source.put(10)
    query = source.query()
    assert query.plan()
    ordered_server.advance_clock(hours=13)
    with pytest.raises(
        DataLossError, match=r"A batch has 20 records of shard .*, and 10 of them are there"
    ):
        query.restart().numbers()
    assert query.restart(failOnDataLoss="false").numbers() == list(range(10, 20))
    ordered_server.advance_clock(hours=13)
    with pytest.raises(DataLossError, match=r"and 0 of them are there"):
        query.restart(failOnDataLoss="true").numbers()


def test_a_quiet_shard_is_no_loss_after_a_stop_shorter_than_retention(
    ordered_stream, ordered_server
):
    source = ordered_stream()
    source.put(10)
    query = source.query()
    query.drain()
    for _ in range(8):
        ordered_server.advance_clock(hours=7)
        assert query.plan()  # the position's time is renewed, by an empty batch
        assert query.numbers() == []
    ordered_server.advance_clock(hours=17)
    source.put(5)
    query.restart()
    assert flat(query.drain()) == list(range(10, 15))


def test_the_record_of_a_position_proves_that_nothing_is_gone(ordered_stream, ordered_server):
    """A position's time is not known where the user gave its number."""
    import json

    source = ordered_stream()
    source.put(10)
    query = source.query()
    query.plan()
    number = query.rows()[4]["sequenceNumber"]
    start = json.dumps(
        {
            "shardId-000000000000": {
                "iteratorType": "AFTER_SEQUENCE_NUMBER",
                "iteratorPosition": number,
            }
        }
    )
    assert flat(source.query(startingPosition=start).drain()) == list(range(5, 10))
    ordered_server.advance_clock(hours=25)
    source.put(3)
    with pytest.raises(DataLossError):
        source.query(startingPosition=start).plan()


def test_a_shard_that_is_gone_is_an_error_and_its_heirs_are_read_if_the_user_says_so(
    ordered_stream, ordered_server
):
    source = ordered_stream(shards=2)
    source.put(10)
    query = source.query()
    query.drain()
    source.put(10)
    source.split(0)
    source.put(10)
    ordered_server.advance_clock(hours=25)
    source.put(10)
    with pytest.raises(DataLossError, match=r"may be gone|is gone"):
        query.restart().plan()
    query.restart(failOnDataLoss="false")
    assert flat(query.drain()) == list(range(30, 40))
    query.restart(failOnDataLoss="true")
    source.put(10)
    assert flat(query.drain()) == list(range(40, 50))


def test_a_stream_that_was_made_again_under_its_name_is_refused(ordered_stream):
    source = ordered_stream()
    source.put(3)
    query = source.query()
    query.drain()
    source.client.delete_stream(StreamName=source.name)
    source.server.create_stream(source.name)
    source.put(3)
    with pytest.raises(DataLossError, match=r"was deleted, and another one has its name"):
        query.restart().plan()


def test_a_stream_that_was_made_again_is_noticed_where_retention_is_asked_for(
    ordered_stream, ordered_server
):
    """For a position of more than a day each plan asks for it, and never for the stream itself: the
    next offset took the other stream for its own."""
    source = ordered_stream()
    long = {"StreamName": source.name, "RetentionPeriodHours": 168}
    source.client.increase_stream_retention_period(**long)
    source.put(3)
    query = source.query()
    query.drain()
    ordered_server.advance_clock(hours=30)
    assert not query.plan()
    source.put(2)
    source.client.delete_stream(StreamName=source.name)
    source.server.create_stream(source.name)
    source.client.increase_stream_retention_period(**long)
    source.put(3)
    with pytest.raises(DataLossError, match=r"was deleted, and another one has its name"):
        query.plan()
    with pytest.raises(DataLossError, match=r"was deleted, and another one has its name"):
        query.restart().plan()


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_stream_that_was_made_again_with_fewer_shards_is_no_loss_by_retention(
    ordered_stream, strict
):
    source = ordered_stream(shards=2)
    source.put(10)
    query = source.query(failOnDataLoss=strict)
    query.drain()
    source.client.delete_stream(StreamName=source.name)
    source.server.create_stream(source.name)
    with pytest.raises(DataLossError, match=r"was deleted, and another one has its name"):
        query.plan()
    with pytest.raises(DataLossError, match=r"was deleted, and another one has its name"):
        query.restart().plan()


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_stream_that_was_deleted_is_said_to_be_gone(ordered_stream, strict):
    """Its shards are gone, too, and not by retention."""
    source = ordered_stream()
    source.put(3)
    query = source.query(failOnDataLoss=strict)
    query.drain()
    source.client.delete_stream(StreamName=source.name)
    with pytest.raises(SourceError, match=r"There is no Kinesis stream .*" + source.name):
        query.plan()
    with pytest.raises(SourceError, match=r"There is no Kinesis stream .*" + source.name):
        query.restart().plan()
