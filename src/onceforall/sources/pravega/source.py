"""The Pravega source: ``spark.readStream.format("pravega")``.

`planning` looks where the segments end, `reading` reads them in tasks; a partition is a segment
that has events in the batch. Module ``spark_reader`` has what Spark asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, InputPartition

from onceforall.sources.pravega.options import Access, Options, parse
from onceforall.sources.pravega.planning import Cut, Planner
from onceforall.sources.pravega.positions import Offset, Range, ranges
from onceforall.sources.pravega.reading import SCHEMA, batches
from onceforall.sources.spark_reader import Limits, OffsetReader, check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class PravegaSource(DataSource):
    """Reads a stream of Pravega; ``docs/pravega.md`` has its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pravega"

    def schema(self) -> str:
        """Return the columns that it has, always the same."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> PravegaReader:  # noqa: N802  Spark's name
        """Return the reader of a query.

        Args:
            schema: that of `schema`.

        Raises:
            OptionError: an option is wrong, or the query has another schema.
        """
        check_schema(self.name(), SCHEMA, schema)
        return PravegaReader(parse(self.options))


class SegmentPartition(InputPartition):
    """A task's part of a batch."""

    def __init__(self, todo: Range, access: Access, *, fail_on_data_loss: bool) -> None:
        """Take what the task needs."""
        super().__init__((str(access.stream), todo.segment, todo.end))
        self.todo, self.access, self.fail_on_data_loss = todo, access, fail_on_data_loss


class PravegaReader(OffsetReader[Offset, Cut]):
    """Plans a query's batches, and reads their partitions."""

    _options: Options

    def _new_planner(self) -> Planner:
        return Planner(self._options)

    def _limits(self) -> Limits:
        return Limits(self._options.max_records, self._options.max_bytes)

    def _offset(self, found: Mapping[str, Any]) -> Offset:
        return Offset.from_json(found)

    def _beginning(self) -> Offset:
        return Offset()

    def _parts(self, start: Offset, end: Offset) -> list[InputPartition]:
        access, strict = self._options.access, self._options.fail_on_data_loss
        return [
            SegmentPartition(todo, access, fail_on_data_loss=strict) for todo in ranges(start, end)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part.

        Args:
            partition: one of `partitions`.

        Raises:
            DataLossError: some of its events are gone.
            SourceError: Pravega refuses, or doesn't answer.
        """
        assert isinstance(partition, SegmentPartition)
        return batches(
            partition.access, partition.todo, fail_on_data_loss=partition.fail_on_data_loss
        )
