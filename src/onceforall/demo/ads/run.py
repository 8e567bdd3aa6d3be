"""Takes one writer's pipeline through its whole run: four jobs, faults, restarts, and a quiet end.

The sequence, in one thread::

    start the four jobs
    for each fault that strikes while events flow: wait until `cleanse` is that far, and a moment
        more; strike
    wait until every job has taken everything
    publish the heartbeats that close the day; strike some jobs while they write the last windows
    for each job, in the order of the chain: wait until it has taken everything, and let it end by
        itself

All the while, a job that has ended is started again, as any supervisor would do.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from onceforall.demo.ads import progress
from onceforall.demo.ads.faults import BROKER, CLOSING, JOB, POSTGRES, WORKERS, Fault
from onceforall.demo.ads.feed import Feed
from onceforall.demo.ads.generator import PARTITIONS
from onceforall.demo.ads.jobs import HEARTBEATS, JOBS, Place
from onceforall.demo.ads.processes import ProgramProcess
from onceforall.demo.run import Watcher
from onceforall.embedded import EmbeddedKafka, EmbeddedPostgres
from onceforall.errors import EmbeddedServerError, OnceForAllError
from onceforall.spark import checkpoint as spark_checkpoint

if TYPE_CHECKING:
    from typing_extensions import Self

_TICK_S = 0.1
# Of what the broker must be asked for.
_ASK_S = 0.5
_END_DEADLINE_S = 180.0
_WORKER_DEADLINE_S = 10.0
_FRUITLESS_ENDS_ALLOWED = 4


@dataclass(frozen=True)
class Servers:
    """What can be killed besides the jobs."""

    broker: EmbeddedKafka
    postgres: EmbeddedPostgres


@dataclass
class Story:
    """What happened, with times in seconds since the run's start.

    Attributes:
        kills: what was killed, and when.
        spared: faults that found nothing to kill.
        ends: how often each job ended though nobody had killed it.
        duration_s: until the last job had ended.
    """

    kills: list[dict[str, Any]] = field(default_factory=list)
    spared: int = 0
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(JOBS, 0))
    duration_s: float = 0.0


class PipelineRun:
    """One writer's run. Use it as a context manager: whatever happens, no process of it is left."""

    def __init__(
        self, place: Place, servers: Servers, records: int, watcher: Watcher, *, deadline: float
    ) -> None:
        """Nothing is started yet.

        Args:
            place: where it takes place.
            servers: they run.
            records: how many there are in the topics of events and orders.
            watcher: is told how it goes.
            deadline: by the monotonic clock, when the run is given up.
        """
        self._place = place
        self._servers = servers
        self._records = records
        self._watcher = watcher
        self._deadline = deadline
        self._jobs: dict[str, ProgramProcess] = {}
        self._fruitless: dict[str, tuple[int, int]] = {}
        self._started_at = time.monotonic()
        self._state = "starting"
        self.story = Story()

    def __enter__(self) -> Self:
        self._place.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._jobs.values():
            process.kill()

    def run(self, faults: Sequence[Fault]) -> Story:
        """Go through the run.

        Raises:
            OnceForAllError: a job does not go on, or the deadline has passed.
        """
        draw = random.Random(str(faults))  # noqa: S311  no secret
        for job in JOBS:
            self._jobs[job] = self._place.start(job)
        for fault in faults:
            if fault.share < CLOSING:
                self._until(partial(self._has_reached, fault.share), "running")
                self._strike(fault, draw)
        for job in JOBS:
            self._until(partial(self._has_taken_all, job), f"waiting for {job}", _ASK_S)
        Feed(self._place.servers).close_the_day(self._place.topic(HEARTBEATS))
        for fault in faults:
            if fault.share >= CLOSING:
                self._strike(fault, draw)
        for job in JOBS:
            self._end(job)
        self.story.duration_s = self._now_s()
        self._tell("done")
        return self.story

    def _strike(self, fault: Fault, draw: random.Random) -> None:
        self._pass(fault.delay_s)
        at_s = self._now_s()
        if not self._kill(fault, draw):
            self.story.spared += 1
            self._watcher.note(f"{at_s:.0f} s: there was nothing to kill of {fault}")
            return
        self.story.kills.append({"at_s": at_s, "kind": fault.kind, "target": fault.target})
        self._watcher.note(f"{at_s:.0f} s: kill -9 number {len(self.story.kills)} of {fault}")
        if fault.kind == JOB:
            self._jobs[fault.target] = self._place.start(fault.target)
        elif fault.kind in {BROKER, POSTGRES}:
            # Nobody is started meanwhile: without its server a job could only end again.
            time.sleep(fault.outage_s)
            (self._servers.broker if fault.kind == BROKER else self._servers.postgres).restart()

    def _kill(self, fault: Fault, draw: random.Random) -> bool:
        if fault.kind == BROKER:
            self._servers.broker.kill()
        elif fault.kind == POSTGRES:
            self._servers.postgres.kill()
        elif fault.kind == WORKERS:
            return self._kill_workers(fault.target, draw)
        else:
            # One that has ended by itself in this moment has been started again, and is killed
            # then.
            while not self._jobs[fault.target].kill():
                self._tend()
        return True

    def _kill_workers(self, job: str, draw: random.Random) -> bool:
        end = time.monotonic() + _WORKER_DEADLINE_S
        while time.monotonic() < end:
            if self._jobs[job].kill_workers(draw):
                return True
            self._pass(_TICK_S)
        return False

    def _end(self, job: str) -> None:
        """Let a job take what is there and end by itself; when it fails instead, it is started
        again and asked again.
        """
        while True:
            self._until(partial(self._has_taken_all, job), f"ending {job}", _ASK_S)
            process = self._jobs[job]
            process.send_signal(signal.SIGTERM)
            if not process.wait(_END_DEADLINE_S):
                raise EmbeddedServerError(
                    self._explain(job, f"did not end in {_END_DEADLINE_S:.0f} s")
                )
            if process.return_code == 0:
                del self._jobs[job]
                return
            self._tend()

    def _until(self, condition: Callable[[], bool], state: str, tick_s: float = _TICK_S) -> None:
        self._state = state
        while not condition():
            self._pass(tick_s)

    def _pass(self, seconds: float) -> None:
        """Let time pass; jobs that end are started again."""
        end = time.monotonic() + seconds
        while True:
            self._tend()
            self._tell(self._state)
            now = time.monotonic()
            if now > self._deadline:
                slowest = next(iter(self._jobs), JOBS[-1])
                raise OnceForAllError(
                    self._explain(slowest, "was not done when the time was over (--minutes)")
                )
            if now >= end:
                return
            time.sleep(min(_TICK_S, end - now))

    def _tend(self) -> None:
        for job, process in self._jobs.items():
            if process.return_code is None:
                continue
            self.story.ends[job] += 1
            completed = spark_checkpoint.last_committed(self._place.checkpoint(job))
            before, times = self._fruitless.get(job, (-1, 0))
            times = times + 1 if completed <= before else 1
            if times > _FRUITLESS_ENDS_ALLOWED:
                raise OnceForAllError(
                    self._explain(job, f"ended by itself {times} times without completing a batch")
                )
            self._fruitless[job] = (completed, times)
            self._watcher.note(
                f"{self._now_s():.0f} s: the job {job} ended with {process.return_code}, and is "
                "started again"
            )
            process.kill()
            self._jobs[job] = self._place.start(job)

    def _taken(self) -> int:
        completed = progress.taken(self._place.checkpoint(JOBS[0]))
        return sum(offset for (topic, _), offset in completed.items() if topic in PARTITIONS)

    def _has_reached(self, share: float) -> bool:
        return self._taken() >= share * self._records

    def _has_taken_all(self, job: str) -> bool:
        return progress.has_taken_all(
            self._place.checkpoint(job), self._place.servers, self._place.inputs(job)
        )

    def _tell(self, state: str) -> None:
        self._watcher.progress(self._taken(), len(self.story.kills), state)

    def _explain(self, job: str, what: str) -> str:
        words = self._jobs[job].last_words() if job in self._jobs else ""
        return (
            f"The job {job} of {self._place.writer} {what}. See {self._place.log(job)}; it "
            f"ends with:\n{words}"
        )

    def _now_s(self) -> float:
        return round(time.monotonic() - self._started_at, 1)
