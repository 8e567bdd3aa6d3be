"""One round of the chain Kafka, Pravega, Kafka and files: both programs under random faults, and
then each view once in the stream and in both sinks, in the order of its user."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil

import onceforall as ofa
from onceforall.demo.ads.jobs import environment_of
from onceforall.demo.driver import PythonProcess
from onceforall.embedded import EmbeddedKafka, EmbeddedPravega, spark_kafka_jars
from support.pravega import EventStream
from support.reading import read_all

USERS = 12
QUIET_S = 240.0
SEGMENTS = 2
PROGRAMS = ("to-pravega", "to-kafka")


@dataclass
class Came:
    """What a round came to.

    Attributes:
        seed: of it.
        views: how many went in.
        faults: how many there were, by kind.
        failures: what is wrong; nothing: all is as it should be.
        seconds: how long it took.
    """

    seed: int
    views: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def misplaced(name: str, found: list[tuple[str, int]], views: int, *, ordered: bool) -> list[str]:
    """Return what is wrong with what a reader found.

    Args:
        name: of the place.
        found: user and number of each view, in the reader's order.
        views: that were put: the numbers from 0, each once, each user's in their order.
        ordered: whether the place keeps the order of one user's views.
    """
    numbers = Counter(n for _, n in found)
    lost = sorted(set(range(views)) - numbers.keys())
    wrong = sorted({n for user, n in found if user != user_of(n) or not 0 <= n < views})
    doubled = sorted(n for n, times in numbers.items() if times > 1)
    said = [
        f"{name}: {len(which)} {what}, such as {which[:5]}"
        for what, which in (("lost", lost), ("doubled", doubled), ("wrong", wrong))
        if which
    ]
    if ordered:
        last: dict[str, int] = {}
        for user, n in found:
            if n < last.get(user, -1):
                said.append(f"{name}: {user}'s view {n} stands behind {last[user]}")
                break
            last[user] = n
    return said


def user_of(number: int) -> str:
    """Whose view it is."""
    return f"u{number % USERS}"


class Round:
    """Servers, two programs and what is done to them."""

    def __init__(self, seed: int, folder: Path, faults: int, views: int) -> None:
        self._random = random.Random(seed)
        self._folder, self._planned, self._views = folder, faults, views
        self._jobs: dict[str, PythonProcess] = {}
        self.came = Came(seed)

    def run(self) -> Came:
        """Run it to its end; all that was started is ended."""
        began = time.monotonic()
        with (
            EmbeddedKafka(data_dir=self._folder / "kafka") as broker,
            EmbeddedPravega() as server,
        ):
            try:
                self._begin(broker, server)
                self._strike_and_put()
                self._judge()
            except Exception as error:
                # The other rounds go on, and what the programs wrote is kept.
                self.came.failures.append(f"{type(error).__name__}: {error}")
            finally:
                for job in self._jobs.values():
                    job.kill()
        self.came.seconds = time.monotonic() - began
        return self.came

    def _begin(self, broker: EmbeddedKafka, server: EmbeddedPravega) -> None:
        self._broker, self._server = broker, server
        self._stream = EventStream(server, SEGMENTS)
        for topic in ("first", "last"):
            broker.create_topic(topic, partitions=2)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True}
        )
        self._spec = {
            **self._stream.target,
            "servers": broker.bootstrap_servers,
            "first": "first",
            "last": "last",
            "files": str(self._folder / "files"),
            "per_batch": self._random.choice([20, 60, 200]),
            # Sometimes so short that it runs out between decision and commit.
            "lease_s": self._random.choice([600, 600, 30]),
            **{f"checkpoint-{name}": str(self._folder / name) for name in PROGRAMS},
        }
        for name in PROGRAMS:
            self._start(name)

    def _start(self, name: str) -> None:
        work = self._folder / f"work-{name}"
        (work / "tmp").mkdir(parents=True, exist_ok=True)
        self._jobs[name] = PythonProcess(
            ["-m", "chains.job", name, json.dumps(self._spec)],
            work_dir=work,
            log=self._folder / f"{name}.log",
            environment={
                **environment_of(work, spark_kafka_jars()),
                "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
            },
        )

    # --- faults -----------------------------------------------------------------------------------

    def _strike_and_put(self) -> None:
        kinds = {
            "driver killed": self._kill,
            "driver frozen, replaced and woken": self._replace_frozen,
            "Python worker killed": self._kill_worker,
            "Pravega frozen": lambda: self._freeze(self._server),
            "broker frozen": lambda: self._freeze(self._broker),
            "stream scaled": self._scale,
            "both drivers killed": self._kill_both,
        }
        each = self._views // (self._planned + 1)
        for _ in range(self._planned):
            self._put(each)
            self._wait(self._random.uniform(0.0, 8.0))
            kind = self._random.choice(sorted(kinds))
            if kinds[kind]():
                self.came.faults[kind] += 1
        self._put(self._views - self.came.views)

    def _put(self, count: int) -> None:
        for n in range(self.came.views, self.came.views + count):
            user = user_of(n)
            self._producer.produce("first", json.dumps({"user": user, "n": n}), user)
        if self._producer.flush(60):
            raise TimeoutError("the producer's records were not taken")
        self.came.views += count

    def _wait(self, seconds: float) -> None:
        """Let some time pass: a moment is what is drawn here, and no state is waited for."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._see_that_they_run()
            time.sleep(0.1)

    def _see_that_they_run(self) -> None:
        for name, job in self._jobs.items():
            if (code := job.return_code) is not None:
                # A query that failed (a store was away for too long) is started again, as by a
                # supervisor.
                self.came.faults[f"{name} ended by itself"] += 1
                if self.came.faults[f"{name} ended by itself"] > 20:
                    raise TimeoutError(f"{name} ends again and again ({code}): {job.last_words()}")
                self._start(name)

    def _one(self) -> str:
        return self._random.choice(PROGRAMS)

    def _kill(self) -> bool:
        name = self._one()
        killed = self._jobs[name].kill()
        self._start(name)
        return killed

    def _kill_both(self) -> bool:
        killed = [self._jobs[name].kill() for name in PROGRAMS]
        for name in PROGRAMS:
            self._start(name)
        return all(killed)

    def _kill_worker(self) -> bool:
        name = self._one()
        below = _below(self._jobs[name].pid)
        workers = [each for each in below if "daemon" in _command(each)]
        if not workers:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            self._random.choice(workers).kill()
        return True

    def _replace_frozen(self) -> bool:
        name = self._one()
        old = self._jobs[name]
        frozen = [psutil.Process(old.pid), *_below(old.pid)]
        for each in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.suspend()
        self._start(name)
        self._wait(self._random.uniform(5.0, 25.0))
        for each in reversed(frozen):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()
        self._wait(self._random.uniform(1.0, 6.0))
        old.kill()
        return True

    def _freeze(self, server: EmbeddedKafka | EmbeddedPravega) -> bool:
        server.freeze()
        self._wait(self._random.uniform(1.0, 15.0))
        server.thaw()
        return True

    def _scale(self) -> bool:
        # Pravega refuses fewer segments than the stream was made with.
        self._stream.scale(self._random.randint(SEGMENTS, 4))
        return True

    # --- judgement --------------------------------------------------------------------------------

    def _judge(self) -> None:
        wanted, quiet_until, before = self.came.views, time.monotonic() + QUIET_S, -1
        while (count := min(len(self._last()), self._in_files())) < wanted:
            self._see_that_they_run()
            if count != before:
                before, quiet_until = count, time.monotonic() + QUIET_S
            if time.monotonic() > quiet_until:
                words = [f"{name}: {job.last_words()[-800:]}" for name, job in self._jobs.items()]
                raise TimeoutError(f"{count} of {wanted} views are in both sinks: {words}")
            time.sleep(0.5)
        # What is doubled may come yet.
        self._wait(5.0)
        for name in PROGRAMS:
            self._jobs[name].kill()
        files = ofa.read_files(self._spec["files"]).to_arrow().to_pylist()
        between = [(each["user"], each["n"]) for each in map(json.loads, self._stream.contents())]
        places: list[tuple[str, list[tuple[str, int]], bool]] = [
            ("the stream", between, True),
            ("the topic", self._last(), True),
            ("the files", [(each["user"], each["n"]) for each in files], False),
        ]
        for name, found, ordered in places:
            self.came.failures += misplaced(name, found, wanted, ordered=ordered)

    def _in_files(self) -> int:
        return ofa.read_files(self._spec["files"]).rows if Path(self._spec["files"]).exists() else 0

    def _last(self) -> list[tuple[str, int]]:
        found: list[Any] = read_all(self._broker.bootstrap_servers, "last")
        values = [json.loads(each.value()) for each in found]
        return [(each["user"], each["n"]) for each in values]


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
