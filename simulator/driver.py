"""One start of the query: Spark's loop around a real coordinator, with a simulation of the jobs
of a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from onceforall.driver.coordinator import Coordinator, Prepared, Resources
from onceforall.errors import AttemptFailedError
from onceforall.protocol import decisions as do
from onceforall.protocol.entries import Committable, Digest
from onceforall.protocol.state import RunConfig
from onceforall.protocol.sweeping import Sweep
from simulator.store import SimulatedLog
from simulator.strands import Crew, Strand, point
from simulator.systems import QUERY, Assignment, Owner, Task
from simulator.world import digest_of

if TYPE_CHECKING:
    from simulator.world import SimulatedWorld


class UserError(Exception):
    """Raised by the user's function."""


class Writer:
    """The jobs of one batch; its tasks belong to the world and outlive it."""

    def __init__(self, driver: Driver, batch: int) -> None:
        self.driver, self.world, self.batch = driver, driver.world, batch
        self._tasks: list[Task] = []
        self._slots = itertools.count()
        self._losers = 0

    def write(self, decision: do.RunWrites) -> Prepared:
        """Run the tasks, all of them or those of a redo."""
        divided = self._divided()
        places = {
            (write, at): rows
            for write, tasks in enumerate(divided)
            for at, rows in enumerate(tasks)
        }
        wanted = (
            places
            if decision.redo is None
            else {place: places.get(place, 0) for place in sorted(decision.redo)}
        )
        return self._write(decision, wanted, decision.reusable, self._digests(divided))

    def write_kept(self, decision: do.WriteKept) -> Prepared:
        """Run those whose rows were kept."""
        lost = [c for cs in decision.lost.values() for c in cs]
        wanted = {(int(c["task"][0]), int(c["task"][1])): Owner(*c["owner"]).rows for c in lost}
        return self._write(decision, dict(sorted(wanted.items())), {}, {})

    def digest(self, decision: do.TakeDigests) -> Mapping[str, tuple[Digest, ...]]:
        """Return the digests of a replay without writing."""
        point()
        assert decision.batch == self.batch
        return self._digests(self._divided())

    def _divided(self) -> list[list[int]]:
        """Return which rows each task has at this pass over the batch, per write."""
        divided = []
        for sink in self.world.systems:
            tasks = self.world.division(self.batch, sink)
            if self.batch in self.world.standing:
                # Spark numbers the tasks of a replay in another way than at first.
                tasks.reverse()
                self._whims_of_a_replay(tasks)
            divided.append(tasks)
        return divided

    def _whims_of_a_replay(self, tasks: list[int]) -> None:
        choose = self.world.choose
        if len(tasks) > 1 and self.world.whims("tasks in any order"):
            tasks[:] = [tasks.pop(choose(len(tasks))) for _ in range(len(tasks))]
        if self.world.whims("a task is split"):
            at = choose(len(tasks))
            first = tasks[at] & -tasks[at]
            if tasks[at] != first:
                tasks[at : at + 1] = [tasks[at] - first, first]
        if len(tasks) > 1 and self.world.whims("tasks are merged"):
            tasks[-1] |= tasks.pop(choose(len(tasks) - 1))

    def forget_aborted(self) -> None:
        """No rows are kept here that an abort deletes."""

    def wait_for_tasks(self) -> None:
        """The wait is bounded: tasks may go on after it."""
        point()

    def prepared_so_far(self) -> Mapping[str, tuple[Committable, ...]]:
        """Return the committables of the tasks that count."""
        prepared: dict[str, tuple[Committable, ...]] = {}
        for task in self._tasks:
            if task.committable is not None:
                prepared[task.sink] = (*prepared.get(task.sink, ()), task.committable)
        return prepared

    def _write(
        self,
        decision: do.RunWrites | do.WriteKept,
        wanted: Mapping[tuple[int, int], int],
        reusable: Mapping[str, tuple[Committable, ...]],
        digests: Mapping[str, tuple[Digest, ...]],
    ) -> Prepared:
        assert decision.batch == self.batch
        started_ms = self.world.now_ms
        sinks = list(self.world.systems)
        for place, rows in wanted.items():
            self._start(decision, sinks[place[0]], place, rows, reusable, counts=True)
            if self.world.whims("second attempt"):
                self._start(decision, sinks[place[0]], place, rows, reusable, counts=False)
        self._run_all(decision, reusable)
        if self.world.whims("user error"):
            raise UserError("the function of the batch raised")
        prepared = self.prepared_so_far()
        confirmed = {
            sink: tuple(self.driver.sinks[sink].confirm(cs)) for sink, cs in prepared.items()
        }
        elapsed_ms = self.world.now_ms - started_ms
        return Prepared(
            confirmed, digests, elapsed_ms, attempts_lost=self._losers > 0, began_ms=started_ms
        )

    def _start(
        self,
        decision: do.RunWrites | do.WriteKept,
        sink: str,
        place: tuple[int, int],
        rows: int,
        reusable: Mapping[str, tuple[Committable, ...]],
        *,
        counts: bool,
    ) -> Task:
        owner = Owner(decision.batch, decision.generation, rows, next(self._slots))
        worker = 1 if self.world.whims("other worker") else 0
        avoided = frozenset(self.driver.sinks[sink].burnt)
        incarnation = 0 if self.world.options.slots_restart else decision.incarnation
        task = Task(
            self.world.systems[sink],
            Assignment(owner, place, incarnation, worker, reusable.get(sink, ()), avoided),
        )
        self.world.tasks.append(task)
        if counts:
            self._tasks.append(task)
        else:
            self._losers += 1
        return task

    def _run_all(
        self, decision: do.RunWrites | do.WriteKept, reusable: Mapping[str, tuple[Committable, ...]]
    ) -> None:
        for index, task in enumerate(self._tasks):
            self._run(task)
            if task.failed and self.world.whims("task is repeated"):
                self._losers += 1
                again = self._start(
                    decision,
                    task.sink,
                    task.assignment.place,
                    task.owner.rows,
                    reusable,
                    counts=True,
                )
                self._tasks.remove(again)
                self._tasks[index] = again
                self._run(again)
            if self._tasks[index].failed:
                raise AttemptFailedError("a task failed")

    def _run(self, task: Task) -> None:
        while not task.is_over:
            point()
            self._advance(task)

    def _advance(self, task: Task) -> None:
        if task.is_over:
            # Somebody else let it go on meanwhile.
            return
        if self.world.whims("task fails"):
            self.world.count("failed task")
            task.fail()
            return
        try:
            task.advance()
        except AttemptFailedError:
            self.world.count("failed task")

    def _digests(self, divided: list[list[int]]) -> dict[str, tuple[Digest, ...]]:
        version = self.world.versions.get(self.batch, 0) + self.world.whims("other rows")
        return {
            f"{sink}/{write}": tuple(digest_of(self.batch, rows, version) for rows in tasks)
            for write, (sink, tasks) in enumerate(zip(self.world.systems, divided, strict=True))
        }


class Driver:
    """One start of the query.

    Attributes:
        main: the strand of Spark's loop.
        stop: whether the query was asked to stop.
        is_crashed: whether its process is dead.
        woken_past: how many drivers had started when it made its last step.
    """

    def __init__(self, world: SimulatedWorld, number: int) -> None:
        self.world, self.number = world, number
        self.stop = False
        self.is_crashed = False
        self.woken_past = number
        self.sweeps: Mapping[str, Sweep] = {}
        self.sealed_below = 0
        self._behind: dict[str, Strand] = {}
        self.sinks = {name: system.driver_side() for name, system in world.systems.items()}
        self.crew = Crew(self, world.choose, lambda: world.now_ms, world.pass_time_to)
        self.log = SimulatedLog(world, self.crew.sleep)
        self.coordinator = Coordinator(self._config(), self._outside())
        cast("Any", self.coordinator)._threads = self.crew  # noqa: SLF001
        self.main = self.crew.spawn(f"driver{number}", self._drive)

    @property
    def operations(self) -> int:
        """How many operations it has performed."""
        return self.crew.operations

    @property
    def is_busy(self) -> bool:
        """Whether any thread of its process has something to do."""
        return any(strand.running for strand in self.crew.strands)

    def step(self, operations: int) -> None:
        """Perform so many operations of its process: Spark's loop, the coordinator's threads,
        and its housekeeping.
        """
        self.crew.step(operations)

    def house_keep(self) -> None:
        """Start what a run does beside its batches: clean the log, sweep every sink."""
        sweeps = self.sweeps if self.main.running else (self.coordinator.leftovers() or self.sweeps)
        generation = self.sealed_below

        def attempt(action: Callable[[], object]) -> None:
            try:
                action()
            except Exception:  # noqa: BLE001  as the housekeeping of a run, which tries again later
                point()

        self.crew.spawn(
            f"cleaner{self.number}", lambda: attempt(lambda: self.log.clean(generation))
        )
        for name, sweep in sweeps.items():
            self.crew.spawn(
                f"sweeper{self.number}",
                lambda sink=self.sinks[name], sweep=sweep: attempt(lambda: sink.recover(sweep)),  # type: ignore[misc]
            )

    def kill(self) -> None:
        """Kill -9."""
        self.is_crashed = True
        self.crew.kill()

    def _config(self) -> RunConfig:
        options = self.world.options
        return RunConfig(
            QUERY,
            f"run{self.number}",
            "/checkpoint",
            tuple(self.sinks),
            transaction_timeout_ms=options.timeout_ms,
            decision_reserve_ms=0 if options.timeout_ms is None else options.timeout_ms // 3,
            roll_after_entries=options.roll_after_entries,
            durable=options.durable,
        )

    def _outside(self) -> Resources:
        return Resources(
            log=self.log,
            sinks=self.sinks,
            spark_committed=self._spark_committed,
            spark_planned=lambda _: True,
            stop_requested=lambda: self.stop,
            wait=self.crew.sleep,
            sweeps_changed=self._sweeps_changed,
            now_ms=lambda: self.world.now_ms,
            patiently=self._patiently,
        )

    def _patiently(self, name: str, action: Callable[[], bool]) -> None:
        """Sweep, or abort; what hangs goes on behind its caller, and until it has ended the sink
        has no other one, as with a run's ``Sweeper``.
        """
        behind = self._behind.get(name)
        if behind is not None and behind.running:
            point()
        elif self.world.whims("a sweep goes on behind"):
            self.world.count("sweep goes on behind")
            self._behind[name] = self.crew.spawn(f"behind{self.number}", action)
        else:
            action()

    def _spark_committed(self) -> int:
        point()
        return self.world.spark

    def _sweeps_changed(self, sweeps: Mapping[str, Sweep], sealed_below: int) -> None:
        self.sweeps, self.sealed_below = sweeps, sealed_below
        # As the housekeeping of a run does, after each start and roll.
        self.house_keep()

    def _drive(self) -> str:
        point()
        batch = self.world.spark + 1
        while batch < self.world.batches:
            offsets = (f'{{"t":{batch}}}',)
            self.coordinator.run_batch(
                batch, offsets, self.world.options.stateful, Writer(self, batch)
            )
            self.world.commit_spark(batch)
            batch += 1
        self.coordinator.finish_background()
        return "finished"
