"""From COMMIT to DONE: nothing that a COMMIT may name is aborted, and no batch is returned
before every sink has it.
"""

from __future__ import annotations

from dataclasses import replace

from onceforall.errors import (
    AttemptFailedError,
    BatchTooSlowError,
    FencedError,
    InDoubtError,
    TransactionLostError,
)
from onceforall.protocol import messages
from onceforall.protocol.answers import check_answered, missing, name_of, reusable_handles
from onceforall.protocol.decisions import (
    AppendDone,
    CommitSinks,
    RetireHandles,
    ReturnBatch,
    SweepOwn,
)
from onceforall.protocol.due_sweeps import incomplete, own_sweeps
from onceforall.protocol.entries import Committable
from onceforall.protocol.events import (
    AppendFenced,
    AppendRefused,
    AppendTooLate,
    DecisionAppended,
    DoneAppended,
    Lost,
    SinksCommitted,
)
from onceforall.protocol.history import Decided, History
from onceforall.protocol.phases import Closing, ClosingPast, Committing, Deciding, Ready
from onceforall.protocol.redo import Redo, Way
from onceforall.protocol.state import Run
from onceforall.protocol.transitions.outcomes import Outcome, abort, marked_done, replaced, stop


def decided(run: Run, at: Deciding, event: DecisionAppended) -> Outcome:
    """COMMIT is durable: the sinks may commit."""
    decided = Decided(at.commit, run.generation, event.index, done=False)
    committing = replace(
        run,
        phase=Committing(at.request, decided, at.redo),
        history=History(decided),
        entries=run.entries + 1,
        unplaced=frozenset(),
    )
    return committing, (
        CommitSinks(
            decided.permit, {sink: cs for sink, cs in at.commit.committables.items() if cs}
        ),
    )


def undecided_and_fenced(run: Run, at: Deciding, event: AppendFenced) -> Outcome:  # noqa: ARG001  every row has the same signature
    """Another run's seal stands where COMMIT would: nobody decided this attempt, nor ever will."""
    # Its successor may have made its last sweep before this run woke and prepared, so readers would
    # wait for the timeout.
    return abort(run, _of_this_attempt(run, at), FencedError, messages.fenced(run.generation))


def too_late(run: Run, at: Deciding, event: AppendTooLate) -> Outcome:  # noqa: ARG001
    """COMMIT was not created, nor ever will be: the batch is as undecided as it was."""
    message = messages.held_up(at.commit.batch, run.said(in_doubt=at.redo is not None))
    return abort(run, _of_this_attempt(run, at), BatchTooSlowError, message)


def refused(run: Run, at: Deciding, event: AppendRefused) -> Outcome:
    """COMMIT can't be written: the batch is as undecided as it was; one that is written again is
    decided as it was.
    """
    batch, stays = at.commit.batch, run.config.need_no_commit
    message = (
        messages.failed(batch, event.reason, stays)
        if at.redo is None
        else messages.not_written_again(
            batch,
            event.reason,
            run.said(in_doubt=True),
            stays,
            stateful=at.request.stateful,
        )
    )
    return abort(
        run,
        _of_this_attempt(run, at),
        AttemptFailedError,
        message,
        in_own_words=at.redo is not None,
    )


def committed(run: Run, at: Committing, event: SinksCommitted) -> Outcome:
    """Return the batch when every sink has it; otherwise stop, and the next start recovers."""
    commit = at.decided.commit
    check_answered(commit, event.answers)
    lost, unproven = missing(run, event.answers, lambda each: _is_of_this_run(at.redo, each))
    if (lost or unproven) and event.sealed:
        # A successor completed the batch and then fenced our ids; what looks lost to us is not.
        return replaced(run)
    if unproven:
        return stop(
            run, InDoubtError, messages.unproven(commit.batch, unproven, run.said()), unproven
        )
    if lost:
        message = messages.lost(commit.batch, lost, run.said(in_doubt=at.redo is not None))
        return stop(run, TransactionLostError, message, lost)
    if at.redo is not None:
        return _redone(run, at, at.redo)
    reusable = {
        sink: reusable_handles(run, commit, sink, event.answers.get(sink))
        for sink in run.config.sinks
    }
    retired = {sink: answers.retired for sink, answers in event.answers.items() if answers.retired}
    sweep = (SweepOwn(own_sweeps(run, commit.committables)),) if run.sweep_own else ()
    phase = Closing(at.decided, retired)
    closing = replace(run, phase=phase, reusable=reusable, sweep_own=max(0, run.sweep_own - 1))
    return closing, (*sweep, ReturnBatch(commit.batch), AppendDone(run.generation, commit.batch))


def closed(run: Run, at: Closing, event: DoneAppended) -> Outcome:  # noqa: ARG001
    """DONE is durable: handles in doubt may be fenced, for the batch will never be completed
    again.
    """
    closed = replace(marked_done(run, at.decided), phase=Ready())
    return closed, ((RetireHandles(at.retired),) if at.retired else ())


def _is_of_this_run(redo: Redo | None, each: Lost) -> bool:
    return redo is None or (each.sink, name_of(each.committable)) not in redo.stayed


def _of_this_attempt(run: Run, at: Deciding) -> dict[str, tuple[Committable, ...]]:
    """Return what was prepared for the decision that did not come about; a redo's names also
    what an earlier one decided.
    """
    decided = {(sink, name_of(c)) for sink, cs in incomplete(run).items() for c in cs}
    prepared = at.commit.committables.items()
    return {
        sink: tuple(c for c in cs if (sink, name_of(c)) not in decided) for sink, cs in prepared
    }


def _redone(run: Run, at: Committing, redo: Redo) -> Outcome:
    # No producer goes on from here: some of these handles are of older generations. They are not
    # fenced either, which the sweeps of older generations would do at any time.
    batch = at.decided.commit.batch
    done = AppendDone(run.generation, batch)
    if redo.way in {Way.KEPT, Way.GIVEN_UP}:
        # The user's function has not run yet, or wrote nothing: a stateful query still needs it.
        return replace(run, phase=ClosingPast(at.request, at.decided)), (done,)
    return replace(run, phase=Closing(at.decided)), (ReturnBatch(batch), done)
