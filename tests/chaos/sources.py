"""Kafka topics as a query's input: filled beforehand, with the rows that the campaign's checker
expects of each batch."""

import uuid

from confluent_kafka import Producer

ROWS_PER_TASK = 150
BATCHES = 400
"""More than a scenario takes: with one batch in half a second it would have to go on for minutes
without any fault."""


def fill(kafka, counts, rows_per_task=ROWS_PER_TASK):
    """Make topics with so many partitions each, and fill them.

    Row ``id`` of a batch of ``partitions * rows_per_task`` rows lies in the partition ``id %
    partitions``, counted over all topics. All partitions are equally long, so that Spark's limit
    per batch comes to as many rows of each.

    Returns:
        The topics' names, and the number of rows in a batch.
    """
    names = [f"chaos-in-{uuid.uuid4().hex[:12]}" for _ in counts]
    places = [
        (name, number) for name, count in zip(names, counts, strict=True) for number in range(count)
    ]
    for name, count in zip(names, counts, strict=True):
        kafka.create_topic(name, partitions=count)
    # Idempotent: else what is repeated, for the topic has no leader yet, comes behind what was sent
    # after it.
    options = {
        "linger.ms": 20,
        "queue.buffering.max.messages": 2_000_000,
        "enable.idempotence": True,
    }
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **options})
    failed = []
    for row in range(len(places) * rows_per_task * BATCHES):
        topic, partition = places[row % len(places)]
        producer.produce(
            topic,
            str(row),
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        if row % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    assert not failed, failed[0]
    return names, len(places) * rows_per_task
