"""Reading chains: which entries they have, where they end, and how a reader is safe from a cleaner.

Layout: ``chains/<generation>/<index>.json``, both from 0 and of eight digits; entry 0 is the CLAIM.

**Reading a chain that may be cleaned under one's eyes.** A chain has no gaps as long as nothing was
deleted, so its tail is found by reading forward until nothing is there. A cleaner breaks that: a
reader that was frozen for an hour would take a deleted entry for the tail, miss the decisions
behind it, and could even put a second SEAL there. Listings don't help, for they may lag. Hence a
cleaner creates ``sealed.json`` in the chain's folder *before* it deletes the first entry: a copy of
the chain's SEAL, which says where that stands. So:

1. Where ``sealed.json`` is, the chain is sealed and ends there, whatever else is or isn't seen in
   it. (An entry that a lost create or a frozen sealer left at a deleted place means nothing.)
2. Whatever was concluded from the entries themselves holds only if ``sealed.json`` is absent when
   it is read *afterwards*: then nothing had been deleted before.

A name that is none of these is ignored, so that an older release can share the folder with files of
a newer one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from onceforall.commit_log.envelope import RESTORE, Envelope, decode
from onceforall.commit_log.store import Store
from onceforall.errors import CommitLogError, CorruptEntryError, ForeignEntryError
from onceforall.protocol.entries import Claim, Commit, Entry, Seal

__all__ = ["Chains", "End", "entry_key", "leading", "sealed_key"]

_ENTRY_NAME = re.compile(r"([0-9]{8}|[1-9][0-9]{8,})\.json", re.ASCII)

_LOOKS = 3
"""So often a chain is looked at whose last entry was listed and is gone when it is read."""


@dataclass(frozen=True)
class End:
    """The SEAL of a chain and its index there."""

    index: int
    seal: Seal


def entry_key(generation: int, index: int) -> str:
    """Return the key of an entry."""
    return f"chains/{generation:08d}/{index:08d}.json"


def sealed_key(generation: int) -> str:
    """Return the key of what a cleaner leaves in a chain before it deletes there."""
    return f"chains/{generation:08d}/sealed.json"


def leading(predicate: Callable[[int], bool], limit: int | None = None) -> int:
    """Return how many of 0, 1, 2, … satisfy a predicate that is true up to somewhere and false from
    there on.

    Galloping, then binary search: for an answer of n, about 2 log2(n) calls.

    Args:
        predicate: asked for numbers from 0 on.
        limit: only numbers below it are asked for.
    """
    low, high = 0, 1
    while (limit is None or high <= limit) and predicate(high - 1):
        low, high = high, 2 * high
    if limit is not None:
        high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if predicate(middle - 1):
            low = middle
        else:
            high = middle
    return low


def _gaps(indexes: list[int]) -> Iterator[int]:
    """Yield, one after the other, the numbers from 0 on that are missing in an ascending list."""
    expected = 0
    for index in indexes:
        yield from range(expected, index)
        expected = index + 1


class Chains:
    """The chains of a store, for reading."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def describe(self, generation: int, index: int) -> str:
        """Return how a person finds an entry."""
        return self.store.describe(entry_key(generation, index))

    def exists(self, generation: int, index: int) -> bool:
        """Return whether something stands there, without looking at it."""
        return self.store.read(entry_key(generation, index)) is not None

    def read(self, generation: int, index: int) -> Envelope | None:
        """Return an entry, or None.

        Raises:
            CorruptEntryError, ForeignEntryError, NewerEntryError: something stands there that can't
                be read.
        """
        content = self.store.read(entry_key(generation, index))
        return None if content is None else self.decode(generation, index, content)

    def decode(self, generation: int, index: int, content: bytes) -> Envelope:
        """Return the entry that the content of this key is; errors as those of ``read``."""
        where = self.describe(generation, index)
        envelope = self._envelope(content, where, generation, index)
        if isinstance(envelope.entry, Claim) != (index == 0):
            raise ForeignEntryError(
                f"{where} is a {envelope.entry.kind} entry: entry 0 of a chain is its CLAIM, and "
                f"no other is. {RESTORE}"
            )
        return envelope

    def commit_at(self, generation: int, index: int) -> Commit | None:
        """Return the COMMIT there, or None when it was cleaned away (what a frozen sealer may
        have put there counts as nothing).
        """
        envelope = self.read(generation, index)
        return (
            envelope.entry if envelope is not None and isinstance(envelope.entry, Commit) else None
        )

    def marked_end(self, generation: int) -> End | None:
        """Return where a chain ends that a cleaner has touched, or None for any other chain: one
        read.
        """
        key = sealed_key(generation)
        content = self.store.read(key)
        if content is None:
            return None
        envelope = self._envelope(content, self.store.describe(key), generation, None)
        if not isinstance(envelope.entry, Seal):
            raise ForeignEntryError(
                f"{self.store.describe(key)} is a {envelope.entry.kind} entry and not a SEAL. "
                f"{RESTORE}"
            )
        return End(envelope.index, envelope.entry)

    def end(self, generation: int) -> End | None:
        """Return where a chain ends, or None when it is not sealed (or does not exist).

        One read for a chain that was cleaned; else a listing and a few reads.

        Raises:
            CommitLogError: the chain is damaged.
        """
        for _ in range(_LOOKS):
            marked = self.marked_end(generation)
            if marked is not None:
                return marked
            listed = self._listed(generation)
            index = listed[-1] if listed else 0
            envelope = self.read(generation, index)
            if listed and envelope is None:
                # Cleaned, which the mark says; or gone with the power, for it was not durable yet.
                continue
            while envelope is not None and not isinstance(envelope.entry, Seal):
                index += 1
                envelope = self.read(generation, index)
            marked = self.marked_end(generation)
            if marked is not None:
                return marked
            return (
                End(index, envelope.entry)
                if envelope is not None and isinstance(envelope.entry, Seal)
                else None
            )
        marked = self.marked_end(generation)
        if marked is None:
            raise self._missing(generation, index)
        return marked

    def ends(self, generation: int) -> tuple[str, ...]:
        """Return the names of the last two entries of a sealed chain: its SEAL, and what stands
        before it; none where no SEAL is found.
        """
        end = self.end(generation)
        if end is None:
            return ()
        return tuple(
            entry_key(generation, index).rpartition("/")[2] for index in (end.index - 1, end.index)
        )

    def since_last_commit(self, generation: int) -> list[tuple[int, Entry]] | End:
        """Return a chain's entries from its last COMMIT (or its CLAIM) on, or its end when a
        cleaner was there.

        A listing and a few reads, however long the chain is. The index behind the last entry was
        absent when it was read, and had never been written before.

        Raises:
            CorruptEntryError: one of these entries can't be read, or any entry of the chain is
                missing before another one.
            CommitLogError: an entry follows a SEAL.
        """
        for look in range(1, _LOOKS + 1):
            found, lost, listed = self._looked_back(generation)
            if lost is None:
                return found
            behind = self._goes_on_at(generation, lost, listed)
            if behind is not None or look == _LOOKS:
                raise self._missing(generation, lost, behind)
        raise AssertionError

    def _looked_back(
        self, generation: int
    ) -> tuple[list[tuple[int, Entry]] | End, int | None, list[int]]:
        """Return what ``since_last_commit`` does, the first index of an entry that was not there,
        if any, and those that were listed.
        """
        listed = self._listed(generation)
        last = listed[-1] if listed else 0
        # The first alone: where somebody left a file whose name is a day, it is one of millions.
        lost = next((i for i in _gaps(listed) if not self.exists(generation, i)), None)
        backward: list[tuple[int, Entry]] = []
        for index in range(last, -1, -1):
            envelope = self.read(generation, index)
            if envelope is None:
                lost = index if lost is None else min(lost, index)
                break
            backward.append((index, envelope.entry))
            # One more than the COMMIT, to see that this is no SEAL.
            if len(backward) > 1 and isinstance(backward[-2][1], Commit):
                break
        forward = self._forward(generation, last + 1)
        marked = self.marked_end(generation)
        if marked is not None:
            return marked, None, listed
        if lost is not None:
            return [], lost, listed
        entries = [*reversed(backward), *forward]
        return self._with_nothing_behind_a_seal(generation, entries), None, listed

    def _goes_on_at(self, generation: int, index: int, listed: list[int]) -> int | None:
        """Return where a chain has an entry behind one that isn't there. Where it has none, the
        last one was listed, and went before it was read: with the power of the store's machine,
        for it was not durable yet.
        """
        behind = (each for each in listed if each > index and self.exists(generation, each))
        return next(behind, None)

    def remaining(self, generation: int) -> list[tuple[int, Entry]]:
        """Return the entries of a chain, for people and tools: gaps where a cleaner was; a lagging
        listing may hide some.

        Raises:
            CorruptEntryError: an entry can't be read, or is missing before another one in a chain
                that was never cleaned.
            CommitLogError: an entry follows a SEAL.
        """
        listed = self._listed(generation)
        forward = self._forward(generation, 0)
        end = self.marked_end(generation)
        if end is None:
            behind = self._goes_on_at(generation, len(forward), listed)
            if behind is not None:
                raise self._missing(generation, len(forward), behind)
            return self._with_nothing_behind_a_seal(generation, forward)
        envelopes = (self.read(generation, index) for index in listed if index < end.index)
        below = [
            (e.index, e.entry) for e in envelopes if e is not None and not isinstance(e.entry, Seal)
        ]
        return [*below, (end.index, end.seal)]

    def _envelope(self, content: bytes, where: str, generation: int, index: int | None) -> Envelope:
        """Decode an entry.

        The simulator overrides this, and this alone, to decode the same content once.
        """
        return decode(content, where=where, generation=generation, index=index)

    def _forward(self, generation: int, index: int) -> list[tuple[int, Entry]]:
        """Return the entries from an index on, up to the first that is absent."""
        entries: list[tuple[int, Entry]] = []
        envelope = self.read(generation, index)
        while envelope is not None:
            entries.append((envelope.index, envelope.entry))
            envelope = self.read(generation, envelope.index + 1)
        return entries

    def _listed(self, generation: int) -> list[int]:
        """Return the indexes that a listing shows, ascending; there may be more entries, and
        some may be gone.
        """
        matches = (
            _ENTRY_NAME.fullmatch(name) for name in self.store.list(f"chains/{generation:08d}")
        )
        return sorted(int(match[1]) for match in matches if match is not None)

    def _missing(self, generation: int, index: int, behind: int | None = None) -> CorruptEntryError:
        at = "" if behind is None else f", at {entry_key(generation, behind)}"
        return CorruptEntryError(
            f"{self.describe(generation, index)} is missing, though its chain goes on behind "
            f"it{at}: an entry is lost. {RESTORE}"
        )

    def _with_nothing_behind_a_seal(
        self, generation: int, entries: list[tuple[int, Entry]]
    ) -> list[tuple[int, Entry]]:
        for index, entry in entries[:-1]:
            if isinstance(entry, Seal):
                raise CommitLogError(
                    f"{self.describe(generation, index + 1)} follows the SEAL of its chain, where "
                    "nothing may be written. Either "
                    "the store let two writers create one entry, or files of another log were "
                    f"copied to here. {RESTORE}"
                )
        return entries
