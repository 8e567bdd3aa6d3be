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

**How readers are safe.** ``sealed.json`` comes before the first deletion in a chain (see
``chains``).

What may be left: deletions need not be durable, so after a loss of power single entries can come
back below the point where the walk ends, as can an entry whose lost create arrives late. They
change no history, and are not looked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
) -> tuple[int, int | None]:
    """Delete what is superseded in the chains below a generation.

    Args:
        chains: the log.
        generations: the log's oldest one, and one of which everything below it is sealed.
        retain_commits: so many of the newest COMMITs stay, counted as two entries each (a COMMIT
            and its DONE).
        mark: creates ``sealed.json`` in a chain, durably.

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
        if chain.is_emptied and not chain.end.seal.done:
            deleted += _delete_done_above(chains, chain, mark)
        deleted += _delete(chains, chain.generation, chain.end, _indexes(chains, chain), mark)
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


def _indexes(chains: Chains, chain: _Chain) -> list[int]:
    """Return what is there and has to go, in the order of deletion."""
    there = []
    index = min(chain.decided_index, chain.keep_from - 1)
    while index > 0 and chains.exists(chain.generation, index):
        there.append(index)
        index -= 1
    behind = range(chain.decided_index + 1, chain.keep_from)
    return [*(i for i in behind if chains.exists(chain.generation, i)), *reversed(there)]


def _delete_done_above(chains: Chains, chain: _Chain, mark: Callable[[int, End], None]) -> int:
    """Delete the DONE that a later run wrote for the last COMMIT of a chain, if its own chain
    has no COMMIT to be found by.
    """
    first, count = chain.generation + 1, chain.above - chain.generation - 1
    undone = leading(lambda k: not _end(chains, first + k).seal.done, count)
    if undone == count:
        return 0
    end = _end(chains, first + undone)
    there = [index for index in range(1, end.index) if chains.exists(first + undone, index)]
    return _delete(chains, first + undone, end, there, mark)


def _delete(
    chains: Chains, generation: int, end: End, indexes: list[int], mark: Callable[[int, End], None]
) -> int:
    if indexes:
        mark(generation, end)
    for index in indexes:
        chains.store.delete(entry_key(generation, index))
        failpoints.hit("log.clean.deleted")
    return len(indexes)


def _end(chains: Chains, generation: int) -> End:
    end = chains.end(generation)
    if end is None:
        raise ProtocolViolationError(
            f"chain {chains.describe(generation, 0)} is not sealed, so nothing may be deleted "
            "below it. "
            f"Call seal_below before clean; otherwise please report this as a bug."
        )
    return end
