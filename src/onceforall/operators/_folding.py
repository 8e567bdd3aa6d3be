"""Aggregates that are kept incrementally: each has an empty total, takes a value, and joins two
totals in order.

Totals are JSON values. All are associative in the order of the events; those of integers and
decimals are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onceforall.operators._events import Value

_LONG = 2**63


@dataclass(frozen=True)
class Column:
    """One aggregate of a window.

    Args:
        name: the output column, for error messages.
        fold: ``count``, ``sum``, ``min``, ``max``, ``first``, ``last`` or ``rows`` (which is not
            folded: its values are kept).
        value: how its input travels.
        limit: what a sum must stay below, in units of its last digit; one of decimals by its
            absolute value.
    """

    name: str
    fold: str
    value: Value
    limit: int = _LONG


def empty(column: Column) -> Any:
    """Return the total of no events; ``first`` and ``last`` keep their value in a list, for it
    may be null.
    """
    return {"count": 0, "first": [], "last": []}.get(column.fold)


def with_value(column: Column, total: Any, value: Any) -> Any:
    """Return the total with one more value at the end."""
    if column.fold == "count":
        return total + (value is not None)
    if column.fold == "first":
        return total or [value]
    if column.fold == "last":
        return [value]
    return joined(column, total, value)


def joined(column: Column, left: Any, right: Any) -> Any:
    """Return the total of two stretches of events, the left one before the right one."""
    fold = column.fold
    if fold == "first":
        return left or right
    if fold == "last":
        return right or left
    if left is None or right is None:
        return right if left is None else left
    if fold in {"count", "sum"}:
        return left + right
    return min(left, right, key=_rank) if fold == "min" else max(left, right, key=_rank)


def result(column: Column, total: Any) -> Any:
    """Return a total as JSON for the output column.

    Raises:
        OverflowError: a sum that its type can't hold.
    """
    if column.fold == "count":
        return total
    if column.fold in {"first", "last"}:
        return column.value.dump(total[0]) if total else None
    # Of whole numbers there is one more below zero than above.
    lowest = -column.limit if column.value.kind == "int" else 1 - column.limit
    if column.fold == "sum" and isinstance(total, int) and not lowest <= total < column.limit:
        raise OverflowError(
            f"The sum in the column {column.name!r} has no room in its type; cast its input to a "
            "wider decimal."
        )
    return column.value.dump(total)


def empties(columns: Sequence[Column]) -> list[Any]:
    """Return the totals of no events; ``rows`` has none."""
    return [empty(column) for column in columns]


def add(columns: Sequence[Column], totals: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return totals with one more event at the end."""
    return [
        None if column.fold == "rows" else with_value(column, total, value)
        for column, total, value in zip(columns, totals, values, strict=True)
    ]


def join(columns: Sequence[Column], left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    """Return the totals of two stretches of events."""
    return [joined(column, a, b) for column, a, b in zip(columns, left, right, strict=True)]


def _rank(value: Any) -> tuple[bool, Any]:
    """Sort NaN behind every other number, as Spark does."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return (is_nan, 0.0 if is_nan else value)
