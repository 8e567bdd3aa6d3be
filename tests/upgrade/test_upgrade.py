"""A query that the code of an earlier commit ran goes on with today's: whatever kind of sink, and
wherever that code's driver was killed.

``make upgrade FROM=<commit>``. The earlier code comes out of the repository's history, and is first
in the driver's and its workers' path.
"""

import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from crash.test_sinks import assert_right_everywhere
from support.driver import Pipeline
from support.pages import ROOT
from support.sinks import make_table

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.long]

FROM = os.environ.get("FROM") or "b24c659"
"""By default the last commit before the promise was attacked from outside, and identities, plans
and kept rows came into the log."""

STATES = {
    "whole": "",
    "undecided": "append_commit.before",
    "decided": "append_commit.after",
    "committed": "commit.after",
    "complete": "append_done.after",
}
"""Where the earlier code's last driver was killed; "" for nowhere: it was stopped."""

SINKS = {
    "kafka": (["kafka"], {}),
    "files": (["files"], {}),
    "staged": (["postgres"], {}),
    "prepared": (["postgres"], {"mode": "prepared"}),
    "all": (["kafka", "files", "postgres"], {}),
}

WITHIN = {
    "kafka": [("kafka.end_txn.after", 10)],
    "files": [("file.commit.renamed", 10), ("file.manifest.after", 3)],
    "staged": [("postgres.confirm.merged", 3), ("postgres.commit.before", 3)],
    "prepared": [("postgres.commit_prepared.after", 10)],
    "all": [],
}
"""In the middle of what a sink does, and at which hit: in the third batch, also where there is
one per task, of which there are four."""


@pytest.fixture(scope="session")
def earlier(tmp_path_factory):
    """The folder with the package of the earlier commit."""
    folder = tmp_path_factory.mktemp("earlier")
    archive = folder / "src.tar"
    done = subprocess.run(
        ["git", "archive", "-o", archive, FROM, "src"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (
        f"{FROM} is not in this repository's history; clone it whole: {done.stderr}"
    )
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "src"


@pytest.fixture
def pipeline_to(tmp_path, broker, topic, database):
    made = []

    def make(kinds, postgres):
        make_table(database)
        config = {
            "sinks": kinds,
            "files": str(tmp_path / "files"),
            "database": database,
            "postgres": postgres,
        }
        # The archive of classes was made for a session of today's, and another path would miss it.
        made.append(Pipeline(tmp_path, broker.bootstrap_servers, topic(partitions=3), **config))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


def points():
    for sink in SINKS:
        yield from (
            pytest.param(sink, point, 3, id=f"{sink}-{name}") for name, point in STATES.items()
        )
        yield from (
            pytest.param(sink, point, hit, id=f"{sink}-{point}") for point, hit in WITHIN[sink]
        )


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("sink", "point", "hit"), list(points()))
def test_a_query_of_earlier_code_goes_on_with_todays(pipeline_to, earlier, sink, point, hit):
    pipeline = pipeline_to(*SINKS[sink])
    if point:
        before = pipeline.start(f"{point}=kill@{hit}", package=str(earlier), until_batch=10_000)
        before.wait_until_killed()
    else:
        before = pipeline.run(package=str(earlier), until_batch=3)
    assert pipeline.entries("CLAIM")
    # A batch has as many files as tasks and folders: the first one may be the one that it was
    # killed in.
    written = pipeline.batches() if any((pipeline.checkpoint / "commits").iterdir()) else 0
    after = pipeline.run(until_batch=written + 3)
    assert [
        Path(json.loads((driver.work / "pids.json").read_text())["package"])
        for driver in (before, after)
    ] == [
        earlier / "onceforall",
        ROOT / "src" / "onceforall",
    ]
    assert_right_everywhere(pipeline)
