"""Tasks of earlier runs that commit by themselves (module ``task.upsert``) are ended and refused,
wherever in this database they look for what refuses them: ``staging_schema=`` may have been
changed since, together with the sink's name or mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psycopg
from psycopg import sql

from onceforall.common import logs
from onceforall.sinks.postgres import markers, stale_connections
from onceforall.sinks.postgres.driver import marker_table, own_tables
from onceforall.sinks.postgres.driver.marker_proofs import NO_TABLE
from onceforall.sinks.postgres.markers import TABLE
from onceforall.sinks.postgres.names import whose_code
from onceforall.sinks.postgres.statements import Connection, role_of
from onceforall.sinks.postgres.table_names import quoted

_log = logs.logger("onceforall.sinks.postgres")


def fence_out(
    connection: Connection, schema: str, query_id: str, codes: Iterable[str], generation: int
) -> None:
    """End the sessions of a query's earlier generations that merge in silence or write in a task,
    and have its late tasks refused.

    Args:
        connection: ours, in no transaction.
        schema: the sink's own.
        query_id: whose.
        codes: of sinks that may have such sessions; those that have markers are found.
        generation: nothing of an earlier one is decided any more.

    Raises:
        psycopg.Error: not all are fenced out.
    """
    elsewhere = _elsewhere(connection, schema, query_id)
    own = [schema] if marker_table.exists(connection, schema) else []
    found = {code for each in own for code in markers.sinks(connection, each, query_id)}
    found.update(*elsewhere.values())
    for owner in sorted(whose_code(query_id, code) for code in found | set(codes)):
        stale_connections.end_silent_merges(connection, owner, generation - 1)
        stale_connections.end_older_tasks(connection, owner, generation)
    # Behind those that were ended: they may be frozen, and have it locked.
    for each in own:
        markers.fence_out(connection, each, query_id, generation)
    for each in elsewhere:
        _fence_out_elsewhere(connection, each, query_id, generation)


def _fence_out_elsewhere(
    connection: Connection, schema: str, query_id: str, generation: int
) -> None:
    try:
        markers.fence_out(connection, schema, query_id, generation)
    except NO_TABLE:
        pass  # Dropped or renamed meanwhile: no task finds it under this name.
    except psycopg.errors.InsufficientPrivilege:
        table, role = f"{quoted(schema)}.{TABLE}", quoted(role_of(connection))
        _log.warning(
            "This role may not write %s, where an earlier start of the query, with another "
            "staging_schema=, had its markers: a late task of that start in mode='upsert' is not "
            "refused. Let the table's owner say: GRANT INSERT, UPDATE ON %s TO %s;",
            table, table, role,
        )  # fmt: skip


def _elsewhere(connection: Connection, schema: str, query_id: str) -> dict[str, set[str]]:
    """Return the other schemas whose markers know the query, each with the codes of its sinks; see
    ``marker_proofs.places_of`` for whose tables are read.
    """
    known = {}
    for found in own_tables.find(connection, marker_table.FORM):
        if found.schema == schema or not found.is_readable or found.flaws or found.strangers:
            continue
        # One may be dropped meanwhile: it has nothing to do with this query, or is no more.
        with suppress(*NO_TABLE):
            if _knows(connection, found.schema, query_id):
                known[found.schema] = markers.sinks(connection, found.schema, query_id)
    return known


def _knows(connection: Connection, schema: str, query_id: str) -> bool:
    found = connection.execute(
        sql.SQL("SELECT 1 FROM {} WHERE query_id OPERATOR(pg_catalog.=) %s LIMIT 1").format(
            markers.fence_of(schema, query_id).table
        ),
        [query_id],
    )
    return found.fetchone() is not None
