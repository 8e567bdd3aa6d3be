"""Sliding count windows: window k of a key holds its events k·slide to k·slide + size - 1.

Events are gathered in panes of gcd(size, slide) events, and a window is the join of its panes: the
state is size / gcd(size, slide) panes, however large they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from onceforall.operators import _folding as folding
from onceforall.operators._events import Event, Log, to_text
from onceforall.operators._sequential import Result, values_of


@dataclass(frozen=True)
class SlidingRules:
    """A window of ``size`` events, every ``slide`` events; ``slide`` is not more than ``size``."""

    size: int
    slide: int

    @property
    def pane(self) -> int:
        """How many events a pane holds."""
        return math.gcd(self.size, self.slide)

    @property
    def timed(self) -> bool:
        """Time alone never makes such a window say something."""
        return False

    @property
    def shape(self) -> str:
        """What must not change while state exists."""
        return f"sliding:{self.size}:{self.slide}"


class SlidingWindows:
    """The windows of one key in one step."""

    def __init__(
        self, rules: SlidingRules, columns: Sequence[folding.Column], stored: Any, rows: Log
    ) -> None:
        self._rules = rules
        self._columns = columns
        self._rows = rows
        self._keeps_rows = [
            number for number, column in enumerate(columns) if column.fold == "rows"
        ]
        self._seen: int = 0 if stored is None else stored["seen"]
        self._panes: list[dict[str, Any]] = [] if stored is None else stored["panes"]
        self.results: list[Result] = []

    def take(self, event: Event, time_us: int) -> None:
        """Add an event; none of an earlier time may follow."""
        if self._seen % self._rules.pane == 0:
            self._panes.append({"start": time_us, "totals": folding.empties(self._columns)})
        pane = self._panes[-1]
        pane["totals"] = folding.add(self._columns, pane["totals"], event.values)
        self._seen += 1
        if self._keeps_rows:
            self._rows.append(to_text([event.values[number] for number in self._keeps_rows]))
        beyond = self._seen - self._rules.size
        if beyond >= 0 and beyond % self._rules.slide == 0:
            self._emit(beyond // self._rules.slide, time_us)

    def settle(self, until_us: int) -> None:
        """Do nothing: only events make these windows say something."""

    def deadline_us(self) -> int | None:
        """Return None: no time is waited for."""
        return None

    def stored(self) -> Mapping[str, Any] | None:
        """Return what must be kept for this key; None before its first event."""
        return {"seen": self._seen, "panes": self._panes} if self._seen else None

    def _emit(self, index: int, end_us: int) -> None:
        totals = reduce(
            lambda left, right: folding.join(self._columns, left, right),
            [p["totals"] for p in self._panes],
        )
        rows = self._rows.entries() if self._keeps_rows else []
        self.results.append(
            Result(
                kind="window",
                index=index,
                start_us=self._panes[0]["start"],
                end_us=end_us,
                events=self._rules.size,
                revision=0,
                closed_by="count",
                values=values_of(self._columns, totals, rows),
            )
        )
        self._panes = self._panes[self._rules.slide // self._rules.pane :]
        if self._keeps_rows:
            self._rows.replace(rows[self._rules.slide :])
