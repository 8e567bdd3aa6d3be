"""A detachment is durable when it is reported, whoever renamed the folder: a loss of power must
not bring the commit log back."""

import json
import uuid
from pathlib import Path

import pytest

from onceforall.commit_log import CommitLog, LocalStore
from onceforall.errors import FencedError
from onceforall.operate.detaching import detach
from onceforall.protocol.entries import Claim, Commit, Done
from onceforall.sinks.files import FileSink
from support.syncing import Recorder


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint with a commit log, before its first batch."""
    path, query_id = tmp_path / "cp", str(uuid.uuid4())
    for part in ("offsets", "commits", "sources"):
        (path / part).mkdir(parents=True)
    (path / "metadata").write_text(json.dumps({"id": query_id}))
    log = CommitLog(LocalStore(path / "onceforall"))
    log.seal_below(log.claim(Claim(query_id, "run", str(path))).generation)
    return path


def sinks(checkpoint):
    return {"out": FileSink(checkpoint.parent / "out")}


def test_a_rename_is_synced_before_it_is_reported(checkpoint, monkeypatch):
    recorder = Recorder(monkeypatch)
    assert detach(checkpoint, sinks(checkpoint)).log.is_dir()
    recorder.synced(checkpoint)


def test_one_that_finds_the_folder_renamed_syncs_that(checkpoint, monkeypatch):
    detach(checkpoint, sinks(checkpoint))
    recorder = Recorder(monkeypatch)
    assert "was detached before" in detach(checkpoint, sinks(checkpoint)).steps[0]
    recorder.synced(checkpoint)


def test_one_that_is_overtaken_by_another_syncs_what_that_one_renamed(checkpoint, monkeypatch):
    rename, home = Path.rename, checkpoint / "onceforall"

    def overtaken(self, target):
        if self == home and home.exists():
            rename(home, checkpoint / "onceforall-detached-99")
            recorder.calls.clear()
            raise FileNotFoundError
        return rename(self, target)

    recorder = Recorder(monkeypatch)
    monkeypatch.setattr(Path, "rename", overtaken)
    assert detach(checkpoint, sinks(checkpoint)).log is None
    recorder.synced(checkpoint)


def test_what_spark_has_written_of_the_last_batch_is_synced_before_the_log_goes(
    checkpoint, monkeypatch
):
    """Spark syncs nothing: its entry is all that is left of the decision when the log is gone."""
    decide(checkpoint)
    for folder in ("offsets", "commits"):
        (checkpoint / folder / "0").write_text("v1\n{}")
    recorder = Recorder(monkeypatch)
    assert detach(checkpoint, sinks(checkpoint)).log.is_dir()
    renamed = recorder.synced(checkpoint)
    for folder in ("offsets", "commits"):
        assert recorder.synced(checkpoint / folder / "0") < renamed
        assert recorder.synced(checkpoint / folder) < renamed


def test_a_folder_that_is_renamed_back_is_synced(checkpoint, monkeypatch):
    """The query has returned meanwhile, and decides in it."""
    rename, home = Path.rename, checkpoint / "onceforall"

    def returned_meanwhile(self, target):
        if self == home and not checkpoint.with_name("first").exists():
            rename(home, checkpoint.with_name("first"))
            query_id = json.loads((checkpoint / "metadata").read_text())["id"]
            log = CommitLog(LocalStore(home), first_generation=5)
            log.claim(Claim(query_id, "another run", str(checkpoint)))
            recorder.calls.clear()
        return rename(self, target)

    recorder = Recorder(monkeypatch)
    monkeypatch.setattr(Path, "rename", returned_meanwhile)
    with pytest.raises(FencedError):
        detach(checkpoint, sinks(checkpoint))
    assert home.is_dir()
    # Once for the rename, and once for its undoing.
    assert recorder.calls.count(("sync", checkpoint)) == 2


def decide(checkpoint):
    log = CommitLog(LocalStore(checkpoint / "onceforall"))
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    generation = log.claim(Claim(query_id, "run 2", str(checkpoint))).generation
    log.seal_below(generation)
    log.append(generation, Commit(0, ("{}",), {}, {}))
    log.append(generation, Done(0))
