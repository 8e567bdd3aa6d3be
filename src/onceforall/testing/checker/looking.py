"""One look at one sink: its rows counted by what they are. The checks of modules ``quiet`` and
``running`` judge the numbers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onceforall.testing.checker.rows import Array, Numbers, Rows
from onceforall.testing.checker.truth import UNKNOWN, Truth


@dataclass(frozen=True, eq=False)
class Look:
    """What of a sink's rows belongs where.

    Attributes:
        records: how many rows were read.
        batches: the decided ones, ascending.
        sizes: how many rows each of them must have.
        present: how many of these rows are there, those that are there more than once counted once.
        base: the ordinal of the first row of the first batch that is looked at.
        counts: how often each row is there, from that ordinal on to the end of the last decided
            batch.
        alien: the ids of rows that no input has.
        undecided: the ordinals of rows of batches that are not decided, ascending.
        wrong: the ids of rows that bear another key than their input.
        changed: the ordinals of rows of decided batches with another content than their input's,
            ascending.
        kept: the ordinals of all rows of decided batches, in the order of ``rows``.
        kept_rows: which rows these are.
    """

    records: int
    batches: Numbers
    sizes: Numbers
    present: Numbers
    base: int
    counts: Numbers
    alien: Array
    undecided: Numbers
    wrong: Array
    changed: Numbers
    kept: Numbers
    kept_rows: Numbers

    @property
    def missing(self) -> Numbers:
        """The decided batches of which at least one row isn't there."""
        return self.batches[self.present < self.sizes]

    @property
    def partial(self) -> Numbers:
        """The decided batches of which some rows are there, and not all."""
        return self.batches[(self.present > 0) & (self.present < self.sizes)]

    @property
    def duplicated(self) -> Numbers:
        """The ordinals of rows that are there more than once."""
        return np.flatnonzero(self.counts > 1) + self.base


def look(
    truth: Truth, rows: Rows, decided: Collection[int], first_batch: int | None = None
) -> Look:
    """Count a sink's rows.

    Args:
        truth: what the input must leave there.
        rows: what is there.
        decided: the batches that are required.
        first_batch: where ``Look.base`` is; None: the first of ``decided``.
    """
    batches = as_batches(decided)
    starts, ends = truth.spans(batches)
    first = first_batch if first_batch is not None else int(batches[0]) if len(batches) else 0
    base = int(truth.spans(np.array([first]))[0][0])
    ordinals = truth.locate(rows.ids)
    known = np.flatnonzero(ordinals != UNKNOWN)
    of_known = ordinals[known]
    is_kept = is_among(truth.batches_at(of_known), batches) & (of_known >= base)
    kept = of_known[is_kept]
    counts = np.bincount(kept - base, minlength=max(0, int(ends.max(initial=0)) - base))
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts > 0)])
    return Look(
        records=len(rows),
        batches=batches,
        sizes=ends - starts,
        present=sums[ends - base] - sums[starts - base],
        base=base,
        counts=counts,
        alien=rows.ids[ordinals == UNKNOWN],
        undecided=np.sort(of_known[~is_kept]),
        wrong=_wrong(truth, rows, known, of_known),
        changed=_changed(truth, rows, known[is_kept], kept),
        kept=kept,
        kept_rows=known[is_kept],
    )


def as_batches(decided: Collection[int]) -> Numbers:
    """Return batch ids as an array, ascending, each once."""
    if isinstance(decided, range) and decided.step == 1:
        return np.arange(decided.start, decided.stop, dtype=np.int64)
    return np.unique(np.fromiter(decided, np.int64, len(decided)))


def is_among(values: Numbers, ascending: Numbers) -> npt.NDArray[np.bool_]:
    """Return of each value whether it is one of some that ascend."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    if int(ascending[-1] - ascending[0]) + 1 == len(ascending):
        inside: npt.NDArray[np.bool_] = (values >= ascending[0]) & (values <= ascending[-1])
        return inside
    return np.isin(values, ascending)


def _wrong(truth: Truth, rows: Rows, known: Numbers, ordinals: Numbers) -> Array:
    expected = truth.keys_at(ordinals) if rows.keys is not None else None
    if rows.keys is None or expected is None:
        return rows.ids[:0]
    wrong: Array = rows.ids[known][_differ(rows.keys[known], expected)]
    return wrong


def _changed(truth: Truth, rows: Rows, kept_rows: Numbers, kept: Numbers) -> Numbers:
    expected = truth.contents_at(kept) if rows.contents is not None else None
    if rows.contents is None or expected is None:
        return kept[:0]
    return np.sort(kept[_differ(rows.contents[kept_rows], expected)])


def _differ(found: Array, expected: Array) -> npt.NDArray[np.bool_]:
    if found.dtype.kind != expected.dtype.kind:
        found, expected = found.astype(np.str_), expected.astype(np.str_)
    differing: npt.NDArray[np.bool_] = found != expected
    return differing


@dataclass(frozen=True, eq=False)
class Order:
    """What is wrong with the order of rows.

    Attributes:
        scattered: keys that stand in more than one lane.
        later: the ordinals of rows that stand right behind a row of their key and lane that they
            should stand before.
    """

    scattered: Array
    later: Numbers


def order_of(truth: Truth, rows: Rows, seen: Look) -> Order:
    """Compare the order of rows in their lanes with the input's; of a row that is there more
    than once, the first counts.
    """
    nothing = np.empty(0, np.int64)
    if rows.lanes is None or rows.positions is None:
        return Order(nothing, nothing)
    lanes, positions = rows.lanes[seen.kept_rows], rows.positions[seen.kept_rows]
    standing = np.lexsort((positions, lanes))
    firsts = np.sort(np.unique(seen.kept[standing], return_index=True)[1])
    ordinals, lanes = seen.kept[standing][firsts], lanes[standing][firsts]
    keys = truth.keys_at(ordinals)
    if keys is None:
        return Order(nothing, nothing)
    codes = keys if keys.dtype.kind in "iu" else np.unique(keys, return_inverse=True)[1]
    batches, tasks = truth.batches_at(ordinals), truth.tasks_at(ordinals)
    # Sorting is stable: what is equal stays in the order of the lane.
    by_key = np.argsort(codes, kind="stable")
    same_key = codes[by_key][1:] == codes[by_key][:-1]
    same_lane = lanes[by_key][1:] == lanes[by_key][:-1]
    scattered = np.unique(keys[by_key][1:][same_key & ~same_lane])
    later = [by_key[1:][same_key & same_lane & (batches[by_key][1:] < batches[by_key][:-1])]]
    if tasks is not None:
        by_task = np.lexsort((tasks, lanes, batches, codes))
        same = np.logical_and.reduce(
            [each[by_task][1:] == each[by_task][:-1] for each in (tasks, lanes, batches, codes)]
        )
        later.append(by_task[1:][same & (ordinals[by_task][1:] < ordinals[by_task][:-1])])
    return Order(scattered, np.unique(ordinals[np.concatenate(later)]))
