from __future__ import annotations

import re
from dataclasses import replace

import pytest

from onceforall.errors import (
    AttemptFailedError,
    BatchTooSlowError,
    CheckpointMismatchError,
    DivergenceError,
    FencedError,
    FormerSinkError,
    InDoubtError,
    OutcomeUnknownError,
    OvertakenError,
    ProtocolViolationError,
    TransactionLostError,
)
from onceforall.protocol import decisions as do
from onceforall.protocol import events as saw
from onceforall.protocol.answers import REUSE_WITHIN_BATCHES
from onceforall.protocol.due_sweeps import leftovers
from onceforall.protocol.entries import Claim
from onceforall.protocol.history import EMPTY, CommitPermit, Decided, History
from onceforall.protocol.transitions.write import SWEEPS_AFTER_LOSS
from protocol.building import (
    Walk,
    answers,
    commit,
    committed,
    digests,
    handle,
    history,
    prepared,
    request,
    task,
)
from protocol.scenarios import EMPTY_INSPECTION, KEPT, OURS, SCENARIOS, P, closing_past, digesting

# --- a start --------------------------------------------------------------------------------------


def test_a_start_claims_seals_and_only_then_touches_a_sink():
    walk = Walk().writing()
    assert [type(d) for d in walk.all] == [
        do.InspectLog,
        do.ClaimGeneration,
        do.SealPast,
        do.RecoverSinks,
        do.RunWrites,
    ]


def test_a_claim_says_who_runs():
    walk = Walk(owner="me").feed(request(), EMPTY_INSPECTION)
    assert walk.only(do.ClaimGeneration).claim == Claim("query", "run", "/checkpoint", "me")


def test_the_log_of_another_query_is_refused_before_anything_is_written():
    walk = Walk().feed(
        request(), saw.LogInspected(replace(OURS, query_id="other"), own_sealed=False)
    )
    assert walk.stopped_with(CheckpointMismatchError)
    assert "other" in walk.only(do.StopRun).message
    assert do.ClaimGeneration not in map(type, walk.all)


def test_a_copied_checkpoint_is_refused_unless_it_is_adopted():
    copied = saw.LogInspected(replace(OURS, checkpoint="/elsewhere"), own_sealed=False)
    refused = Walk().feed(request(), copied)
    assert refused.stopped_with(CheckpointMismatchError)
    assert "onceforall.adoptCheckpoint" in refused.only(do.StopRun).message
    assert Walk(adopt_checkpoint=True).feed(request(), copied).phase is P.Claiming


def test_adopting_a_checkpoint_does_not_adopt_another_query():
    walk = Walk(adopt_checkpoint=True).feed(
        request(), saw.LogInspected(replace(OURS, query_id="other"), own_sealed=False)
    )
    assert walk.stopped_with(CheckpointMismatchError)


def test_a_log_that_became_foreign_between_look_and_claim_is_not_sealed():
    walk = Walk().feed(
        request(), EMPTY_INSPECTION, saw.GenerationClaimed(1, replace(OURS, query_id="other"))
    )
    assert walk.stopped_with(CheckpointMismatchError)
    assert do.SealPast not in map(type, walk.all)


def test_a_sink_in_doubt_cannot_be_removed():
    walk = (
        Walk()
        .sealing()
        .feed(saw.PastSealed(history(3, done=False, gone=(handle("x"),), a=(handle("a0"),)), 2))
    )
    assert walk.stopped_with(FormerSinkError)
    message = walk.only(do.StopRun).message
    assert "gone" in message
    assert "Batch 3" in message


def test_a_sink_that_is_gone_and_had_no_rows_or_is_done_does_not_matter():
    assert (
        Walk().recovering(history(3, done=False, gone=(), a=(handle("a0"),)), request(4)).phase
        is P.Recovering
    )
    assert Walk().recovering(history(3, gone=(handle("x"),)), request(4)).phase is P.Recovering


def test_recovery_sweeps_every_sink_and_spares_what_is_decided():
    past = history(0, done=False, a=(handle("a0"), handle("a1")), b=(handle("b0"),))
    sweeps = Walk().recovering(past).only(do.RecoverSinks).sweeps
    assert set(sweeps) == {"a", "b"}
    assert sweeps["a"].spared == sweeps["b"].spared == {"a0", "a1", "b0"}
    assert all(
        (s.generation, s.own, s.query_id, s.sink) == (1, False, "query", name)
        for name, s in sweeps.items()
    )


def test_what_a_sink_that_is_gone_has_decided_is_spared_also_when_it_is_known_to_be_complete():
    past = history(3, done=False, gone=(handle("x"),), a=(handle("a0"),))
    walk = Walk().sealing(request(4)).feed(saw.PastSealed(past, 3))
    assert all(sweep.spared == {"x", "a0"} for sweep in walk.only(do.RecoverSinks).sweeps.values())


def test_a_batch_of_the_past_gets_its_done_in_our_chain_before_the_next_is_written():
    walk = closing_past(request(1))
    assert walk.decisions == (do.AppendDone(1, 0),)
    walk.feed(saw.DoneAppended())
    assert walk.only(do.RunWrites).batch == 1
    assert walk.run.entries == 2


def test_a_decided_batch_is_skipped_on_its_replay():
    assert closing_past(request(0)).feed(saw.DoneAppended()).decisions == (do.ReturnBatch(0),)


def test_a_transaction_that_is_lost_and_does_not_say_whose_rows_it_held_stops_the_run():
    past = history(0, done=False, a=(handle("a0"), handle("a1")))
    walk = (
        Walk()
        .recovering(past, request(0))
        .feed(saw.SinksRecovered({"a": answers(handle("a1"), lost=[handle("a0")])}))
    )
    assert walk.stopped_with(TransactionLostError)
    assert "a0" in walk.only(do.StopRun).message
    assert "PRODUCER_FENCED" in walk.only(do.StopRun).message
    assert "onceforall.inDoubt=committed" in walk.only(do.StopRun).message


def test_what_spark_has_committed_was_complete_and_cannot_be_lost():
    walk = Walk().recovering(history(0, done=False), request(1), spark_committed=0)
    walk.feed(saw.SinksRecovered({"a": answers(lost=[handle("a0")])}))
    assert walk.decisions == (do.AppendDone(1, 0),)


# --- a batch --------------------------------------------------------------------------------------


def test_the_decision_names_everything_that_is_prepared():
    event = prepared(a=(handle("a0", pid=1),), b=(handle("b0"), handle("b1")))
    decision = Walk().deciding(event).only(do.AppendCommit)
    assert decision == do.AppendCommit(
        1, replace(commit(0), committables=event.committables, digests=event.digests)
    )


def test_a_batch_without_rows_is_decided_too():
    walk = Walk().deciding(prepared(a=(), b=()))
    assert walk.only(do.AppendCommit).commit.committables == {"a": (), "b": ()}
    assert walk.feed(saw.DecisionAppended(1)).only(do.CommitSinks).committables == {}
    assert walk.feed(saw.SinksCommitted({})).decisions == (do.ReturnBatch(0), do.AppendDone(1, 0))


def test_two_tasks_that_prepared_the_same_transaction_are_aborted():
    walk = Walk().writing().feed(prepared(a=(handle("x"), handle("x"))))
    assert walk.phase is P.Aborting
    assert walk.feed(saw.AttemptAborted()).stopped_with(AttemptFailedError)


def test_the_same_name_in_two_sinks_is_two_transactions():
    assert Walk().writing().feed(prepared(a=(handle("x"),), b=(handle("x"),))).phase is P.Deciding


def test_a_failed_write_aborts_what_is_prepared_and_sweeps_ones_own_generation():
    walk = Walk().writing().feed(saw.WritesFailed("ValueError: no", {"a": (handle("a0"),)}))
    abort = walk.only(do.AbortAttempt)
    assert abort.committables == {"a": (handle("a0"),)}
    assert all(s.own and not s.spared and s.generation == 1 for s in abort.sweeps.values())
    assert set(abort.sweeps) == {"a", "b"}
    stop = walk.feed(saw.AttemptAborted()).only(do.StopRun)
    assert stop.error is AttemptFailedError
    assert re.fullmatch("Batch 0 could not be written, and .*: ValueError: no", stop.message)


def test_an_attempt_that_failed_under_a_newer_run_says_who_has_taken_over():
    walk = Walk().writing().feed(saw.WritesFailed("the upload is gone"))
    stop = walk.feed(saw.AttemptAborted(sealed=True)).only(do.StopRun)
    assert stop.error is FencedError
    assert re.fullmatch("A newer run .*had failed: Batch 0 .*: the upload is gone", stop.message)


def test_what_else_aborts_an_attempt_is_said_though_there_is_a_newer_run():
    walk = Walk(transaction_timeout_ms=10).writing().feed(prepared(elapsed_ms=11))
    assert walk.feed(saw.AttemptAborted(sealed=True)).stopped_with(BatchTooSlowError)


@pytest.mark.parametrize(("elapsed_ms", "phase"), [(7_000, P.Deciding), (7_001, P.Aborting)])
def test_a_batch_that_leaves_too_little_of_the_timeout_is_not_decided(elapsed_ms, phase):
    walk = (
        Walk(transaction_timeout_ms=10_000, decision_reserve_ms=3_000)
        .writing()
        .feed(prepared(elapsed_ms=elapsed_ms))
    )
    assert walk.phase is phase
    if phase is P.Aborting:
        walk.feed(saw.AttemptAborted())
        assert walk.stopped_with(BatchTooSlowError)
        assert "transaction.timeout.ms" in walk.only(do.StopRun).message


def test_a_slow_batch_without_a_transaction_is_decided():
    walk = Walk(transaction_timeout_ms=10).writing().feed(prepared(elapsed_ms=999, a=()))
    assert walk.phase is P.Deciding


@pytest.mark.parametrize(
    ("make", "event", "error"),
    [
        (lambda: Walk().deciding(), saw.AppendUnknown("no answer"), OutcomeUnknownError),
        *(
            (make, event, error)
            for make in (lambda: Walk().closing(), lambda: closing_past(request(0)))
            for event, error in (
                (saw.AppendFenced(), FencedError),
                (saw.AppendUnknown("no answer"), OutcomeUnknownError),
            )
        ),
    ],
)
def test_nothing_is_aborted_once_the_decision_may_exist(make, event, error):
    walk = make().feed(event)
    assert [type(d) for d in walk.decisions] == [do.StopRun]
    assert walk.stopped_with(error)


def test_an_attempt_whose_decision_met_the_seal_is_aborted_for_nobody_can_decide_it():
    walk = Walk().deciding().feed(saw.AppendFenced())
    assert walk.only(do.AbortAttempt).committables == {"a": (handle("a0"),)}
    assert walk.feed(saw.AttemptAborted()).stopped_with(FencedError)


def test_no_decision_after_a_durable_commit_ever_aborts_the_attempt():
    after = {P.Committing, P.Closing, P.Recovering, P.ClosingPast, P.Ready, P.Stopped}
    for make, event, _ in SCENARIOS:
        walk = make()
        if walk.phase in after:
            assert do.AbortAttempt not in map(type, walk.feed(event).decisions)


def test_the_batch_returns_before_its_done_and_done_comes_before_retirement():
    walk = Walk().committing().feed(committed(retired=[handle("a0")]))
    assert walk.decisions == (do.ReturnBatch(0), do.AppendDone(1, 0))
    assert walk.feed(saw.DoneAppended()).decisions == (do.RetireHandles({"a": (handle("a0"),)}),)
    assert walk.phase is P.Ready


def test_a_batch_is_not_written_before_the_done_of_the_one_before():
    walk = Walk().closing()
    with pytest.raises(ProtocolViolationError):
        walk.feed(request(1))
    assert walk.feed(saw.DoneAppended(), request(1)).only(do.RunWrites).batch == 1


def test_what_stops_for_a_transaction_names_it_and_its_sink():
    after = committed(handle("a0"), lost=[handle("a1")])
    stop = Walk().committing(prepared(a=(handle("a0"), handle("a1")))).feed(after).only(do.StopRun)
    assert (stop.sink, stop.transaction) == ("a", "a1")
    past = Walk().recovering(history(0, done=False, a=(handle("a0"),)), request(0))
    stop = past.feed(saw.SinksRecovered({"a": answers(in_doubt=[handle("a0")])})).only(do.StopRun)
    assert (stop.sink, stop.transaction) == ("a", "a0")


def test_a_lost_transaction_stops_the_run_and_gets_no_done():
    walk = (
        Walk()
        .committing(prepared(a=(handle("a0"), handle("a1"))))
        .feed(committed(handle("a0"), lost=[handle("a1")]))
    )
    assert walk.stopped_with(TransactionLostError)
    assert [type(d) for d in walk.decisions] == [do.StopRun]
    assert "a1" in walk.only(do.StopRun).message


def test_what_looks_lost_to_a_replaced_run_is_its_successors_business():
    assert (
        Walk()
        .committing()
        .feed(committed(lost=[handle("a0")], sealed=True))
        .stopped_with(FencedError)
    )


def test_a_stop_while_a_sink_is_away_leaves_the_batch_in_doubt():
    walk = Walk().committing().feed(saw.StopRequested(("a",)))
    assert walk.stopped_with(InDoubtError)
    assert "batch 0" in walk.only(do.StopRun).message
    assert "next start completes it" in walk.only(do.StopRun).message


# --- replays that only digest ---------------------------------------------------------------------


def test_a_replay_with_the_same_rows_returns():
    assert digesting().feed(saw.DigestsTaken(digests(0))).decisions == (do.ReturnBatch(0),)


def test_a_replay_with_other_rows_is_reported_and_returns():
    walk = digesting().feed(saw.DigestsTaken(digests(0, rows=9)))
    assert [type(d) for d in walk.decisions] == [do.ReportDivergence, do.ReturnBatch]


def test_a_replay_with_other_rows_stops_where_that_is_wanted():
    assert (
        digesting(on_divergence="fail")
        .feed(saw.DigestsTaken(digests(0, rows=9)))
        .stopped_with(DivergenceError)
    )


def test_a_replay_that_fails_aborts_nothing():
    walk = digesting().feed(saw.WritesFailed("ValueError: no"))
    assert [type(d) for d in walk.decisions] == [do.StopRun]
    assert walk.stopped_with(AttemptFailedError)


# --- sweeping one's own ---------------------------------------------------------------------------


def test_ones_own_leftovers_are_swept_for_some_batches_after_a_lost_attempt():
    walk = Walk().ready().batch(1, prepared(1, attempts_lost=True, a=(handle("a1"),)))
    swept = [1 if do.SweepOwn in map(type, walk.all) else 0]
    for batch in range(2, 2 + SWEEPS_AFTER_LOSS):
        walk.all.clear()
        walk.batch(batch)
        swept.append(1 if do.SweepOwn in map(type, walk.all) else 0)
    assert swept == [1] * SWEEPS_AFTER_LOSS + [0]


def test_a_sweep_of_ones_own_spares_what_is_committed_and_comes_before_done():
    walk = Walk().committing(prepared(attempts_lost=True)).feed(committed(handle("a0")))
    assert [type(d) for d in walk.decisions] == [do.SweepOwn, do.ReturnBatch, do.AppendDone]
    sweeps = walk.only(do.SweepOwn).sweeps
    assert sweeps["a"].spared == {"a0"}
    assert all(s.own and s.generation == 1 for s in sweeps.values())


def test_a_run_that_ends_soon_after_a_lost_attempt_sweeps_its_own_generation_once_more():
    assert leftovers(Walk().ready().run) == {}
    run = Walk().ready().batch(1, prepared(1, attempts_lost=True, a=(handle("a1"),))).run
    assert {(s.own, s.generation) for s in leftovers(run).values()} == {(True, 1)}


def test_a_run_that_ends_in_doubt_spares_what_it_has_decided():
    walk = Walk().committing(prepared(attempts_lost=True)).feed(saw.StopRequested(("a",)))
    assert leftovers(walk.run)["a"].spared == {"a0"}


@pytest.mark.parametrize("unanswered", [True, False])
def test_leftovers_of_a_run_whose_append_got_no_answer_spare_what_may_be_decided(unanswered):
    walk = Walk().deciding(prepared(attempts_lost=True))
    if unanswered:
        walk.feed(saw.AppendUnknown("no answer"))
    assert leftovers(walk.run)["a"].spared == {"a0"}


def test_another_lost_attempt_begins_the_count_anew():
    walk = (
        Walk()
        .ready()
        .batch(1, prepared(1, attempts_lost=True))
        .batch(2)
        .batch(3, prepared(3, attempts_lost=True))
    )
    assert walk.run.sweep_own == SWEEPS_AFTER_LOSS - 1


# --- live producers -------------------------------------------------------------------------------


def test_the_next_batch_gets_the_handles_that_were_completed_without_doubt():
    walk = Walk().committing(prepared(a=(handle("a0", epoch=1), handle("a1", epoch=2))))
    walk.feed(
        committed(handle("a0", epoch=1), retired=[handle("a1", epoch=2)]),
        saw.DoneAppended(),
        request(1),
    )
    assert walk.only(do.RunWrites).reusable == {"a": (handle("a0", epoch=1, batch=0),), "b": ()}


def test_a_handle_that_a_batch_did_not_use_stays_for_a_while():
    walk = Walk().ready()
    for batch in range(1, REUSE_WITHIN_BATCHES):
        walk.batch(batch, prepared(batch, a=(handle("other"),)))
    assert handle("a0", batch=0) in walk.run.reusable["a"]
    walk.batch(REUSE_WITHIN_BATCHES, prepared(REUSE_WITHIN_BATCHES, a=(handle("other"),)))
    assert [c["name"] for c in walk.run.reusable["a"]] == ["other"]


def test_a_handle_is_stamped_with_the_last_batch_that_completed_it():
    walk = Walk().ready().batch(1, prepared(1, a=(handle("a0"),)))
    assert walk.run.reusable["a"] == (handle("a0", batch=1),)


def test_a_handle_that_is_used_and_retired_is_not_handed_out_again():
    walk = (
        Walk().ready().batch(1, prepared(1, a=(handle("a0"),)), committed(retired=[handle("a0")]))
    )
    assert walk.run.reusable["a"] == ()


def rolled(walk, batch, generation):
    """READY to WRITING, or whatever comes behind recovery, in this generation."""
    walk.feed(
        request(batch),
        saw.LogInspected(OURS, own_sealed=False),
        saw.GenerationClaimed(generation, OURS),
    )
    return walk.feed(saw.PastSealed(walk.run.history, batch - 1))


def test_a_run_that_rolls_keeps_its_names_and_its_live_producers():
    walk = Walk(roll_after_entries=3).ready()
    handles = walk.run.reusable
    assert handles["a"]
    for generation in (2, 3):
        batch = generation - 1
        recovery = rolled(walk, batch, generation).only(do.RecoverSinks)
        assert {(sweep.generation, sweep.own) for sweep in recovery.sweeps.values()} == {(1, False)}
        write = walk.feed(saw.SinksRecovered({})).only(do.RunWrites)
        assert (write.generation, write.reusable) == (1, handles)
        walk.feed(prepared(batch))
        assert walk.only(do.AppendCommit).generation == generation
        walk.feed(saw.DecisionAppended(1))
        assert walk.only(do.CommitSinks).permit == CommitPermit(generation, 1, batch)
        walk.feed(committed(handle("a0")), saw.DoneAppended())
        handles = walk.run.reusable
    assert walk.run.generation == 3


def test_a_run_that_rolls_behind_another_ones_claim_gives_its_names_and_producers_up():
    walk = Walk(roll_after_entries=3).ready()
    assert walk.run.reusable["a"]
    # Another run had generation 2, and may have swept and fenced what bears our names.
    assert rolled(walk, 1, 3).only(do.RecoverSinks).sweeps["a"].generation == 3
    assert walk.feed(saw.SinksRecovered({})).only(do.RunWrites) == do.RunWrites(1, 3, {})


def test_a_start_takes_no_names_of_the_generation_before_though_it_is_the_next_one():
    for generation in (0, 1):
        walk = Walk().sealing(generation=generation).feed(saw.PastSealed(EMPTY, -1))
        assert walk.run.name_generation == generation


def test_a_run_that_rolls_after_a_lost_attempt_sweeps_its_own_names_and_spares_its_live_producers():
    walk = (
        Walk(roll_after_entries=3)
        .committing(prepared(attempts_lost=True))
        .feed(committed(handle("a0")), saw.DoneAppended())
    )
    rolled(walk, 1, 2)
    assert [type(d) for d in walk.decisions] == [do.SweepOwn, do.RecoverSinks]
    sweeps = walk.only(do.SweepOwn).sweeps
    assert {(s.generation, s.own) for s in sweeps.values()} == {(1, True)}
    assert all(s.spared == {"a0"} for s in sweeps.values())


def test_a_run_that_rolls_and_has_lost_no_attempt_sweeps_nothing_of_its_own():
    walk = rolled(Walk(roll_after_entries=3).ready(), 1, 2)
    assert [type(d) for d in walk.decisions] == [do.RecoverSinks]


def test_a_run_whose_names_are_new_does_not_sweep_them():
    walk = (
        Walk(roll_after_entries=3)
        .committing(prepared(attempts_lost=True))
        .feed(committed(handle("a0")), saw.DoneAppended())
    )
    assert [type(d) for d in rolled(walk, 1, 3).decisions] == [do.RecoverSinks]


def test_the_replay_of_a_batch_and_its_lost_transactions_bear_the_names_of_the_run():
    def rolling(**changes):
        walk = Walk(roll_after_entries=3, **changes).ready()
        walk.feed(
            request(1, stateful=True),
            saw.LogInspected(OURS, own_sealed=False),
            saw.GenerationClaimed(2, OURS),
        )
        assert (walk.run.generation, walk.run.name_generation) == (2, 1)
        return walk

    walk = rolling().feed(saw.PastSealed(history(1), -1), saw.SinksRecovered({}))
    assert walk.only(do.TakeDigests).generation == 1
    for lost, durable in ((task("a0"), False), (KEPT, True)):
        stays = task("a9", partition=9) if durable else None
        both = (lost, stays) if stays else (lost,)
        walk = rolling(durable=durable).feed(saw.PastSealed(history(1, done=False, a=both), -1))
        walk.feed(saw.SinksRecovered({"a": answers(*both[1:], lost=[lost])}), saw.LostFenced())
        assert walk.only(do.WriteKept if durable else do.RunWrites).generation == 1


@pytest.mark.parametrize("ends", ["before it has sealed", "for the log belongs to another"])
def test_a_run_that_rolls_sweeps_nothing_of_the_runs_in_between_before_they_are_sealed(ends):
    walk = Walk(roll_after_entries=3).committing(prepared(attempts_lost=True))
    walk.feed(committed(handle("a0")), saw.DoneAppended())
    walk.feed(request(1), saw.LogInspected(OURS, own_sealed=False))
    # Generation 2 is another run's, which may decide at any time until its chain is sealed.
    stranger = replace(OURS, query_id="another") if ends.startswith("for") else OURS
    walk.feed(saw.GenerationClaimed(3, stranger))
    if ends.startswith("for"):
        assert walk.stopped_with(CheckpointMismatchError)
    swept = leftovers(walk.run)
    assert swept
    assert {(s.generation, s.own) for s in swept.values()} == {(1, True)}


def test_leftovers_of_a_run_that_has_rolled_are_swept_under_its_own_names():
    walk = Walk(roll_after_entries=3).ready()
    rolled(walk, 1, 2).feed(saw.SinksRecovered({}), prepared(1, attempts_lost=True))
    assert {(s.generation, s.own) for s in leftovers(walk.run).values()} == {(1, True)}


# --- rolling --------------------------------------------------------------------------------------


def test_a_run_goes_on_in_a_new_generation_when_its_chain_is_long():
    walk = Walk(roll_after_entries=5).ready()
    assert walk.run.entries == 3
    walk.batch(1)
    assert walk.run.entries == 5
    assert walk.feed(request(2)).decisions == (do.InspectLog(1),)
    walk.feed(saw.LogInspected(OURS, own_sealed=False), saw.GenerationClaimed(2, OURS))
    assert walk.decisions == (do.SealPast(2),)
    assert (walk.run.generation, walk.run.entries) == (2, 1)


def test_a_replaced_run_that_rolls_does_not_claim_above_its_successor():
    walk = (
        Walk(roll_after_entries=3).ready().feed(request(1), saw.LogInspected(OURS, own_sealed=True))
    )
    assert walk.stopped_with(FencedError)
    assert [type(d) for d in walk.decisions] == [do.StopRun]


def test_a_run_that_rolls_believes_the_sealed_log_and_not_its_memory():
    walk = (
        Walk(roll_after_entries=3)
        .ready()
        .feed(request(1), saw.LogInspected(OURS, own_sealed=False), saw.GenerationClaimed(3, OURS))
    )
    # Another run claimed generation 2 meanwhile and decided batch 1.
    walk.feed(saw.PastSealed(History(Decided(commit(1), 2, 1, done=False)), -1))
    assert walk.only(do.RecoverSinks).commit.permit == CommitPermit(2, 1, 1)
    walk.feed(saw.SinksRecovered({"a": answers(handle("a0"))}), saw.DoneAppended())
    assert walk.decisions == (do.ReturnBatch(1),)


def test_a_run_rolls_again_in_its_new_generation():
    walk = Walk(roll_after_entries=3).ready()
    for generation in (2, 3):
        walk.feed(
            request(generation - 1),
            saw.LogInspected(OURS, own_sealed=False),
            saw.GenerationClaimed(generation, OURS),
        )
        walk.feed(saw.PastSealed(walk.run.history, generation - 2), saw.SinksRecovered({}))
        walk.feed(
            prepared(generation - 1),
            saw.DecisionAppended(1),
            committed(handle("a0")),
            saw.DoneAppended(),
        )
    assert walk.run.generation == 3


# --- what the machine does not take on trust ------------------------------------------------------


def test_a_run_whose_batch_a_newer_one_has_completed_is_fenced_and_touches_no_sink():
    walk = Walk().sealing(request(3)).feed(saw.PastSealed(history(2), 3, sealed=True))
    assert walk.stopped_with(FencedError)
    assert do.RecoverSinks not in map(type, walk.all)


@pytest.mark.parametrize(
    ("past", "unplanned", "error"),
    [
        (EMPTY, False, CheckpointMismatchError),
        (history(2), False, CheckpointMismatchError),
        (history(3), False, OvertakenError),
        (history(4), False, OvertakenError),
        (history(3), True, CheckpointMismatchError),
    ],
)
def test_a_batch_that_spark_has_committed_is_not_written(past, unplanned, error):
    """By another run, if that has decided and planned it."""
    walk = Walk().sealing(request(3))
    walk.feed(saw.PastSealed(past, 3, spark_unplanned=unplanned), saw.SinksRecovered({}))
    assert walk.stopped_with(error)


@pytest.mark.parametrize(
    "named", [[], [handle("a0")], [handle("a0"), handle("a0")], [handle("a0"), handle("x")]]
)
def test_a_transaction_that_no_answer_names_is_not_taken_for_complete(named):
    walk = Walk().committing(prepared(a=(handle("a0"), handle("a1"))))
    with pytest.raises(ProtocolViolationError, match="Sink a"):
        walk.feed(committed(*named))
    assert walk.phase is P.Committing


def test_a_sink_without_an_answer_in_recovery_is_not_taken_for_complete():
    walk = Walk().recovering(history(0, done=False, a=(handle("a0"),), b=(handle("b0"),)))
    with pytest.raises(ProtocolViolationError, match="Sink b"):
        walk.feed(saw.SinksRecovered({"a": answers(handle("a0"))}))


@pytest.mark.parametrize("nameless", [{"id": 1}, {"name": None}, {"name": 7}])
def test_a_committable_without_a_name_aborts_the_attempt(nameless):
    walk = Walk().writing().feed(prepared(a=(nameless, handle("a1"))))
    assert walk.phase is P.Aborting
    assert handle("a1") in walk.only(do.AbortAttempt).committables["a"]


def test_a_sink_of_a_batch_that_spark_has_committed_can_be_removed():
    past = history(3, done=False, gone=(handle("x"),), a=(handle("a0"),))
    walk = Walk().recovering(past, request(4), spark_committed=3)
    assert walk.only(do.RecoverSinks).commit.committables == {"a": (handle("a0"),)}
    walk.feed(saw.SinksRecovered({"a": answers(handle("a0"))}))
    assert walk.decisions == (do.AppendDone(1, 3),)


def test_a_repartitioning_past_a_decided_batch_is_that_of_the_batch_before_the_asked_one():
    header = lambda ms: ("v1", f'{{"batchTimestampMs": {ms}}}')
    past = history(0)
    past = replace(past, decided=replace(past.decided, commit=replace(commit(0), header=header(2))))
    asked = replace(request(2), start=("earlier",), before=header(1))
    walk = Walk().sealing(asked).feed(saw.PastSealed(past, 1))
    assert walk.stopped_with(CheckpointMismatchError)
    assert "(batch 1, " in walk.only(do.StopRun).message
    assert "delete offsets/1, commits/0 and commits/1 " in walk.only(do.StopRun).message


@pytest.mark.parametrize(
    ("gone", "said"),
    [(["gone"], "on the sink gone, which"), (["gone", "left"], "on the sinks gone, left, which")],
)
def test_the_sinks_that_a_decided_batch_waits_for_and_that_are_not_there_are_named(gone, said):
    past = history(3, done=False, **{sink: (handle(sink),) for sink in gone}, a=(handle("a0"),))
    walk = Walk().recovering(past, request(4))
    assert walk.stopped_with(FormerSinkError)
    assert said in walk.only(do.StopRun).message


def test_a_batch_after_a_lost_attempt_names_its_handles_anew():
    lost = [False, True, False, True, True, False]
    walk = Walk().ready()
    for batch, attempts_lost in enumerate(lost, 1):
        walk.batch(batch, prepared(batch, attempts_lost=attempts_lost))
    runs = [decision for decision in walk.all if isinstance(decision, do.RunWrites)]
    assert [run.incarnation for run in runs[-6:]] == [0, 0, 1, 1, 2, 3]
