"""What a process of the conformance suite does: as the nursery it forks others, and as one of these
it calls a sink when told.

The other side is ``process``. They speak over a socket pair, one JSON object per line: a command
(the name of a method, its arguments) and its answer.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import importlib
import json
import os
import pickle
import signal
import socket
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onceforall
from onceforall.errors import SinkUnavailableError
from onceforall.protocol import contract
from onceforall.protocol.history import CommitPermit
from onceforall.protocol.sweeping import Sweep
from onceforall.sink import (
    StartInfo,
    TaskAttempt,
    TwoPhaseCommitSink,
)

if TYPE_CHECKING:
    from types import FrameType

    import pyarrow as pa

REQUEST = b"f"
"""Asks the nursery for a process; a descriptor of its socket goes with it."""


def run_nursery(descriptor: int) -> None:
    """Fork a process whenever one is asked for; the program of the nursery's process.

    Args:
        descriptor: of the socket over which functions and requests come.
    """
    # What takes long to import is imported here, once. The first array makes pyarrow look for
    # pandas.
    import pyarrow as pa
    from pyspark import cloudpickle  # noqa: F401

    pa.array([0])
    control = socket.socket(fileno=descriptor)
    size = int.from_bytes(_received(control, 8), "big")
    make_sink, rows, preload = pickle.loads(_received(control, size))  # noqa: S301  it comes from our parent, through a socket pair
    for module in preload:
        importlib.import_module(module)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, len(REQUEST), 1)
        if not message:
            return
        if _fork() == 0:
            control.close()
            _Actor(make_sink, rows).serve(socket.socket(fileno=descriptors[0]))
            return
        os.close(descriptors[0])
        _reap()


def _fork() -> int:
    with warnings.catch_warnings():
        # Importing numpy may start threads that take part in nothing here.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the judging process has gone")
        data += more
    return data


class _Actor:
    """Owns a sink as a driver does, or an unpickled one as a task's process does, and calls it
    when told.
    """

    def __init__(
        self,
        make_sink: Callable[[], TwoPhaseCommitSink],
        rows: Callable[[Sequence[int]], pa.RecordBatch],
    ) -> None:
        self._make_sink = make_sink
        self._rows = rows
        self._driver: TwoPhaseCommitSink | None = None
        self._start = StartInfo("", "")
        self._task: TwoPhaseCommitSink | None = None
        self._secrets: Mapping[str, str] = {}
        self._transactions: list[Any] = []

    def serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rwb")
        _answer(stream, json.dumps({"value": os.getpid()}))
        for line in stream:
            method, arguments = json.loads(line)
            try:
                answer = json.dumps({"value": self._do(method, arguments)})
            except Exception as error:  # noqa: BLE001  whatever a sink raises, the other side judges it
                answer = json.dumps(
                    {
                        "error": _described(error),
                        "unavailable": isinstance(error, SinkUnavailableError),
                    }
                )
            _answer(stream, answer)

    def _do(self, method: str, arguments: dict[str, Any]) -> Any:
        crash_at = arguments.pop("crash_at", None)
        function = getattr(self, f"do_{method}")
        if crash_at is None:
            return function(**arguments)
        with _crashing(type(self._driver or self._task), crash_at) as counted:
            function(**arguments)
        return counted()

    # Each of the following is a command.

    def do_start(self, query: str, sink: str) -> None:
        # As a run does: a copy of the user's own, checked, and pickled for the tasks afterwards.
        self._driver = copy.copy(self._make_sink())
        self._start = StartInfo(query, sink)
        self._driver.check(self._start)
        self._load(self._dumped())
        self._secrets = dict(self._driver.secrets())

    def do_unchecked(self, asked: str, query: str, sink: str) -> str:
        made = copy.copy(self._make_sink())
        try:
            return _as_json(getattr(made, asked)(StartInfo(query, sink)), "what it returns")
        finally:
            made.close()

    def do_identity(self) -> str:
        return _as_json(self._of_driver.identity(self._start), "an identity")

    def do_holds(self, batch: int) -> bool | None:
        return self._of_driver.holds(self._start, batch)

    def do_start_task(self, pickled: str, secrets: Mapping[str, str]) -> None:
        self._load(base64.b64decode(pickled))
        self._secrets = secrets

    def do_pickled(self) -> list[Any]:
        return [base64.b64encode(self._dumped()).decode(), dict(self._secrets)]

    def do_texts(self) -> list[str]:
        """Everything that tells of the sink where anybody may read it."""
        attempt = TaskAttempt("q", "out", 1, 1, 0, 0, 0, secrets=self._secrets)
        return [
            self._dumped().decode("latin-1"),
            repr(self._of_driver),
            repr(self._task),
            repr(attempt),
        ]

    def do_begin(self, attempt: Mapping[str, Any]) -> int:
        assert self._task is not None
        reusable = tuple(attempt["reusable"])
        made = TaskAttempt(**{**attempt, "reusable": reusable}, secrets=self._secrets)
        self._transactions.append(self._task.begin_transaction(made))
        return len(self._transactions) - 1

    def do_invoke(self, transaction: int, numbers: Sequence[int]) -> None:
        assert self._task is not None
        with _not_counted():
            rows = self._rows(numbers)
        self._task.invoke(self._transactions[transaction], rows)

    def do_pre_commit(self, transaction: int) -> str | None:
        assert self._task is not None
        committable = self._task.pre_commit(self._transactions[transaction])
        return None if committable is None else _as_json(committable)

    def do_write(self, transaction: int, numbers: Sequence[int]) -> None:
        """Invoke and pre-commit: what a crash may cut anywhere."""
        self.do_invoke(transaction, numbers)
        self.do_pre_commit(transaction)

    def do_discard(self, transaction: int) -> None:
        assert self._task is not None
        self._task.discard(self._transactions[transaction])

    def do_confirm(self, committables: Sequence[Mapping[str, Any]]) -> str:
        return _as_json(list(self._of_driver.confirm(committables)))

    def do_commit(
        self, committables: Sequence[Mapping[str, Any]], generation: int, batch: int
    ) -> dict[str, Any]:
        report = self._of_driver.commit(CommitPermit(generation, 1, batch), committables)
        try:
            contract.check_report(report)
        except contract.BrokenContractError as error:
            raise TypeError(f"commit {error}") from None
        return asdict(report)

    def do_abort(self, committables: Sequence[Mapping[str, Any]]) -> None:
        self._of_driver.abort(committables)

    def do_retire(self, committables: Sequence[Mapping[str, Any]]) -> None:
        self._of_driver.retire(committables)

    def do_recover(self, sweep: Mapping[str, Any]) -> int:
        return self._of_driver.recover(Sweep(**{**sweep, "spared": frozenset(sweep["spared"])}))

    def do_together(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
        """Do several things at once, each on a thread of its own."""
        with ThreadPoolExecutor(len(calls)) as threads:
            futures = [threads.submit(self._do, method, arguments) for method, arguments in calls]
        return [future.result() for future in futures]

    def do_close(self) -> None:
        self._of_driver.close()

    @property
    def _of_driver(self) -> TwoPhaseCommitSink:
        assert self._driver is not None
        return self._driver

    def _dumped(self) -> bytes:
        from pyspark import cloudpickle

        return bytes(cloudpickle.dumps(self._of_driver))  # type: ignore[no-untyped-call]

    def _load(self, data: bytes) -> None:
        self._task = pickle.loads(data)  # noqa: S301  made by our sibling a moment ago, never stored


def _answer(stream: Any, message: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        stream.write(message.encode() + b"\n")
        stream.flush()


def _as_json(value: Any, what: str = "a committable") -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be plain JSON: {error}; it is {value!r}") from error


def _described(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__] or list(frames)
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name})" if own else ""
    return f"{type(error).__name__}: {error}{where}"


@contextlib.contextmanager
def _crashing(sink: type, at: int) -> Iterator[Callable[[], int]]:
    """Count the lines that run in a sink's own code, and kill the process before one of them.

    Args:
        sink: the sink's class; ``_is_own`` says what its own code is.
        at: before which line, counted from 1; 0: none, and the count is the result.
    """
    is_own = functools.cache(functools.partial(_is_own, _places(sink)))
    count = 0

    def in_frame(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001
        nonlocal count
        if event == "line":
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return in_frame

    def new_frame(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001
        return in_frame if is_own(frame.f_code.co_filename) else None

    threading.settrace(new_frame)
    sys.settrace(new_frame)
    try:
        yield lambda: count
    finally:
        sys.settrace(None)
        threading.settrace(None)


@contextlib.contextmanager
def _not_counted() -> Iterator[None]:
    """Run what is no sink's: its lines don't count, and nobody is killed at them."""
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)


_LIBRARY = Path(onceforall.__file__).parent
_TESTING = _LIBRARY / "testing"
_STANDARD = {Path(os.__file__).parent, Path(sysconfig.get_path("stdlib"))}
_INSTALLED = {"site-packages", "dist-packages"}


def _places(sink: type) -> frozenset[Path]:
    """Return the files of a sink's class and of its bases, and the packages that these lie in."""
    files = {
        Path(code.co_filename)
        for made in sink.__mro__
        if made not in TwoPhaseCommitSink.__mro__
        for member in vars(made).values()
        if (code := getattr(member, "__code__", None)) is not None
    }
    packages = set()
    for file in files:
        folder = file.parent
        while folder != folder.parent and (folder / "__init__.py").is_file():
            packages.add(folder)
            folder = folder.parent
    return frozenset(files | packages)


def _is_own(places: frozenset[Path], file: str) -> bool:
    """Whether a file has code of the sink: its class lies in it or in its package; or it is nobody
    else's, for it belongs to neither Python, nor an installed package, nor onceforall.
    """
    path = Path(file)
    within = {path, *path.parents}
    if _TESTING in within:
        return False
    if within & places:
        return True
    others = {*_STANDARD, _LIBRARY}
    return not (file.startswith("<") or within & others or _INSTALLED & set(path.parts))
