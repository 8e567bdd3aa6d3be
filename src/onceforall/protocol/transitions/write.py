"""From a request to what is prepared: a batch is written, skipped because it is complete, or run
again for its state alone.
"""

from __future__ import annotations

from dataclasses import replace

from onceforall.errors import (
    AttemptFailedError,
    BatchTooSlowError,
    DivergenceError,
    FencedError,
)
from onceforall.protocol import identity, messages
from onceforall.protocol.decisions import (
    AppendCommit,
    ReportDivergence,
    ReturnBatch,
    RunWrites,
    TakeDigests,
)
from onceforall.protocol.entries import Commit
from onceforall.protocol.events import (
    AttemptAborted,
    BatchRequested,
    DigestsTaken,
    WritesFailed,
    WritesPrepared,
)
from onceforall.protocol.judgement import Refusal, Verdict, divergence, judge
from onceforall.protocol.phases import (
    Aborting,
    Deciding,
    Digesting,
    Ready,
    Stopped,
    Writing,
)
from onceforall.protocol.state import Run
from onceforall.protocol.transitions.outcomes import Outcome, abort, stop, stop_in_own_words

SWEEPS_AFTER_LOSS = 3
"""For so many batches after a lost task attempt one's own leftovers are swept: its task may go
on for a while."""


def judge_request(run: Run, request: BatchRequested) -> Outcome:
    """Write the batch, skip it, digest it, or refuse it, by what is decided."""
    decided = run.history.decided
    verdict = judge(request, run.history, run.spark_committed, spark_unplanned=run.spark_unplanned)
    if isinstance(verdict, Refusal):
        return stop(run, verdict.error, verdict.message)
    if decided is None or verdict is Verdict.WRITE:
        after = identity.predecessors(run, request.batch)
        return replace(run, phase=Writing(request)), (
            RunWrites(
                request.batch,
                run.name_generation,
                run.reusable,
                run.incarnation,
                after=after,
                places=identity.places(run, after),
            ),
        )
    if verdict is Verdict.SKIP:
        return replace(run, phase=Ready()), (ReturnBatch(request.batch),)
    return replace(run, phase=Digesting(request, decided)), (
        TakeDigests(request.batch, run.name_generation),
    )


def digested(run: Run, at: Digesting, event: DigestsTaken) -> Outcome:
    """Return a batch that ran again for its state; say so when it gave other rows."""
    commit = at.decided.commit
    fails = run.config.on_divergence == "fail"
    differs = divergence(commit, event.digests, fails=fails)
    if differs is not None and fails:
        return stop(run, DivergenceError, differs)
    report = (ReportDivergence(commit.batch, differs),) if differs is not None else ()
    return replace(run, phase=Ready()), (*report, ReturnBatch(commit.batch))


def replay_failed(run: Run, at: Digesting, event: WritesFailed) -> Outcome:  # noqa: ARG001  every row has the same signature
    """Nothing was written by the replay."""
    return stop_in_own_words(
        run,
        AttemptFailedError,
        f"The replay of a decided batch failed; nothing was written by it: {event.reason}",
    )


def check_prepared(
    run: Run, request: BatchRequested, event: WritesPrepared, *, again: bool = False
) -> tuple[Run, int | None, Outcome | None]:
    """Check what every decision needs: a name for each transaction, enough time left, and the
    target that it is known to be.

    Returns:
        The run with what the attempt has taught it, until when COMMIT may be created (milliseconds
        of the clock of ``event.began_ms``; None: at any time), and the abort when a check failed.
    """
    timeout_ms = run.config.transaction_timeout_ms
    sweep_own = SWEEPS_AFTER_LOSS if event.attempts_lost else run.sweep_own
    run = replace(run, sweep_own=sweep_own, incarnation=run.incarnation + event.attempts_lost)
    names = [(sink, c.get("name")) for sink, cs in event.committables.items() for c in cs]
    if not all(isinstance(name, str) for _, name in names) or len(names) != len(set(names)):
        named = {
            sink: tuple(c for c in cs if isinstance(c.get("name"), str))
            for sink, cs in event.committables.items()
        }
        message = (
            f"Batch {request.batch}: each committable must have a name of its own. Mend the "
            "sink's pre_commit."
        )
        return run, None, abort(run, named, AttemptFailedError, message)
    not_after_ms = None
    if timeout_ms is not None and names:
        reserve_ms = run.config.decision_reserve_ms
        if event.elapsed_ms + reserve_ms > timeout_ms:
            message = messages.too_slow(
                request.batch, event.elapsed_ms, timeout_ms, reserve_ms, run.said(in_doubt=again)
            )
            return run, None, abort(run, event.committables, BatchTooSlowError, message)
        not_after_ms = event.began_ms + timeout_ms - reserve_ms
    refusal = identity.judge(
        identity.known(run),
        identity.confirmed(event.committables),
        adopting=run.config.adopt_targets,
    )
    if refusal is not None:
        return run, None, abort(run, event.committables, refusal.error, refusal.message)
    return run, not_after_ms, None


def prepared(run: Run, at: Writing, event: WritesPrepared) -> Outcome:
    """Decide the batch."""
    run, not_after_ms, refusal = check_prepared(run, at.request, event)
    if refusal is not None:
        return refusal
    request, before = at.request, run.history.decided
    losses = () if before is None else before.commit.losses
    commit = Commit(
        request.batch,
        request.offsets,
        event.committables,
        event.digests,
        losses,
        header=request.header,
    )
    commit = identity.placed(run, commit, identity.confirmed(event.committables))
    return replace(run, phase=Deciding(request, commit, None)), (
        AppendCommit(run.generation, commit, not_after_ms),
    )


def write_failed(run: Run, at: Writing, event: WritesFailed) -> Outcome:
    """Abort what the attempt has prepared."""
    message = messages.failed(at.request.batch, event.reason, run.config.need_no_commit)
    return abort(run, event.committables, AttemptFailedError, message)


def aborted(run: Run, at: Aborting, event: AttemptAborted) -> Outcome:
    """Stop, with what the attempt failed for, or by whom: a newer run sweeps what this one has
    written, and a task that misses it can't tell that from a loss.
    """
    if event.sealed and at.stop.error is AttemptFailedError:
        return stop(
            run, FencedError, messages.fenced_while_writing(run.generation, at.stop.message)
        )
    return replace(run, phase=Stopped(at.stop)), (at.stop,)
