"""A simulated transactional system with Kafka's rules, and the two-phase sink in front of it.

What is modelled: transactional ids with an epoch; EndTxn by anybody who knows (id, epoch),
idempotent after a commit of the same epoch; a live producer that opens the next transaction on the
same id and epoch; fencing (InitProducerId), which bumps the epoch and aborts; time-outs; ids that
the broker forgets; requests without an answer, which happen never, at once or some day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceforall.errors import SinkUnavailableError
from onceforall.protocol.entries import Committable
from onceforall.protocol.history import CommitPermit
from onceforall.protocol.names import TransactionName
from onceforall.sink import CommitReport
from simulator.strands import point
from simulator.systems import (
    BY_THE_CLOCK,
    QUERY,
    Assignment,
    FencedAttemptError,
    Owner,
    SimulatedSink,
    System,
    report,
)
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import SimulatedWorld


@dataclass
class Txn:
    """A transactional id. ``state``: (E)mpty, (O)pen, (C)ommitted or (A)borted."""

    epoch: int = 0
    state: str = "E"
    owner: Owner | None = None
    since_ms: int = 0


@dataclass
class Producer:
    """A live producer of a worker process; ``assignment``: what it writes, or wrote last."""

    name: str
    epoch: int
    assignment: Assignment
    in_use: bool = True
    last_batch: int | None = None


class Cluster(System):
    """The brokers behind one sink."""

    def __init__(self, sink: str, world: SimulatedWorld) -> None:
        super().__init__(sink, world)
        self.txns: dict[str, Txn] = {}
        self.pools: dict[tuple[int, int], list[Producer]] = {}

    # --- the requests of producers and drivers ----------------------------------------------------

    def initialise(self, name: str, why: str) -> int:
        """InitProducerId: abort what is open, and return a new epoch."""
        txn = self.txns.setdefault(name, Txn())
        if txn.state == "O":
            self._abort(name, txn, why)
        txn.epoch, txn.state, txn.owner = txn.epoch + 1, "E", None
        return txn.epoch

    def end(self, name: str, epoch: int) -> str | None:
        """EndTxn(commit): None for success, else why it can't be."""
        txn = self.txns[name]
        if txn.epoch != epoch:
            return "PRODUCER_FENCED"
        if txn.state == "C":
            return None
        if txn.state != "O":
            return "INVALID_TXN_STATE"
        assert txn.owner is not None
        self.show(txn.owner)
        txn.state = "C"
        return None

    def time_out(self, name: str, why: str = "timeout at any time") -> None:
        """Abort by the broker itself."""
        txn = self.txns[name]
        assert txn.state == "O"
        self._abort(name, txn, why)
        txn.epoch, txn.state = txn.epoch + 1, "A"

    def expire(self, name: str) -> None:
        """Forget an idle id, as brokers do after days; whoever asks for it is told that nobody
        knows it.
        """
        assert self.txns[name].state in {"C", "A"}
        self.txns[name] = Txn(self.txns[name].epoch + 1000)

    def idle(self) -> list[str]:
        """Return the ids that may expire."""
        return [name for name, txn in self.txns.items() if txn.state in {"C", "A"}]

    def left_over(self) -> list[str]:
        """Return the ids with an open transaction."""
        return sorted(name for name, txn in self.txns.items() if txn.state == "O")

    def pass_time(self) -> None:
        """Abort transactions that are older than their timeout."""
        timeout_ms = self.world.options.timeout_ms
        if timeout_ms is not None:
            for name, txn in self.txns.items():
                if txn.state == "O" and txn.since_ms + timeout_ms <= self.world.now_ms:
                    self.world.count("time-out")
                    self.time_out(name, BY_THE_CLOCK)

    def _abort(self, name: str, txn: Txn, why: str) -> None:
        assert txn.owner is not None
        self.world.aborted(self.sink, txn.owner, name, why)

    # --- tasks ------------------------------------------------------------------------------------

    def begin(self, assignment: Assignment) -> Producer:
        """Take a live producer that may go on, or make one."""
        pool = self.pools.setdefault((assignment.worker, assignment.owner.generation), [])
        reusable = {c["name"]: c for c in assignment.reusable}
        for producer in list(pool):
            if producer.in_use:
                continue
            entry = reusable.get(producer.name)
            if entry is not None and (entry["epoch"], entry["batch"]) == (
                producer.epoch,
                producer.last_batch,
            ):
                producer.in_use, producer.assignment = True, assignment
                return producer
            if producer.last_batch != assignment.owner.batch:
                pool.remove(producer)
        producer = self._fresh(
            assignment, {*reusable, *assignment.avoided, *(p.name for p in pool)}
        )
        pool.append(producer)
        return producer

    def _fresh(self, assignment: Assignment, taken: set[str]) -> Producer:
        parts = assignment.owner.generation, 0, 0
        code, turn = self.code, 0
        while True:
            # Batch and task are no part of it: an id is used by one batch after the other.
            name = str(
                TransactionName(
                    QUERY, code, *parts, turn, assignment.incarnation, assignment.owner.slot
                )
            )
            if name not in taken:
                return Producer(name, self.initialise(name, "a fresh producer"), assignment)
            turn += 1

    def write(self, transaction: Producer) -> None:
        """Produce: opens the transaction."""
        name, owner = transaction.name, transaction.assignment.owner
        txn = self.txns[name]
        if txn.epoch != transaction.epoch:
            raise FencedAttemptError(f"{name}: epoch {transaction.epoch} was fenced")
        if txn.state == "O" and txn.owner != owner:
            raise Violation(f"{owner} writes into the open transaction of {txn.owner} on {name}")
        txn.state, txn.owner, txn.since_ms = "O", owner, self.world.now_ms

    def pre_commit(self, transaction: Producer) -> dict[str, Any]:
        """Flush."""
        name, owner = transaction.name, transaction.assignment.owner
        txn = self.txns[name]
        if (txn.epoch, txn.state, txn.owner) != (transaction.epoch, "O", owner):
            raise FencedAttemptError(f"{name} was fenced before its pre-commit")
        transaction.last_batch, transaction.in_use = owner.batch, False
        return {"name": name, "epoch": transaction.epoch}

    def failed(self, transaction: Producer | None) -> None:
        """Throw the producer away."""
        for pool in self.pools.values():
            if transaction in pool:
                pool.remove(transaction)

    def driver_side(self) -> SimulatedKafkaSink:
        """Return the sink of a new driver."""
        return SimulatedKafkaSink(self)


class SimulatedKafkaSink(SimulatedSink):
    """The driver's side."""

    system: Cluster

    def __init__(self, system: Cluster) -> None:
        super().__init__(system)
        self.doubtful: set[str] = set()

    def commit_all(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:  # noqa: ARG002
        """EndTxn for each."""
        outcomes: dict[str, list[Committable]] = {
            "completed": [],
            "retired": [],
            "lost": [],
            "in_doubt": [],
        }
        for committable in committables:
            name, epoch = committable["name"], committable["epoch"]
            reason = self.ask(
                "end",
                name,
                lambda name=name, epoch=epoch: self.system.end(name, epoch),  # type: ignore[misc]
            )
            if reason is not None:
                kind = {"visible": "retired", "aborted": "lost", "unknown": "in_doubt"}[
                    self._outcome(committable)
                ]
            else:
                kind = "retired" if name in self.doubtful else "completed"
            outcomes[kind].append(committable)
        return report(outcomes)

    def _outcome(self, committable: Committable) -> str:
        """Look into the system's own records, which do not lie."""
        point()
        if self.system.world.take("look") is not None:
            raise SinkUnavailableError("no answer to the question what became of it")
        owner = Owner(*committable["owner"])
        if owner in self.system.visible.values():
            return "visible"
        return "aborted" if (self.system.sink, owner) in self.system.world.aborts else "unknown"

    def abort(self, committables: Sequence[Committable]) -> None:
        """Fence each."""
        for committable in committables:
            self.end_one(self.system, committable["name"], "an abort")

    def retire(self, committables: Sequence[Committable]) -> None:
        """Fence each."""
        for committable in committables:
            self.end_one(self.system, committable["name"], "a retirement")
            self.doubtful.discard(committable["name"])

    def end_one(self, system: Cluster, name: str, why: str) -> None:
        """InitProducerId."""
        self.ask("fence", name, lambda: system.initialise(name, why))

    def doubt(self, kind: str, name: str) -> None:
        """A request without an answer may come twice, or later: the id's epoch is not shared
        with a next transaction.
        """
        (self.doubtful if kind == "end" else self.burnt).add(name)
