"""Texts that are none, or too long: Spark's STRING may hold any bytes, and files of text
formats, and folders' names, are UTF-8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from onceforall.common.arguments import shown
from onceforall.errors import RefusedRecordError
from onceforall.sinks.files.task.nested import keys_within, within

if TYPE_CHECKING:
    import pyarrow as pa


def check_texts(name: str, column: pa.Array | pa.ChunkedArray) -> None:
    """See that all texts in a column and below it are UTF-8: a CSV file with another one can't be
    read by pyarrow at all.

    Raises:
        RefusedRecordError: naming the column and the value.
    """
    import pyarrow as pa

    for path, values in within(name, column, _is_text):
        if not _is_valid(values):
            for value in values.cast(pa.large_binary()).to_pylist():
                _check(path, value)


JSON_TEXT, JSON_KEY = 20_000_000, 50_000
"""The longest text and name that Jackson reads (``StreamReadConstraints``), in UTF-16's units.

Of a row with a longer one Spark makes nulls.
"""


def check_lengths(name: str, column: pa.Array | pa.ChunkedArray) -> None:
    """See that Spark's JSON reader takes each text in a column and below it. Base64 it reads as it
    comes, of any length.

    Raises:
        RefusedRecordError: naming the column and the length.
    """
    if column.nbytes > JSON_KEY:
        for path, values in keys_within(name, column):
            _check_length(path, values, JSON_KEY, "names")
    if column.nbytes > JSON_TEXT:
        for path, values in within(name, column, _is_text):
            _check_length(path, values, JSON_TEXT, "texts")


def check_keys(name: str, column: pa.Array | pa.ChunkedArray) -> None:
    """See that no map in a column and below it has a key twice: Spark reads such maps from files of
    others, and of a JSON object each reader makes what it likes.

    Raises:
        RefusedRecordError: naming the column and the key.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for path, maps in within(name, column, pa.types.is_map):
        lists = maps.cast(pa.list_(pa.struct([maps.type.key_field, maps.type.item_field])))
        pairs = pc.list_flatten(lists)
        keys = pc.struct_field(pairs, [0])
        encoded = keys.dictionary_encode()
        parents = pc.list_parent_indices(lists).to_numpy().astype("int64")
        places = parents * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
        found, counts = np.unique(places, return_counts=True)
        if len(found) < len(places):
            doubled = encoded.dictionary[int(found[counts > 1][0] % len(encoded.dictionary))]
            raise RefusedRecordError(
                f"Column {path!r} holds a MAP that has the key {shown(doubled.as_py())} twice, and "
                "readers of JSON don't agree on such objects. Filter or repair such rows "
                "(map_from_entries refuses them, or keeps the last), or use format='parquet'."
            )
        check_keys(f"{path}.value", pc.struct_field(pairs, [1]))


def _check_length(path: str, values: pa.Array, most: int, what: str) -> None:
    import pyarrow.compute as pc

    # No text has more of UTF-16's units than bytes of UTF-8.
    for value in values.filter(pc.greater(pc.binary_length(values), most)).to_pylist():
        length = len(value.encode("utf-16-le")) // 2
        if length > most:
            raise RefusedRecordError(
                f"Column {path!r} holds {length} characters, and Spark's JSON reader takes {what} "
                f"of at most {most}: it would read the row as nulls. "
                "Filter such rows out, or use format='parquet'."
            )


def _is_valid(values: pa.Array) -> bool:
    import pyarrow as pa

    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _check(path: str, value: bytes | None) -> None:
    try:
        (value or b"").decode()
    except UnicodeDecodeError as error:
        shown = repr(value) if value is None or len(value) <= 100 else f"{value[:100]!r}…"
        raise RefusedRecordError(
            f"Column {path!r} holds {shown}, which is no UTF-8 ({error.reason}). Filter or repair "
            "such rows (make_valid_utf8), store the column as "
            "BINARY, or use format='parquet'."
        ) from error


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


__all__ = ["check_keys", "check_lengths", "check_texts"]
