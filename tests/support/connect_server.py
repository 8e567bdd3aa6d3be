"""A real Spark Connect server, and programs that are its clients: each a process of its own, for a
process with a classic session can have no other one."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark

from onceforall.embedded import spark_kafka_jars
from onceforall.embedded.network import can_listen, free_port
from onceforall.spark.remote_path import files_below
from support import class_archive
from support.small_spark import JAVA_OPTIONS, SETTINGS
from support.waiting import until

TESTS = Path(__file__).parents[1]
PROGRAM = Path(__file__).parent / "connect_program.py"
STARTS_WITHIN_S = 90
PASSWORD = "hunter2-of-the-database"


class ConnectServer:
    """One server, on a port of loopback."""

    def __init__(self, folder, *, failpoints="", settings=None, port=None, environment=None):
        self.folder = Path(folder)
        self.seen, self.passed = self.folder / "seen", self.folder / "passed"
        self.seen.mkdir(parents=True)
        self.passed.mkdir()
        self.port = port or free_port()
        given = environment or {}
        java = f"{JAVA_OPTIONS} {class_archive.java_options()}"
        settings = {
            **SETTINGS,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.default.parallelism": "2",
            "spark.driver.extraJavaOptions": java,
            "spark.sql.streaming.minBatchesToRetain": "100",
            **(settings or {}),
        }
        jars = filter(None, [*map(str, spark_kafka_jars()), settings.pop("spark.jars", None)])
        master = settings.pop("spark.master", "local[2]")
        confs = [part for item in settings.items() for part in ("--conf", "=".join(item))]
        environment = {
            **os.environ,
            "ONCEFORALL_FAILPOINTS": failpoints,
            "ONCEFORALL_FAILPOINTS_SEEN": str(self.seen),
            **({"ONCEFORALL_FAILPOINTS_RECORD": str(self.passed)} if failpoints else {}),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        environment.pop("SPARK_REMOTE", None)
        environment |= given
        with (self.folder / "log.txt").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
                    *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                    *("--master", master),
                    *("--jars", ",".join(jars)),
                    *confs,
                    "spark-internal",
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )
        until(
            lambda: not can_listen(self.port) or self.process.poll() is not None,
            STARTS_WITHIN_S,
            "the Connect server",
        )
        assert self.process.poll() is None, self.log()
        until(lambda: "Spark Connect server started" in self.log(), STARTS_WITHIN_S, self.log)

    @property
    def url(self):
        return f"sc://127.0.0.1:{self.port}"

    def log(self):
        """What the server says, and each child that it had."""
        return (self.folder / "log.txt").read_text(errors="replace")

    def said(self):
        """What this library says in the log."""
        return "\n".join(line for line in self.log().splitlines() if " onceforall" in line)

    def children(self):
        """The processes that take batches."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if any("foreach_batch_worker" in part for part in child.cmdline()):
                    found.append(child)
        return found

    def kill(self):
        """SIGKILL the server alone."""
        self.process.kill()
        self.process.wait()

    def wait_until_killed(self, deadline_s=120):
        self.process.wait(deadline_s)
        assert self.process.returncode == -signal.SIGKILL, self.log()

    def wait_for_failpoint(self, name, deadline_s=90):
        until(
            lambda: (self.seen / name).exists() or self.process.poll() is not None,
            deadline_s,
            f"failpoint {name}\n{self.log()}",
        )
        assert (self.seen / name).exists(), self.log()

    def close(self):
        """End the server and all that it has started."""
        below = []
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


class ConnectPipeline:
    """One checkpoint and its sinks, and any number of clients and servers in turn."""

    def __init__(self, folder, *, checkpoint=None, **config):
        self.folder = Path(folder)
        self.checkpoint = self.folder / "checkpoint" if checkpoint is None else checkpoint
        self.config = {
            "checkpoint": str(self.checkpoint),
            "files": str(self.folder / "files"),
            **config,
        }
        self._numbers = itertools.count()
        self.servers = []
        self.clients = []

    def server(self, failpoints="", **options):
        made = ConnectServer(
            self.folder / f"server{len(self.servers)}", failpoints=failpoints, **options
        )
        self.servers.append(made)
        return made

    def start(self, server, **config):
        """Start a client program; its process, and the folder of what it leaves."""
        client = ConnectClient(
            self.folder / f"client{next(self._numbers)}",
            {**self.config, "url": server.url, **config},
        )
        self.clients.append(client)
        return client

    def run(self, server, **config):
        """Run a client to its end; its query must not fail."""
        client = self.start(server, **config)
        status = client.status()
        assert status["error"] is None, f"{status}\n{server.said()}"
        return status

    def entries(self, kind):
        files = files_below(self.checkpoint / "onceforall" / "chains")
        found = [json.loads(file.read_text()) for file in files]
        return [entry for entry in found if entry.get("kind") == kind]

    def batches(self):
        """How many batches are in Spark's own commit log."""
        folder = self.checkpoint / "commits"
        return sum(file.name.isdecimal() for file in folder.iterdir()) if folder.is_dir() else 0

    def close(self):
        for client in self.clients:
            client.kill()
        for server in self.servers:
            server.close()


class ConnectClient:
    def __init__(self, work, config, program=PROGRAM):
        self.work = work
        work.mkdir(parents=True)
        (work / "config.json").write_text(json.dumps({**config, "work": str(work)}))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
        }
        # Whatever the server reads of this library's switches, the client has none.
        environment.pop("ONCEFORALL_FAILPOINTS", None)
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

    def status(self, deadline_s=150):
        """Wait for the program's end, and return what it left."""
        self.process.wait(deadline_s)
        assert (self.work / "status.json").exists(), self.log()
        return json.loads((self.work / "status.json").read_text())

    def kill(self):
        self.process.kill()
        self.process.wait()
