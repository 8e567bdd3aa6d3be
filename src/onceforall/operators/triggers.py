"""When a window says something before it closes: after so many events, after so long, or
whichever comes first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from onceforall.common.arguments import shown
from onceforall.errors import OptionError

Duration = str | timedelta

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_LONGEST_US = 2**62
"""Some 146,000 years: with more, Spark's whole numbers would overflow."""
_PART = re.compile(r"\s*(\d{1,30})\s*([a-z]+?)s?(?=[\s\d]|$)\s*")


@dataclass(frozen=True)
class Trigger:
    """Early results of a window that is still open.

    Args:
        count: a result after every ``count`` events that no result of the window has shown yet.
        every: a result as soon as the oldest event that no result has shown yet is this old: ``"10
            seconds"`` or a ``timedelta``.

    With both, whichever comes first. Nothing is said twice: a window without new events gives no
    early result. Time is the window's own: event time, where it has a time column, as the watermark
    passes it; processing time otherwise.

    Raises:
        OptionError: neither is given, or one is not positive.
    """

    count: int | None = None
    every: Duration | None = None

    def __post_init__(self) -> None:
        if self.count is None and self.every is None:
            raise OptionError("A Trigger needs count=, every=, or both.")
        positive(self.count, "Trigger(count=…)")
        micros(self.every, "Trigger(every=…)")


def positive(value: object, what: str) -> int | None:
    """Return the number, which must be a positive whole one where it is given.

    Raises:
        OptionError: it is not.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{what} must be a whole number from 1 on, not {shown(value)}.")
    return value


def micros(value: Duration | None, what: str) -> int | None:
    """Return a duration in microseconds: of ``"1 hour 30 minutes"`` (weeks to microseconds) or of a
    ``timedelta``.

    Raises:
        OptionError: it can't be read, is not positive, or is longer than 146,000 years. Months and
            years have no fixed length.
    """
    if value is None:
        return None
    total = (
        value // timedelta(microseconds=1) if isinstance(value, timedelta) else _read(value, what)
    )
    if total < 1:
        raise OptionError(f"{what} must be longer than nothing, not {shown(value)}.")
    if total > _LONGEST_US:
        raise OptionError(f"{what} must be shorter than 146,000 years, not {shown(value)}.")
    return total


def _read(text: object, what: str) -> int:
    refused = OptionError(
        f"{what} can't be read: {shown(text)}. Write it like '30 minutes' or '1 hour 30 seconds', "
        "with weeks, days, hours, minutes, "
        "seconds, milliseconds or microseconds; or give a timedelta."
    )
    if not isinstance(text, str):
        raise refused
    position, total = 0, 0
    lowered = text.lower()
    while position < len(lowered):
        part = _PART.match(lowered, position)
        if part is None or part[2] not in _UNITS_US:
            raise refused
        total += int(part[1]) * _UNITS_US[part[2]]
        position = part.end()
    return total
