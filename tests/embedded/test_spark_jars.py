"""The pinned connector jars, used by the Spark that is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# A process of its own: spark.jars is read when the JVM starts, and another test may have started
# one here.
COPY_BY_SPARK = """
import json, sys
from pyspark.sql import SparkSession
from onceforall.embedded import spark_kafka_jars

servers, source, target = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.jars", ",".join(str(jar) for jar in spark_kafka_jars()))
for key, value in {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()

def read(topic, isolation="read_uncommitted"):
    return (
        spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
        .option("kafka.isolation.level", isolation).load()
    )

read(source).select("key", "value").write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", target).save()
rows = read(target, "read_committed").selectExpr("CAST(value AS STRING) AS value").collect()
print(json.dumps(sorted(row.value for row in rows)))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.long
def test_the_installed_spark_reads_and_writes_kafka_with_the_pinned_jars(broker, topic, tmp_path):
    from confluent_kafka import Producer

    source, target = topic(partitions=3), topic(partitions=2)
    sent = [f"value {number}" for number in range(100)]
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number, value in enumerate(sent):
        producer.produce(source, value, partition=number % 3)
    assert producer.flush(30) == 0
    command = [sys.executable, "-c", COPY_BY_SPARK, broker.bootstrap_servers, source, target]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    spark = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert spark.returncode == 0, spark.stderr[-3000:]
    assert json.loads(spark.stdout.strip().splitlines()[-1]) == sorted(sent)
