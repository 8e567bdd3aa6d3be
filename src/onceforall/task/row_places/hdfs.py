"""Kept rows in a folder of HDFS, by hdfs-native: a Python worker has no JVM.

Users and Kerberos are as in Hadoop: ``HADOOP_USER_NAME``, the ticket cache, or the delegation
tokens that YARN gives to a container (``HADOOP_TOKEN_FILE_LOCATION``).
"""

from __future__ import annotations

import errno
import functools
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import urlsplit

from onceforall.errors import MissingExtraError
from onceforall.task.row_places import spooled

__all__ = ["HdfsRows"]

_READ_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 20
_ATTEMPTS = "dfs.client.failover.max.attempts"
# Its own default, 15, is three minutes of waiting for a NameNode that isn't there.
_FEW_ATTEMPTS = "5"


@dataclass(frozen=True)
class HdfsRows:
    """A folder, and what of Hadoop's settings its client needs, without secrets.

    Raises:
        MissingExtraError: hdfs-native isn't installed.
    """

    url: str
    settings: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        _hdfs_native()

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
        with self._explained("make"):
            self._client.mkdirs(self._path(folder), 0o755, create_parent=True)

    def create(self, name: str) -> _File:
        """Create a file in a folder that is there."""
        with self._explained("create"):
            options = _hdfs_native().WriteOptions(overwrite=False, create_parent=False)
            return _File(self._client.create(self._path(name), options))

    @contextmanager
    def fetched(self, name: str) -> Iterator[IO[bytes]]:
        """Fetch a file."""
        with spooled() as file:
            with self._explained("read"):
                found = self._client.read(self._path(name))
                while part := found.read(_READ_BYTES):
                    file.write(part)
            file.seek(0)
            yield file

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file."""
        with suppress(FileNotFoundError), self._explained("look for"):
            self._client.get_file_info(self._path(name))
            return True
        return False

    def folders(self) -> list[str]:
        """Return the names in the folder."""
        with suppress(FileNotFoundError), self._explained("list"):
            return [
                each.path.rpartition("/")[2] for each in self._client.list_status(self._path(""))
            ]
        return []

    def remove(self, folder: str) -> None:
        """Delete a batch's folder."""
        with suppress(FileNotFoundError), self._explained("delete"):
            self._client.delete(self._path(folder), recursive=True)

    @property
    def _client(self) -> Any:
        parts = urlsplit(self.url)
        return _client_of(f"{parts.scheme}://{parts.netloc}", self.settings, os.getpid())

    def _path(self, name: str) -> str:
        return f"{urlsplit(self.url).path}/{name}".rstrip("/")

    @staticmethod
    @contextmanager
    def _explained(action: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, FileExistsError) as error:
            raise type(error)(error.errno or errno.EIO, _first_line(error)) from None
        except Exception as error:  # noqa: BLE001  its errors are of several kinds, and have a server's stack in them
            raise OSError(errno.EIO, f"cannot {action} it: {_first_line(error)}") from None


class _File:
    def __init__(self, file: Any) -> None:
        self._raw = file
        self._file = io.BufferedWriter(file, _BUFFER_BYTES)

    def write(self, data: Any) -> int:
        with HdfsRows._explained("write"):  # noqa: SLF001  the same module
            return self._file.write(data)

    def sync(self) -> None:
        with HdfsRows._explained("write"):  # noqa: SLF001  the same module
            self._file.flush()
            self._raw.hsync()
            self._file.close()

    def sync_name(self) -> None:
        """The NameNode has it in its journal."""

    def close(self) -> None:
        # A file that nobody closes stays open at the NameNode for an hour.
        with suppress(Exception):
            self._file.close()


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _hdfs_native() -> Any:
    try:
        import hdfs_native
    except ImportError as error:
        raise MissingExtraError("hdfs-native", "hdfs") from error
    return hdfs_native


@functools.lru_cache(maxsize=8)
def _client_of(url: str, settings: tuple[tuple[str, str], ...], process: int) -> Any:  # noqa: ARG001  a fork has no threads of its parent's
    return _hdfs_native().Client(url, {_ATTEMPTS: _FEW_ATTEMPTS, **dict(settings)})
