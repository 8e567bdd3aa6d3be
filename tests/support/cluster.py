"""A standalone Spark cluster of two workers on two loopback addresses: speculation never copies
a task to the same host."""

import contextlib
import os
import subprocess
from pathlib import Path

import psutil
import pyspark

from onceforall.embedded.java import find_java
from onceforall.embedded.network import free_port
from support.waiting import until

HOSTS = ("127.0.0.2", "127.0.0.3")


class Cluster:
    def __init__(self, folder, environments=None):
        """Args: folder: for logs and work. environments: by host, the whole environment of its
        worker, in place of ours."""
        self._environments = environments or {}
        self.folder = Path(folder)
        self.folder.mkdir()
        self.port = free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self._processes = []

    def __enter__(self):
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_all(self):
        self._start(
            "master",
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            self.port,
        )
        until(lambda: "New state: ALIVE" in self._log("master"), 60, "the master is up")
        for host in HOSTS:
            work = ("--work-dir", self.folder / f"work-{host}")
            self._start(
                host,
                "org.apache.spark.deploy.worker.Worker",
                "--host",
                host,
                "-c",
                1,
                "-m",
                "800m",
                *work,
                self.url,
            )
        for host in HOSTS:
            until(
                lambda host=host: "Successfully registered" in self._log(host),
                60,
                f"the worker on {host} is up",
            )

    def __exit__(self, *_):
        while self._processes:
            process = self._processes.pop()
            for each in [*_below(process), process]:
                # It may have ended by itself meanwhile.
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()

    def python_workers(self):
        """Return the Python workers of all executors (not their daemons) that live now."""
        parents = {}
        for child in (child for process in self._processes for child in _below(process)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "python" in child.name() and child.status() != psutil.STATUS_ZOMBIE:
                    parents[child] = child.ppid()
        daemons = {child.pid for child in parents}
        return [child for child, parent in parents.items() if parent in daemons]

    def _start(self, name, main_class, *arguments):
        home = Path(pyspark.__file__).parent
        command = [
            find_java(),
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{home}/jars/*",
            main_class,
            "--webui-port",
            0,
            *arguments,
        ]
        environment = {
            **self._environments.get(name, os.environ),
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": "2.13",
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(part) for part in command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")


def _below(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []
