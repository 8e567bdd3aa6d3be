"""Structs, maps, arrays and variants as the text of ``json`` and ``jsonb``: what ``to_json`` of
Spark keeps, and what of a type or a value it would change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

_OPTIONS = {
    "ignoreNullFields": "false",
    # Spark writes milliseconds otherwise, and instants in the session's time zone, whose offset it
    # cuts to minutes.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
_TEXTS = frozenset({"StringType", "VarcharType", "CharType"})
_KEYS = _TEXTS | {
    "ByteType", "ShortType", "IntegerType", "LongType", "BooleanType", "DecimalType", "FloatType",
    "DoubleType",
}  # fmt: skip
"""Types of a map's key that ``to_json`` turns to a text one would expect. Others become what Spark
has inside (microseconds, days), and BINARY the hash of a Java object, another one in each run.
"""


def json_problem(spark: DataType) -> str | None:
    """Return what of a type JSON can't show as it is, and the remedy; None: nothing."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(spark, ArrayType):
        return json_problem(spark.elementType)
    if isinstance(spark, MapType):
        if type(spark.keyType).__name__ not in _KEYS:
            return (
                f"It has a MAP whose keys are {spark.keyType.simpleString().upper()}, and those of "
                "JSON are texts. Cast the keys to STRING (BINARY: hex or base64)."
            )
        return json_problem(spark.valueType)
    if isinstance(spark, StructType):
        twice = [name for name in spark.names if spark.names.count(name) > 1]
        if twice:
            return (
                f"It has a STRUCT with two fields {twice[0]!r}, of which JSON can have one. Rename "
                "one."
            )
        return next((p for field in spark.fields if (p := json_problem(field.dataType))), None)
    return None


def as_json(source: Column, spark: DataType) -> Column:
    """Return a column's JSON text.

    Where a text within is no UTF-8, ``to_json`` would put U+FFFD in its place, and make one of two
    keys of a map. The result is no UTF-8 either then, so that the value is refused with its row. A
    VARIANT isn't looked into.
    """
    from pyspark.sql import functions as f

    text = f.to_json(source, _OPTIONS)
    bad = _has_bad_text(source, spark)
    if bad is None:
        return text
    return f.when(bad, f.lit(bytearray(b"\xff")).cast("string")).otherwise(text)


def _has_bad_text(source: Column, spark: DataType) -> Column | None:
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    kinds = _kinds(spark)
    if kinds.isdisjoint(_TEXTS):
        return None
    if "BinaryType" not in kinds:
        # A cast keeps the bytes of all texts within as they are.
        return ~f.coalesce(f.is_valid_utf8(source.cast("string")), f.lit(True))  # noqa: FBT003
    parts: Iterable[Column | None] = ()
    if isinstance(spark, StructType):
        # By their places: Spark can't tell names apart that differ in case only.
        placed = source.cast(_by_place(spark))
        parts = [
            _has_bad_text(placed.getField(f"_{place}"), field.dataType)
            for place, field in enumerate(spark.fields)
        ]
    elif isinstance(spark, ArrayType):
        parts = [_any_bad(source, spark.elementType)]
    elif isinstance(spark, MapType):
        parts = [
            _any_bad(f.map_keys(source), spark.keyType),
            _any_bad(f.map_values(source), spark.valueType),
        ]
    found = [part for part in parts if part is not None]
    bad = found[0] if found else None
    for part in found[1:]:
        bad = part if bad is None else bad | part
    return bad


def _by_place(spark: StructType) -> StructType:
    """Return a struct's type with fields named by their places, to which Spark casts it as it is:
    https://spark.apache.org/docs/latest/sql-ref-ansi-compliance.html#cast.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType(
        [
            # No cast has VARCHAR or CHAR as its target.
            StructField(
                f"_{place}",
                StringType() if type(field.dataType).__name__ in _TEXTS else field.dataType,
            )
            for place, field in enumerate(spark.fields)
        ]
    )


def _any_bad(array: Column, element: DataType) -> Column | None:
    from pyspark.sql import functions as f

    if _has_bad_text(f.lit(None), element) is None:
        return None

    def is_bad(each: Column) -> Column:
        bad = _has_bad_text(each, element)
        assert bad is not None
        return bad

    return f.coalesce(f.exists(array, is_bad), f.lit(False))  # noqa: FBT003


def _kinds(spark: DataType) -> frozenset[str]:
    """Return the names of all types within one, itself included."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    inner: list[DataType] = []
    if isinstance(spark, ArrayType):
        inner = [spark.elementType]
    elif isinstance(spark, MapType):
        inner = [spark.keyType, spark.valueType]
    elif isinstance(spark, StructType):
        inner = [field.dataType for field in spark.fields]
    return frozenset({type(spark).__name__}).union(*map(_kinds, inner))
