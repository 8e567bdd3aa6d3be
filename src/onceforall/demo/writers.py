"""The two writers: onceforall with its three sinks, and what people do without it, ``foreachBatch``
with Spark's own writers.

Both write the same rows to a Kafka topic, a folder of Parquet files and a PostgreSQL table, and
each row bears its batch id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import onceforall as ofa
from onceforall.demo.outputs import Output

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

WRITERS = ("onceforall", "spark")

_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm", "dateFormat": "yyyy-MM-dd"}
_RECORD_KEYS = {"events": "flight", "windows": "origin"}
_TABLE_KEYS = {"windows": ("origin", "hour")}


class JsonKafkaSink(ofa.KafkaSink):
    """A Kafka sink whose values are whole rows as JSON.

    So it takes the very rows that the other two take, and all three are written in one pass over
    them.
    """

    def __init__(self, options: dict[str, Any], *, topic: str, record_key: str) -> None:
        """Take the column of the key besides."""
        super().__init__(options, topic=topic)
        self._record_key = record_key

    def columns(self, schema: StructType) -> list[Column]:
        """Return key and value."""
        return as_json(schema.names, self._record_key)


def as_json(names: list[str], record_key: str) -> list[Column]:
    """Return the columns of a Kafka record: all columns as JSON, and the key."""
    from pyspark.sql import functions as f

    value = f.to_json(f.struct(*names), _JSON)
    return [value.cast("binary").alias("value"), f.col(record_key).cast("binary").alias("key")]


def start_with_onceforall(
    rows: DataFrame, query: str, output: Output, checkpoint: str
) -> StreamingQuery:
    """Start a query that writes each batch to all three sinks with one decision."""
    from pyspark.sql import functions as f

    sinks: dict[str, ofa.TwoPhaseCommitSink] = {
        "kafka": JsonKafkaSink(
            {"bootstrap.servers": output.bootstrap_servers},
            topic=output.topic,
            record_key=_RECORD_KEYS[query],
        ),
        "files": ofa.FileSink(output.folder, format="parquet", partition_by=["day"]),
        "postgres": ofa.PostgresSink(
            output.database, table=output.table, key=_TABLE_KEYS.get(query), create_table=True
        ),
    }

    @ofa.exactly_once(checkpoint, sinks=sinks)
    def write(batch: DataFrame, batch_id: int, transaction: ofa.BatchTransaction) -> None:
        numbered = batch.withColumn("batch", f.lit(batch_id).cast("bigint"))
        for name in sinks:
            transaction.write(name, numbered)

    return (
        rows.writeStream.foreachBatch(write)
        .queryName(query)
        .option("checkpointLocation", checkpoint)
        .start()
    )


def start_with_spark(
    rows: DataFrame, query: str, output: Output, checkpoint: str
) -> StreamingQuery:
    """Start the same query with Spark's own writers. The table must exist."""
    from pyspark.sql import functions as f

    def write(batch: DataFrame, batch_id: int) -> None:
        numbered = batch.withColumn("batch", f.lit(batch_id).cast("bigint")).persist()
        try:
            records = numbered.select(*as_json(numbered.columns, _RECORD_KEYS[query])).write.format(
                "kafka"
            )
            records.option("kafka.bootstrap.servers", output.bootstrap_servers).option(
                "topic", output.topic
            ).save()
            numbered.write.mode("append").partitionBy("day").parquet(str(output.folder))
            table = (
                numbered.write.mode("append")
                .format("jdbc")
                .options(**jdbc_options(output.database))
            )
            table.option("dbtable", output.table).save()
        finally:
            numbered.unpersist()

    return (
        rows.writeStream.foreachBatch(write)
        .queryName(query)
        .option("checkpointLocation", checkpoint)
        .start()
    )


def jdbc_options(database: str) -> dict[str, str]:
    """Return what Spark's JDBC writer needs to know of a database, given by its URL for libpq."""
    parts = urlsplit(database)
    return {
        "url": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "driver": "org.postgresql.Driver",
    }


TABLES = {
    "events": 'CREATE TABLE "events" (id bigint, flight text, route text, day date, scheduled '
    "timestamptz, km bigint, status text, "
    "minutes_gained bigint, batch bigint)",
    "windows": 'CREATE TABLE "windows" (origin text, day date, hour timestamptz, flights bigint, '
    "cancelled bigint, "
    "minutes_late bigint, batch bigint)",
}
"""The tables that Spark's writer appends to. (onceforall makes its own.)"""
