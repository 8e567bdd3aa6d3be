"""A local folder, or one that is mounted under the same path on driver and executors.

A task writes temp files below ``<path>/_onceforall/staging/`` and syncs them; the driver links them
to their targets, and later takes their first names away.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

    def staging(self, attempt: TaskAttempt) -> LocalStaging:
        """Return the folder of an attempt's temp files."""
        from onceforall.sinks.files.places.local.staging import LocalStaging

        return LocalStaging(self.root, attempt.name)

    def place(self) -> LocalPlace:
        """Return the driver's side."""
        from onceforall.sinks.files.places.local.place import LocalPlace

        return LocalPlace(self.root, self.location, self.spark_metadata)
