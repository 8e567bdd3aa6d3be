"""Child processes of a measurement: jobs, generators, readers. None of them outlives this
process (on Linux).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from typing_extensions import Self

from benchmarks.settings import ROOT
from benchmarks.stands import processes
from onceforall.demo.driver import is_java
from onceforall.embedded.process import GuardedProcess

_END_DEADLINE_S = 60.0
_KILL_DEADLINE_S = 20.0
_AFTER_ITS_END_S = 5.0
_POLL_S = 0.01
_TAIL_LINES = 30


class MeasurementError(Exception):
    """A measurement could not be taken; the message says why, with the end of the log of what
    failed.
    """


class Child:
    """A program in a process of its own, with a work folder for its configuration, its log and what
    it says.

    As a context manager it is killed at the end, with everything below it.
    """

    def __init__(
        self,
        program: str | Sequence[str],
        work: Path,
        config: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it.

        Args:
            program: a module of this package, started with ``python -m`` and the path of its
                configuration; or a whole command.
            work: its folder, made anew; it is the working directory.
            config: for a module: written to ``config.json`` there.
            environment: besides that of this process. Secrets belong here, not into `config`.
        """
        work.mkdir(parents=True, exist_ok=True)
        self.work = work
        (work / "config.json").write_text(
            json.dumps({**(config or {}), "work": str(work)}), encoding="utf-8"
        )
        command = (
            list(program)
            if not isinstance(program, str)
            else [sys.executable, "-W", "ignore", "-m", program, "config.json"]
        )
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        surroundings = {
            **os.environ,
            "PYTHONPATH": path,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with (work / "log.txt").open("ab") as log:
            self._process = GuardedProcess(
                command,
                directory=work,
                log=log,
                environment={**surroundings, **(environment or {})},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise if it has failed.

        Raises:
            MeasurementError: it ended with another status than 0.
        """
        if self._process.return_code not in {None, 0}:
            raise MeasurementError(
                f"{self.work.name} ended with {self._process.return_code}:\n{self.tail()}"
            )

    def until(self, condition: Callable[[], Any], deadline_s: float, what: str) -> Any:
        """Wait for a condition while the child runs, and a moment longer when it has ended well,
        and return what it gave.

        Raises:
            MeasurementError: the child ended first, or the time passed.
        """
        until_s = time.monotonic() + deadline_s
        ended_s: float | None = None
        while not (found := condition()):
            if self._process.return_code is not None and ended_s is None:
                ended_s = time.monotonic()
            if ended_s is not None and (
                self._process.return_code or time.monotonic() > ended_s + _AFTER_ITS_END_S
            ):
                raise MeasurementError(
                    f"{self.work.name} ended ({self._process.return_code}) before "
                    f"{what}:\n{self.tail()}"
                )
            if time.monotonic() > until_s:
                raise MeasurementError(
                    f"{self.work.name}: not within {deadline_s:.0f} s: {what}:\n{self.tail()}"
                )
            time.sleep(_POLL_S)
        return found

    def said(self, name: str, deadline_s: float = 120.0) -> Any:
        """Wait for a JSON file that the child leaves in its folder (written whole), and return
        its content.
        """
        file = self.work / name
        self.until(file.exists, deadline_s, f"it wrote {name}")
        return json.loads(file.read_text(encoding="utf-8"))

    def stop(self) -> None:
        """Ask it to end (the file ``stop``), and wait for that.

        Raises:
            MeasurementError: it failed, or did not end.
        """
        (self.work / "stop").touch()
        if not self._process.wait(_END_DEADLINE_S):
            raise MeasurementError(
                f"{self.work.name} did not stop within {_END_DEADLINE_S:.0f} s:\n{self.tail()}"
            )
        self.check()

    def wait(self, deadline_s: float) -> None:
        """Wait for its own end.

        Raises:
            MeasurementError: it failed, or the time passed.
        """
        if not self._process.wait(deadline_s):
            raise MeasurementError(
                f"{self.work.name} did not end within {deadline_s:.0f} s:\n{self.tail()}"
            )
        self.check()

    def kill(self) -> None:
        """SIGKILL it and everything below, the JVM first: its orderly end must not soften a
        crash. Returns when all of it is gone.
        """
        found = processes.tree(self.pid) if self._process.return_code is None else []
        for process in sorted(found, key=lambda each: 0 if is_java(each) else 1):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(_KILL_DEADLINE_S)
        psutil.wait_procs(found, timeout=_KILL_DEADLINE_S)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself."""
        self._process.send_signal(number)

    def tail(self) -> str:
        """Return the end of its log."""
        lines = (self.work / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return what it has written to a file of JSON lines so far; a line that is being
        written is left out.
        """
        file = self.work / name
        if not file.exists():
            return []
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]


def configuration() -> dict[str, Any]:
    """Return the configuration of this process, when it is a child's module."""
    config: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    return config


def say(work: Path, name: str, value: Any) -> None:
    """Leave a JSON file for the parent: whole, or not at all."""
    new = work / f"{name}.new"
    new.write_text(json.dumps(value), encoding="utf-8")
    new.rename(work / name)
