"""A start on a real cluster, of whose two workers one has another Python than the other."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import onceforall
from support.cluster import HOSTS, Cluster
from support.driver import TESTS

pytestmark = [pytest.mark.spark, pytest.mark.long]

RIGHT, OTHER = HOSTS


def interpreter(folder, name, paths=()):
    """Make a Python that has nothing but these folders on its path, and a program that starts
    it."""
    made = folder / name
    venv.EnvBuilder(symlinks=True, with_pip=False).create(made)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (made / "lib" / version / "site-packages" / "more.pth").write_text("\n".join(map(str, paths)))
    return made / "bin" / "python"


def folder_of_programs(folder, programs):
    folder.mkdir()
    for name, target in programs.items():
        program = folder / f"python-{name}"
        program.write_text(f'#!/bin/sh\nexec {target} "$@"\n')
        program.chmod(0o755)
    return folder


def packages_without(folder, *left_out):
    folder.mkdir()
    for package in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not package.name.lower().startswith(left_out) and package.suffix != ".pth":
            (folder / package.name).symlink_to(package)
    return folder


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What a start said for each interpreter: on one host it is right, and on the other as its
    name says."""
    folder = tmp_path_factory.mktemp("executors")
    older = folder / "older-release"
    (older / "onceforall").mkdir(parents=True)
    (older / "onceforall" / "__init__.py").write_text('__version__ = "0.0.1"\n')
    source = Path(onceforall.__file__).parents[1]
    others = {
        "right": sys.executable,
        "none": interpreter(folder, "none"),
        "older": interpreter(folder, "older", [older]),
        "no-kafka": interpreter(
            folder, "no-kafka", [source, packages_without(folder / "packages", "confluent_kafka")]
        ),
    }
    own_path = {**os.environ, "PYTHONPATH": str(source)}
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Of the right Python, too, this one finds the library by a path of its own.
    others["right"] = f"env PYTHONPATH={source}:$PYTHONPATH {sys.executable}"
    right = folder_of_programs(folder / "right-programs", dict.fromkeys(others, others["right"]))
    other = folder_of_programs(folder / "other-programs", others)
    environments = {
        RIGHT: {**own_path, "PATH": f"{right}:{os.environ['PATH']}"},
        OTHER: {**bare, "PATH": f"{other}:{os.environ['PATH']}"},
    }
    with Cluster(folder / "cluster", environments) as cluster:
        environment = {
            **own_path,
            "PYTHONPATH": os.pathsep.join([str(TESTS / "support"), str(source)]),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        job = [
            sys.executable,
            str(TESTS / "support" / "executors_job.py"),
            cluster.url,
            str(folder),
        ]
        done = subprocess.run(
            job, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-5000:]
    return json.loads((folder / "said.json").read_text())


def test_executors_that_have_everything_run_the_query(said):
    assert said["right"]["error"] is None


def test_an_executor_without_the_library_is_named_with_the_remedy_before_data_moves(said):
    error = said["none"]["error"]
    assert error.startswith("ExecutorCheckError: The executor on ")
    assert "can't import onceforall: ModuleNotFoundError" in error
    assert "/none/bin/python" in error
    assert f"pip install 'onceforall[kafka]=={onceforall.__version__}'" in error
    assert len(error) < 1000


def test_an_executor_with_another_version_is_named_with_both(said):
    assert (
        f"has onceforall 0.0.1, and the driver has {onceforall.__version__}"
        in said["older"]["error"]
    )


def test_an_executor_without_an_extra_of_a_sink_is_named_with_the_module(said):
    assert (
        "can't import confluent_kafka, which the tasks of this query need"
        in said["no-kafka"]["error"]
    )


def test_a_query_that_does_not_need_the_extra_runs_there(said):
    assert said["files"]["error"] is None


def test_an_interpreter_that_is_not_there_is_named(said):
    assert said["nowhere"]["error"].startswith(
        "ExecutorCheckError: The executors can't run the tasks with python-nowhere"
    )
    assert 'Cannot run program "python-nowhere"' in said["nowhere"]["error"]
    assert len(said["nowhere"]["error"]) < 1000


def test_what_was_found_right_is_not_asked_again(said):
    assert said["again"]["error"] is None
    assert said["again"]["seconds"] < said["right"]["seconds"]
