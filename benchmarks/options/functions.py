"""What it costs that a function for ``foreachBatch`` persists what it derives from the batch and
writes twice, beside one that doesn't, batch by batch in one and the same query.

``python -m benchmarks.options.functions``. The function writes rows with even ids to Kafka and the
others to files, both of one frame that it has derived; every second batch it persists that frame,
and unpersists it when it has written. What else goes on on the machine meets both. The contenders:

- ``ours-same``: the frame is the same whenever it is computed, so that nothing but the persisted
  frame is kept;
- ``ours-uuid``: it has a ``uuid()``, so that each of the two is computed when it is written;
- ``spark-same``, ``spark-uuid``: the same functions without us, with Spark's own sinks, which are
  at-least-once.

A sample: ``alone_ms`` and ``persists_ms``, medians of whole batches by Spark's own report;
``ratio``, the median of the ratios of neighbours; ``batches``, how many of each. Everything goes to
``build/bench``, and to the terminal; nothing of it is part of the published page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onceforall as ofa
from benchmarks import rounds
from benchmarks.contenders import spark_job, spark_writers
from benchmarks.options import kept_rows
from benchmarks.report.results import Sample
from benchmarks.settings import Load
from benchmarks.stands.children import Child
from benchmarks.stands.kafka import standing_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_DEADLINE_S = 900.0
CONTENDERS = ("ours-same", "ours-uuid", "spark-same", "spark-uuid")


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return the plans: short batches, in which jobs are most of the time, and long ones, in which
    rows are.
    """
    load = Load(records=0, payload=100, partitions=2, batch=0)
    sizes = ((2000, 12, 4),) if quick else ((2000, 60, 20), (200_000, 40, 10))
    return [
        rounds.Plan(
            CONTENDERS,
            load,
            {"rows": rows, "batches": batches, "skip": skip},
            repeats=1 if quick else 3,
            minutes=4,
        )
        for rows, batches, skip in sizes
    ]


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run one round."""
    with standing_broker() as broker:

        def measure(contender: str, work: Path) -> Sample:
            target = broker.make_topic(turn.load.partitions)
            kafka = {"kind": "kafka", "topic": target, "options": turn.load.producer()}
            config = {
                "bootstrap": broker.servers,
                "source": {
                    "kind": "rate",
                    "rows": turn["rows"],
                    "partitions": turn.load.partitions,
                },
                "rows": "wide-value",
                "contender": contender,
                "sinks": [{"kind": "file", "path": str(work / "files")}, kafka],
                "cores": turn.load.cores,
                "batches": turn["batches"],
                "checkpoint": str(work / "checkpoint"),
            }
            try:
                with Child("benchmarks.options.functions", work, config) as job:
                    job.wait(_DEADLINE_S)
                    return sample_of(job.lines("progress.jsonl"), turn["skip"])
            finally:
                broker.delete(target)

        return turn.each(measure)


def sample_of(progress: list[dict[str, Any]], skip: int) -> Sample:
    """Return the sample of a job's progress reports: in odd batches the function has persisted.

    Raises:
        MeasurementError: no pair of batches is left.
    """
    found = kept_rows.sample_of(progress, skip)
    return {
        "alone_ms": found["replay_ms"],
        "persists_ms": found["auto_ms"],
        "ratio": found["ratio"],
        "batches": found["batches"],
    }


Write = Callable[[str, "DataFrame"], object]
"""Writes a frame to a kind of sink."""


def function(batch: DataFrame, batch_id: int, write: Write, *, is_drawn: bool) -> None:
    """Write a batch as users do.

    Args:
        batch: its rows.
        batch_id: odd ones persist what they derive.
        write: writes.
        is_drawn: what it derives is another in each computation.
    """
    derived = batch.selectExpr("*", "uuid() AS unique" if is_drawn else "id + 1 AS next")
    if batch_id % 2:
        derived.persist()
    write("kafka", derived.where("id % 2 = 0"))
    write("file", derived.where("id % 2 = 1"))
    if batch_id % 2:
        derived.unpersist()


def start(rows: DataFrame, config: Mapping[str, Any]) -> StreamingQuery:
    """Start the contender's query."""
    whose, _, kind = config["contender"].partition("-")
    is_drawn = kind == "uuid"
    process = (
        _ours(config, is_drawn=is_drawn) if whose == "ours" else _sparks(config, is_drawn=is_drawn)
    )
    writer = rows.writeStream.option("checkpointLocation", config["checkpoint"])
    return writer.foreachBatch(process).start()


def _ours(config: Mapping[str, Any], *, is_drawn: bool) -> Any:
    sinks = {sink["kind"]: spark_writers.our_sink(sink, config) for sink in config["sinks"]}

    @ofa.exactly_once(checkpoint=config["checkpoint"], sinks=sinks)
    def process(batch: DataFrame, batch_id: int, transaction: Any) -> None:
        function(batch, batch_id, transaction.write, is_drawn=is_drawn)

    return process


def _sparks(config: Mapping[str, Any], *, is_drawn: bool) -> Any:
    def write(kind: str, frame: DataFrame) -> None:
        if kind == "kafka":
            spark_writers.spark_kafka(frame.select("value").write, config).save()
        else:
            path = spark_writers.sink_of(config, "file")["path"]
            frame.write.mode("append").parquet(path)

    def process(batch: DataFrame, batch_id: int) -> None:
        function(batch, batch_id, write, is_drawn=is_drawn)

    return process


def _run_query() -> None:
    """Run the query, in a process of its own."""
    spark_job.main(start)


MEASUREMENT = rounds.Measurement("functions", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT, _run_query)
