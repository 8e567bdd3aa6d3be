"""The table of markers: how it is made, by which number it is known, and what is removed from it
again. Module ``markers`` tells what its rows say.
"""

from __future__ import annotations

from psycopg import sql
from psycopg.errors import DuplicateObject, DuplicateTable, UniqueViolation

from onceforall.sinks.postgres import own_rights
from onceforall.sinks.postgres.driver.own_tables import BIGINT, TEXT, TIMESTAMPTZ, Form
from onceforall.sinks.postgres.markers import TABLE, Owner
from onceforall.sinks.postgres.statements import Connection, transaction

FORM = Form(
    TABLE,
    {
        "query_id": TEXT,
        "sink": TEXT,
        "name": TEXT,
        "generation": BIGINT,
        "batch": BIGINT,
        "names": TEXT,
        "at": TIMESTAMPTZ,
    },
    ("query_id", "sink", "name"),
    "staging_schema",
)
"""What ``create`` makes."""


def create(connection: Connection, schema: str) -> None:
    """Make schema and table where they are missing; several may try at once."""
    for attempt in range(3):
        try:
            with transaction(connection):
                known = connection.execute(
                    "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) %s",
                    [schema],
                ).fetchone()
                if known is None:
                    connection.execute(
                        sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
                    )
                    own_rights.close_schema(connection, schema)
                if not exists(connection, schema):
                    connection.execute(
                        sql.SQL(
                            "CREATE TABLE IF NOT EXISTS {} (query_id pg_catalog.text NOT NULL, "
                            "sink pg_catalog.text NOT NULL, "
                            "name pg_catalog.text NOT NULL, generation bigint NOT NULL, batch "
                            "bigint NOT NULL, names pg_catalog.text NOT NULL, "
                            "at pg_catalog.timestamptz NOT NULL DEFAULT "
                            "pg_catalog.clock_timestamp(), PRIMARY KEY (query_id, sink, name))"
                        ).format(sql.Identifier(schema, TABLE))
                    )
                    own_rights.close_table(connection, schema, TABLE)
        except (UniqueViolation, DuplicateTable, DuplicateObject):  # noqa: PERF203  IF NOT EXISTS does not wait for another one's that is being made
            if attempt == 2:
                raise
        else:
            return


def exists(connection: Connection, schema: str) -> bool:
    """Tell whether the table of markers is there."""
    return oid_of(connection, schema) is not None


def oid_of(connection: Connection, schema: str) -> int | None:
    """Return the object id of the table of markers; None where there is none. It stays with the
    table, whatever becomes of its name and schema.
    """
    query = (
        "SELECT c.oid::bigint FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid "
        "OPERATOR(pg_catalog.=) c.relnamespace "
        "WHERE n.nspname OPERATOR(pg_catalog.=) %s AND c.relname OPERATOR(pg_catalog.=) %s"
    )
    row = connection.execute(query, [schema, TABLE]).fetchone()
    return None if row is None else int(row[0])


def forget_before(connection: Connection, owner: Owner, batch: int) -> None:
    """Remove the markers of single transactions of earlier batches; ``COMPLETE`` covers those
    batches already.
    """
    connection.execute(
        sql.SQL(
            "DELETE FROM {} WHERE query_id OPERATOR(pg_catalog.=) %s AND sink "
            "OPERATOR(pg_catalog.=) %s "
            "AND batch::pg_catalog.int8 OPERATOR(pg_catalog.<) %s "
            "AND name OPERATOR(pg_catalog.~~) 'ofa.%%'"
        ).format(owner.table),
        [owner.query_id, owner.sink, batch],
    )
