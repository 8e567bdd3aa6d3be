"""The two outputs of a window operator, told apart: results and late rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.common.arguments import check_frame
from onceforall.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LATE = "late"
KIND = "kind"


def results(frame: DataFrame) -> DataFrame:
    """Return the windows' results alone, without the column ``late``: fit for ``.to(sink,
    transform=results)``.

    Args:
        frame: the output of a window operator, streaming or one batch of it.

    Raises:
        SchemaError: it is not such a frame.
    """
    from pyspark.sql import functions as F  # noqa: N812

    _check(frame, "results")
    return frame.where(F.col(KIND) != LATE).drop(LATE)


def late_rows(frame: DataFrame) -> DataFrame:
    """Return the late rows alone, with the columns that they came with: fit for ``.to(sink,
    transform=late_rows)``.

    Args:
        frame: the output of a window operator of event time, streaming or one batch of it.

    Raises:
        SchemaError: it is not such a frame; windows of processing time have no late rows.
    """
    from pyspark.sql import functions as F  # noqa: N812

    _check(frame, "late_rows")
    if LATE not in frame.columns:
        raise SchemaError(
            "Windows of processing time have no late rows: nothing can be behind the clock of its "
            "own batch."
        )
    return frame.where(F.col(KIND) == LATE).select(f"{LATE}.*")


def _check(frame: DataFrame, what: str) -> None:
    check_frame(frame, what, or_connect=True)
    if KIND not in frame.columns:
        raise SchemaError(
            f"This is not the output of a window operator: it has no column {KIND!r}."
        )
