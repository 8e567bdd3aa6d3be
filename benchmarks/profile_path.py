"""Where each microsecond of a record goes, from Spark to the broker.

``python -m benchmarks.profile_path [--records 40000000] [--batch 1000000] [--payload 100] [--stages noop,arrow,null,ours-at-least-once,ours] [--sample 15] [--publish]``

*Stages.* The same topic is read by pipelines that end one step later each: into nothing (``noop``), into an empty Python function (``arrow``), through the library into a
sink that drops rows (``null``: the columns, their hash, the digest and the commit log come in addition), and into Kafka, at-least-once and exactly-once. For each, per record:
wall time, and CPU time of the JVM, the Python workers and the broker; the difference to the stage before is what the step costs. While one core waits for
another, CPU time is the surer guide.

*The sink alone.* ``writer``: the Kafka sink's own methods, called in this process with Arrow batches, without Spark; beside it what it costs to make Python objects of
the column, and to sum the hashes.

*The worker.* With ``--sample``, ``py-spy`` (``pip install py-spy``) looks into the Python workers of the last stage for so many seconds, 200 times a second: the functions
in which they were, with their shares, and a flame graph, ``build/bench/profile/worker.svg``.

*The threads.* For each stage the shares of the CPU time by the names of threads: Spark's tasks, the compiler and the garbage collection of its JVM, the Python workers,
librdkafka's threads, the broker.

Everything goes to ``build/bench/profile/profile.json``, one profile per payload, and as tables to the terminal; with ``--publish`` also to ``docs/profile.json``, from which
the page takes it. Nothing of it is part of ``results.json``.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks import figures, threads, throughput
from benchmarks.children import Child, MeasurementError
from benchmarks.contenders import Pipe
from benchmarks.kafka import Broker
from benchmarks.processes import Meter, tree, warm_memory
from benchmarks.results import commit, machine
from benchmarks.settings import ARROW_BYTES, FOLDER, ROOT, TRANSACTION_TIMEOUT_MS, Load

STAGES = ("noop", "arrow", "null", "ours-at-least-once", "ours", "spark")
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
        with Pipe(name, load, broker.servers, source, target).start(work, work / "checkpoint") as job:
            jvm = int(job.said("pids.json")["jvm"])
            groups: dict[str, Any] = {"broker": broker.pid, "jvm": lambda: tree(jvm)[:1], "workers": lambda: tree(jvm)[1:]}
            with Meter(groups) as meter:
                job.until(lambda: len(job.lines("progress.jsonl")) > skip, _DEADLINE_S, "the first batches")
                looked = look_into_workers(jvm, sample_s, work) if sample_s else {}
                before = threads.seconds_of(_processes(broker, jvm))
                job.until(lambda: len(_full(job, load)) >= batches, _DEADLINE_S, f"{batches} full batches")
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
    return [report for report in job.lines("progress.jsonl") if report["numInputRows"] == load.batch]


def look_into_workers(jvm: int, seconds: float, work: Path) -> dict[str, float]:
    """Return the shares of the functions in which the Python workers were, largest first; their flame graph is left in ``worker.svg``.

    Raises:
        MeasurementError: py-spy isn't there or can't look, or there is no Python worker.
    """
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if program is None:
        raise MeasurementError("py-spy is not installed. pip install py-spy, or leave --sample out.")
    daemons = [each for each in psutil.Process(jvm).children() if "python" in each.name()]
    if not daemons:
        raise MeasurementError("This stage has no Python workers.")
    found: Counter[str] = Counter()
    for form in ("raw", "flamegraph"):
        out = work / ("worker.raw" if form == "raw" else "worker.svg")
        command = [program, "record", "--pid", str(daemons[0].pid), "--subprocesses", "--rate", "200", "--nonblocking"]
        command += ["--duration", str(max(1, round(seconds / 2))), "--format", form, "--output", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not out.exists():
            raise MeasurementError(f"py-spy failed: {(done.stderr or done.stdout)[-500:]}")
        if form == "raw":
            found = own_samples(out.read_text(encoding="utf-8"))
    OUT.mkdir(parents=True, exist_ok=True)
    shutil.copy(work / "worker.svg", OUT / "worker.svg")
    total = sum(found.values())
    return {function: round(count / total, 4) for function, count in found.most_common(25)} if total else {}


def own_samples(text: str) -> Counter[str]:
    """Return how many samples each function was the innermost one of, from py-spy's collapsed stacks (``frame;frame;frame count``)."""
    found: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        # The daemon that forks the workers waits in a call that py-spy takes for work.
        if stack and count.isdecimal() and "manager (daemon.py" not in stack.rpartition(";")[2]:
            found[stack.rpartition(";")[2]] += int(count)
    return found


def sink_alone(broker: Broker, load: Load) -> dict[str, Any]:
    """Return microseconds per record (wall time) of the Kafka sink's own methods, and of what it is made of."""
    import numpy as np
    import pyarrow as pa

    from onceforall import KafkaSink
    from onceforall.sink import TaskAttempt
    from onceforall.tasks import hash_sum

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

    found: dict[str, Any] = {"column to Python objects": each(rows.to_pylist), "sum of hashes": each(lambda: hash_sum(hashes))}
    for delivery in ("at_least_once", "exactly_once"):
        topic = broker.make_topic(load.partitions, is_kept=False)
        options: dict[str, Any] = {"bootstrap.servers": broker.servers, **load.producer()}
        if delivery == "exactly_once":
            options["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
        sink = KafkaSink(options, topic=topic, delivery=delivery)
        transaction = sink.begin_transaction(TaskAttempt(str(uuid.uuid4()), delivery, 0, 0, 0, 0, 0))
        before = psutil.Process().cpu_times()
        start_s = time.perf_counter()
        found[f"invoke, {delivery}"] = each(lambda: sink.invoke(transaction, batch))  # noqa: B023  called within the turn
        committable = sink.pre_commit(transaction)
        whole_s = time.perf_counter() - start_s
        after = psutil.Process().cpu_times()
        records = turns * in_batch
        found[f"invoke and pre-commit, {delivery}"] = round(1e6 * whole_s / records, 4)
        found[f"CPU of this process, {delivery}"] = round(1e6 * (sum(after[:2]) - sum(before[:2])) / records, 4)
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
        "--sample", type=float, default=0.0, metavar="SECONDS", help="look into the Python workers of the stage 'ours'"
    )
    parser.add_argument("--publish", action="store_true", help="write the profiles into docs/, too")
    arguments = parser.parse_args()
    load = Load(records=arguments.records, batch=arguments.batch, payload=arguments.payload, compression=arguments.compression)
    stages = [name for name in arguments.stages.split(",") if name]
    taken = {"at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "commit": commit(), "machine": machine()}
    found: dict[str, Any] = {"load": load.parameters(), **taken, "stages": {}}
    with Broker() as broker, tempfile.TemporaryDirectory(dir=_made(FOLDER / "work")) as folder:
        source = broker.filled_topic(load)
        throughput.warm_up(broker, load, source, Path(folder) / "warm-up")
        found["writer"] = sink_alone(broker, load)
        for name, value in found["writer"].items():
            print(f"{name:45} {value:8.3f} us", flush=True)
        before: dict[str, Any] | None = None
        for name in stages:
            sample_s = arguments.sample if name == "ours" else 0.0
            warm_memory()
            result = found["stages"][name] = stage(broker, load, name, source, Path(folder) / name, sample_s)
            step = "" if before is None else f"{result['cpu_total_us'] - before['cpu_total_us']:+8.3f}"
            parts = "  ".join(f"{each} {spent:7.3f}" for each, spent in result["cpu_us"].items())
            print(f"{name:20} {result['records_per_s']:>9,}/s  wall {result['wall_us']:7.3f}  {parts}  step {step}", flush=True)
            before = result
    for name, result in found["stages"].items():
        print(f"{name}: " + ", ".join(f"{kind} {share:.0%}" for kind, share in result["threads"].items()))
    for function, share in found["stages"].get("ours", {}).get("worker", {}).items():
        print(f"{share:7.1%}  {function}")
    file = _made(OUT) / "profile.json"
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    profiles = [each for each in kept.get("profiles", []) if each["load"]["payload"] != load.payload]
    profiles = sorted([*profiles, found], key=lambda each: int(each["load"]["payload"]))
    file.write_text(json.dumps({"profiles": profiles}, indent=1) + "\n", encoding="utf-8")
    if arguments.publish:
        shutil.copy(file, PUBLISHED)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    main()
