"""Very many schedules, in several processes, with progress, and resumable: what ``python -m
simulator`` runs.

Seeds are played in chunks. After each chunk a state file says which chunks are done and what they
came to, and ``results.json`` says it for people; so a campaign that is interrupted goes on where it
stopped. Both belong to one *version*: a checksum of the sources that were run. Where that has
changed, the campaign begins anew, for nothing is proved of code that was not run.

Only schedules with enough faults count. A part of the seeds gives fewer; they are played, counted
apart, and others take their place.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

from evidence.digests import protocol_digest
from onceforall.errors import OptionError
from simulator.explorer import MOVES, explore
from simulator.violation import Violation

CHUNK = 500
"""Schedules that a worker plays at a time."""

FAULTS = 5
"""A schedule with fewer faults does not count."""

ENOUGH_VIOLATIONS = 1000
"""A campaign ends with so many: where each schedule fails, none counts, and it would go on for
ever."""

_KEPT_VIOLATIONS = 100


@dataclass
class Tally:
    """What some schedules came to.

    Attributes:
        schedules: those with at least ``FAULTS`` faults.
        below: those with fewer.
        faults: how often each kind of fault happened.
        endings: how often a driver ended in each way.
        operations: how many operations drivers performed.
        moves: how many moves there were.
        most_faults: in one schedule.
        violations: seed and message of each.
        cpu_seconds: what they took.
    """

    schedules: int = 0
    below: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    operations: int = 0
    moves: int = 0
    most_faults: int = 0
    violations: list[dict[str, Any]] = field(default_factory=list)
    cpu_seconds: float = 0.0

    def add(self, other: Tally) -> None:
        """Add another one's."""
        self.schedules += other.schedules
        self.below += other.below
        self.faults += other.faults
        self.endings += other.endings
        self.operations += other.operations
        self.moves += other.moves
        self.most_faults = max(self.most_faults, other.most_faults)
        self.violations += other.violations
        self.cpu_seconds += other.cpu_seconds

    @classmethod
    def read(cls, body: dict[str, Any]) -> Tally:
        """Read back what ``vars`` gave, and JSON kept."""
        return cls(
            **{**body, "faults": Counter(body["faults"]), "endings": Counter(body["endings"])}
        )


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        schedules: how many that count.
        first_seed: where the seeds begin.
        workers: processes.
        minutes: stop after so long; None: not before the schedules are played.
        folder: where ``results.json`` and the state lie.
        moves: of a schedule, before healing.
    """

    schedules: int
    first_seed: int = 0
    workers: int = 2
    minutes: float | None = None
    folder: Path = Path("build/simulator")
    moves: int = MOVES

    def __post_init__(self) -> None:
        if self.schedules < 1 or self.workers < 1 or self.moves < 1:
            raise OptionError(
                "A campaign needs at least one schedule, one worker and one move; an empty one "
                "would prove nothing."
            )


def fixed_by(seed: int) -> dict[str, Any]:
    """Return the options of a schedule that don't come from its random numbers: of three, one has
    a log as on an object store.
    """
    return {"keep_ends": seed % 3 == 2}


def play(first_seed: int, schedules: int, moves: int = MOVES) -> Tally:
    """Play a chunk; a violation, or an error of the simulator itself, is counted with its seed."""
    tally, started = Tally(), time.process_time()
    gc.disable()  # each schedule leaves cycles behind; collected once per chunk
    try:
        for seed in range(first_seed, first_seed + schedules):
            try:
                outcome = explore(seed, moves, FAULTS, **fixed_by(seed))
            except Violation as violation:
                tally.violations.append({"seed": seed, "message": str(violation)})
                continue
            except Exception:  # noqa: BLE001  a schedule that can't be judged has not been passed
                tally.violations.append({"seed": seed, "message": traceback.format_exc()})
                continue
            enough = outcome.fault_count >= FAULTS
            tally.schedules += enough
            tally.below += not enough
            tally.faults += outcome.faults
            tally.endings += outcome.endings
            tally.operations += outcome.operations
            tally.moves += outcome.moves
            tally.most_faults = max(tally.most_faults, outcome.fault_count)
    finally:
        gc.enable()
        gc.collect()
    tally.cpu_seconds = time.process_time() - started
    return tally


class Campaign:
    """A campaign, from where it stopped last.

    Args:
        plan: what to run.
        show: is told a line of progress now and then.
    """

    def __init__(self, plan: Plan, show: Callable[[str], None] = print) -> None:
        self.plan, self._show = plan, show
        self.tally = Tally()
        self._done: set[int] = set()
        self._seconds_before = 0.0
        self._started = time.monotonic()
        self._key = {
            "version": protocol_digest(),
            "first_seed": plan.first_seed,
            "moves": plan.moves,
            "chunk": CHUNK,
        }
        self._load()

    @property
    def seconds(self) -> float:
        """Wall-clock seconds so far, those of interrupted turns included."""
        return self._seconds_before + time.monotonic() - self._started

    @property
    def is_complete(self) -> bool:
        """Whether all schedules are played."""
        return self.tally.schedules >= self.plan.schedules

    def run(self) -> dict[str, Any]:
        """Play until all is played, or the time is over, or so many have failed that no more are
        needed; return the results, which also are in ``results.json``.
        """
        deadline = None if self.plan.minutes is None else self._started + 60 * self.plan.minutes
        chunks = self._chunks()
        # Not forked: the parent may have threads.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.plan.workers, mp_context=context) as pool:
            running: dict[Future[Tally], int] = {}
            shown = 0.0
            while (
                not self.is_complete
                and len(self.tally.violations) < ENOUGH_VIOLATIONS
                and (deadline is None or time.monotonic() < deadline)
            ):
                while len(running) < self.plan.workers + 1:
                    chunk = next(chunks)
                    running[
                        pool.submit(
                            play, self.plan.first_seed + chunk * CHUNK, CHUNK, self.plan.moves
                        )
                    ] = chunk
                ended, _ = wait(running, timeout=1, return_when=FIRST_COMPLETED)
                for future in ended:
                    self._take(running.pop(future), future.result())
                if ended and time.monotonic() - shown > 10:
                    shown = time.monotonic()
                    self._show(self._progress())
            for future, chunk in running.items():
                if not future.cancel():
                    self._take(chunk, future.result())
        self._save()
        self._show(self._progress())
        return self.results()

    def results(self) -> dict[str, Any]:
        """Return what is known so far, as it is in ``results.json``."""
        tally = self.tally
        return {
            **self._key,
            "finished_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "complete": self.is_complete,
            "schedules": tally.schedules,
            "schedules_with_fewer_faults": tally.below,
            "least_faults": FAULTS,
            "most_faults": tally.most_faults,
            "faults": tally.faults.total(),
            "faults_by_kind": dict(tally.faults.most_common()),
            "operations": tally.operations,
            "moves": tally.moves,
            "endings": dict(tally.endings.most_common()),
            "violations": len(tally.violations),
            "violating_seeds": tally.violations[:_KEPT_VIOLATIONS],
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(tally.cpu_seconds, 1),
            "workers": self.plan.workers,
        }

    def _chunks(self) -> Iterator[int]:
        return (chunk for chunk in count() if chunk not in self._done)

    def _take(self, chunk: int, tally: Tally) -> None:
        self._done.add(chunk)
        self.tally.add(tally)
        for violation in tally.violations:
            self._show(f"VIOLATION, seed {violation['seed']}: {violation['message']}")
        self._save()

    @property
    def _state_file(self) -> Path:
        return self.plan.folder / "state.json"

    def _load(self) -> None:
        if not self._state_file.exists():
            return
        state = json.loads(self._state_file.read_text(encoding="utf-8"))
        if state["key"] != self._key:
            self._show(
                "The sources or the seeds have changed since the last campaign: this one begins "
                "anew."
            )
            return
        self._done, self._seconds_before = set(state["done"]), state["seconds"]
        self.tally = Tally.read(state["tally"])
        self._show(f"Going on behind {len(self._done)} chunks: {self._progress()}")

    def _save(self) -> None:
        state = {
            "key": self._key,
            "done": sorted(self._done),
            "seconds": self.seconds,
            "tally": vars(self.tally),
        }
        self.plan.folder.mkdir(parents=True, exist_ok=True)
        _replace(self._state_file, state)
        _replace(self.plan.folder / "results.json", self.results())

    def _progress(self) -> str:
        tally, seconds = self.tally, self.seconds
        each_ms = 1000 * tally.cpu_seconds / max(1, tally.schedules + tally.below)
        return (
            f"{tally.schedules:,} of {self.plan.schedules:,} schedules with {FAULTS} faults or "
            f"more, {tally.faults.total():,} faults, "
            f"{tally.operations:,} operations, {len(tally.violations)} violations, {seconds:,.0f} "
            f"s, {each_ms:.1f} ms each"
        )


def _replace(path: Path, body: dict[str, Any]) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(body, indent=1), encoding="utf-8")
    temporary.replace(path)
