"""A decided transaction is lost: it is fenced and written again, alone, and only if the replay is what was decided."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from onceforall.errors import (
    CheckpointMismatchError,
    FencedError,
    InDoubtError,
    NondeterministicReplayError,
    ProtocolViolationError,
    TransactionLostError,
)
from onceforall.protocol import decisions as do
from onceforall.protocol import events as saw
from onceforall.protocol.entries import Digest
from onceforall.protocol.redo import difference
from protocol.building import Walk, answers, commit, committed, digests, handle, history, prepared, request, task
from protocol.scenarios import KEPT, LOST, P, writing_kept

STAYED = task("a1", partition=1)
NEW = task("new")


def writing_again(**changes):
    return Walk(**changes).redoing(LOST, stayed=(STAYED,)).feed(saw.LostFenced())


def test_a_lost_transaction_is_fenced_before_anything_is_written():
    walk = Walk().redoing(LOST, stayed=(STAYED,))
    assert walk.decisions == (do.FenceLost({"a": (LOST,)}),)
    assert do.RunWrites not in map(type, walk.all)


def test_only_the_tasks_of_lost_transactions_write_again():
    decision = writing_again().only(do.RunWrites)
    assert (decision.batch, decision.redo, decision.reusable) == (0, frozenset({(0, 0)}), {})


def test_the_redo_is_a_decision_of_its_own_that_replaces_the_old_one():
    decision = writing_again().feed(prepared(a=(NEW,))).only(do.AppendCommit)
    assert decision == do.AppendCommit(1, replace(commit(0), committables={"a": (STAYED, NEW)}))


def test_nothing_of_the_redo_is_committed_before_that_decision_and_all_of_it_after():
    walk = writing_again().feed(prepared(a=(NEW,)))
    assert do.CommitSinks not in map(type, walk.all)
    sinks = walk.feed(saw.DecisionAppended(1)).only(do.CommitSinks)
    assert sinks.permit == do.CommitPermit(1, 1, 0)
    assert sinks.committables == {"a": (STAYED, NEW)}


def test_after_a_redo_the_batch_returns_and_no_producer_goes_on():
    walk = writing_again().feed(prepared(a=(NEW,)), saw.DecisionAppended(1), committed(STAYED, NEW))
    assert walk.decisions == (do.ReturnBatch(0), do.AppendDone(1, 0))
    walk.feed(saw.DoneAppended(), request(1))
    assert walk.only(do.RunWrites) == do.RunWrites(1, 1, {}, 0)


@pytest.mark.parametrize(
    ("again", "words"),
    [
        ({"a/0": (Digest(9, 0),)}, "The rows themselves differ.*a/0: task 0 had 10 rows and has 9"),
        ({"a/0": (Digest(10, 7),)}, "The rows themselves differ.*task 0 has 10 rows as then, of other content"),
        ({"a/0": (Digest(4, 0), Digest(6, 0))}, "The rows are the same, but they lie in other tasks.*1 tasks then, 2 now"),
        ({}, "a/0: 1 tasks then, 0 now"),
        ({**digests(0), "b/1": (Digest(1, 1),)}, "b/1: 0 tasks then, 1 now"),
    ],
)
def test_a_replay_that_differs_is_aborted_alone_and_says_how(again, words):
    walk = writing_again().feed(saw.WritesPrepared({"a": (NEW,)}, again, 0, attempts_lost=False))
    abort = walk.only(do.AbortAttempt)
    assert abort.committables == {"a": (NEW,)}
    assert {"a0", "a1"} <= set(abort.sweeps["a"].spared), "what is decided must be spared"
    walk.feed(saw.AttemptAborted())
    assert walk.stopped_with(NondeterministicReplayError)
    assert do.AppendCommit not in map(type, walk.all)
    assert re.search(words, walk.only(do.StopRun).message)


def test_rows_that_changed_places_between_two_tasks_are_told_from_rows_that_differ():
    decided = replace(commit(0), digests={"a/0": (Digest(4, 1), Digest(6, 2))})
    moved = difference(decided, {"a/0": (Digest(6, 2), Digest(4, 1))})
    assert moved.startswith("The rows are the same")
    assert "task 0 had 4 rows and has 6, task 1 had 6 rows and has 4" in moved
    assert difference(decided, {"a/0": (Digest(4, 1), Digest(6, 3))}).startswith("The rows themselves differ")
    assert difference(decided, decided.digests) is None


def test_many_differing_tasks_are_not_all_named():
    decided = replace(commit(0), digests={"a/0": tuple(Digest(1, i) for i in range(9))})
    message = difference(decided, {"a/0": tuple(Digest(2, i) for i in range(9))})
    assert message.count("task ") == 5
    assert "and 4 more" in message


@pytest.mark.parametrize("again", [(), (NEW, task("more", partition=1)), (task("other", partition=1),)])
def test_exactly_the_lost_transactions_must_be_prepared_again(again):
    walk = writing_again().feed(prepared(a=again)).feed(saw.AttemptAborted())
    assert walk.stopped_with(ProtocolViolationError)


def test_a_redo_that_is_fenced_at_its_decision_aborts_only_what_it_prepared_itself():
    walk = writing_again().feed(prepared(a=(NEW,)), saw.AppendFenced())
    assert walk.only(do.AbortAttempt).committables == {"a": (NEW,)}
    assert walk.feed(saw.AttemptAborted()).stopped_with(FencedError)


def test_a_redo_without_an_answer_to_its_decision_aborts_nothing():
    walk = writing_again().feed(prepared(a=(NEW,)), saw.AppendUnknown("no answer"))
    assert do.AbortAttempt not in map(type, walk.all)


def test_the_redo_of_a_redo_after_a_crash_redoes_what_is_lost_by_then():
    walk = Walk().redoing(task("new"), stayed=(STAYED,)).feed(saw.LostFenced())
    assert walk.only(do.RunWrites).redo == {(0, 0)}


def test_a_transaction_that_is_lost_again_after_its_redo_stops_the_run_and_gets_no_done():
    walk = writing_again().feed(prepared(a=(NEW,)), saw.DecisionAppended(1))
    walk.feed(saw.SinksCommitted({"a": answers(STAYED, lost=[NEW])}))
    assert walk.stopped_with(TransactionLostError)
    assert do.AppendDone not in map(type, walk.all)


def test_a_lost_batch_is_not_redone_for_another_request():
    assert Walk().redoing(LOST, asked=request(1)).stopped_with(TransactionLostError)
    past = history(3, done=False, a=(LOST,))
    walk = Walk().recovering(past, request(0)).feed(saw.SinksRecovered({"a": answers(lost=[LOST])}))
    assert walk.stopped_with(CheckpointMismatchError)
    assert do.FenceLost not in map(type, walk.all)


def test_a_loss_is_not_redone_for_other_offsets():
    asked = replace(request(0), offsets=("other",))
    assert Walk().redoing(LOST, asked=asked).stopped_with(CheckpointMismatchError)


def test_what_looks_lost_to_a_replaced_run_is_not_redone():
    walk = Walk().recovering(history(0, done=False, a=(LOST,)))
    assert walk.feed(saw.SinksRecovered({"a": answers(lost=[LOST])}, sealed=True)).stopped_with(FencedError)


# --- from kept rows -----------------------------------------------------------------------------------------------------------------


def test_kept_rows_are_written_without_the_users_function():
    walk = writing_kept()
    assert walk.only(do.WriteKept) == do.WriteKept(0, 1, 0, {"a": (KEPT,)})


def test_kept_rows_are_not_used_unless_they_are_asked_for():
    assert Walk().redoing(KEPT).feed(saw.LostFenced()).only(do.RunWrites).redo == {(0, 0)}


def test_after_a_redo_from_kept_rows_a_stateless_batch_is_skipped_and_a_stateful_one_digests():
    for stateful, decision in ((False, do.ReturnBatch(0)), (True, do.TakeDigests(0, 1))):
        walk = Walk(durable=True).redoing(KEPT, asked=request(0, stateful=stateful))
        walk.feed(saw.LostFenced(), prepared(a=(NEW,)), saw.DecisionAppended(1), committed(NEW))
        assert walk.decisions == (do.AppendDone(1, 0),)
        assert walk.feed(saw.DoneAppended()).decisions == (decision,)


# --- without proof ------------------------------------------------------------------------------------------------------------------


def in_doubt(**changes):
    past = history(0, done=False, a=(LOST,))
    return Walk(**changes).recovering(past).feed(saw.SinksRecovered({"a": answers(in_doubt=[LOST])}))


def test_without_proof_the_run_stops_in_doubt_and_names_the_choices():
    walk = in_doubt()
    assert walk.stopped_with(InDoubtError)
    message = walk.only(do.StopRun).message
    assert all(words in message for words in ("a0 of sink a", "onceforall.inDoubt=committed", "onceforall.inDoubt=aborted"))
    assert do.AppendDone not in map(type, walk.all)


def test_without_proof_a_live_run_stops_in_doubt_too():
    walk = Walk().committing().feed(saw.SinksCommitted({"a": answers(in_doubt=[handle("a0")])}))
    assert walk.stopped_with(InDoubtError)


def test_a_user_may_say_what_became_of_it():
    assert in_doubt(in_doubt="committed").decisions == (do.AppendDone(1, 0),)
    assert in_doubt(in_doubt="aborted").decisions == (do.FenceLost({"a": (LOST,)}),)


@pytest.mark.parametrize("said", ["committed", "aborted"])
def test_what_a_user_says_is_about_what_the_start_finds_and_not_about_later_batches(said):
    walk = Walk(in_doubt=said).committing().feed(saw.SinksCommitted({"a": answers(in_doubt=[handle("a0")])}))
    assert walk.stopped_with(InDoubtError)


def test_what_a_user_says_of_the_past_is_not_said_of_what_was_written_again():
    stayed = Walk(in_doubt="committed").redoing(LOST, stayed=(STAYED,))
    stayed.feed(saw.LostFenced(), prepared(a=(NEW,)), saw.DecisionAppended(1))
    stayed.feed(saw.SinksCommitted({"a": answers(NEW, in_doubt=[STAYED])}))
    assert stayed.decisions == (do.ReturnBatch(0), do.AppendDone(1, 0))
    for said in ("committed", "aborted"):
        walk = Walk(in_doubt=said).redoing(LOST, stayed=(STAYED,))
        walk.feed(saw.LostFenced(), prepared(a=(NEW,)), saw.DecisionAppended(1))
        assert walk.feed(saw.SinksCommitted({"a": answers(STAYED, in_doubt=[NEW])})).stopped_with(InDoubtError)


def test_what_nothing_can_write_again_is_passed_over_only_by_the_word_of_a_user():
    """Of a release before 0.1, which didn't say whose rows a transaction holds."""
    past = history(0, done=False, a=(handle("a0"),))
    found = saw.SinksRecovered({"a": answers(lost=[handle("a0")])})
    for said in (None, "aborted"):
        walk = Walk(in_doubt=said).recovering(past).feed(found)
        assert walk.stopped_with(TransactionLostError)
        assert "onceforall.inDoubt=committed" in walk.only(do.StopRun).message
    assert Walk(in_doubt="committed").recovering(past).feed(found).decisions == (do.AppendDone(1, 0),)


def test_what_a_user_says_does_not_overrule_proof():
    walk = Walk(in_doubt="committed").redoing(LOST)
    assert walk.decisions == (do.FenceLost({"a": (LOST,)}),)
    assert walk.run.phase is P.FENCING_LOST
