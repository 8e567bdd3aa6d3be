"""Values of a user's columns as texts, and by no code but the server's own.

Whoever owns a type, an enum say, may make casts of it (``CREATE CAST (mood AS text) WITH FUNCTION
…``), and these have no schema: ``column::pg_catalog.text`` would call that function as our role,
and show what it returns. So a value of a type that isn't built in becomes a text by its type's
output function, as in psql and COPY; of a base type only a superuser makes one, and those of enums,
composite types, ranges and arrays are the server's. Of a built-in type both types of a cast are the
superuser's, and the cast stays: it writes ``true`` and no padding, where the output functions write
``t`` and ``a  ``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

_FIRST_NORMAL_OID = 16384
"""FirstNormalObjectId (src/include/access/transam.h): what initdb has made is below, in each
database and for ever.
"""


def is_built_in(type_oid: int) -> bool:
    """Tell whether a type is one that each server has, so that nobody but a superuser can make
    casts of it to another such type.
    """
    return type_oid < _FIRST_NORMAL_OID


def types_of(
    connection: psycopg.Connection[Any], columns: Sequence[str], relation: sql.Composable
) -> list[int]:
    """Return the object ids of columns' types. Of a domain the server describes the type below it
    and below all others, by which it also chooses a cast.
    """
    from psycopg import sql

    from onceforall.sinks.postgres.statements import identifiers

    query = sql.SQL("SELECT {} FROM {} LIMIT 0").format(identifiers(columns), relation)
    return [column.type_code for column in connection.execute(query).description or []]


def as_text(value: sql.Composable, type_oid: int) -> sql.Composed:
    """Return the expression of a value's text.

    Args:
        value: the expression of the value; it is evaluated twice.
        type_oid: of its type, as ``types_of`` returns it.
    """
    from psycopg import sql

    if is_built_in(type_oid):
        return sql.SQL("{}::pg_catalog.text").format(value)
    # Both functions take a value of any type, so nothing is cast to call them. A composite value
    # whose fields are all null IS NULL, and has a text all the same.
    return sql.SQL(
        "CASE WHEN pg_catalog.num_nulls({0}) OPERATOR(pg_catalog.=) 0 "
        "THEN pg_catalog.concat({0}) END"
    ).format(value)


__all__ = ["as_text", "is_built_in", "types_of"]
