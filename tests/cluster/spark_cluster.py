"""A standalone master and a worker on each machine of a network; any of them can be killed,
frozen and started again."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pyspark

from onceforall.embedded.java import find_java
from support.waiting import until

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_GONE_S = 60
# The master forgets an application at its tenth executor that ended badly
# (spark.deploy.maxExecutorRetries): here they do all the time. Drivers and executors find it again
# after its end by what it wrote to disk.
_MASTER_SETTINGS = {
    "spark.deploy.recoveryMode": "FILESYSTEM",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.worker.timeout": "24",
}


class SparkCluster:
    """A context manager.

    Attributes: url: of the master. machines: those of the network. masters, workers: how often
    each was started.
    """

    PORT = 7077

    def __init__(self, network, folder, environment=None, cores=16, memory="12g"):
        """Args: network: a ``Network``. folder: for logs, work and what the master keeps.
        environment: of the workers' executors, besides our own. cores, memory: what each worker
        says that it has."""
        self._network = network
        self._address = network.addresses[0]
        self.folder = Path(folder)
        self.machines = network.machines
        self.url = f"spark://{self._address}:{self.PORT}"
        self._environment = environment or {}
        self._size = ("-c", cores, "-m", memory)
        self._master = None
        self._workers = {}
        self._starts = 0

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.start_master()
            for machine in self.machines:
                self.start_worker(machine)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for machine in self.machines:
            self.kill_worker(machine)
        self.kill_master()

    # --- master -----------------------------------------------------------------------------------

    def start_master(self):
        kept = self.folder / "recovery"
        kept.mkdir(exist_ok=True)
        settings = {**_MASTER_SETTINGS, "spark.deploy.recoveryDirectory": kept}
        arguments = [_MASTER, "--host", self._address, "--port", self.PORT]
        self._master, log = self._start("master", arguments, settings, {})
        self._wait(self._master, log, "New state: ALIVE|I have been elected leader", "the master")

    def kill_master(self):
        _kill(self._master)

    # --- workers ----------------------------------------------------------------------------------

    def start_worker(self, machine):
        local = self.folder / f"local-{machine.name}"
        local.mkdir(exist_ok=True)
        environment = {
            "SPARK_LOCAL_IP": machine.address,
            "SPARK_LOCAL_DIRS": str(local),
            "TMPDIR": str(local),
        }
        arguments = [_WORKER, "--host", machine.address, *self._size]
        arguments += ["--work-dir", self.folder / f"work-{machine.name}", self.url]
        # It registers when the master is there.
        self._workers[machine.name], _ = self._start(
            machine.name, arguments, {}, environment, machine
        )

    def kill_worker(self, machine):
        """SIGKILL to the worker and all below it, as when a machine loses power."""
        _kill(self._workers.get(machine.name))

    def worker(self, machine):
        """Return the worker's process."""
        return psutil.Process(self._workers[machine.name].pid)

    def lives(self, machine):
        """Whether the worker's process does."""
        return self._workers[machine.name].poll() is None

    def decommission(self, machine):
        """Ask the worker to leave, as a cloud does before it takes a machine away: it tells its
        executors, takes no more work, and ends (``spark.decommission.enabled``)."""
        self.worker(machine).send_signal(signal.SIGPWR)

    # --- executors --------------------------------------------------------------------------------

    def executors(self, machine=None):
        """Return the JVMs of the executors that live, of one machine or of all."""
        found = []
        for each in self.machines if machine is None else [machine]:
            process = self._workers.get(each.name)
            for below in _below(process) if process is not None else []:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if _EXECUTOR in " ".join(below.cmdline()):
                        found.append(below)
        return sorted(found, key=lambda process: process.pid)

    def has_executors(self, driver):
        """Tell whether an executor lives that belongs to the driver with this process id."""
        ports = set()
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(driver)
            for each in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    ports |= {
                        c.laddr.port for c in each.net_connections("tcp") if c.status == "LISTEN"
                    }
        for executor in self.executors():
            with contextlib.suppress(psutil.NoSuchProcess):
                url = re.search(r"CoarseGrainedScheduler@[^ ]*:(\d+)", " ".join(executor.cmdline()))
                if url and int(url[1]) in ports:
                    return True
        return False

    def python_workers(self, machine=None):
        """Return the Python workers (not their daemons) below the executors."""
        found = []
        for executor in self.executors(machine):
            with contextlib.suppress(psutil.NoSuchProcess):
                for daemon in executor.children():
                    found += daemon.children()
        return sorted(found, key=lambda process: process.pid)

    def shuffle_files(self, machine):
        """Return the shuffle's data files on a machine."""
        return sorted((self.folder / f"local-{machine.name}").rglob("shuffle_*.data"))

    # --- processes --------------------------------------------------------------------------------

    def _start(self, name, arguments, settings, environment, machine=None):
        home = Path(pyspark.__file__).parent
        java = [find_java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        java += [f"-D{key}={value}" for key, value in settings.items()]
        java += ["-Dspark.decommission.enabled=true", "-cp", f"{home}/jars/*"]
        command = [*java, arguments[0], "--webui-port", 0, *arguments[1:]]
        command = list(map(str, command)) if machine is None else machine.command(command)
        self._starts += 1
        log = self.folder / f"{name}-{self._starts}.log"
        merged = {
            **os.environ,
            **self._environment,
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": self._address,
            **environment,
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=merged, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        return process, log

    def _wait(self, process, log, words, what):
        def there():
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            text = log.read_text(errors="replace")
            return any(word in text for word in words.split("|"))

        until(there, 90, f"{what} is up")


def _kill(process):
    if process is None or process.poll() is not None:
        return
    for each in [*_below(process), psutil.Process(process.pid)]:
        # It may have ended by itself meanwhile.
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait(_GONE_S)


def _below(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []
