"""Paths of HDFS, with the part of ``pathlib.Path``'s interface that the file sink uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class HdfsPath:
    """A file or a folder.

    Attributes:
        authority: the URL of the file system, such as ``hdfs://cluster``.
        key: the path without a slash at its beginning or end; empty for the root.
    """

    authority: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.authority}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> HdfsPath:
        return HdfsPath(self.authority, f"{self.key}/{name}".strip("/"))

    @property
    def path(self) -> str:
        """The path as HDFS has it."""
        return f"/{self.key}"

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> HdfsPath:
        """What it is in; of the root, itself."""
        return HdfsPath(self.authority, self.key.rpartition("/")[0])

    @property
    def parents(self) -> list[HdfsPath]:
        """All that it is in, the nearest first."""
        found, at = [], self
        while at.key:
            at = at.parent
            found.append(at)
        return found
