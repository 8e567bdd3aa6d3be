"""What happens to a simulated cluster by itself: time-outs, expired ids, brokers that are cut off,
leaders that move, retention, compaction, and strangers.
"""

from __future__ import annotations

from simulator.brokers.brokers import COORDINATORS
from simulator.brokers.cluster import ONGOING
from simulator.brokers.records import PartitionLog
from simulator.brokers.world import BROKERS, STRANGER, TOPIC, World

MOST_PARTITIONS = 4
OTHER_QUERY = "onceforall:6a3e1c9e-0000-4000-8000-000000000002:out:1:0.0.0:"


class Events:
    """The events of a world; each returns whether it could happen."""

    def __init__(self, world: World) -> None:
        """Add those of the world's kinds to it."""
        self._world = world
        self._strangers = 0
        known = (
            ("time-out", self._time_out),
            ("time-out", self._time_out),
            ("expiry", self._expire),
            ("somebody's fence", self._fence),
            ("somebody's use", self._use),
            ("partition added", self._add_partition),
            ("cut off", self._cut_off),
            ("alone with the cut off", world.leave_alone),
            ("coordinator moves", self._move_coordinator),
            ("leader moves", self._move_leader),
            ("no leader", self._lose_leader),
            ("retention", self._delete_records),
            ("compaction", self._compact),
            ("strangers", self._stranger),
            ("zombie", self._zombie),
            ("topic hidden", self._hide_topic),
        )
        world.events += [(kind, event) for kind, event in known if kind in world.kinds]

    def _time_out(self) -> bool:
        names = [
            name
            for name in self._world.cluster.ongoing()
            if not self._world.cluster.transactions[name].partitions
            & self._world.cluster.leaderless
        ]
        if not names:
            return False
        name = self._world.rng.choice(names)
        self._world.tell(f"{name} times out")
        self._world.cluster.time_out(name)
        return True

    def _expire(self) -> bool:
        names = self._world.cluster.idle()
        if not names:
            return False
        del self._world.cluster.transactions[self._world.rng.choice(names)]
        return True

    def _fence(self) -> bool:
        """Somebody initialises one of the query's ids."""
        names = [
            name
            for name, known in self._world.cluster.transactions.items()
            if known.begun > 0 and not known.partitions & self._world.cluster.leaderless
        ]
        if not names:
            return False
        self._world.cluster.init_producer_id(self._world.rng.choice(names), "somebody")
        return True

    def _use(self) -> bool:
        """Somebody writes and commits under one of the query's ids, which has no open
        transaction; under one that is forgotten, with a new producer id, they may abort too.
        """
        cluster = self._world.cluster
        forgotten = sorted(
            {truth.name for truth in self._world.truths.values()} - cluster.transactions.keys()
        )
        used = [n for n in cluster.idle() if cluster.transactions[n].begun > 0]
        if cluster.leaderless or not (forgotten or used):
            return False
        name = self._world.rng.choice(forgotten or used)
        _, producer_id, epoch = cluster.init_producer_id(name, "somebody")
        partition = self._world.rng.choice(sorted(cluster.logs))
        cluster.add_partitions(name, producer_id, epoch, {partition}, 0)
        cluster.produce(name, producer_id, epoch, partition, STRANGER, 0)
        commits = name not in forgotten or self._world.rng.random() < 0.3
        if self._world.rng.random() < 0.3:
            return True  # it stays open: nobody takes it for ours, which had another epoch
        if commits or self._world.rng.random() < 0.5:
            cluster.end(name, producer_id, epoch, commits=commits, version=4, who="somebody")
        else:
            cluster.time_out(name)
        return True

    def _add_partition(self) -> bool:
        if self._world.home.cut is not None or len(self._world.cluster.logs) > MOST_PARTITIONS:
            return False
        partition = (TOPIC, len(self._world.cluster.logs))
        self._world.cluster.logs[partition] = PartitionLog(self._world.seen)
        self._world.home.leaders[partition] = self._world.rng.randrange(BROKERS)
        return True

    def _cut_off(self) -> bool:
        if self._world.home.cut is not None or self._world.cluster.leaderless:
            return False
        number = self._world.rng.choice((0, *range(BROKERS)))  # the first is asked first
        self._world.home.cut_off(number, asleep=self._world.rng.random() < 0.6)
        return True

    def _move_coordinator(self) -> bool:
        brokers = self._world.home
        if brokers.cut is not None:
            return False
        part = self._world.rng.randrange(COORDINATORS)
        before = (list(brokers.coordinators), list(brokers.epochs))
        to = (brokers.coordinators[part] + self._world.rng.randint(1, BROKERS - 1)) % BROKERS
        brokers.move_coordinator(part, to, self._world.rng.choice(("unread", "loading", "loaded")))
        if self._world.rng.random() < 0.5:
            brokers.behind = (self._world.rng.randrange(BROKERS), *before)
        return True

    def _move_leader(self) -> bool:
        if self._world.home.cut is not None:
            return False
        partition = self._world.rng.choice(sorted(self._world.cluster.logs))
        if partition in self._world.cluster.leaderless:
            return False
        self._world.home.lead(partition, self._world.rng.randrange(BROKERS))
        log = self._world.cluster.logs[partition]
        if log.end:
            log.shown = max(log.start, log.end - self._world.rng.randint(1, 4))
        return True

    def _lose_leader(self) -> bool:
        # A marker that is on its way then, or is written by a time-out, is the brokers' own fault.
        if self._world.steady or self._world.home.cut is not None or self._world.cluster.waiting():
            return False
        self._world.home.lead(self._world.rng.choice(sorted(self._world.cluster.logs)), None)
        return True

    def _delete_records(self) -> bool:
        log = self._world.cluster.logs[self._world.rng.choice(sorted(self._world.cluster.logs))]
        log.start = self._world.rng.randint(log.start, log.end)
        return True

    def _hide_topic(self) -> bool:
        """The driver loses the right to DESCRIBE the topic, or has it again."""
        self._world.home.hidden ^= {TOPIC}
        return True

    def _compact(self) -> bool:
        markers = [
            entry
            for log in self._world.cluster.logs.values()
            for entry in log.entries
            if entry.commits is not None and not entry.emptied
        ]
        if not markers:
            return False
        self._world.rng.choice(markers).emptied = True
        return True

    def _stranger(self) -> bool:
        """Somebody else's producer writes, and ends or leaves open what it has written."""
        self._strangers += 1
        name = (OTHER_QUERY, "somebody")[self._strangers % 2]
        known = self._world.cluster.transactions.get(name)
        if known is None or known.state != ONGOING:
            code, producer_id, epoch = self._world.cluster.init_producer_id(name, "a stranger")
            if code:
                return False
            partition = self._world.rng.choice(sorted(self._world.cluster.logs))
            if partition in self._world.cluster.leaderless:
                return False
            self._world.cluster.add_partitions(name, producer_id, epoch, {partition}, STRANGER)
            self._world.cluster.transactions[name].number = STRANGER
            self._world.cluster.produce(name, producer_id, epoch, partition, STRANGER, 0)
        elif self._world.rng.random() < 0.7:
            if known.partitions & self._world.cluster.leaderless:
                return False
            self._world.cluster.end(
                name,
                known.producer_id,
                known.epoch,
                commits=self._world.rng.random() < 0.5,
                version=4,
                who="a stranger",
            )
        return True

    def _zombie(self) -> bool:
        return bool(self._world.zombies) and self._world.rng.choice(self._world.zombies)()
