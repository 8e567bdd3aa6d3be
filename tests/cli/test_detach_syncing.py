"""A detachment is durable when it is reported: a loss of power must not bring the commit log back
into force."""

import json
import uuid

import pytest

from onceforall.commit_log import CommitLog, LocalStore
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


def test_the_pointer_is_synced_before_it_is_reported(checkpoint, monkeypatch):
    recorder = Recorder(monkeypatch)
    assert detach(checkpoint, sinks(checkpoint)).log == checkpoint / "onceforall"
    recorder.synced(checkpoint / "onceforall" / "pointer")


def test_what_spark_has_written_of_the_last_batch_is_synced_before_the_log_goes(
    checkpoint, monkeypatch
):
    """Spark syncs nothing: its entry is all that is left of the decision when the log is gone."""
    decide(checkpoint)
    for folder in ("offsets", "commits"):
        (checkpoint / folder / "0").write_text("v1\n{}")
    recorder = Recorder(monkeypatch)
    assert detach(checkpoint, sinks(checkpoint)).log.is_dir()
    pointed = recorder.synced(checkpoint / "onceforall" / "pointer")
    for folder in ("offsets", "commits"):
        assert recorder.synced(checkpoint / folder / "0") < pointed
        assert recorder.synced(checkpoint / folder) < pointed


def decide(checkpoint):
    log = CommitLog(LocalStore(checkpoint / "onceforall"))
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    generation = log.claim(Claim(query_id, "run 2", str(checkpoint))).generation
    log.seal_below(generation)
    log.append(generation, Commit(0, ("{}",), {}, {}))
    log.append(generation, Done(0))
