"""Plays seeded schedules of one query on one sink, and judges the table after each of its steps."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceforall.errors import OnceForAllError, SinkUnavailableError
from onceforall.protocol.history import CommitPermit
from onceforall.protocol.names import parse_name, sink_code
from onceforall.sink import Sweep
from onceforall.sinks.postgres.driver import marker_proofs
from onceforall.sinks.postgres.markers import Owner
from simulator.database.server import KEYED, PLAIN, Server
from simulator.database.sink import TurnSink, without_waits
from simulator.database.tasks import SINK, Job
from simulator.database.turns import Turns
from simulator.violation import Violation

MODES = ("prepared", "staged", "upsert")
_TRIES = 6


@dataclass(frozen=True)
class Outcome:
    """How a schedule went.

    Attributes:
        seed: which.
        steps: how many turns were given.
        counts: what happened, and how often.
        story: every step, if it was kept.
    """

    seed: int
    steps: int
    counts: Mapping[str, int]
    story: Sequence[str] = ()


@dataclass
class Log:
    """The commit log, in which every operation is atomic.

    Attributes:
        generation: the newest that was claimed.
        decided: the committables of each batch's COMMIT.
        done: the batches that have their DONE.
    """

    generation: int = 0
    decided: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def unfinished(self) -> int | None:
        """Return the decided batch that has no DONE."""
        return next((batch for batch in self.decided if batch not in self.done), None)


class Play:
    """One schedule."""

    def __init__(self, server: Server, seed: int, mode: str | None, *, tell: bool) -> None:
        rng = self.rng = random.Random(seed)  # noqa: S311  not for secrets
        self.server = server
        drawn = rng.choice(MODES)
        self.mode = mode or drawn
        self.table = KEYED if self.mode == "upsert" or rng.random() < 0.5 else PLAIN
        self.partitions = rng.choice((1, 1, 2))
        self.again = rng.choice((0.2, 0.9))
        self.query = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        self.log = Log()
        self.attempts = 0
        """How many were begun, whose number no other has."""
        self.turns = Turns(rng, server, faults=rng.choice((0.0, 0.003, 0.01)), tell=tell)
        self.turns.watch(self.look)

    # --- the schedule -----------------------------------------------------------------------------

    def run(self) -> None:
        """Play it.

        Raises:
            Violation: the table has what it may not have, or a driver comes to no end.
        """
        turns = self.turns
        self.server.prepare()
        try:
            drivers = [
                turns.start(f"driver {number + 1}", lambda: self.drive(self.rng.choice((1, 2))))
                for number in range(self.rng.choice((1, 2, 2, 3)))
            ]
            if self.rng.random() < 0.5:
                turns.play()
            else:
                # Their tasks live on.
                turns.play(lambda: all(driver.is_over for driver in drivers))
            turns.calm = True
            turns.tell("--- all faults end")
            last = turns.start("driver last", lambda: self.drive(1, is_last=True))
            last.priority = 2.0
            turns.play(lambda: last.is_over)
            turns.play()
            sweeper = turns.start("driver sweep", lambda: self.drive(0, is_last=True))
            turns.play(lambda: sweeper.is_over)
            self.judge_end()
        finally:
            turns.end()

    def sink(self) -> TurnSink:
        """Return a sink as a new process has it."""
        made = self.server.sink(self.mode, self.table)
        made.turns = self.turns
        return made

    # --- a driver ---------------------------------------------------------------------------------

    def drive(self, batches: int, *, is_last: bool = False) -> None:
        """Do what a run of the query does."""
        sink = self.sink()
        try:
            self.turns.gate("claims")
            self.log.generation += 1
            generation = self.log.generation
            self._complete(sink, generation, self.log.unfinished())
            self._sweep(sink, generation, own=False)
            for _ in range(batches):
                if not self._write_batch(sink, generation, is_last=is_last):
                    return
        except OnceForAllError as error:
            self.turns.tell(f"a run ends: {error}")
            self.turns.count(f"a run ends with {type(error).__name__}")
            if is_last:
                raise Violation(f"nothing is wrong any more, and a run ends: {error}") from error
        finally:
            sink.close()

    def _sweep(self, sink: TurnSink, generation: int, *, own: bool) -> None:
        batch = self.log.unfinished()
        spared = () if batch is None else (str(c["name"]) for c in self.log.decided[batch])
        sweep = Sweep(self.query, SINK, generation, own, frozenset(spared))
        self._again("sweep", lambda: sink.recover(sweep))

    def _again(self, what: str, action: Any) -> Any:
        for turn in range(_TRIES):
            try:
                return action()
            except SinkUnavailableError as error:  # noqa: PERF203  it is what is tested
                self.turns.tell(f"{what}: {error}")
                if turn == _TRIES - 1:
                    raise
        raise AssertionError

    def _write_batch(self, sink: TurnSink, generation: int, *, is_last: bool) -> bool:
        batch = max(self.log.decided, default=-1) + 1
        job = Job(self, sink, generation, batch)
        prepared = job.run(again=0.0 if self.turns.calm else self.again)
        if prepared is None:
            return False
        committables = [c for c in prepared if c is not None]
        after = batch - 1 if batch > 0 and self.mode != "upsert" else None
        try:
            confirmed = sink.confirm([{**c, "after": after} for c in committables])
        except OnceForAllError as error:
            self.turns.tell(f"confirm: {error}")
            if is_last and not job.has_late:
                raise
            self.turns.count("confirm refuses")
            self._again("abort", lambda: sink.abort(committables))
            return is_last and self._write_batch(sink, generation, is_last=is_last)
        self.turns.gate(f"decides batch {batch}")
        if self.log.generation != generation or batch in self.log.decided:
            self.turns.count("a run is replaced")
            return False
        self.log.decided[batch] = json.loads(json.dumps(list(confirmed)))
        self.turns.tell(f"batch {batch} is decided")
        if self.rng.random() < 0.3:
            self._sweep(sink, generation, own=True)
        self._complete(sink, generation, batch)
        return True

    def _complete(self, sink: TurnSink, generation: int, batch: int | None) -> None:
        if batch is None:
            return
        decided = self.log.decided[batch]
        permit = CommitPermit(generation, 1, batch)
        report = self._again("commit", lambda: sink.commit(permit, decided))
        if report.lost or report.in_doubt:
            raise Violation(f"batch {batch} is called lost or in doubt: {report}")
        self.turns.gate(f"done with batch {batch}")
        self.log.done.add(batch)
        self.judge_done(batch)
        if decided:
            self._again("retire", lambda: sink.retire(decided))

    def first_id(self, batch: int, partition: int) -> int:
        """Return the id of a task's first row."""
        return 10 * partition + (0 if self.mode == "upsert" else 1000 * batch)

    # --- what is true -----------------------------------------------------------------------------

    def look(self) -> None:
        """Judge what a reader sees now.

        Raises:
            Violation: it may not.
        """
        if self.mode == "upsert":
            self._look_at_upserted(self.server.rows(self.table))
            return
        # Of another moment than the rows, but never of a later one.
        newest = max(self.log.decided, default=-1)
        has_newest = newest in self.log.decided and self._says(newest)
        is_ahead = self._says(newest + 1)
        rows = self.server.rows(self.table)
        seen: Counter[int] = Counter(number for number, _ in rows)
        for number, count in seen.items():
            if count > 1:
                raise Violation(f"row {number} is there {count} times: {rows}")
        decided = {value for batch in self.log.decided for value in self._values(batch)}
        for number, value in rows:
            if value not in decided:
                raise Violation(f"row {number} is of {value}, which nobody has decided")
        for batch in self.log.done:
            self.judge_done(batch, rows)
        if has_newest:
            self._judge_proved(newest, rows)
        if is_ahead:
            raise Violation(f"the markers have batch {newest + 1}, which nobody has decided")

    def _says(self, batch: int) -> bool:
        owner = Owner("onceforall", self.query, sink_code(SINK))
        return self.server.was_checked and marker_proofs.says(self.server.onlooker, owner, batch)

    def _judge_proved(self, batch: int, rows: Sequence[tuple[int, str]]) -> None:
        """Judge what a standby has that is promoted now, and whose markers have the batch."""
        try:
            self.judge_done(batch, rows)
        except Violation as violation:
            raise Violation(f"the markers have a batch before its rows: {violation}") from None

    def _look_at_upserted(self, rows: Sequence[tuple[int, str]]) -> None:
        done = max(self.log.done, default=-1)
        for number, value in rows:
            if int(value.split(".")[1]) < done:
                raise Violation(f"key {number} has {value}, of a batch before {done}")

    def _values(self, batch: int) -> list[str]:
        names = (parse_name(str(c["name"])) for c in self.log.decided[batch])
        return [f"{n.generation}.{n.batch}.{n.partition}.{n.slot}" for n in names if n is not None]

    def judge_done(self, batch: int, rows: Sequence[tuple[int, str]] | None = None) -> None:
        """Judge a batch that has its DONE.

        Raises:
            Violation: not all of its rows are there.
        """
        rows = self.server.rows(self.table) if rows is None else rows
        firsts = (self.first_id(batch, partition) for partition in range(self.partitions))
        expected = {first + i for first in firsts for i in (0, 1)}
        gone = expected - {number for number, _ in rows}
        if gone:
            raise Violation(f"batch {batch} is done, and rows {sorted(gone)} are not there")

    def judge_end(self) -> None:
        """Judge what is left when nothing happens any more.

        Raises:
            Violation: a decided batch isn't whole, or something of the query is left over.
        """
        self.look()
        if self.log.unfinished() is not None or not self.log.done:
            raise Violation("a decided batch has no DONE")
        left = [*self.server.prepared(), *self.server.staging_tables()]
        if left:
            raise Violation(f"left over: {', '.join(left)}")


def play(server: Server, seed: int, mode: str | None = None, *, tell: bool = False) -> Outcome:
    """Play one schedule.

    Args:
        server: on which.
        seed: which; the same one plays the same schedule, as far as the server's own time allows.
        mode: of the sink; None: the seed chooses.
        tell: keep the story.

    Raises:
        Violation: the promise is broken. The message names the seed, and ends with the story if it
            was kept.
    """
    one = Play(server, seed, mode, tell=tell)
    try:
        with without_waits(one.turns):
            one.run()
    except Violation as violation:
        story = "".join(f"\n  {line}" for line in one.turns.story or ())
        raise Violation(f"seed {seed} ({one.mode}): {violation}{story}") from violation
    return Outcome(seed, one.turns.steps, dict(one.turns.counts), one.turns.story or ())


def first_violation(
    server: Server, schedules: int, first_seed: int = 0, mode: str | None = None
) -> Violation | None:
    """Play schedules until one breaks the promise; return how, or None."""
    for seed in range(first_seed, first_seed + schedules):
        try:
            play(server, seed, mode)
        except Violation as violation:  # noqa: PERF203  the first one ends it
            return violation
    return None
