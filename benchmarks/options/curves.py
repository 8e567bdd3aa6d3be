"""Two curves: the trigger interval, and the state backend, against latency, throughput, checkpoint
time and recovery.

``trigger``: a contender is a writer and an interval, ``ours@1`` or ``spark@0.5``. ``state``: a
stateful query of ours (counts by 10,000 keys) with each of Spark's state
stores: in memory, RocksDB, and RocksDB with a changelog.

A sample: ``p50_ms`` and ``p99_ms`` at a steady rate; ``records_per_s`` over full batches of a topic
that is full already, each of as many records as come in one interval at that speed (`Load.batch`
per second); ``checkpoint_ms``, the median of what Spark and we write down per batch (Spark's offset
and commit logs, the state stores' commit, our decision and commit); ``recovery_s``, as in
``recovery``. The latency of a stateful query is that of the newest record of each updated group.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import rounds
from benchmarks.contenders.pipes import Pipe
from benchmarks.recovery import restarts
from benchmarks.report import figures
from benchmarks.report.results import Sample
from benchmarks.settings import Load
from benchmarks.stands.children import Child, MeasurementError
from benchmarks.stands.kafka import Broker, standing_broker
from benchmarks.stands.traffic import Traffic, steady
from benchmarks.steps import step_times

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
STORES: Mapping[str, Mapping[str, str]] = {
    "memory": {
        _PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    },
    "rocksdb": {_PROVIDER: _ROCKSDB, _CHANGELOG: "false"},
    "rocksdb-changelog": {_PROVIDER: _ROCKSDB, _CHANGELOG: "true"},
}
INTERVALS_S = (0.0, 0.5, 1.0, 2.0, 5.0)
_SHORTEST_S = 0.5
_DEADLINE_S = 600.0


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return one plan for each curve."""
    triggers = tuple(
        f"{writer}@{seconds:g}" for seconds in INTERVALS_S for writer in ("ours", "spark")
    )
    if quick:
        load = Load(records=100_000, batch=10_000).for_latency()
        more = {"rate": 500, "warm_up_s": 2, "seconds": 4, "batches": 4, "kills": 1}
        return [
            rounds.Plan(("ours@0.5",), load, {"curve": "trigger", **more}, repeats=1),
            rounds.Plan(("rocksdb-changelog",), load, {"curve": "state", **more}, repeats=1),
        ]
    more = {"rate": 2000, "warm_up_s": 15, "seconds": 30, "batches": 12, "kills": 1}
    load = Load(records=12_000_000, batch=400_000).for_latency()
    return [
        rounds.Plan(
            triggers, load, {"curve": "trigger", **more}, repeats=2, minutes=25, lag=rounds.LATER
        ),
        rounds.Plan(
            tuple(STORES),
            replace(load, batch=200_000),
            {"curve": "state", **more},
            repeats=2,
            minutes=9,
            lag=rounds.LATER,
        ),
    ]


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run one round."""
    with standing_broker() as broker:
        source = broker.filled_topic(turn.load)

        def measure(contender: str, work: Path) -> Sample:
            return {
                **_under_way(broker, turn, contender, work / "steady"),
                **_full(broker, turn, contender, source, work / "full"),
            }

        return turn.each(measure)


def _varied(turn: rounds.Round, contender: str) -> dict[str, Any]:
    """Return what a contender's `Pipe` has of its own."""
    if turn["curve"] == "state":
        return {"contender": "ours", "rows": "counts", "spark": STORES[contender]}
    writer, _, seconds = contender.partition("@")
    return {"contender": writer, "trigger_s": float(seconds)}


def _under_way(broker: Broker, turn: rounds.Round, contender: str, work: Path) -> Sample:
    """Measure latency, checkpoint time and recovery."""
    load = turn.load
    with Traffic(broker, load.partitions, load.payload, work) as traffic:
        pipe = Pipe.within(traffic, load=load, **_varied(turn, contender))
        with pipe.start(work / "job", work / "checkpoint") as job:
            traffic.wait_for_first(job)
            sample = steady(
                job, traffic, turn["rate"], warm_up_s=turn["warm_up_s"], seconds=turn["seconds"]
            )
            job.stop()
            checkpoint_ms = checkpoint_times_ms(
                job.lines("progress.jsonl"), job.lines("steps.jsonl")
            )
    with Traffic(broker, load.partitions, load.payload, work / "again") as traffic:
        pipe = Pipe.within(traffic, load=load, **_varied(turn, contender))
        back = restarts.kills(
            pipe,
            traffic,
            work / "again",
            turn["rate"],
            turn["kills"],
            turn["warm_up_s"],
            seed=turn.turn,
        )
    return {
        "p50_ms": sample["p50_ms"],
        "p99_ms": sample["p99_ms"],
        "kept_up": sample["kept_up"],
        "checkpoint_ms": round(statistics.median(checkpoint_ms), 1),
        "recovery_s": back["seconds"],
    }


def _full(broker: Broker, turn: rounds.Round, contender: str, source: str, work: Path) -> Sample:
    """Measure throughput."""
    interval_s = 0.0 if turn["curve"] == "state" else float(contender.partition("@")[2])
    batch = round(turn.load.batch * max(_SHORTEST_S, interval_s))
    # A topic that holds too few such batches is read as far as it goes.
    load = replace(turn.load, batch=min(batch, turn.load.records // 4))
    target = broker.make_topic(load.partitions)
    try:
        pipe = Pipe(
            load=load,
            servers=broker.servers,
            source=source,
            target=target,
            **_varied(turn, contender),
        )
        with pipe.start(work, work / "checkpoint") as job:
            wanted = min(turn["batches"], turn.load.records // load.batch - 1)
            return {"records_per_s": _rate(job, load.batch, wanted)}
    finally:
        broker.delete(target)


def _rate(job: Child, batch: int, wanted: int) -> int:
    """Return the records per second from the start of the second full batch to the end of the
    last one, pauses between batches included.
    """

    def full() -> list[dict[str, Any]]:
        # Partitions may be read a record more or less evenly; the last batch of a topic is smaller.
        return [
            report
            for report in job.lines("progress.jsonl")
            if report["numInputRows"] >= 0.9 * batch
        ]

    job.until(lambda: len(full()) >= wanted, _DEADLINE_S, f"{wanted} full batches")
    reports = full()[1:]
    if not reports:
        raise MeasurementError("There are too few full batches for a rate.")
    spans = [figures.batch_span([report], report["numInputRows"], skip=0) for report in reports]
    records = sum(int(report["numInputRows"]) for report in reports)
    return round(records / (spans[-1][1] - spans[0][0]))


def checkpoint_times_ms(
    progress: list[dict[str, Any]], steps: list[dict[str, Any]], *, skip: int = 5
) -> list[float]:
    """Return what each batch took to be written down: Spark's two logs, the commit of a state
    store, and our decision and commit.

    Raises:
        MeasurementError: there is no batch.
    """
    ours = step_times.costs_ms(steps, skip=0)["commit"]
    middle = statistics.median(ours[skip:] or ours) if ours else 0.0
    found = []
    for report in progress[skip:] or progress:
        times = report["durationMs"]
        state = max(
            (float(each.get("commitTimeMs", 0)) for each in report.get("stateOperators", [])),
            default=0.0,
        )
        tasks = max(
            (int(each.get("numShufflePartitions", 1)) for each in report.get("stateOperators", [])),
            default=1,
        )
        found.append(
            times.get("walCommit", 0)
            + times.get("commitOffsets", 0)
            + state / max(1, tasks)
            + middle
        )
    if not found:
        raise MeasurementError("The job reported no batch.")
    return found


MEASUREMENT = rounds.Measurement("curves", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT)
