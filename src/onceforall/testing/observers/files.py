"""Reads a folder of ``FileSink``, or its prefix in a bucket, by its manifests, and finds what lies
there beside the committed files.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from onceforall.errors import SinkUnavailableError
from onceforall.protocol.names import sink_code
from onceforall.sinks.files.paths import HOME, SPARK_METADATA, STAGING, UPLOADS
from onceforall.sinks.files.reading.committed_files import (
    CommittedBatch,
    CommittedFiles,
    read_files,
)
from onceforall.sinks.files.reading.sources import (
    AzureSource,
    GcsSource,
    HdfsSource,
    S3Source,
    Source,
    source_of,
)
from onceforall.testing.checker import NO_ROWS, Rows, contents_of
from onceforall.testing.checker.rows import Array
from onceforall.testing.observers.base import Ids, decoded, joined


class FileObserver:
    """An observer of one folder.

    A committed file never changes, so a look opens only files of batches that no look before had.
    For a check when all is quiet take a new observer, which opens every file.

    Args:
        path: the sink's folder, or the URL of its prefix in a bucket or of its folder on HDFS.
        column: the column with the ids.
        key_column: the column with the keys; None: keys are not looked at.
        query_id: only this query's batches; None: all.
        sink: only those of the sink of this name; None: all.
        ids: how ids are read.
        keys: how keys are read.
        content: the columns whose values make up the content of a row (``contents_of``), in this
            order; none: contents are not looked at.
        ordered: whether the order of rows is looked at: that of the batches, and within a file that
            of its rows. It needs rows whose tasks are known (``Truth.tasks_at``), each of which
            writes the rows of a key into one file.
        storage: how to reach the bucket, as ``read_files`` takes it.

    Raises:
        OptionError, UnsupportedQueryError, MissingExtraError: as ``read_files``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        column: str = "value",
        key_column: str | None = "key",
        query_id: str | None = None,
        sink: str | None = None,
        ids: Ids = "numbers",
        keys: Ids = "numbers",
        content: Sequence[str] = (),
        ordered: bool = False,
        storage: Mapping[str, str] | None = None,
    ) -> None:
        self._source: Source = source_of(path, storage)
        self._path, self._storage = path, storage
        self._root = self._source.root
        self._column = column
        self._key_column = key_column
        self._query_id = query_id
        self._sink = sink
        self._id_kind: Ids = ids
        self._key_kind: Ids = keys
        self._content = tuple(content)
        self._ordered = ordered
        self._known: dict[tuple[str, str, int, frozenset[str]], _Part] = {}

    def __repr__(self) -> str:
        return f"FileObserver({str(self._root)!r})"

    def rows(self) -> Rows:
        """Return all rows of committed batches; none where nothing was ever written.

        Raises:
            SinkUnavailableError: the folder or a file can't be read.
            CorruptEntryError, ForeignEntryError, NewerEntryError: a manifest is damaged.
        """
        parts = []
        for batch in sorted(self._batches(), key=lambda each: each.files.batch):
            mark = batch.query_id, batch.sink, batch.files.batch, batch.files.attempts
            if mark not in self._known:
                self._known[mark] = self._read(batch)
            parts.append(self._known[mark])
        if not parts:
            return NO_ROWS
        keys = joined([part.keys for part in parts if part.keys is not None], self._key_kind)
        contents = joined([part.contents for part in parts if part.contents is not None], "numbers")
        ids = joined([part.ids for part in parts], self._id_kind)
        return Rows(
            ids,
            np.zeros(len(ids), np.int64) if self._ordered else None,
            np.arange(len(ids), dtype=np.int64) if self._ordered else None,
            keys=None if self._key_column is None else keys,
            contents=contents if self._content else None,
        )

    def attempts(self) -> dict[int, frozenset[str]]:
        """Return, by batch, the names of the task attempts whose rows a reader sees; see
        ``checker.check_log``.

        Raises:
            The errors of ``rows``.
        """
        found: dict[int, frozenset[str]] = {}
        # Other sinks and queries of this folder have batches of the same number.
        for each in self._batches():
            found[each.files.batch] = found.get(each.files.batch, frozenset()) | each.files.attempts
        return found

    def leftovers(self) -> list[str]:
        """Return what lies in the folder and is neither a committed file nor a manifest: temp
        files, staging folders, data files without a manifest; in a bucket incomplete uploads, too.

        Raises:
            SinkUnavailableError: the folder can't be read.
        """
        if isinstance(self._source, AzureSource | GcsSource | S3Source):
            return self._left_in_a_bucket(self._source)
        if isinstance(self._source, HdfsSource):
            return self._left_on_hdfs(self._source)
        staging = self._root / STAGING
        stray = [self._root / path for path in self._stray(_files_below(self._root))]
        folders = (
            sorted(path for path in staging.iterdir() if path.is_dir()) if staging.is_dir() else []
        )
        inside = Counter(path.parent for path in stray)
        left = [f"staging folder {folder.name} with {inside[folder]} files" for folder in folders]
        return left + [
            f"file {path.relative_to(self._root)}"
            for path in sorted(stray)
            if path.parent not in folders and path.exists()
        ]

    def _left_in_a_bucket(self, source: AzureSource | GcsSource | S3Source) -> list[str]:
        bucket = source.tree.store
        try:
            uploads = bucket.uploads_below(self._root)
            stray = self._stray(bucket.keys_below(self._root))
        except OSError as error:
            raise self._unreadable(error) from error
        return [
            *(f"upload to {key}" for key in sorted(uploads)),
            *(f"object {key}" for key in sorted(stray)),
        ]

    def _left_on_hdfs(self, source: HdfsSource) -> list[str]:
        if not source.tree.is_folder(self._root / STAGING):
            return []
        try:
            attempts = source.tree.names(self._root / STAGING)
            stray = self._stray(source.tree.keys_below(self._root))
        except OSError as error:
            raise self._unreadable(error) from error
        return [
            *(f"staging folder {name}" for name in sorted(attempts)),
            *(f"file {path}" for path in sorted(stray) if not path.startswith(f"{STAGING}/")),
        ]

    def _stray(self, found: list[str]) -> list[str]:
        # What was committed while the folder was walked through is known by now.
        known = {file.path for batch in self._all_batches() for file, _ in batch.files.files}
        return [path for path in found if path not in known and not _is_kept(path.split("/"))]

    def close(self) -> None:
        """Forget what was read."""
        self._known.clear()

    def _batches(self) -> list[CommittedBatch]:
        code = None if self._sink is None else sink_code(self._sink)
        wanted = self._all_batches()
        return [
            each
            for each in wanted
            if self._query_id in {None, each.query_id} and code in {None, each.sink}
        ]

    def _all_batches(self) -> tuple[CommittedBatch, ...]:
        try:
            if not self._source.tree.is_folder(self._root / HOME):
                return ()
            return read_files(self._path, storage=self._storage).batches
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"The folder {self._root} can't be read: {error.strerror or error}. Mend that."
        )

    def _read(self, batch: CommittedBatch) -> _Part:
        try:
            table = CommittedFiles(self._source, [batch]).to_arrow()
        except OSError as error:
            raise SinkUnavailableError(
                f"Batch {batch.files.batch} in {self._root} can't be read: {error}. A committed "
                "file is missing or damaged."
            ) from error
        return _Part(
            _column(table, self._column, self._id_kind),
            None if self._key_column is None else _column(table, self._key_column, self._key_kind),
            self._contents(table),
        )

    def _contents(self, table: pa.Table) -> Array | None:
        if not self._content:
            return None
        if table.num_rows == 0:
            return joined([], "numbers")
        return contents_of(
            [table.column(name).to_pylist(maps_as_pydicts="strict") for name in self._content]
        )


@dataclass(frozen=True, eq=False)
class _Part:
    """The rows of one batch."""

    ids: Array
    keys: Array | None
    contents: Array | None


def _column(table: pa.Table, name: str, how: Ids) -> Array:
    if table.num_rows == 0:
        return joined([], how)
    return decoded(table.column(name).to_pylist(), how)


def _files_below(root: Path) -> list[str]:
    return [
        Path(folder, name).relative_to(root).as_posix()
        for folder, _, names in os.walk(root)
        for name in names
    ]


def _is_kept(parts: list[str]) -> bool:
    """Tell whether a file is one of those that the sink keeps in its own folder, or one of
    Spark's own log, which it may continue.
    """
    if parts[-1].endswith(".tmp"):
        return False
    return parts[0] == SPARK_METADATA or (
        parts[0] == HOME and "/".join(parts[:2]) not in {STAGING, UPLOADS}
    )
