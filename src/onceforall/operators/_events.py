"""Events, values and lists as the operators keep them: JSON texts, made and read back by Spark's
own ``to_json`` and ``from_json``.

Nothing here imports Spark: an operator's worker sees one JSON text per event, and keeps JSON texts
as its state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Value:
    """How a value of a column travels.

    ``int`` (also dates and timestamps, as days and microseconds), ``bool`` and ``str`` (also
    binaries, as hexadecimal digits) are what they are; ``double`` may be the text ``NaN`` or
    ``Infinity``; ``decimal`` is a text outside and a whole number of units of its last digit
    inside, so that sums are exact; ``json`` is the JSON text of any value, which is only carried.

    Attributes:
        kind: one of these.
        scale: that of a decimal.
        family: the types whose values are the same when they travel so (see ``_columns.family``):
            a day and a microsecond are both an ``int``.
    """

    kind: str
    scale: int = 0
    family: str = ""

    def load(self, raw: Any) -> Any:
        """Return the value of its JSON form."""
        if raw is None:
            return None
        if self.kind == "double":
            return float(raw)
        if self.kind == "decimal":
            sign, digits, exponent = Decimal(raw).as_tuple()
            if not isinstance(exponent, int):
                raise ValueError(f"{raw!r} is no decimal number")
            whole = int("".join(map(str, digits))) * 10 ** (exponent + self.scale)
            return -whole if sign else whole
        return raw

    def dump(self, value: Any) -> Any:
        """Return the JSON form of a value."""
        if self.kind == "decimal" and value is not None:
            sign, digits = "-" if value < 0 else "", str(abs(value)).rjust(self.scale + 1, "0")
            return f"{sign}{digits[: len(digits) - self.scale]}.{digits[len(digits) - self.scale :]}".rstrip(  # noqa: E501
                "."
            )
        return value


class Event(NamedTuple):
    """One event of one key.

    ``time_us`` is None where the time column is null; ``order`` and ``tie`` put events of the same
    time in an order that no replay
    changes: the columns that the user named (nulls first), then the hash of the whole row, then the
    texts. ``text`` is the event's JSON, ``row`` that of its whole row (empty where it isn't
    needed).
    """

    time_us: int | None
    order: tuple[tuple[bool, Any], ...]
    tie: int
    values: tuple[Any, ...]
    text: str
    row: str = ""


def read_event(text: str, order: Sequence[Value], values: Sequence[Value], row: str = "") -> Event:
    """Read an event from its JSON: ``t`` time, ``h`` hash of the row, ``o0``, ``o1`` … order,
    ``v0``, ``v1`` … values; nulls are left out.
    """
    fields = json.loads(text)
    loaded = [value.load(fields.get(f"o{number}")) for number, value in enumerate(order)]
    return Event(
        time_us=fields.get("t"),
        order=tuple((value is not None, value) for value in loaded),
        tie=fields["h"],
        values=tuple(value.load(fields.get(f"v{number}")) for number, value in enumerate(values)),
        text=text,
        row=row,
    )


def in_order(event: Event) -> tuple[Any, ...]:
    """Return what events are sorted by.

    Two that are equal here are equal in every column that counts, so that their order says nothing.
    The hash of the row is not enough: it is the same for 0.0 and -0.0.
    """
    return (
        event.time_us is not None,
        event.time_us,
        event.order,
        event.tie,
        event.text,
        event.row,
    )


class Log:
    """A list of texts in the state store, of which only what changed is written back, and which is
    read only where it must be.

    Args:
        load: returns the stored texts in order; it is called once at most.
    """

    def __init__(self, load: Callable[[], Sequence[str]]) -> None:
        self._load = load
        self._loaded: list[str] | None = None
        self.replaced = False
        self.added: list[str] = []

    def append(self, text: str) -> None:
        """Add a text at the end."""
        self.added.append(text)

    def entries(self) -> list[str]:
        """Return all texts, those added included."""
        if self.replaced:
            return list(self.added)
        if self._loaded is None:
            self._loaded = list(self._load())
        return [*self._loaded, *self.added]

    def replace(self, texts: Sequence[str]) -> None:
        """Let these be the texts: the stored ones are overwritten."""
        self.replaced = True
        self.added = list(texts)


def to_text(value: Any) -> str:
    """Return compact JSON; NaN and the infinities are written as Spark reads them."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
