"""Load: everything that was counted, to three destinations in one decision.

Reads ``spend``, ``attributed`` and ``unmatched``. Writes the topic ``ledger``, keyed by record id
(for an upsert store such as Pinot), Parquet files by day and hour (for Hive), and a table in
PostgreSQL.
"""

from __future__ import annotations

from pipeline import Place, as_records, run
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import onceforall as ofa
from onceforall.driver.doors import StreamWriter

LEDGER = (
    "record_id STRING, campaign_id STRING, happened TIMESTAMP, impressions BIGINT, clicks BIGINT, "
    "spend_micros BIGINT, "
    "order_id STRING, status STRING, click_id STRING, advertiser STRING, amount_micros BIGINT, "
    "commission_micros BIGINT"
)


def rows(spark: SparkSession, place: Place) -> DataFrame:
    """The union of both kinds of rows; what only the other kind has is null."""
    records = place.read(spark, *map(place.topic, ("spend", "attributed", "unmatched")))
    union = records.select(f.from_json(f.col("value").cast("string"), LEDGER).alias("row")).select(
        "row.*"
    )
    kind = f.when(f.col("order_id").isNull(), "spend").otherwise("order")
    return union.select(
        kind.alias("kind"),
        "*",
        f.to_date("happened").alias("day"),
        f.date_format("happened", "HH").alias("hour"),
    )


def write(ledger: DataFrame, place: Place) -> StreamWriter:
    """All three destinations have a batch, or none has."""
    return (
        ofa.write_stream(ledger)
        .to(
            place.kafka(place.topic("ledger")),
            name="topic",
            transform=lambda batch: as_records(batch, key="record_id"),
        )
        .to(
            ofa.FileSink(f"{place.folder}/ledger", format="parquet", partition_by=["day", "hour"]),
            name="files",
        )
        # Without a key: a row that came twice would be there twice, for everybody to see.
        .to(ofa.PostgresSink(place.database, table="ledger", create_table=True), name="table")
    )


if __name__ == "__main__":
    run("load", rows, write)
