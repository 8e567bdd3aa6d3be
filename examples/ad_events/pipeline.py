"""What the four jobs share: where everything is, how a topic is read, how rows become records,
and how a job is run.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import onceforall as ofa
from onceforall.driver.doors import StreamWriter

DATABASE_VARIABLE = "AD_EVENTS_DATABASE"
"""The environment variable with the URL of the database, for no list of processes shows it
there."""

EVENT = (
    "record_id STRING, event_id STRING, user_id STRING, campaign_id STRING, ad_id STRING, "
    "event_type STRING, "
    "happened TIMESTAMP, micros BIGINT"
)
"""What `cleanse` writes: ``micros`` is the cost of a view or a click, or the amount of an order,
in millionths of the currency."""

EVENT_IDS = uuid.UUID("5f0c9a52-6d0e-4f3b-9a5e-7f4c5d1e2b90")
SPEND_IDS = uuid.UUID("c1b7e0f4-2a86-4d19-8c3d-90e6f5a7b132")
"""The namespaces of record ids, for everybody who wants to compute one: uuid5 of it and the name
that `onceforall.operators` documents.

The name of an event is the text ``event <event id>``, that of a record without one ``place <topic>
<partition> <offset>``, and that of a row of spend is its campaign and the begin of its window.
"""

WATERMARK_DELAY = "6 hours"
"""How long `aggregate` and `attribute` wait for what comes out of order.

`cleanse` lets nothing pass that happened more than an hour before it arrived. The rest is for
`cleanse`'s own batches: its partitions become visible one after the other, so a reader may be a
batch ahead in one of them, and a batch that catches up after an outage is a long one.
"""

EVERY = "1 second"
"""How often a job looks for something to do."""


@dataclass(frozen=True)
class Place:
    """Where the pipeline runs.

    Attributes:
        servers: the brokers.
        prefix: how the names of the pipeline's own topics begin.
        folder: of checkpoints and files.
        database: the URL of the database.
        max_offsets: how many records a batch has at most.
    """

    servers: str
    prefix: str
    folder: str
    database: str = field(repr=False)
    max_offsets: int

    def topic(self, name: str) -> str:
        """Return the full name of one of the pipeline's own topics."""
        return f"{self.prefix}{name}"

    def kafka(self, topic: str | None = None) -> ofa.KafkaSink:
        """Return a sink to a topic; without one, each row's column ``topic`` says where it goes."""
        return ofa.KafkaSink({"bootstrap.servers": self.servers}, topic=topic)

    def read(self, spark: SparkSession, *topics: str) -> DataFrame:
        """Read topics as far as their transactions are committed."""
        return (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.servers)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", ",".join(topics))
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.max_offsets)
            .load()
        )

    def read_events(self, spark: SparkSession, *names: str) -> DataFrame:
        """Read topics that `cleanse` writes."""
        records = self.read(spark, *map(self.topic, names))
        return records.select(
            f.from_json(f.col("value").cast("string"), EVENT).alias("event")
        ).select("event.*")


def as_records(rows: DataFrame, *, key: str, topic: f.Column | None = None) -> DataFrame:
    """Make records of rows: all columns as JSON, the key, and where each one goes."""
    routed = [] if topic is None else [topic.alias("topic")]
    return rows.select(
        f.col(key).alias("key"), f.to_json(f.struct(*rows.columns)).alias("value"), *routed
    )


def run(
    name: str,
    rows: Callable[[SparkSession, Place], DataFrame],
    write: Callable[[DataFrame, Place], StreamWriter],
) -> None:
    """Run a job until SIGTERM: then it takes what is there, and ends."""
    asked = asked_to_end()
    place = place_of_arguments(name)
    spark = session(name)
    writer = (
        write(rows(spark, place), place)
        .queryName(name)
        .option("checkpointLocation", f"{place.folder}/checkpoints/{name}")
    )
    stay(writer.trigger(processingTime=EVERY).start(), asked)
    spark.stop()


def session(name: str) -> SparkSession:
    """Return the job's session: state in RocksDB, of which a batch's checkpoint is what the
    batch has changed.
    """
    rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    return (
        SparkSession.builder.appName(name)
        .config("spark.sql.streaming.stateStore.providerClass", rocksdb)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def asked_to_end() -> threading.Event:
    """Return what is set by SIGTERM, which ends nothing by itself from now on."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    return asked


def stay(query: StreamingQuery, asked: threading.Event) -> None:
    """Wait until the end is asked for, or the query fails, which is raised."""
    while query.isActive and not asked.wait(0.2):
        pass
    if query.exception() is not None:
        raise query.exception()
    # This runs the batches without data too, in which the last windows are written.
    query.processAllAvailable()
    query.stop()


def place_of_arguments(name: str) -> Place:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("--servers", required=True, help="of Kafka")
    parser.add_argument(
        "--prefix", default="", help="how the names of the pipeline's own topics begin"
    )
    parser.add_argument("--folder", required=True, help="of checkpoints and files")
    parser.add_argument("--max-offsets", type=int, default=100_000, help="of a batch")
    given = parser.parse_args()
    # Taken out, so that the JVM and its Python workers don't inherit the password.
    return Place(
        given.servers,
        given.prefix,
        given.folder,
        os.environ.pop(DATABASE_VARIABLE),
        given.max_offsets,
    )
