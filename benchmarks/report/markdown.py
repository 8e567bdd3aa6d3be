"""Tables and numbers of the pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.report import figures


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; nothing without rows. Numbers stand on the right."""
    lines = [[str(cell) for cell in row] for row in rows]
    if not lines:
        return
    yield "| " + " | ".join(head) + " |"
    yield "|" + "|".join("---" if number == 0 else "---:" for number in range(len(head))) + "|"
    for line in lines:
        yield "| " + " | ".join(line) + " |"


def number(value: float | None) -> str:
    """Return a number with three significant digits or so, as people write it."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return (
        f"{value:.0f}"
        if abs(value) >= 100
        else f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
    )


def middle(found: figures.Spread | None) -> str:
    """Return a median with its range over the rounds."""
    if found is None:
        return "-"
    return (
        number(found.median)
        if found.count == 1
        else f"{number(found.median)} ({number(found.least)} to {number(found.most)})"
    )
