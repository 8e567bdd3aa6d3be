"""A world, its drivers, and the moves of a schedule; and healing, after which everything must be
in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from onceforall.errors import (
    AttemptFailedError,
    BatchTooSlowError,
    CommitLogError,
    FencedError,
    InDoubtError,
    NondeterministicReplayError,
    OutcomeUnknownError,
    TransactionLostError,
)
from simulator.driver import Driver
from simulator.kafka import Cluster
from simulator.store import LostAnswerError, SimulatedStore
from simulator.systems import Owner, System, Task
from simulator.violation import Violation
from simulator.world import (
    Faults,
    NoFaults,
    Options,
    SimulatedWorld,
    SparkConflictError,
    first,
    no_whims,
)

EXPECTED = (
    str,
    FencedError,
    OutcomeUnknownError,
    AttemptFailedError,
    CommitLogError,
    LostAnswerError,
    SparkConflictError,
)
"""How a driver may end at any time."""

MOST_BEFORE_SYNC = 40
"""Of so many operations at the most is a step to the next sync."""


class Simulation:
    """A world, its drivers, and the moves of a schedule; each move checks what the moved one came
    to.

    Args:
        options: the size of the world.
        faults: what happens to requests.
        whims: whether something out of the ordinary happens, by its name.
        choose: which of so many threads of a process goes next.
    """

    def __init__(
        self,
        options: Options,
        faults: Faults | None = None,
        whims: Callable[[str], bool] = no_whims,
        choose: Callable[[int], int] = first,
    ) -> None:
        self.world = SimulatedWorld(options, faults, whims, choose)
        self.drivers: list[Driver] = []
        self.outcomes: Counter[str] = Counter()
        self.timeouts = options.timeouts
        self.expiries = options.expiries
        self._seen: dict[str, dict[tuple[int, int], Owner]] = {}

    @property
    def live(self) -> list[Driver]:
        """The drivers that still take batches."""
        return [d for d in self.drivers if d.main.running]

    @property
    def house_keepers(self) -> list[Driver]:
        """Runs whose process lives; one that has stopped may have a sweep under way."""
        return [d for d in self.drivers if not d.is_crashed and d.sweeps]

    @property
    def lingering(self) -> list[Driver]:
        """Drivers that take no batches any more, and whose process still has something to do."""
        return [d for d in self.drivers if not d.main.running and d.is_busy]

    @property
    def unfinished_tasks(self) -> list[Task]:
        """The tasks that have something to do."""
        return [t for t in self.world.tasks if not t.is_over]

    @property
    def clusters(self) -> list[Cluster]:
        """The systems of Kafka's kind."""
        return [s for s in self.world.systems.values() if isinstance(s, Cluster)]

    @property
    def open_transactions(self) -> list[tuple[Cluster, str]]:
        """What could time out."""
        return [(c, name) for c in self.clusters for name in c.left_over()]

    @property
    def idle_transactions(self) -> list[tuple[Cluster, str]]:
        """What could be forgotten."""
        return [(c, name) for c in self.clusters for name in c.idle()]

    @property
    def late(self) -> list[tuple[SimulatedStore | System, int]]:
        """Requests on their way."""
        places: list[SimulatedStore | System] = [self.world.store, *self.world.systems.values()]
        return [(p, i) for p in places for i in range(len(p.late))]

    def start(self) -> Driver:
        """Start a driver; others may live."""
        self.drivers.append(Driver(self.world, len(self.drivers)))
        return self.drivers[-1]

    def step(self, driver: Driver, operations: int) -> None:
        """Let a driver's process perform so many operations."""
        if (
            driver.woken_past < len(self.drivers) - 1
            and self.drivers[-1].coordinator.run.generation >= 0
        ):
            driver.woken_past = len(self.drivers) - 1
            self.world.count("zombie wakes")
        was_live = driver.main.running
        driver.step(operations)
        if was_live and not driver.main.running:
            self._judge(driver)

    def crash(self, driver: Driver, fault: str = "crash") -> None:
        """Kill -9."""
        was_live = driver.main.running
        driver.kill()
        if was_live:
            self.world.count(fault)
            self._judge(driver)

    def lose_power(self, *, of_the_store_alone: bool = False) -> None:
        """Lose what the store has not made durable, and kill all drivers, unless they run on other
        machines.
        """
        if not of_the_store_alone:
            for driver in self.drivers:
                self.crash(driver, "crash by power loss")
        if self.world.store.lose_power():
            where = "the store alone" if of_the_store_alone else "an entry"
            self.world.count(f"power loss of {where}")

    def step_to_sync(self, driver: Driver) -> bool:
        """Let a driver go on until it stands before a sync; tell whether it does."""
        store = self.world.store
        store.syncs_are_slow = True
        try:
            for _ in range(MOST_BEFORE_SYNC):
                if store.unsynced or not driver.is_busy:
                    break
                self.step(driver, 1)
        finally:
            store.syncs_are_slow = False
        return bool(store.unsynced)

    def time_out(self, cluster: Cluster, name: str) -> None:
        """Let a system abort a transaction."""
        self.timeouts -= 1
        self.world.count("time-out")
        cluster.time_out(name)

    def expire(self, cluster: Cluster, name: str) -> None:
        """Let a system forget an id."""
        self.expiries -= 1
        self.world.count("expiry")
        cluster.expire(name)

    def tick(self, passed_ms: int) -> None:
        """Let time pass."""
        self.world.pass_time_to(self.world.now_ms + passed_ms)

    @staticmethod
    def advance(task: Task) -> None:
        """Let a task perform an operation, with or without its driver."""
        with suppress(AttemptFailedError):
            task.advance()

    def deliver_late(self, place: SimulatedStore | System, index: int) -> None:
        """Let a request arrive."""
        self.world.count("late request arrives")
        place.deliver_late(index)

    def read(self) -> None:
        """Let a reader of every sink look: what it has seen before must still be there."""
        for sink, system in self.world.systems.items():
            seen = self._seen.get(sink, {})
            if len(system.visible) != len(seen) or system.visible != seen:
                if not seen.items() <= system.visible.items():
                    raise Violation(f"readers of {sink} saw {seen}, and now {system.visible}")
                self._seen[sink] = dict(system.visible)

    def heal(self) -> None:
        """End all faults and all drivers; a fresh driver must then bring the query to its end,
        and leave nothing behind.
        """
        for driver in self.drivers:
            driver.kill()
        self.world.faults, self.world.whims, self.world.choose = NoFaults(), no_whims, first
        self._finish(self.start())
        # One more batch, so that there is a start which recovers, also where the query had come to
        # its end before.
        self.world.batches += 1
        last = self.start()
        self._finish(last)
        for task in self.unfinished_tasks:
            while not task.is_over:
                self.advance(task)
        while self.late:
            place, index = self.late[0]
            place.deliver_late(index)
        for batch in range(self.world.batches):
            self.world.check_complete(batch, "after healing")
        self._check_leftovers(last)
        self._check_whose()
        self.read()

    def close(self) -> None:
        """End all strands."""
        for driver in self.drivers:
            driver.kill()

    def _finish(self, driver: Driver) -> None:
        self.step(driver, 10_000)
        if driver.main.running:
            raise Violation("a fresh driver without faults does not come to an end")
        if driver.main.outcome != "finished":
            raise Violation(
                f"a fresh driver without faults came to {driver.main.outcome!r}"
            ) from driver.main.outcome

    def _check_whose(self) -> None:
        for sink, system in self.world.systems.items():
            for owner in system.visible.values():
                if (sink, owner) not in self.world.standing[owner.batch]:
                    raise Violation(
                        f"after healing, {owner} is visible on {sink}, and its batch's newest "
                        "decision names another"
                    )

    def _check_leftovers(self, last: Driver) -> None:
        """The sweeps that a run repeats find what late tasks and requests have left."""
        last.house_keep()
        last.step(10_000)
        for sink, system in self.world.systems.items():
            left = system.left_over()
            if left:
                raise Violation(f"after healing, {sink} still has {', '.join(left)}")
        if self.world.store.temporary:
            raise Violation("after healing, the store still has temporary files")

    def _judge(self, driver: Driver) -> None:
        outcome = driver.main.outcome
        self.outcomes[outcome if isinstance(outcome, str) else type(outcome).__name__] += 1
        if isinstance(outcome, EXPECTED):
            return
        if (
            isinstance(outcome, TransactionLostError | NondeterministicReplayError)
            and self.world.lost
        ):
            return
        if type(outcome) is InDoubtError and driver.stop:
            return
        if isinstance(outcome, BatchTooSlowError) and self.world.options.timeout_ms is not None:
            return
        raise Violation(f"driver {driver.number} came to {outcome!r}") from outcome
