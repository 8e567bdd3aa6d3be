"""Rows that are kept for a redo, without Spark: durable before they are named, checked before they are written."""

import pyarrow as pa
import pytest

from onceforall.errors import AttemptFailedError
from onceforall.kept import KeptFile, forget, forget_attempt, read_kept
from onceforall.sink import TaskAttempt
from support.syncing import Recorder

ROWS = pa.RecordBatch.from_pydict({"n": pa.array(range(100), pa.int64())})


def keep(folder, batch=0, generation=0):
    kept = KeptFile(str(folder), TaskAttempt("query", "out", generation, batch, 0, 1, 2))
    kept.add(ROWS)
    return kept.finish()


def numbers(folder, kept):
    return [n for rows in read_kept(str(folder), kept) for n in rows.column(0).to_pylist()]


def test_kept_rows_come_back(tmp_path):
    kept = keep(tmp_path)
    assert kept["rows"] == 100
    assert numbers(tmp_path, kept) == list(range(100))


def test_kept_rows_are_durable_with_their_folders_when_they_are_named(tmp_path, monkeypatch):
    recorder = Recorder(monkeypatch)
    folder = tmp_path / "rows"
    kept = keep(folder)
    file = folder / kept["file"]
    assert recorder.synced(file) < recorder.synced(file.parent)
    recorder.synced(folder)
    recorder.synced(tmp_path)


@pytest.mark.parametrize("place", [0, 40, -1])
def test_kept_rows_that_are_damaged_are_refused(tmp_path, place):
    kept = keep(tmp_path)
    path = tmp_path / kept["file"]
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(AttemptFailedError, match="are damaged"):
        numbers(tmp_path, kept)


def test_rows_of_a_complete_batch_and_of_lower_ones_are_forgotten_and_no_others(tmp_path):
    old, complete, next_one = (keep(tmp_path, batch, generation) for batch, generation in ((3, 0), (4, 1), (5, 1)))
    forget(tmp_path, 4)
    assert not (tmp_path / old["file"]).exists()
    assert not (tmp_path / complete["file"]).exists()
    assert numbers(tmp_path, next_one) == list(range(100))


def test_rows_of_an_aborted_attempt_are_forgotten_and_no_others(tmp_path):
    decided, aborted, other = (keep(tmp_path, batch, generation) for batch, generation in ((5, 0), (5, 1), (15, 1)))
    forget_attempt(tmp_path, 1, 5)
    assert not (tmp_path / aborted["file"]).exists()
    assert numbers(tmp_path, decided) == numbers(tmp_path, other) == list(range(100))
    forget_attempt(tmp_path / "none", 1, 5)
