"""What the Kinesis source does where shards are gone between those that it reads and those that take
records now: what is left is read, once the user has accepted the loss."""

from __future__ import annotations

import itertools

import pytest

from onceforall.errors import DataLossError


def flat(batches):
    return sorted(itertools.chain(*batches))


def fill(source, place):
    """Put a record into the open shard at a place, and return its number."""
    shard = source.open_shards()[place]
    number, source.written = source.written, source.written + 1
    source.client.put_record(
        StreamName=source.name,
        PartitionKey="k",
        ExplicitHashKey=shard["HashKeyRange"]["StartingHashKey"],
        Data=b"%d" % number,
    )
    return number


def test_the_heirs_of_one_of_two_children_that_is_gone_are_read(ordered_stream, ordered_server):
    """Behind the other child nothing leads to them."""
    source = ordered_stream()
    source.put(3)
    query = source.query()
    source.split()
    assert query.plan()  # the children wait for the next batch
    source.split()
    ordered_server.advance_clock(hours=25)
    left = [fill(source, place) for place in (0, 1, 2)]
    with pytest.raises(DataLossError, match="gone"):
        query.restart().plan()
    query.restart(failOnDataLoss="false")
    assert flat(query.drain()) == left
    query.restart(failOnDataLoss="true")
    left = [fill(source, place) for place in (0, 1, 2)]
    assert flat(query.drain()) == left


def test_a_merged_shard_waits_for_a_parent_whose_own_parents_are_gone(
    ordered_stream, ordered_server
):
    """Shard 0 lags. It was split, and its second child, too, whose second one was merged with
    shard 1, which was read to its end."""
    source = ordered_stream(shards=2)
    query = source.query(maxRecordsPerTrigger="1")
    for _ in range(5):
        fill(source, 0)
    assert query.plan()
    source.split(0)
    source.split(1)
    ordered_server.advance_clock(hours=12)
    parents = fill(source, 2)
    source.merge(2)
    assert query.plan()
    left = [fill(source, place) for place in (0, 1, 2)]
    ordered_server.advance_clock(hours=13)
    with pytest.raises(DataLossError, match="gone"):
        query.restart().plan()
    query.restart(failOnDataLoss="false")
    batches = query.drain()
    assert flat(batches) == [parents, *left]
    (first,) = [n for n, batch in enumerate(batches) if parents in batch]
    (then,) = [n for n, batch in enumerate(batches) if left[2] in batch]
    assert first < then
