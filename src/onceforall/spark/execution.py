"""Spark's own object of a running query, which ``foreachBatch`` isn't given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceforall.errors import UnsupportedQueryError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def execution_of(spark: SparkSession, query_id: str) -> Any:
    """Return Spark's own object of a running query.

    The session that ``foreachBatch`` sees is a clone and knows no queries; what all clones share
    does.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
    running = spark._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
    execution = running.get(jvm.java.util.UUID.fromString(query_id))
    if execution is None:
        raise UnsupportedQueryError(
            f"Spark does not list the running query {query_id}; is this pyspark between 4.0 and "
            "4.3?"
        )
    return execution


def name_of(spark: SparkSession, query_id: str) -> str | None:
    """Return the name that a running query was given, if one was."""
    try:
        name = execution_of(spark, query_id).name()
    except Exception:  # noqa: BLE001  the JVM is gone, or the query no longer listed: its id will do
        return None
    return None if name is None else str(name)


def check_execution(execution: Any) -> None:
    """Refuse kinds of execution in which Spark does not replay a batch with the same offsets."""
    kind = str(execution.getClass().getSimpleName())
    trigger = str(execution.trigger().getClass().getSimpleName())
    if kind != "MicroBatchExecution" or "Continuous" in trigger or "RealTime" in trigger:
        raise UnsupportedQueryError(
            f"This query runs as {kind} with {trigger}. Exactly-once needs plain micro-batches: "
            "in async progress tracking, continuous "
            "and real-time mode Spark does not record a batch's offsets before it runs, so it "
            "can't be replayed as it was. Remove "
            "asyncProgressTrackingEnabled, or use processingTime, availableNow or once."
        )
