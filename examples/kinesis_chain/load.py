"""From a Kinesis stream that may have records twice to files that have each once. README.md beside
this file says how to run it.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import onceforall as ofa
from onceforall import sources

clean, folder, checkpoint = sys.argv[1:]
spark = SparkSession.builder.appName("load").getOrCreate()
sources.register(spark)

views = (
    spark.readStream.format("kinesis")
    .option("streamName", clean)
    .option("startingPosition", "TRIM_HORIZON")
    .load()
    .withColumn(
        "view",
        f.from_json(f.col("data").cast("string"), "record_id STRING, page STRING, user STRING"),
    )
    .select("approximateArrivalTimestamp", "view.*")
    # Longer than the other query may be down: what it replays then comes that much later.
    .withWatermark("approximateArrivalTimestamp", "1 day")
    .dropDuplicatesWithinWatermark(["record_id"])
)
query = (
    ofa.write_stream(views.select("record_id", "page", "user"))
    .to(ofa.FileSink(folder), name="views")
    .queryName("load")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
