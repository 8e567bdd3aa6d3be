"""What the sinks found of the last decision: complete, lost or in doubt. What is lost leads to a
redo.
"""

from __future__ import annotations

from dataclasses import replace

from onceforall.errors import InDoubtError, TransactionLostError
from onceforall.protocol import identity, messages
from onceforall.protocol.answers import check_answered, missing
from onceforall.protocol.decisions import AppendDone, FenceLost
from onceforall.protocol.entries import Commit
from onceforall.protocol.events import BatchRequested, DoneAppended, Lost, SinksRecovered
from onceforall.protocol.history import Decided
from onceforall.protocol.judgement import Refusal, judge
from onceforall.protocol.phases import ClosingPast, FencingLost, Recovering
from onceforall.protocol.redo import CHOICES, UNSEEN, Way, given_up_of, redo_of
from onceforall.protocol.state import Run
from onceforall.protocol.transitions.outcomes import Outcome, marked_done, replaced, stop
from onceforall.protocol.transitions.write import judge_request


def recovered(run: Run, at: Recovering, event: SinksRecovered) -> Outcome:
    """Close the past, or have what is lost written again."""
    decided = run.history.decided
    if decided is None or decided.done:
        return judge_request(run, at.request)
    batch = decided.commit.batch
    if not run.is_complete_for_spark(batch):
        check_answered(decided.commit, event.answers)
        lost, unproven = missing(run, event.answers)
        if (lost or unproven) and event.sealed:
            return replaced(run)
        if unproven:
            return stop(run, InDoubtError, messages.unproven(batch, unproven, run.said()), unproven)
        run = replace(run, unplaced=identity.unplaced(event.answers))
        if lost:
            return _begin_redo(run, at.request, decided, lost)
    return _close_past(run, at.request, decided)


def past_closed(run: Run, at: ClosingPast, event: DoneAppended) -> Outcome:  # noqa: ARG001  every row has the same signature
    """Go on with what Spark asks for."""
    return judge_request(marked_done(run, at.decided), at.request)


def chosen(run: Run, commit: Commit) -> Way | None:
    """Return what a person has chosen for rows of this batch that can't be written again as they
    were.
    """
    word, batch = run.config.lost_rows or (None, None)
    return CHOICES[word] if word is not None and batch == commit.batch else None


def _close_past(run: Run, request: BatchRequested, decided: Decided) -> Outcome:
    return replace(run, phase=ClosingPast(request, decided)), (
        AppendDone(run.generation, decided.commit.batch),
    )


def _begin_redo(run: Run, request: BatchRequested, decided: Decided, lost: list[Lost]) -> Outcome:
    commit = decided.commit
    verdict = judge(request, run.history, run.spark_committed, spark_unplanned=run.spark_unplanned)
    if isinstance(verdict, Refusal):
        return stop(run, verdict.error, verdict.message)
    if request.batch != commit.batch:
        if chosen(run, commit) is Way.GIVEN_UP:
            return _fence_given_up(
                run, request, decided, lost, f"Spark asks for batch {request.batch}"
            )
        message = messages.passed_on(commit.batch, request.batch, lost, run.said(in_doubt=True))
        return stop(run, TransactionLostError, message, lost)
    if run.config.lost_rows == (UNSEEN, commit.batch):
        return _fence_given_up(run, request, decided, lost, "given up without a look at a replay")
    state_first = request.stateful and not run.config.kept_first
    redo = redo_of(lost, commit, use_kept=run.config.durable, stateful=state_first)
    if redo is None:
        return _redo_unknown(run, request, decided, lost)
    return replace(run, phase=FencingLost(request, decided, redo)), (FenceLost(redo.lost),)


def _redo_unknown(run: Run, request: BatchRequested, decided: Decided, lost: list[Lost]) -> Outcome:
    """An earlier release decided the batch, and didn't record which task's rows a transaction
    holds.
    """
    commit = decided.commit
    if run.config.in_doubt == "committed":
        # Nobody can write it again but the user, who has done so by these words.
        return _close_past(run, request, decided)
    if chosen(run, commit) is Way.GIVEN_UP:
        reason = "an earlier release did not record which task's rows these are"
        return _fence_given_up(run, request, decided, lost, reason)
    message = messages.lost_for_good(commit.batch, lost, run.said(in_doubt=True))
    return stop(run, TransactionLostError, message, lost)


def _fence_given_up(
    run: Run, request: BatchRequested, decided: Decided, lost: list[Lost], reason: str
) -> Outcome:
    redo = given_up_of(lost, decided.commit, reason)
    return replace(run, phase=FencingLost(request, decided, redo)), (FenceLost(redo.lost),)
