"""An embedded server that is one Java source file of this package, run with pinned jars.

Java compiles the file when it starts (a JDK is needed, not only a runtime), and the program writes
its process id into a file ``ready`` when it answers.
"""

from __future__ import annotations

import abc
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from onceforall.embedded.java import find_java
from onceforall.embedded.network import free_port
from onceforall.embedded.process import GuardedProcess
from onceforall.embedded.server import EmbeddedServer
from onceforall.errors import EmbeddedServerError

_START_DEADLINE_S = 120.0
_POLL_INTERVAL_S = 0.05
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)


class JavaProgramServer(EmbeddedServer):
    """A server that a Java program of this package runs. It gets the data folder, its port and
    further ports as arguments.
    """

    _program: ClassVar[str]
    """The name of its source file, beside this one."""
    _heap_mb: ClassVar[int]
    _jvm_options: ClassVar[Sequence[str]] = ()
    _further_ports: ClassVar[int] = 0
    """How many ports it opens besides its own."""

    def __init__(self, data_dir: Path | None, port: int) -> None:
        super().__init__(data_dir, port)
        self._ports: list[int] = []

    @abc.abstractmethod
    def _find_class_path(self) -> Sequence[Path]:
        """Return its jars, fetched if they are missing."""

    @property
    @abc.abstractmethod
    def _shown_address(self) -> str:
        """Return where it answers, for messages."""

    def _find_programs(self) -> None:
        self._java = find_java()
        self._class_path = self._find_class_path()

    def _choose_ports(self) -> None:
        super()._choose_ports()
        while len(self._ports) < self._further_ports:
            port = free_port(besides=self._port)
            if port not in self._ports:
                self._ports.append(port)

    def _forget_ports(self) -> None:
        super()._forget_ports()
        self._ports = []

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
            command = [str(self._java), f"-Xmx{self._heap_mb}m", *_JVM_OPTIONS, *self._jvm_options]
            command += ["-cp", class_path, str(Path(__file__).with_name(self._program))]
            command += [str(folder), str(self._port), *map(str, self._ports)]
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
                    f"was not ready at {self._shown_address} in {_START_DEADLINE_S:.0f} s",
                    log_start,
                )
            time.sleep(_POLL_INTERVAL_S)

    def _is_ready(self, pid: int) -> bool:
        # The program asks its servers, and then writes this file: they have no small question that
        # a client without their jars could ask.
        with suppress(OSError):
            return self._ready.read_text(encoding="ascii") == str(pid)
        return False

    def _start_failure(self, what: str, log_start: int) -> EmbeddedServerError:
        tail = self._log_tail(log_start)
        remedy = (
            f"Check the free memory (it takes up to {self._heap_mb} MB of heap), that its data "
            "folder belongs to this version, and the end of its log"
        )
        if "Address already in use" in tail:
            remedy = (
                "Another program has taken one of its ports. Choose another port (0 chooses "
                "a free one)"
            )
        elif "Module jdk.compiler not found" in tail:
            remedy = "This Java is a runtime without the compiler. Let JAVA_HOME name a JDK"
        return EmbeddedServerError(
            f"The embedded {self._noun} {what}. {remedy}:\n{tail or '(the log is empty)'}"
        )
