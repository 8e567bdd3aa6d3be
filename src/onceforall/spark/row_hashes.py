"""A row's hash in Spark: ``xxhash64``, after what makes different rows different for it.

``xxhash64`` passes over nulls and over the borders of arrays, so that ``('a', null)`` and ``(null,
'a')`` are one to it; strings that are equal by their collation are one, too, on Spark 4.0; and MAP
and VARIANT it refuses. So it gets of each column

- its *content*: a map, which has no order of its entries, as the array of its entries, sorted; a
  variant as its JSON text; a string with a collation as its bytes;
- its *shape*, where the type leaves it open: what is null in it, and how long its arrays are.

Shape and content together tell a value from every other one of its type, but for the sign of zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, MapType, StructType

Form = Callable[["Column"], "Column"]


def row_hash(frame: DataFrame, columns: list[Column]) -> Column:
    """Return the 64-bit hash of each row of these columns (BIGINT).

    Args:
        frame: what the columns are taken of.
        columns: any expressions over it.
    """
    from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by

    fields = frame.select(*columns).schema.fields
    contents = [
        _formed(_content(field.dataType), column)
        for field, column in zip(fields, columns, strict=True)
    ]
    shapes = [
        form(content)
        for field, content in zip(fields, contents, strict=True)
        if (form := _shape(_content_type(field.dataType), nullable=field.nullable)) is not None
    ]
    # Shapes first: whoever reads them knows how many values the contents are, so no row's shape
    # passes for another's content.
    return F.xxhash64(*shapes, *contents)


def _formed(form: Form | None, column: Column) -> Column:
    return column if form is None else form(column)


def _content(kind: DataType) -> Form | None:
    """Return what gives a column of this type a form that can be hashed; None where it has one."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType, VariantType

    form: Form | None = None
    if isinstance(kind, VariantType):
        form = F.to_json
    elif isinstance(kind, StringType):
        form = None if kind.isUTF8BinaryCollation() else _bytes
    elif isinstance(kind, ArrayType):
        element = _content(kind.elementType)
        if element is not None:
            form = partial(F.transform, f=element)
    elif isinstance(kind, MapType):
        form = _entries(kind)
    elif isinstance(kind, StructType):
        members = [_content(field.dataType) for field in kind.fields]

        def of_struct(column: Column) -> Column:
            named = zip(kind.names, members, _members(column, kind), strict=True)
            plain = [_formed(each, member).alias(name) for name, each, member in named]
            return F.when(column.isNotNull(), F.struct(*plain))

        form = of_struct if any(members) else None
    return form


def _bytes(column: Column) -> Column:
    return column.cast("binary")


def _entries(kind: MapType) -> Form:
    from pyspark.sql import functions as F  # noqa: N812

    key, value = _content(kind.keyType), _content(kind.valueType)

    def entry(each: Column) -> Column:
        return F.struct(
            _formed(key, each.getField("key")).alias("key"),
            _formed(value, each.getField("value")).alias("value"),
        )

    def entries(column: Column) -> Column:
        found = F.map_entries(column)
        # Not by transform_keys, which refuses keys that become one.
        return F.array_sort(found if key is None and value is None else F.transform(found, entry))

    return entries


def _content_type(kind: DataType) -> DataType:
    """Return the type of a column in the form that ``_content`` gives it, as far as its shape
    goes.
    """
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, ArrayType):
        return ArrayType(_content_type(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        key = StructField("key", _content_type(kind.keyType), nullable=False)
        value = StructField("value", _content_type(kind.valueType), nullable=kind.valueContainsNull)
        return ArrayType(StructType([key, value]), containsNull=False)
    if isinstance(kind, StructType):
        return StructType(
            [
                StructField(field.name, _content_type(field.dataType), field.nullable)
                for field in kind.fields
            ]
        )
    return kind


def _shape(kind: DataType, *, nullable: bool) -> Form | None:
    """Return what tells of a content of this type what in it is null, and how long its arrays
    are; None where that is always the same.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        element = _shape(kind.elementType, nullable=kind.containsNull)

        def of_array(column: Column) -> Column:
            # One that is null has no size, or -1, by a setting of the session.
            size = F.coalesce(F.size(column), F.lit(-1))
            return size if element is None else F.struct(size, F.transform(column, element))

        return of_array
    if isinstance(kind, StructType):
        forms = [_shape(field.dataType, nullable=field.nullable) for field in kind.fields]

        def of_struct(column: Column) -> Column:
            null = [column.isNull()] if nullable else []
            members = zip(forms, _members(column, kind), strict=True)
            return F.struct(*null, *(form(member) for form, member in members if form is not None))

        return of_struct if nullable or any(forms) else None
    return (lambda column: column.isNull()) if nullable else None


def _members(column: Column, kind: StructType) -> list[Column]:
    """Return the fields of a struct, in their order: by their places, to which a cast gives names,
    where Spark can't tell their names apart, such as those that differ in case only.
    """
    from pyspark.sql.types import StructField, StructType

    names = kind.names
    if len({name.lower() for name in names}) < len(names) or not all(map(str.isascii, names)):
        names = [f"_{place}" for place in range(len(names))]
        placed = zip(names, kind.fields, strict=True)
        # Nullable: Spark takes no cast of a VARIANT as certain to give a value.
        column = column.cast(
            StructType([StructField(name, each.dataType) for name, each in placed])
        )
    return [column.getField(name) for name in names]
