"""Reads a topic at ``read_committed``, from where the last look stopped, and what open
transactions leave behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from onceforall.errors import MissingExtraError, SinkUnavailableError
from onceforall.sinks.kafka.names import parse_name
from onceforall.testing.checker import Rows, contents_of
from onceforall.testing.checker.rows import Array
from onceforall.testing.observers.base import Ids, decoded, joined

_READ_AT_ONCE = 20_000
# It waits that long whenever fewer records come.
_READ_FOR_S = 0.02
_ANSWER_S = 10.0


KafkaContent = Literal["headers", "timestamp", "partition"]
"""What of a record, besides value and key, makes up its content."""

_PARTS_OF_CONTENT: Mapping[str, Callable[[Any], Any]] = {
    "headers": lambda message: message.headers() or [],
    "timestamp": lambda message: message.timestamp()[1],
    "partition": lambda message: message.partition(),
}


class KafkaObserver:
    """An observer of one topic; record values are ids, and record keys are keys.

    A look reads on from where the one before stopped, up to the last stable offset of each
    partition, and has all that was read so far. A topic that lost what was read is read again from
    its beginning. For a check when all is quiet take a new observer, which reads everything.

    Args:
        bootstrap_servers: as in librdkafka's option.
        topic: the topic.
        security: librdkafka's options ``security.protocol``, ``sasl.*``, ``ssl.*``, as for
            ``KafkaSink``.
        query_id: the query whose open transactions are left over; a function that returns it (None:
            not yet known); None: any query's of onceforall in this cluster.
        ids: how values are read.
        keys: how keys are read; None: not at all.
        content: what makes up the content of a record (``contents_of``), in this order: its
            ``"headers"`` (a list of (key, value or None), empty without any), ``"timestamp"`` (in
            milliseconds), ``"partition"``; none: contents are not looked at.
        deadline_s: after how many seconds without a record a look is given up.

    Raises:
        MissingExtraError: confluent-kafka is not installed.
        ValueError: ``content`` names something else.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        security: Mapping[str, Any] | None = None,
        query_id: str | Callable[[], str | None] | None = None,
        ids: Ids = "numbers",
        keys: Ids | None = "numbers",
        content: Collection[KafkaContent] = (),
        deadline_s: float = 30.0,
    ) -> None:
        self._servers = bootstrap_servers
        self._topic = topic
        self._security = dict(security or {})
        self._query_id = query_id
        self._ids: Ids = ids
        self._key_kind = keys
        if not set(content) <= set(_PARTS_OF_CONTENT):
            raise ValueError(f"KafkaObserver: content takes {', '.join(_PARTS_OF_CONTENT)}.")
        self._content = [_PARTS_OF_CONTENT[part] for part in content]
        self._deadline_s = deadline_s
        self._kafka: Any = _confluent_kafka()
        self._consumer: Any = None
        self._admin: Any = None
        self._coordinators: Any = None
        self._forget()

    def __repr__(self) -> str:
        return f"KafkaObserver({self._servers!r}, {self._topic!r})"

    def rows(self) -> Rows:
        """Return all records that a reader at ``read_committed`` could see when this was called,
        and maybe some that came after.

        Raises:
            SinkUnavailableError: a partition can't be read to its end: nothing comes any more.
        """
        end = time.monotonic() + self._deadline_s
        try:
            unfinished = self._assign()
            # A topic that grows as fast as it is read never tells its end.
            ends = self._end_offsets(committed=True)
            while unfinished:
                messages = self._consumer.consume(_READ_AT_ONCE, timeout=_READ_FOR_S)
                now = time.monotonic()
                if messages:
                    end = now + self._deadline_s
                elif now > end:
                    raise SinkUnavailableError(
                        f"Topic {self._topic}: the partitions {sorted(unfinished)} could not be "
                        "read to their end; nothing came for "
                        f"{self._deadline_s:g} s. See that every broker runs."
                    )
                self._take(messages, unfinished)
                seen = {message.partition() for message in messages if message.error() is None}
                # What was read is forgotten where the topic turns out to be another one than at the
                # last look.
                unfinished -= {
                    p for p in seen if p in self._next and self._next[p] >= ends.get(p, 0)
                }
        except self._kafka.KafkaException as error:
            raise SinkUnavailableError(
                f"Topic {self._topic} can't be read: {error}. See that the brokers run."
            ) from error
        parts = self._parts
        lanes = [np.full(len(part.ids), part.lane, np.int64) for part in parts]
        contents = joined([part.contents for part in parts if part.contents is not None], "numbers")
        return Rows(
            joined([part.ids for part in parts], self._ids),
            joined(lanes, "numbers"),
            joined([part.positions for part in parts], "numbers"),
            None
            if self._key_kind is None
            else joined([part.keys for part in parts], self._key_kind),
            contents if self._content else None,
        )

    def leftovers(self) -> list[str]:
        """Return what open transactions hide in each partition, and the query's open transactions
        in the cluster.

        Raises:
            SinkUnavailableError: a broker does not answer.
        """
        stable, written = self._end_offsets(committed=True), self._end_offsets(committed=False)
        found = [
            f"partition {p} of {self._topic}: {written[p] - stable[p]} offsets from {stable[p]} "
            "on behind an open transaction"
            for p in sorted(written)
            if stable[p] < written[p]
        ]
        return found + [f"open transaction {name}" for name in self._open_transactions()]

    def close(self) -> None:
        """Release connections."""
        if self._consumer is not None:
            self._consumer.close()
        if self._coordinators is not None:
            self._coordinators.close()
        self._consumer = self._coordinators = self._admin = None

    def _forget(self) -> None:
        self._next: dict[int, int] = {}
        self._parts: list[_Part] = []

    def _options(self) -> dict[str, Any]:
        from onceforall.sinks.kafka.access.security import resolved

        return {"bootstrap.servers": self._servers, "log_level": 2, **resolved(self._security, {})}

    def _assign(self) -> set[int]:
        """Go on where the last look ended; librdkafka tells each partition's end once per
        assignment.
        """
        if self._consumer is None:
            self._consumer = self._kafka.Consumer(
                {
                    **self._options(),
                    "group.id": "onceforall-observer",
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "fetch.wait.max.ms": 20,
                }
            )
        partitions = self._partitions(self._consumer)
        self._consumer.assign(
            [self._kafka.TopicPartition(self._topic, p, self._next.get(p, 0)) for p in partitions]
        )
        return set(partitions)

    def _partitions(self, client: Any) -> list[int]:
        found = client.list_topics(self._topic, timeout=min(_ANSWER_S, self._deadline_s)).topics[
            self._topic
        ]
        if found.error is not None or not found.partitions:
            raise SinkUnavailableError(
                f"Topic {self._topic} can't be looked up: {found.error}. See that it was created."
            )
        return sorted(found.partitions)

    def _take(self, messages: list[Any], unfinished: set[int]) -> None:
        """Keep records, and note which partitions have come to their end."""
        self._keep([message for message in messages if message.error() is None])
        codes = self._kafka.KafkaError
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == codes._PARTITION_EOF:  # noqa: SLF001  its public name
                # Behind the markers that no reader is given, too; but never back: records may have
                # come after this end, in the same call.
                partition = message.partition()
                self._next[partition] = max(self._next.get(partition, 0), message.offset())
                unfinished.discard(message.partition())
            elif error.code() in {codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE}:  # noqa: SLF001
                self._forget()
                unfinished |= self._assign()
                return
            elif error.fatal() or (not error.retriable() and error.code() > 0):
                raise self._kafka.KafkaException(error)

    def _keep(self, messages: list[Any]) -> None:
        records: dict[int, list[Any]] = {}
        for message in messages:
            records.setdefault(message.partition(), []).append(message)
        for partition, found in records.items():
            positions = np.fromiter((message.offset() for message in found), np.int64, len(found))
            keys = (
                decoded([message.key() for message in found], self._key_kind)
                if self._key_kind
                else positions
            )
            contents = (
                contents_of([[part(message) for message in found] for part in self._content])
                if self._content
                else None
            )
            ids = decoded([message.value() for message in found], self._ids)
            self._parts.append(_Part(partition, ids, positions, keys, contents))
            self._next[partition] = int(positions[-1]) + 1

    def _end_offsets(self, *, committed: bool) -> dict[int, int]:
        from confluent_kafka import admin

        api: Any = admin
        if self._admin is None:
            self._admin = api.AdminClient(self._options())
        levels = self._kafka.IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        try:
            wanted = [
                self._kafka.TopicPartition(self._topic, p) for p in self._partitions(self._admin)
            ]
            latest = {each: api.OffsetSpec.latest() for each in wanted}
            answers: Mapping[Any, Future[Any]] = self._admin.list_offsets(
                latest, isolation_level=level, request_timeout=_ANSWER_S
            )
            return {each.partition: int(answer.result().offset) for each, answer in answers.items()}
        except self._kafka.KafkaException as error:
            raise SinkUnavailableError(
                f"The ends of topic {self._topic} can't be read: {error}. See that the brokers run."
            ) from error

    def _open_transactions(self) -> list[str]:
        from onceforall.sinks.kafka.access.secure_connections import Access
        from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient

        query_id = self._query_id() if callable(self._query_id) else self._query_id
        if callable(self._query_id) and query_id is None:
            return []
        if self._coordinators is None:
            self._coordinators = CoordinatorClient(self._servers, access=Access(self._security))
        parsed = {name: parse_name(name) for name in self._coordinators.open_transactions()}
        return [
            name
            for name, parts in parsed.items()
            if parts is not None and query_id in {None, parts[1].query_id}
        ]


@dataclass(frozen=True, eq=False)
class _Part:
    """Records of one partition that came together."""

    lane: int
    ids: Array
    positions: Array
    keys: Array
    contents: Array | None


def _confluent_kafka() -> Any:
    try:
        import confluent_kafka
    except ImportError as error:
        raise MissingExtraError("confluent-kafka", "kafka") from error
    return confluent_kafka
