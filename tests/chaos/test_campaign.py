"""A part of the crash campaign that takes a few minutes, and that the campaign itself can fail."""

import contextlib
import itertools
import json
import time
from types import SimpleNamespace

import pytest

from chaos import __main__ as command
from chaos import matrix
from chaos.__main__ import MOUNTING
from chaos.arena import Arena, Scenario, StuckError
from chaos.campaign import ENOUGH_RUNS, Campaign
from chaos.nemeses import SCENARIOS
from chaos.nemeses_siege import PLAIN_RESTARTS, Siege
from chaos.nemeses_stores import Planned
from chaos.page import compact, publish, write_page
from chaos.recipes_more import RECIPES
from chaos.results import PUBLISHED, Results, _empty
from onceforall.failpoints.catalogue import CATALOGUE
from support.http_faults import Fault, Request

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]

CELLS = [matrix.Cell("file.commit.renamed", "all", "recovery")]


@pytest.mark.long  # the crash tests show it
@pytest.mark.timeout(600)
def test_the_short_part_of_the_campaign_finds_no_violation(tmp_path):
    campaign = Campaign(
        tmp_path,
        minutes=9,
        lanes=1,
        seed=7,
        cells=CELLS,
        scenarios={"storm": SCENARIOS["storm"]},
        scenario_s=10,
        rounds=1,
    )
    assert campaign.run(), campaign.results.data["found"]
    data = json.loads((tmp_path / "results.json").read_text())
    assert {name: cell["reached"] for name, cell in data["cells"].items()} == {
        cell.id: True for cell in CELLS
    }
    # Each cell's, and at least one in the storm: how many that has time for, depends on the machine.
    assert data["kills"] > len(CELLS)
    assert data["records"] > 5000
    assert data["scenarios"]["storm"]["runs"] == 1
    assert "| violations | **0** |" in (tmp_path / "results.md").read_text()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_pipeline_that_the_grammar_draws_survives_random_kills(tmp_path):
    scenarios = {"grammar": SCENARIOS["grammar"]}
    campaign = Campaign(
        tmp_path,
        minutes=14,
        lanes=1,
        seed=203,
        cells=[],
        scenarios=scenarios,
        scenario_s=10,
        rounds=1,
    )
    assert campaign.run(), campaign.results.data["found"]
    assert campaign.results.data["scenarios"]["grammar"]["records"] > 0


def test_every_cell_of_the_matrix_has_a_recipe():
    cells = list(matrix.all_cells())
    assert len(cells) > 1000
    assert {cell.name for cell in cells} >= {
        name for name, failpoint in CATALOGUE.items() if reached_by_the_kinds(failpoint)
    }
    units = list(matrix.units(cells))
    assert sorted(cell for unit in units for cell in unit.cells) == sorted(cells)
    assert all((part.when, part.needs) in RECIPES for unit in units for part in unit.parts)


def reached_by_the_kinds(failpoint):
    return any(matrix.reaches(failpoint, kind) for kind in matrix.KINDS)


class TestResults:
    def test_results_of_other_code_are_moved_aside(self, tmp_path):
        first = Results(tmp_path)
        first.begin_run(1)
        first.source = first.data["source"] = "another"
        first.save()
        second = Results(tmp_path)
        assert second.data["kills"] == 0
        assert list(tmp_path.glob("results-another-*.json"))

    def test_another_clone_goes_on_from_what_is_published(self, tmp_path):
        first = Results(tmp_path / "first")
        first.begin_run(1)
        first.data["kills"] = 7
        first.data["cells"]["a | b"] = {**_empty(), "reached": True, "recovery_s": [1.5]}
        publish(first, tmp_path)
        published = tmp_path / PUBLISHED.name
        second = Results(tmp_path / "second", published=published)
        assert second.data == first.data
        assert second.is_covered("a | b")
        other_code = {**first.data, "source": "another"}
        published.write_text(compact(other_code))
        assert Results(tmp_path / "third", published=published).data["kills"] == 0
        reader = Results(tmp_path / "fourth", only_read=True, published=published)
        assert reader.data == other_code, "its page can be written again, and says of which code"

    def test_a_unit_without_a_judgement_is_a_violation(self, tmp_path):
        results = Results(tmp_path)
        results.begin_run(1)
        results.fail("a unit", "no driver could be killed")
        again = Results(tmp_path)
        assert again.data["violations"] == 1
        assert "no driver could be killed" in write_page(again).read_text()


def test_scenarios_have_their_share_of_the_time_before_the_matrix_is_done(tmp_path, monkeypatch):
    """On a slow machine the matrix takes all the time that there is; faults that only scenarios
    have would never happen."""
    monkeypatch.setattr("support.class_archive.make", lambda _: None)
    monkeypatch.setattr(Campaign, "_servers", lambda self: contextlib.nullcontext())
    now, begun = itertools.count(), []
    monkeypatch.setattr(
        "chaos.campaign.time", SimpleNamespace(monotonic=lambda: next(now), time=time.time)
    )
    monkeypatch.setattr(Campaign, "_unit", lambda self, unit, servers: begun.append("unit"))
    monkeypatch.setattr(Campaign, "_scenario", lambda self, name, label, seed: begun.append(name))
    scenarios = {name: Scenario(name, (), _stuck) for name in ("a", "b")}
    campaign = Campaign(tmp_path, minutes=1000, lanes=1, scenarios=scenarios, rounds=40)
    units = campaign.units.qsize()
    campaign.run()
    assert begun.count("unit") == units > 20
    assert begun[0] == "unit"
    assert {"a", "b"} <= set(begun[:10])
    assert begun.count("a") == begun.count("b") == 40


def test_cells_that_there_was_no_time_to_try_are_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("support.class_archive.make", lambda _: None)
    monkeypatch.setattr(Campaign, "_servers", lambda self: contextlib.nullcontext())
    monkeypatch.setattr(Campaign, "_unit", lambda self, unit, servers: None)
    Campaign(tmp_path, minutes=0, lanes=1, cells=CELLS).run()
    assert f"1 of 1 cells were not tried: {CELLS[0].id}" in capsys.readouterr().out


def test_a_fault_that_never_happens_fails_the_campaign_when_its_scenario_has_run_often(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("support.class_archive.make", lambda _: None)

    def ends_after(runs):
        campaign = Campaign(tmp_path / str(runs), minutes=0, lanes=1, cells=[])
        by_fault = {"second driver on one checkpoint": runs}
        entry = {**_empty(), "runs": runs, "kills": {}, "by_fault": by_fault}
        campaign.results.data["scenarios"]["two-drivers"] = entry
        return campaign.run()

    assert ends_after(ENOUGH_RUNS - 1)
    assert not ends_after(ENOUGH_RUNS)
    assert "faults that never happened: two-drivers: ^driver frozen" in capsys.readouterr().out


def test_a_fault_that_waits_for_a_request_counts_when_it_has_happened(tmp_path):
    met, unmet = (Fault("cut", "PUT", "key", None, 1, 1, None) for _ in range(2))
    arena = Arena(tmp_path, 1, 1, lambda text: None)
    planned = Planned(arena)
    planned.add("met", met)
    planned.add("unmet", unmet)
    planned.count()
    assert arena.faults() == {}
    assert met.takes(Request("PUT", "/bucket/key", (), b""))
    for _ in range(2):
        planned.count()
        assert arena.faults() == {"met": 1}


class Ending:
    """A world whose drivers end at once, and a siege's other neighbours."""

    def __init__(self, batches=0, completes=()):
        self.batches, self.completes, self.started, self.configs = batches, completes, 0, []
        self.process = self.tally = self.rng = self
        self.kills = {}

    def spark_batches(self):
        return self.batches + (self.started in self.completes)

    def start(self, **config):
        self.started += 1
        self.configs.append(config)
        return self

    def poll(self):
        return 1

    def errors(self):
        return [f"NondeterministicReplayError of start {self.started}"]

    def completed_after(self, moment):
        return None

    def look(self):
        """Nothing to look at."""


class TestStuckQueries:
    def test_a_query_that_does_not_go_on_after_plain_restarts_is_stuck_and_says_why(self):
        world = Ending()
        with pytest.raises(
            StuckError, match=f"NondeterministicReplayError of start {PLAIN_RESTARTS}"
        ):
            Siege(world, world, world).go_on()
        assert [config["restarts"] for config in world.configs] == [0] * PLAIN_RESTARTS

    def test_a_query_that_goes_on_at_the_last_restart_is_not_stuck(self):
        world = Ending(completes=(PLAIN_RESTARTS,))
        Siege(world, world, world).go_on()
        assert world.started == PLAIN_RESTARTS

    def test_it_is_counted_apart_from_violations_and_fails_the_campaign(
        self, tmp_path, monkeypatch
    ):
        def run(arena):
            arena.violation("a row is lost")
            raise StuckError("no batch was completed")

        monkeypatch.setattr("support.class_archive.make", lambda _: None)
        scenarios = {"stub": Scenario("stub", (), run)}
        campaign = Campaign(tmp_path, minutes=5, lanes=1, cells=[], scenarios=scenarios, rounds=1)
        assert not campaign.run()
        assert (campaign.results.data["stuck"], campaign.results.data["violations"]) == (1, 1)
        assert campaign.results.data["found"][0]["what"] == [
            "stuck: no batch was completed",
            "a row is lost",
        ]
        assert "| stuck queries | **1** |" in (tmp_path / "results.md").read_text()
        alone = Campaign(
            tmp_path / "alone",
            minutes=5,
            lanes=1,
            cells=[],
            scenarios={"stub": Scenario("stub", (), _stuck)},
            rounds=1,
        )
        assert not alone.run(), "without a violation, too"
        assert alone.results.data["violations"] == 0


def _stuck(arena):
    raise StuckError(arena.folder.name)


def test_what_needs_rights_is_never_left_out_in_silence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "power_can_be_cut", lambda: False)
    monkeypatch.setattr(
        "sys.argv", ["chaos", "--cells", "", "--only", "power", "storm", "--folder", str(tmp_path)]
    )
    assert command.main() == 2
    assert "--without-mounts" in capsys.readouterr().err
    assert not MOUNTING - set(SCENARIOS)
