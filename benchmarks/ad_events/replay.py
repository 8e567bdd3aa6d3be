"""Sends the records of a job's input topics again: all of them at once, for several days, or in
real time.

``python -m benchmarks.ad_events.replay config.json`` is the latter, an open-loop generator like
``generator``, with ``servers`` (``from`` and ``to``), ``topics`` (the new name of each),
``partitions`` (of each), ``rate`` (records/s), ``first`` and ``records``. It sends the first
records at once and says so (``first.json``), so that a job has something to begin with; the others
from the moment on at which a file ``go`` appears in its folder (``began.json``). At the end it
leaves ``sent.json``: by topic and partition the time in ns at which each record was meant to be
sent, in the order of the offsets, and by how many milliseconds it was late itself at most.

Keys, partitions and timestamps of records stay as they were: `cleanse` judges by the timestamps
what is late.
"""

from __future__ import annotations

import heapq
import math
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.ad_events.batches import Partition
from benchmarks.stands.children import MeasurementError, configuration, say
from benchmarks.stands.generator import Schedule
from onceforall.demo.ads.progress import stable_ends

_AT_ONCE = 10_000
_TICK_S = 0.002
_SILENCE_S = 60.0
_FLUSH_S = 120.0
_HAPPENED = re.compile(rb'"happened":"(\d{4}-\d\d-\d\d)')


class Record(NamedTuple):
    """What is sent again of a record: all but its place."""

    key: bytes | None
    value: bytes
    timestamp_ms: int


def send_days(
    servers: str, topics: Mapping[str, str], partitions: Mapping[str, int], days: int
) -> int:
    """Send all that is in some topics again, to others, as so many days with the same traffic;
    return how many records that are.

    Args:
        servers: the broker.
        topics: the new name of each topic.
        partitions: how many each has.
        days: in each further copy, everything happened a day later.

    Raises:
        MeasurementError: a topic can't be read, or a record not be sent.
    """
    sender, reader = Sender(servers), Reader(servers)
    count = 0
    for topic, new_name in topics.items():
        for number in range(partitions[topic]):
            for day in range(days):
                for record in reader.records(topic, number):
                    sender.send(
                        new_name,
                        number,
                        record if not day else record._replace(value=later(record.value, day)),
                    )
                    count += 1
    reader.close()
    sender.flush()
    return count


def later(value: bytes, days: int) -> bytes:
    """Return an event of `cleanse`, or a row of `aggregate` or `attribute`, that happened so many
    days later.

    Raises:
        MeasurementError: it doesn't say when it happened.
    """
    match = _HAPPENED.search(value)
    if match is None:
        raise MeasurementError(f'A record has no time "happened": {value[:200]!r}')
    new = date.fromisoformat(match[1].decode("ascii")) + timedelta(days=days)
    return value[: match.start(1)] + new.isoformat().encode("ascii") + value[match.end(1) :]


def turns(counts: Mapping[Partition, int]) -> Iterator[Partition]:
    """Yield the partition from which each record is taken, so that all of them come to their
    ends together, as they would have in real time.
    """

    def places(partition: Partition, count: int) -> Iterator[tuple[float, Partition]]:
        return (((number + 0.5) / count, partition) for number in range(count))

    return (partition for _, partition in heapq.merge(*(places(*each) for each in counts.items())))


class Reader:
    """Reads partitions from their beginning to their end at ``read_committed``, one after the
    other.
    """

    def __init__(self, servers: str) -> None:
        """Nothing is read yet."""
        from confluent_kafka import Consumer

        settings = {
            "bootstrap.servers": servers,
            "group.id": "replay",
            "isolation.level": "read_committed",
            "log_level": 2,
        }
        self._consumer: Any = Consumer(
            {**settings, "enable.auto.commit": False, "enable.partition.eof": True}
        )

    def records(self, topic: str, number: int) -> Iterator[Record]:
        """Yield the records of a partition.

        Raises:
            MeasurementError: the broker doesn't serve it.
        """
        from confluent_kafka import KafkaError, TopicPartition

        self._consumer.assign([TopicPartition(topic, number, 0)])
        heard_s = time.monotonic()
        while True:
            for message in self._consumer.consume(_AT_ONCE, 0.2):
                error = message.error()
                if error is None:
                    heard_s = time.monotonic()
                    yield Record(message.key(), message.value() or b"", message.timestamp()[1])
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  its public name
                    return
                elif error.fatal():
                    raise MeasurementError(f"{topic}[{number}] can't be read: {error}")
            if time.monotonic() > heard_s + _SILENCE_S:
                raise MeasurementError(
                    f"{topic}[{number}] was not read to its end: nothing came for "
                    f"{_SILENCE_S:.0f} s."
                )

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()


class Sender:
    """Sends records, in order, each once."""

    def __init__(self, servers: str, linger_ms: int = 20) -> None:
        """Nothing is sent yet."""
        from confluent_kafka import Producer

        settings = {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": linger_ms,
            "log_level": 2,
        }
        self._producer: Any = Producer(
            {
                **settings,
                "compression.type": "lz4",
                "delivery.report.only.error": True,
                "on_delivery": self._failed,
            }
        )
        self._failure: Any = None

    def send(self, topic: str, number: int, record: Record) -> None:
        """Send one; it waits when the queue is full."""
        while True:
            try:
                self._producer.produce(
                    topic, record.value, record.key, partition=number, timestamp=record.timestamp_ms
                )
                break
            except BufferError:
                self._producer.poll(0.05)

    def poll(self, seconds: float) -> None:
        """Let so much time pass."""
        self._producer.poll(seconds)

    def flush(self) -> None:
        """Wait until the broker has everything.

        Raises:
            MeasurementError: it does not.
        """
        if self._producer.flush(_FLUSH_S) or self._failure is not None:
            raise MeasurementError(
                f"The broker did not take all records: {self._failure or 'no answer'}"
            )

    def _failed(self, error: Any, _message: Any) -> None:
        self._failure = self._failure or error


def main() -> None:
    """Send the first records, and the others in real time."""
    config = configuration()
    work = Path(config["work"])
    queue = _loaded(config)
    sender = Sender(config["servers"]["to"], linger_ms=1)
    sent: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))

    def send(at_ns: int) -> None:
        (topic, number), record = next(queue)
        sender.send(topic, number, record)
        # Nobody else writes there, and there are no transactions: the place in the list is the
        # offset.
        sent[topic][number].append(at_ns)

    for _ in range(config["first"]):
        send(time.time_ns())
    sender.flush()
    say(work, "first.json", {"records": config["first"]})
    while not (work / "go").exists():
        sender.poll(_TICK_S)
    start_ns = time.time_ns()
    schedule = Schedule(config["rate"], start_ns)
    say(work, "began.json", {"start_ns": start_ns})
    left, worst_ns = config["records"] - config["first"], 0
    while left:
        due = schedule.due(now_ns := time.time_ns(), min(left, _AT_ONCE))
        for at_ns in due:
            send(at_ns)
        left -= len(due)
        worst_ns = max(worst_ns, now_ns - due[0]) if due else worst_ns
        sender.poll(_TICK_S)
    sender.flush()
    say(work, "sent.json", {"sent": sent, "worst_delay_ms": worst_ns / 1e6})


def _loaded(config: Mapping[str, Any]) -> Iterator[tuple[Partition, Record]]:
    """Read what is to be sent, so that nothing has to be read any more when it is time; return
    it in order, under the new topics' names.
    """
    servers, topics, wanted = config["servers"]["from"], config["topics"], config["records"]
    counts = stable_ends(servers, config["partitions"]) or {}
    total = sum(counts.values())
    if total < wanted:
        raise MeasurementError(
            f"{wanted:,} records are to be sent, and {', '.join(topics)} have {total:,}. Use more "
            "events, or a lower rate."
        )
    reader = Reader(servers)
    found = {
        partition: iter(
            list(islice(reader.records(*partition), math.ceil(wanted * count / total) + 1))
        )
        for partition, count in counts.items()
        if count
    }
    reader.close()
    return (
        ((topics[topic], number), next(found[topic, number]))
        for topic, number in islice(turns(counts), wanted)
    )


if __name__ == "__main__":
    main()
