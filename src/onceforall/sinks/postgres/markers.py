"""The table of markers: what proves a commit after everything else about it is forgotten.

One row per query and sink, with an empty ``name``, says: *every batch up to this one is complete in
this database*, and which transactions the last one consisted of. A staged batch is merged only in a
transaction that first moves this row from a lower batch to its own. So:

- Two transactions that merge the same batch wait for one another at this row, and the second finds
  the batch there: exactly one wins, whoever they are, however late the other one's COMMIT comes. A
  driver that was frozen for days and wakes can't merge an old batch a second time, although its
  marker has long been overwritten: a batch at or below the row's is complete, since a query writes
  a batch only behind the DONE of the one before it, so whoever moved the row to a later batch knew
  that all earlier ones were complete.
- The number of rows is bounded by that of queries and sinks.

A prepared transaction carries a marker row of its own, whose ``name`` is the transaction's: many of
a batch are prepared at the same time, and one row can't be locked by all of them. It proves that
this transaction is committed, and nothing of the batch's others (``PART``): a standby may have been
promoted between two of them. Behind the last one the driver moves the row with the empty name. The
others are removed when a later batch is confirmed.

Numbers are cast where they are compared or read: somebody may change a column's type while a query
runs (a start refuses such a table), and as texts 9 is not below 10.

The row named ``confirmed`` says which attempt's prepared transactions the driver looked at last;
see module ``task.prepared``. The row named ``upserting`` is of module ``task.upsert``, and so is
the one of no sink: it has the latest generation of the query that this database has met.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from onceforall.errors import AttemptFailedError
from onceforall.sinks.postgres.statements import Connection

TABLE = "markers"
COMPLETE = ""
CONFIRMED = "confirmed"
UPSERTING = "upserting"
OF_NO_SINK = ""
FENCE = "fence"
PART = "part"
"""What a prepared transaction's marker has for ``names``. Releases that didn't move the row with
the empty name behind the last one wrote nothing there, and their markers count for the batch."""


@dataclass(frozen=True)
class Owner:
    """Whose markers: a query, one of its sinks (by its code), and the schema they lie in."""

    schema: str
    query_id: str
    sink: str

    @property
    def table(self) -> sql.Identifier:
        """The table of markers, for a statement with parameters: a percent sign in it would be one
        of those. No sink's own schema has any, but one that is looked into may.
        """
        return sql.Identifier(self.schema.replace("%", "%%"), TABLE)


@dataclass(frozen=True)
class Marker:
    """What a marker says: a batch, the generation that wrote it, and which transactions it
    consisted of (``names.names_digest``).
    """

    batch: int
    generation: int
    names: str = ""


def advance(connection: Connection, owner: Owner, marker: Marker, name: str = COMPLETE) -> bool:
    """Move a marker forward, within the caller's transaction; False, and nothing is changed, when
    it has that batch or a later one.

    Waits, as long as ``lock_timeout`` says, for another transaction that moves it.
    """
    moved = connection.execute(
        sql.SQL(
            "INSERT INTO {} AS m (query_id, sink, name, generation, batch, names) VALUES (%s, %s, "
            "%s, %s, %s, %s) "
            "ON CONFLICT (query_id, sink, name) DO UPDATE SET generation = EXCLUDED.generation, "
            "batch = EXCLUDED.batch, "
            "names = EXCLUDED.names, at = pg_catalog.clock_timestamp() "
            "WHERE m.batch::pg_catalog.int8 "
            "OPERATOR(pg_catalog.<) EXCLUDED.batch::pg_catalog.int8"
        ).format(owner.table),
        [owner.query_id, owner.sink, name, marker.generation, marker.batch, marker.names],
    )
    return moved.rowcount == 1


def sinks(connection: Connection, schema: str, query_id: str) -> set[str]:
    """Return the codes of all sinks of a query that have a marker, whatever they are called now."""
    found = connection.execute(
        sql.SQL(
            "SELECT DISTINCT sink::pg_catalog.text FROM {} WHERE query_id OPERATOR(pg_catalog.=) "
            "%s AND sink OPERATOR(pg_catalog.<>) %s"
        ).format(fence_of(schema, query_id).table),
        [query_id, OF_NO_SINK],
    )
    return {str(code) for (code,) in found.fetchall()}


def read(connection: Connection, owner: Owner, name: str = COMPLETE) -> Marker | None:
    """Return a marker; None when there is none."""
    row = connection.execute(
        sql.SQL(
            "SELECT batch::pg_catalog.int8, generation::pg_catalog.int8, "
            "names::pg_catalog.text FROM {} WHERE (query_id, sink, name) "
            "OPERATOR(pg_catalog.=) (%s, %s, %s)"
        ).format(owner.table),
        [owner.query_id, owner.sink, name],
    ).fetchone()
    return None if row is None else Marker(*row)


def command_number(connection: Connection, owner: Owner, name: str = COMPLETE) -> int:
    """Write a marker of this transaction again, as it is, and return the number of that command
    in the transaction; see module ``deferred``.

    Raises:
        AttemptFailedError: it isn't written.
    """
    row = connection.execute(
        sql.SQL(
            "UPDATE {} SET batch = batch WHERE (query_id, sink, name) OPERATOR(pg_catalog.=) "
            "(%s, %s, %s) RETURNING cmin::pg_catalog.text::pg_catalog.int8"
        ).format(owner.table),
        [owner.query_id, owner.sink, name],
    ).fetchone()
    if row is None:
        raise AttemptFailedError(
            f"The marker of this sink in {owner.schema}.{TABLE} can't be written again in the "
            "transaction that has moved it: a trigger or a policy of that table keeps it from "
            f"that. Drop it (\\dS+ {owner.schema}.{TABLE} in psql shows them)."
        )
    return int(row[0])


def put(connection: Connection, owner: Owner, name: str, marker: Marker) -> None:
    """Write the marker of one transaction, within it."""
    connection.execute(
        sql.SQL(
            "INSERT INTO {} (query_id, sink, name, generation, batch, names) VALUES (%s, %s, %s, "
            "%s, %s, %s)"
        ).format(owner.table),
        [owner.query_id, owner.sink, name, marker.generation, marker.batch, marker.names],
    )


def take_back(connection: Connection, owner: Owner, name: str) -> None:
    """Remove the marker of one transaction again, within it."""
    connection.execute(
        sql.SQL(
            "DELETE FROM {} WHERE (query_id, sink, name) OPERATOR(pg_catalog.=) (%s, %s, %s)"
        ).format(owner.table),
        [owner.query_id, owner.sink, name],
    )


def raise_to(connection: Connection, owner: Owner, name: str, marker: Marker) -> bool:
    """Raise a marker to a generation and a batch of it; False when it is beyond them, and
    nothing is changed.
    """
    raised = connection.execute(
        sql.SQL(
            "INSERT INTO {} AS m (query_id, sink, name, generation, batch, names) VALUES (%s, %s, "
            "%s, %s, %s, %s) "
            "ON CONFLICT (query_id, sink, name) DO UPDATE SET generation = EXCLUDED.generation, "
            "batch = EXCLUDED.batch, "
            "at = pg_catalog.clock_timestamp() "
            "WHERE (m.generation::pg_catalog.int8, m.batch::pg_catalog.int8) "
            "OPERATOR(pg_catalog.<=) "
            "(EXCLUDED.generation::pg_catalog.int8, EXCLUDED.batch::pg_catalog.int8)"
        ).format(owner.table),
        [owner.query_id, owner.sink, name, marker.generation, marker.batch, marker.names],
    )
    return raised.rowcount == 1


def fence_of(schema: str, query_id: str) -> Owner:
    """Return the owner of a query's fence, which is there once for all of its sinks."""
    return Owner(schema, query_id, OF_NO_SINK)


def fence_out(connection: Connection, schema: str, query_id: str, below_generation: int) -> None:
    """Have the tasks of earlier generations refused that commit by themselves, whatever their
    sink was called; see module ``task.upsert``.

    Waits, as long as ``lock_timeout`` says, for those that are about to commit. Where nothing is to
    be changed, it locks nothing.
    """
    owner = fence_of(schema, query_id)
    found = read(connection, owner, FENCE)
    if found is None or found.generation < below_generation:
        raise_to(connection, owner, FENCE, Marker(-1, below_generation))
