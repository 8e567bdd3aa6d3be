"""What is asked of a session, whether it is a classic one or one of Spark Connect."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from onceforall.common.arguments import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["default_parallelism", "is_speculative"]

_SPLITS = re.compile(r"\bsplits=(?:Some\()?(\d+)")


def is_speculative(spark: SparkSession) -> bool:
    """Tell whether Spark runs speculative attempts of tasks."""
    key, no = "spark.speculation", "false"
    said = (
        spark.conf.get(key, no) if is_connect(spark) else spark.sparkContext.getConf().get(key, no)
    )
    return str(said).lower() == "true"


def default_parallelism(spark: SparkSession) -> int:
    """Return into how many tasks Spark divides what doesn't say it."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    # Connect tells it in the plan of a range alone; no job is run.
    plan: Any = spark.range(0, 2**40)
    found = _SPLITS.search(plan._explain_string())  # noqa: SLF001  explain() only prints it
    return 1 if found is None else int(found[1])
