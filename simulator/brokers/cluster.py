"""The truth of a simulated Kafka cluster: transactions at their coordinators, and the partitions'
logs.

The rules are those of Kafka's ``TransactionCoordinator`` for clients without KIP-890's second part,
as librdkafka is: EndTxn up to version 4 leaves the epoch, a time-out and InitProducerId bump it
before they abort, and a late AddPartitionsToTxn opens a completed transaction's id and epoch once
more. EndTxn of version 5 bumps the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from simulator.brokers.records import Partition, PartitionLog

OK = 0
INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, CONCURRENT_TRANSACTIONS = 48, 49, 51
PRODUCER_FENCED, INVALID_PRODUCER_EPOCH = 90, 47
LAST_EPOCH = 32767
_BUMPING_VERSION = 5

EMPTY, ONGOING = "Empty", "Ongoing"
PREPARE_COMMIT, PREPARE_ABORT = "PrepareCommit", "PrepareAbort"
COMPLETE_COMMIT, COMPLETE_ABORT = "CompleteCommit", "CompleteAbort"
_KNOWN_SOON = 4


@dataclass
class Transaction:
    """What a coordinator knows of a transactional id.

    Attributes:
        number: which transaction is open or was the last one, by the truth; 0: one that nobody
            began.
        begun: the last one that was begun.
        waiting: partitions that have no marker yet.
    """

    producer_id: int
    epoch: int
    state: str = EMPTY
    number: int = 0
    begun: int = 0
    partitions: set[Partition] = field(default_factory=set)
    waiting: set[Partition] = field(default_factory=set)

    def copied(self) -> Transaction:
        """Return a copy that doesn't change with this one."""
        return replace(self, partitions=set(self.partitions), waiting=set(self.waiting))


class Cluster:
    """Transactions and logs of one cluster; every request takes effect at once.

    Attributes:
        name: the cluster's id.
        refuses_late_produce: brokers ask the coordinator before they append (KIP-890, first part).
        changes_last: behind the last epoch, the end of an abort gives the id another producer id:
            seen with Kafka 4.3.1, and not with 3.9.2.
        ends: called when an end is decided: the id, the transaction's number, whether it commits,
            and who asked.
    """

    def __init__(
        self,
        name: str,
        topics: dict[str, int],
        seen: Callable[[int], None],
        ends: Callable[[str, int, bool, str], None],
        *,
        refuses_late_produce: bool = True,
        changes_last: bool = True,
        first_epoch: int = 0,
    ) -> None:
        self.name = name
        self.refuses_late_produce = refuses_late_produce
        self.changes_last = changes_last
        self.ends = ends
        self.first_epoch = first_epoch
        self.transactions: dict[str, Transaction] = {}
        self.topic_ids = {topic: f"{name}-{topic}-1" for topic in topics}
        self.untold = 0
        """For so many more questions the topics are gone, and not made again yet."""
        self.logs = {
            (topic, number): PartitionLog(seen)
            for topic, count in topics.items()
            for number in range(count)
        }
        self.leaderless: set[Partition] = set()
        self._due: dict[str, None] = {}
        self._next_producer_id = 1000

    # --- requests to coordinators -----------------------------------------------------------------

    def init_producer_id(self, name: str, who: str) -> tuple[int, int, int]:
        """Fence, abort what is open, and give out an epoch; error code, producer id and epoch."""
        known = self.transactions.get(name)
        if known is None:
            made = Transaction(self._new_producer_id(), self.first_epoch)
            self.transactions[name] = made
            return OK, made.producer_id, made.epoch
        if known.state == ONGOING:
            self._abort(name, known, who)
            return CONCURRENT_TRANSACTIONS, -1, -1
        if known.state in {PREPARE_COMMIT, PREPARE_ABORT}:
            return CONCURRENT_TRANSACTIONS, -1, -1
        if known.epoch >= LAST_EPOCH - 1:
            known.producer_id, known.epoch = self._new_producer_id(), 0
        else:
            known.epoch += 1
        known.state, known.number, known.partitions = EMPTY, 0, set()
        return OK, known.producer_id, known.epoch

    def _new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    def end(
        self, name: str, producer_id: int, epoch: int, *, commits: bool, version: int, who: str
    ) -> int:
        """EndTxn."""
        known = self.transactions.get(name)
        if known is None or known.producer_id != producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if known.epoch != epoch:
            return PRODUCER_FENCED
        if known.state == ONGOING:
            bumps = version >= _BUMPING_VERSION
            self.ends(name, known.number, commits, who)
            self._prepare(name, known, PREPARE_COMMIT if commits else PREPARE_ABORT, bumped=bumps)
            return OK
        if known.state == PREPARE_COMMIT and commits:
            return CONCURRENT_TRANSACTIONS
        if known.state == (COMPLETE_COMMIT if commits else COMPLETE_ABORT):
            return OK
        return INVALID_TXN_STATE

    def add_partitions(
        self, name: str, producer_id: int, epoch: int, partitions: set[Partition], number: int
    ) -> int:
        """AddPartitionsToTxn; it opens a transaction where none is open.

        It was sent for transaction ``number``. If that one has begun before, and this opens the id
        again, nobody has begun what is open then.
        """
        known = self.transactions.get(name)
        if known is None or known.producer_id != producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if known.epoch != epoch:
            return PRODUCER_FENCED
        if known.state in {PREPARE_COMMIT, PREPARE_ABORT}:
            return CONCURRENT_TRANSACTIONS
        if known.state != ONGOING:
            known.number, known.state, known.partitions = 0, ONGOING, set()
        if number > known.begun:
            known.number = known.begun = number
        known.partitions |= partitions
        # It is there; not every broker knows it at once.
        self.untold = min(self.untold, _KNOWN_SOON)
        return OK

    def produce(  # noqa: PLR0917  as the request has them
        self,
        name: str,
        producer_id: int,
        epoch: int,
        partition: Partition,
        number: int,
        sequence: int,
    ) -> int:
        """Produce; the leader asks the coordinator first where ``refuses_late_produce``."""
        if self.refuses_late_produce:
            known = self.transactions.get(name)
            if (
                known is None
                or (known.producer_id, known.epoch) != (producer_id, epoch)
                or known.state != ONGOING
                or partition not in known.partitions
            ):
                return INVALID_TXN_STATE
        return self.logs[partition].produce(producer_id, epoch, number, sequence)

    # --- what the cluster does by itself ----------------------------------------------------------

    def time_out(self, name: str) -> None:
        """Abort a transaction that is open for too long."""
        self._abort(name, self.transactions[name], "the cluster")

    def _abort(self, name: str, known: Transaction, who: str) -> None:
        self.ends(name, known.number, False, who)  # noqa: FBT003
        self._prepare(name, known, PREPARE_ABORT, bumped=True)

    def _prepare(self, name: str, known: Transaction, state: str, *, bumped: bool) -> None:
        known.state = state
        known.epoch += bumped
        # KAFKA-20734: a partition without a leader gets no marker, now or later.
        known.waiting = known.partitions - self.leaderless
        self._due[name] = None
        self._complete(name, known)

    def mark(self, name: str, partition: Partition) -> None:
        """Write one of the markers that a prepared end still has to write."""
        known = self.transactions[name]
        known.waiting.discard(partition)
        self.logs[partition].mark(
            known.producer_id, known.epoch, commits=known.state == PREPARE_COMMIT
        )
        self._complete(name, known)

    def _complete(self, name: str, known: Transaction) -> None:
        if not known.waiting:
            del self._due[name]
            known.state = COMPLETE_COMMIT if known.state == PREPARE_COMMIT else COMPLETE_ABORT
            if known.epoch == LAST_EPOCH and self.changes_last:
                # The markers have the old producer id and the last epoch.
                known.producer_id, known.epoch = self._new_producer_id(), 0

    def waiting(self) -> list[tuple[str, Partition]]:
        """Return the markers that are still to be written."""
        return [
            (name, partition)
            for name in self._due
            for partition in sorted(self.transactions[name].waiting)
        ]

    def ongoing(self) -> list[str]:
        """Return the ids with an open transaction."""
        return [name for name, known in self.transactions.items() if known.state == ONGOING]

    def idle(self) -> list[str]:
        """Return the ids that may expire."""
        return [
            name
            for name, known in self.transactions.items()
            if known.state in {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}
        ]

    def make_again(self, topic: str, seen: Callable[[int], None]) -> None:
        """Delete a topic, and make another one under its name."""
        self.topic_ids[topic] += "-again"
        for partition in self.logs:
            if partition[0] == topic:
                self.logs[partition] = PartitionLog(seen)
