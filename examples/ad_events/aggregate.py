"""Aggregate: impressions, clicks and spend of each campaign in each quarter of an hour.

Reads ``views`` and ``clicks``. Writes ``spend``, each window once, when the watermark has passed
it.
"""

from __future__ import annotations

from pipeline import SPEND_IDS, WATERMARK_DELAY, Place, as_records, run
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import onceforall as ofa
from onceforall.driver.doors import StreamWriter
from onceforall.operators import with_record_id


def rows(spark: SparkSession, place: Place) -> DataFrame:
    """One row per campaign and window."""
    return sums_of(
        place.read_events(spark, "views", "clicks").withWatermark("happened", WATERMARK_DELAY)
    )


def sums_of(events: DataFrame) -> DataFrame:
    """Count events, and add up whole millionths: what a floating-point sum would lose is
    somebody's money.
    """
    sums = events.groupBy("campaign_id", f.window("happened", "15 minutes")).agg(
        f.count_if(f.col("event_type") == "view").alias("impressions"),
        f.count_if(f.col("event_type") == "click").alias("clicks"),
        f.sum("micros").alias("spend_micros"),
    )
    named = with_record_id(sums, "record_id", "campaign_id", "window.start", namespace=SPEND_IDS)
    return named.select(
        "record_id",
        "campaign_id",
        f.col("window.start").alias("happened"),
        "impressions",
        "clicks",
        "spend_micros",
    )


def write(sums: DataFrame, place: Place) -> StreamWriter:
    """To the topic ``spend``, keyed by campaign."""
    return ofa.write_stream(as_records(sums, key="campaign_id")).to(
        place.kafka(place.topic("spend")), name="spend"
    )


if __name__ == "__main__":
    run("aggregate", rows, write)
