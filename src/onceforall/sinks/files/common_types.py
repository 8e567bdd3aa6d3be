"""Whether the types that a column had at different times have a common one, and what it is read
as where they have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_DIGITS = 6
"""Behind the point: the text of a decimal with more may have an exponent, in one reader and not
in another."""


def are_texts(name: str, kinds: Sequence[pa.DataType]) -> bool:
    """Tell whether a column that folders say is read as STRING, because the types that it has in
    different files have no common one.

    Raises:
        pyarrow.ArrowTypeError: they have none, and one of them has no text that all readers agree
            on.
    """
    import pyarrow as pa

    try:
        pa.unify_schemas(
            [pa.schema([(name, kind)]) for kind in kinds], promote_options="permissive"
        )
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        strange = [kind for kind in kinds if not _has_a_text(kind)]
        if strange:
            told = ", ".join(dict.fromkeys(map(str, kinds)))
            raise pa.ArrowTypeError(
                f"The column {name!r} has the types {told} in files that were written at "
                f"different times, and {strange[0]} can't be read as the text that "
                "a folder's name is. Read the files of before and of now apart (query_id=, sink=, "
                "from_batch=, to_batch=), and rename the column or the "
                "field of time_bucket."
            ) from error
        return True
    return False


def nullable(column: pa.Field) -> pa.Field:
    """Return a column that may be null, with its fields, elements and values at each depth; a map's
    keys never are.
    """
    import pyarrow as pa

    def loosened(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([nullable(each) for each in kind])
        if pa.types.is_list(kind):
            return pa.list_(nullable(kind.value_field))
        if pa.types.is_map(kind):
            key = kind.key_field.with_type(loosened(kind.key_type))
            return pa.map_(key, nullable(kind.item_field))
        return kind

    return column.with_type(loosened(column.type)).with_nullable(True)  # noqa: FBT003


def _has_a_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return 0 <= int(kind.scale) <= _MOST_DIGITS
    return any(
        of(kind)
        for of in (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32)
    )
