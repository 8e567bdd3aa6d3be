"""``onceforall detach`` on checkpoints as Spark leaves them, with real transactions on a real
broker; Spark itself is in test_adopting."""

import json
import os
import signal
import subprocess
import sys
import uuid

import pyarrow as pa
import pytest

import onceforall as ofa
from onceforall.cli import main
from onceforall.commit_log import CommitLog, LocalStore
from onceforall.errors import FencedError, InDoubtError, OptionError, SinkUnavailableError
from onceforall.operate import detaching
from onceforall.operate.detaching import detach
from onceforall.protocol.entries import Claim, Commit, Digest, Done
from onceforall.sink import StartInfo, TaskAttempt
from onceforall.spark import checkpoint as spark_checkpoint
from support.reading import held_back, values
from support.waiting import until

pytestmark = pytest.mark.kafka

OFFSETS = '{"clicks":{"0":3}}'
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795264652177,"conf":{}}'
COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'


class Crashed:
    """A query that crashed in a batch, with a transaction that is prepared."""

    def __init__(self, broker, topic, folder, batch=0):
        self.servers, self.topic, self.batch = broker.bootstrap_servers, topic(partitions=1), batch
        self.folder, self.path, self.query_id = folder, folder / "cp", str(uuid.uuid4())
        for part in ("offsets", "commits", "sources"):
            (self.path / part).mkdir(parents=True)
        (self.path / "metadata").write_text(json.dumps({"id": self.query_id}))
        for done in range(batch + 1):
            self.spark_plans(done)
        for done in range(batch):
            (self.path / "commits" / str(done)).write_text(COMMITTED)
        self.log = CommitLog(LocalStore(self.path / "onceforall"))
        self.generation = self.log.claim(Claim(self.query_id, "run", str(self.path))).generation
        self.log.seal_below(self.generation)
        (folder / "my_sinks.py").write_text(
            "import onceforall as ofa\n"
            f"SINKS = {{'out': ofa.KafkaSink({{'bootstrap.servers': {self.servers!r}}}, "
            f"topic={self.topic!r})}}\n"
            "def make(): return dict(SINKS)\n"
            "OTHERS = {'outt': SINKS['out']}\n"
            "NUMBER = 7\n"
            "def made_of(topic): return dict(SINKS)\n"
        )

    def sink(self, servers=None):
        return ofa.KafkaSink({"bootstrap.servers": servers or self.servers}, topic=self.topic)

    def spark_plans(self, batch):
        (self.path / "offsets" / str(batch)).write_text(f"v1\n{METADATA}\n{OFFSETS}")

    def prepare(self, *texts):
        sink = self.sink()
        try:
            sink.check(StartInfo(self.query_id, "out"))
            transaction = sink.begin_transaction(
                TaskAttempt(self.query_id, "out", self.generation, self.batch, 0, 0, 0)
            )
            sink.invoke(
                transaction,
                pa.RecordBatch.from_pydict(
                    {"value": pa.array([t.encode() for t in texts], pa.binary())}
                ),
            )
            return sink.pre_commit(transaction)
        finally:
            sink.close()

    def decide(self, committable, offsets=OFFSETS):
        digests = {"out/0": (Digest(committable["records"], 1),)}
        self.log.append(
            self.generation, Commit(self.batch, (offsets,), {"out": (committable,)}, digests)
        )

    def command(self, *more, sinks="my_sinks:SINKS"):
        return ["detach", str(self.path), "--sinks", sinks, *more]

    def in_a_process(self, failpoints=""):
        """Run the command in a process of its own, and return its exit status."""
        code = "import sys, onceforall.cli; sys.exit(onceforall.cli.main())"
        command = [sys.executable, "-c", code, *self.command()]
        environment = {**os.environ, "ONCEFORALL_FAILPOINTS": failpoints}
        return subprocess.run(
            command, cwd=self.folder, env=environment, timeout=120, check=False
        ).returncode

    def files(self):
        return {
            file.relative_to(self.path): file.read_bytes()
            for file in self.path.rglob("*")
            if file.is_file()
        }

    def settled(self):
        """What is visible as soon as no transaction holds a reader back: the brokers answer a
        commit before its markers are written."""
        until(lambda: held_back(self.servers, self.topic) == 0, 60, "no transaction is open")
        return self.visible()

    def visible(self):
        return values(self.servers, self.topic)


@pytest.fixture
def crashed(broker, topic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda batch=0: Crashed(broker, topic, tmp_path, batch)
    sys.modules.pop("my_sinks", None)


@pytest.mark.parametrize("sinks", ["my_sinks:SINKS", "my_sinks:make"])
def test_what_is_decided_is_completed_and_passed_and_the_log_set_aside(crashed, capsys, sinks):
    query = crashed(batch=3)
    query.decide(query.prepare("a", "b"))
    assert query.visible() == []
    assert main(query.command(sinks=sinks)) == 0
    said = capsys.readouterr().out
    assert query.settled() == ["a", "b"]
    assert (query.path / "commits" / "3").read_text() == COMMITTED
    assert not spark_checkpoint.is_ours(query.path)
    for words in (
        "sealed",
        "Batch 3 was decided",
        "complete on out",
        "Spark's own commit log",
        f"stays in {query.path}/onceforall",
    ):
        assert words in said
    assert main(query.command()) == 0
    assert "detached before" in capsys.readouterr().out


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_behind_batches_of_a_plain_query_rows_may_be_visible(crashed, capsys, dry_run):
    query = crashed(batch=3)
    query.batch = 1
    query.decide(query.prepare("a"))
    assert main([*query.command(), *dry_run]) == 0
    said = capsys.readouterr().out
    assert "Batch 3 was begun without onceforall and isn't finished: rows of it may be" in said
    assert "undecided: " not in said


def test_what_is_undecided_is_aborted_and_left_to_the_plain_query(crashed, capsys):
    query = crashed()
    query.prepare("a", "b")
    assert held_back(query.servers, query.topic) > 0
    assert main(query.command()) == 0
    assert query.settled() == []
    assert not (query.path / "commits" / "0").exists()
    assert "Batch 0 is planned by Spark and undecided" in capsys.readouterr().out


@pytest.mark.parametrize(
    "failpoint",
    ["append_done.before", "detach.recovered", "detach.passed", "detach.left", "detach.pointed"],
)
@pytest.mark.sample(2)
def test_a_command_that_is_killed_is_repeated(crashed, failpoint):
    query = crashed()
    query.decide(query.prepare("a"))
    assert query.in_a_process(f"{failpoint}=kill") == -signal.SIGKILL
    assert query.in_a_process() == 0
    assert query.settled() == ["a"]
    assert (query.path / "commits" / "0").exists()
    assert not spark_checkpoint.is_ours(query.path)


@pytest.mark.parametrize("torn", [True, False])
def test_a_plan_that_went_with_the_power_is_put_back_first(crashed, capsys, torn):
    query = crashed(batch=1)
    query.decide(query.prepare("a"))
    planned = query.path / "offsets" / "1"
    planned.write_text("") if torn else planned.unlink()
    assert main(query.command()) == 0
    assert "put back from the commit log" in capsys.readouterr().out
    assert query.settled() == ["a"]
    assert planned.read_text().endswith(OFFSETS)
    assert (query.path / "commits" / "1").exists()


def test_a_dry_run_tells_and_changes_nothing(crashed, capsys):
    query = crashed()
    query.decide(query.prepare("a"))
    before = query.files()
    assert main(query.command("--dry-run")) == 0
    said = capsys.readouterr().out
    for words in (
        "Nothing is changed",
        "would be completed on out",
        "would be entered in Spark's own commit log",
        "would make it a plain query's",
    ):
        assert words in said
    assert query.files() == before
    assert query.visible() == []


def test_a_stale_checksum_of_spark_does_not_make_the_entry_look_damaged(crashed):
    query = crashed()
    query.decide(query.prepare("a"))
    (query.path / "commits" / ".0.crc").write_bytes(b"crc\x00 of another content")
    assert main(query.command()) == 0
    assert sorted(file.name for file in (query.path / "commits").iterdir()) == ["0"]


def test_an_entry_is_written_like_the_one_before_it(crashed):
    query = crashed(batch=2)
    query.decide(query.prepare("a"))
    (query.path / "commits" / "1").write_text(
        'v3\n{"nextBatchWatermarkMs":5000,"sinkMetadata":{"a":1}}'
    )
    query.path.joinpath("offsets", "2").write_text(f'v1\n{{"batchWatermarkMs":7000}}\n{OFFSETS}')
    assert main(query.command()) == 0
    assert (
        query.path / "commits" / "2"
    ).read_text() == 'v3\n{"nextBatchWatermarkMs":7000,"sinkMetadata":{"a":1}}'


def refused(query, capsys, *words, command=None):
    before = query.files()
    assert main(command or query.command()) == 2
    message = capsys.readouterr().err
    for word in words:
        assert word in message
    assert spark_checkpoint.is_ours(query.path)
    return before


def test_a_sink_that_the_decision_names_must_be_given_and_nothing_is_changed(crashed, capsys):
    query = crashed()
    query.decide(query.prepare("a"))
    before = refused(
        query,
        capsys,
        "'out'",
        "'outt'",
        "Nothing was changed",
        command=query.command(sinks="my_sinks:OTHERS"),
    )
    assert query.files() == before


@pytest.mark.parametrize(
    ("sinks", "words"),
    [
        ("my_sinks", "module:name"),
        ("no_such_module:SINKS", "can't be imported"),
        ("my_sinks:MISSING", "missing"),
        ("my_sinks:NUMBER", "a int"),
        (".x:SINKS", "can't be imported"),
        ("broken_sinks:SINKS", "can't be imported"),
        ("failing_sinks:SINKS", "can't be imported ('its environment"),
        ("my_sinks:made_of", "calling it without arguments failed"),
        # Whose exit code 0 would say that the checkpoint is a plain one.
        ("ending_sinks:SINKS", "can't be imported (SystemExit: 0)"),
        ("making_sinks:make", "calling it without arguments failed: SystemExit: 0"),
    ],
)
def test_sinks_that_can_not_be_found_are_named(crashed, capsys, sinks, words):
    query = crashed()
    (query.folder / "ending_sinks.py").write_text("import sys; SINKS = {}; sys.exit(0)")
    (query.folder / "making_sinks.py").write_text("def make(): raise SystemExit(0)")
    (query.folder / "broken_sinks.py").write_text("def SINKS(:")
    (query.folder / "failing_sinks.py").write_text("raise KeyError('its environment')")
    before = refused(query, capsys, sinks, words, command=query.command(sinks=sinks))
    assert query.files() == before


@pytest.mark.long
def test_a_sink_that_does_not_answer_changes_nothing(crashed):
    query = crashed()
    query.decide(query.prepare("a"))
    before = query.files()
    with pytest.raises(SinkUnavailableError):
        detach(query.path, {"out": query.sink("127.0.0.1:1")})
    assert query.files() == before


def test_what_is_no_checkpoint_or_none_of_ours_is_refused(crashed, capsys, tmp_path):
    query = crashed()
    assert main(["detach", str(tmp_path / "nowhere"), "--sinks", "my_sinks:SINKS"]) == 2
    assert "checkpointLocation" in capsys.readouterr().err
    (query.path / "onceforall").rename(tmp_path / "away")
    assert main(query.command()) == 2
    assert "plain query's already" in capsys.readouterr().err
    (tmp_path / "away").rename(query.path / "onceforall")
    with pytest.raises(OptionError, match="No sinks"):
        detach(query.path, {})


def test_a_lost_transaction_keeps_the_log_in_force(crashed):
    query = crashed()
    committable = query.prepare("a")
    query.decide(committable)
    sink = query.sink()
    sink.abort([committable])
    sink.close()
    with pytest.raises(InDoubtError):
        detach(query.path, {"out": query.sink()})
    assert spark_checkpoint.is_ours(query.path)
    assert not (query.path / "commits" / "0").exists()
    assert query.visible() == []


def test_a_query_with_state_must_pass_the_batch_itself(crashed, capsys):
    query = crashed()
    query.decide(query.prepare("a"))
    (query.path / "state" / "0").mkdir(parents=True)
    refused(query, capsys, "keeps state", "availableNow")
    assert not (query.path / "commits" / "0").exists()
    assert query.settled() == ["a"]


def test_a_decision_for_other_offsets_than_sparks_is_refused(crashed, capsys):
    query = crashed()
    query.decide(query.prepare("a"), offsets='{"clicks":{"0":4}}')
    refused(query, capsys, "Batch 0", "other offsets")
    assert not (query.path / "commits" / "0").exists()


def test_a_moved_checkpoint_must_be_adopted(crashed, capsys):
    query = crashed()
    query.decide(query.prepare("a"))
    query.path = query.path.rename(query.path.with_name("moved"))
    refused(query, capsys, "copied or moved", "adopt")
    assert query.visible() == []
    assert main(query.command("--adopt-checkpoint")) == 0
    assert query.settled() == ["a"]


def test_a_checkpoint_on_which_nothing_was_ever_begun_is_detached(crashed, capsys):
    query = crashed()
    for file in sorted((query.path / "onceforall").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    assert main(query.command()) == 0
    assert "No run of onceforall ever began" in capsys.readouterr().out
    assert spark_checkpoint.detached_generation(query.path) == 0


def test_a_run_that_starts_meanwhile_is_noticed_and_the_log_stays_in_force(crashed, monkeypatch):
    query = crashed()
    query.decide(query.prepare("a"))
    real = detaching._tell_planned

    def started(*arguments):
        real(*arguments)
        log = CommitLog(LocalStore(query.path / "onceforall"))
        log.seal_below(log.claim(Claim(query.query_id, "another run", str(query.path))).generation)

    monkeypatch.setattr(detaching, "_tell_planned", started)
    with pytest.raises(FencedError, match="started while it was being detached"):
        detach(query.path, {"out": query.sink()})
    assert spark_checkpoint.is_ours(query.path)


def test_a_batch_that_spark_has_finished_is_left_as_it_is(crashed):
    query = crashed()
    query.decide(query.prepare("a"))
    query.log.append(query.generation, Done(0))
    (query.path / "commits" / "0").write_text(COMMITTED)
    done = detach(query.path, {"out": query.sink()})
    assert (done.completed, done.passed) == (None, None)
