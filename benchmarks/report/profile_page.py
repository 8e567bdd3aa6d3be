"""The parts of the page that come from profiles: ``profile.json``, see ``profile_path``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.contenders.pipes import DESCRIPTIONS
from benchmarks.report.grouping import value_of
from benchmarks.report.markdown import number, table
from benchmarks.steps import profile_path, threads

_GROUPS = {"jvm": "Spark's JVM", "workers": "Python workers", "broker": "broker"}
_DATABASE_HEAD = {
    "rows_per_s": "rows/s",
    "batch_s": "a batch, s",
    "cpu_s_per_million.job": "CPU s per million, job",
    "cpu_s_per_million.server": "server",
}
_DATABASE_STAGES = {
    "noop": "the rows into nothing",
    "arrow": "the rows into an empty Python function",
}
_RESTART_HEAD = {
    "all": "in all",
    "ready": "until the query is started",
    "batch": "the first batch",
    "plan": "of it plan",
    "write": "of it write",
    "recover": "log and sinks",
    "job": "the job",
}
_WITH = {"daemon": "`onceforall.worker_daemon`", "classes": "an archive of classes"}


def profiles(*, of_this_clone: bool) -> dict[str, Any]:
    """Return the profiles by name: those of this clone, if it has any and they are wanted, or
    else the published ones.
    """
    file = profile_path.OUT / "profile.json"
    if not of_this_clone or not file.exists():
        file = profile_path.PUBLISHED
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


def steps(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what each step of a record's way costs, and which threads pay for it."""
    for name, profile in sorted(found.items()):
        if name in {"database", "restart"}:
            continue
        stages = profile["stages"]
        yield f"**{name}** ({_taken(profile)}); microseconds per record:"
        yield ""
        rows = [
            (
                DESCRIPTIONS.get(stage, stage),
                *(number(figures["cpu_us"].get(group)) for group in _GROUPS),
                number(figures["cpu_total_us"]),
                number(figures["wall_us"]),
            )
            for stage, figures in stages.items()
        ]
        yield from table(
            ("", *(f"CPU, {text}" for text in _GROUPS.values()), "CPU in all", "wall"), rows
        )
        yield ""
        kinds = [
            kind
            for kind in threads.KINDS
            if any(kind in figures["threads"] for figures in stages.values())
        ]
        shares = [
            (
                DESCRIPTIONS.get(stage, stage),
                *(f"{figures['threads'].get(kind, 0):.0%}" for kind in kinds),
            )
            for stage, figures in stages.items()
        ]
        yield from table(("share of the CPU time", *kinds), shares)
        yield ""


def database(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the steps of the way into PostgreSQL leave."""
    profile = found.get("database")
    if profile is not None:
        yield f"{_taken(profile)}:"
        yield ""
        yield from _stages(
            profile,
            _DATABASE_HEAD,
            {name: _DATABASE_STAGES.get(name, f"`{name}`") for name in profile["stages"]},
        )


def restart(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield where the time of a restart goes."""
    profile = found.get("restart")
    if profile is not None:
        yield f"Seconds, each the median of its kills ({_taken(profile)}):"
        yield ""
        yield from _stages(
            profile, _RESTART_HEAD, {name: _restarted(name) for name in profile["stages"]}
        )


def _restarted(name: str) -> str:
    contender, *given = name.split("+")
    described = DESCRIPTIONS.get(contender, contender)
    return (
        f"{described}, with {' and '.join(_WITH[each] for each in given)}" if given else described
    )


def _stages(
    profile: Mapping[str, Any], head: Mapping[str, str], texts: Mapping[str, str]
) -> Iterator[str]:
    stages: Mapping[str, Mapping[str, Any]] = profile["stages"]
    rows: list[Sequence[str]] = [
        (texts[name], *(number(value_of(stage, path)) for path in head))
        for name, stage in stages.items()
    ]
    yield from table(("", *head.values()), rows)


def _taken(profile: Mapping[str, Any]) -> str:
    return f"{profile['at']}, commit {profile['commit']}"
