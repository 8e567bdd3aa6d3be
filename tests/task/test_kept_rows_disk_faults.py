"""Rows that are kept for a redo, on a disk that is full, read-only, or fails at any step: the
attempt fails, and names the file."""

import pyarrow as pa
import pytest

from onceforall.errors import AttemptFailedError
from onceforall.sink import TaskAttempt
from onceforall.task.kept_rows import KeptFile, forget, read_kept
from onceforall.task.row_places.local import LocalRows

ATTEMPT = TaskAttempt("query", "out", 1, 7, 0, 2, 5)
NAME = "1.7/0-2-5.arrow"


def rows(count=10):
    return pa.RecordBatch.from_pydict({"n": pa.array(range(count), pa.int64())})


def kept(folder, attempt=ATTEMPT):
    """As in a batch: the driver has made its folder."""
    (folder / "1.7").mkdir(parents=True, exist_ok=True)
    file = KeptFile(LocalRows(folder), attempt)
    try:
        file.add(rows())
        return file.finish()
    finally:
        file.discard()


def test_a_full_disk_fails_the_attempt_and_the_next_one_keeps_its_rows(disk):
    folder = disk.root / "rows"
    (folder / "1.7").mkdir(parents=True)
    disk.fill()
    with pytest.raises(AttemptFailedError, match=f"{folder}/{NAME}: No space left on device"):
        kept(folder)
    disk.free()
    again = TaskAttempt("query", "out", 1, 7, 0, 2, 6)
    assert list(read_kept(LocalRows(folder), kept(folder, again))) == [rows()]
    forget(LocalRows(folder), 7)
    assert list(folder.iterdir()) == []


def test_a_read_only_disk_fails_the_attempt(disk):
    folder = disk.root / "rows"
    (folder / "1.7").mkdir(parents=True)
    with (
        disk.read_only(),
        pytest.raises(AttemptFailedError, match=f"{folder}/{NAME}: Read-only file system"),
    ):
        kept(folder)


@pytest.mark.parametrize(
    "step", ["file_made", "added", "finish.written", "finish.synced", "finish.folders_synced"]
)
def test_an_error_at_a_step_fails_the_attempt(tmp_path, armed, step):
    armed(f"kept.{step}=error:EIO")
    with pytest.raises(AttemptFailedError, match=f"{tmp_path}/{NAME}: Input/output error"):
        kept(tmp_path)
    armed("")
    forget(LocalRows(tmp_path), 7)
    assert list(tmp_path.iterdir()) == []
