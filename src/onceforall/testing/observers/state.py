"""Reads a stateful query's state store when no run writes to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from onceforall.spark import checkpoint as spark_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_state(
    spark: SparkSession,
    checkpoint: str | os.PathLike[str],
    *,
    operator: int = 0,
    batch: int | None = None,
) -> dict[str, tuple[Any, ...]]:
    """Return the state behind a batch, by Spark's own reader of state stores (the data source
    ``statestore``).

    Args:
        spark: a session.
        checkpoint: the checkpoint's folder.
        operator: which stateful operator of the query, in the order of its plan.
        batch: behind which batch; None: the last that Spark has finished. A decided batch that
            Spark has not finished isn't in there.

    Returns:
        By the key's columns, as texts joined by commas: the value's columns.
    """
    folder = spark_checkpoint.local_path(os.fspath(checkpoint))
    at = spark_checkpoint.last_committed(folder) if batch is None else batch
    found = (
        spark.read.format("statestore")
        .option("operatorId", operator)
        .option("batchId", at)
        .load(f"file://{folder}")
        .collect()
    )
    return {",".join(map(str, row["key"])): tuple(row["value"]) for row in found}
