"""Writes down how long the steps of a batch take, by wrapping methods of the library in the
benchmark's own driver.

Each line of the file: ``{"step", "start_s", "end_s"}``, seconds of ``time.monotonic``. ``step`` is
the name of the coordinator's decision (``RunWrites``, ``AppendCommit``, ``CommitSinks``, …), or
``confirm:<kind>`` and ``commit:<kind>`` of one sink.

A batch's *cost of commit* is the time from the end of ``RunWrites``, when every task has prepared,
to the end of ``CommitSinks``, when readers see all of it.
"""

from __future__ import annotations

import atexit
import functools
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

_FLUSH_EVERY = 200
_FLUSH_EVERY_S = 1.0


class _Lines:
    """Keeps lines in memory and writes them in bundles, once a second, so that the measured
    steps hardly wait for a disk.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self._due_s = 0.0
        atexit.register(self.flush)

    def add(self, step: str, start_s: float, end_s: float) -> None:
        line = json.dumps({"step": step, "start_s": start_s, "end_s": end_s})
        with self._lock:
            self._lines.append(line)
            if len(self._lines) < _FLUSH_EVERY and end_s < self._due_s:
                return
            self._due_s = end_s + _FLUSH_EVERY_S
        self.flush()

    def flush(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            if lines:
                with self._file.open("a", encoding="utf-8") as file:
                    file.write("\n".join(lines) + "\n")


def record_into(file: Path) -> None:
    """Write the times of every coordinator and sink of this process down from now on."""
    from onceforall import FileSink, KafkaSink, PostgresSink
    from onceforall.driver.coordinator import Coordinator

    lines = _Lines(file)
    step = Coordinator.step

    @functools.wraps(step)
    def timed_step(self: Coordinator) -> None:
        name = type(self.pending[0]).__name__
        start_s = time.monotonic()
        try:
            step(self)
        finally:
            lines.add(name, start_s, time.monotonic())

    Coordinator.step = timed_step  # type: ignore[method-assign]
    for kind in (KafkaSink, FileSink, PostgresSink):
        for method in ("confirm", "commit"):
            setattr(kind, method, _timed(getattr(kind, method), f"{method}:{kind.kind}", lines))


def _timed(method: Callable[..., Any], name: str, lines: _Lines) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(*arguments: Any) -> Any:
        start_s = time.monotonic()
        try:
            return method(*arguments)
        finally:
            lines.add(name, start_s, time.monotonic())

    return timed


def costs_ms(lines: Iterable[Mapping[str, Any]], *, skip: int) -> dict[str, list[float]]:
    """Return what each batch's commit cost, in milliseconds, without the first batches.

    Returns:
        ``commit`` (from the end of ``RunWrites`` to the end of ``CommitSinks``), ``decision``
        (``AppendCommit`` alone), and one entry for each ``confirm:`` and ``commit:`` of a sink;
        confirming is part of ``RunWrites``.
    """
    found: dict[str, list[float]] = {"commit": [], "decision": []}
    prepared_s: float | None = None
    # A sink's times are added before those of the step around them: whatever comes since the last
    # commit belongs to the next one.
    pending: dict[str, float] = {}
    batches = 0
    for line in lines:
        step, start_s, end_s = line["step"], line["start_s"], line["end_s"]
        if ":" in step or step == "AppendCommit":
            pending["decision" if step == "AppendCommit" else step] = 1000 * (end_s - start_s)
        elif step == "RunWrites":
            prepared_s = end_s
        elif step == "CommitSinks" and prepared_s is not None:
            batches += 1
            if batches > skip:
                found["commit"].append(1000 * (end_s - prepared_s))
                for name, cost_ms in pending.items():
                    found.setdefault(name, []).append(cost_ms)
            prepared_s, pending = None, {}
    return found
