"""Named points in the production code where a process can be killed, frozen, delayed or made to
fail; free when off.

They are switched on by the environment variable ``ONCEFORALL_FAILPOINTS``, read once per process,
so that they reach Python
workers too: ``name=action[@hit]`` entries, separated by ``;``. The action happens at the given hit
of that name in its process (the first by default), once; ``@3+`` means the third and each later
one, and ``@+`` each. The actions:

- ``kill``: SIGKILL to the process itself;
- ``kill-jvm``: SIGKILL to the parent process and then to itself (in a driver that was started by
  ``spark-submit``, its JVM);
- ``raise``: raises ``FailpointError``;
- ``error:<ERRNO>``: raises the ``OSError`` of that name, as ``error:ENOSPC`` (a full disk),
  ``error:EROFS``, ``error:EIO``;
- ``freeze``: SIGSTOP to the process itself, until somebody sends SIGCONT;
- ``delay:<ms>``: waits so many milliseconds, and goes on.

The names are those of ``failpoint_names.CATALOGUE``; another one is refused when the process
starts, so that no test waits for what never happens. A name that begins with ``test.`` may be
anything: it is for failpoints in a test's own code.

When ``ONCEFORALL_FAILPOINTS_SEEN`` names a folder, an empty file ``<name>`` appears there as soon
as a failpoint acts, so that a test can wait for it, and the failpoint acts only once over all
processes (with ``+``, each time nevertheless). When ``ONCEFORALL_FAILPOINTS_RECORD`` names a
folder, an empty file ``<name>@driver`` or ``<name>@worker`` appears there for every
failpoint that is passed, whether it acts or not: it shows which of them a program reaches.

Some failpoints lie where every error is caught, so that ``raise`` and ``error`` show in the log
only: below ``sweeper``, ``log.clean``, ``log.mark``, ``store.delete``, ``kafka.own_abort`` and
every ``discard``; and ``store.create`` below ``CommitLog``, where an error is a lost answer, and
the create is repeated. ``<sink>.begin`` and ``kafka.producer`` are meant for ``kill``: a
transaction whose beginning raises is nobody's.

Production code calls ``hit``, which is one comparison when everything is off. ``around`` marks a
whole function, and leaves it as it is when everything is off at the time of its definition.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

VARIABLE = "ONCEFORALL_FAILPOINTS"
SEEN_VARIABLE = "ONCEFORALL_FAILPOINTS_SEEN"
RECORD_VARIABLE = "ONCEFORALL_FAILPOINTS_RECORD"
TEST_PREFIX = "test."

ASKED, ANSWERED = ".asked", ".answered"
"""What ``around`` adds to its name before and after the call."""

_PLAIN_ACTIONS = {"kill", "kill-jvm", "raise", "freeze"}
_Function = TypeVar("_Function", bound=Callable[..., Any])


class FailpointError(Exception):
    """What the action ``raise`` raises."""


@dataclass(frozen=True)
class _Plan:
    """One entry of the variable: what happens, with its argument, at which hit, and whether at
    each later one, too.
    """

    action: str
    argument: int
    hit: int
    again: bool

    def is_due(self, hits: int) -> bool:
        return hits == self.hit or (self.again and hits > self.hit)


class _Failpoints:
    def __init__(self, specification: str, seen: str | None, record: str | None = None) -> None:
        self._seen = Path(seen) if seen else None
        self._record = Path(record) if record else None
        plans = [
            _parsed(entry)
            for entry in filter(None, (part.strip() for part in specification.split(";")))
        ]
        self._plans = dict(plans)
        if len(self._plans) < len(plans):
            raise ValueError(
                f"{VARIABLE}: a failpoint is there twice in {specification!r}; each can have one "
                "action."
            )
        self._hits: dict[str, int] = {}
        self._recorded: set[str] = set()
        self._lock = threading.Lock()
        _refuse_unknown(self._plans)

    def hit(self, name: str) -> None:
        if self._record is not None and name not in self._recorded:
            self._recorded.add(name)
            (self._record / f"{name}@{process_kind()}").touch()
        plan = self._plans.get(name)
        if plan is None:
            return
        with self._lock:
            self._hits[name] = self._hits.get(name, 0) + 1
            if not plan.is_due(self._hits[name]):
                return
            is_first = self._is_first(name)
        if is_first or plan.again:
            _act(name, plan)

    def _is_first(self, name: str) -> bool:
        if self._seen is None:
            return True
        try:
            (self._seen / name).open("x").close()
        except FileExistsError:
            return False
        return True


def _parsed(entry: str) -> tuple[str, _Plan]:
    name, _, rest = entry.partition("=")
    wanted, _, hit = rest.partition("@")
    action, _, argument = wanted.partition(":")
    number: int | None = 0 if action in _PLAIN_ACTIONS and not argument else None
    if action == "delay" and argument.isdecimal():
        number = int(argument)
    elif action == "error":
        number = getattr(errno, argument, None) if argument.startswith("E") else None
    first = hit.removesuffix("+") or ("1" if hit or "@" not in rest else "")
    if number is None or not first.isdecimal() or int(first) < 1:
        raise ValueError(
            f"{VARIABLE}: {entry!r} is not name=action[@hit] with one of the actions "
            f"{', '.join(sorted(_PLAIN_ACTIONS))}, delay:<ms> and "
            "error:<ERRNO>."
        )
    return name, _Plan(action, number, int(first), again=hit.endswith("+"))


def _refuse_unknown(names: dict[str, _Plan]) -> None:
    from onceforall.failpoints.catalogue import CATALOGUE

    for name in names:
        if name in CATALOGUE or name.startswith(TEST_PREFIX):
            continue
        import difflib

        near = difflib.get_close_matches(name, CATALOGUE, n=5, cutoff=0.4)
        hint = f"; near it: {', '.join(near)}" if near else ""
        raise ValueError(
            f"{VARIABLE}: there is no failpoint {name!r}{hint}. A test's own begin with "
            f"{TEST_PREFIX!r}."
        )


def _act(name: str, plan: _Plan) -> None:
    if plan.action == "raise":
        raise FailpointError(f"failpoint {name}")
    if plan.action == "error":
        raise OSError(plan.argument, os.strerror(plan.argument), f"failpoint {name}")
    if plan.action == "delay":
        time.sleep(plan.argument / 1000)
        return
    if plan.action == "kill-jvm":
        os.kill(os.getppid(), signal.SIGKILL)
    if plan.action == "freeze":
        # To this thread: any of the process could take a signal to the process, and this one would
        # go on until that has a processor.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return
    os.kill(os.getpid(), signal.SIGKILL)


def process_kind() -> str:
    """Return ``worker`` in a process that runs Spark's Python tasks, and ``driver`` in any
    other.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = getattr(spec, "name", "")
    return (
        "worker"
        if name in {"pyspark.daemon", "pyspark.worker"} or "pyspark.daemon" in sys.modules
        else "driver"
    )


_failpoints: _Failpoints | None = None
if os.environ.get(VARIABLE) or os.environ.get(RECORD_VARIABLE):
    _failpoints = _Failpoints(
        os.environ.get(VARIABLE, ""), os.environ.get(SEEN_VARIABLE), os.environ.get(RECORD_VARIABLE)
    )


def arm(specification: str) -> None:
    """Switch failpoints on in this process while it runs, instead of those it has.

    Args:
        specification: as in the environment variable; the folders for what is seen and recorded
            stay those of the environment.

    Failpoints that ``around`` marks are only there in a process that was started with one of the
    environment variables.

    Raises:
        ValueError: there is no such failpoint or action.
    """
    global _failpoints  # noqa: PLW0603  it is what this function is for
    _failpoints = _Failpoints(
        specification, os.environ.get(SEEN_VARIABLE), os.environ.get(RECORD_VARIABLE)
    )


def hit(name: str) -> None:
    """Act if this failpoint is switched on and it is its turn; otherwise do nothing."""
    if _failpoints is not None:
        _failpoints.hit(name)


def around(name: str) -> Callable[[_Function], _Function]:
    """Mark a function by two failpoints: ``<name>.asked`` before each call of it, and
    ``<name>.answered`` when it has returned.

    Args:
        name: the beginning of both names.

    Returns:
        A decorator. It returns the function itself where everything is off when the module is
        imported, so that only the environment variables switch these failpoints on.
    """

    def mark(function: _Function) -> _Function:
        if _failpoints is None:
            return function

        @functools.wraps(function)
        def marked(*arguments: Any, **named: Any) -> Any:
            hit(name + ASKED)
            answer = function(*arguments, **named)
            hit(name + ANSWERED)
            return answer

        return cast(_Function, marked)

    return mark
