"""The Kinesis source: ``spark.readStream.format("kinesis")``.

`planning` looks at the shards, `reading` reads them in tasks; a partition is a shard that has
records in the batch. Module ``spark_reader`` has what Spark asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, InputPartition

from onceforall.common.aws import Access
from onceforall.sources.kinesis.client import Shards
from onceforall.sources.kinesis.options import Options, parse
from onceforall.sources.kinesis.planning import Planner
from onceforall.sources.kinesis.positions import Offset, Range, ranges
from onceforall.sources.kinesis.reading import SCHEMA, batches
from onceforall.sources.spark_reader import Limits, OffsetReader, check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class KinesisSource(DataSource):
    """Reads streams of Amazon Kinesis Data Streams; ``docs/kinesis.md`` has its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "kinesis"

    def schema(self) -> str:
        """Return the columns that it has, always the same."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> KinesisReader:  # noqa: N802  Spark's name
        """Return the reader of a query.

        Args:
            schema: that of `schema`.

        Raises:
            OptionError: an option is wrong, or the query has another schema.
        """
        check_schema(self.name(), SCHEMA, schema)
        return KinesisReader(parse(self.options))


class ShardPartition(InputPartition):
    """A task's part of a batch."""

    def __init__(self, todo: Range, access: Access, *, fail_on_data_loss: bool) -> None:
        """Take what the task needs, none of it secret."""
        super().__init__((todo.arn, todo.shard, todo.end))
        self.todo, self.access, self.fail_on_data_loss = todo, access, fail_on_data_loss


class KinesisReader(OffsetReader[Offset, int]):
    """Plans a query's batches, and reads their partitions."""

    _options: Options

    def _new_planner(self) -> Planner:
        return Planner(self._options)

    def _limits(self) -> Limits:
        options = self._options
        return Limits(options.max_records, options.max_bytes, options.max_planning_s)

    def _offset(self, found: Mapping[str, Any]) -> Offset:
        return Offset.from_json(found)

    def _beginning(self) -> Offset:
        return Offset()

    def _parts(self, start: Offset, end: Offset) -> list[InputPartition]:
        return [
            ShardPartition(
                todo, self._options.access, fail_on_data_loss=self._options.fail_on_data_loss
            )
            for todo in ranges(start, end)
        ]

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return how far the last batch was behind each stream, for the query's progress."""
        if self._planner is None or not self._planner.behind_ms:
            return None
        return {"millisBehindLatest": dict(self._planner.behind_ms)}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part.

        Args:
            partition: one of `partitions`.

        Raises:
            DataLossError: some of its records are gone.
            SourceError: Kinesis refuses, or doesn't answer.
        """
        assert isinstance(partition, ShardPartition)
        return batches(
            Shards(partition.access),
            partition.todo,
            fail_on_data_loss=partition.fail_on_data_loss,
        )
