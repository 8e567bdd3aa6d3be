from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from simulation.mutants import MUTANTS, NO_PROGRAM
from simulator import Options, Simulation, Violation, endings_of, explore, first_violation
from simulator.explorer import quiet
from support.pages import ROOT


@pytest.fixture(autouse=True)
def _quiet():
    """Retries are logged, and there are thousands."""
    with quiet():
        yield


FOUND_LATE = {
    "names_are_counted_anew_in_each_batch",
    "what_is_committed_counts_as_lost",
    "a_decision_has_no_deadline",
    "names_are_taken_before_the_past_is_sealed",
}
"""Broken guards that take thousands of schedules."""


# --- seeded random schedules ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "first_seed",
    [0, *(pytest.param(first, marks=pytest.mark.long) for first in (400, 800))],
)
def test_random_schedules_keep_the_promise_and_come_to_an_end_after_healing(first_seed):
    outcomes = [explore(seed) for seed in range(first_seed, first_seed + 400)]
    assert sum(outcome.fault_count >= 5 for outcome in outcomes) > 300


@pytest.mark.long
def test_long_random_schedules_keep_the_promise():
    endings_of(
        range(10_000, 10_100),
        moves=200,
        generations=6,
        batches=4,
        kinds=("kafka", "database", "files"),
    )


def test_with_entries_as_they_are_in_production_the_promise_is_kept_too():
    endings_of(range(20_000, 20_100), real_bytes=True)


def test_random_schedules_reach_every_way_in_which_a_driver_can_end_and_every_fault():
    outcomes = [explore(seed, real_bytes=False) for seed in range(400)]
    outcomes += [
        explore(seed, kinds=("kafka",), timeouts=3, expiries=0, durable=False)
        for seed in range(300)
    ]
    endings = {ending for outcome in outcomes for ending in outcome.endings}
    assert endings >= {
        "finished",
        "killed",
        "healed",
        "FencedError",
        "OvertakenError",
        "OutcomeUnknownError",
        "TransactionLostError",
        "NondeterministicReplayError",
        "InDoubtError",
        "AttemptFailedError",
        "BatchTooSlowError",
        "SparkConflictError",
    }
    assert {fault for outcome in outcomes for fault in outcome.faults} >= {
        "conflicting create",
        "crash",
        "create after",
        "create before",
        "create late",
        "create short",
        "delete after",
        "delete before",
        "end after",
        "end before",
        "end late",
        "expiry",
        "failed task",
        "fence after",
        "fence before",
        "fence late",
        "late request arrives",
        "listing before",
        "listing lag",
        "look before",
        "crash by power loss",
        "power loss of an entry",
        "read before",
        "Spark's conflict",
        "sweep goes on behind",
        "time-out",
        "zombie wakes",
    }


def test_no_schedule_at_all_is_no_proof():
    with pytest.raises(ValueError, match="not one schedule was played"):
        endings_of(range(0))


SHOW = """
from simulator import explore
for seed in range(40):
    outcome = explore(seed)
    print(seed, outcome.trace, sorted(outcome.faults.items()), sorted(outcome.endings.items()), outcome.operations)
"""


def test_a_seed_replays_its_schedule_exactly_in_another_process_whatever_its_hash_seed():
    def shown(hash_seed):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", SHOW],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    first = shown("1")
    assert first.count("heal") >= 40
    assert first == shown("2")


def test_rows_that_go_away_again_are_found():
    simulation = Simulation(Options(batches=1))
    try:
        simulation.step(simulation.start(), 1000)
        simulation.read()
        simulation.world.systems["s0"].visible.popitem()
        with pytest.raises(Violation, match="readers of s0 saw"):
            simulation.read()
    finally:
        simulation.close()


def test_a_violation_is_found_again_by_its_seed(monkeypatch):
    MUTANTS[0](monkeypatch)
    first, second = first_violation(300), first_violation(300)
    assert str(first) == str(second)
    assert "replay: explore(" in str(first)


@pytest.mark.parametrize(
    "break_a_guard",
    [
        pytest.param(
            each, id=each.__name__, marks=[pytest.mark.long] * (each.__name__ in FOUND_LATE)
        )
        for each in MUTANTS
    ],
)
@pytest.mark.sample(14)
def test_a_broken_guard_is_found(break_a_guard, monkeypatch):
    break_a_guard(monkeypatch)
    violation = first_violation(3000, **getattr(break_a_guard, "options", {}))
    assert violation is not None
    assert not NO_PROGRAM.search(str(violation)), "it breaks no guard but the program"


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("lost", [1, 2, 4])
@pytest.mark.sample(4)
def test_a_lost_batch_is_redone_whatever_step_of_the_redo_a_crash_meets(durable, stateful, lost):
    """Decided, then timed out in part or whole; the successor is killed in front of each of its
    operations in turn."""
    steps, crashes = 0, 0
    while True:
        steps += 1
        simulation = Simulation(
            Options(
                batches=2,
                kinds=("kafka", "kafka"),
                timeouts=lost,
                durable=durable,
                stateful=stateful,
            )
        )
        try:
            simulation.start()
            first = simulation.drivers[0]
            while not simulation.world.commits:
                simulation.step(first, 1)
            for cluster, name in simulation.open_transactions[:lost]:
                simulation.time_out(cluster, name)
            simulation.crash(first)
            simulation.start()
            simulation.step(simulation.drivers[1], steps)
            crashes += simulation.drivers[1].main.running
            over = not simulation.drivers[1].main.running
            assert len(simulation.world.lost) == lost
            simulation.heal()
        finally:
            simulation.close()
        if over:
            break
    assert crashes > 40, "the successor had hardly a step to be killed in front of"


@pytest.mark.parametrize("kinds", [("kafka",), ("kafka", "kafka")])
def test_a_driver_that_is_frozen_in_front_of_any_operation_decides_nothing_dead(kinds):
    """It wakes when its transactions have timed out.

    Where no row is visible by then, a replay with other rows heals it by itself.
    """
    too_late, decided, steps, frozen = 0, 0, 0, True
    while frozen:
        steps += 1
        simulation = Simulation(Options(batches=1, kinds=kinds, timeout_ms=60_000))
        try:
            first = simulation.start()
            simulation.step(first, steps)
            frozen = first.main.running
            simulation.tick(100_000)
            while first.main.running:
                simulation.step(first, 1)
            too_late += simulation.world.fault_counts["a decision is too late"]
            nothing_seen = not any(system.visible for system in simulation.world.systems.values())
            decided += bool(simulation.world.lost) and nothing_seen
            simulation.world.whims = lambda whim: nothing_seen and whim == "other rows"  # noqa: B023  of this turn
            second = simulation.start()
            while second.main.running:
                simulation.step(second, 1)
            assert second.main.outcome == "finished"
            simulation.heal()
        finally:
            simulation.close()
    assert too_late, "no driver came too late; the test proves nothing"
    assert decided, (
        "no driver was frozen between its decision and its commit; the test proves nothing"
    )


def test_ids_that_are_counted_anew_in_each_batch_let_a_late_task_abort_what_is_decided():
    """Why an id that a lost task attempt may still claim must not be given out again in a later
    batch."""
    # In batch 0 a speculative attempt (slot 1) has not begun yet; in batch 1 a task of another
    # worker has slot 1.
    one, two = ("other worker", 0), ("other worker", 1)
    batch_0 = [one, ("second attempt", 1), one, one, ("second attempt", 0)]
    batch_1 = [one, ("second attempt", 0), two, ("second attempt", 0)]
    digests, written = [("other rows", 0)], [("user error", 0)]
    whims = iter([*digests, *batch_0, *written, *digests, *batch_1, *written])

    def planned(whim):
        if whim in {"stands before its sync", "task fails", "a sweep goes on behind"}:
            return False
        name, answer = next(whims, ("no more", 0))
        assert name == whim
        return answer

    simulation = Simulation(Options(slots_restart=True), whims=planned)
    try:
        simulation.start()
        while len(simulation.world.commits) < 2:
            simulation.step(simulation.drivers[0], 1)
        (late_task,) = simulation.unfinished_tasks
        assert late_task.batch == 0
        with pytest.raises(Violation, match=r"is decided, and was aborted by a fresh producer"):
            simulation.advance(late_task)
    finally:
        simulation.close()


# --- the same world, with Hypothesis as the adversary ---------------------------------------------


class PlannedFaults:
    """The next requests of a kind meet what was planned for them."""

    def __init__(self):
        self.planned = {}

    def take(self, kind):
        plan = self.planned.get(kind)
        return plan.pop(0) if plan else None


class ProtocolMachine(RuleBasedStateMachine):
    """Drivers, tasks, faults and the clock of the systems, moved in any order."""

    simulation = None

    @initialize(
        partitions=st.integers(1, 2),
        kinds=st.lists(st.sampled_from(("kafka", "database", "files")), min_size=1, max_size=2),
        stateful=st.booleans(),
        roll=st.sampled_from((3, 1000)),
        timeouts=st.integers(0, 2),
        durable=st.booleans(),
        whims=st.sets(
            st.sampled_from(("second attempt", "other worker", "stands before its sync"))
        ),
    )
    def begin(self, partitions, kinds, stateful, roll, timeouts, durable, whims):
        options = Options(
            batches=2,
            partitions=partitions,
            kinds=tuple(kinds),
            stateful=stateful,
            roll_after_entries=roll,
            timeouts=timeouts,
            timeout_ms=60_000,
            durable=durable,
        )
        self.faults = PlannedFaults()
        self.simulation = Simulation(options, self.faults, lambda whim: whim in whims)
        self.simulation.start()

    @precondition(lambda self: self.simulation and len(self.simulation.drivers) < 4)
    @rule()
    def start(self):
        self.simulation.start()

    @precondition(lambda self: self.simulation and self.simulation.live)
    @rule(data=st.data(), operations=st.integers(1, 40))
    def step(self, data, operations):
        self.simulation.step(data.draw(st.sampled_from(self.simulation.live)), operations)

    @precondition(lambda self: self.simulation and self.simulation.live)
    @rule(data=st.data())
    def crash(self, data):
        self.simulation.crash(data.draw(st.sampled_from(self.simulation.live)))

    @precondition(lambda self: self.simulation and self.simulation.live)
    @rule(data=st.data())
    def stop(self, data):
        data.draw(st.sampled_from(self.simulation.live)).stop = True

    @precondition(lambda self: self.simulation and self.simulation.unfinished_tasks)
    @rule(data=st.data())
    def advance_a_task(self, data):
        self.simulation.advance(data.draw(st.sampled_from(self.simulation.unfinished_tasks)))

    @precondition(
        lambda self: (
            self.simulation and self.simulation.timeouts and self.simulation.open_transactions
        )
    )
    @rule(data=st.data())
    def time_out(self, data):
        self.simulation.time_out(*data.draw(st.sampled_from(self.simulation.open_transactions)))

    @precondition(lambda self: self.simulation)
    @rule(passed_ms=st.sampled_from((100, 10_000, 100_000)))
    def tick(self, passed_ms):
        self.simulation.tick(passed_ms)

    @precondition(lambda self: self.simulation and self.simulation.live)
    @rule()
    def lose_power(self):
        self.simulation.lose_power()

    @precondition(lambda self: self.simulation)
    @rule(
        kind=st.sampled_from(("create", "end", "fence", "delete", "look")),
        faults=st.lists(st.sampled_from(("before", "after", "late")), min_size=1, max_size=3),
    )
    def plan_faults(self, kind, faults):
        self.faults.planned[kind] = faults

    @precondition(lambda self: self.simulation and self.simulation.late)
    @rule(data=st.data())
    def deliver_late(self, data):
        self.simulation.deliver_late(*data.draw(st.sampled_from(self.simulation.late)))

    @precondition(lambda self: self.simulation and self.simulation.house_keepers)
    @rule(data=st.data())
    def house_keep(self, data):
        data.draw(st.sampled_from(self.simulation.house_keepers)).house_keep()

    @precondition(lambda self: self.simulation and self.simulation.lingering)
    @rule(data=st.data(), operations=st.integers(1, 20))
    def linger(self, data, operations):
        self.simulation.step(data.draw(st.sampled_from(self.simulation.lingering)), operations)

    def teardown(self):
        if self.simulation is not None:
            try:
                self.simulation.heal()
            finally:
                self.simulation.close()


TestProtocolMachine = ProtocolMachine.TestCase
TestProtocolMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
