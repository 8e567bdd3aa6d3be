"""What Spark has no source for: Python data sources whose positions live in Spark's offsets and
nowhere else, so that a batch that is replayed has the same rows.

Two lines make one known to a session::

    from onceforall import sources
    sources.register(spark)
    spark.readStream.format("kinesis").option("streamName", "events").load()

They work with any sink. Spark finds data sources of packages that are called ``pyspark_…`` by
itself; it imports every such package for each session, and this library isn't called so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.common import arguments
from onceforall.sources.kinesis.source import KinesisSource
from onceforall.sources.pravega.source import PravegaSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KinesisSource", "PravegaSource", "register"]


def register(spark: SparkSession) -> None:
    """Make the sources of this package known to a session, by their names: ``kinesis`` and
    ``pravega``.

    Args:
        spark: the session.

    Raises:
        OptionError: that is no session.
    """
    if not hasattr(spark, "dataSource"):
        raise arguments.wrong("spark", spark, "a SparkSession")
    for source in (KinesisSource, PravegaSource):
        spark.dataSource.register(source)
