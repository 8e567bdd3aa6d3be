"""What a large state costs in memory and in RocksDB: checkpoint time and size, and recovery; writes
``build/bench/state_backends.json``.

``python benchmarks/options/state_backends.py [--keys 10000000] [--rows 500000] [--updates 20]
[--memory 6g] [--backends memory rocksdb] [--publish]``; ``--page`` writes the documentation's page
from what is there already.

Per backend, a query counts rows by key, into nowhere, in a process of its own:

1. *Load*: batches of ``--rows`` new keys, until all are there.
2. *Update*: ``--updates`` batches of as many rows, whose keys are spread over all of them.
3. *Recovery*: ``kill -9`` to the driver with its JVM, and a second process that goes on: from its
   ``start()`` to the end of its first batch, which must load the state; and how much longer that
   batch took than the first one of the load, which was as cold and had no state.

Times of a commit are Spark's own (``stateOperators``), as sums over the tasks of a batch.
Everything runs on this machine: compare only within one run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

OUT = Path("build/bench/state_backends.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "state-backends.md"
PARTITIONS = 4
_SILENCE_S = 900.0


def query(arguments: argparse.Namespace) -> None:
    """Run the query until killed, and print a line of JSON per batch: a child process of this
    script.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    from onceforall.operators.state import memory_state, rocksdb_state

    settings = {"memory": memory_state, "rocksdb": rocksdb_state}[arguments.child]()
    builder = SparkSession.builder.master("local[2]").config(
        "spark.driver.memory", arguments.memory
    )
    for name, value in {
        **settings,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", arguments.rows)
        .option("numPartitions", 2)
        .load()
    )
    number, keys = F.col("value"), F.lit(arguments.keys)
    key = F.when(number < keys, number).otherwise(F.pmod(F.xxhash64("value"), keys))
    counted = rows.groupBy(key.alias("key")).agg(
        F.count("*").alias("rows"), F.max("timestamp").alias("latest")
    )
    started = time.time()
    writer = (
        counted.writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", arguments.checkpoint)
    )
    running = writer.start()
    seen = -1
    while running.isActive:
        for progress in running.recentProgress:
            if progress["batchId"] > seen and progress["numInputRows"]:
                seen = progress["batchId"]
                print(
                    json.dumps(
                        {
                            "since_start_s": time.time() - started,
                            "progress": json.loads(progress.json),
                        }
                    ),
                    flush=True,
                )
        time.sleep(0.05)
    raise SystemExit(str(running.exception()))


@contextlib.contextmanager
def child(
    arguments: argparse.Namespace, backend: str, checkpoint: Path
) -> Iterator[queue.Queue[dict[str, Any] | None]]:
    """Start the query, give its batches as they end (None: it ended), and kill it with its JVM
    at the end.
    """
    command = [
        sys.executable, __file__, "--child", backend, "--checkpoint", str(checkpoint), "--keys", str(arguments.keys), "--rows", str(arguments.rows),  # noqa: E501
        "--memory", arguments.memory,
    ]  # fmt: skip
    with checkpoint.with_name("errors").open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
    batches: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            batches.put(json.loads(line))
        batches.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
        yield batches
    finally:
        # A session of its own, so that its JVM dies at the same moment.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def measured(arguments: argparse.Namespace, backend: str, work: Path) -> dict[str, Any]:
    """Return the figures of one backend.

    Raises:
        RuntimeError: the query ended by itself, for example without memory.
    """
    checkpoint = work / "checkpoint"
    loads = -(-arguments.keys // arguments.rows)
    with child(arguments, backend, checkpoint) as batches:
        load = [_next(batches, checkpoint) for _ in range(loads)]
        loaded_bytes = _size(checkpoint)
        update = [_next(batches, checkpoint) for _ in range(arguments.updates)]
        updated_bytes = _size(checkpoint)
    with child(arguments, backend, checkpoint) as batches:
        first = _next(batches, checkpoint)
    return {
        "keys": min(arguments.keys, loads * arguments.rows),
        "memory_used_bytes": update[-1]["progress"]["stateOperators"][0]["memoryUsedBytes"],
        "load": _summary(load[1:] or load),
        "update": _summary(update),
        "checkpoint_bytes_after_load": loaded_bytes,
        "checkpoint_bytes_after_updates": updated_bytes,
        "recovery_s": first["since_start_s"],
        "first_batch_ms": _duration_ms(first),
        "first_batch_longer_ms": _duration_ms(first) - _duration_ms(load[0]),
        "last_operator": update[-1]["progress"]["stateOperators"][0],
    }


def _next(batches: queue.Queue[dict[str, Any] | None], checkpoint: Path) -> dict[str, Any]:
    batch = batches.get(timeout=_SILENCE_S)
    if batch is None:
        raise RuntimeError(checkpoint.with_name("errors").read_text()[-2000:])
    return batch


def _duration_ms(batch: dict[str, Any]) -> float:
    return float(batch["progress"]["durationMs"]["triggerExecution"])


def _summary(batches: list[dict[str, Any]]) -> dict[str, float]:
    """Return medians over batches; the commit is a sum over tasks."""
    commits = [float(batch["progress"]["stateOperators"][0]["commitTimeMs"]) for batch in batches]
    durations = [_duration_ms(batch) for batch in batches]
    return {
        "batches": len(batches),
        "batch_ms_median": statistics.median(durations),
        "batch_ms_max": max(durations),
        "commit_ms_median": statistics.median(commits),
        "commit_ms_max": max(commits),
    }


def _size(folder: Path) -> int:
    """Return the bytes below a folder; files that go meanwhile count nothing."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def page_of(results: dict[str, Any]) -> str:
    """Return the text of ``docs/state-backends.md`` from what ``main`` wrote down."""
    setup, machine, backends = results["setup"], results["machine"], results["backends"]
    names = list(backends)
    whole = {name: found for name, found in backends.items() if "failed" not in found}

    def row(what: str, text_of: Callable[[dict[str, Any]], str]) -> str:
        cells = [text_of(whole[name]) if name in whole else "-" for name in names]
        return f"| {what} | {' | '.join(cells)} |"

    def batches(part: str) -> tuple[str, str]:
        return (
            row(f"{part}: a batch, median (longest)", lambda found: _two(found[part], "batch_ms")),
            row(
                f"{part}: its commits, sum of all tasks",
                lambda found: _two(found[part], "commit_ms"),
            ),
        )

    lines = [
        "# State backends, measured",
        "",
        (f"Written by `python benchmarks/options/state_backends.py --keys {setup['keys']} --rows "
        f"{setup['rows']} --updates {setup['updates']} --memory {setup['memory']} --publish`."),
        "",
        (f"A query counts rows by key. It is given {setup['keys']:,} new keys, {setup['rows']:,} "
         f"a batch; then {setup['updates']} batches of as many rows, spread "
        "over all keys; then its driver and JVM get SIGKILL, and it is started again."),
        ("Both backends in one run, one after the other, with the settings of "
         f"[onceforall.operators](operators.md#state-backends): {setup['memory']} of heap, "
        f"{setup['partitions']} state partitions, {machine['cores']} cores, {machine['system']}, "
        f"Python {machine['python']}, PySpark {machine['pyspark']}. Compare only within the table."),  # noqa: E501
        "",
        f"| | {' | '.join(f'`{name}_state()`' for name in names)} |",
        f"|---|{'---:|' * len(names)}",
        *batches("load"),
        *batches("update"),
        row("checkpoint, after the load", lambda found: _mb(found["checkpoint_bytes_after_load"])),
        row("checkpoint, after the updates", lambda found: _mb(found["checkpoint_bytes_after_updates"])),  # noqa: E501
        row("memory of the state, as Spark tells it", lambda found: _mb(found["memory_used_bytes"])),  # noqa: E501
        row("from the start after SIGKILL to the end of the first batch", lambda found: f"{found['recovery_s']:.1f} s"),  # noqa: E501
        row("so much longer was that batch than the first of all", lambda found: f"{found['first_batch_longer_ms'] / 1000:.1f} s"),  # noqa: E501
        "",
        ("The checkpoint holds every version of the state: Spark deletes nothing that the last 100 "
        "batches need."),
    ]  # fmt: skip
    for name, found in backends.items():
        if "failed" in found:
            lines += [
                "",
                f"`{name}_state()` did not get to the end. The last lines of the query's errors:",
                "",
                "```",
            ]
            lines += [*found["failed"].strip().splitlines()[-4:], "```"]
    return "\n".join(lines) + "\n"


def _two(summary: dict[str, float], name: str) -> str:
    return f"{summary[f'{name}_median'] / 1000:.2f} s ({summary[f'{name}_max'] / 1000:.2f} s)"


def _mb(count: float) -> str:
    return f"{count / (1 << 20):,.0f} MB"


def main() -> None:
    """Measure each backend, and write what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=500_000, help="of a batch")
    parser.add_argument("--updates", type=int, default=20, help="batches behind the load")
    parser.add_argument("--memory", default="6g", help="of the driver, in which the tasks run")
    parser.add_argument(
        "--backends", nargs="+", default=["memory", "rocksdb"], choices=["memory", "rocksdb"]
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--publish", action="store_true", help="write the page into docs/, too")
    parser.add_argument(
        "--page", action="store_true", help="write that page of what was measured before, and end"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        query(arguments)
        return
    if arguments.page:
        PAGE.write_text(
            page_of(json.loads(arguments.out.read_text(encoding="utf-8"))), encoding="utf-8"
        )
        return
    results: dict[str, Any] = {}
    for backend in arguments.backends:
        work = Path(tempfile.mkdtemp(prefix="onceforall-state-"))
        try:
            results[backend] = measured(arguments, backend, work)
        except RuntimeError as error:
            results[backend] = {"failed": str(error)}
        finally:
            shutil.rmtree(work, ignore_errors=True)
        print(
            backend,
            json.dumps(
                {name: value for name, value in results[backend].items() if name != "last_operator"}
            ),
            flush=True,
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    setup = {name: getattr(arguments, name) for name in ("keys", "rows", "updates", "memory")}
    system = f"{platform.system()} {platform.release()}"
    machine = {
        "cores": os.cpu_count(),
        "system": system,
        "python": platform.python_version(),
        "pyspark": metadata.version("pyspark"),
    }
    whole = {"setup": {**setup, "partitions": PARTITIONS}, "machine": machine, "backends": results}
    arguments.out.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    if arguments.publish:
        PAGE.write_text(page_of(whole), encoding="utf-8")


if __name__ == "__main__":
    main()
