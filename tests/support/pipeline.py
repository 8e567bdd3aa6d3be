"""A driver process of its own: rows 0, 1, 2, … from a source that replays exactly, to one or
several sinks, exactly once.

``python pipeline.py CONFIG.json``, with the keys of ``DEFAULTS``. It stops by itself after batch
``until_batch``, and leaves ``pids.json`` and ``status.json`` in its work folder. Tests kill, freeze
and wake it. With ``awaits`` it is a program as users write
it: it waits in ``awaitTermination``, catches nothing, and leaves no status.
"""

import os
import threading
import time
from pathlib import Path

from support.driver_program import configured, follow, jvm_of, leave
from support.small_spark import small_spark

DEFAULTS = {
    "bootstrap": "",
    "topic": "",
    "sinks": ["kafka"],
    "files": "",
    "database": "",
    "postgres": {},
    "work": "",
    "checkpoint": "",
    "until_batch": 5,
    "rows_per_batch": 20,
    "partitions": 4,
    "master": "local[2]",
    "stateful": False,
    "random": False,
    "deduplicate": False,
    "salt": 0,
    "holds": "",
    "options": {},
    "sink_options": {},
    "spark": {},
    "java_options": "",
    "stop_file": "",
    "stops": "query",
    "awaits": False,
    "trigger": "100 milliseconds",
    "delivery": "exactly_once",
    "roll_after_entries": 0,
    "syncs": "",
    "kinesis": {},
    "kinesis_sink": {},
    "pravega": {},
    "pravega_sink": {},
}


def main():
    config = configured(DEFAULTS)
    from pyspark.sql import functions as F

    import onceforall as ofa

    if config["roll_after_entries"]:
        from onceforall.driver import query_run as runs

        # No user can set it; batches enough for it would take minutes.
        runs.ROLL_AFTER_ENTRIES = config["roll_after_entries"]
    if config["syncs"]:
        import sync_record

        sync_record.install(config["syncs"])
    work = Path(config["work"])
    settings = {
        "spark.default.parallelism": "2",
        "spark.sql.streaming.minBatchesToRetain": "100",
        **config["spark"],
    }
    spark = small_spark(config["master"], config["java_options"], settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    leave(
        work / "pids.json",
        {"python": os.getpid(), "jvm": jvm_of(spark), "package": str(Path(ofa.__file__).parent)},
    )

    rows = (
        _of_source(spark, config)
        if config["kinesis"] or config["pravega"]
        else (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", config["rows_per_batch"])
            .option("numPartitions", config["partitions"])
            .option("startTimestamp", 1_700_000_000_000)
            .option("advanceMillisPerBatch", 1000)
            .load()
        )
    )
    if config["deduplicate"]:
        # State, in the output mode that every sink serves.
        rows = rows.dropDuplicates(["value"])
    if config["salt"]:
        # What a batch adds to the state tells whose driver ran it; each bucket has every sixth one.
        batch = F.floor(_held(config)("value") / config["rows_per_batch"])
        counted = (
            rows.select(batch.alias("batch"))
            .groupBy((F.col("batch") % 6).alias("bucket"))
            .agg(F.sum(F.lit(config["salt"])).alias("n"))
        )
        out = counted.select(
            F.col("bucket").cast("string").alias("key"),
            F.concat_ws(":", F.col("bucket"), F.col("n")).alias("value"),
        )
        mode = "update"
    elif config["stateful"]:
        counted = rows.groupBy((F.col("value") % 7).alias("bucket")).agg(
            F.count("*").alias("n"), F.max("value").alias("last")
        )
        out = counted.select(
            F.col("bucket").cast("string").alias("key"),
            F.concat_ws(":", F.col("bucket"), F.col("n"), F.col("last")).alias("value"),
        )
        mode = "update"
    else:
        out = rows.select(
            (F.col("value") % 7).cast("string").alias("key"),
            F.col("value").cast("string").alias("value"),
        )
        mode = "append"
    if config["random"]:
        out = out.withColumn("value", F.concat_ws("/", "value", F.expr("uuid()")))
    writer = (
        ofa.write_stream(out).outputMode(mode).option("checkpointLocation", config["checkpoint"])
    )
    for kind in config["sinks"]:
        transform = _TRANSFORMS.get(kind)
        writer.to(_sink(kind, config), name="out" if kind == "kafka" else kind, transform=transform)
    query = writer.options(**config["options"]).trigger(processingTime=config["trigger"]).start()

    def stop_on_request():
        while not Path(config["stop_file"]).exists():
            time.sleep(0.02)
        asked = time.monotonic()
        (query if config["stops"] == "query" else spark).stop()
        leave(work / "stopped.json", {"seconds": time.monotonic() - asked})

    if config["stop_file"]:
        threading.Thread(target=stop_on_request, daemon=True).start()

    if config["awaits"]:
        query.awaitTermination()
        return

    status = {"error": follow(query, config["until_batch"])}
    status["batches"] = (query.lastProgress or {}).get("batchId", -1)
    leave(work / "status.json", status)
    spark.stop()


_TRANSFORMS = {
    "kinesis": lambda f: f.selectExpr("key AS partitionKey", "value AS data"),
    "pravega": lambda f: f.selectExpr("key AS routingKey", "value AS event"),
}


def _of_source(spark, config):
    """Rows of a stream of Kinesis or Pravega whose records hold numbers."""
    from pyspark.sql import functions as F

    from onceforall import sources

    sources.register(spark)
    kind, column = ("kinesis", "data") if config["kinesis"] else ("pravega", "event")
    frame = spark.readStream.format(kind).options(**config[kind]).load()
    return frame.select(F.col(column).cast("string").cast("long").alias("value"))


def _held(config):
    """A function that gives back a number, and waits first as long as the file ``holds`` is there;
    it leaves another one beside it."""
    from pyspark.sql import functions as F

    path = config["holds"]

    @F.udf("bigint")
    def held(value):
        while path and Path(path).exists():
            Path(f"{path}.reached").touch()
            time.sleep(0.05)
        return value

    return held


def _sink(kind, config):
    import onceforall as ofa

    if kind == "kafka":
        options = {
            "bootstrap.servers": config["bootstrap"],
            "transaction.timeout.ms": 600_000,
            **config["sink_options"],
        }
        return ofa.KafkaSink(options, topic=config["topic"], delivery=config["delivery"])
    if kind == "files":
        return ofa.FileSink(config["files"], format="json", partition_by=["key"])
    if kind == "kinesis":
        return ofa.KinesisSink(**config["kinesis_sink"])
    if kind == "pravega":
        return ofa.PravegaSink(**config["pravega_sink"])
    return ofa.PostgresSink(config["database"], table="out", **config["postgres"])


if __name__ == "__main__":
    main()
