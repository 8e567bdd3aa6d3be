"""With what Spark writes a checkpoint's files, and how it names those of state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceforall.common.arguments import is_connect
from onceforall.spark.hadoop_settings import hadoop_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MANAGER", "STATE_FORMAT", "file_manager"]

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


def file_manager(spark: SparkSession | None) -> tuple[str, int]:
    """Return with which class Spark writes a checkpoint's files (empty where nobody has chosen),
    and in which format it names those of state.

    Spark looks the class up in Hadoop's configuration (``CheckpointFileManager.create``), which has
    the session's settings and those of ``spark.hadoop.*``.
    """
    if spark is None:
        return "", 1
    session: Any = spark
    hadoop = (
        hadoop_settings(spark)
        if is_connect(spark)
        else session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    )
    return str(hadoop.get(MANAGER) or ""), int(spark.conf.get(STATE_FORMAT, "1") or "1")
