"""Recognises batches that Spark's offline repartitioning of state put into a checkpoint.

``StreamingCheckpointManager.repartition`` (Spark 4.2, SPARK-55146) adds a batch to Spark's offset
and commit logs that reads no input and is never given to a sink: a copy of the plan of the last
committed batch, with another ``spark.sql.shuffle.partitions``. With
``enforce_exactly_once_sink=False`` it first writes down a batch that isn't complete as if it were,
and its input is read again.

Pure.
"""

from __future__ import annotations

import json
from typing import Any

from onceforall.protocol.entries import Commit

_PARTITIONS = "spark.sql.shuffle.partitions"


def is_repartitioned(header: tuple[str, ...], end: tuple[str, ...], decided: Commit) -> bool:
    """Tell whether a planned batch only repartitions the state that a decided one left.

    Its time is the decided one's, to the millisecond, which no batch that ran has; so one that a
    plain query ran, without input and for its timers alone, isn't taken for it.

    Args:
        header: version and metadata of the planned batch in Spark's offset log.
        end: its offsets.
        decided: what it is compared with. Where an earlier release decided it, nothing is known.
    """
    planned, before = _metadata(header), _metadata(decided.header)
    if planned is None or before is None or end != decided.offsets:
        return False
    return header[0] == decided.header[0] and _without_partitions(planned) == _without_partitions(
        before
    )


def passes_over(header: tuple[str, ...], decided: Commit) -> bool:
    """Tell whether a planned batch is a copy of one before the decided one, so that the decided
    batch's input, if it had any, is read again behind it.

    Args:
        header: version and metadata of a batch that Spark's offset log has behind the decided one.
        decided: the last decision.
    """
    planned, before = _time(header), _time(decided.header)
    return planned is not None and before is not None and planned < before


def _metadata(header: tuple[str, ...]) -> dict[str, Any] | None:
    if len(header) < 2:
        return None
    try:
        found = json.loads(header[1])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _without_partitions(metadata: dict[str, Any]) -> dict[str, Any]:
    settings = metadata.get("conf")
    if not isinstance(settings, dict):
        return metadata
    return {**metadata, "conf": {key: settings[key] for key in settings if key != _PARTITIONS}}


def _time(header: tuple[str, ...]) -> int | None:
    metadata = _metadata(header)
    time = None if metadata is None else metadata.get("batchTimestampMs")
    return time if isinstance(time, int) else None
