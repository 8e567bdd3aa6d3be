"""What a query shows of itself: its jobs' descriptions, the rows of its sinks, lines of the log
that say what they are about, and where it is."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import onceforall as ofa
from onceforall.common import logs
from onceforall.driver import progress, query_run
from onceforall.driver.batch_writer import SparkBatchWriter
from onceforall.driver.coordinator import Coordinator
from onceforall.driver.progress import BatchProgress
from onceforall.spark.classic import DESCRIPTION
from onceforall.spark.hadoop_paths import absolute_location


def batch_of(run_id, batch=0, **more):
    return BatchProgress("query", run_id, "ads", 3, batch, "written", **more)


# --- without Spark --------------------------------------------------------------------------------


def test_the_last_batch_of_a_run_is_its_progress_and_old_runs_are_forgotten(monkeypatch):
    monkeypatch.setattr(progress, "_last", type(progress._last)())
    for number in range(progress.KEPT_RUNS + 5):
        progress.tell(batch_of(f"run-{number}"))
    progress.tell(batch_of("run-50", 1))
    known = [
        ofa.progress_of(SimpleNamespace(runId=f"run-{number}"))
        for number in range(progress.KEPT_RUNS + 5)
    ]
    assert [found is None for found in known] == [True] * 5 + [False] * progress.KEPT_RUNS
    assert known[50].batch == 1


def test_a_run_that_goes_on_stays_known_beside_newer_ones(monkeypatch):
    monkeypatch.setattr(progress, "_last", type(progress._last)())
    for batch in range(3):
        progress.tell(batch_of("long", batch))
        for number in range(progress.KEPT_RUNS - 1):
            progress.tell(batch_of(f"run-{batch}-{number}"))
        assert ofa.progress_of(SimpleNamespace(runId="long")).batch == batch


@pytest.mark.parametrize(
    ("rows", "steps", "said"),
    [
        ({}, {}, "no rows; no steps, in all 70 ms"),
        (
            {"a": 3, "b": 0},
            {"write": 41.6, "commit": 2.0},
            "a 3 rows, b 0 rows; write 42 ms, commit 2 ms, in all 70 ms",
        ),
    ],
)
def test_a_line_of_the_log_tells_rows_and_steps(rows, steps, said, caplog):
    caplog.set_level(logging.INFO, "onceforall")
    progress.tell(batch_of("run", 4, rows=rows, phase_ms=steps, total_ms=70.2))
    assert caplog.records[-1].getMessage().endswith(f"batch 4 is written: {said}")


def test_a_line_says_what_it_is_about_in_its_text_and_in_its_record_also_on_another_thread(caplog):
    log = logs.logger("onceforall.sinks.test")

    def within():
        with logs.about(sink="out %s", batch=None):
            log.warning("rows: %d", 7)
            log.info("no arguments")

    with (
        caplog.at_level(logging.INFO, "onceforall"),
        logs.about(query="ads", batch=3),
        logs.about(generation=2),
    ):
        thread = threading.Thread(target=logs.carried(within))
        thread.start()
        thread.join()
    log.warning("100 % of nothing in particular")
    assert [record.getMessage() for record in caplog.records] == [
        "[query ads, generation 2, batch 3, sink out %s] rows: 7",
        "[query ads, generation 2, batch 3, sink out %s] no arguments",
        "100 % of nothing in particular",
    ]
    assert {
        (record.name, record.funcName, Path(record.pathname).name) for record in caplog.records[:2]
    } == {("onceforall.sinks.test", "within", Path(__file__).name)}
    assert caplog.records[0].onceforall == {
        "query": "ads",
        "batch": 3,
        "generation": 2,
        "sink": "out %s",
    }


class Context:
    """The local properties of Spark's thread."""

    def __init__(self, **properties):
        self.properties = properties

    def getLocalProperty(self, key):  # noqa: N802  Spark's name
        return self.properties.get(key)

    def setLocalProperty(self, key, value):  # noqa: N802
        self.properties[key] = value


@pytest.mark.parametrize("before", ["ads<br/>batch = 7", None])
def test_the_description_of_jobs_is_put_back_as_spark_had_it_also_behind_an_error_and_their_group_stays(
    before,
):
    context = Context(**{DESCRIPTION: before, "spark.jobGroup.id": "run"})
    frame = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))
    writer = SparkBatchWriter(frame, 7, print, {}, "query-id", consume_all=False, projections=None)

    def fails():
        with writer._described("write", ["a", "b", "a"]):
            assert context.properties == {
                DESCRIPTION: "query-id, batch 7: write (a, b)",
                "spark.jobGroup.id": "run",
            }
            raise ValueError

    with pytest.raises(ValueError):
        fails()
    assert context.properties == {DESCRIPTION: before, "spark.jobGroup.id": "run"}


# --- with Spark -----------------------------------------------------------------------------------


@pytest.fixture
def source(spark, tmp_path):
    """Two rows for each file that is added: ``source.add()``."""
    folder = tmp_path / "source"
    folder.mkdir()

    def add():
        (folder / f"{len(list(folder.iterdir()))}.json").write_text(
            '{"v": 1}\n{"v": 2}\n', encoding="utf-8"
        )

    rows = spark.readStream.schema("v INT").option("maxFilesPerTrigger", 1).json(str(folder))
    return SimpleNamespace(rows=rows, add=add)


def ran(writer, name="ads"):
    query = writer.queryName(name).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert query.exception() is None
    return query


def descriptions(spark, query):
    """Of all jobs of a run, whose group is the run's id, as Spark's user interface shows them."""
    jobs = spark._jsc.sc().statusStore().jobsList(None)
    found = [jobs.apply(i) for i in range(jobs.size())]
    return {
        job.description().get()
        for job in found
        if job.jobGroup().isDefined() and job.jobGroup().get() == query.runId
    }


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({}, {"durable": True, "kept_first": False, "in_doubt": None, "on_divergence": "warn"}),
        ({"redo": "durable"}, {"durable": True, "kept_first": True}),
        ({"inDoubt": "aborted", "minBatchesToRetain": 9}, {"in_doubt": "aborted"}),
        ({"minBatchesToRetain": 999}, {"roll_after_entries": 3996}),
        ({"redo": "replay", "onDivergence": "fail"}, {"durable": False, "on_divergence": "fail"}),
    ],
)
def test_what_a_user_has_chosen_reaches_the_protocol(
    spark, source, tmp_path, monkeypatch, options, config
):
    made = []

    class Recorded(Coordinator):
        def __init__(self, config, resources):
            made.append(config)
            super().__init__(config, resources)

    monkeypatch.setattr(query_run, "Coordinator", Recorded)
    source.add()
    ran(
        ofa.write_stream(source.rows)
        .to(ofa.FileSink(tmp_path / "a", format="json"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .options(**{f"onceforall.{name}": value for name, value in options.items()})
    )
    [known] = made
    assert {name: getattr(known, name) for name in config} == config


@pytest.mark.spark
def test_a_query_shows_its_jobs_its_rows_its_times_and_its_sinks(spark, source, tmp_path, caplog):
    files = lambda name: ofa.FileSink(tmp_path / name, format="json")
    checkpoint = tmp_path / "checkpoint"
    seen = []

    def some(frame):
        seen.append(spark.sparkContext.getLocalProperty(DESCRIPTION))
        return frame.where("v > 1")

    def writer(*more):
        made = (
            ofa.write_stream(source.rows)
            .to(files("a"), name="all")
            .option("checkpointLocation", str(checkpoint))
        )
        for name in more:
            made.to(files(name), name=name, transform=some)
        return made

    source.add()
    with caplog.at_level(logging.INFO, "onceforall"):
        query = ran(writer("some"))
    told = ofa.progress_of(query)
    assert (told.query_name, told.query_id, told.run_id, told.batch, told.generation) == (
        "ads",
        query.id,
        query.runId,
        0,
        0,
    )
    assert (told.outcome, dict(told.rows)) == ("written", {"all": 2, "some": 1})
    assert {"claim", "seal", "recover", "write", "append_commit", "commit"} <= set(told.phase_ms)
    assert 0 < sum(told.phase_ms.values()) <= told.total_ms
    assert {"ads, batch 0: write (all)", "ads, batch 0: write (some)"} <= descriptions(spark, query)
    assert seen == ["ads, batch 0: run the function of the batch"]
    lines = [record.getMessage() for record in caplog.records if record.name == "onceforall"]
    (line,) = [line for line in lines if "batch 0 is written" in line]
    assert line.startswith(
        "[query ads, generation 0, batch 0] batch 0 is written: all 2 rows, some 1 rows; "
    )
    assert not [line for line in lines if "no longer" in line or "new in this query" in line], (
        "there was no decision before"
    )

    caplog.clear()
    source.add()
    with caplog.at_level(logging.INFO, "onceforall"):
        again = ran(writer("other"))
    assert dict(ofa.progress_of(again).rows) == {"all": 2, "other": 1}
    lines = [record.getMessage() for record in caplog.records]
    assert any(
        "new in this query since batch 0, and written from here on: other" in line for line in lines
    )
    assert any(
        "written in batch 0, and no longer a sink of this query: some" in line for line in lines
    )
    assert ofa.progress_of(query) is told, "each run has its own"

    # As after a crash between our decision and Spark's own entry.
    for entry in ("1", ".1.crc"):
        (checkpoint / "commits" / entry).unlink()
    skipped = ofa.progress_of(ran(writer("other")))
    assert (skipped.batch, skipped.outcome, dict(skipped.rows)) == (1, "skipped", {})


@pytest.mark.spark
def test_a_relative_checkpoint_is_shown_and_found_as_an_absolute_one_and_a_copy_of_it_is_refused_by_start(
    spark, source, tmp_path, request
):
    jvm = Path(spark.sparkContext._jvm.java.lang.System.getProperty("user.dir"))
    relative = f"build/{tmp_path.name}-{os.getpid()}"
    request.addfinalizer(lambda: shutil.rmtree(jvm / relative, ignore_errors=True))
    assert absolute_location(spark, relative) == (jvm / relative).as_uri().replace(
        "file:///", "file:/"
    )
    assert absolute_location(spark, "/a b") == "/a b"
    writer = lambda location: (
        ofa.write_stream(source.rows)
        .to(ofa.FileSink(tmp_path / "out"), name="out")
        .option("checkpointLocation", location)
    )
    source.add()
    query = ran(writer(relative))
    assert ofa.progress_of(query).rows == {"out": 2}
    assert (jvm / relative / "onceforall").is_dir()

    shutil.copytree(jvm / relative, tmp_path / "copy")
    started = len(spark.streams.active)
    with pytest.raises(
        ofa.CheckpointMismatchError, match=r"copied or moved.*onceforall\.adoptCheckpoint"
    ) as raised:
        writer(str(tmp_path / "copy")).start()
    assert str(jvm / relative) in str(raised.value)
    assert len(spark.streams.active) == started
    with pytest.raises(ofa.CheckpointMismatchError, match="copied or moved"):
        ofa.exactly_once(tmp_path / "copy", sinks={"out": ofa.FileSink(tmp_path / "out")})(print)
    assert (
        ran(writer(str(tmp_path / "copy")).option("onceforall.adoptCheckpoint", "true")).exception()
        is None
    )
