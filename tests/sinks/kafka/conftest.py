"""What the tests of the Kafka sink share: attempts made by hand, rows, and readers at both
isolation levels."""

from __future__ import annotations

import time
import uuid

import confluent_kafka as ck
import pyarrow as pa
import pytest

from onceforall.protocol.history import CommitPermit
from onceforall.protocol.sweeping import Sweep
from onceforall.sink import StartInfo, TaskAttempt
from onceforall.sinks.kafka import KafkaSink
from support.waiting import until as wait_until

PERMIT = CommitPermit(1, 1, 1)


@pytest.fixture
def until():
    return wait_until


class Query:
    """One query with one Kafka sink, written to by hand as the coordinator and Spark's tasks
    would."""

    def __init__(self, servers, topic, sink_name="out", **arguments):
        self.id = str(uuid.uuid4())
        self.name = sink_name
        options = {"bootstrap.servers": servers, **arguments.pop("options", {})}
        self.sink = KafkaSink(options, topic=topic, **arguments)
        self.reusable = ()

    def attempt(self, batch=1, slot=0, generation=1, reusable=None, incarnation=0):
        reusable = self.reusable if reusable is None else reusable
        return TaskAttempt(
            self.id, self.name, generation, batch, 0, slot, slot, tuple(reusable), incarnation
        )

    def prepare(self, values, batch=1, slot=0, **more):
        """Write values in one transaction, as a task does, and return its committable."""
        transaction = self.sink.begin_transaction(self.attempt(batch, slot, **more))
        self.sink.invoke(transaction, rows(values))
        return self.sink.pre_commit(transaction)

    def commit(self, *committables):
        return self.sink.commit(PERMIT, committables)

    def check(self):
        self.sink.check(StartInfo(self.id, self.name))

    def sweep(self, generation=2, **more):
        return Sweep(self.id, self.name, generation, **more)


def rows(values, **columns):
    data = {
        "value": pa.array([v.encode() if isinstance(v, str) else v for v in values], pa.binary())
    }
    return pa.RecordBatch.from_pydict({**data, **columns})


@pytest.fixture
def batch_of():
    return rows


@pytest.fixture
def query(broker):
    made = []

    def make(topic=None, servers=None, **arguments):
        made.append(Query(servers or broker.bootstrap_servers, topic, **arguments))
        return made[-1]

    yield make
    for one in made:
        one.sink.close()


def read(servers, topic, isolation):
    """Return all messages up to the last stable offset (or the end, uncommitted), by partition."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        consumer.assign([ck.TopicPartition(topic, p, ck.OFFSET_BEGINNING) for p in partitions])
        messages, ends = [], set()
        deadline = time.monotonic() + 30
        while len(ends) < len(partitions):
            assert time.monotonic() < deadline, "the reader came to no end"
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is None:
                messages.append(message)
            elif message.error().code() == ck.KafkaError._PARTITION_EOF:
                ends.add(message.partition())
        return messages
    finally:
        consumer.close()


@pytest.fixture
def committed(broker):
    """The messages that a reader at read_committed sees now."""
    return lambda topic, servers=None: read(
        servers or broker.bootstrap_servers, topic, "read_committed"
    )


@pytest.fixture
def uncommitted(broker):
    return lambda topic, servers=None: read(
        servers or broker.bootstrap_servers, topic, "read_uncommitted"
    )


@pytest.fixture
def sees(committed):
    """Wait until a reader at read_committed sees exactly these values, in any order."""

    def check(topic, values, servers=None):
        expected = sorted(v.encode() for v in values)
        wait_until(lambda: sorted(m.value() for m in committed(topic, servers)) == expected)

    return check
