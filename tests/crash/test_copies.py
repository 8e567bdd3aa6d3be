"""A copy of a checkpoint that is adopted while the original runs on: fenced, and never mixed."""

import shutil
import signal
from collections import Counter

import pytest

from support.driver import ROWS_PER_BATCH, Pipeline
from support.reading import released, values
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

TASKS = 4
ADOPT = {"onceforall.adoptCheckpoint": "true"}
TOLD = ("AttemptFailedError", "TransactionLostError", "InDoubtError", "NondeterministicReplayError")


def test_an_original_and_its_adopted_copy_that_run_at_once_are_fenced_and_never_mixed(
    tmp_path, pipeline
):
    # It has prepared its third batch, and decides it when the copy has gone on from the second.
    original = pipeline.start("append_commit.before=freeze@3", until_batch=1000)
    original.wait_for_failpoint("append_commit.before")
    copy = Pipeline(tmp_path / "copy", pipeline.bootstrap, pipeline.topic)
    try:
        shutil.copytree(pipeline.checkpoint, copy.checkpoint)
        adopted = copy.start(until_batch=1000, options=ADOPT)
        until(
            lambda: (
                (copy.checkpoint / "commits" / "4").exists() or adopted.process.poll() is not None
            ),
            90,
            "the copy runs",
        )
        original.signal(signal.SIGCONT)
        # Their ids are the same wherever their generations are, and the copy sweeps what is older.
        until(
            lambda: any(d.process.poll() is not None for d in (original, adopted)),
            90,
            "one of the two is told",
        )
        told = [d for d in (original, adopted) if d.process.poll() is not None]
        for driver in told:
            driver.wait()
            assert any(error in driver.status()["error"] for error in TOLD), driver.status()
        original.kill()
        adopted.kill()
        copy.run(until_batch=copy.batches() + 2, options=ADOPT)
    finally:
        copy.close()
    counts = Counter(int(value) for value in values(pipeline.bootstrap, pipeline.topic))
    assert set(counts) >= set(range(ROWS_PER_BATCH * copy.batches())), "rows are lost"
    assert set(counts.values()) <= {1, 2}, "an owner has doubled its own"
    for batch in range(max(counts) // ROWS_PER_BATCH + 1):
        for task in range(TASKS):
            rows = range(ROWS_PER_BATCH * batch + task, ROWS_PER_BATCH * (batch + 1), TASKS)
            assert len({counts[row] for row in rows}) == 1, (
                f"a torn transaction: {[(row, counts[row]) for row in rows]}"
            )
    released(pipeline.bootstrap, pipeline.topic)
