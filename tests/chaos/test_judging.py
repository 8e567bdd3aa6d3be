"""The campaign's judge itself, on a folder and a commit log that are written by hand."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from chaos import contents, workload
from chaos.judging import Watch
from chaos.worlds import KEYS
from onceforall.commit_log import CommitLog, LocalStore
from onceforall.errors import SinkUnavailableError
from onceforall.protocol.entries import Claim, Commit, Done
from onceforall.protocol.history import CommitPermit
from onceforall.sink import StartInfo, TaskAttempt
from onceforall.sinks.files import FileSink
from onceforall.testing.observers import FileObserver

QUERY = "7f000001-0000-4000-8000-000000000001"
ROWS, BATCHES = 20, 2
TYPES = {"price": pa.decimal128(20, 4), "at": pa.timestamp("us", "UTC")}


@pytest.fixture
def world(tmp_path):
    """A world that writes to files, as far as the judge looks at it."""
    config = {**workload.DEFAULTS, "sinks": ["files"], "files": str(tmp_path / "files")}
    config |= {"epoch_us": 1_790_000_000_000_000, "keys": KEYS, "checkpoint": str(tmp_path)}
    return SimpleNamespace(
        config=config,
        sinks=["files"],
        counts=False,
        rows_per_batch=ROWS,
        place=None,
        checkpoint=tmp_path,
        log=tmp_path / "onceforall",
        detached=False,
    )


def write(world, change=lambda columns: None):
    """Two batches, complete everywhere; ``change`` is for the columns of each."""
    sink = FileSink(world.config["files"], format="parquet", partition_by=["key"])
    sink.check(StartInfo(QUERY, "files"))
    log = CommitLog(LocalStore(world.log))
    generation = log.claim(Claim(QUERY, "run", str(world.checkpoint))).generation
    (world.checkpoint / "commits").mkdir(exist_ok=True)
    (world.checkpoint / "metadata").write_text(f'{{"id": "{QUERY}"}}')
    for batch in range(BATCHES):
        committables = []
        for task in range(2):
            # As the source gives them to its two tasks.
            columns = columns_of(world, range(batch * ROWS + task, (batch + 1) * ROWS, 2))
            change(columns)
            transaction = sink.begin_transaction(
                TaskAttempt(QUERY, "files", generation, batch, 0, task, task)
            )
            arrays = {name: pa.array(each, TYPES.get(name)) for name, each in columns.items()}
            sink.invoke(transaction, pa.RecordBatch.from_pydict(arrays))
            committables.append(sink.pre_commit(transaction))
        confirmed = sink.confirm(committables)
        log.append(generation, Commit(batch, (str(batch),), {"files": tuple(confirmed)}))
        sink.commit(CommitPermit(generation, 1, batch), confirmed)
        log.append(generation, Done(batch))
        (world.checkpoint / "commits" / str(batch)).write_text("v1\n{}")


def columns_of(world, ids):
    expected = contents.Expected(world.config, int)
    values = dict(zip(contents.NAMES, expected.values(list(ids)), strict=True))
    return {"value": [str(n) for n in ids], "key": [str(n % KEYS) for n in ids], **values}


def prepare(world, generation, batch, name="files"):
    """A task's transaction that is visible without a decision."""
    sink = FileSink(world.config["files"], format="parquet", partition_by=["key"])
    sink.check(StartInfo(QUERY, name))
    transaction = sink.begin_transaction(TaskAttempt(QUERY, name, generation, batch, 0, 0, 0))
    columns = columns_of(world, range(batch * ROWS, (batch + 1) * ROWS))
    arrays = {key: pa.array(each, TYPES.get(key)) for key, each in columns.items()}
    sink.invoke(transaction, pa.RecordBatch.from_pydict(arrays))
    sink.commit(CommitPermit(generation, 1, batch), sink.confirm([sink.pre_commit(transaction)]))


def judged(world):
    watch = Watch(world)
    watch.look()
    while_running = [str(each) for each in watch._check.violations]
    verdict = watch.quiet()
    watch.close()
    return while_running, verdict


def test_what_is_right_is_not_blamed(world):
    write(world)
    while_running, verdict = judged(world)
    assert (while_running, verdict.violations) == ([], [])
    assert verdict.records == ROWS * BATCHES


def test_a_sink_that_was_only_read_before_it_had_a_row_was_not_watched(world, monkeypatch):
    (world.checkpoint / "commits").mkdir()
    watch = Watch(world)
    watch.look()
    write(world)

    def away(observer):
        raise SinkUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(FileObserver, "rows", away)
        watch.look()
    watch._torn_reads.clear()
    verdict = watch.quiet()
    watch.close()
    (violation,) = verdict.violations
    assert violation.startswith("nothing-read: files: while drivers ran it showed no row")


@pytest.mark.parametrize("name", contents.NAMES)
def test_a_changed_value_is_a_violation_while_drivers_run_and_when_all_is_quiet(world, name):
    def change(columns):
        if "9" in columns["value"]:
            at = columns["value"].index("9")
            columns[name][at] = columns[name][at - 1]

    write(world, change)
    while_running, verdict = judged(world)
    assert [text for text in while_running if text.startswith("wrong-value: files: 1 rows")]
    assert [text for text in verdict.violations if "ids 9" in text]


def test_what_a_dead_run_was_deciding_and_that_never_happened_is_judged(world):
    write(world)
    prepare(world, 0, BATCHES)
    log = CommitLog(LocalStore(world.log))
    log.seal_below(log.claim(Claim(QUERY, "run", str(world.checkpoint))).generation)
    _, verdict = judged(world)
    assert [text for text in verdict.violations if text.startswith("unresolved: files")]


def test_rows_of_a_task_in_another_order_are_a_violation(world):
    def change(columns):
        for values in columns.values():
            values.reverse()

    write(world, change)
    _, verdict = judged(world)
    assert [text for text in verdict.violations if text.startswith("misordered: files")]


def test_values_that_are_made_at_random_are_not_compared(world):
    write(world, lambda columns: columns["note"].reverse())
    world.config["diverging"] = True
    assert judged(world)[1].violations == []
