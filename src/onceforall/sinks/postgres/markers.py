"""The table of markers: what proves a commit after everything else about it is forgotten.

One row per query and sink, with an empty ``name``, says: *every batch up to this one is complete in this database*, and which transactions
the last one consisted of. A staged batch is merged only in a transaction that first moves this row from a lower batch to its own. So:

- Two transactions that merge the same batch wait for one another at this row, and the second finds the batch there: exactly one wins,
  whoever they are, however late the other one's COMMIT comes. A driver that was frozen for days and wakes can't merge an old batch a
  second time, although its marker has long been overwritten: a batch at or below the row's is complete, since a query writes a
  batch only behind the DONE of the one before it, so whoever moved the row to a later batch knew that all earlier ones were complete.
- The number of rows is bounded by that of queries and sinks.

A prepared transaction carries a marker row of its own, whose ``name`` is the transaction's: many of a batch are prepared at the same time, and
one row can't be locked by all of them. They are removed when a later batch is confirmed; the row with the empty name then covers them.

The row named ``confirmed`` says which attempt's prepared transactions the driver looked at last; see module ``prepared``. The row named
``upserting`` is of module ``upsert``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from psycopg import sql
from psycopg.errors import DuplicateObject, DuplicateTable, UniqueViolation

from onceforall.errors import AttemptFailedError
from onceforall.sinks.postgres.driver import own_tables
from onceforall.sinks.postgres.driver.own_tables import BIGINT, TEXT, TIMESTAMPTZ, Form
from onceforall.sinks.postgres.statements import Connection, transaction

TABLE = "markers"
COMPLETE = ""
CONFIRMED = "confirmed"
UPSERTING = "upserting"

FORM = Form(
    TABLE,
    {"query_id": TEXT, "sink": TEXT, "name": TEXT, "generation": BIGINT, "batch": BIGINT, "names": TEXT, "at": TIMESTAMPTZ},
    ("query_id", "sink", "name"),
    "staging_schema",
)
"""What ``create`` makes."""


@dataclass(frozen=True)
class Owner:
    """Whose markers: a query, one of its sinks (by its code), and the schema they lie in."""

    schema: str
    query_id: str
    sink: str

    @property
    def table(self) -> sql.Identifier:
        """The table of markers."""
        return sql.Identifier(self.schema, TABLE)


@dataclass(frozen=True)
class Marker:
    """What a marker says: a batch, the generation that wrote it, and which transactions it consisted of (``names.names_digest``)."""

    batch: int
    generation: int
    names: str = ""


def create(connection: Connection, schema: str) -> None:
    """Make schema and table where they are missing; several may try at once."""
    for attempt in range(3):
        try:
            with transaction(connection):
                known = connection.execute(
                    "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) %s", [schema]
                ).fetchone()
                if known is None:
                    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
                if not exists(connection, schema):
                    connection.execute(
                        sql.SQL(
                            "CREATE TABLE IF NOT EXISTS {} (query_id pg_catalog.text NOT NULL, sink pg_catalog.text NOT NULL, "
                            "name pg_catalog.text NOT NULL, generation bigint NOT NULL, batch bigint NOT NULL, names pg_catalog.text NOT NULL, "
                            "at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(), PRIMARY KEY (query_id, sink, name))"
                        ).format(sql.Identifier(schema, TABLE))
                    )
        except (UniqueViolation, DuplicateTable, DuplicateObject):  # noqa: PERF203  IF NOT EXISTS does not wait for another one's that is being made
            if attempt == 2:
                raise
        else:
            return


def exists(connection: Connection, schema: str) -> bool:
    """Tell whether the table of markers is there."""
    return oid_of(connection, schema) is not None


def oid_of(connection: Connection, schema: str) -> int | None:
    """Return the object id of the table of markers; None where there is none. It stays with the table, whatever becomes of its name and schema."""
    query = (
        "SELECT c.oid::bigint FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace "
        "WHERE n.nspname OPERATOR(pg_catalog.=) %s AND c.relname OPERATOR(pg_catalog.=) %s"
    )
    row = connection.execute(query, [schema, TABLE]).fetchone()
    return None if row is None else int(row[0])


def advance(connection: Connection, owner: Owner, marker: Marker, name: str = COMPLETE) -> bool:
    """Move a marker forward, within the caller's transaction; False, and nothing is changed, when it has that batch or a later one.

    Waits, as long as ``lock_timeout`` says, for another transaction that moves it.
    """
    moved = connection.execute(
        sql.SQL(
            "INSERT INTO {} AS m (query_id, sink, name, generation, batch, names) VALUES (%s, %s, %s, %s, %s, %s) "
            "ON CONFLICT (query_id, sink, name) DO UPDATE SET generation = EXCLUDED.generation, batch = EXCLUDED.batch, "
            "names = EXCLUDED.names, at = pg_catalog.clock_timestamp() WHERE m.batch OPERATOR(pg_catalog.<) EXCLUDED.batch"
        ).format(owner.table),
        [owner.query_id, owner.sink, name, marker.generation, marker.batch, marker.names],
    )
    return moved.rowcount == 1


def read(connection: Connection, owner: Owner, name: str = COMPLETE) -> Marker | None:
    """Return a marker; None when there is none."""
    row = connection.execute(
        sql.SQL(
            "SELECT batch, generation, names FROM {} WHERE (query_id, sink, name) OPERATOR(pg_catalog.=) (%s, %s, %s)"
        ).format(owner.table),
        [owner.query_id, owner.sink, name],
    ).fetchone()
    return None if row is None else Marker(*row)


def has_batch(connection: Connection, owner: Owner, batch: int) -> bool:
    """Tell whether a batch is complete in this database, by the markers of any mode.

    A query may have had its markers in another schema, which was changed since, and perhaps changed back: where this one doesn't have the batch, every
    table of markers of a trusted owner's is looked into.
    """
    if exists(connection, owner.schema) and _any(connection, owner, batch):
        return True
    return bool(places_of(connection, owner, batch))


def places_of(connection: Connection, owner: Owner, batch: int) -> list[str]:
    """Return the other schemas whose markers have a batch; -1: that have any of this owner's.

    Anybody may make a table of this name. Only one counts that is as ``create`` makes it, and belongs, as its schema does, to somebody whom this role trusts: reading another
    one could run its owner's code, and what it says proves nothing.
    """
    return [
        found.schema
        for found in own_tables.find(connection, FORM)
        if found.schema != owner.schema
        and found.is_readable
        and not found.flaws
        and not found.strangers
        and _any(connection, replace(owner, schema=found.schema), batch)
    ]


def _any(connection: Connection, owner: Owner, batch: int = -1) -> bool:
    # CONFIRMED is written before the decision, and proves nothing.
    found = connection.execute(
        sql.SQL(
            "SELECT 1 FROM {} WHERE query_id OPERATOR(pg_catalog.=) %s AND sink OPERATOR(pg_catalog.=) %s "
            "AND name OPERATOR(pg_catalog.<>) %s AND batch OPERATOR(pg_catalog.>=) %s LIMIT 1"
        ).format(owner.table),
        [owner.query_id, owner.sink, CONFIRMED, batch],
    )
    return found.fetchone() is not None


def has_any(connection: Connection, owner: Owner) -> bool:
    """Tell whether the owner's own schema has a marker of any batch."""
    return exists(connection, owner.schema) and _any(connection, owner)


def moved_to(connection: Connection, owner: Owner, batch: int, oid: int | None) -> str:
    """Return where a batch's markers are now, where that isn't the owner's schema: what is missing here proves nothing then. Empty: they were not moved.

    Args:
        connection: in whatever state.
        owner: whose.
        batch: which has no marker in the owner's schema.
        oid: of the table of markers when the batch was confirmed; None where a release wrote it that didn't say.
    """
    query = (
        "SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
        "ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE c.oid OPERATOR(pg_catalog.=) %s::pg_catalog.oid"
    )
    row = None if oid is None else connection.execute(query, [oid]).fetchone()
    if row is not None and tuple(row) != (owner.schema, TABLE):
        return ".".join(row)
    return next((f"{schema}.{TABLE}" for schema in places_of(connection, owner, batch)), "")


def check_predecessor(connection: Connection, owner: Owner, after: int | None) -> None:
    """Refuse a batch where the database doesn't have the one before it.

    Args:
        connection: in whatever state.
        owner: whose.
        after: the batch before, by the commit log; None: it knows none.

    Raises:
        AttemptFailedError: it isn't there.
    """
    if after is None or _any(connection, owner, after):
        return
    if not has_batch(connection, owner, after):
        raise AttemptFailedError(
            f"No marker in this database has batch {after}, which the commit log knows to be complete here (table {owner.schema}.{TABLE}): it was "
            "restored from an older state, or is another one. Nothing of this batch is decided. Put the newer state back."
        )


def put(connection: Connection, owner: Owner, name: str, marker: Marker) -> None:
    """Write the marker of one transaction, within it."""
    connection.execute(
        sql.SQL("INSERT INTO {} (query_id, sink, name, generation, batch, names) VALUES (%s, %s, %s, %s, %s, %s)").format(
            owner.table
        ),
        [owner.query_id, owner.sink, name, marker.generation, marker.batch, marker.names],
    )


def raise_to(connection: Connection, owner: Owner, name: str, marker: Marker) -> bool:
    """Raise a marker to a generation and a batch of it; False when it is beyond them, and nothing is changed."""
    raised = connection.execute(
        sql.SQL(
            "INSERT INTO {} AS m (query_id, sink, name, generation, batch, names) VALUES (%s, %s, %s, %s, %s, %s) "
            "ON CONFLICT (query_id, sink, name) DO UPDATE SET generation = EXCLUDED.generation, batch = EXCLUDED.batch, "
            "at = pg_catalog.clock_timestamp() WHERE (m.generation, m.batch) OPERATOR(pg_catalog.<=) (EXCLUDED.generation, EXCLUDED.batch)"
        ).format(owner.table),
        [owner.query_id, owner.sink, name, marker.generation, marker.batch, marker.names],
    )
    return raised.rowcount == 1


def present(connection: Connection, owner: Owner, names: list[str]) -> set[str]:
    """Return those of the names whose marker is there."""
    rows = connection.execute(
        sql.SQL(
            "SELECT name FROM {} WHERE query_id OPERATOR(pg_catalog.=) %s AND sink OPERATOR(pg_catalog.=) %s "
            "AND name OPERATOR(pg_catalog.=) ANY(%s)"
        ).format(owner.table),
        [owner.query_id, owner.sink, names],
    ).fetchall()
    return {str(name) for (name,) in rows}


def forget_before(connection: Connection, owner: Owner, batch: int) -> None:
    """Remove the markers of single transactions of earlier batches; ``COMPLETE`` covers those batches already."""
    connection.execute(
        sql.SQL(
            "DELETE FROM {} WHERE query_id OPERATOR(pg_catalog.=) %s AND sink OPERATOR(pg_catalog.=) %s "
            "AND batch OPERATOR(pg_catalog.<) %s AND name OPERATOR(pg_catalog.~~) 'ofa.%%'"
        ).format(owner.table),
        [owner.query_id, owner.sink, batch],
    )
