"""A row's hash in Spark: ``xxhash64``, which takes every type but MAP and VARIANT; these get a canonical form first.

A map has no order of its entries, so it becomes the array of its entries, sorted; a variant becomes its JSON text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def row_hash(frame: DataFrame, columns: list[Column]) -> Column:
    """Return the 64-bit hash of each row of these columns (BIGINT).

    Args:
        frame: what the columns are taken of.
        columns: any expressions over it.
    """
    from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by

    if any(_canonical(field.dataType) for field in frame.schema.fields):
        fields = frame.select(*columns).schema.fields
        forms = [_canonical(field.dataType) for field in fields]
        columns = [column if form is None else form(column) for column, form in zip(columns, forms, strict=True)]
    return F.xxhash64(*columns)


def _canonical(kind: DataType) -> Callable[[Column], Column] | None:
    """Return what gives a column of this type a form that can be hashed; None where it has one."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    if isinstance(kind, VariantType):
        return F.to_json
    if isinstance(kind, ArrayType):
        element = _canonical(kind.elementType)
        return None if element is None else lambda column: F.transform(column, element)
    if isinstance(kind, MapType):
        value = _canonical(kind.valueType)

        def entries(column: Column) -> Column:
            plain = column if value is None else F.transform_values(column, lambda _, v: value(v))
            return F.array_sort(F.map_entries(plain))

        return entries
    if isinstance(kind, StructType):
        forms = {field.name: _canonical(field.dataType) for field in kind.fields}
        if not any(forms.values()):
            return None

        def members(column: Column) -> Column:
            each = list(forms.items())
            plain = [column.getField(n) if form is None else form(column.getField(n)) for n, form in each]
            return F.when(column.isNotNull(), F.struct(*[c.alias(n) for c, (n, _) in zip(plain, each, strict=True)]))

        return members
    return None
