"""What the sink does on the driver before any data moves, in its order: it checks the database,
and finds the table or makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from onceforall.errors import SinkCheckError
from onceforall.protocol.names import sink_code
from onceforall.sinks.postgres.driver import (
    marker_proofs,
    start_checks,
    table_checks,
    table_creation,
    table_lookup,
)
from onceforall.sinks.postgres.driver.batches import schema_of
from onceforall.sinks.postgres.driver.columns import columns_for
from onceforall.sinks.postgres.identity import database_of
from onceforall.sinks.postgres.markers import Owner
from onceforall.sinks.postgres.statements import roll_back, transaction
from onceforall.sinks.postgres.tables import FoundTable

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from onceforall.sink import StartInfo
    from onceforall.sinks.postgres.connections import Access
    from onceforall.sinks.postgres.options import Options
    from onceforall.sinks.postgres.statements import Connection


def holds(connection: Connection, options: Options, start: StartInfo, batch: int) -> bool:
    """Tell whether the markers have the batch, in whichever mode it was written.

    Raises:
        SinkCheckError: the table of markers could run somebody's code, or the role may not use it.
    """
    start_checks.check_markers(connection, options.staging_schema)
    try:
        return marker_proofs.has_batch(
            connection, _owner(options, start), batch, schema_of(start.place)
        )
    except psycopg.errors.InsufficientPrivilege:
        # Only now: a sweep asks, too, and needs less than a start.
        roll_back(connection)
        start_checks.check_rights(connection, options.staging_schema)
        raise


def check_database(
    connection: Connection, access: Access, options: Options, start: StartInfo
) -> str:
    """Check the server, the sink's own schema and the mode's needs; return what tells this database
    from every other one.

    Raises:
        SinkCheckError: naming the thing and the statement that mends it.
    """
    start_checks.check_server(connection, access)
    database = database_of(connection)
    start_checks.check_own_schema(connection, _owner(options, start))
    if options.ignore and start.output_mode == "update":
        start_checks.warn_of_ignored_updates(options.table)
    start_checks.warn_of_publications(connection, options.staging_schema, options.mode)
    if options.mode == "prepared":
        start_checks.check_prepared(
            connection, start.spark, start.query_id, keyed=bool(options.key)
        )
    return database


def find_table(
    connection: Connection, access: Access, options: Options, output_mode: str
) -> FoundTable:
    """Look the table up, and check that it can be written as the options say.

    Raises:
        SchemaError, SinkCheckError: naming what is in the way, and the statement that mends it.
    """
    table = table_lookup.describe(connection, options.table)
    if table is None:
        if not options.create_table:
            raise SinkCheckError(
                f"There is no table {options.table} in the database of {access.target}. Create "
                "it, correct table=, or let the sink make it "
                "with create_table=True."
            )
        return FoundTable(place=table_lookup.place_of(connection, options.table))
    root = table_lookup.root_of(connection, table)
    table_checks.check_writable(
        connection, table, options.key, ignore=options.ignore, replaces=output_mode == "complete"
    )
    return FoundTable(table, root=root)


def find_or_make_table(
    connection: Connection, access: Access, options: Options, output_mode: str, schema: StructType
) -> FoundTable:
    """Look the table up, and make it for rows of a schema where it is missing. It stays only if
    the rows can be written to it.

    Raises:
        SchemaError, SinkCheckError: as ``find_table``, or it can't be made.
    """
    found = find_table(connection, access, options, output_mode)
    if found.table is not None:
        return found
    with transaction(connection):
        table_creation.create(connection, options.table, schema, options.key)
        found = find_table(connection, access, options, output_mode)
        assert found.table is not None
        columns_for(schema, found.table, options.key, options.accumulate, options.mode)
    return found


def _owner(options: Options, start: StartInfo) -> Owner:
    return Owner(options.staging_schema, start.query_id, sink_code(start.sink))
