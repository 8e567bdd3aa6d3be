from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onceforall.protocol.entries import Claim, Done, Seal
from onceforall.protocol.history import EMPTY, Decided, History, fold, seal_of
from protocol.building import commit

CLAIM = Claim("query", "run", "/checkpoint")


def chain(*entries):
    return list(enumerate([CLAIM, *entries]))


def test_nothing_decided_is_the_empty_history():
    assert fold(EMPTY, 0, chain()) == EMPTY
    assert fold(EMPTY, 0, chain(Seal(None, None, done=False))) == EMPTY
    assert seal_of(EMPTY) == Seal(None, None, done=False)


def test_the_last_commit_is_what_is_decided():
    folded = fold(EMPTY, 3, chain(commit(0), Done(0), commit(1)))
    assert folded == History(Decided(commit(1), 3, 3, done=False))


def test_done_marks_its_own_batch():
    assert fold(EMPTY, 0, chain(commit(0), Done(0))).decided.done


def test_done_of_another_batch_marks_nothing():
    assert not fold(EMPTY, 0, chain(commit(1), Done(0))).decided.done
    assert fold(EMPTY, 0, chain(Done(0))) == EMPTY


def test_done_in_a_later_chain_marks_the_batch_that_was_decided_in_an_earlier_one():
    past = fold(EMPTY, 0, chain(commit(0)))
    assert fold(past, 1, chain(Done(0))) == History(Decided(commit(0), 0, 1, done=True))


def test_a_commit_of_the_same_batch_replaces_the_earlier_one():
    past = fold(EMPTY, 0, chain(commit(0, a=({"name": "first"},))))
    again = commit(0, a=({"name": "again"},))
    assert fold(past, 1, chain(again)) == History(Decided(again, 1, 1, done=False))


def test_a_commit_of_a_lower_batch_replaces_nothing():
    past = fold(EMPTY, 0, chain(commit(5), Done(5)))
    assert fold(past, 1, chain(commit(4))) == past


def test_gaps_of_a_cleaned_chain_change_nothing():
    whole = chain(commit(0), Done(0), commit(1), Done(1))
    assert fold(EMPTY, 2, whole[3:]) == fold(EMPTY, 2, whole)


def test_a_seal_points_at_the_last_decision():
    assert seal_of(fold(EMPTY, 4, chain(commit(7), Done(7)))) == Seal(4, 1, done=True)


@st.composite
def pasts(draw):
    """Chains as runs write them: batches in order, DONE before the next COMMIT, perhaps in a
    later chain."""
    chains, batch, undone = [[CLAIM]], 0, None
    for move in draw(st.lists(st.sampled_from(("commit", "done", "start")), max_size=25)):
        if move == "start":
            chains.append([CLAIM])
        elif move == "done" and undone is not None:
            chains[-1].append(Done(undone))
            undone = None
        elif move == "commit" and undone is None:
            chains[-1].append(commit(batch))
            undone, batch = batch, batch + 1
    return [list(enumerate(c)) for c in chains], batch - 1, undone


@given(pasts(), st.data())
def test_folding_in_two_parts_is_folding_at_once(past, data):
    chains, last, undone = past
    history = EMPTY
    for generation, entries in enumerate(chains):
        cut = data.draw(st.integers(0, len(entries)))
        history = fold(fold(history, generation, entries[:cut]), generation, entries[cut:])
    at_once = EMPTY
    for generation, entries in enumerate(chains):
        at_once = fold(at_once, generation, entries)
    assert history == at_once
    if last < 0:
        assert at_once == EMPTY
    else:
        assert (at_once.decided.commit.batch, at_once.decided.done) == (last, undone is None)
        assert chains[at_once.decided.generation][at_once.decided.index][1] == commit(last)
