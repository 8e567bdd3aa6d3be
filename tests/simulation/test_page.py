"""The page of the simulators takes its figures from their results and from nowhere else, and what
has not run today from what is published."""

import json
import shutil

import pytest

from simulator import exhaustive, page
from simulator.brokers.__main__ import main as brokers
from simulator.campaign import Campaign, Plan
from support.pages import ROOT

WORLD = ["--generations", "2", "--batches", "1", "--participants", "1"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What three of the simulators leave."""
    folder = tmp_path_factory.mktemp("simulator")
    Campaign(Plan(20, workers=1, folder=folder), lambda _: None).run()
    assert exhaustive.main([*WORLD, "--output", str(folder / "exhaustive.json")]) == 0
    assert brokers(["--schedules", "5", "--workers", "1", "--folder", str(folder)]) == 0
    return folder


def of(folder, kind):
    return json.loads((folder / f"{kind}.json").read_text())


@pytest.mark.long
def test_the_page_has_what_the_simulators_came_to(ran, tmp_path):
    assert page.main(["--folder", str(ran), "--docs", str(tmp_path)]) == 0
    text = (ran / "results.md").read_text()
    schedules, (world,), played = (of(ran, kind) for kind in ("results", "exhaustive", "brokers"))
    assert schedules["schedules"] >= 20
    assert f"**{schedules['schedules']:,}** (seeds from 0 on" in text
    assert f"{schedules['faults']:,}, {schedules['most_faults']} at the most" in text
    assert world["states"] > 10
    assert f"| {world['states']:,} | {world['transitions']:,} | yes | 0 |" in text
    assert "| schedules | **5** (seeds from 0 on) |" in text
    assert sum(played["counts"].values()) > 0
    assert "PostgreSQL" not in text
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_what_has_not_run_here_is_shown_as_it_is_published(ran, tmp_path):
    assert page.main(["--folder", str(ran), "--docs", str(tmp_path), "--publish"]) == 0
    text = (tmp_path / "simulator-results.md").read_text()
    elsewhere = tmp_path / "elsewhere"
    assert page.main(["--folder", str(elsewhere), "--docs", str(tmp_path), "--publish"]) == 0
    assert (tmp_path / "simulator-results.md").read_text() == text
    assert json.loads((tmp_path / "simulator-state.json").read_text())["done"]


@pytest.mark.parametrize("kind", ["brokers", "exhaustive"])
@pytest.mark.long
def test_what_has_a_violation_is_not_published(ran, tmp_path, capsys, kind):
    folder, docs = tmp_path / "here", tmp_path / "docs"
    shutil.copytree(ran, folder)
    data = of(ran, kind)
    (data[0] if kind == "exhaustive" else data)["violations"] = 1
    (folder / f"{kind}.json").write_text(json.dumps(data))
    docs.mkdir()
    assert page.main(["--folder", str(folder), "--docs", str(docs), "--publish"]) == 1
    assert f"violations: {kind}" in capsys.readouterr().err
    assert not list(docs.iterdir())


def test_what_is_published_has_no_violation():
    found = json.loads((ROOT / "docs" / "simulator-results.json").read_text())
    assert len(found) > 3
    assert page.violations(found) == []


@pytest.mark.long
def test_worlds_of_other_code_are_dropped(ran, tmp_path):
    file = tmp_path / "exhaustive.json"
    (world,) = of(ran, "exhaustive")
    file.write_text(json.dumps([{**world, "version": "another", "options": {"other": 1}}]))
    assert exhaustive.main([*WORLD, "--output", str(file)]) == 0
    (only,) = json.loads(file.read_text())
    assert only["options"] == world["options"]
    assert only["version"] == page.digest_of_today(page.WORLDS)
