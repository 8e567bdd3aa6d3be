"""Attribute: each order to the latest click of its user in the half hour before it, with the
advertiser and the commission.

Reads ``orders-checked`` and ``clicks``, and looks up campaigns in PostgreSQL. Writes ``attributed``
and ``unmatched``, each order to one of them, once, when the watermark has passed it.
"""

from __future__ import annotations

from pipeline import WATERMARK_DELAY, Place, as_records, run
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import onceforall as ofa
from onceforall.driver.doors import StreamWriter
from onceforall.operators import PostgresLookup, attribute, enrich

OF_A_CAMPAIGN_NOBODY_ENTERED = {"advertiser": "unknown", "commission_ppm": 0}


def rows(spark: SparkSession, place: Place) -> DataFrame:
    """One row per order; attributed ones have a click, a campaign, an advertiser and a
    commission.
    """
    orders = place.read_events(spark, "orders-checked").select(
        "record_id",
        f.col("event_id").alias("order_id"),
        "user_id",
        "happened",
        f.col("micros").alias("amount_micros"),
    )
    clicks = place.read_events(spark, "clicks").select(
        f.col("event_id").alias("click_id"),
        "user_id",
        f.col("happened").alias("clicked"),
        "campaign_id",
    )
    matched = attribute(
        orders.withWatermark("happened", WATERMARK_DELAY),
        clicks.withWatermark("clicked", WATERMARK_DELAY),
        user="user_id",
        order_time="happened",
        click_time="clicked",
        window="30 minutes",
    )
    with_click = matched.select(
        "*", f.col("attribution").alias("status"), "click.click_id", "click.campaign_id"
    )
    return paid(
        enrich(
            with_click,
            campaigns(place),
            keys="campaign_id",
            defaults=OF_A_CAMPAIGN_NOBODY_ENTERED,
            pin=True,
        )
    )


def campaigns(place: Place) -> PostgresLookup:
    """What is looked up; ``pin=True`` above has a replay use what its batch found the first
    time, whatever has become of it since.
    """
    return PostgresLookup(
        place.database, "campaigns", key="campaign_id", columns=list(OF_A_CAMPAIGN_NOBODY_ENTERED)
    )


def paid(orders: DataFrame) -> DataFrame:
    """Add who pays for an attributed order, and how much: whole millionths, rounded down."""
    attributed = f.col("status") == "attributed"
    # As decimals: a BIGINT can't hold a large amount times its share, and the job would fail at
    # every start.
    share = f.expr("CAST(amount_micros AS DECIMAL(19)) * commission_ppm div 1000000")
    return orders.select(
        "record_id",
        "order_id",
        "status",
        "happened",
        "amount_micros",
        "click_id",
        "campaign_id",
        f.when(attributed, f.col("advertiser")).alias("advertiser"),
        f.when(attributed, share).alias("commission_micros"),
    )


def by_status(batch: DataFrame, place: Place) -> DataFrame:
    """The records, each to the topic of its status: ``attributed``, ``unmatched``, or ``late``
    if one came behind the watermark.
    """
    return as_records(
        batch, key="record_id", topic=f.concat(f.lit(place.topic("")), f.col("status"))
    )


def write(orders: DataFrame, place: Place) -> StreamWriter:
    """Both topics are one sink: each row says where it goes."""
    return ofa.write_stream(orders).to(
        place.kafka(), name="orders", transform=lambda batch: by_status(batch, place)
    )


if __name__ == "__main__":
    run("attribute", rows, write)
