"""What a sink's answers must be: the rules that the runtime and the conformance suite share."""

import datetime as dt
from types import SimpleNamespace

import pytest

from onceforall.protocol import contract
from onceforall.protocol.contract import BrokenContractError
from onceforall.sink import Capabilities, CommitReport, LostTransaction

A = {"name": "a", "task": [0, 1], "after": 3, "rows": {"file": "f"}, "topics": ["t"]}
B = {"name": "b", "task": [0, 2]}


def test_a_committable_comes_back_as_the_log_gives_it_back():
    assert contract.prepared({"name": "a", "ids": (1, 2), "of": {1: None}}) == {
        "name": "a",
        "ids": [1, 2],
        "of": {"1": None},
    }


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (None, "text 'name'"),
        ("a", "text 'name'"),
        ({"name": ""}, "text 'name'"),
        ({"name": 7}, "text 'name'"),
        ({"id": "a"}, "text 'name'"),
        ({"name": "a", "score": float("nan")}, "no plain JSON"),
        ({"name": "a", "at": dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)}, "no plain JSON"),
        ({"name": "a", "text": "\ud800"}, "no plain JSON"),
        ({"name": "a", "rows": 10}, "the key 'rows', which the library adds"),
        ({"name": "a", "task": 1, "batch": 2}, "the keys 'batch', 'task', which the library"),
    ],
)
def test_what_is_no_committable_is_refused(answer, what):
    with pytest.raises(BrokenContractError, match=what):
        contract.prepared(answer)


def test_confirm_may_add_keys_and_take_out_its_own():
    without = {key: value for key, value in A.items() if key != "topics"}
    answer = [{**without, "proof": (1,)}, B]
    assert contract.confirmed((A, B), answer) == ({**without, "proof": [1]}, B)
    assert contract.confirmed((A, B), iter((A, B))) == (A, B)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (None, "no list of the 2 committables"),
        ({"a": A}, "no list of the 2 committables"),
        ([A], "returned 1, .* missing is 'b', which nobody would commit"),
        ([B, A], "another order"),
        ([A, B, B], "more than once"),
        ([A, B, {**B, "name": "c"}], "not given is 'c'"),
        (["a", "b"], "text 'name'"),
        ([{**A, "name": "x"}, B], "missing is 'a'"),
        ([{**A, "task": [0, 2]}, B], "'task' of the committable 'a'"),
        ([{"name": "a"}, B], "'after', 'rows', 'task' of the committable 'a'"),
        ([A, {**B, "after": 1}], "'after' of the committable 'b'"),
        ([A, {**B, "batch": 1}], "'batch' of the committable 'b'"),
        ([A, {**B, "at": dt.date(2026, 1, 1)}], "no plain JSON"),
        ([A, {**B, "score": float("inf")}], "no plain JSON"),
    ],
)
def test_confirm_must_hand_back_the_same_transactions_with_what_the_library_added(answer, what):
    with pytest.raises(BrokenContractError, match=what):
        contract.confirmed((A, B), answer)


def test_a_report_of_committables_and_lost_transactions_is_one():
    contract.check_report(CommitReport())
    contract.check_report(
        CommitReport(completed=[A], retired=(B,), in_doubt=(LostTransaction(A, "gone"),))
    )


@pytest.mark.parametrize(
    ("report", "what"),
    [
        (None, "no CommitReport: NoneType None"),
        ([A], "no CommitReport: list"),
        (SimpleNamespace(completed=(), retired=(), lost=()), "no CommitReport"),
        (CommitReport(completed=None), "no tuple as 'completed'"),
        (CommitReport(completed=("a",)), "'completed' what is no committable: str 'a'"),
        (CommitReport(retired=({"id": "a"},)), "'retired' what is no committable"),
        (CommitReport(lost=(A,)), "'lost' what is no LostTransaction"),
        (CommitReport(in_doubt=(A,)), "'in_doubt' what is no LostTransaction"),
        (CommitReport(lost=(LostTransaction("a", "gone"),)), "'lost' what is no committable"),
        (CommitReport(lost=(LostTransaction(A, None),)), "no LostTransaction with a reason"),
    ],
)
def test_what_is_no_report_is_refused(report, what):
    with pytest.raises(BrokenContractError, match=what):
        contract.check_report(report)


@pytest.mark.parametrize(
    ("able", "needs"),
    [
        (Capabilities(two_phase=True), True),
        (Capabilities(two_phase=True, idempotent=True), False),
        (Capabilities(two_phase=False, idempotent=True), False),
        (Capabilities(two_phase=False, delivery="at_least_once"), False),
        (Capabilities(two_phase=True, delivery="none"), False),
    ],
)
def test_rows_of_a_sink_that_commits_need_a_committable(able, needs):
    assert contract.needs_a_commit(able) == needs


def test_an_answer_whose_repr_fails_or_is_long_is_told_nevertheless():
    class Shy:
        def __repr__(self):
            raise OSError

    with pytest.raises(BrokenContractError, match=r"Shy \(OSError in its repr\)"):
        contract.check_report(Shy())
    with pytest.raises(BrokenContractError) as told:
        contract.prepared("x" * 10_000)
    assert len(str(told.value)) < 400
    for length, whole in ((194, True), (195, False)):
        with pytest.raises(BrokenContractError) as told:
            contract.prepared("x" * length)
        assert (f"str {'x' * length!r}" in str(told.value)) == whole
        assert ("…" in str(told.value)) != whole
