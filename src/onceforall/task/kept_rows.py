"""Rows that are kept beside the commit log until their batch is complete (``redo="durable"``, and
``redo="auto"`` where a replay may differ).

Should a prepared transaction be lost after the decision, its rows are written again from here, so
that also a query whose replays differ loses nothing. One file per task attempt and write: an Arrow
IPC stream, compressed with zstd, synced with its folder before the transaction is handed over; its
SHA-256 goes into the committable, and so into the decision.

Layout: ``<place>/<generation>.<batch>/<write>-<partition>-<slot>.arrow``. The place is beside the
log, on a local disk or a store (``row_places``).

A file counts only if the driver sees it. Under ``auto`` nobody has asked for kept rows, so a batch
goes on without them where they can't be kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onceforall.common import logs
from onceforall.errors import AttemptFailedError, MissingExtraError
from onceforall.failpoints import points as failpoints
from onceforall.sink import TaskAttempt
from onceforall.task.row_places import RowFile, RowPlace
from onceforall.task.secret_values import received

if TYPE_CHECKING:
    import pyarrow as pa

logger = logs.logger("onceforall")

FOLDER = "rows"
SECRETS = ""
"""The name under which a place's secret values go to the tasks; every sink's is longer."""

_BATCH_FOLDER = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_FILE = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)/(0|[1-9][0-9]*)-(0|[1-9][0-9]*)-(0|[1-9][0-9]*)\.arrow"
)
_READ_BYTES = 1 << 20
_NOT_KEPT = (OSError, MissingExtraError)
"""Why a task can't keep rows: the place, or its executor's packages, which the driver can't see."""


@dataclass(frozen=True)
class Keeping:
    """How the tasks of a batch keep their rows.

    Attributes:
        place: where the query keeps its rows.
        required: a task that can't keep them fails; otherwise it goes on without.
        pad: the half of the place's secret values that goes this way; None: it has none.
    """

    place: RowPlace
    required: bool
    pad: bytes | None = field(default=None, repr=False)

    def opened(self) -> RowPlace:
        """Return the place, in a task."""
        if self.pad is None:
            return self.place
        return self.place.with_secrets(received(SECRETS, self.pad))


class RowKeeper:
    """Decides for each batch of one run whether its rows are kept; the driver's side.

    Args:
        place: where the query keeps its rows.
        required: they are always kept, and a batch whose rows can't be fails.
        why_not: tells of a batch and the frames that are written why a replay may differ; None: it
            doesn't. It is asked if rows aren't ``required``.
    """

    def __init__(
        self,
        place: RowPlace,
        *,
        required: bool,
        why_not: Callable[[Any, Iterable[Any]], str | None],
    ) -> None:
        self.place = place
        self._required = required
        self._why_not = why_not
        self._made: dict[str, None] = {}
        self._has_looked = False
        self._said = False
        self._warned = False

    def keeping(
        self, batch: Any, frames: Iterable[Any], generation: int, batch_id: int
    ) -> Keeping | None:
        """Return how the batch's rows are kept, with a folder for them; None: they are not.

        Args:
            batch: the batch's frame.
            frames: what is written of it.
            generation: that of the names of this attempt.
            batch_id: Spark's.

        Raises:
            AttemptFailedError: they must be, and the folder can't be made.
        """
        if not self._required:
            reason = self._why_not(batch, frames)
            if reason is None:
                return None
            if not self._said:
                logger.info(
                    "rows are kept until their batch is complete, for a replay may differ: %s",
                    reason,
                )
                self._said = True
        folder = f"{generation}.{batch_id}"
        try:
            self.place.make(folder)
        except OSError as error:
            path = f"{self.place}/{folder}"
            if self._required:
                raise _failed(path, error) from error
            self._warn(f"The driver can't make {path}: {error.strerror or error}.")
            return None
        self._made[folder] = None
        return Keeping(self.place, self._required)

    def seen(self, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the results of tasks, of which a committable names kept rows only if they are
        there for the driver as well.

        Args:
            results: as ``tasks`` gives them; ``not_kept`` says why a task has gone on without
                keeping its rows.

        Raises:
            AttemptFailedError: they must be there, and aren't.
        """
        told: list[dict[str, Any]] = []
        looks_for = True
        for result in results:
            if "not_kept" in result:
                self._warn(result["not_kept"])
            kept = (result.get("committable") or {}).get("rows")
            if not kept or not looks_for:
                told.append(result)
                continue
            told.append(self._seen(result, kept))
            # All tasks of a batch have the driver's own settings of a store: there one file that
            # is seen tells.
            looks_for = told[-1] is not result or not self.place.lists_at_a_price
        return told

    def _seen(self, result: dict[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
        path = f"{self.place}/{kept['file']}"
        try:
            if self.place.exists(kept["file"]):
                return result
            unseen = (
                f"A task has kept rows in {path}, and the driver doesn't see them. The folder "
                "isn't on storage that every executor shares."
            )
        except OSError as error:
            unseen = (
                f"A task has kept rows in {path}, and the driver doesn't see them: "
                f"{error.strerror or error}."
            )
        if self._required:
            raise AttemptFailedError(
                f"{unseen} Put the log on such storage (onceforall.commitLog), or leave "
                "onceforall.redo=durable out."
            )
        self._warn(unseen)
        return {
            **result,
            "committable": {
                name: value for name, value in result["committable"].items() if name != "rows"
            },
        }

    def forget(self, batch: int) -> None:
        """Delete the rows of a complete batch and of lower ones; see ``forget``.

        Where a look costs something, only the first one of a run is for whatever earlier runs have
        left: of its own batches it knows the folders.

        Raises:
            OSError: the place can't be reached; what is left goes with a later batch.
        """
        if self._has_looked and self.place.lists_at_a_price:
            for folder in list(self._made):
                match = _BATCH_FOLDER.fullmatch(folder)
                assert match is not None
                if int(match[2]) <= batch:
                    _remove(self.place, folder)
                    del self._made[folder]
        else:
            forget(self.place, batch)
            self._has_looked = True

    def _warn(self, problem: str) -> None:
        if not self._warned:
            logger.warning(
                "rows are not kept, though the replay of a batch may give other ones "
                "(onceforall.redo=auto): %s The query goes on. Should a "
                "prepared transaction be lost after its decision, its rows can't be written "
                "again. Put the commit log on storage that every "
                "executor sees (onceforall.commitLog). This is said once per run.",
                problem,
            )
            self._warned = True


class KeptFile:
    """Keeps the rows of one task attempt's write."""

    def __init__(self, place: RowPlace, attempt: TaskAttempt, *, required: bool = True) -> None:
        """Nothing is created yet; the batch's folder is there, by ``RowKeeper``.

        Args:
            place: where the query keeps its rows.
            attempt: whose rows they are.
            required: the user has asked for it, and is told so when it can't be done.
        """
        self._required = required
        self._name = f"{attempt.generation}.{attempt.batch}/{attempt.write}-{attempt.partition}-{attempt.slot}.arrow"  # noqa: E501
        self._place = place
        self._path = f"{place}/{self._name}"
        self._rows = 0
        self._file: _HashedFile | None = None
        self._writer: Any = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Append rows.

        Raises:
            AttemptFailedError: the file can't be written.
        """
        import pyarrow as pa

        try:
            if self._writer is None:
                self._file = _HashedFile(self._place.create(self._name))
                failpoints.hit("kept.file_made")
                self._writer = pa.ipc.new_stream(
                    self._file, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
                )
            self._writer.write_batch(rows)
            failpoints.hit("kept.added")
        except _NOT_KEPT as error:
            raise self._failed(error) from error
        self._rows += rows.num_rows

    def finish(self) -> Mapping[str, Any]:
        """Make the rows durable, and return what finds and proves them: ``file``, ``sha256`` and
        ``rows``.

        Raises:
            AttemptFailedError: the file can't be written.
        """
        assert self._file is not None
        try:
            self._writer.close()
            failpoints.hit("kept.finish.written")
            self._file.sync()
            failpoints.hit("kept.finish.synced")
            self._file.sync_name()
            failpoints.hit("kept.finish.folders_synced")
        except _NOT_KEPT as error:
            raise self._failed(error) from error
        return {"file": self._name, "sha256": self._file.sha256.hexdigest(), "rows": self._rows}

    def _failed(self, error: OSError | MissingExtraError) -> AttemptFailedError:
        if self._required:
            return _failed(self._path, error)
        return AttemptFailedError(f"A task can't keep rows in {self._path}: {_words(error)}.")

    def discard(self) -> None:
        """Give up the rows; what is left of them goes with the batch's folder. Never fails
        because of the disk.
        """
        if self._file is not None:
            failpoints.hit("kept.discard.before")
            with contextlib.suppress(
                OSError
            ):  # a full disk refuses once more what is still in memory
                self._file.close()


def read_kept(place: RowPlace, kept: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Read rows back, after the whole file was checked.

    Args:
        place: where the query keeps its rows.
        kept: what ``KeptFile.finish`` returned.

    Raises:
        AttemptFailedError: the file is missing, damaged, or not named as one of ours.
    """
    import pyarrow as pa

    name = str(kept["file"])
    if not _FILE.fullmatch(name):
        raise AttemptFailedError(
            f"{name!r} is not the name of a file of kept rows; the commit log has been changed."
        )
    path = f"{place}/{name}"
    try:
        failpoints.hit("kept.read.before")
        with place.fetched(name) as file:
            found = hashlib.sha256()
            while block := file.read(_READ_BYTES):
                found.update(block)
            if found.hexdigest() != kept["sha256"]:
                raise AttemptFailedError(
                    f"The kept rows in {path} are damaged (their SHA-256 differs from the decided "
                    "one). Put the file back from a copy of the "
                    "storage, or start once with onceforall.redo=replay, so that the query's "
                    "replay is tried instead."
                )
            file.seek(0)
            with pa.ipc.open_stream(file) as reader:
                yield from reader
    except OSError as error:
        raise AttemptFailedError(
            f"The kept rows in {path} can't be read: {error.strerror or error}. Every executor "
            "must see this folder. If they are gone for good, "
            "start once with onceforall.redo=replay, so that the query's replay is tried instead."
        ) from error


def forget(place: RowPlace, batch: int) -> None:
    """Delete the rows of this batch and of lower ones, of every generation.

    Args:
        place: where the query keeps its rows.
        batch: one that is complete on every sink, by a durable DONE.

    Raises:
        OSError: the place can't be reached.
    """
    _forget(place, lambda of: of <= batch)


def forget_attempt(place: RowPlace, generation: int, batch: int) -> None:
    """Delete the rows that a generation has kept of a batch.

    Args:
        place: where the query keeps its rows.
        generation: whose.
        batch: one that was not decided, in this generation or before: a decision names files.

    Raises:
        OSError: the place can't be reached.
    """
    _remove(place, f"{generation}.{batch}")


def _forget(place: RowPlace, is_over: Callable[[int], bool]) -> None:
    for name in place.folders():
        match = _BATCH_FOLDER.fullmatch(name)
        if match is not None and is_over(int(match[2])):
            _remove(place, name)


def _remove(place: RowPlace, folder: str) -> None:
    failpoints.hit("kept.forget.before")
    place.remove(folder)
    failpoints.hit("kept.forget.after")


class _HashedFile:
    """A file to write, which knows the SHA-256 of what was written."""

    def __init__(self, file: RowFile) -> None:
        self._file = file
        self.closed = False
        self.sha256 = hashlib.sha256()

    @staticmethod
    def writable() -> bool:
        return True

    @staticmethod
    def readable() -> bool:
        return False

    @staticmethod
    def seekable() -> bool:
        return False

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return self._file.write(data)

    @staticmethod
    def flush() -> None:
        """All of it is durable with ``sync``."""

    def sync(self) -> None:
        self._file.sync()
        self.closed = True

    def sync_name(self) -> None:
        self._file.sync_name()

    def close(self) -> None:
        self.closed = True
        self._file.close()


def _words(error: OSError | MissingExtraError) -> str:
    return str((isinstance(error, OSError) and error.strerror) or error)


def _failed(path: str, error: OSError | MissingExtraError) -> AttemptFailedError:
    return AttemptFailedError(
        f"Rows can't be kept in {path}: {_words(error)}. With onceforall.redo=durable "
        "every executor must be able to write "
        "there; put the log on storage that all of them see (onceforall.commitLog), or leave the "
        "option out."
    )
