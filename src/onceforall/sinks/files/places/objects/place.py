"""The driver's side of a prefix in a bucket: uploads are completed, one request for each file."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from onceforall.common.threads import Threads
from onceforall.errors import AttemptFailedError
from onceforall.failpoints import points as failpoints
from onceforall.sink import LostTransaction
from onceforall.sinks.files.data_files import DataFile, attempt_of
from onceforall.sinks.files.driver.staged_files import StagedFiles
from onceforall.sinks.files.folders import PlaceError
from onceforall.sinks.files.paths import UPLOADS
from onceforall.sinks.files.places import taken
from onceforall.sinks.files.places.objects import records
from onceforall.sinks.files.places.objects.checks import check_spark_metadata, check_store
from onceforall.sinks.files.places.objects.paths import ObjectPath
from onceforall.sinks.files.places.objects.store import THREADS, Store
from onceforall.sinks.files.places.objects.tree import ObjectTree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


class ObjectPlace:
    """A prefix, as the driver sees it."""

    def __init__(self, store: Store, check_own: Callable[[], None] | None = None) -> None:
        """Nothing is looked at yet; ``check_own``: as ``check_store`` has it."""
        self._store = store
        self._check_own = check_own
        self.root = store.root
        self.tree = ObjectTree(store)
        self._unrecorded: dict[str, list[ObjectPath]] = {}

    def check(self, spark: SparkSession | None) -> None:  # noqa: ARG002  its settings are known
        """Make all requests once that a batch will need; errors as those of ``check_store``."""
        check_store(self._store, self.tree, self._check_own)

    def confirm_others(self) -> None:
        """See that no log of Spark's keeps readers from what we write.

        Raises:
            SinkCheckError: naming it.
        """
        check_spark_metadata(self._store)

    def spark_log(self) -> None:
        """There is none that is kept up."""

    def check_committable(self, staged: StagedFiles) -> None:
        """See that each file has an upload.

        Raises:
            ValueError: it hasn't.
        """
        _uploads(staged)

    def attempts(self) -> list[str]:
        """Return the names of attempts with records, or with parts that are listed without."""
        found: set[str] = set()
        with contextlib.suppress(FileNotFoundError):
            found.update(self.tree.names(self.root / UPLOADS))
        self._unrecorded = defaultdict(list)
        for path in self._store.unrecorded():
            attempt = attempt_of(path.name)
            if attempt is not None:
                self._unrecorded[attempt].append(path)
        return sorted(found | set(self._unrecorded))

    def discard(self, attempt: str) -> bool:
        """Abort an attempt's uploads, and delete their records."""
        found = records.discard(self._store, attempt)
        for path in self._unrecorded.pop(attempt, ()):
            for upload in self._store.uploads(path):
                self._store.abort(path, upload)
                found = True
        return found

    def clear(self, staged: StagedFiles) -> None:
        """Delete the records of uploads that are complete."""
        for ordinal in sorted(int(file.name.split("-")[2]) for file in staged.files):
            self._store.delete(records.record_of(self.root, staged.attempt, ordinal))

    def delete_temporary_manifests(self, query_id: str) -> None:
        """A put leaves nothing behind."""

    def confirm(self, staged: Sequence[StagedFiles], manifests: ObjectPath) -> None:  # noqa: ARG002
        """See that each upload has its parts, and that its key is free; there are no folders.

        Raises:
            AttemptFailedError: it isn't so.
        """
        for reason in self._of_each(staged, self._unconfirmed):
            if reason is not None:
                raise AttemptFailedError(f"Nothing of this batch is decided: {reason}.")

    def _unconfirmed(self, staged: StagedFiles, at: int) -> str | None:
        file = staged.files[at]
        path = self.root / file.path
        strange = self._wrong_parts(staged, at)
        if strange is not None:
            return strange
        if self._store.head(path) is not None:
            return taken(path)
        return None

    def _wrong_parts(self, staged: StagedFiles, at: int) -> str | None:
        """Return what is wrong with the parts of an upload; also where there is no upload."""
        file, (upload, etags) = staged.files[at], _uploads(staged)[at]
        path = self.root / file.path
        found = self._store.parts(path, upload)
        if found is None:
            return f"the upload to {path} is gone: {self._store.takers}"
        size = sum(each for _, each in found)
        if [etag for etag, _ in found] != etags or size != file.bytes:
            return (
                f"the upload to {path} has {len(found)} parts of {size} bytes in all, and "
                f"{len(etags)} of {file.bytes} were sent"
            )
        return None

    def missing(self, staged: Sequence[StagedFiles]) -> list[list[tuple[bool, str]]]:
        """Look for the upload or the object of each file."""
        each = iter(self._of_each(staged, self._missing))
        return [
            [reason for _ in transaction.files if (reason := next(each)) is not None]
            for transaction in staged
        ]

    def _missing(self, staged: StagedFiles, at: int) -> tuple[bool, str] | None:
        path = self.root / staged.files[at].path
        strange = self._wrong_parts(staged, at)
        if strange is None:
            return None
        # Complete already, perhaps: the server forgets such an upload.
        found = self._is_ours(staged, staged.files[at])
        if found is None:
            return (False, f"{strange}, and there is no {path}")
        if not found:
            return (True, f"{path} is there and isn't ours. Move it away")
        return None

    def _is_ours(self, staged: StagedFiles, file: DataFile) -> bool | None:
        """Tell whether an object is what an upload of ours became; None: there is none."""
        path = self.root / file.path
        found = self._store.head(path)
        if found is None:
            if self._store.is_absent(path):
                return None
            raise PlaceError(
                f"{path} is there and was not found. It is looked for once more", refused=False
            )
        size, metadata = found
        return size == file.bytes and metadata.get(records.MARK) == staged.committable["mark"]

    def publish(self, staged: Sequence[StagedFiles]) -> list[LostTransaction]:
        """Complete all uploads."""
        each = iter(self._of_each(staged, self._complete))
        refused = []
        for transaction in staged:
            reasons = [reason for _ in transaction.files if (reason := next(each)) is not None]
            if reasons:
                refused.append(LostTransaction(transaction.committable, reasons[0]))
        return refused

    def _complete(self, staged: StagedFiles, at: int) -> str | None:
        file, (upload, etags) = staged.files[at], _uploads(staged)[at]
        path = self.root / file.path
        try:
            self._store.complete(path, upload, etags)
        except FileNotFoundError:
            # Done before, by us or by another process; or aborted since it was looked for.
            found = self._is_ours(staged, file)
            if found is None:
                raise PlaceError(
                    f"the upload to {path} is gone. It is looked for once more", refused=False
                ) from None
            if not found:
                return f"{path} is there and isn't ours. Move it away"
        failpoints.hit("file.commit.renamed")
        return None

    def unpublish(self, staged: StagedFiles, file: DataFile) -> None:
        """Delete an object, if it is ours."""
        if self._is_ours(staged, file):
            self._store.delete(self.root / file.path)
            failpoints.hit("file.retire.deleted")

    def _of_each(
        self, staged: Iterable[StagedFiles], do: Callable[[StagedFiles, int], R]
    ) -> list[R]:
        """Do something for each file, several at a time; the first error is raised when all have
        ended.
        """
        todo = [(each, at) for each in staged for at in range(len(each.files))]
        if len(todo) == 1:
            return [do(*todo[0])]
        with Threads(THREADS, thread_name_prefix="onceforall-objects") as threads:
            return [done.result() for done in [threads.submit(do, *each) for each in todo]]


def _uploads(staged: StagedFiles) -> list[tuple[str, list[str]]]:
    try:
        found = [
            (str(upload), [str(etag) for etag in etags])
            for upload, etags in staged.committable["uploads"]
        ]
        str(staged.committable["mark"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("it lacks the uploads of its files, which one of a bucket has") from error
    if len(found) != len(staged.files):
        raise ValueError(f"it has {len(found)} uploads and {len(staged.files)} files")
    return found


__all__ = ["ObjectPath", "ObjectPlace"]
