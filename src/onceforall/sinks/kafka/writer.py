"""One task's transaction: rows from Arrow to librdkafka, and every reason to refuse exhausted before the driver hears of it.

``produce`` is called per row: ``produce_batch`` of confluent-kafka ignores partitions and headers, and drops rows when its queue is
full. The loop over the rows runs in C (``map`` into an empty deque); Python only makes the lists.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise
from operator import length_hint
from typing import TYPE_CHECKING, Any

from onceforall.errors import AttemptFailedError, RefusedRecordError, SchemaError
from onceforall.sinks.kafka.options import confluent_kafka
from onceforall.testing import failpoints

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from onceforall.sinks.kafka.live import DeliveryFailure, LiveProducer

_ROWS_PER_POLL = 5_000
_TOPIC_DEADLINE_S = 5.0
_METADATA_TIMEOUT_S = 15.0
_FLUSH_SLICE_S = 0.5
# NOT_ENOUGH_REPLICAS, before and after the append.
_TOO_FEW_REPLICAS = {19, 20}


class KafkaTransaction:
    """The open transaction of a task attempt (or, without transactions, the records that it has sent)."""

    def __init__(
        self,
        producer: LiveProducer,
        batch: int,
        *,
        topic: str | None,
        message_max_bytes: int,
        topic_max_bytes: int | None,
        patience_s: float,
    ) -> None:
        """Take over a producer whose transaction is begun.

        Args:
            producer: used by nobody else.
            batch: Spark's batch id.
            topic: the fixed topic; None when a column names it.
            message_max_bytes: librdkafka's limit for a record, to be named in messages.
            topic_max_bytes: the topic's, where it is known.
            patience_s: after how long without progress the attempt is given up.
        """
        self.producer = producer
        self.batch = batch
        self.records = 0
        self.is_over = False
        self._topic = topic
        self._message_max_bytes = message_max_bytes
        self._topic_max_bytes = topic_max_bytes
        self._patience_s = patience_s

    def write(self, rows: pa.RecordBatch) -> None:
        """Send rows that have the columns of ``kafka_columns``.

        Raises:
            RefusedRecordError: a record can't be written at all: no or an unknown topic or partition, or too large.
            AttemptFailedError: the brokers did not take an earlier record, or nothing for too long.
        """
        count = rows.num_rows
        if not count:
            return
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        topics = self._topics(columns, count)
        # In the order of produce(topic, value, key, partition, callback, on_delivery, timestamp, headers).
        arguments: list[Sequence[Any]] = [topics, _bytes(columns["value"])]
        keys = _bytes(columns["key"]) if "key" in columns else [None] * count
        partitions = self._partitions(columns, topics)
        timestamps, headers = _timestamps(columns), _headers(columns)
        if timestamps is not None or headers is not None:
            none = [None] * count
            arguments += [keys, partitions or [-1] * count, none, none, timestamps or [0] * count, headers or none]
        elif partitions is not None:
            arguments += [keys, partitions]
        else:
            arguments += [keys]
        for start in range(0, count, _ROWS_PER_POLL):
            failpoints.hit("kafka.produce.before")
            self._produce([column[start : start + _ROWS_PER_POLL] for column in arguments])
            self.producer.poll(0)
            self._raise_failures()
            failpoints.hit("kafka.produce.after")
        self.records += count

    def _produce(self, arguments: list[Sequence[Any]]) -> None:
        ck = confluent_kafka()
        produce = self.producer.client.produce
        rows = [iter(column) for column in arguments]
        count, progress_s = len(arguments[0]), time.monotonic()
        while True:
            try:
                deque(map(produce, *rows), maxlen=0)
            except BufferError:  # noqa: PERF203 - once per full queue
                # The row on which it failed is consumed: go back to it, once there is room.
                position = count - length_hint(rows[-1]) - 1
                arguments, count, progress_s = self._go_back(arguments, position, progress_s)
                rows = [iter(column) for column in arguments]
            except ck.KafkaException as error:
                position = count - length_hint(rows[-1]) - 1
                raise self._refusal(error.args[0], [column[position] for column in arguments]) from error
            else:
                return

    def _go_back(
        self, arguments: list[Sequence[Any]], position: int, progress_s: float
    ) -> tuple[list[Sequence[Any]], int, float]:
        if position:
            progress_s = time.monotonic()
        elif time.monotonic() - progress_s > self._patience_s:
            raise AttemptFailedError(
                f"Kafka took no record for {self._patience_s:.0f} s while the producer's queue was full. Check the brokers; the limits "
                "are queue.buffering.max.messages and queue.buffering.max.kbytes."
            )
        self.producer.poll(0.02)
        self._raise_failures()
        rest = [column[position:] for column in arguments]
        return rest, len(rest[0]), progress_s

    def _refusal(self, error: Any, row: list[Any]) -> AttemptFailedError:
        ck = confluent_kafka()
        topic, value, key = row[0], row[1], row[2]
        code = error.code()
        if code == ck.KafkaError.MSG_SIZE_TOO_LARGE:
            return self._too_large(topic, len(value or b"") + len(key or b""))
        if code == ck.KafkaError._UNKNOWN_PARTITION:  # noqa: SLF001
            return RefusedRecordError(
                f"Topic {topic!r} has no partition {row[3] if len(row) > 3 else '?'}. Correct the column 'partition'."
            )
        if code in {ck.KafkaError._UNKNOWN_TOPIC, ck.KafkaError.UNKNOWN_TOPIC_OR_PART}:  # noqa: SLF001
            return _unknown_topic(topic)
        return AttemptFailedError(f"A record to topic {topic!r} could not be sent: {error.str()}")

    def _too_large(self, topic: str, size_bytes: int) -> RefusedRecordError:
        limits = f"message.max.bytes of the sink is {self._message_max_bytes}"
        if self._topic_max_bytes is not None:
            limits += f", max.message.bytes of the topic is {self._topic_max_bytes}"
        return RefusedRecordError(
            f"A record of {size_bytes} bytes to topic {topic!r} is too large: {limits}. Raise the smaller one, or make the record smaller."
        )

    def _raise_failures(self) -> None:
        """Raise what the delivery reports said, the plainest reason first."""
        failures = self.producer.watch.failures
        if not failures:
            return
        ck = confluent_kafka()

        def rank(failure: DeliveryFailure) -> tuple[bool, bool, int]:
            code = failure.error.code()
            purged = code in {ck.KafkaError._PURGE_QUEUE, ck.KafkaError._PURGE_INFLIGHT}  # noqa: SLF001
            return code == ck.KafkaError.MSG_SIZE_TOO_LARGE, not purged, failure.size_bytes

        worst = max(failures, key=rank)
        if worst.error.code() == ck.KafkaError.MSG_SIZE_TOO_LARGE:
            raise self._too_large(worst.topic, worst.size_bytes)
        # Where a partition could not be added to the transaction, the records are only purged, and the log has the reason.
        reason = self.producer.watch.transaction_error
        remedy = f". {reason}" if reason is not None else ""
        if worst.error.code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED or "TOPIC_AUTHORIZATION_FAILED" in remedy:
            remedy += f". {self.producer.rights.topic(worst.topic)}"
        if worst.error.code() in {ck.KafkaError._MSG_TIMED_OUT, ck.KafkaError._TIMED_OUT, *_TOO_FEW_REPLICAS}:  # noqa: SLF001
            remedy = (
                ". Check that the partition has a leader and as many replicas in sync as its min.insync.replicas asks for; brokers "
                "are waited for as long as message.timeout.ms"
            )
        raise AttemptFailedError(
            f"{len(failures)} record(s) were not delivered; the first reason: topic {worst.topic!r} partition {worst.partition}: "
            f"{worst.error.str()} ({worst.error.name()}){remedy}"
        )

    def _topics(self, columns: dict[str, Any], count: int) -> Sequence[Any]:
        if self._topic is not None:
            self._partition_count(self._topic)
            return [self._topic] * count
        column = columns["topic"]
        if column.null_count:
            raise RefusedRecordError(
                "A row has no topic (the column 'topic' is null). Give each row one, or give the sink topic=."
            )
        for topic in column.unique().to_pylist():
            self._partition_count(topic)
        topics: list[str] = column.to_pylist()
        return topics

    def _partitions(self, columns: dict[str, Any], topics: Sequence[Any]) -> Sequence[int] | None:
        if "partition" not in columns:
            return None
        partitions = [-1 if partition is None else partition for partition in columns["partition"].to_pylist()]
        for topic, partition in {*zip(topics, columns["partition"].to_pylist(), strict=True)}:
            if partition is None or 0 <= partition < self._partition_count(topic):
                continue
            # Partitions may have been added since they were counted.
            self.producer.partition_counts.pop(topic)
            found = self._partition_count(topic)
            if not 0 <= partition < found:
                raise RefusedRecordError(
                    f"A row names partition {partition} of topic {topic!r}, which has the partitions 0 to {found - 1}. Correct the column "
                    "'partition', or add partitions to the topic."
                )
        return partitions

    def _partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has; asked once per producer, so that an unknown topic is named before it is used."""
        known = self.producer.partition_counts.get(topic)
        if known is not None:
            return known
        ck = confluent_kafka()
        deadline_s = time.monotonic() + _TOPIC_DEADLINE_S
        while True:
            try:
                found = self.producer.client.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics[topic]
            except ck.KafkaException as error:
                # It may say why: wrong credentials, for example.
                self.producer.poll(0)
                raise AttemptFailedError(f"The brokers gave no metadata of topic {topic!r}: {error.args[0].str()}") from error
            if found.error is None and found.partitions:
                self.producer.partition_counts[topic] = len(found.partitions)
                return len(found.partitions)
            code = found.error.code() if found.error is not None else None
            if code in {ck.KafkaError.TOPIC_AUTHORIZATION_FAILED, ck.KafkaError.TOPIC_EXCEPTION}:
                missing = code == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
                remedy = self.producer.rights.topic(topic) if missing else "Correct its name."
                raise RefusedRecordError(f"Topic {topic!r} can't be written: {found.error.str()}. {remedy}")
            # A topic that was made a moment ago is not known to every broker yet.
            if time.monotonic() > deadline_s:
                raise _unknown_topic(topic)
            self.producer.poll(0.1)

    def flush(self) -> None:
        """Wait until every record is acknowledged.

        Raises:
            RefusedRecordError, AttemptFailedError: one was not.
        """
        deadline_s = time.monotonic() + self._patience_s
        failpoints.hit("kafka.flush.before")
        while remaining := self.producer.flush(_FLUSH_SLICE_S):
            self._raise_failures()
            if time.monotonic() > deadline_s:
                raise AttemptFailedError(
                    f"{remaining} record(s) were not acknowledged in {self._patience_s:.0f} s. Check the brokers."
                )
        failpoints.hit("kafka.flush.after")
        self.producer.poll(0)
        self._raise_failures()
        failpoints.hit("kafka.reports.checked")


def _unknown_topic(topic: str) -> RefusedRecordError:
    return RefusedRecordError(
        f"Topic {topic!r} does not exist. Create it first: the sink never does, so that no misspelt name becomes a topic."
    )


def _bytes(column: pa.Array) -> list[bytes | None]:
    import pyarrow as pa

    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    elif not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise SchemaError(
            f"A column of type {column.type} reached the Kafka sink, which writes binary. Write what columns() returned."
        )
    values: list[bytes | None] = column.to_pylist()
    return values


def _timestamps(columns: dict[str, Any]) -> Sequence[int] | None:
    if "timestamp" not in columns:
        return None
    timestamps = columns["timestamp"].to_pylist()
    for timestamp in timestamps:
        # librdkafka takes 0 to mean "now".
        if timestamp is not None and timestamp <= 0:
            raise RefusedRecordError(
                f"A row's timestamp is {timestamp} ms after 1970-01-01; Kafka has none before, and librdkafka takes 0 as 'now'. Correct it, or make it "
                "null for the time of sending."
            )
    return [timestamp or 0 for timestamp in timestamps]


def _headers(columns: dict[str, Any]) -> Sequence[list[tuple[str, bytes | None]] | None] | None:
    if "headers" not in columns:
        return None
    column = columns["headers"]
    # Building the pairs from the two flat columns is several times as fast as to_pylist of the nested one.
    keys, values = column.values.field(0).to_pylist(), column.values.field(1).to_pylist()
    if column.values.null_count:
        keys = [key if valid else None for key, valid in zip(keys, column.values.is_valid().to_pylist(), strict=True)]
    pairs = list(zip(keys, values, strict=True))
    spans = list(pairwise(column.offsets.to_pylist()))
    rows = [
        pairs[start:end] if valid else None for (start, end), valid in zip(spans, column.is_valid().to_pylist(), strict=True)
    ]
    if None in keys and any(key is None for row in rows if row for key, _ in row):
        raise RefusedRecordError("A row has a header that is null or has no key. Kafka's headers need one: filter the array.")
    return rows
