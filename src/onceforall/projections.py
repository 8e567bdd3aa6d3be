"""The columns that a query's sinks take of its batches, made once and not per batch.

A column of Spark's Python API costs about ten calls into the JVM, each of which takes part of a millisecond; in short batches they added up to more
time than the write itself. A column that names others and belongs to no frame may be used for any number of frames.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from onceforall.errors import SchemaError
from onceforall.hashing import row_hash
from onceforall.sink import TwoPhaseCommitSink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

T = TypeVar("T")

KEPT = 64
"""A function may write frames of ever new schemas; what was used longest ago is made again."""


@dataclass(frozen=True)
class Projection:
    """What a task gets for some writes of one frame.

    Attributes:
        columns: for each write its sink's columns, and then their hash (BIGINT). They are not put into a struct per write: on
            the way to Arrow that costs more than the hash.
        names: for each write, how its sink calls its columns. In ``columns`` they have names of their own, for two sinks may use the same.
    """

    columns: tuple[Column, ...]
    names: tuple[tuple[str, ...], ...]

    def column(self, write: int, name: str) -> str:
        """Return the name in ``columns`` of what a sink calls by this name; upper and lower case count as in Spark's default, that is not at all."""
        names = self.names[write]
        same = [position for position, other in enumerate(names) if other.lower() == name.lower()]
        return _name(write, names.index(name) if name in names else same[0])


class Projections:
    """Columns by what they are made of.

    Args:
        sinks: the query's sinks by name.
    """

    def __init__(self, sinks: Mapping[str, TwoPhaseCommitSink]) -> None:
        self._sinks = sinks
        self._made: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def taken(self, sink: str, schema: StructType) -> list[Column]:
        """Return the columns that a sink takes of rows with this schema.

        Raises:
            SchemaError: the sink can't write such rows.
        """
        return self._once((sink, schema.json()), lambda: self._sinks[sink].columns(schema))

    def of_writes(self, sinks: Sequence[str], frame: DataFrame) -> Projection:
        """Return what a task gets for writes of a frame to these sinks, in their order.

        Raises:
            SchemaError: a sink can't write such rows.
        """
        return self._once((tuple(sinks), frame.schema.json()), lambda: self._of_writes(sinks, frame))

    def _of_writes(self, sinks: Sequence[str], frame: DataFrame) -> Projection:
        columns: list[Column] = []
        names = []
        for write, sink in enumerate(sinks):
            taken = self.taken(sink, frame.schema)
            if not taken:
                raise SchemaError(
                    f"The sink {sink!r} takes none of the columns {', '.join(frame.columns)}. Give it at least one."
                )
            names.append(tuple(frame.select(*taken).columns))
            columns += [column.alias(_name(write, position)) for position, column in enumerate(taken)]
            columns.append(row_hash(frame, taken).alias(f"h{write}"))
        return Projection(tuple(columns), tuple(names))

    def _once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        if key not in self._made:
            self._made[key] = make()
        self._made.move_to_end(key)
        while len(self._made) > KEPT:
            self._made.popitem(last=False)
        made: T = self._made[key]
        return made


def _name(write: int, position: int) -> str:
    return f"w{write}_{position}"
