"""Whether two keys that the server takes for equal are equal for Spark, too.

In the modes ``prepared`` and ``upsert`` each key of a batch must come to one task: Spark shuffles
the rows by it. Two keys that Spark tells apart and the server doesn't (a UUID in capitals,
``char(3)`` with trailing spaces, ``citext``) may come to two tasks, which then wait for each
other's locks (``prepared``), or of which the later one wins (``upsert``). Where a text has one form
that says the same to the server, rows are given that form; where it hasn't, the key is refused at
start. In the mode ``staged`` the server compares all keys of a batch itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.errors import SchemaError
from onceforall.sinks.postgres.table_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from onceforall.sinks.postgres.tables import Table, TableColumn
    from onceforall.sinks.postgres.types import PgType

_UUID = r"^(\{([0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}\}|([0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4})$"
"""The forms that ``uuid_in`` takes (https://www.postgresql.org/docs/current/datatype-uuid.html)."""

_TEXTS = frozenset({"StringType", "VarcharType", "CharType"})


def check_key_column(column: TableColumn, table: Table, mode: str) -> None:
    """See that a column of the key can be one in a mode whose tasks write by themselves.

    Raises:
        SchemaError: naming the column, what the server takes for equal, and what to do.
    """
    reason = _unlike(column.type) or (
        "" if column.is_deterministic else "its collation takes different texts for equal"
    )
    if reason:
        raise SchemaError(
            f"Column {quoted(column.name)} of table {table.shown} ({column.type.name}) can't be "
            f"in key= with mode={mode!r}: {reason}, and Spark, which "
            "brings each key to one task, doesn't. Use mode='staged', in which the server "
            "compares the keys of a batch, or give the table a key "
            "column of another type."
        )


def _unlike(kind: PgType) -> str:
    if kind.kind == "citext":
        return "it compares without regard to case"
    if kind.kind in {"json", "jsonb"}:
        return "it compares values, not their texts"
    if kind.kind in {"timestamptz", "timestamp", "time"} and 0 <= kind.modifier < 6:
        return "it rounds to fewer digits of a second"
    if kind.element is not None:
        inner = _unlike(kind.element)
        if not inner and kind.element.kind in {"uuid", "bpchar"}:
            inner = "its elements have several texts that are equal"
        return inner
    return ""


def canonical(source: Column, spark: DataType, target: PgType) -> Column:
    """Return a key column in the one form that the server's equal values have in common; its
    value in the table is the same.
    """
    from pyspark.sql import functions as f

    if type(spark).__name__ not in _TEXTS:
        return source
    if target.kind == "uuid":
        digits = f.regexp_replace(f.lower(source), "[{}-]", "")
        plain = f.regexp_replace(digits, "^(.{8})(.{4})(.{4})(.{4})(.{12})$", "$1-$2-$3-$4-$5")
        return f.when(source.rlike(_UUID), plain).otherwise(source)
    if target.kind == "bpchar":
        return f.rtrim(source)
    return source


__all__ = ["canonical", "check_key_column"]
