"""A dry run of ``onceforall detach`` foretells what the detachment behind it then does, refuses
what that refuses, and changes nothing anywhere."""

import json
import re
import shlex
import shutil
import uuid

import psycopg
import pyarrow as pa
import pytest

import onceforall as ofa
from onceforall.cli import main
from onceforall.commit_log import CommitLog, LocalStore, binding
from onceforall.errors import OnceForAllError, OptionError, SinkUnavailableError
from onceforall.operate import detaching
from onceforall.operate.detaching import detach
from onceforall.protocol.entries import Claim, Commit, Digest, Done
from onceforall.protocol.history import CommitPermit
from onceforall.sink import StartInfo, TaskAttempt
from onceforall.spark.mending import mend

OFFSETS = '{"clicks":{"0":3}}'
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795264652177,"conf":{}}'
COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'


class Stopped:
    """A stopped query with a sink of files, in whatever state a test brings it into; ``options``
    are those of the detachment."""

    def __init__(self, folder, elsewhere=None):
        self.folder, self.path, self.query_id, self.options = (
            folder,
            folder / "cp",
            str(uuid.uuid4()),
            {},
        )
        for part in ("offsets", "commits", "sources"):
            (self.path / part).mkdir(parents=True)
        (self.path / "metadata").write_text(json.dumps({"id": self.query_id}))
        wanted = elsewhere and elsewhere.as_uri()
        bound = binding.bind(
            LocalStore(self.path / "onceforall"), str(self.path), wanted, query_id=self.query_id
        )
        self.log = CommitLog(bound.store)
        self.generation = self.log.claim(Claim(self.query_id, "run", str(self.path))).generation
        self.log.seal_below(self.generation)
        self.plan(0)

    def sinks(self):
        return {"out": ofa.FileSink(self.folder / "out")}

    def plan(self, batch):
        (self.path / "offsets" / str(batch)).write_text(f"v1\n{METADATA}\n{OFFSETS}")

    def finish(self, batch):
        (self.path / "commits" / str(batch)).write_text(COMMITTED)

    def decide(self):
        [sink] = self.sinks().values()
        sink.check(StartInfo(self.query_id, "out", output_mode="append"))
        transaction = sink.begin_transaction(
            TaskAttempt(self.query_id, "out", self.generation, 0, 0, 0, 0)
        )
        sink.invoke(transaction, pa.RecordBatch.from_pydict({"n": pa.array([1], pa.int64())}))
        committables = tuple(
            json.loads(json.dumps(c))
            for c in sink.confirm([{**sink.pre_commit(transaction), "task": [0, 0]}])
        )
        sink.close()
        self.log.append(
            self.generation,
            Commit(0, (OFFSETS,), {"out": committables}, {"out/0": (Digest(1, 1),)}),
        )

    def detach(self, **more):
        """Return what a detachment says of itself: its answer, or the class and the words of its
        refusal."""
        try:
            return detach(self.path, self.sinks(), **{**self.options, **more})
        except OnceForAllError as error:
            return type(error), str(error)

    def everything(self):
        """All files and folders below the test's folder, with their content."""
        return {
            path: path.read_bytes() if path.is_file() else None for path in self.folder.rglob("*")
        }


def undecided(folder):
    return Stopped(folder)


def decided(folder):
    query = Stopped(folder)
    query.decide()
    return query


def done(folder):
    query = decided(folder)
    [(index, commit)] = [
        (index, entry)
        for index, entry in query.log.entries(query.generation)
        if isinstance(entry, Commit)
    ]
    [sink] = query.sinks().values()
    assert sink.commit(
        CommitPermit(query.generation, index, 0), commit.committables["out"]
    ).completed
    sink.close()
    query.log.append(query.generation, Done(0))
    return query


def planned_behind(folder):
    query = done(folder)
    query.finish(0)
    query.plan(1)
    return query


def planned_behind_one_that_spark_lacks(folder):
    query = done(folder)
    query.plan(1)
    return query


def finished(folder):
    query = done(folder)
    query.finish(0)
    return query


def with_state(folder):
    query = decided(folder)
    (query.path / "state" / "0").mkdir(parents=True)
    return query


def moved(folder):
    query = decided(folder)
    query.path = query.path.rename(folder / "moved")
    return query


def moved_and_adopted(folder):
    query = moved(folder)
    query.options = {"adopt_checkpoint": True}
    return query


def log_elsewhere(folder):
    query = Stopped(folder, folder / "log")
    query.decide()
    return query


def log_moved(folder):
    query = log_elsewhere(folder)
    (folder / "log").rename(folder / "volume")
    query.options = {"commit_log": folder / "volume", "adopt_checkpoint": True}
    return query


def sink_misnamed(folder):
    query = decided(folder)
    query.sinks = lambda: {"outt": ofa.FileSink(folder / "out")}
    return query


def detached(folder):
    query = decided(folder)
    query.detach()
    return query


def killed_behind_its_entry(folder):
    query = decided(folder)

    class GoneError(Exception):
        """Stands for SIGKILL."""

    def killed(*_):
        raise GoneError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(detaching, "_finish", killed)
        with pytest.raises(GoneError):
            query.detach()
    return query


STATES = [
    undecided, decided, done, planned_behind, planned_behind_one_that_spark_lacks, finished, with_state, moved, moved_and_adopted,
    log_elsewhere, log_moved, sink_misnamed, detached, killed_behind_its_entry,
]  # fmt: skip


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_dry_run_foretells_what_is_then_done_and_changes_nothing(tmp_path, state):
    query = state(tmp_path)
    before = query.everything()
    foretold = query.detach(dry_run=True)
    assert query.everything() == before
    real = query.detach()
    if isinstance(real, tuple):
        assert foretold == real
        return
    assert (foretold.completed, foretold.passed) == (real.completed, real.passed)
    assert ("would make it a plain" in foretold.steps[-1]) == (real.log is not None)
    told, said = "\n".join(foretold.steps), "\n".join(real.steps)
    for word in (
        "is planned by Spark and undecided",
        "Spark's own commit log",
        "was detached before",
        str(tmp_path / "log"),
        "volume",
    ):
        assert (word in told) == (word in said), f"{word!r}: {told}\n---\n{said}"


@pytest.mark.parametrize("torn", ["offsets/0", "metadata", "gone"])
def test_what_a_loss_of_power_took_is_told_and_so_is_how_to_learn_the_rest(tmp_path, torn):
    query = decided(tmp_path)
    if torn == "gone":
        (query.path / "offsets" / "0").unlink()
    else:
        (query.path / torn).write_text("")
    before = query.everything()
    foretold = query.detach(dry_run=True)
    assert query.everything() == before
    [step] = [step for step in foretold.steps if "put back from the commit log" in step]
    assert "onceforall checkpoint mend" in foretold.steps[-1]
    assert step in query.detach().steps


def test_what_an_interrupted_detachment_had_to_say_is_said_by_the_one_that_finishes(tmp_path):
    steps = killed_behind_its_entry(tmp_path).detach().steps
    assert any("Keep the folder" in step for step in steps)


def test_without_sinks_nothing_is_written_even_where_nothing_ever_ran(tmp_path):
    query = undecided(tmp_path)
    shutil.rmtree(query.path / "onceforall")
    (query.path / "onceforall").mkdir()
    query.sinks = dict
    assert query.detach()[0] is OptionError
    assert not list((query.path / "onceforall").iterdir())


def test_a_sink_of_the_last_run_that_is_not_given_is_named(tmp_path):
    """No decision names it, and nobody looks there for what is undecided."""
    query = undecided(tmp_path)
    kinds = {"out": "file", "rows": "postgres"}
    query.log.claim(Claim(query.query_id, "run", str(query.path), kinds=kinds))
    foretold, real = query.detach(dry_run=True), query.detach()
    for steps in (foretold.steps, real.steps):
        assert [step for step in steps if "rows (postgres)" in step]
    assert "Give them, too" in foretold.steps[0]


def test_of_a_moved_checkpoint_the_command_that_is_named_works(tmp_path, capsys):
    folder = tmp_path / "with blanks"
    folder.mkdir()
    query = moved_and_adopted(folder)
    (query.path / "offsets" / "0").write_text("")
    command = re.search(": onceforall (.*)$", query.detach(dry_run=True).steps[-1]).group(1)
    assert main(shlex.split(command)) == 0
    assert "put back from the commit log" in capsys.readouterr().out
    assert query.detach(dry_run=True).passed == 0


def test_a_dry_run_on_a_power_cut_can_go_on_after_the_command_that_it_names(tmp_path):
    query = decided(tmp_path)
    (query.path / "offsets" / "0").write_text("")
    assert query.detach(dry_run=True).passed is None
    mend(query.path)
    assert query.detach(dry_run=True).passed == 0


def test_a_dry_run_says_that_a_sink_does_not_answer_though_nothing_is_decided(tmp_path):
    query = undecided(tmp_path)
    query.sinks = lambda: {"out": Silent(tmp_path / "out")}
    assert query.detach(dry_run=True)[0] is SinkUnavailableError


class Silent(ofa.FileSink):
    """A sink whose system is away."""

    def identity(self, start):
        raise SinkUnavailableError("The server is away.")


@pytest.mark.postgres
def test_a_dry_run_makes_no_schema_in_a_database(tmp_path, database):
    query = undecided(tmp_path)
    query.sinks = lambda: {"out": ofa.PostgresSink(database, "t")}
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (n bigint)")
        query.detach(dry_run=True)
        assert connection.execute("SELECT to_regnamespace('onceforall')").fetchone() == (None,)
        assert query.detach().log is not None
        assert connection.execute("SELECT to_regnamespace('onceforall')").fetchone() != (None,)


def test_of_a_log_that_was_moved_by_hand_the_command_that_is_named_works(tmp_path, capsys):
    query = Stopped(tmp_path, elsewhere=tmp_path / "log")
    query.decide()
    (tmp_path / "log").rename(tmp_path / "moved log")
    query.options = {"commit_log": str(tmp_path / "moved log"), "adopt_checkpoint": True}
    (query.path / "offsets" / "0").write_text("")
    command = re.search(": onceforall (.*)$", query.detach(dry_run=True).steps[-1]).group(1)
    assert main(shlex.split(command)) == 0
    assert "put back from the commit log" in capsys.readouterr().out
