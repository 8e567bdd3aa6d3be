"""What is killed, and when: drawn from the seed before the run begins.

A fault strikes when `cleanse` has taken a share of the events, and a moment after that, which is
random, too: it knows nothing of where a batch is. Each job is killed at least once while events
flow, and some once more while the last windows are written.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from onceforall.demo.ads.jobs import JOBS

JOB, WORKERS, BROKER, POSTGRES = "job", "workers", "broker", "postgres"
MINIMUM_KILLS = 10
CLOSING = 1.0
"""The share from which on a fault strikes while the last windows are written."""
_SHARES = (0.04, 0.96)
_LONGEST_DELAY_S = 2.0
_LONGEST_OUTAGE_S = 2.0


class Fault(NamedTuple):
    """One SIGKILL, or one to each of several processes at once.

    Attributes:
        kind: `JOB` (its driver, JVM and workers), `WORKERS` (Python workers of a job), `BROKER` or
            `POSTGRES`.
        target: the job; empty for servers.
        share: of the events, that `cleanse` has taken before; `CLOSING`: all, and the last windows
            are being written.
        delay_s: how long after that, in seconds.
        outage_s: how long a server is away before it is started again, in seconds.
    """

    kind: str
    target: str
    share: float
    delay_s: float
    outage_s: float

    def __str__(self) -> str:
        return {
            JOB: f"the job {self.target}",
            WORKERS: f"workers of the job {self.target}",
            BROKER: "the broker",
            POSTGRES: "PostgreSQL",
        }[self.kind]


def plan(seed: int) -> list[Fault]:
    """Return the faults of a run, in the order in which they strike; the same seed gives the
    same.
    """
    draw = random.Random(f"faults {seed}")  # noqa: S311  no secret
    flowing = [*((JOB, job) for job in JOBS), *((JOB, draw.choice(JOBS)) for _ in range(2))]
    flowing += [(WORKERS, job) for job in draw.sample(JOBS, 2)]
    flowing += [(BROKER, ""), (BROKER, ""), (POSTGRES, ""), (POSTGRES, "")]
    draw.shuffle(flowing)
    shares = sorted(draw.uniform(*_SHARES) for _ in flowing)
    closing = [(JOB, job) for job in draw.sample(["aggregate", "attribute", "load"], 2)]
    struck = [*zip(flowing, shares, strict=True), *((each, CLOSING) for each in closing)]
    return [
        Fault(
            kind,
            target,
            share,
            draw.uniform(0.0, _LONGEST_DELAY_S),
            draw.uniform(0.0, _LONGEST_OUTAGE_S),
        )
        for (kind, target), share in struck
    ]
