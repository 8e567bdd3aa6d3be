"""Cleanse: parse and check every event, put the bad ones aside with the reason, give each its
identity, and drop repetitions.

Reads ``ad-events`` and ``orders``. Writes ``views``, ``clicks`` and ``orders-checked``, and, in the
same decision, ``dead-letters`` and ``late``.
"""

from __future__ import annotations

from pipeline import EVENT_IDS, Place, as_records, run
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

import onceforall as ofa
from onceforall.driver.doors import StreamWriter
from onceforall.operators import deduplicate, with_record_id

# All texts: what has the wrong type is not to look like what is missing.
FIELDS = (
    "event_id STRING, user_id STRING, ad_id STRING, campaign_id STRING, event_type STRING, "
    "event_time STRING, cost_micros STRING, "
    "amount_micros STRING, broken STRING"
)
TOPICS = {"view": "views", "click": "clicks", "purchase": "orders-checked"}
REPEATED_WITHIN = "90 minutes"
"""How far apart in their arrival two copies may lie, and how far one partition may be read behind
another.

What is further behind can't be told from a repetition, and Spark drops it. Before a start with a
backlog in which partitions lie unevenly, set it to more than the backlog's length
(docs/ad-events.md, "What is too far behind to be judged?").
"""


def rows(spark: SparkSession, place: Place) -> DataFrame:
    """Each event once: of copies, the first one of their partition, for they have one key.
    Without what is too far behind (`REPEATED_WITHIN`).
    """
    judged = judge(place.read(spark, "ad-events", "orders", place.topic("heartbeats")))
    return deduplicate(judged, id="record_id", event_time="arrived", horizon=REPEATED_WITHIN)


def judge(records: DataFrame) -> DataFrame:
    """Events and what is to be known of them; ``reason`` says why one is put aside, and is null
    for good ones.
    """
    event = f.from_json(
        f.col("value").cast("string"), FIELDS, {"columnNameOfCorruptRecord": "broken"}
    )
    where_from = ("value", "topic", "partition", "offset", f.col("timestamp").alias("arrived"))
    parsed = records.select(event.alias("event"), *where_from).select("*", "event.*")
    money = f.when(f.col("event_type") == "purchase", f.col("amount_micros")).otherwise(
        f.col("cost_micros")
    )
    typed = parsed.withColumns(
        {
            "happened": f.timestamp_millis(whole(f.col("event_time"))),
            "money": money,
            "micros": whole(money),
        }
    )
    judged = typed.withColumn("reason", reason_to_put_aside())
    # What can't be read has no name: its place says which one it is.
    has_name = f.col("reason").isNull() | (f.col("reason") == "late")
    place = f.concat_ws(
        " ",
        f.lit("place"),
        "topic",
        *(f.col(name).cast("string") for name in ("partition", "offset")),
    )
    named = judged.withColumn(
        "name", f.when(has_name, f.concat(f.lit("event "), "event_id")).otherwise(place)
    )
    return with_record_id(named, "record_id", "name", namespace=EVENT_IDS)


def reason_to_put_aside() -> Column:
    """The first that applies; null: the event is good."""
    is_order = f.col("event_type") == "purchase"
    needed = f.array(
        "event_id",
        "user_id",
        "event_type",
        "event_time",
        "money",
        f.when(is_order, "none").otherwise(f.col("campaign_id")),
    )
    missing = f.exists(needed, f.isnull)
    return (
        f.when(f.col("event").isNull() | f.col("broken").isNotNull(), "not JSON")
        .when(~f.col("event_type").isin(*TOPICS), "unknown event type")
        .when(missing, "missing field")
        .when(f.col("happened").isNull() | f.col("micros").isNull(), "wrong type")
        .when(f.col("micros") < 0, "negative amount")
        # One clock that is wrong would move the watermark past everybody else's events.
        .when(f.col("happened") > f.col("arrived") + f.expr("INTERVAL 1 MINUTE"), "from the future")
        # By Kafka's timestamp and not by a watermark: it says the same however the batches are cut.
        .when(f.col("happened") < f.col("arrived") - f.expr("INTERVAL 1 HOUR"), "late")
    )


def whole(text: Column) -> Column:
    """A whole number, or null where the text is none."""
    return f.when(text.rlike("^-?[0-9]{1,15}$"), text.cast("bigint"))


def checked(batch: DataFrame, place: Place) -> DataFrame:
    """The records of good events, each to the topic of its kind."""
    topic = f.create_map(
        *(f.lit(text) for kind, name in TOPICS.items() for text in (kind, place.topic(name)))
    )
    good = batch.where("reason IS NULL").select(
        "record_id",
        "event_id",
        "user_id",
        "campaign_id",
        "ad_id",
        "event_type",
        "happened",
        "micros",
    )
    return as_records(good, key="user_id", topic=topic[f.col("event_type")])


def put_aside(batch: DataFrame, place: Place) -> DataFrame:
    """The records of the others: what came, where from, and the reason."""
    # Of a late event any copy may be the one that stays: what differs between copies is left out.
    offset = f.when(f.col("reason") != "late", f.col("offset")).alias("offset")
    value = f.col("value").cast("string").alias("value")
    others = batch.where("reason IS NOT NULL").select(
        "record_id", "reason", "event_id", "topic", "partition", offset, value
    )
    topic = f.when(f.col("reason") == "late", place.topic("late")).otherwise(
        place.topic("dead-letters")
    )
    return as_records(others, key="record_id", topic=topic)


def write(events: DataFrame, place: Place) -> StreamWriter:
    """Two sinks, one decision: no event that `rows` gives is both counted and put aside, and
    none is neither.
    """
    return (
        ofa.write_stream(events)
        .to(place.kafka(), name="checked", transform=lambda batch: checked(batch, place))
        .to(place.kafka(), name="put-aside", transform=lambda batch: put_aside(batch, place))
    )


if __name__ == "__main__":
    run("cleanse", rows, write)
