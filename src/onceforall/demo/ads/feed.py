"""Publishes the records of the generator, and the heartbeats that end a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from onceforall.demo.ads.generator import Ground, Record, closing_records, records
from onceforall.errors import MissingExtraError, SinkUnavailableError

_CHUNK_RECORDS = 20_000
_DEADLINE_S = 120.0


class Feed:
    """Publishes to one broker; every record has the timestamp that it arrived at."""

    def __init__(self, servers: str) -> None:
        """Nothing is sent yet.

        Args:
            servers: the broker.

        Raises:
            MissingExtraError: confluent-kafka is not installed.
        """
        try:
            from confluent_kafka import Producer
        except ImportError as error:
            raise MissingExtraError("confluent-kafka", "demo") from error
        # It says on stderr what it repeats by itself; what it gives up comes as an error.
        options = {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": 20,
            "log_level": 2,
        }
        self._producer = Producer(
            {
                **options,
                "queue.buffering.max.messages": 10 * _CHUNK_RECORDS,
                "compression.type": "lz4",
            }
        )
        self._failure: Any = None

    def publish(self, ground: Ground, tell: Callable[[int], None]) -> None:
        """Publish all records of a run, in the order of their arrival.

        Args:
            ground: of the generator.
            tell: takes how many records have been handed over, now and then.

        Raises:
            SinkUnavailableError: the broker did not take them.
        """
        for begin in range(0, ground.records, _CHUNK_RECORDS):
            self._send(records(ground, begin, begin + _CHUNK_RECORDS))
            tell(min(ground.records, begin + _CHUNK_RECORDS))
        self._flush()

    def publish_part(self, ground: Ground, begin: int, end: int) -> None:
        """Publish the records of a run from `begin` up to `end`; see `publish`."""
        for start in range(begin, end, _CHUNK_RECORDS):
            self._send(records(ground, start, min(end, start + _CHUNK_RECORDS)))
        self._flush()

    def close_the_day(self, topic: str) -> None:
        """Publish the records with which all windows end, to a topic of heartbeats.

        Raises:
            SinkUnavailableError: the broker did not take them.
        """
        self._send(record._replace(topic=topic, partition=0) for record in closing_records())
        self._flush()

    def _send(self, given: Iterable[Record]) -> None:
        for record in given:
            while True:
                try:
                    self._producer.produce(
                        record.topic,
                        record.value,
                        record.key,
                        partition=record.partition,
                        timestamp=record.arrival_ms,
                        on_delivery=self._delivered,
                    )
                    break
                except BufferError:
                    # Its queue is full: it serves delivery reports until there is room.
                    self._producer.poll(0.1)
        self._producer.poll(0)

    def _flush(self) -> None:
        if self._producer.flush(_DEADLINE_S) or self._failure is not None:
            raise SinkUnavailableError(
                f"The broker did not take the events ({self._failure or 'no answer'}). See "
                "broker.log (--keep), and start the demo again."
            )

    def _delivered(self, error: Any, _message: Any) -> None:
        self._failure = self._failure or error
