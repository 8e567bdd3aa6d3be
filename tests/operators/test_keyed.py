"""The glue between ``transformWithState`` and rules, on Spark's own tester for stateful
processors, which needs no Spark."""

import json
import random
from collections import defaultdict

import pytest

from onceforall.errors import CheckpointMismatchError
from onceforall.operators.attribution import AttributionRules
from onceforall.operators.deduplication import DeduplicationRules
from onceforall.operators.matching import Order
from operators.attribution_reference import Stream, reference

tester = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="PySpark has it since 4.2")
STREAMS = 150
HOUR_MS = 3_600_000


class Scaled:
    """A random stream in units of half a millisecond, with watermarks of whole ones."""

    def __init__(self, seed):
        stream = Stream(seed)
        self.window = stream.window * 500
        self.batches = [
            (
                mark * 500 // 1000 * 1000,
                [(user, row._replace(time_us=row.time_us * 500)) for user, row in rows],
            )
            for mark, rows in stream.batches
        ]


class InRows:
    """A processor as ``transformWithState`` runs it: all rows of a batch, then the timers."""

    def __init__(self, rules):
        from onceforall.operators._keyed import KeyedProcessor

        self.tester = tester.TwsTester(
            KeyedProcessor(rules), timeMode="EventTime", eventTimeExtractor=lambda _: 2**62
        )

    def batch(self, watermark_ms, by_key):
        self.tester._currentWatermarkMs = watermark_ms
        self.tester.handle.setWatermark(watermark_ms)
        rows = [row for key, events in by_key.items() for row in self.taken(key, events)]
        return [*rows, *self.expired()]

    def taken(self, key, events):
        from pyspark.sql import Row

        return [
            tuple(row)
            for row in self.tester.test(
                key, [Row(key=key, event=event, row=row) for event, row in events]
            )
        ]

    def expired(self):
        return [tuple(row) for row in self.tester._handleExpiredTimers()]

    def most_timers(self):
        """Of any key."""
        timers = self.tester.handle._timers
        return max(
            (len(list(timers.listTimers(key))) for key in list(timers.getAllKeysWithTimers())),
            default=0,
        )

    def left(self):
        timers = self.tester.handle._timers
        states = self.tester.handle.value_states["state"].state
        return [value for value in states.values() if value is not None], list(
            timers.getAllKeysWithTimers()
        )


class InPandas(InRows):
    def __init__(self, rules):
        from onceforall.operators._keyed import PandasKeyedProcessor

        self.tester = tester.TwsTester(
            PandasKeyedProcessor(rules), timeMode="EventTime", eventTimeExtractor=lambda _: 2**62
        )

    def taken(self, key, events):
        import pandas as pd

        return self._rows(
            self.tester.testInPandas(key, pd.DataFrame(events, columns=["event", "row"]))
        )

    def expired(self):
        self.tester._usingPandas = True
        return self._rows(self.tester._handleExpiredTimers())

    @staticmethod
    def _rows(frame):
        return [tuple(row) for row in frame.itertuples(index=False)]


def event(row):
    fields = (
        {"t": row.time_us, "o": True}
        if isinstance(row, Order)
        else {"t": row.time_us, "k": row.tie}
    )
    return json.dumps(
        {name: value for name, value in fields.items() if value is not None}
    ), f"{type(row).__name__} {row.row}"


def expected(found):
    """What the reference says, without the user, who is not in the output of the rules."""
    return sorted(
        (status, f"Order {order.row}", click and f"Click {click.row}")
        for _, status, order, click in found
    )


@pytest.mark.parametrize("way", [InRows, InPandas])
def test_timers_and_state_of_a_processor_give_what_the_reference_gives_and_nothing_is_left(way):
    decided = 0
    for seed in range(STREAMS if way is InRows else STREAMS // 5):
        stream, draw = Scaled(seed), random.Random(seed)
        processor = way(AttributionRules(stream.window))
        for (watermark, rows), wanted in zip(stream.batches, reference(stream), strict=True):
            by_key = defaultdict(list)
            for user, row in draw.sample(rows, len(rows)):
                by_key[user].append(event(row))
            found = processor.batch(watermark // 1000, by_key)
            assert sorted(found, key=repr) == sorted(expected(wanted), key=repr), f"seed {seed}"
            assert processor.most_timers() <= 1, f"seed {seed}"
            decided += len(found)
        assert processor.left() == ([], []), f"seed {seed}"
    assert decided > 100


def test_times_before_1970_wait_for_the_first_watermark_which_is_none_at_0():
    processor = InRows(AttributionRules(60_000_000))
    click = (json.dumps({"t": -9_000_000}), "click")
    orders = [(json.dumps({"t": time, "o": True}), f"order {time}") for time in (-5_000_000, 0)]
    assert processor.batch(0, {"{}": [click, *orders]}) == []
    assert processor.batch(0, {"{}": []}) == []
    assert processor.most_timers() == 1
    assert processor.batch(1, {}) == [
        ("attributed", "order -5000000", "click"),
        ("attributed", "order 0", "click"),
    ]
    assert processor.batch(2, {"{}": orders[:1]}) == [("late", "order -5000000", None)]
    assert processor.batch(60_000, {}) == []
    assert processor.left() == ([], [])


def row(i, hour):
    return json.dumps({"t": hour * HOUR_MS * 1000}), f"{i} of hour {hour}"


def restarted(processor, rules):
    """The same state and timers under other rules."""
    again = type(processor)(rules)
    again.tester.handle = processor.tester.handle
    again.tester.processor.init(again.tester.handle)
    return again


@pytest.mark.parametrize("way", [InRows, InPandas])
def test_a_shorter_horizon_holds_for_ids_that_are_remembered_and_a_copy_at_its_end_is_a_duplicate(
    way,
):
    hours = {"short": 3600 * 10**6, "long": 720 * 3600 * 10**6}
    long = way(DeduplicationRules(hours["long"]))
    assert len(long.batch(HOUR_MS, {"a": [row("a", 10)], "b": [row("b", 10)]})) == 2
    short = restarted(long, DeduplicationRules(hours["short"]))
    assert short.batch(100 * HOUR_MS, {}) == []
    # Nothing within the horizon has been seen: what comes now is new, or late.
    assert short.batch(200 * HOUR_MS, {"a": [row("a", 240)], "b": [row("b", 150)]}) == [
        ("unique", "a of hour 240", None),
        ("late", "b of hour 150", None),
    ]
    # In the first batch whose watermark is a horizon past the row, a copy is a duplicate as ever.
    assert short.batch(241 * HOUR_MS, {"a": [row("a", 300)]}) == [
        ("duplicate", "a of hour 300", None)
    ]
    assert short.left() == ([], [])


def test_state_of_other_columns_is_refused_also_by_a_timer_and_that_of_earlier_releases_is_taken():
    events = [(json.dumps({"t": 7, "o": True}), "order"), (json.dumps({"t": 6}), "click")]
    for with_signature in (AttributionRules, DeduplicationRules):
        state = with_signature(60, 1).take(None, events, 5).state
        for other in (with_signature(90, 1), with_signature(60)):
            assert other.take(state, events, 5).out == with_signature(60).take(state, events, 5).out
            assert other.due(state, 500).state is None
        with pytest.raises(CheckpointMismatchError, match="checkpoint is that of another"):
            with_signature(60, 2).take(state, events, 5)
        with pytest.raises(CheckpointMismatchError, match="checkpoint is that of another"):
            with_signature(60, 2).due(state, 500)
        earlier = with_signature(60).take(None, events, 5).state
        assert (
            with_signature(60, 2).take(earlier, events, 5).out
            == with_signature(60).take(earlier, events, 5).out
        )
        assert with_signature(60, 2).due(earlier, 500) == with_signature(60).due(earlier, 500)


def test_an_order_of_nobody_or_of_no_time_is_told_at_once_and_leaves_nothing():
    processor = InRows(AttributionRules(10))
    events = [(json.dumps({"o": True}), "x"), (json.dumps({"o": True}), "a")]
    assert processor.batch(5, {"{}": events}) == [
        ("unmatched", "a", None),
        ("unmatched", "x", None),
    ]
    assert processor.left() == ([], [])
