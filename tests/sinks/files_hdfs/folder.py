"""A folder of a test's HDFS: sinks on it, what is read there, and what lies there."""

from __future__ import annotations

from dataclasses import dataclass

from onceforall import FileSink, read_files
from onceforall.sink import StartInfo
from onceforall.sinks.files.places.hdfs import HdfsTarget, hdfs_root
from onceforall.sinks.files.places.hdfs.tree import HdfsTree
from sinks.files.building import QUERY

STAGING = "_onceforall/staging"


@dataclass(frozen=True)
class HdfsFolder:
    """It may be pickled to other processes: it holds no connection."""

    url: str
    storage: None = None

    def sink(self, **options):
        return FileSink(self.url, **options)

    def checked(self, **options):
        sink = self.sink(**options)
        sink.check(StartInfo(QUERY, "out"))
        return sink

    def files(self):
        return read_files(self.url)

    def numbers(self, column="n"):
        return sorted(self.files().to_arrow().to_pydict().get(column, []))

    @property
    def tree(self):
        return HdfsTree(HdfsTarget(hdfs_root(self.url)))

    def all(self):
        return sorted(self.tree.keys_below(self.tree.root))

    def data(self):
        return [key for key in self.all() if "part-" in key and not key.startswith("_")]

    def staged(self):
        """The names of attempts with temp files."""
        return self.tree.names(self.tree.root / STAGING)

    def lose(self, committable):
        """Delete the temp files of a committable; return whether there were any."""
        return self.tree.delete_folder(self.tree.root / STAGING / committable["name"])

    def left(self):
        """What lies there and is no result."""
        known = {path.partition(f"{self.url}/")[2] for path in self.files().paths}
        return [
            *self.staged(),
            *(key for key in self.data() if key not in known),
            *(key for key in self.all() if ".tmp" in key or ".probe-" in key),
        ]
