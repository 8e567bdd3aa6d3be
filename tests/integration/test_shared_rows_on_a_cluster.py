"""What is derived from a batch shares one computation on a cluster, too, where tasks on two
executors may ask for a part at once, and executors are lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onceforall
from support.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.long]

TESTS = Path(__file__).resolve().parents[1]
JOB = TESTS / "support" / "shared_rows_job.py"
COUNT = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster") / "cluster") as running:
        yield running


@pytest.fixture
def job(cluster, tmp_path):
    """Run the query until it ends; returns its error and what the sinks have."""
    (tmp_path / "source").mkdir()
    for file in range(2):
        rows = (json.dumps({"value": f"v{n}"}) for n in range(COUNT * file, COUNT * (file + 1)))
        (tmp_path / "source" / f"{file}.json").write_text("\n".join(rows))
    path = [str(Path(onceforall.__file__).parents[1]), str(TESTS)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

    def run(how):
        command = [sys.executable, str(JOB), cluster.url, str(tmp_path), how]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-5000:]
        told = json.loads(done.stdout.splitlines()[-1])
        return told["error"] or "", told["found"]

    return run


ALL = sorted(f"v{n}" for n in range(2 * COUNT))


@pytest.mark.parametrize("how", ["one job", "two jobs", "copies"])
def test_rows_that_are_drawn_are_drawn_once(job, how):
    error, found = job(how)
    assert error == ""
    assert found == ALL


def test_what_a_function_has_counted_and_each_computation_gives_is_computed_again(job):
    assert job("the same, executors lost") == ("", ALL)


@pytest.mark.parametrize("how", ["executors lost", "persisted, executors lost"])
def test_executors_that_are_lost_between_two_jobs_abort_the_attempt(job, how):
    error, found = job(how)
    assert "an executor was lost" in error
    assert found == []
    assert job("two jobs") == ("", ALL)
