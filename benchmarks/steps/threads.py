"""What the CPU time of processes was spent on, by the names of their threads, read from /proc
(Linux).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

_KINDS = (
    # The kernel keeps the first 15 characters of a name.
    ("jvm", "Executor task", "Spark's tasks"),
    ("jvm", "kafka-producer", "Kafka's Java producer"),
    ("jvm", "C1 Comp", "JVM: compiler"),
    ("jvm", "C2 Comp", "JVM: compiler"),
    ("jvm", "GC ", "JVM: garbage collection"),
    ("jvm", "G1 ", "JVM: garbage collection"),
    ("jvm", "VM Thread", "JVM: garbage collection"),
    ("workers", "rdk:", "librdkafka's threads"),
    ("workers", "", "Python workers"),
    ("broker", "C1 Comp", "broker: compiler"),
    ("broker", "C2 Comp", "broker: compiler"),
    ("broker", "", "broker"),
)
Thread = tuple[int, int, str]
"""A thread: its process, its number, and what it counts as."""

OTHERS = "Spark's other threads"
KINDS = (*dict.fromkeys(kind for _, _, kind in _KINDS), OTHERS)
"""What a thread may be counted as, in the order of tables."""


def kind_of(role: str, name: str) -> str:
    """Return what a thread counts as, given the role of its process (``jvm``, ``workers`` or
    ``broker``) and its name.
    """
    return next(
        (kind for whose, prefix, kind in _KINDS if whose == role and name.startswith(prefix)),
        OTHERS,
    )


def seconds_of(groups: Mapping[str, Iterable[psutil.Process]]) -> dict[Thread, float]:
    """Return the CPU seconds of each thread so far, by process, thread and kind.

    Threads that have ended are not among them.
    """
    found: dict[Thread, float] = {}
    for role, processes in groups.items():
        for process in processes:
            for folder in _folders(process.pid):
                # It may end while it is looked at.
                with contextlib.suppress(OSError):
                    name, spent = parsed(
                        (folder / "stat").read_text(encoding="utf-8", errors="replace")
                    )
                    found[process.pid, int(folder.name), kind_of(role, name)] = spent / os.sysconf(
                        "SC_CLK_TCK"
                    )
    return found


def parsed(stat: str) -> tuple[str, int]:
    """Return a thread's name and its CPU time in ticks, from its ``stat`` (proc(5)); the name
    may have any character, brackets as well.
    """
    head, _, rest = stat.rpartition(")")
    fields = rest.split()
    # The first field behind the name is the third of all; user and system time are the 14th and the
    # 15th.
    return head.partition("(")[2], int(fields[11]) + int(fields[12])


def shares(before: Mapping[Thread, float], after: Mapping[Thread, float]) -> dict[str, float]:
    """Return which part of the CPU time between two looks each kind took: 1 in total; nothing if
    none was taken.
    """
    spent = dict.fromkeys(KINDS, 0.0)
    for thread, seconds in after.items():
        spent[thread[2]] += max(0.0, seconds - before.get(thread, 0.0))
    total = sum(spent.values())
    return (
        {kind: round(seconds / total, 4) for kind, seconds in spent.items() if seconds}
        if total
        else {}
    )


def _folders(pid: int) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(Path(f"/proc/{pid}/task").iterdir())
    return []
