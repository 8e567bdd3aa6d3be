"""How far a job is, by Spark's checkpoint and the broker: no word of a job that may be killed is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceforall.errors import CheckpointMismatchError, MissingExtraError
from onceforall.spark import checkpoint as spark_checkpoint

Offsets = dict[tuple[str, int], int]
"""End offsets by topic and partition."""

_NO_OFFSET = "-"
"""What Spark writes for a source that has had nothing yet (``SERIALIZED_VOID_OFFSET`` of its ``OffsetSeqLog``)."""


def taken(checkpoint: Path) -> Offsets:
    """Return the end offsets of the last batch that Spark has completed, over all sources; empty before the first."""
    batch = spark_checkpoint.last_committed(checkpoint)
    if batch < 0:
        return {}
    try:
        lines = spark_checkpoint.offsets_of(checkpoint, batch)
        sources: list[dict[str, dict[str, int]]] = [json.loads(line) for line in lines if line != _NO_OFFSET]
    except (CheckpointMismatchError, ValueError):
        # It is being written, or cleaned away.
        return {}
    return {
        (topic, int(partition)): int(offset)
        for source in sources
        for topic, offsets in source.items()
        for partition, offset in offsets.items()
    }


def stable_ends(servers: str, topics: Mapping[str, int]) -> Offsets | None:
    """Return how far a reader at ``read_committed`` gets in each partition; None when the broker does not answer.

    Args:
        servers: the broker.
        topics: numbers of partitions by topic.

    Raises:
        MissingExtraError: confluent-kafka is not installed.
    """
    try:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition, admin
    except ImportError as error:
        raise MissingExtraError("confluent-kafka", "demo") from error
    api: Any = admin
    client = api.AdminClient({"bootstrap.servers": servers, "log_level": 2})
    wanted = {
        TopicPartition(topic, number): api.OffsetSpec.latest() for topic, count in topics.items() for number in range(count)
    }
    try:
        answers = client.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=10)
        return {(partition.topic, partition.partition): future.result().offset for partition, future in answers.items()}
    except KafkaException:
        return None


def has_taken_all(checkpoint: Path, servers: str, topics: Mapping[str, int]) -> bool:
    """Tell whether a job has completed everything that is in its topics now."""
    ends = stable_ends(servers, topics)
    if ends is None or spark_checkpoint.last_planned(checkpoint) > spark_checkpoint.last_committed(checkpoint):
        return False
    completed = taken(checkpoint)
    return all(completed.get(partition, 0) >= end for partition, end in ends.items())
