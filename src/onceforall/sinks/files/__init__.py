"""The file sink: Parquet, ORC, JSON lines or CSV, with a manifest per batch, and ``read_files``,
which reads by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.sinks.files.sink import FileSink

if TYPE_CHECKING:
    from onceforall.sinks.files.driver.new_partitions import NewPartition
    from onceforall.sinks.files.reading.committed_files import CommittedFiles, read_files

__all__ = ["CommittedFiles", "FileSink", "NewPartition", "read_files"]


def __getattr__(name: str) -> object:
    # A Python worker imports this package for the sink, and has no use for the others.
    if name in {"CommittedFiles", "read_files"}:
        from onceforall.sinks.files.reading import committed_files

        value: object = getattr(committed_files, name)
    elif name == "NewPartition":
        from onceforall.sinks.files.driver import new_partitions

        value = new_partitions.NewPartition
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
