"""The protocol of one run, as one transition table.

Theory of operation: a *run* of a query (one generation, or several when it rolls) is in one ``Phase``. The coordinator observes
a fact and feeds it in as an *event*; ``step`` looks the pair (phase, event) up in ``TRANSITIONS``, and returns the next state and
the *decisions* to execute, in order. Every decision that expects an answer is answered by an event before anything else is fed
in. An event that has no row raises ``ProtocolViolationError`` and changes nothing. There is no I/O, clock, randomness or thread in
here, so that a simulator explores the very code that runs in production.

The caller's sequence: ``Run(config)``; then ``BatchRequested`` for each call of ``foreachBatch``, executing decisions until
``ReturnBatch`` or ``StopRun``. An ``AppendDone`` behind ``ReturnBatch`` may be executed while Spark goes on, and is answered before the
next ``BatchRequested``.

What this module guarantees: a ``CommitPermit`` exists only after COMMIT is durable; nothing of an attempt is aborted once its
COMMIT may exist; a batch is written only after the DONE of the one before; a batch with DONE is never completed again.
What it does not: that its caller executes what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onceforall.errors import (
    AttemptFailedError,
    BatchTooSlowError,
    DivergenceError,
    FencedError,
    InDoubtError,
    NondeterministicReplayError,
    OnceForAllError,
    OutcomeUnknownError,
    ProtocolViolationError,
    TransactionLostError,
)
from onceforall.protocol import identity, messages
from onceforall.protocol.answers import REUSE_WITHIN_BATCHES, check_answered, missing, name_of, reusable_handles
from onceforall.protocol.decisions import (
    AbortAttempt,
    AppendCommit,
    AppendDone,
    ClaimGeneration,
    CommitPermit,
    CommitSinks,
    Decision,
    FenceLost,
    InspectLog,
    RecoverSinks,
    ReportDivergence,
    RetireHandles,
    ReturnBatch,
    RunWrites,
    SealPast,
    StopRun,
    SweepOwn,
    TakeDigests,
    WriteKept,
)
from onceforall.protocol.due_sweeps import incomplete, older_sweeps, own_sweeps
from onceforall.protocol.entries import Claim, Commit, Committable
from onceforall.protocol.events import (
    AppendFenced,
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
    Lost,
    LostFenced,
    PastSealed,
    SinksCommitted,
    SinksRecovered,
    StopRequested,
    WritesFailed,
    WritesPrepared,
)
from onceforall.protocol.history import Decided, History
from onceforall.protocol.judgement import Refusal, Verdict, differing, divergence, judge, judge_claim
from onceforall.protocol.redo import (
    CHOICES,
    UNSEEN,
    Redo,
    Way,
    all_again,
    changed_since,
    difference,
    given_up,
    given_up_of,
    matched,
    merged,
    misplaced,
    record,
    redo_of,
    written_again,
)
from onceforall.protocol.state import Phase, Run, RunConfig

__all__ = ["REUSE_WITHIN_BATCHES", "TRANSITIONS", "CommitPermit", "Phase", "Run", "RunConfig", "step"]

SWEEPS_AFTER_LOSS = 3
"""For so many batches after a lost task attempt one's own leftovers are swept: its task may go on for a while."""

Outcome = tuple[Run, tuple[Decision, ...]]


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
    transition = TRANSITIONS[run.phase].get(type(event))
    if transition is None:
        raise ProtocolViolationError(f"{type(event).__name__} is not allowed while {run.phase.value}")
    after, decisions = transition.apply(run, event)
    if after.phase not in transition.to:
        raise ProtocolViolationError(f"{type(event).__name__} while {run.phase.value} must not lead to {after.phase.value}")
    return after, decisions


# --- what each row of the table does ---------------------------------------------------------------------------------------


def _stop(run: Run, error: type[OnceForAllError], message: str, about: Sequence[Lost] = ()) -> Outcome:
    """Stop the run, for what became of the first of these transactions, if any."""
    stop = StopRun(error, message, about[0].sink, name_of(about[0].committable)) if about else StopRun(error, message)
    return replace(run, phase=Phase.STOPPED, stopped=stop), (stop,)


def _request(run: Run, event: BatchRequested) -> Outcome:
    requested = replace(run, request=event)
    if run.phase is Phase.READY and run.entries < run.config.roll_after_entries:
        return _judge(requested)
    return replace(requested, phase=Phase.INSPECTING), (InspectLog(run.generation),)


def _inspected(run: Run, event: LogInspected) -> Outcome:
    # A refused run must not leave a claim: the next start would take it for the log's owner. And a replaced run that rolls must
    # not claim above its successor, which that would stop.
    if event.own_sealed:
        return _fenced(run, AppendFenced())
    refusal = judge_claim(run.config, event.newest)
    if refusal is not None:
        return _stop(run, refusal.error, refusal.message)
    config = run.config
    claim = Claim(
        config.query_id, config.run_id, config.checkpoint, config.owner, config.host, config.boot_id, dict(config.storage)
    )
    return replace(run, phase=Phase.CLAIMING), (ClaimGeneration(claim),)


def _claimed(run: Run, event: GenerationClaimed) -> Outcome:
    claimed = replace(run, phase=Phase.SEALING, generation=event.generation, entries=1, retired={})
    if not _is_next(run, event.generation):
        claimed = replace(claimed, name_generation=event.generation, reusable={})
    refusal = judge_claim(run.config, event.previous)
    if refusal is not None:
        return _stop(claimed, refusal.error, refusal.message)
    return claimed, (SealPast(event.generation),)


def _is_next(run: Run, generation: int) -> bool:
    """Tell whether the run rolls, and nobody has claimed since: no other run can have swept our names, or fenced our producers.

    Where another run has claimed a generation in between, it may have taken what bears our names for a dead run's; so they are
    given up, as at a start.
    """
    return run.generation >= 0 and generation == run.generation + 1


def _sealed(run: Run, event: PastSealed) -> Outcome:
    sealed = replace(run, phase=Phase.RECOVERING, history=event.history, spark_committed=event.spark_committed)
    decided = event.history.decided
    refusal = identity.judge(identity.known(sealed), run.config.identities)
    if refusal is not None:
        return _stop(sealed, refusal.error, refusal.message)
    if decided is None or decided.done:
        # A task attempt that was lost long ago may have opened a transaction after the last sweep of our own names; under names that
        # stay ours for the whole run no later sweep of older ones finds it.
        rolled = run.name_generation < run.generation
        late = (SweepOwn(own_sweeps(run, run.reusable)),) if rolled and run.incarnation else ()
        return sealed, (*late, RecoverSinks(None, {}, older_sweeps(run, {})))
    pending = {sink: cs for sink, cs in decided.commit.committables.items() if cs}
    unknown = sorted(set(pending) - set(run.config.sinks))
    if _complete_for_spark(sealed, decided.commit.batch):
        pending = {sink: cs for sink, cs in pending.items() if sink not in unknown}
    elif unknown:
        return _stop(
            sealed,
            InDoubtError,
            f"Batch {decided.commit.batch} is decided but not complete on the sink{'s' * (len(unknown) > 1)} {', '.join(unknown)}, which this "
            "query no longer has. Start it once more with that sink under the same name; it can be removed after that.",
        )
    permit = CommitPermit(decided.generation, decided.index, decided.commit.batch)
    return sealed, (RecoverSinks(permit, pending, older_sweeps(run, decided.commit.committables)),)


def _recovered(run: Run, event: SinksRecovered) -> Outcome:
    decided = run.history.decided
    if decided is None or decided.done:
        return _judge(run)
    if not _complete_for_spark(run, decided.commit.batch):
        check_answered(decided.commit, event.answers)
        lost, unproven = missing(run, event.answers)
        if (lost or unproven) and event.sealed:
            return _fenced(run, AppendFenced())
        if unproven:
            return _stop(run, InDoubtError, messages.unproven(decided.commit.batch, unproven), unproven)
        run = replace(run, unplaced=identity.unplaced(event.answers))
        if lost:
            return _begin_redo(run, decided.commit, lost)
    return replace(run, phase=Phase.CLOSING_PAST), (AppendDone(run.generation, decided.commit.batch),)


def _begin_redo(run: Run, commit: Commit, lost: list[Lost]) -> Outcome:
    assert run.request is not None
    verdict = judge(run.request, run.history, run.spark_committed)
    if isinstance(verdict, Refusal):
        return _stop(run, verdict.error, verdict.message)
    if run.request.batch != commit.batch:
        if _choice(run, commit) is Way.GIVEN_UP:
            return _fence_given_up(run, commit, lost, f"Spark asks for batch {run.request.batch}")
        return _stop(run, TransactionLostError, messages.passed_on(commit.batch, run.request.batch, lost), lost)
    if _gives_up_unseen(run):
        return _fence_given_up(run, commit, lost, "given up without a look at a replay")
    state_first = run.request.stateful and not run.config.kept_first
    redo = redo_of(lost, commit, use_kept=run.config.durable, stateful=state_first)
    if redo is None:
        return _redo_unknown(run, commit, lost)
    return replace(run, phase=Phase.FENCING_LOST, redo=redo), (FenceLost(redo.lost),)


def _redo_unknown(run: Run, commit: Commit, lost: list[Lost]) -> Outcome:
    """An earlier release decided the batch, and didn't record which task's rows a transaction holds."""
    if run.config.in_doubt == "committed":
        # Nobody can write it again but the user, who has done so by these words.
        return replace(run, phase=Phase.CLOSING_PAST), (AppendDone(run.generation, commit.batch),)
    if _choice(run, commit) is Way.GIVEN_UP:
        return _fence_given_up(run, commit, lost, "an earlier release did not record which task's rows these are")
    return _stop(run, TransactionLostError, messages.lost_for_good(commit.batch, lost), lost)


def _fence_given_up(run: Run, commit: Commit, lost: list[Lost], reason: str) -> Outcome:
    redo = given_up_of(lost, commit, reason)
    return replace(run, phase=Phase.FENCING_LOST, redo=redo), (FenceLost(redo.lost),)


def _choice(run: Run, commit: Commit) -> Way | None:
    """Return what a person has chosen for rows of this batch that can't be written again as they were."""
    word, batch = run.config.lost_rows or (None, None)
    return CHOICES[word] if word is not None and batch == commit.batch else None


def _gives_up_unseen(run: Run) -> bool:
    decided = run.history.decided
    return decided is not None and run.config.lost_rows == (UNSEEN, decided.commit.batch)


def _lost_fenced(run: Run, event: LostFenced) -> Outcome:  # noqa: ARG001  every row of the table has the same signature
    redo, request = run.redo, run.request
    assert redo is not None
    assert request is not None
    if redo.way is Way.KEPT:
        return replace(run, phase=Phase.WRITING_KEPT), (
            WriteKept(request.batch, run.name_generation, run.incarnation, redo.lost, after=identity.predecessors(run)),
        )
    if redo.way is Way.WHOLE:
        return _write_again(run, redo)
    if redo.way is Way.GIVEN_UP:
        return _give_up(run, redo)
    return replace(run, phase=Phase.LOOKING), (TakeDigests(request.batch, run.name_generation, writes_next=True),)


def _write_again(run: Run, redo: Redo) -> Outcome:
    assert run.request is not None
    tasks = None if redo.plan is None else frozenset(redo.plan.tasks)
    after = identity.predecessors(run)
    return replace(run, phase=Phase.WRITING, redo=redo), (
        RunWrites(run.request.batch, run.name_generation, {}, run.incarnation, tasks, after=after),
    )


def _looked(run: Run, event: DigestsTaken) -> Outcome:
    redo, decided = run.redo, run.history.decided
    assert redo is not None
    assert decided is not None
    commit = decided.commit
    plan = matched(commit, redo, event.digests)
    if plan is not None:
        return _write_matched(run, commit, replace(redo, plan=plan), event)
    differs, choice = difference(commit, redo, event.digests), _choice(run, commit)
    if choice is Way.GIVEN_UP:
        return _give_up(run, replace(redo, way=choice, reason=differs))
    elsewhere = misplaced(commit, redo, event.digests)
    if elsewhere:
        return _stop(run, NondeterministicReplayError, messages.in_another_order(commit.batch, elsewhere))
    if choice is Way.ALL_AGAIN:
        plan = all_again(commit, redo, event.digests)
        return _write_again(run, replace(redo, way=choice, plan=plan, reason=differs))
    return _stop(run, NondeterministicReplayError, messages.not_replayed(commit, differs))


def _write_matched(run: Run, commit: Commit, redo: Redo, event: DigestsTaken) -> Outcome:
    # The lost rows are all there; others may differ, and a stateful query's state comes from this replay.
    assert run.request is not None
    differs = divergence(commit, event.digests) if run.request.stateful else None
    if differs is not None and run.config.on_divergence == "fail":
        return _stop(run, DivergenceError, differs)
    report = (ReportDivergence(commit.batch, differs),) if differs is not None else ()
    after, decisions = _write_again(run, redo)
    return after, (*report, *decisions)


def _look_failed(run: Run, event: WritesFailed) -> Outcome:
    decided = run.history.decided
    assert decided is not None
    return _stop(run, AttemptFailedError, messages.no_replay(decided.commit.batch, event.reason))


def _give_up(run: Run, redo: Redo) -> Outcome:
    decided = run.history.decided
    assert decided is not None
    commit = identity.placed(run, _recorded(run, decided.commit, redo, given_up(decided.commit, redo)), {})
    return replace(run, phase=Phase.DECIDING, redo=redo, prepared=commit), (AppendCommit(run.generation, commit),)


def _recorded(run: Run, before: Commit, redo: Redo, commit: Commit) -> Commit:
    """Put on record what a person has chosen, if it was that."""
    assert run.request is not None
    if redo.way.value not in CHOICES:
        return commit
    start = run.request.start if run.request.batch == before.batch else ()
    return replace(commit, losses=(*before.losses, record(before, redo, start)))


def _complete_for_spark(run: Run, batch: int) -> bool:
    """Spark's commit log has a batch only after foreachBatch returned, that is, after every sink was complete."""
    return run.spark_committed >= batch


def _past_closed(run: Run, event: DoneAppended) -> Outcome:  # noqa: ARG001
    return _judge(_mark_done(run))


def _mark_done(run: Run) -> Run:
    decided = run.history.decided
    assert decided is not None
    return replace(run, entries=run.entries + 1, history=History(replace(decided, done=True)))


def _judge(run: Run) -> Outcome:
    request = run.request
    assert request is not None
    verdict = judge(request, run.history, run.spark_committed)
    if isinstance(verdict, Refusal):
        return _stop(run, verdict.error, verdict.message)
    if verdict is Verdict.SKIP:
        return replace(run, phase=Phase.READY, request=None), (ReturnBatch(request.batch),)
    if verdict is Verdict.DIGEST:
        return replace(run, phase=Phase.DIGESTING), (TakeDigests(request.batch, run.name_generation),)
    after = identity.predecessors(run)
    return replace(run, phase=Phase.WRITING), (
        RunWrites(request.batch, run.name_generation, run.reusable, run.incarnation, after=after),
    )


def _digested(run: Run, event: DigestsTaken) -> Outcome:
    decided = run.history.decided
    assert decided is not None
    difference = divergence(decided.commit, event.digests)
    if difference is not None and run.config.on_divergence == "fail":
        return _stop(run, DivergenceError, difference)
    report = (ReportDivergence(decided.commit.batch, difference),) if difference is not None else ()
    return replace(run, phase=Phase.READY, request=None), (*report, ReturnBatch(decided.commit.batch))


def _replay_failed(run: Run, event: WritesFailed) -> Outcome:
    return _stop(run, AttemptFailedError, f"The replay of a decided batch failed; nothing was written by it: {event.reason}")


def _prepared(run: Run, event: WritesPrepared) -> Outcome:
    request, timeout_ms = run.request, run.config.transaction_timeout_ms
    assert request is not None
    sweep_own = SWEEPS_AFTER_LOSS if event.attempts_lost else run.sweep_own
    run = replace(run, sweep_own=sweep_own, incarnation=run.incarnation + event.attempts_lost)
    names = [(sink, c.get("name")) for sink, cs in event.committables.items() for c in cs]
    if not all(isinstance(name, str) for _, name in names) or len(names) != len(set(names)):
        named = {sink: tuple(c for c in cs if isinstance(c.get("name"), str)) for sink, cs in event.committables.items()}
        message = f"Batch {request.batch}: each committable must have a name of its own. Mend the sink's pre_commit."
        return _abort(run, named, AttemptFailedError, message)
    if timeout_ms is not None and names and event.elapsed_ms + run.config.decision_reserve_ms > timeout_ms:
        message = messages.too_slow(request.batch, event.elapsed_ms, timeout_ms, run.config.decision_reserve_ms)
        return _abort(run, event.committables, BatchTooSlowError, message)
    not_after_ms = None
    if timeout_ms is not None and names:
        not_after_ms = event.began_ms + timeout_ms - run.config.decision_reserve_ms
    refusal = identity.judge(identity.known(run), identity.confirmed(event.committables))
    if refusal is not None:
        return _abort(run, event.committables, refusal.error, refusal.message)
    if run.redo is not None:
        return _written_again(run, event, not_after_ms)
    before = run.history.decided
    losses = () if before is None else before.commit.losses
    commit = Commit(request.batch, request.offsets, event.committables, event.digests, losses, header=request.header)
    commit = identity.placed(run, commit, identity.confirmed(event.committables))
    return replace(run, phase=Phase.DECIDING, prepared=commit), (AppendCommit(run.generation, commit, not_after_ms),)


def _written_again(run: Run, event: WritesPrepared, not_after_ms: int | None) -> Outcome:
    redo, decided = run.redo, run.history.decided
    assert redo is not None
    assert decided is not None
    # Kept rows are what was decided, by their checksum; only a replay has to prove it.
    changed = changed_since(redo, event.digests)
    if changed is not None:
        message = messages.changed_since(decided.commit.batch, changed)
        return _abort(run, event.committables, NondeterministicReplayError, message)
    other = differing(decided.commit, event.digests) if redo.way is Way.WHOLE else None
    if other is not None and run.config.on_divergence == "fail":
        return _abort(run, event.committables, DivergenceError, messages.whole_differs(decided.commit.batch, other))
    report = (
        () if other is None else (ReportDivergence(decided.commit.batch, messages.whole_differs(decided.commit.batch, other)),)
    )
    mismatch = written_again(decided.commit, redo, event.committables, event.digests)
    if mismatch is not None:
        return _abort(run, event.committables, ProtocolViolationError, mismatch)
    commit = merged(decided.commit, redo, event.committables, event.digests)
    commit = identity.placed(run, _recorded(run, decided.commit, redo, commit), identity.confirmed(event.committables))
    return replace(run, phase=Phase.DECIDING, prepared=commit), (*report, AppendCommit(run.generation, commit, not_after_ms))


def _abort(
    run: Run, committables: Mapping[str, tuple[Committable, ...]], error: type[OnceForAllError], message: str
) -> Outcome:
    aborting = replace(run, phase=Phase.ABORTING, stopped=StopRun(error, message))
    return aborting, (AbortAttempt(committables, own_sweeps(run, incomplete(run))),)


def _write_failed(run: Run, event: WritesFailed) -> Outcome:
    assert run.request is not None
    return _abort(run, event.committables, AttemptFailedError, messages.failed(run.request.batch, event.reason))


def _aborted(run: Run, event: AttemptAborted) -> Outcome:  # noqa: ARG001
    assert run.stopped is not None
    return replace(run, phase=Phase.STOPPED), (run.stopped,)


def _decided(run: Run, event: DecisionAppended) -> Outcome:
    commit = run.prepared
    assert commit is not None
    history = History(Decided(commit, run.generation, event.index, done=False))
    permit = CommitPermit(run.generation, event.index, commit.batch)
    committing = replace(
        run, phase=Phase.COMMITTING, history=history, prepared=None, entries=run.entries + 1, unplaced=frozenset()
    )
    return committing, (CommitSinks(permit, {sink: cs for sink, cs in commit.committables.items() if cs}),)


def _committed(run: Run, event: SinksCommitted) -> Outcome:
    decided = run.history.decided
    assert decided is not None
    commit = decided.commit
    check_answered(commit, event.answers)
    lost, unproven = missing(run, event.answers)
    if (lost or unproven) and event.sealed:
        # A successor completed the batch and then fenced our ids; what looks lost to us is not.
        return _fenced(run, AppendFenced())
    if unproven:
        return _stop(run, InDoubtError, messages.unproven(commit.batch, unproven), unproven)
    if lost:
        return _stop(run, TransactionLostError, messages.lost(commit.batch, lost), lost)
    if run.redo is not None:
        return _redone(run, commit.batch)
    reusable = {sink: reusable_handles(run, sink, event.answers.get(sink)) for sink in run.config.sinks}
    retired = {sink: answers.retired for sink, answers in event.answers.items() if answers.retired}
    sweep = (SweepOwn(own_sweeps(run, commit.committables)),) if run.sweep_own else ()
    closing = replace(
        run, phase=Phase.CLOSING, request=None, reusable=reusable, retired=retired, sweep_own=max(0, run.sweep_own - 1)
    )
    return closing, (*sweep, ReturnBatch(commit.batch), AppendDone(run.generation, commit.batch))


def _redone(run: Run, batch: int) -> Outcome:
    # No producer goes on from here: some of these handles are of older generations. They are not fenced either, which the
    # sweeps of older generations would do at any time.
    assert run.redo is not None
    done = AppendDone(run.generation, batch)
    if run.redo.way in {Way.KEPT, Way.GIVEN_UP}:
        # The user's function has not run yet, or wrote nothing: a stateful query still needs it.
        return replace(run, phase=Phase.CLOSING_PAST, redo=None), (done,)
    return replace(run, phase=Phase.CLOSING, request=None, redo=None), (ReturnBatch(batch), done)


def _closed(run: Run, event: DoneAppended) -> Outcome:  # noqa: ARG001
    closed = replace(_mark_done(run), phase=Phase.READY, retired={})
    return closed, ((RetireHandles(run.retired),) if run.retired else ())


def _fenced(run: Run, event: AppendFenced) -> Outcome:  # noqa: ARG001
    return _stop(run, FencedError, messages.fenced(run.generation))


def _undecided_and_fenced(run: Run, event: AppendFenced) -> Outcome:
    # The seal stands where COMMIT would: nobody decided this attempt, nor ever will. Its successor may have made its last sweep
    # before this run woke and prepared, so readers would wait for the timeout.
    _, (stop,) = _fenced(run, event)
    assert isinstance(stop, StopRun)
    return _abort(run, _of_this_attempt(run), stop.error, stop.message)


def _of_this_attempt(run: Run) -> dict[str, tuple[Committable, ...]]:
    """Return what was prepared for the decision that did not come about; a redo's names also what an earlier one decided."""
    assert run.prepared is not None
    decided = {(sink, name_of(c)) for sink, cs in incomplete(run).items() for c in cs}
    prepared = run.prepared.committables.items()
    return {sink: tuple(c for c in cs if (sink, name_of(c)) not in decided) for sink, cs in prepared}


def _too_late(run: Run, event: AppendTooLate) -> Outcome:  # noqa: ARG001
    # COMMIT was not created, nor ever will be: the batch is as undecided as it was.
    assert run.prepared is not None
    return _abort(run, _of_this_attempt(run), BatchTooSlowError, messages.held_up(run.prepared.batch))


def _unknown(run: Run, event: AppendUnknown) -> Outcome:
    return _stop(run, OutcomeUnknownError, messages.unknown(event.reason))


def _stop_waiting(run: Run, event: StopRequested) -> Outcome:
    decided = run.history.decided
    return _stop(run, InDoubtError, messages.waiting(decided.commit.batch if decided else None, event.waiting_for))


def _still_stopped(run: Run, event: BatchRequested) -> Outcome:  # noqa: ARG001
    assert run.stopped is not None
    return run, (run.stopped,)


# --- the table -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transition:
    """One row: what an event does in a phase, and the phases that it may lead to (documentation is drawn from it)."""

    apply: Callable[[Run, Any], Outcome]
    to: tuple[Phase, ...]


P = Phase
_JUDGED = (P.READY, P.WRITING, P.DIGESTING, P.STOPPED)

TRANSITIONS: Mapping[Phase, Mapping[type[Any], Transition]] = {
    P.NEW: {BatchRequested: Transition(_request, (P.INSPECTING,))},
    P.INSPECTING: {LogInspected: Transition(_inspected, (P.CLAIMING, P.STOPPED))},
    P.CLAIMING: {GenerationClaimed: Transition(_claimed, (P.SEALING, P.STOPPED))},
    P.SEALING: {PastSealed: Transition(_sealed, (P.RECOVERING, P.STOPPED))},
    P.RECOVERING: {
        SinksRecovered: Transition(_recovered, (P.CLOSING_PAST, P.FENCING_LOST, *_JUDGED)),
        StopRequested: Transition(_stop_waiting, (P.STOPPED,)),
    },
    P.FENCING_LOST: {
        LostFenced: Transition(_lost_fenced, (P.LOOKING, P.WRITING, P.WRITING_KEPT, P.DECIDING)),
        StopRequested: Transition(_stop_waiting, (P.STOPPED,)),
    },
    P.LOOKING: {
        DigestsTaken: Transition(_looked, (P.WRITING, P.DECIDING, P.STOPPED)),
        WritesFailed: Transition(_look_failed, (P.STOPPED,)),
    },
    P.WRITING_KEPT: {
        WritesPrepared: Transition(_prepared, (P.DECIDING, P.ABORTING)),
        WritesFailed: Transition(_write_failed, (P.ABORTING,)),
    },
    P.CLOSING_PAST: {
        DoneAppended: Transition(_past_closed, _JUDGED),
        AppendFenced: Transition(_fenced, (P.STOPPED,)),
        AppendUnknown: Transition(_unknown, (P.STOPPED,)),
    },
    P.READY: {BatchRequested: Transition(_request, (P.INSPECTING, *_JUDGED))},
    P.WRITING: {
        WritesPrepared: Transition(_prepared, (P.DECIDING, P.ABORTING)),
        WritesFailed: Transition(_write_failed, (P.ABORTING,)),
    },
    P.DIGESTING: {
        DigestsTaken: Transition(_digested, (P.READY, P.STOPPED)),
        WritesFailed: Transition(_replay_failed, (P.STOPPED,)),
    },
    P.ABORTING: {AttemptAborted: Transition(_aborted, (P.STOPPED,))},
    P.DECIDING: {
        DecisionAppended: Transition(_decided, (P.COMMITTING,)),
        AppendFenced: Transition(_undecided_and_fenced, (P.ABORTING,)),
        AppendTooLate: Transition(_too_late, (P.ABORTING,)),
        AppendUnknown: Transition(_unknown, (P.STOPPED,)),
    },
    P.COMMITTING: {
        SinksCommitted: Transition(_committed, (P.CLOSING, P.CLOSING_PAST, P.STOPPED)),
        StopRequested: Transition(_stop_waiting, (P.STOPPED,)),
    },
    P.CLOSING: {
        DoneAppended: Transition(_closed, (P.READY,)),
        AppendFenced: Transition(_fenced, (P.STOPPED,)),
        AppendUnknown: Transition(_unknown, (P.STOPPED,)),
    },
    P.STOPPED: {BatchRequested: Transition(_still_stopped, (P.STOPPED,))},
}
