"""Which Spark columns go to which columns of the table, and which types fit: decided before any
data moves.

A column goes to the one of the same name; where there is none that is written exactly so, to the
only one that differs in case. The types must agree without loss:

- *Spark*: *PostgreSQL*
- TINYINT, SMALLINT, INT, BIGINT: smallint, integer, bigint (each value is checked where it is
  narrower), numeric; double precision for all but BIGINT
- FLOAT; DOUBLE: real, double precision; double precision
- DECIMAL(p, s): numeric with at least s decimals (each value is checked where it has fewer digits
  before the point)
- BOOLEAN: boolean
- STRING: text, varchar, char, citext, json, jsonb (JSON text), uuid, enums
- BINARY: bytea; uuid (16 bytes)
- DATE; TIMESTAMP; TIMESTAMP_NTZ; TIME: date; timestamptz; timestamp; time
- INTERVAL DAY TO SECOND, INTERVAL YEAR TO MONTH: interval
- ARRAY of one or two dimensions: arrays of what fits its elements
- STRUCT, MAP, VARIANT, ARRAY: json, jsonb, by ``to_json`` with null fields kept

A domain counts as its base type. Values are never rounded or cut here; ``timestamp(3)`` and its
like round in PostgreSQL, as with every INSERT. An interval with a precision or with fields
(``interval(0)``, ``interval year``) is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.errors import SchemaError
from onceforall.sinks.postgres.driver.accumulated import check_accumulated
from onceforall.sinks.postgres.driver.json_text import as_json, json_problem
from onceforall.sinks.postgres.driver.shuffled_keys import canonical, check_key_column
from onceforall.sinks.postgres.driver.table_creation import check_name, sql_type
from onceforall.sinks.postgres.table_names import quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField, StructType

    from onceforall.sinks.postgres.tables import Table, TableColumn
    from onceforall.sinks.postgres.types import PgType

_INTEGERS = frozenset({"int2", "int4", "int8", "numeric"})
_FITS: dict[str, frozenset[str]] = {
    "ByteType": _INTEGERS | {"float8"},
    "ShortType": _INTEGERS | {"float8"},
    "IntegerType": _INTEGERS | {"float8"},
    "LongType": _INTEGERS,
    "FloatType": frozenset({"float4", "float8"}),
    "DoubleType": frozenset({"float8"}),
    "DecimalType": frozenset({"numeric"}),
    "BooleanType": frozenset({"bool"}),
    "StringType": frozenset(
        {"text", "varchar", "bpchar", "citext", "json", "jsonb", "uuid", "enum"}
    ),
    "VarcharType": frozenset(
        {"text", "varchar", "bpchar", "citext", "json", "jsonb", "uuid", "enum"}
    ),
    "CharType": frozenset({"text", "varchar", "bpchar", "citext", "json", "jsonb", "uuid", "enum"}),
    "BinaryType": frozenset({"bytea", "uuid"}),
    "DateType": frozenset({"date"}),
    "TimestampType": frozenset({"timestamptz"}),
    "TimestampNTZType": frozenset({"timestamp"}),
    "TimeType": frozenset({"time"}),
    "DayTimeIntervalType": frozenset({"interval"}),
    "YearMonthIntervalType": frozenset({"interval"}),
}
_AS_JSON = frozenset({"StructType", "MapType", "VariantType", "ArrayType"})
_CASTS = {
    "int2": "SMALLINT",
    "int4": "INT",
    "int8": "BIGINT",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "bool": "BOOLEAN",
    "text": "STRING",
    "varchar": "STRING",
    "bpchar": "STRING",
    "citext": "STRING",
    "uuid": "STRING",
    "enum": "STRING",
    "json": "STRING",
    "jsonb": "STRING",
    "bytea": "BINARY",
    "date": "DATE",
    "timestamptz": "TIMESTAMP",
    "timestamp": "TIMESTAMP_NTZ",
    "time": "TIME",
}
_NUMBERS = frozenset({
    "ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType",
})  # fmt: skip
_TEXTS = frozenset({"StringType", "VarcharType", "CharType"})
_WHOLE = _NUMBERS | _TEXTS | {
    "BooleanType", "TimestampType", "DayTimeIntervalType", "YearMonthIntervalType",
}  # fmt: skip
_FLOATING = _NUMBERS | _TEXTS | {"BooleanType", "TimestampType"}
_CAST_FROM = {
    "int2": _WHOLE,
    "int4": _WHOLE,
    "int8": _WHOLE,
    "numeric": _WHOLE,
    "float4": _FLOATING,
    "float8": _FLOATING,
    "bool": _NUMBERS | _TEXTS,
    "bytea": _TEXTS,
    "date": _TEXTS | {"TimestampType", "TimestampNTZType"},
    "timestamp": _TEXTS | {"DateType", "TimestampType"},
    "timestamptz": _TEXTS | _NUMBERS | {"DateType", "TimestampNTZType"},
    "time": _TEXTS,
}
"""From which types Spark casts to that of a column; a STRING can be made of any."""
_MOST_DIMENSIONS = 2


def columns_for(
    schema: StructType,
    table: Table,
    key: Sequence[str],
    accumulate: Sequence[tuple[str, str]],
    mode: str,
) -> list[Column]:
    """Return the columns that a sink with these arguments writes, named as the table's and in the
    order of the rows.

    Args:
        schema: of the rows.
        table: as ``describe`` gave it.
        key: the columns of the key; empty without one.
        accumulate: columns of the table with how each is accumulated.
        mode: of the sink.

    Raises:
        SchemaError: a column is missing or too many, its type doesn't fit, or it can't be in the
            key.
        SinkCheckError: a column can't be accumulated.
    """
    written = [column.name for _, column in matched(schema, table)]
    missing = [name for name in key if name not in written]
    if missing:
        raise SchemaError(
            f"key= names the column {missing[0]!r}, which the rows for {table.shown} don't have. "
            f"They have: {', '.join(schema.names)}."
        )
    if accumulate:
        check_accumulated(accumulate, key, written, table)
    shuffled_by = () if mode == "staged" else key
    for column in table.select(shuffled_by):
        check_key_column(column, table, mode)
    return postgres_columns(schema, table, shuffled_by)


def postgres_columns(
    schema: StructType, table: Table, shuffled_by: Collection[str] = ()
) -> list[Column]:
    """Return the columns to write, named as the table's and in the order of the rows.

    Args:
        schema: of the rows.
        table: as ``describe`` gave it.
        shuffled_by: columns of the table of which Spark must find two values equal where the server
            does; see ``shuffled_keys``.

    Raises:
        SchemaError: a column is missing or unknown, or a type does not fit; the message names it,
            both types and the remedy.
    """
    pairs = [(field, target) for field, target in matched(schema, table)]
    _check_missing({target.name for _, target in pairs}, schema, table)
    return [
        _column(field, target, table, in_key=target.name in shuffled_by) for field, target in pairs
    ]


def matched(schema: StructType, table: Table) -> list[tuple[StructField, TableColumn]]:
    """Return each field of the rows with its column of the table.

    Raises:
        SchemaError: a field has none or a generated one, or two fields have the same.
    """
    exact = {column.name: column for column in table.columns}
    pairs: list[tuple[StructField, TableColumn]] = []
    taken: dict[str, str] = {}
    for field in schema.fields:
        alike = [column for column in table.columns if column.name.lower() == field.name.lower()]
        found = exact.get(field.name) or (alike[0] if len(alike) == 1 else None)
        if found is None:
            raise SchemaError(_unknown(field, table, alike))
        if found.is_generated:
            raise SchemaError(
                f"Column {field.name!r} of table {table.shown} is generated by PostgreSQL, and "
                f"nobody may write it. Leave it out: .drop({field.name!r})."
            )
        if found.name in taken:
            raise SchemaError(
                f"The columns {taken[found.name]!r} and {field.name!r} both belong to column "
                f"{found.name!r} of table {table.shown}. Drop or rename one."
            )
        taken[found.name] = field.name
        pairs.append((field, found))
    return pairs


def _unknown(field: StructField, table: Table, alike: list[TableColumn]) -> str:
    if alike:
        names = ", ".join(repr(column.name) for column in alike)
        return (
            f"Column {field.name!r} could be any of {names} of table {table.shown}. Rename it "
            "to the one that is meant."
        )
    check_name(field.name)
    try:
        statement = (
            f"ALTER TABLE {table.shown} ADD COLUMN {quoted(field.name)} "
            f"{sql_type(field.name, field.dataType)};"
        )
    except SchemaError:
        statement = "add one"
    names = ", ".join(column.name for column in table.columns) or "none"
    return (
        f"Table {table.shown} has no column {field.name!r}; it has {names}. Leave it out "
        f"(.drop({field.name!r})), rename it, or {statement}"
    )


def _check_missing(written: set[str], schema: StructType, table: Table) -> None:
    for column in table.columns:
        if (
            column.name not in written
            and not column.nullable
            and not column.has_default
            and not column.is_generated
        ):
            raise SchemaError(
                f"Column {column.name!r} of table {table.shown} ({column.type.name}) takes no "
                "null and has no default, and the rows have only "
                f"{', '.join(schema.names) or 'no columns'}. Add it to the rows, or give it a "
                "default."
            )


def _column(field: StructField, target: TableColumn, table: Table, *, in_key: bool) -> Column:
    from pyspark.sql import functions as f

    source = f.col("`" + field.name.replace("`", "``") + "`")
    problem = _problem(field.dataType, target.type)
    if problem is not None:
        raise SchemaError(
            f"Column {field.name!r} is {field.dataType.simpleString().upper()}, and column "
            f"{target.name!r} of table {table.shown} is {target.type.name}. {problem}"
        )
    converted = _converted(source, field.dataType, target.type)
    return (canonical(converted, field.dataType, target.type) if in_key else converted).alias(
        target.name
    )


def _converted(source: Column, spark: DataType, target: PgType) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, StringType

    sort = type(spark).__name__
    if target.kind in {"json", "jsonb"} and sort in _AS_JSON:
        return as_json(source, spark)
    if sort in {"StringType", "VarcharType", "CharType"}:
        # A collation is not the sink's business, and Arrow has none. Without one there is nothing
        # to cast: another sink's column is then the same, and both get it once.
        is_plain = (
            isinstance(spark, StringType) and sort == "StringType" and spark.isUTF8BinaryCollation()
        )
        return source if is_plain else source.cast("string")
    if sort == "YearMonthIntervalType":
        # Arrow has no such interval: whole months. One of MONTH alone has no YEAR to extract.
        whole = source.cast("interval year to month")
        return (f.extract(f.lit("YEAR"), whole) * 12 + f.extract(f.lit("MONTH"), whole)).cast("int")
    if isinstance(spark, ArrayType) and target.element is not None:
        element, to = spark.elementType, target.element
        # A second dimension has the same element type in PostgreSQL.
        inner = (
            target if isinstance(element, ArrayType) and to.kind not in {"json", "jsonb"} else to
        )
        if _needs_conversion(element, inner):
            return f.transform(source, lambda value: _converted(value, element, inner))
    return source


def _needs_conversion(spark: DataType, target: PgType) -> bool:
    from pyspark.sql.types import ArrayType

    sort = type(spark).__name__
    if sort == "YearMonthIntervalType" or (target.kind in {"json", "jsonb"} and sort in _AS_JSON):
        return True
    return (
        isinstance(spark, ArrayType)
        and target.element is not None
        and _needs_conversion(spark.elementType, target.element)
    )


def _problem(spark: DataType, target: PgType, dimension: int = 1) -> str | None:
    """Return what to do about types that don't fit; None when they do."""
    sort = type(spark).__name__
    if target.kind in {"json", "jsonb"} and sort in _AS_JSON:
        return json_problem(spark)
    if target.element is not None:
        return _array_problem(spark, target, dimension)
    if target.kind == "other":
        return (
            "The sink can't write this type. Use a text column (and a generated column of this "
            "type beside it), or another type."
        )
    if target.kind not in _FITS.get(sort, frozenset()):
        return _advice(spark, target)
    if target.kind == "interval" and target.modifier >= 0:
        return (
            "Its values would be rounded or cut to what the column keeps. Make it a plain interval."
        )
    return _numeric_problem(spark, target)


def _array_problem(spark: DataType, target: PgType, dimension: int) -> str | None:
    from pyspark.sql.types import ArrayType

    assert target.element is not None
    if not isinstance(spark, ArrayType):
        return "Give an array, or change the column."
    if not isinstance(spark.elementType, ArrayType) or target.element.kind in {"json", "jsonb"}:
        return _problem(spark.elementType, target.element)
    # A second dimension has the same type in PostgreSQL.
    return (
        _problem(spark.elementType, target, dimension + 1)
        if dimension < _MOST_DIMENSIONS
        else "At most two dimensions can be written."
    )


def _numeric_problem(spark: DataType, target: PgType) -> str | None:
    from pyspark.sql.types import DecimalType

    limits = target.precision_and_scale
    if limits is None:
        return None
    if limits[1] < 0 or limits[1] > limits[0]:
        return (
            "The sink can't write a numeric whose scale is negative or above its precision. "
            "Use another precision and scale."
        )
    if isinstance(spark, DecimalType) and spark.scale > limits[1]:
        return (
            "Its values would be rounded. Round them where it is meant: cast it to "
            f"DECIMAL({spark.precision},{limits[1]}), or change the column."
        )
    return None


def _advice(spark: DataType, target: PgType) -> str:
    sort = type(spark).__name__
    if sort in _AS_JSON:
        return "Make it jsonb, or turn it to text with to_json."
    if sort == "NullType":
        return f"It is null always. Cast it: .cast({_cast_of(target)!r})."
    if {sort, target.kind} in ({"TimestampType", "timestamp"}, {"TimestampNTZType", "timestamptz"}):
        return (
            "Which instant is meant depends on a time zone. Say so by a cast to "
            f"{_cast_of(target)}, or change the column."
        )
    if target.kind == "interval":
        return (
            "Make it an INTERVAL of days to seconds or of years to months (make_dt_interval, "
            "make_ym_interval), or change the column."
        )
    if sort in {"FloatType", "DoubleType"} and target.kind in {"numeric", "float4"}:
        return (
            f"Digits would be lost. Cast it to {_cast_of(target)} where that is meant, or "
            "change the column."
        )
    wanted = _cast_of(target)
    if sort not in _CAST_FROM.get(target.kind, {sort}):
        wanted = ""
    return (
        f"Cast it to {wanted}, or change the column."
        if wanted
        else "Spark has no cast between them. Change the column, or the rows."
    )


def _cast_of(target: PgType) -> str:
    if target.kind == "numeric":
        precision, scale = target.precision_and_scale or (38, 18)
        return f"DECIMAL({min(precision, 38)},{min(scale, 38)})"
    return _CASTS.get(target.kind, "STRING")
