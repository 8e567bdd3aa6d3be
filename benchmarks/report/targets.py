"""The targets, as data: which figure, of which contenders, against which limit; and what was
measured for each. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.report import figures
from benchmarks.report.grouping import Unit, by_round, matching


@dataclass(frozen=True)
class Target:
    """One target.

    Attributes:
        text: what is compared, for the page.
        measurement: where its samples are.
        figure: the figure of a sample, a dotted path.
        ours: the contender.
        other: what it is compared with; None: the figure itself counts.
        limit: the value that the median must reach.
        at_most: whether the limit is an upper one.
        difference: whether the difference counts instead of the ratio.
        inverse: whether the ratio is the other one's figure over ours (rates, where a ratio of
            times is asked for).
        where: the parameters of the plans that count.
    """

    text: str
    measurement: str
    figure: str
    ours: str
    other: str | None
    limit: float
    at_most: bool = False
    difference: bool = False
    inverse: bool = False
    where: Mapping[str, Any] = field(default_factory=dict)


_PLAIN = {"compression": "none", "tuned": True, "alone": None}
_SMALL, _LARGE = {**_PLAIN, "payload": 100}, {**_PLAIN, "payload": 1000}
_STEADY = {"rate": 2000, "share": 0, "short_batches": None}

TARGETS: Sequence[Target] = (
    Target(
        "throughput, ours / Spark's own sink, 100 B",
        "throughput",
        "records_per_s",
        "ours",
        "spark",
        1.0,
        where=_SMALL,
    ),
    Target(
        "throughput, ours / Spark's own sink, 1 KB",
        "throughput",
        "records_per_s",
        "ours",
        "spark",
        1.0,
        where=_LARGE,
    ),
    Target(
        "throughput, ours / Flink exactly-once, 100 B",
        "throughput",
        "records_per_s",
        "ours",
        "flink",
        0.8,
        where=_SMALL,
    ),
    Target(
        "throughput, ours / Flink exactly-once, 1 KB",
        "throughput",
        "records_per_s",
        "ours",
        "flink",
        0.8,
        where=_LARGE,
    ),
    Target(
        "throughput, ours exactly-once / ours at-least-once, 100 B",
        "throughput",
        "records_per_s",
        "ours",
        "ours-at-least-once",
        0.97,
        where=_SMALL,
    ),
    Target(
        "throughput, ours exactly-once / ours at-least-once, 1 KB",
        "throughput",
        "records_per_s",
        "ours",
        "ours-at-least-once",
        0.97,
        where=_LARGE,
    ),
    Target(
        "CPU seconds per million records, ours / Spark's own sink, 100 B",
        "throughput",
        "cpu_s_per_million.total",
        "ours",
        "spark",
        1.1,
        at_most=True,
        where=_SMALL,
    ),
    Target(
        "CPU seconds per million records, ours / Spark's own sink, 1 KB",
        "throughput",
        "cpu_s_per_million.total",
        "ours",
        "spark",
        1.1,
        at_most=True,
        where=_LARGE,
    ),
    *(
        Target(
            f"{name} latency at 2,000/s, ours / Spark's own sink, default trigger",
            "latency",
            f"{name}_ms",
            "ours",
            "spark",
            1.15,
            at_most=True,
            where={**_STEADY, "trigger_s": 0.0},
        )
        for name in ("p50", "p99")
    ),
    Target(
        "p50 latency at 2,000/s, ours at a 1 s trigger / Flink at 1 s checkpoints",
        "latency",
        "p50_ms",
        "ours",
        "flink",
        1.0,
        at_most=True,
        where={**_STEADY, "trigger_s": 1.0},
    ),
    Target(
        "decision and commit, 8 Kafka transactions, PostgreSQL and files, p50, ms",
        "commit_cost",
        "p50_ms",
        "kafka-8+file+postgres",
        None,
        20.0,
        at_most=True,
        where={"transactions": 8},
    ),
    Target(
        "recovery after kill -9, ours - a bare Spark restart, s",
        "recovery",
        "seconds",
        "ours",
        "spark",
        1.5,
        at_most=True,
        difference=True,
        where={"trigger_s": 0.0},
    ),
    Target(
        "PostgreSQL staged / bare COPY (ready-made text)",
        "databases",
        "rows_per_s",
        "ours-staged",
        "copy-blocks",
        0.5,
    ),
    Target(
        "PostgreSQL staged / bare COPY (psycopg's write_row)",
        "databases",
        "rows_per_s",
        "ours-staged",
        "copy-rows",
        0.5,
    ),
    Target(
        "PostgreSQL prepared / bare COPY (ready-made text)",
        "databases",
        "rows_per_s",
        "ours-prepared",
        "copy-blocks",
        0.85,
    ),
    Target(
        "PostgreSQL prepared / bare COPY (psycopg's write_row)",
        "databases",
        "rows_per_s",
        "ours-prepared",
        "copy-rows",
        0.85,
    ),
    Target(
        "one pass to three sinks / three Spark writes, wall time",
        "three_sinks",
        "rows_per_s",
        "ours",
        "spark-three",
        0.5,
        at_most=True,
        inverse=True,
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What was measured for a target: the spread of its values over the rounds, and whether
    their median reaches the limit. Both None without samples.
    """

    target: Target
    spread: figures.Spread | None
    met: bool | None


def outcome(target: Target, units: Iterable[Unit]) -> Outcome:
    """Compare what was measured with a target, given all units."""
    chosen = matching(
        [unit for unit in units if unit["measurement"] == target.measurement], target.where
    )
    # Plans with different parameters may each have a round of the same number, and only one of them
    # can be compared with itself.
    plans: dict[str, list[Unit]] = {}
    for unit in chosen:
        plans.setdefault(repr(sorted(unit["parameters"].items())), []).append(unit)
    values = [value for plan in plans.values() for value in _values(target, plan)]
    if not values:
        return Outcome(target, None, None)
    found = figures.spread(values)
    met = found.median <= target.limit if target.at_most else found.median >= target.limit
    return Outcome(target, found, met)


def _values(target: Target, units: Sequence[Unit]) -> list[float]:
    ours = by_round(units, target.ours, target.figure)
    if target.other is None:
        return [ours[turn] for turn in sorted(ours)]
    others = by_round(units, target.other, target.figure)
    if target.difference:
        return figures.differences(ours, others)
    return figures.ratios(others, ours) if target.inverse else figures.ratios(ours, others)
