"""What a run changes in the settings of its batches' session, because a release of Spark has a bug
there that would stop the query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.common import logs
from onceforall.errors import text_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["apply"]

logger = logs.logger("onceforall")

_UDFS_HANG_IN = "4.2.0"
_COLUMNAR_CACHE = "spark.sql.inMemoryColumnarStorage.enableVectorizedReader"


def apply(session: SparkSession) -> None:
    """Set what a run needs in the session of its batches; with a classic session that is the
    query's own.

    - Spark 4.2.0: a Python UDF over a cached frame of nothing but numbers hangs for ever. It gets
      its input by columns then, and the JVM still writes an earlier form of what comes first
      (SPARK-58241, mended behind 4.2.0). The driver caches a batch that several jobs read. Read by
      rows, it works.
    """
    if session.version != _UDFS_HANG_IN:
        return
    try:
        session.conf.set(_COLUMNAR_CACHE, "false")
    except Exception as error:  # noqa: BLE001  a query without such functions runs all the same
        logger.debug("%s can't be set: %s", _COLUMNAR_CACHE, text_of(error))
