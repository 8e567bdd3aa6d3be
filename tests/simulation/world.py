"""Real coordinators over real commit logs, in a world whose every operation is a step of a schedule.

Drivers run the production code: ``Coordinator``, the transition table, ``CommitLog``. Simulated are the store, the transactional
systems behind the sinks (``simulation.kafka``), Spark (its commit log is a number) and the tasks. A driver can be crashed or left
standing in front of any operation, be it a read of the log or one EndTxn of many, and its tasks go on without it.

Checked at every operation: nothing undecided becomes visible; no batch becomes visible twice; nothing decided is aborted but by the
system's own time-out; nothing follows a SEAL; a batch is neither written nor passed over before the one before it is complete.
Checked after healing (``Simulation.heal``): every batch is visible once in every sink, whatever was lost on the way.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

from onceforall.errors import (
    AttemptFailedError,
    CommitLogError,
    FencedError,
    InDoubtError,
    NondeterministicReplayError,
    OutcomeUnknownError,
    TransactionLostError,
)
from onceforall.protocol.entries import Commit, Seal
from simulation.actor import point
from simulation.driver import Driver
from simulation.kafka import Cluster, Violation
from simulation.store import LostAnswerError, SimulatedStore


class SparkConflictError(Exception):
    """Another run has written this entry of Spark's commit log."""


EXPECTED = (str, FencedError, OutcomeUnknownError, AttemptFailedError, CommitLogError, LostAnswerError, SparkConflictError)


@dataclass(frozen=True)
class Options:
    """The size of a world, and what may happen in it.

    Attributes:
        slots_restart: transactional ids count the tasks of each batch from the start, also after a batch that lost a task attempt.
    """

    batches: int = 3
    partitions: int = 2
    sinks: int = 1
    generations: int = 4
    timeouts: int = 1
    expiries: int = 0
    stateful: bool = False
    roll_after_entries: int = 1000
    slots_restart: bool = False
    durable: bool = False


class NoFaults:
    """Everything is answered."""

    def take(self, kind):
        return None


class SimulatedWorld:
    """What all drivers share, and the invariants."""

    def __init__(self, options, faults=None):
        self.options = options
        self.faults = faults or NoFaults()
        self.store = SimulatedStore(self)
        self.clusters = {f"s{i}": Cluster(f"s{i}", self) for i in range(options.sinks)}
        self.spark = -1
        self.pools = {}
        self.tasks = []
        self.decided = set()
        self.commits = []
        self.digests = {}
        self.done = set()
        self.sealed = set()
        self.aborts = {}
        self.lost = set()
        self.nonces = (f"n{i}" for i in itertools.count())

    def violate(self, message):
        raise Violation(message)

    def appended(self, generation, index, entry):
        if generation in self.sealed:
            self.violate(f"{entry.kind} {index} of generation {generation} follows its SEAL")
        if isinstance(entry, Seal):
            self.sealed.add(generation)
        if entry.kind == "DONE":
            self.done.add(entry.batch)
            self._check_complete(entry.batch, f"DONE({entry.batch}) in generation {generation}")
        if isinstance(entry, Commit):
            self.commits.append((generation, index))
            self.digests[entry.batch] = entry.digests["s0/0"][0].rows
            owners = [(sink, tuple(c["owner"])) for sink, cs in entry.committables.items() for c in cs]
            if {o[1][0] for o in owners} != {entry.batch}:
                self.violate(f"COMMIT({entry.batch}) names {owners}")
            for owner in owners:
                self.decided.add(owner)
                if owner in self.aborts:
                    self._decided_is_aborted(owner, self.aborts[owner])

    def aborted(self, sink, owner, name, why):
        self.aborts[sink, owner] = f"{why} ({name})"
        if (sink, owner) in self.decided:
            self._decided_is_aborted((sink, owner), self.aborts[sink, owner])

    def _decided_is_aborted(self, owner, why):
        if not why.startswith("timeout"):
            self.violate(f"{owner} is decided, and was aborted by {why}")
        self.lost.add(owner)

    def check_may_write(self, sink, owner):
        for before in range(owner[0]):
            self._check_complete(before, f"{owner} writes")
            if before not in self.done:
                self.violate(f"{owner} writes before DONE({before})")

    def _check_complete(self, batch, what):
        for name, cluster in self.clusters.items():
            for partition in range(self.options.partitions):
                if (batch, partition) not in cluster.visible:
                    self.violate(f"{what}, but batch {batch}, partition {partition} is not visible on {name}")

    def commit_spark(self, batch):
        point()
        if self.spark >= batch:
            raise SparkConflictError(f"Spark's commit log has batch {batch}")
        self._check_complete(batch, f"Spark's commit log gets batch {batch}")
        if batch != self.spark + 1:
            self.violate(f"Spark's commit log jumps from {self.spark} to {batch}")
        self.spark = batch


class Simulation:
    """A world, its drivers, and the moves of a schedule; each move checks what the moved one came to."""

    def __init__(self, options, faults=None, whims=lambda _: False):
        self.world = SimulatedWorld(options, faults)
        self.whims = whims
        self.drivers = []
        self.outcomes = Counter()
        self.timeouts = options.timeouts
        self.expiries = options.expiries

    @property
    def live(self):
        return [d for d in self.drivers if d.actor.running]

    @property
    def house_keepers(self):
        """Runs whose process lives; one that has stopped may have a sweep under way."""
        return [d for d in self.drivers if not d.is_crashed and d.sweeps]

    @property
    def backgrounds(self):
        return [a for d in self.drivers for a in d.background if a.running]

    @property
    def unfinished_tasks(self):
        return [t for t in self.world.tasks if not t.is_over]

    @property
    def open_transactions(self):
        return [(c, name) for c in self.world.clusters.values() for name in c.open_transactions()]

    @property
    def idle_transactions(self):
        return [(c, n) for c in self.world.clusters.values() for n, txn in sorted(c.txns.items()) if txn.state in {"C", "A"}]

    @property
    def late(self):
        return [(p, i) for p in (self.world.store, *self.world.clusters.values()) for i in range(len(p.late))]

    def start(self):
        self.drivers.append(Driver(self.world, len(self.drivers), self.whims))

    def step(self, driver, operations):
        driver.actor.step(operations)
        if not driver.actor.running:
            self._judge(driver, driver.actor.outcome)

    def step_background(self, actor, operations):
        actor.step(operations)
        if isinstance(actor.outcome, BaseException):
            raise actor.outcome

    def crash(self, driver):
        driver.kill()
        self._judge(driver, driver.actor.outcome)

    def time_out(self, cluster, name):
        self.timeouts -= 1
        cluster.time_out(name)

    def expire(self, cluster, name):
        self.expiries -= 1
        cluster.expire(name)

    def advance(self, task):
        try:
            task.advance()
        except AttemptFailedError:
            pass

    def _judge(self, driver, outcome):
        if isinstance(outcome, Violation):
            raise outcome
        self.outcomes[outcome if isinstance(outcome, str) else type(outcome).__name__] += 1
        if isinstance(outcome, EXPECTED):
            return
        if isinstance(outcome, TransactionLostError | NondeterministicReplayError) and self.world.lost:
            return
        if type(outcome) is InDoubtError and driver.stop:
            return
        raise Violation(f"driver {driver.number} came to {outcome!r}") from outcome

    def heal(self):
        """End all faults and all drivers; a fresh driver must then bring the query to its end."""
        for driver in self.drivers:
            driver.kill()
        self.world.faults = NoFaults()
        self.whims = lambda _: False
        for _ in range(2):
            self.start()
            fresh = self.drivers[-1]
            for sink in fresh.sinks.values():
                sink.faults = self.world.faults
            self.step(fresh, 10_000)
            if fresh.actor.running:
                raise Violation("a fresh driver without faults does not come to an end")
            if fresh.actor.outcome != "finished":
                raise Violation(f"a fresh driver without faults came to {fresh.actor.outcome!r}") from fresh.actor.outcome
        for task in self.unfinished_tasks:
            while not task.is_over:
                self.advance(task)
        while self.late:
            place, index = self.late[0]
            place.deliver_late(index)
        for batch in range(self.world.options.batches):
            self.world._check_complete(batch, "after healing")

    def close(self):
        """End all threads."""
        for driver in self.drivers:
            driver.kill()
