"""The glue to ``transformWithState`` in PySpark's own test harness, without a JVM: state, lists,
timers and rows of several keys."""

import json
import random

import pandas as pd
import pytest
from pyspark.sql import Row

from operators.test_windows_core import (
    COLUMNS,
    FOLDS,
    event_of,
    random_history,
    random_rules,
    spec_of,
)
from operators.window_reference import in_processing_time, outputs, split_late

harness = pytest.importorskip(
    "pyspark.sql.streaming.tws_tester", reason="the harness came with PySpark 4.2"
)

NEVER_LATE = (
    2**62
)  # the harness would drop what Spark does not drop here: the column with the watermark never reaches the processor


class Query:
    """Some keys in the harness, which is given the clock and a batch in turn."""

    def __init__(self, rules, *, event_time, pandas=False):
        from onceforall.operators import _processors as processors

        spec = spec_of(rules, event_time=event_time)
        timed = event_time or spec.rules.timed
        self.event_time, self.pandas = event_time, pandas
        kind = processors.PandasWindowProcessor if pandas else processors.WindowProcessor
        mode = "EventTime" if event_time else "ProcessingTime" if timed else "None"
        self.tester = harness.TwsTester(
            kind(spec, timed=timed), timeMode=mode, eventTimeExtractor=lambda _: NEVER_LATE
        )
        self.said, self.late = {}, {}

    def batch(self, clock_us, shares):
        """As Spark does it: rows first, then the timers that have expired. The harness's own
        methods fire timers before there are rows."""
        self.tester._currentProcessingTimeMs = self.tester._currentWatermarkMs = clock_us // 1000
        self.tester.handle.setWatermark(clock_us // 1000)
        for key, events in shares.items():
            rows = [
                {
                    "key": key,
                    "event": event_of(event).text,
                    "row": repr(event) if self.event_time else None,
                }
                for event in events
            ]
            if not rows:
                continue
            if self.pandas:
                self.take(self.tester.testInPandas(key, pd.DataFrame(rows)))
            else:
                self.take(self.tester.test(key, [Row(**row) for row in rows]))
        self.take(self.tester._handleExpiredTimers())

    def take(self, rows):
        for row in (
            rows.to_dict("records")
            if isinstance(rows, pd.DataFrame)
            else [row.asDict() for row in rows]
        ):
            if row["result"] is None:
                self.late.setdefault(row["key"], []).append(row["late"])
            else:
                assert row["late"] is None
                self.said.setdefault(row["key"], []).append(row["result"])


def read(text):
    fields = json.loads(text)
    values = [fields.get(f"v{number}") for number in range(len(COLUMNS))]
    return {
        **{
            name: fields.get(name)
            for name in ("kind", "index", "revision", "start", "end", "events", "closed_by")
        },
        **dict(zip((*FOLDS, "rows"), values, strict=True)),
        "rows": [json.loads(one) for one in values[-1]],
    }


@pytest.mark.parametrize("event_time", [True, False], ids=["event time", "processing time"])
@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])
def test_the_processor_gives_what_the_reference_gives(event_time, pandas):
    windows = late = 0
    for seed in range(40 if pandas else 200):
        rng = random.Random(f"adapter {seed}")
        rules = random_rules(rng)
        first = random_history(rng, event_time=event_time)
        histories = {"a": first}
        for key in "bc":
            other = random_history(rng, event_time=event_time)
            if event_time:
                histories[key] = [
                    (clock, other[n % len(other)][1]) for n, (clock, _) in enumerate(first)
                ]
            else:
                histories[key] = [
                    (c, [(c, *e[1:]) for e in other[n % len(other)][1]])
                    for n, (c, _) in enumerate(first)
                ]
            histories[key][-1] = (first[-1][0], [])
        query = Query(rules, event_time=event_time, pandas=pandas)
        for number, (clock, _) in enumerate(first):
            query.batch(clock, {key: history[number][1] for key, history in histories.items()})
        for key, history in histories.items():
            on_time, too_late = (
                split_late(history) if event_time else (in_processing_time(history), [])
            )
            expected = [
                {**row, "sum": None if row["sum"] is None else int(row["sum"])}
                for row in outputs(rules, on_time, history[-1][0])
            ]
            assert [read(text) for text in query.said.get(key, [])] == expected, (
                f"seed {seed}, key {key}: {rules}\n{history}"
            )
            assert query.late.get(key, []) == [repr(event) for event in too_late], f"seed {seed}"
            windows, late = windows + len(expected), late + len(too_late)
    assert windows > 100
    assert late > 100 or not event_time


def test_a_key_without_an_open_session_has_neither_state_nor_timer():
    from operators.window_reference import Rules

    query = Query(Rules(gap=1_000_000), event_time=True)
    query.batch(1_000_000, {"a": [(5_000_000, None, 1, 1)], "b": [(500_000, None, 2, 2)]})
    tester = query.tester
    assert tester.peekValueState("head", "a") is not None
    assert tester.peekListState("pending", "a")
    assert tester.peekValueState("head", "b") is None, "a late row leaves nothing"
    query.batch(5_500_000, {})
    assert tester.peekListState("pending", "a") == []
    assert tester.peekListState("rows", "a")
    query.batch(6_000_000, {})
    assert [read(text)["closed_by"] for text in query.said["a"]] == ["gap"]
    assert tester.peekValueState("head", "a") is None
    assert tester.peekListState("rows", "a") == []
    assert list(tester.handle._timers.getAllKeysWithTimers()) == []


def test_a_key_has_one_timer_however_many_events_come():
    from operators.window_reference import Rules

    query = Query(Rules(gap=1_000_000, duration=30_000_000, early=300_000), event_time=True)
    for second in range(1, 20):
        query.batch(
            second * 1_000_000,
            {
                "a": [
                    (second * 1_000_000 + ms * 1000, None, second * 10 + ms, 1)
                    for ms in (1, 2, 700)
                ]
            },
        )
        query.tester.handle.setGroupingKey("a")
        assert len(list(query.tester.handle.listTimers())) == 1


def test_a_decimal_with_a_negative_scale_is_carried_but_never_added_or_compared():
    from pyspark.sql.types import DecimalType

    from onceforall.operators import _columns as columns

    hundreds = DecimalType(5, -2)  # with spark.sql.legacy.allowNegativeScaleOfDecimal
    assert columns.sortable(hundreds) is None
    assert columns.sortable(hundreds, DecimalType(15, -2)) is None
    assert columns.carried(hundreds, "x").value.kind == "json"
    assert columns.sortable(DecimalType(5, 0)).value.kind == "decimal"
