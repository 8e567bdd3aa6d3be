"""What Spark's analyzed plan of a frame shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AGGREGATE = re.compile(r"^[\s:|+-]*Aggregate \[", re.MULTILINE)


def aggregates(frame: DataFrame) -> bool:
    """Tell whether a frame of a batch groups or aggregates rows.

    What the streaming query did before, its batch doesn't show.
    """
    jvm_frame: Any = frame._jdf  # noqa: SLF001  Spark offers this in no other way
    return _AGGREGATE.search(jvm_frame.queryExecution().analyzed().toString()) is not None


__all__ = ["aggregates"]
