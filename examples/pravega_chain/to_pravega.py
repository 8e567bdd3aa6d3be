"""From a Kafka topic to a Pravega stream, each record once. README.md beside this file says how to
run it.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import onceforall as ofa

servers, topic, controller, scope, stream, checkpoint = sys.argv[1:]
spark = SparkSession.builder.appName("to-pravega").getOrCreate()

records = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
)
query = (
    ofa.write_stream(
        records.select(
            f.col("value").alias("event"),
            f.get_json_object(f.col("value").cast("string"), "$.user").alias("routingKey"),
        )
    )
    .to(ofa.PravegaSink(controller, scope=scope, stream=stream), name="stream")
    .queryName("to-pravega")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
