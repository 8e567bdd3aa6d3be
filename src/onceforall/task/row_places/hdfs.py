"""Kept rows in a folder of HDFS, by hdfs-native: a Python worker has no JVM."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import urlsplit

from onceforall.common.hdfs import client_of, explained, folder_mode, hdfs_native
from onceforall.task.row_places import spooled

__all__ = ["HdfsRows"]

_READ_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class HdfsRows:
    """A folder, and what of Hadoop's settings its client needs, without secrets.

    Raises:
        MissingExtraError: hdfs-native isn't installed.
    """

    url: str
    settings: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        hdfs_native()

    def __str__(self) -> str:
        return self.url

    @property
    def secrets(self) -> Mapping[str, str]:
        """There are none."""
        return {}

    @property
    def lists_at_a_price(self) -> bool:
        """It costs nothing."""
        return False

    def with_secrets(self, values: Mapping[str, str]) -> HdfsRows:  # noqa: ARG002  as the others
        """Return it as it is."""
        return self

    def make(self, folder: str) -> None:
        """Make a batch's folder; a task makes none."""
        with explained("make", f"{self}/{folder}"):
            self._client.mkdirs(self._path(folder), folder_mode(dict(self.settings)), True)  # noqa: FBT003  the library's order

    def create(self, name: str) -> _File:
        """Create a file in a folder that is there."""
        path = f"{self}/{name}"
        with explained("create", path):
            options = hdfs_native().WriteOptions(overwrite=False, create_parent=False)
            return _File(self._client.create(self._path(name), options), path)

    @contextmanager
    def fetched(self, name: str) -> Iterator[IO[bytes]]:
        """Fetch a file."""
        with spooled() as file:
            with explained("read", f"{self}/{name}"):
                found = self._client.read(self._path(name))
                while part := found.read(_READ_BYTES):
                    file.write(part)
            file.seek(0)
            yield file

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file."""
        with suppress(FileNotFoundError), explained("look for", f"{self}/{name}"):
            self._client.get_file_info(self._path(name))
            return True
        return False

    def folders(self) -> list[str]:
        """Return the names in the folder."""
        with suppress(FileNotFoundError), explained("list", self):
            found = self._client.list_status(self._path(""))
            return [each.path.rpartition("/")[2] for each in found]
        return []

    def remove(self, folder: str) -> None:
        """Delete a batch's folder."""
        with suppress(FileNotFoundError), explained("delete", f"{self}/{folder}"):
            self._client.delete(self._path(folder), True)  # noqa: FBT003  the library's order

    @property
    def _client(self) -> Any:
        parts = urlsplit(self.url)
        return client_of(f"{parts.scheme}://{parts.netloc}", dict(self.settings))

    def _path(self, name: str) -> str:
        return f"{urlsplit(self.url).path}/{name}".rstrip("/")


class _File:
    def __init__(self, file: Any, path: str) -> None:
        self._raw = file
        self._path = path
        self._file = io.BufferedWriter(file, _BUFFER_BYTES)

    def write(self, data: Any) -> int:
        with explained("write", self._path):
            return self._file.write(data)

    def sync(self) -> None:
        with explained("write", self._path):
            self._file.flush()
            self._raw.hsync()
            self._file.close()

    def sync_name(self) -> None:
        """The NameNode has it in its journal."""

    def close(self) -> None:
        # A file that nobody closes stays open at the NameNode for an hour.
        with suppress(Exception):
            self._file.close()
