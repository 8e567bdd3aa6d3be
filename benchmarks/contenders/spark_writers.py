"""What a Spark contender writes with: our sinks, and what users do today.

``contender`` of the job's configuration:

- ``ours``: ``onceforall.write_stream`` to the sinks of ``sinks``, one decision for all
- ``spark-kafka``: Spark's own Kafka sink, at-least-once
- ``spark-files``: Spark's own file sink (Parquet)
- ``spark-jdbc``: ``foreachBatch`` with an append through JDBC, which is what users do
- ``spark-three``: ``foreachBatch`` with three writes one after the other: Kafka, Parquet, JDBC
- ``spark-cached``: the same with the batch persisted meanwhile
- ``noop``: Spark's ``noop`` sink: the source alone
- ``arrow``: an empty ``mapInArrow`` function in ``foreachBatch``: the way to the Python worker

``options``: more options of ``ours``.

``sinks``: a list of ``{"kind": "kafka", "topic", "delivery", "options"}``, ``{"kind": "file",
"path"}``, ``{"kind": "postgres", "table", "mode"}`` and ``{"kind": "null"}``, which takes what the
Kafka sink takes and drops it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import onceforall as ofa
from benchmarks.settings import TRANSACTION_TIMEOUT_MS
from onceforall.sink import CommitReport
from onceforall.sinks.kafka.columns import kafka_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, DataFrameWriter
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

_Writer = TypeVar("_Writer", "DataStreamWriter", "DataFrameWriter")

DATABASE_VARIABLE = "BENCH_DATABASE"
"""The environment variable with the database's URL, which has a password in it."""


class NullSink(ofa.TwoPhaseCommitSink):
    """Takes the columns of the Kafka sink and drops them: what remains is the library's own way
    through Spark.
    """

    kind = "null"

    def columns(self, schema: StructType) -> list[Column]:
        """Return the Kafka sink's columns."""
        return kafka_columns(schema, topic="none", timestamp_column=None)

    def begin_transaction(self, attempt: Any) -> dict[str, str]:
        """Return the name of the attempt."""
        return {"name": attempt.name}

    def invoke(self, transaction: Any, rows: pa.RecordBatch) -> None:
        """Drop rows."""

    def pre_commit(self, transaction: dict[str, str]) -> dict[str, str]:
        """Return a committable."""
        return transaction

    def commit(self, permit: Any, committables: Any) -> CommitReport:  # noqa: ARG002
        """Say that all is done."""
        return CommitReport(completed=tuple(committables))

    def abort(self, committables: Any) -> None:
        """Do nothing."""

    def recover(self, sweep: Any) -> int:  # noqa: ARG002
        """Find nothing."""
        return 0


def start(rows: DataFrame, config: Mapping[str, Any]) -> StreamingQuery:
    """Start the contender's query."""
    name = config["contender"]
    mode = "update" if config["rows"] == "counts" else "append"
    seconds = float(config.get("trigger", 0))
    trigger = {"processingTime": f"{round(1000 * seconds)} milliseconds"}
    if name == "ours":
        ours = (
            ofa.write_stream(rows)
            .outputMode(mode)
            .option("checkpointLocation", config["checkpoint"])
            .trigger(**trigger)
        )
        for option, value in config.get("options", {}).items():
            ours.option(option, value)
        for sink in config["sinks"]:
            ours.to(our_sink(sink, config))
        return ours.start()
    writer = (
        rows.writeStream.outputMode(mode)
        .option("checkpointLocation", config["checkpoint"])
        .trigger(**trigger)
    )
    if name == "spark-kafka":
        return spark_kafka(writer, config).start()
    if name == "spark-files":
        path = sink_of(config, "file")["path"]
        return writer.format("parquet").option("path", path).start()
    if name == "noop":
        return writer.format("noop").start()
    return writer.foreachBatch(_FUNCTIONS[name](config)).start()


def our_sink(sink: Mapping[str, Any], config: Mapping[str, Any]) -> ofa.TwoPhaseCommitSink:
    """Return our sink of an entry of ``sinks``."""
    if sink["kind"] == "null":
        return NullSink()
    if sink["kind"] == "file":
        return ofa.FileSink(sink["path"], format="parquet")
    if sink["kind"] == "postgres":
        return ofa.PostgresSink(
            os.environ[DATABASE_VARIABLE], table=sink["table"], mode=sink.get("mode", "staged")
        )
    delivery = sink.get("delivery", "exactly_once")
    options = {"bootstrap.servers": config["bootstrap"], **sink["options"]}
    if delivery == "exactly_once":
        options["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
    return ofa.KafkaSink(options, topic=sink["topic"], delivery=delivery)


def sink_of(config: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the first entry of a kind."""
    found: Mapping[str, Any] = next(sink for sink in config["sinks"] if sink["kind"] == kind)
    return found


def spark_kafka(writer: _Writer, config: Mapping[str, Any]) -> _Writer:
    """Set Spark's own Kafka sink up, for a stream or a batch."""
    sink = sink_of(config, "kafka")
    writer.format("kafka").option("kafka.bootstrap.servers", config["bootstrap"]).option(
        "topic", sink["topic"]
    )
    for name, value in sink["options"].items():
        writer.option(f"kafka.{name}", value)
    return writer


def _jdbc(rows: DataFrame, sink: Mapping[str, Any]) -> None:
    where = urlsplit(os.environ[DATABASE_VARIABLE])
    assert not parse_qs(where.query)
    # By default the JDBC driver sends each row as a statement of its own, even in a batch; users
    # who care set this.
    url = f"jdbc:postgresql://{where.hostname}:{where.port}{where.path}?reWriteBatchedInserts=true"
    options = {
        "user": unquote(where.username or ""),
        "password": unquote(where.password or ""),
        "batchsize": "10000",
    }
    options |= {"driver": "org.postgresql.Driver", "dbtable": sink["table"], "url": url}
    rows.write.format("jdbc").options(**options).mode("append").save()


def _arrow(_config: Mapping[str, Any]) -> Callable[[DataFrame, int], None]:
    def drop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        count = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"count": [count]})

    def consume(batch: DataFrame, _batch_id: int) -> None:
        batch.mapInArrow(drop, "count bigint").collect()

    return consume


def _only_jdbc(config: Mapping[str, Any]) -> Callable[[DataFrame, int], None]:
    def append(batch: DataFrame, _batch_id: int) -> None:
        _jdbc(batch, sink_of(config, "postgres"))

    return append


def _three(config: Mapping[str, Any], *, persist: bool = False) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, _batch_id: int) -> None:
        if persist:
            batch.persist()
        spark_kafka(batch.select("value").write, config).save()
        batch.write.mode("append").parquet(sink_of(config, "file")["path"])
        _jdbc(batch, sink_of(config, "postgres"))
        if persist:
            batch.unpersist()

    return write


def _cached(config: Mapping[str, Any]) -> Callable[[DataFrame, int], None]:
    return _three(config, persist=True)


_FUNCTIONS: Mapping[str, Callable[[Mapping[str, Any]], Callable[[DataFrame, int], None]]] = {
    "spark-jdbc": _only_jdbc,
    "spark-three": _three,
    "spark-cached": _cached,
    "arrow": _arrow,
}
