"""Records per second from Kafka to Kafka, CPU seconds per million records, and peak memory.

Pipelines copy a topic that is full before they start; producers alone write as many records. Before
the first round, the broker is warmed up. What counts is what a reader at ``read_committed`` is
shown, between two commits in the steady state (`figures.steady_window`); the CPU is that of the
broker and of all processes of the contender in between, the memory the largest sum of their
proportional sizes.

A sample: ``records_per_s``, ``seconds`` (of the window), ``commits`` (in it), ``cpu_s_per_million``
and ``peak_mb``, each by group of processes and in total.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks import rounds
from benchmarks.contenders.pipes import CEILINGS, PIPELINES, Pipe, start_ceiling
from benchmarks.report import figures
from benchmarks.report.results import Sample
from benchmarks.settings import Load
from benchmarks.stands.children import Child
from benchmarks.stands.kafka import Broker, VisibleCounts, standing_broker
from benchmarks.stands.processes import Meter

_ENOUGH = 0.97
_ENOUGH_TO_WARM_UP = 0.4
_SLOWEST_PER_S = 5_000
_START_DEADLINE_S = 180.0
_SETTLE_S = 0.3
_WARM_UP = ("ours", "spark", "librdkafka-transactional")


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return the plans: both payloads, pipelines and producers alone, and one with compression."""
    if quick:
        # A producer alone is through with few records before anybody has looked.
        return [
            # Flink's checkpoints are a second apart, and between the first and the last some have
            # to lie.
            rounds.Plan(
                PIPELINES[:4], Load(records=6_000_000, batch=500_000), {}, repeats=1, minutes=3
            ),
            rounds.Plan(
                ("java-producer", "librdkafka"), Load(records=1_000_000), {}, repeats=1, minutes=2
            ),
        ]
    # So many that a JVM has compiled most of what it runs before the first fifth is over: with a
    # quarter of them the compiler took a quarter of the CPU.
    small, large = (
        Load(payload=100, records=40_000_000, batch=1_000_000),
        Load(payload=1000, records=8_000_000, batch=250_000),
    )
    alone = {"alone": True}
    return [
        rounds.Plan(PIPELINES[:4], small, {}, minutes=6),
        rounds.Plan(PIPELINES[:4], large, {}, minutes=5),
        rounds.Plan(
            CEILINGS, replace(small, records=20_000_000), alone, minutes=3, lag=rounds.LATER
        ),
        rounds.Plan(
            CEILINGS, replace(large, records=4_000_000), alone, minutes=3, lag=rounds.LATER
        ),
        rounds.Plan(
            PIPELINES[:4],
            replace(small, compression="lz4"),
            {},
            repeats=3,
            minutes=5,
            lag=rounds.LATER,
        ),
        rounds.Plan(
            PIPELINES[:4],
            replace(small, records=20_000_000, tuned=False),
            {},
            repeats=2,
            minutes=5,
            lag=rounds.LATER,
        ),
    ]


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run one round."""
    with standing_broker() as broker:
        is_cold = turn.load.payload not in broker.warm
        # A producer alone reads nothing.
        source = (
            broker.filled_topic(turn.load) if is_cold or not turn.plan.more.get("alone") else ""
        )
        if is_cold:
            warm_up(broker, turn.load, source, turn.work / "warm-up")

        def measure(contender: str, work: Path) -> Sample:
            if source:
                broker.read_ahead(source)
            target = broker.make_topic(turn.load.partitions, is_kept=False)
            try:
                return one(broker, turn.load, contender, source, target, work)
            finally:
                broker.delete(target)

        return turn.each(measure)


def warm_up(broker: Broker, load: Load, source: str, work: Path) -> None:
    """Let a broker that has just started compile what it does for consumers and producers: whoever
    comes first would pay for it.

    Raises:
        MeasurementError: a contender that is used for it failed.
    """
    for contender in _WARM_UP:
        target = broker.make_topic(load.partitions, is_kept=False)
        try:
            with (
                VisibleCounts(broker, target, load.partitions) as counts,
                _start(broker, load, contender, source, target, work / contender, None) as child,
            ):
                child.until(
                    lambda: counts.visible >= _ENOUGH_TO_WARM_UP * load.records,
                    _START_DEADLINE_S,
                    "the records were visible",
                )
        finally:
            broker.delete(target)
    broker.warm.add(load.payload)


def one(  # noqa: PLR0917
    broker: Broker,
    load: Load,
    contender: str,
    source: str,
    target: str,
    work: Path,
    spark: Mapping[str, str] | None = None,
) -> Sample:
    """Measure one contender.

    Raises:
        MeasurementError: it failed.
        ValueError: there were too few commits.
    """
    total = load.records // load.partitions * load.partitions
    with (
        VisibleCounts(broker, target, load.partitions) as counts,
        _start(broker, load, contender, source, target, work, spark) as child,
        Meter({"broker": broker.pid, "job": child.pid}) as meter,
    ):
        child.until(lambda: counts.visible > 0, _START_DEADLINE_S, "its first commit")
        deadline_s = 60 + total / _SLOWEST_PER_S
        child.until(
            lambda: counts.visible >= _ENOUGH * total, deadline_s, f"{total:,} records were visible"
        )
        time.sleep(_SETTLE_S)
    window = figures.steady_window(counts.counts, total)
    cpu = meter.cpu_between(window.start_s, window.end_s)
    per_million = {name: round(seconds / window.records * 1e6, 3) for name, seconds in cpu.items()}
    peak = meter.peak_mb()
    return {
        "records_per_s": round(window.records_per_s),
        "seconds": round(window.end_s - window.start_s, 2),
        "commits": window.commits,
        "cpu_s_per_million": {**per_million, "total": round(sum(per_million.values()), 3)},
        "peak_mb": {**peak, "total": round(sum(peak.values()), 1)},
    }


def _start(  # noqa: PLR0917
    broker: Broker,
    load: Load,
    contender: str,
    source: str,
    target: str,
    work: Path,
    spark: Mapping[str, str] | None,
) -> Child:
    if contender in CEILINGS:
        return start_ceiling(contender, load, broker.servers, target, work)
    return Pipe(contender, load, broker.servers, source, target, spark=spark or {}).start(
        work, work / "checkpoint"
    )


MEASUREMENT = rounds.Measurement("throughput", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT)
