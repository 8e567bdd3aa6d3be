"""Every module of the benchmarks can be imported, and what they start by name is there: most of
it runs only in a campaign of hours."""

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.contenders import flink
from benchmarks.settings import ROOT

FILES = sorted((ROOT / "benchmarks").rglob("*.py"))
STARTED = re.compile(r"[\"\s](benchmarks(?:\.\w+)+)(?=[\"\s`])")


def name_of(file):
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", [name_of(file) for file in FILES if file.name != "flink_job.py"])
def test_a_module_can_be_imported(name):
    assert import_module(name).__doc__


def test_every_module_that_is_named_is_there():
    named = {name: file for file in FILES for name in STARTED.findall(file.read_text())}
    assert {
        "benchmarks.contenders.spark_job",
        "benchmarks.stands.generator",
        "benchmarks.stands.reader",
    } <= set(named)
    assert not {name: file for name, file in named.items() if find_spec(name) is None}


def test_the_job_of_flink_which_has_a_python_of_its_own_is_there(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(flink, "python", lambda: "python")
    monkeypatch.setattr(flink, "flink_connector", lambda: tmp_path / "connector.jar")
    monkeypatch.setattr(flink, "Child", lambda command, *_: started.append(command))
    flink.start(tmp_path, tmp_path / "checkpoint", {"cores": 1})
    ((_, program, _),) = started
    assert program == str(ROOT / "benchmarks" / "contenders" / "flink_job.py")
    assert Path(program).is_file()
