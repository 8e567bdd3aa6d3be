"""The driver's side of a folder of HDFS: temp files get their last names by renames."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from onceforall.common.threads import Threads
from onceforall.errors import AttemptFailedError, SinkCheckError
from onceforall.failpoints import points as failpoints
from onceforall.sink import LostTransaction
from onceforall.sinks.files.data_files import DataFile
from onceforall.sinks.files.driver.identity import NAME, make_folder_id
from onceforall.sinks.files.driver.staged_files import StagedFiles
from onceforall.sinks.files.folders import PlaceError, explained, is_temporary
from onceforall.sinks.files.paths import HOME, MANIFESTS, SPARK_METADATA, STAGING
from onceforall.sinks.files.places import USABLE_KEPT, taken
from onceforall.sinks.files.places.hdfs.paths import HdfsPath
from onceforall.sinks.files.places.hdfs.tree import HdfsTree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 16
_PROBE = ".probe-"


class HdfsPlace:
    """A folder, as the driver sees it."""

    def __init__(self, tree: HdfsTree) -> None:
        """Nothing is looked at yet."""
        self.tree = tree
        self.root = tree.root
        self._usable: set[HdfsPath] = set()

    def check(self, spark: SparkSession | None) -> None:  # noqa: ARG002  its settings are known
        """Make the folder, and see that files can be written and renamed there, and that nothing
        foreign lies under our names.

        Raises:
            SinkCheckError: naming the folder, the reason and the remedy.
            CommitLogError: a file of ours is damaged.
        """
        try:
            for name in ("", HOME, STAGING, MANIFESTS):
                folder = self.root / name
                if self.tree.size(folder) is not None:
                    raise SinkCheckError(
                        f"{folder} is a file, and FileSink needs a folder there. Move it away, or "
                        "give FileSink another path."
                    )
                self.tree.make_folder(folder)
            self._check_renames()
            self._check_foreign()
            make_folder_id(self.tree)
            self.confirm_others()
        except OSError as error:
            raise SinkCheckError(
                f"FileSink can't write in {self.root}: {explained(error)}."
            ) from error

    def _check_renames(self) -> None:
        """Do once what every commit does, and see that a rename leaves what is there."""
        name = f"{_PROBE}{secrets.token_hex(8)}"
        temporary, target = self.root / STAGING / name, self.root / HOME / name
        try:
            for content in (b"first", b"second"):
                with contextlib.closing(self.tree.open_new(temporary)) as file:
                    file.write(content)
                try:
                    self.tree.rename(temporary, target)
                    refused = False
                except FileExistsError:
                    refused = True
            if not refused or self.tree.read(target) != b"first":
                raise SinkCheckError(
                    f"The file system of {self.root} renames a file over another one. FileSink "
                    "needs one that refuses that, as HDFS does."
                )
        finally:
            for path in (temporary, target):
                with contextlib.suppress(OSError):
                    self.tree.unlink(path)

    def _check_foreign(self) -> None:
        home = self.root / HOME
        ours = {NAME, *(name.rpartition("/")[2] for name in (STAGING, MANIFESTS))}
        strange = sorted(
            name
            for name in self.tree.names(home)
            if name not in ours and not is_temporary(name) and not name.startswith(_PROBE)
        )
        if strange:
            raise SinkCheckError(
                f"{home / strange[0]} was not written by FileSink, and {home} is for its own files "
                f"only ({len(strange)} such). Move it away."
            )

    def confirm_others(self) -> None:
        """See that no log of Spark's keeps readers from what we write.

        Raises:
            SinkCheckError: naming it.
        """
        if self.tree.is_there(self.root / SPARK_METADATA):
            raise SinkCheckError(
                f"{self.root} holds {SPARK_METADATA}, the log of Spark's own file sink. Spark's "
                "readers trust it, so they would silently not see what is written here. Write to "
                "another folder."
            )

    def spark_log(self) -> None:
        """There is none that is kept up."""

    def check_committable(self, staged: StagedFiles) -> None:
        """Nothing more is needed."""

    def _staging(self, attempt: str) -> HdfsPath:
        return self.root / STAGING / attempt

    def attempts(self) -> list[str]:
        """Return the names of the folders of temp files."""
        return [
            name for name in self.tree.names(self.root / STAGING) if not name.startswith(_PROBE)
        ]

    def discard(self, attempt: str) -> bool:
        """Delete an attempt's temp files."""
        return self.tree.delete_folder(self._staging(attempt))

    def clear(self, staged: StagedFiles) -> None:
        """Delete the folder, which is empty now."""
        self.discard(staged.attempt)

    def delete_temporary_manifests(self, query_id: str) -> None:
        """Delete what killed processes of this query left beside its manifests."""
        query = self.root / MANIFESTS / query_id
        with contextlib.suppress(FileNotFoundError):
            for name in self.tree.names(query):
                self.tree.delete_temporary_files(query / name)

    def confirm(self, staged: Sequence[StagedFiles], manifests: HdfsPath) -> None:
        """See that every temp file is whole and that it can get to its target, and make the
        folders.

        Raises:
            AttemptFailedError: it isn't so.
        """
        for reason in self._of_each(staged, self._unconfirmed):
            if reason is not None:
                raise AttemptFailedError(f"Nothing of this batch is decided: {reason}.")
        folders = {file.folder for transaction in staged for file in transaction.files}
        above = {
            self.root / "/".join(folder.split("/")[: depth + 1])
            for folder in folders
            for depth in range(folder.count("/") + 1)
        }
        for folder in sorted(above):
            if self.tree.size(folder) is not None:
                raise AttemptFailedError(
                    f"{folder} is no folder, but files must go below it. Move it away."
                )
        targets = {self.root / folder for folder in folders}
        if len(self._usable) > USABLE_KEPT:
            self._usable.clear()  # Partitions of days go by, and memory stays.
        for folder in sorted({manifests, *targets} - self._usable):
            self._make_usable(folder)
            self._usable.add(folder)

    def _make_usable(self, folder: HdfsPath) -> None:
        """Make a folder that files of the batch will go to, or see that they can where it is there.

        The NameNode looks whether its user may write in a rename's target folder before it looks
        for the file, so that a file which isn't there asks for the right and changes nothing.

        Raises:
            AttemptFailedError: it can't be made, or the driver may not write there.
            OSError: HDFS gave no answer.
        """
        probe = f"{_PROBE}{secrets.token_hex(8)}"
        try:
            if self.tree.is_folder(folder):
                with contextlib.suppress(FileNotFoundError):
                    self.tree.rename(self.root / STAGING / probe, folder / probe)
            else:
                self.tree.make_folder(folder)
        except PlaceError as error:
            if not error.refused:
                raise
            raise AttemptFailedError(f"Nothing of this batch is decided: {error}.") from error

    def _unconfirmed(self, attempt: str, file: DataFile) -> str | None:
        temporary, target = self._staging(attempt) / file.name, self.root / file.path
        size = self.tree.size(temporary)
        if size != file.bytes:
            found = "is missing" if size is None else f"has {size} bytes instead of {file.bytes}"
            return f"the temp file {temporary} {found}"
        if self.tree.is_there(target):
            return taken(target)
        return None

    def missing(self, staged: Sequence[StagedFiles]) -> list[list[tuple[bool, str]]]:
        """Look for the temp file or the target of each file."""
        each = iter(self._of_each(staged, self._missing))
        return [
            [reason for _ in transaction.files if (reason := next(each)) is not None]
            for transaction in staged
        ]

    def _missing(self, attempt: str, file: DataFile) -> tuple[bool, str] | None:
        temporary, target = self._staging(attempt) / file.name, self.root / file.path
        size = self.tree.size(temporary)
        if size == file.bytes:
            return None
        # A rename that came between the two looks is seen by the second.
        there = self.tree.size(target)
        if there == file.bytes:
            return None
        if there is not None:
            reason = f"{target} has {there} bytes, and {file.bytes} were decided"
            return True, f"{reason}: somebody changed it. Put it back, or move it away"
        if size is not None:
            return (
                False,
                f"the temp file {temporary} has {size} bytes, and {file.bytes} were decided",
            )
        reason = f"neither the temp file {temporary} nor {target} is there"
        return False, f"{reason}, and no manifest has it: somebody deleted it"

    def publish(self, staged: Sequence[StagedFiles]) -> list[LostTransaction]:
        """Rename temp files to their targets, never over another."""
        folders = {file.folder for transaction in staged for file in transaction.files}
        for folder in sorted(folders):
            self.tree.make_folder(self.root / folder)
        reasons = iter(self._of_each(staged, self._publish))
        refused = []
        for transaction in staged:
            found = [reason for _ in transaction.files if (reason := next(reasons)) is not None]
            if found:
                refused.append(LostTransaction(transaction.committable, "; ".join(found)))
        return refused

    def _publish(self, attempt: str, file: DataFile) -> str | None:
        """Give a file its target's name; return what stands in the way."""
        temporary, target = self._staging(attempt) / file.name, self.root / file.path
        try:
            self.tree.rename(temporary, target)
        except FileExistsError:
            if self.tree.size(temporary) is not None:
                return f"{target} is there and isn't ours. Move it away"
        except FileNotFoundError:
            # Another process, or this one by a request whose answer was lost, has come further
            # with this batch; or a human deletes files at this moment.
            if self.tree.size(target) != file.bytes:
                raise
        failpoints.hit("file.commit.renamed")
        return None

    def unpublish(self, staged: StagedFiles, file: DataFile) -> None:  # noqa: ARG002  its path tells all
        """Delete a target, unless somebody changed it."""
        if self.tree.size(self.root / file.path) in {file.bytes, None}:
            with contextlib.suppress(FileNotFoundError):
                self.tree.unlink(self.root / file.path)
                failpoints.hit("file.retire.deleted")

    @staticmethod
    def _of_each(staged: Sequence[StagedFiles], ask: Callable[[str, DataFile], R]) -> list[R]:
        """Return the answers for all files, in order; some are asked for at a time."""
        each = [(transaction.attempt, file) for transaction in staged for file in transaction.files]
        if len(each) < 2:
            return [ask(*one) for one in each]
        with Threads(min(_THREADS, len(each)), thread_name_prefix="onceforall-hdfs") as threads:
            return [done.result() for done in [threads.submit(ask, *one) for one in each]]
