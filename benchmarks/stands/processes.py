"""CPU time and memory of whole trees of processes, read from /proc while something runs (Linux)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psutil
from typing_extensions import Self

from benchmarks.report import figures

CPU_EVERY_S = 0.25
MEMORY_EVERY_S = 2.0
_MB = 1 << 20


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and everything below it; empty when it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """Return the CPU time of processes and of those of their children that have ended and were
    waited for.
    """
    seconds = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            seconds += sum(process.cpu_times()[:4])
    return seconds


def proportional_mb(processes: list[psutil.Process]) -> float:
    """Return the memory of processes in MB, where pages that several share count in parts (PSS):
    forked workers share most of theirs.
    """
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / _MB


@dataclass
class Meter:
    """Samples CPU and memory of groups of processes in a thread of its own, as a context manager.

    Attributes:
        roots: the process whose tree is a group, or a function that returns a group's processes, by
            the group's name (``broker``, ``job``).
    """

    roots: Mapping[str, int | Callable[[], list[psutil.Process]]]
    _cpu: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    _memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._cpu = {name: [] for name in self.roots}
        self._memory = {name: [] for name in self.roots}
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        assert self._thread is not None
        self._thread.join()

    def cpu_between(self, start_s: float, end_s: float) -> dict[str, float]:
        """Return the CPU seconds that each group took between two moments of ``time.monotonic``."""
        return {
            name: figures.at(series, end_s) - figures.at(series, start_s)
            for name, series in self._cpu.items()
            if series
        }

    def peak_mb(self, start_s: float = 0.0) -> dict[str, float]:
        """Return the most memory (PSS) that each group had since a moment, in MB."""
        found = {
            name: [mb for moment, mb in series if moment >= start_s]
            for name, series in self._memory.items()
        }
        return {name: round(max(values), 1) for name, values in found.items() if values}

    def _run(self) -> None:
        memory_due_s = 0.0
        groups: dict[str, list[psutil.Process]] = {}
        while not self._ended.wait(CPU_EVERY_S):
            now_s = time.monotonic()
            is_due = now_s >= memory_due_s
            if is_due:
                memory_due_s = now_s + MEMORY_EVERY_S
                # To find all children costs much more than to read the times of those that are
                # known. Those that come in between are found the next time, with all the time they
                # took.
                groups = {
                    name: tree(root) if isinstance(root, int) else root()
                    for name, root in self.roots.items()
                }
            for name, processes in groups.items():
                spent = cpu_seconds(processes)
                # Less than before: one of them has ended, and its time isn't known any more.
                if processes and (not self._cpu[name] or spent >= self._cpu[name][-1][1]):
                    self._cpu[name].append((time.monotonic(), spent))
                if is_due:
                    self._memory[name].append((now_s, proportional_mb(processes)))


MEMORY_GIB = 8.0
"""More than a contender and the broker touch in a round."""

_TOUCH = """
import mmap, sys
memory = mmap.mmap(-1, int(sys.argv[1]))
try:
    memory.madvise(23)  # MADV_POPULATE_WRITE, since Linux 5.14
except OSError:
    for page in range(0, len(memory), mmap.PAGESIZE):
        memory[page] = 1
"""


def warm_memory(gib: float = MEMORY_GIB) -> float:
    """Write dirty pages out; touch memory and give it back, in a process of its own, so that what
    is measured next gets pages that the machine really has.

    A virtual machine hands free pages to its host ("free page reporting"); whoever touches one
    first waits until the host has found another, which counts as CPU time of the toucher and of the
    broker's page cache. Without this, the first contender of a round paid for all.

    Returns:
        Seconds that it took.
    """
    size = int(min(gib * 2**30, psutil.virtual_memory().available / 2))
    start_s = time.perf_counter()
    # What the last contender has written, and the disk hasn't yet, would be written while the next
    # one is measured.
    os.sync()
    subprocess.run([sys.executable, "-c", _TOUCH, str(size)], check=True)
    return time.perf_counter() - start_s
