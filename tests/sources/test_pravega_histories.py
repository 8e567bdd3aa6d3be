"""Random histories of a modelled stream and a query of it: whatever comes together of scalings,
truncations, limits and restarts, each event is read once and in its key's order, or its loss was
told."""

from __future__ import annotations

import json
import random
import sys

import pytest

from onceforall.errors import DataLossError
from onceforall.sources.pravega import planning, reading
from onceforall.sources.pravega.options import parse
from onceforall.sources.pravega.positions import Offset, ranges
from onceforall.sources.spark_reader import Limits
from sources.pravega_model import ModelStream

SEEDS_OF_A_TEST = 200
_STEPS = 40
_MOST_PLANS = 300


class History:
    """A stream, a query of it, and what came of each event.

    Attributes:
        read: the batch that each event was read in, by the event's number.
        excused: the events that the query need not read: those from before its beginning, and those
            whose loss it has told.
        steps: what was done, for the message of a failure.
    """

    def __init__(self, seed):
        """Nothing has happened yet; everything follows from the seed."""
        chance = self._chance = random.Random(seed)
        self._stream = ModelStream(chance, chance.randint(1, 4))
        self._beginning = chance.choice(["EARLIEST", "LATEST"])
        self._truncations = chance.choice([0, 0, 1, 3])
        self._offsets, self._rows = [], {}
        self.read, self.excused, self.steps = {}, set(), []
        self._planner = self._new_planner(strict=True)

    def play(self):
        """Take the steps that chance chooses, then read what is left."""
        weights = {
            self._fill: 6,
            self._stream.scale: 3,
            self._stream.truncate: self._truncations,
            self.plan: self._chance.choice([2, 8]),
            self._plan_for_nothing: 0.5,
            self._drain: 1,
            self._restart: 1,
            self._replay: 1,
            self._available_now: 1,
        }
        for step in self._chance.choices(list(weights), list(weights.values()), k=_STEPS):
            self.steps.append(step.__name__.strip("_"))
            step()
        self.steps.append("the end")
        self._restart()
        self._drain()
        left = self._unread()
        there = sorted(left & self._stream.left())
        assert not left, f"not read and not told: {sorted(left)}, of which are there: {there}"
        self._check_order()

    def plan(self, until=None):
        """Plan a batch and read it; where a loss is told, accept it. Return whether there may be
        more."""
        try:
            return self._plan(until)
        except DataLossError as error:
            self.steps.append(f"told: {error}")
        assert self._truncations, "a false alarm"
        self._planner = self._new_planner(strict=False)
        self._plan(until, strict=False)
        self.excused |= self._unread() - self._stream.left()
        self._restart()
        return True

    def _fill(self):
        self._stream.fill(self._chance.randint(1, 10))

    def _plan_for_nothing(self):
        """Spark ends before it has written where the batch ends."""
        try:
            self._planner.plan(self._start(), self._limits(), None)
        except DataLossError:
            assert self._truncations, "a false alarm"

    def _drain(self, until=None):
        for _ in range(_MOST_PLANS):
            if not self.plan(until):
                return
        raise AssertionError("the query doesn't come to an end of what is there")

    def _restart(self):
        self._planner = self._new_planner(strict=True)

    def _replay(self):
        """Read the last batch again, as after a crash."""
        number = len(self._offsets) - 1
        if number in self._rows:
            try:
                rows = self._read_batch(number)
            except DataLossError:
                gone = set(self._rows[number]) - self._stream.left()
                assert gone, f"nothing of batch {number} is gone, and its replay is refused"
            else:
                assert rows == self._rows[number], f"a replay of batch {number} gives other rows"

    def _available_now(self):
        """Read what is there at a moment, and nothing that comes after it."""
        there = len(self._stream.written)
        until = self._planner.now()
        self._stream.fill(self._chance.randint(0, 5))
        if self._chance.random() < 0.5:
            self._stream.scale()
        self._stream.fill(self._chance.randint(0, 3))
        told = len(self.steps)
        self._drain(until)
        left = self._unread() & self._stream.left() & set(range(there))
        assert not left or not self._offsets, f"availableNow has left {sorted(left)}"
        later = self.read.keys() - set(range(there))
        # Behind a loss it goes on with what is left, whatever came when.
        assert not later or len(self.steps) > told, f"availableNow has read {sorted(later)}"

    def _new_planner(self, strict):
        given = {
            "controller": "127.0.0.1:1",
            "scope": "s",
            "stream": "e",
            "startingPosition": self._beginning,
            "failOnDataLoss": str(strict).lower(),
        }
        planner = planning.Planner(parse(given))
        planner._segments.close()
        planner._segments = self._stream
        return planner

    def _limits(self):
        return Limits(self._chance.choice([None, 1, 3, 10]), self._chance.choice([None, None, 40]))

    def _start(self):
        return Offset.from_json(self._offsets[-1]) if self._offsets else Offset()

    def _plan(self, until, strict=True):
        start, already = self._start(), set(range(len(self._stream.written)))
        end = self._planner.plan(start, self._limits(), until)
        if end is start:
            return False
        if not self._offsets:
            latest = self._beginning == "LATEST"
            self.excused |= already if latest else already - self._stream.left()
        self._offsets.append(json.loads(json.dumps(end.to_json())))
        number = len(self._offsets) - 1
        rows = self._read_batch(number, strict)
        if strict:
            self._rows[number] = rows
        for row in rows:
            assert row not in self.read, f"event {row} is read twice"
            self.read[row] = number
        origins = {self._stream.written[row] for row in rows}
        assert len(origins) == len({key for key, _ in origins}), (
            f"batch {number} reads a key from two segments at the same time: {sorted(origins)}"
        )
        return True

    def _read_batch(self, number, strict=True):
        start = Offset.from_json(self._offsets[number - 1]) if number else Offset()
        access = self._planner._options.access
        return [
            int(row[0].split(b".")[0])
            for todo in ranges(start, Offset.from_json(self._offsets[number]))
            for row in reading._rows(self._stream, access, todo, fail_on_data_loss=strict)
        ]

    def _unread(self):
        """Return what the query has still to read, whether or not it is there."""
        return set(range(len(self._stream.written))) - self.read.keys() - self.excused

    def _check_order(self):
        last = {}
        for row, batch in sorted(self.read.items()):
            key, _ = self._stream.written[row]
            assert last.get(key, 0) <= batch, f"event {row} of {key} is read before an older one"
            last[key] = batch


@pytest.mark.parametrize(
    "first",
    [
        0,
        *(
            pytest.param(first, marks=pytest.mark.long)
            for first in range(SEEDS_OF_A_TEST, 2000, SEEDS_OF_A_TEST)
        ),
    ],
)
def test_in_any_history_each_event_is_read_once_and_in_order_or_its_loss_is_told(first):
    """A failure says the seed and what was done; the seed alone makes the same history again."""
    with_rows = told = 0
    for seed in range(first, first + SEEDS_OF_A_TEST):
        history = History(seed)
        try:
            history.play()
        except Exception:
            sys.stderr.write(f"seed {seed}: {'; '.join(history.steps)}\n")
            raise
        with_rows += len(history.read) > 10
        told += any(step.startswith("told") for step in history.steps)
    assert with_rows > SEEDS_OF_A_TEST * 0.9
    assert SEEDS_OF_A_TEST * 0.1 < told < SEEDS_OF_A_TEST * 0.9
