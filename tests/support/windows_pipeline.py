"""A driver process of its own: sessions of event time, with early results and late rows, to two
Kafka topics, exactly once.

``python windows_pipeline.py CONFIG.json``, with keys as in ``pipeline.py``. The rows are 0, 1, 2,
…; ``event_of`` says what becomes of them.
"""

import os
from pathlib import Path

from support.driver_program import configured, follow, jvm_of, leave
from support.small_spark import small_spark

START_MS = 1_700_000_000_000
DELAY = "5 seconds"
GAP_MS, DURATION_MS, EVENTS, EARLY = 750, 1_200, 6, 2


def event_of(row, rows_per_batch):
    """Return (user, time in milliseconds, value) of a row: up to five seconds out of order, some
    twenty seconds late."""
    at = (
        START_MS
        + row // rows_per_batch * 1000
        - row * 7919 % 5000
        - (20_000 if row % 37 == 0 else 0)
    )
    return row % 7, at, row


def main():
    config = configured()
    from pyspark.sql import functions as F

    import onceforall as ofa
    from onceforall import operators as ops

    work = Path(config["work"])
    settings = {
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "spark.sql.streaming.minBatchesToRetain": "100",
        **config["spark"],
    }
    spark = small_spark(java_options=config["java_options"], settings=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    leave(work / "pids.json", {"python": os.getpid(), "jvm": jvm_of(spark)})

    per_batch = config["rows_per_batch"]
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", per_batch)
        .option("numPartitions", 4)
        .option("startTimestamp", START_MS)
        .option("advanceMillisPerBatch", 1000)
        .load()
    )
    behind = F.expr("value * 7919 % 5000 + if(value % 37 = 0, 20000, 0)")
    events = rows.select(
        (F.col("value") % 7).cast("int").alias("user"),
        F.timestamp_millis(F.unix_millis("timestamp") - behind).alias("at"),
        "value",
    ).withWatermark("at", DELAY)
    sessions = ops.session_window(
        events,
        key="user",
        time="at",
        gap=f"{GAP_MS} milliseconds",
        max_events=EVENTS,
        max_duration=f"{DURATION_MS} milliseconds",
        order_by="value",
        trigger=ops.Trigger(count=EARLY),
        aggregates={"total": ops.Sum("value"), "rows": ops.Rows("value")},
    )
    kafka = {"bootstrap.servers": config["bootstrap"], "transaction.timeout.ms": 600_000}
    query = (
        ofa.write_stream(sessions)
        .to(
            ofa.KafkaSink(kafka, topic=config["topic"]),
            name="out",
            transform=lambda batch: _said(ops.results(batch)),
        )
        .to(
            ofa.KafkaSink(kafka, topic=config["late_topic"]),
            name="late",
            transform=lambda batch: _late(ops.late_rows(batch)),
        )
        .option("checkpointLocation", config["checkpoint"])
        .option("onceforall.onDivergence", "fail")
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    leave(work / "status.json", {"error": follow(query, config["until_batch"])})
    spark.stop()


def _said(batch):
    from pyspark.sql import functions as F

    times = [F.unix_micros(name).alias(name) for name in ("window_start", "window_end")]
    fields = [
        "user",
        "kind",
        "window_index",
        "revision",
        "events",
        "closed_by",
        "total",
        F.col("rows.value").alias("rows"),
    ]
    return batch.select(
        F.col("user").cast("string").alias("key"),
        F.to_json(F.struct(*fields, *times)).alias("value"),
    )


def _late(batch):
    from pyspark.sql import functions as F

    return batch.select(
        F.col("user").cast("string").alias("key"), F.col("value").cast("string").alias("value")
    )


if __name__ == "__main__":
    main()
