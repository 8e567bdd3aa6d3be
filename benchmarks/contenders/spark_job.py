"""The Spark job of a measurement, in a process of its own: one source, one query, one contender.

``python -m benchmarks.contenders.spark_job config.json``, with these keys:

- ``source``: ``{"kind": "kafka", "topic", "starting", "batch", "options"}`` (``batch``: records per
  batch or 0) or ``{"kind": "rate", "rows", "partitions"}`` (rows per batch, from a source that
  costs next to nothing);
- ``rows``: what is written, see `shaped`: ``value``, ``wide``, ``wide-value``, ``wide-value-uuid``
  or ``counts``;
- ``tasks``: how many tasks write a batch; without it as many as the source has partitions;
- ``contender`` and ``sinks``: see ``spark_writers``;
- ``trigger``: seconds between batches; 0 for one batch after the other;
- ``cores``, ``spark`` (more settings), ``checkpoint``, ``bootstrap``.

It goes on until a file ``stop`` appears, or for ``batches`` batches. It leaves ``ready.json`` when
the query has started, ``progress.jsonl`` (Spark's own reports) and ``steps.jsonl`` (the times of
the coordinator's steps, see ``step_times``), and ends with 1 when the query failed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import spark_writers
from benchmarks.settings import SPARK
from benchmarks.stands.children import configuration, say
from benchmarks.stands.kafka import TIME_DIGITS
from benchmarks.steps import step_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_EVERY_S = 0.25
_REPORTS_EVERY_S = 1.0
KEYS = 10_000
"""How many groups the stateful query keeps."""


def main(
    start: Callable[[DataFrame, Mapping[str, Any]], StreamingQuery] = spark_writers.start,
) -> None:
    """Run the query.

    Args:
        start: starts it, of the shaped rows and the configuration.
    """
    config = configuration()
    work = Path(config["work"])
    step_times.record_into(work / "steps.jsonl")
    spark = _session(config)
    say(
        work,
        "pids.json",
        {"python": os.getpid(), "jvm": _jvm(spark).java.lang.ProcessHandle.current().pid()},
    )
    rows = shaped(_source(spark, config), config["rows"])
    tasks = config.get("tasks", 0)
    query = start(rows.coalesce(tasks) if tasks else rows, config)
    say(work, "ready.json", {"at_s": time.time()})
    reports = _Reports(work / "progress.jsonl")
    batches = int(config.get("batches", 0))
    while query.isActive and not (work / "stop").exists():
        time.sleep(_LOOK_EVERY_S)
        reports.take(query)
        if batches and reports.last_batch + 1 >= batches:
            break
    reports.take(query, at_once=True)
    query.stop()
    failed = query.exception()
    if failed is not None:
        print(failed, file=sys.stderr)
    # The JVM's orderly end takes seconds that nobody measures.
    spark.stop()
    sys.exit(1 if failed is not None else 0)


def _session(config: Mapping[str, Any]) -> SparkSession:
    from pyspark.sql import SparkSession

    from onceforall.embedded.jars import jar_set, spark_kafka_jars

    jars = [*spark_kafka_jars(), *jar_set("postgres-jdbc")]
    builder = SparkSession.builder.master(f"local[{config['cores']}]").config(
        "spark.jars", ",".join(map(str, jars))
    )
    for name, value in {**SPARK, **config.get("spark", {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm  # noqa: SLF001  pyspark offers it in no other way


def _source(spark: SparkSession, config: Mapping[str, Any]) -> DataFrame:
    source = config["source"]
    if source["kind"] == "rate":
        reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", source["rows"])
        reader = reader.option("numPartitions", source["partitions"]).option(
            "startTimestamp", 1_700_000_000_000
        )
        return reader.option("advanceMillisPerBatch", 1000).load()
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", config["bootstrap"])
    reader = reader.option("subscribe", source["topic"]).option(
        "startingOffsets", source["starting"]
    )
    if source.get("batch"):
        reader = reader.option("maxOffsetsPerTrigger", source["batch"])
    for name, value in source.get("options", {}).items():
        reader = reader.option(f"kafka.{name}", value)
    return reader.load()


def shaped(rows: DataFrame, shape: str) -> DataFrame:
    """Return what is written.

    - ``value``: the Kafka value as it came;
    - ``wide``: from a number (the value, or that with which a Kafka value begins), the columns of a
      table of events: ``id``, ``campaign_id``, ``user_id``, ``amount``, ``at``, ``note``;
    - ``wide-value``: the same, and a ``value`` for Kafka; all sinks write all of it, so that one
      job can write to each of them;
    - ``wide-value-uuid``: the same, and a ``uuid()``, which is another one in a replay;
    - ``counts``: a stateful query: for each of `KEYS` groups how many records there were and the
      newest time that a value began with, as a value that begins with that time.
    """
    from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by

    if shape == "value":
        return rows.select("value")
    if shape == "counts":
        text = F.col("value").cast("string")
        grouped = rows.select(
            (F.crc32("value") % KEYS).alias("key"), F.substring(text, 1, TIME_DIGITS).alias("at")
        )
        counted = grouped.groupBy("key").agg(F.count("*").alias("n"), F.max("at").alias("at"))
        return counted.select(F.concat_ws(":", "at", "key", "n").cast("binary").alias("value"))
    is_number = rows.schema["value"].dataType.typeName() == "long"
    number = (
        F.col("value")
        if is_number
        else F.substring(F.col("value").cast("string"), 1, TIME_DIGITS).cast("bigint")
    )
    value = F.rpad(number.cast("string"), 100, "x").cast("binary") if is_number else F.col("value")
    columns = [
        number.alias("id"),
        (number % 1000).cast("int").alias("campaign_id"),
        F.concat(F.lit("user-"), (number % 100_003).cast("string")).alias("user_id"),
        (number % 10_000 / 100).cast("double").alias("amount"),
        F.timestamp_micros(number * 1000 + F.lit(1_700_000_000_000_000)).alias("at"),
        F.concat(F.lit("note of event "), number.cast("string")).alias("note"),
    ]
    columns += [value.alias("value")] if shape.startswith("wide-value") else []
    return rows.select(
        *columns, *([F.expr("uuid()").alias("unique")] if shape == "wide-value-uuid" else [])
    )


class _Reports:
    """Spark's progress reports, each written once."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", encoding="utf-8")
        self._due_s = 0.0
        self.last_batch = -1

    def take(self, query: Any, *, at_once: bool = False) -> None:
        if not at_once and time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + _REPORTS_EVERY_S
        # From the newest backwards: query.recentProgress turns a hundred reports into JSON each
        # time, a fifth of a core in the job that is measured.
        reports = query._jsq.recentProgress()  # noqa: SLF001
        newer: list[dict[str, Any]] = []
        for position in range(len(reports) - 1, -1, -1):
            progress = reports[position]
            if progress.batchId() <= self.last_batch:
                break
            newer.append(json.loads(progress.json()))
        for report in reversed(newer):
            # A trigger without new rows reports under the id of the batch to come.
            if report["batchId"] > self.last_batch and "addBatch" in report["durationMs"]:
                self.last_batch = report["batchId"]
                self._file.write(json.dumps(report) + "\n")
        self._file.flush()


if __name__ == "__main__":
    main()
