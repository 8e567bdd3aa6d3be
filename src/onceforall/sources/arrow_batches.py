"""Rows as Arrow batches that the rows alone cut, and not the pages of a server: so a replay is the
same byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 1_000
BYTES = 64 * 1024 * 1024
"""More is no faster, and 2 GiB are the most that a column of an Arrow batch holds."""


def in_batches(rows: Iterable[tuple[object, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as Arrow batches of 1,000 rows, or of fewer that have 64 MiB in texts and bytes.

    Args:
        rows: tuples of the schema's columns.
        schema: the batches'.
    """
    held: list[tuple[object, ...]] = []
    size = 0
    for row in rows:
        held.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(held) == ROWS or size >= BYTES:
            yield _batch(held, schema)
            held, size = [], 0
    if held:
        yield _batch(held, schema)


def _batch(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)],
        schema=schema,
    )
