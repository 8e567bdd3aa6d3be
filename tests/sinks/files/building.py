"""Makes attempts, rows and committed batches for the tests of the file sink."""

import itertools

import pyarrow as pa

from onceforall.protocol.history import CommitPermit
from onceforall.sink import StartInfo, TaskAttempt
from onceforall.sinks.files import FileSink

QUERY = "6f1c2d3e-0000-4000-8000-000000000001"
_slots = itertools.count()


def attempt(batch=0, *, generation=0, partition=0, sink="out", query=QUERY, write=0):
    return TaskAttempt(query, sink, generation, batch, write, partition, next(_slots))


def numbers(count, first=0, **columns):
    return pa.RecordBatch.from_pydict(
        {"n": pa.array(range(first, first + count), pa.int64()), **columns}
    )


def prepared(sink, rows, batch=0, /, **names):
    """Write rows as one task attempt and return its committable as the commit log has it."""
    transaction = sink.begin_transaction(attempt(batch, **names))
    try:
        sink.invoke(transaction, rows)
        return sink.pre_commit(transaction)
    except BaseException:
        sink.discard(
            transaction
        )  # As a task does; without it, its open file is another test's warning.
        raise


def permit(batch=0, generation=0):
    return CommitPermit(generation, 1, batch)


def checked(folder, **options):
    sink = FileSink(folder, **options)
    sink.check(StartInfo(QUERY, "out"))
    return sink


def commit(sink, batch, /, *rows, **names):
    """Take a batch to its end; each rows is one task's."""
    committables = [
        prepared(sink, each, batch, partition=i, **names) for i, each in enumerate(rows)
    ]
    decided = sink.confirm(committables)
    report = sink.commit(permit(batch), decided)
    assert not report.lost
    assert not report.in_doubt
    assert len(report.completed) == len(rows)
    return decided


def left_in_staging(folder):
    return sorted(path.name for path in (folder / "_onceforall" / "staging").iterdir())
