"""A sink of which each batch replaces all that was there: a table in the output mode ``complete``.

A reader must see what exactly one decided batch left, and never that of an earlier one afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from onceforall.testing.checker.looking import Look, look
from onceforall.testing.checker.rows import Rows
from onceforall.testing.checker.truth import TableTruth, Truth

NOTHING = TableTruth(np.empty(0, np.int64), [])
"""What is there before the first batch."""

_KEPT_STATES = 64


class StateTruth:
    """What each batch must leave in a sink whose rows it replaces.

    Args:
        state: the truth behind a batch. All of its rows belong to that batch, and they are all that
            a reader may see then; a batch may leave nothing.
    """

    def __init__(self, state: Callable[[int], Truth]) -> None:
        self._state = state
        self._known: dict[int, Truth] = {}

    def at(self, batch: int) -> Truth:
        """Return the truth behind a batch; before the first one (-1) nothing is there."""
        if batch < 0:
            return NOTHING
        if batch not in self._known:
            if len(self._known) >= _KEPT_STATES:
                del self._known[next(iter(self._known))]
            self._known[batch] = self._state(batch)
        return self._known[batch]


class Shown:
    """Finds out of which batch the state is that a sink shows, look by look.

    Attributes:
        batch: the last one that was recognised, -1 before. Where several batches leave the same,
            it is the first that it can be.
    """

    def __init__(self, truth: StateTruth) -> None:
        self._truth = truth
        self.batch = -1

    def find(self, rows: Rows, first: int, last: int) -> int | None:
        """Return the first batch from ``first`` to ``last`` whose state this is; None: no one's."""
        return next((batch for batch, seen in self._like(rows, first, last) if _same(seen)), None)

    def closest(self, rows: Rows, newest: int) -> tuple[Truth, Look]:
        """Return the newest state that has these ids, whatever the rows bear besides; if there is
        none, the newest one.
        """
        near = self._like(rows, max(-1, self.batch), newest)
        has_ids = [(batch, seen) for batch, seen in near if _same_ids(seen)]
        batch, seen = has_ids[-1] if has_ids else (newest, self._look(rows, newest))
        return self._truth.at(batch), seen

    def _like(self, rows: Rows, first: int, last: int) -> Iterator[tuple[int, Look]]:
        for batch in range(first, last + 1):
            yield batch, self._look(rows, batch)

    def _look(self, rows: Rows, batch: int) -> Look:
        return look(self._truth.at(batch), rows, [batch] if batch >= 0 else [])


def _same_ids(seen: Look) -> bool:
    return not (len(seen.alien) or len(seen.undecided) or len(seen.missing) or len(seen.duplicated))


def _same(seen: Look) -> bool:
    return _same_ids(seen) and not (len(seen.wrong) or len(seen.changed))
