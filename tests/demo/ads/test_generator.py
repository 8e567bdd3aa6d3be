"""The ad events, judged by what is in the records alone."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from onceforall.demo.ads import generator, truth
from onceforall.errors import OptionError

HOUR_MS = 3_600_000
KINDS = {"view": "ad-events", "click": "ad-events", "purchase": "orders"}


@pytest.fixture(scope="module")
def ground():
    return generator.make_ground(11, 20_000)


@pytest.fixture(scope="module")
def records(ground):
    return list(generator.records(ground, 0, ground.records))


def reason_of(record):  # noqa: PLR0911  a table of reasons
    """Why a record is put aside, found as a reader of the bytes would find it; None: it is good."""
    try:
        event = json.loads(record.value)
    except ValueError:
        return "not JSON"
    if event.get("event_type") not in KINDS:
        return "unknown event type"
    money = "amount_micros" if event["event_type"] == "purchase" else "cost_micros"
    needed = [
        "event_id",
        "user_id",
        "event_time",
        money,
        *(["campaign_id"] if money == "cost_micros" else []),
    ]
    if any(name not in event for name in needed):
        return "missing field"
    if not isinstance(event["event_time"], int) or not isinstance(event[money], int):
        return "wrong type"
    if event[money] < 0:
        return "negative amount"
    if event["event_time"] > record.arrival_ms + 60_000:
        return "from the future"
    return "late" if event["event_time"] < record.arrival_ms - HOUR_MS else None


def test_the_same_seed_gives_the_same_records_and_another_one_gives_others(records):
    again = generator.make_ground(11, 20_000)
    assert list(generator.records(again, 0, again.records)) == records
    # In parts as in one.
    parts = [
        record
        for begin in range(0, len(records), 7_000)
        for record in generator.records(again, begin, begin + 7_000)
    ]
    assert parts == records
    other = generator.make_ground(12, 20_000)
    assert list(generator.records(other, 0, 1_000)) != records[:1_000]


def test_records_arrive_in_the_order_of_their_timestamps_and_events_do_not(records, ground):
    arrivals = [record.arrival_ms for record in records]
    assert arrivals == sorted(arrivals)
    happened = ground.happened_ms[ground.sent]
    assert (np.diff(happened) < 0).sum() > len(records) / 10


def test_each_kind_of_defect_is_there_and_only_one_per_record(records, ground):
    found = Counter(reason_of(record) for record in records)
    assert found.keys() == {*generator.REASONS, "late", None}
    for record, fate in zip(records, ground.fate[ground.sent].tolist(), strict=True):
        expected = {generator.GOOD: None, generator.LATE: "late"}.get(fate) or (
            generator.REASONS[fate - 2] if fate > 1 else None
        )
        assert reason_of(record) == expected


def test_nothing_happens_near_the_limit_of_what_is_late(records):
    in_time, late = [], []
    for record in records:
        reason = reason_of(record)
        if reason in {None, "late"}:
            (late if reason else in_time).append(
                record.arrival_ms - json.loads(record.value)["event_time"]
            )
    assert min(in_time) >= 0
    assert max(in_time) <= 20 * 60_000
    assert min(late) >= 2 * HOUR_MS


def test_a_repetition_is_the_same_record_in_the_same_partition_soon_after(records, ground):
    by_event = defaultdict(list)
    for record, event in zip(records, ground.sent.tolist(), strict=True):
        by_event[event].append(record)
    repeated = [copies for copies in by_event.values() if len(copies) > 1]
    assert len(by_event) == 20_000
    assert len(repeated) > 100
    for first, again in repeated:
        assert (first.topic, first.partition, first.key, first.value) == (
            again.topic,
            again.partition,
            again.key,
            again.value,
        )
        assert again.arrival_ms - first.arrival_ms <= generator.REPEATED_WITHIN_MS


def test_campaigns_and_users_are_skewed_and_partitions_are_not(ground):
    views = ground.kind == generator.VIEW
    per_campaign = np.sort(np.bincount(ground.campaign[views], minlength=generator.CAMPAIGNS))
    assert per_campaign[0] > 0
    assert per_campaign[-1] > 10 * np.median(per_campaign)
    per_partition = np.bincount(generator.partition_of(ground.user[views], ground.kind[views]))
    assert len(per_partition) == generator.PARTITIONS[generator.EVENTS]
    assert per_partition.max() < 1.5 * per_partition.min()


def test_too_few_events_are_refused():
    with pytest.raises(OptionError, match="at least 1,000"):
        generator.make_ground(1, 999)


def test_what_closes_the_day_is_well_formed_in_time_and_far_ahead(records):
    closing = generator.closing_records()
    assert [json.loads(record.value)["event_type"] for record in closing] == [
        "view",
        "click",
        "purchase",
    ]
    assert all(reason_of(record) is None for record in closing)
    assert min(record.arrival_ms for record in closing) > records[-1].arrival_ms + 24 * HOUR_MS


def test_the_truth_is_what_a_reader_of_the_records_would_count(records, ground):
    """A second computation, from the bytes alone, event by event."""
    windows = defaultdict(lambda: [0, 0, 0])
    clicks, orders, dead, late, seen = defaultdict(list), {}, Counter(), set(), set()
    for record in records:
        reason = reason_of(record)
        if reason not in {None, "late"}:
            dead[reason] += 1
            continue
        event = json.loads(record.value)
        if reason == "late":
            late.add(event["event_id"])
        elif event["event_id"] not in seen:
            seen.add(event["event_id"])
            if event["event_type"] == "purchase":
                orders[event["event_id"]] = event
                continue
            sums = windows[event["campaign_id"], event["event_time"] // 900_000 * 900_000]
            sums[event["event_type"] == "click"] += 1
            sums[2] += event["cost_micros"]
            if event["event_type"] == "click":
                clicks[event["user_id"]].append(event)
    true = truth.truth_of(ground)
    assert true.dead_letters == dead
    assert true.late == late
    spend = [row for row in true.ledger.values() if row["kind"] == "spend"]
    counted = {
        (row["campaign_id"], row["happened_ms"]): [
            row["impressions"],
            row["clicks"],
            row["spend_micros"],
        ]
        for row in spend
    }
    assert counted == windows
    rows = {row["order_id"]: row for row in true.ledger.values() if row["kind"] == "order"}
    assert rows.keys() == orders.keys()
    ppm = {each.campaign_id: each.commission_ppm for each in truth.campaigns()}
    for order in orders.values():
        before = [
            click
            for click in clicks[order["user_id"]]
            if order["event_time"] - 1_800_000 <= click["event_time"] <= order["event_time"]
        ]
        row = rows[order["event_id"]]
        if not before:
            assert row["status"] == "unmatched"
            continue
        last = max(before, key=lambda click: click["event_time"])
        assert (row["status"], row["click_id"], row["campaign_id"]) == (
            "attributed",
            last["event_id"],
            last["campaign_id"],
        )
        assert (
            row["commission_micros"]
            == order["amount_micros"] * ppm.get(last["campaign_id"], 0) // 1_000_000
        )
    assert {row["status"] for row in rows.values()} == {"attributed", "unmatched"}
    assert {row.get("advertiser") for row in rows.values()} >= {"unknown", "advertiser 0", None}


def test_the_jobs_make_record_ids_in_the_namespaces_of_the_truth(monkeypatch):
    example = Path(__file__).parents[3] / "examples" / "ad_events" / "pipeline.py"
    spec = importlib.util.spec_from_file_location("ad_events_pipeline", example)
    pipeline = importlib.util.module_from_spec(spec)
    # Its data classes look themselves up there.
    monkeypatch.setitem(sys.modules, spec.name, pipeline)
    spec.loader.exec_module(pipeline)
    assert (pipeline.EVENT_IDS, pipeline.SPEND_IDS) == (truth.EVENT_IDS, truth.SPEND_IDS)
