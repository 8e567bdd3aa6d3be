"""The Kinesis source: ``spark.readStream.format("kinesis")``.

How a batch comes to be:

1. Spark asks the reader, which lives in one process beside the driver, where the batch ends
   (`latestOffset`). The reader looks at the shards as far as the batch may go (`planning`).
2. Spark writes the end into its offset log. From then on the batch is fixed.
3. Spark asks for the partitions between start and end: one per shard that has records (`ranges`).
   Tasks read them again (`reading`), now and in each replay.

Nothing is stored anywhere else. What the reader keeps in memory saves requests, and may be lost at
any time.

**The first batch.** Spark doesn't store where a query begins; when it replays the first batch after
a restart, it asks again. So the beginning is a constant, and the first end carries where each shard
began. That end is given out even when there is no record yet: LATEST is the moment at which the
query was started first.

**Spark's versions.** From 4.2 on Spark says where the batch begins, and what limits it. Before, it
calls ``latestOffset()`` without either, and the reader starts from the last end that it heard of by
``partitions(start, end)``: Spark calls that for each batch, and at a restart with the checkpoint's
last end as both. There a query with ``availableNow`` reads one batch, for Spark asks for one end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from onceforall.common.aws import Access
from onceforall.sources.kinesis.client import Shards
from onceforall.sources.kinesis.options import Options, parse
from onceforall.sources.kinesis.planning import Limits, Planner
from onceforall.sources.kinesis.positions import Offset, Range, ranges
from onceforall.sources.kinesis.reading import SCHEMA, batches

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # pyspark before 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for pyspark's."""

    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_MANY_ROWS = 2**62


class KinesisSource(DataSource):
    """Reads streams of Amazon Kinesis Data Streams; ``docs/kinesis.md`` has its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "kinesis"

    def schema(self) -> str:
        """Return the columns that it has, always the same."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> KinesisReader:  # noqa: ARG002, N802  Spark's name
        """Return the reader of a query.

        Args:
            schema: that of `schema`.

        Raises:
            OptionError: an option is wrong.
        """
        return KinesisReader(parse(self.options))


class ShardPartition(InputPartition):
    """A task's part of a batch."""

    def __init__(self, todo: Range, access: Access, *, fail_on_data_loss: bool) -> None:
        """Take what the task needs, none of it secret."""
        super().__init__((todo.arn, todo.shard, todo.end))
        self.todo, self.access, self.fail_on_data_loss = todo, access, fail_on_data_loss


class KinesisReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans a query's batches, and reads their partitions."""

    def __init__(self, options: Options) -> None:
        """Nothing is asked yet."""
        self._options = options
        self._planner: Planner | None = None
        self._heard: Mapping[str, Any] | None = None
        self._until: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a task needs: it has no planner."""
        return {"_options": self._options, "_planner": None, "_heard": None, "_until": None}

    def _planning(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the beginning of any query."""
        return Offset().to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Return that a batch has a limit, or Spark would ask for all that there is."""
        return ReadMaxRows(self._options.max_records or _MANY_ROWS)

    def latestOffset(  # noqa: N802
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return where the next batch ends.

        Args:
            start: where it begins; None: where the last one ended that Spark has told of.
            limit: Spark's.

        Raises:
            DataLossError: records between here and what is there may be gone.
            SourceError: Kinesis refuses, or doesn't answer.
        """
        begun = start if start is not None else self._heard or self.initialOffset()
        options = self._options
        limits = Limits(options.max_records, options.max_bytes, options.max_planning_s)
        until = self._until
        if limit is not None and isinstance(limit, ReadAllAvailable):
            # All that is there now: what is written while it is read would never end.
            limits, until = Limits(), until or self._planning().now()
        offset = Offset.from_json(begun)
        end = self._planning().plan(offset, limits, until)
        return dict(begun) if end is offset else end.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the moment up to which the query is to read."""
        self._until = self._planning().now()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return how far the last batch was behind each stream, for the query's progress."""
        if self._planner is None or not self._planner.behind_ms:
            return None
        return {"millisBehindLatest": dict(self._planner.behind_ms)}

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return the parts of a batch.

        Args:
            start: where it begins.
            end: where it ends.

        Raises:
            SourceError: they don't belong together.
        """
        self._heard = end
        return [
            ShardPartition(
                todo, self._options.access, fail_on_data_loss=self._options.fail_on_data_loss
            )
            for todo in ranges(Offset.from_json(start), Offset.from_json(end))
        ]

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

    def stop(self) -> None:
        """Release what planning holds."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None
