"""Writes down which functions of the package a process calls.

Loaded by ``site/sitecustomize.py`` into each Python process of a measurement; a process that is
forked goes on with a file of its own.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

FOLDER_VARIABLE = "ONCEFORALL_FOOTPRINT"
"""The environment variable with the folder for what is recorded."""

BATCH = ("driver/query_run.py", "QueryRun.take")
"""What the driver calls once per batch."""
_PACKAGE = f"{os.sep}onceforall{os.sep}"
_WORKERS = frozenset({"onceforall.worker_daemon", "pyspark.daemon", "pyspark.worker"})


class Recorder:
    """A profile function that writes each function once: all that a worker calls, and of a driver
    what is called from its second batch on. The first one does what a start does.
    """

    def __init__(self, folder: Path, *, is_worker: bool) -> None:
        """Start to record.

        Args:
            folder: gets a file per process, with a line ``module qualified-name`` per function.
            is_worker: whether the process runs tasks; else it is a driver.
        """
        self._folder = folder
        self._batches = 2 if is_worker else 0
        self._seen: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Take what ``sys.setprofile`` tells."""
        if event != "call":
            return
        code = frame.f_code
        if code in self._seen:
            return
        _, package, file = code.co_filename.rpartition(_PACKAGE)
        if not package:
            self._seen.add(code)
            return
        name = (Path(file).as_posix(), getattr(code, "co_qualname", ""))
        if name == BATCH and self._batches < 2:
            self._batches += 1
        if self._batches < 2:
            return
        self._seen.add(code)
        # A process that was forked has the parent's descriptors: so none is kept open.
        with (self._folder / f"{os.getpid()}.txt").open("a", encoding="utf-8") as file_of_mine:
            file_of_mine.write(f"{name[0]} {name[1]}\n")


def record() -> None:
    """Record this process, if the environment asks for it."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    recorder = Recorder(Path(folder), is_worker=bool(_WORKERS.intersection(sys.orig_argv)))
    threading.setprofile(recorder)
    sys.setprofile(recorder)
