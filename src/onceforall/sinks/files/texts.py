"""Texts that are none: Spark's STRING may hold any bytes, and files of text formats, and folders' names, are UTF-8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.errors import RefusedRecordError
from onceforall.sinks.files.nested import within

if TYPE_CHECKING:
    import pyarrow as pa


def check_texts(name: str, column: pa.Array | pa.ChunkedArray) -> None:
    """See that all texts in a column and below it are UTF-8: a CSV file with another one can't be read by pyarrow at all.

    Raises:
        RefusedRecordError: naming the column and the value.
    """
    import pyarrow as pa

    for path, values in within(name, column, _is_text):
        if not _is_valid(values):
            for value in values.cast(pa.large_binary()).to_pylist():
                _check(path, value)


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
            f"Column {path!r} holds {shown}, which is no UTF-8 ({error.reason}). Filter or repair such rows (make_valid_utf8), store the column as "
            "BINARY, or use format='parquet'."
        ) from error


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


__all__ = ["check_texts"]
