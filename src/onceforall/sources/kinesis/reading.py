"""Reads the records of a range in a task: the same ones each time, or an error.

A range is known by its first and last record and by their number. A task that finds another number,
or passes the last record without seeing it, knows that records are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onceforall.common.logs import logger
from onceforall.errors import DataLossError, SourceError
from onceforall.sources.arrow_batches import in_batches
from onceforall.sources.kinesis.aggregates import unpacked
from onceforall.sources.kinesis.client import (
    ExpiredIteratorError,
    Record,
    ShardGoneError,
    Shards,
)
from onceforall.sources.kinesis.positions import Range

if TYPE_CHECKING:
    import pyarrow as pa

_log = logger(__name__)

SCHEMA = (
    "data BINARY, streamName STRING, partitionKey STRING, sequenceNumber STRING, "
    "subSequenceNumber BIGINT, approximateArrivalTimestamp TIMESTAMP_LTZ, shardId STRING"
)


def records(shards: Shards, todo: Range, *, fail_on_data_loss: bool) -> Iterator[Record]:
    """Yield the Kinesis records of a range.

    Args:
        shards: reads them.
        todo: the range.
        fail_on_data_loss: raise where some are gone; otherwise what is there is all.

    Raises:
        DataLossError: some are gone.
        SourceError: Kinesis refuses, or doesn't answer.
    """
    found, last = 0, None
    try:
        for record in _up_to_end(shards, todo):
            found, last = found + 1, record.sequence_number
            yield record
    except ShardGoneError:
        last = None
    if last == todo.end and found == todo.count:
        return
    said = (
        f"A batch has {todo.count} records of shard {todo.shard} of {todo.arn}, up to "
        f"{todo.end}, and {found} of them are there: retention has passed the others"
    )
    if found > todo.count:
        raise SourceError(
            f"Shard {todo.shard} of {todo.arn} has {found} records up to {todo.end}, where a batch "
            f"was planned with {todo.count}. Look who has changed the checkpoint."
        )
    if fail_on_data_loss:
        raise DataLossError(
            f"{said}. To go on with what is there, set the option failOnDataLoss to false for one "
            "start; the rest is lost."
        )
    _log.warning("%s. The batch goes on without them, as failOnDataLoss=false says.", said)


def _up_to_end(shards: Shards, todo: Range) -> Iterator[Record]:
    """Yield what there is from a range's start to its end."""
    iterator: str | None = None
    last: str | None = None
    while True:
        if iterator is None:
            iterator = _opened(shards, todo, last)
        try:
            page = shards.page(todo.arn, todo.shard, iterator)
        except ExpiredIteratorError:
            iterator = None
            continue
        for record in page.records:
            if int(record.sequence_number) > int(todo.end):
                return
            yield record
            last = record.sequence_number
            if last == todo.end:
                return
        iterator = page.following
        if iterator is None or (not page.records and page.behind_ms == 0):
            return


def _opened(shards: Shards, todo: Range, last: str | None) -> str:
    if last is None and todo.inclusive:
        kind, number = "AT_SEQUENCE_NUMBER", todo.start
    else:
        kind, number = "AFTER_SEQUENCE_NUMBER", last or todo.start
    return shards.iterator(todo.arn, todo.shard, kind, StartingSequenceNumber=number)


def batches(
    shards: Shards, todo: Range, *, fail_on_data_loss: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range as Arrow batches, each of 1,000 rows but the last.

    Args:
        shards: reads them.
        todo: the range.
        fail_on_data_loss: as `records`.

    Raises:
        DataLossError, SourceError: as `records`.
    """
    import pyarrow as pa

    schema = pa.schema(
        [
            ("data", pa.binary()),
            ("streamName", pa.string()),
            ("partitionKey", pa.string()),
            ("sequenceNumber", pa.string()),
            ("subSequenceNumber", pa.int64()),
            ("approximateArrivalTimestamp", pa.timestamp("us", tz="UTC")),
            ("shardId", pa.string()),
        ]
    )
    yield from in_batches(_rows(shards, todo, fail_on_data_loss=fail_on_data_loss), schema)


def _rows(shards: Shards, todo: Range, *, fail_on_data_loss: bool) -> Iterator[tuple[object, ...]]:
    stream = todo.arn.rpartition("/")[2]
    for record in records(shards, todo, fail_on_data_loss=fail_on_data_loss):
        number, arrival_us = record.sequence_number, record.arrival_ms * 1000
        for place, (key, data) in enumerate(unpacked(record.data, record.partition_key)):
            yield data, stream, key, number, place, arrival_us, todo.shard
