"""The temp files of one task attempt in a local folder. A file counts when it is closed and synced,
and so are the attempt's folder and the one above it.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from onceforall.failpoints import points as failpoints
from onceforall.sinks.files.folders import sync_file
from onceforall.sinks.files.paths import STAGING
from onceforall.sinks.files.tree import Tree


class LocalStaging:
    """A folder of temp files, under their last names."""

    def __init__(self, root: Path, attempt: str) -> None:
        """Nothing is touched yet."""
        self._tree = Tree(root)
        self._folder = root / STAGING / attempt

    def begin(self) -> None:
        """Make the attempt's folder.

        Raises:
            OSError: it can't be made, or is there: another attempt's of the same name.
        """
        self._tree.make_folder(self._folder.parent)
        self._tree.make_new_folder(self._folder)

    def open(self, name: str, folder: str) -> IO[bytes]:  # noqa: ARG002  it has none of them yet
        """Open a temp file."""
        return self._tree.open_new(self._folder / name, 1 << 20)

    def end(self, file: IO[bytes]) -> int:
        """Sync and close a temp file."""
        file.flush()
        failpoints.hit("file.pre_commit.file_written")
        sync_file(file.fileno())
        size = file.seek(0, 2)
        file.close()
        return size

    def finish(self) -> None:
        """Sync the attempt's folder, and the one that it is in."""
        self._tree.sync(self._folder)
        failpoints.hit("file.pre_commit.folder_synced")
        self._tree.sync(self._folder.parent)

    def discard(self) -> None:
        """Delete the attempt's folder."""
        self._tree.delete_folder_of_files(self._folder)

    def body(self) -> dict[str, Any]:
        """Return nothing: all follows from the attempt's name."""
        return {}
