"""A file or folder of a checkpoint that isn't on a local disk, with the part of ``pathlib.Path``'s
interface that is used of one: so the readers of Spark's files need not know where they lie.

It is no ``os.PathLike``: nothing can take it for a local path by mistake.
"""

from __future__ import annotations

import fnmatch
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from onceforall.commit_log import LocalStore, Store
from onceforall.commit_log.stores.client import StoreClient
from onceforall.commit_log.stores.remote import RemoteStore

__all__ = ["AnyPath", "RemotePath", "create_file", "files_below", "store_at"]


@dataclass(frozen=True)
class RemotePath:
    """A place in a remote store; it need not exist.

    Attributes:
        client: its store.
        key: relative to the client's root; empty for the root itself.
    """

    client: StoreClient
    key: str = ""

    def __str__(self) -> str:
        return f"{self.client.url}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.client, f"{self.key}/{name}".lstrip("/"))

    @property
    def name(self) -> str:
        """The last part."""
        return (self.key or self.client.url).rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        """The folder that it is in; of the root, itself."""
        return RemotePath(self.client, self.key.rpartition("/")[0])

    @property
    def root(self) -> RemotePath:
        """The client's root."""
        return RemotePath(self.client)

    def with_name(self, name: str) -> RemotePath:
        """Return the place of another name in the same folder."""
        return self.parent / name

    def exists(self) -> bool:
        """Tell whether there is a file, or a folder with something in it."""
        return self.client.exists(self.key) or self.is_dir()

    def is_dir(self) -> bool:
        """Tell whether it is a folder with something in it."""
        return bool(self.client.list(self.key))

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield what is directly in the folder; nothing where there is none."""
        yield from (self / name.rstrip("/") for name in self.client.list(self.key))

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield what is directly in the folder and has a name like this."""
        yield from (each for each in self.iterdir() if fnmatch.fnmatchcase(each.name, pattern))

    def read_bytes(self) -> bytes:
        """Return the content.

        Raises:
            FileNotFoundError: there is none.
        """
        content = self.client.read(self.key)
        if content is None:
            raise FileNotFoundError(2, "No such file", str(self))
        return content

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the content as text."""
        return self.read_bytes().decode(encoding, errors)

    def rename(self, target: RemotePath) -> None:
        """Give a file, or each file of a folder, another name; not atomic where the store has
        no such operation.

        Raises:
            FileNotFoundError: there is nothing.
        """
        files = [self] if self.client.exists(self.key) else list(_files_below(self))
        if not files:
            raise FileNotFoundError(2, "No such file", str(self))
        for file in files:
            self.client.move(file.key, target.key + file.key.removeprefix(self.key))


AnyPath: TypeAlias = Path | RemotePath


def store_at(folder: AnyPath) -> Store:
    """Return the store of the commit log in a folder of a checkpoint."""
    if isinstance(folder, RemotePath):
        return RemoteStore(folder.client, folder.key)
    return LocalStore(folder)


def files_below(folder: AnyPath) -> list[AnyPath]:
    """Return the files in a folder and below it, sorted, without those whose name begins with a
    dot; none where there is no such folder.

    Raises:
        OSError: a folder can't be read.
    """
    if isinstance(folder, RemotePath):
        return list(_files_below(folder))
    # Not Path.rglob, which passes over what it may not read.
    found: list[AnyPath] = [
        file
        for inner, _, names in os.walk(folder, onerror=_raise)
        for name in names
        if not name.startswith(".") and (file := Path(inner, name)).is_file()
    ]
    return sorted(found, key=str)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _files_below(folder: RemotePath) -> Iterator[RemotePath]:
    for name in folder.client.list(folder.key):
        if name.endswith("/"):
            yield from _files_below(folder / name.rstrip("/"))
        elif not name.startswith("."):
            yield folder / name


def create_file(
    path: AnyPath, content: bytes, *, synced: Callable[[], object] = lambda: None
) -> bool:
    """Create a file whole; False where one stands there. Its content is durable; on a disk its
    name only when the caller has synced its folder, and those above it that this has made.

    ``synced``: is called on a disk between the content and the name.
    """
    if isinstance(path, RemotePath):
        return path.client.create(path.key, content) == "created"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(16)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        synced()
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True
