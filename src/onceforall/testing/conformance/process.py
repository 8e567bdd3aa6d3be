"""The processes of the conformance suite, as the side that judges has them.

A process that is to be killed at any moment can share nothing with the one that judges. Each driver
and each process of tasks is forked from a nursery, which has imported all that takes long and has
no thread, so that forking it is quick and safe; ``actor`` is what they run. What goes to the
nursery is pickled by pyspark's cloudpickle, as Spark does, and travels in memory only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceforall.sink import TwoPhaseCommitSink
from onceforall.testing.conformance.actor import REQUEST

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa
    from typing_extensions import Self

_DEADLINE_S = 90.0


class CallError(Exception):
    """A call of the sink failed in its process.

    Attributes:
        unavailable: whether it was a ``SinkUnavailableError``.
        died: whether the process ended instead of answering.
    """

    def __init__(self, message: str, *, unavailable: bool = False, died: bool = False) -> None:
        super().__init__(message)
        self.unavailable = unavailable
        self.died = died


class Nursery:
    """A helper process that forks one process after the other."""

    def __init__(
        self,
        make_sink: Callable[[], TwoPhaseCommitSink],
        rows: Callable[[Sequence[int]], pa.RecordBatch],
        preload: Sequence[str] = (),
    ) -> None:
        """Start it.

        Args:
            make_sink: see ``conformance.SinkUnderTest``.
            rows: likewise.
            preload: likewise.

        Raises:
            ValueError: one of the two can't be pickled.
        """
        payload = _pickled(make_sink, rows, tuple(preload))
        self._control, theirs = socket.socketpair()
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        program = (
            "from onceforall.testing.conformance import actor as a; "
            f"a.run_nursery({theirs.fileno()})"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        with contextlib.suppress(BrokenPipeError):
            self._control.sendall(len(payload).to_bytes(8, "big") + payload)
        self._open: list[RemoteProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end_all()
        self._control.close()
        self._process.kill()
        self._process.wait()

    def new(self) -> RemoteProcess:
        """Fork a process."""
        ours, theirs = socket.socketpair()
        made = RemoteProcess(ours)
        self._open.append(made)
        try:
            with theirs:
                socket.send_fds(self._control, [REQUEST], [theirs.fileno()])
            made.pid = int(made.answer())
        except (OSError, CallError) as error:
            raise CallError(
                "The helper process has ended: make_sink or rows can't be unpickled there, or "
                "preload can't be imported; see stderr."
            ) from error
        return made

    def end_all(self) -> None:
        """Kill every process that is still there."""
        for process in self._open:
            process.kill()
        self._open.clear()


class RemoteProcess:
    """One forked process, as the judging side has it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._connection.settimeout(_DEADLINE_S)
        self._stream = connection.makefile("rwb")
        self.pid = 0

    def call(self, method: str, *, deadline_s: float = _DEADLINE_S, **arguments: Any) -> Any:
        """Have something done and return its result.

        Raises:
            CallError: it raised, or the process died.
        """
        self.tell(method, **arguments)
        return self.answer(deadline_s)

    def tell(self, method: str, **arguments: Any) -> None:
        """Have something done without waiting for it."""
        with contextlib.suppress(BrokenPipeError):
            self._stream.write(json.dumps([method, arguments]).encode() + b"\n")
            self._stream.flush()

    def answer(self, deadline_s: float = _DEADLINE_S) -> Any:
        """Return the result of what was told last.

        Raises:
            CallError: see ``call``; or there was no answer within ``deadline_s`` seconds.
        """
        self._connection.settimeout(deadline_s)
        try:
            line = self._stream.readline()
        except TimeoutError:
            raise CallError(f"A call of the sink did not return within {deadline_s:g} s.") from None
        except ConnectionResetError:
            line = b""
        if not line:
            raise CallError("The process died during a call.", died=True)
        answer = json.loads(line)
        if "error" in answer:
            raise CallError(answer["error"], unavailable=answer["unavailable"])
        return answer["value"]

    def outcome(self) -> CallError | None:
        """Wait for the result of what was told last, and return how it failed; None when it did
        not.
        """
        try:
            self.answer()
        except CallError as error:
            return error
        return None

    def kill(self) -> None:
        """Kill it with SIGKILL, and return when it has gone."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.pid = 0
            # Its end of the socket pair is closed by its end.
            self._connection.settimeout(_DEADLINE_S)
            with contextlib.suppress(ConnectionResetError):
                while self._connection.recv(65536):
                    pass
        with contextlib.suppress(BrokenPipeError):
            self._stream.close()
        self._connection.close()

    def freeze(self) -> None:
        """Stop it with SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)


def _pickled(*value: Any) -> bytes:
    """Pickle functions and what goes with them; those of a module that is not installed (a
    test's) by value, for nobody else could import it.
    """
    from pyspark import cloudpickle

    modules = {sys.modules.get(getattr(function, "__module__", None) or "") for function in value}
    by_value = [module for module in modules if module is not None and _is_loose(module)]
    for module in by_value:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ValueError(
            f"make_sink and rows can't be pickled: {error}. Let them close over paths and "
            "addresses, not over connections or fixtures."
        ) from error
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _is_loose(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    return file is None or not {"site-packages", "dist-packages"} & set(Path(file).parts)
