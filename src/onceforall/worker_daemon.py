"""PySpark's daemon, which forks the Python workers, with what every worker needs loaded beforehand.

``spark.python.daemon.module=onceforall.worker_daemon``

A Python worker loads PySpark and this library before it looks at its first row. Two things make
that slow on a fresh start, when the JVM wants all cores for itself:

- Spark puts its ``pyspark.zip`` first on the workers' path. Python keeps no compiled form of what
  is in an archive, so that each worker compiles PySpark's sources anew. This daemon takes an
  *installed* PySpark of the same version, if there is one, which is compiled already.
- Each worker imports everything for itself. This daemon imports it once, before it forks.

Only what starts no thread is imported here, for a thread doesn't survive a fork: not Arrow, numpy
or pandas, which PySpark's daemon leaves to the workers for that reason.

Promised: the workers behave as PySpark's own do, and if anything here is missing on an executor
(PySpark isn't installed beside the archive, or an optional package), it is left to the workers, as
before. Not promised: a version of this library that is shipped with ``--py-files``; the executors
must have it installed, as must the daemon itself be found.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

_ARCHIVE = re.compile(r"(pyspark|py4j-[\d.]+-src)\.zip")
_NEEDED = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.pandas.types",
    "onceforall.task.write_task",
    "onceforall.sinks.kafka",
    "onceforall.sinks.postgres",
    "onceforall.sinks.files",
    "asyncio",
    "confluent_kafka",
)


def installed_first(path: Sequence[str]) -> list[str]:
    """Return a module path with Spark's archives behind everything else, if the same version of
    PySpark is installed; else the path as it is.
    """
    archives = [entry for entry in path if _ARCHIVE.fullmatch(Path(entry).name)]
    others = [entry for entry in path if entry not in archives]
    packed = next((entry for entry in archives if Path(entry).name == "pyspark.zip"), None)
    installed = next(
        (entry for entry in others if (Path(entry) / "pyspark" / "version.py").is_file()), None
    )
    if packed is None or installed is None:
        return list(path)
    try:
        with zipfile.ZipFile(packed) as archive:
            is_same = (
                archive.read("pyspark/version.py")
                == (Path(installed) / "pyspark" / "version.py").read_bytes()
            )
    except (OSError, KeyError, zipfile.BadZipFile):
        return list(path)
    return [*others, *archives] if is_same else list(path)


def load() -> None:
    """Import what the workers need, as far as it is there."""
    for name in _NEEDED:
        with suppress(ImportError):
            import_module(name)


def main() -> None:
    """Load, and become PySpark's daemon."""
    sys.path[:] = installed_first(sys.path)
    load()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
