"""The driver's side of the Kafka sink over simulated brokers, which answer as real ones may."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from simulation.kafka_guards import FOUND, NOT_FOUND
from simulator.brokers import first_violation, play
from simulator.brokers.__main__ import main
from simulator.brokers.world import KINDS
from support.pages import ROOT


@pytest.mark.parametrize(
    "first_seed",
    [0, *(pytest.param(first, marks=pytest.mark.long) for first in (600, 1200, 1800))],
)
def test_what_the_sink_says_is_true_whatever_the_brokers_answer(first_seed):
    assert first_violation(600, first_seed) is None


@pytest.mark.parametrize("seed", [4367, 5137, 8216, 49139])
def test_schedules_that_once_broke_the_promise(seed):
    """A commit marker that compaction took before the abort marker of what a late request had
    opened once more; an old coordinator's word."""
    play(seed)


def test_schedules_reach_every_fault_and_every_kind_of_report():
    outcomes = [play(seed) for seed in range(300)]
    assert {kind for outcome in outcomes for kind in outcome.faults} >= {
        *KINDS,
        "late request arrives",
    } - {"last epoch"}
    assert {report for outcome in outcomes for report in outcome.reports} == {
        "completed",
        "retired",
        "lost",
        "in doubt",
    }


SHOW = """
from simulator.brokers import play
for seed in range(40):
    print(play(seed, tell=True).story)
"""


def test_a_seed_plays_the_same_schedule_in_another_process_whatever_its_hash_seed():
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
    assert first.count("all faults end") >= 40
    assert first == shown("2")


def test_the_command_plays_schedules_and_replays_one(capsys, tmp_path):
    assert main(["--schedules", "30", "--workers", "1", "--folder", str(tmp_path)]) == 0
    assert "30 schedules" in capsys.readouterr().out
    assert main(["--replay", "3"]) == 0
    assert "all faults end" in capsys.readouterr().out


@pytest.mark.parametrize("guard", FOUND, ids=lambda guard: guard.name)
def test_a_broken_guard_is_found(guard, monkeypatch):
    guard.break_it(monkeypatch)
    violation = first_violation(800, kinds=guard.kinds)
    assert violation is not None


@pytest.mark.parametrize("guard", NOT_FOUND, ids=lambda guard: guard.name)
def test_a_guard_that_no_schedule_needs_still_stands_where_it_is_said_to(guard, monkeypatch):
    """``docs/simulator.md`` says why none does."""
    guard.break_it(monkeypatch)
    assert guard.why
