"""From Spark's request to a sealed past: a run claims the next generation before it looks at
what the ones before decided.
"""

from __future__ import annotations

from dataclasses import replace

from onceforall.errors import FormerSinkError
from onceforall.protocol import identity
from onceforall.protocol.decisions import (
    ClaimGeneration,
    CommitSinks,
    InspectLog,
    RecoverSinks,
    SealPast,
    SweepOwn,
)
from onceforall.protocol.due_sweeps import older_sweeps, own_sweeps
from onceforall.protocol.entries import Claim
from onceforall.protocol.events import BatchRequested, GenerationClaimed, LogInspected, PastSealed
from onceforall.protocol.judgement import judge_claim, judge_passed_over
from onceforall.protocol.phases import Claiming, Inspecting, New, Ready, Recovering, Sealing
from onceforall.protocol.state import Run
from onceforall.protocol.transitions.outcomes import Outcome, replaced, stop
from onceforall.protocol.transitions.write import judge_request


def requested(run: Run, at: New | Ready, event: BatchRequested) -> Outcome:
    """Go on in our chain; a new run, and one whose chain is long, begins the next one first."""
    if isinstance(at, Ready) and run.entries < run.config.roll_after_entries:
        return judge_request(run, event)
    return replace(run, phase=Inspecting(event)), (InspectLog(run.generation),)


def inspected(run: Run, at: Inspecting, event: LogInspected) -> Outcome:
    """Refuse a foreign log, or claim the next generation."""
    # A refused run must not leave a claim: the next start would take it for the log's owner. And a
    # replaced run that rolls must not claim above its successor, which that would stop.
    if event.own_sealed:
        return replaced(run)
    refusal = judge_claim(run.config, event.newest)
    if refusal is not None:
        return stop(run, refusal.error, refusal.message)
    config = run.config
    claim = Claim(
        config.query_id,
        config.run_id,
        config.checkpoint,
        config.owner,
        config.host,
        config.boot_id,
        dict(config.storage),
        dict(config.kinds),
    )
    return replace(run, phase=Claiming(at.request)), (ClaimGeneration(claim),)


def claimed(run: Run, at: Claiming, event: GenerationClaimed) -> Outcome:
    """Seal all below."""
    sealing = Sealing(at.request, keeps_names=_is_next(run, event.generation))
    claimed = replace(run, phase=sealing, generation=event.generation, entries=1)
    refusal = judge_claim(run.config, event.previous)
    if refusal is not None:
        return stop(claimed, refusal.error, refusal.message)
    return claimed, (SealPast(event.generation),)


def _is_next(run: Run, generation: int) -> bool:
    """Tell whether the run rolls, and nobody has claimed since: no other run can have swept our
    names, or fenced our producers.

    Where another run has claimed a generation in between, it may have taken what bears our names
    for a dead run's; so they are given up, as at a start.
    """
    return run.generation >= 0 and generation == run.generation + 1


def sealed(run: Run, at: Sealing, event: PastSealed) -> Outcome:
    """Have the sinks complete what the past decided, and abort what it left."""
    run = replace(
        run,
        phase=Recovering(at.request),
        history=event.history,
        spark_committed=event.spark_committed,
        spark_unplanned=event.spark_unplanned,
    )
    if not at.keeps_names:
        # Not before: until the chains in between are sealed, their runs may decide what a sweep of
        # generations older than ours would abort.
        run = replace(run, name_generation=run.generation, reusable={})
    decided = event.history.decided
    asked = at.request
    if event.sealed:
        return replaced(run)
    passed = judge_passed_over(decided, asked.batch - 1, asked.before)
    if passed is not None and event.spark_committed == asked.batch - 1:
        return stop(run, passed.error, passed.message)
    refusal = identity.judge_kinds(decided, run.config.kinds, event.spark_committed)
    refusal = refusal or identity.judge(
        identity.known(run),
        run.config.identities,
        adopting=run.config.adopt_targets,
        is_complete=decided is None or decided.is_complete(event.spark_committed),
    )
    if refusal is not None:
        return stop(run, refusal.error, refusal.message)
    if decided is None or decided.done:
        # A task attempt that was lost long ago may have opened a transaction after the last sweep
        # of our own names; under names that stay ours for the whole run no later sweep of older
        # ones finds it.
        rolled = run.name_generation < run.generation
        late = (SweepOwn(own_sweeps(run, run.reusable)),) if rolled and run.incarnation else ()
        return run, (*late, RecoverSinks(None, older_sweeps(run, {})))
    pending = {sink: cs for sink, cs in decided.commit.committables.items() if cs}
    unknown = sorted(set(pending) - set(run.config.sinks))
    if run.is_complete_for_spark(decided.commit.batch):
        gone = {*unknown, *identity.of_another_kind(decided.commit, run.config.kinds)}
        pending = {sink: cs for sink, cs in pending.items() if sink not in gone}
    elif unknown:
        return stop(
            run,
            FormerSinkError,
            f"Batch {decided.commit.batch} is decided but not complete on the "
            f"sink{'s' * (len(unknown) > 1)} {', '.join(unknown)}, which this "
            "query no longer has. Start it once more with that sink under the same name; it can "
            "be removed after that. If its target is gone for ever, let it lead to another one; "
            "that start says what can be done.",
        )
    commit = CommitSinks(decided.permit, pending)
    return run, (RecoverSinks(commit, older_sweeps(run, decided.commit.committables)),)
