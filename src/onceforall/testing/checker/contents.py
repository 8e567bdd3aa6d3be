"""The content of a row: what is in it besides id and key, as one number of 64 bits.

An observer of any sink and a ``Truth`` must come to the same number, so each value is written in a
form that is no sink's own: a null is told from an empty text, a decimal has no trailing zeros, a
double is its bits, an instant its microseconds since 1970 (one without a zone counts as UTC), bytes
are hexadecimal digits. Each value has a letter for its type before it, so that 1 is told from "1",
and its length, so that nothing can move from one column to the next.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np

from onceforall.testing.checker.rows import Array, Numbers

NULL = "-"
"""How a value that is missing is written; no other begins with a hyphen."""

TEXT, BOOLEAN, NUMBER, DOUBLE, INSTANT, DATE, BYTES = "tbnfidx"
"""The letters of types. A whole number and a decimal of the same value are equal, and so are a
double and the float that it is. What is of no other type here counts as its text.
"""

_LIST, _MAP = "lm"

DIGEST_BYTES = 8
"""So many bytes of a row's SHA-256 are its number, the first one first."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def content_of(values: Iterable[Any]) -> int:
    """Return the content of one row, from its values in the order of its columns."""
    return _number("".join(map(_written, values)))


def contents_of(columns: Sequence[Sequence[Any]]) -> Numbers:
    """Return the content of each row, from columns of the same length.

    Example::

        contents_of([["red", None], [Decimal("1.50"), Decimal("2")]])
    """
    if not columns:
        raise ValueError("contents_of: give at least one column.")
    texts = [[_written(value) for value in column] for column in columns]
    rows = map("".join, zip(*texts, strict=True))
    return np.fromiter(map(_number, rows), np.int64, len(columns[0]))


def _number(text: str) -> int:
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:DIGEST_BYTES], "big", signed=True)


def _written(value: Any) -> str:
    if value is None:
        return NULL
    kind = type(value)
    letter, writer = (TEXT, str) if kind is str else _WRITERS.get(kind) or _writer_of(value)
    text = writer(value)
    return f"{letter}{len(text)}:{text}"


def _decimal(value: Decimal) -> str:
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _boolean(value: Any) -> str:
    return "true" if value else "false"


def _double(value: float) -> str:
    return struct.pack(">d", math.nan if math.isnan(value) else value).hex()


def _instant(value: datetime) -> str:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
    past = aware - _EPOCH
    return str((past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds)


def _list(value: Iterable[Any]) -> str:
    return "[" + "".join(map(_written, value)) + "]"


def _map(value: Mapping[Any, Any]) -> str:
    parts = [_written(key) + _written(each) for key, each in value.items()]
    parts.sort()
    return "{" + "".join(parts) + "}"


def _writer_of(value: Any) -> _Writer:
    return next((found for kind, found in _WRITERS.items() if isinstance(value, kind)), (TEXT, str))


_Writer = tuple[str, Callable[[Any], str]]

_WRITERS: Mapping[type, _Writer] = {
    str: (TEXT, str),
    bool: (BOOLEAN, _boolean),
    np.bool_: (BOOLEAN, _boolean),
    int: (NUMBER, str),
    np.integer: (NUMBER, str),
    float: (DOUBLE, _double),
    np.floating: (DOUBLE, _double),
    Decimal: (NUMBER, _decimal),
    datetime: (INSTANT, _instant),
    date: (DATE, date.isoformat),
    bytes: (BYTES, bytes.hex),
    bytearray: (BYTES, bytearray.hex),
    memoryview: (BYTES, memoryview.hex),
    list: (_LIST, _list),
    tuple: (_LIST, _list),
    dict: (_MAP, _map),
}
"""By type: its letter, and what writes a value. What is of a type below one of these is written
like it. A datetime comes before a date, which it is too.
"""


class Expected:
    """The contents that rows must have, as a function of their ids. It keeps what it computed,
    because each look asks for all rows again, and computes only what it is asked for.

    Args:
        ids_at: the ids of ordinals.
        contents: of an array of ids, the content of each.
    """

    def __init__(
        self, ids_at: Callable[[Numbers], Array], contents: Callable[[Array], Array]
    ) -> None:
        self._ids_at = ids_at
        self._contents = contents
        self._known: dict[int, Array] = {}
        self._values: dict[int, Array] = {}

    def at(self, ordinals: Numbers) -> Array:
        """Return the contents at ordinals."""
        if not len(ordinals):
            return np.empty(0, np.int64)
        order = np.argsort(ordinals, kind="stable")
        ascending = ordinals[order]
        blocks = ascending // _BLOCK
        starts = np.flatnonzero(np.diff(blocks, prepend=-1))
        found = [
            self._in_block(int(part[0]) // _BLOCK, part % _BLOCK)
            for part in np.split(ascending, starts[1:])
        ]
        values = np.concatenate(found)
        in_order = np.empty_like(values)
        in_order[order] = values
        return in_order

    def _in_block(self, block: int, places: Numbers) -> Array:
        """Return the contents at places of a block, ascending ones."""
        known = self._known.setdefault(block, np.zeros(_BLOCK, np.bool_))
        unknown = np.unique(places[~known[places]])
        if len(unknown):
            fresh = np.asarray(self._contents(self._ids_at(unknown + block * _BLOCK)))
            values = self._values.get(block, np.empty(_BLOCK, fresh.dtype))
            # A text may be longer than all before it.
            values = values.astype(np.promote_types(values.dtype, fresh.dtype), copy=False)
            values[unknown] = fresh
            known[unknown] = True
            self._values[block] = values
        return self._values[block][places]


_BLOCK = 8192
