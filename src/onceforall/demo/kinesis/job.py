"""The program that is killed: views from a Kinesis stream, counted by page and window, to a Kafka
topic and to files under one decision.

Run as ``python -m onceforall.demo.kinesis.job --stream … …``. It runs until it is killed, or until
the query fails (exit code 1).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WATERMARK = "1 hour"
"""More than shards can be apart: the feed waits when more of its time than a half of this isn't
taken."""

WINDOW_S = 600
_SCHEMA = "page STRING, at TIMESTAMP"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the query."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    import onceforall as ofa
    from onceforall import sources

    parser = argparse.ArgumentParser(prog="python -m onceforall.demo.kinesis.job")
    for name in ("source", "servers", "topic", "folder", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args(argv)
    spark = SparkSession.builder.appName("views").getOrCreate()
    sources.register(spark)
    views = (
        spark.readStream.format("kinesis")
        .options(**json.loads(given.source))
        .load()
        .select(f.from_json(f.col("data").cast("string"), _SCHEMA).alias("view"))
        .select("view.*")
    )
    counts = (
        views.withWatermark("at", WATERMARK)
        .groupBy(f.window("at", f"{WINDOW_S} seconds"), "page")
        .agg(f.count("*").alias("views"))
        .select("page", f.col("window.start").alias("start"), "views")
    )

    def as_records(batch: DataFrame) -> DataFrame:
        return batch.select(
            f.col("page").alias("key"),
            f.to_json(f.struct("page", f.unix_seconds("start").alias("start"), "views")).alias(
                "value"
            ),
        )

    topic = ofa.KafkaSink({"bootstrap.servers": given.servers}, topic=given.topic)
    files = ofa.FileSink(given.folder, format="parquet")
    query = (
        ofa.write_stream(counts)
        .to(topic, name="topic", transform=as_records)
        .to(files, name="files")
        .queryName("views")
        .option("checkpointLocation", given.checkpoint)
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
