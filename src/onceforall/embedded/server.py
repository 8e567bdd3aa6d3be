"""What the embedded servers have in common: a port, a data folder, a process that ends with this
one, and the faults of a test.
"""

from __future__ import annotations

import abc
import atexit
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from onceforall.common import arguments
from onceforall.embedded.network import HOST, can_listen, free_port
from onceforall.embedded.process import GuardedProcess, end_orderly
from onceforall.errors import EmbeddedServerError, OptionError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_STOP_DEADLINE_S = 20.0
_PORT_ATTEMPTS = 3
_PORT_DEADLINE_S = 5.0
_POLL_INTERVAL_S = 0.05
_LOG_TAIL_LINES = 25


class EmbeddedServer(abc.ABC):
    """A server in a child process.

    A subclass chooses its ports, launches it, and says by which signal it ends.
    """

    _noun: ClassVar[str]
    """What messages call it."""
    _folder_prefix: ClassVar[str]
    """How the name of a temporary data folder begins."""
    _log_name: ClassVar[str]
    """Its log, in the data folder."""
    _stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, data_dir: Path | None, port: int) -> None:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise OptionError(
                f"port={arguments.shown(port)} is no port. Use 0 (a free one is chosen) or a "
                "number up to 65535."
            )
        self._given_data_dir = (
            None if data_dir is None else Path(arguments.path("data_dir", data_dir)).absolute()
        )
        self._given_port = self._port = port
        self._data_dir: Path | None = None
        self._process: GuardedProcess | None = None
        self._owner_pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"running, pid {self.pid}" if self.is_running else "not running"
        return f"<{type(self).__name__} {HOST}:{self._port} {state}>"

    @property
    def port(self) -> int:
        """The port on which clients connect; the same over `kill` and `restart`.

        Raises:
            EmbeddedServerError: it is not chosen before the first start.
        """
        if self._port == 0:
            raise EmbeddedServerError(
                f"The {self._noun} has no port before its first start(). Call start(), or give "
                "port=."
            )
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the running server.

        Raises:
            EmbeddedServerError: the server does not run.
        """
        return self._running_process().pid

    @property
    def is_running(self) -> bool:
        """Whether the server's process exists; a frozen one does."""
        return self._process is not None and self._process.is_running

    @property
    def data_dir(self) -> Path:
        """The folder of the server's data, settings and log.

        Raises:
            EmbeddedServerError: a temporary folder is not made before the first start.
        """
        if self._data_dir is None:
            raise EmbeddedServerError(
                f"The {self._noun} has no data folder before its first start(). Call start(), or "
                "give data_dir=."
            )
        return self._data_dir

    @property
    def tls_dir(self) -> Path:
        """The folder with ``ca.pem``, ``client.pem`` and ``client.key``, of a server that has TLS.

        Raises:
            EmbeddedServerError: a temporary folder is not made before the first start.
        """
        return self.data_dir / "tls"

    def start(self) -> None:
        """Start the server and return when it answers; do nothing when it runs.

        After `kill` it continues with the same data and ports.

        Raises:
            EmbeddedServerError: its programs are missing, its port is taken, its folder can't be
                used, or it ended or did not answer in time; the message holds the end of its log.
                Nothing is left running.
        """
        if self.is_running:
            return
        self._find_programs()
        try:
            self._start_somewhere()
        except BaseException:
            self.stop()
            raise

    def _start_somewhere(self) -> None:
        # A free port may be taken by somebody else before the server has it; only a port of our own
        # choice may change.
        may_choose = self._data_dir is None and self._given_port == 0
        for attempt in range(_PORT_ATTEMPTS):
            self._choose_ports()
            self._wait_for_port()
            try:
                self._launch()
            except EmbeddedServerError as error:
                if (
                    attempt + 1 == _PORT_ATTEMPTS
                    or not may_choose
                    or "Address already in use" not in str(error)
                ):
                    raise
                self._end_process()
                self._forget_ports()
            else:
                return

    @abc.abstractmethod
    def _find_programs(self) -> None:
        """Find what is run, before anything is made."""

    @abc.abstractmethod
    def _launch(self) -> None:
        """Make the data folder, start the process, and return when it answers."""

    def _choose_ports(self) -> None:
        if self._port == 0:
            self._port = free_port()

    def _forget_ports(self) -> None:
        self._port = self._given_port

    def _wait_for_port(self) -> None:
        # A port that was just freed by kill() takes a moment.
        deadline = time.monotonic() + (_PORT_DEADLINE_S if self._data_dir is not None else 0.0)
        while not can_listen(self._port):
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"Port {self._port} of {HOST} is taken by another program. Stop that one, or "
                    "choose another port "
                    "(0 chooses a free one)."
                )
            time.sleep(_POLL_INTERVAL_S)

    def _choose_data_dir(self) -> Path:
        """Return the data folder, which is chosen at the first start; a temporary one is made."""
        if self._data_dir is None:
            given = self._given_data_dir
            self._data_dir = (
                given if given is not None else Path(tempfile.mkdtemp(prefix=self._folder_prefix))
            )
        return self._data_dir

    def _own(self, process: GuardedProcess) -> None:
        """Take a process that was started, so that it ends with this one."""
        self._process = process
        self._owner_pid = os.getpid()
        atexit.register(self.stop)

    def _log_tail(self, log_start: int) -> str:
        with (self.data_dir / self._log_name).open("rb") as log:
            log.seek(log_start)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:])

    def stop(self) -> None:
        """Stop the server in an orderly way (SIGKILL after 20 s) and remove a temporary data
        folder.

        Do nothing when it does not run. A process that was forked from the one that started the
        server cannot stop it.
        """
        if self._process is not None and self._owner_pid != os.getpid():
            return
        self._end_process()
        atexit.unregister(self.stop)
        if self._data_dir is not None and self._given_data_dir is None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
        self._data_dir = None
        self._forget_ports()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_orderly(process, self._stop_signal, _STOP_DEADLINE_S)

    def kill(self) -> None:
        """End the server with SIGKILL; data and ports stay for `start` or `restart`."""
        process = self._running_process()
        process.send_signal(signal.SIGKILL)
        process.wait()

    def restart(self) -> None:
        """Start the server again on the same data and ports, after an orderly stop when it still
        runs.

        Raises:
            EmbeddedServerError: it was never started, or does not start again.
        """
        if self._data_dir is None:
            raise EmbeddedServerError(
                f"The {self._noun} cannot restart: it was not started, or it was stopped. Call "
                "start()."
            )
        self._end_process()
        self.start()

    def freeze(self) -> None:
        """Stop all the server's threads (SIGSTOP) and return when they have: connections stay
        open, without answers, until `thaw`.
        """
        self._running_process().freeze()

    def thaw(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        self._running_process().send_signal(signal.SIGCONT)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the server's process ends by itself and return its exit status; None after
        `timeout_s` seconds.
        """
        process = self._started_process()
        return process.return_code if process.wait(timeout_s) else None

    def _started_process(self) -> GuardedProcess:
        if self._process is None:
            raise EmbeddedServerError(f"The {self._noun} was not started. Call start() first.")
        return self._process

    def _running_process(self) -> GuardedProcess:
        process = self._started_process()
        if not process.is_running:
            raise EmbeddedServerError(
                f"The {self._noun} does not run, it ended with status {process.return_code}. Call "
                "restart() first."
            )
        return process
