"""The program that is killed: two streaming queries from Kafka to three sinks, in one Spark driver.

Run as ``python -m onceforall.demo.job --writer onceforall|spark …``, with the URL of the database
in the environment, where no list of processes shows it. Everything but the last step (module
``writers``) is the same for both writers. It runs until it is killed, until a query fails (exit
code 1), or until the stop file exists: then it takes what is there and ends (0).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceforall.demo.outputs import output_of
from onceforall.demo.writers import WRITERS, start_with_onceforall, start_with_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUERIES = ("events", "windows")
DATABASE_VARIABLE = "ONCEFORALL_DEMO_DATABASE"
"""The environment variable with the URL of the database."""

SETTINGS_VARIABLE = "ONCEFORALL_DEMO_SETTINGS"
"""That with Spark's settings for the checkpoints' store, as JSON."""

WATERMARK_DELAY_DAYS = 6
"""More than partitions can be apart: a chunk of the feed is a day of flights, and Spark reads
all partitions in proportion."""

_SCHEMA = (
    "id BIGINT, time TIMESTAMP, carrier STRING, number BIGINT, origin STRING, destination STRING, "
    "departure_delay BIGINT, arrival_delay BIGINT, distance_miles BIGINT"
)
_STOP_POLL_S = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the queries; see the module for the exit code."""
    settings = _parser().parse_args(argv)
    # Taken out, so that the JVM and its Python workers don't inherit the password.
    settings.database = os.environ.pop(DATABASE_VARIABLE)
    settings.spark = json.loads(os.environ.pop(SETTINGS_VARIABLE, "{}"))
    spark = _session(settings)
    try:
        flights = _read(spark, settings)
        queries = [
            _start(_transformed(flights), "events", settings),
            _start(_hourly(flights), "windows", settings),
        ]
        return _stay(queries, settings.stop_file)
    finally:
        spark.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m onceforall.demo.job")
    parser.add_argument("--writer", choices=WRITERS, required=True)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--input", required=True, help="the topic of the flights")
    parser.add_argument(
        "--work-dir",
        type=Path,
        required=True,
        help="files and Spark's temporary files",
    )
    parser.add_argument("--checkpoints", required=True, help="folder or URL of the checkpoints")
    parser.add_argument("--stop-file", type=Path, required=True)
    parser.add_argument(
        "--jars", required=True, help="Spark's Kafka connector and the JDBC driver, by commas"
    )
    parser.add_argument("--max-offsets-per-trigger", type=int, required=True)
    return parser


def _session(settings: argparse.Namespace) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # A user's settings for other programs would make the two runs differ from those of other users.
    for name in ("SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON", "SPARK_CONF_DIR"):
        os.environ.pop(name, None)
    temporary = settings.work_dir / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = str(temporary)

    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    configuration = {
        "spark.master": "local[2]",
        # On the driver's own class path: spark.jars would copy and load them again at each start.
        "spark.driver.extraClassPath": settings.jars.replace(",", os.pathsep),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        # It lives for seconds only: the second compiler would not pay.
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Djava.io.tmpdir={temporary}",
        "spark.local.dir": str(temporary),
        "spark.sql.warehouse.dir": str(temporary / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # Else Spark's files have moments without a zone.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # The report draws every batch from the checkpoints.
        "spark.sql.streaming.minBatchesToRetain": "100000",
        "spark.sql.streaming.metricsEnabled": "false",
        **settings.spark,
    }
    for key, value in configuration.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.appName(f"onceforall-demo-{settings.writer}").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _read(spark: SparkSession, settings: argparse.Namespace) -> DataFrame:
    from pyspark.sql import functions as f

    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap_servers)
        .option("subscribe", settings.input)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings.max_offsets_per_trigger)
        .load()
    )
    return records.select(
        f.from_json(f.col("value").cast("string"), _SCHEMA).alias("flight")
    ).select("flight.*")


def _transformed(flights: DataFrame) -> DataFrame:
    """The per-event transformation; `truth` says the same in Python."""
    from pyspark.sql import functions as f

    from onceforall.demo.flights import CLOSING_ID
    from onceforall.demo.truth import LATE_AFTER_MINUTES

    status = (
        f.when(f.col("departure_delay").isNull(), "cancelled")
        .when(f.col("arrival_delay").isNull(), "diverted")
        .when(f.col("arrival_delay") > LATE_AFTER_MINUTES, "late")
        .otherwise("on time")
    )
    return flights.where(f.col("id") != CLOSING_ID).select(
        "id",
        f.concat_ws(" ", "carrier", "number").alias("flight"),
        f.concat_ws("-", "origin", "destination").alias("route"),
        f.to_date("time").alias("day"),
        f.col("time").alias("scheduled"),
        f.expr("distance_miles * 1609 div 1000").alias("km"),
        status.alias("status"),
        (f.col("departure_delay") - f.col("arrival_delay")).alias("minutes_gained"),
    )


def _hourly(flights: DataFrame) -> DataFrame:
    """The windowed aggregation: one row per airport and hour, once the watermark has passed it."""
    from pyspark.sql import functions as f

    hours = (
        flights.withWatermark("time", f"{WATERMARK_DELAY_DAYS} days")
        .groupBy(f.window("time", "1 hour"), "origin")
        .agg(
            f.count("*").alias("flights"),
            f.count_if(f.col("departure_delay").isNull()).alias("cancelled"),
            f.sum(f.coalesce("arrival_delay", f.lit(0))).alias("minutes_late"),
        )
    )
    hour = f.col("window.start")
    return hours.select(
        "origin",
        f.to_date(hour).alias("day"),
        hour.alias("hour"),
        "flights",
        "cancelled",
        "minutes_late",
    )


def _start(rows: DataFrame, query: str, settings: argparse.Namespace) -> StreamingQuery:
    output = output_of(
        settings.writer,
        query,
        bootstrap_servers=settings.bootstrap_servers,
        database=settings.database,
        work_dir=settings.work_dir,
    )
    start = start_with_onceforall if settings.writer == "onceforall" else start_with_spark
    return start(rows, query, output, f"{settings.checkpoints}/{query}")


def _stay(queries: Sequence[StreamingQuery], stop_file: Path) -> int:
    while not stop_file.exists():
        for query in queries:
            if not query.isActive:
                print(f"query {query.name} ended: {query.exception()}", file=sys.stderr, flush=True)
                return 1
        time.sleep(_STOP_POLL_S)
    for query in queries:
        # This runs the batches without data too, in which the last windows are written.
        query.processAllAvailable()
        query.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
