"""Rows that are kept beside the commit log until their batch is complete (``redo="durable"``, and
``redo="auto"`` where a replay may differ).

Should a prepared transaction be lost after the decision, its rows are written again from here, so
that also a query whose replays differ loses nothing. One file per task attempt and write: an Arrow
IPC stream, compressed with zstd, synced with its folder before the transaction is handed over; its
SHA-256 goes into the committable, and so into the decision.

Layout: ``<folder>/<generation>.<batch>/<write>-<partition>-<slot>.arrow``. Every executor must see
the folder under the same path.

The driver makes the batch's folder, whose name is new; a task makes none. So a task whose disk is
another one finds no folder there, and leaves nothing behind on it. And a file counts only if the
driver sees it. Under ``auto`` nobody has asked for kept rows, so a batch goes on without them where
they can't be kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from onceforall.common import logs
from onceforall.errors import AttemptFailedError
from onceforall.failpoints import points as failpoints
from onceforall.sink import TaskAttempt

if TYPE_CHECKING:
    import pyarrow as pa

logger = logs.logger("onceforall")

FOLDER = "rows"

_BATCH_FOLDER = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_FILE = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)/(0|[1-9][0-9]*)-(0|[1-9][0-9]*)-(0|[1-9][0-9]*)\.arrow"
)
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Keeping:
    """How the tasks of a batch keep their rows.

    Attributes:
        folder: where the query keeps its rows.
        required: a task that can't keep them fails; otherwise it goes on without.
    """

    folder: str
    required: bool


class RowKeeper:
    """Decides for each batch of one run whether its rows are kept; the driver's side.

    Args:
        folder: where the query keeps its rows.
        required: they are always kept, and a batch whose rows can't be fails.
        why_not: tells of a batch and the frames that are written why a replay may differ; None: it
            doesn't. It is asked if rows aren't ``required``.
    """

    def __init__(
        self, folder: Path, *, required: bool, why_not: Callable[[Any, Iterable[Any]], str | None]
    ) -> None:
        self.folder = str(folder)
        self._required = required
        self._why_not = why_not
        self._is_there = False
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
        path = Path(self.folder) / f"{generation}.{batch_id}"
        try:
            path.mkdir(parents=True, exist_ok=True)
            # The entry of each folder in its own, for both may be new; here, once per batch, and
            # not in each task.
            _sync(path.parent)
            if not self._is_there:
                _sync(path.parent.parent)
            self._is_there = True
        except OSError as error:
            if self._required:
                raise _failed(path, error) from error
            self._warn(f"The driver can't make {path}: {error.strerror or error}.")
            return None
        return Keeping(self.folder, self._required)

    def seen(self, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the results of tasks, of which a committable names kept rows only if they are
        there for the driver as well.

        Args:
            results: as ``tasks`` gives them; ``not_kept`` says why a task has gone on without
                keeping its rows.

        Raises:
            AttemptFailedError: they must be there, and aren't.
        """
        return [self._seen(result) for result in results]

    def _seen(self, result: dict[str, Any]) -> dict[str, Any]:
        if "not_kept" in result:
            self._warn(result["not_kept"])
        committable = result.get("committable") or {}
        kept = committable.get("rows")
        if not kept or (path := Path(self.folder) / kept["file"]).exists():
            return result
        unseen = (
            f"A task has kept rows in {path}, and the driver doesn't see them. The folder "
            "isn't on storage that every executor shares."
        )
        if self._required:
            raise AttemptFailedError(
                f"{unseen} Put the log on such storage (onceforall.commitLog), or leave "
                "onceforall.redo=durable out."
            )
        self._warn(unseen)
        return {
            **result,
            "committable": {name: value for name, value in committable.items() if name != "rows"},
        }

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

    def __init__(self, folder: str, attempt: TaskAttempt, *, required: bool = True) -> None:
        """Nothing is created yet; the batch's folder is there, by ``RowKeeper``.

        Args:
            folder: where the query keeps its rows.
            attempt: whose rows they are.
            required: the user has asked for it, and is told so when it can't be done.
        """
        self._required = required
        self._name = f"{attempt.generation}.{attempt.batch}/{attempt.write}-{attempt.partition}-{attempt.slot}.arrow"  # noqa: E501
        self._path = Path(folder) / self._name
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
                self._file = _HashedFile(self._path)
                failpoints.hit("kept.file_made")
                self._writer = pa.ipc.new_stream(
                    self._file, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
                )
            self._writer.write_batch(rows)
            failpoints.hit("kept.added")
        except OSError as error:
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
            self._file.sync_and_close()
            failpoints.hit("kept.finish.synced")
            _sync(self._path.parent)
            failpoints.hit("kept.finish.folders_synced")
        except OSError as error:
            raise self._failed(error) from error
        return {"file": self._name, "sha256": self._file.sha256.hexdigest(), "rows": self._rows}

    def _failed(self, error: OSError) -> AttemptFailedError:
        if self._required:
            return _failed(self._path, error)
        return AttemptFailedError(
            f"A task can't keep rows in {self._path}: {error.strerror or error}."
        )

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


def read_kept(folder: str, kept: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Read rows back, after the whole file was checked.

    Args:
        folder: where the query keeps its rows.
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
    path = Path(folder) / name
    try:
        failpoints.hit("kept.read.before")
        found = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                found.update(block)
        if found.hexdigest() != kept["sha256"]:
            raise AttemptFailedError(
                f"The kept rows in {path} are damaged (their SHA-256 differs from the decided "
                "one). Put the file back from a copy of the "
                "storage, or start once with onceforall.redo=replay, so that the query's replay "
                "is tried instead."
            )
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
            yield from reader
    except OSError as error:
        raise AttemptFailedError(
            f"The kept rows in {path} can't be read: {error.strerror or error}. Every executor "
            "must see this folder. If they are gone for good, "
            "start once with onceforall.redo=replay, so that the query's replay is tried instead."
        ) from error


def forget(folder: Path, batch: int) -> None:
    """Delete the rows of this batch and of lower ones, of every generation.

    Args:
        folder: where the query keeps its rows.
        batch: one that is complete on every sink, by a durable DONE.
    """
    _forget(folder, lambda _, of: of <= batch)


def forget_attempt(folder: Path, generation: int, batch: int) -> None:
    """Delete the rows that a generation has kept of a batch.

    Args:
        folder: where the query keeps its rows.
        generation: whose.
        batch: one that was not decided, in this generation or before: a decision names files.
    """
    _forget(folder, lambda by, of: (by, of) == (generation, batch))


def _forget(folder: Path, is_over: Callable[[int, int], bool]) -> None:
    if not folder.exists():
        return
    for entry in folder.iterdir():
        match = _BATCH_FOLDER.fullmatch(entry.name)
        if match is not None and is_over(int(match[1]), int(match[2])):
            failpoints.hit("kept.forget.before")
            shutil.rmtree(entry, ignore_errors=True)
            failpoints.hit("kept.forget.after")


class _HashedFile:
    """A file to write, which knows the SHA-256 of what was written."""

    def __init__(self, path: Path) -> None:
        # Never over another attempt's: names are given out once.
        self._file: IO[bytes] = path.open("xb")
        self.sha256 = hashlib.sha256()

    @property
    def closed(self) -> bool:
        return self._file.closed

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

    def flush(self) -> None:
        self._file.flush()

    def sync_and_close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def close(self) -> None:
        self._file.close()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failed(path: Path, error: OSError) -> AttemptFailedError:
    return AttemptFailedError(
        f"Rows can't be kept in {path}: {error.strerror or error}. With onceforall.redo=durable "
        "every executor must be able to write "
        "there; put the log on storage that all of them see (onceforall.commitLog), or leave the "
        "option out."
    )
