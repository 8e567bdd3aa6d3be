"""The broker of a measurement, its topics, and what of them a reader at ``read_committed`` is
shown.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import length_hint
from pathlib import Path
from typing import Any

from typing_extensions import Self

from benchmarks.settings import FOLDER, Load
from onceforall.embedded import EmbeddedKafka

COUNT_EVERY_S = 0.04
_ROWS_AT_ONCE = 20_000
_READ_AT_ONCE = 1 << 22
_FILL_DEADLINE_S = 600.0
_REQUEST_DEADLINE_S = 15.0
_LEADERS_DEADLINE_S = 30.0
_LOOK_AGAIN_S = 0.2
# The outputs of a throughput's round would drive its input out of the page cache; a tenth of them
# is enough for a reader that keeps up.
_NOT_KEPT = {
    "segment.bytes": str(64 << 20),
    "retention.bytes": str(128 << 20),
    "file.delete.delay.ms": "1000",
}
# Kafka's default of five minutes is longer than a contender runs.
_CONFIG = {"log.retention.check.interval.ms": "1000"}
TIME_DIGITS = 20
"""How long the decimal number at the beginning of each value is: its number or, in measurements
of latency, when it was meant to be sent (ns)."""


class Broker:
    """A broker with a data folder that outlives it, so that input topics are filled once.

    A context manager.
    """

    def __init__(self, folder: Path | None = None, *, config: dict[str, str] | None = None) -> None:
        """Nothing is started yet.

        Args:
            folder: of the data; None: that of all measurements.
            config: broker settings besides those of the embedded broker.
        """
        self._folder = folder or FOLDER / "kafka"
        self._kafka = EmbeddedKafka(data_dir=self._folder, config=_CONFIG | (config or {}))
        self._numbers = itertools.count()
        self.warm: set[int] = set()
        """The payloads for which it has served producers and consumers for a while, and so has
        compiled what it does for them."""

    def __enter__(self) -> Self:
        from confluent_kafka.admin import AdminClient

        self._kafka.start()
        self._admin: Any = AdminClient({"bootstrap.servers": self.servers, "log_level": 2})
        left = [
            name
            for name in self._admin.list_topics(timeout=_REQUEST_DEADLINE_S).topics
            if name.startswith("out-")
        ]
        self.delete(*left)
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.stop()

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._kafka.is_running

    @property
    def servers(self) -> str:
        """``bootstrap.servers``."""
        return self._kafka.bootstrap_servers

    @property
    def pid(self) -> int:
        """The broker's process."""
        return self._kafka.pid

    def make_topic(self, partitions: int, prefix: str = "out", *, is_kept: bool = True) -> str:
        """Create an empty topic with a name of its own and return that.

        Args:
            partitions: how many.
            prefix: of its name.
            is_kept: whether its records are; otherwise only the last of them, for who only counts:
                gigabytes of output would drive the input out of the page cache, and the next
                contender would read it from the disk.
        """
        name = f"{prefix}-{int(time.time())}-{next(self._numbers)}"
        self._kafka.create_topic(name, partitions=partitions, config={} if is_kept else _NOT_KEPT)
        return name

    def delete(self, *topics: str) -> None:
        """Delete topics."""
        if topics:
            for future in self._admin.delete_topics(
                list(topics), request_timeout=_REQUEST_DEADLINE_S
            ).values():
                future.result()

    def filled_topic(self, load: Load) -> str:
        """Return the input topic of a load, filled with its records: the same number in each
        partition, without keys.
        """
        name = load.input_topic()
        if name in self._admin.list_topics(timeout=_REQUEST_DEADLINE_S).topics:
            if sum(self.ends(name).values()) == load.records // load.partitions * load.partitions:
                return name
            self.delete(name)
            while name in self._admin.list_topics(timeout=_REQUEST_DEADLINE_S).topics:
                time.sleep(0.1)
        self._kafka.create_topic(name, partitions=load.partitions)
        fill(self.servers, name, load)
        return name

    def read_ahead(self, topic: str) -> None:
        """Read a topic's files, so that the page cache has them: whoever came first after
        another topic would read them from the disk, and pay for all.
        """
        for segment in sorted(self._folder.rglob(f"{topic}-*/*.log")):
            with segment.open("rb", buffering=0) as file:
                while file.read(_READ_AT_ONCE):
                    pass

    def ends(self, topic: str) -> dict[int, int]:
        """Return each partition's last stable offset: up to there a reader at ``read_committed``
        reads (markers count as records).
        """
        from confluent_kafka import KafkaException

        partitions = (
            self._admin.list_topics(topic, timeout=_REQUEST_DEADLINE_S).topics[topic].partitions
        )
        look = LastStableOffsets(self.servers, topic, tuple(partitions))
        until_s = time.monotonic() + _LEADERS_DEADLINE_S
        try:
            while True:
                try:
                    return look.now()
                except KafkaException:
                    # A broker that has just started answers before it leads its partitions.
                    if time.monotonic() > until_s:
                        raise
                time.sleep(_LOOK_AGAIN_S)
        finally:
            look.close()


_STANDING: list[Broker] = []


@contextmanager
def standing_broker() -> Iterator[Broker]:
    """Lend this process's broker, which is started for the first round, serves the others, too, and
    ends with the process.

    A broker that has just started compiles for minutes, and whoever is measured meanwhile would pay
    for it.
    """
    if _STANDING and not _STANDING[0].is_running:
        _STANDING.pop().__exit__()
    if not _STANDING:
        broker = Broker()
        broker.__enter__()
        _STANDING.append(broker)
    yield _STANDING[0]


class LastStableOffsets:
    """Asks for the last stable offsets of a topic's partitions, again and again over the same
    connections.
    """

    def __init__(self, servers: str, topic: str, partitions: Sequence[int]) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._partitions = [TopicPartition(topic, number) for number in partitions]
        settings = {
            "bootstrap.servers": servers,
            "group.id": "looks",
            "isolation.level": "read_committed",
            "log_level": 2,
        }
        self._consumer: Any = Consumer(settings)

    def now(self) -> dict[int, int]:
        """Return them by partition."""
        ask = self._consumer.get_watermark_offsets
        return {
            each.partition: ask(each, timeout=_REQUEST_DEADLINE_S, cached=False)[1]
            for each in self._partitions
        }

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()


def fill(servers: str, topic: str, load: Load) -> None:
    """Fill a topic with records of the load's payload: a number of 20 digits and text that
    compresses to about a half.
    """
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "delivery.report.only.error": True,
            "on_delivery": _refuse_failure,
        }
    )
    chance = random.Random(1)  # noqa: S311  a payload
    size = max(0, load.payload - TIME_DIGITS)
    tails = [bytes(chance.choices(b"abcdefgh0123 ", k=size)) for _ in range(500)]
    share = load.records // load.partitions
    for start in range(0, share, _ROWS_AT_ONCE):
        for partition in range(load.partitions):
            first = partition * share + start
            count = min(_ROWS_AT_ONCE, share - start)
            values = [
                b"%020d" % number + tails[number % 500] for number in range(first, first + count)
            ]
            while len(producer) > 900_000:
                producer.poll(0.01)
            deque(
                map(
                    producer.produce, repeat(topic), values, repeat(None), repeat(partition, count)
                ),
                maxlen=0,
            )
            producer.poll(0)
    if producer.flush(_FILL_DEADLINE_S):
        raise RuntimeError(
            f"Topic {topic} could not be filled in {_FILL_DEADLINE_S:.0f} s. Check the disk."
        )


def produce_all(producer: Any, topic: str, values: list[bytes]) -> None:
    """Hand records to a librdkafka producer, in order, each once; wait where its queue is full.
    The loop over them runs in C.
    """
    position = 0
    while position < len(values):
        rest = iter(values[position:] if position else values)
        try:
            deque(map(producer.produce, repeat(topic), rest), maxlen=0)
        except BufferError:
            # The record on which it failed is consumed, and not sent.
            position = len(values) - length_hint(rest) - 1
            producer.poll(0.005)
        else:
            position = len(values)
    producer.poll(0)


def _refuse_failure(error: Any, _message: Any) -> None:
    if error is not None:
        raise RuntimeError(f"A record of an input topic was not delivered: {error}")


class VisibleCounts:
    """Notes, in a thread of its own, how many records of a topic are visible at
    ``read_committed``, again and again. A context manager.
    """

    def __init__(self, broker: Broker, topic: str, partitions: int) -> None:
        self._look = LastStableOffsets(broker.servers, topic, range(partitions))
        self.counts: list[tuple[float, int]] = [(time.monotonic(), 0)]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="visible-counts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look.close()

    @property
    def visible(self) -> int:
        """How many there were at the last look."""
        return self.counts[-1][1]

    def _run(self) -> None:
        from confluent_kafka import KafkaException

        while not self._ended.wait(COUNT_EVERY_S):
            before_s = time.monotonic()
            try:
                count = sum(self._look.now().values())
            except KafkaException:
                # A new topic isn't known everywhere at once. If it stays so, whoever waits for a
                # count gives up.
                continue
            # The answer is of a moment between question and answer.
            self.counts.append(((before_s + time.monotonic()) / 2, count))
