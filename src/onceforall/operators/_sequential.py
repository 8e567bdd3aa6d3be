"""Windows of which a key has one open at a time: sessions, tumbling count windows, tumbling time
windows.

Events come in order. An open window has deadlines: one at which it closes, one at which it is due
for an early result. A deadline holds for the time it names: an event at exactly that time still
belongs to the window, so it takes effect before the first later event, or when the clock says that
nothing of that time is to come any more. So what comes out depends on the events and their order
only, and not on how they were cut into batches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceforall.operators import _folding as folding
from onceforall.operators._events import Event, Log, to_text


@dataclass(frozen=True)
class Result:
    """What one window says, in JSON values: at its end (``window``) or before it (``early``)."""

    kind: str
    index: int
    start_us: int
    end_us: int | None
    events: int
    revision: int
    closed_by: str | None
    values: tuple[Any, ...]


@dataclass(frozen=True)
class SequentialRules:
    """When a window closes and when it speaks early; None where a rule doesn't apply. Times in
    microseconds.

    Args:
        events: it closes with this many events.
        gap_us: it closes when no event came for longer than this.
        duration_us: it closes when an event would be later than its first one by more than this.
        size_us: windows are cut at the multiples of this since 1970-01-01T00:00:00 UTC, and start
            there.
        early_events: an early result after this many events that no result has shown.
        early_us: an early result when the oldest such event is this old.
        numbered: windows are numbered through per key; otherwise, among those of the key that start
            at the same time.
    """

    events: int | None = None
    gap_us: int | None = None
    duration_us: int | None = None
    size_us: int | None = None
    early_events: int | None = None
    early_us: int | None = None
    numbered: bool = False

    @property
    def timed(self) -> bool:
        """Whether time alone can make a window say something."""
        return any(
            rule is not None
            for rule in (self.gap_us, self.duration_us, self.size_us, self.early_us)
        )

    @property
    def shape(self) -> str:
        """What must not change while state exists."""
        return f"sequential:{self.size_us}:{self.numbered}"


class SequentialWindows:
    """The windows of one key in one step."""

    def __init__(
        self, rules: SequentialRules, columns: Sequence[folding.Column], stored: Any, rows: Log
    ) -> None:
        self._rules = rules
        self._columns = columns
        self._rows = rows
        self._keeps_rows = [
            number for number, column in enumerate(columns) if column.fold == "rows"
        ]
        self._open: dict[str, Any] | None = None if stored is None else stored.get("open")
        self._next: int = 0 if stored is None else stored.get("next", 0)
        self._last_start: int | None = None
        if self._open is not None and not rules.numbered:
            self._last_start, self._next = self._open["start"], self._open["index"] + 1
        self.results: list[Result] = []

    def take(self, event: Event, time_us: int) -> None:
        """Add an event; none of an earlier time may follow."""
        self.settle(time_us - 1)
        if self._open is None:
            self._open = self._opened(time_us)
        window = self._open
        window["totals"] = folding.add(self._columns, window["totals"], event.values)
        window["events"] += 1
        window["last"] = time_us
        window["unshown"] += 1
        if window["since"] is None:
            window["since"] = time_us
        if self._keeps_rows:
            self._rows.append(to_text([event.values[number] for number in self._keeps_rows]))
        if self._rules.events is not None and window["events"] >= self._rules.events:
            self._close("count", time_us)
        elif self._rules.early_events is not None and window["unshown"] >= self._rules.early_events:
            self._speak_early()

    def settle(self, until_us: int) -> None:
        """Let every deadline take effect up to this time, the time itself included."""
        while self._open is not None:
            closing, early = self._closing(), self._early_at()
            if (
                closing is not None
                and closing[0] <= until_us
                and (early is None or closing[0] <= early)
            ):
                _, reason, end_us = closing
                self._close(reason, end_us)
            elif early is not None and early <= until_us:
                self._speak_early()
            else:
                return

    def deadline_us(self) -> int | None:
        """Return when the open window has something to say next if no event comes."""
        if self._open is None:
            return None
        closing = self._closing()
        times = [
            time
            for time in (None if closing is None else closing[0], self._early_at())
            if time is not None
        ]
        return min(times, default=None)

    def stored(self) -> Mapping[str, Any] | None:
        """Return what must be kept for this key; None if nothing must."""
        kept: dict[str, Any] = {}
        if self._open is not None:
            kept["open"] = self._open
        if self._rules.numbered:
            kept["next"] = self._next
        return kept or None

    def _opened(self, time_us: int) -> dict[str, Any]:
        size = self._rules.size_us
        start = time_us if size is None else time_us // size * size
        if self._rules.numbered or start == self._last_start:
            index, self._next = self._next, self._next + 1
        else:
            index, self._next = 0, 1
        self._last_start = start
        return {
            "index": index,
            "start": start,
            "last": time_us,
            "events": 0,
            "unshown": 0,
            "since": None,
            "revision": 0,
            "totals": folding.empties(self._columns),
        }

    def _closing(self) -> tuple[int, str, int] | None:
        """Return the time, the reason and the window's end of the first rule that closes the
        open window without an event.
        """
        window, rules = self._open, self._rules
        assert window is not None
        found = []
        if rules.gap_us is not None:
            end = window["last"] + rules.gap_us
            found.append((end, "gap", end))
        if rules.duration_us is not None:
            end = window["start"] + rules.duration_us
            found.append((end, "duration", end))
        if rules.size_us is not None:
            end = window["start"] + rules.size_us
            found.append((end - 1, "time", end))
        return min(found, key=lambda rule: rule[0], default=None)

    def _early_at(self) -> int | None:
        assert self._open is not None
        if self._rules.early_us is None or self._open["since"] is None:
            return None
        return int(self._open["since"] + self._rules.early_us)

    def _speak_early(self) -> None:
        window = self._open
        assert window is not None
        self.results.append(self._result("early", None, None))
        window["unshown"], window["since"] = 0, None
        window["revision"] += 1

    def _close(self, reason: str, end_us: int) -> None:
        self.results.append(self._result("window", reason, end_us))
        self._open = None
        if self._keeps_rows:
            self._rows.replace([])

    def _result(self, kind: str, reason: str | None, end_us: int | None) -> Result:
        window = self._open
        assert window is not None
        return Result(
            kind=kind,
            index=window["index"],
            start_us=window["start"],
            end_us=end_us,
            events=window["events"],
            revision=window["revision"],
            closed_by=reason,
            values=values_of(
                self._columns, window["totals"], self._rows.entries() if self._keeps_rows else []
            ),
        )


def values_of(
    columns: Sequence[folding.Column], totals: Sequence[Any], rows: Sequence[str]
) -> tuple[Any, ...]:
    """Return the output of each aggregate; ``rows`` are the kept rows of the window's events,
    each a list with a text per ``Rows``.
    """
    kept = [json.loads(row) for row in rows]
    found: list[Any] = []
    lists = iter(range(len(columns)))
    for column, total in zip(columns, totals, strict=True):
        if column.fold == "rows":
            number = next(lists)
            found.append([row[number] for row in kept])
        else:
            found.append(folding.result(column, total))
    return tuple(found)
