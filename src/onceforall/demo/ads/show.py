"""Prints the ledger: the truth, and beside it what each destination says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onceforall.demo.ads.jobs import ONCEFORALL, SPARK
from onceforall.demo.ads.ledger import money
from onceforall.demo.display import NAMES
from onceforall.errors import MissingExtraError

_SHOWN = {"topic": "Kafka", "files": "Parquet", "table": "PostgreSQL"}
_ROWS = {
    "impressions": "impressions",
    "clicks": "clicks",
    "spend_micros": "spend",
    "commission_micros": "commission",
    "read": "rows",
    "lost": "lost",
    "duplicated": "doubled",
    "wrong": "wrong",
}
# Where it is no terminal, which has a width of its own.
_WIDTH = 100


def show_ledger(report: dict[str, Any], writer: str) -> None:
    """Print the table of one pipeline."""
    try:
        from rich.table import Table
    except ImportError as error:
        raise MissingExtraError("rich", "demo") from error
    result = report["results"][writer]
    table = Table(
        title=f"the ledger of {report['events']:,} ad events: {NAMES[writer]}, "
        f"{len(result['kills'])} kills"
    )
    for name in ("", "the truth", *(_SHOWN[destination] for destination in result["destinations"])):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, shown in _ROWS.items():
        table.add_row(shown, *_cells(name, report["truth"], result["destinations"].values()))
    _console().print(table)


def show(report: dict[str, Any]) -> None:
    """Print the tables of a report."""
    from rich.table import Table

    for writer in report["results"]:
        show_ledger(report, writer)
    table = Table(title="what was put aside")
    table.add_column("reason", no_wrap=True)
    for name in ("the truth", *(NAMES[writer] for writer in report["results"])):
        table.add_column(name, justify="right")
    for reason, cells in _put_aside(report):
        table.add_row(reason, *cells)
    _console().print(table)


def _console() -> Any:
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


def _cells(name: str, truth: dict[str, int], destinations: Iterable[dict[str, int]]) -> list[str]:
    form = money if name.endswith("_micros") else "{:,}".format
    found = [
        _coloured(form(numbers[name]), same=numbers[name] == truth[name])
        for numbers in destinations
    ]
    return [form(truth[name]), *found]


def _put_aside(report: dict[str, Any]) -> list[tuple[str, list[str]]]:
    results = report["results"]
    rows = []
    for reason in sorted(
        {reason for result in results.values() for reason in result["dead_letters"]}
    ):
        found = [
            result["dead_letters"].get(reason, {"expected": 0, "read": 0})
            for result in results.values()
        ]
        expected = max(each["expected"] for each in found)
        rows.append(
            (
                reason,
                [
                    f"{expected:,}",
                    *(
                        _coloured(f"{each['read']:,}", same=each["read"] == expected)
                        for each in found
                    ),
                ],
            )
        )
    late = [result["late"] for result in results.values()]
    rows.append(
        (
            "late",
            [
                f"{late[0]['expected']:,}",
                *(
                    _coloured(f"{each['read']:,}", same=each["read"] == each["expected"])
                    for each in late
                ),
            ],
        )
    )
    return rows


def _coloured(text: str, *, same: bool) -> str:
    return f"[{'green' if same else 'red'}]{text}[/]"


def conclusion(report: dict[str, Any]) -> str:
    """Return the result in a few sentences."""
    texts = []
    if ours := report["results"].get(ONCEFORALL):
        if report["passed"]:
            texts.append(
                f"onceforall: the ledgers are equal, {money(report['truth']['spend_micros'])} "
                "spent in all three destinations, after "
                f"{len(ours['kills'])} kills."
            )
        else:
            texts.append("onceforall FAILED: " + " ".join(report["failures"][ONCEFORALL]))
    if theirs := report["results"].get(SPARK):
        differing = report["failures"][SPARK]
        texts.append(
            f"Spark's own writers, after {len(theirs['kills'])}: "
            + (
                " ".join(differing)
                if differing
                else "equal, too, this time; they promise at-least-once, and another --seed will "
                "show it."
            )
        )
    return "\n".join(texts)
