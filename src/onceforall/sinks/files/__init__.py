"""The file sink: Parquet, ORC, JSON lines or CSV, with a manifest per batch, and ``read_files``, which reads by them."""

from onceforall.sinks.files.reading.committed_files import CommittedFiles, read_files
from onceforall.sinks.files.sink import FileSink, NewPartition

__all__ = ["CommittedFiles", "FileSink", "NewPartition", "read_files"]
