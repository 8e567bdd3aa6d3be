"""The campaign over the chains: what it calls wrong, and one round of it."""

import json

import pytest

from chains import __main__ as campaign
from chains.pravega import Came, Round, misplaced, user_of


def found(*numbers):
    return [(user_of(n), n) for n in numbers]


@pytest.mark.parametrize(
    ("views", "ordered", "said"),
    [
        (found(0, 1, 2), True, []),
        (found(0, 2), True, ["x: 1 lost, such as [1]"]),
        (found(0, 1, 1, 2), True, ["x: 1 doubled, such as [1]"]),
        ([*found(0, 1), ("somebody", 2)], True, ["x: 1 wrong, such as [2]"]),
        (found(0, 1, 2, 3), True, ["x: 1 wrong, such as [3]"]),
        ([], True, ["x: 3 lost, such as [0, 1, 2]"]),
    ],
)
def test_what_is_lost_doubled_or_wrong_is_named(views, ordered, said):
    assert misplaced("x", views, 3, ordered=ordered) == said


def test_an_order_that_is_not_the_users_is_named_where_it_is_kept():
    views = found(12, 0, *range(1, 12))
    assert misplaced("x", views, 13, ordered=True) == ["x: u0's view 0 stands behind 12"]
    assert misplaced("x", views, 13, ordered=False) == []


def test_what_a_round_came_to_is_kept_and_one_that_failed_ends_with_1(
    tmp_path, monkeypatch, capsys
):
    came = iter((Came(3, views=9), Came(4, views=9, failures=["x: 1 lost"])))

    def run(self):
        one = next(came)
        one.faults.update({"driver killed": 2})
        return one

    monkeypatch.setattr(campaign.Round, "run", run)
    arguments = ["chains", "--minutes", "0", "--seed", "3", "--out", str(tmp_path), "--only"]
    monkeypatch.setattr("sys.argv", [*arguments, "pravega"])
    assert campaign.main() == 0
    assert json.loads((tmp_path / "chains.json").read_text())[0]["faults"] == {"driver killed": 2}
    assert "1 rounds, 2 faults, 0 rounds with a failure" in capsys.readouterr().out
    assert campaign.main() == 1
    assert (tmp_path / "pravega-3").is_dir()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.pravega
@pytest.mark.timeout(900)
def test_a_round_of_the_chain_over_pravega(tmp_path):
    came = Round(7, tmp_path, faults=3, views=600).run()
    assert came.failures == []
    assert sum(came.faults.values()) >= 2
