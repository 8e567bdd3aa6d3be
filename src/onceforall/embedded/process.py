"""Start a server process that does not outlive its parent.

On Linux the child asks the kernel for SIGKILL when its parent dies (``prctl(PR_SET_PDEATHSIG)``, prctl(2)), however the parent
dies. That signal is bound to the *thread* that forked the child, so the fork happens in a thread of its own, which lives as
long as the child. The request is made by a small Python program that then becomes the server by ``exec``: this keeps the process id, and
avoids ``preexec_fn``, which may deadlock in a program with threads (subprocess documentation).

Elsewhere than on Linux a parent that is killed leaves its server behind; an ordinary end does not, see `EmbeddedKafka`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# The parent may die before prctl is called: then the child has another parent already, and must not start.
_BECOME_GUARDED = """
import os, signal, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
except (ImportError, OSError, AttributeError):
    pass
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
sys.exit("the parent ended before the server could start")
"""


class GuardedProcess:
    """A child process of this one, in a session of its own so that Ctrl-C in a terminal does not reach it.

    Only this object waits for the child, so its process id cannot be given to another process while signals are sent to it.
    """

    def __init__(self, command: Sequence[str], *, directory: Path, log: IO[bytes]) -> None:
        """Start `command` (an absolute program path first) in `directory`, with its output appended to `log`.

        Raises:
            OSError: the program cannot be started.
        """
        self._command = list(command)
        if sys.platform == "linux" and sys.executable:
            self._command = [sys.executable, "-I", "-S", "-c", _BECOME_GUARDED, str(os.getpid()), *command]
        self._released = threading.Event()
        self._started: list[subprocess.Popen[bytes] | BaseException] = []
        ready = threading.Event()
        threading.Thread(
            target=self._fork_and_stay, args=(directory, log, ready), name="onceforall-server-guard", daemon=True
        ).start()
        ready.wait()
        started = self._started[0]
        if isinstance(started, BaseException):
            raise started
        self._process = started

    def _fork_and_stay(self, directory: Path, log: IO[bytes], ready: threading.Event) -> None:
        try:
            self._started.append(
                subprocess.Popen(
                    self._command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            )
        except BaseException as error:  # noqa: BLE001  it is raised again in the thread that asked
            self._started.append(error)
            return
        finally:
            ready.set()
        self._released.wait()

    @property
    def pid(self) -> int:
        """The process id, valid as an address for signals while `is_running`."""
        return self._process.pid

    @property
    def return_code(self) -> int | None:
        """None while the process runs, else its exit status (minus the signal number when a signal ended it)."""
        status = self._process.poll()
        if status is not None:
            self._released.set()
        return status

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended; a stopped (SIGSTOP) process counts as running."""
        return self.return_code is None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, and do nothing when it has ended."""
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Send SIGSTOP and return when every thread has stopped; return too when the process ends instead.

        The signal alone is not enough: until one of the threads has taken it, the others go on and may still answer.
        """
        self._process.send_signal(signal.SIGSTOP)
        # Not on macOS before Python 3.13. WNOWAIT leaves the state to be asked for again, and the process to be reaped by wait().
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the process; False when `timeout_s` seconds pass first."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._released.set()
        return True
