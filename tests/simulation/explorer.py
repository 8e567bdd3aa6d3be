"""Seeded random schedules: a seed gives the options, the faults and every move, and so replays exactly."""

from __future__ import annotations

import random
from collections import Counter

from simulation.kafka import Violation
from simulation.world import Options, Simulation

FAULT_KINDS = {"create": ("before", "after", "late"), "end": ("before", "after", "late"), "fence": ("before", "after", "late")}


class RandomFaults:
    """Faults at a rate of each schedule's own."""

    def __init__(self, rng):
        self.rng = rng
        self.rates = {kind: rng.choice((0, 0, 0.05, 0.3)) for kind in ("create", "end", "fence", "list")}
        self.rates["read"] = rng.choice((0, 0, 0, 0.02))

    def take(self, kind):
        if self.rates[kind] == 0 or self.rng.random() >= self.rates[kind]:
            return None
        return self.rng.choice(FAULT_KINDS.get(kind, ("before",)))


def random_options(rng, **fixed):
    options = {
        "batches": rng.choice((2, 3)),
        "partitions": rng.choice((1, 2)),
        "sinks": rng.choice((1, 1, 2)),
        "generations": rng.choice((2, 3, 4)),
        "timeouts": rng.choice((0, 0, 1, 3)),
        "stateful": rng.random() < 0.3,
        "expiries": rng.choice((0, 0, 2)),
        "roll_after_entries": rng.choice((3, 1000, 1000)),
        "durable": rng.random() < 0.3,
    }
    return Options(**{**options, **fixed})


def explore(seed, moves=60, **fixed):
    """Play one schedule, heal, and return how the drivers ended.

    Raises:
        Violation: the promise is broken; its message has the seed and the moves.
    """
    rng = random.Random(seed)
    options = random_options(rng, **fixed)
    faults = RandomFaults(rng)
    rates = {
        "second attempt": rng.choice((0, 0, 0.3)),
        "other worker": rng.choice((0, 0.3)),
        "user error": rng.choice((0, 0, 0.1)),
        "other rows": rng.choice((0, 0.6)),
        "trailing decisions first": 0.5,
    }
    simulation = Simulation(options, faults, lambda whim: rng.random() < rates[whim])
    trace = []
    try:
        simulation.start()
        for _ in range(moves):
            trace.append(_move(simulation, rng))
        trace.append("heal")
        simulation.heal()
    except Violation as violation:
        raise Violation(
            f"{violation}\n  replay: explore({seed!r}, {moves}, **{fixed!r})\n  {options}\n  {' '.join(trace)}"
        ) from violation
    finally:
        simulation.close()
    return simulation.outcomes


def _move(simulation, rng):  # noqa: PLR0911  one return for each move that says more than its name
    live, tasks, late, opened = simulation.live, simulation.unfinished_tasks, simulation.late, simulation.open_transactions
    backgrounds, keepers = simulation.backgrounds, simulation.house_keepers
    weights = {
        "step": 20 * bool(live),
        "start": (4 if live else 20) * (len(simulation.drivers) < simulation.world.options.generations),
        "crash": 1 * bool(live),
        "stop": 0.5 * bool(live),
        "task": 3 * bool(tasks),
        "late": 1 * bool(late),
        "timeout": 1 * bool(opened and simulation.timeouts),
        "expire": 1 * bool(simulation.expiries and simulation.idle_transactions),
        "housekeeping": 1 * bool(keepers),
        "background": 4 * bool(backgrounds),
    }
    if not any(weights.values()):
        return "nothing"
    move = rng.choices(list(weights), weights.values())[0]
    operations = rng.choice((1, 1, 2, 5, 10, 30))
    if move == "step":
        driver = rng.choice(live)
        simulation.step(driver, operations)
        return f"step({driver.number},{operations})"
    if move == "start":
        simulation.start()
    elif move == "crash":
        driver = rng.choice(live)
        simulation.crash(driver)
        return f"crash({driver.number})"
    elif move == "stop":
        rng.choice(live).stop = True
    elif move == "task":
        task = rng.choice(tasks)
        simulation.advance(task)
        return f"task{task.owner}"
    elif move == "late":
        place, index = rng.choice(late)
        place.deliver_late(index)
    elif move == "timeout":
        cluster, name = rng.choice(opened)
        simulation.time_out(cluster, name)
        return f"timeout({name})"
    elif move == "expire":
        cluster, name = rng.choice(simulation.idle_transactions)
        simulation.expire(cluster, name)
        return f"expire({name})"
    elif move == "housekeeping":
        rng.choice(keepers).house_keep()
    else:
        simulation.step_background(rng.choice(backgrounds), operations)
    return move


def violation_of(seed, **options):
    """Return how one schedule breaks the promise, or None."""
    try:
        explore(seed, **options)
    except Violation as violation:
        return violation
    return None


def first_violation(schedules, **options):
    """Return the first violation among so many seeds, or None."""
    return next(filter(None, (violation_of(seed, **options) for seed in range(schedules))), None)


def outcomes_of(seeds, **options):
    """Play schedules and count how all their drivers ended."""
    total = Counter()
    for seed in seeds:
        total += explore(seed, **options)
    return total
