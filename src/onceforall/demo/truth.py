"""What must come out, computed from the data set in plain Python, and the judgement of what did come out.

Neither Spark nor onceforall is used here. What the judgement means:

- A row's *identity* is the flight's id, or the airport and the hour of a window: every one must be in the output once.
- **lost**: identities of which no correct row was read.
- **duplicated**: rows beyond the first of an identity, whatever is in them.
- **wrong**: rows whose content differs from the truth, or whose identity the truth does not have. A window that was summed from half
  of its flights is lost (the true row is missing) and wrong (this one is there instead).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from onceforall.demo.flights import Flight

LATE_AFTER_MINUTES = 15
"""A flight counts as late when it arrives more than this late."""

Row = Mapping[str, Any]
Truth = Mapping[str, Row]


@dataclass(frozen=True)
class Verdict:
    """How an output compares with the truth; all are numbers of rows, see the module."""

    expected: int
    read: int
    lost: int
    duplicated: int
    wrong: int

    @property
    def is_exact(self) -> bool:
        """Whether every expected row was read once, and nothing else."""
        return self.read == self.expected and self.lost == self.duplicated == self.wrong == 0

    def as_dict(self) -> dict[str, int]:
        """Return the numbers for the report."""
        return asdict(self)


def true_events(flights: Iterable[Flight]) -> dict[str, Row]:
    """Return the row that the per-event transformation must give for each flight, by identity."""
    return {event_identity(row): row for row in map(_event_row, flights)}


def true_windows(flights: Iterable[Flight]) -> dict[str, Row]:
    """Return the row that the windowed aggregation must give for each airport and hour with a scheduled departure, by identity."""
    windows: dict[tuple[str, str], dict[str, Any]] = {}
    for flight in flights:
        hour = flight.scheduled.strftime("%Y-%m-%dT%H:00")
        empty = {"origin": flight.origin, "hour": hour, "flights": 0, "cancelled": 0, "minutes_late": 0}
        window = windows.setdefault((flight.origin, hour), empty)
        window["flights"] += 1
        window["cancelled"] += flight.departure_delay_minutes is None
        window["minutes_late"] += flight.arrival_delay_minutes or 0
    return {window_identity(window): window for window in windows.values()}


def event_identity(row: Row) -> str:
    """Return the identity of a transformed event."""
    return str(row["id"])


def window_identity(row: Row) -> str:
    """Return the identity of a window."""
    return f"{row['origin']} {row['hour']}"


def judge(truth: Truth, values: Iterable[bytes]) -> Verdict:
    """Compare the values of an output topic with the truth.

    Args:
        truth: the expected rows by identity, from `true_events` or `true_windows`.
        values: the values of all records that a reader sees, in any order.
    """
    copies: Counter[str] = Counter()
    correct: set[str] = set()
    read = wrong = 0
    for value in values:
        read += 1
        row = _parse(value)
        identity = _identity(row)
        if identity not in truth:
            wrong += 1
            continue
        copies[identity] += 1
        if row == truth[identity]:
            correct.add(identity)
        else:
            wrong += 1
    return Verdict(
        expected=len(truth), read=read, lost=len(truth) - len(correct), duplicated=copies.total() - len(copies), wrong=wrong
    )


def _event_row(flight: Flight) -> Row:
    row = {
        "id": flight.id,
        "flight": f"{flight.carrier} {flight.number}",
        "route": f"{flight.origin}-{flight.destination}",
        "scheduled": flight.scheduled.strftime("%Y-%m-%dT%H:%M"),
        "km": flight.distance_miles * 1609 // 1000,
    }
    if flight.departure_delay_minutes is None:
        return {**row, "status": "cancelled"}
    if flight.arrival_delay_minutes is None:
        return {**row, "status": "diverted"}
    late = flight.arrival_delay_minutes > LATE_AFTER_MINUTES
    gained = flight.departure_delay_minutes - flight.arrival_delay_minutes
    return {**row, "status": "late" if late else "on time", "minutes_gained": gained}


def _parse(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return None


def _identity(row: Any) -> str:
    """Return the identity of a row, or one that no truth has."""
    if not isinstance(row, dict):
        return ""
    if "id" in row:
        return event_identity(row)
    return window_identity(row) if "origin" in row and "hour" in row else ""
