"""Small worlds, searched to their end: every interleaving, crash, freeze, time-out and lost
answer that they have room for."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from simulation import mutants
from simulator.exhaustive import Options, Violation, explore, replay
from simulator.exhaustive_moves import Moves
from simulator.exhaustive_world import World
from simulator.page import WORLDS as WORLDS_FILE
from simulator.page import digest_of_today
from support.pages import ROOT

SMALL = Options(generations=2, batches=2, participants=1)
WITH_TIMEOUT = Options(generations=2, batches=2, participants=1, timeouts=1)
WITH_EXPIRY = Options(generations=2, batches=2, participants=1, expiries=1)
WITH_TWO_SINKS = Options(generations=2, batches=2, participants=2, timeouts=1)
WITH_LOST_ANSWER = Options(generations=2, batches=2, participants=1, lost_answers=1)
WITH_LOST_ANSWERS = Options(generations=2, batches=1, participants=1, lost_answers=2)
FINE = Options(generations=2, batches=2, participants=1, timeouts=1, fine=True)
OF_THE_MODEL = Options(generations=3, batches=2, participants=2, timeouts=2)

WORLDS = {
    "two sinks that time out": (
        Options(generations=2, batches=2, participants=2, timeouts=2),
        4000,
    ),
    "two sinks, rows kept": (
        Options(generations=2, batches=2, participants=2, timeouts=1, durable=True),
        2000,
    ),
    "state to be rebuilt": (
        Options(generations=2, batches=2, participants=1, timeouts=1, stateful=True),
        400,
    ),
    "three starts": (Options(generations=3, batches=2, participants=1), 5000),
    "an id that is forgotten": (WITH_EXPIRY, 400),
    "a task that fails": (
        Options(generations=2, batches=1, participants=2, timeouts=1, failures=1),
        2000,
    ),
    "an answer that is lost": (WITH_LOST_ANSWER, 3000),
    "two answers that are lost": (WITH_LOST_ANSWERS, 3000),
    "every call of the store a step": (FINE, 2500),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[pytest.mark.long] * (each == "three starts")) for each in WORLDS],
)
def test_no_order_of_steps_in_a_small_world_breaks_the_promise(name):
    options, at_least = WORLDS[name]
    result = explore(options)
    assert result.violation == "", " ".join(result.story)
    assert result.exhausted
    assert result.states > at_least
    assert result.transitions > 1.5 * result.states
    assert result.complete > 30
    assert result.outcomes["finished"] > 30
    assert result.outcomes["FencedError"] > 50


def test_a_search_meets_every_way_in_which_its_world_lets_a_driver_end():
    outcomes = {
        **explore(WITH_TIMEOUT).outcomes,
        **explore(WITH_LOST_ANSWERS).outcomes,
        **explore(FINE).outcomes,
    }
    assert set(outcomes) >= {
        "finished",
        "conflict",
        "FencedError",
        "OvertakenError",
        "TransactionLostError",
        "AttemptFailedError",
        "OutcomeUnknownError",
        "CommitLogError",
    }, outcomes


def test_crashes_as_moves_of_their_own_lead_to_no_other_world():
    without = explore(WITH_TIMEOUT)
    crashing = explore(Options(generations=2, batches=2, participants=1, timeouts=1, crashes=True))
    assert crashing.exhausted
    assert crashing.states > without.states
    assert crashing.worlds == without.worlds > 150


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(WITH_TIMEOUT, id="coarse"),
        pytest.param(WITH_EXPIRY, id="expiry"),
        pytest.param(FINE, id="fine", marks=pytest.mark.long),
    ],
)
def test_what_is_not_explored_twice_leads_to_no_other_world(options, monkeypatch):
    reduced = explore(options)
    monkeypatch.setattr(Moves, "_settle", lambda *_: None)
    monkeypatch.setattr(
        Moves, "_claims_at_once", property(lambda _: False, lambda *_: None), raising=False
    )
    every = explore(options)
    assert every.exhausted
    assert every.states > 1.3 * reduced.states
    assert every.worlds == reduced.worlds > 150


def test_a_search_says_the_same_when_it_is_run_again_in_another_process(tmp_path):
    path = tmp_path / "build" / "exhaustive.json"
    command = [
        sys.executable,
        "-m",
        "simulator.exhaustive",
        "--generations",
        "2",
        "--participants",
        "1",
        "--timeouts",
        "1",
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(
        [*command, "--output", path], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "exhausted" in shown
    (there,) = json.loads(path.read_text())
    here = explore(WITH_TIMEOUT).as_json()
    assert there["violations"] == 0
    assert there["states"] > 400
    assert there.pop("version") == digest_of_today(WORLDS_FILE)
    assert {**there, "seconds": 0} == {**json.loads(json.dumps(here)), "seconds": 0}


# --- planted bugs ---------------------------------------------------------------------------------

PLANTED = {
    "recovery_completes_what_is_done": SMALL,
    "the_past_is_read_but_not_sealed": SMALL,
    "commit_before_the_decision_is_durable": SMALL,
    "a_sweep_takes_newer_generations": SMALL,
    "own_leftovers_are_swept_at_the_decision": SMALL,
    "handles_are_fenced_before_done": SMALL,
    "a_batch_is_written_without_waiting_for_done": SMALL,
    "a_decided_batch_is_written_again": SMALL,
    "a_fenced_append_counts_as_done": SMALL,
    "recovery_does_not_complete": SMALL,
    "a_loss_is_passed_over_at_commit": WITH_TIMEOUT,
    "a_loss_is_passed_over_in_recovery": WITH_TIMEOUT,
    "a_redo_is_committed_under_the_old_decision": WITH_TIMEOUT,
    "a_redo_writes_every_task_again": WITH_TWO_SINKS,
    "a_sink_spares_only_its_own": WITH_TWO_SINKS,
    "an_append_without_an_answer_aborts": WITH_LOST_ANSWERS,
    "handles_in_doubt_are_used_again": WITH_LOST_ANSWER,
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found_and_its_trace_replays(name, monkeypatch):
    getattr(mutants, name)(monkeypatch)
    result = explore(PLANTED[name])
    assert result.violation
    assert not mutants.NO_PROGRAM.search(result.violation), "it breaks no guard but the program"
    assert not result.exhausted
    assert len(result.story) == len(result.trace)
    with pytest.raises(Violation) as replayed:
        replay(PLANTED[name], result.trace)
    assert str(replayed.value).startswith(result.violation)


@pytest.mark.parametrize(
    ("options", "outcome"), [(WITH_TIMEOUT, 0), (WITH_EXPIRY, 1)], ids=["committed", "lost"]
)
def test_a_sink_that_takes_every_transaction_that_it_cannot_commit_for_one_outcome_is_found(
    options, outcome, monkeypatch
):
    monkeypatch.setattr(World, "outcome", lambda *_: outcome)
    assert explore(options).violation


def test_a_trace_is_a_shortest_one_and_reads_as_a_story(monkeypatch):
    mutants.recovery_completes_what_is_done(monkeypatch)
    result = explore(SMALL)
    assert "which nobody decided, becomes visible" in result.violation
    assert result.story == [
        "start(batch 0)",
        "g0.spark?",
        "g0.task0(s0:0:0)",
        "g0.COMMIT0@0/1",
        "g0.end(s0:0:0)",
        "g0.spark!(0)",
        "g0.DONE0@0/2",
        "g0.task1(s0:0:0)",
    ]


def test_a_search_that_runs_out_of_time_says_so():
    result = explore(OF_THE_MODEL, minutes=0)
    assert not result.exhausted
    assert result.states > 1000


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_order_of_steps_in_three_starts_with_two_sinks_and_two_timeouts_breaks_the_promise():
    """The world of the design's own model of the protocol: some minutes on a quiet machine."""
    result = explore(OF_THE_MODEL)
    assert result.violation == "", " ".join(result.story)
    assert result.exhausted
    assert result.states > 400_000
