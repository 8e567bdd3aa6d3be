"""Where each microsecond of a record goes, from Spark to the broker.

``python -m benchmarks.steps.profile_path [--records 40000000] [--batch 1000000] [--payload 100]
[--stages noop,arrow,null,ours-at-least-once,ours] [--sample 15] [--publish]``

*Stages.* The same topic is read by pipelines that end one step later each: into nothing (``noop``),
into an empty Python function (``arrow``), through the library into a sink that drops rows
(``null``: the columns, their hash, the digest and the commit log come in addition), and into Kafka,
at-least-once and exactly-once. For each, per record: wall time, and CPU time of the JVM, the Python
workers and the broker; the difference to the stage before is what the step costs. While one core
waits for another, CPU time is the surer guide.

*The sink alone.* ``writer``: the Kafka sink's own methods, called in this process with Arrow
batches, without Spark; beside it what it costs to make Python objects of the column, and to sum the
hashes.

*A database.* With ``--database``, instead of all that: rows like those of the measurement
``databases`` into nothing, into an empty Python function, and into PostgreSQL.

*A restart.* With ``--restart``: what the first batch after ``kill -9`` spends its time on, of
pipelines with and without Python workers.

*The worker.* With ``--sample``, ``py-spy`` (``pip install py-spy``) looks into the Python workers
of the last stage for so many seconds, 200 times a second: the functions in which they were, with
their shares, and a flame graph, ``build/bench/profile/worker.svg``.

*The threads.* For each stage the shares of the CPU time by the names of threads: Spark's tasks, the
compiler and the garbage collection of its JVM, the Python workers, librdkafka's threads, the
broker.

Everything goes to ``build/bench/profile/profile.json``, one profile per payload, and as tables to
the terminal; with ``--publish`` also to ``docs/profile.json``, from which the page takes it.
Nothing of it is part of ``results.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks import rounds
from benchmarks.contenders.pipes import Pipe
from benchmarks.report import figures
from benchmarks.report.results import Results, commit, machine
from benchmarks.settings import ARROW_BYTES, FOLDER, GC, ROOT, TRANSACTION_TIMEOUT_MS, Load
from benchmarks.stands.children import Child, MeasurementError
from benchmarks.stands.kafka import Broker
from benchmarks.stands.processes import Meter, tree, warm_memory
from benchmarks.steps import threads
from benchmarks.throughput import pipelines, postgres
from evidence.digests import profile_digest

STAGES = ("noop", "arrow", "null", "ours-at-least-once", "ours", "spark")
DATABASE_STAGES = ("noop", "arrow", "ours-staged", "ours-prepared")
RESTARTED = (
    "noop",
    "spark",
    "spark+classes",
    "arrow",
    "ours",
    "ours+daemon",
    "ours+daemon+classes",
)
"""Pipelines, and with what: ``daemon`` is ``onceforall.worker_daemon``, ``classes`` an archive
of the JVM's loaded classes."""
OUT = FOLDER / "profile"
PUBLISHED = ROOT / "docs" / "profile.json"
_DEADLINE_S = 900.0
_LEAST_SKIPPED = 2


def stage(  # noqa: PLR0917
    broker: Broker, load: Load, name: str, source: str, work: Path, sample_s: float
) -> dict[str, Any]:
    """Run one stage and return its figures per record, in microseconds.

    Raises:
        MeasurementError: it failed, or there were too few batches.
    """
    target = broker.make_topic(load.partitions, is_kept=False)
    batches = load.records // load.batch - 1
    # The compiler is through with most of it by then.
    skip = max(_LEAST_SKIPPED, batches // 4)
    try:
        with Pipe(name, load, broker.servers, source, target).start(
            work, work / "checkpoint"
        ) as job:
            jvm = int(job.said("pids.json")["jvm"])
            groups: dict[str, Any] = {
                "broker": broker.pid,
                "jvm": lambda: tree(jvm)[:1],
                "workers": lambda: tree(jvm)[1:],
            }
            with Meter(groups) as meter:
                job.until(
                    lambda: len(job.lines("progress.jsonl")) > skip,
                    _DEADLINE_S,
                    "the first batches",
                )
                looked = look_into_workers(jvm, sample_s, work) if sample_s else {}
                before = threads.seconds_of(_processes(broker, jvm))
                job.until(
                    lambda: len(_full(job, load)) >= batches, _DEADLINE_S, f"{batches} full batches"
                )
                spent = threads.shares(before, threads.seconds_of(_processes(broker, jvm)))
    finally:
        broker.delete(target)
    progress = job.lines("progress.jsonl")
    seconds = figures.batch_seconds(progress, load.batch, skip=skip)
    start_s, end_s = figures.batch_span(progress, load.batch, skip=skip)
    offset_s = time.time() - time.monotonic()
    records = load.batch * len(seconds)
    cpu = {
        each: 1e6 * seconds_spent / records
        for each, seconds_spent in meter.cpu_between(start_s - offset_s, end_s - offset_s).items()
    }
    whole = 1e6 * statistics.median(seconds) / load.batch
    return {
        "wall_us": round(whole, 3),
        "records_per_s": round(1e6 / whole),
        "cpu_us": {each: round(microseconds, 3) for each, microseconds in cpu.items()},
        "cpu_total_us": round(sum(cpu.values()), 3),
        "threads": spent,
        **({"worker": looked} if looked else {}),
    }


def _processes(broker: Broker, jvm: int) -> dict[str, list[psutil.Process]]:
    everything = tree(jvm)
    return {"broker": tree(broker.pid)[:1], "jvm": everything[:1], "workers": everything[1:]}


def _full(job: Child, load: Load) -> list[dict[str, Any]]:
    return [
        report for report in job.lines("progress.jsonl") if report["numInputRows"] == load.batch
    ]


def look_into_workers(jvm: int, seconds: float, work: Path) -> dict[str, float]:
    """Return the shares of the functions in which the Python workers were, largest first; their
    flame graph is left in ``worker.svg``.

    Raises:
        MeasurementError: py-spy isn't there or can't look, or there is no Python worker.
    """
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which(
        "py-spy"
    )
    if program is None:
        raise MeasurementError(
            "py-spy is not installed. pip install py-spy, or leave --sample out."
        )
    daemons = [each for each in psutil.Process(jvm).children() if "python" in each.name()]
    if not daemons:
        raise MeasurementError("This stage has no Python workers.")
    found: Counter[str] = Counter()
    for form in ("raw", "flamegraph"):
        out = work / ("worker.raw" if form == "raw" else "worker.svg")
        command = [
            program,
            "record",
            "--pid",
            str(daemons[0].pid),
            "--subprocesses",
            "--rate",
            "200",
            "--nonblocking",
        ]
        command += [
            "--duration",
            str(max(1, round(seconds / 2))),
            "--format",
            form,
            "--output",
            str(out),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not out.exists():
            raise MeasurementError(f"py-spy failed: {(done.stderr or done.stdout)[-500:]}")
        if form == "raw":
            found = own_samples(out.read_text(encoding="utf-8"))
    OUT.mkdir(parents=True, exist_ok=True)
    shutil.copy(work / "worker.svg", OUT / "worker.svg")
    total = sum(found.values())
    return (
        {function: round(count / total, 4) for function, count in found.most_common(25)}
        if total
        else {}
    )


def own_samples(text: str) -> Counter[str]:
    """Return how many samples each function was the innermost one of, from py-spy's collapsed
    stacks (``frame;frame;frame count``).
    """
    found: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        # The daemon that forks the workers waits in a call that py-spy takes for work.
        if stack and count.isdecimal() and "manager (daemon.py" not in stack.rpartition(";")[2]:
            found[stack.rpartition(";")[2]] += int(count)
    return found


def database(*, quick: bool = False) -> dict[str, Any]:
    """Run the stages of a pipeline into PostgreSQL, and return their samples, as those of
    ``databases``.

    Raises:
        MeasurementError: a stage failed.
    """
    (plan,) = postgres.plans(quick)
    with tempfile.TemporaryDirectory(dir=_made(FOLDER / "work")) as folder:
        plan = replace(plan, contenders=DATABASE_STAGES)
        samples = postgres.run(
            rounds.Round(plan, 0, Path(folder), Results(Path(folder) / "results"), rounds.say)
        )
    failed = {name: sample["error"] for name, sample in samples.items() if "error" in sample}
    if failed:
        raise MeasurementError("; ".join(f"{name}: {error}" for name, error in failed.items()))
    return samples


def restarts(broker: Broker, work: Path, *, kills: int = 3) -> dict[str, Any]:
    """Kill pipelines and start them again; return medians over the kills: see `of_restart`.

    Raises:
        MeasurementError: a pipeline did not come back, or the dead driver had decided its last
            batch again and again, so that the first one had nothing to write.
    """
    load = Load(records=10_000_000, batch=2_000)
    source = broker.filled_topic(load)
    archive = work / "spark.jsa"
    _archive_classes(
        archive,
        Pipe("ours", load, broker.servers, source, broker.make_topic(load.partitions)),
        work / "archive",
    )
    found: dict[str, Any] = {}
    for name in RESTARTED:
        contender, *given = name.split("+")
        spark = {
            "spark.python.daemon.module": "onceforall.worker_daemon"
            if "daemon" in given
            else "pyspark.daemon"
        }
        if "classes" in given:
            spark["spark.driver.extraJavaOptions"] = f"{GC} -XX:SharedArchiveFile={archive}"
        target = broker.make_topic(load.partitions)
        pipe = Pipe(contender, load, broker.servers, source, target, spark=spark)
        samples: list[dict[str, float]] = []
        for number in range(4 * kills):
            sample = _of_one(pipe, work / f"{name}-{number}", work / name)
            # The first start has a new checkpoint.
            if number and sample is not None:
                samples.append(sample)
            if len(samples) == kills:
                break
        else:
            raise MeasurementError(f"{name}: the first batch after a kill had nothing to write.")
        broker.delete(target)
        found[name] = {
            part: round(statistics.median(sample[part] for sample in samples), 2)
            for part in samples[0]
        }
        rounds.say(f"{name}: {found[name]}")
    return found


def _of_one(pipe: Pipe, work: Path, checkpoint: Path) -> dict[str, float] | None:
    started_s = time.time()
    job = pipe.start(work, checkpoint)
    is_ours = pipe.contender == "ours"
    try:
        job.until(lambda: len(job.lines("progress.jsonl")) > 2, _DEADLINE_S, "its first batches")
        if is_ours:
            # The steps' times are written in bundles: they come later than the batches that they
            # are of.
            job.until(
                lambda: any(line["step"] == "RunWrites" for line in job.lines("steps.jsonl")),
                _DEADLINE_S,
                "its steps",
            )
        return of_restart(
            job.said("ready.json")["at_s"] - started_s,
            job.lines("progress.jsonl"),
            job.lines("steps.jsonl"),
        )
    finally:
        job.kill()


def _archive_classes(archive: Path, pipe: Pipe, work: Path) -> None:
    """Let a pipeline run for some batches and its JVM leave an archive of the classes that it
    has loaded.
    """
    pipe = replace(
        pipe, spark={"spark.driver.extraJavaOptions": f"{GC} -XX:ArchiveClassesAtExit={archive}"}
    )
    with pipe.start(work, work / "checkpoint") as job:
        jvm = psutil.Process(int(job.said("pids.json")["jvm"]))
        job.until(lambda: len(job.lines("progress.jsonl")) > 2, _DEADLINE_S, "its first batches")
        (work / "stop").touch()
        job.wait(_DEADLINE_S)
        # It writes the archive behind the end of its driver.
        with suppress(psutil.NoSuchProcess):
            jvm.wait(_DEADLINE_S)
    if not archive.exists():
        raise MeasurementError("The JVM left no archive of its classes.")


def of_restart(
    ready_s: float, progress: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]
) -> dict[str, float] | None:
    """Return where the time up to the end of the first batch went, in seconds; None where that
    batch had been decided before, so that it wrote nothing: the next one did.

    Returns:
        ``all``, ``ready`` (until the query was started), ``batch`` (all of the first batch),
        ``plan`` (its offsets and its plan), ``write`` (the call of the sink); of ours, within that,
        ``recover`` (commit log and sinks) and ``job`` (the function and the tasks, up to the last
        pre-commit).
    """
    times = progress[0]["durationMs"]
    batch_s = times["triggerExecution"] / 1000
    found = {
        "all": ready_s + batch_s,
        "ready": ready_s,
        "batch": batch_s,
        "plan": sum(times.get(name, 0) for name in ("latestOffset", "getBatch", "queryPlanning"))
        / 1000,
        "write": times["addBatch"] / 1000,
    }
    if steps:
        job = next(line for line in steps if line["step"] == "RunWrites")
        before = [line for line in steps[: steps.index(job)] if ":" not in line["step"]]
        if job["end_s"] - steps[0]["start_s"] > found["write"]:
            return None
        found["recover"] = sum(line["end_s"] - line["start_s"] for line in before)
        found["job"] = job["end_s"] - job["start_s"]
    return found


def sink_alone(broker: Broker, load: Load) -> dict[str, Any]:
    """Return microseconds per record (wall time) of the Kafka sink's own methods, and of what it
    is made of.
    """
    import numpy as np
    import pyarrow as pa

    from onceforall import KafkaSink
    from onceforall.sink import TaskAttempt
    from onceforall.task.write_task import hash_sum

    in_batch = ARROW_BYTES // load.payload
    rows = pa.array([b"%020d" % number + b"x" * (load.payload - 20) for number in range(in_batch)])
    batch = pa.RecordBatch.from_arrays([rows], ["value"])
    hashes = pa.array(np.arange(in_batch, dtype=np.int64))
    turns = max(5, load.records // 4 // in_batch)

    def each(action: Callable[[], object]) -> float:
        start_s = time.perf_counter()
        for _ in range(turns):
            action()
        return round(1e6 * (time.perf_counter() - start_s) / turns / in_batch, 4)

    found: dict[str, Any] = {
        "column to Python objects": each(rows.to_pylist),
        "sum of hashes": each(lambda: hash_sum(hashes)),
    }
    for delivery in ("at_least_once", "exactly_once"):
        topic = broker.make_topic(load.partitions, is_kept=False)
        options: dict[str, Any] = {"bootstrap.servers": broker.servers, **load.producer()}
        if delivery == "exactly_once":
            options["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
        sink = KafkaSink(options, topic=topic, delivery=delivery)
        transaction = sink.begin_transaction(
            TaskAttempt(str(uuid.uuid4()), delivery, 0, 0, 0, 0, 0)
        )
        before = psutil.Process().cpu_times()
        start_s = time.perf_counter()
        found[f"invoke, {delivery}"] = each(lambda: sink.invoke(transaction, batch))  # noqa: B023  called within the turn
        committable = sink.pre_commit(transaction)
        whole_s = time.perf_counter() - start_s
        after = psutil.Process().cpu_times()
        records = turns * in_batch
        found[f"invoke and pre-commit, {delivery}"] = round(1e6 * whole_s / records, 4)
        found[f"CPU of this process, {delivery}"] = round(
            1e6 * (sum(after[:2]) - sum(before[:2])) / records, 4
        )
        if committable is not None:
            sink.abort([committable])
        sink.close()
        broker.delete(topic)
    return found


def main() -> None:
    """Profile, and print tables."""
    parser = argparse.ArgumentParser(description="Where each microsecond of a record goes.")
    plain = Load(records=40_000_000)
    parser.add_argument("--records", type=int, default=plain.records)
    parser.add_argument("--batch", type=int, default=plain.batch)
    parser.add_argument("--payload", type=int, default=plain.payload)
    parser.add_argument("--compression", default=plain.compression)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument(
        "--sample",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="look into the Python workers of the stage 'ours'",
    )
    parser.add_argument(
        "--database", action="store_true", help="the way into PostgreSQL instead of that into Kafka"
    )
    parser.add_argument("--restart", action="store_true", help="where the time of a restart goes")
    parser.add_argument("--publish", action="store_true", help="write the profiles into docs/, too")
    arguments = parser.parse_args()
    if arguments.database:
        _keep({"database": {**_taken(), "stages": database()}}, publish=arguments.publish)
        return
    if arguments.restart:
        with Broker() as broker, tempfile.TemporaryDirectory(dir=_made(FOLDER / "work")) as folder:
            _keep(
                {"restart": {**_taken(), "stages": restarts(broker, Path(folder))}},
                publish=arguments.publish,
            )
        return
    load = Load(
        records=arguments.records,
        batch=arguments.batch,
        payload=arguments.payload,
        compression=arguments.compression,
    )
    stages = [name for name in arguments.stages.split(",") if name]
    found: dict[str, Any] = {"load": load.parameters(), **_taken(), "stages": {}}
    with Broker() as broker, tempfile.TemporaryDirectory(dir=_made(FOLDER / "work")) as folder:
        source = broker.filled_topic(load)
        pipelines.warm_up(broker, load, source, Path(folder) / "warm-up")
        found["writer"] = sink_alone(broker, load)
        for name, value in found["writer"].items():
            print(f"{name:45} {value:8.3f} us", flush=True)
        before: dict[str, Any] | None = None
        for name in stages:
            sample_s = arguments.sample if name == "ours" else 0.0
            warm_memory()
            result = found["stages"][name] = stage(
                broker, load, name, source, Path(folder) / name, sample_s
            )
            step = (
                "" if before is None else f"{result['cpu_total_us'] - before['cpu_total_us']:+8.3f}"
            )
            parts = "  ".join(f"{each} {spent:7.3f}" for each, spent in result["cpu_us"].items())
            print(
                f"{name:20} {result['records_per_s']:>9,}/s  wall {result['wall_us']:7.3f}  "
                f"{parts}  step {step}",
                flush=True,
            )
            before = result
    for name, result in found["stages"].items():
        print(
            f"{name}: "
            + ", ".join(f"{kind} {share:.0%}" for kind, share in result["threads"].items())
        )
    for function, share in found["stages"].get("ours", {}).get("worker", {}).items():
        print(f"{share:7.1%}  {function}")
    _keep({f"{load.payload} bytes": found}, publish=arguments.publish)


def _taken() -> dict[str, Any]:
    return {
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "commit": commit(),
        "source": profile_digest(),
        "machine": machine(),
    }


def _keep(profiles: Mapping[str, Any], *, publish: bool) -> None:
    """Add profiles to those that are kept."""
    file = _made(OUT) / "profile.json"
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**kept, **profiles}, indent=1) + "\n", encoding="utf-8")
    if publish:
        shutil.copy(file, PUBLISHED)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    main()
