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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from onceforall.errors import (
    AttemptFailedError,
    BatchTooSlowError,
    DivergenceError,
    FencedError,
    InDoubtError,
    OnceForAllError,
    OutcomeUnknownError,
    ProtocolViolationError,
    TransactionLostError,
)
from onceforall.protocol.decisions import (
    AbortAttempt,
    AppendCommit,
    AppendDone,
    ClaimGeneration,
    CommitPermit,
    CommitSinks,
    Decision,
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
)
from onceforall.protocol.entries import Claim, Commit, Committable
from onceforall.protocol.events import (
    AppendFenced,
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
    PastSealed,
    SinkAnswers,
    SinksCommitted,
    SinksRecovered,
    StopRequested,
    WritesFailed,
    WritesPrepared,
)
from onceforall.protocol.history import Decided, History
from onceforall.protocol.judgement import Refusal, Verdict, divergence, judge, judge_claim
from onceforall.protocol.state import Phase, Run, RunConfig
from onceforall.protocol.sweeping import Sweep

__all__ = ["TRANSITIONS", "CommitPermit", "Phase", "Run", "RunConfig", "step"]

SWEEPS_AFTER_LOSS = 3
"""For so many batches after a lost task attempt one's own leftovers are swept: its task may go on for a while."""

REUSE_WITHIN_BATCHES = 10
"""A completed handle that no batch used for so long is forgotten, so that their number stays bounded when workers come and go."""


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


def _stop(run: Run, error: type[OnceForAllError], message: str) -> Outcome:
    stop = StopRun(error, message)
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
    claim = Claim(config.query_id, config.run_id, config.checkpoint, config.owner)
    return replace(run, phase=Phase.CLAIMING), (ClaimGeneration(claim),)


def _claimed(run: Run, event: GenerationClaimed) -> Outcome:
    claimed = replace(run, phase=Phase.SEALING, generation=event.generation, entries=1, reusable={}, retired={})
    refusal = judge_claim(run.config, event.previous)
    if refusal is not None:
        return _stop(claimed, refusal.error, refusal.message)
    return claimed, (SealPast(event.generation),)


def _sealed(run: Run, event: PastSealed) -> Outcome:
    sealed = replace(run, phase=Phase.RECOVERING, history=event.history, spark_committed=event.spark_committed)
    decided = event.history.decided
    if decided is None or decided.done:
        return sealed, (RecoverSinks(None, {}, _older_sweeps(run, {})),)
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
    return sealed, (RecoverSinks(permit, pending, _older_sweeps(run, pending)),)


def _recovered(run: Run, event: SinksRecovered) -> Outcome:
    decided = run.history.decided
    if decided is None or decided.done:
        return _judge(run)
    lost = [lost for answers in event.answers.values() for lost in answers.lost]
    if not _complete_for_spark(run, decided.commit.batch):
        _check_answered(decided.commit, event.answers)
        if lost and event.sealed:
            return _fenced(run, AppendFenced())
        if lost:
            return _lost(run, decided.commit.batch, lost)
    return replace(run, phase=Phase.CLOSING_PAST), (AppendDone(run.generation, decided.commit.batch),)


def _complete_for_spark(run: Run, batch: int) -> bool:
    """Spark's commit log has a batch only after foreachBatch returned, that is, after every sink was complete."""
    return run.spark_committed >= batch


def _check_answered(commit: Commit, answers: Mapping[str, SinkAnswers]) -> None:
    """A transaction that no answer names must not pass for complete: DONE would hide it for ever."""
    for sink, committables in commit.committables.items():
        answer = answers.get(sink, SinkAnswers())
        named = [str(c.get("name")) for c in (*answer.completed, *answer.retired, *(lost.committable for lost in answer.lost))]
        if sorted(named) != sorted(_name(c) for c in committables):
            raise ProtocolViolationError(
                f"Sink {sink} was asked to commit {len(committables)} transactions of batch {commit.batch} and answered for {len(named)} "
                "others or not all of them. Its commit() must report each committable once. Nothing is lost; the next start asks again."
            )


def _past_closed(run: Run, event: DoneAppended) -> Outcome:  # noqa: ARG001  every row of the table has the same signature
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
        return replace(run, phase=Phase.DIGESTING), (TakeDigests(request.batch, run.generation),)
    return replace(run, phase=Phase.WRITING), (RunWrites(request.batch, run.generation, run.reusable, run.incarnation),)


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


def _sweeps(run: Run, spared: Mapping[str, tuple[Committable, ...]], *, own: bool) -> dict[str, Sweep]:
    config = run.config
    return {
        sink: Sweep(config.query_id, sink, run.generation, own, frozenset(_name(c) for c in spared.get(sink, ())))
        for sink in config.sinks
    }


def _older_sweeps(run: Run, spared: Mapping[str, tuple[Committable, ...]]) -> dict[str, Sweep]:
    return _sweeps(run, spared, own=False)


def _own_sweeps(run: Run, spared: Mapping[str, tuple[Committable, ...]]) -> dict[str, Sweep]:
    return _sweeps(run, spared, own=True)


def _name(committable: Committable) -> str:
    return str(committable["name"])


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
        return _abort(
            run,
            event.committables,
            BatchTooSlowError,
            f"Batch {request.batch} took {event.elapsed_ms / 1000:.1f} s, and its transactions time out after {timeout_ms / 1000:.1f} s, of which "
            f"{run.config.decision_reserve_ms / 1000:.1f} s must be left for the commit. Raise transaction.timeout.ms (and the broker's "
            "transaction.max.timeout.ms) for this batch, whose offsets are planned; smaller batches (maxOffsetsPerTrigger) help later ones.",
        )
    commit = Commit(request.batch, request.offsets, event.committables, event.digests)
    return replace(run, phase=Phase.DECIDING, prepared=commit), (AppendCommit(run.generation, commit),)


def _abort(
    run: Run, committables: Mapping[str, tuple[Committable, ...]], error: type[OnceForAllError], message: str
) -> Outcome:
    aborting = replace(run, phase=Phase.ABORTING, stopped=StopRun(error, message))
    return aborting, (AbortAttempt(committables, _own_sweeps(run, {})),)


def _write_failed(run: Run, event: WritesFailed) -> Outcome:
    return _abort(run, event.committables, AttemptFailedError, event.reason)


def _aborted(run: Run, event: AttemptAborted) -> Outcome:  # noqa: ARG001
    assert run.stopped is not None
    return replace(run, phase=Phase.STOPPED), (run.stopped,)


def _decided(run: Run, event: DecisionAppended) -> Outcome:
    commit = run.prepared
    assert commit is not None
    history = History(Decided(commit, run.generation, event.index, done=False))
    permit = CommitPermit(run.generation, event.index, commit.batch)
    committing = replace(run, phase=Phase.COMMITTING, history=history, prepared=None, entries=run.entries + 1)
    return committing, (CommitSinks(permit, {sink: cs for sink, cs in commit.committables.items() if cs}),)


def _committed(run: Run, event: SinksCommitted) -> Outcome:
    decided = run.history.decided
    assert decided is not None
    commit = decided.commit
    _check_answered(commit, event.answers)
    lost = [lost for answers in event.answers.values() for lost in answers.lost]
    if lost and event.sealed:
        # A successor completed the batch and then fenced our ids; what looks lost to us is not.
        return _fenced(run, AppendFenced())
    if lost:
        return _lost(run, commit.batch, lost)
    reusable = {sink: _reusable(run, sink, event.answers.get(sink)) for sink in run.config.sinks}
    retired = {sink: answers.retired for sink, answers in event.answers.items() if answers.retired}
    sweep = (SweepOwn(_own_sweeps(run, commit.committables)),) if run.sweep_own else ()
    closing = replace(
        run, phase=Phase.CLOSING, request=None, reusable=reusable, retired=retired, sweep_own=max(0, run.sweep_own - 1)
    )
    return closing, (*sweep, ReturnBatch(commit.batch), AppendDone(run.generation, commit.batch))


def _reusable(run: Run, sink: str, answers: SinkAnswers | None) -> tuple[Committable, ...]:
    decided = run.history.decided
    assert decided is not None
    batch = decided.commit.batch
    used = {_name(c) for c in decided.commit.committables.get(sink, ())}
    idle = tuple(c for c in run.reusable.get(sink, ()) if _name(c) not in used and c["batch"] > batch - REUSE_WITHIN_BATCHES)
    return idle + tuple({**c, "batch": batch} for c in (answers.completed if answers else ()))


def _closed(run: Run, event: DoneAppended) -> Outcome:  # noqa: ARG001
    closed = replace(_mark_done(run), phase=Phase.READY, retired={})
    return closed, ((RetireHandles(run.retired),) if run.retired else ())


def _lost(run: Run, batch: int, lost: list[Lost]) -> Outcome:
    first = lost[0]
    return _stop(
        run,
        TransactionLostError,
        f"Batch {batch} is decided, but {len(lost)} of its prepared transactions can't be committed any more; the first is "
        f"{_name(first.committable)} of sink {first.sink}: {first.reason}. Its rows may be missing there, and the query stays stopped "
        "rather than pass over them: nothing later is written. Find out what became of the transaction (kafka-transactions.sh "
        "describe), then restore the rows of this batch by hand before the query goes on.",
    )


def _fenced(run: Run, event: AppendFenced) -> Outcome:  # noqa: ARG001
    return _stop(
        run,
        FencedError,
        f"A newer run of this query has taken over (generation {run.generation} is sealed). This run stops; it has aborted "
        "nothing that was decided. Do not restart it while the other one runs.",
    )


def _undecided_and_fenced(run: Run, event: AppendFenced) -> Outcome:
    # The seal stands where COMMIT would: nobody decided this attempt, nor ever will. Its successor may have made its last sweep
    # before this run woke and prepared, so readers would wait for the timeout.
    _, (stop,) = _fenced(run, event)
    assert isinstance(stop, StopRun)
    assert run.prepared is not None
    return _abort(run, run.prepared.committables, stop.error, stop.message)


def _unknown(run: Run, event: AppendUnknown) -> Outcome:
    return _stop(
        run,
        OutcomeUnknownError,
        f"An append to the commit log got no answer ({event.reason}). The batch may be decided, so nothing was aborted. Mend the "
        "storage and restart the query: it finds out, and completes the batch or replays it.",
    )


def _stop_waiting(run: Run, event: StopRequested) -> Outcome:
    decided = run.history.decided
    batch = decided.commit.batch if decided is not None else None
    return _stop(
        run,
        InDoubtError,
        f"The query was stopped while batch {batch}, which is decided, still waited for {', '.join(event.waiting_for)}. Nothing is lost: "
        "the next start completes it. Until then its rows may be missing there.",
    )


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
        SinksRecovered: Transition(_recovered, (P.CLOSING_PAST, *_JUDGED)),
        StopRequested: Transition(_stop_waiting, (P.STOPPED,)),
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
        AppendUnknown: Transition(_unknown, (P.STOPPED,)),
    },
    P.COMMITTING: {
        SinksCommitted: Transition(_committed, (P.CLOSING, P.STOPPED)),
        StopRequested: Transition(_stop_waiting, (P.STOPPED,)),
    },
    P.CLOSING: {
        DoneAppended: Transition(_closed, (P.READY,)),
        AppendFenced: Transition(_fenced, (P.STOPPED,)),
        AppendUnknown: Transition(_unknown, (P.STOPPED,)),
    },
    P.STOPPED: {BatchRequested: Transition(_still_stopped, (P.STOPPED,))},
}
