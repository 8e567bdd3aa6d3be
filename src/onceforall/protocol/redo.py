"""What of a decided batch is written again when some of its prepared transactions are gone, and when that may be decided.

Pure. Only the lost transactions are written again, and only if the replay is the very same: as many tasks, and in
each task the very rows that were decided. Otherwise a row that has moved from one task to another would be there twice, or not
at all. The redo's COMMIT stands in the new run's chain and replaces the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onceforall.protocol.entries import Commit, Committable, Digest, total
from onceforall.protocol.events import Lost

Task = tuple[int, int]
"""The ordinal of a write in its batch, and Spark's partition number."""

_NAMED_AT_MOST = 5


@dataclass(frozen=True)
class Redo:
    """The lost transactions of a decided batch.

    Attributes:
        lost: per sink.
        kept: the rows of every one of them were kept beside the commit log (``redo="durable"``).
    """

    lost: Mapping[str, tuple[Committable, ...]]
    kept: bool

    @property
    def tasks(self) -> frozenset[Task]:
        """The tasks that write again; all others only digest."""
        return frozenset(task_of(c) for cs in self.lost.values() for c in cs)


def task_of(committable: Committable) -> Task:
    """Return which task prepared it."""
    write, partition = committable["task"]
    return int(write), int(partition)


def redo_of(lost: Iterable[Lost], *, durable: bool) -> Redo | None:
    """Return what must be written again; None when a committable doesn't say which task's it is (an earlier release's).

    Args:
        lost: the lost transactions.
        durable: write from kept rows, where there are some of each.
    """
    by_sink: dict[str, tuple[Committable, ...]] = {}
    for each in lost:
        by_sink[each.sink] = (*by_sink.get(each.sink, ()), each.committable)
    every = [c for cs in by_sink.values() for c in cs]
    kept = durable and all("rows" in c for c in every)
    if not all("task" in c for c in every):
        return None
    return Redo(by_sink, kept)


def merged(commit: Commit, redo: Redo, again: Mapping[str, tuple[Committable, ...]]) -> Commit:
    """Return the decision that replaces ``commit``: the same rows, with new transactions in the place of the lost ones."""
    committables = {}
    for sink in sorted({*commit.committables, *again}):
        gone = {str(c["name"]) for c in redo.lost.get(sink, ())}
        stay = tuple(c for c in commit.committables.get(sink, ()) if str(c["name"]) not in gone)
        committables[sink] = stay + tuple(again.get(sink, ()))
    return Commit(commit.batch, commit.offsets, committables, commit.digests)


def written_again(commit: Commit, redo: Redo, again: Mapping[str, tuple[Committable, ...]]) -> str | None:
    """Check that each lost transaction, and nothing else, was prepared again; return None, or what differs."""
    for sink in sorted({*redo.lost, *again}):
        gone = sorted(task_of(c) for c in redo.lost.get(sink, ()))
        now = sorted(task_of(c) for c in again.get(sink, ()))
        if gone != now:
            return f"Batch {commit.batch}: sink {sink} lost the transactions of the tasks {gone}, but {now} were written again."
    return None


def difference(commit: Commit, digests: Mapping[str, tuple[Digest, ...]]) -> str | None:
    """Compare a replay with what was decided, task by task.

    Args:
        commit: the decision.
        digests: of the replay, per write, by partition number.

    Returns:
        None when they are the same; otherwise a sentence that says whether only the placement of rows differs or the rows
        themselves, and which tasks differ and how.
    """
    parts, same_rows = [], True
    for write in sorted({*commit.digests, *digests}):
        before, after = commit.digests.get(write, ()), digests.get(write, ())
        if before == after:
            continue
        same_rows = same_rows and total(before) == total(after)
        parts.append(f"{write}: {_tasks_that_differ(before, after)}")
    if not parts:
        return None
    if same_rows:
        kind = (
            "The rows are the same, but they lie in other tasks. Start once with as many cores, the same minPartitions and shuffle "
            "partitions, and the same adaptive settings as then"
        )
    else:
        kind = (
            "The rows themselves differ. Common causes: rand(), current_timestamp(), uuid(), a lookup in a table that changes, "
            "floating-point sums after a shuffle, changed code. Undo what has changed"
        )
    return f"{kind} ({'; '.join(parts)})"


def _tasks_that_differ(before: tuple[Digest, ...], after: tuple[Digest, ...]) -> str:
    if len(before) != len(after):
        return f"{len(before)} tasks then, {len(after)} now"
    differing = [
        f"task {partition} had {then.rows} rows and has {now.rows}"
        if then.rows != now.rows
        else f"task {partition} has {now.rows} rows as then, of other content"
        for partition, (then, now) in enumerate(zip(before, after, strict=True))
        if then != now
    ]
    more = f", and {len(differing) - _NAMED_AT_MOST} more" if len(differing) > _NAMED_AT_MOST else ""
    return ", ".join(differing[:_NAMED_AT_MOST]) + more
