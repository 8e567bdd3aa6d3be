"""The page of the results: a template's prose, with tables and pictures from ``results.json`` in
the place of its marks ``{{name}}``.

``python -m benchmarks --page`` writes ``build/bench/performance.md`` and its pictures; with
``--publish`` also ``docs/performance.md``, its pictures in ``docs/images/performance/``, and the
results themselves, ``docs/performance.json``.
"""

from __future__ import annotations

import re
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ad_events import jobs
from benchmarks.contenders.pipes import DESCRIPTIONS
from benchmarks.report import charts, figures, missed, profile_page, targets
from benchmarks.report.grouping import Unit, by_round, matching, names_of, plans_of, spread_of
from benchmarks.report.markdown import middle, number, table
from benchmarks.report.results import PUBLISHED, Results
from benchmarks.settings import FOLDER, ROOT, Load

TEMPLATE = Path(__file__).with_name("performance.template.md")
_MARK = re.compile(r"\{\{([a-z-]+)(?: ([^}]*))?\}\}")
_NOTHING = "*Not measured yet with the code named above.*"
_MAY_BE_EMPTY = {"first-place"}
"""A remark on what is shown elsewhere."""


def write_page(results: Results, *, publish: bool = False) -> Path:
    """Write the page and its pictures beside the results, and on request into the documentation;
    return the page's path.

    Raises:
        ValueError: there are no results at all.
    """
    if not results.units():
        raise ValueError(f"{results.file} holds no results. Run `make bench` first.")
    pictures = charts.draw_all(results, results.folder / "pictures")
    page = results.folder / "performance.md"
    page.write_text(
        text_of(results, {name: f"pictures/{file.name}" for name, file in pictures.items()}),
        encoding="utf-8",
    )
    if not publish:
        return page
    images = ROOT / "docs" / "images" / "performance"
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir(parents=True)
    for file in pictures.values():
        shutil.copy(file, images / file.name)
    page = ROOT / "docs" / "performance.md"
    links = {name: f"images/performance/{file.name}" for name, file in pictures.items()}
    page.write_text(text_of(results, links), encoding="utf-8")
    if results.file.exists():
        shutil.copy(results.file, PUBLISHED)
    return page


def text_of(results: Results, pictures: Mapping[str, str]) -> str:
    """Return the page's text, given the pictures' paths by name.

    Raises:
        ValueError: the template has a mark that nothing fills.
    """

    def filled(mark: re.Match[str]) -> str:
        name, argument = mark.group(1), mark.group(2) or ""
        if name == "picture":
            return f"![{argument}]({pictures[argument]})" if argument in pictures else ""
        if name not in _PARTS:
            raise ValueError(
                f"{TEMPLATE.name} has {mark.group(0)}, and there is no such part: "
                f"{', '.join(sorted(_PARTS))}."
            )
        return "\n".join(_PARTS[name](results)) or ("" if name in _MAY_BE_EMPTY else _NOTHING)

    text = _MARK.sub(filled, TEMPLATE.read_text(encoding="utf-8"))
    return re.sub(r"\n{3,}", "\n\n", text)


def _machine(results: Results) -> Iterator[str]:
    machine, runs = results.data["machine"], results.data["runs"]
    minutes = sum(run["minutes"] for run in runs)
    packages = ", ".join(
        f"{name} {version}" for name, version in machine["packages"].items() if version
    )
    commits = dict.fromkeys(
        unit["commit"] for unit in results.data["units"].values() if unit["commit"]
    )
    yield "| | |"
    yield "|---|---|"
    yield (
        f"| machine | {machine['cores']} cores ({machine['cpu'] or 'unknown model'}), "
        f"{machine['memory_gb']} GB, {machine['system']} |"
    )
    yield f"| software | Python {machine['python']}, {packages} |"
    yield (
        f"| code | digest {results.data['source']}, commits {', '.join(commits)} (`+`: files "
        "were changed since) |"
    )
    yield (
        f"| time | {minutes:,.0f} minutes in {len(runs)} run{'s' * (len(runs) > 1)}, the last "
        f"on {runs[-1]['at'] if runs else '-'} |"
    )


def _targets(results: Results) -> Iterator[str]:
    everything = results.units()
    rows: list[Sequence[object]] = []
    for each in targets.TARGETS:
        found = targets.outcome(each, everything)
        limit = f"{'≤' if each.at_most else '≥'} {each.limit:g}"
        if found.spread is None:
            rows.append((each.text, limit, "-", "-", "-", "not measured"))
            continue
        values = found.spread
        word = "met" if found.met else "**missed**"
        interval = f"{number(values.low)} to {number(values.high)}" if values.count > 1 else "-"
        rows.append(
            (each.text, limit, f"**{number(values.median)}**", interval, values.count, word)
        )
    yield from table(("figure", "target", "median", "95 % interval", "rounds", ""), rows)


def _throughput(results: Results) -> Iterator[str]:
    by = ("payload", "compression", "tuned")
    for (payload, compression, tuned), units in plans_of(results.units("throughput"), by).items():
        load = units[0]["parameters"]
        yield (
            f"**{payload} bytes, compression {compression}, consumers "
            f"{'tuned' if tuned else 'with their defaults'}** "
        )
        yield (
            f"({load['records']:,} records, {load['batch']:,} per Spark batch, "
            f"{load['partitions']} partitions)"
        )
        yield ""
        yield from table(
            (
                "",
                "records/s",
                "ours / this",
                "CPU s per million",
                "of it broker",
                "peak MB (job)",
                "rounds",
            ),
            _throughput_rows(units),
        )
        yield ""


def _throughput_rows(units: Sequence[Unit]) -> Iterator[Sequence[object]]:
    for name in names_of(units):
        spreads = {
            path: spread_of(units, name, path)
            for path in (
                "records_per_s",
                "cpu_s_per_million.total",
                "cpu_s_per_million.broker",
                "peak_mb.job",
            )
        }
        if spreads["records_per_s"] is None:
            yield (DESCRIPTIONS.get(name, name), "failed", "-", "-", "-", "-", 0)
            continue
        ratios = figures.ratios(
            by_round(units, "ours", "records_per_s"), by_round(units, name, "records_per_s")
        )
        ratio = middle(figures.spread(ratios)) if ratios and name != "ours" else ""
        cpu, broker, memory = (
            spreads[path]
            for path in ("cpu_s_per_million.total", "cpu_s_per_million.broker", "peak_mb.job")
        )
        count = spreads["records_per_s"].count
        yield (
            DESCRIPTIONS.get(name, name),
            middle(spreads["records_per_s"]),
            ratio,
            middle(cpu),
            middle(broker),
            middle(memory),
            count,
        )


def _first_place(results: Results) -> Iterator[str]:
    """Say what it costs to begin a round, and who did so how often: with five rounds and four
    contenders one has done so twice.
    """
    slower, began = [], []
    pipelines = [unit for unit in results.units("throughput") if "ours" in unit["order"]]
    for (payload, compression, tuned), units in plans_of(
        pipelines, ("payload", "compression", "tuned")
    ).items():
        firsts = {
            unit["round"]: unit["order"][unit["round"] % len(unit["order"])] for unit in units
        }
        lost = []
        for turn, name in firsts.items():
            values = by_round(units, name, "records_per_s")
            others = [value for other, value in values.items() if firsts[other] != name]
            if turn in values and others:
                lost.append(1 - values[turn] / statistics.median(others))
        if lost and tuned and compression == "none":
            slower.append(f"{statistics.median(lost):.0%} at {payload} bytes")
            began.append(f"{sum(name == 'ours' for name in firsts.values())} of {len(firsts)}")
    if slower:
        yield (
            "To begin has a price, which is in the figures: the throughput of whoever begins is "
            f"lower than in its other rounds by {' and by '.join(slower)} "
            f"(medians). Ours began {' and '.join(dict.fromkeys(began))} rounds."
        )


def _latency(results: Results) -> Iterator[str]:
    plans = plans_of(results.units("latency"), ("trigger_s", "share", "rate"))
    rows = []
    for (trigger_s, share, rate), units in sorted(plans.items()):
        for name in names_of(units):
            found = {
                path: spread_of(units, name, path)
                for path in ("p50_ms", "p99_ms", "max_ms", "rate")
            }
            load = f"{share:.0%} of its maximum" if share else f"{rate:,}/s"
            kept = [
                unit["samples"][name].get("kept_up", False)
                for unit in units
                if "error" not in unit["samples"].get(name, {"error": ""})
            ]
            rows.append(
                (
                    DESCRIPTIONS.get(name, name),
                    f"{trigger_s:g} s" if trigger_s else "default",
                    load,
                    number(found["rate"].median) if found["rate"] else "-",
                    *(middle(found[path]) for path in ("p50_ms", "p99_ms", "max_ms")),
                    "" if all(kept) and kept else "did not keep up",
                )
            )
    yield from table(
        ("", "trigger", "load", "records/s", "p50, ms", "p99, ms", "max, ms", ""), rows
    )


def _latency_parts(results: Results) -> Iterator[str]:
    head = {
        "batch": "a batch",
        "plan": "plan",
        "offsets_log": "offset log",
        "write": "write",
        "job": "of it the job",
        "decide_and_commit": "of it decision and commit",
        "commits_log": "commit log",
    }
    units = matching(results.units("latency"), {"trigger_s": 0.0, "share": 0})
    rows = []
    for name in names_of(units):
        found = {part: spread_of(units, name, f"parts.{part}") for part in head}
        if found["batch"] is not None:
            rows.append(
                (DESCRIPTIONS.get(name, name), *(middle(spread) for spread in found.values()))
            )
    yield from table(("at 2,000/s, default trigger, ms", *head.values()), rows)


def _plain(measurement: str, head: Mapping[str, str]) -> Callable[[Results], Iterator[str]]:
    """Return tables of a measurement, one for each plan: a row for each contender, a column for
    each figure.
    """

    def lines(results: Results) -> Iterator[str]:
        found = results.units(measurement)
        names = sorted({name for unit in found for name in unit["parameters"]})
        for units in plans_of(
            [{**unit, "parameters": _all(unit, names)} for unit in found], names
        ).values():
            differing = [
                name
                for name in names
                if len({str(unit["parameters"].get(name)) for unit in found}) > 1
            ]
            said = [
                f"`{name}={value}`"
                for name in differing
                if (value := units[0]["parameters"][name]) is not None
            ]
            if said:
                yield ", ".join(said) + ":"
                yield ""
            rows = [
                (
                    DESCRIPTIONS.get(name, f"`{name}`"),
                    *(middle(spread_of(units, name, path)) for path in head),
                )
                for name in names_of(units)
            ]
            yield from table(("", *head.values()), rows)
            yield ""

    return lines


def _all(unit: Unit, names: Sequence[str]) -> dict[str, object]:
    return {name: unit["parameters"].get(name) for name in names}


def _curve(curve: str) -> Callable[[Results], Iterator[str]]:
    head = {
        "p50_ms": "p50, ms",
        "p99_ms": "p99, ms",
        "records_per_s": "records/s",
        "checkpoint_ms": "checkpoint, ms",
        "recovery_s": "recovery, s",
    }

    def lines(results: Results) -> Iterator[str]:
        units = matching(results.units("curves"), {"curve": curve})
        rows = [
            (f"`{name}`", *(middle(spread_of(units, name, path)) for path in head))
            for name in names_of(units)
        ]
        yield from table(("", *head.values()), rows)

    return lines


def _long_run(results: Results) -> Iterator[str]:
    units = [
        unit for unit in results.units("long_run") if "verdicts" in unit["samples"].get("ours", {})
    ]
    if not units:
        return
    unit = units[-1]
    verdicts = unit["samples"]["ours"]["verdicts"]
    yield (
        f"{unit['parameters']['minutes']:g} minutes at {unit['parameters']['rate']:,.0f} records/s:"
    )
    yield ""
    rows = [
        (
            f"`{name}`",
            number(each["first"]),
            number(each["last"]),
            number(each["growth"]),
            number(each["allowed"]),
            "flat" if each["flat"] else "**grows**",
        )
        for name, each in verdicts.items()
    ]
    yield from table(("", "first fifth", "last fifth", "growth", "allowed", ""), rows)


def _ad_jobs(results: Results) -> Iterator[str]:
    head = {
        "records_per_s": "records/s",
        "busy": "busy",
        "cpu_s_per_million.total": "CPU s per million",
        "cpu_s_per_million.job": "of it job",
        "peak_mb.job": "peak MB (job)",
        "latency.p50_ms": "p50, ms",
        "latency.p99_ms": "p99, ms",
        "latency.max_ms": "max, ms",
    }
    for (events, batch, rate), units in plans_of(
        results.units("ad_jobs"), ("events", "batch", "rate")
    ).items():
        yield (
            f"**{events:,} events, at most {batch:,} records in a batch; latency at {rate:,} "
            "records/s:**"
        )
        yield ""
        rows = []
        for name in names_of(units):
            kept = by_round(units, name, "latency.kept_up").values()
            note = "failed" if not kept else "" if all(kept) else "did not keep up"
            rows.append(
                (jobs.text_of(name), *(middle(spread_of(units, name, path)) for path in head), note)
            )
        yield from table(("", *head.values(), ""), rows)
        yield ""


def _profiles(results: Results) -> Mapping[str, Any]:
    return profile_page.profiles(of_this_clone=results.folder == FOLDER)


def _settings(results: Results) -> Iterator[str]:
    plain = Load()
    given = ", ".join(f"`{name}={value}`" for name, value in plain.producer().items())
    consumer = ", ".join(f"`{name}={value}`" for name, value in plain.consumer().items())
    yield (
        f"Producers: {given}; for latency `linger.ms={plain.for_latency().linger_ms}`. "
        f"Consumers, tuned: {consumer}."
    )
    if not results.units():
        yield _NOTHING


_ROWS = {
    "rows_per_s": "rows/s",
    "batch_s": "a batch, s",
    "cpu_s_per_million.total": "CPU s per million",
}
_PARTS: Mapping[str, Callable[[Results], Iterable[str]]] = {
    "machine": _machine,
    "settings": _settings,
    "targets": _targets,
    "missed": lambda results: missed.lines(results.units()),
    "throughput": _throughput,
    "first-place": _first_place,
    "profile": lambda results: profile_page.steps(_profiles(results)),
    "profile-database": lambda results: profile_page.database(_profiles(results)),
    "profile-restart": lambda results: profile_page.restart(_profiles(results)),
    "latency": _latency,
    "latency-parts": _latency_parts,
    "python-tasks": _plain(
        "python_tasks",
        {
            "job": "a job, ms",
            "task": "a task, ms",
            "to_python": "to the function, ms",
            "first_rows": "to its first rows, ms",
            "from_python": "from its result to the end, ms",
        },
    ),
    "recovery": _plain(
        "recovery",
        {
            "seconds": "to the first record, s",
            "seconds_to_new_input": "to the first one sent after the kill, s",
        },
    ),
    "commit-cost": _plain(
        "commit_cost",
        {
            "p50_ms": "p50, ms",
            "p99_ms": "p99, ms",
            "parts.decision": "decision, ms",
            "parts.commit:kafka": "Kafka, ms",
            "parts.commit:file": "files, ms",
            "parts.commit:postgres": "PostgreSQL, ms",
            "batch_ms": "whole batch, ms",
        },
    ),
    "databases": _plain("databases", _ROWS),
    "files": _plain("files", _ROWS),
    "three-sinks": _plain("three_sinks", _ROWS),
    "spark-settings": _plain(
        "spark_settings",
        {"records_per_s": "records/s", "cpu_s_per_million.total": "CPU s per million"},
    ),
    "triggers": _curve("trigger"),
    "state-stores": _curve("state"),
    "long-run": _long_run,
    "ad-jobs": _ad_jobs,
}
