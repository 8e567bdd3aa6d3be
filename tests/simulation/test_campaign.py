"""The campaign over many schedules: it counts, it resumes, it finds, and it never passes on
nothing."""

from __future__ import annotations

import json

import pytest

from onceforall.errors import OptionError
from simulation.mutants import a_decided_batch_is_written_again
from simulator import campaign
from simulator.__main__ import main
from simulator.campaign import Campaign, Plan, play


class InThisProcess:
    """A pool without processes: a mutant that is planted here would not reach them."""

    def __init__(self, workers, mp_context):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, function, *arguments):
        future = campaign.Future()
        future.set_result(function(*arguments))
        return future


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(campaign, "CHUNK", 20)


@pytest.fixture
def in_this_process(monkeypatch):
    monkeypatch.setattr(campaign, "ProcessPoolExecutor", InThisProcess)


def test_the_command_plays_in_processes_of_its_own_and_writes_what_it_found(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(campaign, "CHUNK", 20)
    assert main(["--schedules", "30", "--workers", "2", "--folder", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["complete"]
    assert results["schedules"] >= 30
    assert results["violations"] == 0
    assert results["faults"] >= 5 * results["schedules"]
    assert results["faults"] == sum(results["faults_by_kind"].values())
    assert results["operations"] > results["faults"]
    assert (
        results["endings"]["healed"]
        == results["schedules"] + results["schedules_with_fewer_faults"]
    )
    assert "schedules with 5 faults or more" in capsys.readouterr().out


@pytest.mark.long
def test_a_campaign_goes_on_where_it_stopped(tmp_path, small, in_this_process):
    said = []
    first = Campaign(Plan(30, folder=tmp_path, workers=1), said.append).run()
    again = Campaign(Plan(90, folder=tmp_path, workers=1), said.append).run()
    assert again["schedules"] >= 90 > first["schedules"]
    whole = Campaign(Plan(90, folder=tmp_path / "whole", workers=1), said.append).run()
    assert {k: again[k] for k in ("faults_by_kind", "endings", "schedules")} == {
        k: whole[k] for k in ("faults_by_kind", "endings", "schedules")
    }
    assert any(line.startswith("Going on behind") for line in said)


def test_what_other_sources_have_proved_does_not_count(
    tmp_path, small, in_this_process, monkeypatch
):
    said = []
    Campaign(Plan(30, folder=tmp_path, workers=1), said.append).run()
    monkeypatch.setattr(campaign, "protocol_digest", lambda: "another")
    assert Campaign(Plan(30, folder=tmp_path, workers=1), said.append).tally.schedules == 0
    assert "begins anew" in said[-1]


def test_a_campaign_that_has_no_time_is_not_complete(tmp_path, small, in_this_process):
    results = Campaign(Plan(1000, folder=tmp_path, workers=1, minutes=0), lambda _: None).run()
    assert not results["complete"]


def test_a_violation_is_shown_with_its_seed_and_fails_the_campaign(
    tmp_path, small, in_this_process, monkeypatch, capsys
):
    a_decided_batch_is_written_again(monkeypatch)
    assert main(["--schedules", "10", "--workers", "1", "--folder", str(tmp_path)]) == 1
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["violations"] > 0
    told = capsys.readouterr().out
    violated = {each["seed"]: each["message"] for each in results["violating_seeds"]}
    assert {seed % 3 for seed in violated} == {0, 1, 2}, "one of each kind of log"
    twice = [seed for seed, message in violated.items() if "becomes visible twice" in message]
    assert twice, "the guard is broken, and not the program"
    for seed in violated:
        assert f"VIOLATION, seed {seed}" in told
        assert main(["--replay", str(seed)]) == 1
        shown = capsys.readouterr().out
        assert "step" in shown
        assert "VIOLATION" in shown


def test_an_error_of_the_simulator_itself_does_not_pass(monkeypatch):
    def broken(*_):
        raise RuntimeError("the simulator is broken")

    monkeypatch.setattr(campaign, "explore", broken)
    tally = play(0, 3)
    assert tally.schedules == 0
    assert len(tally.violations) == 3


def test_a_campaign_of_which_nothing_can_be_played_ends_and_fails(
    tmp_path, small, in_this_process, monkeypatch
):
    def broken(*_, **__):
        raise TypeError("a guard takes one more argument")

    monkeypatch.setattr(campaign, "explore", broken)
    monkeypatch.setattr(campaign, "ENOUGH_VIOLATIONS", 12)
    assert main(["--schedules", "1000", "--workers", "1", "--folder", str(tmp_path)]) == 1
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["schedules"] == 0
    assert results["violations"] >= 12
    assert not results["complete"]


@pytest.mark.parametrize(
    "nothing", [{"schedules": 0}, {"schedules": 1, "workers": 0}, {"schedules": 1, "moves": 0}]
)
def test_an_empty_campaign_is_refused(nothing):
    with pytest.raises(OptionError, match="would prove nothing"):
        Plan(**nothing)
