"""Reads how far the job is from Spark's checkpoints (no word of the killed process is needed),
and reads the output topics.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceforall.errors import CheckpointMismatchError, MissingExtraError, SinkUnavailableError
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark.remote_path import AnyPath

_READ_DEADLINE_S = 60.0
_ENDS_DEADLINE_S = 10


@dataclass(frozen=True)
class Batch:
    """A batch that Spark has completed.

    Attributes:
        number: Spark's batch id.
        planned_at: when its offsets were recorded, in seconds since 1970; a replay keeps the time
            of its first attempt.
        committed_at: when Spark recorded its end, in seconds since 1970.
        events: how many input records it has.
    """

    number: int
    planned_at: float
    committed_at: float
    events: int


def position(checkpoint: AnyPath, topic: str, batch: int) -> list[int]:
    """Return the end offset of each partition of `topic` in a planned batch; empty for batch -1."""
    if batch < 0:
        return []
    try:
        (line,) = spark_checkpoint.offsets_of(checkpoint, batch)
        offsets = json.loads(line)[topic]
    except (CheckpointMismatchError, ValueError, KeyError):
        # It is being written.
        return []
    return [int(offsets[partition]) for partition in sorted(offsets, key=int)]


def committed_position(checkpoint: AnyPath, topic: str) -> list[int]:
    """Return the end offset of each partition in the last completed batch; empty before the
    first.
    """
    return position(checkpoint, topic, spark_checkpoint.last_committed(checkpoint))


def in_flight(checkpoint: AnyPath) -> int | None:
    """Return the batch that is planned and not completed, or None."""
    planned = spark_checkpoint.last_planned(checkpoint)
    return planned if planned > spark_checkpoint.last_committed(checkpoint) else None


def completed_batches(checkpoint: AnyPath, topic: str) -> list[Batch]:
    """Return every completed batch of a query whose checkpoint keeps them all."""
    batches = []
    before = 0
    for number in range(spark_checkpoint.last_committed(checkpoint) + 1):
        end = sum(position(checkpoint, topic, number))
        batches.append(Batch(number, *_moments(checkpoint, number), end - before))
        before = end
    return batches


def _moments(checkpoint: AnyPath, batch: int) -> tuple[float, float]:
    """Return when a batch was planned and when it was completed.

    On a store, whose clock is another one, the first is what the plan says, and the second that of
    the next plan, which follows at once while there is input.
    """
    if isinstance(checkpoint, Path):
        planned_at, committed_at = (
            (checkpoint / log / str(batch)).stat().st_mtime for log in ("offsets", "commits")
        )
        return planned_at, committed_at
    planned_at = _planned_at(checkpoint, batch)
    is_last = spark_checkpoint.last_planned(checkpoint) == batch
    return planned_at, planned_at if is_last else _planned_at(checkpoint, batch + 1)


def _planned_at(checkpoint: AnyPath, batch: int) -> float:
    metadata = json.loads(spark_checkpoint.header_of(checkpoint, batch)[-1])
    return float(metadata["batchTimestampMs"]) / 1000


def read_values(bootstrap_servers: str, topic: str, partitions: int) -> list[bytes]:
    """Return the values of all records that a reader at ``read_committed`` sees, in all partitions.

    Raises:
        SinkUnavailableError: the broker did not serve the topic to its end within 60 s.
        MissingExtraError: confluent-kafka is not installed.
    """
    try:
        from confluent_kafka import Consumer, KafkaError, TopicPartition
    except ImportError as error:
        raise MissingExtraError("confluent-kafka", "demo") from error
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "onceforall-demo",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    values: list[bytes] = []
    unfinished = set(range(partitions))
    deadline = time.monotonic() + _READ_DEADLINE_S
    try:
        # At read_committed the end of a partition is its last stable offset: what an open
        # transaction hides is not waited for.
        consumer.assign([TopicPartition(topic, partition, 0) for partition in sorted(unfinished)])
        while unfinished:
            if time.monotonic() > deadline:
                raise SinkUnavailableError(
                    f"Topic {topic} could not be read to its end in {_READ_DEADLINE_S:.0f} s. "
                    "Start the demo again."
                )
            for message in consumer.consume(10_000, timeout=0.5):
                problem = message.error()
                if problem is None:
                    values.append(message.value() or b"")
                elif problem.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  its public name
                    unfinished.discard(message.partition())
                elif problem.fatal():
                    raise SinkUnavailableError(
                        f"Topic {topic} can't be read: {problem}. Start the demo again."
                    )
    finally:
        consumer.close()
    return values


def hidden_partitions(bootstrap_servers: str, topic: str, partitions: int) -> list[int]:
    """Return the partitions in which an open transaction hides records from readers at
    ``read_committed``.

    Raises:
        MissingExtraError: confluent-kafka is not installed.
    """
    wanted = {topic: partitions}
    stable, written = (
        ends_of(bootstrap_servers, wanted, committed=committed) for committed in (True, False)
    )
    return [
        partition
        for partition in range(partitions)
        if stable[topic, partition] < written[topic, partition]
    ]


def ends_of(
    bootstrap_servers: str, topics: Mapping[str, int], *, committed: bool
) -> dict[tuple[str, int], int]:
    """Return how far a reader gets in each partition.

    Args:
        bootstrap_servers: the broker.
        topics: numbers of partitions by topic.
        committed: whether it reads at ``read_committed``.

    Raises:
        MissingExtraError: confluent-kafka is not installed.
    """
    try:
        from confluent_kafka import IsolationLevel, TopicPartition, admin
    except ImportError as error:
        raise MissingExtraError("confluent-kafka", "demo") from error
    api: Any = admin
    client = api.AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    wanted = {
        TopicPartition(topic, number): api.OffsetSpec.latest()
        for topic, count in topics.items()
        for number in range(count)
    }
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    answers = client.list_offsets(wanted, isolation_level=level, request_timeout=_ENDS_DEADLINE_S)
    return {
        (partition.topic, partition.partition): future.result().offset
        for partition, future in answers.items()
    }
