"""The protocol of one run, as one transition table.

Theory of operation: a *run* of a query (one generation, or several when it rolls) is in one *phase*
(``phases``), which carries what is known only there. The coordinator observes a fact and feeds it
in as an *event*; ``step`` looks the pair (phase, event) up in ``TRANSITIONS``, and returns the next
state and the *decisions* to execute, in order. Every decision that expects an answer is answered by
an event before anything else is fed in. An event that has no row raises ``ProtocolViolationError``
and changes nothing. There is no I/O, clock, randomness or thread in here, so that a simulator
explores the very code that runs in production.

The caller's sequence: ``Run(config)``; then ``BatchRequested`` for each call of ``foreachBatch``,
executing decisions until ``ReturnBatch`` or ``StopRun``. An ``AppendDone`` behind ``ReturnBatch``
may be executed while Spark goes on, and is answered before the next ``BatchRequested``.

What this module guarantees: a ``CommitPermit`` comes only from a durable COMMIT
(``history.Decided``); nothing of an attempt is aborted once its COMMIT may exist; a batch is
written only after the DONE of the one before; a batch with DONE is never completed again.
What it does not: that its caller executes what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onceforall.errors import ProtocolViolationError
from onceforall.protocol.events import (
    AppendFenced,
    AppendRefused,
    AppendTooLate,
    AppendUnknown,
    AttemptAborted,
    BatchRequested,
    DecisionAppended,
    DigestsTaken,
    DoneAppended,
    Event,
    GenerationClaimed,
    LogInspected,
    LostFenced,
    PastSealed,
    SinksCommitted,
    SinksRecovered,
    StopRequested,
    WritesFailed,
    WritesPrepared,
)
from onceforall.protocol.phases import (
    Aborting,
    Claiming,
    Closing,
    ClosingPast,
    Committing,
    Deciding,
    Digesting,
    FencingLost,
    Inspecting,
    Looking,
    New,
    Phase,
    Ready,
    Recovering,
    Sealing,
    Stopped,
    Writing,
    WritingAgain,
)
from onceforall.protocol.state import Run
from onceforall.protocol.transitions import decide, outcomes, recover, redo, start, write
from onceforall.protocol.transitions.outcomes import Outcome


@dataclass(frozen=True)
class Transition:
    """One row: what an event does in a phase, and the phases that it may lead to (documentation
    is drawn from it).
    """

    apply: Callable[[Run, Any, Any], Outcome]
    to: tuple[type[Phase], ...]


_JUDGED = (Ready, Writing, Digesting, Stopped)

TRANSITIONS: Mapping[type[Phase], Mapping[type[Event], Transition]] = {
    New: {BatchRequested: Transition(start.requested, (Inspecting,))},
    Inspecting: {LogInspected: Transition(start.inspected, (Claiming, Stopped))},
    Claiming: {GenerationClaimed: Transition(start.claimed, (Sealing, Stopped))},
    Sealing: {PastSealed: Transition(start.sealed, (Recovering, Stopped))},
    Recovering: {
        SinksRecovered: Transition(recover.recovered, (ClosingPast, FencingLost, *_JUDGED)),
        StopRequested: Transition(outcomes.stop_waiting, (Stopped,)),
    },
    FencingLost: {
        LostFenced: Transition(redo.lost_fenced, (Looking, WritingAgain, Deciding)),
        StopRequested: Transition(outcomes.stop_waiting, (Stopped,)),
    },
    Looking: {
        DigestsTaken: Transition(redo.looked, (WritingAgain, Deciding, Stopped)),
        WritesFailed: Transition(redo.look_failed, (Stopped,)),
    },
    WritingAgain: {
        WritesPrepared: Transition(redo.prepared_again, (Deciding, Aborting)),
        WritesFailed: Transition(redo.again_failed, (Aborting,)),
    },
    ClosingPast: {
        DoneAppended: Transition(recover.past_closed, _JUDGED),
        AppendFenced: Transition(outcomes.fenced, (Stopped,)),
        AppendUnknown: Transition(outcomes.unknown, (Stopped,)),
    },
    Ready: {BatchRequested: Transition(start.requested, (Inspecting, *_JUDGED))},
    Writing: {
        WritesPrepared: Transition(write.prepared, (Deciding, Aborting)),
        WritesFailed: Transition(write.write_failed, (Aborting,)),
    },
    Digesting: {
        DigestsTaken: Transition(write.digested, (Ready, Stopped)),
        WritesFailed: Transition(write.replay_failed, (Stopped,)),
    },
    Aborting: {AttemptAborted: Transition(write.aborted, (Stopped,))},
    Deciding: {
        DecisionAppended: Transition(decide.decided, (Committing,)),
        AppendFenced: Transition(decide.undecided_and_fenced, (Aborting,)),
        AppendTooLate: Transition(decide.too_late, (Aborting,)),
        AppendRefused: Transition(decide.refused, (Aborting,)),
        AppendUnknown: Transition(outcomes.unknown, (Stopped,)),
    },
    Committing: {
        SinksCommitted: Transition(decide.committed, (Closing, ClosingPast, Stopped)),
        StopRequested: Transition(outcomes.stop_waiting, (Stopped,)),
    },
    Closing: {
        DoneAppended: Transition(decide.closed, (Ready,)),
        AppendFenced: Transition(outcomes.fenced, (Stopped,)),
        AppendUnknown: Transition(outcomes.unknown, (Stopped,)),
    },
    Stopped: {BatchRequested: Transition(outcomes.still_stopped, (Stopped,))},
}


def step(run: Run, event: Event) -> Outcome:
    """Apply one event.

    Args:
        run: the state before it.
        event: the fact that was observed.

    Returns:
        The state after it, and the decisions to execute in order.

    Raises:
        ProtocolViolationError: the phase does not allow the event; the state is unchanged.
    """
    transition = TRANSITIONS[type(run.phase)].get(type(event))
    if transition is None:
        raise ProtocolViolationError(
            f"{type(event).__name__} is not allowed while {run.phase.title}"
        )
    after, decisions = transition.apply(run, run.phase, event)
    if type(after.phase) not in transition.to:
        raise ProtocolViolationError(
            f"{type(event).__name__} while {run.phase.title} must not lead to {after.phase.title}"
        )
    return after, decisions
