"""kill -9 at each step of a task and of a driver; another process completes the batch, or sweeps
it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onceforall import read_files
from onceforall.sink import Sweep
from sinks.files.building import QUERY, checked, commit, left_in_staging, numbers, permit, prepared
from support.waiting import until

WORKER = str(Path(__file__).parent / "worker.py")
ROWS_PER_BATCH = 6


def started(folder, step, failpoints="", **options):
    seen = folder.with_suffix(".seen")
    seen.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "ONCEFORALL_FAILPOINTS": failpoints,
        "ONCEFORALL_FAILPOINTS_SEEN": str(seen),
    }
    return subprocess.Popen(
        [sys.executable, WORKER, str(folder), step, json.dumps(options)], env=environment
    )


def run(folder, step, failpoints="", **options):
    return started(folder, step, failpoints, **options).wait(timeout=120)


def committables(folder):
    return json.loads(Path(f"{folder}.json").read_text())


def assert_whole(folder, batches=1):
    """Every row is there once, in the manifests and for those who just look, and no temp file is
    left."""
    files = read_files(folder)
    assert sorted(files.to_arrow().column("n").to_pylist()) == list(range(8 * batches))
    assert sorted(files.paths) == sorted(str(path) for path in folder.rglob("part-*"))
    assert left_in_staging(folder) == []


@pytest.mark.parametrize("point", ["before", "file_synced@2", "before_sync", "after"])
def test_what_a_killed_task_leaves_is_never_seen_and_is_swept(tmp_path, point):
    folder = tmp_path / "out"
    name, _, hit = point.partition("@")
    assert run(folder, "prepare", f"file.pre_commit.{name}=kill@{hit or 1}") == -signal.SIGKILL
    sink = checked(folder, partition_by=["p"])
    assert len(left_in_staging(folder)) == 1
    assert sink.recover(Sweep(QUERY, "out", 1)) == 1
    assert left_in_staging(folder) == []
    assert list(folder.rglob("part-*")) == []
    assert read_files(folder).rows == 0


COMMIT_POINTS = [
    "file.commit.before",
    "file.commit.renamed",
    "file.commit.renamed@6",
    "file.commit.synced",
    "file.manifest.before",
    "file.manifest.after",
    "file.newest.before",
    "file.newest.linked",
    "file.commit.before_clearing",
]
BEHIND_THE_MANIFEST = set(COMMIT_POINTS[COMMIT_POINTS.index("file.manifest.after") :])


@pytest.fixture
def decided(tmp_path):
    """A folder with a batch that is decided and not committed."""
    folder = tmp_path / "out"
    sink = checked(folder, partition_by=["p"])
    rows = [numbers(4, 4 * i, p=["a", "b", "a/..", None]) for i in range(2)]
    kept = sink.confirm([prepared(sink, each, partition=i) for i, each in enumerate(rows)])
    Path(f"{folder}.json").write_text(json.dumps(kept))
    return folder


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_commit_that_is_killed_is_completed_by_another_process(decided, point):
    name, _, hit = point.partition("@")
    assert run(decided, "commit", f"{name}=kill@{hit or 1}") == -signal.SIGKILL
    assert read_files(decided).rows == (8 if point in BEHIND_THE_MANIFEST else 0)
    sink = checked(decided, partition_by=["p"])
    names = {each["name"] for each in committables(decided)}
    assert sink.recover(Sweep(QUERY, "out", 1, spared=names)) == 0
    assert len(sink.commit(permit(), committables(decided)).completed) == 2
    assert_whole(decided)
    assert list(decided.rglob(".newest.0")), "the manifest would not be missed"


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            p,
            marks=() if p in {"file.commit.renamed", "file.manifest.before"} else pytest.mark.long,
        )
        for p in COMMIT_POINTS
    ],
)
def test_a_driver_that_was_frozen_in_its_commit_changes_nothing_when_it_wakes(decided, point):
    name, _, hit = point.partition("@")
    zombie = started(decided, "commit", f"{name}=freeze@{hit or 1}")
    try:
        until(lambda: (decided.with_suffix(".seen") / name).exists(), 60, f"failpoint {name}")
        sink = checked(decided, partition_by=["p"])
        assert len(sink.commit(permit(), committables(decided)).completed) == 2
        for batch in (1, 2):
            commit(sink, batch, numbers(8, 8 * batch, p=["a", "b"] * 4))
        before = {
            path: (path.lstat().st_ino, path.lstat().st_mtime_ns)
            for path in decided.rglob("*")
            if path.is_file()
        }
    finally:
        zombie.send_signal(signal.SIGCONT)
        assert zombie.wait(timeout=60) == 0
    assert {
        path: (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for path in decided.rglob("*")
        if path.is_file()
    } == before
    assert_whole(decided, batches=3)


@pytest.mark.long
def test_an_abort_that_is_killed_is_done_by_the_sweep(decided):
    assert run(decided, "abort", "file.abort.deleted=kill") == -signal.SIGKILL
    assert len(left_in_staging(decided)) == 1
    assert run(decided, "abort", "file.recover.deleted=kill") == 0
    assert left_in_staging(decided) == []
    assert list(decided.rglob("part-*")) == []


def test_several_processes_commit_the_same_batch_at_once(decided):
    drivers = [started(decided, "commit") for _ in range(3)]
    assert [driver.wait(timeout=120) for driver in drivers] == [0, 0, 0]
    assert_whole(decided)


def test_a_reader_never_sees_part_of_a_batch_nor_less_than_before(tmp_path):
    folder = tmp_path / "out"
    checked(folder, partition_by=["p"])
    writer = started(folder, "batches")
    try:
        rows, snapshots = 0, set()

        def read():
            nonlocal rows
            files = read_files(folder)
            assert files.rows % ROWS_PER_BATCH == 0
            assert files.rows >= rows
            assert (
                len({(batch.query_id, batch.files.batch) for batch in files.batches})
                * ROWS_PER_BATCH
                == files.rows
            )
            rows = files.rows
            snapshots.add(rows)
            return rows >= 40 * ROWS_PER_BATCH

        until(read, 120, "40 batches")
        assert len(snapshots) > 5
    finally:
        writer.kill()
        writer.wait()
    files = read_files(folder)
    assert sorted(files.to_arrow().column("n").to_pylist()) == list(range(files.rows))
    merged = [path.name for path in folder.rglob("*.json") if "-" in path.name]
    assert merged, "no manifest was merged"
