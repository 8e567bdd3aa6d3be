"""The tasks of a batch: as many attempts of each as the schedule likes, of which the first to end
is taken, as Spark does it; the others go on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from onceforall.errors import OnceForAllError
from onceforall.sink import TaskAttempt
from simulator.database.sink import TurnSink
from simulator.database.turns import Actor

if TYPE_CHECKING:
    from simulator.database.schedule import Play

SINK = "out"
_TRIES = 8


class Job:
    """The job of one batch.

    Attributes:
        has_late: a task had several attempts; a late one may take what the first has prepared.
    """

    def __init__(self, play: Play, sink: TurnSink, generation: int, batch: int) -> None:
        """Nothing is begun."""
        self._play = play
        self._sink = sink
        self._generation = generation
        self._batch = batch
        self._results: dict[int, dict[str, Any] | None] = {}
        self._attempts: dict[int, list[Actor]] = {p: [] for p in range(play.partitions)}

    @property
    def has_late(self) -> bool:  # noqa: D102  see the class
        return any(len(attempts) > 1 for attempts in self._attempts.values())

    def run(self, again: float) -> list[dict[str, Any] | None] | None:
        """Run the tasks; return what each has given, or None when they fail too often, or another
        run has come.

        Args:
            again: how likely a task gets a second attempt at once.
        """
        turns = self._play.turns
        for partition in self._attempts:
            self._begin(partition)
            if self._play.rng.random() < again:
                self._begin(partition, is_late=self._play.rng.random() < 0.7)
        for _ in range(_TRIES):
            turns.until(f"the tasks of batch {self._batch}", self._is_over)
            missing = [p for p in self._attempts if p not in self._results]
            if not missing:
                return [self._results[p] for p in self._attempts]
            if self._play.log.generation != self._generation:
                break
            for partition in missing:
                self._begin(partition)
        return None

    def _is_over(self) -> bool:
        # A late attempt begins behind the first one's end.
        return all(
            partition in self._results or all(each.is_over or each.when for each in attempts)
            for partition, attempts in self._attempts.items()
        )

    def _begin(self, partition: int, *, is_late: bool = False) -> None:
        self._play.attempts += 1
        slot = self._play.attempts

        def attempt() -> None:
            turns = self._play.turns
            try:
                committable = self._write(partition, slot)
            except OnceForAllError as error:
                turns.tell(f"task {partition}.{slot} fails: {error}")
                turns.count(f"a task fails with {type(error).__name__}")
            else:
                self._results.setdefault(partition, committable)

        name = f"task {self._generation}.{self._batch}.{partition}.{slot}"
        when = (lambda: partition in self._results) if is_late else None
        actor = self._play.turns.start(name, attempt, when)
        if is_late and self._play.rng.random() < 0.5:
            actor.priority -= 4.0  # behind whoever else can go on
        self._attempts[partition].append(actor)

    def _write(self, partition: int, slot: int) -> dict[str, Any] | None:
        play, sink, batch = self._play, self._sink, self._batch
        attempt = TaskAttempt(
            play.query, SINK, self._generation, batch, 0, partition, slot, secrets=sink.secrets()
        )
        first = play.first_id(batch, partition)
        value = f"{self._generation}.{batch}.{partition}.{slot}"
        rows = pa.RecordBatch.from_pydict(
            {
                "id": pa.array([first, first + 1], pa.int64()),
                "v": pa.array([value, value], pa.string()),
            }
        )
        transaction = sink.begin_transaction(attempt)
        try:
            sink.invoke(transaction, rows)
            committable = sink.pre_commit(transaction)
        except OnceForAllError:
            sink.discard(transaction)
            raise
        return None if committable is None else json.loads(json.dumps(committable))
