"""Reads topics as a consumer of the pipeline would: at read_committed, up to the last stable offset."""

import time

from confluent_kafka import Consumer, TopicPartition

from support.waiting import until

OFFSET_BEGINNING = 0


def read_all(bootstrap, topic, isolation="read_committed", deadline_s=30):
    """Return every visible message of a topic, up to its present end, as confluent_kafka messages."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
        messages, ended, until = [], set(), time.monotonic() + deadline_s
        while len(ended) < len(partitions):
            assert time.monotonic() < until, f"{topic}: partitions {set(partitions) - ended} never reached their end"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                ended.add(message.partition())
            else:
                messages.append(message)
        return messages
    finally:
        consumer.close()


def values(bootstrap, topic, **kwargs):
    """Return the values of all visible messages, sorted."""
    return sorted(message.value().decode() for message in read_all(bootstrap, topic, **kwargs))


def held_back(bootstrap, topic):
    """Return how many offsets of a topic lie behind an open transaction (over all partitions)."""
    ends = []
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": isolation})
        try:
            partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
            ends.append(sum(_end(consumer, topic, p) for p in partitions))
        finally:
            consumer.close()
    return ends[1] - ends[0]


def released(bootstrap, topic):
    """Wait until no transaction holds readers back: the brokers answer a commit or an abort before its markers are written."""
    until(lambda: held_back(bootstrap, topic) == 0, 20, f"no transaction holds back the readers of {topic}")


def _end(consumer, topic, partition):
    return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10, cached=False)[1]
