"""Random histories of a modelled stream and a query of it: whatever comes together of splits,
merges, retention, limits, restarts and long stops, each record is read once and in its key's order,
or its loss was told."""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections import Counter
from datetime import datetime, timezone

import pytest

from onceforall.errors import DataLossError
from onceforall.sources.kinesis import planning, reading
from onceforall.sources.kinesis.options import parse
from onceforall.sources.kinesis.positions import Offset, ranges
from onceforall.sources.spark_reader import Limits
from sources.kinesis_model import HOUR_MS, ModelStream, ModelTime

SEEDS_OF_A_TEST = 200
_STEPS = 50
_HORIZON_MS = 600_000 + 120_000
"""What is forgotten within ten minutes the query needn't begin with; and a plan takes time."""
_MOST_PLANS = 300


class History:
    """A stream, a query of it, and what came of each record.

    Attributes:
        read: the batch that each record was read in, by the record's number.
        excused: the records that the query need not read: those from before its beginning, and
            those whose loss it has told.
        steps: what was done, for the message of a failure.
    """

    def __init__(self, seed, monkeypatch):
        """Nothing has happened yet.

        Args:
            seed: everything follows from it.
            monkeypatch: pytest's, with which the planner's clock is set.
        """
        chance = self._chance = random.Random(seed)
        quiet = chance.choice([0, 0, 0.3])
        self._stream = ModelStream(chance, chance.randint(1, 4), quiet)
        # The threads would take from chance in their own order.
        monkeypatch.setattr(planning, "_THREADS", 1)
        monkeypatch.setattr(planning, "time", ModelTime(self._stream))
        self._begin_ms, self._beginning = 0, chance.choice(["TRIM_HORIZON", "LATEST", ""])
        if not self._beginning:
            offset_ms = chance.choice([-1000, 5_000, 600_000, 5 * HOUR_MS])
            self._begin_ms = (self._stream.clock_ms + offset_ms) // 1000 * 1000
            at = datetime.fromtimestamp(self._begin_ms / 1000, timezone.utc).isoformat()
            self._beginning = f"AT_TIMESTAMP {at}"
        self._strict = True
        self._offsets = []
        self._rows = {}
        self.read = {}
        self.excused = set()
        self.steps = []
        self._note_whole()
        self._planner = self._new_planner()

    def play(self):
        """Take the steps that chance chooses, then read what is left."""
        chance = self._chance
        weights = {
            self._fill: 6,
            self._stream.split: chance.choice([1, 2, 5]),
            self._stream.merge: chance.choice([0, 1, 2, 5]),
            self._minutes: 3,
            self._hours: chance.choice([0, 2, 4]),
            self._a_day: chance.choice([0, 0.5, 2]),
            self.plan: chance.choice([0, 3, 8]),
            self._plan_for_nothing: 0.5,
            self._drain: chance.choice([0, 1.5]),
            self._restart: 1.5,
            self._replay: 1,
            self._set_retention: chance.choice([0, 0, 1]),
            self._available_now: chance.choice([0, 1, 3]),
        }
        for step in chance.choices(list(weights), list(weights.values()), k=_STEPS):
            self.steps.append(step.__name__.strip("_"))
            step()
        self.steps.append("the end")
        self._restart()
        self._drain()
        self._check_all_is_read()
        self._check_order()
        self._planner.close()

    # --- steps of the stream ----------------------------------------------------------------------

    def _fill(self):
        self._stream.fill(self._chance.randint(1, 12))

    def _minutes(self):
        self._stream.clock_ms += self._chance.randint(1, 600_000)

    def _hours(self):
        self._stream.clock_ms += self._chance.randint(1, 8) * HOUR_MS

    def _a_day(self):
        self._stream.clock_ms += self._chance.randint(10, 30) * HOUR_MS

    def _set_retention(self):
        self._stream.keep_for(self._chance.choice([24, 48, 72, 168]))
        self._least_ms = min(self._least_ms, self._stream.retention_ms)

    # --- steps of the query -----------------------------------------------------------------------

    def plan(self, until=None, limits=None):
        """Plan a batch and read it; where a loss is told, accept it. Return whether there may be
        more."""
        try:
            return self._plan(until, limits)
        except DataLossError as told:
            self.steps.append(f"told: {told}")
            self._check_alarm(told)
            self._accept(until)
            return True

    def _plan_for_nothing(self):
        """Spark ends before it has written where the batch ends."""
        with contextlib.suppress(DataLossError):
            self._planner.plan(self._start(), self._limits())

    def _drain(self, until=None):
        for _ in range(_MOST_PLANS):
            # A batch that ends by the clock may be empty though there is something; not the last
            # one of availableNow.
            if not self.plan(until, self._limits(seconds=None if until is None else 0.5)):
                self._note_whole(until)
                return
        raise AssertionError("the query doesn't come to an end of what is there")

    def _restart(self):
        self._planner.close()
        self._planner = self._new_planner()

    def _available_now(self):
        """Read what is there at a moment, and nothing that comes after it."""
        self._restart()
        there = len(self._stream.put)
        until = self._planner.now()
        self._stream.clock_ms += 1500
        self._stream.fill(self._chance.randint(0, 4))
        if self._chance.random() < 0.4:
            self._chance.choice([self._stream.split, self._stream.merge])()
        self._stream.fill(self._chance.randint(0, 3))
        self._drain(until)
        left = self._unread() & self._stream.left() & set(range(there))
        assert not left or not self._offsets, f"availableNow has left {sorted(left)}"
        later = self.read.keys() - set(range(there))
        assert not later, f"availableNow has read {sorted(later)}, which came later"

    def _replay(self):
        """Read one of the last two batches again, as after a crash."""
        number = len(self._offsets) - self._chance.choice([1, 2])
        if number not in self._rows:
            return
        try:
            rows = self._read_batch(number)
        except DataLossError:
            gone = self._planned(number) - self._stream.left()
            assert gone, f"nothing of batch {number} is gone, and its replay is refused"
        else:
            assert rows == self._rows[number], f"a replay of batch {number} gives other rows"

    # --- what the steps are made of ---------------------------------------------------------------

    def _new_planner(self):
        given = {
            "streamName": "s",
            "region": "us-east-1",
            "startingPosition": self._beginning,
            "failOnDataLoss": str(self._strict).lower(),
        }
        planner = planning.Planner(parse(given))
        planner._shards = self._stream
        return planner

    def _note_whole(self, until=None):
        """Note that there is nothing that the query hasn't read, or nothing until a time."""
        # What retention was when the query last looked counts, too.
        known = [one.retention_ms for one in self._start().streams.values()]
        known.append(self._stream.retention_ms)
        self._whole_ms = self._stream.clock_ms if until is None else until
        self._least_ms, self._renewed_ms = min(known), max(known) // 4

    def _check_alarm(self, told):
        """A query that has read everything may be stopped for three quarters of retention; where
        it was made shorter, for less."""
        stopped_ms = self._stream.clock_ms - self._whole_ms
        surely_ms = self._least_ms - self._renewed_ms - _HORIZON_MS
        assert stopped_ms > surely_ms, f"a false alarm: {told}"

    def _limits(self, seconds=0.5):
        chance = self._chance
        rows, size = chance.choice([None, 1, 4, 20]), chance.choice([None, None, 3])
        return Limits(rows, size, chance.choice([None, seconds]))

    def _start(self):
        return Offset.from_json(self._offsets[-1]) if self._offsets else Offset()

    def _plan(self, until, limits=None):
        start, stream = self._start(), self._stream
        already, there = len(stream.put), stream.left()
        end = self._planner.plan(start, limits or self._limits(), until)
        if end is start:
            return False
        if not self._offsets:
            self._excuse_before(already, there)
        self._offsets.append(json.loads(json.dumps(end.to_json())))
        if self._chance.random() < 0.05:
            self._hours()  # until the tasks run, or after a crash
        self._take(len(self._offsets) - 1)
        return True

    def _excuse_before(self, already, there):
        """Excuse what the query need not read as it begins now.

        Args:
            already: how many records had been put.
            there: those that were there.
        """
        oldest_ms = self._stream.clock_ms - self._stream.retention_ms + _HORIZON_MS
        for number in range(already):
            about_to_go = self._stream.put[number].arrival_ms < oldest_ms
            if number not in there or about_to_go or self._beginning == "LATEST":
                self.excused.add(number)

    def _take(self, number):
        """Read a batch for the first time."""
        try:
            rows = self._rows[number] = self._read_batch(number)
        except DataLossError as told:
            # Retention has passed a part of it between plan and task.
            self.steps.append(f"told by a task: {told}")
            rows = self._read_batch(number, strict=False)
            planned = self._planned(number)
            gone = planned - {row for row, _, _ in rows}
            left_out = gone & self._stream.left()
            assert gone, f"batch {number} is refused, and all of it is there"
            assert not left_out, f"batch {number} is read without {sorted(left_out)}"
            self.excused |= gone
        for row, _, _ in rows:
            assert row not in self.read, f"record {row} is read twice"
            self.read[row] = number
        shards = {(key, shard) for _, key, shard in rows}
        of_keys = Counter(key for key, _ in shards)
        assert all(count == 1 for count in of_keys.values()), (
            f"batch {number} reads a key from two shards at the same time: {sorted(shards)}"
        )

    def _unread(self):
        """Return what the query has still to read, whether or not it is there."""
        return {
            row
            for row, record in enumerate(self._stream.put)
            if record.arrival_ms >= self._begin_ms
            and row not in self.read
            and row not in self.excused
        }

    def _ranges(self, number):
        start = Offset.from_json(self._offsets[number - 1]) if number else Offset()
        return ranges(start, Offset.from_json(self._offsets[number]))

    def _planned(self, number):
        """Return all that the stream ever had between the ends of a batch."""
        return {
            row
            for todo in self._ranges(number)
            for row, record in enumerate(self._stream.put)
            if self._stream.put_into[row] == todo.shard
            and int(todo.start) - todo.inclusive < int(record.sequence_number) <= int(todo.end)
        }

    def _read_batch(self, number, strict=None):
        strict = self._strict if strict is None else strict
        return [
            (int(record.data), record.partition_key, todo.shard)
            for todo in self._ranges(number)
            for record in reading.records(self._stream, todo, fail_on_data_loss=strict)
        ]

    def _accept(self, until):
        """Start with failOnDataLoss=false for some batches, and then as before."""
        self._strict = False
        self._restart()
        for _ in range(self._chance.choice([1, 3, _MOST_PLANS])):
            more = self._plan(until)
            self.excused |= self._unread() - self._stream.left()
            if not more:
                break
        self._strict = True
        self._restart()

    # --- what must hold in the end ----------------------------------------------------------------

    def _check_all_is_read(self):
        left = self._unread()
        there = sorted(left & self._stream.left())
        assert not left, f"not read and not told: {sorted(left)}, of which are there: {there}"

    def _check_order(self):
        last = {}
        for row, batch in sorted(self.read.items()):
            key = self._stream.put[row].partition_key
            assert last.get(key, 0) <= batch, f"record {row} of {key} is read before an older one"
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
def test_in_any_history_each_record_is_read_once_and_in_order_or_its_loss_is_told(
    first, monkeypatch
):
    """A failure says the seed and what was done; the seed alone makes the same history again."""
    with_rows = told = 0
    for seed in range(first, first + SEEDS_OF_A_TEST):
        with monkeypatch.context() as patched:
            history = History(seed, patched)
            try:
                history.play()
            except Exception:
                sys.stderr.write(f"seed {seed}: {'; '.join(history.steps)}\n")
                raise
        with_rows += len(history.read) > 10
        told += any(step.startswith("told") for step in history.steps)
    assert with_rows > SEEDS_OF_A_TEST * 0.9
    assert SEEDS_OF_A_TEST * 0.1 < told < SEEDS_OF_A_TEST * 0.9
