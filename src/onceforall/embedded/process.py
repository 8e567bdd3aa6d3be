"""Start a server process that does not outlive its parent.

On Linux the child asks the kernel for SIGKILL when its parent dies (``prctl(PR_SET_PDEATHSIG)``,
prctl(2)), however the parent dies. That signal is bound to the *thread* that forked the child, so
the fork happens in a thread of its own, which lives as long as the child. The request is made by a
small Python program that then becomes the server by ``exec``: this keeps the process id, and avoids
``preexec_fn``, which may deadlock in a program with threads (subprocess documentation). It takes
another user's place, too: ``subprocess``, asked for another user, calls fork() instead of vfork(),
and what gRPC (Spark Connect's client) does in a forked child ended one in two hundred before it
could become the server.

Elsewhere than on Linux a parent that is killed leaves its server behind; an ordinary end does not,
see `EmbeddedKafka`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The parent may die before prctl is called: then the child has another parent already, and must not
# start. A change of the user takes the kernel's promise back (prctl(2)), so it comes first; and
# ctypes before that, for another user may not be able to read Python's files.
_BECOME_GUARDED = """
import os, signal, sys
try:
    import ctypes
    library = ctypes.CDLL(None)
except (ImportError, OSError):
    library = None
if sys.argv[2] != "-":
    user, group = map(int, sys.argv[2].split(":"))
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
try:
    library.prctl(1, signal.SIGKILL, 0, 0, 0)
except AttributeError:
    pass
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[3], sys.argv[3:])
sys.exit("the parent ended before the server could start")
"""


def guarded(command: Sequence[str], user: tuple[int, int] | None) -> list[str]:
    """Return the command line of a small program that becomes `command` under `user`, and does not
    outlive the thread that starts it.

    Args:
        command: an absolute program path and its arguments.
        user: user id and group id; only root can choose one. None: those of this process.

    Raises:
        OSError: there is no Python program to do so (``sys.executable``), and a user is asked for.
    """
    if not sys.executable:
        if user is not None:
            raise OSError(
                "sys.executable is empty, so no program can be started under another user. Start "
                "Python by its own program, or don't run as root"
            )
        return list(command)
    account = "-" if user is None else f"{user[0]}:{user[1]}"
    become = [sys.executable, "-I", "-S", "-c", _BECOME_GUARDED, str(os.getpid()), account]
    return [*become, *command]


class GuardedProcess:
    """A child process of this one, in a session of its own so that Ctrl-C in a terminal does not
    reach it.

    Only this object waits for the child, so its process id cannot be given to another process while
    signals are sent to it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        log: IO[bytes],
        user: tuple[int, int] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `command` (an absolute program path first) in `directory`, with its output appended
        to `log`.

        Args:
            command: program and arguments.
            directory: the working directory.
            log: takes output and errors.
            user: user id and group id under which the server runs; only root can choose one. None:
                those of this process.
            environment: the server's environment; None: that of this process.

        Raises:
            OSError: the program cannot be started.
        """
        self._command = guarded(command, user)
        self._environment = environment
        self._released = threading.Event()
        self._started: list[subprocess.Popen[bytes] | BaseException] = []
        ready = threading.Event()
        threading.Thread(
            target=self._fork_and_stay,
            args=(directory, log, ready),
            name="onceforall-server-guard",
            daemon=True,
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
                    self._command,
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=self._environment,
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
        """None while the process runs, else its exit status (minus the signal number when a
        signal ended it).
        """
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
        """Send SIGSTOP and return when every thread has stopped; return too when the process ends
        instead.

        The signal alone is not enough: until one of the threads has taken it, the others go on and
        may still answer.
        """
        self._process.send_signal(signal.SIGSTOP)
        # Not on macOS before Python 3.13. WNOWAIT leaves the state to be asked for again, and the
        # process to be reaped by wait().
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


def end_orderly(process: GuardedProcess, number: int, deadline_s: float) -> None:
    """Ask a server to end by a signal, wake it in case it is frozen, and kill it with its child
    processes where it doesn't end in time.
    """
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    if not process.wait(deadline_s):
        kill_all(process)


def kill_all(process: GuardedProcess) -> None:
    """Kill a server and its child processes: the server first, frozen, so that it starts no
    process meanwhile.
    """
    process.freeze()
    children = children_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    signal_all(children, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Return the ids of a process's children; none where the system (other than Linux) doesn't
    tell.
    """
    try:
        return [
            int(child)
            for child in Path(f"/proc/{pid}/task/{pid}/children")
            .read_text(encoding="ascii")
            .split()
        ]
    except (OSError, ValueError):
        return []


def signal_all(pids: Sequence[int], number: int) -> None:
    """Send a signal to processes; those that have ended are left out."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def freeze_all(pids: Sequence[int]) -> None:
    """Stop processes that are not this one's children (SIGSTOP), and return when each has
    stopped or ended, on Linux.
    """
    signal_all(pids, signal.SIGSTOP)
    while any(_is_going_on(pid) for pid in pids):
        time.sleep(0.001)


def _is_going_on(pid: int) -> bool:
    # The state follows the program's name, which stands in brackets and may hold any character
    # (proc(5)).
    try:
        state = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="ascii", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except (OSError, IndexError):
        return False
    return state not in "TtZX"
