"""The truth and the judge: every planted fault is found, and none that is not there."""

from __future__ import annotations

from collections import Counter

import pytest

from onceforall.demo.outputs import kafka_record
from onceforall.demo.truth import (
    Agreement,
    Record,
    Verdict,
    agreement,
    judge,
    true_events,
    true_windows,
)


def records_of(truth):
    return [Record(number // 1000, row) for number, row in enumerate(truth.values())]


def verdict_of(truth, records):
    return judge(truth, records).verdict


@pytest.fixture(scope="module", params=[true_events, true_windows])
def truth(request, flights):
    return request.param(flights)


def test_an_exact_output_is_exact_in_any_order(truth):
    verdict = verdict_of(truth, reversed(records_of(truth)))
    assert verdict == Verdict(expected=len(truth), read=len(truth), lost=0, duplicated=0, wrong=0)
    assert verdict.is_exact


def test_a_lost_row_is_found(truth):
    records = records_of(truth)
    del records[17]
    verdict = verdict_of(truth, records)
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (1, 0, 0)
    assert not verdict.is_exact


def test_every_further_copy_of_a_row_counts_as_doubled(truth):
    records = records_of(truth)
    verdict = verdict_of(truth, [*records, records[3], records[3], records[9]])
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (0, 3, 0)
    assert not verdict.is_exact


@pytest.mark.parametrize("change", [float, str])
def test_a_number_of_another_type_is_wrong(truth, change):
    records = records_of(truth)
    batch, row = records[0]
    name = next(name for name, value in row.items() if type(value) is int)
    records[0] = Record(batch, {**row, name: change(row[name])})
    assert verdict_of(truth, records).wrong == 1


def test_a_loss_and_a_double_do_not_cancel_out(truth):
    records = records_of(truth)
    verdict = verdict_of(truth, [*records[1:], records[-1]])
    assert verdict.read == verdict.expected
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (1, 1, 0)
    assert not verdict.is_exact


def test_a_window_with_a_wrong_sum_is_wrong_and_the_true_one_lost(flights):
    truth = true_windows(flights)
    records = records_of(truth)
    batch, row = records[5]
    records[5] = Record(batch, {**row, "minutes_late": row["minutes_late"] + 1})
    verdict = verdict_of(truth, records)
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (1, 0, 1)
    assert not verdict.is_exact


def test_a_window_that_was_written_in_two_parts_is_doubled_and_wrong(flights):
    truth = true_windows(flights)
    records = records_of(truth)
    batch, row = records[5]
    parts = [{**row, "flights": 1}, {**row, "flights": row["flights"] - 1}]
    verdict = verdict_of(
        truth, [*records[:5], *records[6:], *(Record(batch, part) for part in parts)]
    )
    assert (verdict.lost, verdict.duplicated) == (1, 1)
    assert verdict.wrong >= 1


@pytest.mark.parametrize(
    "stranger",
    [b'{"id": 123456789}', b"{}", b"", b"[1]", b"{torn", b'"text"', b'{"origin": "EWR"}'],
)
def test_a_row_that_nobody_expected_is_wrong(truth, stranger):
    verdict = verdict_of(truth, [*records_of(truth), kafka_record(stranger)])
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (0, 0, 1)
    assert not verdict.is_exact


def test_an_empty_output_has_lost_everything(truth):
    assert verdict_of(truth, []).lost == len(truth)


def test_outputs_of_the_same_rows_agree_in_whatever_order(truth):
    records = records_of(truth)
    found = [
        judge(truth, each).batches
        for each in (records, reversed(records), sorted(records, key=lambda record: -record.batch))
    ]
    assert agreement(found) == Agreement(len({record.batch for record in records}), ())
    assert agreement(found).batches > 0


@pytest.mark.parametrize("at", range(3))
def test_a_row_that_one_output_has_in_another_batch_is_a_disagreement_on_both(truth, at):
    outputs = [records_of(truth) for _ in range(3)]
    outputs[at][0] = Record(77, outputs[at][0].row)
    judged = [judge(truth, records) for records in outputs]
    assert all(each.verdict.is_exact for each in judged)
    assert agreement(each.batches for each in judged).disagreeing == (0, 77)


def test_outputs_disagree_on_a_doubled_row_and_on_one_with_other_content(truth):
    records = records_of(truth)
    first = judge(truth, records).batches
    doubled = judge(truth, [*records, records[0]]).batches
    changed = judge(
        truth, [*records[1:], Record(0, {**records[0].row, "day": "1970-01-01"})]
    ).batches
    assert agreement([first, doubled, first]).disagreeing == (0,)
    assert agreement([first, first, changed]).disagreeing == (0,)


def test_a_batch_that_is_in_one_output_alone_is_counted_and_a_row_without_a_batch_too():
    alone = {4: Counter({"1": 1}), None: Counter({"2": 1})}
    assert agreement([{}, alone, {}]) == Agreement(2, (-1, 4))


def test_the_windows_count_every_flight_once(flights):
    windows = true_windows(flights).values()
    assert sum(window["flights"] for window in windows) == len(flights)
    assert sum(window["cancelled"] for window in windows) == sum(
        flight.departure_delay_minutes is None for flight in flights
    )


def test_a_known_flight_and_its_hour_are_what_the_data_set_says(flights):
    # The first row of the data set: UA 1545 from Newark to Houston on 1 January 2013 at 5:15 local
    # time, 2 minutes late, and 11 at arrival.
    assert true_events(flights)["0"] == {
        "id": 0,
        "flight": "UA 1545",
        "route": "EWR-IAH",
        "day": "2013-01-01",
        "scheduled": "2013-01-01T10:15",
        "km": 2252,
        "status": "on time",
        "minutes_gained": -9,
    }
    first_hour = [
        flight
        for flight in flights
        if flight.origin == "EWR" and flight.scheduled.isoformat() < "2013-01-01T11"
    ]
    window = true_windows(flights)["EWR 2013-01-01T10:00"]
    assert window["flights"] == len(first_hour) == 2
    assert window["minutes_late"] == sum(flight.arrival_delay_minutes for flight in first_hour)
