"""The table that the sink makes where it is missing, and the type of PostgreSQL that a column of
Spark gets there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceforall.common.arguments import is_encodable
from onceforall.errors import SchemaError, SinkCheckError
from onceforall.sinks.postgres.driver.table_lookup import describe
from onceforall.sinks.postgres.server_errors import translated
from onceforall.sinks.postgres.table_names import LONGEST_NAME_BYTES, parse_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg
    from psycopg import sql
    from pyspark.sql.types import DataType, StructType

    from onceforall.sinks.postgres.tables import Table

_MOST_COLUMNS = 1600
_LONGEST_VARCHAR = 10_485_760
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})


def create(
    connection: psycopg.Connection[Any], table: str, schema: StructType, key: Sequence[str] = ()
) -> Table:
    """Create a table for rows of a Spark schema, unless there is one of this name already, and
    describe it.

    Strings become ``text``, timestamps ``timestamptz``, structs, maps and variants ``jsonb``;
    `SQL_TYPES` has the rest.

    Args:
        connection: in autocommit mode, or its caller commits.
        table: its name; its schema must exist.
        schema: of the rows.
        key: the columns of the primary key; none without.

    Raises:
        SchemaError: a type has no counterpart, a name can't be one, a column of the key isn't
            there, or there are too many columns.
        SinkCheckError: no right to create it, no such schema, or a type has its name.
    """
    import psycopg
    from psycopg import sql

    parts = [part for part in parse_name(connection, table) if part is not None]
    missing = [name for name in key if name not in schema.names]
    if missing:
        raise SchemaError(
            f"key= names the column {missing[0]!r}, and the rows have only "
            f"{', '.join(schema.names)}. Correct key=."
        )
    _check_number(connection, table, schema, key)
    lines: list[sql.Composable] = []
    for field in schema.fields:
        check_name(field.name)
        lines.append(
            sql.SQL("{} {}").format(
                sql.Identifier(field.name), sql.SQL(sql_type(field.name, field.dataType))
            )
        )
    if key:
        lines.append(
            sql.SQL("PRIMARY KEY ({})").format(
                sql.SQL(", ").join([sql.Identifier(name) for name in key])
            )
        )
    statement = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
        sql.Identifier(*parts), sql.SQL(", ").join(lines)
    )
    taken = ""
    with translated(f"Creating table {table}"):
        try:
            with connection.transaction():
                connection.execute(statement)
        except (
            psycopg.errors.UniqueViolation,
            psycopg.errors.DuplicateTable,
            psycopg.errors.DuplicateObject,
        ) as error:
            # Another one made it at the same moment, or there is a type of that name.
            taken = str(error.diag.message_primary)
        except psycopg.errors.InsufficientPrivilege as error:
            raise SinkCheckError(
                f"Table {table} can't be created: {error.diag.message_primary}. Grant it: GRANT "
                "USAGE, CREATE ON SCHEMA … TO …; or create the "
                f"table yourself: {statement.as_string(connection)};"
            ) from error
        except psycopg.errors.InvalidSchemaName as error:
            raise SinkCheckError(
                f"Table {table} can't be created: {error.diag.message_primary}. Create the "
                "schema, or correct the name."
            ) from error
    made = describe(connection, table)
    if made is None and taken:
        raise SinkCheckError(
            f"Table {table} can't be created: {taken}. A table needs a type of its name. Choose "
            "another name."
        )
    if made is None:
        raise SinkCheckError(
            f"Table {table} was dropped right after it was created. Create it again, or choose "
            "another name."
        )
    return made


def _check_number(
    connection: psycopg.Connection[Any], table: str, schema: StructType, key: Sequence[str]
) -> None:
    names = schema.names
    if len(names) > _MOST_COLUMNS:
        raise SchemaError(
            f"Table {table} can't be created: the rows have {len(names)} columns, and a table of "
            f"PostgreSQL has at most {_MOST_COLUMNS}. Leave some out, or put some into a struct, "
            "which becomes one column of jsonb."
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SchemaError(
            f"The rows have {names.count(twice)} columns {twice!r}, and table {table} can have "
            "one. Drop or rename the others."
        )
    row = connection.execute(
        "SELECT pg_catalog.current_setting('max_index_keys')::pg_catalog.int4"
    ).fetchone()
    if row is not None and len(key) > row[0]:
        raise SchemaError(
            f"key= names {len(key)} columns, and an index of this server has at most {row[0]}. "
            "Name fewer, or one that is computed of them (md5, sha2)."
        )


def check_name(name: str) -> None:
    """See that a column of a table can have a name.

    Raises:
        SchemaError: it can't.
    """
    if name in _SYSTEM_COLUMNS:
        why = "each table has a system column of that name"
    elif not is_encodable(name):
        why = "it holds half a character (a surrogate), which UTF-8 doesn't have"
    elif not name or len(name.encode()) > LONGEST_NAME_BYTES or "\0" in name:
        why = f"names have 1 to {LONGEST_NAME_BYTES} bytes"
    else:
        return
    raise SchemaError(f"Column {name!r} can't be a column of PostgreSQL: {why}. Rename it.")


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
        SchemaError: it has no counterpart, or is longer than that can be.
    """
    from pyspark.sql.types import ArrayType, CharType, DecimalType, VarcharType

    if isinstance(spark, DecimalType):
        return f"numeric({spark.precision},{spark.scale})"
    if isinstance(spark, VarcharType | CharType) and spark.length > _LONGEST_VARCHAR:
        raise SchemaError(
            f"Column {name!r} is {spark.simpleString().upper()}, and PostgreSQL's longest is "
            f"{_LONGEST_VARCHAR}. Cast it to STRING, which becomes text without a limit."
        )
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
            f"Column {name!r} is {spark.simpleString().upper()}, which has no counterpart in "
            "PostgreSQL. Cast it, or leave it out."
        )
    return found
