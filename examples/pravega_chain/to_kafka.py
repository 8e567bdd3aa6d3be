"""From a Pravega stream to a Kafka topic, each event once; views without a page are dropped.
README.md beside this file says how to run it.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import onceforall as ofa
from onceforall import sources

controller, scope, stream, servers, topic, checkpoint = sys.argv[1:]
spark = SparkSession.builder.appName("to-kafka").getOrCreate()
sources.register(spark)

views = (
    spark.readStream.format("pravega")
    .option("controller", controller)
    .option("scope", scope)
    .option("stream", stream)
    .option("startingPosition", "EARLIEST")
    .load()
    .withColumn("view", f.from_json(f.col("event").cast("string"), "page STRING, user STRING"))
    .where("view.page IS NOT NULL")
)
query = (
    ofa.write_stream(
        views.select(f.col("view.user").alias("key"), f.to_json("view").alias("value"))
    )
    .to(ofa.KafkaSink({"bootstrap.servers": servers}, topic=topic), name="clean")
    .queryName("to-kafka")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
