"""Seconds from kill -9 to the first new committed record.

Records come at a steady rate the whole time. The driver's Python process, its JVM and all workers
get SIGKILL at a random moment, and the same query is started again at once. A sample has the
seconds from the kill until a reader at ``read_committed`` is handed the first record that the dead
query cannot have
committed: it arrives 300 ms or more after the last process is gone; and the seconds until it is
handed the first one that was sent after the kill.

A sample: ``seconds`` and ``seconds_to_new_input`` (medians), ``each_s``, ``kills``.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks import rounds
from benchmarks.contenders.pipes import Pipe
from benchmarks.report.results import Sample
from benchmarks.settings import Load
from benchmarks.stands.children import MeasurementError
from benchmarks.stands.kafka import standing_broker
from benchmarks.stands.traffic import Traffic

_STILL_ON_ITS_WAY_NS = 300_000_000
_RESTART_DEADLINE_S = 180.0
_LONGEST_DELAY_S = 2.0


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return the plan: default trigger, 2,000 records/s."""
    more = {"rate": 2000, "kills": 3, "warm_up_s": 8, "trigger_s": 0.0}
    if quick:
        return [
            rounds.Plan(
                ("ours", "spark"),
                Load().for_latency(),
                {**more, "kills": 1, "rate": 500, "warm_up_s": 2},
                repeats=1,
            )
        ]
    flink = rounds.Plan(
        ("ours", "flink"),
        Load().for_latency(),
        {**more, "trigger_s": 1.0},
        repeats=2,
        minutes=4,
        lag=rounds.LATER,
    )
    return [rounds.Plan(("ours", "spark"), Load().for_latency(), more, minutes=4), flink]


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run one round."""
    with standing_broker() as broker:

        def measure(contender: str, work: Path) -> Sample:
            with Traffic(broker, turn.load.partitions, turn.load.payload, work) as traffic:
                pipe = Pipe.within(traffic, contender, turn.load, trigger_s=turn["trigger_s"])
                return kills(
                    pipe,
                    traffic,
                    work,
                    turn["rate"],
                    turn["kills"],
                    turn["warm_up_s"],
                    seed=turn.turn,
                )

        return turn.each(measure)


def kills(  # noqa: PLR0917
    pipe: Pipe,
    traffic: Traffic,
    work: Path,
    rate: float,
    count: int,
    warm_up_s: float,
    *,
    seed: int,
) -> Sample:
    """Kill and restart a pipeline so many times, and return the sample. Ends the traffic.

    Raises:
        MeasurementError: it did not come back.
    """
    chance = random.Random(seed)  # noqa: S311  when a kill falls
    moments: list[tuple[int, int]] = []
    job = pipe.start(work / "job-0", work / "checkpoint")
    try:
        traffic.wait_for_first(job)
        traffic.set_rate(rate)
        for number in range(count):
            time.sleep(warm_up_s + chance.uniform(0, _LONGEST_DELAY_S))
            job.check()
            killed_ns = time.time_ns()
            job.kill()
            dead_ns = time.time_ns()
            job = pipe.start(work / f"job-{number + 1}", work / "checkpoint")
            job.until(
                lambda: traffic.latest()["intended_ns"] > dead_ns,  # noqa: B023  awaited within the turn
                _RESTART_DEADLINE_S,
                "a record that was sent after the kill was read",
            )
            moments.append((killed_ns, dead_ns))
    finally:
        job.kill()
    arrivals, _ = traffic.end()
    return gaps(arrivals, moments)


def gaps(arrivals: np.ndarray, moments: list[tuple[int, int]]) -> Sample:
    """Return the sample, given (intended, arrived) of all records, and when each kill was sent and
    had its effect, in ns.

    Raises:
        MeasurementError: nothing arrived after a kill.
    """
    intended, arrived = arrivals
    seconds, to_new = [], []
    for killed_ns, dead_ns in moments:
        after = arrived[arrived > dead_ns + _STILL_ON_ITS_WAY_NS]
        new = arrived[intended > killed_ns]
        if not after.size or not new.size:
            raise MeasurementError("Nothing was committed after a kill.")
        seconds.append((int(after.min()) - killed_ns) / 1e9)
        to_new.append((int(new.min()) - killed_ns) / 1e9)
    return {
        "seconds": round(statistics.median(seconds), 3),
        "seconds_to_new_input": round(statistics.median(to_new), 3),
        "each_s": [round(each, 3) for each in seconds],
        "kills": len(moments),
    }


MEASUREMENT = rounds.Measurement("recovery", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT)
