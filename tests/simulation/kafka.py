"""A simulated transactional system with Kafka's rules, and the two-phase sink in front of it.

What is modelled: transactional ids with an epoch; EndTxn by anybody who knows (id, epoch), idempotent after a commit of the same
epoch; a live producer that opens the next transaction on the same id and epoch; fencing (InitProducerId), which bumps the epoch and
aborts; time-outs; requests without an answer, which happen never, at once or some day; tasks of which several attempts run at once and
which outlive their driver.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.sink import Capabilities, CommitReport, LostTransaction, TwoPhaseCommitSink
from simulation.actor import point


class Violation(BaseException):
    """The promise is broken. Passes through every ``except Exception`` of the code under test."""


class FencedProducerError(AttemptFailedError):
    """A task's producer meets another epoch."""


@dataclass
class Txn:
    """A transactional id. ``state``: (E)mpty, (O)pen, (C)ommitted or (A)borted; ``owner``: (batch, generation, partition, slot)."""

    epoch: int = 0
    state: str = "E"
    owner: tuple[int, ...] | None = None


@dataclass
class Cluster:
    """The system behind one sink."""

    sink: str
    world: object
    txns: dict[str, Txn] = field(default_factory=dict)
    visible: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    late: list[tuple[str, str, int]] = field(default_factory=list)

    def initialise(self, name, why):
        txn = self.txns.setdefault(name, Txn())
        if txn.state == "O":
            self._abort(name, txn, why)
        txn.epoch, txn.state, txn.owner = txn.epoch + 1, "E", None
        return txn.epoch

    def write(self, name, epoch, owner):
        txn = self.txns[name]
        if txn.epoch != epoch:
            raise FencedProducerError(f"{name}: epoch {epoch} was fenced")
        if txn.state == "O" and txn.owner != owner:
            raise Violation(f"{owner} writes into the open transaction of {txn.owner} on {name}")
        self.world.check_may_write(self.sink, owner)
        txn.state, txn.owner = "O", owner

    def end(self, name, epoch):
        """EndTxn(commit): None for success, else why it can't be."""
        txn = self.txns[name]
        if txn.epoch != epoch:
            return "PRODUCER_FENCED"
        if txn.state == "C":
            return None
        if txn.state != "O":
            return "INVALID_TXN_STATE"
        owner = txn.owner
        if (self.sink, owner) not in self.world.decided:
            raise Violation(f"{owner}, which nobody decided, becomes visible on {self.sink}")
        if owner[0::2][:2] in self.visible:
            raise Violation(f"batch {owner[0]}, partition {owner[2]} becomes visible twice on {self.sink}")
        txn.state = "C"
        self.visible[owner[0], owner[2]] = owner
        return None

    def time_out(self, name):
        txn = self.txns[name]
        assert txn.state == "O"
        self._abort(name, txn, "timeout")
        txn.epoch, txn.state = txn.epoch + 1, "A"

    def expire(self, name):
        """Forget an idle id, as brokers do after days; whoever asks for it is told that nobody knows it."""
        assert self.txns[name].state in {"C", "A"}
        self.txns[name] = Txn(self.txns[name].epoch + 1000)

    def deliver_late(self, index):
        kind, name, epoch = self.late.pop(index)
        if kind == "end":
            self.end(name, epoch)
        else:
            self.initialise(name, "a late fence")

    def open_transactions(self):
        return sorted(name for name, txn in self.txns.items() if txn.state == "O")

    def _abort(self, name, txn, why):
        self.world.aborted(self.sink, txn.owner, name, why)


@dataclass
class Producer:
    """A live producer of a worker process."""

    name: str
    epoch: int
    last_batch: int | None = None
    in_use: bool = True
    owner: tuple[int, ...] | None = None


def name_of(sink, generation, incarnation, slot, turn):
    return f"{sink}:{generation}:{incarnation}:{slot}.{turn}"


def sink_of(name):
    return name.split(":")[0]


def generation_of(name):
    return int(name.split(":")[1])


class Task:
    """One attempt of one task: three operations (get a producer, write, pre-commit), then a committable or an error."""

    def __init__(self, cluster, decision, sink, place, slot, worker, avoided, incarnation):
        self.place = place
        self.cluster, self.sink, self.slot, self.incarnation = cluster, sink, slot, incarnation
        self.generation, self.batch = decision.generation, decision.batch
        self.owner = (decision.batch, decision.generation, place[1], slot)
        self.reusable = {c["name"]: c for c in getattr(decision, "reusable", {}).get(sink, ())}
        self.avoided = set(avoided)
        self.pool = cluster.world.pools.setdefault((worker, decision.generation, sink), [])
        self.producer = None
        self.written = False
        self.committable = None
        self.failed = False

    @property
    def is_over(self):
        return self.failed or self.committable is not None

    def advance(self):
        """Perform the next operation; raises what a task raises."""
        try:
            if self.producer is None:
                self.producer = self._live() or self._fresh()
            elif not self.written:
                self.cluster.write(self.producer.name, self.producer.epoch, self.owner)
                self.written = True
            else:
                self._pre_commit()
        except AttemptFailedError:
            self.failed = True
            if self.producer in self.pool:
                self.pool.remove(self.producer)
            raise

    def _live(self):
        for producer in list(self.pool):
            if producer.in_use:
                continue
            entry = self.reusable.get(producer.name)
            if entry is not None and (entry["epoch"], entry["batch"]) == (producer.epoch, producer.last_batch):
                producer.in_use = True
                return producer
            if producer.last_batch != self.batch:
                self.pool.remove(producer)
        return None

    def _fresh(self):
        taken = {*self.reusable, *self.avoided, *(p.name for p in self.pool)}
        turn = 0
        while (name := name_of(self.sink, self.generation, self.incarnation, self.slot, turn)) in taken:
            turn += 1
        producer = Producer(name, self.cluster.initialise(name, "a fresh producer"))
        self.pool.append(producer)
        return producer

    def _pre_commit(self):
        txn = self.cluster.txns[self.producer.name]
        if (txn.epoch, txn.state, txn.owner) != (self.producer.epoch, "O", self.owner):
            raise FencedProducerError(f"{self.producer.name} was fenced before its pre-commit")
        of_task = {"owner": list(self.owner), "task": list(self.place), "rows": {}}
        self.committable = {"name": self.producer.name, "epoch": self.producer.epoch, **of_task}
        self.producer.last_batch, self.producer.in_use = self.batch, False


class SimulatedSink(TwoPhaseCommitSink):
    """The driver's side, of one driver. ``faults.take(kind)`` says what happens to the next request: None, before, after or late."""

    kind = "simulated"

    def __init__(self, cluster, faults):
        self.cluster = cluster
        self.faults = faults
        self.doubtful = set()
        self.burnt = set()

    default_name = "simulated"
    capabilities = Capabilities(two_phase=True)

    def columns(self, schema):
        raise NotImplementedError

    def begin_transaction(self, attempt):
        raise NotImplementedError

    invoke = pre_commit = discard = begin_transaction

    def commit(self, permit, committables):
        if permit is None or not any(g == permit.generation and i == permit.index for g, i in self.cluster.world.commits):
            raise Violation(f"{permit} permits what no COMMIT decides")
        completed, retired, lost, in_doubt = [], [], [], []
        for committable in committables:
            name, epoch = committable["name"], committable["epoch"]
            reason = self._ask("end", name, epoch, lambda name=name, epoch=epoch: self.cluster.end(name, epoch))
            if reason is not None:
                outcome = self._outcome(committable)
                {"visible": retired, "aborted": lost, "unknown": in_doubt}[outcome].append(
                    committable if outcome == "visible" else LostTransaction(committable, reason)
                )
            elif name in self.doubtful:
                retired.append(committable)
            else:
                completed.append(committable)
        return CommitReport(tuple(completed), tuple(retired), tuple(lost), tuple(in_doubt))

    def _outcome(self, committable):
        """Look into the system's own records, which do not lie."""
        point()
        if self.faults.take("list") is not None:
            raise SinkUnavailableError("no answer to the question what became of it")
        owner = tuple(committable["owner"])
        if owner in self.cluster.visible.values():
            return "visible"
        return "aborted" if (self.cluster.sink, owner) in self.cluster.world.aborts else "unknown"

    def abort(self, committables):
        for committable in committables:
            self._fence(committable["name"], "an abort")

    def retire(self, committables):
        for committable in committables:
            self._fence(committable["name"], "a retirement")
            self.doubtful.discard(committable["name"])

    def recover(self, sweep):
        point()
        if self.faults.take("list") is not None:
            raise SinkUnavailableError("no answer to the listing")
        # All sinks write to one system, and each sees what any of them has open.
        names = [n for cluster in self.cluster.world.clusters.values() for n in cluster.open_transactions()]
        covered = [n for n in names if sweep.covers("query", sink_of(n), generation_of(n), n)]
        for name in covered:
            self._fence(name, "a sweep")
        return len(covered)

    def _fence(self, name, why):
        cluster = self.cluster.world.clusters[sink_of(name)]
        self._ask("fence", name, 0, lambda: cluster.initialise(name, why))

    def _ask(self, kind, name, epoch, perform):
        point()
        fault = self.faults.take(kind)
        if fault is None:
            return perform()
        if fault == "after":
            perform()
        if fault == "late":
            self.cluster.world.clusters[sink_of(name)].late.append((kind, name, epoch))
        # A request without an answer may come twice, or later: the id's epoch is not shared with a next transaction.
        if kind == "end":
            self.doubtful.add(name)
        else:
            self.burnt.add(name)
        raise SinkUnavailableError(f"{name}: no answer to {kind} ({fault})")
