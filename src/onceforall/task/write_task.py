"""What runs in Spark's tasks: it feeds Arrow record batches to sinks, pre-commits, and returns
committables and digests.

One Spark job writes one group of writes that share the same rows. The job's frame has the columns
that their sinks take, each once, and for each write a bigint column with the
``xxhash64`` of what it takes: see ``projections``. A task yields one row per write, its only
result. A task that fails before it has yielded discards all its transactions; once it has yielded,
only the driver may abort.
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from onceforall.errors import AttemptFailedError, RefusedRecordError, text_of
from onceforall.failpoints import points as failpoints
from onceforall.protocol import contract
from onceforall.protocol.entries import Committable
from onceforall.protocol.redo import Task
from onceforall.sink import TaskAttempt, TwoPhaseCommitSink
from onceforall.task.kept_rows import Keeping, KeptFile, read_kept
from onceforall.task.projections import Taken
from onceforall.task.secret_values import received

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger("onceforall")

T = TypeVar("T")

_spared: list[bool] = []
"""Not empty once this process, or the one that it was forked from, has spared the garbage
collector."""


def result_schema() -> StructType:
    """Return the type of what a task gives back: a JSON text per write."""
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField("result", StringType())])


@dataclass(frozen=True)
class WriteSpec:
    """One write of a group: to which sink, under which name, and its ordinal in the batch.

    Attributes:
        taken: what of the task's rows it writes.
        pad: of ``secrets.Handover``.
    """

    sink: TwoPhaseCommitSink
    name: str
    write: int
    reusable: tuple[Committable, ...] = ()
    taken: Taken | None = None
    pad: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class WriteTask:
    """The function that ``mapInArrow`` runs in each task.

    Attributes:
        writes: the writes that share the rows.
        query_id: Spark's query id.
        generation: the run's generation.
        batch: Spark's batch id.
        first_task_attempt_id: a task attempt id that Spark gave out before the job began: the
            difference to it is a small number that no other task attempt of the batch has, however
            it came about (a retry, speculation, a resubmitted stage).
        digest_only: nothing is written; the replay of a decided batch.
        incarnation: see ``onceforall.sink.TaskAttempt``.
        redo: only these tasks write, all others only digest; None: all write.
        keep_in: how rows are kept until the batch is complete; None: they are not.
    """

    writes: tuple[WriteSpec, ...]
    query_id: str
    generation: int
    batch: int
    first_task_attempt_id: int
    digest_only: bool
    incarnation: int = 0
    redo: frozenset[Task] | None = None
    keep_in: Keeping | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Consume all rows of one task and yield its results."""
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        writers = [self._writer(spec, context) for spec in self.writes]

        def add_all() -> None:
            for batch in batches:
                for spec, writer in zip(self.writes, writers, strict=True):
                    taken = spec.taken
                    assert taken is not None
                    named = zip(taken.places, taken.names, strict=True)
                    schema = pa.schema(
                        [batch.schema.field(at).with_name(name) for at, name in named]
                    )
                    columns = [batch.column(at) for at in taken.places]
                    writer.add(
                        pa.RecordBatch.from_arrays(columns, schema=schema),
                        batch.column(taken.hash_place),
                    )

        yield _result(_finished(writers, add_all), context)
        failpoints.hit("task.handed_over")
        spare_collections()

    def _writer(self, spec: WriteSpec, context: Any) -> _Writer:
        attempt = self._attempt(spec, context)
        digest_only = self.digest_only or (
            self.redo is not None and (attempt.write, attempt.partition) not in self.redo
        )
        return _Writer(spec, attempt, digest_only, self.keep_in)

    def _attempt(self, spec: WriteSpec, context: Any) -> TaskAttempt:
        slot = context.taskAttemptId() - self.first_task_attempt_id
        return TaskAttempt(
            self.query_id,
            spec.name,
            self.generation,
            self.batch,
            spec.write,
            context.partitionId(),
            slot,
            spec.reusable,
            self.incarnation,
        )


@dataclass(frozen=True)
class KeptRows:
    """One lost transaction: which write's and partition's it was, and where its rows are."""

    spec: WriteSpec
    partition: int
    kept: Mapping[str, Any]


@dataclass(frozen=True)
class WriteKeptTask:
    """The function that ``mapInArrow`` runs to write kept rows again; each row of its input is the
    number of an entry.

    Attributes:
        entries: what is written.
        keep_in: the place of the rows.

    The others are those of ``WriteTask``.
    """

    entries: tuple[KeptRows, ...]
    query_id: str
    generation: int
    batch: int
    first_task_attempt_id: int
    incarnation: int
    keep_in: Keeping

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the entries of one task and yield their results."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        slot = context.taskAttemptId() - self.first_task_attempt_id
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                yield _result(self._write(self.entries[number], slot), context)
                failpoints.hit("task.kept.handed_over")

    def _write(self, entry: KeptRows, slot: int) -> list[dict[str, Any]]:
        spec = entry.spec
        attempt = TaskAttempt(
            self.query_id,
            spec.name,
            self.generation,
            self.batch,
            spec.write,
            entry.partition,
            slot,
            incarnation=self.incarnation,
        )
        writer = _Writer(spec, attempt, digest_only=False, keep_in=None, kept=entry.kept)

        def add_all() -> None:
            for rows in read_kept(self.keep_in.opened(), entry.kept):
                writer.add(rows, None)

        results = _finished([writer], add_all)
        return [{**result, "partition": entry.partition} for result in results]


def _finished(writers: list[_Writer], add_all: Callable[[], None]) -> list[dict[str, Any]]:
    """Feed the writers and pre-commit; a failure discards them all."""
    try:
        add_all()
        failpoints.hit("task.pre_commit.before")
        results = _all_finished(writers)
    except RefusedRecordError as error:
        _discard(writers)
        results = [{"refused": text_of(error), "sink": error.sink}]
    except BaseException:
        _discard(writers)
        raise
    failpoints.hit("task.pre_commit.after")
    return results


def _all_finished(writers: list[_Writer]) -> list[dict[str, Any]]:
    """Pre-commit on all sinks at once, since each waits for another system; the first error, if
    any, when all have an answer.
    """
    if len(writers) < 2:
        return [writer.finish() for writer in writers]
    with ThreadPoolExecutor(len(writers), thread_name_prefix="onceforall-pre-commit") as threads:
        futures = [threads.submit(writer.finish) for writer in writers]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        # A refused record is the more useful news: no replay helps there.
        raise next((error for error in errors if isinstance(error, RefusedRecordError)), errors[0])
    return [future.result() for future in futures]


def _result(results: list[dict[str, Any]], context: Any) -> pa.RecordBatch:
    where = {
        "partition": context.partitionId(),
        "attempt": context.attemptNumber(),
        "stage": context.stageId(),
    }
    return text_batch("result", [json.dumps({**where, **result}) for result in results])


def text_batch(name: str, texts: Sequence[str]) -> pa.RecordBatch:
    """Return a batch with one column of texts.

    From buffers, for Arrow imports pandas to convert anything of Python's
    (``InitPandasStaticData``), half of the time that a worker takes to load what it needs.
    """
    import numpy as np
    import pyarrow as pa

    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    column = pa.Array.from_buffers(
        pa.string(), len(encoded), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    )
    return pa.RecordBatch.from_arrays([column], [name])


def accepted(
    sink: TwoPhaseCommitSink, name: str, answer: object, *, rows: int
) -> Committable | None:
    """Return what a sink's ``pre_commit`` answered, if another process can commit by it; None:
    nothing needs a commit.

    Args:
        sink: whose it is.
        name: the sink's, in its query.
        answer: what ``pre_commit`` returned.
        rows: how many were written.

    Raises:
        AttemptFailedError: the rows could not be committed by it.
    """
    what = f"Sink {name}: {type(sink).__name__}.pre_commit"
    if answer is None:
        if rows and contract.needs_a_commit(sink.capabilities):
            raise AttemptFailedError(
                f"{what} returned None though rows were written: nobody could commit them. Mend "
                "the sink's pre_commit: it must return a committable, unless the sink's "
                "capabilities say idempotent, or a delivery other than exactly_once."
            )
        return None
    try:
        return contract.prepared(answer)
    except contract.BrokenContractError as error:
        raise AttemptFailedError(f"{what} {error}. Mend the sink's pre_commit.") from None


def spare_collections() -> None:
    """Take what this worker process has loaded out of the garbage collector's sight, once.

    PySpark's daemon collects all garbage behind each task (``gc.collect()`` in
    ``pyspark/daemon.py``), and looks each time at every object of the modules that Arrow, numpy and
    the clients have brought, which never go: more work than the rest of a task with few rows. See
    ``gc.freeze`` in Python's documentation.
    """
    # Not asked of gc.get_freeze_count(), which walks through all that is frozen.
    if not _spared:
        gc.collect()
        gc.freeze()
        _spared.append(True)


def plain(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with Arrow's plain types for texts, bytes and lists, at each depth: a sink
    need not know that there are others.

    With ``spark.sql.execution.arrow.useLargeVarTypes`` Spark gives the large ones, with offsets of
    64 bits.

    Raises:
        AttemptFailedError: one batch has more than 2 GiB of a column.
    """
    import pyarrow as pa

    if not any(_has_large(each.type) for each in rows.schema):
        return rows
    try:
        return rows.cast(pa.schema([each.with_type(_plain(each.type)) for each in rows.schema]))
    except pa.ArrowInvalid as error:
        raise AttemptFailedError(
            f"A batch of {rows.num_rows} rows of Spark's is too large: {error}. Lower "
            "spark.sql.execution.arrow.maxRecordsPerBatch."
        ) from error


def _is_large(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_list(kind)
    )


def _has_large(kind: pa.DataType) -> bool:
    return _is_large(kind) or any(_has_large(kind.field(i).type) for i in range(kind.num_fields))


def _plain(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if not _has_large(kind):
        return kind
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), kind.item_field.with_type(_plain(kind.item_type)))
    made = [kind.field(i).with_type(_plain(kind.field(i).type)) for i in range(kind.num_fields)]
    return pa.struct(made) if pa.types.is_struct(kind) else pa.list_(made[0])


class _Writer:
    """One write in one task."""

    def __init__(
        self,
        spec: WriteSpec,
        attempt: TaskAttempt,
        digest_only: bool,  # noqa: FBT001
        keep_in: Keeping | None,
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        self._spec = spec
        self._attempt = attempt
        self._digest_only = digest_only
        self._must_keep = keep_in is not None and keep_in.required
        self._keeper = (
            None
            if keep_in is None
            else KeptFile(keep_in.opened(), attempt, required=keep_in.required)
        )
        self._not_kept: dict[str, str] = {}
        self._kept = kept
        self._transaction: Any = None
        self._open = False
        self._rows = 0
        self._hash_sum = 0

    def add(self, rows: pa.RecordBatch, hashes: pa.Array | None) -> None:
        if rows.num_rows == 0:
            return
        rows = plain(rows)
        self._rows += rows.num_rows
        if hashes is not None:
            self._hash_sum = (self._hash_sum + hash_sum(hashes)) % 2**64
        if self._digest_only:
            return
        if not self._open:
            attempt = replace(self._attempt, secrets=received(self._spec.name, self._spec.pad))
            failpoints.hit("task.begin.before")
            self._transaction = self._spec.sink.begin_transaction(attempt)
            self._open = True
            failpoints.hit("task.begin.after")
        with self._whose_errors():
            self._spec.sink.invoke(self._transaction, rows)
        failpoints.hit("task.invoke.after")
        self._keep(lambda keeper: keeper.add(rows))

    def _keep(self, keep: Callable[[KeptFile], T]) -> T | None:
        """Take a step of keeping the rows; unless they must be kept, one that fails is the last."""
        if self._keeper is None:
            return None
        try:
            return keep(self._keeper)
        except AttemptFailedError as error:
            if self._must_keep:
                raise
            self._keeper.discard()
            self._keeper = None
            self._not_kept = {"not_kept": str(error)}
            return None

    def finish(self) -> dict[str, Any]:
        if self._open:
            self._kept = self._keep(lambda keeper: keeper.finish()) or self._kept
        with self._whose_errors():
            committable = self._prepared() if self._open else None
        failpoints.hit("task.pre_commit.one")
        return {
            "write": self._spec.write,
            "rows": self._rows,
            "hash_sum": f"{self._hash_sum:016x}",
            "committable": None if committable is None else {**committable, **self._whose()},
            **self._not_kept,
        }

    def _prepared(self) -> Committable | None:
        sink = self._spec.sink
        return accepted(sink, self._spec.name, sink.pre_commit(self._transaction), rows=self._rows)

    @contextmanager
    def _whose_errors(self) -> Iterator[None]:
        try:
            yield
        except RefusedRecordError as error:
            error.sink = self._spec.name
            raise

    def _whose(self) -> dict[str, Any]:
        """Return what the committable says of its rows, should they have to be written again."""
        task = {"task": [self._attempt.write, self._attempt.partition]}
        return task if self._kept is None else {**task, "rows": dict(self._kept)}

    def discard(self) -> None:
        if self._open:
            self._spec.sink.discard(self._transaction)
        if self._keeper is not None:
            self._keeper.discard()


def _discard(writers: list[_Writer]) -> None:
    failpoints.hit("task.discard.before")
    for writer in writers:
        try:
            writer.discard()
        except Exception:  # noqa: PERF203  no sink may keep the others from being discarded
            logger.exception("a transaction could not be discarded; a sweep finds it")
    failpoints.hit("task.discard.after")


def hash_sum(hashes: pa.Array) -> int:
    """Return the sum of 64-bit hashes modulo 2^64; it does not depend on their order."""
    import numpy as np

    # Not to_numpy, which imports pandas: see text_batch. A hash is never null.
    return int(np.add.reduce(np.from_dlpack(hashes).view(np.uint64), dtype=np.uint64))
