"""A local folder, or one that is mounted under the same path on driver and executors.

A task writes temp files below ``<path>/_onceforall/staging/`` and syncs them; the driver links them
to their targets, and later takes their first names away.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onceforall.sinks.files.paths import LONGEST_PATH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from onceforall.sink import TaskAttempt
    from onceforall.sinks.files.places.local.place import LocalPlace
    from onceforall.sinks.files.places.local.staging import LocalStaging


@dataclass(frozen=True)
class LocalTarget:
    """A local folder.

    Attributes:
        folder: its path.
        location: as the user wrote it.
        spark_metadata: what to do with a log of Spark's own file sink.
    """

    folder: str
    location: str
    spark_metadata: str

    @property
    def root(self) -> Path:
        """The folder."""
        return Path(self.folder)

    @property
    def root_bytes(self) -> int:
        """The length of the folder's path."""
        return len(self.folder.encode())

    def unfit(self, folder: str) -> str | None:
        """Return that a name is too long: not every file system takes 255 bytes."""
        try:
            longest = os.pathconf(self.folder, "PC_NAME_MAX")
        except (OSError, ValueError):
            return None  # what it refuses is noticed before the batch is decided
        if longest < 0 or all(len(name.encode()) <= longest for name in folder.split("/")):
            return None
        return f"a part of more than {longest} bytes, which the file system doesn't take"

    def spelled(self, folder: str) -> str:
        """Any name is possible."""
        return folder

    @property
    def longest_path(self) -> int:
        """What file systems take."""
        return LONGEST_PATH

    @property
    def secrets(self) -> Mapping[str, str]:
        """There are none."""
        return {}

    @property
    def imports(self) -> Mapping[str, str]:
        """Nothing more."""
        return {}

    def with_session(self, spark: SparkSession) -> LocalTarget:  # noqa: ARG002
        """No session knows more of it."""
        return self

    def staging(self, attempt: TaskAttempt) -> LocalStaging:
        """Return the folder of an attempt's temp files."""
        from onceforall.sinks.files.places.local.staging import LocalStaging

        return LocalStaging(self.root, attempt.name)

    def place(self) -> LocalPlace:
        """Return the driver's side."""
        from onceforall.sinks.files.places.local.place import LocalPlace

        return LocalPlace(self.root, self.location, self.spark_metadata)
