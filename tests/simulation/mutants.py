"""The production code with one guard broken: each of these must be found by the explorer."""

from __future__ import annotations

import re
from dataclasses import replace

from onceforall.commit_log import CommitLog
from onceforall.commit_log.chains import entry_key
from onceforall.commit_log.log import Claimed
from onceforall.driver.coordinator import Coordinator
from onceforall.protocol import decisions as do
from onceforall.protocol import due_sweeps, redo
from onceforall.protocol import events as saw
from onceforall.protocol import phases as P
from onceforall.protocol.entries import Seal
from onceforall.protocol.history import EMPTY, CommitPermit, History, fold
from onceforall.protocol.machine import TRANSITIONS, Transition
from onceforall.protocol.sweeping import Sweep
from onceforall.protocol.transitions import decide, outcomes, recover, start, write
from onceforall.protocol.transitions import redo as redo_rows
from simulator.kafka import SimulatedKafkaSink
from simulator.staged import Database, Files, StagedSystem
from simulator.systems import QUERY

NO_PROGRAM = re.compile(r"came to (Type|Name|Attribute|Import)Error\b")
"""What a violation says whose cause is a guard that no longer fits the code that it stands for."""


def _row(patch, phase, event, apply, *to):
    patch.setitem(
        TRANSITIONS[phase], event, Transition(apply, (*TRANSITIONS[phase][event].to, *to))
    )


def recovery_completes_what_is_done(patch):
    def sealed(run, at, event):
        decided = event.history.decided
        undone = event.history if decided is None else History(replace(decided, done=False))
        return start.sealed(run, at, replace(event, history=undone))

    _row(patch, P.Sealing, saw.PastSealed, sealed)


def the_past_is_read_but_not_sealed(patch):
    def seal_below(log, generation):
        history = EMPTY
        for chain in range(generation):
            history = fold(history, chain, log.entries(chain))
        return history

    patch.setattr(CommitLog, "seal_below", seal_below)


def commit_before_the_decision_is_durable(patch):
    def append_commit(coordinator, decision):
        permit = CommitPermit(decision.generation, coordinator.run.entries, decision.commit.batch)
        coordinator._commit(do.CommitSinks(permit, decision.commit.committables))
        return Coordinator._append_commit(coordinator, decision)

    patch.setattr(
        Coordinator,
        "_executors",
        {**Coordinator._executors, do.AppendCommit: (append_commit, "append_commit")},
    )


def a_sweep_takes_newer_generations(patch):
    patch.setattr(
        Sweep, "covers", lambda sweep, query, sink, generation, name: name not in sweep.spared
    )


def a_sink_spares_only_its_own(patch):
    def sweeps(run, spared, *, own):
        names = {
            sink: frozenset(c["name"] for c in spared.get(sink, ())) for sink in run.config.sinks
        }
        return {
            sink: Sweep(QUERY, sink, run.name_generation, own, names[sink])
            for sink in run.config.sinks
        }

    patch.setattr(due_sweeps, "_sweeps", sweeps)


def own_leftovers_are_swept_at_the_decision(patch):
    def decided(run, at, event):
        after, decisions = decide.decided(run, at, event)
        return after, (do.SweepOwn(due_sweeps.own_sweeps(run, {})), *decisions)

    _row(patch, P.Deciding, saw.DecisionAppended, decided)


def an_append_without_an_answer_aborts(patch):
    def unknown(run, at, event):
        return outcomes.abort(
            run, at.commit.committables, *_stop_of(outcomes.unknown(run, at, event))
        )

    _row(patch, P.Deciding, saw.AppendUnknown, unknown, P.Aborting)


def _stop_of(outcome):
    return outcome[1][0].error, outcome[1][0].message


def handles_in_doubt_are_used_again(patch):
    def committed(run, at, event):
        answers = {
            s: replace(a, completed=a.completed + a.retired, retired=())
            for s, a in event.answers.items()
        }
        return decide.committed(run, at, replace(event, answers=answers))

    _row(patch, P.Committing, saw.SinksCommitted, committed)


def handles_are_fenced_before_done(patch):
    def committed(run, at, event):
        after, decisions = decide.committed(run, at, event)
        return after, (
            do.RetireHandles({s: a.retired + a.completed for s, a in event.answers.items()}),
            *decisions,
        )

    _row(patch, P.Committing, saw.SinksCommitted, committed)


def a_loss_is_passed_over_at_commit(patch):
    def committed(run, at, event):
        return decide.committed(
            run,
            at,
            replace(event, answers={s: replace(a, lost=()) for s, a in event.answers.items()}),
        )

    _row(patch, P.Committing, saw.SinksCommitted, committed)


def a_loss_is_passed_over_in_recovery(patch):
    def recovered(run, at, event):
        return recover.recovered(
            run,
            at,
            replace(event, answers={s: replace(a, lost=()) for s, a in event.answers.items()}),
        )

    _row(patch, P.Recovering, saw.SinksRecovered, recovered)


def a_batch_is_written_without_waiting_for_done(patch):
    def committed(run, at, event):
        after, decisions = decide.committed(run, at, event)
        ready = replace(outcomes.marked_done(after, at.decided), phase=P.Ready())
        return ready, tuple(d for d in decisions if not isinstance(d, do.AppendDone))

    _row(patch, P.Committing, saw.SinksCommitted, committed, P.Ready)


def a_decided_batch_is_written_again(patch):
    patch.setattr(write, "judge", lambda *_, **__: write.Verdict.WRITE)


def a_fenced_append_counts_as_done(patch):
    def append_commit(coordinator, decision):
        event = Coordinator._append_commit(coordinator, decision)
        return (
            saw.DecisionAppended(coordinator.run.entries)
            if isinstance(event, saw.AppendFenced)
            else event
        )

    patch.setattr(
        Coordinator,
        "_executors",
        {**Coordinator._executors, do.AppendCommit: (append_commit, "append_commit")},
    )


def names_are_counted_anew_in_each_batch(patch):
    check = write.check_prepared

    def check_prepared(run, request, event):
        return check(run, request, replace(event, attempts_lost=False))

    for rows in (write, redo_rows):
        patch.setattr(rows, "check_prepared", check_prepared)


names_are_counted_anew_in_each_batch.options = {"kinds": ("kafka",), "partitions": 2, "batches": 4}


def a_redo_writes_every_task_again(patch):
    def looked(run, at, event):
        after, decisions = redo_rows.looked(run, at, event)
        return after, tuple(
            replace(d, redo=None) if isinstance(d, do.RunWrites) else d for d in decisions
        )

    def merged(commit, redo, again, digests):
        kept = {
            sink: tuple(c for c in cs if (sink, c["name"]) in redo.stayed)
            for sink, cs in commit.committables.items()
        }
        return replace(
            commit,
            committables={sink: (*kept.get(sink, ()), *cs) for sink, cs in again.items()},
            digests=digests,
        )

    patch.setattr(redo_rows, "written_again", lambda *_: None)
    patch.setattr(redo_rows, "merged", merged)
    _row(patch, P.Looking, saw.DigestsTaken, looked)


def a_redo_is_committed_under_the_old_decision(patch):
    def prepared_again(run, at, event):
        commit = redo.merged(at.decided.commit, at.redo, event.committables, event.digests)
        decided = replace(at.decided, commit=commit)
        committing = replace(
            run, phase=P.Committing(at.request, decided, at.redo), history=History(decided)
        )
        return committing, (do.CommitSinks(decided.permit, commit.committables),)

    _row(patch, P.WritingAgain, saw.WritesPrepared, prepared_again, P.Committing)


def what_is_committed_counts_as_lost(patch):
    def outcome(sink, committable):
        return "aborted"

    patch.setattr(SimulatedKafkaSink, "_outcome", outcome)


def a_database_forgets_its_marker(patch):
    """Not the library's code: the simulated sinks are what they claim to be only if the checks
    see it when they aren't."""

    def complete(system, batch, committables):
        for committable in committables:
            if committable["name"] in system.staged:
                system.show(system.staged[committable["name"]])
        return []

    patch.setattr(Database, "complete", complete)


def a_second_link_is_another_file(patch):
    def complete(system, batch, committables):
        for committable in committables:
            if committable["name"] in system.staged:
                system.show(system.staged[committable["name"]])
        return []

    patch.setattr(Files, "complete", complete)


def staging_is_shared_by_attempts(patch):
    from simulator import staged

    class Nameless(staged.TransactionName):
        def __new__(cls, query, code, generation, batch, write, partition, incarnation, slot):
            return super().__new__(cls, query, code, generation, batch, write, partition, 0, 0)

    patch.setattr(staged, "TransactionName", Nameless)


def what_is_left_is_not_swept(patch):
    patch.setattr(StagedSystem, "left_over", lambda system: [])
    patch.setattr(SimulatedKafkaSink, "recover", lambda sink, sweep: 0)


def a_claim_that_was_only_read_is_built_on(patch):
    def claim(log, claim):
        newest = log.newest_generation()
        generation = log._first if newest is None else newest + 1
        while not log._create(generation, 0, claim).ours:
            generation += 1
        log._lengths[generation] = 1
        return Claimed(
            generation, log._chains.read(generation - 1, 0).entry if generation else None
        )

    patch.setattr(CommitLog, "claim", claim)


def names_survive_another_runs_claim(patch):
    patch.setattr(start, "_is_next", lambda run, generation: run.generation >= 0)


names_survive_another_runs_claim.options = {
    "roll_after_entries": 3,
    "kinds": ("kafka",),
    "partitions": 1,
    "generations": 3,
}


def recovery_does_not_complete(patch):
    def sealed(run, at, event):
        decided = event.history.decided
        done = event.history if decided is None else History(replace(decided, done=True))
        return start.sealed(run, at, replace(event, history=done))

    _row(patch, P.Sealing, saw.PastSealed, sealed)


def lost_tasks_are_matched_by_place(patch):
    def match(decided, gone, replayed):
        there = all(place < len(replayed) for place in gone)
        return (
            {place: place for place in gone}
            if there and sum(d.rows for d in decided) == sum(d.rows for d in replayed)
            else None
        )

    patch.setattr(redo, "_match", match)
    patch.setattr(redo, "_at", lambda digests, place: digests[place])


lost_tasks_are_matched_by_place.options = {
    "kinds": ("kafka",),
    "partitions": 3,
    "timeouts": 3,
    "durable": False,
}


def one_task_stands_for_two_lost_ones(patch):
    def match(decided, gone, replayed):
        found = {}
        for place in gone:
            same = [at for at, digest in enumerate(replayed) if digest.rows == decided[place].rows]
            if not same:
                return None
            found[same[0]] = place
        return found

    patch.setattr(redo, "_match", match)


one_task_stands_for_two_lost_ones.options = lost_tasks_are_matched_by_place.options


def a_part_counts_as_the_whole(patch):
    def redo_of(lost, commit, **_):
        found = redo.given_up_of(lost, commit, "")
        return replace(found, way=redo.Way.WHOLE)

    patch.setattr(recover, "redo_of", redo_of)


a_part_counts_as_the_whole.options = lost_tasks_are_matched_by_place.options


def a_decision_has_no_deadline(patch):
    def append(log, generation, entry, in_time=None):
        return original(log, generation, entry, in_time and (lambda: True))

    original = CommitLog.append
    patch.setattr(CommitLog, "append", append)


a_decision_has_no_deadline.options = {"kinds": ("kafka",), "timeout_ms": 60_000}


def names_are_taken_before_the_past_is_sealed(patch):
    def claimed(run, at, event):
        after, decisions = start.claimed(run, at, event)
        if isinstance(after.phase, P.Sealing) and not after.phase.keeps_names:
            after = replace(after, name_generation=event.generation, reusable={})
        return after, decisions

    _row(patch, P.Claiming, saw.GenerationClaimed, claimed)


names_are_taken_before_the_past_is_sealed.options = {
    "roll_after_entries": 3,
    "kinds": ("kafka",),
    "partitions": 1,
    "generations": 5,
    "batches": 4,
}


def what_stands_in_the_place_of_a_commit_is_taken_for_it(patch):
    def survives(log, chain, found):
        index = next(i for i, entry in reversed(found) if not isinstance(entry, Seal))
        content = log._store.read(entry_key(chain, index))
        return index == 0 or (
            content is not None and log._ask(entry_key(chain, index), content)[0] == content
        )

    patch.setattr(CommitLog, "_survives", survives)


what_stands_in_the_place_of_a_commit_is_taken_for_it.options = {
    "kinds": ("kafka",),
    "partitions": 1,
}


def own_names_are_swept_behind_the_next_batch(patch):
    def sweep_own(coordinator, decision):
        coordinator._per_sink(
            decision.sweeps, lambda name: coordinator._sweep(name, decision.sweeps[name])
        )

    patch.setitem(Coordinator._executors, do.SweepOwn, (sweep_own, "sweep_own"))


own_names_are_swept_behind_the_next_batch.options = {"kinds": ("kafka",), "partitions": 1}


MUTANTS = [
    lost_tasks_are_matched_by_place,
    one_task_stands_for_two_lost_ones,
    a_part_counts_as_the_whole,
    a_decision_has_no_deadline,
    recovery_completes_what_is_done,
    the_past_is_read_but_not_sealed,
    commit_before_the_decision_is_durable,
    a_sweep_takes_newer_generations,
    a_sink_spares_only_its_own,
    own_leftovers_are_swept_at_the_decision,
    an_append_without_an_answer_aborts,
    handles_in_doubt_are_used_again,
    handles_are_fenced_before_done,
    a_loss_is_passed_over_at_commit,
    a_loss_is_passed_over_in_recovery,
    a_batch_is_written_without_waiting_for_done,
    a_decided_batch_is_written_again,
    a_fenced_append_counts_as_done,
    names_survive_another_runs_claim,
    recovery_does_not_complete,
    names_are_counted_anew_in_each_batch,
    a_redo_writes_every_task_again,
    a_redo_is_committed_under_the_old_decision,
    what_is_committed_counts_as_lost,
    a_database_forgets_its_marker,
    a_second_link_is_another_file,
    staging_is_shared_by_attempts,
    what_is_left_is_not_swept,
    a_claim_that_was_only_read_is_built_on,
    names_are_taken_before_the_past_is_sealed,
    what_stands_in_the_place_of_a_commit_is_taken_for_it,
    own_names_are_swept_behind_the_next_batch,
]
