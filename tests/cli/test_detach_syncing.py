"""A detachment is durable when it is reported: a loss of power must not bring the commit log back
into force. And what a loss of power has left before it."""

import json
import uuid

import pytest

from onceforall.commit_log import CommitLog, LocalStore
from onceforall.errors import CheckpointMismatchError
from onceforall.operate import detaching
from onceforall.operate.detaching import detach
from onceforall.protocol.entries import Claim, Commit, Done
from onceforall.sinks.files import FileSink
from support.syncing import Recorder

HEADER = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1795264652177,"conf":{}}'
OFFSETS = '{"clicks":{"0":3}}'


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


def test_a_run_that_decides_while_the_detachment_begins_gets_its_state_back(
    checkpoint, monkeypatch
):
    """It was taken for one that was cut off; without its state in place the detachment would leave
    to a plain query what only onceforall can finish."""
    log = CommitLog(LocalStore(checkpoint / "onceforall"))
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    claim = Claim(query_id, "run 2", str(checkpoint), boot_id="elsewhere")
    generation = log.claim(claim).generation
    log.seal_below(generation)
    (checkpoint / "offsets" / "0").write_text(f"{HEADER}\n{OFFSETS}")
    state = checkpoint / "state" / "0" / "0" / "1.delta"
    state.parent.mkdir(parents=True)
    state.write_text("of the first batch")
    recover = detaching._recover

    def late(*arguments, **more):
        assert not state.exists()
        log.append(generation, Commit(0, (OFFSETS,), {}, {}))
        return recover(*arguments, **more)

    monkeypatch.setattr(detaching, "_recover", late)
    with pytest.raises(CheckpointMismatchError, match="keeps state.*Start the query once more"):
        detach(checkpoint, sinks(checkpoint))
    assert state.read_text() == "of the first batch"


def test_state_that_may_be_torn_is_set_aside_for_nobody_can_tell_behind_a_detachment(checkpoint):
    log = CommitLog(LocalStore(checkpoint / "onceforall"))
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    log.claim(Claim(query_id, "run 2", str(checkpoint), boot_id="before"))
    (checkpoint / "offsets" / "0").write_text(f"{HEADER}\n{OFFSETS}")
    schema = checkpoint / "state" / "0" / "0" / "_metadata" / "schema"
    schema.parent.mkdir(parents=True)
    schema.write_text("half of i")
    assert any(
        "state was written before" in step for step in detach(checkpoint, sinks(checkpoint)).steps
    )
    assert not (checkpoint / "state").exists()
