"""A driver process of the campaign: rows 0, 1, 2, … from a source that replays exactly, or from
Kafka's, to one or several sinks, exactly once.

``python workload.py CONFIG.json``, with the keys of ``DEFAULTS``. A query that fails is started
again in the same process, as a supervisor would, at most ``restarts`` times; the process ends
behind batch ``until_batch``, or when ``stop_file`` appears. It leaves ``pids.json``,
``errors.json`` (why its runs ended) and ``status.json`` in its work folder.

Each key is written by one task in ascending order, so that order within a key can be checked; a
stateful query writes the running count of each key. What else a row bears is in module
``contents``, unless replays are to differ.
"""

import logging
import os
import time
from pathlib import Path

import psutil

from chaos import contents
from chaos.machine import end_what_was_left
from onceforall.spark.stores import Stores
from support.driver_program import configured, jvm_of, leave
from support.small_spark import small_spark

EMPTY_BATCHES = 4
FILTERED = 3
"""The operator ``filter`` drops the multiples of it."""

SHUFFLING = ("deduplicate", "count", "complete", "repartition")
"""Operators behind which the rows of a key may come to other tasks than the source's, in another
order."""

DEFAULTS = {
    "bootstrap": "",
    "topic": "",
    "sinks": ["kafka"],
    "files": "",
    "database": "",
    "postgres": {},
    "work": "",
    "checkpoint": "",
    "until_batch": 10_000,
    "rows_per_batch": 2000,
    "keys": 4,
    "partitions": 2,
    "master": "local[2]",
    "operator": "",
    "stateful": False,
    "diverging": False,
    "complete": False,
    "epoch_us": 0,
    "partitioned": False,
    "plain": False,
    "options": {},
    "sink_options": {},
    "spark": {},
    "daemon": "chaos.daemon",
    "java_options": "",
    "stop_file": "",
    "restarts": 0,
    "armed": "",
    "trigger": "100 milliseconds",
    "sink_arguments": {},
    "files_arguments": {},
    "environment": {},
    "source": {},
    "roll_after_entries": 0,
}


def main():
    config = configured(DEFAULTS)
    work = Path(config["work"])
    os.environ.update(config["environment"])
    if config["roll_after_entries"]:
        from onceforall.driver import query_run as runs

        # What a run comes to in days.
        runs.ROLL_AFTER_ENTRIES = config["roll_after_entries"]
    spark = session(config)
    jvm = jvm_of(spark)
    leave(work / "pids.json", {"python": os.getpid(), "jvm": None if is_on_a_machine() else jvm})
    errors = []
    finished = False
    while not finished and len(errors) <= config["restarts"] and lives(jvm):
        error = run(spark, config)
        finished = error is None
        if not finished:
            errors.append(error)
            leave(work / "errors.json", errors)
            logging.getLogger("workload").error("the query ended: %s", error)
            # As a supervisor: not at once, while a server is away.
            time.sleep(0.2)
    if counts(config):
        leave(work / "state.json", state_of(spark, config))
    leave(work / "status.json", {"error": None if finished else errors[-1], "errors": errors})
    if lives(jvm):
        spark.stop()


def lives(pid):
    """Whether a process lives; this process can go on without its JVM, but its query can't."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_on_a_machine():
    """Whether the JVM is another one's, and outlives this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def session(config):
    if is_on_a_machine():
        end_what_was_left()
    daemon = (
        {"spark.python.daemon.module": config["daemon"]}
        if config["master"].startswith("local[")
        else {}
    )
    jars = {"spark.jars": ",".join(map(str, kafka_jars()))} if config["source"] else {}
    settings = {
        **jars,
        "spark.default.parallelism": "2",
        **daemon,
        **config["spark"],
    }
    spark = small_spark(config["master"], config["java_options"], settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def kafka_jars():
    from onceforall.embedded.jars import spark_kafka_jars

    return spark_kafka_jars()


def run(spark, config):
    """Run the query until its end is wanted (None) or it fails (the reason)."""
    try:
        query = start(spark, config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    try:
        watch(spark, query, config)
        query.awaitTermination(60)
        return None if query.exception() is None else str(query.exception())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def watch(spark, query, config):
    """Return when the query has ended or was stopped because its end is wanted; arm failpoints
    behind its first batch.

    Spark's commit log tells how far it is: asking the query itself so often would take more time
    than its batches.
    """
    commits = Stores(spark).checkpoint(config["checkpoint"]) / "commits"
    # On a store each look is a request, which Spark's own wait for.
    pause_s = 0.03 if isinstance(commits, Path) else 0.5
    begun = newest(commits)
    looks = 0
    while looks % 8 or query.isActive:
        looks += 1
        now = newest(commits)
        if config["armed"] and now > begun:
            arm(config)
        if now >= config["until_batch"] or stop_is_wanted(config):
            query.stop()
            return
        time.sleep(pause_s)


def newest(commits):
    """The last batch in Spark's commit log; -1 when there is none."""
    try:
        return max(
            (int(file.name) for file in commits.iterdir() if file.name.isdecimal()), default=-1
        )
    except FileNotFoundError:
        return -1


def state_of(spark, config):
    """What the state store holds: (count, last) by key."""
    from onceforall.testing.observers import read_state

    return {key: list(value) for key, value in read_state(spark, config["checkpoint"]).items()}


def stop_is_wanted(config):
    return config["stop_file"] and Path(config["stop_file"]).exists()


def arm(config):
    from onceforall.failpoints import points as failpoints

    failpoints.arm(config["armed"])
    config["armed"] = ""


def start(spark, config):
    import onceforall as ofa

    rows = (of_kafka if config["source"] else of_numbers)(spark, config)
    out, mode = (counted if counts(config) else passed)(rows, config)
    writer = (
        ofa.write_stream(out).outputMode(mode).option("checkpointLocation", config["checkpoint"])
    )
    for kind in config["sinks"]:
        writer.to(sink(kind, config), name=kind)
    return writer.options(**config["options"]).trigger(processingTime=config["trigger"]).start()


def of_numbers(spark, config):
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", config["rows_per_batch"])
        .option("numPartitions", config["partitions"])
        .option("startTimestamp", 1_700_000_000_000)
        .option("advanceMillisPerBatch", 1000)
        .load()
    )


def of_kafka(spark, config):
    """The same rows from topics whose partitions are equally long, so that each batch takes as
    many rows from each; see ``sources``."""
    from pyspark.sql import functions as F

    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", config["source"]["bootstrap"])
        .option("subscribe", ",".join(config["source"]["topics"]))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", config["rows_per_batch"])
        .load()
    )
    return rows.select(F.col("value").cast("string").cast("bigint").alias("value"), "timestamp")


def operator_of(config):
    """What the query does; a folder of files takes the output mode append only, so there one that
    keeps state removes duplicates."""
    if config["operator"] or not config["stateful"]:
        return config["operator"] or "none"
    if "files" in config["sinks"]:
        return "deduplicate"
    return "complete" if config["complete"] else "count"


def counts(config):
    """Whether the query counts: a row is the running count of a key then."""
    return operator_of(config) in {"count", "complete"}


def left_out(config):
    """How many rows a count leaves out: the first batches are empty where that is tried."""
    return EMPTY_BATCHES * config["rows_per_batch"] if config["complete"] else 0


def passed(rows, config):
    from pyspark.sql import functions as F

    # Partition p of the source gives p, p + partitions, p + 2 partitions, …: with keys a multiple
    # of partitions, a key has one task.
    assert config["source"] or config["keys"] % config["partitions"] == 0
    key = (F.col("value") % config["keys"]).cast("string")
    operator = operator_of(config)
    if operator == "filter":
        rows = rows.where(F.col("value") % FILTERED != 0)
    if operator == "repartition":
        rows = rows.repartition(3, key)
    if operator == "deduplicate":
        if config["operator"]:
            rows = rows.withColumn("value", F.explode(F.array("value", "value")))
        rows = rows.withWatermark("timestamp", "1 hour").dropDuplicatesWithinWatermark(["value"])
    columns = [key.alias("key"), F.col("value").cast("string").alias("value")]
    return rows.select(*columns, *others(F.col("value"), config)), "append"


def counted(rows, config):
    from pyspark.sql import functions as F

    if left_out(config):
        rows = rows.where(F.col("value") >= left_out(config))
    key = (F.col("value") % config["keys"]).cast("string")
    counts = rows.groupBy(key.alias("key")).agg(
        F.count("*").alias("n"), F.max("value").alias("last")
    )
    columns = [
        F.col("key"),
        F.concat_ws(":", F.col("key"), F.col("n"), F.col("last")).alias("value"),
    ]
    mode = "complete" if operator_of(config) == "complete" else "update"
    return counts.select(*columns, *others(F.col("last"), config)), mode


def others(number, config):
    """The columns besides id and key."""
    return different(config) if config["diverging"] else contents.columns(number, config)


def different(config):
    """A column with other values in each replay, which is part of a row and of its digest."""
    from pyspark.sql import functions as F

    other = F.rand().cast("string")
    if config["sinks"] == ["kafka"]:
        return [
            F.array(
                F.struct(F.lit("other").alias("key"), other.cast("binary").alias("value"))
            ).alias("headers")
        ]
    return [other.alias("other")]


def sink(kind, config):
    import onceforall as ofa

    if kind == "kafka":
        options = {
            "bootstrap.servers": config["bootstrap"],
            "transaction.timeout.ms": 600_000,
            **config["sink_options"],
        }
        has_times = contents.has_headers(config) and not config["diverging"]
        times = {"timestamp_column": "at"} if has_times else {}
        arguments = {**times, **config["sink_arguments"]}
        return ofa.KafkaSink(options, topic=config["topic"], **arguments)
    if kind == "files":
        arguments = {"format": "json", "partition_by": ["key"], **config["files_arguments"]}
        return ofa.FileSink(config["files"], **arguments)
    # Every running count stays in the table: the key is all of it.
    key = {"key": ["value"]} if operator_of(config) == "count" else {}
    return ofa.PostgresSink(config["database"], table="out", **{**key, **config["postgres"]})


if __name__ == "__main__":
    main()
