"""The server's prepared transactions, as far as they are ours: found, finished, and the lock
between those who do so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from onceforall.sinks.postgres import replication
from onceforall.sinks.postgres.markers import Owner
from onceforall.sinks.postgres.names import lock_number
from onceforall.sinks.postgres.statements import Connection

_BUSY_FOR_S = 3.0


def own_gids(connection: Connection) -> list[str]:
    """Return the ids of the prepared transactions of our role in our database, whatever their
    names.
    """
    query = (
        "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE owner OPERATOR(pg_catalog.=) "
        "current_user "
        "AND database OPERATOR(pg_catalog.=) pg_catalog.current_database()"
    )
    return [str(gid) for (gid,) in connection.execute(query).fetchall()]


def others_gids(connection: Connection) -> list[tuple[str, str]]:
    """Return id and role of the prepared transactions of other roles in our database."""
    query = (
        "SELECT gid, owner FROM pg_catalog.pg_prepared_xacts WHERE owner OPERATOR(pg_catalog.<>) "
        "current_user "
        "AND database OPERATOR(pg_catalog.=) pg_catalog.current_database()"
    )
    return [(str(gid), str(role)) for gid, role in connection.execute(query).fetchall()]


def how_to_roll_back(gid: str, role: str) -> str:
    """Return what a person does about an undecided transaction that another role has prepared."""
    statement = sql.SQL("SET ROLE {}; ROLLBACK PREPARED {}").format(
        sql.Identifier(role), sql.Literal(gid)
    )
    return (
        "Start the query once as that role, or stop it and let that role, or a superuser, say: "
        f"{statement.as_string(None)}"
    )


def roll_back_prepared(connection: Connection, gid: str) -> bool:
    """Roll a prepared transaction back; False when there is none by that name."""
    return finish(connection, "ROLLBACK", gid)


def finish(connection: Connection, how: str, gid: str) -> bool:
    """Say ``COMMIT`` or ``ROLLBACK PREPARED``; False when there is none by that name, or when the
    wait for a standby was cancelled.
    """
    statement = sql.SQL("{} PREPARED {}").format(sql.SQL(how), sql.Literal(gid))
    deadline = time.monotonic() + _BUSY_FOR_S
    while True:
        try:
            return replication.commits(connection, statement) is not None
        except psycopg.errors.UndefinedObject:  # noqa: PERF203
            return False
        except psycopg.errors.ObjectNotInPrerequisiteState:  # somebody else is just finishing it
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextmanager
def locked(
    connection: Connection, owner: Owner, generation: int, batch: int, *, shared: bool
) -> Iterator[None]:
    """Hold the lock of a batch that stands between its attempts (shared) and ``confirm``
    (alone); see module ``task.prepared``.
    """
    kind = "_shared" if shared else ""
    number = [lock_number(f"{owner.query_id}.{owner.sink}.{generation}.{batch}")]
    connection.execute(f"SELECT pg_catalog.pg_advisory_lock{kind}(%s)".encode(), number)
    try:
        yield
    finally:
        if not connection.broken:
            connection.execute(f"SELECT pg_catalog.pg_advisory_unlock{kind}(%s)".encode(), number)
