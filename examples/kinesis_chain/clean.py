"""From one Kinesis stream to another, at least once: views without a page are dropped, and each
view gets an id. README.md beside this file says how to run it.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import onceforall as ofa
from onceforall import sources
from onceforall.operators import with_record_id

raw, clean, checkpoint = sys.argv[1:]
spark = SparkSession.builder.appName("clean").getOrCreate()
sources.register(spark)

records = (
    spark.readStream.format("kinesis")
    .option("streamName", raw)
    .option("startingPosition", "TRIM_HORIZON")
    .load()
)
# A replay reads the same records, so each view has the same id whenever it is put.
views = with_record_id(
    records, "record_id", "shardId", "sequenceNumber", "subSequenceNumber", namespace="views"
).select(
    "record_id", f.from_json(f.col("data").cast("string"), "page STRING, user STRING").alias("view")
)
query = (
    ofa.write_stream(
        views.where("view.page IS NOT NULL").select(
            "record_id", "view.page", "view.user", f.col("view.user").alias("partitionKey")
        )
    )
    .to(ofa.KinesisSink(clean), name="clean")
    .queryName("clean")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
