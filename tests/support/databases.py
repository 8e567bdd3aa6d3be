"""Databases on the session's PostgreSQL server, and what a test must not leave there."""

import uuid

import psycopg
from psycopg import sql


def make_database(server):
    name = f"t-{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return name


def leftovers(connection):
    """What the library may not leave in a database when a test is over, as texts."""
    found = connection.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    ).fetchall()
    # In any schema: a test may name its own. What is not committed is not seen, so a task that
    # still copies leaves nothing here.
    staged = connection.execute(
        "SELECT schemaname || '.' || tablename FROM pg_tables WHERE tablename ~ "
        "'^stg_[0-9a-f]{40}$' ORDER BY 1"
    ).fetchall()
    return [f"prepared transaction {gid}" for (gid,) in found] + [
        f"staging table {table}" for (table,) in staged
    ]


def drop_database(server, name):
    """Drop it, and return what was left in it."""
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        left = leftovers(connection)
        for (gid,) in connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        ).fetchall():
            connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    return left
