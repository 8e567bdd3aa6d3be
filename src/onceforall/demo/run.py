"""Takes one writer through its whole run: feed, random kills, restarts, a quiet end, and the
judgement.

The sequence, in one thread::

    for each kill of the plan:
        start the driver; while it starts, publish a part of this turn's flights
        wait until both queries have completed a batch since the start
        publish the rest of the turn steadily, and kill after the planned random delay
    start the driver a last time, publish what is left, wait until both queries have taken all
    publish the closing event, let the job end by itself, read topics, files and tables, judge

The delay is uniform in time and knows nothing of where the queries are: a kill falls into every
stage of a batch as often as that stage is long. Meanwhile an onlooker, in a thread of its own,
reads files and tables.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from onceforall.demo import observe
from onceforall.demo.checkpoints import Checkpoints
from onceforall.demo.driver import Driver
from onceforall.demo.feed import Feed
from onceforall.demo.flights import Event
from onceforall.demo.job import DATABASE_VARIABLE, QUERIES, SETTINGS_VARIABLE
from onceforall.demo.onlooker import Onlooker, looks_at
from onceforall.demo.outcome import Outcome, Story
from onceforall.demo.outputs import SINKS, Output, leftovers, output_of
from onceforall.demo.truth import Batches, Truth, Verdict, agreement, judge
from onceforall.errors import EmbeddedServerError, OnceForAllError
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark.remote_path import AnyPath

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_OFFSETS_PER_TRIGGER = 12_000
"""Small batches while there are kills, so that there are many moments between two of them."""
LAST_MAX_OFFSETS_PER_TRIGGER = 50_000
"""After the last kill only the rest is to be taken."""
_SHARE_WHILE_STARTING = 0.4
# Production goes on for a while after the planned kill, so that no kill falls into silence.
_PRODUCTION_AFTER_KILL_S = 1.0
_TICK_S = 0.05
_TICK_ON_A_STORE_S = 0.5
"""There each look is a request, which the queries' own wait for."""
_PROGRESS_DEADLINE_S = 180.0
_STOP_DEADLINE_S = 120.0
_UNEXPECTED_ENDS_ALLOWED = 2


class Watcher(Protocol):
    """Is told how a run goes, so that somebody can see it."""

    def progress(self, taken: int, kills: int, state: str) -> None:
        """Take how many events both queries have completed, the kills so far, and what the
        driver does.
        """

    def note(self, text: str) -> None:
        """Take something that happened."""


@dataclass(frozen=True)
class Plan:
    """What both writers go through.

    Attributes:
        events: the input, in order.
        closing: the event that closes all windows.
        kill_delays_s: how long after its first completed batches each driver is killed, in seconds.
    """

    events: Sequence[Event]
    closing: Event
    kill_delays_s: Sequence[float]


@dataclass(frozen=True)
class Place:
    """Where a run takes place.

    Attributes:
        writer: ``onceforall`` or ``spark``, for the job.
        bootstrap_servers: the broker.
        database: URL of this writer's database, with its password.
        work_dir: files and temporary files of this run.
        log: where the job's output goes.
        jars: Spark's Kafka connector, the JDBC driver, and what the checkpoints' place needs.
        checkpoints: where the checkpoints lie.
    """

    writer: str
    bootstrap_servers: str
    database: str = field(repr=False)
    work_dir: Path
    log: Path
    jars: Sequence[Path]
    checkpoints: Checkpoints

    @property
    def input(self) -> str:
        """The topic of the flights."""
        return f"flights-for-{self.writer}"

    def output(self, query: str) -> Output:
        """Where a query's rows go."""
        servers, database = self.bootstrap_servers, self.database
        return output_of(
            self.writer, query, bootstrap_servers=servers, database=database, work_dir=self.work_dir
        )

    def checkpoint(self, query: str) -> AnyPath:
        """The checkpoint of a query."""
        return self.checkpoints.of(self.writer, query)


class WriterRun:
    """One writer's run. Use it as a context manager: whatever happens, no process of it is left."""

    def __init__(self, place: Place, plan: Plan, watcher: Watcher) -> None:
        self._place = place
        self._plan = plan
        self._watcher = watcher
        self._driver: Driver | None = None
        self._feed = Feed(place.bootstrap_servers, place.input, plan.events)
        self._stop_file = place.work_dir / "stop"
        self._checkpoints = [place.checkpoint(query) for query in QUERIES]
        self._story = Story(time.time())
        is_local = all(isinstance(checkpoint, Path) for checkpoint in self._checkpoints)
        self._tick_s = _TICK_S if is_local else _TICK_ON_A_STORE_S

    def __enter__(self) -> Self:
        self._place.work_dir.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.close()
        if self._driver is not None:
            self._driver.kill()

    def run(self, truths: Mapping[str, Truth]) -> Outcome:
        """Go through the plan and judge what each query wrote.

        Args:
            truths: by query.

        Raises:
            OnceForAllError: the job does not go on, or ends by itself again and again.
        """
        self._story = Story(time.time())
        turns = len(self._plan.kill_delays_s) + 1
        share = len(self._plan.events) / turns
        outputs = {query: self._place.output(query) for query in QUERIES}
        with looks_at(outputs) as looks, Onlooker(looks) as onlooker:
            for turn, delay_s in enumerate(self._plan.kill_delays_s):
                self._live_and_die(round(turn * share), round((turn + 1) * share), delay_s)
            self._finish()
        self._story.duration_s = self._now_s()
        self._tell("reading everything")
        outcome = self._judged(truths, outputs, onlooker)
        self._tell("done")
        return outcome

    def _judged(
        self, truths: Mapping[str, Truth], outputs: Mapping[str, Output], onlooker: Onlooker
    ) -> Outcome:
        verdicts: dict[str, dict[str, Verdict]] = {}
        found: dict[tuple[str, str], Batches] = {}
        for query, output in outputs.items():
            judged = {sink: judge(truths[query], output.records(sink)) for sink in SINKS}
            verdicts[query] = {sink: each.verdict for sink, each in judged.items()}
            found.update({(sink, query): each.batches for sink, each in judged.items()})
        return Outcome(
            self._story,
            verdicts,
            {query: agreement(found[sink, query] for sink in SINKS) for query in QUERIES},
            leftovers(outputs.values()),
            onlooker.seen(found),
            None
            if onlooker.failure is None
            else f"{type(onlooker.failure).__name__}: {onlooker.failure}",
            {
                query: observe.completed_batches(self._place.checkpoint(query), self._place.input)
                for query in QUERIES
            },
        )

    def _live_and_die(self, begin: int, end: int, delay_s: float) -> None:
        """One driver's life, in which the events from `begin` to `end` are published."""
        # What is published while it starts gives it work at once; the rest keeps it at work until
        # the kill, and beyond.
        midway = begin + round((end - begin) * _SHARE_WHILE_STARTING)
        self._start_driver(midway)
        up_at = time.monotonic()
        kill_at = up_at + delay_s
        production_s = delay_s + _PRODUCTION_AFTER_KILL_S
        while (now := time.monotonic()) < kill_at:
            self._feed.advance(midway + int((end - midway) * (now - up_at) / production_s))
            if self._ended_by_itself():
                self._start_driver(midway)
                kill_at = time.monotonic() + delay_s
            self._tell("running")
            time.sleep(min(self._tick_s, max(0.0, kill_at - time.monotonic())))
        self._kill()

    def _start_driver(self, target: int, max_offsets: int = MAX_OFFSETS_PER_TRIGGER) -> None:
        """Start the job, publish up to `target`, and wait until both queries have completed a
        batch since.
        """
        while True:
            before = [
                spark_checkpoint.last_committed(checkpoint) for checkpoint in self._checkpoints
            ]
            self._story.lives.append({"started_s": self._now_s()})
            self._driver = Driver(
                self._arguments(max_offsets),
                work_dir=self._place.work_dir,
                log=self._place.log,
                environment={
                    DATABASE_VARIABLE: self._place.database,
                    SETTINGS_VARIABLE: json.dumps(dict(self._place.checkpoints.spark)),
                },
            )
            self._feed.advance(target)
            if self._await_progress(before):
                self._story.lives[-1]["working_s"] = self._now_s()
                return

    def _await_progress(self, before: Sequence[int]) -> bool:
        deadline = time.monotonic() + _PROGRESS_DEADLINE_S
        while any(
            spark_checkpoint.last_committed(checkpoint) <= last
            for checkpoint, last in zip(self._checkpoints, before, strict=True)
        ):
            if self._ended_by_itself():
                return False
            self._check(deadline, "complete a batch")
            self._tell("starting")
            time.sleep(self._tick_s)
        return True

    def _kill(self) -> None:
        assert self._driver is not None
        at_s = self._now_s()
        if not self._driver.kill():
            raise OnceForAllError(self._explain("ended by itself just before it was to be killed"))
        self._driver = None
        hit = {
            query: batch
            for query, checkpoint in zip(QUERIES, self._checkpoints, strict=True)
            if (batch := observe.in_flight(checkpoint)) is not None
        }
        self._story.kills.append({"at_s": at_s, "in_flight": hit})
        self._story.lives[-1]["ended_s"] = at_s
        where = (
            " and ".join(f"batch {batch} of {query}" for query, batch in hit.items()) or "no batch"
        )
        self._watcher.note(
            f"kill -9 number {len(self._story.kills)} at {at_s:.1f} s, with {where} in flight"
        )
        self._tell("killed")

    def _finish(self) -> None:
        self._start_driver(len(self._plan.events), LAST_MAX_OFFSETS_PER_TRIGGER)
        deadline = time.monotonic() + _PROGRESS_DEADLINE_S
        while not all(
            observe.committed_position(checkpoint, self._place.input) == self._feed.ends
            for checkpoint in self._checkpoints
        ):
            if self._ended_by_itself():
                self._start_driver(len(self._plan.events), LAST_MAX_OFFSETS_PER_TRIGGER)
            self._check(deadline, "take all events")
            self._tell("running")
            time.sleep(self._tick_s)
        # Not before: it moves the watermark past every flight that has not been counted yet.
        self._feed.publish([self._plan.closing])
        self._stop_file.touch()
        self._tell("closing the last windows")
        assert self._driver is not None
        if not self._driver.wait(_STOP_DEADLINE_S) or self._driver.return_code != 0:
            raise OnceForAllError(self._explain("did not end in an orderly way"))
        self._driver = None
        self._story.lives[-1]["ended_s"] = self._now_s()

    def _ended_by_itself(self) -> bool:
        if self._driver is None or self._driver.return_code is None:
            return False
        self._story.unexpected_ends += 1
        self._story.lives[-1]["ended_s"] = self._now_s()
        if self._story.unexpected_ends > _UNEXPECTED_ENDS_ALLOWED:
            raise OnceForAllError(
                self._explain(f"ended by itself {self._story.unexpected_ends} times")
            )
        self._watcher.note(
            f"the driver ended by itself with {self._driver.return_code}; it is started again"
        )
        return True

    def _check(self, deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise EmbeddedServerError(
                self._explain(f"did not {what} in {_PROGRESS_DEADLINE_S:.0f} s")
            )

    def _explain(self, what: str) -> str:
        words = self._driver.last_words() if self._driver is not None else ""
        return (
            f"The Spark driver of {self._place.writer} {what}. See {self._place.log}; it ends "
            f"with:\n{words}"
        )

    def _tell(self, state: str) -> None:
        positions = [
            sum(observe.committed_position(checkpoint, self._place.input))
            for checkpoint in self._checkpoints
        ]
        self._watcher.progress(min(positions), len(self._story.kills), state)

    def _now_s(self) -> float:
        return round(time.time() - self._story.started_at, 3)

    def _arguments(self, max_offsets: int) -> list[str]:
        place = self._place
        named = {
            "--writer": place.writer,
            "--bootstrap-servers": place.bootstrap_servers,
            "--input": place.input,
            "--work-dir": str(place.work_dir),
            "--checkpoints": str(place.checkpoint("")).rstrip("/"),
            "--stop-file": str(self._stop_file),
            "--jars": ",".join(map(str, place.jars)),
            "--max-offsets-per-trigger": str(max_offsets),
        }
        return list(itertools.chain.from_iterable(named.items()))
