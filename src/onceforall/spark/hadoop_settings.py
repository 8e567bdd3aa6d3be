"""Hadoop's settings as a session has them: its JVM's, or what Spark Connect tells of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceforall.common.arguments import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ConnectSettings", "hadoop_settings", "starting_with"]


def hadoop_settings(spark: SparkSession) -> Any:
    """Return an object with ``get(name, default)`` and ``getPassword(name)``, as Hadoop's own
    ``Configuration`` has them.

    Args:
        spark: a classic session, or one of Spark Connect.
    """
    if is_connect(spark):
        return ConnectSettings(spark)
    context: Any = spark.sparkContext
    return context._jsc.hadoopConfiguration()  # noqa: SLF001


def starting_with(settings: Any, prefix: str) -> dict[str, str]:
    """Return the settings whose names begin so, by their whole names.

    Args:
        settings: what ``hadoop_settings`` gave.
        prefix: the beginning.
    """
    if isinstance(settings, ConnectSettings):
        return settings.starting_with(prefix)
    return {
        f"{prefix}{each.getKey()}": str(each.getValue())
        for each in settings.getPropsWithPrefix(prefix).entrySet()
    }


class ConnectSettings:
    """What a session of Spark Connect tells of Hadoop's settings: those that are Spark's own.

    Not those of ``core-site.xml`` and other files of Hadoop's on the server. From Spark 4.3 on also
    none whose name fits ``spark.redaction.regex``, such as the keys of S3A: the server answers as
    if they weren't set.

    Args:
        spark: a session of Spark Connect.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._conf = spark.conf

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return a setting of the session, else one of ``spark.hadoop.*``, else the default."""
        for key in (name, f"spark.hadoop.{name}"):
            found = self._conf.get(key, None)
            if found is not None:
                return str(found)
        return default

    def starting_with(self, prefix: str) -> dict[str, str]:
        """Return those that begin so; see the function of this name."""
        # A setting of the session, which begins with "dfs." or "fs.", goes before "spark.hadoop.".
        every = sorted(self._conf.getAll.items(), reverse=True)
        named = {name.removeprefix("spark.hadoop."): str(value) for name, value in every}
        return {name: value for name, value in named.items() if name.startswith(prefix)}

    def getPassword(self, name: str) -> list[str] | None:  # noqa: N802  Hadoop's name
        """Return it as Hadoop does, by character; no credential provider is asked."""
        found = self.get(name)
        return None if found is None else list(found)
