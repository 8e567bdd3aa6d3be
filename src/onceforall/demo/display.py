"""Shows how the demo goes: progress bars in a terminal, plain lines elsewhere (continuous
integration, a pipe).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onceforall.demo.outcome import BAD
from onceforall.demo.outputs import SINKS
from onceforall.demo.report import SINK_NAMES, agreement_words
from onceforall.errors import MissingExtraError

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import TaskID
    from typing_extensions import Self

_LINE_INTERVAL_S = 5.0
NAMES = {"onceforall": "onceforall", "spark": "Spark's writers"}
"""How the writers are called where people read."""


class Display:
    """Bars or lines, one for each writer. Use it as a context manager."""

    def __init__(self, events: int, kills: int) -> None:
        """Take how many events and kills each writer will have."""
        try:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                Progress,
                TaskProgressColumn,
                TextColumn,
                TimeElapsedColumn,
            )
        except ImportError as error:
            raise MissingExtraError("rich", "demo") from error
        self._console = Console(highlight=False, soft_wrap=True)
        self._events = events
        self._kills = kills
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description:<15}"),
            BarColumn(bar_width=28),
            TaskProgressColumn(),
            TextColumn("{task.fields[kills]}/{task.fields[planned]} kills"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[state]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._console.print(text, markup=False)

    def watch(self, key: str) -> RunWatcher:
        """Begin a writer's bar and return who is to be told."""
        self._tasks[key] = self._progress.add_task(
            NAMES[key], total=self._events, kills=0, planned=self._kills, state="starting"
        )
        return RunWatcher(self, key)

    def update(self, key: str, taken: int, kills: int, state: str) -> bool:
        """Move a writer's bar; tell whether there is one."""
        # The closing event is one more than there are flights.
        self._progress.update(
            self._tasks[key], completed=min(taken, self._events), kills=kills, state=state
        )
        if state == "done":
            self._progress.stop_task(self._tasks[key])
        return self._console.is_terminal

    def line(self, key: str, taken: int, kills: int, state: str) -> None:
        """Print what the bar would show."""
        share = 100 * min(taken, self._events) // self._events
        self.say(
            f"{NAMES[key]}: {min(taken, self._events):,} of {self._events:,} events ({share} %), "
            f"{kills} kills, {state}"
        )

    def table(self, results: Mapping[str, Mapping[str, Any]]) -> None:
        """Print the last tables: one row per writer and sink, and one per writer, from the
        report.
        """
        from rich.table import Table

        table = Table(title="after the kills, each sink read and compared with the truth")
        for name in ("writer", "sink"):
            table.add_column(name, no_wrap=True)
        for name in ("expected", "read", "lost", "doubled", "wrong"):
            table.add_column(name, justify="right")
        for writer, result in results.items():
            for sink in SINKS:
                row = result["sinks"][sink]
                first = NAMES[writer] if sink == SINKS[0] else ""
                bad = [_coloured(row[name]) for name in BAD]
                table.add_row(
                    first, SINK_NAMES[sink], f"{row['expected']:,}", f"{row['read']:,}", *bad
                )
            table.add_section()
        self._console.print(table)
        table = Table(title="all three sinks together")
        table.add_column("writer", no_wrap=True)
        for name in ("kills", "batches disagreed on", "seen in part", "left behind"):
            table.add_column(name, justify="right")
        for writer, result in results.items():
            torn = sum(seen["partial_batches"] for seen in result["concurrent_reads"].values())
            left = sum(result["leftovers"].values())
            table.add_row(
                NAMES[writer],
                str(result["kills"]),
                agreement_words(result),
                _coloured(torn),
                _coloured(left),
            )
        self._console.print(table)


def _coloured(number: int) -> str:
    return f"[{'red' if number else 'green'}]{number:,}[/]"


class RunWatcher:
    """What a run tells, on the display."""

    def __init__(self, display: Display, key: str) -> None:
        self._display = display
        self._key = key
        self._said_at = 0.0
        self._state = ""

    def progress(self, taken: int, kills: int, state: str) -> None:
        """Take how many events both queries have completed, the kills so far, and what the
        driver does.
        """
        drawn = self._display.update(self._key, taken, kills, state)
        now = time.monotonic()
        if not drawn and (
            state == "done" != self._state or now - self._said_at >= _LINE_INTERVAL_S
        ):
            self._display.line(self._key, taken, kills, state)
            self._said_at, self._state = now, state

    def note(self, text: str) -> None:
        """Take something that happened."""
        self._display.say(f"{NAMES[self._key]}: {text}")
