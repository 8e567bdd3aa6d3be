"""Latency from the time at which a record was meant to be sent to its arrival at a reader at
``read_committed``.

An open-loop generator (it sends when it is time, whether the pipeline keeps up or not) at 2,000
records/s, and at 25, 50 and 75 % of each contender's own maximum, which is the median of its
measured throughputs with the same payload. ``trigger_s`` is Spark's trigger interval and Flink's
checkpoint interval; 0 is Spark's default trigger, one batch after the other.

A sample: ``p50_ms``, ``p99_ms``, ``max_ms``, ``rate``, and what shows whether they mean anything:
see `traffic.steady`; of a Spark job also ``parts``, where the time of a batch
goes: see `parts_of`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import rounds
from benchmarks.contenders.pipes import Pipe
from benchmarks.report.results import Results, Sample
from benchmarks.settings import Load
from benchmarks.stands.children import MeasurementError
from benchmarks.stands.kafka import Broker, standing_broker
from benchmarks.stands.traffic import FEW_PER_S, Traffic, steady
from benchmarks.steps import step_times

_SHORT = ("ours-short-batches", "spark-short-batches")
_BY_TRIGGER = {0.0: ("ours", "ours-at-least-once", "spark"), 1.0: ("ours", "spark", "flink")}


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return the plans: both triggers, at 2,000 records/s and at shares of the maximum."""
    load = Load(payload=100).for_latency()
    if quick:
        more: dict[str, Any] = {"rate": 500, "share": 0, "seconds": 5, "warm_up_s": 3}
        contenders = _BY_TRIGGER.items()
        return [
            rounds.Plan(names, load, {**more, "trigger_s": trigger_s}, repeats=1)
            for trigger_s, names in contenders
        ]
    found = []
    for trigger_s, names in _BY_TRIGGER.items():
        more = {"seconds": 40, "warm_up_s": 30, "trigger_s": trigger_s}
        found.append(rounds.Plan(names, load, {**more, "rate": 2000, "share": 0}, minutes=4))
        found += [
            rounds.Plan(
                names,
                load,
                {**more, "rate": 0, "share": share},
                repeats=2,
                minutes=4,
                lag=rounds.LATER,
            )
            for share in (0.25, 0.5, 0.75)
        ]
    # A plan of its own, for no target needs it; its rows stand beside those of the same rate and
    # trigger.
    more = {
        "seconds": 40,
        "warm_up_s": 30,
        "trigger_s": 0.0,
        "rate": 2000,
        "share": 0,
        "short_batches": True,
    }
    return [*found, rounds.Plan(_SHORT, load, more, minutes=2.5, lag=rounds.LATER)]


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run one round."""
    with standing_broker() as broker:

        def measure(contender: str, work: Path) -> Sample:
            rate = turn["rate"] or turn["share"] * maximum(
                turn.results, contender, turn.load.payload
            )
            return one(
                broker,
                turn.load,
                contender,
                work,
                rate,
                turn["trigger_s"],
                turn["warm_up_s"],
                turn["seconds"],
            )

        return turn.each(measure)


def one(  # noqa: PLR0917
    broker: Broker,
    load: Load,
    contender: str,
    work: Path,
    rate: float,
    trigger_s: float,
    warm_up_s: float,
    seconds: float,
) -> Sample:
    """Measure one contender at one rate.

    Raises:
        MeasurementError: it failed.
    """
    with Traffic(broker, load.partitions, load.payload, work, few=rate <= FEW_PER_S) as traffic:
        pipe = Pipe.within(traffic, contender, load, trigger_s=trigger_s)
        with pipe.start(work / "job", work / "checkpoint") as job:
            traffic.wait_for_first(job)
            sample = steady(job, traffic, rate, warm_up_s=warm_up_s, seconds=seconds)
            parts = parts_of(job.lines("progress.jsonl"), job.lines("steps.jsonl"))
            return {**sample, "parts": parts} if parts else sample


def parts_of(
    progress: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Return what the later half of a Spark job's batches spent, in milliseconds, each the median
    over batches; nothing without batches.

    Returns:
        ``batch`` (all of it); of Spark's own ``plan``, ``offsets_log`` and ``commits_log``;
        ``write`` (between these: the call of the sink); and of ours, within that, ``job`` (the
        function and the tasks, up to the last pre-commit) and ``decide_and_commit``.
    """
    late = [report["durationMs"] for report in progress[len(progress) // 2 :]]
    if not late:
        return {}

    def middle(*names: str) -> float:
        return statistics.median(sum(float(times.get(name, 0)) for name in names) for times in late)

    found = {
        "batch": middle("triggerExecution"),
        "plan": middle("latestOffset", "getBatch", "queryPlanning"),
        "offsets_log": middle("walCommit"),
        "commits_log": middle("commitOffsets"),
        "write": middle("addBatch"),
    }
    jobs = [
        1000 * (line["end_s"] - line["start_s"]) for line in steps if line["step"] == "RunWrites"
    ]
    commits = step_times.costs_ms(steps, skip=len(jobs) // 2)["commit"]
    if commits:
        found["job"] = statistics.median(jobs[len(jobs) // 2 :])
        found["decide_and_commit"] = statistics.median(commits)
    return {name: round(value, 1) for name, value in found.items()}


def maximum(results: Results, contender: str, payload: int) -> float:
    """Return a contender's throughput as measured so far, in records per second.

    Raises:
        MeasurementError: it was not measured with this payload.
    """
    found = [
        sample["records_per_s"]
        for unit in results.units("throughput")
        if (
            unit["parameters"]["payload"],
            unit["parameters"]["compression"],
            unit["parameters"]["tuned"],
        )
        == (payload, "none", True)
        for name, sample in unit["samples"].items()
        if name == contender and "error" not in sample
    ]
    if not found:
        raise MeasurementError(
            f"There is no throughput of {contender!r} with {payload} bytes yet. Measure that first."
        )
    return float(statistics.median(found))


MEASUREMENT = rounds.Measurement("latency", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT)
