"""A query at steady load for an hour: does anything grow?

``make bench-long`` (``python -m benchmarks.long_run --minutes 60``). Each ten seconds: latency of
the last ten seconds at a reader at ``read_committed``; memory, threads and open files of driver,
JVM, Python workers and broker; transactional ids that the broker knows; files and bytes of the
commit log and of Spark's own checkpoint. The verdict of each quantity is that of `figures.drift`,
with the tolerance that ``ALLOWED`` states, without the first fifth of the time.

The result is kept as a sample of the measurement ``long_run`` in ``results.json``, with all its
points. Ends with 1 when something grew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks import rounds
from benchmarks.contenders.pipes import Pipe
from benchmarks.report import figures
from benchmarks.report.results import Sample
from benchmarks.settings import FOLDER, Load
from benchmarks.stands.children import Child, MeasurementError
from benchmarks.stands.kafka import Broker
from benchmarks.stands.processes import tree
from benchmarks.stands.traffic import Traffic, latencies

EVERY_S = 10.0
_MB = 1 << 20


class Tolerance(NamedTuple):
    """How much a quantity may grow over the judged part of the run: the larger of a share of its
    median and a fixed amount.
    """

    relative: float
    absolute: float


ALLOWED: Mapping[str, Tolerance] = {
    "p50_ms": Tolerance(0.10, 10),
    "p99_ms": Tolerance(0.20, 50),
    "driver_mb": Tolerance(0.05, 5),
    # A JVM takes its heap bit by bit, up to what it is allowed.
    "jvm_mb": Tolerance(0.10, 100),
    "workers_mb": Tolerance(0.05, 10),
    "broker_mb": Tolerance(0.10, 50),
    "driver_threads": Tolerance(0.0, 1),
    # Spark's block manager has two pools that fill up to 128 threads each, within a minute or two.
    "jvm_threads": Tolerance(0.05, 20),
    "workers_threads": Tolerance(0.02, 3),
    "open_files": Tolerance(0.02, 5),
    "processes": Tolerance(0.0, 1),
    "transactional_ids": Tolerance(0.0, 2),
    # Up to the entries that are kept, and then no further; a long run rolls into a new generation
    # before that.
    "log_files": Tolerance(0.10, 20),
    "log_bytes": Tolerance(0.10, 100_000),
    "checkpoint_files": Tolerance(0.10, 20),
}
"""For what is judged, in the unit that its name ends with; over the judged part of the run, not
per hour."""


def plan(
    minutes: float, rate: float, trigger_s: float, *, partitions: int = 4, quick: bool = False
) -> rounds.Plan:
    """Return the plan."""
    more = {
        "minutes": minutes,
        "rate": rate,
        "trigger_s": trigger_s,
        "every_s": 2.0 if quick else EVERY_S,
    }
    return rounds.Plan(
        ("ours",), Load(partitions=partitions).for_latency(), more, repeats=1, minutes=minutes
    )


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run the query for as long as the plan says, and judge it."""
    # The generator fills a topic for an hour: what was read is not kept.
    config = {
        "log.retention.bytes": str(200 * _MB),
        "log.segment.bytes": str(20 * _MB),
        "log.retention.check.interval.ms": "5000",
    }
    with Broker(turn.work / "kafka", config=config) as broker:

        def measure(contender: str, work: Path) -> Sample:
            with Traffic(broker, turn.load.partitions, turn.load.payload, work) as traffic:
                pipe = Pipe.within(traffic, contender, turn.load, trigger_s=turn["trigger_s"])
                with pipe.start(work / "job", work / "checkpoint") as job:
                    traffic.wait_for_first(job)
                    traffic.set_rate(turn["rate"])
                    points = _observe(turn, broker, traffic, job, work / "checkpoint")
                    arrivals, _ = traffic.end()
            return sample_of(with_latencies(points, arrivals, turn["every_s"]))

        return turn.each(measure)


def _observe(
    turn: rounds.Round, broker: Broker, traffic: Traffic, job: Child, checkpoint: Path
) -> list[dict[str, float]]:
    points: list[dict[str, float]] = []
    began_s = time.monotonic()
    while (passed_s := time.monotonic() - began_s) < 60 * turn["minutes"]:
        time.sleep(max(0.0, (len(points) + 1) * turn["every_s"] - passed_s))
        job.check()
        traffic.check()
        now = {"s": round(time.monotonic() - began_s, 1), "at_ns": float(time.time_ns())}
        points.append(
            {
                **now,
                **_of_processes(job.pid, broker.pid),
                **_of_files(checkpoint),
                **_of_broker(broker.servers),
            }
        )
        if len(points) % 6 == 0:
            turn.say(f"  {json.dumps(points[-1])}")
    return points


def _of_processes(job: int, broker: int) -> dict[str, float]:
    """Return memory by role, and threads, open files and processes of the job."""
    groups: dict[str, list[psutil.Process]] = {
        "driver": [],
        "jvm": [],
        "workers": [],
        "broker": tree(broker)[:1],
    }
    everything = tree(job)
    for number, process in enumerate(everything):
        with contextlib.suppress(psutil.Error):
            role = "driver" if number == 0 else "jvm" if "java" in process.name() else "workers"
            groups[role].append(process)
    found: dict[str, float] = {"processes": len(everything)}
    for role, processes in groups.items():
        found[f"{role}_threads"] = sum(
            _number(each, lambda p: p.num_threads()) for each in processes
        )
        found[f"{role}_files"] = sum(_number(each, lambda p: p.num_fds()) for each in processes)
        found[f"{role}_mb"] = round(
            sum(_number(each, lambda p: p.memory_info().rss) for each in processes) / _MB, 1
        )
    found["threads"] = sum(_number(each, lambda p: p.num_threads()) for each in everything)
    found["open_files"] = sum(_number(each, lambda p: p.num_fds()) for each in everything)
    return found


def _number(process: psutil.Process, ask: Any) -> float:
    try:
        return float(ask(process))
    except psutil.Error:
        return 0.0


def _of_files(checkpoint: Path) -> dict[str, float]:
    """Return files and bytes of our log, and the files of Spark's own checkpoint."""
    log = checkpoint / "onceforall"
    ours = [size for file in log.rglob("*") if (size := _size(file)) is not None]
    sparks = [
        size
        for file in checkpoint.rglob("*")
        if log not in file.parents and (size := _size(file)) is not None
    ]
    return {"log_files": len(ours), "log_bytes": sum(ours), "checkpoint_files": len(sparks)}


def _size(file: Path) -> int | None:
    # A file may be deleted while it is looked at.
    with contextlib.suppress(OSError):
        return file.stat().st_size if file.is_file() else None
    return None


def _of_broker(servers: str) -> dict[str, float]:
    """Return how many transactional ids the broker knows, whatever their state."""
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        return {"transactional_ids": sum(map(len, admin.list_transactions().values()))}
    finally:
        admin.close()


def with_latencies(
    points: list[dict[str, float]], arrivals: np.ndarray[Any, Any], every_s: float
) -> list[dict[str, float]]:
    """Add to each point the latency of what was meant to be sent in the time before it."""
    found = []
    for point in points:
        at_ns = int(point["at_ns"])
        # What was sent at the end of the time is still on its way; it is counted all the same,
        # since the reader went on.
        with contextlib.suppress(MeasurementError):
            waits = latencies(arrivals, at_ns - int(every_s * 1e9), at_ns)
            point = {  # noqa: PLW2901
                **point,
                "p50_ms": waits["p50_ms"],
                "p99_ms": waits["p99_ms"],
                "max_ms": waits["max_ms"],
            }
        found.append(point)
    return found


def sample_of(points: list[dict[str, float]]) -> Sample:
    """Return the verdicts and the points."""
    verdicts = {}
    for name, allowed in ALLOWED.items():
        series = [(point["s"], point[name]) for point in points if name in point]
        judged = figures.drift(series, relative=allowed.relative, absolute=allowed.absolute)
        verdicts[name] = {
            "first": judged.first,
            "last": judged.last,
            "growth": round(judged.growth, 3),
            "allowed": round(judged.allowed, 3),
            "flat": judged.is_flat,
        }
    return {
        "flat": all(verdict["flat"] for verdict in verdicts.values()),
        "verdicts": verdicts,
        "points": points,
    }


MEASUREMENT = rounds.Measurement(
    "long_run", lambda quick: [plan(1.0 if quick else 60.0, 500.0 if quick else 2000.0, 0.0)], run
)


def main() -> int:
    """Run it as the command line says."""
    from benchmarks.report.results import Results

    parser = argparse.ArgumentParser(
        description="A query at steady load for an hour: does anything grow?"
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=2000.0, help="records per second")
    parser.add_argument(
        "--trigger", type=float, default=0.0, help="seconds between batches; 0: one after the other"
    )
    parser.add_argument("--partitions", type=int, default=4, help="of both topics")
    parser.add_argument(
        "--quick", action="store_true", help="a look each 2 s, to see that it works in a minute"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    results = Results(arguments.folder)
    results.begin_run(arguments.minutes)
    wanted = plan(
        arguments.minutes,
        arguments.rate,
        arguments.trigger,
        partitions=arguments.partitions,
        quick=arguments.quick,
    )
    sample = rounds.run_round(MEASUREMENT, wanted, 0, results)["ours"]
    if "error" in sample:
        return 1
    for name, verdict in sample["verdicts"].items():
        word = "flat" if verdict["flat"] else "GROWS"
        rounds.say(
            f"{name}: {verdict['first']:g} to {verdict['last']:g}, {verdict['growth']:+g} of "
            f"{verdict['allowed']:g}: {word}"
        )
    return 0 if sample["flat"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
