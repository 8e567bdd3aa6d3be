"""One query of the campaign: its checkpoint, its sinks on real systems, its drivers in turn, and
what they left."""

import contextlib
import itertools
import json
import signal
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psycopg

from chaos import contents, sources, workload
from chaos.tally import Tally
from onceforall.spark.remote_path import RemotePath, files_below
from support.databases import make_database
from support.driver import Driver
from support.waiting import until

WORKLOAD = Path(__file__).parent / "workload.py"
KEYS = 4
PARTITIONS = 2
A_DAY_S = 86_400

KINDS = {
    "kafka": {"sinks": ["kafka"]},
    "files": {"sinks": ["files"]},
    "postgres-staged": {"sinks": ["postgres"], "postgres": {"mode": "staged"}},
    "postgres-prepared": {"sinks": ["postgres"], "postgres": {"mode": "prepared"}},
    "all": {"sinks": ["kafka", "files", "postgres"], "postgres": {"mode": "staged"}},
}
"""The columns of the matrix; ``all`` is one decision over three sinks. A world of another kind has
the sinks that its configuration says."""


@dataclass(frozen=True)
class Place:
    """Where a checkpoint lies, if not on the disk.

    Attributes:
        path: as the campaign reads it.
        spark: the settings with which Spark does.
        store: those of the commit log's own client, for an observer.
    """

    path: RemotePath
    spark: dict
    store: dict = field(default_factory=dict)


@dataclass
class Servers:
    """The systems behind the sinks; worlds of one lane may share them.

    Attributes:
        bootstrap: where Kafka's clients connect (a proxy's address in some worlds).
        kafka: an ``EmbeddedKafka`` or an ``EmbeddedKafkaCluster``.
        postgres: an ``EmbeddedPostgres``.
        direct: where observers connect to Kafka, past any proxy.
    """

    kafka: object
    postgres: object
    bootstrap: str = ""
    direct: str = ""

    def __post_init__(self):
        self.direct = self.direct or self.kafka.bootstrap_servers
        self.bootstrap = self.bootstrap or self.direct


class World:
    """A query with one checkpoint and sinks of one kind.

    ``start`` starts a driver process; any number of them, in turn or at once. ``tally`` counts the
    SIGKILLs by the kind of process. ``place`` is where its checkpoint lies, if not on the disk.
    """

    def __init__(self, folder, kind, servers, *, rows_per_batch=2000, place=None, **config):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True)
        self.kind = kind
        self.servers = servers
        self.rows_per_batch = rows_per_batch
        self.tally = Tally()
        self.machine = None
        """A JVM for all drivers; None: each has its own, which dies with it."""
        self.look = lambda: None
        """Looks at the sinks; whoever watches this world sets it."""
        self.lost, self.last_lost, self.losses = None, None, 0
        """What was lost last (``recipes.newest_decision``), and how often something was."""
        self.detached = False
        """Whether the commit log begins anew on the way: what was decided before is what Spark
        has finished."""
        self.place = place
        self.checkpoint = self.folder / "checkpoint" if place is None else place.path
        self.topic = f"chaos-{uuid.uuid4().hex[:12]}"
        self.stateful = bool(config.get("stateful"))
        if "source" in config:
            topics, rows_per_batch = sources.fill(
                servers.kafka,
                config["source"]["partitions"],
                config["source"].get("rows_per_task", sources.ROWS_PER_TASK),
            )
            config["source"] = {**config["source"], "bootstrap": servers.direct, "topics": topics}
        base = json.loads(
            json.dumps({**KINDS.get(kind, {}), **config}).replace("{folder}", str(self.folder))
        )
        self.rows_per_batch = rows_per_batch = base.get("rows_per_batch", rows_per_batch)
        self.sinks = base["sinks"]
        self.counts = workload.counts({**workload.DEFAULTS, **base})
        if "kafka" in self.sinks:
            servers.kafka.create_topic(self.topic, partitions=2)
        self.database = self._make_table() if "postgres" in self.sinks else ""
        self.config = {
            "bootstrap": servers.bootstrap,
            "topic": self.topic,
            "files": str(self.folder / "files"),
            "database": self.database,
            "checkpoint": str(self.checkpoint),
            "rows_per_batch": rows_per_batch,
            "keys": KEYS,
            "partitions": PARTITIONS,
            "partitioned": False,
            "plain": False,
            "epoch_us": int(time.time() - A_DAY_S) * 1_000_000,
            "stop_file": str(self.folder / "stop"),
            **base,
            "spark": {**(base.get("spark", {})), **({} if place is None else place.spark)},
        }
        self._numbers = itertools.count()
        self.drivers = []

    def _make_table(self):
        url = self.servers.postgres.url(make_database(self.servers.postgres))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE out (key text NOT NULL, value text PRIMARY KEY, other text, "
                f"{contents.TABLE})"
            )
        return url

    # --- drivers ----------------------------------------------------------------------------------

    def start(self, failpoints="", **config):
        """Start a driver; ``failpoints`` hold from its start on, ``armed=`` from behind its
        first batch."""
        (self.folder / "stop").unlink(missing_ok=True)
        # A failpoint by decorator is there only in a process that was started with some failpoint.
        driver = Chased(
            self.folder / f"driver{next(self._numbers)}",
            {**self.config, **config},
            failpoints or "test.none=raise",
            WORKLOAD,
            self.machine.environment if self.machine else (),
        )
        self.drivers.append(driver)
        return driver

    def kill(self, driver, tally="driver"):
        """SIGKILL a driver with everything below it, if it still lives."""
        if driver.process.poll() is None:
            self.tally.kills[tally] += 1
        driver.kill()

    def stop(self, driver, deadline_s=90):
        """Let a driver end its query in an orderly way, and return what its runs came to."""
        (self.folder / "stop").touch()
        try:
            driver.wait(deadline_s)
        finally:
            (self.folder / "stop").unlink(missing_ok=True)
        return driver.status()

    def heal(self, batches=2, deadline_s=180, **config):
        """Run a driver without faults until it has written so many new batches; it must not
        fail."""
        driver = self.start(until_batch=self.spark_batches() + batches - 1, **config)
        driver.wait(deadline_s)
        assert driver.status()["error"] is None, (
            f"{self.folder}: a driver without faults failed: {driver.status()['error']}"
        )
        return driver

    def state(self):
        """What the state store held at the end of the last driver that came to its end; see
        ``workload.state_of``."""
        return json.loads((self.drivers[-1].work / "state.json").read_text())

    @property
    def driver_kind(self):
        """What is killed with a driver, for the tally."""
        return "driver's Python process" if self.machine else "driver"

    def close(self):
        for driver in self.drivers:
            driver.kill()
        if self.machine:
            self.machine.close()

    # --- what the query's own files say -----------------------------------------------------------

    def spark_batches(self):
        """How many batches are in Spark's own commit log."""
        with contextlib.suppress(FileNotFoundError):
            return 1 + max(
                (
                    int(f.name)
                    for f in (self.checkpoint / "commits").iterdir()
                    if f.name.isdecimal()
                ),
                default=-1,
            )
        return 0

    @property
    def log(self):
        """The commit log's folder."""
        named = self.config.get("options", {}).get("onceforall.commitLog")
        return self.checkpoint / "onceforall" if named is None else Path(named)

    def entries(self, kind):
        """The bodies of the commit log's entries of a kind, with the time of their files; on a
        store, which is not this machine, that at which they were made."""
        found = []
        for file in files_below(self.log / "chains"):
            with contextlib.suppress(FileNotFoundError):
                entry = json.loads(file.read_text())
                if entry["kind"] == kind:
                    at = (
                        file.stat().st_mtime
                        if self.place is None
                        else datetime.fromisoformat(entry["written_at"]).timestamp()
                    )
                    found.append((at, entry["body"]))
        return found

    def newest(self, kind):
        """The highest batch of the commit log's entries of a kind; -1 when there is none."""
        return max((body["batch"] for _, body in self.entries(kind)), default=-1)

    def is_in_doubt(self):
        """Whether a decided batch is not known to be complete."""
        return self.newest("COMMIT") > self.newest("DONE")

    def completed_after(self, moment):
        """Seconds from a moment (of the wall clock) to the next batch that was completed; None
        when there was none."""
        return min((at - moment for at, _ in self.entries("DONE") if at >= moment), default=None)


class Chased(Driver):
    """A driver that is to be killed."""

    def acted(self, name):
        """Whether a failpoint has acted."""
        return (self.seen / name).exists()

    def died_at(self, name):
        """Whether this driver was killed where a failpoint acted; call it when the driver has
        ended by itself."""
        return self.acted(name) and self.was_killed

    def wait_for_end(self, deadline_s):
        """Wait until the Python driver has ended, then kill what is left of it at once: its JVM
        dies with it, as on a lost machine."""
        until(
            lambda: self.process.poll() is not None, deadline_s, f"the driver's end\n{self.tail()}"
        )
        ended = time.time()
        self.kill()
        return ended

    @property
    def was_killed(self):
        return self.process.poll() == -signal.SIGKILL

    def errors(self):
        """Why its query's runs ended, so far."""
        with contextlib.suppress(FileNotFoundError):
            return json.loads((self.work / "errors.json").read_text())
        return []

    def tail(self, lines=30):
        return "\n".join(self.log().splitlines()[-lines:])
