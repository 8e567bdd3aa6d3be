"""A loss of power at each step of a batch: what was not synced is gone, Spark's own files first of all; a restart alone goes on.

On ext4 the name of a file that was not synced is often there without its content, for the sync of another file has taken the name
along. Elsewhere the name is gone, too. The twins with recorded syncs have both, and need no right to mount.
"""

import json
from pathlib import Path

import pytest

from onceforall import read_files
from support.driver import ROWS_PER_BATCH, Pipeline
from support.power import cut_power, powered_disk
from support.sync_record import forget_unsynced

pytestmark = [pytest.mark.spark]

STEPS = [
    "write.job.before",
    "append_commit.before",
    "append_commit.after",
    "commit.after",
    "append_done.before",
    "append_done.after",
    "return_batch.after_done",
]
"""Each step of a batch; behind the last one Spark writes its own entry."""


def on_disk(disk, folder, **config):
    """Return a pipeline whose checkpoint and files lie on a disk, and whose drivers' own files don't."""
    made = Pipeline(folder, "", "", sinks=["files"], files=str(disk / "out"), **config)
    made.checkpoint = disk / "checkpoint"
    made.config["checkpoint"] = str(made.checkpoint)
    return made


def values_of(pipeline):
    rows = (json.loads(line) for file in read_files(pipeline.config["files"]).paths for line in Path(file).read_text().splitlines())
    return sorted(int(row["value"]) for row in rows)


def assert_once(pipeline):
    assert pipeline.batches() > 3
    assert values_of(pipeline) == list(range(ROWS_PER_BATCH * pipeline.batches()))


@pytest.fixture
def powered(tmp_path):
    with powered_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.mark.parametrize("failpoint", [f"{step}=kill@3" for step in STEPS])
@pytest.mark.parametrize("deduplicate", [False, True], ids=["stateless", "stateful"])
def test_a_query_goes_on_behind_a_loss_of_power(tmp_path, powered, failpoint, deduplicate):
    pipeline = on_disk(powered, tmp_path, deduplicate=deduplicate)
    try:
        pipeline.start(failpoint).wait_until_killed()
        cut_power(powered)
        pipeline.run(until_batch=4)
        assert_once(pipeline)
    finally:
        pipeline.close()
