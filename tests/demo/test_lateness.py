"""The watermark drops no flight: partitions may be read unevenly, but never by as much as the
delay."""

from __future__ import annotations

import math
import random
from datetime import timedelta

import pytest

from onceforall.demo.feed import CHUNK_EVENTS
from onceforall.demo.flights import PARTITIONS, event_of, load_flights
from onceforall.demo.job import WATERMARK_DELAY_DAYS


@pytest.fixture(scope="module")
def placed():
    """All flights' times with their partitions, in the order of publication."""
    return [(flight.scheduled, event_of(flight).partition) for flight in load_flights()]


def greatest_lateness(placed, seed):
    """Read as Spark does (each partition's share of the limit is its share of the lag) while the
    feed goes on at random."""
    chance = random.Random(seed)
    log = [[] for _ in range(PARTITIONS)]
    taken = [0] * PARTITIONS
    published = 0
    newest = placed[0][0]
    lateness = timedelta(0)
    while any(at < len(part) for at, part in zip(taken, log, strict=True)) or published < len(
        placed
    ):
        # The batch may begin in the middle of a chunk, when some partitions have all of it and
        # others nothing.
        upto = min(
            len(placed),
            published + chance.choice([0, 300, 1000, 20_000]) // CHUNK_EVENTS * CHUNK_EVENTS,
        )
        for time, partition in placed[published:upto]:
            log[partition].append(time)
        published = upto
        favoured = chance.randrange(PARTITIONS)
        ahead = [
            time
            for time, partition in placed[published : published + CHUNK_EVENTS]
            if partition == favoured
        ]
        visible = [
            len(part) + (len(ahead) if partition == favoured else 0)
            for partition, part in enumerate(log)
        ]
        lag = [end - at for end, at in zip(visible, taken, strict=True)]
        limit = chance.choice([12_000, 50_000])
        batch = []
        for partition in range(PARTITIONS):
            count = min(lag[partition], math.ceil(limit * lag[partition] / max(1, sum(lag))))
            times = log[partition] + (ahead if partition == favoured else [])
            batch += times[taken[partition] : taken[partition] + count]
            # What was read ahead of the feed's acknowledgement is in the log from now on.
            if partition == favoured and taken[partition] + count > len(log[partition]):
                log[partition] += ahead
                placed = [
                    entry
                    for at, entry in enumerate(placed)
                    if not (published <= at < published + CHUNK_EVENTS and entry[1] == favoured)
                ]
            taken[partition] += count
        if batch:
            lateness = max(lateness, newest - min(batch))
            newest = max(newest, *batch)
    assert sum(taken) == 336_776
    return lateness


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_no_flight_is_later_than_half_of_what_the_watermark_allows(placed, seed):
    assert greatest_lateness(placed, seed) < timedelta(days=WATERMARK_DELAY_DAYS / 2)
