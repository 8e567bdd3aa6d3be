"""JSON lines from Arrow: what Spark's own JSON writer would write, without the loss of
microseconds.

- *type*: *value*
- numbers, DECIMAL: a JSON number; a decimal with all its digits, never with an exponent
- NaN, infinity: the strings ``"NaN"``, ``"Infinity"``, ``"-Infinity"``
- BINARY: a string in Base64
- DATE: ``"2026-11-21"``
- TIMESTAMP: ``"2026-11-21T10:00:00.123456Z"``, in UTC, always six digits (Spark's writer cuts off
  after three)
- TIMESTAMP_NTZ: the same without the ``Z``
- STRUCT, MAP: an object; the keys of a map are strings (files of older releases have others as
  strings)
- null: the field is left out (``ignore_null_fields=False`` writes ``null``); ``null`` in arrays and
  maps
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from decimal import Decimal
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_Fragments = list[str | None]


def encoded(rows: pa.RecordBatch, *, ignore_null_fields: bool) -> bytes:
    """Return the rows as lines of JSON, each with its end."""
    lines = _objects(rows.schema.names, rows.columns, rows.num_rows, ignore_null_fields)
    return "".join(f"{line}\n" for line in lines).encode()


def _objects(
    names: Iterable[str],
    columns: Iterable[pa.Array],
    count: int,
    ignore_null_fields: bool,  # noqa: FBT001
) -> list[str]:
    keys = [f"{encode_basestring(name)}:" for name in names]
    fragments = [_fragments(column, ignore_null_fields) for column in columns]
    if not fragments:
        return ["{}"] * count
    if ignore_null_fields:
        return [
            "{"
            + ",".join(
                [key + text for key, text in zip(keys, row, strict=True) if text is not None]
            )
            + "}"
            for row in zip(*fragments, strict=True)
        ]
    return [
        "{" + ",".join([key + (text or "null") for key, text in zip(keys, row, strict=True)]) + "}"
        for row in zip(*fragments, strict=True)
    ]


def _fragments(column: pa.Array, ignore_null_fields: bool) -> _Fragments:  # noqa: FBT001, PLR0911
    """Return the JSON of each value, None for null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_struct(kind):
        children = [pc.struct_field(column, [i]) for i in range(kind.num_fields)]
        texts = _objects([f.name for f in kind], children, len(column), ignore_null_fields)
        return [
            text if valid else None
            for text, valid in zip(texts, column.is_valid().to_pylist(), strict=True)
        ]
    if pa.types.is_map(kind):
        return _maps(column, ignore_null_fields)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = _fragments(_of_these(column, column.values), ignore_null_fields)
        return _nested(
            column,
            lambda start, end: "[" + ",".join([item or "null" for item in items[start:end]]) + "]",
        )
    if pa.types.is_timestamp(kind):
        texts = column.cast(pa.string()).to_pylist()
        return [None if text is None else f'"{text.replace(" ", "T", 1)}"' for text in texts]
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return [
            None if text is None else f'"{text}"' for text in column.cast(pa.string()).to_pylist()
        ]
    if pa.types.is_floating(kind):
        return [
            None if text is None else _SPECIAL.get(text, text)
            for text in column.cast(pa.string()).to_pylist()
        ]
    return [None if value is None else _scalar(value) for value in column.to_pylist()]


_SPECIAL = {
    "nan": '"NaN"',
    "-nan": '"NaN"',
    "inf": '"Infinity"',
    "-inf": '"-Infinity"',
    "-0": "-0.0",
}
"""A JSON number without a point is a whole one to its readers, and of those there is only one
zero."""


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    return f'"{base64.b64encode(value).decode("ascii")}"'


def _maps(column: pa.Array, ignore_null_fields: bool) -> _Fragments:  # noqa: FBT001
    keys = [
        text if text.startswith('"') else f'"{text}"'
        for text in _fragments(_of_these(column, column.keys), ignore_null_fields)
        if text is not None
    ]
    items = _fragments(_of_these(column, column.items), ignore_null_fields)

    def one(start: int, end: int) -> str:
        return "{" + ",".join([f"{keys[i]}:{items[i] or 'null'}" for i in range(start, end)]) + "}"

    return _nested(column, one)


def _of_these(column: pa.Array, inner: pa.Array) -> pa.Array:
    """Return what is within the lists of a column, which may be a slice: ``inner`` has all of the
    whole.
    """
    if not len(column):  # Arrow lets such a one have no offsets at all.
        return inner.slice(0, 0)
    first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return inner.slice(first, end - first)


def _nested(column: pa.Array, one: Callable[[int, int], str]) -> _Fragments:
    offsets = column.offsets.to_pylist()
    first = offsets[0] if len(column) else 0
    valid = column.is_valid().to_pylist()
    return [
        one(offsets[i] - first, offsets[i + 1] - first) if valid[i] else None
        for i in range(len(column))
    ]
