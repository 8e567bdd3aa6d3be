"""What ``onceforall.redo`` costs: nothing kept, Spark's plan looked at, rows kept.

``python -m benchmarks.kept_rows``. The same rows go to the same sink by all contenders, one after the other in each round, which begins with another one each time:

- ``replay`` and ``auto``: a query whose replays are the same; ``auto`` looks at the plan, and keeps nothing;
- ``uuid-replay`` and ``uuid-auto``: one with ``uuid()``; ``auto`` keeps each batch's rows until it is complete.

A sample: ``batch_ms``, the median of whole batches by Spark's own report; ``rows_per_s`` from it; ``batches``. Each round ends with the ratios of its times. A contender that
keeps rows where it should not, or keeps none where it should, has failed.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks import rounds
from benchmarks.children import Child, MeasurementError
from benchmarks.kafka import standing_broker
from benchmarks.results import Sample
from benchmarks.settings import Load

_DEADLINE_S = 600.0
CONTENDERS = ("replay", "auto", "uuid-replay", "uuid-auto")
PAIRS = (("auto", "replay"), ("uuid-auto", "uuid-replay"))


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return the plans: short batches, in which a decision is most of the time, and long ones, in which rows are."""
    load = Load(records=0, payload=100, partitions=2, batch=0)
    if quick:
        return [rounds.Plan(CONTENDERS, load, {"rows": 2000, "batches": 8, "skip": 3}, repeats=1)]
    return [
        rounds.Plan(CONTENDERS, load, {"rows": 2000, "batches": 120, "skip": 40}, repeats=5, minutes=2),
        rounds.Plan(CONTENDERS, load, {"rows": 200_000, "batches": 40, "skip": 10}, repeats=5, minutes=3),
    ]


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run one round."""
    with standing_broker() as broker:

        def measure(contender: str, work: Path) -> Sample:
            target = broker.make_topic(turn.load.partitions)
            config = {
                "bootstrap": broker.servers,
                "source": {"kind": "rate", "rows": turn["rows"], "partitions": turn.load.partitions},
                "rows": "wide-value-uuid" if contender.startswith("uuid") else "wide-value",
                "contender": "ours",
                "options": {"onceforall.redo": contender.rpartition("-")[2]},
                "sinks": [
                    {"kind": "file", "path": str(work / "files")},
                    {"kind": "kafka", "topic": target, "options": turn.load.producer()},
                ],
                "cores": turn.load.cores,
                "batches": turn["batches"],
                "checkpoint": str(work / "checkpoint"),
            }
            try:
                with Child("benchmarks.spark_job", work, config) as job:
                    job.wait(_DEADLINE_S)
                    kept = _kept_rows(work / "checkpoint")
                    if bool(kept) != (contender == "uuid-auto"):
                        raise MeasurementError(f"{contender} has kept {kept} rows.")
                    return sample_of(job.lines("progress.jsonl"), turn["skip"], turn["rows"])
            finally:
                broker.delete(target)

        samples = turn.each(measure)
    for above, below in PAIRS:
        if all("batch_ms" in samples.get(name, {}) for name in (above, below)):
            turn.say(
                f"  {above} / {below}: {samples[above]['batch_ms'] / samples[below]['batch_ms']:.3f} of the time of a batch"
            )
    return samples


def _kept_rows(checkpoint: Path) -> int:
    """Return how many rows the retained decisions say to have kept."""
    entries = [
        json.loads(file.read_text(encoding="utf-8")) for file in (checkpoint / "onceforall" / "chains").glob("*/0*.json")
    ]
    decided = [entry["body"]["committables"] for entry in entries if entry["kind"] == "COMMIT"]
    return sum(
        each.get("rows", {}).get("rows", 0)
        for sinks in decided
        for each in (one for of_sink in sinks.values() for one in of_sink)
    )


def sample_of(progress: list[dict[str, Any]], skip: int, rows: int) -> Sample:
    """Return the sample of a job's progress reports.

    Raises:
        MeasurementError: no batch is left.
    """
    whole = [report["durationMs"]["triggerExecution"] for report in progress[skip:]]
    if not whole:
        raise MeasurementError(f"No batch was committed after the first {skip}.")
    median_ms = statistics.median(whole)
    return {"batch_ms": round(median_ms, 1), "rows_per_s": round(1000 * rows / median_ms), "batches": len(whole)}


MEASUREMENT = rounds.Measurement("kept_rows", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT)
