"""The driver's side of a local folder: temp files get their last names by links.

``link`` fails where the name is taken, so nothing is ever overwritten; the same inode under both
names is our own earlier link. The temp file's name goes only when the batch has its manifest, so
that at each moment one of the two is there. Module ``driver.committing`` has the steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onceforall.failpoints import points as failpoints
from onceforall.sink import LostTransaction
from onceforall.sinks.files.data_files import DataFile
from onceforall.sinks.files.driver.spark_metadata import SparkMetadata
from onceforall.sinks.files.driver.staged_files import StagedFiles
from onceforall.sinks.files.driver.start_checks import (
    check_folder,
    check_session,
    check_spark_metadata,
)
from onceforall.sinks.files.paths import MANIFESTS, SPARK_METADATA, STAGING
from onceforall.sinks.files.places import USABLE_KEPT
from onceforall.sinks.files.places.local.confirming import confirm, make_usable
from onceforall.sinks.files.tree import Tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LocalPlace:
    """A local folder, as the driver sees it."""

    def __init__(self, root: Path, location: str, spark_metadata: str) -> None:
        """Nothing is looked at yet.

        Args:
            root: the folder.
            location: as the user wrote it.
            spark_metadata: what to do with a log of Spark's own file sink.
        """
        self.root = root
        self.tree = Tree(root)
        self._location = location
        self._spark_metadata = spark_metadata
        self._interval: int | None = None
        self._usable: set[Path] = set()

    def check(self, spark: SparkSession | None) -> None:
        """Make the folder, and see that files can be written and moved there, and that nothing
        foreign lies under our names.

        Raises:
            SinkCheckError: naming the folder, the reason and the remedy.
            CommitLogError: a file of ours is damaged, or something else stands in its place.
            UnsupportedQueryError: paths without a scheme are not local in this session.
        """
        if spark is not None:
            self._interval = check_session(spark, self._location)
        check_folder(self.root)
        self.confirm_others()

    def check_committable(self, staged: StagedFiles) -> None:
        """Nothing more is needed."""

    def confirm(self, staged: Sequence[StagedFiles], manifests: Path) -> None:
        """See that every temp file is whole and that it can get to its target, and make the
        folders; errors as those of ``confirming``.
        """
        confirm(self.tree, staged)
        folders = {self.root / file.folder for each in staged for file in each.files}
        if len(self._usable) > USABLE_KEPT:
            self._usable.clear()  # Partitions of days go by, and memory stays.
        for folder in sorted({manifests, *folders} - self._usable):
            make_usable(self.tree, folder)
            self._usable.add(folder)

    def confirm_others(self) -> None:
        """See that no log of Spark's keeps readers from what we write.

        Raises:
            SinkCheckError: naming the folder and the choices.
        """
        check_spark_metadata(self.root, self._spark_metadata, self._log())

    def _log(self) -> SparkMetadata:
        return SparkMetadata(self.root, self._interval)

    def spark_log(self) -> SparkMetadata | None:
        """Return Spark's own log where it is to be kept up."""
        log = self._log()
        return log if self._spark_metadata == "continue" and log.exists() else None

    def _staging(self, attempt: str) -> Path:
        return self.root / STAGING / attempt

    def attempts(self) -> list[str]:
        """Return the names of the folders of temp files."""
        return self.tree.names(self.root / STAGING)

    def discard(self, attempt: str) -> bool:
        """Delete an attempt's temp files."""
        return self.tree.delete_folder_of_files(self._staging(attempt))

    def clear(self, staged: StagedFiles) -> None:
        """Delete the temp files' names."""
        self.discard(staged.attempt)

    def delete_temporary_manifests(self, query_id: str) -> None:
        """Delete what killed processes of this query left beside its manifests, and in Spark's
        log.
        """
        query = self.root / MANIFESTS / query_id
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            names = self.tree.names(query)
        for folder in [*(query / name for name in names), self.root / SPARK_METADATA]:
            with contextlib.suppress(NotADirectoryError):
                self.tree.delete_temporary_files(folder)

    def missing(self, staged: Sequence[StagedFiles]) -> list[list[tuple[bool, str]]]:
        """Look for the temp file or the target of each file."""
        found = []
        for transaction in staged:
            with self.tree.held(self._staging(transaction.attempt)):
                found.append(
                    [
                        reason
                        for file in transaction.files
                        if (reason := self._missing(transaction.attempt, file)) is not None
                    ]
                )
        return found

    def _missing(self, attempt: str, file: DataFile) -> tuple[bool, str] | None:
        """Return why a file can't be committed, and whether that leaves a doubt; None when it
        can, or is.
        """
        temporary, target = self._staging(attempt) / file.name, self.root / file.path
        size = self.tree.size(temporary)
        if size == file.bytes:
            return None
        there = self.tree.size(target)
        if there == file.bytes:
            return None
        if there is not None:
            return (
                True,
                (
                    f"{target} has {there} bytes, and {file.bytes} were decided: somebody changed it. "  # noqa: E501
                    "Put it back, or move it away"
                ),
            )
        if size is not None:
            return (
                False,
                f"the temp file {temporary} has {size} bytes, and {file.bytes} were decided",
            )
        return (
            False,
            (
                f"neither the temp file {temporary} nor {target} is there, and no manifest has it: "
                "somebody deleted it"
            ),
        )

    def publish(self, staged: Sequence[StagedFiles]) -> list[LostTransaction]:
        """Link temp files to their targets, and sync the folders, and those above them: who made
        them may have died before it could.
        """
        folders: set[str] = set()
        refused: list[LostTransaction] = []
        for transaction in staged:
            with self.tree.held(self._staging(transaction.attempt)):
                reason = self._place_all(transaction, folders)
            if reason is not None:
                refused.append(LostTransaction(transaction.committable, reason))
        self.tree.sync_all(_with_parents(self.root, folders))
        return refused

    def _place_all(self, transaction: StagedFiles, folders: set[str]) -> str | None:
        """Give a transaction's files their targets' names; return what stands in the way.
        ``folders``: those that are made already.
        """
        for file in transaction.files:
            if file.folder not in folders:
                self.tree.make_folder(self.root / file.folder)
                folders.add(file.folder)
            reason = self._place(transaction.attempt, file)
            if reason is not None:
                return reason
            failpoints.hit("file.commit.renamed")
        return None

    def _place(self, attempt: str, file: DataFile) -> str | None:
        """Give a file its target's name; return what stands in the way."""
        temporary, target = self._staging(attempt) / file.name, self.root / file.path
        try:
            self.tree.link(temporary, target)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if not self.tree.are_same(temporary, target):
                    return f"{target} is there and isn't ours. Move it away"
        except FileNotFoundError:
            # Another process has come further with this batch, or a human deletes files at this
            # moment.
            if self.tree.size(target) != file.bytes:
                raise
        return None

    def unpublish(self, staged: StagedFiles, file: DataFile) -> None:  # noqa: ARG002  its path tells all
        """Delete a target, unless somebody changed it."""
        if self.tree.size(self.root / file.path) in {file.bytes, None}:
            with contextlib.suppress(FileNotFoundError):
                self.tree.unlink(self.root / file.path)
                failpoints.hit("file.retire.deleted")


def _with_parents(root: Path, folders: Iterable[str]) -> set[Path]:
    found: set[Path] = {root}
    for folder in folders:
        at = root
        for part in folder.split("/") if folder else ():
            at /= part
            found.add(at)
    return found
