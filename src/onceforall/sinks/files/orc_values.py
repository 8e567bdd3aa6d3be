"""Values that Spark reads from pyarrow's ORC files as others, or not at all: refused in the task, before anything is decided.

ORC's readers take days before 1582-10-15 for those of the Julian calendar, unless the file says that they are proleptic; pyarrow writes
proleptic ones and says nothing (``calendar`` in the footer of the ORC specification, https://orc.apache.org/specification/ORCv1/), so that
Spark reads 0001-01-01 as 0001-01-03. And of a moment before 1970 with a fraction of a second it writes negative nanoseconds, of which ORC's
Java reader says ``nanos > 999999999 or < 0``: Spark can't read any row of such a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onceforall.errors import RefusedRecordError

if TYPE_CHECKING:
    import pyarrow as pa

_GREGORIAN_DAY = -141_427
"""1582-10-15, in days since 1970."""

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def check_values(rows: pa.Table) -> None:
    """See that Spark reads each value as it is.

    Args:
        rows: all columns that go into the file.

    Raises:
        RefusedRecordError: naming the column and the value.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if _has_times(column.type):
            for chunk in column.chunks:
                for path, values in _times(name, chunk):
                    _check(path, values)


def _has_times(kind: pa.DataType) -> bool:
    import pyarrow as pa

    nested = [kind.field(i).type for i in range(kind.num_fields)]
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind) or any(map(_has_times, nested))


def _times(path: str, values: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Return all dates and timestamps in an array and below it, each with its place; what a null hides is no value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        yield path, values
    elif pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            yield from _times(f"{path}.{kind.field(i).name}", pc.struct_field(values, [i]))
    elif pa.types.is_map(kind):
        pairs = pc.list_flatten(values.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
        yield from _times(f"{path}.key", pc.struct_field(pairs, [0]))
        yield from _times(f"{path}.value", pc.struct_field(pairs, [1]))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _times(f"{path}.element", pc.list_flatten(values))


def _check(path: str, values: pa.Array) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_date(values.type):
        _refuse(path, values, pc.less(values.cast(pa.int32()), _GREGORIAN_DAY), _TOO_EARLY)
        return
    second = _PER_SECOND[values.type.unit]
    units = values.cast(pa.int64())
    _refuse(path, values, pc.less(units, _GREGORIAN_DAY * 86_400 * second), _TOO_EARLY)
    whole = pc.multiply(pc.divide(units, second), second)
    _refuse(path, values, pc.and_(pc.less(units, 0), pc.not_equal(units, whole)), _FRACTION)


_TOO_EARLY = "Spark would read another day from an ORC file: pyarrow's have no mark of the calendar before 1582-10-15"
_FRACTION = "Spark can't read an ORC file of pyarrow's with a fraction of a second before 1970"


def _refuse(path: str, values: pa.Array, refused: pa.Array, why: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = values.filter(pc.fill_null(refused, False))  # noqa: FBT003  pyarrow's argument
    if len(found) > 0:
        value = found[:1].cast(pa.string())[0].as_py()
        raise RefusedRecordError(
            f"Column {path!r} holds {value}, and {why}. Filter such rows out, store the column as text, or use format='parquet'."
        )
