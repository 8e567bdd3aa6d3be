"""Whom the library's own tables and schemas are open to when they are made: their owner alone.

``ALTER DEFAULT PRIVILEGES`` gives others rights on whatever a role makes, meant for its reports and
not for these: who may write a staging table writes the target with the sink's rights, and who may
put a trigger on the table of markers has code of his run as its role. So what is made is closed in
the same transaction, before anybody else can see it. What an administrator grants later stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql
    from typing_extensions import LiteralString

_OF_TABLE: LiteralString = (
    "SELECT DISTINCT x.grantee::bigint, pg_catalog.pg_get_userbyid(x.grantee)::pg_catalog.text "
    "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) "
    "c.relnamespace CROSS JOIN pg_catalog.aclexplode(c.relacl) x "
    "WHERE n.nspname OPERATOR(pg_catalog.=) %s AND c.relname OPERATOR(pg_catalog.=) %s "
    "AND x.grantee OPERATOR(pg_catalog.<>) c.relowner "
    "AND pg_catalog.pg_get_userbyid(c.relowner) OPERATOR(pg_catalog.=) current_user"
)
_OF_SCHEMA: LiteralString = (
    "SELECT DISTINCT x.grantee::bigint, pg_catalog.pg_get_userbyid(x.grantee)::pg_catalog.text "
    "FROM pg_catalog.pg_namespace n CROSS JOIN pg_catalog.aclexplode(n.nspacl) x "
    "WHERE n.nspname OPERATOR(pg_catalog.=) %s AND x.grantee OPERATOR(pg_catalog.<>) n.nspowner "
    "AND pg_catalog.pg_get_userbyid(n.nspowner) OPERATOR(pg_catalog.=) current_user"
)


def close_table(connection: psycopg.Connection[Any], schema: str, table: str) -> None:
    """Take every right on a table of ours from everybody but its owner, in the transaction that
    has made it.
    """
    from psycopg import sql

    _revoke(connection, _OF_TABLE, [schema, table], sql.SQL("TABLE"), sql.Identifier(schema, table))


def close_schema(connection: psycopg.Connection[Any], schema: str) -> None:
    """Do so for a schema."""
    from psycopg import sql

    _revoke(connection, _OF_SCHEMA, [schema], sql.SQL("SCHEMA"), sql.Identifier(schema))


def _revoke(
    connection: psycopg.Connection[Any],
    query: LiteralString,
    names: list[str],
    kind: sql.SQL,
    what: sql.Identifier,
) -> None:
    from psycopg import sql

    for number, name in connection.execute(query, names).fetchall():
        whom = sql.Identifier(name) if number else sql.SQL("PUBLIC")
        connection.execute(sql.SQL("REVOKE ALL ON {} {} FROM {} CASCADE").format(kind, what, whom))


__all__ = ["close_schema", "close_table"]
