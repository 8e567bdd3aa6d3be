"""Decimals in PostgreSQL's binary form of ``numeric``: digits in base 10,000, four decimals each
(numeric.c, ``numeric_recv``).

A field is the number of digits, the weight of the first (in powers of 10,000), the sign, the number
of decimals to be shown, each an int16, and the digits. Leading and trailing zeroes may stay: the
server cuts them. So all values of a column get the same number of digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from onceforall.sinks.postgres.task.encoding import Bytes

_BASE = np.uint64(10_000)
_WORD = np.uint64(32)
_MASK = np.uint64(0xFFFFFFFF)
_NEGATIVE = 0x4000

Words = np.ndarray[Any, np.dtype[np.uint64]]


def from_decimals(array: pa.Array) -> list[Bytes]:
    """Return the fields' bytes for an array of decimal128; what stands at nulls doesn't matter."""
    rows, kind = len(array), array.type
    raw = np.frombuffer(array.buffers()[1], np.uint64, 2 * rows, array.offset * 16).reshape(rows, 2)
    negative = (raw[:, 1] >> np.uint64(63)).astype(np.bool_)
    low, high = raw[:, 0].copy(), raw[:, 1].copy()
    # Two's complement over both halves.
    low[negative] = ~low[negative] + np.uint64(1)
    high[negative] = ~high[negative] + (low[negative] == 0).astype(np.uint64)
    return _fields(
        [low & _MASK, low >> _WORD, high & _MASK, high >> _WORD],
        negative,
        kind.precision,
        kind.scale,
    )


def from_integers(values: np.ndarray[Any, np.dtype[np.int64]]) -> list[Bytes]:
    """Return the fields' bytes for whole numbers."""
    negative = values < 0
    magnitude = values.view(np.uint64).copy()
    magnitude[negative] = ~magnitude[negative] + np.uint64(1)
    return _fields([magnitude & _MASK, magnitude >> _WORD], negative, 19, 0)


def _fields(
    words: list[Words], negative: np.ndarray[Any, np.dtype[np.bool_]], precision: int, scale: int
) -> list[Bytes]:
    from onceforall.sinks.postgres.task.encoding import big_endian

    rows = len(negative)
    padding = -scale % 4
    words = _times([*words, np.zeros(rows, np.uint64)], 10**padding)
    after = (scale + padding) // 4
    before = max(1, -(-(precision - scale) // 4)) + 1
    digits = np.empty((rows, before + after), np.int64)
    for place in range(before + after - 1, -1, -1):
        digits[:, place] = _divide(words)
    head = np.empty((rows, 4), np.int64)
    head[:] = (before + after, before - 1, 0, scale)
    # A zero has no sign: the decimal's own zero is not negative either.
    head[:, 2] = np.where(negative, _NEGATIVE, 0)
    return [big_endian(head, ">i2"), big_endian(digits, ">i2")]


def _times(words: list[Words], factor: int) -> list[Words]:
    """Multiply numbers of 32-bit words, the lowest first, in place of a wider type."""
    carry: Words = np.zeros(len(words[0]), np.uint64)
    result = []
    for word in words:
        product = word * np.uint64(factor) + carry
        result.append(product & _MASK)
        carry = product >> _WORD
    return result


def _divide(words: list[Words]) -> Words:
    """Divide the numbers by 10,000, in place, and return the rests."""
    rest: Words = np.zeros(len(words[0]), np.uint64)
    for at in range(len(words) - 1, -1, -1):
        current = (rest << _WORD) | words[at]
        words[at] = current // _BASE
        rest = current - words[at] * _BASE
    return rest
