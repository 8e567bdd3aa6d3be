"""A Python program in a process of its own, which can be killed with all that it started, or
only its Python workers.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from onceforall.demo.driver import PythonProcess, is_java


class ProgramProcess(PythonProcess):
    """One life of a program that is a file."""

    def __init__(
        self,
        program: Path,
        arguments: Sequence[str],
        *,
        work_dir: Path,
        log: Path,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        """Start ``python program arguments…``.

        Args:
            program: the file.
            arguments: its own.
            work_dir: where it runs.
            log: the file to which its output is appended.
            environment: what it has in its environment besides that of this process; None takes a
                name away.
        """
        super().__init__(
            [str(program), *arguments], work_dir=work_dir, log=log, environment=environment
        )

    def send_signal(self, number: int) -> None:
        """Send a signal to the program itself, unless it has ended."""
        if self._process.is_running:
            self._process.send_signal(number)

    def kill_workers(self, chosen: random.Random) -> int:
        """Send SIGKILL to some of the Python workers of the program's executor.

        Args:
            chosen: says which.

        Returns:
            How many: at least one, or 0 where there is none.
        """
        import psutil

        java = [process for process in self._tree() if is_java(process)]
        workers: list[psutil.Process] = []
        for jvm in java:
            with contextlib.suppress(psutil.NoSuchProcess):
                # Below the JVM is the daemon, which forks the workers.
                workers += [worker for daemon in jvm.children() for worker in daemon.children()]
        # In the order of their birth, so that the same seed chooses alike.
        workers.sort(key=lambda worker: worker.pid)
        victims = chosen.sample(workers, chosen.randint(1, len(workers))) if workers else []
        for worker in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        return len(victims)
