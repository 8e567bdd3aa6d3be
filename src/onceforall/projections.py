"""The columns that a query's sinks take of its batches, made once and not per batch.

A column of Spark's Python API costs about ten calls into the JVM, each of which takes part of a millisecond; in short batches they added up to more
time than the write itself. A column that names others and belongs to no frame may be used for any number of frames.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onceforall.hashing import row_hash
from onceforall.sink import TwoPhaseCommitSink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

KEPT = 64
"""A function may write frames of ever new schemas; what was used longest ago is made again."""


class Projections:
    """Columns by what they are made of.

    Args:
        sinks: the query's sinks by name.
    """

    def __init__(self, sinks: Mapping[str, TwoPhaseCommitSink]) -> None:
        self._sinks = sinks
        self._made: OrderedDict[tuple[Any, ...], list[Column]] = OrderedDict()

    def taken(self, sink: str, schema: StructType) -> list[Column]:
        """Return the columns that a sink takes of rows with this schema.

        Raises:
            SchemaError: the sink can't write such rows.
        """
        return self._once((sink, schema.json()), lambda: self._sinks[sink].columns(schema))

    def of_writes(self, sinks: Sequence[str], frame: DataFrame) -> list[Column]:
        """Return what a task gets for some writes of one frame: for the i-th, the sink's columns as the struct ``w<i>``, and their hash ``h<i>``."""
        return self._once((tuple(sinks), frame.schema.json()), lambda: self._of_writes(sinks, frame))

    def _of_writes(self, sinks: Sequence[str], frame: DataFrame) -> list[Column]:
        from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by

        columns: list[Column] = []
        for i, sink in enumerate(sinks):
            taken = self.taken(sink, frame.schema)
            columns += [F.struct(*taken).alias(f"w{i}"), row_hash(frame, taken).alias(f"h{i}")]
        return columns

    def _once(self, key: tuple[Any, ...], make: Callable[[], list[Column]]) -> list[Column]:
        if key not in self._made:
            self._made[key] = make()
        self._made.move_to_end(key)
        while len(self._made) > KEPT:
            self._made.popitem(last=False)
        return self._made[key]
