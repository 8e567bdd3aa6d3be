"""The columns that a query's sinks take of its batches, made once and not per batch.

A column of Spark's Python API costs about ten calls into the JVM, each of which takes part of a
millisecond; in short batches they added up to more time than the write itself. A column that names
others and belongs to no frame may be used for any number of frames.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from onceforall.common.arguments import is_connect
from onceforall.errors import SchemaError
from onceforall.sink import TwoPhaseCommitSink
from onceforall.spark.row_hashes import row_hash

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

T = TypeVar("T")

KEPT = 64
"""A function may write frames of ever new schemas; what was used longest ago is made again."""


@dataclass(frozen=True)
class Taken:
    """What one write takes of a task's rows.

    Attributes:
        names: how the sink calls its columns.
        places: where each of them is among the rows' columns. There they have names of their own,
            for two sinks may use the same.
        hash_place: where the hash of them all is (BIGINT).
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    hash_place: int

    def place(self, name: str) -> int:
        """Return where the column is that the sink calls by this name; upper and lower case
        count as in Spark's default, that is not at all.
        """
        same = [
            place
            for other, place in zip(self.names, self.places, strict=True)
            if other.lower() == name.lower()
        ]
        return self.places[self.names.index(name)] if name in self.names else same[0]


@dataclass(frozen=True)
class Projection:
    """What a task gets for some writes of one frame.

    Attributes:
        columns: each column that a sink takes, and the hashes; what several writes have in common
            is there once, for the way to a Python worker costs by the column and by the byte. They
            are not put into a struct per write: on the way to Arrow that costs more than the hash.
        writes: for each write what is its own.
    """

    columns: tuple[Column, ...]
    writes: tuple[Taken, ...]

    def column(self, write: int, name: str) -> str:
        """Return the name in ``columns`` of what a sink calls by this name."""
        return _name(self.writes[write].place(name))

    def places(self, write: int, names: Sequence[str]) -> tuple[int, ...]:
        """Return where what a sink calls by these names is: two writes have the same places where
        they take the same values.
        """
        return tuple(self.writes[write].place(name) for name in names)


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
        return self._once(
            (tuple(sinks), frame.schema.json()), lambda: self._of_writes(sinks, frame)
        )

    def _of_writes(self, sinks: Sequence[str], frame: DataFrame) -> Projection:
        columns: list[Column] = []
        writes: list[Taken] = []
        known = _Known()
        for sink in sinks:
            taken = self.taken(sink, frame.schema)
            if not taken:
                raise SchemaError(
                    f"The sink {sink!r} takes none of the columns {', '.join(frame.columns)}. "
                    "Give it at least one."
                )
            selected = frame.select(*taken)
            expressions: Sequence[Any] = (
                _expressions(selected, len(taken)) if len(sinks) > 1 else ()
            )
            places = []
            for position, column in enumerate(taken):
                place = known.place(expressions[position]) if expressions else None
                if place is None:
                    place = len(columns)
                    columns.append(column.alias(_name(place)))
                    if expressions:
                        known.add(expressions[position], place)
                places.append(place)
            # The same columns in the same order have the same hash.
            hash_place = next(
                (other.hash_place for other in writes if other.places == tuple(places)),
                len(columns),
            )
            if hash_place == len(columns):
                columns.append(row_hash(frame, taken).alias(_name(hash_place)))
            writes.append(Taken(tuple(selected.columns), tuple(places), hash_place))
        return Projection(tuple(columns), tuple(writes))

    def _once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        if key not in self._made:
            self._made[key] = make()
        self._made.move_to_end(key)
        while len(self._made) > KEPT:
            self._made.popitem(last=False)
        made: T = self._made[key]
        return made


class _Known:
    """Places by what is computed there, as Spark compares expressions: what isn't deterministic
    equals nothing, not even itself.
    """

    def __init__(self) -> None:
        self._places: dict[int, list[tuple[Any, int]]] = {}

    def place(self, expression: Any) -> int | None:
        alike = self._places.get(int(expression.semanticHash()), [])
        return next(
            (place for other, place in alike if bool(other.semanticEquals(expression))), None
        )

    def add(self, expression: Any, place: int) -> None:
        self._places.setdefault(int(expression.semanticHash()), []).append((expression, place))


def _expressions(selected: DataFrame, count: int) -> Sequence[Any]:
    """Return what each column of a selection computes, as Spark's own expressions; nothing where
    Spark does not say it column by column, as Spark Connect never does.
    """
    if is_connect(selected):
        return ()
    plan: Any = selected._jdf.queryExecution().analyzed()  # noqa: SLF001  Spark offers this in no other way
    if str(plan.nodeName()) != "Project":
        return ()
    listed = plan.projectList()
    if int(listed.size()) != count:
        return ()
    named = [listed.apply(position) for position in range(count)]
    return [
        each.child() if str(each.getClass().getSimpleName()) == "Alias" else each for each in named
    ]


def _name(place: int) -> str:
    return f"c{place}"
