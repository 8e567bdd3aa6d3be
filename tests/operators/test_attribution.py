"""Attribution in Spark: through a decided batch that is run again and an undecided one, in a
time zone with daylight saving; and what is refused."""

import random
from datetime import datetime, timezone
from decimal import Decimal

import pytest

import onceforall as ofa
from onceforall.errors import OptionError, SchemaError, UnsupportedQueryError
from onceforall.operators.attribution import (
    attribute,
    attributed_orders,
    late_orders,
    unmatched_orders,
)
from onceforall.operators.matching import Click, Order
from operators.attribution_reference import reference
from operators.conftest import watermarks

pytestmark = pytest.mark.spark

ORDERS = (
    "user string, region int, ordered_at timestamp, order_id bigint, amount decimal(12,2), "
    "items array<struct<sku:string,n:int>>"
)
CLICKS = (
    "user string, region int, clicked_at timestamp, campaign string, price decimal(38,18), "
    "seen timestamp, raw binary"
)
BASE_US = 1_699_164_000_000_000  # daylight saving ends within minutes in St. John's
USER = ["user", "region"]


def at(time_us):
    return datetime.fromtimestamp(time_us // 1_000_000, timezone.utc).replace(
        microsecond=time_us % 1_000_000
    )


def text(time_us):
    return at(time_us).isoformat()


class Feed:
    """Random orders and clicks, a file of each per batch, and the same as the reference takes
    them."""

    def __init__(self, orders, clicks, seed):
        self._orders, self._clicks, self._draw = orders, clicks, random.Random(seed)
        self.batches, self._now, self._number = [], BASE_US, 0

    def add(self):
        draw, rows, orders, clicks = self._draw, [], [], []
        for _ in range(24):
            self._now += draw.randrange(40_000_000)
            self._number += 1
            time = self._now - draw.choice([0, draw.randrange(400_000_000)])
            user = (draw.choice("ab"), draw.randrange(2))
            if draw.random() < 0.5:
                rows.append((user, Order(time, str(self._number))))
                orders.append(self._order(user, time, items=[{"sku": "é\"'", "n": None}, None]))
            else:
                time -= time % 30_000_000 if draw.random() < 0.5 else 0  # several at one time
                rows.append((user, Click(time, self._number, str(self._number))))
                clicks.append(self._click(user, time))
        self._number += 1
        orders.append(self._order((None, 0), self._now, items=None))
        self._orders.add(*draw.sample(orders, len(orders)))
        self._clicks.add(
            *draw.sample(clicks, len(clicks)),
            {"user": "a", "region": None, "clicked_at": text(self._now)},
        )
        self.batches.append(rows)

    def _order(self, user, time, items):
        identity = {"user": user[0], "region": user[1], "order_id": self._number}
        return {
            **identity,
            "ordered_at": text(time),
            "amount": f"{self._number}.10",
            "items": items,
        }

    def _click(self, user, time):
        identity = {"user": user[0], "region": user[1], "campaign": str(self._number)}
        return {
            **identity,
            "clicked_at": text(time),
            "price": "1E-18",
            "seen": text(time + 1),
            "raw": "AP8=",
        }


class Past:
    """What the reference takes: what came in each batch, with the watermark that Spark says it
    had."""

    def __init__(self, checkpoint, batches):
        marks = [1000 * mark for mark in watermarks(checkpoint)]
        self.window = 240_000_000
        self.batches = list(zip(marks, batches, strict=True))


@pytest.fixture
def frames(rocksdb, folder):
    return folder("orders", ORDERS), folder("clicks", CLICKS)


def decided(frames, **changes):
    orders, clicks = (frame.stream() for frame in frames)
    settings = {
        "user": USER,
        "order_time": "ordered_at",
        "click_time": "clicked_at",
        "window": "4 minutes",
        "tie": "seq",
    }
    clicks = clicks.withColumn("seq", clicks["campaign"].cast("int")).withWatermark(
        "clicked_at", "10 seconds"
    )
    return attribute(
        orders.withWatermark("ordered_at", "10 seconds"), clicks, **{**settings, **changes}
    )


@pytest.mark.long  # tests/integration/test_redo.py does the same with a state of Spark's own
def test_each_order_is_once_where_it_belongs_through_failures_before_and_after_the_decision(
    frames, spark, runs, tmp_path
):
    feed = Feed(*frames, seed=16)
    outputs = {"attributed": attributed_orders, "unmatched": unmatched_orders, "late": late_orders}

    def writer():
        made = ofa.write_stream(decided(frames))
        for name, transform in outputs.items():
            made.to(
                ofa.FileSink(str(tmp_path / name), format="parquet"), name=name, transform=transform
            )
        return made.option("checkpointLocation", str(tmp_path / "cp")).option(
            "onceforall.onDivergence", "fail"
        )

    feed.add()
    feed.add()
    runs.whole(writer())
    feed.add()
    runs.failing(writer(), "append_commit.before=raise")
    runs.failing(writer(), "append_commit.after=raise")
    feed.add()
    runs.whole(writer())

    found = {name: ofa.read_files(tmp_path / name).to_arrow().to_pylist() for name in outputs}
    one, two, three, four = feed.batches
    # Behind the second file, and at the end, Spark runs a batch for the watermark alone.
    past = Past(tmp_path / "cp", [one, two, [], three, four, []])
    expected = [each for batch in reference(past) for each in batch]
    clicks = {row["order_id"]: row["click"]["campaign"] for row in found["attributed"]}
    assert clicks == {
        int(order.row): click.row for _, status, order, click in expected if status == "attributed"
    }
    for name in outputs:
        ids = sorted(row["order_id"] for row in found[name] if row["user"] is not None)
        assert ids == sorted(
            int(order.row) for _, status, order, _ in expected if status == name
        ), name
        assert len(ids) > 3, name
    assert len([row for row in found["unmatched"] if row["user"] is None]) == len(feed.batches)
    _assert_carried(found["attributed"], expected)


def _assert_carried(rows, expected):
    """Columns come out as they went in."""
    times = {int(order.row): order.time_us for _, _, order, _ in expected}
    for row in rows:
        assert row["ordered_at"].astimezone(timezone.utc) == at(times[row["order_id"]])
        assert row["amount"] == Decimal(f"{row['order_id']}.10")
        assert [item and tuple(item.values()) for item in row["items"]] == [("é\"'", None), None]
        click = row["click"]
        assert (click["price"], click["raw"]) == (Decimal("1E-18"), b"\x00\xff")
        assert (click["seen"] - click["clicked_at"]).microseconds == 1


@pytest.mark.long
def test_a_user_whose_name_is_no_utf8_does_not_get_the_click_of_another_one(frames, runs, tmp_path):
    from pyspark.sql import functions as F

    def order(user, number, time_us):
        return {
            "user": user,
            "order_id": number,
            "ordered_at": text(time_us),
            "amount": "1.00",
            "items": None,
        }

    names = ["FF", "FE", "FD"]
    frames[0].add(
        *(order(user, number, BASE_US) for number, user in enumerate(names)),
        order("61", 9, BASE_US + 100_000_000),
    )
    clicks = [
        {"user": user, "clicked_at": text(BASE_US - 1), "campaign": user} for user in names[:2]
    ]
    frames[1].add(
        *clicks, {"user": "61", "clicked_at": text(BASE_US + 100_000_000), "campaign": "61"}
    )
    orders, clicks = (
        frame.stream().withColumn("user", F.unhex("user").cast("string")) for frame in frames
    )
    matched = attribute(
        orders.withWatermark("ordered_at", "10 seconds"),
        clicks.withWatermark("clicked_at", "10 seconds"),
        user="user",
        order_time="ordered_at",
        click_time="clicked_at",
        window="4 minutes",
    )
    made = ofa.write_stream(matched).to(
        ofa.FileSink(str(tmp_path / "out"), format="parquet"), name="out"
    )
    runs.whole(made.option("checkpointLocation", str(tmp_path / "cp")))
    found = ofa.read_files(tmp_path / "out").to_arrow().to_pylist()
    assert {row["order_id"]: row["click"] and row["click"]["campaign"] for row in found} == {
        0: "FF",
        1: "FE",
        2: None,
    }


class TestRefusals:
    def test_a_frame_without_a_watermark(self, frames):
        with pytest.raises(UnsupportedQueryError, match="'ordered_at' has no watermark"):
            attribute(
                frames[0].stream(),
                frames[1].stream(),
                user="user",
                order_time="ordered_at",
                click_time="clicked_at",
                window="1 day",
            )

    def test_columns_that_are_not_there_or_do_not_fit(self, frames):
        for changes, words in [
            ({"user": "nobody"}, "no column 'nobody'"),
            ({"order_time": "order_id"}, "not timestamp"),
            ({"tie": "price"}, "'price' is decimal"),
        ]:
            with pytest.raises(SchemaError, match=words):
                decided(frames, **changes)
        with pytest.raises(OptionError, match="window"):
            decided(frames, window="1 month")

    def test_a_session_whose_state_is_in_memory(self, frames, spark):
        from onceforall.operators.state import memory_state
        from operators.conftest import configured

        with (
            configured(spark, memory_state()),
            pytest.raises(UnsupportedQueryError, match="RocksDB"),
        ):
            decided(frames)
