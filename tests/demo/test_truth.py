"""The truth and the judge: every planted fault is found, and none that is not there."""

from __future__ import annotations

import json

import pytest

from onceforall.demo.truth import Verdict, judge, true_events, true_windows


def values_of(truth):
    return [json.dumps(row).encode() for row in truth.values()]


@pytest.fixture(scope="module", params=[true_events, true_windows])
def truth(request, flights):
    return request.param(flights)


def test_an_exact_output_is_exact_in_any_order(truth):
    verdict = judge(truth, reversed(values_of(truth)))
    assert verdict == Verdict(expected=len(truth), read=len(truth), lost=0, duplicated=0, wrong=0)
    assert verdict.is_exact


def test_a_lost_row_is_found(truth):
    values = values_of(truth)
    del values[17]
    verdict = judge(truth, values)
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (1, 0, 0)
    assert not verdict.is_exact


def test_every_further_copy_of_a_row_counts_as_doubled(truth):
    values = values_of(truth)
    verdict = judge(truth, [*values, values[3], values[3], values[9]])
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (0, 3, 0)
    assert not verdict.is_exact


def test_a_loss_and_a_double_do_not_cancel_out(truth):
    values = values_of(truth)
    verdict = judge(truth, [*values[1:], values[-1]])
    assert verdict.read == verdict.expected
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (1, 1, 0)
    assert not verdict.is_exact


def test_a_window_with_a_wrong_sum_is_wrong_and_the_true_one_lost(flights):
    truth = true_windows(flights)
    values = values_of(truth)
    row = json.loads(values[5])
    values[5] = json.dumps({**row, "minutes_late": row["minutes_late"] + 1}).encode()
    verdict = judge(truth, values)
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (1, 0, 1)
    assert not verdict.is_exact


def test_a_window_that_was_written_in_two_parts_is_doubled_and_wrong(flights):
    truth = true_windows(flights)
    values = values_of(truth)
    row = json.loads(values[5])
    parts = [{**row, "flights": 1}, {**row, "flights": row["flights"] - 1}]
    verdict = judge(truth, [*values[:5], *values[6:], *(json.dumps(part).encode() for part in parts)])
    assert (verdict.lost, verdict.duplicated) == (1, 1)
    assert verdict.wrong >= 1


@pytest.mark.parametrize("stranger", [b'{"id": 123456789}', b"{}", b"", b"[1]", b"{torn", b'"text"', b'{"origin": "EWR"}'])
def test_a_row_that_nobody_expected_is_wrong(truth, stranger):
    verdict = judge(truth, [*values_of(truth), stranger])
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (0, 0, 1)
    assert not verdict.is_exact


def test_an_empty_output_has_lost_everything(truth):
    assert judge(truth, []).lost == len(truth)


def test_the_windows_count_every_flight_once(flights):
    windows = true_windows(flights).values()
    assert sum(window["flights"] for window in windows) == len(flights)
    assert sum(window["cancelled"] for window in windows) == sum(flight.departure_delay_minutes is None for flight in flights)


def test_a_known_flight_and_its_hour_are_what_the_data_set_says(flights):
    # The first row of the data set: UA 1545 from Newark to Houston on 1 January 2013 at 5:15 local time, 2 minutes late, and 11 at arrival.
    assert true_events(flights)["0"] == {
        "id": 0,
        "flight": "UA 1545",
        "route": "EWR-IAH",
        "scheduled": "2013-01-01T10:15",
        "km": 2252,
        "status": "on time",
        "minutes_gained": -9,
    }
    first_hour = [flight for flight in flights if flight.origin == "EWR" and flight.scheduled.isoformat() < "2013-01-01T11"]
    window = true_windows(flights)["EWR 2013-01-01T10:00"]
    assert window["flights"] == len(first_hour) == 2
    assert window["minutes_late"] == sum(flight.arrival_delay_minutes for flight in first_hour)
