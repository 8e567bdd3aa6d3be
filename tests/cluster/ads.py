"""The four jobs of ``examples/ad_events`` on a cluster, their checkpoints and files on S3, under
faults; in the end the ledgers are compared with the truth.

Records are published while faults happen, a part after each, so that there is always something to
do; the rest, and the end of the day, come when the faults are over. A job that has ended is started
again, as by any supervisor.
"""

import contextlib
import itertools
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from cluster.faults import Faults
from cluster.network import Network
from cluster.spark_cluster import SparkCluster
from onceforall.demo.ads import destinations, jobs, ledger, progress
from onceforall.demo.ads.feed import Feed
from onceforall.demo.ads.furnishing import furnish
from onceforall.demo.ads.generator import PARTITIONS, make_ground
from onceforall.demo.ads.jobs import HEARTBEATS, JOBS, ONCEFORALL
from onceforall.demo.ads.processes import ProgramProcess
from onceforall.demo.ads.truth import truth_of
from onceforall.embedded import (
    EmbeddedKafka,
    EmbeddedPostgres,
    EmbeddedS3,
    s3a_jars,
    spark_kafka_jars,
)
from onceforall.embedded.jars import jar_set
from onceforall.errors import OnceForAllError
from onceforall.sinks.files import read_files
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark.stores import Stores

BUCKET = "cluster"
MACHINES = 2
BATCH = 2_000
_TICK_S = 0.2
_END_S = 600
_QUIET_S = 1800
_TICKS_UNTIL_MORE = 15
"""Seconds that a job, from which a batch is awaited, is given before more is published."""
_LOOK_S = 10.0
_STARVED_S = 240.0
"""A job that has input, and in that time neither completes a batch nor has an executor, is killed
and started again, as by a supervisor that looks at its progress."""
_STUCK_S = 900.0
"""The same of one that has executors: that is a failure."""
_FRUITLESS_ENDS = 12
"""A job that ended so often without a batch between is stuck: many an end is a fault's doing."""

SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # A lost machine is noticed within the time of a fault.
    "spark.network.timeout": "24s",
    "spark.network.timeoutInterval": "2s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "24000",
    "spark.executor.heartbeatInterval": "2s",
    "spark.rpc.askTimeout": "20s",
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.task.maxFailures": "6",
    # Each attempt's state has names of its own, so that a zombie can't write over what counts.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.adaptive.enabled": "true",
    # Else one request alone takes minutes to fail.
    "spark.hadoop.fs.s3a.attempts.maximum": "2",
    "spark.hadoop.fs.s3a.retry.limit": "3",
    "spark.hadoop.fs.s3a.connection.timeout": "20000",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "5000",
}
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "15s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "20s",
}
DYNAMIC_JOBS = ("cleanse", "load")


@dataclass(frozen=True)
class ClusterPlace(jobs.Place):
    """Where the pipeline runs.

    Attributes:
        master: of the cluster.
        url: of the folder of checkpoints and files.
        settings: of Spark's, with those of the store.
        storage: the same, for those who read past Spark.
    """

    master: str = ""
    url: str = ""
    settings: dict = field(default_factory=dict, repr=False)
    storage: dict = field(default_factory=dict, repr=False)

    def checkpoint(self, job):
        return Stores(None, self.storage).checkpoint(f"{self.url}/checkpoints/{job}")

    def start(self, job, address="127.0.0.1"):
        """Start a job whose driver has this address."""
        named = {
            "--servers": self.servers,
            "--prefix": self.topic(""),
            "--folder": self.url,
            "--max-offsets": str(self.max_offsets),
        }
        work = self.folder / "work" / job
        (work / "tmp").mkdir(parents=True, exist_ok=True)
        path = ":".join(map(str, self.jars))
        mine = {
            **self.settings,
            **(DYNAMIC if job in DYNAMIC_JOBS else {}),
            "spark.master": self.master,
            "spark.driver.host": address,
            "spark.driver.bindAddress": address,
            "spark.driver.extraClassPath": path,
            "spark.executor.extraClassPath": path,
        }
        environment = jobs.environment_of(work, self.jars, mine)
        return ProgramProcess(
            jobs.examples_folder() / f"{job}.py",
            list(itertools.chain.from_iterable(named.items())),
            work_dir=work,
            log=self.log(job),
            environment={
                **environment,
                "SPARK_LOCAL_IP": address,
                jobs.DATABASE_VARIABLE: self.database,
            },
        )


@dataclass
class Result:
    """What a run came to."""

    seed: int
    faults: dict = field(default_factory=dict)
    ends: dict = field(default_factory=dict)
    starved: dict = field(default_factory=dict)
    failures: list = field(default_factory=list)
    accounts: dict = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def struck(self):
        return sum(self.faults.values())


def _shares(feed, ground, share):
    """Publish a share of the records with each step."""
    for start in range(0, ground.records, share):
        feed.publish_part(ground, start, min(start + share, ground.records))
        yield start


class AdsOnCluster:
    """One run; a context manager."""

    def __init__(self, folder, *, seed, faults, events, only=None, say=print):
        """Args: folder: of the run's own. seed: chooses events and faults. faults: how many.
        events: how many the day has. only: the kinds of faults; None: all."""
        self.folder = Path(folder)
        self._seed = seed
        self._wanted = faults
        self._events = events
        self._only = only
        self._say = say
        self._open = contextlib.ExitStack()
        self._jobs = {}
        self._fruitless = {}
        self._progress = {}
        self._looked = 0.0
        self._rng = random.Random(f"cluster {seed}")
        self.result = Result(seed)

    def __enter__(self):
        with contextlib.ExitStack() as started:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.kafka = started.enter_context(EmbeddedKafka(data_dir=self.folder / "kafka"))
            self.postgres = started.enter_context(EmbeddedPostgres(data_dir=self.folder / "pg"))
            store = started.enter_context(EmbeddedS3())
            store.create_bucket(BUCKET)
            self.network = started.enter_context(Network(MACHINES))
            self.network.open_doors(
                {"broker": self.kafka.port, "database": self.postgres.port, "store": store.port}
            )
            path = os.pathsep.join([str(jobs.examples_folder()), os.environ.get("PYTHONPATH", "")])
            environment = {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "TZ": "UTC"}
            self.spark = started.enter_context(
                SparkCluster(self.network, self.folder / "spark", environment)
            )
            self.place = self._place(store)
            started.callback(self._kill_jobs)
            self._open = started.pop_all()
        return self

    def __exit__(self, *_):
        self._open.close()

    def _place(self, store):
        storage = {
            "endpoint": store.endpoint,
            "region": store.region,
            "access_key_id": store.access_key,
            "secret_access_key": store.secret_key,
            "virtual_hosted_style_request": "false",
        }
        place = ClusterPlace(
            ONCEFORALL,
            self.kafka.bootstrap_servers,
            self.postgres.url("ads"),
            self.folder,
            self.folder,
            [*spark_kafka_jars(), *jar_set("postgres-jdbc"), *s3a_jars()],
            BATCH,
            master=self.spark.url,
            url=f"s3a://{BUCKET}/ads",
            settings={**SETTINGS, **store.spark_settings()},
            storage=storage,
        )
        furnish(place, self.kafka, self.postgres, "ads")
        for topic, partitions in PARTITIONS.items():
            self.kafka.create_topic(topic, partitions=partitions)
        return place

    # --- the run ----------------------------------------------------------------------------------

    def run(self):
        """Go through the run and judge it."""
        began = time.monotonic()
        ground = make_ground(self._seed, self._events)
        truth = truth_of(ground)
        faults = Faults(self)
        feed = Feed(self.place.servers)
        self._shares = _shares(feed, ground, max(1, ground.records // (self._wanted + 1)))
        self.publish()
        for job in JOBS:
            self.start_job(job)
            if job != JOBS[-1]:
                # One after the other: twelve JVMs at once would miss each other's heartbeats.
                self.until_batches(job, 1)
        while self.result.struck < self._wanted:
            kinds = faults.strike(self._rng, self._only)
            for kind in kinds:
                self.result.faults[kind] = self.result.faults.get(kind, 0) + 1
                self._say(f"{time.monotonic() - began:6.0f} s: {self.result.struck}: {kind}")
            self.publish()
            self.moment()
        faults.heal()
        while self.publish():
            pass
        for job in JOBS:
            self._until_taken(job)
        feed.close_the_day(self.place.topic(HEARTBEATS))
        for job in JOBS:
            self._end(job)
        self._judge(truth)
        self.result.seconds = round(time.monotonic() - began, 1)
        return self.result

    def moment(self):
        """Let a random time pass, so that the next fault is at some point of a batch."""
        self.pass_time(self._rng.uniform(0.5, 6.0))

    def pass_time(self, seconds):
        """Let time pass; jobs that end are started again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._tend()
            self._look()
            time.sleep(_TICK_S)

    def start_job(self, job):
        """Start a job; its driver's address is a random one."""
        self._jobs[job] = self.place.start(job, self._rng.choice(self.network.addresses))

    def job(self, name):
        """Return the job's process."""
        return self._jobs[name]

    def publish(self):
        """Publish the next share of the records; tell whether there was one."""
        return next(self._shares, None) is not None

    def until_batches(self, job, more, within_s=_QUIET_S):
        """Wait until a job has completed more batches; one that has nothing to take gets more."""
        checkpoint = self.place.checkpoint(job)
        goal = spark_checkpoint.last_committed(checkpoint) + more
        ticks = itertools.count(1)

        def reached():
            if next(ticks) % _TICKS_UNTIL_MORE == 0:
                self.publish()
            return spark_checkpoint.last_committed(checkpoint) >= goal

        self._wait(reached, f"{job} goes on", within_s)

    def _until_taken(self, job):
        self._wait(lambda: self._has_taken_all(job), f"{job} takes everything")

    def _has_taken_all(self, job):
        place = self.place
        return progress.has_taken_all(place.checkpoint(job), place.servers, place.inputs(job))

    def _wait(self, condition, what, within_s=_QUIET_S):
        end = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < end, f"not within {within_s} s: {what}"
            self.pass_time(1.0)

    def _end(self, job):
        while True:
            self._until_taken(job)
            process = self._jobs[job]
            process.send_signal(signal.SIGTERM)
            assert process.wait(_END_S), f"{job} did not end: {process.last_words()}"
            if process.return_code == 0:
                del self._jobs[job]
                return
            self._tend()

    def _look(self):
        """Kill a job that Spark has left without executors: with dynamic allocation, what a driver
        has asked a master for is forgotten with that master, and not asked for again."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        for job, process in self._jobs.items():
            done = spark_checkpoint.last_committed(self.place.checkpoint(job))
            known, since = self._progress.get(job, (None, now))
            if (done, process.pid) != known or process.return_code is not None:
                self._progress[job] = ((done, process.pid), now)
                continue
            if now - since < _STARVED_S or self._has_nothing_to_do(job):
                continue
            if not self.spark.has_executors(process.pid):
                self.result.starved[job] = self.result.starved.get(job, 0) + 1
                self._say(f"          {job} has had no executor, and is killed")
                process.kill()
            elif now - since > _STUCK_S:
                self.result.failures.append(
                    f"{job}, with executors, has completed nothing behind batch {done} for "
                    f"{_STUCK_S:.0f} s: {process.last_words()[-300:]}"
                )
                process.kill()

    def _has_nothing_to_do(self, job):
        try:
            return self._has_taken_all(job)
        except OnceForAllError:
            return True  # the broker is away

    def _tend(self):
        for job, process in list(self._jobs.items()):
            if process.return_code is None:
                continue
            self.result.ends[job] = self.result.ends.get(job, 0) + 1
            done = spark_checkpoint.last_committed(self.place.checkpoint(job))
            before, times = self._fruitless.get(job, (-1, 0))
            times = times + 1 if done <= before else 1
            words = process.last_words()
            assert times <= _FRUITLESS_ENDS, f"{job} is stuck: {words}"
            self._fruitless[job] = (done, times)
            last = next((line for line in reversed(words.splitlines()) if line.strip()), "")
            self._say(f"          {job} ended with {process.return_code}: {last[:300]}")
            process.kill()
            self.start_job(job)

    def _kill_jobs(self):
        for process in self._jobs.values():
            process.kill()

    # --- the judgement ----------------------------------------------------------------------------

    def _judge(self, truth):
        place = self.place
        rows = {
            destinations.TOPIC: destinations.ledger_rows(place, destinations.TOPIC),
            destinations.TABLE: destinations.ledger_rows(place, destinations.TABLE),
            destinations.FILES: map(destinations.as_true_row, self._file_rows()),
        }
        found = {
            "destinations": {name: ledger.account(truth, each) for name, each in rows.items()},
            "dead_letters": ledger.account_of_dead_letters(truth, destinations.dead_letters(place)),
            "late": ledger.account_of_late(truth, destinations.late_ids(place)),
        }
        self.result.accounts = found["destinations"]
        self.result.failures = ledger.failures(truth, found)
        hidden = destinations.hidden_partitions(place)
        if hidden:
            self.result.failures.append(f"Open transactions hide records in {', '.join(hidden)}.")

    def _file_rows(self):
        dataset = read_files(f"{self.place.url}/ledger", storage=self.place.storage).dataset()
        for batch in dataset.to_batches():
            yield from batch.to_pylist()
