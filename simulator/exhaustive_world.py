"""The shared world of the exhaustive search: a value that is copied cheaply, with the promises
checked at each operation.

It holds what outlives a driver: the commit log, the transactions of the sinks, what readers see,
and the last batch in Spark's own commit log. All of it is tuples of whole numbers, so that a state
is packed in a few hundred bytes and two states are compared by their bytes. Contents of log entries
are numbered once, in ``Entries``.

Modelled of a transactional system are Kafka's rules, as in the random simulator: ids with an epoch;
EndTxn by anybody who knows (id, epoch), idempotent after a commit of the same epoch; a live
producer that opens the next transaction under the same epoch; fencing, which raises the epoch and
aborts; time-outs; requests whose answer is lost, and that happen never, at once or later.

Checked: nothing that nobody decided becomes visible; no batch becomes visible twice in a
participant; nothing that is decided is aborted but by the system's own time-out; nothing follows a
SEAL, and entries have no gaps; a batch is written only behind the DONE of the one before, which is
visible everywhere; DONE and Spark's commit log get a batch only when it is visible everywhere; a
COMMIT names only transactions that are prepared, visible, or were timed out.
"""

from __future__ import annotations

import marshal
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from onceforall.commit_log.envelope import decode, encode
from onceforall.protocol.entries import Commit, Done, Entry, Seal

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=timezone.utc)
MINE, ANOTHERS = "mine", "another's"
"""The nonces: only a driver's own claim may look like its own, and a state must not tell which
driver is which."""

EMPTY, OPEN, COMMITTED, ABORTED = range(4)
"""The states of a transactional id."""

_FORGOTTEN = 1000
"""Added to the epoch of an id that was forgotten: no request of before meets it again."""

NO_ANSWER = -2
LOSSES = {2: "before", 3: "after", 4: "late"}
"""Variants of a request: its answer is lost, and it happens never, at once, or some day."""

Txn = tuple[int, int, int, int]
"""(key, state, epoch, batch)"""

TaskItem = tuple[int, int, int, int, bool]
"""(participant, key, epoch or -1 for a fresh producer, batch, whether its transaction is open
already)"""


class Violation(BaseException):
    """The promise is broken. Passes through every ``except Exception`` of the code under test."""


@dataclass(frozen=True)
class Options:
    """The size of a world, and what may happen in it.

    Attributes:
        generations: so many starts of the query.
        batches: of the query.
        participants: sinks, with one task each.
        timeouts: so many open transactions are aborted by their system.
        expiries: so many idle ids are forgotten by their system; whoever asks for one later meets
            another epoch.
        failures: so many task attempts fail after having opened their transaction.
        lost_answers: so many requests that change something get no answer.
        fine: every call of the store and both halves of a task are steps of their own; otherwise
            reads of the log are fused with the operation that follows, and a task opens and
            prepares its transaction in one step.
        crashes: crashes are moves of their own. Without, a crashed driver is one that never moves
            again, which is the same to all others: every state is checked, also those behind which
            some drivers never move.
        stateful: a decided batch runs again, to rebuild its state.
        durable: lost rows are written again from where they were kept, and not by the replay.
    """

    generations: int = 3
    batches: int = 2
    participants: int = 2
    timeouts: int = 0
    expiries: int = 0
    failures: int = 0
    lost_answers: int = 0
    fine: bool = False
    crashes: bool = False
    stateful: bool = False
    durable: bool = False


def key_of(generation: int, participant: int, turn: int = 0) -> int:
    """Return the number of a transactional id."""
    return (generation * 8 + participant) * 8 + turn


def name_of(key: int) -> str:
    """Return a transactional id's name, as committables have it."""
    return f"s{key // 8 % 8}:{key // 64}:{key % 8}"


_NAME = re.compile(r"s(\d+):(\d+):(\d+)")


def key_from_name(name: str) -> int:
    """Read a name back."""
    match = _NAME.fullmatch(name)
    assert match is not None
    participant, generation, turn = (int(part) for part in match.groups())
    return key_of(generation, participant, turn)


class Entries:
    """Every content that an entry of the log ever has, numbered."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.anothers: list[bytes] = []
        self.mine: list[bytes] = []
        self.owners: list[frozenset[tuple[int, int, int]]] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, content: bytes, generation: int, index: int) -> int:
        """Return the number of a content that a driver writes: with its nonce ``MINE``, or as it
        has read it.
        """
        number = self._numbers.get(content)
        if number is None:
            entry = decode(content, where="entry", generation=generation, index=index).entry
            number = self._numbers[content] = len(self.entries)
            self.entries.append(entry)
            self.mine.append(content)
            anothers = encode(
                entry, nonce=ANOTHERS, generation=generation, index=index, written_at=NOON
            )
            # Whoever seals creates what it read once more, byte for byte.
            self._numbers[anothers] = number
            self.anothers.append(anothers)
            self.owners.append(_owners(entry))
        return number


def _owners(entry: Entry) -> frozenset[tuple[int, int, int]]:
    if not isinstance(entry, Commit):
        return frozenset()
    each = (c for cs in entry.committables.values() for c in cs)
    return frozenset((key_from_name(c["name"]), int(c["epoch"]), int(c["of"])) for c in each)


class World:
    """A state; its fields are immutable values, so that a copy is one of references. Operations
    replace them, or raise ``Violation``.

    ``drivers`` are numbers of ``exhaustive_driver.Automaton``; the first of them own the chains 0,
    1, …, and the rest, which have claimed nothing yet, are sorted: which of them is which means
    nothing.
    """

    __slots__ = ("chains", "drivers", "entries", "expiries", "failures", "late", "late_tasks", "losses", "participants", "spark", "started", "timeouts", "txns", "visible")  # fmt: skip  # noqa: E501

    def __init__(self, entries: Entries, participants: int, packed: tuple[Any, ...]) -> None:
        self.entries = entries
        self.participants = participants
        self.spark: int
        self.chains: tuple[tuple[int, ...], ...]
        self.txns: tuple[Txn, ...]
        self.visible: tuple[int, ...]
        self.late_tasks: tuple[TaskItem, ...]
        self.late: tuple[tuple[int, ...], ...]
        self.drivers: tuple[int, ...]
        (
            self.spark,
            self.chains,
            self.txns,
            self.visible,
            self.late_tasks,
            self.late,
            self.drivers,
            self.started,
            self.timeouts,
            self.failures,
            self.losses,
            self.expiries,
        ) = packed

    @classmethod
    def new(cls, entries: Entries, options: Options) -> World:
        """Return the world before the first start."""
        nothing = (0,) * (options.batches * options.participants)
        budgets = (options.timeouts, options.failures, options.lost_answers, options.expiries)
        return cls(entries, options.participants, (-1, (), (), nothing, (), (), (), 0, *budgets))

    def packed(self) -> tuple[Any, ...]:
        """Return all of the state, as whole numbers in tuples."""
        return (
            *self.shared(),
            self.drivers,
            self.started,
            self.timeouts,
            self.failures,
            self.losses,
            self.expiries,
        )

    def shared(self) -> tuple[Any, ...]:
        """Return what outlives the drivers."""
        return (self.spark, self.chains, self.txns, self.visible, self.late_tasks, self.late)

    def bytes(self) -> bytes:
        """Return the state as bytes: equal for equal states, since version 2 of the format has
        no references.
        """
        return marshal.dumps(self.packed(), 2)

    # --- the commit log ---------------------------------------------------------------------------

    def is_sealed(self, generation: int) -> bool:
        """Tell whether a chain ends with its SEAL."""
        chains = self.chains
        return generation < len(chains) and isinstance(
            self.entries.entries[chains[generation][-1]], Seal
        )

    def read(self, generation: int, index: int) -> int:
        """Return one more than the number of an entry, or 0."""
        chains = self.chains
        if generation < len(chains) and index < len(chains[generation]):
            return chains[generation][index] + 1
        return 0

    def create(self, position: int, generation: int, index: int, entry: int) -> tuple[int, int]:
        """Create an entry.

        Returns:
            -1, or twice the number of what stands there, and 1 more if the driver itself put it
            there; and the driver's position now.
        """
        chains = self.chains
        there = self.read(generation, index) - 1
        if there >= 0:
            mine = position == generation and not isinstance(self.entries.entries[there], Seal)
            return 2 * there + mine, position
        if index == 0:
            if generation != len(chains):
                raise Violation(f"generation {generation} is claimed, and there are {len(chains)}")
            drivers = self.drivers
            self.drivers = (
                *drivers[:generation],
                drivers[position],
                *drivers[generation:position],
                *drivers[position + 1 :],
            )
            self.chains = (*chains, (entry,))
            return -1, generation
        self._append(generation, index, entry)
        return -1, position

    def _append(self, generation: int, index: int, number: int) -> None:
        chains = self.chains
        entry = self.entries.entries[number]
        if self.is_sealed(generation):
            raise Violation(f"{entry.kind} {index} of generation {generation} follows its SEAL")
        if index != len(chains[generation]):
            raise Violation(f"{entry.kind} {index} of generation {generation} leaves a gap")
        self.chains = (
            *chains[:generation],
            (*chains[generation], number),
            *chains[generation + 1 :],
        )
        if isinstance(entry, Done):
            self.check_complete(entry.batch, f"DONE({entry.batch}) in generation {generation}")
        if isinstance(entry, Commit):
            self._check_named(entry.batch, self.entries.owners[number])

    def _check_named(self, batch: int, owners: frozenset[tuple[int, int, int]]) -> None:
        if {of for _, _, of in owners} != {batch}:
            raise Violation(f"COMMIT({batch}) names {sorted(owners)}")
        for key, epoch, of in owners:
            _, state, now, holds = self._txn(key)
            prepared = (state, now, holds) == (OPEN, epoch, of) or (state, now, holds) == (
                ABORTED,
                epoch + 1,
                of,
            )
            # Of a forgotten id nobody can tell any more who aborted it.
            if not prepared and key + 1 not in self.visible and now < _FORGOTTEN:
                raise Violation(
                    f"COMMIT({batch}) names {name_of(key)}, epoch {epoch}, which was aborted"
                )

    def _is_decided(self, key: int, epoch: int, batch: int) -> bool:
        owners = self.entries.owners
        return any(
            (key, epoch, batch) in owners[number] for chain in self.chains for number in chain
        )

    # --- transactions -----------------------------------------------------------------------------

    def _txn(self, key: int) -> Txn:
        for txn in self.txns:
            if txn[0] == key:
                return txn
        return (key, EMPTY, 0, -1)

    def _put(self, new: Txn) -> None:
        self.txns = tuple(sorted((*(txn for txn in self.txns if txn[0] != new[0]), new)))

    def idle(self) -> tuple[int, ...]:
        """Return the keys of all ids that a system may forget."""
        return tuple(txn[0] for txn in self.txns if txn[1] in {COMMITTED, ABORTED})

    def expire(self, key: int) -> None:
        """The system forgets an idle id, as brokers do after days."""
        self.expiries -= 1
        self._put((key, EMPTY, self.epoch(key) + _FORGOTTEN, -1))

    def epoch(self, key: int) -> int:
        """Return the epoch of an id."""
        return self._txn(key)[2]

    def opened(self) -> tuple[int, ...]:
        """Return the keys of all open transactions."""
        return tuple(txn[0] for txn in self.txns if txn[1] == OPEN)

    def fence(self, key: int, why: str) -> int:
        """InitProducerId: raise the epoch, abort what is open, and return the epoch."""
        _, state, epoch, batch = self._txn(key)
        if state == OPEN and self._is_decided(key, epoch, batch):
            raise Violation(f"batch {batch} of {name_of(key)} is decided, and was aborted by {why}")
        self._put((key, EMPTY, epoch + 1, -1))
        return epoch + 1

    def begin(self, item: TaskItem) -> int:
        """A task opens its transaction; returns its epoch, or -1 when it meets another one."""
        participant, key, epoch, batch, _ = item
        if epoch < 0:
            epoch = self.fence(key, "a fresh producer")
        _, state, now, holds = self._txn(key)
        if now != epoch:
            return -1
        if state == OPEN:
            raise Violation(
                f"batch {batch} is written into the open transaction of batch {holds} on "
                f"{name_of(key)}"
            )
        for before in range(batch):
            self.check_complete(before, f"batch {batch} is written in participant {participant}")
            if not self._is_done(before):
                raise Violation(f"batch {batch} is written before DONE({before})")
        self._put((key, OPEN, epoch, batch))
        return epoch

    def pre_commit(self, item: TaskItem) -> int:
        """A task's second half, where it is a step of its own; returns as ``begin`` does."""
        _, key, epoch, batch, _ = item
        return epoch if self._txn(key)[1:] == (OPEN, epoch, batch) else -1

    def end(self, key: int, epoch: int, permit: tuple[int, int]) -> int:
        """EndTxn(commit); returns 0 for success, 1 for another epoch, 2 for a transaction in no
        state to be committed.
        """
        generation, index = permit
        if not isinstance(
            self.entries.entries[self.read(generation, index) - 1]
            if self.read(generation, index)
            else None,
            Commit,
        ):
            raise Violation(
                f"a permit for entry {index} of generation {generation}, which is no COMMIT"
            )
        return self.end_now(key, epoch)

    def end_now(self, key: int, epoch: int) -> int:
        """EndTxn(commit) as it arrives at the system, perhaps late."""
        _, state, now, batch = self._txn(key)
        if now != epoch:
            return 1
        if state == COMMITTED:
            return 0
        if state != OPEN:
            return 2
        if not self._is_decided(key, epoch, batch):
            raise Violation(
                f"batch {batch} of {name_of(key)}, which nobody decided, becomes visible"
            )
        place = batch * self.participants + key // 8 % 8
        if self.visible[place]:
            raise Violation(f"batch {batch} becomes visible twice in participant {key // 8 % 8}")
        self._put((key, COMMITTED, epoch, batch))
        self.visible = (*self.visible[:place], key + 1, *self.visible[place + 1 :])
        return 0

    def outcome(self, key: int, epoch: int, batch: int) -> int:
        """What the system's own records say of a transaction: 0 visible, 1 aborted, 2 neither."""
        if self.visible[batch * self.participants + key // 8 % 8] == key + 1:
            return 0
        return 2 if self._txn(key)[1:] == (OPEN, epoch, batch) else 1

    def time_out(self, key: int) -> None:
        """The system aborts an open transaction by itself."""
        _, _, epoch, batch = self._txn(key)
        self.timeouts -= 1
        self._put((key, ABORTED, epoch + 1, batch))

    # --- Spark ------------------------------------------------------------------------------------

    def commit_spark(self, batch: int) -> int:
        """Spark's own commit log; returns 0 when another run has written this entry."""
        if self.spark >= batch:
            return 0
        self.check_complete(batch, f"Spark's commit log gets batch {batch}")
        if batch != self.spark + 1:
            raise Violation(f"Spark's commit log jumps from {self.spark} to {batch}")
        self.spark = batch
        return 1

    def _is_done(self, batch: int) -> bool:
        entries = self.entries.entries
        return any(
            isinstance(entries[n], Done) and entries[n].batch == batch  # type: ignore[union-attr]
            for chain in self.chains
            for n in chain
        )

    def check_complete(self, batch: int, what: str) -> None:
        """Raise unless a batch is visible in every participant."""
        for participant in range(self.participants):
            if not self.visible[batch * self.participants + participant]:
                raise Violation(
                    f"{what}, but batch {batch} is not visible in participant {participant}"
                )
