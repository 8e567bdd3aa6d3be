"""Rows per second into Parquet files: our file sink against Spark's own.

Both write the same rows from a source that costs next to nothing, with the same compression. Ours
syncs every file and folder before a batch is decided; Spark's leaves that to the operating system,
which is one of the things it doesn't promise.

A sample: as in ``throughput.postgres``.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import rounds
from benchmarks.report.results import Sample
from benchmarks.settings import Load
from benchmarks.stands.children import Child
from benchmarks.stands.processes import Meter
from benchmarks.throughput.postgres import sample_of

_DEADLINE_S = 600.0


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return the plan."""
    contenders = ("ours-files", "spark-files")
    if quick:
        return [
            rounds.Plan(contenders, Load(), {"rows": 20_000, "batches": 6, "skip": 2}, repeats=1)
        ]
    return [
        rounds.Plan(contenders, Load(), {"rows": 1_000_000, "batches": 24, "skip": 12}, minutes=2)
    ]


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run one round."""

    def measure(contender: str, work: Path) -> Sample:
        config = {
            "source": {"kind": "rate", "rows": turn["rows"], "partitions": turn.load.cores},
            "rows": "wide",
            "contender": "ours" if contender == "ours-files" else contender,
            "sinks": [{"kind": "file", "path": str(work / "files")}],
            "cores": turn.load.cores,
            "batches": turn["batches"],
            "checkpoint": str(work / "checkpoint"),
        }
        with (
            Child("benchmarks.contenders.spark_job", work, config) as job,
            Meter({"job": job.pid}) as meter,
        ):
            job.wait(_DEADLINE_S)
            return sample_of(job, meter, turn["rows"], turn["skip"])

    return turn.each(measure)


MEASUREMENT = rounds.Measurement("files", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT)
