"""``onceforall detach`` completes what was decided for files and for PostgreSQL, though it knows
neither session nor output mode."""

import json
import uuid
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest

import onceforall as ofa
from onceforall.commit_log import CommitLog, LocalStore
from onceforall.errors import CheckpointMismatchError, InDoubtError, OptionError
from onceforall.operate.detaching import detach
from onceforall.protocol.entries import Claim, Commit, Digest, Done, Target
from onceforall.sink import StartInfo, TaskAttempt
from onceforall.spark import checkpoint as spark_checkpoint

OFFSETS = '{"clicks":{"0":3}}'
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795264652177,"conf":{}}'


def decided(folder, make, output_mode="append"):
    """A checkpoint whose query crashed right after it had decided batch 0, with a row of each of
    two tasks."""
    path, query_id = folder / "cp", str(uuid.uuid4())
    for part in ("offsets", "commits", "sources"):
        (path / part).mkdir(parents=True)
    (path / "metadata").write_text(json.dumps({"id": query_id}))
    (path / "offsets" / "0").write_text(f"v1\n{METADATA}\n{OFFSETS}")
    log = CommitLog(LocalStore(path / "onceforall"))
    generation = log.claim(Claim(query_id, "run", str(path))).generation
    log.seal_below(generation)
    sink = make()
    sink.check(StartInfo(query_id, "out", output_mode=output_mode))
    prepared = []
    for number in range(2):
        attempt = TaskAttempt(
            query_id, "out", generation, 0, 0, number, number, secrets=sink.secrets()
        )
        transaction = sink.begin_transaction(attempt)
        sink.invoke(transaction, pa.RecordBatch.from_pydict({"n": pa.array([number], pa.int64())}))
        prepared.append({**sink.pre_commit(transaction), "task": [0, number]})
    committables = tuple(json.loads(json.dumps(c)) for c in sink.confirm(prepared))
    sink.close()
    log.append(
        generation,
        Commit(0, (OFFSETS,), {"out": committables}, {"out/0": (Digest(1, 1), Digest(1, 2))}),
    )
    return path


def assert_detached(path, make):
    done = detach(path, {"out": make()})
    assert (done.completed, done.passed) == (0, 0)
    assert (path / "commits" / "0").exists()
    assert not spark_checkpoint.is_ours(path)


def test_files_that_were_decided_are_put_in_the_open(tmp_path):
    def make():
        return ofa.FileSink(tmp_path / "out")

    path = decided(tmp_path, make)
    assert ofa.read_files(tmp_path / "out").rows == 0
    assert_detached(path, make)
    assert sorted(ofa.read_files(tmp_path / "out").to_arrow().column("n").to_pylist()) == [0, 1]
    assert list((tmp_path / "out" / "_onceforall" / "staging").iterdir()) == []


def test_a_folder_that_is_not_the_last_decisions_is_not_touched_until_it_is_adopted(tmp_path):
    def make():
        return ofa.FileSink(tmp_path / "out")

    path = decided(tmp_path, make)
    log = CommitLog(LocalStore(path / "onceforall"))
    generation = log.claim(
        Claim(json.loads((path / "metadata").read_text())["id"], "run", str(path))
    ).generation
    before = log.seal_below(generation).decided.commit
    log.append(
        generation,
        replace(before, committables={}, targets={"out": Target({"folder": "another"}, 0)}),
    )
    log.append(generation, Done(0))
    (tmp_path / "out").rename(tmp_path / "away")
    with pytest.raises(CheckpointMismatchError, match="folder another"):
        detach(path, {"out": make()})
    assert not (tmp_path / "out").exists()
    with pytest.raises(OptionError, match="no sink of this query"):
        detach(path, {"out": make()}, adopt_target=["other"])
    with pytest.raises(OptionError, match="adoptTarget=other names no sink"):
        detach(path, {"out": make()}, adopt_target="out,other")
    assert detach(path, {"out": make()}, adopt_target=" out, ").log is not None


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("mode", "output_mode", "before", "after"),
    [
        ("staged", "append", [7], [0, 1, 7]),
        ("staged", "complete", [7], [0, 1]),
        ("prepared", "append", [7], [0, 1, 7]),
    ],
)
def test_rows_that_were_decided_are_put_in_the_table(
    tmp_path, database, mode, output_mode, before, after
):
    def shown():
        with psycopg.connect(database, autocommit=True) as connection:
            return [n for (n,) in connection.execute("SELECT n FROM t ORDER BY n").fetchall()]

    def make():
        return ofa.PostgresSink(database, "t", mode=mode, retry_for_s=10, lock_timeout_s=5)

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (n bigint); INSERT INTO t VALUES (7)")
    path = decided(tmp_path, make, output_mode)
    assert shown() == before
    assert_detached(path, make)
    assert shown() == after


@pytest.mark.postgres
def test_a_table_that_refuses_what_was_decided_is_told_with_its_words_and_the_timeout(
    tmp_path, database
):
    def make():
        return ofa.PostgresSink(database, "t", retry_for_s=5, lock_timeout_s=2)

    def execute(statement):
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(statement)

    execute("CREATE TABLE t (n bigint UNIQUE)")
    path = decided(tmp_path, make)
    execute("INSERT INTO t VALUES (1)")
    with pytest.raises(InDoubtError) as caught:
        detach(path, {"out": make()}, timeout_s=2)
    told = str(caught.value)
    for words in (
        "Not detached", "out did not complete it within 2 s, the timeout of the detachment",
        "out said last: Batch 0 is decided", "The first such row: n='1'",
    ):  # fmt: skip
        assert words in told
    assert "The query was stopped" not in told
    execute("DELETE FROM t")
    assert_detached(path, make)
