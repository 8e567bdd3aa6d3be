"""Tells a user's function of the folders that a run has written to for the first time, such as
for a catalogue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from onceforall.common import logs
from onceforall.errors import text_of
from onceforall.sinks.files.data_files import DataFile
from onceforall.sinks.files.places import AnyPath

_log = logs.logger("onceforall.sinks.files")


class NewPartition(NamedTuple):
    """A folder of partition values, for ``on_new_partitions``.

    Attributes:
        path: the folder, absolute.
        values: what its name says, by column, as texts; None is null.
    """

    path: str
    values: Mapping[str, str | None]


class NewPartitions:
    """What a run has told of, and what it has still to tell."""

    def __init__(self, root: AnyPath, tell: Callable[[list[NewPartition]], object]) -> None:
        """Take the sink's folder, and the user's function."""
        self._root = root
        self._tell = tell
        self._lock = threading.Lock()
        self._announced: set[str] = set()
        self._unannounced: dict[str, NewPartition] = {}

    def announce(self, files: Iterable[DataFile]) -> None:
        """Call the function with the folders of committed files that are new, and with those for
        which it failed the last time.
        """
        with self._lock:
            for file in files:
                folder = _hive_part(file.folder)
                if file.partition and folder not in self._announced:
                    self._unannounced[folder] = NewPartition(
                        str(self._root / folder), dict(file.partition)
                    )
            todo = dict(self._unannounced)
        if not todo:
            return
        try:
            self._tell(list(todo.values()))
        except Exception as error:  # noqa: BLE001  a user's function can't undo a commit
            _log.warning(
                "on_new_partitions failed and is called again with the next batch, for %d "
                "partitions in %s: %s: %s",
                len(todo), self._root, type(error).__name__, text_of(error),
            )  # fmt: skip
            return
        with self._lock:
            self._announced.update(todo)
            for folder in todo:
                self._unannounced.pop(folder, None)


def _hive_part(folder: str) -> str:
    """Return a folder without what follows its last ``name=value``: a catalogue knows no other
    folders.
    """
    parts = folder.split("/")
    while parts and "=" not in parts[-1]:
        parts.pop()
    return "/".join(parts)
