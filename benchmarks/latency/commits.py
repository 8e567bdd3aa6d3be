"""What decision and commit cost, by the number of Kafka transactions and of sinks.

Each contender is a query of ours with so many tasks, each of which writes in a transaction of its
own to every sink: ``kafka-8`` has eight Kafka transactions per batch, ``kafka-8+file+postgres``
eight of each kind. Batches are small and follow one another; their source costs next to nothing.

A sample: ``p50_ms``, ``p99_ms`` and ``max_ms`` of the time from the last task's pre-commit to the
last sink's commit (see ``step_times``), the ``parts`` it is made of (medians, ms; ``confirm:``
comes before it, as a part of the job), ``batch_ms`` (a whole batch, by Spark's own report) and
``batches``.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Any

from benchmarks import rounds
from benchmarks.contenders.spark_writers import DATABASE_VARIABLE
from benchmarks.report import figures
from benchmarks.report.results import Sample
from benchmarks.settings import Load
from benchmarks.stands.children import Child, MeasurementError
from benchmarks.stands.database import Database
from benchmarks.stands.kafka import standing_broker
from benchmarks.steps import step_times

_ROWS_PER_TASK = 200
_DEADLINE_S = 300.0
BY_SINKS = ("kafka-8", "kafka-8+file", "kafka-8+file+postgres", "kafka-8+file+prepared")
BY_TRANSACTIONS = ("kafka-1", "kafka-2", "kafka-4", "kafka-16", "file-8", "postgres-8")


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return the plans: eight transactions of one, two and three sinks; and other numbers of
    transactions, and the other sinks alone.
    """
    load = Load().for_latency()
    if quick:
        chosen = ("kafka-2", "kafka-8+file+postgres")
        return [rounds.Plan(chosen, load, {"batches": 8, "skip": 3, "transactions": 8}, repeats=1)]
    more = {"batches": 60, "skip": 20}
    return [
        rounds.Plan(BY_SINKS, load, {**more, "transactions": 8}, minutes=2.5),
        rounds.Plan(BY_TRANSACTIONS, load, more, minutes=3, lag=rounds.LATER),
    ]


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run one round."""
    with standing_broker() as broker, Database() as database:

        def measure(contender: str, work: Path) -> Sample:
            kinds = contender.split("+")
            tasks = int(kinds[0].partition("-")[2])
            target = broker.make_topic(turn.load.partitions)
            table = database.make_table(with_value=True)
            sinks = [
                _sink(kind.partition("-")[0], target, table, work, turn.load) for kind in kinds
            ]
            config = {
                "bootstrap": broker.servers,
                "source": {"kind": "rate", "rows": tasks * _ROWS_PER_TASK, "partitions": tasks},
                "rows": "wide-value",
                "contender": "ours",
                "sinks": sinks,
                "cores": turn.load.cores,
                "batches": turn["batches"],
                "checkpoint": str(work / "checkpoint"),
            }
            try:
                with Child(
                    "benchmarks.contenders.spark_job",
                    work,
                    config,
                    {DATABASE_VARIABLE: database.url},
                ) as job:
                    job.wait(_DEADLINE_S)
                    return sample_of(
                        job.lines("steps.jsonl"), job.lines("progress.jsonl"), turn["skip"]
                    )
            finally:
                broker.delete(target)
                database.drop_table(table)

        return turn.each(measure)


def _sink(kind: str, topic: str, table: str, work: Path, load: Load) -> dict[str, Any]:
    if kind == "kafka":
        return {"kind": "kafka", "topic": topic, "options": load.producer()}
    if kind == "file":
        return {"kind": "file", "path": os.fspath(work / "files")}
    return {
        "kind": "postgres",
        "table": table,
        "mode": "prepared" if kind == "prepared" else "staged",
    }


def sample_of(steps: list[dict[str, Any]], progress: list[dict[str, Any]], skip: int) -> Sample:
    """Return the sample, given what the job has written down.

    Raises:
        MeasurementError: no batch is left.
    """
    costs = step_times.costs_ms(steps, skip=skip)
    ordered = sorted(costs.pop("commit"))
    if not ordered:
        raise MeasurementError(f"No batch was committed after the first {skip}.")
    whole = [report["durationMs"]["triggerExecution"] for report in progress[skip:]]
    return {
        "p50_ms": round(figures.percentile(ordered, 0.5), 2),
        "p99_ms": round(figures.percentile(ordered, 0.99), 2),
        "max_ms": round(ordered[-1], 2),
        "parts": {
            name: round(statistics.median(values), 2)
            for name, values in sorted(costs.items())
            if values
        },
        "batch_ms": round(statistics.median(whole), 1) if whole else None,
        "batches": len(ordered),
    }


MEASUREMENT = rounds.Measurement("commit_cost", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT)
