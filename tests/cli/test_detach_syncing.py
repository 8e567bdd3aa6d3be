"""A detachment is durable when it is reported, whoever renamed the folder: a loss of power must not bring the commit log back."""

import json
import uuid
from pathlib import Path

import pytest

from onceforall.commit_log import CommitLog, LocalStore
from onceforall.detaching import detach
from onceforall.protocol.entries import Claim
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
