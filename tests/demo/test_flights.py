"""The data set and the events made of it."""

from __future__ import annotations

import json

import pytest

from onceforall.demo.flights import CLOSING_ID, PARTITIONS, closing_event, event_of, load_flights
from onceforall.errors import OptionError


@pytest.mark.long
def test_the_whole_data_set_has_its_known_size_and_unique_ids():
    flights = load_flights()
    assert len(flights) == 336_776
    assert {flight.id for flight in flights} == set(range(336_776))
    assert sum(flight.departure_delay_minutes is None for flight in flights) == 8255


@pytest.mark.long
def test_flights_come_in_the_order_of_their_scheduled_departure(flights):
    times = [flight.scheduled for flight in flights]
    assert times == sorted(times)


def test_a_flight_keeps_its_partition_and_all_partitions_are_used(flights):
    events = [event_of(flight) for flight in flights]
    partitions = {}
    for event in events:
        assert partitions.setdefault(event.key, event.partition) == event.partition
    assert set(partitions.values()) == set(range(PARTITIONS))


def test_an_event_leaves_out_what_a_cancelled_flight_lacks(flights):
    cancelled = next(flight for flight in flights if flight.departure_delay_minutes is None)
    fields = json.loads(event_of(cancelled).value)
    assert "departure_delay" not in fields
    assert fields["id"] == cancelled.id


def test_the_closing_event_is_no_flight_and_lies_after_all_of_them(flights):
    fields = json.loads(closing_event(flights[-1]).value)
    assert fields["id"] == CLOSING_ID
    assert fields["time"] > flights[-1].scheduled.strftime("%Y-%m-%dT%H:%M:%SZ")


def test_no_events_are_refused_with_the_remedy():
    with pytest.raises(OptionError, match="--events"):
        load_flights(0)
