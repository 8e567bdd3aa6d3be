"""Reads a query's commit log, and Spark's own, beside a query that runs or after its end; writes
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from onceforall.commit_log import CommitLog, binding
from onceforall.errors import CheckpointMismatchError, CommitLogError
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark.remote_path import AnyPath, store_at
from onceforall.spark.stores import Stores
from onceforall.testing.checker import LogView

_TRIES = 20


class CommitLogObserver:
    """An observer of the logs of one checkpoint. Another run may claim, decide, seal and clean
    while it reads.

    Args:
        checkpoint: the checkpoint's folder, or its URL on a store. One on HDFS starts a JVM.
        first_batch: the first batch that the query writes: not 0 where a plain query's checkpoint
            was taken over.
        store: settings of the store, as ``onceforall.store.*`` without that prefix.

    Raises:
        OptionError, UnsupportedQueryError: there can't be a checkpoint at such a place.
        MissingExtraError: obstore is needed, and isn't installed.
        CommitLogError: the store can't be opened.
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str],
        *,
        first_batch: int = 0,
        store: Mapping[str, str] | None = None,
    ) -> None:
        self._stores = Stores(None, store)
        self._checkpoint = self._stores.checkpoint(os.fspath(checkpoint))
        self._first_batch = first_batch

    def __repr__(self) -> str:
        return f"CommitLogObserver({str(self._checkpoint)!r})"

    @property
    def checkpoint(self) -> AnyPath:
        """The checkpoint's folder."""
        return self._checkpoint

    def query_id(self) -> str | None:
        """Return Spark's query id; None before the first start."""
        return spark_checkpoint.query_id(self._checkpoint)

    def decided(self) -> range:
        """Return the batches that are decided by now: a few reads, however long the log is.

        Raises:
            CheckpointMismatchError: a move of the log or of its checkpoint isn't finished.
            CommitLogError: the log can't be read.
        """
        for attempt in range(_TRIES):
            try:
                log = self._open()
                if log is None:
                    return range(self._first_batch, self._first_batch)
                decided = log.look().decided
            except (CheckpointMismatchError, CommitLogError):
                # A run that seals and cleans, or a command that moves the log, may leave a reader
                # behind; a damaged log stays damaged.
                if attempt == _TRIES - 1:
                    raise
                continue
            return range(
                self._first_batch,
                self._first_batch if decided is None else decided.commit.batch + 1,
            )
        raise AssertionError

    def view(self) -> LogView:
        """Return all entries that are there; meant for a log to which nobody writes.

        Raises:
            CommitLogError: the log can't be read.
        """
        log = self._open()
        newest = None if log is None else log.newest_generation()
        if log is None or newest is None:
            return LogView({})
        oldest = log.oldest_generation()
        chains = {generation: log.entries(generation) for generation in range(oldest, newest + 1)}
        return LogView(
            {generation: chain for generation, chain in chains.items() if chain},
            is_dropped=oldest > log.first_generation,
        )

    def spark_committed(self) -> int:
        """Return the last batch in Spark's own commit log, or -1."""
        return spark_checkpoint.last_committed(self._checkpoint)

    def spark_planned(self) -> int:
        """Return the last batch in Spark's offset log, or -1."""
        return spark_checkpoint.last_planned(self._checkpoint)

    def _open(self) -> CommitLog | None:
        home = self._checkpoint / spark_checkpoint.LOG_FOLDER
        if not home.is_dir():
            return None
        bound = binding.find(store_at(home), open_store=self._stores.open)
        return None if bound is None else bound.log()
