"""Which leftovers of a query may be aborted, and when: the one place of that rule.

Pure. A sink lists what it finds of ours in the world (open transactions, prepared transactions,
temp files), parses each name as a whole, and asks ``Sweep.covers`` of each. Older generations are
swept at any time, again and again; one's own only between the end of the batch's job and ``DONE``,
and never what ``COMMIT`` names, or, when a run rolls, between two batches, and never its live
producers; newer ones never.

Generations are here those that stand in names. A run that rolls keeps its own
(``state.Run.name_generation``): all chains from that one on are its own, so whoever comes later
sweeps its names as those of an older generation, and nobody else has any in between.

Of *older* generations every sink may abort what any sink of the query left, whatever that one's
name was: a sink that was renamed or removed, or that wrote under another prefix, has nobody else
who would. Why that aborts nothing that is decided:

- Older chains are sealed, so what they hold is all that was ever decided of their transactions. (A
  batch that is written again in our own chain keeps only transactions that such a chain had
  decided.)
- What they hold is the last decided batch and batches before it. Those before it are complete, for
  a batch is written only behind the DONE of the one before; a name of theirs that is open again
  belongs to a transaction that nobody decided.
- The last decided batch is complete, or ``spared`` has every name in it, **of every sink of that
  batch**. With those of the sweeping sink alone, two sinks in one cluster would abort each other's.
- A run that was replaced goes on with its own sweeps, below its own generation: chains that were
  sealed then are the same now, and so is what it spares.

All of this is about the target that the log speaks of. One that is behind it, a standby that was
promoted without the last commits or what a backup had, may have open again what a decision names
that is complete by the log, and have nothing else of its rows. So a sweep says which batch its
target must have (``reached``), and whoever sweeps asks the sink before (``driver.swept``). What
another sink left, whose target nobody has asked, is aborted only if its batch comes after the last
one that the log has decided for that sink (``decided``).

In its *own* generation other sinks of the run are writing, so there a sink aborts only what bears
its own name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from onceforall.protocol.names import parse_name, sink_code


@dataclass(frozen=True)
class Sweep:
    """A permission to abort undecided transactions.

    Attributes:
        query_id: only this query's.
        sink: the name of the sink that sweeps; of the run's own generation only this sink's.
        generation: the generation of the run's own names.
        own: whether the run's own generation is swept too; allowed only between the end of a
            batch's job and its DONE, or between two batches when the run rolls.
        spared: the names of all sinks that a decision without DONE has; never aborted.
        reached: the last batch that the log knows to be complete in this sink; None: it knows
            none. Nothing is swept where the target doesn't have it.
        place: as ``StartInfo.place``, for that batch.
        decided: the last batch that was decided for each sink of the query, also for one that is
            gone; without those of which the log knows none.
    """

    query_id: str
    sink: str
    generation: int
    own: bool = False
    spared: Collection[str] = frozenset()
    reached: int | None = None
    place: Mapping[str, Any] | None = None
    decided: Mapping[str, int] = field(default_factory=dict)

    def covers(self, query_id: str, sink: str, generation: int, name: str) -> bool:
        """Tell whether a transaction may be aborted.

        Args:
            query_id: whose it is.
            sink: the name, at that time, of the sink that opened it.
            generation: the generation that opened it.
            name: its name in the world, as its committable has it.
        """
        if query_id != self.query_id or name in self.spared:
            return False
        if generation < self.generation:
            return True
        return self.own and generation == self.generation and sink == self.sink

    def covers_name(self, name: str) -> bool:
        """Tell whether a transaction may be aborted whose name is a ``TaskAttempt``'s.

        Args:
            name: as it was found in the world; a name of anybody else is not covered.
        """
        parsed = parse_name(name)
        if parsed is None:
            return False
        # In a name stands the sink's code: the own sink's is known, and any other is another's,
        # whatever it was called.
        sink = self.sink if parsed.sink_code == sink_code(self.sink) else parsed.sink_code
        return self.covers(parsed.query_id, sink, parsed.generation, name) and not (
            self.may_be_decided(name)
        )

    def may_be_decided(self, name: str) -> bool:
        """Tell whether another sink left a transaction of a batch that the log has decided for it:
        it may be all that is left of its rows, or an aborted attempt's, and that sink's own sweep
        knows.

        Args:
            name: as for ``covers_name``.
        """
        parsed = parse_name(name)
        if parsed is None or parsed.query_id != self.query_id:
            return False
        decided = {sink_code(sink): batch for sink, batch in self.decided.items()}
        return parsed.sink_code != sink_code(self.sink) and parsed.batch <= decided.get(
            parsed.sink_code, -1
        )
