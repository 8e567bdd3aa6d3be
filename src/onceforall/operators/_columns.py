"""Columns on their way into an operator and out of it: JSON, made and read by Spark's own
expressions in the JVM.

What a worker gets is texts, so that nothing depends on how a version of PySpark brings a type into
Python and back into a state store. Times have microseconds and are in UTC, whatever the session's
time zone is, which may differ after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from onceforall.errors import SchemaError
from onceforall.operators._events import Value

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_OPTIONS: Mapping[str, str] = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
}

_LONGEST = 2**31 - 1

_READING: Mapping[str, str] = {
    **_OPTIONS,
    "mode": "FAILFAST",
    # By default Spark's reader refuses texts of more than 20 million characters, and more.
    **{name: str(_LONGEST) for name in ("maxStringLen", "maxNestingDepth", "maxNumLen")},
}


@dataclass(frozen=True)
class Travel:
    """How values of a type go into an operator (``encode``) and come out of it (``decode``, from
    a column of the type ``wire``).
    """

    value: Value
    wire: DataType
    encode: Callable[[Column], Column]
    decode: Callable[[Column], Column]


def quoted(name: str) -> str:
    """Return a column's name such that dots and backquotes in it stand for themselves."""
    return f"`{name.replace('`', '``')}`"


def to_json(column: Column) -> Column:
    """Return the JSON text of a struct; nulls in it are left out."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.to_json(column, {**_OPTIONS, "ignoreNullFields": "true"})


def from_json(column: Column, schema: StructType) -> Column:
    """Return the struct of a JSON text.

    A text that can't be read fails the query: it would be a loss otherwise.
    """
    from pyspark.sql import functions as F  # noqa: N812

    # Spark would keep a field of that name (`_corrupt_record`, or what the session says) for texts
    # that it can't read, and give null for it.
    corrupt = "_corrupt_record"
    while corrupt in schema.names:
        corrupt += "_"
    return F.from_json(column, schema, {**_READING, "columnNameOfCorruptRecord": corrupt})


def key_text(frame: DataFrame, names: Sequence[str]) -> Column:
    """Return the text of a key: two rows have the same one if, and only if, these columns are the
    same byte for byte.

    It is JSON with the fields ``k0``, ``k1`` … and without nulls. A string with bytes that are no
    UTF-8 can't be in JSON: Spark would write U+FFFD for them, and different keys would have one
    text. In place of ``k0`` it is in ``x0``, as hexadecimal digits.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    parts, others = [], []
    for number, name in enumerate(names):
        part = F.col(quoted(name))
        if isinstance(frame.schema[name].dataType, T.StringType):
            others.append(F.when(~F.is_valid_utf8(part), F.hex(part)).alias(f"x{number}"))
            part = F.when(F.is_valid_utf8(part), part)
        parts.append(part.alias(f"k{number}"))
    return to_json(F.struct(*parts, *others))


def key_schema(frame: DataFrame, names: Sequence[str]) -> StructType:
    """Return the type of what ``key_text`` makes a text of."""
    from pyspark.sql import types as T  # noqa: N812

    kinds = [frame.schema[name].dataType for name in names]
    parts = [T.StructField(f"k{number}", kind) for number, kind in enumerate(kinds)]
    others = [
        T.StructField(f"x{number}", kind)
        for number, kind in enumerate(kinds)
        if isinstance(kind, T.StringType)
    ]
    return T.StructType([*parts, *others])


def key_column(key: Column, schema: StructType, number: int) -> Column:
    """Return a column of a key, byte for byte, from a struct with that schema."""
    from pyspark.sql import functions as F  # noqa: N812

    part = key.getField(f"k{number}")
    if f"x{number}" not in schema.names:
        return part
    return F.coalesce(part, F.unhex(key.getField(f"x{number}")).cast("string"))


def family(kind: DataType) -> str:
    """Return what types have in common between which a column may change while there is state:
    widths of whole numbers, floating-point numbers, and decimals of one scale. Other types are
    alone, and structs are by their fields.
    """
    from pyspark.sql import types as T  # noqa: N812

    for name, kinds in (
        ("whole", T.ByteType | T.ShortType | T.IntegerType | T.LongType),
        ("floating", T.FloatType | T.DoubleType),
    ):
        if isinstance(kind, kinds):
            return name
    if isinstance(kind, T.DecimalType):
        return f"decimal of {kind.scale}"
    if isinstance(kind, T.ArrayType):
        return f"array<{family(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<{family(kind.keyType)},{family(kind.valueType)}>"
    if isinstance(kind, T.StructType):
        fields = [f"{field.name!r}:{family(field.dataType)}" for field in kind.fields]
        return f"struct<{','.join(fields)}>"
    return kind.simpleString()


def families(frame: DataFrame, names: Sequence[str]) -> tuple[str, ...]:
    """Return the families of these columns' types."""
    return tuple(family(frame.schema[name].dataType) for name in names)


def sortable(kind: DataType, widened: DataType | None = None) -> Travel | None:
    """Return how a type travels whose values a worker can compare and add, or None.

    Args:
        kind: the type of the column.
        widened: the type that comes out, where that is another one: that of a sum.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, T.DecimalType) and kind.scale < 0:
        return None  # of a legacy setting of Spark's; its digits are read with a scale of 0 or more
    out = kind if widened is None else widened
    integers = T.ByteType | T.ShortType | T.IntegerType | T.LongType
    scale = kind.scale if isinstance(kind, T.DecimalType) else 0
    text = T.StringType()  # equal to those types only that have no collation
    ways = [
        (
            isinstance(kind, integers),
            Travel(Value("int"), T.LongType(), lambda c: c.cast("bigint"), lambda c: c.cast(out)),
        ),
        (
            isinstance(kind, T.DecimalType),
            Travel(
                Value("decimal", scale), text, lambda c: c.cast("string"), lambda c: c.cast(out)
            ),
        ),
        (
            isinstance(kind, T.FloatType | T.DoubleType),
            Travel(
                Value("double"), T.DoubleType(), lambda c: c.cast("double"), lambda c: c.cast(out)
            ),
        ),
        (
            isinstance(kind, T.DateType),
            Travel(
                Value("int"),
                T.LongType(),
                F.unix_date,
                lambda c: F.date_from_unix_date(c.cast("int")),
            ),
        ),
        (
            isinstance(kind, T.TimestampType),
            Travel(Value("int"), T.LongType(), F.unix_micros, F.timestamp_micros),
        ),
        (
            isinstance(kind, T.BooleanType),
            Travel(Value("bool"), T.BooleanType(), _as_it_is, _as_it_is),
        ),
        (isinstance(kind, T.BinaryType), Travel(Value("str"), text, F.hex, F.unhex)),
        (kind == text, Travel(Value("str"), text, _as_it_is, _as_it_is)),
    ]
    return next((_of_family(travel, kind) for fits, travel in ways if fits), None)


def carried(kind: DataType, what: str) -> Travel:
    """Return how a value of any type travels that is only handed on.

    Raises:
        SchemaError: JSON can't bring this type back as it was.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    known = sortable(kind)
    if known is not None:
        return known
    check_carried(kind, what)
    schema = T.StructType([T.StructField("x", kind)])
    return Travel(
        Value("json", family=family(kind)),
        T.StringType(),
        lambda c: to_json(F.struct(c.alias("x"))),
        lambda c: from_json(c, schema).getField("x"),
    )


def check_carried(kind: DataType, what: str) -> None:
    """Refuse what JSON can't bring back as it was.

    Raises:
        SchemaError: the type, or one in it, is a variant, an interval, a map with other keys than
            strings, a struct with two fields of one name, or unknown.
    """
    from pyspark.sql import types as T  # noqa: N812

    plain = (
        T.ByteType | T.ShortType | T.IntegerType | T.LongType | T.FloatType | T.DoubleType | T.DecimalType | T.StringType | T.BinaryType  # noqa: E501
        | T.BooleanType | T.DateType | T.TimestampType | T.TimestampNTZType
    )  # fmt: skip
    if isinstance(kind, plain):
        return
    if isinstance(kind, T.ArrayType):
        check_carried(kind.elementType, what)
    elif isinstance(kind, T.StructType):
        # In JSON the last one would stand for all. Names in another case are other ones there.
        twice = sorted({name for name in kind.names if kind.names.count(name) > 1})
        if twice:
            raise SchemaError(
                f"{what} has two fields named {twice[0]!r}, of which an operator's state would "
                "keep one. Rename one of them, or leave the column out with select(), before the "
                "operator."
            )
        for field in kind.fields:
            check_carried(field.dataType, f"{what}.{field.name}")
    elif isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        check_carried(kind.valueType, what)
    else:
        raise SchemaError(
            f"{what} has the type {kind.simpleString()}, which an operator's state can't bring "
            "back as it was. Cast it, or leave it out "
            "with select(), before the operator."
        )


def _of_family(travel: Travel, kind: DataType) -> Travel:
    return replace(travel, value=replace(travel.value, family=family(kind)))


def _as_it_is(column: Column) -> Column:
    return column
