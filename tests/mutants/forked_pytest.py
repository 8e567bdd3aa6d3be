"""Runs pytest many times over without starting Python each time: a process that has loaded what
every test needs of other people, and nothing of this package, makes a child of itself for each run.

Loading takes longer than most tests: a bug that the first test notices is judged in a third of the
CPU so.

A child is as a fresh ``python -m pytest`` to its tests: environment, working directory, search path
and ``sitecustomize`` are its own, and it leads a process group. What it shares with the others is
what was loaded before: no module of this package, no test, no thread.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

LOADED = ("pytest", "hypothesis", "hypothesis.stateful", "psutil", "psycopg", "pyspark.sql")
_ARGUMENTS = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
"""pytest would have loaded some of it by its own way, to explain a failed ``assert`` in it."""


class Forker:
    """The process that the runs are children of.

    Its methods may be called from any thread. ``close`` ends it; runs that are under way go on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[int, Run] = {}
        self._count = 0
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), *LOADED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path
    ) -> Run:
        """Start a run of pytest.

        Args:
            arguments: of pytest.
            folder: to work in.
            environment: all its variables; those of ``PYTHONPATH`` come first in its search path.
            output: the file for what it prints.

        Raises:
            RuntimeError: the process has ended.
        """
        with self._lock:
            self._count += 1
            run = self._runs[self._count] = Run()
            job = {
                "run": self._count,
                "arguments": [*_ARGUMENTS, *arguments],
                "folder": str(folder),
                "environment": dict(environment),
                "output": str(output),
            }
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps(job) + "\n")
                self._process.stdin.flush()
            except (OSError, ValueError) as error:
                raise RuntimeError("the process that starts runs has ended") from error
        return run

    def close(self) -> None:
        """End the process."""
        with self._lock, contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            run = self._runs[told["run"]]
            if "pid" in told:
                run.started.set_result(told["pid"])
            else:
                run.ended.set_result(told["code"])
                with self._lock:
                    del self._runs[told["run"]]
        with self._lock:
            for run in self._runs.values():
                for future in (run.started, run.ended):
                    if not future.done():
                        future.set_exception(RuntimeError("the process that starts runs has ended"))


class Run:
    """One run of pytest.

    Attributes:
        started: its process id, which is that of its group too.
        ended: its exit code; of a signal, minus its number.
    """

    def __init__(self) -> None:
        self.started: Future[int] = Future()
        self.ended: Future[int] = Future()

    def wait(self, seconds: float) -> int | None:
        """Return the exit code; None: it hasn't ended within so many seconds, and has been killed
        with all of its group.

        Raises:
            RuntimeError: nobody knows, for the process that started it has ended.
        """
        pid = self.started.result()
        try:
            return self.ended.result(seconds)
        except TimeoutError:
            return None
        finally:
            if not self.ended.done():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                self.ended.result()


_ONE: list[Forker] = []
_MAKING = threading.Lock()


def forker() -> Forker:
    """Return the one of this process; it ends with it."""
    with _MAKING:
        if not _ONE:
            _ONE.append(Forker())
            atexit.register(_ONE[0].close)
        return _ONE[0]


def _serve() -> int:
    """Start runs as they are asked for; in a child, run pytest and return its exit code."""
    base = [path for path in sys.path if Path(path) != Path(__file__).parent]
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    runs: dict[int, int] = {}
    asked = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ended(runs)
        if 0 not in ready:
            continue
        read = os.read(0, 1 << 16)
        if not read:
            return 0
        *lines, asked = (asked + read).split(b"\n")
        for line in lines:
            job = json.loads(line)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(woken)
                os.close(wake)
                return _run(job, base)
            runs[pid] = job["run"]
            _tell(run=job["run"], pid=pid)


def _tell_ended(runs: dict[int, int]) -> None:
    while runs:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        _tell(run=runs.pop(pid), code=os.waitstatus_to_exitcode(status))


def _tell(**told: int) -> None:
    os.write(1, (json.dumps(told) + "\n").encode())


def _run(job: dict[str, Any], base: list[str]) -> int:
    os.setsid()
    output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, given in ((0, nothing), (1, output), (2, output)):
        os.dup2(given, descriptor)
    os.close(output)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    first = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [job["folder"], *filter(None, first), *base]
    sys.argv = ["pytest", *job["arguments"]]
    sys.orig_argv = [sys.executable, "pytest", *job["arguments"]]
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    import pytest

    return int(pytest.main(job["arguments"]))


if __name__ == "__main__":
    for _module in sys.argv[1:]:
        importlib.import_module(_module)
    if threading.active_count() != 1 or len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208
        raise SystemExit("a thread is running, of which a child would have no copy")
    gc.freeze()
    sys.exit(_serve())
