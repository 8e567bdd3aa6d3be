"""Whether a table's columns can be accumulated; module ``accumulating`` says what that does.
Rows have no columns but these and the key's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onceforall.errors import SchemaError, SinkCheckError

if TYPE_CHECKING:
    from onceforall.sinks.postgres.tables import Table

_SUMMED = frozenset({"int2", "int4", "int8", "numeric", "float4", "float8", "interval"})
_ORDERED = _SUMMED | {
    "date",
    "timestamptz",
    "timestamp",
    "time",
    "text",
    "varchar",
    "bpchar",
    "enum",
}
_TAKEN = {"sum": _SUMMED, "min": _ORDERED, "max": _ORDERED}


def check_accumulated(
    accumulate: Sequence[tuple[str, str]], key: Sequence[str], written: Sequence[str], table: Table
) -> None:
    """Check that each column of the rows is in the key or accumulated, and can be.

    Args:
        accumulate: columns of the table with how each is accumulated.
        key: the columns of the key.
        written: the table's columns that the rows have.
        table: the table.

    Raises:
        SchemaError: a column is missing, or neither in the key nor accumulated.
        SinkCheckError: a column's type can't be accumulated so.
    """
    how = dict(accumulate)
    missing = [name for name in how if name not in written]
    if missing:
        raise SchemaError(
            f"accumulate= names the column {missing[0]!r}, which the rows for {table.shown} don't "
            f"have. They have: {', '.join(written)}."
        )
    neither = [name for name in written if name not in how and name not in key]
    if neither:
        raise SchemaError(
            f"Column {neither[0]!r} is neither in key= nor in accumulate=, so nothing says which "
            f"value the row for {table.shown} keeps. Add it to one "
            "of them ('max' keeps the greatest), or leave it out of the rows."
        )
    for column in table.select(how):
        # The server has min and max of enums, and none of a domain over one.
        is_taken = column.type.kind in _TAKEN[how[column.name]] and not (
            column.type.kind == "enum" and column.type.is_domain
        )
        if not is_taken:
            raise SinkCheckError(
                f"Column {column.name!r} of {table.shown} has the type {column.type.name}, of "
                f"which there is no {how[column.name]!r}. Give it another "
                "type, or leave it out of accumulate= and of the rows."
            )
