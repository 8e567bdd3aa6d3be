"""kill -9 at each step of a task and of a driver that write to HDFS; another process completes the
batch, or sweeps it."""

from __future__ import annotations

import signal

import pytest

from onceforall.sink import Sweep
from sinks.files.building import QUERY, commit, numbers, permit, prepared
from sinks.files_s3.test_crashes import Processes
from support.waiting import until

pytestmark = pytest.mark.hdfs


@pytest.fixture
def processes(place, tmp_path):
    return Processes(place, tmp_path)


@pytest.fixture
def decided(processes):
    """A batch that is decided and not committed."""
    sink = processes.place.checked(partition_by=["p"])
    rows = [numbers(4, 4 * i, p=["a", "b", "a/..", None]) for i in range(2)]
    processes.keep(sink.confirm([prepared(sink, each, partition=i) for i, each in enumerate(rows)]))
    return processes


def assert_whole(place, batches=1):
    assert place.numbers() == list(range(8 * batches))
    assert place.left() == []


@pytest.mark.parametrize(
    "point",
    [
        "file.write.opened",
        "file.pre_commit.file_written",
        "file.pre_commit.file_synced@2",
        "file.pre_commit.after",
    ],
)
@pytest.mark.sample(1)
def test_what_a_killed_task_leaves_is_never_seen_and_is_swept(processes, point):
    name, _, hit = point.partition("@")
    assert processes.run("prepare", f"{name}=kill@{hit or 1}") == -signal.SIGKILL
    place = processes.place
    assert place.staged()
    assert place.sink().recover(Sweep(QUERY, "out", 1)) == 1
    assert place.left() == []
    assert place.files().rows == 0


COMMIT_POINTS = [
    "file.commit.before",
    "file.commit.renamed",
    "file.commit.renamed@6",
    "file.commit.synced",
    "file.manifest.before",
    "file.create.written",
    "file.create.synced",
    "file.create.linked",
    "file.manifest.after",
    "file.newest.before",
    "file.newest.linked",
    "file.commit.before_clearing",
]
BEHIND_THE_MANIFEST = set(COMMIT_POINTS[COMMIT_POINTS.index("file.create.linked") :])


@pytest.mark.parametrize(
    "point",
    [
        point if point == "file.create.linked" else pytest.param(point, marks=pytest.mark.long)
        for point in COMMIT_POINTS
    ],
)
def test_a_commit_that_is_killed_is_completed_by_another_process(decided, point):
    name, _, hit = point.partition("@")
    assert decided.run("commit", f"{name}=kill@{hit or 1}") == -signal.SIGKILL
    place = decided.place
    assert place.files().rows == (8 if point in BEHIND_THE_MANIFEST else 0)
    sink = place.checked(partition_by=["p"])
    names = {each["name"] for each in decided.kept()}
    assert sink.recover(Sweep(QUERY, "out", 1, spared=names)) == 0
    assert len(sink.commit(permit(), decided.kept()).completed) == 2
    assert_whole(place)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("file.manifest.before", marks=pytest.mark.long),
        pytest.param("file.commit.renamed", marks=pytest.mark.long),
    ],
)
def test_a_driver_that_was_frozen_in_its_commit_changes_nothing_when_it_wakes(decided, point):
    zombie = decided.started("commit", f"{point}=freeze@1")
    place = decided.place
    try:
        until(lambda: (decided.seen / point).exists(), 60, f"failpoint {point}")
        sink = place.checked(partition_by=["p"])
        assert len(sink.commit(permit(), decided.kept()).completed) == 2
        for batch in (1, 2):
            commit(sink, batch, numbers(8, 8 * batch, p=["a", "b"] * 4))
        before = place.all()
    finally:
        zombie.send_signal(signal.SIGCONT)
        assert zombie.wait(timeout=60) == 0
    assert place.all() == before
    assert_whole(place, batches=3)


@pytest.mark.long
def test_several_processes_commit_the_same_batch_at_once(decided):
    drivers = [decided.started("commit") for _ in range(3)]
    assert [driver.wait(timeout=120) for driver in drivers] == [0, 0, 0]
    assert_whole(decided.place)
