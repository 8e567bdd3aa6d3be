"""Reads topics as a consumer of the pipeline would: at read_committed, up to the last stable
offset."""

import time
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition

from support.waiting import Story, until

OFFSET_BEGINNING = 0
LATER = f"read on {uuid.uuid4()}".encode()
"""What ``reads_on`` writes, and no test does; ``values`` leaves it out."""


def read_all(bootstrap, topic, isolation="read_committed", deadline_s=30):
    """Return every visible message of a topic, up to its present end, as confluent_kafka
    messages."""
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
            assert time.monotonic() < until, (
                f"{topic}: partitions {set(partitions) - ended} never reached their end"
            )
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
    return sorted(
        m.value().decode() for m in read_all(bootstrap, topic, **kwargs) if m.value() != LATER
    )


def held_back(bootstrap, topic):
    """Return how many offsets of a topic lie behind an open transaction (over all partitions)."""
    ends = []
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": isolation}
        )
        try:
            partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
            ends.append(sum(_end(consumer, topic, p) for p in partitions))
        finally:
            consumer.close()
    return ends[1] - ends[0]


def released(bootstrap, topic):
    """Wait until no transaction holds readers back: the brokers answer a commit or an abort
    before its markers are written."""
    until(
        lambda: held_back(bootstrap, topic) == 0,
        20,
        f"no transaction holds back the readers of {topic}",
    )


def _end(consumer, topic, partition):
    return consumer.get_watermark_offsets(
        TopicPartition(topic, partition), timeout=10, cached=False
    )[1]


def reads_on(bootstrap, topic, deadline_s=2):
    """Let a plain transactional producer write to each partition, and wait until a reader that
    began at the topic's beginning sees all of that."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"later-{uuid.uuid4().hex}"}
    )
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        }
    )
    missing = set()
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign(
            [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions]
        )
        producer.init_transactions(10)
        producer.begin_transaction()
        for partition in partitions:
            producer.produce(topic, LATER, partition=partition)
        producer.commit_transaction(10)
        missing.update(partitions)

        def all_seen():
            for message in consumer.consume(100, timeout=0.05):
                if message.error() is None and message.value() == LATER:
                    missing.discard(message.partition())
            return not missing

        def told():
            return (
                f"readers of {topic} go on in its partitions {sorted(missing)}; "
                f"{held_back(bootstrap, topic)} offsets are held back"
            )

        until(all_seen, deadline_s, Story(told))
    finally:
        consumer.close()
