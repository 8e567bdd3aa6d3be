"""Every state in which a run stops has a way out: the one that docs/stopped.md names is walked
here."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from onceforall.errors import OnceForAllError
from onceforall.protocol import decisions as do
from onceforall.protocol import events as saw
from onceforall.protocol.entries import Target
from onceforall.protocol.history import EMPTY, History
from onceforall.protocol.transitions import decide, outcomes, recover, redo, write
from onceforall.protocol.transitions import start as start_rows
from protocol.building import (
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
from protocol.scenarios import DECIDED, KEPT, LOST, OTHER, OURS, RECOVERED, STAYED, P

PAGE = Path(__file__).parents[2] / "docs" / "stopped.md"
UNDECIDED = EMPTY
WHOLE_PAST = history(0, done=False)


# A plan that copies one before the decided batch, and what Spark asks for behind it.
PASSED_OVER = History(
    replace(
        WHOLE_PAST.decided,
        commit=replace(WHOLE_PAST.decided.commit, header=("v1", '{"batchTimestampMs": 2}')),
    )
)
BEHIND_A_COPY = replace(request(2), start=("earlier",), before=("v1", '{"batchTimestampMs": 1}'))


def part_lost(committables=(STAYED, LOST)):
    past = history(0, done=False, a=committables)
    return History(replace(past.decided, commit=replace(past.decided.commit, digests=DECIDED)))


def found_lost(walk, lost=LOST):
    return walk.feed(saw.SinksRecovered({"a": answers(STAYED, lost=[lost])}))


def looking(**changes):
    return found_lost(Walk(**changes).recovering(part_lost())).feed(saw.LostFenced())


def start(past, asked=None, **changes):
    """The next start, up to the end of its recovery, on whatever the stopped run has left."""
    return Walk(**changes).recovering(past, asked)


def goes_on(walk):
    """The run is writing, has returned the batch, or waits for nothing but an answer."""
    assert walk.phase not in {P.Stopped, P.Aborting}, walk.decisions
    return True


@dataclass
class Stop:
    """A way into a stopped state, and the way out."""

    phase: type
    walk: object
    out: object


def recovered(past, asked=None, **changes):
    return start(past, asked, **changes).feed(RECOVERED)


UNKNOWN_TASK = (STAYED, handle("a0"))
FAILED = saw.WritesFailed("reason")
FENCED, UNKNOWN = saw.AppendFenced(), saw.AppendUnknown("no answer")
MOVED = saw.LogInspected(replace(OURS, checkpoint="/elsewhere"), own_sealed=False)

STOPS = [
    Stop(
        P.Inspecting,
        lambda: Walk().feed(request(), MOVED),
        lambda: Walk(adopt_checkpoint=True).feed(request(), MOVED),
    ),
    Stop(
        P.Claiming,
        lambda: Walk().feed(
            request(),
            saw.LogInspected(None, own_sealed=False),
            saw.GenerationClaimed(1, MOVED.newest),
        ),
        lambda: Walk(adopt_checkpoint=True).feed(
            request(), MOVED, saw.GenerationClaimed(1, MOVED.newest)
        ),
    ),
    Stop(
        P.Inspecting,
        lambda: (
            Walk(roll_after_entries=3)
            .ready()
            .feed(request(1), saw.LogInspected(OURS, own_sealed=True))
        ),
        lambda: recovered(history(0), request(1)),
    ),
    Stop(
        P.Recovering,
        lambda: start(part_lost()).feed(
            saw.SinksRecovered({"a": answers(STAYED, lost=[LOST])}, sealed=True)
        ),
        lambda: looking(),
    ),
    Stop(P.ClosingPast, lambda: recovered(WHOLE_PAST).feed(FENCED), lambda: recovered(WHOLE_PAST)),
    Stop(
        P.Sealing,
        lambda: Walk().sealing().feed(saw.PastSealed(UNDECIDED, 0, sealed=True)),
        lambda: recovered(UNDECIDED),
    ),
    Stop(
        P.Recovering,
        lambda: (
            Walk()
            .recovering(history(3), request(3), spark_committed=3)
            .feed(saw.SinksRecovered({}))
        ),
        lambda: recovered(UNDECIDED),
    ),
    Stop(
        P.Writing,
        lambda: Walk().writing().feed(FAILED, saw.AttemptAborted(sealed=True)),
        lambda: recovered(UNDECIDED),
    ),
    Stop(
        P.Deciding,
        lambda: Walk().deciding().feed(FENCED, saw.AttemptAborted()),
        lambda: recovered(UNDECIDED),
    ),
    Stop(
        P.Committing,
        lambda: Walk().committing(committed_by(LOST)).feed(seen_lost(sealed=True)),
        lambda: recovered(WHOLE_PAST),
    ),
    Stop(
        P.Closing, lambda: Walk().closing().feed(FENCED), lambda: recovered(history(0), request(1))
    ),
    Stop(
        P.Sealing,
        lambda: Walk(sinks=("b",)).sealing().feed(saw.PastSealed(WHOLE_PAST, -1)),
        lambda: recovered(WHOLE_PAST, sinks=("a", "b")),
    ),
    Stop(
        P.Sealing,
        lambda: Walk().sealing(BEHIND_A_COPY).feed(saw.PastSealed(PASSED_OVER, 1)),
        lambda: recovered(PASSED_OVER, request(0)),
    ),
    Stop(
        P.Sealing,
        lambda: start(placed("here"), request(1), identities={"a": {"folder": "there"}}),
        lambda: recovered(
            placed("here"),
            request(1),
            identities={"a": {"folder": "there"}},
            adopt_targets=frozenset({"a"}),
        ),
    ),
    Stop(
        P.Recovering,
        lambda: start(part_lost(), replace(request(0), offsets=("other",))).feed(
            saw.SinksRecovered({"a": answers(STAYED, lost=[LOST])})
        ),
        lambda: looking(),
    ),
    Stop(
        P.Recovering,
        lambda: start(part_lost()).feed(
            saw.SinksRecovered({"a": answers(STAYED, in_doubt=[LOST])})
        ),
        lambda: start(part_lost(), in_doubt="committed").feed(
            saw.SinksRecovered({"a": answers(STAYED, in_doubt=[LOST])})
        ),
    ),
    Stop(
        P.Recovering,
        lambda: start(WHOLE_PAST).feed(saw.StopRequested(("a",))),
        lambda: recovered(WHOLE_PAST),
    ),
    Stop(
        P.Recovering,
        lambda: found_lost(start(part_lost(UNKNOWN_TASK)), handle("a0")),
        lambda: found_lost(
            start(part_lost(UNKNOWN_TASK), lost_rows=("giveUp", 0)), handle("a0")
        ).feed(saw.LostFenced()),
    ),
    Stop(
        P.Recovering,
        lambda: found_lost(start(part_lost(), request(1))),
        lambda: found_lost(start(part_lost(), request(1), lost_rows=("giveUp", 0))).feed(
            saw.LostFenced(), saw.DecisionAppended(1), committed(STAYED), saw.DoneAppended()
        ),
    ),
    Stop(
        P.FencingLost,
        lambda: found_lost(start(part_lost())).feed(saw.StopRequested(("a",))),
        lambda: looking(),
    ),
    Stop(
        P.Looking,
        lambda: looking().feed(saw.DigestsTaken(OTHER)),
        lambda: looking(lost_rows=("giveUp", 0)).feed(saw.DigestsTaken(OTHER)),
    ),
    Stop(
        P.Looking,
        lambda: looking().feed(saw.DigestsTaken(OTHER)),
        lambda: looking(lost_rows=("writeAll", 0)).feed(saw.DigestsTaken(OTHER)),
    ),
    Stop(P.Looking, lambda: looking().feed(FAILED), lambda: looking(lost_rows=("giveUpUnseen", 0))),
    Stop(
        P.Looking,
        lambda: diverging(on_divergence="fail"),
        lambda: diverging(on_divergence="warn"),
    ),
    Stop(
        P.WritingAgain,
        lambda: whole(on_divergence="fail").feed(again(OTHER), saw.AttemptAborted()),
        lambda: whole(on_divergence="warn").feed(again(OTHER)),
    ),
    Stop(
        P.WritingAgain,
        lambda: looking().feed(saw.DigestsTaken(DECIDED), again(OTHER), saw.AttemptAborted()),
        lambda: looking(lost_rows=("giveUpUnseen", 0)),
    ),
    Stop(
        P.Looking,
        lambda: looking().feed(saw.DigestsTaken({"a/1": ()})),
        lambda: looking().feed(saw.DigestsTaken(DECIDED)),
    ),
    Stop(
        P.Digesting,
        lambda: digesting(on_divergence="fail").feed(saw.DigestsTaken(digests(0, rows=9))),
        lambda: digesting(on_divergence="warn").feed(saw.DigestsTaken(digests(0, rows=9))),
    ),
    Stop(
        P.Digesting,
        lambda: digesting().feed(FAILED),
        lambda: digesting().feed(saw.DigestsTaken(digests(0))),
    ),
    Stop(
        P.Writing,
        lambda: (
            Walk(transaction_timeout_ms=10)
            .writing()
            .feed(prepared(elapsed_ms=11), saw.AttemptAborted())
        ),
        lambda: Walk(transaction_timeout_ms=20).writing().feed(prepared(elapsed_ms=11)),
    ),
    Stop(
        P.Deciding,
        lambda: Walk().deciding().feed(saw.AppendTooLate(), saw.AttemptAborted()),
        lambda: recovered(UNDECIDED),
    ),
    Stop(
        P.Deciding,
        lambda: Walk().deciding().feed(saw.AppendRefused("a date"), saw.AttemptAborted()),
        lambda: recovered(UNDECIDED),
    ),
    Stop(
        P.WritingAgain,
        lambda: looking().feed(saw.DigestsTaken(DECIDED), again(OTHER), saw.AttemptAborted()),
        lambda: looking().feed(saw.DigestsTaken(DECIDED), again(DECIDED)),
    ),
    Stop(
        P.Writing,
        lambda: Walk().writing().feed(FAILED, saw.AttemptAborted()),
        lambda: recovered(UNDECIDED),
    ),
    Stop(
        P.Writing,
        lambda: recovered(placed("here"), request(1)).feed(
            written_to("there"), saw.AttemptAborted()
        ),
        lambda: recovered(placed("here"), request(1)).feed(written_to("here")),
    ),
    Stop(
        P.WritingAgain,
        lambda: kept(durable=True).feed(FAILED, saw.AttemptAborted()),
        lambda: kept(durable=False).feed(saw.DigestsTaken(DECIDED)),
    ),
    Stop(
        P.WritingAgain,
        lambda: looking().feed(
            saw.DigestsTaken(DECIDED),
            again(DECIDED, task("other", partition=1)),
            saw.AttemptAborted(),
        ),
        lambda: looking().feed(saw.DigestsTaken(DECIDED), again(DECIDED)),
    ),
    Stop(
        P.WritingAgain,
        lambda: kept(durable=True).feed(prepared(a=()), saw.AttemptAborted()),
        lambda: kept(durable=True),
    ),
    Stop(P.Deciding, lambda: Walk().deciding().feed(UNKNOWN), lambda: recovered(WHOLE_PAST)),
    Stop(P.Deciding, lambda: Walk().deciding().feed(UNKNOWN), lambda: recovered(UNDECIDED)),
    Stop(P.ClosingPast, lambda: recovered(WHOLE_PAST).feed(UNKNOWN), lambda: recovered(WHOLE_PAST)),
    Stop(
        P.Closing, lambda: Walk().closing().feed(UNKNOWN), lambda: recovered(history(0), request(1))
    ),
    Stop(
        P.Committing,
        lambda: Walk().committing().feed(saw.StopRequested(("a",))),
        lambda: recovered(WHOLE_PAST),
    ),
    Stop(
        P.Committing,
        lambda: (
            Walk()
            .committing(committed_by(LOST))
            .feed(saw.SinksCommitted({"a": answers(in_doubt=[LOST])}))
        ),
        lambda: start(WHOLE_PAST, in_doubt="committed").feed(
            saw.SinksRecovered({"a": answers(in_doubt=[handle("a0")])})
        ),
    ),
    Stop(
        P.Committing,
        lambda: Walk().committing(committed_by(LOST)).feed(seen_lost()),
        lambda: looking(),
    ),
    Stop(
        P.Ready, lambda: Walk().ready().feed(request(7)), lambda: recovered(history(0), request(1))
    ),
    Stop(
        P.ClosingPast,
        lambda: recovered(WHOLE_PAST, request(5)).feed(saw.DoneAppended()),
        lambda: recovered(history(0), request(1)),
    ),
]


def placed(folder):
    past = history(0)
    return History(
        replace(
            past.decided,
            commit=replace(past.decided.commit, targets={"a": Target({"folder": folder}, 0)}),
        )
    )


def written_to(folder):
    return prepared(1, a=(handle("a1", identity={"folder": folder}),))


def committed_by(*committables):
    return saw.WritesPrepared({"a": committables}, tasks_of(1), 0, attempts_lost=False)


def seen_lost(**more):
    return saw.SinksCommitted({"a": answers(lost=[LOST])}, **more)


def whole(**changes):
    return Walk(**changes).redoing(LOST, decided=DECIDED).feed(saw.LostFenced())


def digesting(**changes):
    return start(history(0), request(stateful=True), **changes).feed(saw.SinksRecovered({}))


def diverging(**changes):
    walk = found_lost(start(part_lost(), request(0, stateful=True), **changes))
    return walk.feed(saw.LostFenced(), saw.DigestsTaken(tasks_of(1, 9)))


def kept(**changes):
    return found_lost(start(part_lost((STAYED, KEPT)), **changes), KEPT).feed(saw.LostFenced())


def again(of, committable=None):
    return saw.WritesPrepared({"a": (committable or task("new"),)}, of, 0, attempts_lost=False)


def error_of(stop):
    decision = stop.walk().only(do.StopRun)
    assert issubclass(decision.error, OnceForAllError)
    return decision.error.__name__


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.phase.title)
def test_a_stopped_run_has_a_way_out(stop):
    walk = stop.walk()
    assert walk.phase is P.Stopped
    assert (
        next(phase for phase in reversed(walk.phases) if phase not in {P.Stopped, P.Aborting})
        is stop.phase
    )
    assert goes_on(stop.out())


def test_the_page_has_every_state_in_which_a_run_stops_and_no_other():
    rows = re.findall(
        r"^\| ([a-z ,]+) \| `([A-Za-z]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    listed = {(phase, error) for phases, error in rows for phase in phases.split(", ")}
    assert listed == {(stop.phase.title, error_of(stop)) for stop in STOPS}


STOPPING = ("stop", "stop_in_own_words", "abort", "replaced")
ROWS = (start_rows, recover, redo, write, decide, outcomes)


def test_every_place_in_the_machine_that_stops_a_run_is_walked(monkeypatch):
    """By the line: a new call of ``stop``, ``abort`` or ``replaced`` needs a stop in the list
    above."""
    calls = {
        (module.__name__, node.lineno)
        for module in ROWS
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in STOPPING
    }
    met = set()
    for module, name in itertools.product(ROWS, STOPPING):
        original = getattr(module, name, None)
        if original is None:
            continue

        def noting(*arguments, original=original, **named):
            caller = inspect.currentframe().f_back
            met.add((caller.f_globals["__name__"], caller.f_lineno))
            return original(*arguments, **named)

        monkeypatch.setattr(module, name, noting)
    for stop in STOPS:
        stop.walk()
    # A committable without a name is a bug of a sink, which stops the run as any other failed
    # attempt does.
    walk = (
        Walk()
        .writing()
        .feed(
            saw.WritesPrepared(
                {"a": (handle("x"), handle("x"))}, digests(0), 0, attempts_lost=False
            )
        )
    )
    assert goes_on(recovered(UNDECIDED))
    assert walk.phase is P.Aborting
    assert len(calls) > 15
    assert calls <= met
