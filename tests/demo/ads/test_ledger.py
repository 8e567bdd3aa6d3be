"""The ledger notices every kind of difference."""

from __future__ import annotations

from datetime import date, datetime, timezone

import pytest

from onceforall.demo.ads import ledger
from onceforall.demo.ads.destinations import as_true_row
from onceforall.demo.ads.generator import make_ground
from onceforall.demo.ads.truth import truth_of


@pytest.fixture(scope="module")
def truth():
    return truth_of(make_ground(3, 5_000))


@pytest.fixture
def rows(truth):
    """The rows of a destination without fault."""
    return [{"record_id": identity, **row} for identity, row in truth.ledger.items()]


def letters(truth):
    return [
        {"reason": reason, "topic": "ad-events", "partition": 0, "offset": 1_000 * place + number}
        for place, (reason, count) in enumerate(truth.dead_letters.items())
        for number in range(count)
    ]


def result(truth, rows, dead=None, late=None):
    return {
        "destinations": {"topic": ledger.account(truth, rows)},
        "dead_letters": ledger.account_of_dead_letters(
            truth, letters(truth) if dead is None else dead
        ),
        "late": ledger.account_of_late(truth, truth.late if late is None else late),
    }


def test_what_is_right_has_no_failures(truth, rows):
    assert ledger.failures(truth, result(truth, rows)) == []
    assert ledger.account(truth, rows) == ledger.true_account(truth)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows.append(rows[0]), "duplicated 1, not 0"),
        (lambda rows: rows.pop(), "lost 1, not 0"),
        (lambda rows: rows[0].update(spend_micros=rows[0]["spend_micros"] + 1), "wrong 1, not 0"),
        (lambda rows: rows[0].update(record_id="another"), "wrong 1, not 0"),
        (lambda rows: rows[0].update(day="2024-12-31"), "wrong 1, not 0"),
        (lambda rows: rows.append("no row at all"), "wrong 1, not 0"),
        (lambda rows: rows.clear(), "read 0, not"),
    ],
)
def test_each_difference_of_a_row_is_a_failure(truth, rows, change, words):
    change(rows)
    (failure,) = ledger.failures(truth, result(truth, rows))
    assert words in failure


def test_a_millionth_more_in_one_row_and_less_in_another_is_noticed(truth, rows):
    first, second = [row for row in rows if row["kind"] == "spend"][:2]
    first["spend_micros"] += 1
    second["spend_micros"] -= 1
    (failure,) = ledger.failures(truth, result(truth, rows))
    assert "wrong 2" in failure
    assert "spend_micros" not in failure


def test_dead_letters_that_are_doubled_lost_or_swapped_are_failures(truth, rows):
    whole = letters(truth)
    for dead in (
        whole[:-1],
        [*whole, whole[0]],
        [*whole[:-1], whole[-2]],
        [*whole, {"reason": "new"}],
    ):
        assert ledger.failures(truth, result(truth, rows, dead=dead))


def test_late_events_that_are_doubled_lost_or_unknown_are_failures(truth, rows):
    late = sorted(truth.late)
    for found in (late[:-1], [*late, late[0]], [*late[:-1], "unknown"]):
        assert ledger.failures(truth, result(truth, rows, late=found))


def test_a_truth_without_money_proves_nothing(truth, rows):
    empty = type(truth)({}, {}, frozenset())
    assert ledger.failures(empty, result(empty, [], dead=[], late=[])) == [
        "The truth is empty, so nothing was tested."
    ]


def test_rows_of_all_destinations_take_the_form_of_the_truth():
    moment = datetime(2024, 11, 29, 7, 15, 0, 123000, tzinfo=timezone.utc)
    wanted = {"kind": "spend", "happened_ms": 1_732_864_500_123}
    assert (
        as_true_row(
            {
                "kind": "spend",
                "happened": "2024-11-29T07:15:00.123Z",
                "day": "2024-11-29",
                "hour": "07",
            }
        )
        == wanted
    )
    assert (
        as_true_row(
            {
                "kind": "spend",
                "happened": moment,
                "day": date(2024, 11, 29),
                "hour": 7,
                "clicks": None,
            }
        )
        == wanted
    )
    # In another folder than it belongs to.
    assert (
        as_true_row({"kind": "spend", "happened": moment, "day": date(2024, 11, 29), "hour": 8})
        != wanted
    )


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "0.000000"), (1_234_567_890_123, "1,234,567.890123"), (-5, "-0.000005")],
)
def test_money_is_shown_to_the_last_millionth(micros, text):
    assert ledger.money(micros) == text
