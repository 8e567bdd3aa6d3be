"""What a window computes: aggregates that are kept incrementally, and ``Rows`` for everything else.

All but ``Rows`` keep one value per window, however many events it holds. ``Rows`` keeps the events
themselves, in order, for Spark's own higher-order functions (``transform``, ``aggregate``,
``filter``): its state is as large as the window.

Nulls are treated as in SQL: ``Count``, ``Sum``, ``Min`` and ``Max`` leave them out, ``First`` and
``Last`` take them as they come. An average is a ``Sum`` by a ``Count``.
"""

from __future__ import annotations

from dataclasses import dataclass

from onceforall.common.arguments import text
from onceforall.errors import OptionError


@dataclass(frozen=True)
class _OfOneColumn:
    column: str

    def __post_init__(self) -> None:
        text(f"{type(self).__name__}(column)", self.column, "the name of a column")


@dataclass(frozen=True)
class Count(_OfOneColumn):
    """How many values of the column are not null (BIGINT).

    The number of all events is in the column ``events`` anyway.
    """


@dataclass(frozen=True)
class Sum(_OfOneColumn):
    """The exact sum of integers (BIGINT) or decimals (precision + 10, as in Spark); of floats
    (DOUBLE) in the order of the events.

    A sum that its type can't hold fails the query, as it does in Spark's ANSI mode.
    """


@dataclass(frozen=True)
class Min(_OfOneColumn):
    """The smallest value, of the column's type: numbers, strings, booleans, dates, timestamps,
    binaries. NaN is the greatest, as in Spark.
    """


@dataclass(frozen=True)
class Max(_OfOneColumn):
    """The greatest value, of the column's type; see ``Min``."""


@dataclass(frozen=True)
class First(_OfOneColumn):
    """The value of the first event of the window, of the column's type."""


@dataclass(frozen=True)
class Last(_OfOneColumn):
    """The value of the last event of the window, of the column's type."""


@dataclass(frozen=True, init=False)
class Rows:
    """The events of the window in order: an array of structs of these columns (of all columns
    where none is named).
    """

    columns: tuple[str, ...]

    def __init__(self, *columns: str) -> None:
        for column in columns:
            text("Rows(*columns): one of them", column, "the name of a column")
        if len(set(columns)) != len(columns):
            raise OptionError(f"Rows names a column twice: {', '.join(columns)}.")
        object.__setattr__(self, "columns", columns)


Aggregate = Count | Sum | Min | Max | First | Last | Rows
