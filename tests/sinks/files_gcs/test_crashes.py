"""kill -9 at each step of a task and of a driver that write to Google Cloud Storage; another process
completes the batch, or sweeps it. And a whole query, killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onceforall.sink import Sweep
from sinks.files.building import QUERY, commit, numbers, prepared

pytestmark = [pytest.mark.gcs, pytest.mark.long, pytest.mark.timeout(600)]

WORKER = str(Path(__file__).parents[1] / "files" / "worker.py")


class Processes:
    """Tasks and drivers in processes of their own, on one folder."""

    def __init__(self, place, folder):
        self.place, self._kept = place, folder / "kept.json"

    def run(self, step, failpoints=""):
        environment = {**os.environ, "ONCEFORALL_FAILPOINTS": failpoints}
        options = {"storage": self.place.storage, "kept": str(self._kept)}
        command = [sys.executable, WORKER, self.place.url, step, json.dumps(options)]
        return subprocess.Popen(command, env=environment).wait(timeout=120)

    def keep(self, committables):
        self._kept.write_text(json.dumps(committables))


@pytest.fixture
def processes(place, tmp_path):
    return Processes(place, tmp_path)


@pytest.mark.parametrize(
    "point",
    [
        "file.write.opened",
        "file.pre_commit.file_written",
        "file.pre_commit.file_synced@2",
        "file.pre_commit.after",
    ],
)
def test_what_a_killed_task_leaves_is_never_seen_and_is_swept(processes, point):
    name, _, hit = point.partition("@")
    assert processes.run("prepare", f"{name}=kill@{hit or 1}") == -signal.SIGKILL
    place = processes.place
    assert place.parts()
    assert place.sink().recover(Sweep(QUERY, "out", 1)) == 1
    assert place.left() == []
    assert place.files().rows == 0


@pytest.mark.parametrize(
    "point",
    [
        "file.commit.before",
        "file.commit.renamed",
        "file.commit.renamed@6",
        "file.commit.synced",
        "file.manifest.before",
        "file.create.linked",
        "file.manifest.after",
        "file.newest.before",
        "file.newest.linked",
        "file.commit.before_clearing",
    ],
)
def test_a_commit_that_is_killed_is_completed_by_another_process(processes, point):
    place = processes.place
    sink = place.checked(partition_by=["p"])
    rows = [numbers(4, 4 * i, p=["a", "b", "a/..", None]) for i in range(2)]
    processes.keep(sink.confirm([prepared(sink, each, partition=i) for i, each in enumerate(rows)]))
    name, _, hit = point.partition("@")
    # The probe of a start creates an object, and tries to once more.
    hit = hit or ("3" if name == "file.create.linked" else "1")
    assert processes.run("commit", f"{name}=kill@{hit}") == -signal.SIGKILL
    assert place.numbers() in ([], list(range(8)))
    assert processes.run("commit") == 0
    assert processes.run("commit") == 0
    assert place.numbers() == list(range(8))
    assert place.left() == []
    commit(place.checked(partition_by=["p"]), 1, numbers(8, 8, p=["a", "b"] * 4))
    assert place.numbers() == list(range(16))


PROGRAM = """
import sys
import onceforall as ofa
from support.small_spark import small_spark

folder, url, endpoint = sys.argv[1:]
spark = small_spark("local[2]").getOrCreate()
rows = spark.readStream.schema("n BIGINT, day STRING").option("maxFilesPerTrigger", 1).json(
    folder + "/input"
)
query = (
    ofa.write_stream(rows)
    .to(ofa.FileSink(url, partition_by=["day"], storage={"endpoint": endpoint}))
    .option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination(120)
assert query.exception() is None, query.exception()
spark.stop()
"""


@pytest.mark.spark
def test_a_query_that_is_killed_behind_its_decision_goes_on(place, tmp_path):
    (tmp_path / "input").mkdir()
    for number in range(4):
        (tmp_path / "input" / f"{number}.json").write_text(f'{{"n": {number}, "day": "a"}}\n')

    def run(failpoints):
        tests = str(Path(__file__).parents[2])
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]),
            "ONCEFORALL_FAILPOINTS": failpoints,
        }
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), place.url, place.endpoint]
        with (tmp_path / "log").open("ab") as log:
            done = subprocess.run(
                command, env=environment, stdout=log, stderr=log, check=False, timeout=240
            )
        return done.returncode

    assert run("file.commit.renamed=kill@2") == -signal.SIGKILL
    assert len(place.numbers()) < 4
    assert run("") == 0, (tmp_path / "log").read_text()[-3000:]
    assert place.numbers() == [0, 1, 2, 3]
    assert place.left() == []
