"""Makes durable what Spark has written of a batch, before the batch is decided; Spark itself syncs
nothing.

The decision is synced. A loss of power that took one of Spark's files behind it would leave a
decided batch that Spark plans anew, with other offsets, or can't run again. So before COMMIT of
batch b these are on the disk, names included:

- ``metadata``: the query's id, without which the log is another query's;
- ``offsets/<b>``, the plan of the batch, and ``offsets/<b-1>``, where it begins;
- ``commits/<b-1>``: when it is torn, Spark does not start; when it is gone, state of checkpoint
  format 2 can't be found;
- ``sources/``: what offsets mean (the files of a file source, the first offsets of a Kafka source);
- ``state/``: version b, from which a replay rebuilds the state, and version b + 1, which the
  batch's own tasks have written. So where Spark's entry ``commits/<b>`` is on the disk, by chance
  or not, the state that it speaks of is there too.

Once, before a plain query's checkpoint is taken over, all of it is made durable.

All but the last are written before the batch runs, so that they are synced while it does. What may
be lost is ``commits/<b>``, and everything of a batch that is not decided: then Spark asks for its
last batch again, and the commit log knows what became of it.

Not covered: state that an executor on another machine has written to a file system that is not
synced when a file is closed (NFS does that).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from onceforall.common.threads import Threads
from onceforall.errors import CommitLogError
from onceforall.failpoints import points as failpoints

__all__ = ["SparkFiles"]

_PLAN = ("offsets", "commits", "sources")
_STATE = ("state",)
_THREADS = 8


class SparkFiles:
    """Spark's files in one checkpoint; it remembers which of them are durable, so that each is
    synced once.

    The caller's sequence, for each batch: ``begin`` when Spark asks for it, ``written`` when its
    tasks have ended, and the decision only after the future that this returns has its result.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._durable: dict[Path, frozenset[tuple[str, int]]] = {}
        self._threads = Threads(_THREADS, thread_name_prefix="onceforall-sync")
        self._planned: Future[None] | None = None

    def sync_identity(self) -> None:
        """Make the query's id durable, before anything of ours is that names it.

        Raises:
            CommitLogError: the file system refused.
        """
        self._explained(self._sync_identity)

    def sync_finished(self) -> None:
        """Make durable what a plain query has finished, before the checkpoint is marked as ours:
        behind that a batch that Spark hasn't finished is taken for one of ours, whose rows nobody
        has seen.

        Raises:
            CommitLogError: the file system refused.
        """

        def sync() -> None:
            for folder in (*_PLAN, *_STATE):
                self._sync_new(self._checkpoint / folder)

        self._explained(sync)

    def begin(self, batch: int) -> None:
        """Begin to sync what Spark has written of a batch before it runs; it goes on in the
        background.
        """
        self._planned = self._threads.submit(self._explained, partial(self._sync_plan, batch))

    def written(self) -> Future[None]:
        """Begin to sync the state that the batch's tasks have written.

        Returns:
            A future: with its result, all of that is durable, and what ``begin`` has begun too. Its
            error is a ``CommitLogError``.
        """
        failpoints.hit("spark_files.written")
        planned = self._planned
        return self._threads.submit(self._explained, partial(self._sync_rest, planned))

    def close(self) -> None:
        """Release the threads."""
        self._threads.shutdown(wait=False)

    def _sync_identity(self) -> None:
        _sync(self._checkpoint / "metadata")
        _sync(self._checkpoint)

    def _sync_plan(self, batch: int) -> None:
        # By its name, for here a missing file is an error.
        _sync(self._checkpoint / "offsets" / str(batch))
        for folder in _PLAN:
            self._sync_new(self._checkpoint / folder)

    def _sync_rest(self, planned: Future[None] | None) -> None:
        for folder in _STATE:
            self._sync_new(self._checkpoint / folder)
        if planned is not None:
            planned.result()

    def _sync_new(self, folder: Path) -> None:
        """Sync what is new in a folder and below it, and the names of new folders in those
        above.
        """
        found = {inner: _files(inner) for inner in _folders(folder)}
        new: dict[Path, None] = {}
        for inner, files in found.items():
            known = self._durable.get(inner)
            if known is None:
                new[inner.parent] = None
            if files != known:
                new.update(
                    dict.fromkeys(inner / name for name, _ in files - (known or frozenset()))
                )
                new[inner] = None
        if new:
            self._sync_all(list(new))
        self._durable.update(found)

    @staticmethod
    def _sync_all(paths: Sequence[Path]) -> None:
        if len(paths) < _THREADS:
            for path in paths:
                _sync(path, may_be_gone=True)
            return
        with Threads(_THREADS, thread_name_prefix="onceforall-sync-files") as threads:
            for done in [threads.submit(_sync, path, may_be_gone=True) for path in paths]:
                done.result()

    def _explained(self, sync: Callable[[], None]) -> None:
        try:
            sync()
        except OSError as error:
            raise CommitLogError(
                f"Spark's files in the checkpoint {self._checkpoint} can't be synced: "
                f"{error.filename or ''} {error.strerror}. Nothing was "
                "decided without that. Mend it, and start again."
            ) from error


def _folders(folder: Path) -> list[Path]:
    """Return a folder and all below it; none where there is none."""
    return [Path(path) for path, _, _ in os.walk(folder)]


def _files(folder: Path) -> frozenset[tuple[str, int]]:
    """Return names and inodes of the files of a folder, without checksums and temporary files:
    what Spark can do without.
    """
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        return frozenset(
            (entry.name, entry.inode())
            for entry in entries
            if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False)
        )
    return frozenset()


def _sync(path: Path, *, may_be_gone: bool = False) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        # Spark deletes what is old at any time.
        if may_be_gone:
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
