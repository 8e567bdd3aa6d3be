"""``accumulate=``: a row adds to the one that its key has, instead of replacing it.

- *how* (*what a column holds afterwards*): *its type*
- ``sum`` (the sum of what is there and of all rows of the batch): integers, ``numeric``, ``real``,
  ``double precision``, ``interval``
- ``min`` (the least of them): these, and dates, times, texts and enums
- ``max`` (the greatest of them): the same

A null adds nothing, as in SQL's own aggregates: the result is null only where all values are. The
arithmetic is PostgreSQL's: a sum that its column can't hold is refused before the decision,
``numeric`` keeps its scale, and sums of ``real`` and ``double precision`` depend on the order of
the additions in their last digits.

The rows of a batch that have the same key are brought together first, for one ``INSERT … ON
CONFLICT`` touches each row once. Adding is exactly-once for the same reason as inserting is: it
happens in the transaction that also writes the marker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from onceforall.errors import OptionError

if TYPE_CHECKING:
    from psycopg import sql

HOW = ("sum", "min", "max")


def check_accumulate(
    accumulate: Mapping[str, str] | None, key: Sequence[str], mode: str, on_conflict: str
) -> tuple[tuple[str, str], ...]:
    """Check the argument beside the others, and return it as pairs.

    Raises:
        OptionError: naming the argument, the reason and what to use instead.
    """
    if accumulate is None:
        return ()
    if not isinstance(accumulate, Mapping) or not accumulate:
        raise OptionError(
            "accumulate= must name at least one column, as in accumulate={'spend': 'sum'}."
        )
    for column, how in accumulate.items():
        if not isinstance(column, str) or not column:
            raise OptionError(f"accumulate= has the key {column!r}, which is no name of a column.")
        if how not in HOW:
            raise OptionError(
                f"accumulate={{{column!r}: {how!r}}} is none of 'sum', 'min' and 'max'."
            )
        if column in key:
            raise OptionError(
                f"accumulate= names {column!r}, which is in key=. A key tells rows apart and is "
                "never changed; take it out."
            )
    if not key:
        raise OptionError("accumulate= needs key=, the columns that tell which row is added to.")
    if mode == "upsert":
        raise OptionError(
            "accumulate= can't be used with mode='upsert': a task commits before the batch is "
            "decided, so a batch that is replayed would be added "
            "twice. Use mode='staged' or mode='prepared'."
        )
    if on_conflict == "ignore":
        raise OptionError(
            "on_conflict='ignore' keeps the row that is there, and accumulate= adds to it. Leave "
            "one of them out."
        )
    return tuple(accumulate.items())


def one_row_per_key(
    key: Sequence[str],
    accumulate: Sequence[tuple[str, str]],
    columns: Sequence[str],
    source: sql.Composable,
) -> sql.Composed:
    """Return a query of the same columns that has each key once."""
    from psycopg import sql

    from onceforall.sinks.postgres.statements import identifiers

    how = dict(accumulate)
    chosen = [
        sql.SQL("pg_catalog.{0}({1}) AS {1}").format(sql.SQL(how[name]), sql.Identifier(name))
        if name in how
        else sql.Identifier(name)
        for name in columns
    ]
    return sql.SQL("SELECT {} FROM ({}) AS batch GROUP BY {}").format(
        sql.SQL(", ").join(chosen), source, identifiers(key)
    )


TARGET = "onceforall target"
"""What the table is called in each statement that writes to it: no table of a user's is, and one
that is called "excluded" would be ambiguous."""


def combined(accumulate: Sequence[tuple[str, str]]) -> sql.Composed:
    """Return the assignments of ``DO UPDATE SET``.

    COALESCE, LEAST and GREATEST are syntax, which nobody can replace.
    """
    from psycopg import sql

    texts = {
        "sum": "{0} = COALESCE({1} OPERATOR(pg_catalog.+) EXCLUDED.{0}, {1}, EXCLUDED.{0})",
        "min": "{0} = LEAST({1}, EXCLUDED.{0})",
        "max": "{0} = GREATEST({1}, EXCLUDED.{0})",
    }
    return sql.SQL(", ").join(
        [
            sql.SQL(texts[how]).format(sql.Identifier(name), sql.Identifier(TARGET, name))
            for name, how in accumulate
        ]
    )


__all__ = ["HOW", "TARGET", "check_accumulate", "combined", "one_row_per_key"]
