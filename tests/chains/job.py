"""The two programs of the chain over Pravega, which run until they are killed:
``python -m chains.job to-pravega|to-kafka SPEC``, with a JSON object of what the campaign says.

Unlike those of examples/pravega_chain they take a batch after the other, and the second one writes to
files under the same decision.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import onceforall as ofa
from onceforall import sources

TRIGGER = "400 milliseconds"


def main() -> None:
    """Run the program that the command line names."""
    which, spec = sys.argv[1], json.loads(sys.argv[2])
    spark = SparkSession.builder.appName(which).getOrCreate()
    sources.register(spark)
    stream = {"controller": spec["controller"], "scope": spec["scope"], "stream": spec["stream"]}
    servers = spec["servers"]
    if which == "to-pravega":
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", spec["first"])
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", spec["per_batch"])
            .load()
        )
        rows = records.select(
            f.col("value").alias("event"), f.col("key").cast("string").alias("routingKey")
        )
        writer = ofa.write_stream(rows).to(
            ofa.PravegaSink(**stream, lease_s=spec["lease_s"]), name="stream"
        )
    else:
        events = (
            spark.readStream.format("pravega")
            .options(**stream, startingPosition="EARLIEST")
            .option("maxRecordsPerTrigger", spec["per_batch"])
            .load()
            .withColumn("view", f.from_json(f.col("event").cast("string"), "user STRING, n BIGINT"))
        )
        rows = events.select("view.user", "view.n")
        writer = (
            ofa.write_stream(rows)
            .to(
                ofa.KafkaSink({"bootstrap.servers": servers}, topic=spec["last"]),
                name="topic",
                transform=lambda batch: batch.select(
                    f.col("user").alias("key"), f.to_json(f.struct("user", "n")).alias("value")
                ),
            )
            .to(ofa.FileSink(spec["files"], format="parquet"), name="files")
        )
    query = (
        writer.queryName(which)
        .option("checkpointLocation", spec[f"checkpoint-{which}"])
        .option("onceforall.redo", "replay")
        .trigger(processingTime=TRIGGER)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
