"""A loss of power at each step of a batch: what was not synced is gone, Spark's own files first of
all; a restart alone goes on.

On ext4 the name of a file that was not synced is often there without its content, for the sync of
another file has taken the name along. Elsewhere the name is gone, too. The twins with recorded
syncs have both, and need no right to mount.
"""

import json
from pathlib import Path

import pytest

from onceforall import read_files
from onceforall.cli import main
from support.driver import ROWS_PER_BATCH, Pipeline
from support.power import cut_power, powered_disk
from support.sync_record import forget_unsynced

pytestmark = [pytest.mark.spark]

STEPS = [
    "start.bound=kill",
    "claim.after=kill",
    "seal.after=kill",
    "write.job.before=kill",
    "append_commit.before=kill",
    "append_commit.after=kill",
    "write.job.before=kill@3",
    "spark_files.written=kill@3",
    "append_commit.before=kill@3",
    "append_commit.after=kill@3",
    "commit.after=kill@3",
    "append_done.before=kill@3",
    "append_done.after=kill@3",
    "return_batch.after_done=kill@3",
]
"""Each step of a start and of a batch; behind the last one Spark writes its own entry."""

IN_RECOVERY = [
    "claim.after=kill",
    "seal.after=kill",
    "recover.after=kill",
    "append_done.after=kill",
]


def on_disk(disk, folder, **config):
    """Return a pipeline whose checkpoint and files lie on a disk, and whose drivers' own files
    don't."""
    made = Pipeline(folder, "", "", sinks=["files"], files=str(disk / "out"), **config)
    made.checkpoint = disk / "checkpoint"
    made.config["checkpoint"] = str(made.checkpoint)
    return made


def values_of(pipeline):
    files = [Path(path) for path in read_files(pipeline.config["files"]).paths]
    return sorted(
        int(json.loads(line)["value"]) for file in files for line in file.read_text().splitlines()
    )


def assert_once(pipeline):
    assert pipeline.batches() > 3
    assert values_of(pipeline) == list(range(ROWS_PER_BATCH * pipeline.batches()))


class Forgetful(Pipeline):
    """A pipeline whose drivers record what they sync in the checkpoint."""

    def __init__(self, folder, **config):
        super().__init__(
            folder,
            "",
            "",
            sinks=["files"],
            files=str(folder / "out"),
            syncs=str(folder / "syncs"),
            **config,
        )
        self._root = folder

    def cut_power(self, *, keep_names):
        forgotten = forget_unsynced(self.checkpoint, self._root / "syncs", keep_names=keep_names)
        assert forgotten, "everything was synced: nothing was tested"
        return {file.relative_to(self.checkpoint).parts[0] for file in forgotten}


@pytest.fixture
def powered(tmp_path):
    with powered_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def forgetful(tmp_path):
    made = []

    def make(**config):
        made.append(Forgetful(tmp_path, **config))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


@pytest.mark.parametrize(
    "deduplicate", [pytest.param(False, id="stateless"), pytest.param(True, id="stateful")]
)
@pytest.mark.parametrize("failpoint", STEPS)
@pytest.mark.long
def test_a_query_goes_on_behind_a_loss_of_power(tmp_path, powered, failpoint, deduplicate):
    pipeline = on_disk(powered, tmp_path, deduplicate=deduplicate)
    try:
        pipeline.start(failpoint).wait_until_killed()
        cut_power(powered)
        pipeline.run(until_batch=4)
        assert_once(pipeline)
    finally:
        pipeline.close()


@pytest.mark.long
@pytest.mark.parametrize("failpoint", IN_RECOVERY)
def test_a_second_loss_of_power_in_the_recovery_from_the_first_changes_nothing(
    tmp_path, powered, failpoint
):
    pipeline = on_disk(powered, tmp_path, deduplicate=True)
    try:
        pipeline.start("append_commit.after=kill@3").wait_until_killed()
        cut_power(powered)
        pipeline.start(failpoint).wait_until_killed()
        cut_power(powered)
        pipeline.run(until_batch=4)
        assert_once(pipeline)
    finally:
        pipeline.close()


@pytest.mark.long
@pytest.mark.parametrize("keep_names", [True, False], ids=["names-stay", "names-go"])
@pytest.mark.parametrize("deduplicate", [False, True], ids=["stateless", "stateful"])
@pytest.mark.parametrize("failpoint", STEPS)
def test_a_query_goes_on_behind_the_loss_of_all_that_its_drivers_have_not_synced(
    forgetful, failpoint, deduplicate, keep_names
):
    pipeline = forgetful(deduplicate=deduplicate)
    pipeline.start(failpoint).wait_until_killed()
    pipeline.cut_power(keep_names=keep_names)
    pipeline.run(until_batch=4)
    assert_once(pipeline)


@pytest.mark.long
def test_a_plan_that_was_lost_and_made_anew_is_refused_by_the_start_and_mended_by_the_command(
    forgetful, capsys
):
    """What an earlier release left behind a loss of power: the batch is decided, and Spark's
    plan of it is another one."""
    pipeline = forgetful()
    pipeline.start("append_commit.after=kill@3").wait_until_killed()
    planned = pipeline.checkpoint / "offsets" / "2"
    decided = planned.read_text()
    planned.write_text(decided.replace('"offset":60', '"offset":55'))
    planned.with_name(".2.crc").unlink()
    refused = pipeline.start()
    refused.wait()
    assert "CheckpointMismatchError" in refused.status()["error"]
    assert "onceforall checkpoint mend" in refused.status()["error"]
    assert main(["checkpoint", "mend", str(pipeline.checkpoint)]) == 0
    assert "other offsets than were decided for batch 2" in capsys.readouterr().out
    assert planned.read_text() == decided
    pipeline.run(until_batch=4)
    assert_once(pipeline)
