"""What Spark's way to a Python worker and back costs a task that does nothing, beside a task
without Python.

A query's batch that has few rows spends most of its time here. A job has twice as many tasks as
cores, with a hundred rows each. ``spared`` is ``unix-sockets`` with what the tasks of our sinks do
at their end, so that the garbage collection behind each task is short: see
``onceforall.task.write_task.spare_collections``.

A sample, in milliseconds, each the median over all tasks (or jobs) of the run but the first third:

- ``task``: from the launch of the task to its end, as Spark's event log has it;
- ``to_python``: from the launch until the Python function is called;
- ``first_rows``: from there until it has its first rows;
- ``from_python``: from its last result until the end of the task;
- ``job``: from the submission of a job to its end.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import rounds
from benchmarks.report.results import Sample
from benchmarks.settings import SPARK, Load
from benchmarks.stands.children import Child, configuration, say

if TYPE_CHECKING:
    import pyarrow as pa

_DEADLINE_S = 600.0
_ROWS_PER_TASK = 100
_SOCKETS = "spark.python.unix.domain.socket.enabled"
_SPARED = "spared"
_PYTHON = {
    "unix-sockets": {_SOCKETS: "true"},
    _SPARED: {_SOCKETS: "true"},
    "tcp-sockets": {_SOCKETS: "false"},
}
KINDS: Mapping[str, Mapping[str, str]] = {"no-python": {}, **_PYTHON}


class Timed:
    """A function for ``mapInArrow`` that notes when it was called, when rows came, and when it
    was done, in seconds since the epoch.
    """

    def __init__(self, folder: str, *, spare: bool) -> None:
        self._folder = folder
        self._spare = spare

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count the rows."""
        import pyarrow as pa
        from pyspark import TaskContext

        called_s = first_s = time.time()
        rows = 0
        for batch in batches:
            first_s = first_s if rows else time.time()
            rows += batch.num_rows
        context = TaskContext.get()
        assert context is not None
        yield pa.RecordBatch.from_pydict({"rows": [rows]})
        noted = {"called_s": called_s, "first_s": first_s, "done_s": time.time()}
        Path(self._folder, f"{context.taskAttemptId()}.json").write_text(
            json.dumps(noted), encoding="utf-8"
        )
        if self._spare:
            from onceforall.task.write_task import spare_collections

            spare_collections()


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return the plan."""
    load = Load(records=0, payload=0, partitions=0, batch=0)
    return [
        rounds.Plan(
            tuple(KINDS),
            load,
            {"jobs": 6 if quick else 100},
            repeats=1 if quick else 5,
            minutes=1.5,
            lag=rounds.LATER,
        )
    ]


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run one round."""

    def measure(contender: str, work: Path) -> Sample:
        config = {"kind": contender, "jobs": turn["jobs"], "cores": turn.load.cores}
        with Child("benchmarks.steps.python_tasks", work, config) as job:
            job.said("done.json", _DEADLINE_S)
        return sample_of(work)

    return turn.each(measure)


def sample_of(work: Path) -> Sample:
    """Return the figures of a run from what it left in its folder."""
    notes = {
        int(file.stem): json.loads(file.read_text(encoding="utf-8"))
        for file in (work / "notes").iterdir()
    }
    (log,) = (work / "events").iterdir()
    tasks: dict[int, tuple[float, float]] = {}
    jobs: dict[int, float] = {}
    lasted_ms: list[float] = []
    for line in log.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerTaskEnd":
            info = event["Task Info"]
            tasks[info["Task ID"]] = (info["Launch Time"], info["Finish Time"])
        elif event["Event"] == "SparkListenerJobStart":
            jobs[event["Job ID"]] = event["Submission Time"]
        elif event["Event"] == "SparkListenerJobEnd":
            lasted_ms.append(event["Completion Time"] - jobs[event["Job ID"]])
    late = sorted(tasks)[len(tasks) // 3 :]
    found = {
        "task": statistics.median(tasks[task][1] - tasks[task][0] for task in late),
        "job": statistics.median(lasted_ms[len(lasted_ms) // 3 :]),
    }
    if notes:
        each = [(notes[task], *tasks[task]) for task in late]
        found["to_python"] = statistics.median(
            1000 * note["called_s"] - launched for note, launched, _ in each
        )
        found["first_rows"] = statistics.median(
            1000 * (note["first_s"] - note["called_s"]) for note, _, _ in each
        )
        found["from_python"] = statistics.median(
            ended - 1000 * note["done_s"] for note, _, ended in each
        )
    return {name: round(value, 2) for name, value in found.items()}


def _run_jobs() -> None:
    """Run the jobs of one kind, in a process of its own."""
    from pyspark.sql import SparkSession

    config = configuration()
    work = Path(config["work"])
    for folder in ("events", "notes"):
        (work / folder).mkdir()
    settings = {
        **SPARK,
        **KINDS[config["kind"]],
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (work / "events").as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    builder = SparkSession.builder.master(f"local[{config['cores']}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    tasks = 2 * config["cores"]
    frame = spark.range(0, _ROWS_PER_TASK * tasks, 1, tasks)
    timed = Timed(str(work / "notes"), spare=config["kind"] == _SPARED)
    for _ in range(config["jobs"]):
        job = frame.mapInArrow(timed, "rows long") if config["kind"] in _PYTHON else frame
        assert len(job.collect()) >= tasks
    spark.stop()
    say(work, "done.json", {})


MEASUREMENT = rounds.Measurement("python_tasks", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT, _run_jobs)
