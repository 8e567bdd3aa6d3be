"""The table that the sink writes: what the catalogue says of it, how it is made, and whether its key can serve.

A table's name is written as in SQL: ``spend``, ``ads.spend``, ``ads."Spend 2026"``; without quotes it is in small letters. Without a schema
it is looked for along the ``search_path`` of the session, once, at start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceforall.errors import OptionError, SchemaError, SinkCheckError
from onceforall.sinks.postgres.server_errors import translated
from onceforall.sinks.postgres.types import PgType, read_types

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import psycopg
    from psycopg import sql
    from pyspark.sql.types import DataType, StructType

LONGEST_NAME_BYTES = 63
"""PostgreSQL cuts longer identifiers silently."""

# SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T'), in versions 15 and 18.
_RESERVED = frozenset(
    """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation column
    concurrently constraint create cross current_catalog current_date current_role current_schema current_time current_timestamp
    current_user default deferrable desc distinct do else end except false fetch for foreign freeze from full grant group having ilike
    in initially inner intersect into is isnull join lateral leading left like limit localtime localtimestamp natural not notnull null
    offset on only or order outer overlaps placing primary references returning right select session_user similar some symmetric
    system_user table tablesample then to trailing true union unique user using variadic verbose when where window with
    """.split()  # noqa: SIM905  a list literal would be four times as long
)
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


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: as the catalogue has it.
        type: its type.
        nullable: whether it takes a null.
        has_default: whether it gets a value when none is written (default or identity).
        is_generated: whether nobody may write it: ``GENERATED ALWAYS``, as identity or from an expression.
        is_deterministic: whether its collation, and that of each unique index on it, tells all different texts apart.
    """

    name: str
    type: PgType
    nullable: bool = True
    has_default: bool = False
    is_generated: bool = False
    is_deterministic: bool = True


@dataclass(frozen=True)
class UniqueIndex:
    """A unique index.

    Attributes:
        name: its name.
        columns: in their order; without those that are only included.
        is_primary: the primary key's.
        unfit: why ON CONFLICT can't use it by its columns; empty when it can.
    """

    name: str
    columns: tuple[str, ...]
    is_primary: bool = False
    unfit: str = ""


@dataclass(frozen=True)
class Table:
    """A table that can be written; plain values, to be pickled.

    Attributes:
        schema: where it lies.
        name: its name.
        oid: its object id, which another table of this name doesn't have.
        columns: in their order.
        indexes: the unique ones.
        is_partitioned: whether its rows lie in partitions.
        has_row_security: whether row security policies apply to this role; COPY into the table itself is then refused.
    """

    schema: str
    name: str
    oid: int
    columns: tuple[TableColumn, ...]
    indexes: tuple[UniqueIndex, ...] = ()
    is_partitioned: bool = False
    has_row_security: bool = False

    @property
    def identifier(self) -> sql.Identifier:
        """Its qualified name, quoted."""
        from psycopg import sql

        return sql.Identifier(self.schema, self.name)

    @property
    def shown(self) -> str:
        """Its qualified name, for messages and statements in them."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The columns of the primary key; empty without one."""
        return next((index.columns for index in self.indexes if index.is_primary), ())

    def select(self, names: Iterable[str]) -> tuple[TableColumn, ...]:
        """Return columns by their names, in that order.

        Raises:
            SchemaError: one isn't there.
        """
        by_name = {column.name: column for column in self.columns}
        chosen = list(names)
        for name in chosen:
            if name not in by_name:
                raise SchemaError(f"Table {self.shown} has no column {name!r}. It has {', '.join(by_name)}.")
        return tuple(by_name[name] for name in chosen)


def quoted(name: str) -> str:
    """Return an identifier in quotes where it needs them; for messages only, statements are composed by psycopg."""
    plain = (
        name.isascii()
        and name.replace("_", "a").isalnum()
        and name == name.lower()
        and not name[:1].isdigit()
        and name not in _RESERVED
    )
    return name if plain else '"' + name.replace('"', '""') + '"'


def parse_name(connection: psycopg.Connection[Any], table: str) -> tuple[str | None, str]:
    """Split a table's name, as SQL writes it, into schema and name.

    Raises:
        OptionError: it is none, or too long.
    """
    import psycopg

    if not isinstance(table, str) or not table.strip() or "\0" in table:
        raise OptionError(f"table={table!r} is no table's name. Give table or schema.table, as SQL writes it.")
    try:
        with connection.transaction():
            row = connection.execute("SELECT pg_catalog.parse_ident(%s)", [table]).fetchone()
    except psycopg.errors.InvalidParameterValue as error:
        raise OptionError(
            f"table={table!r} is no table's name: {error.diag.message_primary}. Write it as in SQL; names with other characters than letters, "
            'digits and _ need double quotes: ads."Spend 2026".'
        ) from error
    assert row is not None
    parts: list[str] = row[0]
    if len(parts) > 2:
        raise OptionError(
            f"table={table!r} has {len(parts)} parts. Give table or schema.table; the conninfo names the database."
        )
    for part in parts:
        if len(part.encode()) > LONGEST_NAME_BYTES:
            raise OptionError(f"table={table!r} is longer than PostgreSQL's {LONGEST_NAME_BYTES} bytes for a name. Shorten it.")
    return (parts[0] if len(parts) == 2 else None), parts[-1]


def place_of(connection: psycopg.Connection[Any], table: str) -> tuple[str, str] | None:
    """Return schema and name under which a table that isn't there would be made; None where the ``search_path`` has no schema for it.

    Raises:
        OptionError: it is no table's name.
    """
    schema, name = parse_name(connection, table)
    if schema is None:
        row = connection.execute("SELECT pg_catalog.current_schema()::pg_catalog.text").fetchone()
        schema = None if row is None else row[0]
    return None if schema is None else (schema, name)


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
        table: see the module's docstring.

    Raises:
        OptionError: the name is malformed.
        SinkCheckError: it is something else than a table, or one whose rows don't last, or its schema is closed to this role.
    """
    schema, name = parse_name(connection, table)
    with translated(f"Looking up table {table}"):
        _check_schema(connection, schema)
        full = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, name) if part is not None)
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
        "SELECT pg_catalog.has_schema_privilege(oid, 'USAGE'), current_user::pg_catalog.text FROM pg_catalog.pg_namespace "
        "WHERE nspname OPERATOR(pg_catalog.=) %s",
        [schema],
    ).fetchone()
    if row is not None and not row[0]:
        raise SinkCheckError(
            f"The role {row[1]!r} may not use the schema {schema!r}. Grant it: GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(row[1])};"
        )


def _check_kind(table: str, kind: str, persistence: str) -> None:
    if kind not in {"r", "p"}:
        raise SinkCheckError(f"{table} is {_KINDS.get(kind, 'no table')}. Name a table.")
    if persistence == "t":
        raise SinkCheckError(f"{table} is a temporary table, which no other session sees. Name a permanent one.")
    if persistence == "u":
        raise SinkCheckError(
            f"{table} is an unlogged table: PostgreSQL empties it after a crash, committed rows included. ALTER TABLE {table} SET LOGGED; or "
            "name another one."
        )


# No pg_partition_tree: it would lock each partition until the transaction's end, also those that get no row.
_UNFIT_PARTITION = """
WITH RECURSIVE tree AS (
    SELECT %s::pg_catalog.oid AS oid
    UNION ALL
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent OPERATOR(pg_catalog.=) tree.oid)
SELECT c.oid::pg_catalog.regclass::pg_catalog.text, c.relkind::pg_catalog.text FROM tree
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) tree.oid
WHERE c.relpersistence OPERATOR(pg_catalog.=) 'u' OR c.relkind OPERATOR(pg_catalog.=) 'f' LIMIT 1
"""


def unfit_partition(connection: psycopg.Connection[Any], table: str, oid: int) -> str:
    """Return what is wrong with a partition that can't keep rows as a commit promises, with its remedy; empty when there is none.

    Args:
        connection: to its database.
        table: the partitioned table's name, for the message.
        oid: its object id.
    """
    row = connection.execute(_UNFIT_PARTITION, [oid]).fetchone()
    if row is None:
        return ""
    if row[1] == "f":
        return f"The partition {row[0]} of {table} is a foreign table, which takes no part in a two-phase commit. Detach it"
    return f"The partition {row[0]} of {table} is unlogged: PostgreSQL empties it after a crash, committed rows included. ALTER TABLE {row[0]} SET LOGGED"


def _check_partitions(connection: psycopg.Connection[Any], table: str, oid: int) -> None:
    unfit = unfit_partition(connection, table, oid)
    if unfit:
        raise SinkCheckError(f"{unfit}, or name another table.")


def check_privileges(connection: psycopg.Connection[Any], table: Table, privileges: Collection[str]) -> None:
    """Check that the session's role has privileges on a table.

    Args:
        connection: to its database.
        table: as ``describe`` gave it.
        privileges: such as ``INSERT`` and ``UPDATE``; each on the table as a whole, or on every column.

    Raises:
        SinkCheckError: naming those that are missing, and the GRANT.
    """
    missing, role = [], ""
    for privilege in sorted(privileges):
        on_columns = privilege in {"SELECT", "INSERT", "UPDATE", "REFERENCES"}
        by_column = (
            " OR (SELECT pg_catalog.bool_and(pg_catalog.has_column_privilege(%(oid)s::pg_catalog.oid, a.attnum, %(privilege)s)) "
            "FROM pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) %(oid)s::pg_catalog.oid "
            "AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped)"
        )
        query = f"SELECT pg_catalog.has_table_privilege(%(oid)s::pg_catalog.oid, %(privilege)s){by_column if on_columns else ''}, current_user::pg_catalog.text"
        with translated(f"Looking up the rights on {table.shown}"):
            row = connection.execute(query.encode(), {"oid": table.oid, "privilege": privilege}).fetchone()
        assert row is not None
        role = row[1]
        if not row[0]:
            missing.append(privilege)
    if missing:
        raise SinkCheckError(
            f"The role {role!r} lacks {' and '.join(missing)} on table {table.shown}. Grant it: GRANT {', '.join(missing)} ON {table.shown} TO "
            f"{quoted(role)};"
        )


def root_of(connection: psycopg.Connection[Any], table: Table) -> int:
    """Return the object id of the table that this one is a partition of, at the top; its own where it is none."""
    row = connection.execute(
        "SELECT COALESCE(pg_catalog.pg_partition_root(%(oid)s::pg_catalog.oid::pg_catalog.regclass)::pg_catalog.oid::pg_catalog.int8, %(oid)s::pg_catalog.int8)",
        {"oid": table.oid},
    ).fetchone()
    assert row is not None
    return int(row[0])


def check_rules(connection: psycopg.Connection[Any], table: Table) -> None:
    """Check that the table has no rule that forbids ``ON CONFLICT`` (https://www.postgresql.org/docs/current/sql-insert.html).

    Raises:
        SinkCheckError: naming the rule.
    """
    row = connection.execute(
        "SELECT rulename::pg_catalog.text FROM pg_catalog.pg_rewrite WHERE ev_class OPERATOR(pg_catalog.=) %s::pg_catalog.oid "
        "AND ev_type::pg_catalog.text OPERATOR(pg_catalog.=) ANY(ARRAY['2', '3']) ORDER BY rulename LIMIT 1",
        [table.oid],
    ).fetchone()
    if row is not None:
        raise SinkCheckError(
            f"Table {table.shown} has the rule {quoted(str(row[0]))} on INSERT or UPDATE, and PostgreSQL then takes no ON CONFLICT, which key= needs. Make a "
            "trigger of the rule, or write without key=."
        )


def check_key(table: Table, key: Sequence[str]) -> None:
    """Check that an upsert by these columns is possible: a unique index on exactly them, whose values are never null.

    Raises:
        SchemaError: a column isn't there.
        SinkCheckError: there is no such index, with the statement that makes one; or a column of it may be null.
    """
    columns = table.select(key)
    same = [index for index in table.indexes if sorted(index.columns) == sorted(key)]
    listed = ", ".join(quoted(name) for name in key)
    if not any(not index.unfit for index in same):
        found = "".join(f" Index {quoted(index.name)} can't serve: {index.unfit}." for index in same)
        others = [f"({', '.join(index.columns)})" for index in table.indexes if not index.unfit]
        has = f"; it has one on {', '.join(others)}" if others else ""
        raise SinkCheckError(
            f"Table {table.shown} has no unique index on exactly ({listed}), which key= needs{has}.{found} Make one: "
            f"CREATE UNIQUE INDEX ON {table.shown} ({listed});"
        )
    nullable = [column.name for column in columns if column.nullable]
    if nullable:
        changes = ", ".join(f"ALTER COLUMN {quoted(name)} SET NOT NULL" for name in nullable)
        raise SinkCheckError(
            f"Column {quoted(nullable[0])} of the key of table {table.shown} may be null, and two nulls are no conflict: such rows would be "
            f"inserted again and again. ALTER TABLE {table.shown} {changes};"
        )


def create(connection: psycopg.Connection[Any], table: str, schema: StructType, key: Sequence[str] = ()) -> Table:
    """Create a table for rows of a Spark schema, unless there is one of this name already, and describe it.

    Strings become ``text``, timestamps ``timestamptz``, structs, maps and variants ``jsonb``; `SQL_TYPES` has the rest.

    Args:
        connection: in autocommit mode, or its caller commits.
        table: its name; its schema must exist.
        schema: of the rows.
        key: the columns of the primary key; none without.

    Raises:
        SchemaError: a type has no counterpart, a name is too long, a column of the key isn't there.
        SinkCheckError: no right to create it, or no such schema.
    """
    import psycopg
    from psycopg import sql

    parts = [part for part in parse_name(connection, table) if part is not None]
    missing = [name for name in key if name not in schema.names]
    if missing:
        raise SchemaError(
            f"key= names the column {missing[0]!r}, and the rows have only {', '.join(schema.names)}. Correct key=."
        )
    lines: list[sql.Composable] = []
    for field in schema.fields:
        if len(field.name.encode()) > LONGEST_NAME_BYTES or not field.name or "\0" in field.name:
            raise SchemaError(
                f"Column {field.name!r} can't be a column of PostgreSQL: names have 1 to {LONGEST_NAME_BYTES} bytes. Rename it."
            )
        lines.append(sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(sql_type(field.name, field.dataType))))
    if key:
        lines.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join([sql.Identifier(name) for name in key])))
    statement = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(sql.Identifier(*parts), sql.SQL(", ").join(lines))
    with translated(f"Creating table {table}"):
        try:
            with connection.transaction():
                connection.execute(statement)
        except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject):
            pass  # another one made it at the same moment
        except psycopg.errors.InsufficientPrivilege as error:
            raise SinkCheckError(
                f"Table {table} can't be created: {error.diag.message_primary}. Grant it: GRANT USAGE, CREATE ON SCHEMA … TO …; or create the "
                f"table yourself: {statement.as_string(connection)};"
            ) from error
        except psycopg.errors.InvalidSchemaName as error:
            raise SinkCheckError(
                f"Table {table} can't be created: {error.diag.message_primary}. Create the schema, or correct the name."
            ) from error
    made = describe(connection, table)
    if made is None:
        raise SinkCheckError(f"Table {table} was dropped right after it was created. Create it again, or choose another name.")
    return made


_SQL_TYPES = {
    "ByteType": "smallint",
    "ShortType": "smallint",
    "IntegerType": "integer",
    "LongType": "bigint",
    "FloatType": "real",
    "DoubleType": "double precision",
    "BooleanType": "boolean",
    "StringType": "text",
    "BinaryType": "bytea",
    "DateType": "date",
    "TimestampType": "timestamp with time zone",
    "TimestampNTZType": "timestamp without time zone",
    "TimeType": "time without time zone",
    "DayTimeIntervalType": "interval",
    "YearMonthIntervalType": "interval",
    "StructType": "jsonb",
    "MapType": "jsonb",
    "VariantType": "jsonb",
}


def sql_type(name: str, spark: DataType) -> str:
    """Return the type that a column for this Spark type gets.

    Args:
        name: of the column, for the message.
        spark: its type.

    Raises:
        SchemaError: it has no counterpart.
    """
    from pyspark.sql.types import ArrayType, CharType, DecimalType, VarcharType

    if isinstance(spark, DecimalType):
        return f"numeric({spark.precision},{spark.scale})"
    if isinstance(spark, VarcharType):
        return f"character varying({spark.length})"
    if isinstance(spark, CharType):
        return f"character({spark.length})"
    if isinstance(spark, ArrayType):
        element = sql_type(name, spark.elementType)
        return element if element == "jsonb" else element + "[]"
    found = _SQL_TYPES.get(type(spark).__name__)
    if found is None:
        raise SchemaError(
            f"Column {name!r} is {spark.simpleString().upper()}, which has no counterpart in PostgreSQL. Cast it, or leave it out."
        )
    return found
