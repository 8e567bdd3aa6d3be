"""Which columns of the rows can be stored, by their Spark types: told before any data moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onceforall.errors import SchemaError
from onceforall.sinks.files.time_buckets import TimeBucket

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, MapType, StructType

_NESTED = {"array", "map", "struct"}
_NOWHERE = {
    "void": "Cast it to a type of its own, or leave the column out.",
    "variant": "Store it as text with to_json, or extract what you need with variant_get.",
    "interval": "Store it as a number of seconds or months.",
    "calendarinterval": "Store it as a number of seconds or months.",
    "geography": "Store it as text or BINARY.",
    "geometry": "Store it as text or BINARY.",
    "time": "Store it as text or as a number of seconds.",
    "udt": "Store its parts as columns.",
}
_SIMPLE = {
    "string", "char", "varchar", "boolean", "byte", "tinyint", "short", "smallint", "integer", "int", "long", "bigint", "float", "double",  # noqa: E501
    "decimal", "date", "timestamp", "timestamp_ntz", "binary",
}  # fmt: skip
_IN_PATHS = {
    "string",
    "char",
    "varchar",
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "decimal",
    "date",
}


def check_columns(
    schema: StructType, kind: str, partition_by: Sequence[str], bucket: TimeBucket | None
) -> None:
    """Check that every column can be stored.

    Args:
        schema: of the rows.
        kind: the format.
        partition_by: the columns that go into folders' names.
        bucket: the time bucket.

    Raises:
        SchemaError: naming the column, its type and the remedy.
    """
    types = {field.name: field.dataType for field in schema.fields}
    folded: dict[str, str] = {}
    for name in [*schema.names, *(bucket.hive_columns if bucket is not None else ())]:
        same = _as_spark_compares(name)
        if same in folded:
            raise SchemaError(
                f"There are two columns {folded[same]!r} and {name!r} (a time bucket of "
                "the form name=… is one, too), and "
                "readers can't tell them apart. Rename one."
            )
        folded[same] = name
    if "" in types:
        raise SchemaError("A column has an empty name. Give it one with alias.")
    for name in partition_by:
        _check_partition(name, types)
    if len(partition_by) == len(types):
        raise SchemaError(
            f"All columns ({', '.join(types)}) are in partition_by, so that the files would have "
            "none. Leave one out of partition_by."
        )
    data = [field for field in schema.fields if field.name not in partition_by]
    if kind == "csv" and len(data) == 1 and data[0].nullable:
        raise SchemaError(
            f"CSV of the one column {data[0].name!r} can't store a null: it would be an empty "
            "line, which readers skip. Add a column, take "
            "nulls out with coalesce, or use another format."
        )
    if bucket is not None:
        _check_bucket(bucket, types, partition_by)
    for name, found in types.items():
        _check_name_in_arrow(name)
        if name not in partition_by:
            _check_name(name, kind)
            _check_type(name, found, kind)


def check_delimiter(schema: StructType, delimiter: str, partition_by: Sequence[str]) -> None:
    """Check that a CSV delimiter stands in no value that isn't quoted: only texts are, and
    floating-point numbers, which are written as such.

    Raises:
        SchemaError: naming the column, its type and the remedy.
    """
    for field in schema.fields:
        if field.name not in partition_by and delimiter in _UNQUOTED.get(
            _word(field.dataType), _WHOLE
        ):
            raise SchemaError(
                f"Column {field.name!r} is {_shown(field.dataType)}, whose values may hold the "
                f"delimiter {delimiter!r} in CSV. Take another delimiter, "
                "such as a comma or a tab, or cast the column to STRING."
            )


_WHOLE = "0123456789-"
_UNQUOTED = {
    **dict.fromkeys(("string", "char", "varchar", "float", "double"), ""),
    "boolean": "truefals",
    "decimal": f"{_WHOLE}+.E",
    "timestamp": f"{_WHOLE} :.Z",
    "timestamp_ntz": f"{_WHOLE} :.",
}
"""The characters of values, by type; those of others are whole numbers and dates."""


def _check_partition(name: str, types: dict[str, DataType]) -> None:
    if name not in types:
        raise SchemaError(
            f"partition_by names {name!r}, and the rows have only {', '.join(map(repr, types))}. "
            "Name one of these."
        )
    if _word(types[name]) not in _IN_PATHS:
        raise SchemaError(
            f"Column {name!r} is {_shown(types[name])}, which can't be part of a path. Partition "
            "by a STRING, a whole number, a DATE, a DECIMAL "
            "or a BOOLEAN: cast it, or use time_bucket= for timestamps."
        )


def _check_bucket(
    bucket: TimeBucket, types: dict[str, DataType], partition_by: Sequence[str]
) -> None:
    for name in bucket.columns:
        if name not in types:
            raise SchemaError(
                f"time_bucket={bucket.template!r} names the column {name!r}, and the rows have "
                f"only {', '.join(map(repr, types))}."
            )
        if _word(types[name]) not in {"timestamp", "timestamp_ntz", "date"}:
            raise SchemaError(
                f"time_bucket={bucket.template!r}: column {name!r} is {_shown(types[name])}. It "
                "must be a TIMESTAMP or a DATE: cast it, or "
                "use partition_by= for other types."
            )
    if twice := set(bucket.columns) & set(partition_by):
        raise SchemaError(
            f"The column {min(twice)!r} is in partition_by and in time_bucket. Leave it in one of "
            "them."
        )


def _check_name_in_arrow(name: str) -> None:
    if name in _OF_PYARROW:
        raise SchemaError(
            f"A column has the name {name!r}, which pyarrow's reader gives to a column of its own: "
            "to_arrow and dataset would find two. Rename it with alias."
        )


def _check_name(name: str, kind: str) -> None:
    """Check that a column's name is no other thing to readers of the format."""
    if kind == "orc":
        _check_orc_name(f"Column {name!r}", name)
    elif name == _CORRUPT and kind in {"json", "csv"}:
        raise SchemaError(
            f"A column has the name {name!r}, under which Spark's reader of {kind} puts lines "
            "that it can't read: it would lose the column's values. "
            "Rename it with alias."
        )
    elif kind == "csv" and ("\n" in name or "\r" in name):
        raise SchemaError(
            f"Column {name!r} has the end of a line in its name, which readers of CSV's header "
            "take for a row. Rename it with alias."
        )


def _check_orc_name(words: str, name: str) -> None:
    if "`" in name or not name:
        raise SchemaError(
            f"{words} has {'a backtick in its name' if name else 'no name'}, and Spark doesn't "
            "find such a one in ORC files. Rename it, or use "
            "Parquet."
        )


_OF_PYARROW = {"__filename", "__fragment_index", "__batch_index", "__last_in_fragment"}
"""What pyarrow's scanner adds to the columns of every dataset."""

_CORRUPT = "_corrupt_record"
"""Spark's default for ``spark.sql.columnNameOfCorruptRecord``."""


def _check_type(name: str, found: DataType, kind: str) -> None:
    from pyspark.sql.types import ArrayType, MapType, StructType

    word = _word(found)
    if word in _NESTED and kind == "csv":
        raise SchemaError(
            f"Column {name!r} is {_shown(found)}, which CSV can't store. Make it text with "
            "to_json, or use another format."
        )
    if word == "binary" and kind == "csv":
        raise SchemaError(
            f"Column {name!r} is BINARY, which CSV can't store. Make it text with base64 or hex, "
            "or use another format."
        )
    if word == "timestamp_ntz" and kind == "orc":
        raise SchemaError(
            f"Column {name!r} is TIMESTAMP_NTZ, and Spark refuses to read it from the ORC files "
            "of other writers. Cast it to TIMESTAMP, or use "
            "Parquet."
        )
    if isinstance(found, ArrayType):
        _check_type(f"{name}.element", found.elementType, kind)
    elif isinstance(found, MapType):
        _check_map(name, found, kind)
    elif isinstance(found, StructType):
        _check_struct(name, found, kind)
    elif word not in _SIMPLE:
        remedy = _NOWHERE.get(word, "Cast it to another type.")
        raise SchemaError(
            f"Column {name!r} is {_shown(found)}, which FileSink can't store as {kind}. {remedy}"
        )


def _check_map(name: str, found: MapType, kind: str) -> None:
    if kind == "json" and _word(found.keyType) not in {"string", "char", "varchar"}:
        # Spark's own writer takes these, and its reader fails on what it has written.
        raise SchemaError(
            f"Column {name!r} is {_shown(found)}, and Spark reads no JSON map but with STRING "
            "keys. Cast the keys to STRING."
        )
    _check_type(f"{name}.key", found.keyType, kind)
    _check_type(f"{name}.value", found.valueType, kind)


def _check_struct(name: str, found: StructType, kind: str) -> None:
    if not found.fields:
        raise SchemaError(
            f"Column {name!r} is a STRUCT without fields, which {kind} can't store. Leave it out."
        )
    folded: dict[str, str] = {}
    for i, field in enumerate(found.fields):
        if kind == "orc":
            _check_orc_name(f"A field ({field.name!r}) of column {name!r}", field.name)
        twin = folded.setdefault(_as_spark_compares(field.name), field.name)
        if len(folded) <= i:
            raise SchemaError(
                f"Column {name!r} has two fields {twin!r} and {field.name!r}, and Spark reads no "
                "such files. Rename one."
            )
        _check_type(f"{name}.{field.name}", field.dataType, kind)


def _as_spark_compares(name: str) -> str:
    """Return what is equal for two names that Java's ``equalsIgnoreCase`` takes as equal: it
    compares characters in upper case, and that in lower case, each by itself.
    """
    upper = (each.upper() if len(each.upper()) == 1 else each for each in name)
    return "".join(each.lower()[0] for each in upper)


def _word(kind: DataType) -> str:
    from pyspark.sql.types import UserDefinedType

    if isinstance(kind, UserDefinedType):
        return "udt"
    word = kind.simpleString().lower()
    if "interval" in word:
        return "interval"
    return word.partition("(")[0].partition("<")[0].partition(" ")[0]


def _shown(kind: DataType) -> str:
    return kind.simpleString().upper()
