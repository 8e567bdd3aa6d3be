"""How far a job is, by Spark's checkpoint and the broker: no word of a job that may be killed is
needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from onceforall.demo import observe
from onceforall.errors import CheckpointMismatchError, MissingExtraError
from onceforall.spark import checkpoint as spark_checkpoint

Offsets = dict[tuple[str, int], int]
"""End offsets by topic and partition."""

_NO_OFFSET = "-"
"""What Spark writes for a source that has had nothing yet (``SERIALIZED_VOID_OFFSET`` of its
``OffsetSeqLog``)."""


def taken(checkpoint: Path) -> Offsets:
    """Return the end offsets of the last batch that Spark has completed, over all sources; empty
    before the first.
    """
    batch = spark_checkpoint.last_committed(checkpoint)
    if batch < 0:
        return {}
    try:
        return ends_of(spark_checkpoint.offsets_of(checkpoint, batch))
    except (CheckpointMismatchError, ValueError):
        # It is being written, or cleaned away.
        return {}


def ends_of(lines: Iterable[str]) -> Offsets:
    """Return the end offsets of all sources, given Spark's line for each."""
    sources: list[dict[str, dict[str, int]]] = [
        json.loads(line) for line in lines if line != _NO_OFFSET
    ]
    return {
        (topic, int(partition)): int(offset)
        for source in sources
        for topic, offsets in source.items()
        for partition, offset in offsets.items()
    }


def stable_ends(servers: str, topics: Mapping[str, int]) -> Offsets | None:
    """Return how far a reader at ``read_committed`` gets in each partition; None when the broker
    does not answer.

    Args:
        servers: the broker.
        topics: numbers of partitions by topic.

    Raises:
        MissingExtraError: confluent-kafka is not installed.
    """
    try:
        from confluent_kafka import KafkaException
    except ImportError as error:
        raise MissingExtraError("confluent-kafka", "demo") from error
    try:
        return observe.ends_of(servers, topics, committed=True)
    except KafkaException:
        return None


def has_taken_all(checkpoint: Path, servers: str, topics: Mapping[str, int]) -> bool:
    """Tell whether a job has completed everything that is in its topics now."""
    ends = stable_ends(servers, topics)
    if ends is None or observe.in_flight(checkpoint) is not None:
        return False
    completed = taken(checkpoint)
    return all(completed.get(partition, 0) >= end for partition, end in ends.items())
