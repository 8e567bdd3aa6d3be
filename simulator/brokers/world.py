"""The world of a schedule: the cluster, its faults, late requests, and what is true of each
transaction; it raises ``Violation`` as soon as something becomes visible that may not.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.brokers.brokers import COORDINATORS, Brokers
from simulator.brokers.cluster import COMPLETE_ABORT, COMPLETE_COMMIT, ONGOING, Cluster, Transaction
from simulator.brokers.records import Partition
from simulator.violation import Violation

TOPIC = "out"
STRANGER = -1
OTHER_PRODUCER = -2
BROKERS = 3

KINDS_OF_LATE = ("busy topic", "alone with the cut off", "topic hidden")
"""A seed draws these apart, so that it goes on playing what it played before they were known."""

KINDS = (
    "no connection",
    "lost request",
    "lost answer",
    "late request",
    "not now",
    "kill",
    "time-out",
    "expiry",
    "somebody's fence",
    "somebody's use",
    "partition added",
    "cut off",
    "coordinator moves",
    "leader moves",
    "no leader",
    "retention",
    "compaction",
    "topic made again",
    "other cluster",
    "strangers",
    "zombie",
    "client's repeated request",
    "client's late request",
    "last epoch",
    *KINDS_OF_LATE,
)
_CLOSE = 2
_REACHED = 0.05
_MOST_FETCHES = 300
_OF_REQUESTS = ("no connection", "lost request", "lost answer", "late request", "not now")


class Killed(BaseException):
    """The driver is killed in front of, or behind, a request."""


@dataclass
class Truth:
    """What is true of one transaction.

    Attributes:
        number: which.
        generation: of the run that wrote it.
        cluster: where it was written.
        records: that it has written, by partition.
        end: ``"commit"`` or ``"abort"`` as soon as its coordinator has decided it.
        decided: a COMMIT names it.
        claim: what the sink has called it: ``"committed"``, ``"lost"``, or ``"in doubt"`` where its
            topic was made again.
        provable: the log still has its proof.
    """

    number: int
    name: str
    producer_id: int
    epoch: int
    cluster: Cluster
    generation: int = 0
    records: dict[Partition, list[int]] = field(default_factory=dict)
    end: str | None = None
    decided: bool = False
    claim: str | None = None
    provable: bool = True
    whole: bool = True


class World:
    """All that is simulated.

    Attributes:
        rng: of the schedule.
        kinds: the faults of this schedule.
        calm: nothing goes wrong any more.
        now_s: the clock.
        truths: of all transactions of the query, by number.
        late: requests that are still on their way.
        killable: the driver may be killed now.
        steady: no partition may lose its leader now.
        fetches: how many the driver's present call has made of a busy topic.
        counts: the faults that happened.
        story: what happened, in words, if it is kept.
    """

    def __init__(self, rng: random.Random, kinds: set[str], *, tell: bool = False) -> None:
        self.rng = rng
        self.kinds = kinds
        self.calm = False
        self.now_s = 1000.0
        self.truths: dict[int, Truth] = {}
        self.late: list[tuple[str, Callable[[], Any]]] = []
        self.killable = False
        self.steady = False
        self.fetches = 0
        self.move_in = self.swap_in = 0
        """After how many requests a coordinator moves, and the address leads elsewhere."""
        self.swapped: dict[str, tuple[int, int]] = {}
        self.counts: Counter[str] = Counter()
        self.story: list[str] | None = [] if tell else None
        self.zombies: list[Callable[[], bool]] = []
        self.rate = rng.choice((0.03, 0.1, 0.2))
        self.arrives = rng.choice((self.rate / 2, 0.003))
        self.marks = rng.choice((0.4, 0.05))
        self.loads = rng.choice((0.2, 0.02))
        self.leads = rng.choice((0.1, 0.01))
        self.wakes = rng.choice((0.05, 0.002))
        partitions = rng.randint(1, 3)
        self.cluster = self._new_cluster("home", partitions)
        self.home = Brokers(self.cluster, BROKERS)
        self.brokers = self.home
        self.elsewhere = Brokers(self._new_cluster("elsewhere", partitions), BROKERS)
        self.events: list[tuple[str, Callable[[], bool]]] = []
        """What can happen between two requests, by kind; each tells whether it did."""

    def _new_cluster(self, name: str, partitions: int) -> Cluster:
        return Cluster(
            name,
            {TOPIC: partitions},
            self.seen,
            self._ends,
            refuses_late_produce=self.rng.random() < 0.7,
            changes_last="last epoch" in self.kinds and self.rng.random() < 0.5,
            first_epoch=32765 if "last epoch" in self.kinds else self.rng.randint(0, 2),
        )

    # --- the schedule -----------------------------------------------------------------------------

    def happens(self, kind: str, chance: float | None = None) -> bool:
        """Tell whether a fault of a kind happens now."""
        if self.calm or kind not in self.kinds:
            return False
        if self.rng.random() >= (self.rate if chance is None else chance):
            return False
        self.count(kind)
        return True

    def count(self, kind: str) -> None:
        """Count a fault, and tell of it."""
        self.counts[kind] += 1
        self.tell(kind)

    def tell(self, words: str) -> None:
        """Add to the story."""
        if self.story is not None:
            self.story.append(words)

    def fault_of_request(self, *, changes: bool) -> str | None:
        """Return what goes wrong with a request of the driver."""
        for kind in _OF_REQUESTS:
            chance = self.rate if changes else self.rate / 3
            if (changes or kind != "late request") and self.happens(kind, chance):
                return kind
        return None

    def keep_to_plan(self) -> None:
        """Let happen in the middle of a call what was planned for it."""
        if self.move_in:
            self.move_in -= 1
            if not self.move_in and not self.calm:
                dict(self.events)["coordinator moves"]()
        if self.swap_in:
            self.swap_in -= 1
            if not self.swap_in and not self.calm:
                self.lead_elsewhere(self.swapped, (None, COMPLETE_ABORT))

    def maybe_kill(self) -> None:
        """Kill the driver, perhaps.

        Raises:
            Killed: it is.
        """
        if self.killable and self.happens("kill", self.rate / 2):
            raise Killed

    def send_late(self, what: str, request: Callable[[], Any]) -> None:
        """Keep a request back; it arrives some time."""
        self.late.append((what, request))

    def others_write(self, topic: str, wanted: Any) -> None:
        """Let others write to a partition as fast as the driver reads it; they don't stop when the
        faults do, for they are none.

        Args:
            topic: whose partition.
            wanted: what the driver fetches of it.

        Raises:
            Violation: the driver's call still reads on.
        """
        partition = (topic, int(wanted.partition))
        cluster = self.brokers.cluster
        log = cluster.logs.get(partition)
        if "busy topic" not in self.kinds or log is None or partition in cluster.leaderless:
            return
        if log.end - wanted.fetch_offset >= _CLOSE:
            return
        self.counts["busy topic"] += 1
        self.fetches += 1
        if self.fetches > _MOST_FETCHES:
            raise Violation(f"{partition} is read for as long as others write to it")
        sequence = log.sequences.get(OTHER_PRODUCER, -1) + 1
        log.produce(OTHER_PRODUCER, 0, STRANGER, sequence)

    def cut_off_between_batches(self, number: int) -> None:
        """Let the coordinator of a producer that goes on be cut off, perhaps."""
        if "alone with the cut off" not in self.kinds or self.cluster.leaderless:
            return
        if self.home.cut is None and self.happens("cut off", 0.2):
            self.home.cut_off(number, asleep=True)

    def maybe_leave_alone(self) -> None:
        """Leave the driver alone with the broker that was cut off, perhaps."""
        if self.home.cut is not None and self.happens("alone with the cut off", 0.3):
            self.leave_alone()

    def leave_alone(self) -> bool:
        """Let the broker that was cut off be awake, and the only one that the driver can reach."""
        if self.home.cut is None or self.home.alone:
            return False
        self.home.asleep, self.home.alone = False, True
        return True

    def pass_time(self, seconds: float) -> None:
        """Let the clock go on while the driver sleeps."""
        self.now_s += seconds
        self.stir(4)

    def stir(self, times: int = 1) -> None:
        """Let something happen between two requests, perhaps."""
        for _ in range(times):
            self._work()
            if self.calm:
                continue
            if self.late and self.rng.random() < self.arrives:
                self.arrive()
            if self.events and self.rng.random() < self.rate:
                kind, event = self.rng.choice(self.events)
                if event():
                    self.count(kind)

    def stir_up(self, times: int) -> None:
        """Let much happen while no run is there."""
        before, (self.rate, self.arrives) = (self.rate, self.arrives), (0.4, 0.3)
        self.stir(times)
        self.rate, self.arrives = before

    def arrive(self) -> None:
        """Let one of the late requests arrive."""
        brokers = self.home
        if brokers.cut is not None or brokers.cluster.leaderless:
            return
        what, request = self.late.pop(self.rng.randrange(len(self.late)))
        self.tell(f"arrives late: {what}")
        self.counts["late request arrives"] += 1
        request()

    def _work(self) -> None:
        """What the brokers do of themselves: markers, loading, replication."""
        for brokers in (self.home, self.elsewhere):
            self._write_marker(brokers.cluster)
        if self.calm or self.rng.random() < self.loads:
            self.home.load()
        if self.calm or self.rng.random() < 0.1:
            for log in self.cluster.logs.values():
                log.shown = None
        if self.home.cut is not None:
            self._wake(self.home)
        if self.cluster.leaderless and self.rng.random() < self.leads:
            self.lead_again()

    def _write_marker(self, cluster: Cluster) -> None:
        waiting = cluster.waiting()
        if waiting and (self.calm or self.rng.random() < self.marks):
            name, partition = self.rng.choice(waiting)
            if partition not in cluster.leaderless:
                self.tell(f"marker of {name} in {partition}")
                cluster.mark(name, partition)

    def _wake(self, brokers: Brokers) -> None:
        if brokers.asleep and self.rng.random() < 2 * self.wakes:
            self.tell("the broker that was cut off wakes")
            brokers.asleep = False
        if brokers.alone and self.rng.random() < _REACHED:
            self.tell("the others can be reached again")
            brokers.alone = False
        if self.rng.random() < self.wakes:
            self.tell("the broker that was cut off is back")
            brokers.come_back()

    def lead_again(self) -> None:
        """Give partitions without a leader one."""
        others = [number for number in range(BROKERS) if number != self.home.cut]
        for partition in sorted(self.home.cluster.leaderless):
            self.home.lead(partition, self.rng.choice(others))
            self.tell(f"{partition} is led again")

    def make_topic_again(self) -> None:
        """Delete the topic and make it again, perhaps later; what was written is gone."""
        self.cluster.make_again(TOPIC, self.seen)
        if self.rng.random() < 0.4:  # no kind of its own: it changes no other schedule
            self.count("topic made again later")
            self.cluster.untold = self.rng.randint(1, 60)
        for log in self.cluster.logs.values():
            for sequence in range(self.rng.randint(0, 8)):
                log.produce(STRANGER, 0, STRANGER, sequence)
            log.mark(STRANGER, 0, commits=True)
        for truth in self.truths.values():
            truth.whole = truth.provable = False

    def lead_elsewhere(
        self,
        names: dict[str, tuple[int, int]],
        states: Sequence[str | None] = (None, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT),
    ) -> None:
        """Let the address lead to another cluster, where somebody has the same ids.

        Args:
            names: producer id and epoch by transactional id.
            states: in one of which each is there; None: it isn't there.
        """
        self.brokers = self.elsewhere
        for name, (producer_id, epoch) in names.items():
            state = self.rng.choice(states)
            if state is None:
                self.elsewhere.cluster.transactions.pop(name, None)
            else:
                partition = self.rng.choice(sorted(self.elsewhere.cluster.logs))
                self.elsewhere.cluster.transactions[name] = Transaction(
                    producer_id, epoch, state, STRANGER, partitions={partition}
                )

    def come_home(self) -> None:
        """Let the address lead to the query's cluster again."""
        self.brokers = self.home

    def heal(self) -> None:
        """End all faults."""
        self.calm = True
        self.cluster.untold = 0
        self.come_home()
        self.home.come_back()
        self.home.hidden.clear()
        self.lead_again()
        self.home.behind = None
        self.home.phases = ["loaded"] * COORDINATORS

    # --- what is true -----------------------------------------------------------------------------

    def begin(self, name: str, producer_id: int, epoch: int) -> Truth:
        """Begin a transaction."""
        number = len(self.truths) + 1
        self.truths[number] = Truth(number, name, producer_id, epoch, self.cluster)
        return self.truths[number]

    def is_open(self, number: int) -> bool:
        """Tell whether a transaction is open at its coordinator."""
        truth = self.truths[number]
        known = truth.cluster.transactions.get(truth.name)
        return known is not None and known.state == ONGOING and known.number == number

    def seen(self, number: int) -> None:
        """Take note of a transaction that becomes visible.

        Raises:
            Violation: it may not.
        """
        if number == STRANGER:
            return
        truth = self.truths[number]
        if not truth.decided:
            raise Violation(f"transaction {number} ({truth.name}) is visible, and undecided")
        if truth.claim == "lost":
            raise Violation(f"transaction {number} ({truth.name}) is visible, and was called lost")

    def _ends(self, name: str, number: int, commits: bool, who: str) -> None:  # noqa: FBT001
        self.tell(
            f"{name}: transaction {number} is to {'commit' if commits else 'abort'}, by {who}"
        )
        ours = who in {"the driver", "a task"}
        if number == STRANGER:
            if ours:
                raise Violation(f"the transaction of somebody else ({name}) is ended by {who}")
            return
        if number == 0:
            return
        truth = self.truths[number]
        if commits:
            if not truth.decided:
                raise Violation(f"transaction {number} ({name}) is committed by {who}, undecided")
        elif ours and truth.decided and truth.claim not in {"lost", "in doubt"}:
            raise Violation(f"transaction {number} ({name}) is decided, and aborted by {who}")
        truth.end = "commit" if commits else "abort"

    def visible_of(self, truth: Truth) -> dict[Partition, list[int]]:
        """Return what a reader sees of a transaction: sequences by partition."""
        return {
            partition: [s for number, s in log.visible if number == truth.number]
            for partition, log in truth.cluster.logs.items()
        }
