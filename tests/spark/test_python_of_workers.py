"""Which interpreter Spark starts its Python workers with: that of the program, unless the user
chose one."""

import os
import sys
from types import SimpleNamespace

import pytest

from onceforall.driver.doors import _use_this_python


def session(python="python3", master="local[2]"):
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=python, master=master))


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")


def test_a_context_that_was_made_before_uses_this_interpreter():
    made = session()
    _use_this_python(made)
    assert made.sparkContext.pythonExec == os.environ["PYSPARK_PYTHON"] == sys.executable


def test_without_a_session_the_next_one_finds_the_variable():
    _use_this_python(None)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_what_the_user_chose_stays(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    made = session("/opt/python")
    _use_this_python(made)
    assert made.sparkContext.pythonExec == os.environ["PYSPARK_PYTHON"] == "/opt/python"


def test_a_context_with_an_interpreter_of_its_own_keeps_it():
    made = session("/opt/python")
    _use_this_python(made)
    assert made.sparkContext.pythonExec == "/opt/python"


def test_on_a_cluster_the_paths_of_this_machine_mean_nothing():
    made = session(master="spark://master:7077")
    _use_this_python(made)
    assert made.sparkContext.pythonExec == "python3"
