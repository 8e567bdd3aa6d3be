"""What the Kinesis source does where the first record of a shard is behind pages without records:
no plan forgets that nothing was seen of it."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from onceforall.errors import DataLossError


def flat(batches):
    return sorted(itertools.chain(*batches))


def empty_pages(query, count, shard="shardId-000000000000"):
    """Let the next pages of a shard be empty, though there is more behind."""
    shards, left = query.reader._planning()._shards, [count]
    page = shards.page

    def given(arn, name, iterator, *more):
        found = page(arn, name, iterator, *more)
        if name != shard or left[0] <= 0:
            return found
        left[0] -= 1
        return replace(found, records=[], following=iterator, behind_ms=3_600_000)

    shards.page = given
    return left


def positions(query):
    (stream,) = query.start["streams"].values()
    return stream["shards"]


# --- where a query begins -------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "AT_TIMESTAMP 2020-01-01T00:00:00Z", "given"])
@pytest.mark.parametrize(
    "limits",
    [{"maxRecordsPerTrigger": "1"}, {"maxBytesPerTrigger": "1"}, {"maxPlanningSeconds": "0.001"}],
    ids=["rows", "size", "time"],
)
def test_a_beginning_goes_on_until_it_has_seen_each_shards_first_record(
    ordered_stream, ordered_server, start, limits
):
    """Where its oldest record is isn't known before: retention might pass it without a word."""
    source = ordered_stream(shards=2)
    source.put(20)
    if start == "given":
        start = '{"shardId-000000000000": {"iteratorType": "TRIM_HORIZON"}, '
        start += '"shardId-000000000001": {"iteratorType": "TRIM_HORIZON"}}'
    query = source.query(startingPosition=start, **limits)
    empty_pages(query, 3)
    assert query.plan()
    assert all("after" in each for each in positions(query).values())
    ordered_server.advance_clock(hours=25)
    source.put(20)
    with pytest.raises(DataLossError, match="was read up to record 49"):
        query.restart().plan()


def test_a_beginning_whose_record_is_for_a_later_query_knows_when_it_came(
    ordered_stream, ordered_server
):
    """With availableNow a record that came later is seen, and left to the next run."""
    source = ordered_stream()
    query = source.query()
    query.reader._until = query.reader._planning().now()
    ordered_server.advance_clock(hours=1)
    source.put(5)
    assert query.plan()
    assert query.numbers() == []
    query.restart()
    ordered_server.advance_clock(hours=23)
    assert query.plan()
    assert query.numbers() == list(range(5))
    late = source.query()
    late.reader._until = query.reader._planning().now()
    ordered_server.advance_clock(hours=1)
    source.put(5)
    ordered_server.advance_clock(hours=0.5)
    late.plan()
    ordered_server.advance_clock(hours=25)
    source.put(5)
    with pytest.raises(DataLossError, match="was read not at all .*24 hours: what came next may"):
        late.restart().plan()


def test_a_time_to_begin_with_is_a_time_from_which_retention_counts(ordered_stream, ordered_server):
    source = ordered_stream()
    begin = datetime.now(timezone.utc) + timedelta(hours=ordered_server_ahead(source) - 0.1)
    source.put(5)
    query = source.query(
        startingPosition=f"AT_TIMESTAMP {begin.isoformat()}", maxPlanningSeconds="0.001"
    )
    empty_pages(query, 5)
    assert query.plan()
    assert "after" not in positions(query)["shardId-000000000000"]
    ordered_server.advance_clock(hours=25)
    source.put(5)
    with pytest.raises(DataLossError, match="was read not at all .*24 hours: what came next may"):
        query.restart().plan()
    query.restart(failOnDataLoss="false")
    assert flat(query.drain()) == list(range(5, 10))


def ordered_server_ahead(source):
    """How far the server's clock is ahead, in hours."""
    return (source.query().reader._planning().now() / 1000 - time.time()) / 3600


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "AT_TIMESTAMP 2020-01-01T00:00:00Z"])
def test_what_was_forgotten_before_a_query_begins_is_no_loss(ordered_stream, ordered_server, start):
    source = ordered_stream(shards=2)
    source.put(10)
    ordered_server.advance_clock(hours=25)
    source.put(10)
    query = source.query(startingPosition=start)
    empty_pages(query, 3)
    assert flat(query.drain()) == list(range(10, 20))


# --- offsets of earlier releases ------------------------------------------------------------------


def unseen(source, query, **place):
    """Let the checkpoint have what earlier releases wrote of a shard of which nothing was seen."""
    assert query.plan()
    (stream,) = query.start["streams"].values()
    stream["shards"] = {"shardId-000000000000": place}
    return query.restart()


@pytest.mark.parametrize("kind", ["timestamp", "oldest", "closed"])
def test_an_earlier_releases_position_of_which_nothing_was_seen_is_no_beginning(
    ordered_stream, ordered_server, kind
):
    source = ordered_stream()
    now = source.query().reader._planning().now()
    query = source.query(startingPosition="LATEST")
    place = {} if kind == "oldest" else {"timestamp": now - 1000}
    unseen(source, query, **place, **({"closed": True} if kind == "closed" else {}))
    if kind == "closed":
        source.split()
    source.put(5)
    ordered_server.advance_clock(hours=5)
    if kind != "oldest":
        assert query.plan()
        assert sorted(query.numbers()) == list(range(5))
        query.log.pop()
        query.restart()
    ordered_server.advance_clock(hours=20)
    source.put(5)
    with pytest.raises(DataLossError, match="was read not at all .*24 hours: what came next may"):
        query.plan()


def test_an_earlier_releases_position_is_read_while_the_stream_is_younger_than_its_retention(
    ordered_stream,
):
    source = ordered_stream()
    query = unseen(source, source.query(startingPosition="LATEST"))
    source.put(5)
    assert flat(query.drain()) == list(range(5))


def test_heirs_of_a_shard_that_is_gone_are_seen_before_the_plan_ends(
    ordered_stream, ordered_server
):
    source = ordered_stream()
    source.put(3)
    query = source.query()
    query.drain()
    source.split()
    source.put(4)
    ordered_server.advance_clock(hours=25)
    source.put(6)
    query.restart(failOnDataLoss="false")
    assert query.plan()
    assert all("after" in each or "time" in each for each in positions(query).values())
    query.restart(failOnDataLoss="true")
    query.drain()
    assert flat(query.numbers(b) for b in range(len(query.log)) if b) == list(range(7, 13))


# --- a quiet stretch with availableNow ------------------------------------------------------------


def test_a_query_with_available_now_does_not_end_before_a_record_that_is_there(
    ordered_stream, ordered_server
):
    """The iterator behind the pages without records is kept in memory only: the next run would walk
    the same ones, and end again."""
    source = ordered_stream(shards=2)
    source.put(10)
    query = source.query()
    query.drain()
    ordered_server.advance_clock(hours=1)
    source.put(10)
    query.restart(maxPlanningSeconds="0.001")
    left = [empty_pages(query, 3), empty_pages(query, 3, "shardId-000000000001")]
    query.reader.prepareForTriggerAvailableNow()
    assert query.plan()
    assert query.numbers()
    assert min(one[0] for one in left) == 0
    assert flat([query.numbers(), *query.drain()]) == list(range(10, 20))


def test_a_query_with_available_now_plans_no_longer_than_it_may_where_there_is_something(
    ordered_stream,
):
    source = ordered_stream(shards=2)
    source.put(10)
    query = source.query()
    query.drain()
    source.put(10)
    query.restart(maxPlanningSeconds="0.001")
    left = empty_pages(query, 3)
    query.reader.prepareForTriggerAvailableNow()
    assert query.plan()
    assert query.numbers()
    assert left == [2]


def test_a_query_that_goes_on_leaves_a_quiet_stretch_to_its_next_plan(ordered_stream):
    source = ordered_stream()
    source.put(10)
    query = source.query()
    query.drain()
    source.put(10)
    query.restart(maxPlanningSeconds="0.001")
    left = empty_pages(query, 3)
    assert not query.plan()
    assert left == [2]
    assert flat(query.drain()) == []
    assert left == [1]


def test_one_start_that_accepts_a_loss_is_enough_though_what_is_left_is_for_the_next(
    ordered_stream, ordered_server
):
    source = ordered_stream()
    source.put(3)
    query = source.query()
    query.drain()
    source.put(2)
    ordered_server.advance_clock(hours=25)
    query.restart(failOnDataLoss="false")
    query.reader.prepareForTriggerAvailableNow()
    ordered_server.advance_clock(hours=0.1)
    source.put(4)
    assert flat(query.drain()) == []
    query.restart(failOnDataLoss="true")
    assert flat(query.drain()) == list(range(5, 9))


@pytest.mark.parametrize("split", [False, True], ids=["same shard", "child"])
def test_what_available_now_leaves_to_the_next_run_counts_from_when_it_came(
    ordered_stream, ordered_server, split
):
    """Not from the last record that was read, which is gone by then, or was its parent's."""
    source = ordered_stream()
    source.put(1)
    query = source.query()
    if split:
        assert flat(query.drain()) == [0]
        source.split()
    ordered_server.advance_clock(hours=16)
    query.restart().reader.prepareForTriggerAvailableNow()
    ordered_server.advance_clock(hours=0.1)
    source.put(4)
    assert flat(query.drain()) == ([] if split else [0])
    ordered_server.advance_clock(hours=16)
    assert flat(query.restart().drain()) == [1, 2, 3, 4]
