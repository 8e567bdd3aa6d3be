"""Real coordinators over real commit logs, in a world whose every operation is a step of a
schedule.

Drivers run the production code: ``Coordinator``, the transition table, ``CommitLog``. Simulated are
the store, the systems behind the sinks (``kafka``, ``staged``), Spark (its commit log is a number),
the tasks, and the clock. A driver can be crashed or left standing in front of any operation, be it
a read of the log or one EndTxn of many, and its tasks go on without it.

**Checked at every operation**

- What becomes visible is in the newest decision of its batch, and every earlier batch is complete
  on every sink: so nothing undecided or aborted is ever seen, and the sinks are apart by one
  decided batch at the most.
- No row of a batch becomes visible twice, and what a reader has seen between two moves stays.
- Nothing decided is aborted, but by the system's own time-out; and nothing is decided that had
  timed out by the clock when its COMMIT was created.
- Nothing follows a SEAL, no generation is claimed above a gap, an entry is durable once: a create
  without an answer has one outcome.
- Older generations are swept by those alone who have sealed their chains.
- A permit names a COMMIT that is durable.
- A batch is neither written nor passed over before the one before it is complete and has its DONE;
  Spark's own log never jumps.
- Two transactions never share a place or an open id.
- A driver ends only in a way that its errors' docstrings allow.

**Checked after healing** (``simulation.Simulation.heal``): a fresh driver without faults comes to
its end; every batch is visible once in every sink, from the very attempts that its newest decision
names, whatever was lost on the way; nothing of ours is left over.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from onceforall.commit_log.envelope import Envelope
from onceforall.protocol.entries import Claim, Commit, Digest, Done, Seal, total
from onceforall.protocol.sweeping import Sweep
from simulator.kafka import Cluster
from simulator.staged import Database, Files
from simulator.store import RememberingChains, SimulatedStore
from simulator.strands import point
from simulator.systems import BY_THE_CLOCK, Owner, System, Task
from simulator.violation import Violation

_VERSION = 50


def digest_of(batch: int, rows: int, version: int) -> Digest:
    """Return the digest of rows; each version of them has other content."""
    count = rows.bit_count()
    return Digest(count, (rows + count * ((batch << 32) + (version << _VERSION))) % 2**64)


def version_of(digest: Digest) -> int:
    """Return the version of all rows of a batch, by their digest."""
    return (digest.hash_sum >> _VERSION) // digest.rows


class SparkConflictError(Exception):
    """Another run has written this entry of Spark's commit log."""


KINDS: dict[str, type[System]] = {"kafka": Cluster, "database": Database, "files": Files}
"""The kinds of system that a world can have behind its sinks."""


@dataclass(frozen=True)
class Options:
    """The size of a world, and what may happen in it.

    Attributes:
        batches: how many Spark has.
        partitions: tasks per sink and batch, at its first run; each has two rows. A replay may put
            them in another order, split or merge them.
        kinds: the kind of each sink, out of ``KINDS``.
        generations: how many drivers a schedule starts before healing.
        timeouts: so many transactions of Kafka's kind are aborted by their system, at any time.
        timeout_ms: the transaction timeout of Kafka's kind by the world's clock; None: never.
        expiries: so many idle ids are forgotten by their system.
        stateful: the query replays a decided batch.
        roll_after_entries: a run goes on in a new generation when its chain is that long.
        slots_restart: transactional ids count the tasks of each batch from the start, also after a
            batch that lost a task attempt (a bug).
        durable: rows are kept until their batch is complete.
        keep_ends: the log keeps the last two entries of each chain, and a create may arrive twice.
        real_bytes: the log's entries are written as in production, JSON with a checksum; else under
            a short name.
    """

    batches: int = 3
    partitions: int = 2
    kinds: tuple[str, ...] = ("kafka",)
    generations: int = 4
    timeouts: int = 1
    timeout_ms: int | None = None
    expiries: int = 0
    stateful: bool = False
    roll_after_entries: int = 1000
    slots_restart: bool = False
    durable: bool = False
    keep_ends: bool = False
    real_bytes: bool = True


class Faults(Protocol):
    """Says what happens to requests."""

    def take(self, kind: str) -> str | None:
        """Return what happens to the next request of this kind: None, or ``before``, ``after``,
        ``late`` and the like.
        """


class NoFaults:
    """Everything is answered."""

    def take(self, kind: str) -> str | None:  # noqa: ARG002
        """None."""
        return None


def no_whims(_whim: str) -> bool:
    """Nothing out of the ordinary."""
    return False


def first(_count: int) -> int:
    """Take the first of so many."""
    return 0


class SimulatedWorld:
    """What all drivers share, and the invariants.

    Attributes:
        batches: how many there are by now.
        spark: the last batch in Spark's own commit log.
        now_ms: the clock.
        decided: (sink, owner) of everything that a durable COMMIT ever named.
        standing: by batch, what its newest decision names.
        commits: generation and index of the durable COMMITs.
        aborts: by (sink, owner), who aborted it.
        lost: what was decided, and then aborted by its system.
        fault_counts: how often each kind of fault happened.
    """

    def __init__(
        self,
        options: Options,
        faults: Faults | None = None,
        whims: Callable[[str], bool] = no_whims,
        choose: Callable[[int], int] = first,
    ) -> None:
        self.options = options
        self.faults: Faults = faults or NoFaults()
        self.whims = whims
        self.choose = choose
        self.store = SimulatedStore(self)
        self.systems: dict[str, System] = {
            f"s{i}": KINDS[kind](f"s{i}", self) for i, kind in enumerate(options.kinds)
        }
        self.batches = options.batches
        self.spark = -1
        self.now_ms = 0
        self.tasks: list[Task] = []
        self.decided: set[tuple[str, Owner]] = set()
        self.standing: dict[int, set[tuple[str, Owner]]] = {}
        self.commits: set[tuple[int, int]] = set()
        self.versions: dict[int, int] = {}
        self.done: set[int] = set()
        self.claimed: set[int] = set()
        self.sealed: set[int] = set()
        self.aborts: dict[tuple[str, Owner], str] = {}
        self.lost: set[tuple[str, Owner]] = set()
        self.nonces: Iterator[str] = (f"n{i}" for i in itertools.count())
        self.envelopes: dict[bytes, Envelope] = {}
        self.entries = RememberingChains(self.store, self.envelopes)
        self.fault_counts: Counter[str] = Counter()

    def take(self, kind: str) -> str | None:
        """Ask what happens to a request, and count it."""
        fault = self.faults.take(kind)
        if fault is not None:
            self.count(f"{kind} {fault}")
        return fault

    def count(self, fault: str) -> None:
        """Count a fault."""
        self.fault_counts[fault] += 1

    def pass_time_to(self, now_ms: int) -> None:
        """Move the clock, and let the systems do what they do by themselves."""
        self.now_ms = max(self.now_ms, now_ms)
        for system in self.systems.values():
            system.pass_time()

    def appended(self, generation: int, index: int, content: bytes) -> None:
        """See an entry become durable."""
        entry = self.entries.decode(generation, index, content).entry
        if generation in self.sealed:
            raise Violation(f"{entry.kind} {index} of generation {generation} follows its SEAL")
        if isinstance(entry, Claim):
            if generation and generation - 1 not in self.claimed:
                raise Violation(f"generation {generation} is claimed above a gap")
            self.claimed.add(generation)
        elif isinstance(entry, Seal):
            self.sealed.add(generation)
        elif isinstance(entry, Done):
            self.done.add(entry.batch)
            self.check_complete(entry.batch, f"DONE({entry.batch}) in generation {generation}")
        else:
            self._decide(generation, index, entry)

    def _decide(self, generation: int, index: int, entry: Commit) -> None:
        self.commits.add((generation, index))
        self.versions[entry.batch] = version_of(total(entry.digests["s0/0"]))
        owners = {(sink, Owner(*c["owner"])) for sink, cs in entry.committables.items() for c in cs}
        if {owner.batch for _, owner in owners} != {entry.batch}:
            raise Violation(f"COMMIT({entry.batch}) names {sorted(owners)}")
        for name in self.systems:
            rows = sorted(row for sink, owner in owners if sink == name for row in owner.each_row)
            if rows != list(range(self.rows)):
                raise Violation(
                    f"COMMIT({entry.batch}) names the rows {rows} of {name}, and not each of "
                    f"{self.rows} once"
                )
        self.standing[entry.batch] = owners
        self.decided |= owners
        for owner in sorted(owners):
            if owner in self.aborts:
                self._decided_is_aborted(owner, self.aborts[owner])

    def check_in_time(self, generation: int, index: int, content: bytes) -> None:
        """See a decision be created, by whom asks in time: no transaction of it may have timed
        out.
        """
        entry = self.entries.decode(generation, index, content).entry
        if isinstance(entry, Commit):
            for owner in sorted(
                (sink, Owner(*c["owner"])) for sink, cs in entry.committables.items() for c in cs
            ):
                if self.aborts.get(owner, "").startswith(BY_THE_CLOCK):
                    raise Violation(f"COMMIT({entry.batch}) names {owner}, which has timed out")

    @property
    def rows(self) -> int:
        """How many rows each batch has."""
        return 2 * self.options.partitions

    def division(self, batch: int, sink: str) -> list[int]:
        """Return which rows each task has that the newest decision of a batch knows; of an
        undecided one two each.
        """
        standing = [owner.rows for name, owner in self.standing.get(batch, ()) if name == sink]
        return sorted(standing) or [
            0b11 << 2 * partition for partition in range(self.options.partitions)
        ]

    def aborted(self, sink: str, owner: Owner, name: str, why: str) -> None:
        """See something be aborted."""
        self.aborts[sink, owner] = f"{why} ({name})"
        if (sink, owner) in self.decided:
            self._decided_is_aborted((sink, owner), self.aborts[sink, owner])

    def _decided_is_aborted(self, owner: tuple[str, Owner], why: str) -> None:
        if not why.startswith("timeout"):
            raise Violation(f"{owner} is decided, and was aborted by {why}")
        self.lost.add(owner)

    def check_may_write(self, owner: Owner) -> None:
        """A batch is written behind the DONE of the one before."""
        for before in range(owner.batch):
            self.check_complete(before, f"{owner} writes")
            if before not in self.done:
                raise Violation(f"{owner} writes before DONE({before})")

    def check_may_sweep(self, sweep: Sweep) -> None:
        """Whoever sweeps the names of older generations has sealed their chains: what such a run
        has prepared can't be decided any more.
        """
        for generation in range(sweep.generation):
            if generation not in self.sealed:
                raise Violation(
                    f"{sweep.sink} sweeps below generation {sweep.generation}, and generation "
                    f"{generation} is not sealed"
                )

    def check_may_be_seen(self, sink: str, owner: Owner) -> None:
        """What is seen is what stands decided, and one batch comes after the other."""
        if (sink, owner) not in self.decided:
            raise Violation(f"{owner}, which nobody decided, becomes visible on {sink}")
        if (sink, owner) not in self.standing[owner.batch]:
            raise Violation(
                f"{owner}, which a later decision has replaced, becomes visible on {sink}"
            )
        if owner.batch:
            self.check_complete(owner.batch - 1, f"{owner} becomes visible on {sink}")

    def check_complete(self, batch: int, what: str) -> None:
        """All rows of a batch are visible on every sink."""
        for name, system in self.systems.items():
            for row in range(self.rows):
                if (batch, row) not in system.visible:
                    raise Violation(
                        f"{what}, but batch {batch}, row {row} is not visible on {name}"
                    )

    def commit_spark(self, batch: int) -> None:
        """Create the batch's entry in Spark's own commit log: an operation."""
        point()
        if self.spark >= batch:
            self.count("Spark's conflict")
            raise SparkConflictError(f"Spark's commit log has batch {batch}")
        self.check_complete(batch, f"Spark's commit log gets batch {batch}")
        if batch != self.spark + 1:
            raise Violation(f"Spark's commit log jumps from {self.spark} to {batch}")
        self.spark = batch
