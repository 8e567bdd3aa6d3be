"""Arrow arrays from plain values and back, exact in every bit: Python's dates end at 9999, and
its decimals are rounded by a context."""

import math
import struct
from itertools import pairwise

import pyarrow as pa


def array_of(values, kind):
    """Return an array of plain values (see ``type_table``)."""
    is_null = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_decimal(kind):
        digits = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in values)
        is_valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
        return pa.Array.from_buffers(kind, len(values), [is_valid, pa.py_buffer(digits)])
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        ends = [0]
        for value in values:
            ends.append(ends[-1] + len(value or ()))
        offsets, items = (
            pa.array(ends, pa.int32()),
            [item for value in values for item in value or ()],
        )
        if pa.types.is_list(kind):
            return pa.ListArray.from_arrays(
                offsets, array_of(items, kind.value_type), type=kind, mask=is_null
            )
        keys, held = (
            array_of([item[i] for item in items], t)
            for i, t in enumerate((kind.key_type, kind.item_type))
        )
        return pa.MapArray.from_arrays(offsets, keys, held, type=kind, mask=is_null)
    if pa.types.is_struct(kind):
        children = [
            array_of([v if v is None else v[i] for v in values], field.type)
            for i, field in enumerate(kind)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=is_null)
    if pa.types.is_string(kind):
        return pa.array(values, pa.binary()).view(kind)
    return pa.array(values, kind)


def plain(column):
    """Return the plain values of a column; floating-point numbers as their bits, all NaN as one,
    maps by their keys."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_struct(kind):
        return [
            value if ok else None
            for value, ok in zip(_nested(column), column.is_valid().to_pylist(), strict=True)
        ]
    return [value if value is None else _plain(value, kind) for value in _raw(column).to_pylist()]


def _raw(column):
    kind = column.type
    if pa.types.is_decimal(kind):
        return column.view(pa.binary(16))
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    return column.cast(pa.binary()) if pa.types.is_string(kind) else column


def _plain(value, kind):
    if pa.types.is_decimal(kind):
        return int.from_bytes(value, "little", signed=True)
    if pa.types.is_floating(kind):
        return "NaN" if math.isnan(value) else struct.pack(">d", value)
    return value


def _nested(column):
    kind = column.type
    if pa.types.is_struct(kind):
        return zip(*(plain(column.field(i)) for i in range(kind.num_fields)), strict=True)
    if pa.types.is_list(kind):
        items = plain(column.values)
        return [items[start:end] for start, end in pairwise(column.offsets.to_pylist())]
    items = list(zip(plain(column.keys), plain(column.items), strict=True))
    # A map has no order: Spark's reader of ORC sorts it.
    return [
        sorted(items[start:end], key=repr) for start, end in pairwise(column.offsets.to_pylist())
    ]
