"""The pictures of the page, drawn by matplotlib from ``results.json`` alone, as SVG without
dates, so that the same results give the same files.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.options.curves import INTERVALS_S, STORES
from benchmarks.report import figures
from benchmarks.report.grouping import Unit, matching, names_of, plans_of, spread_of
from benchmarks.report.results import Results

COLOURS: Mapping[str, str] = {
    "ours": "#1b6ca8",
    "ours-at-least-once": "#7fb3d5",
    "spark": "#e07b39",
    "flink": "#c0392b",
    "java-producer": "#8a8a8a",
    "java-producer-transactional": "#b5b5b5",
    "librdkafka": "#5f6b6d",
    "librdkafka-transactional": "#9aa5a7",
}


def check() -> None:
    """Check that there is something to draw with, before hours of measuring.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit(
            "matplotlib is not installed, and draws the pictures of the page. pip install "
            "matplotlib"
        )


def draw_all(results: Results, folder: Path) -> dict[str, Path]:
    """Draw every picture for which there are results.

    Returns:
        The files, by the picture's name; a picture without results isn't there.
    """
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.hashsalt": "onceforall",
            "svg.fonttype": "none",
            "font.size": 9,
            "axes.spines.top": False,
        }
    )
    mpl.rcParams.update(
        {"axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}
    )
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for name, draw in _PICTURES.items():
        figure = draw(results)
        if figure is None:
            continue
        file = folder / f"{name}.svg"
        figure.savefig(file, bbox_inches="tight", metadata={"Date": None, "Creator": None})
        drawn[name] = file
    return drawn


def _subplots(
    columns: int, *, rows: int = 1, width: float = 4.2, height: float = 3.0
) -> tuple[Any, list[Any]]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained"
    )
    plt.close(figure)
    return figure, list(axes.flat)


def _bars(axes: Any, spreads: Mapping[str, figures.Spread]) -> None:
    """Draw horizontal bars with their range, the first one at the top."""
    names = list(spreads)[::-1]
    found = [spreads[name] for name in names]
    middle = [each.median for each in found]
    errors = [
        [each.median - each.least for each in found],
        [each.most - each.median for each in found],
    ]
    axes.barh(
        names,
        middle,
        xerr=errors,
        color=[COLOURS.get(name, "#1b6ca8") for name in names],
        error_kw={"lw": 1, "alpha": 0.7},
    )
    axes.grid(axis="y", visible=False)


def _throughput(results: Results) -> Any:
    plans = plans_of(results.units("throughput"), ("payload", "compression", "tuned"))
    if not plans:
        return None
    figure, axes = _subplots(len(plans))
    for where, (key, units) in zip(axes, plans.items(), strict=True):
        names = names_of(units)
        spreads = {
            name: each for name in names if (each := spread_of(units, name, "records_per_s"))
        }
        _bars(where, spreads)
        payload, compression, tuned = key
        where.set_title(f"{payload} B, {compression}{'' if tuned else ', consumers by default'}")
        where.set_xlabel("records per second")
        where.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f} k")
    return figure


def _latency(results: Results) -> Any:
    plans = plans_of(results.units("latency"), ("trigger_s",))
    if not plans:
        return None
    figure, axes = _subplots(2 * len(plans))
    places = [
        (key, units, percentile) for key, units in plans.items() for percentile in ("p50", "p99")
    ]
    for where, ((trigger_s,), units, percentile) in zip(axes, places, strict=True):
        for name in names_of(units):
            points = _by_rate(units, name, f"{percentile}_ms")
            if points:
                rates, middle, least, most = zip(*points, strict=True)
                errors = [
                    [m - a for m, a in zip(middle, least, strict=True)],
                    [b - m for m, b in zip(middle, most, strict=True)],
                ]
                where.errorbar(
                    rates,
                    middle,
                    yerr=errors,
                    label=name,
                    color=COLOURS.get(name),
                    marker="o",
                    ms=3,
                    lw=1.2,
                    capsize=2,
                )
        where.set_title(
            f"{percentile}, {f'{trigger_s:g} s trigger' if trigger_s else 'default trigger'}"
        )
        where.set_xlabel("records per second")
        where.set_ylabel("ms")
        where.set_ylim(bottom=0)
        where.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f} k")
        where.legend(frameon=False, fontsize=8)
    return figure


def _by_rate(
    units: Sequence[Unit], name: str, path: str
) -> list[tuple[float, float, float, float]]:
    """Return (rate, median, least, most) for each plan, in the order of rates."""
    points = []
    for plan in plans_of(units, ("rate", "share")).values():
        found, rate = spread_of(plan, name, path), spread_of(plan, name, "rate")
        if found and rate:
            points.append((rate.median, found.median, found.least, found.most))
    return sorted(points)


def _commit_cost(results: Results) -> Any:
    units = results.units("commit_cost")
    counts = [
        int(name.partition("-")[2])
        for name in names_of(units)
        if name.startswith("kafka-") and "+" not in name
    ]
    if not units:
        return None
    figure, axes = _subplots(2)
    for percentile, style in (("p50_ms", "-"), ("p99_ms", "--")):
        found = [
            (count, each)
            for count in sorted(counts)
            if (each := spread_of(units, f"kafka-{count}", percentile))
        ]
        if found:
            errors = [
                [each.median - each.least for _, each in found],
                [each.most - each.median for _, each in found],
            ]
            middle = [each.median for _, each in found]
            axes[0].errorbar(
                [count for count, _ in found],
                middle,
                yerr=errors,
                ls=style,
                marker="o",
                ms=3,
                label=percentile[:3],
                capsize=2,
            )
    axes[0].set_xlabel("Kafka transactions per batch")
    axes[0].set_ylabel("decision and commit, ms")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    several = [name for name in names_of(units) if "+" in name or not name.startswith("kafka-")]
    _bars(
        axes[1],
        {
            name: each
            for name in ["kafka-8", *several]
            if (each := spread_of(units, name, "p50_ms"))
        },
    )
    axes[1].set_xlabel("decision and commit, p50, ms")
    return figure


_CURVES = (
    ("p50_ms", "latency p50, ms"),
    ("records_per_s", "records per second"),
    ("checkpoint_ms", "checkpoint, ms"),
    ("recovery_s", "recovery, s"),
)


def _triggers(results: Results) -> Any:
    units = matching(results.units("curves"), {"curve": "trigger"})
    if not units:
        return None
    figure, axes = _subplots(len(_CURVES), width=3.2)
    for where, (path, title) in zip(axes, _CURVES, strict=True):
        for writer in ("ours", "spark"):
            found = [
                (each, value)
                for each in INTERVALS_S
                if (value := spread_of(units, f"{writer}@{each:g}", path))
            ]
            if found:
                middle = [value.median for _, value in found]
                errors = [
                    [value.median - value.least for _, value in found],
                    [value.most - value.median for _, value in found],
                ]
                seconds = [each for each, _ in found]
                where.errorbar(
                    seconds,
                    middle,
                    yerr=errors,
                    label=writer,
                    color=COLOURS[writer],
                    marker="o",
                    ms=3,
                    capsize=2,
                )
        where.set_title(title)
        where.set_xlabel("trigger interval, s")
        where.set_ylim(bottom=0)
        where.legend(frameon=False, fontsize=8)
    return figure


def _stores(results: Results) -> Any:
    units = matching(results.units("curves"), {"curve": "state"})
    if not units:
        return None
    figure, axes = _subplots(len(_CURVES), width=3.2, height=1.8)
    for where, (path, title) in zip(axes, _CURVES, strict=True):
        _bars(where, {name: each for name in STORES if (each := spread_of(units, name, path))})
        where.set_title(title)
    return figure


def _long_run(results: Results) -> Any:
    units = [
        unit for unit in results.units("long_run") if "points" in unit["samples"].get("ours", {})
    ]
    if not units:
        return None
    sample = units[-1]["samples"]["ours"]
    names = list(sample["verdicts"])
    figure, axes = _subplots(5, rows=-(-len(names) // 5), width=2.6, height=1.8)
    for where, name in zip(axes, names, strict=False):
        series = [(point["s"] / 60, point[name]) for point in sample["points"] if name in point]
        where.plot(
            [at for at, _ in series], [value for _, value in series], lw=0.8, color=COLOURS["ours"]
        )
        where.set_title(name + ("" if sample["verdicts"][name]["flat"] else ": grows"), fontsize=8)
        where.set_ylim(bottom=0)
        where.tick_params(labelsize=7)
    for where in axes[len(names) :]:
        where.set_visible(False)
    axes[0].set_xlabel("minutes", fontsize=7)
    return figure


_PICTURES: Mapping[str, Callable[[Results], Any]] = {
    "throughput": _throughput,
    "latency": _latency,
    "commit-cost": _commit_cost,
    "trigger": _triggers,
    "state-stores": _stores,
    "long-run": _long_run,
}
