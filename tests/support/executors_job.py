"""Starts queries on a cluster, one for each interpreter of the workers, and writes what each start
said.

``python executors_job.py MASTER FOLDER``
"""

import json
import sys
import time
from pathlib import Path

from small_spark import small_spark

import onceforall as ofa
from onceforall.driver import executors

MASTER, FOLDER = sys.argv[1], Path(sys.argv[2])


class NeedsKafka(ofa.FileSink):
    """Files, by way of confluent_kafka."""

    task_imports = ofa.KafkaSink.task_imports


def started(spark, sink, name):
    """Start a query and let it go through one batch; return what is wrong, and how long it took
    to start."""
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 4)
        .option("numPartitions", 4)
        .load()
    )
    writer = ofa.write_stream(rows.select("value")).to(sink(FOLDER / name / "out", format="json"))
    writer = writer.option("checkpointLocation", str(FOLDER / name / "checkpoint")).trigger(
        once=True
    )
    began = time.monotonic()
    try:
        query = writer.start()
        seconds = time.monotonic() - began
        query.awaitTermination(120)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - began}
    return {"error": None, "seconds": seconds}


def main():
    spark = small_spark(
        MASTER, settings={"spark.executor.memory": "512m", "spark.cores.max": "2"}
    ).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    until = time.monotonic() + 60
    while len(executors.executors_of(spark.sparkContext)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    said = {}
    for python in ("right", "none", "older", "no-kafka", "nowhere"):
        # As if PYSPARK_PYTHON had been this when the session was made.
        spark.sparkContext.pythonExec = f"python-{python}"
        said[python] = started(spark, NeedsKafka, python)
    spark.sparkContext.pythonExec = "python-no-kafka"
    said["files"] = started(spark, ofa.FileSink, "files")
    spark.sparkContext.pythonExec = "python-right"
    said["again"] = started(spark, NeedsKafka, "again")
    (FOLDER / "said.json").write_text(json.dumps(said))
    spark.stop()


main()
