"""What runs in Spark's tasks: it feeds Arrow record batches to sinks, pre-commits, and returns committables and digests.

One Spark job writes one group of writes that share the same rows. The job's frame has, for each write *i*, a struct column
``w<i>`` of the sink's columns and a bigint column ``h<i>`` with the row's ``xxhash64``. A task yields one row per write, its only
result. A task that fails before it has yielded discards all its transactions; once it has yielded, only the driver may abort.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceforall.errors import RefusedRecordError
from onceforall.protocol.entries import Committable
from onceforall.sink import TaskAttempt, TwoPhaseCommitSink
from onceforall.testing import failpoints

if TYPE_CHECKING:
    import pyarrow as pa

RESULT_SCHEMA = "result string"


@dataclass(frozen=True)
class WriteSpec:
    """One write of a group: to which sink, under which name, and its ordinal in the batch."""

    sink: TwoPhaseCommitSink
    name: str
    write: int
    reusable: tuple[Committable, ...] = ()


@dataclass(frozen=True)
class WriteTask:
    """The function that ``mapInArrow`` runs in each task.

    Attributes:
        writes: the writes that share the rows.
        query_id: Spark's query id.
        generation: the run's generation.
        batch: Spark's batch id.
        first_task_attempt_id: a task attempt id that Spark gave out before the job began: the difference to it is a small number
            that no other task attempt of the batch has, however it came about (a retry, speculation, a resubmitted stage).
        digest_only: nothing is written; the replay of a decided batch.
        incarnation: see ``onceforall.sink.TaskAttempt``.
    """

    writes: tuple[WriteSpec, ...]
    query_id: str
    generation: int
    batch: int
    first_task_attempt_id: int
    digest_only: bool
    incarnation: int = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Consume all rows of one task and yield its results."""
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        writers = [_Writer(spec, self._attempt(spec, context), self.digest_only) for spec in self.writes]
        try:
            for batch in batches:
                for i, writer in enumerate(writers):
                    writer.add(pa.RecordBatch.from_struct_array(batch.column(2 * i)), batch.column(2 * i + 1))
            failpoints.hit("task.pre_commit.before")
            results = [writer.finish() for writer in writers]
        except RefusedRecordError as error:
            _discard(writers)
            results = [{"refused": str(error)}]
        except BaseException:
            _discard(writers)
            raise
        failpoints.hit("task.pre_commit.after")
        where = {"partition": context.partitionId(), "attempt": context.attemptNumber(), "stage": context.stageId()}
        yield pa.RecordBatch.from_pydict({"result": [json.dumps({**where, **result}) for result in results]})

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


class _Writer:
    """One write in one task."""

    def __init__(self, spec: WriteSpec, attempt: TaskAttempt, digest_only: bool) -> None:  # noqa: FBT001
        self._spec = spec
        self._attempt = attempt
        self._digest_only = digest_only
        self._transaction: Any = None
        self._open = False
        self._rows = 0
        self._hash_sum = 0

    def add(self, rows: pa.RecordBatch, hashes: pa.Array) -> None:
        if rows.num_rows == 0:
            return
        self._rows += rows.num_rows
        self._hash_sum = (self._hash_sum + hash_sum(hashes)) % 2**64
        if self._digest_only:
            return
        if not self._open:
            self._transaction = self._spec.sink.begin_transaction(self._attempt)
            self._open = True
        self._spec.sink.invoke(self._transaction, rows)

    def finish(self) -> dict[str, Any]:
        committable = self._spec.sink.pre_commit(self._transaction) if self._open else None
        return {
            "write": self._spec.write,
            "rows": self._rows,
            "hash_sum": f"{self._hash_sum:016x}",
            "committable": None if committable is None else dict(committable),
        }

    def discard(self) -> None:
        if self._open:
            self._spec.sink.discard(self._transaction)


def _discard(writers: list[_Writer]) -> None:
    for writer in writers:
        writer.discard()


def hash_sum(hashes: pa.Array) -> int:
    """Return the sum of 64-bit hashes modulo 2^64; it does not depend on their order."""
    import numpy as np

    values = hashes.to_numpy(zero_copy_only=False).view(np.uint64)
    return int(np.add.reduce(values, dtype=np.uint64))
