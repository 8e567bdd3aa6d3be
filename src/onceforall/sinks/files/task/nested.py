"""Finds the values of some type in a column, at whatever depth: what a format can't hold may be
there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def within(
    name: str, column: pa.Array | pa.ChunkedArray, wanted: Callable[[pa.DataType], bool]
) -> Iterator[tuple[str, pa.Array]]:
    """Return all arrays of the types that are wanted, in a column and below it; what a null hides
    is no value.

    Args:
        name: of the column.
        column: its values.
        wanted: tells by the type.

    Returns:
        Each array with its place, such as ``c.element.x``.
    """
    import pyarrow as pa

    if _has(column.type, wanted):
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            yield from _within(name, chunk, wanted)


def keys_within(name: str, column: pa.Array | pa.ChunkedArray) -> Iterator[tuple[str, pa.Array]]:
    """Return the keys of all maps in a column and below it, each with its place."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for path, maps in within(name, column, pa.types.is_map):
        pairs = pc.list_flatten(
            maps.cast(pa.list_(pa.struct([maps.type.key_field, maps.type.item_field])))
        )
        yield f"{path}.key", pc.struct_field(pairs, [0])
        yield from keys_within(f"{path}.value", pc.struct_field(pairs, [1]))


def _has(kind: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    return wanted(kind) or any(_has(kind.field(i).type, wanted) for i in range(kind.num_fields))


def _within(
    path: str, values: pa.Array, wanted: Callable[[pa.DataType], bool]
) -> Iterator[tuple[str, pa.Array]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if wanted(kind):
        yield path, values
    elif pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            yield from _within(f"{path}.{kind.field(i).name}", pc.struct_field(values, [i]), wanted)
    elif pa.types.is_map(kind):
        pairs = pc.list_flatten(values.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
        yield from _within(f"{path}.key", pc.struct_field(pairs, [0]), wanted)
        yield from _within(f"{path}.value", pc.struct_field(pairs, [1]), wanted)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _within(f"{path}.element", pc.list_flatten(values), wanted)


__all__ = ["keys_within", "within"]
