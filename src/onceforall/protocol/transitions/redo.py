"""Lost rows come back: what writes again, and when that replaces the decision. The rules are in
``protocol.redo``.
"""

from __future__ import annotations

from dataclasses import replace

from onceforall.errors import (
    AttemptFailedError,
    DivergenceError,
    NondeterministicReplayError,
    ProtocolViolationError,
)
from onceforall.protocol import identity, messages
from onceforall.protocol.decisions import (
    AppendCommit,
    ReportDivergence,
    RunWrites,
    TakeDigests,
    WriteKept,
)
from onceforall.protocol.entries import Commit
from onceforall.protocol.events import (
    BatchRequested,
    DigestsTaken,
    LostFenced,
    WritesFailed,
    WritesPrepared,
)
from onceforall.protocol.history import Decided
from onceforall.protocol.judgement import differing, divergence
from onceforall.protocol.phases import Deciding, FencingLost, Looking, WritingAgain
from onceforall.protocol.redo import (
    CHOICES,
    Redo,
    Way,
    all_again,
    changed_since,
    difference,
    given_up,
    matched,
    merged,
    misplaced,
    record,
    written_again,
)
from onceforall.protocol.state import Run
from onceforall.protocol.transitions.outcomes import Outcome, abort, stop, stop_in_own_words
from onceforall.protocol.transitions.recover import chosen
from onceforall.protocol.transitions.write import check_prepared


def lost_fenced(run: Run, at: FencingLost, event: LostFenced) -> Outcome:  # noqa: ARG001  every row has the same signature
    """Write from kept rows or from a replay, look at the replay first, or give the rows up."""
    redo, batch = at.redo, at.request.batch
    if redo.way is Way.KEPT:
        after = identity.predecessors(run, batch)
        places = identity.places(run, after)
        writing = WriteKept(
            batch, run.name_generation, run.incarnation, redo.lost, after=after, places=places
        )
        return replace(run, phase=WritingAgain(at.request, at.decided, redo)), (writing,)
    if redo.way is Way.WHOLE:
        return _write_again(run, at.request, at.decided, redo)
    if redo.way is Way.GIVEN_UP:
        return _give_up(run, at.request, at.decided, redo)
    looking = Looking(at.request, at.decided, redo)
    return replace(run, phase=looking), (TakeDigests(batch, run.name_generation, writes_next=True),)


def looked(run: Run, at: Looking, event: DigestsTaken) -> Outcome:
    """Write the tasks that hold the lost rows; where there are none, a person chooses."""
    redo, commit = at.redo, at.decided.commit
    plan = matched(commit, redo, event.digests)
    if plan is not None:
        return _write_matched(run, at, replace(redo, plan=plan), event)
    differs, choice = difference(commit, redo, event.digests), chosen(run, commit)
    if choice is Way.GIVEN_UP:
        return _give_up(run, at.request, at.decided, replace(redo, way=choice, reason=differs))
    elsewhere = misplaced(commit, redo, event.digests)
    if elsewhere:
        return stop(
            run,
            NondeterministicReplayError,
            messages.in_another_order(commit.batch, elsewhere, run.said(in_doubt=True)),
        )
    if choice is Way.ALL_AGAIN:
        plan = all_again(commit, redo, event.digests)
        return _write_again(
            run, at.request, at.decided, replace(redo, way=choice, plan=plan, reason=differs)
        )
    message = messages.not_replayed(commit, differs, run.said(in_doubt=True))
    return stop(run, NondeterministicReplayError, message)


def look_failed(run: Run, at: Looking, event: WritesFailed) -> Outcome:
    """Nothing was written by the replay; the next start looks again."""
    batch = at.decided.commit.batch
    message = messages.no_replay(
        batch, event.reason, run.said(in_doubt=True), stateful=at.request.stateful
    )
    return stop_in_own_words(run, AttemptFailedError, message)


def again_failed(run: Run, at: WritingAgain, event: WritesFailed) -> Outcome:
    """Abort what was written in the place of the lost rows."""
    batch = at.decided.commit.batch
    message = messages.not_written_again(
        batch,
        event.reason,
        run.said(in_doubt=True),
        run.config.need_no_commit,
        stateful=at.request.stateful,
    )
    return abort(run, event.committables, AttemptFailedError, message, in_own_words=True)


def prepared_again(run: Run, at: WritingAgain, event: WritesPrepared) -> Outcome:
    """Replace the decision, if what was prepared is what was planned."""
    run, not_after_ms, refusal = check_prepared(run, at.request, event, again=True)
    if refusal is not None:
        return refusal
    redo, commit = at.redo, at.decided.commit
    # Kept rows are what was decided, by their checksum; only a replay has to prove it.
    changed = changed_since(redo, event.digests)
    if changed is not None:
        message = messages.changed_since(
            commit.batch, changed, run.said(in_doubt=True), run.config.need_no_commit
        )
        return abort(run, event.committables, NondeterministicReplayError, message)
    other = differing(commit, event.digests) if redo.way is Way.WHOLE else None
    fails = run.config.on_divergence == "fail"
    said = run.said(in_doubt=True)
    differs = (
        None if other is None else messages.whole_differs(commit.batch, other, said, fails=fails)
    )
    if differs is not None and fails:
        return abort(run, event.committables, DivergenceError, differs)
    report = () if differs is None else (ReportDivergence(commit.batch, differs),)
    mismatch = written_again(
        commit, redo, event.committables, event.digests, run.config.need_no_commit
    )
    if mismatch is not None:
        return abort(run, event.committables, ProtocolViolationError, mismatch)
    new = _recorded(
        at.request, commit, redo, merged(commit, redo, event.committables, event.digests)
    )
    new = identity.placed(run, new, identity.confirmed(event.committables))
    deciding = replace(run, phase=Deciding(at.request, new, redo))
    return deciding, (*report, AppendCommit(run.generation, new, not_after_ms))


def _write_again(run: Run, request: BatchRequested, decided: Decided, redo: Redo) -> Outcome:
    tasks = None if redo.plan is None else frozenset(redo.plan.tasks)
    after = identity.predecessors(run, request.batch)
    return replace(run, phase=WritingAgain(request, decided, redo)), (
        RunWrites(
            request.batch,
            run.name_generation,
            {},
            run.incarnation,
            tasks,
            after=after,
            places=identity.places(run, after),
        ),
    )


def _write_matched(run: Run, at: Looking, redo: Redo, event: DigestsTaken) -> Outcome:
    # The lost rows are all there; others may differ, and a stateful query's state comes from this
    # replay.
    commit = at.decided.commit
    fails = run.config.on_divergence == "fail"
    differs = (
        divergence(commit, event.digests, run.said(in_doubt=True), fails=fails, lost=True)
        if at.request.stateful
        else None
    )
    if differs is not None and fails:
        return stop(run, DivergenceError, differs)
    report = (ReportDivergence(commit.batch, differs),) if differs is not None else ()
    after, decisions = _write_again(run, at.request, at.decided, redo)
    return after, (*report, *decisions)


def _give_up(run: Run, request: BatchRequested, decided: Decided, redo: Redo) -> Outcome:
    left = _recorded(request, decided.commit, redo, given_up(decided.commit, redo))
    commit = identity.placed(run, left, {})
    return replace(run, phase=Deciding(request, commit, redo)), (
        AppendCommit(run.generation, commit),
    )


def _recorded(request: BatchRequested, before: Commit, redo: Redo, commit: Commit) -> Commit:
    """Put on record what a person has chosen, if it was that."""
    if redo.way.value not in CHOICES:
        return commit
    start = request.start if request.batch == before.batch else ()
    return replace(commit, losses=(*before.losses, record(before, redo, start)))
