"""Count the views of each page per ten minutes: Kafka to Kafka, exactly once. README.md beside
this file says how to run it.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import onceforall as ofa

servers, views, counts, checkpoint = sys.argv[1:]
spark = SparkSession.builder.appName("window-counts").getOrCreate()

viewed = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("kafka.isolation.level", "read_committed")
    .option("subscribe", views)
    .option("startingOffsets", "earliest")
    .load()
    .select(f.from_json(f.col("value").cast("string"), "page STRING, time TIMESTAMP").alias("view"))
    .select("view.*")
)
counted = (
    viewed.withWatermark("time", "1 minute").groupBy(f.window("time", "10 minutes"), "page").count()
)
query = (
    ofa.write_stream(
        counted.select(
            f.col("page").alias("key"),
            f.to_json(f.struct("page", "window", "count")).alias("value"),
        )
    )
    .to(ofa.KafkaSink({"bootstrap.servers": servers}, topic=counts))
    .queryName("window-counts")
    .option("checkpointLocation", checkpoint)
    .start()
)
query.awaitTermination()
