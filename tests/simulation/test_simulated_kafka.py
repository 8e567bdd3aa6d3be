"""The driver's side of the Kafka sink over simulated brokers, which answer as real ones may."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from simulation.kafka_guards import FOUND, NOT_FOUND
from simulator.brokers import first_violation, play
from simulator.brokers.__main__ import main
from simulator.brokers.cluster import (
    COMPLETE_ABORT,
    CONCURRENT_TRANSACTIONS,
    LAST_EPOCH,
    Cluster,
)
from simulator.brokers.world import KINDS
from support.pages import ROOT

FOUND_LATE = {"a turn that asked for topics' ids for a while counts"}
"""Found after thousands of schedules, which takes ten seconds."""


@pytest.mark.parametrize(
    "first_seed",
    [0, *(pytest.param(first, marks=pytest.mark.long) for first in (600, 1200, 1800))],
)
def test_what_the_sink_says_is_true_whatever_the_brokers_answer(first_seed):
    assert first_violation(600, first_seed) is None


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


@pytest.mark.parametrize(
    "guard",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.long] * (each.name in FOUND_LATE))
        for each in FOUND
    ],
)
@pytest.mark.sample(36)
def test_a_broken_guard_is_found(guard, monkeypatch):
    guard.break_it(monkeypatch)
    violation = first_violation(3000, kinds=guard.kinds)
    assert violation is not None


@pytest.mark.parametrize("guard", NOT_FOUND, ids=lambda guard: guard.name)
def test_a_guard_that_no_schedule_needs_still_stands_where_it_is_said_to(guard, monkeypatch):
    """``docs/simulator.md`` says why none does."""
    guard.break_it(monkeypatch)
    assert guard.why


@pytest.mark.parametrize("fenced", [False, True])
def test_an_abort_behind_the_last_epoch_gives_the_id_another_producer_id(fenced):
    """As Kafka 4.3.1 does: another id with epoch 0; a fence adds one to it."""
    cluster, producer_id = aborted_behind_the_last_epoch(fenced=fenced, changes_last=True)
    known = cluster.transactions["x"]
    assert (known.state, known.epoch) == (COMPLETE_ABORT, 0)
    assert known.producer_id != producer_id
    if fenced:
        assert cluster.init_producer_id("x", "the driver") == (0, known.producer_id, 1)


def test_an_abort_behind_the_last_epoch_keeps_the_producer_id():
    """As Kafka 3.9.2 does."""
    cluster, producer_id = aborted_behind_the_last_epoch(fenced=False, changes_last=False)
    known = cluster.transactions["x"]
    assert (known.state, known.producer_id, known.epoch) == (
        COMPLETE_ABORT,
        producer_id,
        LAST_EPOCH,
    )


def aborted_behind_the_last_epoch(*, fenced, changes_last):
    """A cluster with one aborted transaction, and under which producer id that was written."""
    partition = ("out", 0)
    cluster = Cluster(
        "c",
        {"out": 1},
        lambda _: None,
        lambda *_: None,
        changes_last=changes_last,
        first_epoch=LAST_EPOCH - 1,
    )
    _, producer_id, epoch = cluster.init_producer_id("x", "a task")
    cluster.add_partitions("x", producer_id, epoch, {partition}, 1)
    if fenced:
        assert cluster.init_producer_id("x", "the driver")[0] == CONCURRENT_TRANSACTIONS
    else:
        cluster.time_out("x")
    assert cluster.waiting() == [("x", partition)]
    cluster.mark("x", partition)
    (marker,) = cluster.logs[partition].entries
    assert (marker.producer_id, marker.epoch) == (producer_id, LAST_EPOCH)
    return cluster, producer_id
