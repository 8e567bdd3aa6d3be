"""A query under siege: one driver that is started again whenever it ends, and the strikes that
any scenario may use."""

import contextlib
import os
import re
import signal
import subprocess
import time

import psutil
import psycopg
from confluent_kafka import KafkaException

from chaos.arena import DEADLINE_S, StuckError
from chaos.recipes import lose
from support.reading import held_back
from support.waiting import Story, until

RESTARTS = 100_000
STATEFUL = {"stateful": True, "sinks": ["kafka", "postgres"], "postgres": {"key": ["value"]}}
"""A query that counts gives updates, which files can't take, and a table only with a key."""

PLAIN_RESTARTS = 4
"""So often a query is started when a fault has healed; one that hasn't gone on by then is stuck."""

_HOPELESS = ("OptionError", "SchemaError", "UnsupportedQueryError", "MissingExtraError")
_START_DEADLINE_S = 600
_LOOK_INTERVAL_S = 12.0
_MOMENT_S = 1.5
_TOLD = 1500
_OURS = re.compile(r"onceforall\.errors\.[^\n]*")
_JVM_MISSED_S = 60
"""So long after its JVM's end a Python driver may take to end, too."""


class Siege:
    """Keeps a driver of a world running, waits for its progress, and strikes it.

    ``driver`` is the one that should be running; a scenario may replace it. ``config`` is for each
    driver that is started.
    """

    def __init__(self, arena, world, watch, **config):
        self.arena = arena
        self.world = world
        self.watch = watch
        self.config = {"restarts": RESTARTS, **config}
        self.driver = None
        self._killed_at = None
        self._looked_at = time.monotonic()

    # --- progress ---------------------------------------------------------------------------------

    def begin(self, batches=1):
        """Start, and let the time of the faults begin when it writes."""
        self.progress(batches, _START_DEADLINE_S)
        self.watch.look()
        self.arena.begin()

    def keep_running(self):
        """Start a driver when none runs."""
        if not self.lives():
            self.driver = self.world.start(**self.config)

    def lives(self):
        """Whether the driver's Python process does."""
        return self.driver is not None and self.driver.process.poll() is None

    def progress(self, batches=1, deadline_s=DEADLINE_S):
        """Wait until Spark has committed so many more batches, over however many drivers that
        takes; then have a look."""
        goal = self.world.spark_batches() + batches

        def there():
            self.keep_running()
            error = "".join(self.driver.errors()[-1:])
            assert not any(name in error for name in _HOPELESS), error
            return self.world.spark_batches() >= goal

        until(
            there,
            deadline_s,
            Story(
                lambda: f"{batches} more batches\n{self.driver.errors()[-1:]}\n{self.driver.tail()}"
            ),
        )
        self._measure()
        self.look()

    def go_on(self, batches=1, **config):
        """All is healed: start plain drivers, of one run each, until there are so many more
        batches. ``config`` is for these drivers alone.

        Raises:
            StuckError: ``PLAIN_RESTARTS`` of them have not got there.
        """
        self.end_driver()
        goal = self.world.spark_batches() + batches
        ends = []
        for _ in range(PLAIN_RESTARTS):
            # It ends when its query does, and is not asked to end by itself.
            driver = self.driver = self.world.start(**{**self.config, "restarts": 0, **config})
            try:
                until(
                    lambda d=driver: (
                        self.world.spark_batches() >= goal or d.process.poll() is not None
                    ),
                    DEADLINE_S,
                    "an end",
                )
            except AssertionError:
                ends.append(f"it neither ended nor went on: {driver.tail()}")
                self.end_driver()
            if self.world.spark_batches() >= goal:
                self._measure()
                self.look()
                return
            ends += map(named, driver.errors()[-1:])
        raise StuckError(
            f"after {PLAIN_RESTARTS} plain restarts no batch was completed: "
            f"{ends[-1] if ends else 'no run told why'}"
        )

    def look(self):
        """Let the running check look at the sinks, now and then."""
        if time.monotonic() - self._looked_at >= _LOOK_INTERVAL_S:
            self.watch.look()
            self._looked_at = time.monotonic()

    def a_moment(self):
        """Go on to some point of a batch: which one is left to chance, as nothing is waited for."""
        time.sleep(self.arena.rng.random() * _MOMENT_S)

    def struck(self, fault, kills="", number=1):
        """Count a fault; the recovery is measured from a kill on, if no other comes before the
        next batch is complete."""
        self.arena.struck(fault)
        if kills:
            self._measure()
            self.world.tally.kills[kills] += number
            self._killed_at = time.time()

    def _measure(self):
        """Take down the recovery from the last kill, if a batch was completed since."""
        if self._killed_at is not None:
            seconds = self.world.completed_after(self._killed_at)
            if seconds is not None:
                self.arena.recoveries.append(seconds)
                self._killed_at = None

    def end_driver(self):
        """Kill the driver, for another one with other settings."""
        self.kill_driver()

    def end(self):
        """End the driver, in an orderly way or not, and whatever else still runs."""
        if self.lives() and self.arena.rng.random() < 0.5:
            with contextlib.suppress(AssertionError):
                self.world.stop(self.driver)
        for driver in self.world.drivers:
            if driver.process.poll() is None:
                self.world.kill(driver)
            elif driver._jvm() is not None:
                # What is left of a driver of which only Python was killed.
                driver.kill()

    def judge(self, **config):
        self.end()
        self.arena.judge(self.world, self.watch, **config)

    # --- strikes ----------------------------------------------------------------------------------

    def kill_driver(self):
        """SIGKILL to the driver and all below it; nothing when none lives."""
        if self.lives():
            self.struck("driver killed", "driver")
            self.driver.kill()

    def kill_driver_alone(self):
        """SIGKILL to the Python driver: its JVM and its tasks go on until they notice."""
        if self.lives():
            self.struck("Python driver killed, its JVM and tasks not", "driver's Python process")
            self._kill_python()

    def lose_decided(self):
        """SIGKILL to the driver; if a batch is decided and not complete, a transaction of it is
        destroyed, as by a time-out or a rule that aborts old uploads."""
        if not self.lives():
            return
        self.kill_driver()
        for driver in self.world.drivers:
            # Others may still commit it.
            driver.kill()
        if self.world.is_in_doubt():
            sinks = list(self.world.sinks)
            self.arena.rng.shuffle(sinks)
            lose(self.world, sinks)

    def _kill_python(self):
        self.driver.process.kill()
        self.driver.process.wait()

    def kill_jvm(self):
        """SIGKILL to the driver's JVM: the Python driver goes on without it, until it notices;
        after a minute it is killed, too."""
        jvm = self.driver._jvm() if self.lives() else None
        if jvm is None:
            return
        self.struck("driver's JVM killed", "driver's JVM")
        os.kill(jvm, signal.SIGKILL)
        try:
            self.driver.process.wait(_JVM_MISSED_S)
        except subprocess.TimeoutExpired:
            self.struck(
                "Python driver killed that went on without its JVM", "driver's Python process"
            )
            self._kill_python()

    def kill_workers(self, most=8):
        """SIGKILL to some of the driver's Python workers."""
        workers = self.workers()
        number = 0
        for worker in self.arena.rng.sample(
            workers, min(len(workers), self.arena.rng.randint(1, most))
        ):
            with contextlib.suppress(psutil.NoSuchProcess):
                if worker.status() != psutil.STATUS_ZOMBIE:
                    worker.kill()
                    number += 1
        if number:
            self.struck("Python workers killed", "worker", number)

    def workers(self):
        """The driver's Python workers that live now; none before there are any."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.driver is not None and self.driver._jvm() is not None:
                return self.driver.workers()
        return []

    def kill_backends(self, all_of_them=False):
        """SIGKILL to a PostgreSQL backend that serves the query: the server then restarts all
        its backends by itself."""
        pids = []
        with contextlib.suppress(AssertionError):
            # Of a short batch, connections are there for a part of the time only.
            pids = until(self._backends, 3, "a backend that serves the query")
        if pids:
            for pid in pids if all_of_them else [self.arena.rng.choice(pids)]:
                # Those that have been killed already are gone, or not yet taken note of.
                with contextlib.suppress(psutil.NoSuchProcess):
                    backend = psutil.Process(pid)
                    if backend.status() == psutil.STATUS_ZOMBIE:
                        continue
                    backend.kill()
                    self.struck("PostgreSQL backend killed", "backend")

    def _backends(self):
        with (
            contextlib.suppress(psycopg.OperationalError),
            psycopg.connect(self.world.database, autocommit=True) as connection,
        ):
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> "
                "pg_backend_pid() AND backend_type = 'client backend'"
            )
            return [pid for (pid,) in rows.fetchall()]
        return []

    def kill_postmaster(self):
        """SIGKILL to PostgreSQL as a whole; it comes back after a moment."""
        server = self.world.servers.postgres
        server.kill()
        self.struck("PostgreSQL postmaster killed", "postmaster")
        self.a_moment()
        server.restart()

    def kill_broker(self):
        """SIGKILL to the broker; it comes back after a moment."""
        broker = self.world.servers.kafka
        broker.kill()
        self.struck("broker killed", "broker")
        self.a_moment()
        broker.restart()

    def restart_broker(self):
        """An orderly restart of the broker while transactions are open."""
        with contextlib.suppress(AssertionError):
            until(self._holds_back, 20, "an open transaction")
            self.struck("broker restarted with open transactions")
        self.world.servers.kafka.restart()

    def _holds_back(self):
        # A broker that doesn't answer yet doesn't tell.
        with contextlib.suppress(KafkaException):
            return held_back(self.world.servers.direct, self.world.topic) > 0
        return False

    def freeze_driver(self):
        """SIGSTOP to the driver, a successor that makes progress, SIGCONT; one of the two is
        killed in the end."""
        if not self.lives():
            return
        zombie = self.driver
        zombie.signal(signal.SIGSTOP)
        self.struck("driver frozen")
        self.driver = None
        self.progress()
        known = len(zombie.errors())
        self.wake(zombie, "driver woken behind its successor")
        self.until_ended(zombie, known)
        self._keep_one_of(zombie)

    def wake(self, driver, fault):
        """SIGCONT to a driver; it is a fault if the driver still slept."""
        slept = is_stopped(driver.process.pid)
        driver.signal(signal.SIGCONT)
        if slept:
            self.struck(fault)

    def second_driver(self):
        """Another driver on the same checkpoint, at once; one of the two is killed in the end."""
        if not self.lives():
            return
        first = self.driver
        known = len(first.errors())
        self.driver = self.world.start(**self.config)
        self.struck("second driver on one checkpoint")
        self.until_ended(first, known)
        self._keep_one_of(first)

    def until_ended(self, driver, known):
        """Wait until a driver's run has ended: it was told that it isn't the one any more. The
        current driver may end meanwhile."""
        story = Story(
            lambda: (
                f"the end of a replaced driver's run\n{driver.tail()}\nits "
                f"successor:\n{self.driver.tail()}"
            )
        )

        def told():
            self.keep_running()
            return len(driver.errors()) > known or driver.process.poll() is not None

        until(told, DEADLINE_S, story)

    def _keep_one_of(self, other):
        """Both drivers start again and again now, and take the query from each other, until one
        is killed."""
        self.a_moment()
        if self.arena.rng.random() < 0.5:
            self.driver, other = other, self.driver
        if other.process.poll() is None:
            self.struck("one of two drivers killed", "driver")
            other.kill()

    def freeze_workers(self):
        """SIGSTOP to workers and their JVM, SIGKILL to the Python driver; the workers wake while
        its successor runs, as those elsewhere do.

        The JVM sleeps on: if it ended, its children's process group would have no parent any more,
        and the kernel would send SIGHUP to what
        sleeps in such a group, of which the workers would die. (Linux, ``kill_orphaned_pgrp``;
        POSIX, ``_exit``.)
        """
        workers = self.workers() if self.lives() else []
        jvm = self.driver._jvm() if workers else None
        if jvm is None:
            return
        left = self.driver
        left.signal(signal.SIGSTOP)
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.suspend()
        self.struck(
            "Python workers and their JVM frozen, their Python driver killed",
            "driver's Python process",
        )
        self._kill_python()
        try:
            self.progress()
            asleep = [worker for worker in workers if is_stopped(worker.pid)]
            for worker in asleep:
                worker.resume()
            if asleep:
                self.struck("Python workers woken behind their driver's successor")
                self.progress()
        finally:
            left.kill()


def named(error):
    """What an error of ours says, without Spark's words around it; of another one, its
    beginning."""
    return "".join(_OURS.findall(error)[:1]) or error[:_TOLD]


def is_stopped(pid):
    """Whether a process sleeps because of SIGSTOP."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False
