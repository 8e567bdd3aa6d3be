"""Rows that are kept for a redo, without Spark: durable before they are named, checked before
they are written."""

import logging

import pyarrow as pa
import pytest

from onceforall.errors import AttemptFailedError
from onceforall.sink import TaskAttempt
from onceforall.task.kept_rows import KeptFile, RowKeeper, forget, forget_attempt, read_kept
from onceforall.task.row_places.local import LocalRows
from support.syncing import Recorder

ROWS = pa.RecordBatch.from_pydict({"n": pa.array(range(100), pa.int64())})


def keep(folder, batch=0, generation=0):
    (folder / f"{generation}.{batch}").mkdir(parents=True, exist_ok=True)
    kept = KeptFile(LocalRows(folder), TaskAttempt("query", "out", generation, batch, 0, 1, 2))
    kept.add(ROWS)
    return kept.finish()


def numbers(folder, kept):
    return [n for rows in read_kept(LocalRows(folder), kept) for n in rows.column(0).to_pylist()]


def test_kept_rows_come_back(tmp_path):
    kept = keep(tmp_path)
    assert kept["rows"] == 100
    assert numbers(tmp_path, kept) == list(range(100))


def test_kept_rows_are_durable_with_their_folders_when_they_are_named(tmp_path, monkeypatch):
    recorder = Recorder(monkeypatch)
    folder = tmp_path / "rows"
    keeper(folder).keeping(None, [], 0, 0)
    recorder.synced(folder)
    recorder.synced(tmp_path)
    file = folder / keep(folder)["file"]
    assert recorder.synced(file) < recorder.synced(file.parent)


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
    old, complete, next_one = (
        keep(tmp_path, batch, generation) for batch, generation in ((3, 0), (4, 1), (5, 1))
    )
    forget(LocalRows(tmp_path), 4)
    assert not (tmp_path / old["file"]).exists()
    assert not (tmp_path / complete["file"]).exists()
    assert numbers(tmp_path, next_one) == list(range(100))


def test_rows_of_an_aborted_attempt_are_forgotten_and_no_others(tmp_path):
    decided, aborted, other = (
        keep(tmp_path, batch, generation) for batch, generation in ((5, 0), (5, 1), (15, 1))
    )
    forget_attempt(LocalRows(tmp_path), 1, 5)
    assert not (tmp_path / aborted["file"]).exists()
    assert numbers(tmp_path, decided) == numbers(tmp_path, other) == list(range(100))
    forget_attempt(LocalRows(tmp_path / "none"), 1, 5)


# --- whether rows are kept ------------------------------------------------------------------------


def keeper(folder, reason="uuid() is not deterministic", *, required=False):
    return RowKeeper(LocalRows(folder), required=required, why_not=lambda batch, frames: reason)


def result_of(kept):
    return {"write": 0, "committable": {"name": "t", "rows": kept}}


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_rows_are_kept_where_a_replay_may_differ_and_the_reason_is_said_once(tmp_path, caplog):
    caplog.set_level(logging.INFO, "onceforall")
    of_run = keeper(tmp_path / "rows")
    for batch in range(2):
        keeping = of_run.keeping(None, [], 3, batch)
        assert (keeping.place, keeping.required) == (LocalRows(tmp_path / "rows"), False)
        assert (tmp_path / "rows" / f"3.{batch}").is_dir(), (
            "the driver makes the folder, for the tasks don't"
        )
    assert [
        record.getMessage() for record in caplog.records if "uuid()" in record.getMessage()
    ] != []
    assert len(caplog.records) == 1


def test_rows_are_not_kept_where_a_replay_is_the_same(tmp_path):
    assert keeper(tmp_path / "rows", None).keeping(None, [], 0, 0) is None
    assert not (tmp_path / "rows").exists()


def test_rows_that_must_be_kept_are_whatever_a_plan_says(tmp_path):
    assert keeper(tmp_path, None, required=True).keeping(None, [], 0, 0).required


def test_a_folder_that_cannot_be_made_fails_the_batch_only_where_rows_must_be_kept(
    tmp_path, caplog
):
    (tmp_path / "rows").write_text("a file")
    of_run = keeper(tmp_path / "rows")
    assert [of_run.keeping(None, [], 0, batch) for batch in range(2)] == [None, None]
    (warning,) = warnings(caplog)
    assert "onceforall.commitLog" in warning
    with pytest.raises(AttemptFailedError, match="must be able to write"):
        keeper(tmp_path / "rows", required=True).keeping(None, [], 0, 0)


def test_a_task_makes_no_folder_of_its_own_for_rows_that_need_not_be_kept(tmp_path):
    kept = KeptFile(
        LocalRows(tmp_path / "rows"), TaskAttempt("query", "out", 0, 0, 0, 1, 2), required=False
    )
    with pytest.raises(AttemptFailedError, match="No such file") as caught:
        kept.add(ROWS)
    assert "durable" not in str(caught.value), "nobody has set that option"
    assert not (tmp_path / "rows").exists()


def test_kept_rows_that_the_driver_does_not_see_do_not_count(tmp_path, caplog):
    of_run = keeper(tmp_path)
    here, elsewhere = keep(tmp_path), {"file": "0.0/0-9-9.arrow", "sha256": "", "rows": 100}
    seen, unseen, again = of_run.seen([result_of(here), result_of(elsewhere), result_of(elsewhere)])
    assert seen["committable"]["rows"] == here
    assert unseen["committable"] == again["committable"] == {"name": "t"}
    assert len(warnings(caplog)) == 1
    with pytest.raises(AttemptFailedError, match="doesn't see them"):
        keeper(tmp_path, required=True).seen([result_of(elsewhere)])


def test_what_has_no_kept_rows_passes_and_a_task_that_could_not_keep_them_is_reported_once(
    tmp_path, caplog
):
    results = [
        {"refused": "a record"},
        {"committable": None},
        {"committable": {"name": "t", "rows": {}}},
    ]
    assert keeper(tmp_path).seen(results) == results
    assert not warnings(caplog)
    without = {
        "committable": {"name": "t"},
        "not_kept": "A task can't keep rows in /rows: No space left on device.",
    }
    assert keeper(tmp_path).seen([without, without]) == [without, without]
    (warning,) = warnings(caplog)
    assert "No space left" in warning
