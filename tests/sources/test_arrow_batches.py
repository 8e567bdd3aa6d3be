"""Where the rows of a source are cut into Arrow batches."""

import pyarrow as pa

from onceforall.sources.arrow_batches import BYTES, ROWS, in_batches

SCHEMA = pa.schema([("n", pa.int64()), ("content", pa.binary()), ("key", pa.string())])


def rows_per_batch(rows):
    return [batch.num_rows for batch in in_batches(rows, SCHEMA)]


def test_small_rows_are_cut_by_their_number():
    rows = [(n, b"x", None) for n in range(2 * ROWS + 1)]
    assert rows_per_batch(rows) == [ROWS, ROWS, 1]
    assert rows_per_batch([]) == []


def test_large_rows_are_cut_by_their_bytes():
    large = b"x" * (BYTES // 4)
    assert rows_per_batch([(n, large, "k") for n in range(9)]) == [4, 4, 1]
    assert rows_per_batch([(n, b"", "k" * (BYTES // 2)) for n in range(3)]) == [2, 1]
    assert rows_per_batch([(0, large * 5, None), (1, b"", None)]) == [1, 1]
