from __future__ import annotations

import ast
import itertools
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest

import onceforall
from onceforall.errors import (
    ProtocolViolationError,
)
from onceforall.protocol import decisions as do
from onceforall.protocol import events as saw
from onceforall.protocol import phases as P
from onceforall.protocol.history import CommitPermit
from onceforall.protocol.machine import TRANSITIONS, Transition, step
from onceforall.protocol.state import Run
from protocol.building import CONFIG, Walk, handle, history, request
from protocol.scenarios import EVENTS, PAIRS, SCENARIOS, phase_reached

# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "event", "to"),
    SCENARIOS,
    ids=lambda v: v.__name__ if isinstance(v, type) else type(v).__name__,
)
def test_an_event_leads_where_the_table_says(make, event, to):
    walk = make()
    row = TRANSITIONS[walk.phase][type(event)]
    walk.feed(event)
    assert walk.phase is to
    assert to in row.to


def test_every_row_of_the_table_is_used_and_every_phase_that_it_names_is_reached():
    reached = {}
    for make, event, to in SCENARIOS:
        reached.setdefault((make().phase, type(event)), set()).add(to)
    assert reached == {(phase, event): set(TRANSITIONS[phase][event].to) for phase, event in PAIRS}


def test_the_table_has_a_row_for_every_phase_and_every_event():
    assert set(TRANSITIONS) == set(get_args(P.Phase))
    assert {event for _, event in PAIRS} == set(EVENTS)


def an(event):
    """Any event of this type; the table is asked before its fields are."""
    return event(*(None for _ in fields(event)))


@pytest.mark.parametrize(
    ("phase", "event"),
    [pair for pair in itertools.product(get_args(P.Phase), EVENTS) if pair not in PAIRS],
    ids=lambda v: v.__name__,
)
def test_an_event_without_a_row_raises_and_leaves_the_state_as_it_was(phase, event):
    run = phase_reached(phase)
    before = replace(run)
    with pytest.raises(ProtocolViolationError, match=event.__name__):
        step(run, an(event))
    assert run == before
    assert type(run.phase) is phase


def test_a_row_that_leads_elsewhere_than_it_says_raises(monkeypatch):
    monkeypatch.setitem(
        TRANSITIONS[P.New],
        saw.BatchRequested,
        Transition(lambda run, *_: (replace(run, phase=P.Ready()), ()), (P.Writing,)),
    )
    with pytest.raises(ProtocolViolationError, match="must not lead to ready"):
        step(Run(CONFIG), request())


def test_a_stopped_run_says_the_same_again_and_again():
    walk = Walk().closing().feed(saw.AppendFenced())
    stop = walk.only(do.StopRun)
    assert walk.feed(request(1)).decisions == walk.feed(request(2)).decisions == (stop,)


def test_every_stop_names_a_remedy_or_what_is_not_lost():
    for make, event, to in SCENARIOS:
        if to is P.Stopped:
            message = make().feed(event).run.phase.stop.message
            assert len(message) > 30 or message == "reason", message


# --- the permit -----------------------------------------------------------------------------------


def permits(decisions):
    commits = [d.commit if isinstance(d, do.RecoverSinks) else d for d in decisions]
    return [d.permit for d in commits if isinstance(d, do.CommitSinks)]


def test_a_permit_appears_only_behind_a_durable_decision():
    for make, event, _ in SCENARIOS:
        walk = make()
        phase = walk.phase
        walk.feed(event)
        if permits(walk.decisions):
            past = isinstance(event, saw.PastSealed) and not event.history.decided.done
            assert past or (phase, type(event)) == (P.Deciding, saw.DecisionAppended)


def test_the_permit_names_the_entry_that_decides():
    walk = Walk().deciding().feed(saw.DecisionAppended(9))
    assert permits(walk.decisions) == [CommitPermit(1, 9, 0)]


def test_recovery_gets_the_permit_of_the_entry_that_was_sealed():
    walk = Walk().recovering(history(4, done=False, generation=0, index=7))
    recover = walk.only(do.RecoverSinks)
    assert recover.commit == do.CommitSinks(CommitPermit(0, 7, 4), {"a": (handle("a0"),)})


def test_a_batch_with_done_is_never_completed_again():
    assert Walk().recovering(history(4)).only(do.RecoverSinks).commit is None


def test_the_library_makes_a_permit_in_one_place_only_from_a_durable_decision():
    package = Path(onceforall.__file__).parent
    made = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] == "CommitPermit"
    }
    # The conformance suite plays the driver for a sink that is tried out; it isn't a part of a
    # query.
    assert made == {"protocol/history.py", "testing/conformance/actor.py"}
