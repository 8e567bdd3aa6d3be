"""One task's transaction: rows from Arrow to librdkafka, and every reason to refuse exhausted
before the driver hears of it.

A whole slice of an Arrow batch goes to librdkafka in one call, without a Python object per row.
Only records with headers or a timestamp, for which librdkafka has no such call, take one call each.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onceforall.common.arguments import shown
from onceforall.common.column_texts import texts_of
from onceforall.errors import AttemptFailedError, RefusedRecordError
from onceforall.failpoints import points as failpoints
from onceforall.sinks.kafka.options import confluent_kafka
from onceforall.sinks.kafka.task.partitioning import UNASSIGNED, key_hashes, order_of
from onceforall.sinks.kafka.task.records import Bytes, Headers, arguments, messages, partitions_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from onceforall.sinks.kafka.task.live import DeliveryFailure, LiveProducer
    from onceforall.sinks.kafka.task.partitioning import PartitionRules, Partitions

_ROWS_PER_POLL = 10_000
_TOPIC_DEADLINE_S = 5.0
_METADATA_TIMEOUT_S = 15.0
_FLUSH_SLICE_S = 0.5
# As Kafka's ``Topic.validate`` has it.
_TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
# NOT_ENOUGH_REPLICAS, before and after the append.
_TOO_FEW_REPLICAS = {19, 20}
# INVALID_TIMESTAMP and INVALID_RECORD: no repetition helps, and the broker's words don't say why.
_REFUSED = {
    32: "Its timestamp is further from the broker's clock than the topic allows "
    "(message.timestamp.before.max.ms, message.timestamp.after.max.ms). Mend the column "
    "that the sink takes it from (timestamp_column=, or 'timestamp'), or the topic's settings.",
    87: "Brokers say so of a record without a key in a topic that is compacted (cleanup.policy). "
    "Give each row a key, or write to a topic that isn't compacted.",
}


class KafkaTransaction:
    """The open transaction of a task attempt (or, without transactions, the records that it has
    sent).
    """

    def __init__(
        self,
        producer: LiveProducer,
        batch: int,
        *,
        topic: str | None,
        message_max_bytes: int,
        topic_max_bytes: int | None,
        patience_s: float,
        partitions: PartitionRules,
    ) -> None:
        """Take over a producer whose transaction is begun.

        Args:
            producer: used by nobody else.
            batch: Spark's batch id.
            topic: the fixed topic; None when a column names it.
            message_max_bytes: librdkafka's limit for a record, to be named in messages.
            topic_max_bytes: the topic's, where it is known.
            patience_s: after how long without progress the attempt is given up.
            partitions: what of their choice is made here.
        """
        self.producer = producer
        self.batch = batch
        self.records = 0
        self.topics: set[str] = set()
        """Those that it has written to."""
        self.is_over = False
        self._topic = topic
        self._message_max_bytes = message_max_bytes
        self._topic_max_bytes = topic_max_bytes
        self._patience_s = patience_s
        self._rules = partitions
        # Where the tasks of a batch, and its batches, begin is left to chance: small ones must not
        # all go to one partition.
        self._turn = random.randrange(1 << 16)  # noqa: S311  not for secrets

    def write(self, rows: pa.RecordBatch) -> None:
        """Send rows that have the columns of ``kafka_columns``.

        Raises:
            RefusedRecordError: a record can't be written at all: no or an unknown topic or
                partition, or too large.
            AttemptFailedError: the brokers did not take an earlier record, or nothing for too long.
        """
        if not rows.num_rows:
            return
        for start in range(0, rows.num_rows, _ROWS_PER_POLL):
            failpoints.hit("kafka.produce.before")
            self._write(rows.slice(start, _ROWS_PER_POLL))
            self.producer.poll(0)
            self._raise_failures()
            failpoints.hit("kafka.produce.after")
        self.records += rows.num_rows

    def _write(self, rows: pa.RecordBatch) -> None:
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        topics = self._topics(columns)
        self._check_partitions(columns)
        value = Bytes.of(columns["value"])
        key = Bytes.of(columns["key"]) if "key" in columns else None
        partitions = partitions_of(columns["partition"]) if "partition" in columns else None
        if "timestamp" in columns or "headers" in columns:
            self._send_each(columns, topics, value, key, partitions)
            return
        made = messages(value, key)
        hashes = self._hashes(columns)
        for topic, chosen in topics:
            # Records of one partition keep their order; between topics there is none.
            records = made if chosen is None else made[chosen]
            placed = self._placed(topic, chosen, partitions, hashes, value.sizes)
            if placed is not None:
                records["partition"] = placed
                order = order_of(placed)
                records = records if order is None else records[order]
            self._send(
                topic, records, with_partition=placed is not None, is_given=partitions is not None
            )

    def _hashes(self, columns: dict[str, Any]) -> npt.NDArray[np.int64] | None:
        return key_hashes(columns["key"]) if self._rules.keyed and "key" in columns else None

    def _placed(
        self,
        topic: str,
        chosen: npt.NDArray[np.int64] | None,
        given: npt.NDArray[np.int32] | None,
        hashes: npt.NDArray[np.int64] | None,
        sizes: npt.NDArray[np.uint64],
    ) -> npt.NDArray[np.int32] | None:
        """Return the partitions of those rows of a slice that go to a topic; None: librdkafka
        chooses.
        """
        self._turn += 1
        if chosen is not None:
            sizes = sizes[chosen]
            given = None if given is None else given[chosen]
            hashes = None if hashes is None else hashes[chosen]
        return self._rules.place(given, hashes, sizes, self._partitions(topic), self._turn)

    def _send(
        self, topic: str, records: npt.NDArray[np.void], *, with_partition: bool, is_given: bool
    ) -> None:
        ck = confluent_kafka()
        queue_full = ck.KafkaError._QUEUE_FULL  # noqa: SLF001
        progress_s = time.monotonic()
        while len(records):
            if self.producer.client.produce(topic, records, with_partition=with_partition) == len(
                records
            ):
                return
            errors = records["err"]
            refused = ((errors != 0) & (errors != queue_full)).nonzero()[0]
            if len(refused):
                row = records[refused[0]]
                code = int(row["err"])
                partition = int(row["partition"]) if is_given else None
                raise self._refusal(
                    ck.KafkaError(code), topic, int(row["len"] + row["key_len"]), partition
                )
            position = int((errors != 0).argmax())
            progress_s = self._wait_for_room(position, progress_s)
            records = records[position:]

    def _send_each(
        self,
        columns: dict[str, Any],
        topics: list[tuple[str, npt.NDArray[np.int64] | None]],
        value: Bytes,
        key: Bytes | None,
        partitions: npt.NDArray[np.int32] | None,
    ) -> None:
        import numpy as np

        count = len(value.sizes)
        handles, names, placed = (
            np.zeros(count, np.uint64),
            np.zeros(count, np.int64),
            np.full(count, UNASSIGNED, np.int32),
        )
        hashes = self._hashes(columns)
        for number, (topic, chosen) in enumerate(topics):
            some = np.arange(count) if chosen is None else chosen
            handles[some], names[some] = self.producer.client.topic(topic), number
            found = self._placed(topic, chosen, partitions, hashes, value.sizes)
            placed[some] = UNASSIGNED if found is None else found
        timestamps = _timestamps(columns["timestamp"]) if "timestamp" in columns else None
        headers = Headers(columns["headers"]) if "headers" in columns else None
        order = order_of(placed) if len(topics) == 1 else None
        if order is not None:
            placed, value, key = (
                placed[order],
                value.take(order),
                None if key is None else key.take(order),
            )
            timestamps = None if timestamps is None else timestamps[order]
            if headers is not None:
                headers.reorder(order)
        left = arguments(
            {
                "topic": handles,
                "value": value,
                "key": key,
                "partition": placed,
                "timestamp": timestamps,
                "headers": headers,
            }
        )
        ck = confluent_kafka()
        done, progress_s = 0, time.monotonic()
        while True:
            position, error = self.producer.client.produce_each(left.addresses, left.counts)
            if error is None:
                return
            done += position
            if error.code() != ck.KafkaError._QUEUE_FULL:  # noqa: SLF001
                size = int(value.sizes[done] + (key.sizes[done] if key is not None else 0))
                partition = int(placed[done]) if partitions is not None else None
                raise self._refusal(error, topics[int(names[done])][0], size, partition)
            progress_s = self._wait_for_room(position, progress_s)
            left = left.behind(position)

    def _wait_for_room(self, taken: int, progress_s: float) -> float:
        """Let librdkafka send some of what its queue is full of; return when it last took a
        record.
        """
        if taken:
            progress_s = time.monotonic()
        elif time.monotonic() - progress_s > self._patience_s:
            raise AttemptFailedError(
                f"Kafka took no record for {self._patience_s:.0f} s while the producer's queue "
                "was full. Check the brokers; the limits "
                "are queue.buffering.max.messages and queue.buffering.max.kbytes."
            )
        self.producer.poll(0.02)
        self._raise_failures()
        return progress_s

    def _refusal(
        self, error: Any, topic: str, size_bytes: int, partition: int | None
    ) -> AttemptFailedError:
        ck = confluent_kafka()
        code = error.code()
        if code == ck.KafkaError.MSG_SIZE_TOO_LARGE:
            return self._too_large(topic, size_bytes)
        if code == ck.KafkaError._UNKNOWN_PARTITION:  # noqa: SLF001
            if partition is None:
                return AttemptFailedError(
                    f"Topic {topic!r} has fewer partitions than a moment ago. Was it made anew? "
                    "The attempt is repeated with those of now."
                )
            return RefusedRecordError(
                f"Topic {topic!r} has no partition {partition}. Correct the column 'partition'."
            )
        if code in {ck.KafkaError._UNKNOWN_TOPIC, ck.KafkaError.UNKNOWN_TOPIC_OR_PART}:  # noqa: SLF001
            return _unknown_topic(topic)
        return AttemptFailedError(f"A record to topic {topic!r} could not be sent: {error.str()}")

    def _too_large(self, topic: str, size_bytes: int) -> RefusedRecordError:
        limits = f"message.max.bytes of the sink is {self._message_max_bytes}"
        if self._topic_max_bytes is not None:
            limits += f", max.message.bytes of the topic is {self._topic_max_bytes}"
        return RefusedRecordError(
            f"A record of {size_bytes} bytes to topic {topic!r} is too large: {limits}. Raise the "
            "smaller one, or make the record smaller."
        )

    def _too_large_for_broker(self, topic: str, size_bytes: int) -> RefusedRecordError:
        """Say what a broker has refused, which judges the batch that a record is sent in."""
        limit = self._topic_max_bytes
        if limit is not None and size_bytes > limit:
            return self._too_large(topic, size_bytes)
        known = "" if limit is None else f", which was {limit} when the query started"
        return RefusedRecordError(
            f"A broker refuses records to topic {topic!r} as too large, the largest of which has "
            f"{size_bytes} bytes. It measures a whole batch of records, and librdkafka doesn't "
            "split one. Give the sink a batch.size that is not above max.message.bytes of the "
            f"topic{known}; raise that for a record that is larger by itself, or make the record "
            "smaller."
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
            refused = code in {ck.KafkaError.MSG_SIZE_TOO_LARGE, *_REFUSED}
            return refused, not purged, failure.size_bytes

        worst = max(failures, key=rank)
        if worst.error.code() == ck.KafkaError.MSG_SIZE_TOO_LARGE:
            raise self._too_large_for_broker(worst.topic, worst.size_bytes)
        if worst.error.code() in _REFUSED:
            raise RefusedRecordError(
                f"A broker refuses a record to topic {worst.topic!r} partition {worst.partition}: "
                f"{worst.error.str()} ({worst.error.name()}). {_REFUSED[worst.error.code()]}"
            )
        if worst.error.code() in {ck.KafkaError._UNKNOWN_PARTITION, ck.KafkaError._UNKNOWN_TOPIC}:  # noqa: SLF001
            raise AttemptFailedError(
                f"Topic {worst.topic!r} has no partition {worst.partition} any more: it was "
                "deleted, or made again, while a batch was written to it. Nothing is decided; "
                "where it is missing, make it again; then restart."
            )
        # Where a partition could not be added to the transaction, the records are only purged, and
        # the log has the reason.
        reason = self.producer.watch.transaction_error
        remedy = f". {reason}" if reason is not None else ""
        if (
            worst.error.code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
            or "TOPIC_AUTHORIZATION_FAILED" in remedy
        ):
            remedy += f". {self.producer.rights.topic(worst.topic)}"
        if worst.error.code() in {
            ck.KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
            ck.KafkaError._TIMED_OUT,  # noqa: SLF001
            *_TOO_FEW_REPLICAS,
        }:
            remedy = (
                ". Check that the partition has a leader and as many replicas in sync as its "
                "min.insync.replicas asks for; brokers "
                "are waited for as long as message.timeout.ms"
            )
            if self.producer.watch.doubt is not None:
                # It may be another broker: the transaction's coordinator.
                remedy += f". First of all it was heard: {self.producer.watch.doubt}"
        raise AttemptFailedError(
            f"{len(failures)} record(s) were not delivered; the first reason: topic "
            f"{worst.topic!r} partition {worst.partition}: "
            f"{worst.error.str()} ({worst.error.name()}){remedy}"
        )

    def _topics(self, columns: dict[str, Any]) -> list[tuple[str, npt.NDArray[np.int64] | None]]:
        """Return the topics, each with the numbers of its rows (None: all)."""
        if self._topic is not None:
            self._partitions(self._topic)
            self.topics.add(self._topic)
            return [(self._topic, None)]
        column = columns["topic"]
        if column.null_count:
            raise RefusedRecordError(
                "A row has no topic (the column 'topic' is null). Give each row one, or give the "
                "sink topic=."
            )
        encoded = column.dictionary_encode()
        names = [name or "" for name in texts_of("topic", encoded.dictionary)]
        for name in names:
            self._partitions(name)
        self.topics.update(names)
        if len(names) == 1:
            return [(names[0], None)]
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        return [(name, (codes == code).nonzero()[0]) for code, name in enumerate(names)]

    def _check_partitions(self, columns: dict[str, Any]) -> None:
        """Refuse a partition that its topic doesn't have: librdkafka would wait for it."""
        if "partition" not in columns:
            return
        partitions = (
            columns["partition"].to_pylist()
            if self._topic is None
            else columns["partition"].unique().to_pylist()
        )
        topics = (
            columns["topic"].to_pylist() if self._topic is None else [self._topic] * len(partitions)
        )
        for topic, partition in {*zip(topics, partitions, strict=True)}:
            if partition is None or 0 <= partition < self._partitions(topic).count:
                continue
            # Partitions may have been added since they were counted.
            found = self._ask_partitions(topic).count
            if not 0 <= partition < found:
                raise RefusedRecordError(
                    f"A row names partition {partition} of topic {topic!r}, which has the "
                    f"partitions 0 to {found - 1}. Correct the column "
                    "'partition', or add partitions to the topic."
                )

    def _partitions(self, topic: str) -> Partitions:
        """Return a topic's partitions; asked before its first record, so that an unknown topic
        is named, and anew now and then.
        """
        known = self.producer.topics.get(topic)
        if known is None:
            return self._ask_partitions(topic)
        if time.monotonic() - known.asked_s <= self._rules.refresh_s:
            return known
        try:
            return self._ask_partitions(topic)
        except RefusedRecordError:
            raise
        except AttemptFailedError:
            # librdkafka, too, goes on with what it knows when nobody tells it anything newer.
            kept = self.producer.topics[topic] = replace(known, asked_s=time.monotonic())
            return kept

    def _ask_partitions(self, topic: str) -> Partitions:
        ck = confluent_kafka()
        # Brokers would refuse the name, too, but not each gets there whole: librdkafka has no
        # handle for one of more than 512 bytes, and cuts one at a zero character.
        if _TOPIC_NAME.fullmatch(topic) is None:
            raise RefusedRecordError(
                f"Topic {shown(topic)} can't be written: Kafka's names have 1 to 249 of the "
                "characters a-z, A-Z, 0-9, '.', '_' and '-', and none is '.' or '..'. Correct its "
                "name."
            )
        deadline_s = time.monotonic() + _TOPIC_DEADLINE_S
        while True:
            try:
                found, error = self.producer.client.partitions(topic, _METADATA_TIMEOUT_S)
            except ck.KafkaException as failure:
                # It may say why: wrong credentials, for example.
                self.producer.poll(0)
                raise AttemptFailedError(
                    f"The brokers gave no metadata of topic {topic!r}: {failure.args[0].str()}"
                ) from failure
            if error is None and found.count:
                self.producer.topics[topic] = found
                return found
            code = error.code() if error is not None else None
            if code in {ck.KafkaError.TOPIC_AUTHORIZATION_FAILED, ck.KafkaError.TOPIC_EXCEPTION}:
                missing = code == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
                remedy = self.producer.rights.topic(topic) if missing else "Correct its name."
                raise RefusedRecordError(
                    f"Topic {topic!r} can't be written: {error.str()}. {remedy}"
                )
            # A topic that was made a moment ago is not known to every broker yet.
            if time.monotonic() > deadline_s:
                if code not in {None, ck.KafkaError.UNKNOWN_TOPIC_OR_PART}:
                    raise AttemptFailedError(
                        f"The brokers told no partitions of topic {topic!r}: {error.name()}. Check "
                        "them; the attempt is repeated."
                    )
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
                    f"{remaining} record(s) were not acknowledged in {self._patience_s:.0f} s. "
                    "Check the brokers."
                )
        failpoints.hit("kafka.flush.after")
        self.producer.poll(0)
        self._raise_failures()
        failpoints.hit("kafka.reports.checked")


def _unknown_topic(topic: str) -> RefusedRecordError:
    return RefusedRecordError(
        f"Topic {topic!r} does not exist. Create it first: the sink never does, so that no "
        "misspelt name becomes a topic."
    )


def _timestamps(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return milliseconds, 0 where a row has none, which librdkafka takes as "now"."""
    import numpy as np

    filled = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    refused = filled[(filled <= 0) & column.is_valid().to_numpy(zero_copy_only=False)]
    if len(refused):
        raise RefusedRecordError(
            f"A row's timestamp is {refused[0]} ms after 1970-01-01; Kafka has none before, and "
            "librdkafka takes 0 as 'now'. Correct it, or make it "
            "null for the time of sending."
        )
    found: npt.NDArray[np.int64] = filled
    return found
