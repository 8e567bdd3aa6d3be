"""Progress is read from Spark's checkpoint, and outputs from a real broker at read_committed."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer

from onceforall.demo import observe
from onceforall.demo.feed import Feed
from onceforall.demo.flights import PARTITIONS, event_of
from onceforall.spark.remote_path import create_file
from onceforall.spark.stores import Stores
from support.waiting import until


@pytest.fixture
def checkpoint(tmp_path):
    """Lay a checkpoint: ``checkpoint(planned, committed)`` with ten records in each of two
    partitions per batch."""

    def make(planned, committed):
        for log in ("offsets", "commits"):
            (tmp_path / log).mkdir()
        for number in range(planned):
            ends = {"0": 10 * (number + 1), "1": 10 * (number + 1)}
            (tmp_path / "offsets" / str(number)).write_text(
                "v1\n{}\n" + json.dumps({"flights": ends})
            )
        for number in range(committed):
            (tmp_path / "commits" / str(number)).write_text("v1\n{}")
        return tmp_path

    return make


def test_a_batch_between_the_two_logs_is_in_flight(checkpoint):
    folder = checkpoint(planned=3, committed=2)
    assert observe.in_flight(folder) == 2
    assert observe.committed_position(folder, "flights") == [20, 20]
    assert [batch.events for batch in observe.completed_batches(folder, "flights")] == [20, 20]


def test_a_batch_in_both_logs_is_not_in_flight(checkpoint):
    assert observe.in_flight(checkpoint(planned=2, committed=2)) is None


@pytest.mark.s3
def test_on_a_store_a_batch_ends_where_the_next_one_is_planned(s3_server, s3_bucket):
    store = {
        "endpoint": s3_server.endpoint,
        "region": s3_server.region,
        "access_key_id": s3_server.access_key,
        "secret_access_key": s3_server.secret_key,
        "virtual_hosted_style_request": "false",
    }
    checkpoint = Stores(None, store).checkpoint(f"s3a://{s3_bucket}/demo") / "events"
    for number in range(3):
        plan = [
            "v1",
            json.dumps({"batchTimestampMs": 5000 + 1000 * number}),
            json.dumps({"flights": {"0": 10 * (number + 1)}}),
        ]
        assert create_file(checkpoint / "offsets" / str(number), "\n".join(plan).encode())
        if number < 2:
            assert create_file(checkpoint / "commits" / str(number), b"v1\n{}")
    assert observe.in_flight(checkpoint) == 2
    assert observe.completed_batches(checkpoint, "flights") == [
        observe.Batch(0, 5.0, 6.0, 10),
        observe.Batch(1, 6.0, 7.0, 10),
    ]


def test_before_the_first_batch_nothing_is_taken(tmp_path):
    assert observe.committed_position(tmp_path, "flights") == []
    assert observe.in_flight(tmp_path) is None
    assert observe.completed_batches(tmp_path, "flights") == []


@pytest.mark.kafka
def test_the_feed_publishes_each_event_once_and_knows_the_ends(broker, topic, flights):
    name = topic(partitions=PARTITIONS)
    events = [event_of(flight) for flight in flights[:2500]]
    feed = Feed(broker.bootstrap_servers, name, events)
    feed.advance(700)
    assert (feed.published, sum(feed.ends)) == (700, 700)
    feed.advance(99_999)
    feed.close()
    assert (feed.published, sum(feed.ends)) == (2500, 2500)
    values = observe.read_values(broker.bootstrap_servers, name, PARTITIONS)
    assert sorted(values) == sorted(event.value for event in events)


@pytest.mark.kafka
def test_a_reader_sees_no_open_and_no_aborted_transaction_and_the_open_one_is_reported(
    broker, topic
):
    name = topic(partitions=2)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, "log_level": 2}
    )
    producer.init_transactions()
    for value, end in (
        (b"aborted", producer.abort_transaction),
        (b"committed", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce(name, value, partition=0)
        producer.flush()
        end()
    # The broker answers a commit before its markers are written.
    until(
        lambda: observe.hidden_partitions(broker.bootstrap_servers, name, 2) == [],
        30,
        "both transactions have ended",
    )
    producer.begin_transaction()
    producer.produce(name, b"open", partition=1)
    producer.flush()
    assert observe.read_values(broker.bootstrap_servers, name, 2) == [b"committed"]
    assert observe.hidden_partitions(broker.bootstrap_servers, name, 2) == [1]
    producer.abort_transaction()
