"""Dates and timestamps that a format can't hold, found at whatever depth, and named: whole
columns at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from onceforall.errors import RefusedRecordError
from onceforall.sinks.files.task.nested import within

if TYPE_CHECKING:
    import pyarrow as pa

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
FIRST_OF_TEXT, BEHIND_TEXT = -12_687_428, 11_248_738
"""-32767-01-01 and +32768-01-01, in days since 1970: pyarrow's texts go no further, and
timestamps beyond come out as others."""

_REMEDY = "Filter such rows out, store the column as text, or use format='parquet'"

Check = Callable[[str, "pa.Array"], None]


def check_times(name: str, column: pa.Array | pa.ChunkedArray, check: Check) -> None:
    """Call a check with each array of dates or timestamps in a column and below it, and with its
    place, such as ``c.element.x``.

    Args:
        name: of the column.
        column: its values.
        check: what raises ``RefusedRecordError``.
    """
    for path, values in within(name, column, _is_time):
        check(path, values)


def check_text(path: str, values: pa.Array, remedy: str = _REMEDY) -> None:
    """See that pyarrow writes times as the texts that they are.

    Raises:
        RefusedRecordError: naming the column and the value.
    """
    refuse(
        path,
        values,
        outside(values, FIRST_OF_TEXT, BEHIND_TEXT),
        "a year in a text is between -32767 and 32767",
        remedy,
    )


def outside(values: pa.Array, first: int, behind: int | None = None) -> pa.Array:
    """Tell which dates or timestamps are before the day ``first``, or not before ``behind``;
    days since 1970.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_date = pa.types.is_date32(values.type)
    numbers = values.cast(pa.int32() if is_date else pa.int64())
    per_day = 1 if is_date else 86_400 * PER_SECOND[values.type.unit]
    # A bound that no number of this unit reaches is none.
    found = pc.less(numbers, max(first * per_day, _LEAST))
    if behind is not None and behind * per_day <= _MOST:
        found = pc.or_(found, pc.greater_equal(numbers, behind * per_day))
    return found


_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def refuse(path: str, values: pa.Array, refused: pa.Array, why: str, remedy: str = _REMEDY) -> None:
    """Refuse the first of the values that are refused, if there is one.

    Raises:
        RefusedRecordError: naming the column and the value.
    """
    import pyarrow.compute as pc

    found = values.filter(pc.fill_null(refused, False))  # noqa: FBT003  pyarrow's argument
    if len(found) > 0:
        raise RefusedRecordError(f"Column {path!r} holds {shown(found[:1])}, and {why}. {remedy}.")


def shown(values: pa.Array) -> str:
    """Return the first of some dates or timestamps as a text, in whatever year."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_date32(values.type):
        return str(np.datetime64(values.cast(pa.int32())[0].as_py(), "D"))
    units = values.cast(pa.int64())[0].as_py()
    if units == _LEAST:
        return f"{units} {values.type.unit} since 1970"  # numpy's word for it is that of no time at all  # noqa: E501
    text = str(np.datetime64(units, values.type.unit)).replace("T", " ")
    return text if values.type.tz is None else f"{text}Z"


def _is_time(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


__all__ = ["check_text", "check_times", "outside", "refuse", "shown"]
