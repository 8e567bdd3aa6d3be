"""Which leftovers of a sink may be aborted, and when: the one place of that rule.

Pure. A sink lists what it finds of its own in the world (open transactions, prepared transactions, temp files), parses each
name as a whole, and asks ``Sweep.covers`` of each. design.md §2.2: older generations are swept at any time, again and again;
one's own only between the end of the batch's job and ``DONE``, and never what ``COMMIT`` names; newer ones never.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Sweep:
    """A permission to abort undecided transactions.

    Attributes:
        query_id: only this query's.
        sink: only this sink's (its name in the query).
        generation: the run's own generation.
        own: whether the run's own generation is swept too; allowed only between the end of a batch's job and its DONE.
        spared: names that a decision without DONE names; never aborted.
    """

    query_id: str
    sink: str
    generation: int
    own: bool = False
    spared: Collection[str] = frozenset()

    def covers(self, query_id: str, sink: str, generation: int, name: str) -> bool:
        """Tell whether the transaction of this name may be aborted."""
        if query_id != self.query_id or sink != self.sink or name in self.spared:
            return False
        return generation < self.generation or (self.own and generation == self.generation)
