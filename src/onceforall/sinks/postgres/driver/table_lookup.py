"""What the catalogue says of the table that the sink writes.

A name without a schema is looked for along the ``search_path`` of the session, once, at start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceforall.errors import SinkCheckError
from onceforall.sinks.postgres.partitions import unfit_partition
from onceforall.sinks.postgres.server_errors import translated
from onceforall.sinks.postgres.table_names import parse_name, quoted
from onceforall.sinks.postgres.tables import Table, TableColumn, UniqueIndex
from onceforall.sinks.postgres.types import read_types

if TYPE_CHECKING:
    import psycopg

_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table, which takes no part in a two-phase commit",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a type",
    "t": "a TOAST table",
}
_LOOKUP = """
SELECT c.oid::bigint, n.nspname::pg_catalog.text, c.relname::pg_catalog.text, c.relkind::pg_catalog.text,
       c.relpersistence::pg_catalog.text, pg_catalog.row_security_active(c.oid)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(%s)
"""
_COLUMNS = """
SELECT a.attname::pg_catalog.text, a.atttypid::bigint, a.atttypmod, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull,
       a.atthasdef OR a.attidentity OPERATOR(pg_catalog.<>) '',
       a.attgenerated OPERATOR(pg_catalog.<>) '' OR a.attidentity OPERATOR(pg_catalog.=) 'a', t.typdefault IS NOT NULL,
       NOT EXISTS (SELECT FROM pg_catalog.pg_collation o WHERE NOT o.collisdeterministic AND (o.oid OPERATOR(pg_catalog.=) a.attcollation
           OR EXISTS (SELECT FROM pg_catalog.pg_index i,
                           ROWS FROM (pg_catalog.unnest(i.indkey::pg_catalog.int2[]), pg_catalog.unnest(i.indcollation::pg_catalog.oid[])) k(attnum, coll)
                      WHERE i.indrelid OPERATOR(pg_catalog.=) a.attrelid AND i.indisunique AND k.attnum OPERATOR(pg_catalog.=) a.attnum
                      AND k.coll OPERATOR(pg_catalog.=) o.oid)))
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
WHERE a.attrelid OPERATOR(pg_catalog.=) %s::pg_catalog.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_INDEXES = """
SELECT c.relname::pg_catalog.text, i.indisprimary,
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.unnest(i.indkey::pg_catalog.int2[]) WITH ORDINALITY k(attnum, place)
             LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) i.indrelid
                  AND a.attnum OPERATOR(pg_catalog.=) k.attnum AND k.attnum OPERATOR(pg_catalog.>) 0
             WHERE k.place OPERATOR(pg_catalog.<=) i.indnkeyatts ORDER BY k.place),
       CASE WHEN NOT i.indisvalid THEN 'it is not valid'
            WHEN i.indexprs IS NOT NULL THEN 'it has an expression'
            WHEN i.indpred IS NOT NULL THEN 'it is partial'
            WHEN NOT i.indimmediate THEN 'it is deferrable' ELSE '' END
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.indexrelid
WHERE i.indrelid OPERATOR(pg_catalog.=) %s::pg_catalog.oid AND i.indisunique ORDER BY i.indisprimary DESC, c.relname
"""


def describe(connection: psycopg.Connection[Any], table: str) -> Table | None:
    """Read a table from the catalogue; None when there is none of this name.

    Args:
        connection: to its database.
        table: its name, see ``table_names``.

    Raises:
        OptionError: the name is malformed.
        SinkCheckError: it is something else than a table, or one whose rows don't last, or its
            schema is closed to this role.
    """
    schema, name = parse_name(connection, table)
    with translated(f"Looking up table {table}"):
        _check_schema(connection, schema)
        full = ".".join(
            '"' + part.replace('"', '""') + '"' for part in (schema, name) if part is not None
        )
        row = connection.execute(_LOOKUP, [full]).fetchone()
        if row is None:
            return None
        oid, schema, name, kind, persistence, row_security = row
        _check_kind(table, kind, persistence)
        if kind == "p":
            _check_partitions(connection, table, oid)
        columns = connection.execute(_COLUMNS, [oid]).fetchall()
        types = read_types(connection, [(column[1], column[2], column[3]) for column in columns])
        indexes = connection.execute(_INDEXES, [oid]).fetchall()
    return Table(
        schema=str(schema),
        name=name,
        oid=oid,
        columns=tuple(
            TableColumn(
                column[0],
                type_,
                nullable=not column[4] and not type_.not_null,
                has_default=column[5] or column[7],
                is_generated=column[6],
                is_deterministic=column[8],
            )
            for column, type_ in zip(columns, types, strict=True)
        ),
        indexes=tuple(
            # An expression has no name, and makes the index unfit.
            UniqueIndex(index, tuple(name for name in names if name is not None), primary, unfit)
            for index, primary, names, unfit in indexes
        ),
        is_partitioned=kind == "p",
        has_row_security=row_security,
    )


def _check_schema(connection: psycopg.Connection[Any], schema: str | None) -> None:
    if schema is None:
        return
    row = connection.execute(
        "SELECT pg_catalog.has_schema_privilege(oid, 'USAGE'), current_user::pg_catalog.text FROM "
        "pg_catalog.pg_namespace "
        "WHERE nspname OPERATOR(pg_catalog.=) %s",
        [schema],
    ).fetchone()
    if row is not None and not row[0]:
        raise SinkCheckError(
            f"The role {row[1]!r} may not use the schema {schema!r}. Grant it: GRANT USAGE ON "
            f"SCHEMA {quoted(schema)} TO {quoted(row[1])};"
        )


def _check_kind(table: str, kind: str, persistence: str) -> None:
    if kind not in {"r", "p"}:
        raise SinkCheckError(f"{table} is {_KINDS.get(kind, 'no table')}. Name a table.")
    if persistence == "t":
        raise SinkCheckError(
            f"{table} is a temporary table, which no other session sees. Name a permanent one."
        )
    if persistence == "u":
        raise SinkCheckError(
            f"{table} is an unlogged table: PostgreSQL empties it after a crash, committed rows "
            f"included. ALTER TABLE {table} SET LOGGED; or "
            "name another one."
        )


def _check_partitions(connection: psycopg.Connection[Any], table: str, oid: int) -> None:
    unfit = unfit_partition(connection, table, oid)
    if unfit:
        raise SinkCheckError(f"{unfit}, or name another table.")


def root_of(connection: psycopg.Connection[Any], table: Table) -> int:
    """Return the object id of the table that this one is a partition of, at the top; its own
    where it is none.
    """
    row = connection.execute(
        "SELECT "
        "COALESCE(pg_catalog.pg_partition_root(%(oid)s::pg_catalog.oid::pg_catalog.regclass)::pg_catalog.oid::pg_catalog.int8, %(oid)s::pg_catalog.int8)",
        {"oid": table.oid},
    ).fetchone()
    assert row is not None
    return int(row[0])


def place_of(connection: psycopg.Connection[Any], table: str) -> tuple[str, str] | None:
    """Return schema and name under which a table that isn't there would be made; None where the
    ``search_path`` has no schema for it.

    Raises:
        OptionError: it is no table's name.
    """
    schema, name = parse_name(connection, table)
    if schema is None:
        row = connection.execute("SELECT pg_catalog.current_schema()::pg_catalog.text").fetchone()
        schema = None if row is None else row[0]
    return None if schema is None else (schema, name)
