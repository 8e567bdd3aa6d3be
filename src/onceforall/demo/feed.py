"""Publishes the flights: one chunk after the other, each acknowledged on all partitions before the
next begins.

That order bounds how far partitions can be apart in event time, so that no flight is ever later
than the watermark allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onceforall.demo.flights import PARTITIONS, Event
from onceforall.errors import MissingExtraError, SinkUnavailableError

CHUNK_EVENTS = 1000
_FLUSH_DEADLINE_S = 60.0


class Feed:
    """Publishes a fixed list of events to one topic, as far as it is told."""

    def __init__(self, bootstrap_servers: str, topic: str, events: Sequence[Event]) -> None:
        try:
            from confluent_kafka import Producer
        except ImportError as error:
            raise MissingExtraError("confluent-kafka", "demo") from error
        # It says on stderr what it repeats by itself; what it gives up comes as an error.
        quiet = {"log_level": 2}
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                **quiet,
            }
        )
        self._topic = topic
        self._events = events
        self._failure: Any = None
        self.published = 0
        """How many events of the list are in the topic."""
        self.ends = [0] * PARTITIONS
        """The end offset of each partition."""

    def advance(self, target: int) -> None:
        """Publish until `target` events of the list (or all) are in the topic.

        Raises:
            SinkUnavailableError: the broker did not acknowledge them.
        """
        while self.published < min(target, len(self._events)):
            chunk = self._events[self.published : min(target, self.published + CHUNK_EVENTS)]
            self.publish(chunk)
            self.published += len(chunk)

    def publish(self, events: Sequence[Event]) -> None:
        """Publish some events and return when all are acknowledged.

        Raises:
            SinkUnavailableError: the broker did not acknowledge them.
        """
        for event in events:
            self._producer.produce(
                self._topic,
                event.value,
                event.key,
                partition=event.partition,
                on_delivery=self._delivered,
            )
            self.ends[event.partition] += 1
        if self._producer.flush(_FLUSH_DEADLINE_S) or self._failure is not None:
            raise SinkUnavailableError(
                f"The broker did not take the events of topic {self._topic} "
                f"({self._failure or 'no answer'}). See broker.log, "
                "and start the demo again."
            )

    def close(self) -> None:
        """Let go of the broker; nothing can be published afterwards."""
        del self._producer

    def _delivered(self, error: Any, _message: Any) -> None:
        self._failure = self._failure or error
