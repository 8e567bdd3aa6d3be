"""What a stop means to the jobs of a batch; tests/crash/test_stopping.py has the signals, on a
real Spark."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from onceforall.driver import batch_sinks
from onceforall.driver.batch_sinks import BatchSinks
from onceforall.driver.batch_writer import SparkBatchWriter
from onceforall.errors import QueryStoppedError
from onceforall.spark import classic
from support.patching import replace_here


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def spark_context(clock, cancelled, seen_at_s, ends_at_s):
    """Return a Spark whose counts come late: the batch's job is seen at one time, and its task
    ends at another."""

    def is_active():
        return seen_at_s <= clock() < ends_at_s

    tracker = SimpleNamespace(
        getJobIdsForGroup=lambda _: [1] if clock() >= seen_at_s else [],
        getJobInfo=lambda _: SimpleNamespace(stageIds=[1]),
        getStageInfo=lambda _: SimpleNamespace(numActiveTasks=int(is_active())),
    )
    return SimpleNamespace(
        getLocalProperty={"spark.jobGroup.id": "run"}.get,
        cancelJobGroup=cancelled.append,
        statusTracker=lambda: tracker,
    )


def writer_of(frame, **named):
    return SparkBatchWriter(
        frame, 0, lambda *_: None, {}, "query", consume_all=False, projections=None, **named
    )


def test_no_job_begins_when_the_query_was_asked_to_stop(monkeypatch):
    def collect():
        raise AssertionError("a job has begun")

    jobs = SimpleNamespace(properties=None, interruptible=nullcontext)
    monkeypatch.setattr(SparkBatchWriter, "_jobs", jobs)
    monkeypatch.setattr(
        SparkBatchWriter, "_secrets", SimpleNamespace(around=lambda _: nullcontext())
    )
    frame = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=None), collect=collect)
    with pytest.raises(QueryStoppedError, match=r"java\.lang\.InterruptedException"):
        writer_of(None, stop_requested=lambda: True)._collect(frame)


def test_an_abort_cancels_the_jobs_and_waits_for_tasks_that_spark_counts_late(monkeypatch):
    clock, cancelled = Clock(), []
    context = spark_context(clock, cancelled, seen_at_s=0.7, ends_at_s=3.0)
    replace_here(monkeypatch, classic.time, "sleep", clock.sleep)
    frame = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))
    writer_of(frame, clock=clock).wait_for_tasks()
    assert cancelled == ["run"]
    assert 3.0 <= clock() < 4.5


@pytest.mark.parametrize("again", [False, True])
def test_the_time_that_transactions_take_counts_from_before_they_were_written(monkeypatch, again):
    """They have begun by then; behind the decision they must not have timed out."""
    clock = Clock()
    clock.sleep(100)
    name = "_write_kept" if again else "_call_and_write"
    monkeypatch.setattr(SparkBatchWriter, name, lambda *_: clock.sleep(60))
    monkeypatch.setattr(SparkBatchWriter, "_attempts_lost", lambda _: False)
    writer = writer_of(None, clock=clock)
    decision = SimpleNamespace(redo=None, generation=1, after={}, lost={})
    written = writer.write_kept(decision) if again else writer.write(decision)
    assert (written.elapsed_ms, written.began_ms) == (60_000, 100_000)


def test_where_no_thread_can_be_started_sinks_are_waited_for_without_one(monkeypatch):
    def start(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    replace_here(monkeypatch, batch_sinks.threading.Thread, "start", start)
    monkeypatch.setattr(
        batch_sinks.threading, "main_thread", lambda: SimpleNamespace(is_alive=lambda: False)
    )
    assert BatchSinks({}, "query", 0, lambda: False).confirmed({}) == {}
