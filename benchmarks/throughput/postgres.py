"""Rows per second into PostgreSQL: our modes, a bare COPY of the same rows, and what users do today
(an append through JDBC in ``foreachBatch``).

The server keeps its promises (``fsync`` and ``synchronous_commit`` are on), its table has no index,
and is emptied between contenders. Spark's rows come from a source that costs next to nothing; a
batch's time is all of it, Spark's own bookkeeping included. A bare COPY writes as many rows per
transaction, over as many connections as Spark has cores: ``copy-blocks`` from text that is there
already (the server's ceiling), ``copy-rows`` from Python tuples (psycopg's ``write_row``, what a
program of one's own would do).

A sample: ``rows_per_s`` (from the median of the batches' times), ``batch_s``, ``batches``,
``cpu_s_per_million`` (from the first batch counted to the last one).
"""

from __future__ import annotations

import json
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks import rounds
from benchmarks.contenders.spark_writers import DATABASE_VARIABLE
from benchmarks.report import figures
from benchmarks.report.results import Sample
from benchmarks.settings import Load
from benchmarks.stands.children import Child, MeasurementError, configuration, say
from benchmarks.stands.database import Database
from benchmarks.stands.processes import Meter

CONTENDERS = ("ours-staged", "ours-prepared", "spark-jdbc", "copy-blocks", "copy-rows")
_DEADLINE_S = 600.0
_FIRST_TIME_MS = 1_700_000_000_000
_BLOCK_ROWS = 2_000


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return the plan."""
    if quick:
        return [
            rounds.Plan(CONTENDERS, Load(), {"rows": 5_000, "batches": 6, "skip": 2}, repeats=1)
        ]
    return [
        rounds.Plan(CONTENDERS, Load(), {"rows": 300_000, "batches": 24, "skip": 12}, minutes=5)
    ]


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run one round."""
    with Database() as database:

        def measure(contender: str, work: Path) -> Sample:
            table = database.make_table()
            environment = {DATABASE_VARIABLE: database.url}
            config: dict[str, Any] = {
                "rows": turn["rows"],
                "batches": turn["batches"],
                "cores": turn.load.cores,
                "table": table,
            }
            program = "benchmarks.throughput.postgres"
            if contender.startswith("copy"):
                config["by_row"] = contender == "copy-rows"
            else:
                program = "benchmarks.contenders.spark_job"
                config |= _spark(contender, turn, table, work)
            try:
                with (
                    Child(program, work, config, environment) as job,
                    Meter({"server": database.pid, "job": job.pid}) as meter,
                ):
                    job.wait(_DEADLINE_S)
                    return sample_of(job, meter, turn["rows"], turn["skip"])
            finally:
                database.drop_table(table)

        return turn.each(measure)


def _spark(contender: str, turn: rounds.Round, table: str, work: Path) -> dict[str, Any]:
    mode = contender.removeprefix("ours-")
    return {
        "source": {"kind": "rate", "rows": turn["rows"], "partitions": turn.load.cores},
        "rows": "wide",
        "contender": "ours" if contender.startswith("ours") else contender,
        "sinks": [{"kind": "postgres", "table": table, "mode": mode}],
        "checkpoint": str(work / "checkpoint"),
    }


def sample_of(job: Child, meter: Meter, rows: int, skip: int) -> Sample:
    """Return the sample of batches of so many rows, from the job's reports.

    Raises:
        MeasurementError: there are too few batches.
    """
    progress = job.lines("progress.jsonl")
    seconds = figures.batch_seconds(progress, rows, skip=skip)
    if len(seconds) < 3:
        raise MeasurementError(
            f"Only {len(seconds)} batches are left; {len(progress)} were reported."
        )
    median = statistics.median(seconds)
    start_s, end_s = figures.batch_span(progress, rows, skip=skip)
    since_the_epoch_s = time.time() - time.monotonic()
    cpu = meter.cpu_between(start_s - since_the_epoch_s, end_s - since_the_epoch_s)
    per_million = {name: round(each / (rows * len(seconds)) * 1e6, 2) for name, each in cpu.items()}
    return {
        "rows_per_s": round(rows / median),
        "batch_s": round(median, 3),
        "batches": len(seconds),
        "cpu_s_per_million": {**per_million, "total": round(sum(per_million.values()), 2)},
        "peak_mb": meter.peak_mb(),
    }


def main() -> None:
    """Write rows with bare COPY: ``python -m benchmarks.throughput.postgres config.json`` with
    ``table``, ``rows``, ``batches``, ``cores`` and ``by_row``.
    """
    config = configuration()
    cores, share = config["cores"], config["rows"] // config["cores"]
    parts = [_rows(core * share, share) for core in range(cores)]
    blocks = [[] if config["by_row"] else _blocks(part) for part in parts]
    url, work = os.environ[DATABASE_VARIABLE], Path(config["work"])
    statement = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(config["table"]))
    with (
        ThreadPoolExecutor(cores) as threads,
        (work / "progress.jsonl").open("w", encoding="utf-8") as progress,
    ):
        connections = [psycopg.connect(url) for _ in range(cores)]

        def write(core: int) -> None:
            with connections[core].cursor().copy(statement) as copy:
                for block in blocks[core]:
                    copy.write(block)
                for row in parts[core] if config["by_row"] else ():
                    copy.write_row(row)
            connections[core].commit()

        for _ in range(config["batches"]):
            began, start_s = datetime.now(timezone.utc).isoformat(), time.monotonic()
            list(threads.map(write, range(cores)))
            took_ms = 1000 * (time.monotonic() - start_s)
            report = {
                "timestamp": began,
                "numInputRows": share * cores,
                "durationMs": {"triggerExecution": took_ms},
            }
            progress.write(json.dumps(report) + "\n")
            progress.flush()
        for connection in connections:
            connection.close()
    say(work, "done.json", {})


def _rows(first: int, count: int) -> list[tuple[Any, ...]]:
    """Return rows like those of ``spark_job.shaped``."""
    numbers = range(first, first + count)
    times = (
        datetime.fromtimestamp((_FIRST_TIME_MS + n) / 1000, tz=timezone.utc).isoformat()
        for n in numbers
    )
    return [
        (n, n % 1000, f"user-{n % 100_003}", n % 10_000 / 100, at, f"note of event {n}")
        for n, at in zip(numbers, times, strict=True)
    ]


def _blocks(rows: list[tuple[Any, ...]]) -> list[bytes]:
    lines = ["\t".join(map(str, row)) + "\n" for row in rows]
    return [
        "".join(lines[at : at + _BLOCK_ROWS]).encode() for at in range(0, len(lines), _BLOCK_ROWS)
    ]


MEASUREMENT = rounds.Measurement("databases", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT, main)
