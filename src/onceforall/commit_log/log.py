"""The commit log: one chain of numbered entries per generation, in a store that can create if
absent.

Theory of operation. Each start of a query *claims* the next generation, and is the only writer of
that generation's chain; so it knows its tail from memory. To learn what was decided before, it
*seals* every chain below its
own: it creates a SEAL behind the last entry. If the old writer still lives, either its next entry
or the SEAL gets that index; in the first case the sealer folds that entry and tries at the next
index, in the second the old writer meets the SEAL and is fenced. A sealed chain never changes
again. Chains are sealed from the bottom up, so below a sealed chain every chain is sealed, and the
highest sealed one is found by galloping; its SEAL carries what all chains up to it decided.

The caller's sequence, which the coordinator follows: ``claim``; ``seal_below`` with the claimed
generation; then ``append``, each after the one before has returned; ``clean`` at any time after
``seal_below``. An instance is used by one thread at a time, but for ``clean`` and what only reads:
they may run in another.

**Lost answers.** A create that raised may have happened, or may still happen. It is repeated with
the same nonce until the store
says who won: that answer is durable by the store's guarantee. An entry that was merely *read* may
not be durable yet (its writer may be between making it visible and syncing it), and a loss of power
may take it back. So before this run builds on another's entry (claims behind a CLAIM, seals behind
a COMMIT or a DONE, believes a SEAL), it creates it once more, loses, and thereby has it made
durable.

Chains that nobody needs are deleted as a whole, behind a floor (see ``floors``): what is concluded
from chains holds only if the floor has not moved meanwhile, and so does what was created in one.

**Creates that land late.** On a network a create may take effect long after it was sent, or twice,
or after its key was created, read and deleted by others. Where it lands in a chain that was cleaned
or dropped it means nothing to readers (see ``chains`` and ``floors``). Its *writer* has to find
out: an append could stand where a deleted entry stood. It looks afterwards, at the mark and at the
floor. These are three reads, cheap on a disk or on HDFS. On an object store they would double a
batch's wait. There (``keep_ends``) the last two entries of a chain stay for ever, its SEAL and the
entry before it, also when the chain is dropped. An append can only be under way for one of these
two places: the writer appends behind its own last acknowledged entry, and the SEAL stands behind
the writer's last entry, or in its place if the SEAL was faster. So it never finds its key free a
second time, and the answer "created" is the whole truth.

Not guaranteed: anything, if two processes append to one generation, or if the store breaks one of
its guarantees.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Protocol, TypeVar, runtime_checkable

from onceforall.commit_log import cleaning
from onceforall.commit_log.chains import Chains, End, entry_key, leading, sealed_key
from onceforall.commit_log.creating import Creator, NoAnswerError
from onceforall.commit_log.envelope import RESTORE, Envelope, encode
from onceforall.commit_log.floors import Floors
from onceforall.commit_log.store import Store
from onceforall.errors import (
    BatchTooSlowError,
    CommitLogError,
    CorruptEntryError,
    FencedError,
    OnceForAllError,
    OutcomeUnknownError,
    ProtocolViolationError,
    text_of,
)
from onceforall.failpoints import points as failpoints
from onceforall.protocol.entries import Claim, Commit, Done, Entry, Seal
from onceforall.protocol.history import EMPTY, Decided, History, fold, seal_of

__all__ = ["Claimed", "CommitLog"]

_AT_MOST = 8
"""By so many times ``drop_after`` the floor is raised at once: a log of ten thousand generations
is not dropped in one go."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Claimed:
    """A generation is ours. ``previous``: entry 0 of the chain below it, None for the first."""

    generation: int
    previous: Claim | None


@dataclass(frozen=True)
class _Standing:
    """What durably stands at a key after a create: ``ours`` or another's. ``retried``: an answer
    was lost on the way.
    """

    envelope: Envelope
    ours: bool
    retried: bool


class _SupersededError(CommitLogError):
    """A SEAL of this chain points at a decision that was cleaned away: somebody has sealed
    further since it was read.
    """

    def __init__(self, where: str, chain: int) -> None:
        super().__init__(
            f"{where} is missing, though the newest SEAL points at it: the last decision is lost. "
            f"{RESTORE}"
        )
        self.chain = chain


@runtime_checkable
class _LeavesTemporaryFiles(Protocol):
    """A store whose crashed writers leave something behind that only the store itself can find."""

    def clean_temporary_files(self) -> int: ...


def _new_nonce() -> str:
    return uuid.uuid4().hex


def _now() -> datetime:
    return datetime.now(timezone.utc)


class CommitLog:
    """A query's commit log; see the module for the theory and the caller's sequence.

    Args:
        store: where it lies.
        retain_commits: so many of the newest COMMITs stay for people to look at; at least 1, which
            recovery needs.
        first_generation: the number of the first chain; above 0 in the log of a checkpoint that was
            detached before, so that no generation of the query has a number, or names in the world,
            that an earlier one had.
        drop_after: chains of which only CLAIM and SEAL are left are deleted when there are so many
            of them.
        keep_ends: the last two entries of a chain are never deleted, so that an append needs no
            look at what became of its chain meanwhile; for stores where each look costs a round
            trip. It is a property of the log: all who write it must say the same.
        retry_pauses_ms: a create without an answer is repeated after each of these pauses.
        goes_on: asked where all of these were in vain: whether to ask for ever; see ``Creator``.
        sleep: takes seconds; injected, as the next two are, so that a simulation can replay a run.
        new_nonce: returns a string that no other call ever returned, in any process.
        now: the time that entries carry for people.

    Every method raises ``CommitLogError`` when the store fails or an entry is damaged; the message
    names the file.
    """

    def __init__(
        self,
        store: Store,
        *,
        retain_commits: int = 100,
        first_generation: int = 0,
        drop_after: int = 8,
        keep_ends: bool = False,
        retry_pauses_ms: Sequence[int] = (50, 200, 1000, 3000),
        sleep: Callable[[float], None] = time.sleep,
        goes_on: Callable[[], bool] | None = None,
        new_nonce: Callable[[], str] = _new_nonce,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._store = store
        self._chains = Chains(store)
        self._retain_commits = max(1, retain_commits)
        self._first = first_generation
        self._drop_after = drop_after
        self._keep_ends = keep_ends
        self._ask = Creator(store, retry_pauses_ms, sleep, goes_on)
        self._new_nonce = new_nonce
        self._now = now
        self._lengths: dict[int, int] = {}
        self._last_batches: dict[int, int] = {}
        self._unanswered: set[int] = set()
        self._floors = Floors(
            store, first_generation, self._ask, now, self._chains.ends if keep_ends else None
        )

    @property
    def first_generation(self) -> int:
        """The number of the log's first chain."""
        return self._first

    def oldest_generation(self) -> int:
        """Return the oldest generation whose chain was not dropped; the log's first one where
        none was.
        """
        return self._floors.newest().generation

    def newest_generation(self) -> int | None:
        """Return the newest claimed generation, or None in an empty log: about 2 log2(n) reads,
        no listing.
        """
        return self._steadily(self._newest_from)

    def newest_claim(self) -> Claim | None:
        """Return entry 0 of the newest chain, or None in an empty log.

        Another run may claim a newer one at any time.
        """

        def claim(oldest: int) -> Claim | None:
            newest = self._newest_from(oldest)
            return None if newest is None else self._claim_at(newest)

        return self._steadily(claim)

    def look(self) -> History:
        """Return what the log decided as far as it can be seen, for people and tools: a live run
        may decide more meanwhile.

        Nothing is written, so nothing may be concluded from it; ``seal_below`` is for that.
        """
        return self._steadily(self._look)

    def _look(self, oldest: int) -> History:
        superseded = -1
        while True:
            try:
                return self._look_from(oldest)
            except _SupersededError as error:  # noqa: PERF203  it is looked again
                # Cleaned away behind the look at the SEAL that points there, so there is a newer
                # one by now; else it is lost.
                if error.chain <= superseded:
                    raise CorruptEntryError(str(error)) from None
                superseded = error.chain

    def _look_from(self, oldest: int) -> History:
        newest, chains = self._newest_from(oldest), []
        for generation in range(oldest - 1 if newest is None else newest, oldest - 1, -1):
            found = self._chains.since_last_commit(generation)
            entries = [(found.index, found.seal)] if isinstance(found, End) else found
            if isinstance(entries[-1][1], Seal):
                history = self._history_at(generation, End(entries[-1][0], entries[-1][1]), EMPTY)
                break
            chains.append((generation, entries))
        else:
            if oldest > self._first:
                raise self._lost(oldest)
            history = EMPTY
        for generation, entries in reversed(chains):
            history = fold(history, generation, entries)
        return history

    def claim(self, claim: Claim) -> Claimed:
        """Take the next generation, durably.

        Numbers have no gaps. An error may leave a claimed generation behind that nobody uses; it is
        empty, and harmless.

        Args:
            claim: entry 0 of the new chain.

        Raises:
            CommitLogError: the store gave no answer.
        """
        while True:
            # Starting at the newest makes it durable, before ours stands above it: else a loss of
            # power could leave a gap.
            newest = self.newest_generation()
            claimed = self._claim_from(self._first if newest is None else newest, claim)
            # Below the floor ours may stand where a chain was dropped: above us is somebody
            # already.
            if claimed.generation >= self._floors.newest().generation:
                self._lengths[claimed.generation] = 1
                return claimed

    def _claim_from(self, generation: int, claim: Claim) -> Claimed:
        """Create the claim at the first generation from this one on that has none."""
        previous: Claim | None = None
        while True:
            failpoints.hit("log.claim.before")
            standing = self._create(generation, 0, claim)
            failpoints.hit("log.claim.after")
            if standing.ours:
                return Claimed(generation, previous or self._claim_at(generation - 1))
            assert isinstance(standing.envelope.entry, Claim)
            previous = standing.envelope.entry
            generation += 1

    def seal_below(self, generation: int) -> History:
        """Seal every chain below a generation; afterwards, what they hold never changes.

        Args:
            generation: ours.

        Returns:
            What those chains decided. Whoever seals below the same generation, at any time, gets
            the same.

        Raises:
            FencedError: a newer run has sealed our chain and cleaned what we would need.
            CommitLogError: the store gave no answer, or an entry is damaged. Sealing again goes on
                where this stopped.
            ProtocolViolationError: a SEAL says something else than the entries before it.
        """
        return self._steadily(lambda oldest: self._seal_below(generation, oldest))

    def _seal_below(self, generation: int, oldest: int) -> History:
        superseded = -1
        while True:
            if oldest >= generation > self._first:
                raise FencedError(
                    f"a newer run of this query has sealed generation {generation} "
                    f"({self._chains.describe(generation, 0)}), and gone on for so "
                    "long that its chain was dropped. Do not restart this run."
                )
            try:
                return self._seal_from_frontier(generation, oldest)
            except _SupersededError as error:
                if self.is_sealed(generation):
                    raise FencedError(
                        f"a newer run of this query has sealed generation {generation} "
                        f"({self._chains.describe(generation, 0)}) and goes on in its place. Do "
                        "not restart this run."
                    ) from None
                if error.chain <= superseded:
                    raise CorruptEntryError(str(error)) from None
                superseded = error.chain

    def append(
        self, generation: int, entry: Commit | Done, in_time: Callable[[], bool] | None = None
    ) -> int:
        """Append to our chain, durably.

        Args:
            generation: one that this instance claimed.
            entry: a decision, or its DONE.
            in_time: asked right before the entry is created, each time that this is tried; None: it
                is never too late.

        Returns:
            The index of the entry.

        Raises:
            FencedError: our chain is sealed; the entry was not written, and never will be.
            BatchTooSlowError: ``in_time`` said no; the entry was not written, and never will be.
            OutcomeUnknownError: the store gave no answer. The entry may be there, now or later:
                nothing may be aborted.
            ConfigurationError: the entry is not JSON; nothing was written.
            ProtocolViolationError: the generation isn't ours, the batch is lower than the one
                before (nothing was written), or another writer was in our chain.
        """
        index = self.chain_length(generation)
        where = self._chains.describe(generation, index)
        if generation in self._unanswered:
            raise OutcomeUnknownError(_unknown(where, "the append before got no answer"))
        last_batch = self._last_batches.get(generation, entry.batch)
        if entry.batch < last_batch:
            raise ProtocolViolationError(
                f"{entry.kind} of batch {entry.batch} cannot follow batch {last_batch} at "
                f"{where}: batches only go up. "
                f"Nothing was written. Please report this as a bug."
            )
        nonce, content = self._encode(generation, index, entry)
        self._unanswered.add(generation)
        try:
            failpoints.hit("log.append.before")
            standing = self._repeat(generation, index, nonce, content, in_time)
            failpoints.hit("log.append.after")
            gone = self._gone_meanwhile(generation, index, retried=standing.retried)
        except BatchTooSlowError:
            self._unanswered.discard(generation)
            raise
        except NoAnswerError as error:
            # A SEAL that can be read there proves nothing: if it went with a loss of power, a
            # create of ours could still arrive.
            taken_over = self._shows_seal(generation, index)
            raise OutcomeUnknownError(
                _unknown(where, error.reason, taken_over=taken_over)
            ) from error
        except Exception as error:
            raise OutcomeUnknownError(_unknown(where, text_of(error))) from error
        if gone is not None:
            raise OutcomeUnknownError(_unknown(where, gone, taken_over=True))
        if isinstance(standing.envelope.entry, Seal):
            self._unanswered.discard(generation)
            raise self._fenced(where)
        if not standing.ours:
            raise ProtocolViolationError(
                f"{where} holds a {standing.envelope.entry.kind} entry that this run did not "
                "write, in a chain that only this run "
                f"writes. Stop every run of this query, and start one; please report this as a bug."
            )
        self._unanswered.discard(generation)
        self._lengths[generation] = index + 1
        self._last_batches[generation] = entry.batch
        return index

    def _gone_meanwhile(self, generation: int, index: int, *, retried: bool) -> str | None:
        """Return why what stands in an append's place may mean nothing; None: it counts."""
        if self._keep_ends:
            return None
        overtaken = self._chains.marked_end(generation) if retried else None
        is_dropped = self._floors.newest().generation > generation
        if is_dropped:
            # Ours may be older than the SEAL, and decided, completed and dropped; or it stands
            # where that was dropped.
            return "its chain was dropped meanwhile"
        if overtaken is not None and overtaken.index > index:
            # While no answer came, the entry was decided, completed and cleaned away; what stands
            # there now means nothing.
            return "an answer was lost, and it was asked again too late"
        return None

    def chain_length(self, generation: int) -> int:
        """Return how many entries our own chain has, its CLAIM included; from memory.

        Raises:
            ProtocolViolationError: this instance did not claim the generation.
        """
        if generation not in self._lengths:
            raise ProtocolViolationError(
                f"generation {generation} ({self._chains.describe(generation, 0)}) was not "
                "claimed by this run. "
                f"Call claim first; otherwise please report this as a bug."
            )
        return self._lengths[generation]

    def is_sealed(self, generation: int) -> bool:
        """Return whether somebody has sealed this chain; False is out of date as soon as it is
        returned.
        """
        return self._steadily(
            lambda oldest: generation < oldest or self._chains.end(generation) is not None
        )

    def clean(self, generation: int) -> int:
        """Delete what is superseded in the sealed chains below a generation; what they decided does
        not change.

        The newest ``retain_commits`` COMMITs (never fewer, sometimes some more) stay with their
        DONEs. So do CLAIM and SEAL of each chain, until ``drop_after`` chains have nothing else and
        go as a whole; and the log's first CLAIM. The number of operations grows with what is
        retained and what is to be deleted, not with the number of generations. Temporary files that
        crashed writers left in the store go too.

        Args:
            generation: ours, after ``seal_below``.

        Returns:
            The number of entries deleted.

        Raises:
            CommitLogError: the store failed. Nothing that is needed was deleted; the next clean
                goes on.
            ProtocolViolationError: the chain below is not sealed.
        """
        deleted, oldest_needed = self._steadily(
            lambda oldest: cleaning.clean(
                self._chains,
                (oldest, generation),
                self._retain_commits,
                self._mark,
                keep_ends=self._keep_ends,
            )
        )
        # First what a crash left of the floor before; only between the two newest floors does
        # anybody look.
        self._floors.drop()
        oldest = self.oldest_generation()
        if oldest_needed is not None and oldest_needed >= oldest + self._drop_after:
            self._floors.raise_to(min(oldest_needed, oldest + _AT_MOST * self._drop_after))
            self._floors.drop()
        if isinstance(self._store, _LeavesTemporaryFiles):
            self._store.clean_temporary_files()
        return deleted

    def entries(self, generation: int) -> list[tuple[int, Entry]]:
        """Return the (index, entry) pairs of a chain, for people and tools; empty when there is no
        such chain.

        A chain that was cleaned has gaps, one that was dropped is empty. Nothing may be decided
        from it: entries may be added while it is read.
        """
        return self._steadily(
            lambda oldest: [] if generation < oldest else self._chains.remaining(generation)
        )

    def _steadily(self, action: Callable[[int], _T]) -> _T:
        """Do what reads chains, given the oldest generation that counts, until the floor was the
        same before and behind it.
        """
        floor = self._floors.newest()
        while True:
            try:
                result = action(floor.generation)
            except OnceForAllError:
                before, floor = floor, self._floors.newest()
                if before == floor:
                    raise
                continue
            before, floor = floor, self._floors.newest()
            if before == floor:
                return result

    def _newest_from(self, oldest: int) -> int | None:
        count = leading(lambda distance: self._chains.exists(oldest + distance, 0))
        if count == 0 and oldest > self._first:
            raise self._lost(oldest)
        return oldest + count - 1 if count else None

    def _lost(self, oldest: int) -> CorruptEntryError:
        return CorruptEntryError(
            f"{self._chains.describe(oldest, 0)}: this chain is missing or has no SEAL, though "
            f"older ones were dropped because it has one. {RESTORE}"
        )

    def _claim_at(self, generation: int) -> Claim | None:
        """Return entry 0 of a chain, or None below the first one."""
        envelope = self._chains.read(generation, 0) if generation >= self._first else None
        return (
            envelope.entry if envelope is not None and isinstance(envelope.entry, Claim) else None
        )

    def _seal_from_frontier(self, generation: int, oldest: int) -> History:
        first, end = self._frontier(generation, oldest)
        while end is not None and not self._made_durable(first - 1, end):
            first, end = self._frontier(generation, oldest)
        if first == oldest > self._first:
            raise self._lost(oldest)
        history = EMPTY if end is None else self._history_at(first - 1, end, EMPTY)
        for chain in range(first, generation):
            history = self._seal(chain, history)
        return history

    def _frontier(self, generation: int, oldest: int) -> tuple[int, End | None]:
        """Return the first chain that is not sealed, and the end of the one below; None: there is
        none.
        """
        ends: dict[int, End | None] = {}

        def is_open(distance: int) -> bool:
            chain = generation - 1 - distance
            ends[chain] = self._chains.end(chain)
            return ends[chain] is None

        first = generation - leading(is_open, generation - oldest)
        return first, ends.get(first - 1) if first > oldest else None

    def _seal(self, chain: int, history: History) -> History:
        """Seal one chain above sealed ones, and return the history with it."""
        found = self._chains.since_last_commit(chain)
        while not isinstance(found, End) and not self._survives(chain, found):
            found = self._chains.since_last_commit(chain)
        if isinstance(found, End):
            return self._history_at(chain, found, history)
        # A COMMIT is never followed by one of a lower batch (``append`` refuses that), so those
        # before the last don't matter.
        entries = [pair for pair in found if not isinstance(pair[1], Seal)]
        while True:
            index, folded = entries[-1][0] + 1, fold(history, chain, entries)
            # Also where a SEAL was read: to lose against it makes it durable.
            failpoints.hit("log.seal.before")
            standing = self._create(chain, index, seal_of(folded))
            failpoints.hit("log.seal.after")
            end = self._chains.marked_end(chain)
            if end is not None and end.index != index:
                # A cleaner was here since we read, and ours may stand where it had deleted an
                # entry: that one means nothing.
                if standing.ours:
                    self._store.delete(entry_key(chain, index))
                return self._history_at(chain, end, history)
            if not isinstance(standing.envelope.entry, Seal):
                entries.append((index, standing.envelope.entry))
                continue
            if standing.envelope.entry != seal_of(folded):
                raise ProtocolViolationError(
                    f"{self._chains.describe(chain, index)} says "
                    f"{standing.envelope.entry.body()}, but the entries before it say "
                    f"{seal_of(folded).body()}. Do not restart the query; keep a copy of the log, "
                    "and report this as a bug."
                )
            return folded

    def _survives(self, chain: int, found: Sequence[tuple[int, Entry]]) -> bool:
        """Make durable what a SEAL will stand behind; False when something else stands there by
        now, or nothing.

        A SEAL can be under way for long. If the entry before it went with a loss of power
        meanwhile, and the chain was sealed in its place, this SEAL would arrive behind that one,
        and name a decision that never was.
        """
        index, read = next(pair for pair in reversed(found) if not isinstance(pair[1], Seal))
        if index == 0:
            # Whoever claimed the generation above this one has made the CLAIM durable; each entry's
            # writer those before it.
            return True
        key = entry_key(chain, index)
        content = self._store.read(key)
        if content is None or self._chains.decode(chain, index, content).entry != read:
            return False
        failpoints.hit("log.settle.before")
        # Byte for byte: where it was lost, it stands again, and its writer, which may still ask,
        # recognises it. (Where a cleaner has deleted it a moment ago it stands again, too, and
        # means nothing: the chain is marked.)
        standing, _ = self._ask(key, content)
        failpoints.hit("log.settle.after")
        return standing == content

    def _made_durable(self, chain: int, end: End) -> bool:
        """Make sure that the SEAL which was read survives a loss of power (a cleaner has done so
        before it left its mark).

        False when something else stands there by now: it was lost, and the chain went on.
        """
        if self._chains.marked_end(chain) is not None:
            return True
        failpoints.hit("log.frontier.before")
        standing = self._create(chain, end.index, end.seal)
        failpoints.hit("log.frontier.after")
        return standing.envelope.entry == end.seal

    def _history_at(self, chain: int, end: End, known: History) -> History:
        """Return the history that a SEAL tells.

        ``known``: that of lower chains, which may save a read.
        """
        generation, index = end.seal.decided_generation, end.seal.decided_index
        if generation is None or index is None:
            return EMPTY
        if known.decided is not None and (known.decided.generation, known.decided.index) == (
            generation,
            index,
        ):
            return History(replace(known.decided, done=end.seal.done))
        commit = self._chains.commit_at(generation, index)
        if commit is None:
            raise _SupersededError(self._chains.describe(generation, index), chain)
        return History(Decided(commit, generation, index, done=end.seal.done))

    def _mark(self, chain: int, end: End) -> None:
        """Leave the chain's SEAL under its second name, before anything is deleted there."""
        key = sealed_key(chain)
        _, content = self._encode(chain, end.index, end.seal)
        failpoints.hit("log.mark.before")
        self._ask(key, content)
        failpoints.hit("log.mark.after")

    def _encode(self, generation: int, index: int, entry: Entry) -> tuple[str, bytes]:
        nonce = self._new_nonce()
        return nonce, encode(
            entry, nonce=nonce, generation=generation, index=index, written_at=self._now()
        )

    def _create(self, generation: int, index: int, entry: Entry) -> _Standing:
        return self._repeat(generation, index, *self._encode(generation, index, entry))

    def _repeat(
        self,
        generation: int,
        index: int,
        nonce: str,
        content: bytes,
        in_time: Callable[[], bool] | None = None,
    ) -> _Standing:
        """Create an entry until it is known who won, and return what stands there durably."""
        winner, retried = self._ask(entry_key(generation, index), content, in_time)
        envelope = self._chains.decode(generation, index, winner)
        return _Standing(envelope, ours=envelope.nonce == nonce, retried=retried)

    def _shows_seal(self, generation: int, index: int) -> bool:
        """Return whether a SEAL can be read where a create got no answer.

        It may not be durable: this is for people.
        """
        try:
            end = self._chains.end(generation)
        except Exception:  # noqa: BLE001 - the store is failing; not to know is an answer here
            return False
        return end is not None and end.index == index

    def _fenced(self, where: str) -> FencedError:
        return FencedError(
            f"{where} is a SEAL: a newer run of this query has taken over, and this one can "
            "decide nothing any more. "
            "Do not restart this run; if two runs of the query were not wanted, find out who "
            "started the newer one."
        )


def _unknown(where: str, reason: str, *, taken_over: bool = False) -> str:
    then = (
        "A newer run of this query has taken over meanwhile, and completes or replays the batch. "
        "Do not restart this run; if two runs of "
        "the query were not wanted, find out who started the newer one."
        if taken_over
        else "Restart the query as soon as the log can be reached again: the start finds out, and "
        "completes or replays the batch."
    )
    return (
        f"it is not known whether {where} was written: {reason}. The batch may be decided, so "
        f"nothing was aborted. {then}"
    )
