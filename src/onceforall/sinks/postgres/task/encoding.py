"""PostgreSQL's binary COPY format, made from Arrow arrays with numpy and Arrow's own functions: no
Python call per row or value.

A stream is a header, rows, and a trailer; a row is the number of its fields as int16, and each
field is its length as int32 and its bytes, a null the length -1 alone
(https://www.postgresql.org/docs/current/sql-copy.html#id-1.9.3.55.9.4). All numbers are big-endian.

A field is held here as *pieces*: binary arrays with one value per row whose concatenation is the
field. A row is made by joining the pieces of all fields (``binary_join_element_wise``).

There are libraries that do this (``pgpq``, on PyPI). None of those found has uuid, json, enums, or
arrays of ``varchar``, and a value that PostgreSQL refuses is to be named with its row before it is
sent, which needs these passes over the values anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
TRAILER = b"\xff\xff"

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


def nulls(array: pa.Array) -> Mask | None:
    """Return where an array is null; None when it is nowhere."""
    if array.null_count == 0:
        return None
    found: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return found


def big_endian(values: np.ndarray[Any, Any], form: str) -> Bytes:
    """Return values, one or several per row, as rows of bytes, in a big-endian form of numpy
    (``>i4``).
    """
    converted = np.ascontiguousarray(values.astype(form))
    per_row = converted.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)
    return converted.view(np.uint8).reshape(len(values), per_row)


def fixed(parts: Sequence[Bytes], missing: Mask | None) -> list[pa.Array]:
    """Return the pieces of fields of the same length.

    Args:
        parts: the bytes of the field, as one or several columns of bytes.
        missing: where the field is null.
    """
    rows = len(parts[0])
    width = sum(part.shape[1] for part in parts)
    field = np.empty((rows, 4 + width), np.uint8)
    field[:, :4] = np.frombuffer(width.to_bytes(4, "big"), np.uint8)
    start = 4
    for part in parts:
        field[:, start : start + part.shape[1]] = part
        start += part.shape[1]
    return [_with_nulls(field, missing)]


def _with_nulls(field: Bytes, missing: Mask | None) -> pa.Array:
    """Return rows of bytes that begin with a length as a binary array; a null has the length -1
    and nothing more.
    """
    rows, width = field.shape
    if missing is None:
        offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
        return binary(offsets, field)
    field[missing, :4] = 0xFF
    keep = np.ones((rows, width), np.bool_)
    keep[missing, 4:] = False
    lengths = np.where(missing, 4, width)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return binary(offsets, field[keep])


def variable(payload: pa.Array, missing: Mask | None, *, before: bytes = b"") -> list[pa.Array]:
    """Return the pieces of fields of different lengths.

    Args:
        payload: binary; a null there is one.
        missing: where it is null.
        before: bytes that stand before each payload, within the field.
    """
    lengths = pc.fill_null(pc.binary_length(payload), 0).to_numpy(zero_copy_only=False)
    header = np.empty((len(payload), 4 + len(before)), np.uint8)
    header[:, :4] = big_endian(lengths + len(before), ">i4")
    header[:, 4:] = np.frombuffer(before, np.uint8)
    filled = payload if missing is None else pc.fill_null(payload, b"")
    return [_with_nulls(header, missing), filled]


def binary(offsets: np.ndarray[Any, Any], data: np.ndarray[Any, Any]) -> pa.Array:
    """Return a binary array over a buffer; `offsets` are int32, one more than values."""
    buffers = [
        None,
        pa.py_buffer(np.ascontiguousarray(offsets, np.int32)),
        pa.py_buffer(np.ascontiguousarray(data)),
    ]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def joined(pieces: Sequence[pa.Array]) -> pa.Array:
    """Concatenate pieces row by row."""
    return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, b"")


def data_of(array: pa.Array) -> memoryview:
    """Return the bytes of all values of a binary array, one after the other."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    return memoryview(array.buffers()[2] or b"")[int(offsets[0]) : int(offsets[-1])]


def offsets_of(array: pa.Array) -> Ints:
    """Return the offsets of a binary array, beginning with 0."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4).astype(
        np.int64
    )
    moved: Ints = offsets - offsets[0]
    return moved


def rows_of_fields(fields: Sequence[Sequence[pa.Array]]) -> memoryview:
    """Return the bytes of rows, from the pieces of their fields."""
    rows = len(fields[0][0])
    count = np.tile(np.frombuffer(len(fields).to_bytes(2, "big"), np.uint8), (rows, 1))
    start = binary(np.arange(rows + 1, dtype=np.int32) * np.int32(2), count)
    return data_of(joined([start, *(piece for pieces in fields for piece in pieces)]))
