"""One start of the query: Spark's loop around a real coordinator, with a fake of the jobs of a batch."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from datetime import datetime, timezone

from onceforall.commit_log import CommitLog
from onceforall.coordinator import Coordinator, Prepared, World
from onceforall.errors import AttemptFailedError, OnceForAllError
from onceforall.protocol import decisions as do
from onceforall.protocol.entries import Digest
from onceforall.protocol.machine import RunConfig
from simulation.actor import Actor, point
from simulation.kafka import SimulatedSink, Task

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=timezone.utc)


class UserError(Exception):
    """Raised by the user's function."""


class Inline:
    """An executor without threads: the schedule stays the only order."""

    def submit(self, function, *arguments):
        future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait=False):
        pass


class Writer:
    """A fake of the jobs of one batch; its tasks belong to the world and outlive it."""

    def __init__(self, driver, batch):
        self.driver, self.world, self.batch = driver, driver.world, batch
        self.tasks = []

    def write(self, decision):
        everything = itertools.product(range(len(self.world.clusters)), range(self.world.options.partitions))
        return self._write(decision, set(everything) if decision.redo is None else decision.redo)

    def write_kept(self, decision):
        return self._write(decision, {tuple(c["task"]) for cs in decision.lost.values() for c in cs})

    def _write(self, decision, wanted):
        assert decision.batch == self.batch
        whims = self.driver.whims
        slots = itertools.count()
        losers = 0
        for write, (sink, cluster) in enumerate(self.world.clusters.items()):
            for partition in range(self.world.options.partitions):
                if (write, partition) not in wanted:
                    continue
                for _ in range(2 if whims("second attempt") else 1):
                    worker = 1 if whims("other worker") else 0
                    avoided = self.driver.sinks[sink].burnt
                    place = (write, partition)
                    task = Task(cluster, decision, sink, place, next(slots), worker, avoided, self.driver.incarnation)
                    self.world.tasks.append(task)
                    if task.owner[2] in {t.owner[2] for t in self.tasks if t.sink == sink}:
                        losers += 1
                    else:
                        self.tasks.append(task)
        if losers and not self.world.options.slots_restart:
            self.driver.incarnation += 1
        for task in self.tasks:
            while not task.is_over:
                point()
                if not task.is_over:
                    task.advance()
            if task.failed:
                raise AttemptFailedError("a task failed")
        if whims("user error"):
            raise UserError("the function of the batch raised")
        return Prepared(self.prepared_so_far(), self.digest(decision), 0, attempts_lost=losers > 0)

    def digest(self, decision):
        decided = self.world.digests.get(self.batch, 0)
        rows = decided + 1 if self.driver.whims("other rows") else decided
        return {"s0/0": (Digest(rows, self.batch),)}

    def wait_for_tasks(self):
        """The wait is bounded: tasks may go on after it."""
        point()

    def prepared_so_far(self):
        ready = [t for t in self.tasks if t.committable is not None]
        return {sink: tuple(t.committable for t in ready if t.sink == sink) for sink in {t.sink for t in ready}}


class Driver:
    """One start of the query: Spark's loop around a real coordinator, in an actor."""

    def __init__(self, world, number, whims):
        self.world, self.number, self.whims = world, number, whims
        self.stop = False
        self.is_crashed = False
        self.incarnation = 0
        self.sweeps = None
        self.background = []
        self.sinks = {name: SimulatedSink(cluster, world.faults) for name, cluster in world.clusters.items()}
        self.log = CommitLog(
            world.store,
            retain_commits=1,
            retry_pauses_ms=(0,),
            sleep=lambda _: None,
            new_nonce=lambda: next(world.nonces),
            now=lambda: NOON,
        )
        config = RunConfig(
            "query",
            f"run{number}",
            "/checkpoint",
            tuple(self.sinks),
            roll_after_entries=world.options.roll_after_entries,
            durable=world.options.durable,
        )
        outside = World(
            log=self.log,
            sinks=self.sinks,
            spark_committed=self._spark_committed,
            stop_requested=lambda: self.stop,
            wait=lambda _: point(),
            sweeps_changed=self._sweeps_changed,
        )
        self.coordinator = Coordinator(config, outside)
        self.coordinator._threads = Inline()
        self.actor = Actor(f"driver{number}", self._drive)

    def _spark_committed(self):
        point()
        return self.world.spark

    def _sweeps_changed(self, sweeps):
        self.sweeps = sweeps

    def _drive(self):
        point()
        batch = self.world.spark + 1
        while batch < self.world.options.batches:
            self.coordinator.request(batch, (f'{{"t":{batch}}}',), self.world.options.stateful, Writer(self, batch))
            while self.coordinator.pending:
                returned = isinstance(self.coordinator.pending[0], do.ReturnBatch)
                self.coordinator.step()
                if returned:
                    break
            trailing_first = self.whims("trailing decisions first")
            if trailing_first:
                self._drain()
            self.world.commit_spark(batch)
            self._drain()
            batch += 1
        return "finished"

    def _drain(self):
        """Execute what follows ReturnBatch, as the coordinator's background thread does."""
        try:
            while self.coordinator.pending:
                self.coordinator.step()
        except OnceForAllError:
            pass

    def house_keep(self):
        """Start what a run does in its background."""
        sweeps, generation = self.sweeps, max(s.generation for s in self.sweeps.values())

        def attempt(action):
            try:
                action()
            except Exception:
                point()

        def run():
            attempt(lambda: self.log.clean(generation))
            for name, sweep in sweeps.items():
                attempt(lambda sink=self.sinks[name], sweep=sweep: sink.recover(sweep))

        self.background = [a for a in self.background if a.running]
        self.background.append(Actor(f"background{self.number}", run))

    def kill(self):
        self.is_crashed = True
        self.actor.kill()
        for actor in self.background:
            actor.kill()
