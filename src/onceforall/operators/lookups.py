"""Where ``enrich`` looks values up: the interface, and how a store's texts become values.

A lookup is made on the driver and pickled into the query's plan, which Spark also writes down. So
no pickle holds a secret value: these reach the tasks in the way of
``onceforall.task.secret_values``, and functions that give one are called in the process that
connects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
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


_READERS: Mapping[str, Callable[[str], Any]] = {
    "string": str,
    "boolean": lambda text: text == "true",
    "tinyint": int,
    "smallint": int,
    "int": int,
    "bigint": int,
    "float": float,
    "double": float,
    "decimal": Decimal,
    "date": date.fromisoformat,
    "timestamp": int,
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
