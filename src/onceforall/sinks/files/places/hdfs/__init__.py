"""A folder of HDFS, by hdfs-native: a Python worker has no JVM.

A task writes temp files below ``<path>/_onceforall/staging/<attempt>/``, under their last names,
and syncs them (``hsync``). The driver renames each to its target, which fails where the name is
taken (``ClientProtocol.rename2`` without ``OVERWRITE``). HDFS has no hard links, so a temp file has
one name at each moment: either it waits, or it is published. Names have the attempt's in them, so
that what has a target's name and size is ours.

A rename whose answer was lost finds no temp file when it is sent again; then the target tells. A
task that is late can't end a file whose folder was deleted: its lease went with it.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceforall.common.arguments import location_shown
from onceforall.common.locations import split_location
from onceforall.errors import OptionError
from onceforall.sinks.files.paths import LONGEST_PATH
from onceforall.sinks.files.places.hdfs.paths import HdfsPath

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from onceforall.sink import TaskAttempt
    from onceforall.sinks.files.places.hdfs.place import HdfsPlace
    from onceforall.sinks.files.places.hdfs.staging import HdfsStaging

SCHEMES = ("hdfs", "viewfs")


def is_hdfs(location: object) -> bool:
    """Tell whether a location is one of HDFS."""
    return isinstance(location, str) and location.partition(":")[0].lower() in SCHEMES


def hdfs_root(location: str) -> HdfsPath:
    """Return the folder that a URL names.

    Raises:
        OptionError: it names no folder, or no NameNode.
    """
    parts = split_location(location, "path")
    path = posixpath.normpath(parts.path or "/")
    if (
        not parts.authority
        or "@" in parts.authority
        or path == "/"
        or any(name in {".", ".."} for name in parts.path.split("/"))
    ):
        raise OptionError(
            f"path={location_shown(location)!r} must name a NameNode or nameservice and a folder "
            "on it, such as hdfs://cluster/lake/ads, and nothing else."
        )
    return HdfsPath(f"{parts.scheme}://{parts.authority}", path.strip("/"))


@dataclass(frozen=True)
class HdfsTarget:
    """A folder of HDFS.

    Attributes:
        root: the folder.
        settings: Hadoop's, as far as its client needs them; none is a secret.
    """

    root: HdfsPath
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def root_bytes(self) -> int:
        """The length of the folder's path."""
        return len(self.root.key.encode()) + 1

    @property
    def longest_path(self) -> int:
        """HDFS takes 8,000 characters."""
        return LONGEST_PATH

    def unfit(self, folder: str) -> str | None:  # noqa: ARG002  as the interface has it
        """Every name is possible that a partition's folder can have."""
        return None

    def spelled(self, folder: str) -> str:
        """Any name is possible."""
        return folder

    @property
    def secrets(self) -> Mapping[str, str]:
        """There are none."""
        return {}

    @property
    def imports(self) -> Mapping[str, str]:
        """hdfs-native."""
        return {"hdfs_native": "onceforall[hdfs]"}

    def with_session(self, spark: SparkSession) -> HdfsTarget:
        """Return the target with Hadoop's settings of a session."""
        from onceforall.spark.stores import Stores

        found = Stores(spark).settings_of(str(self.root))
        return HdfsTarget(self.root, tuple(sorted(found.items())))

    def client(self) -> Any:
        """Return hdfs-native's client.

        Raises:
            MissingExtraError: it isn't installed.
        """
        from onceforall.common.hdfs import client_of

        return client_of(self.root.authority, dict(self.settings))

    def staging(self, attempt: TaskAttempt) -> HdfsStaging:
        """Return the folder of an attempt's temp files."""
        from onceforall.sinks.files.places.hdfs.staging import HdfsStaging
        from onceforall.sinks.files.places.hdfs.tree import HdfsTree

        return HdfsStaging(HdfsTree(self), attempt.name)

    def place(self) -> HdfsPlace:
        """Return the driver's side."""
        from onceforall.sinks.files.places.hdfs.place import HdfsPlace
        from onceforall.sinks.files.places.hdfs.tree import HdfsTree

        return HdfsPlace(HdfsTree(self))
