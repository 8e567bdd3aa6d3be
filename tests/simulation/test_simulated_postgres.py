"""The PostgreSQL sink on a real server, under schedules of its statements."""

import pytest

from simulation.postgres_guards import FOUND, NOT_FOUND
from simulator.database import Server, first_violation, play
from simulator.database.__main__ import main

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server():
    with Server() as started:
        yield started


@pytest.mark.parametrize("mode", ["prepared", "staged", "upsert"])
def test_the_table_has_what_was_decided_in_whatever_order_statements_come(server, mode):
    assert first_violation(server, 6, mode=mode) is None


@pytest.mark.long
@pytest.mark.parametrize("mode", ["prepared", "staged", "upsert"])
def test_the_same_in_many_orders(server, mode):
    assert first_violation(server, 200, 1000, mode) is None


@pytest.mark.long
def test_schedules_reach_every_fault(server):
    counts = set()
    for seed in range(150):
        counts |= play(server, seed).counts.keys()
    assert counts >= {
        "kill of driver",
        "kill of task",
        "lost request",
        "lost answer",
        "confirm refuses",
        "a run is replaced",
        "a task fails with AttemptFailedError",
    }


@pytest.mark.long
@pytest.mark.parametrize("guard", FOUND, ids=lambda guard: guard.name)
def test_a_broken_guard_is_found(guard, server, monkeypatch):
    guard.break_it(monkeypatch)
    assert first_violation(server, 300, mode=guard.kinds[0]) is not None


@pytest.mark.parametrize("guard", NOT_FOUND, ids=lambda guard: guard.name)
def test_a_guard_that_no_schedule_needs_still_stands_where_it_is_said_to(guard, monkeypatch):
    """``docs/simulator.md`` says why none does."""
    guard.break_it(monkeypatch)
    assert guard.why


def test_the_command_plays_schedules_and_replays_one(capsys, tmp_path):
    assert (
        main(["--schedules", "2", "--workers", "1", "--mode", "staged", "--folder", str(tmp_path)])
        == 0
    )
    assert "2 schedules" in capsys.readouterr().out
    assert main(["--replay", "3"]) == 0
    assert "all faults end" in capsys.readouterr().out
