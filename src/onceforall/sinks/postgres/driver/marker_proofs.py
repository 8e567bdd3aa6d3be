"""What markers prove: that a batch is complete in this database, or that nothing is proved by
what is missing, because they lie elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import psycopg
from psycopg import sql

from onceforall.errors import AttemptFailedError, SinkCheckError
from onceforall.sinks.postgres.driver import marker_table, own_tables
from onceforall.sinks.postgres.driver.batches import Batch
from onceforall.sinks.postgres.markers import CONFIRMED, PART, TABLE, Owner
from onceforall.sinks.postgres.statements import Connection
from onceforall.sinks.postgres.table_names import quoted

NO_TABLE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)
"""What PostgreSQL answers where the table of markers, or its schema, isn't there."""


def has_batch(connection: Connection, owner: Owner, batch: int, kept_in: str | None) -> bool:
    """Tell whether a batch is complete in this database, by the markers of any mode. In the mode
    ``upsert`` there is none behind its last task, so that a batch counts from its first one on.

    A query may have had its markers in another schema, which was changed since, and perhaps changed
    back: where this one doesn't have the batch, tables of markers of a trusted owner's are looked
    into. Only that of the schema which had it counts, if it is there: a copy that somebody has set
    aside is no proof that what was restored in its place has the batch.

    Args:
        connection: in whatever state.
        owner: whose.
        batch: which.
        kept_in: the schema that had its marker, by the commit log; None: it doesn't say.

    Raises:
        SinkCheckError: the schema that had it is there, and this role may not read its markers, or
            doesn't trust who owns them.
    """
    if marker_table.exists(connection, owner.schema) and says(connection, owner, batch):
        return True
    places = places_of(connection, owner, batch, parts=False)
    if kept_in is not None and marker_table.exists(connection, kept_in):
        if kept_in not in places and kept_in != owner.schema:
            _check_told(connection, owner, batch, kept_in)
        return kept_in in places
    return bool(places)


def _check_told(connection: Connection, owner: Owner, batch: int, schema: str) -> None:
    """See that markers which don't have a batch were read: else they may have it."""
    for found in own_tables.find(connection, marker_table.FORM, schema):
        if found.is_readable and not found.flaws and not found.strangers:
            continue
        why = (
            f"belongs to {', '.join(found.strangers)}, whom this role need not trust"
            if found.strangers
            else "is not as the library makes it"
            if found.flaws
            else "may not be read by this role"
        )
        raise SinkCheckError(
            f"The marker of batch {batch} was in {quoted(schema)}.{TABLE}, which {why}. So nobody "
            f"can tell whether the batch is in this database, and {quoted(owner.schema)}, where "
            f"the sink is to keep markers now, hasn't it. Put staging_schema={schema!r} back, and "
            "grant what that start asks for; or let its owner give schema and table to this role."
        )


def says(connection: Connection, owner: Owner, batch: int) -> bool:
    """Tell whether the owner's own schema, whose markers must be there, has a batch as a whole."""
    return _any(connection, owner, batch, parts=False)


def places_of(connection: Connection, owner: Owner, batch: int, *, parts: bool = True) -> list[str]:
    """Return the other schemas whose markers have a batch, with ``parts`` also those that have a
    part of it; -1: that have any of this owner's.

    Anybody may make a table of this name. Only one counts that is as ``marker_table.create`` makes
    it, and belongs, as its schema does, to somebody whom this role trusts: reading another
    one could run its owner's code, and what it says proves nothing.
    """
    return [
        found.schema
        for found in own_tables.find(connection, marker_table.FORM)
        if found.schema != owner.schema
        and found.is_readable
        and not found.flaws
        and not found.strangers
        and _any(connection, replace(owner, schema=found.schema), batch, parts=parts)
    ]


def _any(connection: Connection, owner: Owner, batch: int = -1, *, parts: bool) -> bool:
    # CONFIRMED is written before the decision, and proves nothing.
    found = connection.execute(
        sql.SQL(
            "SELECT 1 FROM {} WHERE query_id OPERATOR(pg_catalog.=) %s AND sink "
            "OPERATOR(pg_catalog.=) %s "
            "AND name OPERATOR(pg_catalog.<>) %s AND batch::pg_catalog.int8 "
            "OPERATOR(pg_catalog.>=) %s AND (%s OR names::pg_catalog.text "
            "OPERATOR(pg_catalog.<>) %s) LIMIT 1"
        ).format(owner.table),
        [owner.query_id, owner.sink, CONFIRMED, batch, parts, PART],
    )
    return found.fetchone() is not None


def has_any(connection: Connection, owner: Owner) -> bool:
    """Tell whether the owner's own schema has a marker of any batch."""
    return marker_table.exists(connection, owner.schema) and _any(connection, owner, parts=True)


def moved_to(connection: Connection, owner: Owner, batch: int, oid: int | None) -> str | None:
    """Return where a batch's markers are now, where that isn't the owner's schema; None: they were
    not moved. What is missing here proves nothing where they were.

    Args:
        connection: in whatever state.
        owner: whose.
        batch: which has no marker in the owner's schema.
        oid: of the table of markers when the batch was confirmed; None where a release wrote it
            that didn't say.
    """
    if oid is not None:
        name = _name_of(connection, oid)
        if name is not None:
            # No other table can have it: the marker is written in this one with the rows. A copy
            # of what it had before may lie anywhere, with markers of other modes.
            return None if name == (owner.schema, TABLE) else ".".join(name)
    return next((f"{schema}.{TABLE}" for schema in places_of(connection, owner, batch)), None)


def were_dropped(connection: Connection, oid: int | None) -> bool:
    """Tell whether the table of markers is gone that was there when a batch was confirmed: one that
    was made in its place proves nothing.

    A backup that is put back by file, or by the log, has the table under its object id.

    Args:
        connection: in whatever state.
        oid: as for ``moved_to``.
    """
    return oid is not None and _name_of(connection, oid) is None


def _name_of(connection: Connection, oid: int) -> tuple[str, str] | None:
    """Return the schema and the name that a table has now; None: there is no such table."""
    query = (
        "SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text FROM pg_catalog.pg_class c "
        "JOIN pg_catalog.pg_namespace n "
        "ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE c.oid OPERATOR(pg_catalog.=) "
        "%s::pg_catalog.oid"
    )
    row = connection.execute(query, [oid]).fetchone()
    return None if row is None else (str(row[0]), str(row[1]))


def check_predecessor(connection: Connection, batch: Batch) -> None:
    """Refuse a batch where the database doesn't have the one before it.

    Raises:
        AttemptFailedError: it isn't there.
    """
    owner, after = batch.owner, batch.after
    if after is None or says(connection, owner, after):
        return
    if not has_batch(connection, owner, after, batch.after_in):
        raise AttemptFailedError(
            f"No marker in this database has batch {after} as a whole, which the commit log knows "
            f"to be complete here (table {owner.schema}.{TABLE}): it was "
            "restored from an older state, is a standby that was promoted without the last "
            "commits, or is another one. Nothing of this batch is decided. "
            "Put the newer state back."
        )


def present(connection: Connection, owner: Owner, names: list[str]) -> set[str]:
    """Return those of the names whose marker is there."""
    rows = connection.execute(
        sql.SQL(
            "SELECT name FROM {} WHERE query_id OPERATOR(pg_catalog.=) %s AND sink "
            "OPERATOR(pg_catalog.=) %s "
            "AND name OPERATOR(pg_catalog.=) ANY(%s)"
        ).format(owner.table),
        [owner.query_id, owner.sink, names],
    ).fetchall()
    return {str(name) for (name,) in rows}
