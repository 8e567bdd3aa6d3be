from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from simulation.explorer import first_violation, outcomes_of
from simulation.kafka import Violation
from simulation.mutants import MUTANTS
from simulation.world import Options, Simulation


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Retries are logged, and there are thousands."""
    monkeypatch.setattr(logging.getLogger("onceforall"), "disabled", True)


# --- seeded random schedules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_seed", range(0, 1500, 250))
def test_random_schedules_keep_the_promise_and_come_to_an_end_after_healing(first_seed):
    outcomes_of(range(first_seed, first_seed + 250))


def test_long_random_schedules_keep_the_promise():
    outcomes_of(range(10_000, 10_150), moves=200, generations=5, batches=4)


def test_random_schedules_reach_every_way_in_which_a_driver_can_end():
    outcomes = outcomes_of(range(250)) + outcomes_of(range(600), timeouts=3, generations=4, expiries=0, durable=False)
    assert set(outcomes) >= {
        "finished",
        "killed",
        "FencedError",
        "OutcomeUnknownError",
        "TransactionLostError",
        "NondeterministicReplayError",
        "InDoubtError",
        "AttemptFailedError",
        "SparkConflictError",
    }, outcomes


def test_a_seed_replays_its_schedule_exactly(monkeypatch):
    MUTANTS[0](monkeypatch)
    first, second = first_violation(300), first_violation(300)
    assert str(first) == str(second)
    assert "replay: explore(" in str(first)


@pytest.mark.parametrize("break_a_guard", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_guard_is_found(break_a_guard, monkeypatch):
    break_a_guard(monkeypatch)
    assert first_violation(3000) is not None


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("lost", [1, 2, 4])
def test_a_lost_batch_is_redone_whatever_step_of_the_redo_a_crash_meets(durable, stateful, lost):
    """Decided, then timed out in part or whole; the successor is killed in front of each of its operations in turn."""
    steps, crashes = 0, 0
    while True:
        steps += 1
        simulation = Simulation(Options(batches=2, sinks=2, timeouts=lost, durable=durable, stateful=stateful))
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
            crashes += simulation.drivers[1].actor.running
            over = not simulation.drivers[1].actor.running
            assert len(simulation.world.lost) == lost
            simulation.heal()
        finally:
            simulation.close()
        if over:
            break
    assert crashes > 40, "the successor had hardly a step to be killed in front of"


def test_ids_that_are_counted_anew_in_each_batch_let_a_late_task_abort_what_is_decided():
    """Why an id that a lost task attempt may still claim must not be given out again in a later batch."""
    # In batch 0 a speculative attempt (slot 1) has not begun yet; in batch 1 a task of another worker has slot 1.
    batch_0 = [("second attempt", 1), ("other worker", 0), ("other worker", 0), ("second attempt", 0), ("other worker", 0)]
    batch_1 = [("second attempt", 0), ("other worker", 0), ("second attempt", 0), ("other worker", 1)]
    written = [("user error", 0), ("other rows", 0)]
    whims = iter([*batch_0, *written, ("trailing decisions first", 1), *batch_1, *written])

    def planned(whim):
        name, answer = next(whims)
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


# --- the same world, with Hypothesis as the adversary ----------------------------------------------------------------------------


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
        sinks=st.integers(1, 2),
        stateful=st.booleans(),
        roll=st.sampled_from((3, 1000)),
        timeouts=st.integers(0, 2),
        durable=st.booleans(),
        whims=st.sets(st.sampled_from(("second attempt", "other worker", "trailing decisions first"))),
    )
    def begin(self, partitions, sinks, stateful, roll, timeouts, durable, whims):
        options = Options(
            batches=2,
            partitions=partitions,
            sinks=sinks,
            stateful=stateful,
            roll_after_entries=roll,
            timeouts=timeouts,
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

    @precondition(lambda self: self.simulation and self.simulation.timeouts and self.simulation.open_transactions)
    @rule(data=st.data())
    def time_out(self, data):
        self.simulation.time_out(*data.draw(st.sampled_from(self.simulation.open_transactions)))

    @precondition(lambda self: self.simulation)
    @rule(
        kind=st.sampled_from(("create", "end", "fence")),
        faults=st.lists(st.sampled_from(("before", "after", "late")), min_size=1, max_size=3),
    )
    def plan_faults(self, kind, faults):
        self.faults.planned[kind] = faults

    @precondition(lambda self: self.simulation and self.simulation.late)
    @rule(data=st.data())
    def deliver_late(self, data):
        place, index = data.draw(st.sampled_from(self.simulation.late))
        place.deliver_late(index)

    @precondition(lambda self: self.simulation and self.simulation.house_keepers)
    @rule(data=st.data())
    def house_keep(self, data):
        data.draw(st.sampled_from(self.simulation.house_keepers)).house_keep()

    @precondition(lambda self: self.simulation and self.simulation.backgrounds)
    @rule(data=st.data(), operations=st.integers(1, 20))
    def step_background(self, data, operations):
        self.simulation.step_background(data.draw(st.sampled_from(self.simulation.backgrounds)), operations)

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
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
