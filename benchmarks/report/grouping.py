"""Picks figures out of kept units: by plan, by contender, by round. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.report import figures

Unit = Mapping[str, Any]
"""A unit as it is kept; see ``results``."""


def value_of(sample: Mapping[str, Any], path: str) -> float | None:
    """Return a figure of a sample by its dotted path; None when it isn't there, or the contender
    failed.
    """
    found: Any = sample
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return float(found) if isinstance(found, (int, float)) else None


def by_round(units: Iterable[Unit], contender: str, figure: str) -> dict[int, float]:
    """Return a contender's figure by round, from units of one plan."""
    found: dict[int, float] = {}
    for unit in units:
        value = value_of(unit["samples"].get(contender, {}), figure)
        if value is not None:
            found[unit["round"]] = value
    return found


def matching(units: Iterable[Unit], where: Mapping[str, Any]) -> list[Unit]:
    """Return the units whose parameters have these values."""
    return [
        unit
        for unit in units
        if all(unit["parameters"].get(name) == value for name, value in where.items())
    ]


def plans_of(units: Iterable[Unit], by: Sequence[str]) -> dict[tuple[Any, ...], list[Unit]]:
    """Return units by some of their parameters, in the order in which they were taken."""
    found: dict[tuple[Any, ...], list[Unit]] = {}
    for unit in units:
        found.setdefault(tuple(unit["parameters"][name] for name in by), []).append(unit)
    return found


def names_of(units: Iterable[Unit]) -> list[str]:
    """Return the contenders of units, in the order of the first round's."""
    return list(
        dict.fromkeys(
            name for unit in sorted(units, key=lambda each: each["round"]) for name in unit["order"]
        )
    )


def spread_of(units: Iterable[Unit], contender: str, path: str) -> figures.Spread | None:
    """Return the spread of a contender's figure over the rounds of one plan; None when there is
    none.
    """
    values = list(by_round(units, contender, path).values())
    return figures.spread(values) if values else None
