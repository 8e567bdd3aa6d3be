"""A real HDFS for demo and tests: Hadoop's mini cluster with one NameNode and one DataNode in a
Java process of its own, on loopback addresses only.

The caller's sequence::

    with EmbeddedHdfs() as server:              # fetches the jars once, formats a data folder,
                                                # waits until files can be written
        server.url                              # hdfs://127.0.0.1:port, for paths of Spark
        server.spark_settings()                 # what a session needs; it needs no further jars
        server.kill()                           # faults: kill, restart, freeze, thaw; the address
        server.restart()                        # and the content stay

Clients are the user of this process, who may do everything.

Not for production: there is one replica, and flushing is left to the operating system: what was
closed survives `kill`, but not a loss of power.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from onceforall.embedded.jars import hadoop_set, hadoop_version, jar_set, spark_jar
from onceforall.embedded.java import find_java
from onceforall.embedded.network import HOST, free_port
from onceforall.embedded.process import GuardedProcess
from onceforall.embedded.server import EmbeddedServer
from onceforall.errors import EmbeddedServerError

_START_DEADLINE_S = 120.0
_POLL_INTERVAL_S = 0.05
_PROGRAM = Path(__file__).with_name("MiniHdfs.java")
# The mini cluster has the rest in its own jar.
_JARS_OF_SPARK = (
    "hadoop-client-api",
    "hadoop-client-runtime",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
)
_JVM_OPTIONS = (
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dlog4j2.level=WARN",
)
_SPARK_SETTINGS = {
    "spark.hadoop.dfs.replication": "1",
    # There is no other DataNode to put in the place of one that failed.
    "spark.hadoop.dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
    # A client asks whether its last block has arrived, and waits 400 ms when it hasn't: a small
    # file took 411 ms, and takes 18 ms.
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "5",
}


class EmbeddedHdfs(EmbeddedServer):
    """An HDFS of one NameNode and one DataNode in a child process.

    It ends with this process: at `stop`, at an ordinary end of the interpreter, and on Linux also
    when this process is killed (then a temporary data folder stays behind). Not safe for use by
    several threads at once; its clients may be many.
    """

    _noun = "HDFS"
    _folder_prefix = "onceforall-hdfs-"
    _log_name = "hdfs.log"

    def __init__(self, *, data_dir: Path | None = None, port: int = 0) -> None:
        """Nothing is started yet.

        Args:
            data_dir: where it keeps content and log; made when it is missing, and kept. A data
                folder of an earlier run is continued. None: a temporary folder, removed by `stop`.
            port: the NameNode's port of 127.0.0.1; 0 chooses a free one at the first start.

        Raises:
            OptionError: the port is impossible.
        """
        super().__init__(data_dir, port)
        self._web_port = 0

    @property
    def url(self) -> str:
        """``hdfs://127.0.0.1:port``, the beginning of every path on it; the same over `kill` and
        `restart`.

        Raises:
            EmbeddedServerError: the port is not chosen before the first start.
        """
        return f"hdfs://{HOST}:{self.port}"

    @property
    def web_url(self) -> str:
        """``http://127.0.0.1:port`` of the NameNode, for WebHDFS (below ``/webhdfs/v1``).

        Raises:
            EmbeddedServerError: the port is not chosen before the first start.
        """
        _ = self.port
        return f"http://{HOST}:{self._web_port}"

    @staticmethod
    def spark_settings() -> dict[str, str]:
        """Return the settings of a Spark session that uses it."""
        return dict(_SPARK_SETTINGS)

    def _find_programs(self) -> None:
        self._java = find_java()
        carried = [spark_jar(name, "of the embedded HDFS") for name in _JARS_OF_SPARK]
        self._class_path = [*carried, *jar_set(hadoop_set("hdfs", hadoop_version()))]

    def _choose_ports(self) -> None:
        super()._choose_ports()
        if self._web_port == 0:
            self._web_port = free_port(besides=self._port)

    def _forget_ports(self) -> None:
        super()._forget_ports()
        self._web_port = 0

    def _launch(self) -> None:
        folder = self._choose_data_dir()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._ready.unlink(missing_ok=True)
            log = (folder / self._log_name).open("ab")
        except OSError as error:
            raise EmbeddedServerError(
                f"The data folder {folder} cannot be written: {error}. Make it writable, or "
                "choose another data_dir."
            ) from error
        with log:
            log_start = log.tell()
            class_path = os.pathsep.join(str(jar) for jar in self._class_path)
            command = [str(self._java), *_JVM_OPTIONS, "-cp", class_path, str(_PROGRAM)]
            command += [str(folder), str(self._port), str(self._web_port)]
            self._own(GuardedProcess(command, directory=folder, log=log))
        self._wait_until_it_is_ready(log_start)

    @property
    def _ready(self) -> Path:
        return self.data_dir / "ready"

    def _wait_until_it_is_ready(self, log_start: int) -> None:
        process = self._started_process()
        deadline = time.monotonic() + _START_DEADLINE_S
        while not self._is_ready(process.pid):
            if not process.is_running:
                raise self._start_failure(
                    f"ended with status {process.return_code} before it was ready", log_start
                )
            if time.monotonic() > deadline:
                raise self._start_failure(
                    f"was not ready at {self.url} in {_START_DEADLINE_S:.0f} s", log_start
                )
            time.sleep(_POLL_INTERVAL_S)

    def _is_ready(self, pid: int) -> bool:
        # The program asks both of its servers, and then writes this file: HDFS has no small
        # question that a client without Hadoop's jars could ask.
        with suppress(OSError):
            return self._ready.read_text(encoding="ascii") == str(pid)
        return False

    def _start_failure(self, what: str, log_start: int) -> EmbeddedServerError:
        tail = self._log_tail(log_start)
        remedy = (
            "Check the free memory (it takes up to 384 MB of heap), that its data folder belongs "
            "to this version of Hadoop, and the end of its log"
        )
        if "Address already in use" in tail:
            remedy = (
                "Another program has taken one of its ports. Choose another port (0 chooses "
                "a free one)"
            )
        elif "Module jdk.compiler not found" in tail:
            remedy = "This Java is a runtime without the compiler. Let JAVA_HOME name a JDK"
        return EmbeddedServerError(
            f"The embedded HDFS {what}. {remedy}:\n{tail or '(the log is empty)'}"
        )
