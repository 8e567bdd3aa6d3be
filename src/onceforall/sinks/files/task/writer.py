"""The task's side: rows to temp files, in bounded memory and with a bounded number of open files.

Rows wait in memory by destination until there are enough for a good row group (``CHUNK_BYTES``), or
all that wait is too much (``MEMORY_BYTES``): then the largest heap is written. With many
destinations they come a few at a time, and what Arrow needs beside the values is more than these:
it counts, and the parts of each heap are joined before any is written for that. Only then a file is
opened; when too many are open, the one that was written to the longest time ago is ended, and its
destination gets a new one later.

A file counts when it is closed and synced, and so is the attempt's folder: all of that before
``pre_commit`` returns.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from onceforall.errors import RefusedRecordError
from onceforall.failpoints import points as failpoints
from onceforall.sink import TaskAttempt
from onceforall.sinks.files.data_files import DataFile, file_name
from onceforall.sinks.files.folders import failing_the_attempt
from onceforall.sinks.files.places import Target
from onceforall.sinks.files.task.formats import FileFormat, FormatWriter, in_utc
from onceforall.sinks.files.task.partitions import Destination, Partitioner
from onceforall.sinks.files.time_buckets import TimeBucket

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 32 << 20
MEMORY_BYTES = 128 << 20
ARRAY_BYTES = 600
"""About what an array needs beside its values: buffers of 64 bytes at least, and objects."""


@dataclass(frozen=True)
class Plan:
    """How files are made; pickled to the tasks as part of the sink."""

    target: Target
    form: FileFormat
    partition_by: tuple[str, ...] = ()
    bucket: TimeBucket | None = None
    max_file_bytes: int = 256 << 20
    max_open_files: int = 50


@dataclass
class _Open:
    """A temp file that is being written."""

    name: str
    file: IO[bytes]
    writer: FormatWriter
    rows: int = 0


@dataclass
class _Heap:
    """The rows that wait for one destination, and its open file."""

    waiting: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    open: _Open | None = None


def _arrays(kind: pa.DataType) -> int:
    """Return of how many arrays a column of this type consists."""
    return 1 + sum(_arrays(kind.field(n).type) for n in range(kind.num_fields))


class FileTransaction:
    """The temp files of one task attempt."""

    def __init__(self, plan: Plan, attempt: TaskAttempt) -> None:
        """Make the attempt's folder.

        Raises:
            AttemptFailedError: it can't be made, or is there: another attempt's of the same name.
        """
        self._plan = plan
        self._attempt = attempt
        self.name = attempt.name
        self._root = plan.target.root
        self.staging = plan.target.staging(attempt)
        self.is_over = False
        self.files: list[DataFile] = []
        self.schema: pa.Schema | None = None
        self._partitioner = Partitioner(plan.partition_by, plan.bucket, plan.target)
        self._heaps: OrderedDict[Destination, _Heap] = OrderedDict()
        self._waiting_bytes = 0
        self._parts = 0
        self._part_bytes = 0
        self._ordinal = 0
        with failing_the_attempt(self._root):
            self.staging.begin()
            failpoints.hit("file.begin.made")

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows.

        Raises:
            AttemptFailedError: the file system refuses.
            RefusedRecordError: a value can't be stored or makes no folder; no replay can change
                that.
        """
        if rows.num_rows == 0:
            return
        if self.schema is None:
            self.schema = in_utc(rows.schema)
            self._part_bytes = ARRAY_BYTES * sum(_arrays(each.type) for each in self.schema)
        with self._refusing(), failing_the_attempt(self._root):
            stored = rows if rows.schema == self.schema else rows.cast(self.schema)
            for destination, part in self._partitioner.parts(rows, stored):
                heap = self._heaps.setdefault(destination, _Heap())
                heap.waiting.append(part)
                size = max(part.nbytes, 1)
                heap.bytes += size
                self._waiting_bytes += size
                self._parts += 1
                if heap.bytes >= min(CHUNK_BYTES, self._plan.max_file_bytes):
                    self._flush(destination, heap)
            if self._waits_too_much and self._parts > 2 * len(self._heaps):
                self._join()
            while self._waits_too_much:
                destination, heap = max(self._heaps.items(), key=lambda item: item[1].bytes)
                self._flush(destination, heap)

    def finish(self) -> list[DataFile]:
        """End all files, durably, and return them; errors as those of ``write``."""
        failpoints.hit("file.pre_commit.before")
        with self._refusing(), failing_the_attempt(self._root):
            for destination, heap in list(self._heaps.items()):
                self._flush(destination, heap)
                self._end(destination, heap)
            failpoints.hit("file.pre_commit.before_sync")
            self.staging.finish()
        self.is_over = True
        failpoints.hit("file.pre_commit.after")
        return self.files

    def discard(self) -> None:
        """Give everything up; never raises. What ``finish`` has returned is left alone: it
        belongs to the driver.
        """
        if self.is_over:
            return
        self.is_over = True
        for heap in self._heaps.values():
            if heap.open is not None:
                with contextlib.suppress(Exception):
                    heap.open.writer.close()
                with contextlib.suppress(Exception):
                    heap.open.file.close()
        self._heaps.clear()
        with contextlib.suppress(OSError):
            self.staging.discard()

    @property
    def _waits_too_much(self) -> bool:
        return self._waiting_bytes + self._parts * self._part_bytes > MEMORY_BYTES

    def _join(self) -> None:
        """Make one part of all that waits for a destination."""
        import pyarrow as pa

        for heap in self._heaps.values():
            if len(heap.waiting) < 2:
                continue
            joined = pa.Table.from_batches(heap.waiting).combine_chunks().to_batches()
            size = max(sum(each.nbytes for each in joined), 1)
            self._parts += len(joined) - len(heap.waiting)
            self._waiting_bytes += size - heap.bytes
            heap.waiting, heap.bytes = joined, size

    def _flush(self, destination: Destination, heap: _Heap) -> None:
        """Write what waits for a destination; files that are full are ended on the way."""
        import pyarrow as pa

        if not heap.waiting:
            return
        table = pa.Table.from_batches(heap.waiting)
        size = heap.bytes
        self._parts -= len(heap.waiting)
        heap.waiting, heap.bytes = [], 0
        self._waiting_bytes -= size
        chunk_bytes = min(CHUNK_BYTES, self._plan.max_file_bytes)
        chunk_rows = max(1, table.num_rows * chunk_bytes // size)
        for start in range(0, table.num_rows, chunk_rows):
            chunk = table.slice(start, chunk_rows)
            opened = self._opened(destination, heap, table.schema)
            opened.writer.write(chunk)
            opened.rows += chunk.num_rows
            if opened.file.tell() >= self._plan.max_file_bytes:
                self._end(destination, heap)

    def _opened(self, destination: Destination, heap: _Heap, schema: pa.Schema) -> _Open:
        self._heaps.pop(destination, None)
        self._heaps[destination] = heap  # the last one is the one that was used last
        if heap.open is None:
            self._make_room()
            name = file_name(
                self._attempt.partition, self._ordinal, self.name, self._plan.form.extension
            )
            self._ordinal += 1
            file = self.staging.open(name, destination.folder)
            try:
                failpoints.hit("file.write.opened")
                heap.open = _Open(
                    name, file, self._plan.form.open(file, schema, self._plan.max_file_bytes)
                )
            except BaseException:
                file.close()
                raise
        return heap.open

    def _make_room(self) -> None:
        opened = [
            (destination, heap)
            for destination, heap in self._heaps.items()
            if heap.open is not None
        ]
        for destination, heap in opened[: max(0, len(opened) + 1 - self._plan.max_open_files)]:
            self._end(destination, heap)

    def _end(self, destination: Destination, heap: _Heap) -> None:
        """End a destination's open file, durably."""
        if heap.open is None:
            return
        opened = heap.open
        opened.writer.close()
        size = self.staging.end(opened.file)
        heap.open = None
        if not heap.waiting:
            del self._heaps[destination]
        path = f"{destination.folder}/{opened.name}" if destination.folder else opened.name
        self.files.append(DataFile(path, opened.rows, size, dict(destination.partition)))
        failpoints.hit("file.pre_commit.file_synced")

    @contextlib.contextmanager
    def _refusing(self) -> Any:
        """Turn a value that pyarrow can't store into an error that says that no replay helps."""
        import pyarrow as pa

        try:
            yield
        except (
            pa.ArrowInvalid,
            pa.ArrowNotImplementedError,
            UnicodeDecodeError,
            OverflowError,
        ) as error:
            raise RefusedRecordError(
                f"A value can't be written as {self._plan.form.kind} to {self._root}: {error}. "
                "Filter or repair such rows in the query."
            ) from error
