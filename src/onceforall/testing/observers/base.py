"""What all observers have in common: how ids are read, and how quiet is waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from onceforall.errors import SinkUnavailableError
from onceforall.testing.checker import UNREADABLE, Rows
from onceforall.testing.checker.rows import Array

Ids = Literal["numbers", "texts"]
"""How ids (and keys) are read: as whole numbers from 0, in decimal digits where the sink has
text; or as texts."""

NULL = "\0null"
"""The text of an id or a key that is null, in a truth too: it is not the empty one."""

_LONGEST_NUMBER = 18
_POLL_S = 0.05


class Observer(Protocol):
    """A reader of one sink. It only reads; several may look at one sink."""

    def rows(self) -> Rows:
        """Return all that a reader sees now.

        Raises:
            SinkUnavailableError: not everything can be read at the moment.
        """

    def leftovers(self) -> list[str]:
        """Return a word for each thing that must not be there when all is quiet.

        Raises:
            SinkUnavailableError: not everything can be looked at at the moment.
        """

    def close(self) -> None:
        """Release connections."""


def decoded(values: Sequence[Any], how: Ids) -> Array:
    """Return ids from what a sink has: bytes, texts, numbers or None.

    What is no number in decimal digits, without zeros before them, becomes ``UNREADABLE``, which no
    input has. In texts each value has a form of its own: None is ``NULL``, and a value that isn't
    UTF-8, or has a NUL (which NumPy takes away at the end of a text), is a NUL and its bytes in
    hexadecimal digits.
    """
    if how == "numbers":
        return np.fromiter(map(_number, values), np.int64, len(values))
    return np.asarray(list(map(_text, values)), np.str_)


def _text(value: Any) -> str:
    if value is None:
        return NULL
    content = value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"\0{content.hex()}"
    return f"\0{content.hex()}" if "\0" in text else text


def _number(value: Any) -> int:
    if isinstance(value, bool):
        return UNREADABLE
    if isinstance(value, int):
        return value if 0 <= value < 10**_LONGEST_NUMBER else UNREADABLE
    if (
        value
        and len(value) <= _LONGEST_NUMBER
        and value.isdigit()
        and (isinstance(value, bytes) or value.isascii())
        and (len(value) == 1 or value[:1] not in {"0", b"0"})
    ):
        return int(value)
    return UNREADABLE


def joined(parts: Sequence[Array], how: Ids) -> Array:
    """Return arrays of ids as one."""
    return (
        np.concatenate(parts) if parts else np.empty(0, np.int64 if how == "numbers" else np.str_)
    )


def settled(observers: Mapping[str, Observer], deadline_s: float = 30.0) -> dict[str, list[str]]:
    """Wait until nothing is left over in any sink, for so long at the most.

    Args:
        observers: by sink.
        deadline_s: in seconds. Brokers write the markers of an ended transaction a moment after
            they have answered, and sweeps may go on for a while behind the end of a run.

    Returns:
        What is left over by sink at the end; empty lists when all is quiet. A sink that can't be
        looked at has that as a leftover.
    """
    end = time.monotonic() + deadline_s
    while True:
        left = {sink: _left(observer) for sink, observer in observers.items()}
        if not any(left.values()) or time.monotonic() > end:
            return left
        time.sleep(_POLL_S)


def _left(observer: Observer) -> list[str]:
    try:
        return observer.leftovers()
    except SinkUnavailableError as error:
        return [f"it can't be looked at: {error}"]
