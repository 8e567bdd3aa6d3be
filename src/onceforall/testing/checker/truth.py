"""Which rows an input must have in a sink: of which batch each is, which key it has, and which rows
have an order among them.

A truth numbers its rows: the *ordinals* 0, 1, 2, … go through the batches in ascending order, and
through the rows of a batch in the order of the input. All that is checked is computed with
ordinals, on whole arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from onceforall.testing.checker.contents import Expected
from onceforall.testing.checker.rows import Array, Numbers

UNKNOWN = -1
"""The ordinal of an id that no input has."""

Contents = Callable[[Array], Array]
"""Of an array of ids: the content that each row must have, as ``Rows.contents`` has it."""


class Truth(ABC):
    """What an input, cut into batches, must leave in a sink.

    ``UniformTruth`` and ``TableTruth`` are the two kinds.
    """

    @abstractmethod
    def locate(self, ids: Array) -> Numbers:
        """Return the ordinal of each id; ``UNKNOWN`` for one that no input has."""

    @abstractmethod
    def ids_at(self, ordinals: Numbers) -> Array:
        """Return the ids of ordinals."""

    @abstractmethod
    def batches_at(self, ordinals: Numbers) -> Numbers:
        """Return the batch of each ordinal."""

    @abstractmethod
    def keys_at(self, ordinals: Numbers) -> Array | None:
        """Return the key of each ordinal; None: rows have no keys."""

    def contents_at(self, ordinals: Numbers) -> Array | None:  # noqa: ARG002  for those that know
        """Return the content of each ordinal, as ``Rows.contents`` has it; None: it isn't known,
        and not compared.
        """
        return None

    @abstractmethod
    def tasks_at(self, ordinals: Numbers) -> Numbers | None:
        """Return a number per ordinal that tells the tasks of a batch apart which write its rows;
        None: not known.

        Rows of the same key keep their order from batch to batch, and within a batch where the same
        task writes them.
        """

    @abstractmethod
    def spans(self, batches: Numbers) -> tuple[Numbers, Numbers]:
        """Return the first ordinal of each batch, and the one behind its last; both the same for
        a batch without rows.
        """


class UniformTruth(Truth):
    """Rows 0, 1, 2, … without an end; so many in each batch: what Spark's source
    ``rate-micro-batch`` gives.

    Args:
        rows_per_batch: rows ``n * rows_per_batch`` and following are batch ``n``'s.
        keys: row ``id`` has the key ``id % keys``; None: rows have no key.
        tasks: row ``id`` of a batch is written by the task ``id % tasks`` of it (Spark's source
            gives each of its ``numPartitions`` every so manyth row); None: nothing is known, and
            order is only asked for from batch to batch.
        contents: what else each row must bear, as a function of its id; None: nothing is known.
    """

    def __init__(
        self,
        rows_per_batch: int,
        *,
        keys: int | None = None,
        tasks: int | None = None,
        contents: Contents | None = None,
    ) -> None:
        if (
            rows_per_batch < 1
            or (keys is not None and keys < 1)
            or (tasks is not None and tasks < 1)
        ):
            raise ValueError("UniformTruth: rows_per_batch, keys and tasks must be at least 1.")
        self._rows = rows_per_batch
        self._keys = keys
        self._tasks = tasks
        self._contents = None if contents is None else Expected(self.ids_at, contents)

    def locate(self, ids: Array) -> Numbers:
        """Return the ids themselves; those below 0, and all that are no whole numbers, are no
        input's.
        """
        if ids.dtype.kind not in "iu":
            return np.full(len(ids), UNKNOWN, np.int64)
        numbers = ids.astype(np.int64, copy=False)
        return np.where(numbers >= 0, numbers, UNKNOWN)

    def ids_at(self, ordinals: Numbers) -> Array:
        """Return the ordinals themselves."""
        return ordinals

    def batches_at(self, ordinals: Numbers) -> Numbers:
        """Return the batch of each ordinal."""
        return ordinals // self._rows

    def keys_at(self, ordinals: Numbers) -> Array | None:
        """Return the key of each ordinal."""
        return None if self._keys is None else ordinals % self._keys

    def contents_at(self, ordinals: Numbers) -> Array | None:
        """Return the content of each ordinal."""
        return None if self._contents is None else self._contents.at(ordinals)

    def tasks_at(self, ordinals: Numbers) -> Numbers | None:
        """Return the task of each ordinal."""
        return None if self._tasks is None else ordinals % self._rows % self._tasks

    def spans(self, batches: Numbers) -> tuple[Numbers, Numbers]:
        """Return first and end ordinal of each batch."""
        return batches * self._rows, (batches + 1) * self._rows


class TableTruth(Truth):
    """Rows that are listed: any ids, of one type, each once, in any number per batch.

    Args:
        ids: of all rows: numbers or texts. The rows of a batch in the order of the input.
        batches: the batch of each.
        keys: the key of each; None: rows have no key.
        tasks: see ``Truth.tasks_at``.
        contents: the content of each, or a function that gives it for ids; None: not known.

    Raises:
        ValueError: an id is there twice, or the lengths differ.
    """

    def __init__(
        self,
        ids: Sequence[int] | Sequence[str] | Array,
        batches: Sequence[int] | Numbers,
        *,
        keys: Sequence[int] | Sequence[str] | Array | None = None,
        tasks: Sequence[int] | Numbers | None = None,
        contents: Contents | Sequence[int] | Sequence[str] | Array | None = None,
    ) -> None:
        all_ids, all_batches = np.asarray(ids), np.asarray(batches, np.int64)
        listed = None if contents is None or callable(contents) else np.asarray(contents)
        if len(all_ids) != len(all_batches) or any(
            each is not None and len(each) != len(all_ids) for each in (keys, tasks, listed)
        ):
            raise ValueError(
                "TableTruth: ids, batches, keys, tasks and contents must have the same length."
            )
        order = np.argsort(all_batches, kind="stable")
        self._ids, self._batches = all_ids[order], all_batches[order]
        self._keys = None if keys is None else np.asarray(keys)[order]
        self._tasks = None if tasks is None else np.asarray(tasks, np.int64)[order]
        self._listed = None if listed is None else listed[order]
        self._computed = Expected(self.ids_at, contents) if callable(contents) else None
        self._by_id = np.argsort(self._ids, kind="stable").astype(np.int64)
        self._sorted = self._ids[self._by_id]
        if len(self._sorted) > 1 and bool(np.any(self._sorted[1:] == self._sorted[:-1])):
            raise ValueError(
                "TableTruth: an id is there twice; each row of the input needs one of its own."
            )

    def locate(self, ids: Array) -> Numbers:
        """Return the ordinal of each id."""
        if not len(self._sorted) or not len(ids):
            return np.full(len(ids), UNKNOWN, np.int64)
        places = np.minimum(np.searchsorted(self._sorted, ids), len(self._sorted) - 1)
        found: Numbers = np.where(self._sorted[places] == ids, self._by_id[places], UNKNOWN)
        return found

    def ids_at(self, ordinals: Numbers) -> Array:
        """Return the ids of ordinals."""
        found: Array = self._ids[ordinals]
        return found

    def batches_at(self, ordinals: Numbers) -> Numbers:
        """Return the batch of each ordinal."""
        return self._batches[ordinals]

    def keys_at(self, ordinals: Numbers) -> Array | None:
        """Return the key of each ordinal."""
        return None if self._keys is None else self._keys[ordinals]

    def contents_at(self, ordinals: Numbers) -> Array | None:
        """Return the content of each ordinal."""
        if self._computed is not None:
            return self._computed.at(ordinals)
        return None if self._listed is None else self._listed[ordinals]

    def tasks_at(self, ordinals: Numbers) -> Numbers | None:
        """Return the task of each ordinal."""
        return None if self._tasks is None else self._tasks[ordinals]

    def spans(self, batches: Numbers) -> tuple[Numbers, Numbers]:
        """Return first and end ordinal of each batch."""
        first = np.searchsorted(self._batches, batches, "left").astype(np.int64)
        return first, np.searchsorted(self._batches, batches, "right").astype(np.int64)


def running_counts(
    rows_per_batch: int, batches: int, buckets: int, contents: Contents | None = None
) -> TableTruth:
    """Return what a running count of rows 0, 1, 2, … by bucket (``id % buckets``) gives in update
    mode.

    In each batch each bucket that got rows has one row, with the id ``bucket:n:last``: how many
    rows it has had so far, and the last of them. A state that was lost, or counted a batch twice,
    gives ids that are not in there. The key is the bucket, as text.

    Args:
        rows_per_batch: as of ``UniformTruth``.
        batches: how many.
        buckets: how many.
        contents: as of ``UniformTruth``.
    """
    ends = np.arange(1, batches + 1, dtype=np.int64)[:, None] * rows_per_batch
    bucket = np.arange(buckets, dtype=np.int64)[None, :]
    counts = np.maximum(0, (ends - bucket + buckets - 1) // buckets)
    before = np.vstack([np.zeros((1, buckets), np.int64), counts[:-1]])
    at, which = np.nonzero(counts > before)
    numbers = counts[at, which]
    last = which + (numbers - 1) * buckets
    ids = [
        f"{b}:{n}:{x}"
        for b, n, x in zip(which.tolist(), numbers.tolist(), last.tolist(), strict=True)
    ]
    keys = np.asarray([str(b) for b in which.tolist()], np.str_)
    return TableTruth(np.asarray(ids, np.str_), at, keys=keys, contents=contents)


def last_counts(rows_per_batch: int, batches: int, buckets: int) -> Mapping[str, tuple[int, int]]:
    """Return what the state of that running count is behind the last batch: (n, last) by bucket."""
    rows = rows_per_batch * batches
    return {
        str(bucket): (
            count := (rows - bucket + buckets - 1) // buckets,
            bucket + (count - 1) * buckets,
        )
        for bucket in range(min(buckets, rows))
    }
