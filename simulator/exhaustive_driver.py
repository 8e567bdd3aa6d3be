"""Drivers as automata: the real coordinator and the real commit log, run up to their next operation
and written down.

A driver is a function of the answers that it has got. So its local state is a *boundary* (what the
coordinator, the log and the sinks remember between two steps of the coordinator) with the requests
made since and their answers. To learn what a driver does next, the production code is run from the
boundary: it gets the recorded answers, and is stopped in front of the first request that has none,
by an exception that no ``except Exception`` catches. This is done once per local state and answer;
after that the driver is a table look-up, which is what makes millions of states affordable.

Requests are tuples whose first field is a word; ``exhaustive_moves`` performs them. ``("choose",
n)`` asks for any of n ways to go on, and ``("tasks", items)`` is answered for any one of the items,
as tasks of a job run in any order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from onceforall import errors
from onceforall.commit_log import CommitLog
from onceforall.driver.coordinator import Coordinator, Prepared
from onceforall.driver.coordinator import Resources as Outside
from onceforall.errors import AttemptFailedError, OnceForAllError
from onceforall.protocol import decisions as do
from onceforall.protocol.entries import Committable, Digest
from onceforall.protocol.state import RunConfig
from simulator.exhaustive_outside import (
    QUERY,
    Answer,
    Inline,
    Pending,
    Replay,
    ReplayedSink,
    ReplayedStore,
    Request,
)
from simulator.exhaustive_world import (
    MINE,
    NOON,
    Entries,
    Options,
    TaskItem,
    Violation,
    key_from_name,
    key_of,
    name_of,
)

GONE = 0
"""The local state of a driver that does nothing any more."""

ASKING, WORKING, RETURNED = "asking", "working", "returned"


class Writer:
    """The jobs of one batch: a task for each participant, in any order. When one fails, the
    others are still to come.
    """

    def __init__(self, driver: Driver, batch: int) -> None:
        self._driver, self._batch = driver, batch
        self._prepared: dict[str, tuple[Committable, ...]] = {}

    def write(self, decision: do.RunWrites) -> Prepared:
        """Write every participant, or those that are to be written again."""
        every = range(self._driver.options.participants)
        chosen = every if decision.redo is None else sorted(write for write, _ in decision.redo)
        return self._write(decision.generation, chosen, decision.reusable)

    def write_kept(self, decision: do.WriteKept) -> Prepared:
        """Write what is lost."""
        chosen = sorted(int(c["task"][0]) for cs in decision.lost.values() for c in cs)
        return self._write(decision.generation, chosen, {})

    def _write(
        self,
        generation: int,
        chosen: Sequence[int],
        reusable: Mapping[str, tuple[Committable, ...]],
    ) -> Prepared:
        driver = self._driver
        todo = tuple(
            self._item(generation, participant, reusable.get(f"s{participant}", ()))
            for participant in chosen
        )
        while todo:
            chosen_one, epoch = driver.replay.ask("tasks", todo)
            participant, key, _, batch, is_open = todo[chosen_one]
            todo = (*todo[:chosen_one], *todo[chosen_one + 1 :])
            if epoch < 0:
                driver.producers.pop(participant, None)
                raise AttemptFailedError("a task failed")
            if driver.options.fine and not is_open:
                todo = tuple(sorted((*todo, (participant, key, epoch, batch, True))))
                continue
            driver.producers[participant] = (key, epoch, batch)
            committable = {
                "name": name_of(key),
                "epoch": epoch,
                "of": batch,
                "task": [participant, 0],
            }
            self._prepared[f"s{participant}"] = (
                {**committable, "rows": {}} if driver.options.durable else committable,
            )
        return Prepared(self.prepared_so_far(), self._digests(), 0, attempts_lost=False)

    def _item(
        self, generation: int, participant: int, reusable: tuple[Committable, ...]
    ) -> TaskItem:
        """Return a task with the live producer, where the run says that it may go on, or with a
        fresh one.
        """
        driver = self._driver
        producer = driver.producers.get(participant)
        known = {key_from_name(c["name"]): (c["epoch"], c["batch"]) for c in reusable}
        if producer is not None and known.get(producer[0]) == producer[1:]:
            return (participant, producer[0], producer[1], self._batch, False)
        taken = {*known, *driver.sinks[f"s{participant}"].burnt}
        key = key_of(generation, participant)
        while key in taken:
            key += 1
        return (participant, key, -1, self._batch, False)

    def digest(self, decision: do.TakeDigests) -> Mapping[str, tuple[Digest, ...]]:
        """A replay gives the same rows."""
        assert decision.batch == self._batch
        return self._digests()

    def _digests(self) -> Mapping[str, tuple[Digest, ...]]:
        return {
            f"s{participant}/{participant}": (Digest(1, self._batch),)
            for participant in range(self._driver.options.participants)
        }

    def prepared_so_far(self) -> Mapping[str, tuple[Committable, ...]]:
        """Return what has been prepared."""
        return dict(sorted(self._prepared.items()))

    def forget_aborted(self) -> None:
        """No rows are kept here that an abort deletes."""

    def wait_for_tasks(self) -> None:
        """The wait is bounded: tasks may go on after it."""


@dataclass(frozen=True)
class Boundary:
    """What a driver remembers between two steps of its coordinator."""

    run: Any
    pending: tuple[Any, ...]
    log: Mapping[str, Any]
    cause: BaseException | None
    producers: Mapping[int, tuple[int, int, int]]
    doubtful: tuple[frozenset[int], ...]
    burnt: tuple[frozenset[int], ...]
    batch: int
    stage: str
    spark: str


_REMEMBERED = ("_lengths", "_last_batches", "_unanswered")
"""What a ``CommitLog`` remembers from call to call."""


class Driver:
    """One start of the query: Spark's loop around a real coordinator."""

    def __init__(self, options: Options, entries: Entries, batch: int) -> None:
        self.options, self.batch, self.stage, self.spark = options, batch, ASKING, ""
        self.replay = Replay()
        self.producers: dict[int, tuple[int, int, int]] = {}
        self.sinks = {f"s{k}": ReplayedSink(self.replay, k) for k in range(options.participants)}
        self.log = CommitLog(
            ReplayedStore(self.replay, entries),
            retry_pauses_ms=(0,),
            sleep=lambda _: None,
            new_nonce=lambda: MINE,
            now=lambda: NOON,
        )
        config = RunConfig(QUERY, "run", "/checkpoint", tuple(self.sinks), durable=options.durable)
        outside = Outside(
            log=self.log,
            sinks=self.sinks,
            spark_committed=lambda: int(self.replay.ask("spark?")),
            spark_planned=lambda _: True,
            stop_requested=lambda: False,
            wait=lambda _: None,
        )
        self.coordinator = Coordinator(config, outside)
        vars(self.coordinator)["_threads"] = Inline()

    def snapshot(self) -> Boundary:
        """Return what it remembers now, between two steps."""
        return Boundary(
            self.coordinator.run,
            tuple(self.coordinator.pending),
            {name: vars(self.log)[name].copy() for name in _REMEMBERED},
            vars(self.coordinator)["_cause"],
            dict(self.producers),
            tuple(frozenset(sink.doubtful) for sink in self.sinks.values()),
            tuple(frozenset(sink.burnt) for sink in self.sinks.values()),
            self.batch,
            self.stage,
            self.spark,
        )

    def restore(self, boundary: Boundary) -> None:
        """Remember this."""
        self.coordinator.run = boundary.run
        self.coordinator.pending = deque(boundary.pending)
        vars(self.coordinator).update(_cause=boundary.cause, _writer=Writer(self, boundary.batch))
        vars(self.log).update({name: value.copy() for name, value in boundary.log.items()})
        self.producers = dict(boundary.producers)
        for sink, doubtful, burnt in zip(
            self.sinks.values(), boundary.doubtful, boundary.burnt, strict=True
        ):
            sink.doubtful, sink.burnt = set(doubtful), set(burnt)
        self.batch, self.stage, self.spark = boundary.batch, boundary.stage, boundary.spark

    def turn(self) -> str:
        """Go on by one step of the coordinator, or of Spark; returns how the driver ended, or
        nothing.
        """
        if self.stage == ASKING:
            if self.batch == self.options.batches:
                return "finished"
            self.coordinator.request(
                self.batch,
                (f'{{"t":{self.batch}}}',),
                self.options.stateful,
                Writer(self, self.batch),
            )
            self.stage = WORKING
        elif self.stage == WORKING:
            returned = isinstance(self.coordinator.pending[0], do.ReturnBatch)
            self.coordinator.step()
            if returned or not self.coordinator.pending:
                self.stage = RETURNED
        elif self.coordinator.pending and (self.spark or self.replay.ask("choose", 2)):
            self._trail()
        elif not self.spark:
            self.spark = "committed" if self.replay.ask("spark!", self.batch) else "conflict"
        elif self.spark == "conflict":
            return self.spark
        else:
            self.batch, self.stage, self.spark = self.batch + 1, ASKING, ""
        return ""

    def _trail(self) -> None:
        """Execute what follows ReturnBatch, as the coordinator's background thread does while
        Spark writes its own log.
        """
        with suppress(OnceForAllError):
            self.coordinator.step()


@dataclass(frozen=True)
class Local:
    """A driver's local state: where it stands (``request``), or how it ended (``outcome``)."""

    boundary: int
    record: tuple[tuple[Request, Answer], ...]
    request: Request
    outcome: str = ""


class Automaton:
    """All local states that were met, numbered, and where each answer leads to."""

    def __init__(self, options: Options, entries: Entries) -> None:
        self._options, self._entries = options, entries
        self._boundaries: list[Boundary] = []
        self._boundary_numbers: dict[Any, int] = {}
        self.locals: list[Local] = [Local(-1, (), (), "gone")]
        self._local_numbers: dict[Any, int] = {}
        self._edges: dict[tuple[int, Answer], int] = {}
        self._starts: dict[int, int] = {}

    def start(self, batch: int) -> int:
        """Return the local state of a new driver, of which Spark asks this batch first."""
        if batch not in self._starts:
            driver = Driver(self._options, self._entries, batch)
            self._starts[batch] = self._resume(self._number(driver.snapshot()), ())
        return self._starts[batch]

    def after(self, local: int, answer: Answer) -> int:
        """Return the local state to which an answer leads."""
        following = self._edges.get((local, answer))
        if following is None:
            here = self.locals[local]
            following = self._resume(here.boundary, (*here.record, (here.request, answer)))
            self._edges[local, answer] = following
        return following

    def _resume(self, boundary: int, record: tuple[tuple[Request, Answer], ...]) -> int:
        remembered = self._boundaries[boundary]
        driver = Driver(self._options, self._entries, remembered.batch)
        driver.restore(remembered)
        driver.replay.load(record)
        while True:
            try:
                ended = driver.turn()
            except Pending as pending:
                return self._intern(Local(boundary, driver.replay.record, pending.request))
            except Violation as violation:
                ended = f"violation: {violation}"
            except Exception as error:  # noqa: BLE001  how a driver may end is judged by the search
                # By what a caller may know: an error of one module alone is its nearest public one.
                public = next(
                    each.__name__
                    for each in type(error).__mro__
                    if hasattr(errors, each.__name__) or not _is_ours(each)
                )
                ended = f"{public}: {error}"
            if ended:
                return self._intern(Local(-1, (), (), ended))
            boundary = self._number(driver.snapshot())
            driver.replay.load(())

    def _intern(self, local: Local) -> int:
        key = (local.boundary, tuple(answer for _, answer in local.record), local.outcome)
        number = self._local_numbers.get(key)
        if number is None:
            number = self._local_numbers[key] = len(self.locals)
            self.locals.append(local)
        return number

    def _number(self, boundary: Boundary) -> int:
        key = canonical(boundary)
        number = self._boundary_numbers.get(key)
        if number is None:
            number = self._boundary_numbers[key] = len(self._boundaries)
            self._boundaries.append(boundary)
        return number


def canonical(value: Any) -> Any:
    """Return a hashable value that is equal for equal protocol values, whatever the order of
    their mappings.
    """
    if isinstance(value, (str, int, type(None), type)):
        return value
    if isinstance(value, Mapping):
        return ("map", *sorted(((canonical(k), canonical(v)) for k, v in value.items()), key=repr))
    if isinstance(value, (set, frozenset)):
        return ("set", *sorted((canonical(v) for v in value), key=repr))
    if isinstance(value, (tuple, list)):
        return tuple(canonical(v) for v in value)
    if is_dataclass(value):
        return (
            type(value).__name__,
            *(canonical(getattr(value, field.name)) for field in fields(value)),
        )
    assert isinstance(value, (Enum, BaseException)), value
    return (type(value).__name__, str(value))


def _is_ours(error: type) -> bool:
    return error.__module__.startswith("onceforall.")
