"""The arithmetic of the measurements, without any input or output: percentiles, ratios by round,
spreads, windows of steady state, drift.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

PLATEAU_S = 0.1
"""A count that stays the same for so long is the end of a commit; Spark and Flink both pause
between two of them."""


@dataclass(frozen=True)
class Spread:
    """The middle of some values and how far they lie apart.

    Attributes:
        median: of the values.
        low: lower end of the 95 % bootstrap interval of the median.
        high: its upper end.
        least: the smallest value.
        most: the largest one.
        count: how many there were.
    """

    median: float
    low: float
    high: float
    least: float
    most: float
    count: int


def spread(values: Sequence[float], *, resamples: int = 2000, seed: int = 1) -> Spread:
    """Return the median with its 95 % bootstrap interval (percentile method), smallest and largest
    value.

    The same values always give the same interval: the resampling has a fixed seed. With fewer than
    five values the interval says little.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("There is nothing to summarise: no sample was taken.")
    chance = random.Random(seed)  # noqa: S311  statistics, not secrets
    medians = sorted(
        statistics.median(chance.choices(values, k=len(values))) for _ in range(resamples)
    )
    low, high = percentile(medians, 0.025), percentile(medians, 0.975)
    return Spread(statistics.median(values), low, high, min(values), max(values), len(values))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which so large a share of the ordered values lies (nearest rank).

    Raises:
        ValueError: there are no values.
    """
    if not ordered:
        raise ValueError("There is nothing to take a percentile of: no sample was taken.")
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def ratios(ours: Mapping[int, float], others: Mapping[int, float]) -> list[float]:
    """Return one ratio for each round that has both; rounds are never mixed, since the machine
    differs more between them than within.
    """
    return [
        ours[turn] / others[turn] for turn in sorted(ours.keys() & others.keys()) if others[turn]
    ]


def differences(ours: Mapping[int, float], others: Mapping[int, float]) -> list[float]:
    """Return one difference for each round that has both."""
    return [ours[turn] - others[turn] for turn in sorted(ours.keys() & others.keys())]


@dataclass(frozen=True)
class Window:
    """A stretch of steady state: from one commit to another one.

    Attributes:
        start_s: when the first of them became visible.
        end_s: when the last did.
        records: how many became visible in between.
        commits: how many commits that were.
    """

    start_s: float
    end_s: float
    records: int
    commits: int

    @property
    def records_per_s(self) -> float:
        """The throughput."""
        return self.records / (self.end_s - self.start_s)


def steady_window(
    counts: Sequence[tuple[float, int]], total: int, *, low: float = 0.2, high: float = 0.95
) -> Window:
    """Find the steady state in a series of (seconds, records visible so far).

    What a reader is shown grows in steps, one for each batch or checkpoint. The window goes from
    the end of the first step that reaches ``low`` of the total to the end of the last one that does
    not exceed ``high`` of it, so that it holds whole steps only: neither the start, nor a last step
    that waits for a checkpoint without having any work, nor a part of a batch counts.

    A count that grows all the time (a producer alone) has no such steps: there the window goes from
    the first to the last look in the range.

    Raises:
        ValueError: there are fewer than three steps and fewer than ten looks; more records or
            smaller batches are needed.
    """
    changes = [counts[0], *(b for a, b in itertools.pairwise(counts) if b[1] != a[1])]
    stays = [*(moment for moment, _ in changes[1:]), counts[-1][0]]
    steps = [
        change
        for change, until_s in zip(changes, stays, strict=True)
        if until_s - change[0] >= PLATEAU_S
    ]
    within = [edge for edge in changes if low * total <= edge[1] <= high * total]
    ends = [edge for edge in within if edge in steps]
    if len(ends) < 3 and len(within) >= 10:
        ends = within
    if len(ends) < 3:
        raise ValueError(
            f"Only {len(ends)} commits lie between {low:.0%} and {high:.0%} of {total:,} records: "
            "too few for a rate. Use more records, or "
            "fewer per batch."
        )
    return Window(ends[0][0], ends[-1][0], ends[-1][1] - ends[0][1], len(ends) - 1)


def at(series: Sequence[tuple[float, float]], moment: float) -> float:
    """Return the value of a series of (seconds, value) at a moment, interpolated; beyond its ends
    the nearest value.

    Raises:
        ValueError: the series is empty.
    """
    if not series:
        raise ValueError("There is nothing to interpolate: no sample was taken.")
    before = after = series[0]
    for after in series:
        if after[0] >= moment:
            break
        before = after
    if after[0] <= moment or after[0] == before[0]:
        return after[1]
    if moment <= before[0]:
        return before[1]
    return before[1] + (after[1] - before[1]) * (moment - before[0]) / (after[0] - before[0])


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of a line through points (Theil and Sen: the median of the slopes of all
    pairs), which a few outliers don't move.
    """
    pairs = [
        (b[1] - a[1]) / (b[0] - a[0])
        for i, a in enumerate(points)
        for b in points[i + 1 :]
        if b[0] != a[0]
    ]
    return statistics.median(pairs) if pairs else 0.0


@dataclass(frozen=True)
class Drift:
    """What became of a quantity over a long run.

    Attributes:
        first: its median in the first fifth of what was judged.
        last: its median in the last fifth.
        growth: how much the fitted line rises over the whole of it.
        allowed: how much it may rise.
    """

    first: float
    last: float
    growth: float
    allowed: float

    @property
    def is_flat(self) -> bool:
        """Whether it grew by no more than is allowed."""
        return self.growth <= self.allowed


def drift(
    points: Sequence[tuple[float, float]], *, relative: float, absolute: float, warm_up: float = 0.2
) -> Drift:
    """Judge whether a quantity grows, given points (seconds, value).

    Args:
        points: in order of time.
        relative: the growth that is allowed over the run, as a share of the median.
        absolute: the growth that is allowed whatever the median is; the larger of the two counts.
        warm_up: the share of the points at the beginning that are left out: caches fill, code is
            compiled.

    Raises:
        ValueError: fewer than five points are left.
    """
    judged = points[int(len(points) * warm_up) :]
    if len(judged) < 5:
        raise ValueError(
            f"{len(judged)} points are too few to tell growth from noise. Let the run go on for "
            "longer."
        )
    fifth = max(1, len(judged) // 5)
    values = [value for _, value in judged]
    allowed = max(absolute, relative * abs(statistics.median(values)))
    growth = slope(judged) * (judged[-1][0] - judged[0][0])
    return Drift(
        statistics.median(values[:fifth]), statistics.median(values[-fifth:]), growth, allowed
    )


def batch_seconds(
    progress: Sequence[Mapping[str, object]], rows: int, *, skip: int = 2
) -> list[float]:
    """Return the seconds that full batches took, from Spark's own progress reports, without the
    first ones.

    Args:
        progress: reports in order (``StreamingQueryProgress`` as a dict).
        rows: how many rows a full batch has; others don't count.
        skip: how many full batches are left out: the JVM compiles them.
    """
    full = [report for report in progress if _is_full(report, rows)]
    durations = [report["durationMs"] for report in full[skip:]]
    return [
        float(duration["triggerExecution"]) / 1000
        for duration in durations
        if isinstance(duration, Mapping)
    ]


def _is_full(report: Mapping[str, object], rows: int) -> bool:
    # A foreachBatch function that reads its batch several times has its rows counted as often.
    read = report.get("numInputRows")
    return isinstance(read, int) and read > 0 and read % rows == 0


def batch_span(
    progress: Sequence[Mapping[str, object]], rows: int, *, skip: int = 2
) -> tuple[float, float]:
    """Return from when to when the full batches ran that `batch_seconds` counts, in seconds since
    the epoch.

    Raises:
        ValueError: there is none.
    """
    full = [report for report in progress if _is_full(report, rows)][skip:]
    if not full:
        raise ValueError(f"No batch of {rows} rows is left after the first {skip}.")
    starts = [
        datetime.fromisoformat(str(report["timestamp"]).replace("Z", "+00:00")).timestamp()
        for report in full
    ]
    return starts[0], starts[-1] + batch_seconds(full[-1:], rows, skip=0)[0]
