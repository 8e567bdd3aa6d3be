"""A decided transaction is lost: it is fenced and written again, alone, and only if the replay
is what was decided."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceforall.errors import (
    AttemptFailedError,
    CheckpointMismatchError,
    DivergenceError,
    FencedError,
    InDoubtError,
    NondeterministicReplayError,
    ProtocolViolationError,
    TransactionLostError,
)
from onceforall.protocol import decisions as do
from onceforall.protocol import events as saw
from onceforall.protocol.entries import Digest, total
from onceforall.protocol.history import CommitPermit, Decided, History
from onceforall.protocol.redo import NO_ROWS, Redo, Way, all_again, difference, matched, redo_of
from protocol.building import (
    Walk,
    answers,
    commit,
    committed,
    handle,
    history,
    prepared,
    request,
    task,
    tasks_of,
)
from protocol.scenarios import (
    DECIDED,
    KEPT,
    LOST,
    OTHER,
    STAYED,
    P,
    giving_up_unknown,
    looking,
    writing_kept,
)

NEW = task("new")
ALONE = {"a": (NEW,)}


def writing_again(**changes):
    return looking(**changes).feed(saw.DigestsTaken(DECIDED))


def written(committables, of=DECIDED):
    return saw.WritesPrepared({"a": tuple(committables)}, of, 0, attempts_lost=False)


def test_a_lost_transaction_is_fenced_before_anything_is_written():
    walk = Walk().redoing(LOST, stayed=(STAYED,))
    assert walk.decisions == (do.FenceLost({"a": (LOST,)}),)
    assert do.RunWrites not in map(type, walk.all)


def test_the_batch_is_looked_at_before_a_part_of_it_is_written_again():
    walk = looking()
    assert walk.decisions == (do.TakeDigests(0, 1, writes_next=True),)
    decision = walk.feed(saw.DigestsTaken(DECIDED)).only(do.RunWrites)
    assert (decision.batch, decision.redo, decision.reusable) == (0, frozenset({(0, 0)}), {})


def test_the_redo_is_a_decision_of_its_own_that_replaces_the_old_one():
    decision = writing_again().feed(written([NEW])).only(do.AppendCommit)
    assert decision == do.AppendCommit(
        1, replace(commit(0), committables={"a": (STAYED, NEW)}, digests=DECIDED)
    )


def test_nothing_of_the_redo_is_committed_before_that_decision_and_all_of_it_after():
    walk = writing_again().feed(written([NEW]))
    assert do.CommitSinks not in map(type, walk.all)
    sinks = walk.feed(saw.DecisionAppended(1)).only(do.CommitSinks)
    assert sinks.permit == CommitPermit(1, 1, 0)
    assert sinks.committables == {"a": (STAYED, NEW)}


def test_after_a_redo_the_batch_returns_and_no_producer_goes_on():
    walk = writing_again().feed(written([NEW]), saw.DecisionAppended(1), committed(STAYED, NEW))
    assert walk.decisions == (do.ReturnBatch(0), do.AppendDone(1, 0))
    walk.feed(saw.DoneAppended(), request(1))
    assert walk.only(do.RunWrites) == do.RunWrites(1, 1, {}, 0)


@pytest.mark.parametrize(
    "again", [(), (NEW, task("more", partition=1)), (task("other", partition=1),)]
)
def test_exactly_the_planned_transactions_must_be_prepared_again(again):
    walk = writing_again().feed(written(again)).feed(saw.AttemptAborted())
    assert walk.stopped_with(ProtocolViolationError)


def needing_no_commit(*again):
    """What follows when the sink needs no commit any more, and this was prepared again."""
    walk = looking(need_no_commit=frozenset("a")).feed(saw.DigestsTaken(DECIDED))
    assert walk.only(do.RunWrites).redo == frozenset({(0, 0)})
    return walk.feed(written(again))


@pytest.mark.parametrize("again", [(), (NEW,)])
def test_a_sink_that_needs_no_commit_any_more_writes_again_what_it_had_prepared(again):
    new = needing_no_commit(*again).only(do.AppendCommit).commit
    assert new == replace(commit(0), committables={"a": (STAYED, *again)}, digests=DECIDED)


def test_kept_rows_are_written_again_to_a_sink_that_needs_no_commit_any_more():
    walk = Walk(durable=True, need_no_commit=frozenset("a")).redoing(KEPT, stayed=(STAYED,))
    walk.feed(saw.LostFenced())
    assert walk.only(do.WriteKept).lost == {"a": (KEPT,)}
    walk.feed(written([]))
    assert walk.only(do.AppendCommit).commit.committables == {"a": (STAYED,)}


def test_a_sink_that_needs_no_commit_may_prepare_no_other_transactions_either():
    walk = needing_no_commit(NEW, task("more", partition=1)).feed(saw.AttemptAborted())
    assert walk.stopped_with(ProtocolViolationError)


def test_a_task_that_has_other_rows_than_when_it_was_looked_at_fails_the_redo():
    walk = writing_again().feed(written([NEW], tasks_of(7, 2)))
    abort = walk.only(do.AbortAttempt)
    assert abort.committables == {"a": (NEW,)}
    assert {"a0", "a1"} <= set(abort.sweeps["a"].spared), "what is decided must be spared"
    walk.feed(saw.AttemptAborted())
    assert walk.stopped_with(NondeterministicReplayError)
    message = walk.only(do.StopRun).message
    assert "task 0 had 10 rows, and at its second run 10 of other content" in message
    assert "giveUpUnseen:0" in message, (
        "giveUp looks at a replay first, and that look matches each time"
    )
    assert do.AppendCommit not in map(type, walk.all)


def test_a_task_that_only_digests_may_have_other_rows_than_when_it_was_looked_at():
    assert (
        writing_again().feed(written([NEW], tasks_of(1, 7))).only(do.AppendCommit).commit.digests
        == DECIDED
    )


def deciding_again(**changes):
    return writing_again(**changes).feed(written([NEW]))


def test_a_redo_without_a_decision_does_not_call_the_batch_undecided_or_unseen():
    for refused in (saw.AppendTooLate(), saw.AppendRefused("boom")):
        stopped = deciding_again().feed(refused, saw.AttemptAborted()).only(do.StopRun)
        assert "Nothing was decided" not in stopped.message
        assert "nothing of it is visible" not in stopped.message
    assert "could not be written again" in stopped.message
    assert stopped.in_own_words
    first = Walk().deciding().feed(saw.AppendRefused("boom"), saw.AttemptAborted())
    assert not first.only(do.StopRun).in_own_words


def test_a_redo_that_is_fenced_at_its_decision_aborts_only_what_it_prepared_itself():
    walk = writing_again().feed(written([NEW]), saw.AppendFenced())
    assert walk.only(do.AbortAttempt).committables == {"a": (NEW,)}
    assert walk.feed(saw.AttemptAborted()).stopped_with(FencedError)


def test_a_redo_without_an_answer_to_its_decision_aborts_nothing():
    walk = writing_again().feed(written([NEW]), saw.AppendUnknown("no answer"))
    assert do.AbortAttempt not in map(type, walk.all)


def test_the_redo_of_a_redo_after_a_crash_redoes_what_is_lost_by_then():
    walk = (
        Walk()
        .redoing(task("new"), stayed=(STAYED,), decided=DECIDED)
        .feed(saw.LostFenced(), saw.DigestsTaken(DECIDED))
    )
    assert walk.only(do.RunWrites).redo == {(0, 0)}


def test_a_transaction_that_is_lost_again_after_its_redo_stops_the_run_and_gets_no_done():
    walk = writing_again().feed(written([NEW]), saw.DecisionAppended(1))
    walk.feed(saw.SinksCommitted({"a": answers(STAYED, lost=[NEW])}))
    assert walk.stopped_with(TransactionLostError)
    assert do.AppendDone not in map(type, walk.all)


# --- which tasks of a replay stand for lost ones --------------------------------------------------


def a_loss(decided, gone, replayed):
    """Return a decision, what of it is lost, and what a replay gave."""
    redo = Redo(
        {"a": tuple(task(f"a{p}", partition=p) for p in gone)},
        frozenset({("a", "stayed")}),
        Way.MATCHED,
    )
    return replace(commit(0), digests={"a/0": tuple(decided)}), redo, {"a/0": tuple(replayed)}


def the_plan(decided, gone, replayed):
    return matched(*a_loss(decided, gone, replayed))


def sums(*each):
    return tasks_of(*each)["a/0"]


@pytest.mark.parametrize(
    ("decided", "gone", "replayed", "tasks", "places"),
    [
        pytest.param(sums(1, 2, 3), [0], sums(1, 2, 3), {0: 0}, {}, id="in its place"),
        pytest.param(sums(1, 2, 3), [0], sums(3, 1, 2), {1: 0}, {}, id="in another place"),
        pytest.param(
            sums(1, 2, 3), [0, 2], sums(3, 2, 1), {2: 0, 0: 2}, {}, id="two that changed places"
        ),
        pytest.param(
            sums(5, 5, 5), [1], sums(5, 5, 5), {0: 1}, {}, id="equal ones are interchangeable"
        ),
        pytest.param(
            sums(5, 5, 6), [0, 1], sums(6, 5, 5), {1: 0, 2: 1}, {}, id="two equal ones need two"
        ),
        pytest.param(sums(1, 2), [0], sums(1, 9), {0: 0}, {}, id="what stays visible may differ"),
        pytest.param(
            (Digest(30, 3), Digest(10, 9)),
            [0],
            (Digest(10, 1), Digest(10, 9), Digest(20, 2)),
            {},
            {0: 2, 2: 3},
            id="split in two",
        ),
        pytest.param(
            sums(1, 2, 9),
            [0, 1],
            (Digest(10, 9), Digest(20, 3)),
            {},
            {1: 3},
            id="two merged into one",
        ),
        pytest.param(
            sums(1, 2, 4, 9),
            [0, 1],
            (Digest(10, 1), Digest(4, 1), Digest(6, 1), Digest(20, 13)),
            {0: 0},
            {1: 4, 2: 5},
            id="one split only",
        ),
        pytest.param(
            (Digest(1, 7), Digest(3, 10)),
            [1],
            (Digest(1, 7), Digest(1, 7), Digest(2, 3)),
            {},
            {1: 2, 2: 3},
            id="split, with a part that is equal to one that is visible",
        ),
        pytest.param(
            (Digest(10, 7), *sums(*range(100, 130))),
            [0],
            (Digest(4, 3), *sums(*range(100, 130)), Digest(6, 4)),
            {},
            {0: 31, 31: 32},
            id="split, with too many between that are none of it to be tried in all ways",
        ),
        pytest.param(
            (Digest(10, 7), *sums(100)),
            [0],
            (*sums(*range(200, 215)), Digest(4, 3), Digest(6, 4), *sums(*range(215, 230))),
            {},
            {15: 2, 16: 3},
            id="neighbours among many others",
        ),
        pytest.param(
            (Digest(10, 7), *sums(100, 150)),
            [0, 2],
            (Digest(4, 3), *sums(150), *sums(*range(200, 222)), *sums(100), Digest(6, 4)),
            {1: 2},
            {0: 3, 24 + 1: 4},
            id="apart among as many others as are tried in all ways",
        ),
    ],
)
def test_lost_tasks_are_matched_by_what_they_wrote(decided, gone, replayed, tasks, places):
    plan = the_plan(decided, gone, replayed)
    assert plan.places == {
        (0, partition): place for partition, place in {**tasks, **places}.items()
    }
    assert plan.tasks == {(0, partition): replayed[partition] for partition in {**tasks, **places}}
    assert total(plan.digests["a/0"]) == total(decided)
    for (_, partition), place in plan.places.items():
        assert plan.digests["a/0"][place] == replayed[partition], (
            "a second loss must find the rows under the number in the decision"
        )
    assert all(plan.digests["a/0"][p] == d for p, d in enumerate(decided) if p not in gone), (
        "what stays keeps its place"
    )


@pytest.mark.parametrize(
    ("decided", "gone", "replayed"),
    [
        pytest.param(sums(1, 2), [0], sums(2, 3), id="other rows"),
        pytest.param(sums(5, 5, 6), [0, 1], sums(5, 6, 7), id="two equal ones, and only one there"),
        pytest.param(sums(1, 2), [0], (Digest(20, 3),), id="merged with what is visible"),
        pytest.param(sums(1, 2), [0], (), id="no task"),
        pytest.param(
            (Digest(10, 7), *sums(100)),
            [0],
            (Digest(4, 3), *sums(*range(200, 223)), Digest(6, 4)),
            id="apart among one more than are tried in all ways",
        ),
        pytest.param(
            (NO_ROWS, Digest(10, 1)), [0], (Digest(10, 1),), id="an empty one where task 0 has rows"
        ),
        pytest.param(
            sums(3, 9),
            [0],
            (Digest(4, 3), Digest(6, 1), Digest(10, 9)),
            id="as many rows of other content",
        ),
    ],
)
def test_lost_tasks_without_a_match_have_no_plan(decided, gone, replayed):
    assert the_plan(decided, gone, replayed) is None


def test_an_empty_transaction_is_the_drivers_again():
    assert the_plan((NO_ROWS,), [0], (NO_ROWS,)).tasks == {(0, 0): NO_ROWS}
    assert the_plan((), [0], ()).tasks == {(0, 0): NO_ROWS}


@given(data=st.data())
def test_whatever_a_replay_permutes_splits_and_merges_exactly_the_lost_rows_are_planned_or_nothing(
    data,
):
    """Each row has a hash of its own, so that a plan can be checked row by row."""
    rows = [2**row for row in range(12)]

    def dealt(tasks):
        places = [data.draw(st.integers(0, tasks - 1)) for _ in rows]
        return [
            [row for row, at in zip(rows, places, strict=True) if at == task]
            for task in range(tasks)
        ]

    decided = [each for each in dealt(data.draw(st.integers(1, 5))) if each]
    gone = sorted(data.draw(st.sets(st.sampled_from(range(len(decided))), min_size=1)))
    pieces = []
    for task_rows in decided:
        cut = data.draw(st.integers(0, len(task_rows)))
        pieces += [task_rows] if data.draw(st.booleans()) else [task_rows[:cut], task_rows[cut:]]
    if data.draw(st.booleans()) and len(pieces) > 1:
        pieces = [pieces[0] + pieces[1], *pieces[2:]]
    replayed = data.draw(st.permutations(pieces))

    def digested(tasks):
        return [Digest(len(each), sum(each)) for each in tasks]

    plan = the_plan(digested(decided), gone, digested(replayed))
    lost = sorted(row for place in gone for row in decided[place])
    whole = all(any(set(piece) <= set(lost) for piece in replayed if row in piece) for row in lost)
    assert (plan is not None) == whole
    if plan is not None:
        assert sorted(row for _, partition in plan.tasks for row in replayed[partition]) == lost


@given(
    decided=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    replayed=st.lists(st.integers(1, 4), max_size=5),
    data=st.data(),
)
def test_a_second_loss_finds_each_task_of_a_plan_by_its_number_in_the_new_decision(
    decided, replayed, data
):
    gone = sorted(data.draw(st.sets(st.sampled_from(range(len(decided))), min_size=1)))
    replayed = sums(*replayed)
    beside = all_again(*a_loss(sums(*decided), gone, replayed))
    assert set(beside.tasks) == {(0, partition) for partition in range(max(1, len(replayed)))}
    for plan in filter(None, (beside, the_plan(sums(*decided), gone, replayed))):
        table = plan.digests["a/0"]
        assert len(set(plan.places.values())) == len(plan.places) == len(plan.tasks)
        for each, digest in plan.tasks.items():
            place = plan.places[each]
            assert (table[place] if place < len(table) else NO_ROWS) == digest
            assert place in gone or place >= len(decided), "that place is of a task that stays"


@pytest.mark.parametrize(
    ("again", "words"),
    [
        (
            tasks_of(9, 2),
            (
                "The rows themselves differ.*a/0: 2 tasks with 20 rows then, 2 with 20 now; of the "
                "lost ones task 0 .10 rows. has no match"
            ),
        ),
        (
            {"a/0": (Digest(20, 3),)},
            (
                "The rows are the same, but they are divided.*a/0: 2 tasks with 20 rows then, 1 with "
                "20 now"
            ),
        ),
        ({}, "has not the writes a/0"),
    ],
)
def test_a_replay_without_a_match_writes_nothing_and_says_how_it_differs(again, words):
    walk = looking().feed(saw.DigestsTaken(again))
    assert walk.stopped_with(NondeterministicReplayError)
    assert not {do.RunWrites, do.AppendCommit, do.AbortAttempt} & set(map(type, walk.all))
    message = walk.only(do.StopRun).message
    assert re.search(words, message)
    assert "onceforall.lostRows=giveUp:0" in message
    assert ("onceforall.lostRows=writeAll:0" in message) == bool(again)


def test_many_lost_tasks_without_a_match_are_not_all_named():
    lost = {"a": tuple(task(f"a{p}", partition=p) for p in range(9))}
    redo = Redo(lost, frozenset({("a", "x")}), Way.MATCHED)
    message = difference(
        replace(commit(0), digests=tasks_of(*range(1, 11))), redo, tasks_of(*range(21, 31))
    )
    assert message.count("task ") == 5
    assert "and 4 more" in message


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        (1, "task 0 (11 rows) has no match"),
        (5, "task 3 (14 rows), task 4 (15 rows) have no match"),
        (6, "task 4 (15 rows) and 1 more have no match"),
    ],
)
def test_lost_tasks_without_a_match_are_named_with_their_rows(gone, named):
    decided, redo, _ = a_loss([Digest(11 + p, p) for p in range(8)], range(gone), [])
    message = difference(decided, redo, {"a/0": (Digest(3, 50), Digest(4, 51), Digest(5, 52))})
    assert "a/0: 8 tasks with 116 rows then, 3 with 12 now; of the lost ones" in message
    assert named in message
    assert message.startswith("The rows themselves differ.")


def test_only_the_writes_that_lack_a_match_are_named():
    lost = {"a": (task("a0"),), "b": (task("b0"),)}
    redo = Redo(lost, frozenset({("a", "x")}), Way.MATCHED)
    decided = replace(commit(0), digests={**tasks_of(1, 2), **tasks_of(3, 4, key="b/0")})
    message = difference(decided, redo, {**tasks_of(1, 9), **tasks_of(7, 8, key="b/0")})
    assert "b/0: 2 tasks" in message
    assert "a/0" not in message


def test_a_second_loss_finds_the_rows_under_their_number_in_the_redos_decision():
    """The replay came in another order, so that Spark's number of the task is not the number in
    the decision."""
    swapped = tasks_of(2, 1)
    walk = looking().feed(saw.DigestsTaken(swapped))
    assert walk.only(do.RunWrites).redo == {(0, 1)}
    again = walk.feed(written([task("new", partition=1)], swapped)).only(do.AppendCommit).commit
    assert again.committables["a"] == (STAYED, task("new", partition=0))
    assert again.digests == DECIDED
    second = Walk().redoing(task("new", partition=0), stayed=(STAYED,), decided=again.digests)
    assert second.feed(saw.LostFenced(), saw.DigestsTaken(swapped)).only(do.RunWrites).redo == {
        (0, 1)
    }


def test_a_stateful_replay_that_matches_what_is_lost_and_differs_elsewhere_is_reported():
    asked = request(0, stateful=True)
    walk = Walk().redoing(LOST, stayed=(STAYED,), asked=asked, decided=DECIDED)
    walk.feed(saw.LostFenced(), saw.DigestsTaken(tasks_of(1, 9)))
    assert list(map(type, walk.decisions)) == [do.ReportDivergence, do.RunWrites]
    strict = Walk(on_divergence="fail").redoing(
        LOST, stayed=(STAYED,), asked=asked, decided=DECIDED
    )
    assert strict.feed(saw.LostFenced(), saw.DigestsTaken(tasks_of(1, 9))).stopped_with(
        DivergenceError
    )


# --- everything is lost ---------------------------------------------------------------------------


def test_when_all_of_a_decision_is_lost_any_replay_is_written_and_decided_anew():
    walk = Walk().redoing(LOST, decided=DECIDED)
    assert walk.decisions == (do.FenceLost({"a": (LOST,)}),), (
        "nothing may be written before no request can commit the lost ones"
    )
    assert walk.feed(saw.LostFenced()).only(do.RunWrites) == do.RunWrites(0, 1, {}, 0, None)
    other = (task("new", partition=3), task("more", partition=4))
    decision = walk.feed(written(other, OTHER)).only(do.AppendCommit)
    assert decision.commit == replace(commit(0), committables={"a": other}, digests=OTHER)
    assert "other rows" in walk.only(do.ReportDivergence).message, (
        "nobody has seen the decided rows, but somebody may miss them"
    )
    walk.feed(saw.DecisionAppended(1), committed(*other))
    assert walk.decisions == (do.ReturnBatch(0), do.AppendDone(1, 0))


def test_a_whole_batch_with_other_rows_is_not_written_where_the_user_wants_no_divergence():
    walk = (
        Walk(on_divergence="fail")
        .redoing(LOST, decided=DECIDED)
        .feed(saw.LostFenced(), written([NEW], OTHER))
    )
    assert walk.feed(saw.AttemptAborted()).stopped_with(DivergenceError)
    same = (
        Walk(on_divergence="fail")
        .redoing(LOST, decided=DECIDED)
        .feed(saw.LostFenced(), written([NEW], DECIDED))
    )
    assert same.only(do.AppendCommit)


def test_a_decision_is_not_all_lost_while_another_sink_has_a_part_of_it():
    past = history(0, done=False, a=(LOST,), b=(task("b0"),))
    found = {"a": answers(lost=[LOST]), "b": answers(task("b0"))}
    walk = Walk().recovering(past).feed(saw.SinksRecovered(found), saw.LostFenced())
    assert walk.phase is P.Looking


def test_a_name_that_two_sinks_have_is_lost_on_one_only():
    past = history(0, done=False, a=(LOST,), b=(LOST,))
    found = {"a": answers(lost=[LOST]), "b": answers(LOST)}
    assert (
        Walk().recovering(past).feed(saw.SinksRecovered(found), saw.LostFenced()).phase is P.Looking
    )


def test_a_stateful_query_that_lost_all_of_a_batch_gets_rows_and_state_from_one_replay():
    """Kept rows would be those of another run than the state is."""
    walk = Walk(durable=True).redoing(KEPT, asked=request(0, stateful=True)).feed(saw.LostFenced())
    assert walk.only(do.RunWrites).redo is None
    asked_for = (
        Walk(durable=True, kept_first=True)
        .redoing(KEPT, asked=request(0, stateful=True))
        .feed(saw.LostFenced())
    )
    assert asked_for.only(do.WriteKept), (
        "whoever asks for kept rows gets the very rows that were decided"
    )
    partly = (
        Walk(durable=True)
        .redoing(KEPT, stayed=(STAYED,), asked=request(0, stateful=True))
        .feed(saw.LostFenced())
    )
    assert partly.only(do.WriteKept)


# --- what a person chooses ------------------------------------------------------------------------


def record_of(walk):
    (loss,) = walk.only(do.AppendCommit).commit.losses
    return loss


def test_lost_rows_are_given_up_only_by_a_persons_word_for_this_batch():
    assert (
        looking(lost_rows=("giveUp", 1))
        .feed(saw.DigestsTaken(OTHER))
        .stopped_with(NondeterministicReplayError)
    )
    walk = looking(lost_rows=("giveUp", 0)).feed(saw.DigestsTaken(OTHER))
    decided = walk.only(do.AppendCommit).commit
    assert decided.committables == {"a": (STAYED,)}
    assert decided.digests == {"a/0": (NO_ROWS, Digest(10, 2))}
    loss = record_of(walk)
    assert loss["choice"] == "giveUp"
    assert loss["lost"] == [{"sink": "a", "name": "a0", "task": [0, 0], "rows": 10}]
    assert (loss["lost_rows"], loss["visible_rows"]) == (10, 10)
    assert loss["input"] == {"from": [], "to": ['{"t":0}']}
    assert "The rows themselves differ" in loss["reason"]
    walk.feed(saw.DecisionAppended(1), committed(STAYED))
    assert walk.feed(saw.DoneAppended()).decisions == (do.ReturnBatch(0),)


def test_a_batch_may_be_written_again_beside_what_is_visible_of_it_by_a_persons_word():
    walk = looking(lost_rows=("writeAll", 0)).feed(saw.DigestsTaken(OTHER))
    assert walk.only(do.RunWrites).redo == {(0, 0), (0, 1)}
    # Its rows differ each time, so that nothing is compared.
    walk.feed(written([task("n0"), task("n1", partition=1)], tasks_of(7, 8)))
    decided = walk.only(do.AppendCommit).commit
    assert decided.committables == {"a": (STAYED, task("n0", partition=2), task("n1", partition=3))}
    assert decided.digests == {"a/0": (NO_ROWS, Digest(10, 2), Digest(10, 7), Digest(10, 8))}
    assert record_of(walk)["choice"] == "writeAll"


def test_proof_goes_before_what_a_person_has_chosen():
    for choice in ("giveUp", "writeAll"):
        walk = looking(lost_rows=(choice, 0)).feed(saw.DigestsTaken(DECIDED), written([NEW]))
        assert walk.only(do.AppendCommit).commit.losses == ()


def test_a_batch_that_is_written_whole_with_another_number_of_tasks_than_looked_at_is_aborted():
    walk = looking(lost_rows=("writeAll", 0)).feed(saw.DigestsTaken(OTHER))
    walk.feed(written([task("n0")], tasks_of(7, 8, 9)), saw.AttemptAborted())
    assert walk.stopped_with(ProtocolViolationError)


def test_rows_are_not_given_up_because_a_replay_fails():
    """It may pass; and a query that is stopped while it looks fails so, too."""
    stopped = looking(lost_rows=("giveUp", 0)).feed(saw.WritesFailed("the source has gone"))
    assert stopped.stopped_with(AttemptFailedError)
    message = stopped.only(do.StopRun).message
    assert "can't be replayed: the source has gone" in message
    assert "onceforall.lostRows=giveUpUnseen:0" in message


@pytest.mark.parametrize("stayed", [(STAYED,), ()], ids=["a part", "all"])
@pytest.mark.parametrize("durable", [False, True])
def test_rows_are_given_up_without_a_replay_by_a_word_of_its_own(stayed, durable):
    walk = Walk(lost_rows=("giveUpUnseen", 0), durable=durable).redoing(
        KEPT, stayed=stayed, decided=DECIDED
    )
    walk.feed(saw.LostFenced())
    assert walk.only(do.AppendCommit).commit.committables == {"a": stayed}
    assert record_of(walk)["choice"] == "giveUp"
    other = Walk(lost_rows=("giveUpUnseen", 1), durable=durable).redoing(
        KEPT, stayed=stayed, decided=DECIDED
    )
    assert do.AppendCommit not in map(type, other.feed(saw.LostFenced()).decisions)


def test_what_only_a_lost_transaction_says_of_its_write_is_handed_on():
    """``FileSink`` has the layout of a write's files on its first transaction only."""
    lost, others = (
        task("a0", layout="of 0", rows={"file": "x"}),
        (task("a1", partition=1), task("a2", partition=2)),
    )
    of_write_1 = handle("b0", task=[1, 0])
    walk = Walk(lost_rows=("giveUp", 0)).redoing(
        lost, stayed=(of_write_1, *others), decided=tasks_of(1, 2, 3)
    )
    walk.feed(saw.LostFenced(), saw.DigestsTaken(OTHER))
    assert walk.only(do.AppendCommit).commit.committables["a"] == (
        of_write_1,
        {**others[0], "layout": "of 0"},
        others[1],
    )


def test_a_batch_is_not_written_beside_itself_when_the_writes_have_changed_places():
    walk = looking(lost_rows=("writeAll", 0)).feed(
        saw.DigestsTaken({"b/0": OTHER["a/0"], "a/1": OTHER["a/0"]})
    )
    assert walk.stopped_with(NondeterministicReplayError)
    assert "in another order" in walk.only(do.StopRun).message


def test_a_lost_task_that_was_merged_is_found_though_a_visible_one_has_the_same_rows():
    decided = (Digest(1, 5), Digest(1, 7), Digest(1, 5))
    plan = the_plan(decided, [0, 1], (Digest(2, 12), Digest(1, 5)))
    assert set(plan.tasks) == {(0, 0)}


@pytest.mark.parametrize(
    ("batch", "start", "known"), [(0, ("begin",), ["begin"]), (1, commit(0).offsets, [])]
)
def test_where_the_lost_input_begins_is_on_record_if_spark_asks_for_that_batch(batch, start, known):
    """What is asked for begins elsewhere when it is another batch."""
    asked = replace(request(batch), start=start)
    walk = Walk(lost_rows=("giveUp", 0)).redoing(
        LOST, stayed=(STAYED,), asked=asked, decided=DECIDED
    )
    walk.feed(saw.LostFenced())
    if batch == 0:
        walk.feed(saw.DigestsTaken(OTHER))
    loss = record_of(walk)
    assert loss["input"] == {"from": known, "to": list(commit(0).offsets)}
    assert (loss["batch"], loss["lost_rows"], loss["visible_rows"]) == (0, 10, 10)


def test_what_was_given_up_before_stays_on_record_beside_it():
    earlier = {"batch": 0, "choice": "giveUp"}
    past = replace(history(0, done=False, a=(STAYED, LOST)).decided.commit, digests=DECIDED)
    past = replace(past, losses=(earlier,))
    walk = Walk(lost_rows=("giveUp", 0)).recovering(History(Decided(past, 0, 1, done=False)))
    walk.feed(saw.SinksRecovered({"a": answers(STAYED, lost=[LOST])}))
    walk.feed(saw.LostFenced(), saw.DigestsTaken(OTHER))
    first, second = walk.only(do.AppendCommit).commit.losses
    assert first == earlier
    assert second["lost"] == [{"sink": "a", "name": "a0", "task": [0, 0], "rows": 10}]


def test_the_reason_on_record_is_short():
    walk = looking(lost_rows=("giveUp", 0)).feed(
        saw.DigestsTaken({"a/0": tuple(Digest(9, n) for n in range(2))})
    )
    assert 0 < len(record_of(walk)["reason"]) <= 500


def test_what_was_chosen_stays_on_record_in_every_later_decision():
    walk = looking(lost_rows=("giveUp", 0)).feed(saw.DigestsTaken(OTHER))
    loss = record_of(walk)
    walk.feed(saw.DecisionAppended(1), committed(STAYED), saw.DoneAppended())
    walk.feed(request(1), prepared(1))
    assert walk.only(do.AppendCommit).commit.losses == (loss,)


def test_rows_of_which_an_earlier_release_recorded_no_task_can_be_given_up():
    walk = giving_up_unknown().feed(saw.LostFenced())
    assert walk.only(do.AppendCommit).commit.committables == {"a": (STAYED,)}
    assert record_of(walk)["lost"] == [
        {"sink": "a", "name": "a0", "task": [None, None], "rows": None}
    ]


# --- for which batch ------------------------------------------------------------------------------


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
    assert walk.feed(saw.SinksRecovered({"a": answers(lost=[LOST])}, sealed=True)).stopped_with(
        FencedError
    )


# --- from kept rows -------------------------------------------------------------------------------


def test_kept_rows_are_written_without_the_users_function():
    walk = writing_kept()
    assert walk.only(do.WriteKept) == do.WriteKept(0, 1, 0, {"a": (KEPT,)})


def test_kept_rows_are_not_used_unless_they_are_asked_for():
    walk = (
        Walk()
        .redoing(KEPT, stayed=(STAYED,), decided=DECIDED)
        .feed(saw.LostFenced(), saw.DigestsTaken(DECIDED))
    )
    assert walk.only(do.RunWrites).redo == {(0, 0)}


def test_where_the_rows_of_some_were_kept_those_are_written_and_the_others_come_at_the_next_start():
    """A disk that was full for a moment must not take the rows along that other tasks have kept."""
    bare = task("a2", partition=2)
    walk = Walk(durable=True, lost_rows=("giveUp", 0)).redoing(
        KEPT, bare, stayed=(STAYED,), decided=tasks_of(1, 2, 3)
    )
    assert walk.only(do.FenceLost).committables == {"a": (KEPT,)}
    walk.feed(saw.LostFenced())
    assert walk.only(do.WriteKept).lost == {"a": (KEPT,)}
    walk.feed(prepared(a=(NEW,)))
    assert {c["name"] for c in walk.only(do.AppendCommit).commit.committables["a"]} == {
        "new",
        "a1",
        "a2",
    }
    assert not walk.only(do.AppendCommit).commit.losses
    walk.feed(saw.DecisionAppended(1), saw.SinksCommitted({"a": answers(STAYED, NEW, lost=[bare])}))
    assert walk.stopped_with(TransactionLostError)
    again = Walk(durable=True, lost_rows=("giveUp", 0)).redoing(
        bare, stayed=(STAYED, NEW), decided=tasks_of(1, 2, 3)
    )
    again.feed(saw.LostFenced(), saw.DigestsTaken(tasks_of(4)))
    assert [each["name"] for each in record_of(again)["lost"]] == ["a2"], (
        "only what no kept rows stand for is given up"
    )


def test_after_a_redo_from_kept_rows_a_stateless_batch_is_skipped_and_a_stateful_one_digests():
    for stateful, decision in ((False, do.ReturnBatch(0)), (True, do.TakeDigests(0, 1))):
        walk = Walk(durable=True).redoing(
            KEPT, stayed=(STAYED,), asked=request(0, stateful=stateful), decided=DECIDED
        )
        walk.feed(
            saw.LostFenced(), prepared(a=(NEW,)), saw.DecisionAppended(1), committed(STAYED, NEW)
        )
        assert walk.decisions == (do.AppendDone(1, 0),)
        assert walk.feed(saw.DoneAppended()).decisions == (decision,)


# --- without proof --------------------------------------------------------------------------------


def in_doubt(**changes):
    past = history(0, done=False, a=(LOST,))
    return (
        Walk(**changes).recovering(past).feed(saw.SinksRecovered({"a": answers(in_doubt=[LOST])}))
    )


def test_without_proof_the_run_stops_in_doubt_and_names_the_choices():
    walk = in_doubt()
    assert walk.stopped_with(InDoubtError)
    message = walk.only(do.StopRun).message
    assert all(
        words in message
        for words in ("a0 of sink a", "onceforall.inDoubt=committed", "onceforall.inDoubt=aborted")
    )
    assert do.AppendDone not in map(type, walk.all)


def test_without_proof_a_live_run_stops_in_doubt_too():
    walk = Walk().committing().feed(saw.SinksCommitted({"a": answers(in_doubt=[handle("a0")])}))
    assert walk.stopped_with(InDoubtError)


def test_a_user_may_say_what_became_of_it():
    assert in_doubt(in_doubt="committed").decisions == (do.AppendDone(1, 0),)
    assert in_doubt(in_doubt="aborted").decisions == (do.FenceLost({"a": (LOST,)}),)


@pytest.mark.parametrize("said", [None, "committed"])
def test_what_is_open_is_not_committed_whoever_says_so(said):
    past = history(0, done=False, a=(LOST,))
    found = saw.SinkAnswers(in_doubt=(saw.Lost("a", LOST, "its topic is gone", is_open=True),))
    walk = Walk(in_doubt=said).recovering(past).feed(saw.SinksRecovered({"a": found}))
    assert walk.stopped_with(InDoubtError)
    message = walk.only(do.StopRun).message
    assert "onceforall.inDoubt=aborted: they are aborted" in message
    assert "inDoubt=committed" not in message
    walk = Walk(in_doubt="aborted").recovering(past).feed(saw.SinksRecovered({"a": found}))
    assert walk.decisions == (do.FenceLost({"a": (LOST,)}),)


def test_what_is_open_is_written_again_whatever_is_said_of_others():
    past = history(0, done=False, a=(LOST, handle("a1")))
    open_one = saw.Lost("a", LOST, "its topic is gone", is_open=True)
    unproven = saw.Lost("a", handle("a1"), "its marker is gone")
    found = {"a": saw.SinkAnswers(in_doubt=(open_one, unproven))}
    message = Walk().recovering(past).feed(saw.SinksRecovered(found)).only(do.StopRun).message
    assert (
        "what became of 1 of its prepared transactions can't be proved; the first is a1" in message
    )
    assert "1; the first is a0 of sink a: its topic is gone. With either word" in message
    for said, again in (("committed", (LOST,)), ("aborted", (LOST, handle("a1")))):
        walk = Walk(in_doubt=said).recovering(past).feed(saw.SinksRecovered(found))
        assert walk.decisions == (do.FenceLost({"a": again}),)


def test_options_for_one_start_are_named_together_until_a_decision_has_them():
    """Each error that names its own alone would lead from one to the other, for ever."""
    adopted = {"adopt_targets": frozenset("ba")}
    walk = in_doubt(**adopted)
    assert "Each start needs onceforall.adoptTarget=a,b, too" in walk.only(do.StopRun).message
    both = looking(in_doubt="aborted", **adopted).feed(saw.DigestsTaken(OTHER))
    assert "needs onceforall.adoptTarget=a,b and onceforall.inDoubt=aborted, too" in (
        both.only(do.StopRun).message
    )
    done = (
        Walk(**adopted).committing().feed(saw.SinksCommitted({"a": answers(lost=[handle("a0")])}))
    )
    assert "Each start needs" not in done.only(do.StopRun).message


@pytest.mark.parametrize("in_doubt", [None, "aborted"])
def test_a_redo_that_stops_says_what_each_start_needs_until_it_succeeds(in_doubt):
    stopped = [
        looking(in_doubt=in_doubt).feed(saw.DigestsTaken(OTHER)),
        looking(in_doubt=in_doubt).feed(saw.DigestsTaken(tasks_of(1, 2, key="b/1"))),
        looking(in_doubt=in_doubt).feed(saw.WritesFailed("boom")),
        writing_again(in_doubt=in_doubt).feed(saw.WritesFailed("boom"), saw.AttemptAborted()),
        writing_again(in_doubt=in_doubt).feed(written([NEW], tasks_of(7, 2)), saw.AttemptAborted()),
        deciding_again(in_doubt=in_doubt).feed(saw.AppendTooLate(), saw.AttemptAborted()),
        deciding_again(in_doubt=in_doubt).feed(saw.AppendRefused("boom"), saw.AttemptAborted()),
        Walk(in_doubt=in_doubt, on_divergence="fail")
        .redoing(LOST, decided=DECIDED)
        .feed(saw.LostFenced(), written([NEW], OTHER), saw.AttemptAborted()),
        Walk(in_doubt=in_doubt, on_divergence="fail")
        .redoing(LOST, stayed=(STAYED,), asked=request(0, stateful=True), decided=DECIDED)
        .feed(saw.LostFenced(), saw.DigestsTaken(tasks_of(1, 9))),
    ]
    for walk in stopped:
        message = walk.only(do.StopRun).message
        assert ("Each start needs onceforall.inDoubt=aborted" in message) == (in_doubt is not None)


def test_what_was_said_of_those_in_doubt_is_no_need_of_a_batch_that_never_had_any():
    """A batch that is written for the first time may be lost, too, beside the word for another."""
    gone = saw.SinksCommitted({"a": answers(STAYED, lost=[NEW])})
    again = deciding_again(in_doubt="aborted").feed(saw.DecisionAppended(1), gone)
    assert "needs onceforall.inDoubt=aborted" in again.only(do.StopRun).message
    gone = saw.SinksCommitted({"a": answers(lost=[handle("a0")])})
    first = Walk(in_doubt="aborted").committing().feed(gone)
    assert "Each start needs" not in first.only(do.StopRun).message


def test_what_an_attempt_wrote_without_a_commit_is_not_called_aborted():
    stopped = [
        writing_again(need_no_commit=frozenset("b")).feed(
            saw.WritesFailed("boom"), saw.AttemptAborted()
        ),
        writing_again(need_no_commit=frozenset("b")).feed(
            written([NEW], tasks_of(7, 2)), saw.AttemptAborted()
        ),
        Walk(need_no_commit=frozenset("b"))
        .writing()
        .feed(saw.WritesFailed("boom"), saw.AttemptAborted()),
    ]
    for walk in stopped:
        message = walk.only(do.StopRun).message
        assert "(except rows of b, which need no commit, and which each attempt writes)" in message


@pytest.mark.parametrize("said", ["committed", "aborted"])
def test_what_a_user_says_is_about_what_the_start_finds_and_not_about_later_batches(said):
    walk = (
        Walk(in_doubt=said)
        .committing()
        .feed(saw.SinksCommitted({"a": answers(in_doubt=[handle("a0")])}))
    )
    assert walk.stopped_with(InDoubtError)


def test_what_a_user_says_of_the_past_is_not_said_of_what_was_written_again():
    stayed = writing_again(in_doubt="committed")
    stayed.feed(written([NEW]), saw.DecisionAppended(1))
    stayed.feed(saw.SinksCommitted({"a": answers(NEW, in_doubt=[STAYED])}))
    assert stayed.decisions == (do.ReturnBatch(0), do.AppendDone(1, 0))
    for said in ("committed", "aborted"):
        walk = writing_again(in_doubt=said)
        walk.feed(written([NEW]), saw.DecisionAppended(1))
        assert walk.feed(saw.SinksCommitted({"a": answers(STAYED, in_doubt=[NEW])})).stopped_with(
            InDoubtError
        )


def test_what_nothing_can_write_again_is_passed_over_only_by_the_word_of_a_user():
    """Of a release before 0.1, which didn't say whose rows a transaction holds."""
    past = history(0, done=False, a=(STAYED, handle("a0")))
    found = saw.SinksRecovered({"a": answers(STAYED, lost=[handle("a0")])})
    for said in (None, "aborted"):
        walk = Walk(in_doubt=said).recovering(past).feed(found)
        assert walk.stopped_with(TransactionLostError)
        assert "onceforall.inDoubt=committed" in walk.only(do.StopRun).message
    assert Walk(in_doubt="committed").recovering(past).feed(found).decisions == (
        do.AppendDone(1, 0),
    )


def test_what_a_user_says_does_not_overrule_proof():
    walk = Walk(in_doubt="committed").redoing(LOST)
    assert walk.decisions == (do.FenceLost({"a": (LOST,)}),)
    assert walk.phase is P.FencingLost


SHARING = {"layout": "x1", "shared": {"x1": "of 1"}}


def test_what_a_lost_transaction_shared_is_handed_on_to_one_that_stays():
    """``FileSink`` says there how files are read; what is written again may be read in another
    way, and says so itself."""
    lost = task("a0", **SHARING)
    stayed = (
        task("a1", partition=1, layout="x1"),
        task("a2", partition=2, layout="x2", shared={"x2": "of 2"}),
    )
    new = task("new", layout="x3", shared={"x3": "of 3"})
    walk = Walk().redoing(lost, stayed=stayed, decided=tasks_of(1, 2, 3))
    walk.feed(
        saw.LostFenced(), saw.DigestsTaken(tasks_of(1, 2, 3)), written([new], tasks_of(1, 2, 3))
    )
    decided = walk.only(do.AppendCommit).commit.committables["a"]
    assert decided == ({**stayed[0], "shared": {"x1": "of 1"}}, stayed[1], new)


def test_what_one_that_stays_shares_itself_stays_beside_what_it_is_handed():
    stayed = task("a1", partition=1, layout="x2", shared={"x2": "of 2"})
    walk = Walk().redoing(task("a0", **SHARING), stayed=(stayed,), decided=DECIDED)
    walk.feed(saw.LostFenced(), saw.DigestsTaken(DECIDED), written([task("new")], DECIDED))
    kept = walk.only(do.AppendCommit).commit.committables["a"][0]
    assert kept == {**stayed, "shared": {"x1": "of 1", "x2": "of 2"}}


@pytest.mark.parametrize("choice", ["giveUp", "writeAll"])
def test_what_is_shared_is_handed_on_too_where_a_person_has_chosen(choice):
    stayed = task("a1", partition=1, layout="x1")
    walk = Walk(lost_rows=(choice, 0)).redoing(
        task("a0", **SHARING), stayed=(stayed,), decided=DECIDED
    )
    walk.feed(saw.LostFenced(), saw.DigestsTaken(OTHER))
    if choice == "writeAll":
        walk.feed(written([task("n0"), task("n1", partition=1)], tasks_of(7, 8)))
    assert walk.only(do.AppendCommit).commit.committables["a"][0] == {
        **stayed,
        "shared": {"x1": "of 1"},
    }


def test_what_stays_is_left_as_it_is_where_it_says_all_itself():
    stayed = task("a1", partition=1, **SHARING)
    walk = Walk().redoing(task("a0", **SHARING), stayed=(stayed,), decided=DECIDED)
    walk.feed(saw.LostFenced(), saw.DigestsTaken(DECIDED), written([NEW]))
    assert walk.only(do.AppendCommit).commit.committables["a"] == (stayed, NEW)


def test_what_is_given_up_is_handed_on_to_its_own_run_only():
    def of(generation, partition, **fields):
        return task(
            f"ofa.q.a.{generation}.0.0.{partition}.0.{partition}", partition=partition, **fields
        )

    old, new = of(0, 0, layout="of 0"), of(1, 1, layout="of 1")
    stayed = (of(1, 2), of(0, 3))
    walk = Walk(lost_rows=("giveUp", 0)).redoing(
        old, new, stayed=stayed, decided=tasks_of(1, 2, 3, 4)
    )
    walk.feed(saw.LostFenced(), saw.DigestsTaken(OTHER))
    decided = walk.only(do.AppendCommit).commit.committables["a"]
    assert decided == ({**stayed[0], "layout": "of 1"}, {**stayed[1], "layout": "of 0"})


PLAIN, KNOWN, ROWS = handle("plain"), task("known"), task("rows", partition=1, rows="there")
ALSO = task("also", partition=2)


@pytest.mark.parametrize(
    ("lost", "stayed", "more", "way", "written"),
    [
        ([PLAIN, KNOWN], [], {}, Way.WHOLE, [PLAIN, KNOWN]),
        ([ROWS], [], {}, Way.KEPT, [ROWS]),
        ([ROWS], [], {"stateful": True}, Way.WHOLE, [ROWS]),
        ([ROWS], [], {"use_kept": False}, Way.WHOLE, [ROWS]),
        ([ROWS, KNOWN], [], {}, Way.WHOLE, [ROWS, KNOWN]),
        ([ROWS, KNOWN], [PLAIN], {}, Way.KEPT, [ROWS]),
        ([ROWS, KNOWN], [PLAIN], {"stateful": True}, Way.KEPT, [ROWS]),
        ([ROWS, KNOWN], [PLAIN], {"use_kept": False}, Way.MATCHED, [ROWS, KNOWN]),
        ([KNOWN, ALSO], [PLAIN], {}, Way.MATCHED, [KNOWN, ALSO]),
        ([KNOWN, PLAIN], [ALSO], {}, None, None),
        ([PLAIN], [ALSO], {}, None, None),
    ],
)
def test_how_lost_rows_come_back_depends_on_what_stayed_was_kept_and_is_known(
    lost, stayed, more, way, written
):
    decided = commit(0, a=(*lost, *stayed))
    options = {"use_kept": True, "stateful": False, **more}
    redo = redo_of([saw.Lost("a", each, "it expired") for each in lost], decided, **options)
    if way is None:
        assert redo is None
        return
    assert redo.way is way
    assert redo.lost == {"a": tuple(written)}
    left = [each for each in [*lost, *stayed] if each not in written]
    assert redo.stayed == {("a", each["name"]) for each in left}
