"""A column of texts as Python's: Spark's STRING may hold any bytes, which Python has no text for.

Imports nothing but the errors: Python workers import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.errors import RefusedRecordError

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST_SHOWN = 100


def texts_of(name: str, column: pa.Array) -> list[str | None]:
    """Return the texts of a column.

    Args:
        name: what messages call it.
        column: of strings, of whatever width.

    Raises:
        RefusedRecordError: one is no valid UTF-8; naming the column and the value.
    """
    import pyarrow as pa

    try:
        found: list[str | None] = column.to_pylist()
    except UnicodeDecodeError:
        for value in column.cast(pa.large_binary()).to_pylist():
            _check(name, value or b"")
        raise
    return found


def _check(name: str, value: bytes) -> None:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        shown = f"{value[:_LONGEST_SHOWN]!r}{'…' if len(value) > _LONGEST_SHOWN else ''}"
        raise RefusedRecordError(
            f"Column {name!r} holds {shown}, which is no UTF-8 ({error.reason}). Filter or repair "
            "such rows (make_valid_utf8)."
        ) from None
