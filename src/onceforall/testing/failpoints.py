"""Named crash points in the production code, free when off.

They are switched on by the environment variable ``ONCEFORALL_FAILPOINTS``, read once per process, so that they reach Python
workers too: ``name=action[@hit]`` entries, separated by ``;``. The action happens at the given hit of that name in its process
(the first by default), once:

- ``kill``: SIGKILL to the process itself;
- ``kill-jvm``: SIGKILL to the parent process and then to itself (in a driver that was started by ``spark-submit``, its JVM);
- ``raise``: raises ``FailpointError``;
- ``freeze``: SIGSTOP to the process itself, until somebody sends SIGCONT.

When ``ONCEFORALL_FAILPOINTS_SEEN`` names a folder, an empty file ``<name>`` appears there as soon as a failpoint acts, so that a
test can wait for it, and the failpoint acts only once over all processes.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

VARIABLE = "ONCEFORALL_FAILPOINTS"
SEEN_VARIABLE = "ONCEFORALL_FAILPOINTS_SEEN"


class FailpointError(Exception):
    """What the action ``raise`` raises."""


class _Failpoints:
    def __init__(self, specification: str, seen: str | None) -> None:
        self._seen = Path(seen) if seen else None
        self._actions: dict[str, tuple[str, int]] = {}
        self._hits: dict[str, int] = {}
        self._lock = threading.Lock()
        for entry in filter(None, (part.strip() for part in specification.split(";"))):
            name, _, action = entry.partition("=")
            action, _, hit = action.partition("@")
            if action not in {"kill", "kill-jvm", "raise", "freeze"}:
                raise ValueError(f"{VARIABLE}: unknown action {action!r} for failpoint {name!r}")
            self._actions[name] = (action, int(hit or 1))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._actions)

    def hit(self, name: str) -> None:
        planned = self._actions.get(name)
        if planned is None:
            return
        with self._lock:
            self._hits[name] = self._hits.get(name, 0) + 1
            if self._hits[name] != planned[1] or not self._first(name):
                return
        self._act(name, planned[0])

    def _first(self, name: str) -> bool:
        if self._seen is None:
            return True
        try:
            (self._seen / name).open("x").close()
        except FileExistsError:
            return False
        return True

    @staticmethod
    def _act(name: str, action: str) -> None:
        if action == "raise":
            raise FailpointError(f"failpoint {name}")
        if action == "kill-jvm":
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGSTOP if action == "freeze" else signal.SIGKILL)


_failpoints: _Failpoints | None = None
if os.environ.get(VARIABLE):
    _failpoints = _Failpoints(os.environ[VARIABLE], os.environ.get(SEEN_VARIABLE))


def wanted(name: str) -> bool:
    """Tell whether this failpoint is switched on, for code that must arrange something before it."""
    return _failpoints is not None and name in _failpoints.names


def hit(name: str) -> None:
    """Act if this failpoint is switched on and it is its turn; otherwise do nothing."""
    if _failpoints is not None:
        _failpoints.hit(name)
