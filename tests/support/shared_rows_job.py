"""A query on a cluster whose rows are drawn anew at each computation, and lead each row to one of
two sinks: ``shared_rows_job.py MASTER FOLDER HOW``. It writes the error that ends it, if any, and
then what both sinks have.

HOW: ``one job`` reads the batch twice, from the single part that it has, which takes its time; ``two
jobs`` do; ``copies`` of what the function persists are asked for; ``executors lost`` between two jobs,
``persisted, executors lost`` where the function has persisted the rows, counted and unpersisted them;
``the same, executors lost``: so where nothing is drawn.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
from pyspark import StorageLevel
from pyspark.sql import functions as F

import onceforall as ofa
from onceforall.driver import batch_writer
from support.small_spark import small_spark
from support.waiting import until

MASTER, FOLDER, HOW = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    # No job begins before there are two executors.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    # A task doesn't wait for the executor that has its part.
    "spark.locality.wait": "0s",
}
DRAWN = "reflect('java.util.UUID', 'randomUUID')"


def low(frame):
    return frame.where("token < '8'").select("value")


def high(frame):
    return frame.where("token >= '8'").select("value")


def slowly(parts):
    time.sleep(2)
    yield from parts


def process(batch, batch_id, transaction):
    if HOW == "copies":
        # Of values of its own: others are the batch's, which onceforall keeps.
        batch = batch.withColumn("token", F.expr(DRAWN)).persist(StorageLevel.MEMORY_AND_DISK_2)
    if "," in HOW:
        drawn = F.expr(DRAWN) if HOW.startswith("persisted") else F.md5("value")
        batch = batch.withColumn("token", drawn).persist()
        batch.count()
    if HOW == "one job":
        transaction.write("low", low(batch).unionByName(high(batch)))
    else:
        transaction.write("low", low(batch))
        transaction.write("high", high(batch))
    if "," in HOW:
        batch.unpersist()


def executors():
    found = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"]]
    backend, app = "CoarseGrainedExecutorBackend", spark.sparkContext.applicationId
    return [p for p in found if f"org.apache.spark.executor.{backend}" in p.info["cmdline"] and app in p.info["cmdline"]]  # fmt: skip


def lose_the_executors():
    sc = spark.sparkContext._jsc.sc()

    before = set(sc.getExecutorIds().mkString(" ").split())
    for each in executors():
        os.kill(each.pid, signal.SIGKILL)
    until(
        lambda: before.isdisjoint(sc.getExecutorIds().mkString(" ").split()),
        60,
        "the driver misses the executors",
    )


hit = batch_writer.failpoints.hit


def noticed(name):
    if name == "write.job.after" and "executors lost" in HOW:
        batch_writer.failpoints.hit = hit
        lose_the_executors()
    hit(name)


batch_writer.failpoints.hit = noticed
spark = small_spark(MASTER, settings=SETTINGS).getOrCreate()
sinks = {name: ofa.FileSink(FOLDER / name) for name in ("low", "high")}
rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
rows = rows.json(str(FOLDER / "source"))
if not HOW.startswith("the same"):
    rows = rows.repartition(1 if HOW == "one job" else 4)
if "," not in HOW:
    rows = rows.withColumn("token", F.expr(DRAWN))
if HOW == "one job":
    # Both halves of the job ask for the part before it is there.
    rows = rows.mapInArrow(slowly, rows.schema)
writing = rows.writeStream.foreachBatch(
    ofa.exactly_once(FOLDER / "checkpoint", sinks=sinks)(process)
)
query = (
    writing.option("checkpointLocation", str(FOLDER / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
error = None
try:
    query.awaitTermination()
except Exception as raised:
    error = str(raised)
found = [
    row["value"]
    for name in sinks
    if (FOLDER / name).exists()
    for row in ofa.read_files(FOLDER / name).to_arrow().to_pylist()
]
sys.stdout.write(json.dumps({"error": error, "found": sorted(found)}) + "\n")
spark.stop()
