"""What ``onceforall.redo=auto`` costs beside ``replay``, batch by batch in one and the same query.

``python -m benchmarks.options.kept_rows``. Every second batch of a run is written as under
``replay``, and the others as under ``auto``: what else goes on on the machine meets both. The
contenders are queries with the same rows to Kafka and to files:

- ``same``: one whose replays are the same; a transform has ``auto`` look at a plan in each batch,
  and nothing is kept;
- ``uuid``: one with ``uuid()``; ``auto`` keeps each batch's rows until it is complete.

A sample: ``replay_ms`` and ``auto_ms``, medians of whole batches by Spark's own report; ``ratio``,
the median of the ratios of neighbours; ``batches``, how many of each. A contender that keeps rows
where it should not, or none where it should, has failed.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import rounds
from benchmarks.contenders import spark_job
from benchmarks.report.results import Sample
from benchmarks.settings import Load
from benchmarks.stands.children import Child, MeasurementError
from benchmarks.stands.kafka import standing_broker

if TYPE_CHECKING:
    from onceforall.driver.batch_writer import SparkBatchWriter

_DEADLINE_S = 900.0
CONTENDERS = ("same", "uuid")


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return the plans: short batches, in which a decision is most of the time, and long ones,
    in which rows are.
    """
    load = Load(records=0, payload=100, partitions=2, batch=0)
    if quick:
        return [rounds.Plan(CONTENDERS, load, {"rows": 2000, "batches": 12, "skip": 4}, repeats=1)]
    return [
        rounds.Plan(
            CONTENDERS, load, {"rows": 2000, "batches": 100, "skip": 20}, repeats=3, minutes=2
        ),
        rounds.Plan(
            CONTENDERS, load, {"rows": 200_000, "batches": 60, "skip": 10}, repeats=3, minutes=3
        ),
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
                "rows": "wide-value-uuid" if contender == "uuid" else "wide-value",
                "contender": "ours",
                "sinks": [{"kind": "file", "path": str(work / "files")}, kafka],
                "cores": turn.load.cores,
                "batches": turn["batches"],
                "checkpoint": str(work / "checkpoint"),
            }
            try:
                with Child("benchmarks.options.kept_rows", work, config) as job:
                    job.wait(_DEADLINE_S)
                    kept = _kept_rows(work / "checkpoint")
                    if bool(kept) != (contender == "uuid"):
                        raise MeasurementError(f"{contender} has kept {kept} rows.")
                    return sample_of(job.lines("progress.jsonl"), turn["skip"])
            finally:
                broker.delete(target)

        return turn.each(measure)


def _kept_rows(checkpoint: Path) -> int:
    """Return how many rows the retained decisions say to have kept."""
    entries = [
        json.loads(file.read_text(encoding="utf-8"))
        for file in (checkpoint / "onceforall" / "chains").glob("*/0*.json")
    ]
    decided = [entry["body"]["committables"] for entry in entries if entry["kind"] == "COMMIT"]
    named = [one for sinks in decided for of_sink in sinks.values() for one in of_sink]
    return sum(one.get("rows", {}).get("rows", 0) for one in named)


def sample_of(progress: list[dict[str, Any]], skip: int) -> Sample:
    """Return the sample of a job's progress reports: even batches are ``replay``'s, odd ones
    ``auto``'s.

    Raises:
        MeasurementError: no pair of batches is left.
    """
    took_ms = {
        report["batchId"]: report["durationMs"]["triggerExecution"] for report in progress[skip:]
    }
    pairs = [
        (took_ms[batch], took_ms[batch + 1])
        for batch in took_ms
        if batch % 2 == 0 and batch + 1 in took_ms
    ]
    if not pairs:
        raise MeasurementError(f"No two batches were committed after the first {skip}.")
    return {
        "replay_ms": round(statistics.median(replay for replay, _ in pairs), 1),
        "auto_ms": round(statistics.median(auto for _, auto in pairs), 1),
        "ratio": round(statistics.median(auto / replay for replay, auto in pairs), 3),
        "batches": len(pairs),
    }


def alternating(written: type[SparkBatchWriter]) -> type[SparkBatchWriter]:
    """Return a writer that writes every second batch as under ``replay``."""

    class Alternating(written):  # type: ignore[valid-type,misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            function: Any = self.function  # type: ignore[has-type]

            def derived(rows: Any, batch_id: int, transaction: Any) -> None:
                # As a transform does; otherwise there is nothing to look at.
                function(rows.where("id >= 0"), batch_id, transaction)

            self.function = derived
            if self.batch % 2 == 0:
                self.keeper = None

    return Alternating


def _run_query() -> None:
    """Run the query, in a process of its own."""
    from onceforall.driver import batch_writer, query_run

    query_run.SparkBatchWriter = alternating(batch_writer.SparkBatchWriter)  # type: ignore[attr-defined]
    spark_job.main()


MEASUREMENT = rounds.Measurement("kept_rows", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT, _run_query)
