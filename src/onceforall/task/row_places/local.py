"""Kept rows in a local folder, or one that is mounted like a local one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

__all__ = ["LocalRows"]


@dataclass(frozen=True)
class LocalRows:
    """A folder; every executor must see it under the same path.

    The driver makes a batch's folder, whose name is new; a task makes none. So a task whose disk is
    another one finds no folder there, and leaves nothing behind on it.
    """

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def secrets(self) -> Mapping[str, str]:
        """There are none."""
        return {}

    @property
    def lists_at_a_price(self) -> bool:
        """It costs nothing."""
        return False

    def with_secrets(self, values: Mapping[str, str]) -> LocalRows:  # noqa: ARG002  as the others
        """Return it as it is."""
        return self

    def make(self, folder: str) -> None:
        """Make a batch's folder. The entry of each folder in its own, for both may be new; here,
        once per batch, and not in each task.
        """
        known = self.folder.is_dir()
        (self.folder / folder).mkdir(parents=True, exist_ok=True)
        _sync(self.folder)
        if not known:
            _sync(self.folder.parent)

    def create(self, name: str) -> _File:
        """Create a file."""
        return _File(self.folder / name)

    def fetched(self, name: str) -> IO[bytes]:
        """Open a file."""
        return (self.folder / name).open("rb")

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file."""
        return (self.folder / name).exists()

    def folders(self) -> list[str]:
        """Return the names in the folder."""
        return [entry.name for entry in self.folder.iterdir()] if self.folder.exists() else []

    def remove(self, folder: str) -> None:
        """Delete a batch's folder, as far as it can be."""
        shutil.rmtree(self.folder / folder, ignore_errors=True)


class _File:
    def __init__(self, path: Path) -> None:
        # Never over another attempt's: names are given out once.
        self._file: IO[bytes] = path.open("xb")
        self._path = path

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def sync_name(self) -> None:
        _sync(self._path.parent)

    def close(self) -> None:
        self._file.close()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
