"""Where ``enrich`` looks values up: the interface, and how a store's texts become values.

A lookup is made on the driver and pickled into the query's plan, which Spark also writes down. So
no pickle holds a secret value: these reach the tasks in the way of
``onceforall.task.secret_values``, and functions that give one are called in the process that
connects.
"""

from __future__ import annotations

import math
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from onceforall.errors import SchemaError

Key: TypeAlias = "tuple[Any, ...]"
Text: TypeAlias = "str | None"


class Version(NamedTuple):
    """What is to be known of a key, from a time on.

    Attributes:
        values: of the lookup's columns, as texts that ``enrich`` reads by the columns' types
            (``read_text``).
        from_us: since when it holds, in microseconds since 1970; None: always.
        to_us: until when, that moment not included; None: for ever.
    """

    values: tuple[Text, ...]
    from_us: int | None = None
    to_us: int | None = None


class Lookup(ABC):
    """A store of values by key. Pickled to the tasks; ``fetch`` and ``close`` are called there, by
    one thread.

    Attributes:
        name: of the store, for messages and pins; the same after a restart.
        columns: what it gives, by name, as types in DDL (``{"name": "string"}``); known when
            ``check`` has returned.
        versioned: whether ``fetch`` gives several versions of a key, each with its time.
    """

    name: str
    columns: Mapping[str, str]
    versioned: bool = False

    def check(self, key_count: int) -> None:
        """Check on the driver, before the query starts, what can be checked.

        Args:
            key_count: by how many columns ``enrich`` will ask.

        Raises:
            ConfigurationError: something must be mended first.
        """

    def check_keys(self, types: Mapping[str, str]) -> None:
        """Check, behind ``check``, that the store can be asked by keys of these types.

        Args:
            types: of the columns of keys, in their order and by name, as Spark's ``simpleString``
                has them.

        Raises:
            ConfigurationError: it can't.
        """

    @abstractmethod
    def fetch(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Version]]:
        """Return what is known of these keys; a key that isn't there is left out.

        Args:
            keys: distinct, without nulls. The values are Python's for the frame's types.

        Raises:
            OnceForAllError: after the lookup's own retries; the batch fails, and the query stops.
        """

    def takes(self, key: Key) -> bool:  # noqa: ARG002  what a subclass may look at
        """Tell whether the store could have this key at all; one that it couldn't is missing,
        and ``fetch`` isn't asked.
        """
        return True

    def close(self) -> None:
        """Release what ``fetch`` keeps open."""

    def secrets(self) -> Mapping[str, str]:
        """Return, on the driver, the secret values that a pickle of this leaves out."""
        return {}

    def receive(self, secrets: Mapping[str, str]) -> None:
        """Take them, in a task, before the first ``fetch``."""


_FLOAT_MAX = 2.0**128
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
_NO_NUMBER = re.compile(r"nan|[+-]?inf(inity)?", re.IGNORECASE)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _shaped(shape: re.Pattern[str], text: str) -> str:
    # Python takes more for a number or a day than any store does: 1_000, digits of other scripts,
    # weeks.
    if not shape.fullmatch(text):
        raise ValueError("a text of this type looks otherwise")
    return text


def _boolean(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError("it is neither true nor false")
    return text == "true"


def _whole(text: str) -> int:
    return int(_shaped(_WHOLE, text))


def _decimal(text: str) -> Decimal:
    return Decimal(_shaped(_NUMBER, text))


def _floating(text: str, *, single: bool) -> float:
    """Read a number that may be rounded, as its digits behind the point are; but no number becomes
    infinity, and no whole number another one.
    """
    if _NO_NUMBER.fullmatch(text):
        return float(text)
    value = float(_shaped(_NUMBER, text))
    if single and abs(value) < _FLOAT_MAX:
        try:
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        except OverflowError as error:  # it rounds to the number above the greatest one
            raise ValueError("the number is too large") from error
    elif single or math.isinf(value):
        raise ValueError("the number is too large")
    if _WHOLE.fullmatch(text) and int(value) != int(text):
        raise ValueError(f"the number is too large, and would become {value:.0f}")
    return value


def _day(text: str) -> date:
    return date.fromisoformat(_shaped(_DAY, text))


_READERS: Mapping[str, Callable[[str], Any]] = {
    "string": str,
    "boolean": _boolean,
    "tinyint": _whole,
    "smallint": _whole,
    "int": _whole,
    "bigint": _whole,
    "float": partial(_floating, single=True),
    "double": partial(_floating, single=False),
    "decimal": _decimal,
    "date": _day,
    "timestamp": _whole,
    "binary": bytes.fromhex,
}
"""From a version's texts to values of pyarrow: a timestamp is its microseconds since 1970, a
binary is in hexadecimal."""


def read_text(kind: str, name: str) -> Callable[[str], Any]:
    """Return what reads the texts of a column of this type.

    Args:
        kind: of Spark, as DDL or ``simpleString`` has it.
        name: the column's, for the message.

    Raises:
        SchemaError: this type can't be looked up.
    """
    plain = kind.strip().lower().partition("(")[0].strip()
    plain = {
        "integer": "int",
        "long": "bigint",
        "byte": "tinyint",
        "short": "smallint",
        "dec": "decimal",
        "numeric": "decimal",
    }.get(plain, plain)
    if plain not in _READERS:
        raise SchemaError(
            f"The looked-up column {name!r} has the type {kind!r}, and can have: "
            f"{', '.join(_READERS)}."
        )
    return _READERS[plain]
