"""The content of a table's rows, computed by the server: a table of millions of rows is looked at
again and again, and its values need not come here. It is what ``checker.contents_of`` computes.

Every function, operator and type is qualified, as in module ``postgres``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onceforall.sinks.postgres.texts import as_text
from onceforall.testing.checker.contents import (
    BOOLEAN,
    BYTES,
    DATE,
    DIGEST_BYTES,
    DOUBLE,
    INSTANT,
    NULL,
    NUMBER,
    TEXT,
)

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

_MICROSECONDS = (
    "CASE WHEN pg_catalog.isfinite({0}) THEN "
    "((EXTRACT(epoch FROM {0}) OPERATOR(pg_catalog.*) 1000000)::bigint)::pg_catalog.text "
    "ELSE {0}::pg_catalog.text END"
)
_BITS = "pg_catalog.encode(pg_catalog.float8send({0}::pg_catalog.float8), 'hex')"
_CAST = "{0}::pg_catalog.text"
_WRITTEN: Mapping[str, tuple[str, str]] = {
    "bool": (BOOLEAN, _CAST),
    "bytea": (BYTES, "pg_catalog.encode({0}, 'hex')"),
    "date": (DATE, "pg_catalog.to_char({0}, 'YYYY-MM-DD')"),
    "float4": (DOUBLE, _BITS),
    "float8": (DOUBLE, _BITS),
    "int2": (NUMBER, _CAST),
    "int4": (NUMBER, _CAST),
    "int8": (NUMBER, _CAST),
    "numeric": (NUMBER, "pg_catalog.trim_scale({0})::pg_catalog.text"),
    "timestamp": (INSTANT, _MICROSECONDS),
    "timestamptz": (INSTANT, _MICROSECONDS),
}
"""By type: its letter, and the expression of a value."""


def content_expression(
    connection: psycopg.Connection[Any], table: tuple[str, ...], columns: Sequence[str]
) -> sql.Composable:
    """Return the expression of type bigint that is a row's content."""
    from psycopg import sql

    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    found = connection.execute(
        sql.SQL("SELECT {} FROM {} LIMIT 0").format(names, sql.Identifier(*table))
    ).description
    types = [connection.adapters.types.get(each.type_code) for each in found or ()]
    values = [
        _value(column, each.type_code, "" if type_ is None else type_.name)
        for column, each, type_ in zip(columns, found or (), types, strict=True)
    ]
    return sql.SQL(
        "('x' OPERATOR(pg_catalog.||) pg_catalog.left(pg_catalog.encode(pg_catalog.sha256("
        "pg_catalog.convert_to(pg_catalog.concat({}), 'UTF8')), 'hex'), {}))"
        "::pg_catalog.bit(64)::bigint"
    ).format(sql.SQL(", ").join(values), sql.Literal(2 * DIGEST_BYTES))


def _value(column: str, type_oid: int, type_name: str) -> sql.Composable:
    from psycopg import sql

    name = sql.Identifier(column)
    letter, written = _WRITTEN.get(type_name, (TEXT, ""))
    text = sql.SQL(written).format(name) if written else as_text(name, type_oid)
    return sql.SQL(
        "COALESCE({2} OPERATOR(pg_catalog.||) pg_catalog.length({0})::pg_catalog.text "
        "OPERATOR(pg_catalog.||) ':' OPERATOR(pg_catalog.||) ({0}), {1})"
    ).format(text, sql.Literal(NULL), sql.Literal(letter))
