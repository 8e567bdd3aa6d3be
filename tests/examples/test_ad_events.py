"""The jobs of the ad events example: what each makes of rows, and all of them under fire."""

from __future__ import annotations

import importlib
import json
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from onceforall.demo.ads import generator, truth
from onceforall.demo.ads.faults import MINIMUM_KILLS
from onceforall.demo.ads.main import AdsOptions, run_ads_demo

EXAMPLE = Path(__file__).parents[2] / "examples" / "ad_events"
JOBS = ("pipeline", "cleanse", "aggregate", "attribute", "load")


@pytest.fixture(scope="module")
def ground():
    return generator.make_ground(21, 6_000)


@pytest.fixture
def job(monkeypatch):
    """Import a job as Python does that runs it: its folder is on the path."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield importlib.import_module
    for name in JOBS:
        sys.modules.pop(name, None)


def moment(milliseconds):
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


@pytest.fixture
def records(spark, ground):
    """The published records as Spark's Kafka source has them."""
    rows = [
        (
            record.key,
            record.value,
            record.topic,
            record.partition,
            offset,
            moment(record.arrival_ms),
        )
        for offset, record in enumerate(generator.records(ground, 0, ground.records))
    ]
    return spark.createDataFrame(
        rows,
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP",
    )


@pytest.mark.spark
def test_cleanse_puts_aside_what_is_malformed_or_late_for_the_right_reason(job, records, ground):
    rows = {row.offset: row for row in job("cleanse").judge(records).collect()}
    assert len(rows) == ground.records
    reasons = {
        generator.GOOD: None,
        generator.LATE: "late",
        **dict(enumerate(generator.REASONS, 2)),
    }
    assert {row.reason for row in rows.values()} == set(reasons.values())
    ids = generator.event_ids(ground, ground.sent)
    for offset, (fate, name) in enumerate(zip(ground.fate[ground.sent].tolist(), ids, strict=True)):
        row = rows[offset]
        assert row.reason == reasons[fate], row
        named = fate in {generator.GOOD, generator.LATE}
        key = f"event {name}" if named else f"place {row.topic} {row.partition} {offset}"
        assert row.record_id == truth.record_id(truth.EVENT_IDS, f"s{len(key)}:{key}")
        if named:
            event = ground.sent[offset]
            assert row.micros == ground.micros[event]
            assert row.happened.astimezone(timezone.utc) == moment(int(ground.happened_ms[event]))


JUDGED = [
    (None, "not JSON"),
    (b"", "not JSON"),
    (b"[1, 2]", "not JSON"),
    (b'"text"', "not JSON"),
    (b"{}", "missing field"),
    (b"\xff\xfe", "not JSON"),
    (
        (
            b'{"event_id": "e", "user_id": null, "event_type": "view", "event_time": 1, '
            b'"cost_micros": 1}'
        ),
        "missing field",
    ),
    (
        (
            b'{"event_id": "e", "user_id": "u", "event_type": "view", "event_time": 1, "cost_micros": '
            b"1}"
        ),
        "missing field",
    ),
    (
        (
            b'{"event_id": "e", "user_id": "u", "event_type": "purchase", "event_time": 1, '
            b'"amount_micros": 1.5}'
        ),
        "wrong type",
    ),
    (
        (
            b'{"event_id": "e", "user_id": "u", "event_type": "purchase", "event_time": "now", '
            b'"amount_micros": 1}'
        ),
        "wrong type",
    ),
    (
        (
            b'{"event_id": "e", "user_id": "u", "event_type": "purchase", "event_time": 1, '
            b'"amount_micros": 10000000000000000}'
        ),
        "wrong type",
    ),
    (
        (
            b'{"event_id": "e", "user_id": "u", "event_type": "purchase", "event_time": 1, '
            b'"amount_micros": -1}'
        ),
        "negative amount",
    ),
    (
        (
            b'{"event_id": "e", "user_id": "u", "event_type": "purchase", "event_time": 1, '
            b'"amount_micros": 1}'
        ),
        None,
    ),
]


@pytest.mark.spark
def test_cleanse_judges_what_the_generator_does_not_make(spark, job):
    records = [
        (None, value, "orders", 0, offset, moment(1)) for offset, (value, _) in enumerate(JUDGED)
    ]
    schema = (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
    )
    rows = job("cleanse").judge(spark.createDataFrame(records, schema)).collect()
    found = {row.offset: row.reason for row in rows}
    assert {JUDGED[offset][0]: reason for offset, reason in found.items()} == dict(JUDGED)
    assert all(row.record_id is not None for row in rows)


@pytest.mark.spark
def test_aggregate_adds_up_what_the_truth_adds_up(spark, job, ground):
    good = (ground.fate == generator.GOOD) & (ground.kind != generator.ORDER)
    kinds, campaigns, moments, micros = (
        column[good].tolist()
        for column in (ground.kind, ground.campaign, ground.happened_ms, ground.micros)
    )
    rows = [
        (generator.campaign_id(campaign), generator.KINDS[kind], moment(happened), cost)
        for kind, campaign, happened, cost in zip(kinds, campaigns, moments, micros, strict=True)
    ]
    events = spark.createDataFrame(
        rows, "campaign_id STRING, event_type STRING, happened TIMESTAMP, micros BIGINT"
    )
    found = {
        row.record_id: {
            "kind": "spend",
            "campaign_id": row.campaign_id,
            "happened_ms": round(row.happened.timestamp() * 1000),
            "impressions": row.impressions,
            "clicks": row.clicks,
            "spend_micros": row.spend_micros,
        }
        for row in job("aggregate").sums_of(events).collect()
    }
    assert found == {
        identity: row
        for identity, row in truth.truth_of(ground).ledger.items()
        if row["kind"] == "spend"
    }


@pytest.mark.spark
def test_attribute_pays_a_share_of_what_is_attributed_rounded_down(spark, job):
    rows = [
        ("1", "o1", "attributed", moment(0), 1_999, "c", "c001", "advertiser 1", 27_321),
        ("2", "o2", "attributed", moment(0), 1_999, "c", "c007", "unknown", 0),
        ("3", "o3", "unmatched", moment(0), 1_999, None, None, "unknown", 0),
        # The most that cleanse lets pass: times its share, more than a BIGINT holds.
        ("4", "o4", "attributed", moment(0), 10**15 - 1, "c", "c002", "advertiser 2", 110_000),
        ("5", "o5", "attributed", moment(0), 10**15 - 1, "c", "c003", "advertiser 3", 2**31 - 1),
    ]
    schema = (
        "record_id STRING, order_id STRING, status STRING, happened TIMESTAMP, amount_micros "
        "BIGINT, click_id STRING, campaign_id STRING, "
        "advertiser STRING, commission_ppm INT"
    )
    paid = {
        row.order_id: (row.advertiser, row.commission_micros)
        for row in job("attribute").paid(spark.createDataFrame(rows, schema)).collect()
    }
    assert paid == {
        "o1": ("advertiser 1", 54),
        "o2": ("unknown", 0),
        "o3": (None, None),
        "o4": ("advertiser 2", 109_999_999_999_999),
        "o5": ("advertiser 3", 2_147_483_646_999_997_852),
    }


@pytest.mark.spark
def test_a_record_has_all_columns_as_json_the_key_and_its_topic(spark, job):
    from pyspark.sql import functions as f

    rows = spark.createDataFrame(
        [("r", 5, None)], "record_id STRING, micros BIGINT, nothing STRING"
    )
    (record,) = job("pipeline").as_records(rows, key="record_id", topic=f.lit("t")).collect()
    assert (record.key, json.loads(record.value), record.topic) == (
        "r",
        {"record_id": "r", "micros": 5},
        "t",
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.postgres
def test_the_ledgers_agree_after_ten_kills_and_more(tmp_path):
    options = AdsOptions(
        seed=1207, events=100_000, minutes=25, out=tmp_path / "out", only="onceforall"
    )
    code = run_ads_demo(options)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert code == 0, report["failures"]
    result = report["results"]["onceforall"]
    assert len(result["kills"]) >= MINIMUM_KILLS
    assert {kill["kind"] for kill in result["kills"]} >= {"job", "broker", "postgres"}
    for numbers in result["destinations"].values():
        assert numbers == report["truth"]
    assert sum(numbers["read"] for numbers in result["dead_letters"].values()) > 50
