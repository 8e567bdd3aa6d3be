"""What must come out, computed from the data set in plain Python, and the judgement of what did
come out.

Neither Spark nor onceforall is used here. What the judgement means:

- A row's *identity* is the flight's id, or the airport and the hour of a window: every one must be
  in the output once.
- **lost**: identities of which no correct row was read.
- **duplicated**: rows beyond the first of an identity, whatever is in them.
- **wrong**: rows whose content differs from the truth, or whose identity the truth does not have. A
  window that was summed from half of its flights is lost (the true row is missing) and wrong (this
  one is there instead).

Each output is judged on its own. That all outputs of a query have the same batches is judged
besides, by the batch id that each row bears: an output in which a batch is missing that another one
has *disagrees* with it, even where both are without fault in the end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from onceforall.demo.flights import Flight

LATE_AFTER_MINUTES = 15
"""A flight counts as late when it arrives more than this late."""

Row = Mapping[str, Any]
Truth = Mapping[str, Row]
Batches = Mapping["int | None", Counter[str]]
"""The rows of each batch id, as a multiset; those under None bear no batch id that could be
read."""


class Record(NamedTuple):
    """A row as a reader found it in an output.

    Attributes:
        batch: the id that it bears; None: none that can be read.
        row: what it says otherwise: texts and numbers, fields without a value left out; anything
            else where it can't be read.
    """

    batch: int | None
    row: Any


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
    """Return the row that the windowed aggregation must give for each airport and hour with a
    scheduled departure, by identity.
    """
    windows: dict[tuple[str, str], dict[str, Any]] = {}
    for flight in flights:
        hour = flight.scheduled.strftime("%Y-%m-%dT%H:00")
        empty = {
            "origin": flight.origin,
            "day": hour[:10],
            "hour": hour,
            "flights": 0,
            "cancelled": 0,
            "minutes_late": 0,
        }
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


@dataclass(frozen=True)
class Judged:
    """What an output has: the comparison with the truth, and its rows by batch."""

    verdict: Verdict
    batches: Batches


@dataclass(frozen=True)
class Agreement:
    """Whether the outputs of a query have the same rows in each batch.

    Attributes:
        batches: how many batches there are, those counted that only one output has.
        disagreeing: the ids of those whose rows differ between outputs, in their order; -1 stands
            for rows without one.
    """

    batches: int
    disagreeing: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it for the report."""
        return {"batches": self.batches, "disagreeing": list(self.disagreeing)}


def judge(truth: Truth, records: Iterable[Record]) -> Judged:
    """Compare an output with the truth.

    Args:
        truth: the expected rows by identity, from `true_events` or `true_windows`.
        records: all that a reader sees, in any order.
    """
    copies: Counter[str] = Counter()
    correct: set[str] = set()
    batches: dict[int | None, Counter[str]] = {}
    read = wrong = 0
    for batch, row in records:
        read += 1
        identity = _identity(row)
        is_correct = identity in truth and _is_same(row, truth[identity])
        if identity in truth:
            copies[identity] += 1
        if is_correct:
            correct.add(identity)
        else:
            wrong += 1
        # A correct row is told by its identity alone, a wrong one by all that it says.
        batches.setdefault(batch, Counter())[identity if is_correct else _described(row)] += 1
    verdict = Verdict(
        expected=len(truth),
        read=read,
        lost=len(truth) - len(correct),
        duplicated=copies.total() - len(copies),
        wrong=wrong,
    )
    return Judged(verdict, batches)


def agreement(outputs: Iterable[Batches]) -> Agreement:
    """Compare the outputs of a query with each other, batch by batch."""
    found = list(outputs)
    ids = {batch for batches in found for batch in batches}
    differing = [
        batch for batch in ids if any(other.get(batch) != found[0].get(batch) for other in found)
    ]
    return Agreement(len(ids), tuple(sorted(-1 if batch is None else batch for batch in differing)))


def _event_row(flight: Flight) -> Row:
    row = {
        "id": flight.id,
        "flight": f"{flight.carrier} {flight.number}",
        "route": f"{flight.origin}-{flight.destination}",
        "day": flight.scheduled.strftime("%Y-%m-%d"),
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


def _is_same(row: Row, expected: Row) -> bool:
    """Compare values and their types: 5.0 is not 5, and True is not 1."""
    return row == expected and all(type(row[name]) is type(expected[name]) for name in expected)


def _described(row: Any) -> str:
    return "not as expected: " + json.dumps(row, sort_keys=True, default=repr)


def _identity(row: Any) -> str:
    """Return the identity of a row, or one that no truth has."""
    if not isinstance(row, dict):
        return ""
    if "id" in row:
        return event_identity(row)
    return window_identity(row) if "origin" in row and "hour" in row else ""
