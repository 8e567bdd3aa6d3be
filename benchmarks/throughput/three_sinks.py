"""One pass to three sinks (Kafka, Parquet, PostgreSQL) against three separate Spark writes of the
same batch, in wall time.

From a full Kafka topic. ``ours`` writes all three in one job with one decision; ``spark-three`` is
a ``foreachBatch`` with three writes, each of which reads the source again; ``spark-cached``
persists the batch meanwhile, as careful users do.

A sample: as in ``throughput.postgres``.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import rounds
from benchmarks.contenders.spark_writers import DATABASE_VARIABLE
from benchmarks.report.results import Sample
from benchmarks.settings import Load
from benchmarks.stands.children import Child
from benchmarks.stands.database import Database
from benchmarks.stands.kafka import standing_broker
from benchmarks.stands.processes import Meter
from benchmarks.throughput.postgres import sample_of

_DEADLINE_S = 900.0


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return the plan."""
    contenders = ("ours", "spark-three", "spark-cached")
    if quick:
        load = Load(records=100_000, batch=5_000)
        return [rounds.Plan(contenders, load, {"batches": 6, "skip": 2}, repeats=1)]
    return [
        rounds.Plan(
            contenders,
            Load(records=4_000_000, batch=200_000),
            {"batches": 20, "skip": 10},
            minutes=5,
        )
    ]


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run one round."""
    with standing_broker() as broker, Database() as database:
        source = broker.filled_topic(turn.load)

        def measure(contender: str, work: Path) -> Sample:
            target = broker.make_topic(turn.load.partitions)
            table = database.make_table(with_value=True)
            config = {
                "bootstrap": broker.servers,
                "source": {
                    "kind": "kafka",
                    "topic": source,
                    "starting": "earliest",
                    "batch": turn.load.batch,
                    "options": turn.load.consumer(),
                },
                "rows": "wide-value",
                "contender": contender,
                "sinks": [
                    {"kind": "kafka", "topic": target, "options": turn.load.producer()},
                    {"kind": "file", "path": str(work / "files")},
                    {"kind": "postgres", "table": table, "mode": "staged"},
                ],
                "cores": turn.load.cores,
                "batches": turn["batches"],
                "checkpoint": str(work / "checkpoint"),
            }
            roots = {"broker": broker.pid, "server": database.pid}
            try:
                with (
                    Child(
                        "benchmarks.contenders.spark_job",
                        work,
                        config,
                        {DATABASE_VARIABLE: database.url},
                    ) as job,
                    Meter({**roots, "job": job.pid}) as meter,
                ):
                    job.wait(_DEADLINE_S)
                    return sample_of(job, meter, turn.load.batch, turn["skip"])
            finally:
                broker.delete(target)
                database.drop_table(table)

        return turn.each(measure)


MEASUREMENT = rounds.Measurement("three_sinks", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT)
