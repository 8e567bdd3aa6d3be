"""Which target a sink leads to, and whether that is behind the log: the rule alone, and what the
machine does with it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from onceforall.errors import CheckpointMismatchError, FormerSinkError
from onceforall.protocol import decisions as do
from onceforall.protocol import events as saw
from onceforall.protocol import identity
from onceforall.protocol import phases as P
from onceforall.protocol.due_sweeps import older_sweeps
from onceforall.protocol.entries import Digest, Target, entry_from_body
from onceforall.protocol.history import Decided, History
from protocol.building import Walk, answers, commit, handle, prepared, request

HERE, THERE = {"folder": "here"}, {"folder": "there"}


def past(batch=0, done=True, generation=0, **targets):
    return History(Decided(replace(commit(batch), targets=targets), generation, 1, done))


def placed(batch, identity=HERE):
    return prepared(batch, a=(handle("a0", identity=identity),))


def decided_targets(walk):
    return walk.only(do.AppendCommit).commit.targets


# --- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "refused"),
    [
        (HERE, HERE, False),
        (HERE, THERE, True),
        (HERE, None, True),
        (HERE, {"cluster": "here"}, True),
        (HERE, {}, True),
        (None, THERE, False),
        (HERE, {**HERE, "volume": "new key of a later release"}, False),
        ({**HERE, "volume": "one"}, {**HERE, "volume": "another"}, True),
    ],
)
def test_a_target_is_the_same_when_all_that_both_know_of_it_is(before, now, refused):
    refusal = identity.judge({"a": Target(before, 3)}, {"a": now}, {"a": "MySink()"})
    assert (refusal is not None) == refused
    if refusal is not None:
        assert refusal.error is CheckpointMismatchError
        assert "folder here" in refusal.message
        assert "MySink()" in refusal.message
        assert "onceforall.adoptTarget=a" in refusal.message


def test_only_what_the_log_and_the_run_both_know_is_compared():
    assert identity.judge({}, {"a": HERE}) is None
    assert identity.judge({"gone": Target(HERE, 3)}, {"a": THERE}) is None


@pytest.mark.parametrize(
    ("target", "done", "spark_committed", "batch"),
    [
        (Target(HERE, 5, 3), True, -1, 5),
        (Target(HERE, 5, 3), False, 5, 5),
        (Target(HERE, 5, 3), False, 4, 3),
        (Target(HERE, 5), False, 4, None),
        (Target(HERE, 3, 2), False, 4, 3),
        (Target(HERE, None), True, 5, None),
    ],
)
def test_a_target_must_have_the_last_batch_that_is_complete_there(
    target, done, spark_committed, batch
):
    decided = past(5, done, a=target).decided
    found = identity.complete_batches(decided, decided.commit.targets, spark_committed)
    assert found == ({} if batch is None else {"a": batch})


def test_a_target_is_behind_only_when_it_certainly_lacks_the_batch():
    def judged(holds):
        return identity.judge_reach({"a": 3}, {"a": holds}, {"a": "MySink()"})

    assert judged(True) is None
    assert judged(None) is None
    refusal = judged(False)
    assert refusal.message.startswith("Sink a is behind the commit log: batch 3 is complete there")
    assert "by the log, and MySink() doesn't have it." in refusal.message
    assert "onceforall.adoptTarget=a, until a batch was written, goes on" in refusal.message
    assert "save that first" in refusal.message


def test_a_refusal_names_all_targets_that_are_to_be_adopted():
    """One that named the first alone would lead in circles: the next start names the other."""
    holds, shown = {"a": False, "b": True, "c": False}, dict.fromkeys("abc", "MySink()")
    behind = identity.judge_reach({"a": 3, "b": 3, "c": 4}, holds, shown, ["d"])
    assert "Sink a is behind the commit log: batch 3 is complete there" in behind.message
    assert "Sink c is behind the commit log: batch 4 is complete there" in behind.message
    assert "Sink b" not in behind.message
    assert "onceforall.adoptTarget=a,c,d, until a batch was written, goes on" in behind.message
    known = {name: Target(HERE, 3) for name in "abc"}
    others = identity.judge(known, {"a": THERE, "b": HERE, "c": None}, adopting=["d"])
    assert "Sink a: the last decision" in others.message
    assert "Sink c: the last decision" in others.message
    assert "Sink b" not in others.message
    assert others.message.endswith(
        "If the targets were replaced on purpose, give the sinks another name, or start with "
        "onceforall.adoptTarget=a,c,d until a batch was written."
    )
    one = identity.judge(known, {"a": THERE})
    assert one.message.endswith(
        "If the target was replaced on purpose, give the sink another name, or start with "
        "onceforall.adoptTarget=a until a batch was written."
    )
    waiting = identity.judge(known, {"a": THERE}, is_complete=False)
    assert "another name" not in waiting.message


def kinds_of_past(done=False, kind="files", **changes):
    return History(Decided(replace(commit(5), **{"kinds": {"a": kind}, **changes}), 0, 1, done))


@pytest.mark.parametrize(
    ("history", "kinds", "spark_committed", "refused"),
    [
        (kinds_of_past(), {"a": "postgres"}, 4, True),
        (kinds_of_past(), {"a": "files"}, 4, False),
        (kinds_of_past(), {"b": "postgres"}, 4, False),
        (kinds_of_past(), {}, 4, False),
        (kinds_of_past(kinds={}), {"a": "postgres"}, 4, False),
        (kinds_of_past(committables={"a": ()}), {"a": "postgres"}, 4, False),
        (kinds_of_past(done=True), {"a": "postgres"}, 4, False),
        (kinds_of_past(), {"a": "postgres"}, 5, False),
        (History(None), {"a": "postgres"}, -1, False),
    ],
)
def test_a_sink_of_another_kind_cannot_complete_what_is_decided(
    history, kinds, spark_committed, refused
):
    refusal = identity.judge_kinds(history.decided, kinds, spark_committed)
    assert (refusal is not None) == refused
    if refusal is not None:
        assert refusal.error is FormerSinkError
        assert "prepared by a sink of the kind 'files'" in refusal.message
        assert "of the kind 'postgres' now" in refusal.message
        assert "Start once more with the former sink under that name; it can" in refusal.message


def test_all_sinks_of_another_kind_are_named():
    of_two = kinds_of_past(
        kinds={"a": "files", "b": "kafka"},
        committables={"a": (handle("a5"),), "b": (handle("b5"),)},
    )
    kinds = {"a": "postgres", "b": "postgres"}
    refusal = identity.judge_kinds(of_two.decided, kinds, 4)
    assert "the sink a: it was prepared by a sink of the kind 'files'" in refusal.message
    assert "the sink b: it was prepared by a sink of the kind 'kafka'" in refusal.message
    assert "with the former sinks under that name; they can" in refusal.message


# --- entries --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        Target(HERE, 4, 2),
        Target(HERE, 0),
        Target(adopted=Target(HERE, 3).body()),
        Target(HERE, 9, None, {"position": {}}),
    ],
)
def test_a_target_comes_back_from_the_log_as_it_was(target):
    entry = replace(commit(4), targets={"a": target})
    assert entry_from_body("COMMIT", json.loads(json.dumps(entry.body()))) == entry


def test_a_decision_without_targets_has_the_body_that_it_always_had():
    assert "targets" not in commit(4).body()


def test_kinds_come_back_from_the_log_and_a_decision_without_them_has_the_body_of_before():
    entry = replace(commit(4), kinds={"a": "files"})
    assert entry_from_body("COMMIT", json.loads(json.dumps(entry.body()))) == entry
    assert "kinds" not in commit(4).body()


# --- the machine ----------------------------------------------------------------------------------


def test_another_target_than_the_last_decisions_is_refused_before_any_sink_is_touched():
    for done in (True, False):
        walk = (
            Walk(identities={"a": THERE})
            .sealing(request(1))
            .feed(saw.PastSealed(past(0, done, a=Target(HERE, 0)), -1))
        )
        assert walk.stopped_with(CheckpointMismatchError)
        assert not any(isinstance(d, do.RecoverSinks) for d in walk.all)


def test_a_sink_of_another_kind_is_refused_before_any_sink_is_touched_and_before_its_target_is():
    walk = Walk(identities={"a": THERE}, kinds={"a": "postgres"})
    history = kinds_of_past(targets={"a": Target(HERE, 5)})
    walk.sealing(request(5)).feed(saw.PastSealed(history, 4))
    assert walk.stopped_with(FormerSinkError)
    assert not any(isinstance(d, do.RecoverSinks) for d in walk.all)


def test_what_spark_knows_to_be_complete_is_not_asked_of_a_sink_of_another_kind():
    walk = Walk(kinds={"a": "postgres"}).sealing(request(6))
    walk.feed(saw.PastSealed(kinds_of_past(), 5))
    assert walk.only(do.RecoverSinks).commit.committables == {}


def test_a_decision_has_the_kinds_of_the_sinks_that_it_waits_for():
    walk = Walk(kinds={"a": "files", "b": "kafka"}).deciding()
    assert walk.only(do.AppendCommit).commit.kinds == {"a": "files"}


def test_a_decision_that_replaces_another_has_the_kinds_too():
    run = Walk(kinds={"b": "kafka"}).writing().run
    again = replace(commit(5), kinds={"a": "files", "gone": "files"})
    assert identity.placed(run, again, {}).kinds == {"a": "files"}


def test_the_same_target_goes_on_and_an_adopted_one_does():
    history = past(0, a=Target(HERE, 0))
    assert Walk(identities={"a": HERE}).writing(history, request(1)).phase is P.Writing
    adopting = Walk(identities={"a": THERE}, adopt_targets=frozenset({"a"}))
    assert adopting.writing(history, request(1)).phase is P.Writing


def test_a_batch_is_written_with_the_batch_before_it_in_each_sink():
    history = past(4, a=Target(HERE, 2, 1), b=Target(HERE, 4, 2))
    walk = Walk().writing(history, request(5))
    assert walk.only(do.RunWrites).after == {"a": 2, "b": 4}


PLACE = {"schema": "s"}


def test_a_batch_is_written_with_the_place_of_the_batch_before_it():
    history = past(4, a=Target(HERE, 2, 1, place=PLACE), b=Target(HERE, 4, 2))
    walk = Walk().writing(history, request(5))
    assert walk.only(do.RunWrites).places == {"a": PLACE}


def test_the_places_of_the_last_batch_and_of_the_one_before_are_known():
    """The one before counts while the last one isn't complete."""
    target = Target(HERE, 4, 2, place=PLACE, after_place={"schema": "before"})
    told = [target.place_of(batch) for batch in (4, 2, 3)]
    assert told == [PLACE, {"schema": "before"}, None]


def test_a_decision_carries_on_the_place_of_the_batch_before():
    history = past(4, a=Target(HERE, 4, 2, place=PLACE), b=Target(HERE, 3, 1, place=PLACE))
    walk = Walk(identities={"a": HERE, "b": HERE}).writing(history, request(5)).feed(placed(5))
    assert decided_targets(walk)["a"] == Target(HERE, 5, 4, after_place=PLACE)


def test_where_a_batch_is_written_anew_without_a_sink_its_target_reaches_what_came_before():
    before = {"schema": "before"}
    history = past(5, b=Target(HERE, 5, 3, place=PLACE, after_place=before))
    run = Walk(identities={"a": HERE}).writing(history, request(5)).run
    told = identity.placed(run, replace(commit(5), committables={"a": ({"name": "x"},)}), {})
    assert told.targets["b"] == Target(HERE, 3, place=before)


def test_a_decision_says_where_a_sink_keeps_what_tells_of_it():
    run = Walk().writing().run
    told = replace(commit(5), committables={"a": ({"name": "x", "place": PLACE},)})
    assert identity.placed(run, told, {"a": HERE}).targets["a"].place == PLACE


def test_a_sweep_says_which_batch_its_target_must_have():
    history = past(4, a=Target(HERE, 4, 2, place=PLACE), b=Target(HERE, 3))
    sweeps = older_sweeps(Walk().writing(history, request(5)).run, {})
    assert (sweeps["a"].reached, sweeps["a"].place) == (4, PLACE)
    assert sweeps["a"].decided == {"a": 4, "b": 3}
    for holds in (True, None):
        assert identity.judge_sweep(sweeps["a"], "it", holds=holds) is None
    refusal = identity.judge_sweep(sweeps["a"], "it", holds=False)
    assert refusal is not None
    assert refusal.message.startswith("Nothing is removed from the sink a: batch 4 ")


def test_a_sweep_of_an_adopted_target_asks_for_no_batch():
    history = past(4, a=Target(HERE, 4, 2, place=PLACE))
    walk = Walk(adopt_targets=frozenset({"a"})).writing(history, request(5))
    assert older_sweeps(walk.run, {})["a"].reached is None


def test_an_adopted_target_has_no_batch_before():
    history = past(4, a=Target(HERE, 2, 1), b=Target(HERE, 4, 2))
    walk = Walk(adopt_targets=frozenset({"a"})).writing(history, request(5))
    assert walk.only(do.RunWrites).after == {"b": 4}


def test_what_a_batch_wrote_to_names_the_batch_before_and_what_it_did_not_is_carried_on():
    history = past(4, a=Target(HERE, 2, 1), b=Target(THERE, 4, 2), gone=Target(THERE, 3))
    walk = Walk(identities={"a": HERE, "b": THERE}).writing(history, request(5)).feed(placed(5))
    assert decided_targets(walk) == {
        "a": Target(HERE, 5, 2),
        "b": Target(THERE, 4, 2),
        "gone": Target(THERE, 3),
    }


def test_a_sink_that_needs_no_commit_is_placed_by_its_rows():
    event = replace(
        prepared(0, a=()), digests={"a/0": (Digest(0, 0),), "b/1": (Digest(0, 0), Digest(2, 7))}
    )
    walk = Walk(identities={"a": HERE, "b": THERE}).writing().feed(event)
    assert decided_targets(walk) == {"b": Target(THERE, 0)}


def test_a_sink_that_had_transactions_and_needs_none_any_more_is_placed_by_its_rows():
    """A PostgresSink whose mode was changed to upsert."""
    walk = Walk(identities={"a": HERE}).writing(past(0, a=Target(HERE, 0)), request(1))
    walk.feed(prepared(1, b=(handle("b0"),)))
    assert decided_targets(walk) == {"a": Target(HERE, 1, 0)}


def test_a_sink_that_tells_no_identity_is_not_in_the_decision():
    walk = Walk(identities={"a": None}).writing().feed(prepared(0))
    assert decided_targets(walk) == {}


def test_a_target_that_changes_under_a_living_run_decides_nothing():
    walk = (
        Walk(identities={"a": HERE})
        .writing(past(0, a=Target(HERE, 0)), request(1))
        .feed(placed(1, THERE))
    )
    assert [type(d) for d in walk.decisions] == [do.AbortAttempt]
    walk.feed(saw.AttemptAborted())
    assert walk.stopped_with(CheckpointMismatchError)


def test_a_run_compares_with_what_it_has_decided_itself_and_adopts_once():
    walk = Walk(identities={"a": THERE}, adopt_targets=frozenset({"a"})).writing(
        past(0, a=Target(HERE, 0)), request(1)
    )
    walk.feed(placed(1, THERE))
    given_up = {"identity": HERE, "position": {"batch": 0}}
    assert decided_targets(walk) == {"a": Target(THERE, 1, None, given_up)}
    walk.feed(
        saw.DecisionAppended(1),
        saw.SinksCommitted({"a": answers(handle("a0", identity=THERE))}),
        saw.DoneAppended(),
    )
    walk.feed(request(2))
    assert walk.only(do.RunWrites).after == {"a": 1}
    walk.feed(placed(2, THERE))
    assert decided_targets(walk) == {"a": Target(THERE, 2, 1)}


def test_a_run_that_rolls_does_not_adopt_what_it_has_decided_once_more():
    """It has decided in its first generation, and its names are still of that one."""
    walk = Walk(adopt_targets=frozenset({"a"}), roll_after_entries=3).ready()
    run = replace(
        walk.run,
        name_generation=1,
        generation=3,
        history=past(1, generation=2, a=Target(THERE, 1)),
    )
    assert identity.known(run) == {"a": Target(THERE, 1)}
    before = replace(run, history=past(1, generation=0, a=Target(THERE, 1)))
    assert identity.known(before) == {
        "a": Target(adopted={"identity": THERE, "position": {"batch": 1}})
    }


def test_an_adoption_without_rows_stays_on_record():
    walk = Walk(adopt_targets=frozenset({"a"})).writing(past(0, a=Target(HERE, 0)), request(1))
    walk.feed(replace(prepared(1, b=(handle("b0"),)), digests={}))
    (target,) = decided_targets(walk).values()
    assert target == Target(adopted={"identity": HERE, "position": {"batch": 0}})
    again = Walk(adopt_targets=frozenset({"a"})).writing(past(1, a=target), request(2))
    again.feed(replace(prepared(2, b=(handle("b0"),)), digests={}))
    assert decided_targets(again) == {"a": target}


def test_an_adopted_target_that_was_written_to_and_is_given_up_in_turn_is_what_stays_on_record():
    first = {"identity": HERE, "position": {"batch": 0}}
    given_up = identity.adopted({"a": Target(THERE, 1, None, first)}, ["a"])
    assert given_up == {"a": Target(adopted={"identity": THERE, "position": {"batch": 1}})}


def test_a_redo_keeps_the_targets_and_its_batch_comes_after_the_same_one():
    lost = handle("a0", task=[0, 0])
    decided = replace(commit(4, a=(lost,)), targets={"a": Target(HERE, 4, 1)})
    walk = Walk(identities={"a": HERE}).recovering(
        History(Decided(decided, 0, 1, done=False)), request(4)
    )
    walk.feed(saw.SinksRecovered({"a": answers(lost=(lost,))}), saw.LostFenced())
    assert walk.only(do.RunWrites).after == {"a": 1}
    walk.feed(prepared(4, a=(handle("a1", task=[0, 0]),)))
    assert decided_targets(walk) == {"a": Target(HERE, 4, 1)}


def test_behind_a_batch_that_was_closed_by_a_users_word_nobody_knows_the_batch_before():
    doubtful = handle("a0")
    decided = replace(
        commit(4, a=(doubtful,)), targets={"a": Target(HERE, 4, 1), "b": Target(HERE, 3)}
    )
    walk = Walk(in_doubt="committed").recovering(
        History(Decided(decided, 0, 1, done=False)), request(5)
    )
    walk.feed(saw.SinksRecovered({"a": answers(in_doubt=(doubtful,))}), saw.DoneAppended())
    assert walk.only(do.RunWrites).after == {"b": 3}
    walk.feed(placed(5))
    assert decided_targets(walk)["a"] == Target(HERE, 5, None)
    walk.feed(
        saw.DecisionAppended(1),
        saw.SinksCommitted({"a": answers(handle("a0", identity=HERE))}),
        saw.DoneAppended(),
    )
    walk.feed(request(6))
    assert walk.only(do.RunWrites).after == {"a": 5, "b": 3}


def test_a_batch_that_is_written_anew_without_a_sink_leaves_that_at_the_batch_before():
    lost = handle("a0", task=[0, 0])
    decided = replace(
        commit(4, a=(lost,)), targets={"a": Target(HERE, 4, 1), "b": Target(THERE, 2)}
    )
    walk = Walk(identities={"a": HERE, "b": THERE}).recovering(
        History(Decided(decided, 0, 1, done=False)), request(4)
    )
    walk.feed(saw.SinksRecovered({"a": answers(lost=(lost,))}), saw.LostFenced())
    # Nothing of the decision was ever visible, so any replay will do: this one has rows for the
    # other sink.
    walk.feed(
        replace(
            prepared(4, b=(handle("b1", task=[0, 0]),)),
            digests={"a/0": (Digest(0, 0),), "b/1": (Digest(3, 9),)},
        )
    )
    assert decided_targets(walk) == {"a": Target(HERE, 1), "b": Target(THERE, 4, 2)}


def test_what_is_given_up_behind_a_batch_that_spark_has_passed_keeps_its_place():
    stays, lost = handle("a0", task=[0, 0]), handle("a1", task=[0, 1])
    decided = replace(commit(4, a=(stays, lost)), targets={"a": Target(HERE, 4, 1)})
    walk = Walk(identities={"a": HERE}, lost_rows=("giveUp", 4)).recovering(
        History(Decided(decided, 0, 1, done=False)), request(5)
    )
    walk.feed(saw.SinksRecovered({"a": answers(stays, lost=(lost,))}), saw.LostFenced())
    assert decided_targets(walk) == {"a": Target(HERE, 4, 1)}


@pytest.mark.parametrize(
    "lost",
    [
        handle("a0", task=[0, 0]),
        # Of one that names no task the decision keeps the rows: they are in nobody's hands.
        handle("a0"),
    ],
    ids=["of a task", "of no task"],
)
def test_a_sink_of_which_all_is_given_up_stays_at_the_batch_before(lost):
    decided = replace(
        commit(4, a=(lost,), b=(handle("b0", task=[1, 0]),)),
        targets={"a": Target(HERE, 4, 1), "b": Target(HERE, 4)},
    )
    walk = Walk(lost_rows=("giveUp", 4)).recovering(
        History(Decided(decided, 0, 1, done=False)), request(5)
    )
    walk.feed(
        saw.SinksRecovered({"a": answers(lost=(lost,)), "b": answers(handle("b0", task=[1, 0]))}),
        saw.LostFenced(),
    )
    assert decided_targets(walk) == {"a": Target(HERE, 1), "b": Target(HERE, 4)}


def test_a_redo_in_an_adopted_target_is_known_there():
    lost = handle("a0", task=[0, 0])
    decided = replace(commit(4, a=(lost,)), targets={"a": Target(HERE, 4, 1)})
    walk = Walk(identities={"a": THERE}, adopt_targets=frozenset({"a"}), in_doubt="aborted")
    walk.recovering(History(Decided(decided, 0, 1, done=False)), request(4))
    walk.feed(saw.SinksRecovered({"a": answers(in_doubt=(lost,))}), saw.LostFenced())
    assert walk.only(do.RunWrites).after == {}
    walk.feed(prepared(4, a=(handle("a1", task=[0, 0], identity=THERE),)))
    given_up = {"identity": HERE, "position": {"batch": 4, "after": 1}}
    assert decided_targets(walk) == {"a": Target(THERE, 4, None, given_up)}
