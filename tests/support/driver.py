"""Starts, kills, freezes and wakes driver processes, and reads what they left."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil

from onceforall.spark.remote_path import files_below
from support import class_archive
from support.reading import released, values
from support.waiting import until

TESTS = Path(__file__).parents[1]
PIPELINE = Path(__file__).parent / "pipeline.py"
ROWS_PER_BATCH = 20
UNTIL_BATCH = 6


def assert_exactly_once(pipeline):
    """Every row of every batch that Spark committed is visible once, and nothing is held back."""
    assert pipeline.batches() > UNTIL_BATCH
    released(pipeline.bootstrap, pipeline.topic)
    seen = Counter(values(pipeline.bootstrap, pipeline.topic))
    expected = Counter(str(row) for row in range(ROWS_PER_BATCH * pipeline.batches()))
    lost, more = sorted(expected - seen, key=int), sorted((seen - expected).elements())
    assert (lost, more) == ([], []), f"lost: {lost}, more than once or of nobody: {more}"


class Pipeline:
    """The pipeline of ``pipeline.py``: one checkpoint and one output topic, and any number of
    drivers in turn or at once."""

    def __init__(self, folder, bootstrap, topic, *, checkpoint=None, **config):
        self.folder = Path(folder)
        self.bootstrap = bootstrap
        self.topic = topic
        self.checkpoint = self.folder / "checkpoint" if checkpoint is None else checkpoint
        self.config = {
            "bootstrap": bootstrap,
            "topic": topic,
            "checkpoint": str(self.checkpoint),
            "rows_per_batch": ROWS_PER_BATCH,
            "until_batch": UNTIL_BATCH,
            **config,
        }
        self._numbers = itertools.count()
        self.drivers = []

    def start(self, failpoints="", **config):
        driver = Driver(
            self.folder / f"driver{next(self._numbers)}", {**self.config, **config}, failpoints
        )
        self.drivers.append(driver)
        return driver

    def run(self, **config):
        """Run a driver to its end, without failpoints, and return it; it must not fail."""
        driver = self.start(**config)
        driver.wait()
        assert driver.status()["error"] is None, driver.status()["error"]
        return driver

    def batches(self):
        """Return how many batches are in Spark's own commit log."""
        numbers = (file.name for file in (self.checkpoint / "commits").iterdir())
        # None where the very first batch has failed.
        return 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)

    def entries(self, kind=None):
        """Return the bodies of the commit log's entries in the order of generations, with kind,
        generation and index."""
        found = []
        for file in files_below(self.checkpoint / "onceforall" / "chains"):
            entry = json.loads(file.read_text())
            if kind is None or entry["kind"] == kind:
                found.append(entry)
        return found

    def close(self):
        for driver in self.drivers:
            driver.kill()


class Driver:
    def __init__(self, work, config, failpoints, program=PIPELINE, environment=()):
        self.work = work
        self.seen = work / "seen"
        self.seen.mkdir(parents=True)
        to_executors = {
            "spark.executorEnv.ONCEFORALL_FAILPOINTS": failpoints,
            "spark.executorEnv.ONCEFORALL_FAILPOINTS_SEEN": str(self.seen),
        }
        config = {
            "java_options": class_archive.java_options(),
            **config,
            "work": str(work),
            "spark": {**to_executors, **config.get("spark", {})},
        }
        (work / "config.json").write_text(json.dumps(config))
        environment = {
            **os.environ,
            **dict(environment),
            "ONCEFORALL_FAILPOINTS": failpoints,
            "ONCEFORALL_FAILPOINTS_SEEN": str(self.seen),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(
                filter(None, [config.get("package"), str(TESTS), os.environ.get("PYTHONPATH")])
            ),
            "CHAOS_SINKS": ",".join(config.get("sinks", [])),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # The JVM that only makes up the command of the other one.
            "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        with (work / "log.txt").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(program), str(work / "config.json")],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=work,
                start_new_session=True,
            )

    def log(self):
        return (self.work / "log.txt").read_text(errors="replace")

    def wait_for_failpoint(self, name, deadline_s=90):
        until(
            lambda: (self.seen / name).exists() or self.process.poll() is not None,
            deadline_s,
            f"failpoint {name}\n{self.log()}",
        )
        assert (self.seen / name).exists(), (
            f"the driver ended before failpoint {name}:\n{self.log()}"
        )

    def wait_for(self, name, deadline_s=90):
        """Wait for a file that the driver leaves in its work folder, and return its JSON."""
        until(
            lambda: (self.work / name).exists() or self.process.poll() is not None,
            deadline_s,
            f"{name}\n{self.log()}",
        )
        assert (self.work / name).exists(), f"the driver ended before {name}:\n{self.log()}"
        return json.loads((self.work / name).read_text())

    def wait(self, deadline_s=120):
        """Wait until the driver and its JVM have ended."""
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end:\n{self.log()}") from None
        self._wait_for_jvm()

    def wait_until_killed(self, deadline_s=120):
        self.wait(deadline_s)
        assert self.process.returncode == -signal.SIGKILL, (
            f"ended with {self.process.returncode}, not killed:\n{self.log()}"
        )

    def status(self):
        assert (self.work / "status.json").exists(), self.log()
        return json.loads((self.work / "status.json").read_text())

    def signal(self, number, *, jvm=True):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        pid = self._jvm()
        if jvm and pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def signal_jvm(self, number):
        os.kill(self._jvm(), number)

    def kill(self):
        """SIGKILL the driver, its JVM, and every process below them."""
        below = []
        # The number of a process that has ended may be another one's by now.
        python = None if self.process.poll() is not None else self.process.pid
        for pid in filter(None, {python, self._jvm()}):
            with contextlib.suppress(psutil.NoSuchProcess):
                below += [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        self._wait_for_jvm()

    def workers(self):
        """Return the Python worker processes (not their daemon)."""
        below = psutil.Process(self._jvm()).children(recursive=True)
        daemons = {p.pid for p in below if "python" in p.name()}
        return [p for p in below if p.ppid() in daemons]

    def _jvm(self):
        try:
            pid = json.loads((self.work / "pids.json").read_text())["jvm"]
            known_since = (self.work / "pids.json").stat().st_mtime
        except FileNotFoundError:
            return None
        if pid is None:
            return None
        try:
            process = psutil.Process(pid)
            # One that is younger has only got the number of ours.
            is_ours = "java" in process.name() and process.create_time() < known_since
            return pid if is_ours and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def _wait_for_jvm(self):
        until(lambda: self._jvm() is None, 60, "the JVM's end")
