"""What Spark's way to a Python worker and back costs a task that does nothing, beside a task without Python.

``python -m benchmarks.python_tasks [--jobs 60] [--rounds 5]``

A query's batch that has few rows spends most of its time here, and no sink can save it. In each round each kind of job runs in a session of its own, in an order
that changes. A job has twice as many tasks as there are cores, with a hundred rows each. Milliseconds, medians over all tasks of a run but the first third:

- ``task``: from the launch of the task to its end, as Spark's event log has it;
- ``to_python``: from the launch until the Python function is called;
- ``first_rows``: from there until it has its first rows;
- ``from_python``: from its last result until the end of the task;
- ``job``: from the submission of a job to its end.

Everything goes to ``build/bench/python_tasks.json``, and as a table to the terminal; nothing of it is part of ``results.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import figures
from benchmarks.settings import FOLDER, SPARK

if TYPE_CHECKING:
    import pyarrow as pa

_SOCKETS = "spark.python.unix.domain.socket.enabled"
KINDS: Mapping[str, Mapping[str, str]] = {
    "no-python": {},
    "unix-sockets": {_SOCKETS: "true"},
    "tcp-sockets": {_SOCKETS: "false"},
}
_ROWS_PER_TASK = 100


class Timed:
    """A function for ``mapInArrow`` that notes when it was called, when rows came, and when it was done, in seconds since the epoch."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

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
        noted = {"called_s": called_s, "first_s": first_s, "done_s": time.time(), "rows": rows}
        Path(self._folder, f"{context.taskAttemptId()}.json").write_text(json.dumps(noted), encoding="utf-8")


def _run(kind: str, jobs: int, folder: Path) -> None:
    """Run the jobs of one kind, in a process of its own."""
    from pyspark.sql import SparkSession

    cores = os.cpu_count() or 2
    settings = {
        **SPARK,
        **KINDS[kind],
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    builder = SparkSession.builder.master(f"local[{cores}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.range(0, _ROWS_PER_TASK * 2 * cores, 1, 2 * cores)
    for _ in range(jobs):
        job = frame if kind == "no-python" else frame.mapInArrow(Timed(str(folder)), "rows long")
        assert len(job.collect()) > 0
    spark.stop()


def measured(folder: Path) -> dict[str, float]:
    """Return the figures of a run from what it left in its folder."""
    tasks: dict[int, tuple[float, float]] = {}
    jobs: dict[int, float] = {}
    lasted_ms: list[float] = []
    notes = {int(file.stem): json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json")}
    (log,) = (file for file in folder.iterdir() if file.suffix != ".json")
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
        found["to_python"] = statistics.median(1000 * note["called_s"] - launched for note, launched, _ in each)
        found["first_rows"] = statistics.median(1000 * (note["first_s"] - note["called_s"]) for note, _, _ in each)
        found["from_python"] = statistics.median(ended - 1000 * note["done_s"] for note, _, ended in each)
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="The cost of a Python worker for a task that does nothing.")
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        _run(options.one[0], options.jobs, Path(options.one[1]))
        return
    samples: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for turn in range(options.rounds):
        kinds = list(KINDS)
        for kind in kinds[turn % len(kinds) :] + kinds[: turn % len(kinds)]:
            with tempfile.TemporaryDirectory(prefix="onceforall-tasks-") as folder:
                command = [sys.executable, "-m", __spec__.name, "--jobs", str(options.jobs), "--one", kind, folder]
                environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
                subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
                samples[kind].append(measured(Path(folder)))
            print(turn + 1, kind, {name: round(value, 1) for name, value in samples[kind][-1].items()}, flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "python_tasks.json").write_text(json.dumps(samples, indent=1) + "\n", encoding="utf-8")
    for kind, runs in samples.items():
        spreads = {name: figures.spread([run[name] for run in runs]) for name in runs[0]}
        told = (f"{name} {each.median:.1f} ({each.least:.1f} to {each.most:.1f})" for name, each in spreads.items())
        print(f"{kind:>14}: {', '.join(told)}")


if __name__ == "__main__":
    main()
