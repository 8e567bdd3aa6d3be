"""What only another JVM can change between a crash and the restart: cores, parallelism, and how
Kafka's source splits its input."""

import json
import os
import subprocess
import sys

import pytest
from confluent_kafka import Producer

from onceforall.embedded.jars import spark_kafka_jars
from support.reading import held_back, released, values

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

RECORDS = 90
PER_BATCH = 30

DRIVER = """
import json, sys
from pyspark.sql import SparkSession
import onceforall as ofa

config = json.loads(sys.argv[1])
spark = (
    SparkSession.builder.master(config["master"])
    .config("spark.jars", config["jars"])
    .config("spark.default.parallelism", config["parallelism"])
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
rows = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", config["servers"])
    .option("subscribe", config["source"])
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", config["per_batch"])
    .option("minPartitions", config["min_partitions"])
    .load()
    .select("key", "value")
)
sink = ofa.KafkaSink({"bootstrap.servers": config["servers"]}, topic=config["topic"])
writer = ofa.write_stream(rows).to(sink, name="out").option("checkpointLocation", config["checkpoint"])
query = writer.trigger(availableNow=True).start()
assert query.awaitTermination(120)
"""


def drive(folder, failpoints="", **config):
    """Run a driver to its end, and return its exit code."""
    jars = ",".join(str(jar) for jar in spark_kafka_jars())
    environment = {
        **os.environ,
        "ONCEFORALL_FAILPOINTS": failpoints,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-c", DRIVER, json.dumps({"jars": jars, **config})]
    with (folder / "log.txt").open("ab") as log:
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            timeout=240,
            check=False,
        ).returncode


def tasks_of(checkpoint):
    """How many tasks each decided batch had, over all generations."""
    files = sorted((checkpoint / "onceforall" / "chains").glob("*/0*.json"))
    commits = [
        entry["body"]
        for entry in (json.loads(file.read_text()) for file in files)
        if entry["kind"] == "COMMIT"
    ]
    return {commit["batch"]: len(commit["digests"]["out/0"]) for commit in commits}


@pytest.mark.parametrize("doubt", ["decided", "undecided"])
@pytest.mark.parametrize(("before", "after"), [((1, 1), (2, 5)), ((2, 5), (1, 1))])
def test_cores_parallelism_and_min_partitions_are_changed(
    broker, topic, tmp_path, doubt, before, after
):
    source, out, checkpoint = topic(), topic(partitions=3), tmp_path / "checkpoint"
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for n in range(RECORDS):
        producer.produce(source, key=str(n % 7), value=str(n))
    producer.flush()

    def config(cores, splits):
        return {
            "servers": broker.bootstrap_servers,
            "source": source,
            "topic": out,
            "checkpoint": str(checkpoint),
            "per_batch": PER_BATCH,
            "master": f"local[{cores}]",
            "parallelism": cores,
            "min_partitions": splits,
        }

    crash = "append_commit.after" if doubt == "decided" else "append_commit.before"
    assert drive(tmp_path, f"{crash}=kill@2", **config(*before)) == -9, (
        tmp_path / "log.txt"
    ).read_text()
    assert held_back(broker.bootstrap_servers, out) > 0, (
        "nothing is in doubt; the test proves nothing"
    )
    assert drive(tmp_path, **config(*after)) == 0, (tmp_path / "log.txt").read_text()
    assert values(broker.bootstrap_servers, out) == sorted(str(n) for n in range(RECORDS))
    released(broker.bootstrap_servers, out)
    tasks = tasks_of(checkpoint)
    assert tasks[0] == before[1]
    assert tasks[1] == (before if doubt == "decided" else after)[1]
    assert tasks[2] == after[1]
