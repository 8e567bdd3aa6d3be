"""Which value of PostgreSQL a key is, if it is one: a key that a column's type can't hold as it is
has no row, and nothing is rounded, cut or guessed to find one.

A cast would: ``1.5::integer`` is 2, ``'2026-01-01 13:00'::date`` a day, ``5::boolean`` true,
``'today'::date`` another day on a replay. So the keys are made values of the column's type here, or
left out. A text is read by the server as its column's type reads it (a UUID in capitals, a number
with zeros in front), but where that reading loses something.

A number and one of floating point are the same where the shortest text of the latter says the
former: 0.1 is, and 16777217 is no ``real``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

from onceforall.errors import SchemaError

Reader: TypeAlias = "Callable[[Any], Any]"
"""From a key to what is sent to the server; None: no value of this type is that key."""

_SPARK = {
    "string": str,
    "tinyint": int,
    "smallint": int,
    "int": int,
    "bigint": int,
    "boolean": bool,
    "date": date,
    "binary": bytes,
}
_WORDS = {
    str: "STRING",
    int: "a whole number",
    Decimal: "DECIMAL",
    bool: "BOOLEAN",
    date: "DATE",
    bytes: "BINARY",
}
_BITS = {"smallint": 15, "integer": 31, "bigint": 63}
_TEXTS = frozenset({"text", "character varying", "character", "citext"})
_NAME_BYTES = {"name": 63, '"char"': 1}

_NUMBER = re.compile(
    r"\s*([+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf(inity)?))\s*",
    re.IGNORECASE | re.ASCII,
)

_DAY = r"\d{4,}-\d\d-\d\d"
_TIME = r"\d\d:\d\d(:\d\d(\.\d{1,6}0*)?)?"
_ZONE = r" ?(Z|[+-]\d\d(:?\d\d(:?\d\d)?)?)"
_SHAPES: Mapping[str, re.Pattern[str]] = {
    "date": re.compile(rf"{_DAY}( BC)?"),
    "timestamp without time zone": re.compile(rf"{_DAY}([ T]{_TIME})?( BC)?"),
    "timestamp with time zone": re.compile(rf"{_DAY}([ T]{_TIME}({_ZONE})?)?( BC)?"),
    "time without time zone": re.compile(_TIME),
    "time with time zone": re.compile(rf"{_TIME}({_ZONE})?"),
}
"""What a text must look like for a time: no word that depends on the clock (``today``), no part
that the type would leave out, no digit that it would round."""


def python_type(spark: str) -> type:
    """Return the type in Python of keys that have this one (``simpleString``) in Spark."""
    return Decimal if spark.startswith("decimal") else _SPARK.get(spark, str)


def reader(kind: type, column: str, what: str = "The key") -> Reader:
    """Return what makes keys values of a column's type.

    Args:
        kind: the keys' type in Python.
        column: the column's type, as ``format_type`` names it without a length; of a domain the
            type below it.
        what: whose they are, for the message.

    Raises:
        SchemaError: keys of this type aren't values of that one.
    """
    made = _reader(kind, column)
    if made is None:
        keys = _WORDS.get(kind, kind.__name__)
        raise SchemaError(
            f"{what} can't be compared: {keys} is no value of {column}, and a cast by the server "
            "could make another key of it. Cast the column of keys= to the type that is meant, or "
            "give the lookup a view with a key of another type."
        )
    return made


def _reader(kind: type, column: str) -> Reader | None:
    if kind is str:
        return _of_text(column)
    if kind in {int, Decimal}:
        return _of_number(kind, column)
    same = {bool: "boolean", date: "date", bytes: "bytea"}.get(kind)
    if same is None:
        return None
    if column == same or (kind is date and column == "timestamp without time zone"):
        return _as_it_is
    if column in _TEXTS and kind is not bytes:
        return lambda key: str(key).lower() if kind is bool else key.isoformat()
    return None


def _as_it_is(key: Any) -> Any:
    return key


def _of_number(kind: type, column: str) -> Reader | None:
    if column in _BITS:
        return lambda key: _whole(key, _BITS[column])
    if column == "numeric":
        return _as_it_is
    if column in {"real", "double precision"}:
        return lambda key: _floating(Decimal(key), column)
    # A DECIMAL has a scale, and a text has the digits that somebody wrote.
    return str if kind is int and column in _TEXTS else None


def _of_text(column: str) -> Reader | None:
    if column == "money":
        return None
    if column in {"real", "double precision"}:
        return lambda key: _floating(_decimal(key), column)
    if column in _SHAPES:
        return lambda key: key if _SHAPES[column].fullmatch(key) else None
    if column == "interval":
        return lambda key: None if re.search(r"\.\d{6}\d*[1-9]", key) else key
    if column in _NAME_BYTES:
        return lambda key: key if len(key.encode()) <= _NAME_BYTES[column] else None
    return _as_it_is


def _whole(key: int | Decimal, bits: int) -> int | None:
    whole = int(key)
    return whole if whole == key and -(1 << bits) <= whole < 1 << bits else None


def _decimal(text: str) -> Decimal | None:
    # Python takes more for a number than the server does: 1_000, digits of other scripts, nan12.
    found = _NUMBER.fullmatch(text)
    try:
        return None if found is None else Decimal(found[1])
    except InvalidOperation:
        return None


def _floating(number: Decimal | None, column: str) -> float | None:
    import numpy as np

    if number is None or number.is_snan():
        return None
    value = float(number)
    if not number.is_finite():
        return value
    if column == "double precision":
        return value if Decimal(repr(value)) == number else None
    with np.errstate(over="ignore"):
        narrow = np.float32(value)
    return value if Decimal(str(narrow)) == number else None


__all__ = ["Reader", "python_type", "reader"]
