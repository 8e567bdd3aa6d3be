"""What a task does with the rows of one write, without Spark."""

import pyarrow as pa
import pytest
from pyspark import TaskContext

from onceforall.errors import AttemptFailedError, RefusedRecordError
from onceforall.sink import Capabilities, TaskAttempt
from onceforall.task import write_task as tasks
from onceforall.task.kept_rows import Keeping, KeptFile
from onceforall.task.row_places.local import LocalRows
from onceforall.task.write_task import KeptRows, WriteKeptTask, WriteSpec, WriteTask

ROWS = pa.RecordBatch.from_pydict({"n": [1, 2]})
HASHES = pa.array([3, 4], pa.int64())


class Context:
    partition = 1

    def taskAttemptId(self):  # noqa: N802  Spark's name
        return 7

    def partitionId(self):  # noqa: N802
        return self.partition

    def attemptNumber(self):  # noqa: N802
        return 0

    def stageId(self):  # noqa: N802
        return 2


class Sink:
    def begin_transaction(self, attempt):
        raise AssertionError(
            "a transaction is begun that nobody will decide: it would hold every reader back"
        )


class Refusing(Sink):
    def __init__(self, at):
        self.at = at

    def begin_transaction(self, attempt):
        return None

    def invoke(self, transaction, rows):
        self._refuse("invoke")

    def pre_commit(self, transaction):
        self._refuse("pre_commit")

    def discard(self, transaction):
        pass

    def _refuse(self, at):
        if at == self.at:
            raise RefusedRecordError("record 1 is too large")


@pytest.mark.parametrize("at", ["invoke", "pre_commit"])
def test_a_refused_record_says_of_which_sink_it_is(at):
    spec = WriteSpec(Refusing(at), "rejected", 3)
    writer = WriteTask((spec,), "query", 1, 0, 5, digest_only=False)._writer(spec, Context())
    (result,) = tasks._finished([writer], lambda: writer.add(ROWS, HASHES))
    assert result == {"refused": "record 1 is too large", "sink": "rejected"}


@pytest.mark.parametrize(
    "how",
    [{"digest_only": True}, {"digest_only": False, "redo": frozenset({(0, 2)})}],
    ids=["replay", "redo of another task"],
)
def test_a_task_that_only_digests_opens_no_transaction(how):
    spec = WriteSpec(Sink(), "out", 0)
    writer = WriteTask((spec,), "query", 1, 0, 5, **how)._writer(spec, Context())
    writer.add(ROWS, HASHES)
    assert {**writer.finish(), "write": 0} == {
        "write": 0,
        "rows": 2,
        "hash_sum": f"{7:016x}",
        "committable": None,
    }


def test_attempts_of_a_stage_that_is_submitted_again_have_names_of_their_own():
    """Spark counts a task's attempts from 0 again then, and both may be alive (SPARK-24552)."""

    class Again(Context):
        def taskAttemptId(self):  # noqa: N802
            return 8

    assert Again().attemptNumber() == Context().attemptNumber()
    spec = WriteSpec(Refusing(None), "out", 0)
    task = WriteTask((spec,), "query", 1, 0, 5, digest_only=False)
    first, again = (task._attempt(spec, context()) for context in (Context, Again))
    assert (first.partition, first.write) == (again.partition, again.write)
    assert first.name != again.name


def test_a_worker_takes_what_it_has_loaded_out_of_the_collectors_sight_once_its_first_result_is_out(
    monkeypatch,
):
    """PySpark collects behind each task, which took longer than a task with few rows."""
    seen = []
    monkeypatch.setattr(TaskContext, "get", Context)
    monkeypatch.setattr(tasks, "_spared", [])
    # Each of these walks through everything, so no task but the first may call one.
    for name in ("collect", "freeze", "get_freeze_count", "get_objects"):
        monkeypatch.setattr(tasks.gc, name, lambda name=name: seen.append(name))
    for _ in range(2):
        results = WriteTask((), "query", 1, 0, 5, digest_only=False)(iter([]))
        assert next(results).num_rows == 0
        seen.append("handed over")
        assert list(results) == []
    assert seen == ["handed over", "collect", "freeze", "handed over"]


def test_large_types_are_plain_for_every_sink_at_each_depth():
    """With ``spark.sql.execution.arrow.useLargeVarTypes`` Spark gives texts, bytes and lists
    with offsets of 64 bits."""
    large = {
        "t": pa.array(["a", None], pa.large_string()),
        "b": pa.array([b"a", None], pa.large_binary()),
        "l": pa.array([["a"], None], pa.large_list(pa.large_string())),
        "s": pa.array([{"x": ["a"]}, None], pa.struct([("x", pa.list_(pa.large_string()))])),
        "m": pa.array([[("k", b"v")], None], pa.map_(pa.large_string(), pa.large_binary())),
        "n": pa.array([1, 2]),
    }
    kinds = {
        "t": pa.string(), "b": pa.binary(), "l": pa.list_(pa.string()), "s": pa.struct([("x", pa.list_(pa.string()))]),
        "m": pa.map_(pa.string(), pa.binary()), "n": pa.int64(),
    }  # fmt: skip
    rows = pa.RecordBatch.from_pydict(large)
    assert {each.name: each.type for each in tasks.plain(rows).schema} == kinds
    assert tasks.plain(rows).to_pylist() == rows.to_pylist()
    same = tasks.plain(rows)
    assert tasks.plain(same) is same


def test_a_sink_is_given_plain_types():
    taken = []

    class Taking(Refusing):
        def invoke(self, transaction, rows):
            taken.append(rows.schema.field("t").type)

    spec = WriteSpec(Taking("nowhere"), "out", 0)
    writer = WriteTask((spec,), "query", 1, 0, 5, digest_only=False)._writer(spec, Context())
    writer.add(pa.RecordBatch.from_pydict({"t": pa.array(["a", "b"], pa.large_string())}), HASHES)
    assert taken == [pa.string()]


def test_rows_that_are_written_again_from_kept_ones_are_known_to_be_kept(tmp_path):
    """Their transaction may be lost once more."""
    written = []

    class Preparing(Refusing):
        def invoke(self, transaction, rows):
            written.append(rows)

        def pre_commit(self, transaction):
            return {"name": "t"}

    place = LocalRows(tmp_path)
    place.make("0.0")
    file = KeptFile(place, TaskAttempt("query", "out", 0, 0, 0, 1, 2))
    file.add(ROWS)
    entry = KeptRows(WriteSpec(Preparing(None), "out", 0), 1, file.finish())
    task = WriteKeptTask((entry,), "query", 1, 0, 5, 0, Keeping(place, required=False))
    (result,) = task._write(entry, 2)
    assert pa.Table.from_batches(written).to_pydict() == ROWS.to_pydict()
    assert (result["partition"], result["rows"]) == (1, 2)
    assert result["committable"]["rows"] == entry.kept


class Answering(Refusing):
    """``pre_commit`` returns what the test says."""

    def __init__(self, answer, **able):
        super().__init__(None)
        self.answer = answer
        self.capabilities = Capabilities(**{"two_phase": True, **able})
        self.discarded = 0

    def pre_commit(self, transaction):
        return self.answer

    def discard(self, transaction):
        self.discarded += 1


def finished(sink):
    task = WriteTask((WriteSpec(sink, "out", 0),), "query", 1, 0, 5, digest_only=False)
    writer = task._writer(task.writes[0], Context())
    (result,) = tasks._finished([writer], lambda: writer.add(ROWS, HASHES))
    return result["committable"]


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (None, r"returned None though rows were written: nobody could commit them\. Mend"),
        ({"name": "t", "rows": 10}, "the key 'rows', which the library adds itself"),
        ({"name": "t", "score": float("nan")}, "no plain JSON"),
        ("t", "must return a JSON object with a text 'name'"),
    ],
)
def test_a_committable_by_which_nobody_could_commit_fails_the_task_and_is_discarded(answer, what):
    sink = Answering(answer)
    with pytest.raises(AttemptFailedError, match=rf"^Sink out: Answering\.pre_commit .*{what}"):
        finished(sink)
    assert sink.discarded == 1


@pytest.mark.parametrize(
    "able",
    [
        {"two_phase": False, "idempotent": True},
        {"idempotent": True},
        {"two_phase": False, "delivery": "at_least_once"},
    ],
)
def test_rows_that_need_no_commit_have_no_committable(able):
    assert finished(Answering(None, **able)) is None
