"""The temp files of one task attempt in a folder of HDFS."""

from __future__ import annotations

import io
from typing import IO, Any, cast

from onceforall.failpoints import points as failpoints
from onceforall.sinks.files.paths import STAGING
from onceforall.sinks.files.places.hdfs.tree import HdfsTree, asking

_BUFFER_BYTES = 1 << 20


class HdfsStaging:
    """A folder of temp files, under their last names."""

    def __init__(self, tree: HdfsTree, attempt: str) -> None:
        """Nothing is touched yet."""
        self._tree = tree
        self._folder = tree.root / STAGING / attempt
        self._open: list[_File] = []

    def begin(self) -> None:
        """Make the attempt's folder.

        Raises:
            OSError: it can't be made, or is there: another attempt's of the same name.
        """
        if self._tree.is_there(self._folder):
            raise FileExistsError(17, "it is there", str(self._folder))
        self._tree.make_folder(self._folder)

    def open(self, name: str, folder: str) -> IO[bytes]:  # noqa: ARG002  it has none of them yet
        """Open a temp file."""
        path = self._folder / name
        file = _File(self._tree.open_new(path), path)
        self._open.append(file)
        return cast("IO[bytes]", file)

    def end(self, file: IO[bytes]) -> int:
        """Sync and close a temp file."""
        ended = cast("_File", file)
        failpoints.hit("file.pre_commit.file_written")
        size = ended.end()
        self._open.remove(ended)
        return size

    def finish(self) -> None:
        """The NameNode has all names in its journal."""
        failpoints.hit("file.pre_commit.folder_synced")

    def discard(self) -> None:
        """Delete the attempt's folder; what is open can't be ended any more."""
        self._tree.delete_folder(self._folder)
        for file in self._open:
            file.give_up()
        self._open.clear()

    def body(self) -> dict[str, Any]:
        """Return nothing: all follows from the attempt's name."""
        return {}


class _File(io.RawIOBase):
    """A file that is written from its beginning to its end.

    An error is kept until ``end``: pyarrow's ORC writer ends the whole process when a write of its
    file fails while it is closed.
    """

    def __init__(self, file: Any, path: object) -> None:
        super().__init__()
        self._raw = file
        self._file = io.BufferedWriter(file, _BUFFER_BYTES)
        self._path = path
        self._size = 0
        self._failure: Exception | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, content: Any) -> int:
        with memoryview(content) as view:
            count = view.nbytes
        self._size += count
        if self._failure is None:
            try:
                with asking("write", self._path):
                    self._file.write(content)
            except Exception as error:  # noqa: BLE001  raised by end
                self._failure = error
        return count

    def end(self) -> int:
        """Make all durable."""
        if self._failure is not None:
            raise self._failure
        with asking("write", self._path):
            self._file.flush()
            self._raw.hsync()
            self._file.close()
        self.close()
        return self._size

    def give_up(self) -> None:
        """Forget the file, which was deleted."""
        try:
            self._file.close()
        except Exception as error:  # noqa: BLE001  what it says is that there is no such file
            self._failure = error
        self.close()
