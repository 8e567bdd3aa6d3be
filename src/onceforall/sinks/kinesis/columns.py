"""Which columns the Kinesis sink writes.

- *column* (*type*): *when it is missing*
- partitionKey (STRING): refused
- explicitHashKey (STRING): Kinesis hashes the partition key
- data (BINARY or STRING): all other columns become one JSON object, the record id among them, also
  where it is one of the keys

Beside a column ``data`` other columns are ignored, as the Kafka sink does it.
Upper and lower case are the same (``common.column_names``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from onceforall.common.column_names import spelled
from onceforall.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

_KEYS = ("partitionKey", "explicitHashKey")
# Spark's own formats end at milliseconds. In UTC, for the offset of old times in many zones has
# seconds, which no format has with each of Spark's settings; and a replay writes the same.
_JSON = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
# By name: TIME is not in each Spark. A VARIANT's times and binaries become texts.
_IN_JSON = frozenset(
    {
        "BinaryType",
        "BooleanType",
        "ByteType",
        "CalendarIntervalType",
        "CharType",
        "DateType",
        "DayTimeIntervalType",
        "DecimalType",
        "DoubleType",
        "FloatType",
        "IntegerType",
        "LongType",
        "NullType",
        "ShortType",
        "StringType",
        "TimeType",
        "TimestampNTZType",
        "TimestampType",
        "VarcharType",
        "YearMonthIntervalType",
    }
)


def kinesis_columns(schema: StructType, record_id: str | None) -> list[Column]:
    """Return the columns to write, ``data`` as BINARY.

    Args:
        schema: of the rows to be written.
        record_id: the column with the record id; None: ``data`` has it within.

    Raises:
        SchemaError: a column is missing, has another type, or one that JSON can't bear; the message
            says which.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType, StringType

    types = {field.name: field.dataType for field in schema.fields}
    have = ", ".join(types) or "none"
    found = {wanted: spelled(wanted, types, "Kinesis") for wanted in (*_KEYS, "data")}
    if found["partitionKey"] is None:
        raise SchemaError(
            "The Kinesis sink needs a column 'partitionKey' of type STRING, and the rows have "
            f"only {have}. Make one of what is kept in order, as col('user').alias('partitionKey')."
        )
    named = {wanted: name for wanted in _KEYS if (name := found[wanted]) is not None}
    for name in named.values():
        if not isinstance(types[name], StringType):
            raise SchemaError(
                f"Column {name!r} is of type {types[name].simpleString()}; the Kinesis sink needs "
                "STRING. Cast it."
            )
    keys = [f.col(name).alias(wanted) for wanted, name in named.items()]
    data = found["data"]
    if data is not None:
        if record_id is not None:
            raise SchemaError(
                f"The rows have a column {data!r}, which the Kinesis sink writes as it is, and a "
                "Kinesis record has no other place for the record id. Leave it out, and the "
                f"other columns are written as one JSON object with {record_id!r} in it; or put an "
                "id into 'data' yourself, and give the sink record_id=None."
            )
        if not isinstance(types[data], StringType | BinaryType):
            raise SchemaError(
                f"Column {data!r} is of type {types[data].simpleString()}; the Kinesis sink needs "
                "STRING or BINARY. Encode it with to_json, for example."
            )
        return [f.col(data).cast("binary").alias("data"), *keys]
    if record_id is not None and record_id not in types:
        raise SchemaError(
            f"The Kinesis sink needs a column {record_id!r} with each row's id, by which readers "
            f"drop what was written twice, and the rows have only {have}. Make it with "
            "onceforall.operators.with_record_id, or name another one with record_id=."
        )
    others = [name for name in types if name not in named.values() or name == record_id]
    return [_json_of(others, types, record_id).alias("data"), *keys]


def _json_of(names: Sequence[str], types: Mapping[str, DataType], record_id: str | None) -> Column:
    """Return some columns as one JSON object; null where the record id is null or a text is none:
    a task refuses a record without data, and names the row.
    """
    from pyspark.sql import functions as f

    if not names:
        raise SchemaError("The rows have nothing but keys for the Kinesis sink to write.")
    for name in names:
        _check_json(name, types[name])
    json = f.to_json(f.struct(*map(_column, names)), _JSON).cast("binary")
    right = [one for name in names if (one := _are_texts(_column(name), types[name])) is not None]
    if record_id is not None:
        right.append(_column(record_id).isNotNull())
    return json if not right else f.when(reduce(and_, right), json)


def _are_texts(column: Column, found: DataType) -> Column | None:
    """Return whether all texts of a column are UTF-8, which JSON is: of others Spark writes other
    texts, and of two record ids the same one. None: it has no texts.
    """
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    parts: list[Column | None] = []
    if isinstance(found, t.StringType):
        parts = [f.is_valid_utf8(column)]
    elif isinstance(found, t.ArrayType):
        parts = [_each_are_texts(column, found.elementType)]
    elif isinstance(found, t.MapType):
        parts = [
            _each_are_texts(f.map_keys(column), found.keyType),
            _each_are_texts(f.map_values(column), found.valueType),
        ]
    elif isinstance(found, t.StructType) and len(set(map(str.lower, found.names))) == len(found):
        # Where upper and lower case alone tell two fields apart, neither can be named.
        parts = [_are_texts(column.getField(one.name), one.dataType) for one in found.fields]
    right = [part.isNull() | part for part in parts if part is not None]
    return reduce(and_, right) if right else None


def _each_are_texts(column: Column, found: DataType) -> Column | None:
    from pyspark.sql import functions as f

    if _are_texts(f.lit(None), found) is None:
        return None
    return f.forall(column, lambda each: _are_texts(each, found))  # type: ignore[arg-type,return-value]


def _column(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col(f"`{name.replace('`', '``')}`")


def _check_json(name: str, found: DataType) -> None:
    """See that a reader gets a column's values out of JSON as they were.

    Args:
        name: the column's, with the fields that lead to this type.
        found: its type.

    Raises:
        SchemaError: they wouldn't.
    """
    from pyspark.sql import types as t

    if isinstance(found, t.UserDefinedType):
        found = found.sqlType()
    if isinstance(found, t.ArrayType):
        _check_json(name, found.elementType)
    elif isinstance(found, t.MapType):
        if not isinstance(found.keyType, t.StringType | t.NumericType | t.BooleanType):
            raise SchemaError(
                f"Column {name!r} has maps whose keys are {found.keyType.simpleString().upper()}, "
                "which Spark's JSON doesn't write so that they can be read. Cast the keys to "
                "STRING with transform_keys."
            )
        _check_json(name, found.valueType)
    elif isinstance(found, t.StructType):
        if len(set(found.names)) < len(found.names):
            raise SchemaError(
                f"Column {name!r} has several fields of one name, of which a reader of JSON gets "
                "one. Rename them."
            )
        for field in found.fields:
            _check_json(f"{name}.{field.name}", field.dataType)
    elif type(found).__name__ not in _IN_JSON:
        raise SchemaError(
            f"Column {name!r} is {found.simpleString().upper()}, whose values don't all come back "
            "from JSON as they were. Extract what you need (variant_get), cast it, or make the "
            "record yourself in a column 'data'."
        )
