"""Seeded random schedules: a seed gives the options, the faults and every move, and so replays
exactly.
"""

from __future__ import annotations

import itertools
import logging
import random
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from simulator.simulation import Simulation
from simulator.violation import Violation
from simulator.world import Options

MOVES = 60
"""How many moves a schedule has before it is healed; more when it has seen too few faults."""

MORE_MOVES = 120
"""How many moves are added at the most."""

_ANSWERS = ("before", "after", "late")
_FAULT_KINDS: dict[str, tuple[str, ...]] = {
    "create": ("before", "after", "late", "short"),
    "create on a network": ("before", "after", "late", "short", "twice", "again"),
    "delete": ("before", "after"),
    "listing": ("before", "lag", "lag"),
    "read": ("before",),
    "end": _ANSWERS,
    "fence": _ANSWERS,
    "look": ("before",),
}
_RATES: dict[str, tuple[float, ...]] = {
    "create": (0.02, 0.05, 0.15, 0.3),
    "delete": (0.3,),
    "listing": (0, 0.1),
    "read": (0, 0, 0.02),
    "end": (0, 0.1, 0.3),
    "fence": (0, 0.05, 0.3),
    "look": (0, 0.05, 0.3),
}
_WHIMS: dict[str, tuple[float, ...]] = {
    "second attempt": (0, 0, 0.3),
    "other worker": (0, 0.3),
    "user error": (0, 0, 0.1),
    "task fails": (0, 0, 0.05),
    "task is repeated": (0.5,),
    "other rows": (0, 0.6),
    "tasks in any order": (0, 0.5),
    "a task is split": (0, 0, 0.4),
    "tasks are merged": (0, 0, 0.4),
    "stands before its sync": (0, 0, 0.5),
}
_LATER_WHIMS: dict[str, tuple[float, ...]] = {
    "a sweep goes on behind": (0, 0, 0.3),
}
"""Drawn apart, so that a seed plays as before but for them."""

_SINKS = (
    ("kafka",),
    ("kafka",),
    ("kafka", "kafka"),
    ("database",),
    ("files",),
    ("kafka", "database"),
    ("kafka", "files"),
    ("kafka", "database", "files"),
    ("kafka", "kafka", "database"),
)
_OPERATIONS = (1, 1, 2, 4, 8, 16)
_MOST_OF_A_READER = 24
_A_START = 40
_PASSED_MS = (100, 1_000, 10_000, 40_000, 100_000)
TIMEOUT_MS = 60_000


class RandomFaults:
    """Faults at a rate of each schedule's own."""

    def __init__(self, rng: random.Random, *, on_a_network: bool = False) -> None:
        self._on_a_network = on_a_network
        self._random = rng.random
        self._rates = {kind: rng.choice(rates) for kind, rates in _RATES.items()}

    def take(self, kind: str) -> str | None:
        """Return what happens to the next request."""
        rate = self._rates[kind]
        if rate == 0 or self._random() >= rate:
            return None
        if kind == "create" and self._on_a_network:
            kind = "create on a network"
        kinds = _FAULT_KINDS[kind]
        return kinds[int(self._random() * len(kinds))]


@dataclass(frozen=True)
class Outcome:
    """What a schedule came to.

    Attributes:
        seed: which one it was.
        faults: how often each kind of fault happened.
        endings: how the drivers ended, by the name of their error, ``finished`` or ``killed``.
        moves: how many the schedule had.
        operations: how many operations drivers performed.
        trace: the moves, with their arguments.
    """

    seed: int
    faults: Counter[str]
    endings: Counter[str]
    moves: int
    operations: int
    trace: tuple[tuple[object, ...], ...] = field(repr=False)

    @property
    def fault_count(self) -> int:
        """How many faults happened."""
        return self.faults.total()


@contextmanager
def quiet() -> Iterator[None]:
    """Switch the library's log off: retries are logged, and a schedule has many."""
    logger = logging.getLogger("onceforall")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def random_options(rng: random.Random, **fixed: Any) -> Options:
    """Return the options of a schedule."""
    options: dict[str, Any] = {
        "batches": rng.choice((2, 3, 3, 4)),
        "partitions": rng.choice((1, 1, 2, 3)),
        "kinds": rng.choice(_SINKS),
        "generations": rng.choice((3, 4, 5, 5)),
        "timeouts": rng.choice((0, 0, 1, 3)),
        "timeout_ms": rng.choice((None, TIMEOUT_MS)),
        "stateful": rng.random() < 0.3,
        "expiries": rng.choice((0, 0, 2)),
        "roll_after_entries": rng.choice((3, 1000, 1000)),
        "durable": rng.random() < 0.3,
        "real_bytes": rng.random() < 0.1,
    }
    return Options(**{**options, **fixed})


def explore(seed: int, moves: int = MOVES, at_least_faults: int = 5, **fixed: Any) -> Outcome:
    """Play one schedule, then heal.

    Args:
        seed: gives everything.
        moves: how many before healing.
        at_least_faults: a schedule with fewer goes on for some more moves, as long as a driver or
            another start is left. It may still end with fewer: ``Outcome.fault_count`` tells.
        fixed: fields of ``Options`` that don't come from the seed.

    Raises:
        Violation: the promise is broken; its message has the seed and the moves.
    """
    return _Schedule(seed, fixed).play(moves, at_least_faults)


def replay(seed: int, moves: int = MOVES, at_least_faults: int = 5, **fixed: Any) -> Outcome:
    """Play one schedule and print its options, its moves, and what it came to; arguments as
    those of ``explore``.
    """
    schedule = _Schedule(seed, fixed, on_move=lambda move: print("  ", *move))  # noqa: T201  this is what it is for
    print(f"seed {seed}: {schedule.options}")  # noqa: T201
    outcome = schedule.play(moves, at_least_faults)
    print(  # noqa: T201
        f"faults {dict(outcome.faults)}\nendings {dict(outcome.endings)}, {outcome.operations} "
        "operations"
    )
    return outcome


def violation_of(seed: int, **options: Any) -> Violation | None:
    """Return how one schedule breaks the promise, or None."""
    try:
        explore(seed, **options)
    except Violation as violation:
        return violation
    return None


def first_violation(seeds: int | Iterable[int], **options: Any) -> Violation | None:
    """Return the first violation among these seeds (a number: so many, from 0 on), or None."""
    chosen = range(seeds) if isinstance(seeds, int) else seeds
    return next(filter(None, (violation_of(seed, **options) for seed in chosen)), None)


def endings_of(seeds: Iterable[int], **options: Any) -> Counter[str]:
    """Play schedules and count how all their drivers ended.

    Raises:
        ValueError: there are none.
        Violation: as ``explore``.
    """
    total: Counter[str] = Counter()
    for seed in seeds:
        total += explore(seed, **options).endings
    if not total:
        raise ValueError("not one schedule was played, which proves nothing; give some seeds")
    return total


class _Schedule:
    """One schedule: the simulation, its random numbers, and the moves so far."""

    def __init__(
        self,
        seed: int,
        fixed: dict[str, Any],
        on_move: Callable[[tuple[object, ...]], None] | None = None,
    ) -> None:
        self.seed, self.fixed = seed, fixed
        self.rng = random.Random(seed)  # noqa: S311  not for secrets
        self.options = random_options(self.rng, **fixed)
        self.trace: list[tuple[object, ...]] = []
        self._on_move = on_move
        draw = self.rng.random
        rates = {whim: self.rng.choice(rates) for whim, rates in _WHIMS.items()}
        apart = random.Random(f"later whims of {seed}")  # noqa: S311
        later = {whim: apart.choice(rates) for whim, rates in _LATER_WHIMS.items()}
        faults = RandomFaults(self.rng, on_a_network=self.options.keep_ends)
        self.simulation = Simulation(
            self.options,
            faults,
            lambda whim: apart.random() < later[whim] if whim in later else draw() < rates[whim],
            lambda count: int(draw() * count),
        )

    def play(self, moves: int, at_least_faults: int) -> Outcome:
        """Play it; see ``explore``."""
        simulation = self.simulation
        with quiet():
            try:
                simulation.start()
                for _ in range(moves):
                    if not self._move():
                        break
                self._until_faults(at_least_faults)
                faults = Counter(simulation.world.fault_counts)
                endings = Counter(simulation.outcomes)
                self._record("heal")
                simulation.heal()
            except Violation as violation:
                said = " ".join(_shown(move) for move in self.trace)
                arguments = f"{self.seed!r}, {moves}, {at_least_faults}, **{self.fixed!r}"
                raise Violation(
                    f"{violation}\n  replay: explore({arguments})\n  {self.options}\n  {said}"
                ) from violation
            finally:
                simulation.close()
        endings["healed"] = 1
        operations = sum(driver.operations for driver in simulation.drivers)
        return Outcome(self.seed, faults, endings, len(self.trace), operations, tuple(self.trace))

    def _until_faults(self, wanted: int) -> None:
        """Go on until there were so many faults, while there is something that they can happen
        to.
        """
        counts = self.simulation.world.fault_counts
        for _ in range(MORE_MOVES):
            if counts.total() >= wanted:
                return
            if not self.simulation.live:
                if self.simulation.world.spark + 1 >= self.options.batches:
                    return
                self._start()
            self._move()

    def _record(self, *move: object) -> None:
        self.trace.append(move)
        if self._on_move is not None:
            self._on_move(move)

    def _pick(self, among: Sequence[Any]) -> Any:
        return among[int(self.rng.random() * len(among))]

    def _move(self) -> bool:
        """Make a move; one that is not possible now becomes a step, or a start; False when these
        aren't possible either.
        """
        name = _NAMES[bisect(_CUMULATED, self.rng.random() * _TOTAL)]
        moved = bool(getattr(self, name)()) or self._step() or self._start_if_any()
        self.simulation.read()
        return moved

    # --- the moves: each tells whether it was possible --------------------------------------------

    def _step(self) -> bool:
        live = self.simulation.live
        if not live:
            return False
        driver, operations = self._pick(live), self._pick(_OPERATIONS)
        self._record("step", driver.number, operations)
        self.simulation.step(driver, operations)
        return True

    def _start_if_any(self) -> bool:
        if len(self.simulation.drivers) >= self.options.generations:
            return False
        self._start()
        return True

    def _start(self) -> None:
        self._record("start")
        self.simulation.start()

    def _crash(self) -> bool:
        live = self.simulation.live
        if not live:
            return False
        driver = self._pick(live)
        self._record("crash", driver.number)
        self.simulation.crash(driver)
        return True

    def _stop(self) -> bool:
        live = self.simulation.live
        if not live:
            return False
        driver = self._pick(live)
        self._record("stop", driver.number)
        driver.stop = True
        return True

    def _task(self) -> bool:
        tasks = self.simulation.unfinished_tasks
        if not tasks:
            return False
        task = self._pick(tasks)
        self._record("task", *task.owner)
        self.simulation.advance(task)
        return True

    def _late(self) -> bool:
        late = self.simulation.late
        if not late:
            return False
        place, index = self._pick(late)
        self._record("late", index)
        self.simulation.deliver_late(place, index)
        return True

    def _time_out(self) -> bool:
        if not self.simulation.timeouts or not (opened := self.simulation.open_transactions):
            return False
        cluster, name = self._pick(opened)
        self._record("time-out", name)
        self.simulation.time_out(cluster, name)
        return True

    def _expire(self) -> bool:
        if not self.simulation.expiries or not (idle := self.simulation.idle_transactions):
            return False
        cluster, name = self._pick(idle)
        self._record("expire", name)
        self.simulation.expire(cluster, name)
        return True

    def _tick(self) -> bool:
        passed_ms = self._pick(_PASSED_MS)
        self._record("tick", passed_ms)
        self.simulation.tick(passed_ms)
        return True

    def _power(self) -> bool:
        # Where something could get lost it is worth most.
        if not self.simulation.live or not (
            self.simulation.world.store.unsynced or self.rng.random() < 0.1
        ):
            return False
        self._record("power")
        self.simulation.lose_power()
        return True

    def _stores_power(self) -> bool:
        if not self.simulation.world.store.unsynced:
            return False
        self._record("power of the store")
        self.simulation.lose_power(of_the_store_alone=True)
        return True

    def _read_what_goes(self) -> bool:
        """A create stands before its sync, another process reads it, and the store's power goes:
        single moves hardly ever come together so.
        """
        busy = [driver for driver in self.simulation.drivers if driver.is_busy]
        if len(busy) < 2:
            return False
        writer = busy.pop(int(self.rng.random() * len(busy)))
        reader, operations = self._pick(busy), 1 + int(self.rng.random() * _MOST_OF_A_READER)
        self._record("reads what goes", writer.number, reader.number, operations)
        if self.simulation.step_to_sync(writer):
            self.simulation.step(reader, operations)
            self.simulation.lose_power(of_the_store_alone=True)
            # What stands in the place of what went is mostly another one's.
            if not self._start_if_any():
                self._step()
            else:
                self._record("step", self.simulation.drivers[-1].number, _A_START)
                self.simulation.step(self.simulation.drivers[-1], _A_START)
        return True

    def _house_keep(self) -> bool:
        keepers = self.simulation.house_keepers
        if not keepers:
            return False
        driver = self._pick(keepers)
        self._record("house-keeping", driver.number)
        driver.house_keep()
        return True

    def _linger(self) -> bool:
        lingering = self.simulation.lingering
        if not lingering:
            return False
        driver, operations = self._pick(lingering), self._pick(_OPERATIONS)
        self._record("linger", driver.number, operations)
        self.simulation.step(driver, operations)
        return True


_WEIGHTS: dict[str, float] = {
    "_step": 20,
    "_start_if_any": 3,
    "_crash": 2,
    "_stop": 0.5,
    "_task": 3,
    "_late": 1.5,
    "_time_out": 1,
    "_expire": 1,
    "_tick": 0.7,
    "_power": 2,
    "_stores_power": 1,
    "_read_what_goes": 1.5,
    "_house_keep": 0.7,
    "_linger": 2,
}
_NAMES = list(_WEIGHTS)
_CUMULATED = list(itertools.accumulate(_WEIGHTS.values()))
_TOTAL = sum(_WEIGHTS.values())


def _shown(move: tuple[object, ...]) -> str:
    name, *arguments = move
    return f"{name}({','.join(str(a) for a in arguments)})" if arguments else str(name)
