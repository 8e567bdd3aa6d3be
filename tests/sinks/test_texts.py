"""Spark's STRING may hold any bytes. Where a sink needs a text, a row that has none is refused with
the column and the value, as other rows that can't be written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from onceforall.errors import RefusedRecordError
from onceforall.sinks.kafka.task.partitioning import PartitionRules
from onceforall.sinks.kafka.task.records import Headers
from onceforall.sinks.kafka.task.writer import KafkaTransaction
from onceforall.sinks.kinesis.writing import KinesisWriting
from onceforall.sinks.pravega.writing import PravegaWriting


def strings(*values):
    """Strings that nobody has looked at, as they come from the JVM."""
    return pa.array(values, pa.binary()).view(pa.string())


def write_to_kafka(batch):
    KafkaTransaction(
        None,
        1,
        topic="t" if "topic" not in batch.schema.names else None,
        message_max_bytes=1000,
        topic_max_bytes=None,
        patience_s=1,
        partitions=PartitionRules.of({}),
    ).write(batch)


def read_headers(batch):
    Headers(batch.column("headers"))


def write_to_kinesis(batch):
    KinesisWriting(None, "s", ordered=True, max_record_bytes=1000, retry_s=1).write(batch)


def write_to_pravega(batch):
    object.__new__(PravegaWriting).write(batch)


def headers_of(keys):
    pairs = pa.StructArray.from_arrays([keys, pa.array([b"v"] * len(keys))], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array([0, len(keys)], pa.int32()), pairs)


BAD = strings(b"good", b"t\xff")
WRITTEN = {
    "topic": (write_to_kafka, {"value": [b"x", b"y"], "topic": BAD}),
    "headers.key": (read_headers, {"headers": headers_of(BAD)}),
    "partitionKey": (write_to_kinesis, {"data": [b"x", b"y"], "partitionKey": BAD}),
    "explicitHashKey": (
        write_to_kinesis,
        {"data": [b"x", b"y"], "partitionKey": ["a", "b"], "explicitHashKey": BAD},
    ),
    "routingKey": (write_to_pravega, {"event": [b"x", b"y"], "routingKey": BAD}),
}


@pytest.mark.parametrize("column", WRITTEN)
def test_a_string_that_is_no_text_is_refused_with_its_column(column):
    write, columns = WRITTEN[column]
    with pytest.raises(RefusedRecordError) as told:
        write(pa.RecordBatch.from_pydict(columns))
    assert f"Column '{column}' holds b't\\xff', which is no UTF-8" in str(told.value)
    assert "make_valid_utf8" in str(told.value)


def test_of_a_long_string_that_is_no_text_the_beginning_is_shown():
    column = strings(b"x" * 100_000 + b"\xff")
    with pytest.raises(RefusedRecordError) as told:
        write_to_kinesis(pa.RecordBatch.from_pydict({"data": [b"x"], "partitionKey": column}))
    assert len(str(told.value)) < 300
