"""What a row may come to: the next state with decisions, a stop, or an attempt that is aborted
before the stop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onceforall.errors import FencedError, InDoubtError, OnceForAllError, OutcomeUnknownError
from onceforall.protocol import messages
from onceforall.protocol.answers import name_of
from onceforall.protocol.decisions import AbortAttempt, Decision, StopRun
from onceforall.protocol.due_sweeps import incomplete, own_sweeps
from onceforall.protocol.entries import Committable
from onceforall.protocol.events import (
    AppendFenced,
    AppendUnknown,
    BatchRequested,
    Lost,
    StopRequested,
)
from onceforall.protocol.history import Decided, History
from onceforall.protocol.phases import (
    Aborting,
    Closing,
    ClosingPast,
    Committing,
    Deciding,
    FencingLost,
    Recovering,
    Stopped,
)
from onceforall.protocol.state import Run

Outcome = tuple[Run, tuple[Decision, ...]]


def stop(
    run: Run, error: type[OnceForAllError], message: str, about: Sequence[Lost] = ()
) -> Outcome:
    """Stop the run, for what became of the first of these transactions, if any."""
    reason = (
        StopRun(error, message, about[0].sink, name_of(about[0].committable))
        if about
        else StopRun(error, message)
    )
    return replace(run, phase=Stopped(reason)), (reason,)


def stop_in_own_words(run: Run, error: type[OnceForAllError], message: str) -> Outcome:
    """Stop the run, and say more than the cause does."""
    reason = StopRun(error, message, in_own_words=True)
    return replace(run, phase=Stopped(reason)), (reason,)


def abort(
    run: Run,
    committables: Mapping[str, tuple[Committable, ...]],
    error: type[OnceForAllError],
    message: str,
    *,
    in_own_words: bool = False,
) -> Outcome:
    """Abort an attempt that will never be decided, and then stop."""
    reason = StopRun(error, message, in_own_words=in_own_words)
    aborting = replace(run, phase=Aborting(reason))
    return aborting, (AbortAttempt(committables, own_sweeps(run, incomplete(run))),)


def replaced(run: Run) -> Outcome:
    """Stop: another run has sealed our chain, and everything that is not complete is its
    business now.
    """
    return stop(run, FencedError, messages.fenced(run.generation))


def marked_done(run: Run, decided: Decided) -> Run:
    """Return the run with the DONE of this decision in its chain."""
    return replace(run, entries=run.entries + 1, history=History(replace(decided, done=True)))


def fenced(run: Run, at: ClosingPast | Closing, event: AppendFenced) -> Outcome:  # noqa: ARG001  every row has the same signature
    """DONE can't be appended: the successor closes the batch."""
    return replaced(run)


def unknown(run: Run, at: ClosingPast | Closing | Deciding, event: AppendUnknown) -> Outcome:
    """An append without an answer: the entry may exist."""
    maybe = at.commit.committables if isinstance(at, Deciding) else {}
    reason = StopRun(OutcomeUnknownError, messages.unknown(event.reason))
    return replace(run, phase=Stopped(reason, maybe)), (reason,)


def stop_waiting(
    run: Run,
    at: Recovering | FencingLost | Committing,  # noqa: ARG001
    event: StopRequested,
) -> Outcome:
    """The query was stopped while a sink did not answer."""
    decided, within_s = run.history.decided, run.config.gives_up_after_s
    told = decided.commit.batch if decided else None, event.waiting_for, event.said
    return stop(
        run,
        InDoubtError,
        messages.waiting(*told) if within_s is None else messages.given_up(*told, within_s),
    )


def still_stopped(run: Run, at: Stopped, event: BatchRequested) -> Outcome:  # noqa: ARG001
    """Say the same again."""
    return run, (at.stop,)
