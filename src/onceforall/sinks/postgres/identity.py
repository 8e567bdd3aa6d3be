"""What tells one database from every other."""

from __future__ import annotations

from onceforall.sinks.postgres.statements import Connection


def database_of(connection: Connection) -> str:
    """Return what tells this database from every other one: in another one nothing is proved by
    what is missing.
    """
    query = (
        "SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()), oid FROM "
        "pg_catalog.pg_database "
        "WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()"
    )
    row = connection.execute(query).fetchone()
    assert row is not None
    return f"{row[0]}/{row[1]}"
