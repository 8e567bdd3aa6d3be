"""Every row of the transition table: how to get there, the event, and each phase that it leads
to."""

from __future__ import annotations

from dataclasses import replace

from onceforall.protocol import events as saw
from onceforall.protocol import phases as P
from onceforall.protocol.entries import Claim
from onceforall.protocol.history import EMPTY
from onceforall.protocol.machine import TRANSITIONS
from onceforall.protocol.state import Run
from protocol.building import (
    CONFIG,
    Walk,
    answers,
    committed,
    digests,
    handle,
    history,
    prepared,
    request,
    task,
    tasks_of,
)

PAIRS = [(phase, event) for phase, row in TRANSITIONS.items() for event in row]
EVENTS = saw.Event.__args__
OURS = Claim("query", "older run", "/checkpoint")

W = Walk
EMPTY_INSPECTION = saw.LogInspected(None, own_sealed=False)
LOST = task("a0")
STAYED = task("a1", partition=1)
DECIDED = tasks_of(1, 2)
OTHER = tasks_of(2, 3)
KEPT = task("a0", rows={"file": "0.0/0-0-0.arrow"})
RECOVERED = saw.SinksRecovered({"a": answers(handle("a0"))})
SCENARIOS = [
    (W, request(), P.Inspecting),
    (lambda: W().feed(request()), EMPTY_INSPECTION, P.Claiming),
    (
        lambda: W().feed(request()),
        saw.LogInspected(replace(OURS, query_id="other"), own_sealed=False),
        P.Stopped,
    ),
    (lambda: W().feed(request(), EMPTY_INSPECTION), saw.GenerationClaimed(0, None), P.Sealing),
    (
        lambda: W().feed(request(), EMPTY_INSPECTION),
        saw.GenerationClaimed(1, replace(OURS, query_id="other")),
        P.Stopped,
    ),
    (lambda: W().sealing(), saw.PastSealed(EMPTY, -1), P.Recovering),
    (
        lambda: W().sealing(),
        saw.PastSealed(history(0, done=False, gone=(handle("x"),)), -1),
        P.Stopped,
    ),
    (lambda: W().recovering(), saw.SinksRecovered({}), P.Writing),
    (lambda: W().recovering(history(0, done=False)), RECOVERED, P.ClosingPast),
    (lambda: W().recovering(history(0)), saw.SinksRecovered({}), P.Ready),
    (
        lambda: W().recovering(history(0), request(stateful=True)),
        saw.SinksRecovered({}),
        P.Digesting,
    ),
    (lambda: W().recovering(history(5)), saw.SinksRecovered({}), P.Stopped),
    (lambda: W().recovering(history(0, done=False)), saw.StopRequested(("a",)), P.Stopped),
    (
        lambda: W().recovering(history(0, done=False, a=(LOST,))),
        saw.SinksRecovered({"a": answers(lost=[LOST])}),
        P.FencingLost,
    ),
    (lambda: W().redoing(LOST), saw.LostFenced(), P.WritingAgain),
    (lambda: W().redoing(LOST, stayed=(STAYED,), decided=DECIDED), saw.LostFenced(), P.Looking),
    (lambda: giving_up_unknown(), saw.LostFenced(), P.Deciding),
    (lambda: looking(), saw.DigestsTaken(DECIDED), P.WritingAgain),
    (lambda: looking(), saw.DigestsTaken(OTHER), P.Stopped),
    (lambda: looking(lost_rows=("giveUp", 0)), saw.DigestsTaken(OTHER), P.Deciding),
    (lambda: looking(), saw.WritesFailed("reason"), P.Stopped),
    (lambda: W(durable=True).redoing(KEPT), saw.LostFenced(), P.WritingAgain),
    (lambda: W().redoing(LOST), saw.StopRequested(("a",)), P.Stopped),
    (lambda: writing_kept(), prepared(a=(task("new"),)), P.Deciding),
    (lambda: writing_kept(), prepared(a=()), P.Aborting),
    (lambda: writing_kept(), saw.WritesFailed("reason"), P.Aborting),
    (
        lambda: writing_kept().feed(prepared(a=(task("new"),)), saw.DecisionAppended(1)),
        committed(task("new")),
        P.ClosingPast,
    ),
    (lambda: closing_past(request(1)), saw.DoneAppended(), P.Writing),
    (lambda: closing_past(request(0)), saw.DoneAppended(), P.Ready),
    (lambda: closing_past(request(0, stateful=True)), saw.DoneAppended(), P.Digesting),
    (lambda: closing_past(request(5)), saw.DoneAppended(), P.Stopped),
    (lambda: closing_past(request(0)), saw.AppendFenced(), P.Stopped),
    (lambda: closing_past(request(0)), saw.AppendUnknown("no answer"), P.Stopped),
    (lambda: W().ready(), request(1), P.Writing),
    (lambda: W(roll_after_entries=3).ready(), request(1), P.Inspecting),
    (lambda: W().ready(), request(0), P.Ready),
    (lambda: W().ready(), request(0, stateful=True), P.Digesting),
    (lambda: W().ready(), request(7), P.Stopped),
    (lambda: W().writing(), prepared(), P.Deciding),
    (lambda: W(transaction_timeout_ms=10).writing(), prepared(elapsed_ms=11), P.Aborting),
    (lambda: W().writing(), saw.WritesFailed("reason"), P.Aborting),
    (lambda: digesting(), saw.DigestsTaken(digests(0)), P.Ready),
    (lambda: digesting(on_divergence="fail"), saw.DigestsTaken(digests(0, rows=9)), P.Stopped),
    (lambda: digesting(), saw.WritesFailed("reason"), P.Stopped),
    (lambda: W().writing().feed(saw.WritesFailed("reason")), saw.AttemptAborted(), P.Stopped),
    (lambda: W().deciding(), saw.DecisionAppended(1), P.Committing),
    (lambda: W().deciding(), saw.AppendFenced(), P.Aborting),
    (lambda: W().deciding(), saw.AppendTooLate(), P.Aborting),
    (lambda: W().deciding(), saw.AppendRefused("a date is no JSON"), P.Aborting),
    (lambda: W().deciding(), saw.AppendUnknown("no answer"), P.Stopped),
    (lambda: W().committing(), committed(handle("a0")), P.Closing),
    (lambda: W().committing(), committed(lost=[handle("a0")]), P.Stopped),
    (lambda: W().committing(), saw.StopRequested(("a",)), P.Stopped),
    (lambda: W().closing(), saw.DoneAppended(), P.Ready),
    (lambda: W().closing(), saw.AppendFenced(), P.Stopped),
    (lambda: W().closing(), saw.AppendUnknown("no answer"), P.Stopped),
    (lambda: W().closing().feed(saw.AppendFenced()), request(), P.Stopped),
]


def looking(**changes):
    return Walk(**changes).redoing(LOST, stayed=(STAYED,), decided=DECIDED).feed(saw.LostFenced())


def giving_up_unknown():
    """An earlier release did not record whose rows these are, and a person gives them up."""
    past = history(0, done=False, a=(STAYED, handle("a0")))
    found = saw.SinksRecovered({"a": answers(STAYED, lost=[handle("a0")])})
    return Walk(lost_rows=("giveUp", 0)).recovering(past).feed(found)


def writing_kept():
    return Walk(durable=True).redoing(KEPT).feed(saw.LostFenced())


def closing_past(asked):
    return Walk().recovering(history(0, done=False), asked).feed(RECOVERED)


def digesting(**changes):
    return (
        Walk(**changes).recovering(history(0), request(stateful=True)).feed(saw.SinksRecovered({}))
    )


def phase_reached(phase):
    """A run in this phase, by the first scenario that leads there."""
    if phase is P.New:
        return Run(CONFIG)
    make, event, _ = next(s for s in SCENARIOS if s[2] is phase)
    return make().feed(event).run
