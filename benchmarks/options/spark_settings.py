"""Which source options and Spark settings help our throughput, and by how much: one setting taken
away at a time.

A sample: as in ``throughput.pipelines``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks import rounds
from benchmarks.report.results import Sample
from benchmarks.settings import Load
from benchmarks.stands.kafka import standing_broker
from benchmarks.throughput import pipelines

_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_SOCKETS = "spark.python.unix.domain.socket.enabled"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
# Spark's own defaults.
_PLAIN_SPARK = {_ROWS: "10000", _SOCKETS: "false", _BYTES: "64m"}
VARIANTS: Mapping[str, Mapping[str, str]] = {
    "tuned": {},
    "consumer-defaults": {},
    "tcp-sockets": {_SOCKETS: "false"},
    "arrow-64m": {_BYTES: "64m"},
    "arrow-10000": {_ROWS: "10000"},
    "arrow-50000": {_ROWS: "50000"},
    "batches-of-a-quarter": {},
    "defaults": _PLAIN_SPARK,
}


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return the plan."""
    if quick:
        return [
            rounds.Plan(
                ("tuned", "defaults"), Load(records=100_000, batch=10_000), {}, repeats=1, minutes=2
            )
        ]
    return [
        rounds.Plan(
            tuple(VARIANTS),
            Load(records=20_000_000, batch=1_000_000),
            {},
            repeats=3,
            minutes=6,
            lag=rounds.LATER,
        )
    ]


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run one round."""
    with standing_broker() as broker:
        source = broker.filled_topic(turn.load)

        def measure(variant: str, work: Path) -> Sample:
            tuned = variant not in {"consumer-defaults", "defaults"}
            batch = turn.load.batch // (4 if variant == "batches-of-a-quarter" else 1)
            load = replace(turn.load, tuned=tuned, batch=batch)
            target = broker.make_topic(load.partitions, is_kept=False)
            try:
                return pipelines.one(broker, load, "ours", source, target, work, VARIANTS[variant])
            finally:
                broker.delete(target)

        return turn.each(measure)


MEASUREMENT = rounds.Measurement("spark_settings", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT)
