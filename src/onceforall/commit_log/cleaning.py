"""Cleaning: delete what sealed chains no longer need, with bounded work and safe at any crash.

What stays: every CLAIM, every SEAL, the newest decision with its DONE, and the newest COMMITs (see
``clean``). What then goes as a whole, ``floors`` tells.

**How the walk is bounded.** The SEAL of a chain points at the last COMMIT up to there, so a walk
from the top goes from one chain with decisions to the next one below, however many empty
generations lie between them. Chains are deleted from the bottom up, and in each chain the COMMIT
that its own SEAL points at goes last. So as soon as a pointer leads to nothing, all below is clean,
and the walk ends. Reading takes a few operations per chain that holds a retained COMMIT, and one
per entry to delete; what a crash left behind is found by the next clean, since it deleted from the
bottom too.

Where the log keeps the last two entries of a chain (``keep_ends``), a pointer may lead to a COMMIT
that has nothing below it any more. The walk then goes on; it ends at the floor, which follows the
oldest chain that is needed.

**How readers are safe.** ``sealed.json`` comes before the first deletion in a chain (see
``chains``).

What may be left: deletions need not be durable, so after a loss of power single entries can come
back below the point where the walk ends, as can an entry whose lost create arrives late. They
change no history, and are not looked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from onceforall.commit_log.chains import Chains, End, entry_key, leading
from onceforall.errors import ProtocolViolationError
from onceforall.failpoints import points as failpoints

__all__ = ["clean"]


@dataclass(frozen=True)
class _Chain:
    """A chain with decisions: ``decided_index`` is its last COMMIT; everything below
    ``keep_from`` goes; ``above`` is the next one up.
    """

    generation: int
    end: End
    decided_index: int
    keep_from: int
    above: int

    @property
    def is_emptied(self) -> bool:
        return self.keep_from == self.end.index


def clean(
    chains: Chains,
    generations: tuple[int, int],
    retain_commits: int,
    mark: Callable[[int, End], None],
    *,
    keep_ends: bool = False,
) -> tuple[int, int | None]:
    """Delete what is superseded in the chains below a generation.

    Args:
        chains: the log.
        generations: the log's oldest one, and one of which everything below it is sealed.
        retain_commits: so many of the newest COMMITs stay, counted as two entries each (a COMMIT
            and its DONE).
        mark: creates ``sealed.json`` in a chain, durably.
        keep_ends: what stands before a SEAL stays, whatever it is; see ``log``.

    Returns:
        The number of entries that were deleted, and the oldest generation of which more than CLAIM
        and SEAL is needed; None when nothing was ever decided.

    Raises:
        ProtocolViolationError: the chain below is not sealed.
        CommitLogError: the store failed, or an entry is damaged. Nothing that is needed was
            deleted; cleaning again goes on.
    """
    failpoints.hit("log.clean.before")
    deleted = 0
    plan, oldest_needed = _plan(chains, generations, retain_commits)
    for chain in reversed(plan):
        work = _indexes(chains, chain)
        if chain.is_emptied and not chain.end.seal.done:
            work = [*_done_above(chains, chain), *work]
        if keep_ends:
            work = [(g, end, index) for g, end, index in work if index != end.index - 1]
        deleted += _delete(chains, work, mark)
    return deleted, oldest_needed


def _plan(
    chains: Chains, generations: tuple[int, int], retain_commits: int
) -> tuple[list[_Chain], int | None]:
    """Return the chains that have something to delete, from the top down, and the lowest one of
    which a COMMIT stays.
    """
    plan: list[_Chain] = []
    oldest_needed: int | None = None
    first, below = generations
    room, above, newest = 2 * max(1, retain_commits), below, True
    while below > first:
        end = _end(chains, below - 1)
        decided, index = end.seal.decided_generation, end.seal.decided_index
        # What stands below the floor arrived late, and means nothing.
        if (
            decided is None
            or index is None
            or decided < first
            or chains.commit_at(decided, index) is None
        ):
            break
        if decided != below - 1:
            end = _end(chains, decided)
        keep_from = max(1, end.index - room)
        if newest:
            keep_from = min(keep_from, index)
        elif keep_from > index:
            keep_from = end.index
        room = max(0, room - (end.index - keep_from))
        if keep_from < end.index:
            oldest_needed = decided
        if keep_from > 1:
            plan.append(_Chain(decided, end, index, keep_from, above))
        below, above, newest = decided, decided, False
    return plan, oldest_needed


_Work: TypeAlias = tuple[int, End, int]
"""An entry to delete: its chain, where that ends, and its index."""


def _indexes(chains: Chains, chain: _Chain) -> list[_Work]:
    """Return what is there and has to go, in the order of deletion."""
    there = []
    index = min(chain.decided_index, chain.keep_from - 1)
    while index > 0 and chains.exists(chain.generation, index):
        there.append(index)
        index -= 1
    behind = range(chain.decided_index + 1, chain.keep_from)
    found = [*(i for i in behind if chains.exists(chain.generation, i)), *reversed(there)]
    return [(chain.generation, chain.end, index) for index in found]


def _done_above(chains: Chains, chain: _Chain) -> list[_Work]:
    """Return the DONE that a later run wrote for the last COMMIT of a chain, if its own chain
    has no COMMIT to be found by.
    """
    first, count = chain.generation + 1, chain.above - chain.generation - 1
    undone = leading(lambda k: not _end(chains, first + k).seal.done, count)
    if undone == count:
        return []
    generation, end = first + undone, _end(chains, first + undone)
    there = (index for index in range(1, end.index) if chains.exists(generation, index))
    return [(generation, end, index) for index in there]


def _delete(chains: Chains, work: list[_Work], mark: Callable[[int, End], None]) -> int:
    marked: set[int] = set()
    for generation, end, index in work:
        if generation not in marked:
            mark(generation, end)
            marked.add(generation)
        chains.store.delete(entry_key(generation, index))
        failpoints.hit("log.clean.deleted")
    return len(work)


def _end(chains: Chains, generation: int) -> End:
    end = chains.end(generation)
    if end is None:
        raise ProtocolViolationError(
            f"chain {chains.describe(generation, 0)} is not sealed, so nothing may be deleted "
            "below it. "
            f"Call seal_below before clean; otherwise please report this as a bug."
        )
    return end
