"""Files and folders below a folder of HDFS. What the NameNode has acknowledged is durable in its
journal, and a file's content with ``hsync``.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from onceforall.common.hdfs import HdfsError, explained, folder_mode, hdfs_native
from onceforall.errors import ForeignEntryError
from onceforall.failpoints import points as failpoints
from onceforall.sinks.files.folders import PlaceError, is_temporary
from onceforall.sinks.files.places.hdfs.paths import HdfsPath

if TYPE_CHECKING:
    from onceforall.sinks.files.places.hdfs import HdfsTarget

_READ_BYTES = 1 << 20


class HdfsTree:
    """A sink's folder and all below it. Safe for several threads."""

    def __init__(self, target: HdfsTarget) -> None:
        """Nothing is looked at yet.

        Raises:
            MissingExtraError: hdfs-native isn't installed.
        """
        self.root = target.root
        self._target = target
        hdfs_native()

    @property
    def client(self) -> Any:
        """hdfs-native's."""
        return self._target.client()

    @contextlib.contextmanager
    def held(self, folder: HdfsPath) -> Iterator[None]:  # noqa: ARG002
        """Nothing is to be prepared."""
        yield

    def status(self, path: HdfsPath) -> Any:
        """Return what the NameNode knows of a path; None where there is nothing."""
        with contextlib.suppress(FileNotFoundError), asking("look for", path):
            return self.client.get_file_info(path.path)
        return None

    def names(self, folder: HdfsPath) -> list[str]:
        """Return what lies in a folder."""
        with asking("list", folder):
            found = list(self.client.list_status(folder.path))
        return [each.path.rpartition("/")[2] for each in found if each.path != folder.path]

    def keys_below(self, folder: HdfsPath) -> list[str]:
        """Return the paths of all files below a folder, relative to it."""
        with asking("list", folder):
            found = list(self.client.list_status(folder.path, True))  # noqa: FBT003  the library's order
        return [each.path.removeprefix(f"{folder.path}/") for each in found if not each.isdir]

    def is_folder(self, folder: HdfsPath) -> bool:
        """Tell whether there is such a folder."""
        found = self.status(folder)
        return found is not None and bool(found.isdir)

    def size(self, file: HdfsPath) -> int | None:
        """Return a file's size; None where there is none, or a folder."""
        found = self.status(file)
        return None if found is None or found.isdir else int(found.length)

    def read(self, file: HdfsPath) -> bytes:
        """Return a file's content."""
        self.check_file(file)
        with asking("read", file):
            opened = self.client.read(file.path)
            parts = []
            while part := opened.read(_READ_BYTES):
                parts.append(part)
        return b"".join(parts)

    def is_there(self, file: HdfsPath) -> bool:
        """Tell whether a name is taken."""
        return self.status(file) is not None

    def check_file(self, file: HdfsPath) -> None:
        """See that a name is a file's, or free.

        Raises:
            ForeignEntryError: a folder has the name.
        """
        if self.is_folder(file):
            raise ForeignEntryError(
                f"{file} is a folder where a file must be. Move it away, and put back the file "
                "that stood there."
            )

    def open_new(self, file: HdfsPath) -> Any:
        """Make a file and open it for writing, in a folder that is there.

        Raises:
            FileExistsError: the name is taken.
        """
        options = hdfs_native().WriteOptions(overwrite=False, create_parent=False)
        with asking("create", file):
            return self.client.create(file.path, options)

    def create(self, path: HdfsPath, content: bytes) -> bool:
        """Create a file with its whole content at once; False when the name is taken: it is left
        as it is. An answer that was lost is found out by what stands there.
        """
        temporary = path.parent / f".{path.name}.{secrets.token_hex(16)}.tmp"
        try:
            file = self.open_new(temporary)
            with asking("write", temporary):
                file.write(content)
                failpoints.hit("file.create.written")
                file.hsync()
                file.close()
            failpoints.hit("file.create.synced")
            try:
                self.rename(temporary, path)
            except FileExistsError:
                # It may be our own, of a request that was sent twice.
                created = self.size(temporary) is None and self.read(path) == content
            except OSError:
                if self.size(path) is None or self.read(path) != content:
                    raise
                created = True
            else:
                created = True
            failpoints.hit("file.create.linked")
        finally:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
        return created

    def rename(self, file: HdfsPath, name: HdfsPath) -> None:
        """Give a file another name.

        Raises:
            FileExistsError: the name is taken.
            FileNotFoundError: there is no such file, or no such folder.
        """
        with asking("rename", file):
            self.client.rename(file.path, name.path, False)  # noqa: FBT003  the library's order

    def replace(self, file: HdfsPath, name: HdfsPath) -> None:
        """Give a file another name instead of its own, and over what has that name."""
        with asking("rename", file):
            self.client.rename(file.path, name.path, True)  # noqa: FBT003  the library's order

    def link(self, file: HdfsPath, name: HdfsPath) -> None:
        """Give a file's content a second name.

        Raises:
            FileExistsError: the name is taken.
        """
        if not self.create(name, self.read(file)):
            raise FileExistsError(17, "it is there", str(name))

    def unlink(self, file: HdfsPath) -> None:
        """Delete a file."""
        with asking("delete", file):
            self.client.delete(file.path, False)  # noqa: FBT003  the library's order

    def delete_folder(self, folder: HdfsPath) -> bool:
        """Delete a folder with what is in it; False when there was none."""
        with contextlib.suppress(FileNotFoundError), asking("delete", folder):
            return bool(self.client.delete(folder.path, True))  # noqa: FBT003  the library's order
        return False

    def delete_temporary_files(self, folder: HdfsPath) -> None:
        """Delete what killed processes left in ``create``."""
        with contextlib.suppress(FileNotFoundError):
            for name in self.names(folder):
                if is_temporary(name):
                    self.unlink(folder / name)

    def make_folder(self, folder: HdfsPath) -> None:
        """Make a folder and those above it that are missing."""
        with asking("make", folder):
            mode = folder_mode(dict(self._target.settings))
            self.client.mkdirs(folder.path, mode, True)  # noqa: FBT003  the library's order

    def sync_all(self, folders: Iterable[HdfsPath]) -> None:
        """All is durable."""


@contextlib.contextmanager
def asking(action: str, path: object) -> Iterator[None]:
    """Turn what HDFS says into an error of a place, with the remedy.

    Raises:
        FileNotFoundError, FileExistsError: for what their names say.
        PlaceError: anything else.
    """
    try:
        with explained(action, path):
            yield
    except HdfsError as error:
        raise PlaceError(f"{error.strerror}. {error.remedy}", error.refused) from error
