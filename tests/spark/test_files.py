"""Spark's files are synced before the decision, each once, with the names of files and folders."""

import pytest

from onceforall.errors import CommitLogError
from onceforall.spark.files import SparkFiles
from support.syncing import Recorder


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "cp"
    for name in (
        "metadata",
        "offsets/0",
        "offsets/1",
        "commits/0",
        "sources/0/0",
        "state/0/3/1.delta",
        "state/0/_metadata/metadata",
    ):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("x")
    (path / "offsets" / ".1.crc").write_text("x")
    return path


@pytest.fixture
def files(checkpoint):
    made = SparkFiles(checkpoint)
    yield made
    made.close()


def synced(recorder, checkpoint):
    return {str(path.relative_to(checkpoint)) for what, path in recorder.calls if what == "sync"}


def test_before_the_decision_all_is_durable_on_which_the_batch_depends(
    files, checkpoint, monkeypatch
):
    recorder = Recorder(monkeypatch)
    files.sync_identity()
    assert synced(recorder, checkpoint) == {"metadata", "."}
    files.begin(1)
    (checkpoint / "state" / "0" / "3" / "2.delta").write_text("written by the batch's tasks")
    files.written().result()
    assert synced(recorder, checkpoint) == {
        *(
            "metadata",
            ".",
            "offsets",
            "offsets/0",
            "offsets/1",
            "commits",
            "commits/0",
            "sources",
            "sources/0",
            "sources/0/0",
        ),
        *("state", "state/0", "state/0/3", "state/0/3/1.delta", "state/0/3/2.delta"),
        *("state/0/_metadata", "state/0/_metadata/metadata"),
    }


def test_what_a_plain_query_has_finished_is_made_durable_as_a_whole(files, checkpoint, monkeypatch):
    recorder = Recorder(monkeypatch)
    files.sync_finished()
    below = {str(each.relative_to(checkpoint)) for each in checkpoint.rglob("*")}
    assert synced(recorder, checkpoint) == {".", *below} - {"metadata", "offsets/.1.crc"}


def test_what_is_durable_is_not_synced_again_and_what_is_new_is_with_the_folder_that_names_it(
    files, checkpoint, monkeypatch
):
    files.begin(1)
    files.written().result()
    (checkpoint / "offsets" / "2").write_text("x")
    (checkpoint / "commits" / "1").write_text("x")
    (checkpoint / "state" / "0" / "4").mkdir()
    recorder = Recorder(monkeypatch)
    files.begin(2)
    files.written().result()
    assert synced(recorder, checkpoint) == {
        "offsets/2",
        "offsets",
        "commits/1",
        "commits",
        "state/0",
        "state/0/4",
    }


def test_a_file_that_was_replaced_is_synced_again(files, checkpoint, monkeypatch):
    files.begin(1)
    files.written().result()
    new, file = checkpoint / "new", checkpoint / "state" / "0" / "3" / "1.delta"
    new.write_text("x" * file.stat().st_size)
    new.rename(file)
    recorder = Recorder(monkeypatch)
    files.begin(1)
    files.written().result()
    assert "state/0/3/1.delta" in synced(recorder, checkpoint)


def test_a_plan_that_is_not_there_fails_the_attempt_before_its_decision(files):
    files.begin(7)
    with pytest.raises(CommitLogError, match=r"can't be synced.*offsets/7"):
        files.written().result()


def test_a_file_system_that_refuses_to_sync_fails_the_attempt_before_its_decision(
    files, monkeypatch
):
    def refuse(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", refuse)
    files.begin(1)
    with pytest.raises(CommitLogError, match="Input/output error"):
        files.written().result()


def test_a_large_state_is_synced_by_several_threads_and_none_is_left_out(
    files, checkpoint, monkeypatch
):
    for number in range(100):
        (checkpoint / "state" / "0" / "3" / f"{number}.changelog").write_text("x")
    recorder = Recorder(monkeypatch)
    files.begin(1)
    files.written().result()
    assert {f"state/0/3/{number}.changelog" for number in range(100)} <= synced(
        recorder, checkpoint
    )
