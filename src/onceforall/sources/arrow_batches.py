"""Rows as Arrow batches of a fixed number of rows, whatever pages a server cuts: so a replay is the
same byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 1_000


def in_batches(rows: Iterable[tuple[object, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as Arrow batches, each of 1,000 rows but the last.

    Args:
        rows: tuples of the schema's columns.
        schema: the batches'.
    """
    held: list[tuple[object, ...]] = []
    for row in rows:
        held.append(row)
        if len(held) == ROWS:
            yield _batch(held, schema)
            held = []
    if held:
        yield _batch(held, schema)


def _batch(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)],
        schema=schema,
    )
