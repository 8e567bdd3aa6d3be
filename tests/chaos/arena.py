"""Where a scenario of random faults happens: its servers, its queries, how long it goes on, and
what it came to."""

import contextlib
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos.alarms import alarms
from chaos.judging import Verdict, Watch
from chaos.tally import Tally
from chaos.worlds import Servers, World
from onceforall.embedded import EmbeddedKafka, EmbeddedPostgres

DEADLINE_S = 300
"""How long a state is waited for at most: the machine may be busy with other things."""

PARTITIONED_SHARE = 0.3
PLAIN_SHARE = 0.4
SPARK = {
    "spark.sql.adaptive.enabled": (None, None, "false"),
    "spark.sql.streaming.minBatchesToRetain": (None, None, "2", "1000000"),
}
"""Settings that are drawn for each query, where a scenario says nothing of them; None: as Spark
ships."""

DAEMONS = ("onceforall.worker_daemon", "onceforall.worker_daemon", "chaos.daemon")
"""What forks Python workers: what ships, or what has imported all that tasks need."""

UNNOTICED = " (not noticed)"
"""How a fault's name ends when nothing showed of it: alone, such faults prove nothing."""


@dataclass(frozen=True)
class Scenario:
    """Faults of one kind, at random moments, on a query that must be right in any case.

    Attributes:
        name: for ``--only``.
        faults: what is done, as the results page names it.
        run: does it until the arena's deadline, heals, and judges.
        weight: how often it comes, beside the others.
        kinds: a regular expression for each kind of fault that it does, found in the name under
            which that is counted. One that never happens proves nothing.
    """

    name: str
    faults: tuple[str, ...]
    run: Callable
    weight: int = 1
    kinds: tuple[str, ...] = ()

    def never(self, by_fault):
        """The kinds of fault that never happened, of how often each fault did by its name."""
        happened = [name for name, count in by_fault.items() if count and UNNOTICED not in name]
        return [kind for kind in self.kinds if not any(re.search(kind, name) for name in happened)]


class StuckError(Exception):
    """A query does not go on, though all that was done to it has healed and it was started again
    and again."""


class Arena:
    """What a scenario gets; a context manager, which closes all that was started in it.

    Args:
        folder: a folder of this run's own.
        seed: chooses all that is chosen; when things happen depends on the machine too.
        seconds: for how long faults happen. Starting, healing and judging come on top.
        say: takes lines on what is being done.
        mounts: what takes a file system of its own fails where none can be mounted.

    Attributes:
        worlds: the queries of the scenario, each with its tally of kills.
        recoveries: seconds from the first of some kills to the completion of the next batch.
    """

    def __init__(self, folder, seed, seconds, say=print, *, mounts=True):
        self.mounts = mounts
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rng = random.Random(seed)
        self.tally = Tally()
        self.worlds = []
        self.recoveries = []
        self.allowed = set()
        self._verdicts = []
        self._violations = []
        self._failed = False
        self._say = say
        self._seconds = seconds
        self._cleanup = contextlib.ExitStack()
        self.begin()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self._failed = kind is not None
        self._cleanup.close()

    def begin(self):
        """The time of the faults starts now, when the servers are up."""
        self.deadline = time.monotonic() + self._seconds

    @property
    def goes_on(self):
        """Whether there is time for another fault; until one has happened, there is more of it."""
        return time.monotonic() < self.deadline + (0 if self._was_struck() else DEADLINE_S)

    def _was_struck(self):
        return any(not fault.endswith(UNNOTICED) for fault in self.tally.faults)

    def enter(self, context):
        """Enter a context manager that is left when the scenario is over."""
        return self._cleanup.enter_context(context)

    def at_the_end(self, function, *arguments):
        self._cleanup.callback(function, *arguments)

    def servers(self, *, kafka=None, postgres=None, config=None, settings=None):
        """Start servers of the scenario's own; those given are taken as they are."""
        kafka = kafka or self.enter(EmbeddedKafka(config=config))
        settings = {"max_prepared_transactions": 60, **(settings or {})}
        return Servers(kafka, postgres or self.enter(EmbeddedPostgres(settings=settings)))

    def world(self, kind, servers, **config):
        """Make a query; its drivers are killed when the scenario is over. In some, rows say in which
        partition they want to be, or records have neither headers nor times; and Spark has other
        settings than it ships with."""
        rng = self.rng
        kafka = {
            "partitioned": rng.random() < PARTITIONED_SHARE,
            "plain": rng.random() < PLAIN_SHARE,
        }
        drawn = {name: self.rng.choice(values) for name, values in SPARK.items()}
        spark = {name: value for name, value in drawn.items() if value is not None}
        spark |= config.pop("spark", {})
        daemon = self.rng.choice(DAEMONS)
        config = {**kafka, "daemon": daemon, **config, "spark": spark}
        world = World(self.folder / f"world{len(self.worlds)}", kind, servers, **config)
        self.worlds.append(world)
        self.at_the_end(world.close)
        self.begin()
        return world

    def watch(self, world):
        """Make the judge of a world."""
        watch = Watch(world)
        self.at_the_end(watch.close)
        return watch

    def struck(self, fault):
        """Count a fault."""
        self.tally.faults[fault] += 1
        self.say(fault)

    def say(self, text):
        self._say(f"{self.folder.name}: {text}")

    def allow(self, *errors):
        """Names of errors that this scenario's faults do excuse."""
        self.allowed.update(errors)

    def violation(self, text):
        """Something is wrong that isn't a matter of rows."""
        self.say(f"VIOLATION: {text}")
        self._violations.append(text)

    def judge(self, world, watch, **config):
        """Run a driver without faults for some batches, and judge what all drivers of a world
        have left together."""
        world.heal(deadline_s=DEADLINE_S, **{"restarts": 0, "armed": "", **config})
        verdict = watch.quiet()
        self._verdicts.append(verdict)
        for error in alarms(world, self.allowed):
            self.violation(error)
        if not verdict.records:
            self.violation("nothing was judged, so nothing was proved")

    def faults(self):
        """How often each fault happened, by its name."""
        return dict(self.tally.faults)

    def verdict(self):
        """What all judgements of the scenario came to."""
        assert self._verdicts, "the scenario judged nothing, so it proved nothing"
        if not self._was_struck():
            self.violation("no fault happened, so nothing was proved")
        total = Verdict(violations=self._found())
        for name in ("records", "lost", "duplicated", "torn", "leftovers", "looks"):
            setattr(total, name, sum(getattr(verdict, name) for verdict in self._verdicts))
        return total

    def violations(self):
        """What was found so far."""
        return self._found()

    def _found(self):
        return [
            violation for verdict in self._verdicts for violation in verdict.violations
        ] + self._violations

    def small_disk(self, folder, megabytes):
        """Mount a file system of its own for a folder, until the end; what is on it is kept below
        ``kept`` if there was anything wrong.

        Raises:
            OSError: the machine doesn't allow it.
        """
        self.enter(_small_disk(folder, megabytes))
        self.at_the_end(self._keep, folder)

    def _keep(self, folder):
        if self._failed or self._found():
            # What can't be copied, as a file that vanishes meanwhile, is left out.
            with contextlib.suppress(OSError):
                shutil.copytree(
                    folder, self.folder / "kept" / folder.name, symlinks=True, dirs_exist_ok=True
                )


@contextlib.contextmanager
def _small_disk(folder, megabytes):
    """A file system of its own for a folder; raises ``OSError`` where the machine doesn't allow
    it."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    done = subprocess.run(options, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"no small file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
