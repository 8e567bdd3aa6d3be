"""Whatever a row bears besides id and key is compared, and a table that each batch replaces is read
as what one batch left; what is wrong is reported under its own name."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pytest

from onceforall.testing.checker import (
    Rows,
    RunningCheck,
    StateTruth,
    TableTruth,
    UniformTruth,
    check_quiet,
    content_of,
    contents_of,
    findings,
    running_counts,
)

ROWS, KEYS = 20, 7


def contents(ids):
    """Texts as contents: what a person may look at."""
    return np.asarray([f"value of {n}" for n in ids.tolist()], np.str_)


def hashed(ids):
    return contents_of([[f"value of {n}" for n in ids.tolist()], (ids * 2).tolist()])


TRUTH = UniformTruth(ROWS, keys=KEYS, contents=contents)


def table(ids, *, of=contents, changed=()):
    ids = np.asarray(ids, np.int64)
    found = of(ids)
    for at in changed:
        found[at] = found[at - 1]
    return Rows(ids, keys=ids % KEYS, contents=found)


# --- when all is quiet ----------------------------------------------------------------------------


@pytest.mark.parametrize("of", [contents, hashed], ids=["texts", "numbers"])
def test_a_changed_value_is_reported_with_its_row_and_the_right_ones_are_not(of):
    truth = UniformTruth(ROWS, keys=KEYS, contents=of)
    assert check_quiet(truth, {"out": table(range(60), of=of)}, range(3)).ok
    report = check_quiet(truth, {"out": table(range(60), of=of, changed=[5, 44])}, range(3))
    assert report.kinds() == {findings.WRONG_VALUE}
    assert report.sinks["out"].changed == 2
    assert "wrong-value: out: 2 rows" in str(report.violations[0])
    assert "ids 5, 44" in str(report.violations[0])
    with pytest.raises(AssertionError, match="wrong-value"):
        report.raise_if_broken()


def test_the_order_of_rows_does_not_matter_to_their_values():
    order = np.random.default_rng(1).permutation(60)
    assert check_quiet(TRUTH, {"out": table(order)}, range(3)).ok


def test_a_duplicate_with_another_value_is_reported_for_both():
    rows = table([*range(60), 7], changed=[60])
    report = check_quiet(TRUTH, {"out": rows}, range(3))
    assert report.kinds() == {findings.DUPLICATED, findings.WRONG_VALUE}


@pytest.mark.parametrize("missing", ["keys", "contents"])
def test_what_the_truth_has_must_be_read(missing):
    rows = replace(table(range(60)), **{missing: None})
    check = RunningCheck(TRUTH)
    check.observe({"out": rows}, range(3), at_s=0)
    check.observe({"out": rows}, range(3), at_s=1)
    for report in (check_quiet(TRUTH, {"out": rows}, range(3)), check.report()):
        (violation,) = report.violations
        assert (violation.kind, violation.sink) == (findings.NOTHING_READ, "out")
        assert f"the truth has {missing}" in violation.text
        assert not report.ok


def test_what_is_read_and_no_truth_has_is_not_compared():
    assert check_quiet(UniformTruth(ROWS), {"out": table(range(60))}, range(3)).ok


def test_a_row_far_behind_the_last_batch_costs_no_memory_and_is_undecided():
    rows = table([*range(60), 10**15])
    assert check_quiet(TRUTH, {"out": rows}, range(3)).kinds() == {findings.UNDECIDED}


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "computed"])
def test_the_contents_of_listed_rows_follow_their_ids(listed):
    given = ["v b", "v a", "v c"] if listed else lambda ids: np.char.add("v ", ids)
    truth = TableTruth(["b", "a", "c"], [7, 5, 7], contents=given)
    right = Rows(np.asarray(["a", "c", "b"]), contents=np.asarray(["v a", "v c", "v b"]))
    assert check_quiet(truth, {"out": right}, {5, 7}).ok
    wrong = Rows(np.asarray(["a", "c", "b"]), contents=np.asarray(["v a", "v c", "v a"]))
    (violation,) = check_quiet(truth, {"out": wrong}, {5, 7}).violations
    assert (violation.kind, "ids b" in violation.text) == (findings.WRONG_VALUE, True)
    with pytest.raises(ValueError, match="same length"):
        TableTruth(["b", "a"], [0, 0], contents=["v b"])


def test_running_counts_have_contents_too():
    truth = running_counts(ROWS, 3, KEYS, lambda ids: np.char.add("v ", ids))
    ids = truth.ids_at(np.arange(21))
    right = counts(ids)
    assert check_quiet(truth, {"out": right}, range(3)).ok
    wrong = replace(right, contents=np.char.add("w ", ids))
    report = check_quiet(truth, {"out": wrong}, range(3))
    assert report.sinks["out"].changed == 21


def test_only_contents_of_rows_that_are_there_are_computed_each_once():
    asked = []
    truth = UniformTruth(ROWS, contents=lambda ids: asked.extend(ids.tolist()) or contents(ids))
    for _ in range(2):
        assert check_quiet(truth, {"out": table([*range(20), *range(40, 60)])}, {0, 2}).ok
    assert sorted(asked) == [*range(20), *range(40, 60)]


def test_values_are_compared_over_the_borders_of_blocks():
    truth = UniformTruth(ROWS, contents=hashed)
    ids = np.arange(20_000)
    rows = Rows(ids, contents=hashed(ids))
    assert check_quiet(truth, {"out": rows}, range(1000)).ok
    rows.contents[17_000] += 1
    assert check_quiet(truth, {"out": rows}, range(1000)).sinks["out"].changed == 1


def test_rows_and_contents_must_have_the_same_length():
    with pytest.raises(ValueError, match="same length"):
        Rows(np.arange(2), contents=np.arange(1))


# --- what a content is ----------------------------------------------------------------------------


def at(microsecond):
    """An instant as sinks without time zones have it."""
    return datetime(2026, 1, 1, 0, 0, 0, microsecond)  # noqa: DTZ001  without a zone on purpose


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([None], [""]),
        ([None], ["-"]),
        (["ab", ""], ["a", "b"]),
        (["a", None], [None, "a"]),
        (["1:a"], ["a"]),
        ([b"a"], [b"a\0"]),
        ([0.0], [-0.0]),
        ([1.0], [math.nextafter(1.0, 2)]),
        ([Decimal("1.50")], [Decimal("1.51")]),
        ([Decimal(100)], [Decimal(1)]),
        ([True], [False]),
        ([at(1)], [at(0)]),
        ([[("a", b"x"), ("a", None)]], [[("a", None), ("a", b"x")]]),
        ([[("a", None)]], [[("a", b"")]]),
        ([[]], [None]),
        ([1], ["1"]),
        ([1], [True]),
        ([Decimal("1.5")], ["1.5"]),
        ([1.0], [1]),
        ([1.0], ["3ff0000000000000"]),
        ([True], ["true"]),
        ([b"a"], ["61"]),
        ([b"a"], [61]),
        ([date(2026, 1, 2)], ["2026-01-02"]),
        ([at(1)], [1_767_225_600_000_001]),
        ([date(2026, 1, 1)], [at(0)]),
        ([[]], ["[]"]),
        ([{}], [[]]),
        ([[1]], [["1"]]),
        ([{"a": 1}], [{"a": "1"}]),
    ],
)
def test_different_values_have_different_contents(one, other):
    assert content_of(one) != content_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([Decimal("1.50")], [Decimal("1.5000")]),
        ([Decimal("3.00")], [3]),
        ([Decimal("-0.0")], [Decimal(0)]),
        ([Decimal("12345678901234567890123456789012.10")],
         [Decimal("12345678901234567890123456789012.1")]),
        ([at(0)], [at(0).replace(hour=2, tzinfo=timezone(timedelta(hours=2)))]),
        ([b"ab"], [bytearray(b"ab")]),
        ([("a", b"x")], [["a", b"x"]]),
        ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}]),
        ([math.nan], [-math.nan]),
        ([np.float64(1.5)], [1.5]),
        ([np.float32(0.5)], [0.5]),
        ([np.int32(-7)], [-7]),
        ([np.bool_(True)], [True]),
        ([np.str_("a")], ["a"]),
    ],
)  # fmt: skip
def test_equal_values_have_equal_contents_whatever_a_sink_makes_of_them(one, other):
    assert content_of(one) == content_of(other)


def test_contents_of_columns_are_those_of_their_rows():
    columns = [["a", None, "ü☃"], [date(2026, 1, 2), None, date(1, 1, 1)], [True, 1, 2.5]]
    assert contents_of(columns).tolist() == [content_of(row) for row in zip(*columns, strict=True)]
    with pytest.raises(ValueError, match="at least one column"):
        contents_of([])


# --- while drivers run ----------------------------------------------------------------------------


def test_a_changed_value_is_reported_while_running():
    check = RunningCheck(TRUTH)
    check.observe({"out": table(range(20))}, range(1), at_s=0)
    assert not check.violations
    check.observe({"out": table(range(40), changed=[33])}, range(2), at_s=1)
    (violation,) = check.violations
    assert (violation.kind, "ids 33" in violation.text) == (findings.WRONG_VALUE, True)


KEPT = np.arange(4)


def state(batch):
    """Batch n leaves a count of n for each of four keys; the first batch leaves nothing."""
    ids = [f"{key}:{batch}" for key in KEPT] if batch else []
    return TableTruth(
        np.asarray(ids, np.str_),
        [batch] * len(ids),
        keys=np.asarray([text[0] for text in ids], np.str_),
        contents=lambda ids: np.char.add("v ", ids),
    )


def shown(batch, *, key=None, value=None):
    ids = state(batch)._ids if batch >= 0 else np.empty(0, np.str_)
    keys, values = ids.astype("U1"), np.char.add("v ", ids)
    if key is not None:
        keys[0] = key
    if value is not None:
        values[0] = value
    return Rows(ids, keys=keys, contents=values)


def counts(ids):
    ids = np.asarray(ids, np.str_)
    return Rows(ids, keys=ids.astype("U1"), contents=np.char.add("v ", ids))


def replaced(*looks, **more):
    """Feed looks, each of (what the table shows, number of decided batches), a second apart."""
    check = RunningCheck({"out": StateTruth(state)}, **more)
    for second, (rows, decided) in enumerate(looks):
        check.observe({"out": rows}, range(decided), at_s=second)
    return check.report()


def test_a_table_that_shows_one_decided_batch_after_the_other_is_not_blamed():
    report = replaced(
        (shown(-1), 0),
        (shown(-1), 1),
        (shown(0), 1),
        (shown(0), 2),
        (shown(1), 2),
        (shown(1), 3),
        (shown(4), 5),
        (shown(4), 6),
        (shown(5), 6),
    )
    assert report.ok, report.violations


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (shown(5), findings.UNDECIDED),
        (shown(2), findings.WENT_BACK),
        (shown(-1), findings.WENT_BACK),
        (counts(["0:3", "1:3", "2:4", "3:4"]), findings.TORN),
        (counts(["0:4", "1:4", "2:4"]), findings.TORN),
        (counts(["0:4", "1:4", "2:4", "3:4", "3:4"]), findings.TORN),
        (counts(["0:4", "1:4", "2:4", "3:4", "9:9"]), findings.TORN),
        (shown(4, key="x"), findings.WRONG_KEY),
        (shown(4, value="x"), findings.WRONG_VALUE),
    ],
    ids=["undecided", "older", "empty", "of two batches", "a part", "twice", "and more", "key",
         "value"],
)  # fmt: skip
def test_a_table_that_shows_anything_else_is_reported(rows, kind):
    report = replaced((shown(3), 4), (rows, 5))
    assert report.kinds() == {kind}


def test_a_table_that_is_two_decided_batches_behind_is_reported_once_it_had_its_time():
    looks = (shown(3), 5), (shown(3), 6), (shown(3), 6), (shown(5), 6)
    assert replaced(*looks).kinds() == {findings.BEHIND}
    assert replaced(*looks, settle_s={"out": 10}).ok


def test_when_all_is_quiet_the_last_batch_must_be_there_and_nothing_else():
    truth = {"out": StateTruth(state)}
    assert check_quiet(truth, {"out": shown(4)}, range(5)).ok
    assert findings.ALIEN in check_quiet(truth, {"out": shown(3)}, range(5)).kinds()
    assert check_quiet(truth, {"out": shown(4, value="x")}, range(5)).kinds() == {
        findings.WRONG_VALUE
    }
    assert check_quiet(truth, {"out": shown(-1)}, range(5)).kinds() >= {findings.NOTHING_READ}
    assert check_quiet(truth, {"out": shown(-1)}, range(0)).kinds() == {findings.NOTHING_READ}
