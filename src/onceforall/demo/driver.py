"""Starts the job in a process of its own, and ends it with SIGKILL: the Python process, its JVM and
all Python workers.

Only processes that were found below our own child are killed, by their ids; psutil compares the
time of creation first, so that an id which was given to another process in the meantime is left
alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onceforall.embedded.process import GuardedProcess
from onceforall.errors import EmbeddedServerError

if TYPE_CHECKING:
    import psutil

_GONE_DEADLINE_S = 20.0
_LOG_TAIL_LINES = 30


class PythonProcess:
    """One life of a Python program.

    It does not outlive this process, however that ends (on Linux; elsewhere unless it is killed).
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        work_dir: Path,
        log: Path,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        """Start Python.

        Args:
            arguments: the program, or ``-m`` and its module, and its own arguments.
            work_dir: where it runs.
            log: the file to which its output is appended.
            environment: what it has in its environment besides that of this process; None takes a
                name away.
        """
        self._log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        merged = {**os.environ, **(environment or {})}
        with log.open("ab") as output:
            self._process = GuardedProcess(
                [sys.executable, "-W", "ignore", *arguments],
                directory=work_dir,
                log=output,
                environment={name: value for name, value in merged.items() if value is not None},
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def return_code(self) -> int | None:
        """None while the program runs, else its exit status."""
        return self._process.return_code

    def kill(self) -> bool:
        """Send SIGKILL to the whole tree and return when all of it is gone; False when the program
        had ended by itself before.

        Raises:
            EmbeddedServerError: a process did not end.
        """
        import psutil

        tree = self._tree()
        if not tree:
            return False
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if not self._process.wait(_GONE_DEADLINE_S):
            raise EmbeddedServerError(
                f"Process {self._process.pid} did not end after SIGKILL. End it, and start the "
                "demo again."
            )
        # The children are init's after their parent's death (or ours, in a container without one):
        # they can't be waited for.
        _, alive = psutil.wait_procs(
            [process for process in tree if _is_alive(process)], timeout=_GONE_DEADLINE_S
        )
        if remaining := [process.pid for process in alive if _is_alive(process)]:
            raise EmbeddedServerError(
                f"Processes {remaining} did not end after SIGKILL. End them, and start the demo "
                "again."
            )
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait for the program to end by itself; False when `timeout_s` seconds pass first."""
        return self._process.wait(timeout_s)

    def last_words(self) -> str:
        """Return the end of what this life of the program wrote to its log."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            return "\n".join(file.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:])

    def _tree(self) -> list[psutil.Process]:
        import psutil

        try:
            root = psutil.Process(self._process.pid)
            below = root.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        if self._process.return_code is not None:
            return []
        # The JVM first: its orderly end, which begins when the Python process is gone, must not
        # soften the crash.
        return sorted([root, *below], key=lambda process: 0 if is_java(process) else 1)


class Driver(PythonProcess):
    """One life of the demo's job."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        work_dir: Path,
        log: Path,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        """Start ``python -m onceforall.demo.job``; see `PythonProcess`."""
        program = ["-m", "onceforall.demo.job"]
        super().__init__(
            [*program, *arguments], work_dir=work_dir, log=log, environment=environment
        )


def is_java(process: psutil.Process) -> bool:
    """Tell whether a process is a JVM; one that has ended is none."""
    import psutil

    try:
        return Path(process.exe()).name.startswith("java")
    except psutil.Error:
        return False


def _is_alive(process: psutil.Process) -> bool:
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
