"""Ends the queries of a process in order, when the process ends: what isn't decided is aborted,
what is decided is committed.

Without that an open transaction keeps the readers of its partitions waiting until the next start or
``transaction.timeout.ms``.

Three ways lead here:

- **The program ends**: by its last line, by an exception, by Ctrl-C (a ``KeyboardInterrupt``), by
  ``sys.exit``. A thread of ours, which is not a daemon, waits for that; Python ends when this
  thread does. (``atexit`` is too late: no thread can be started there in Python 3.12 and later.)
- **SIGTERM**, whose default is to end the process on the spot. ``arm`` installs a handler where
  nothing but the default is installed, and in the main thread only, for Python allows no other. It
  ends the queries and then the process, by the same signal. The program's own code is not called,
  as without the handler.
- **SIGINT** while Python waits for other threads, its main thread having ended: a
  ``KeyboardInterrupt`` would end that waiting and the process with it. ``arm`` puts a handler
  around Python's or PySpark's own, and around no other, which does then what SIGTERM's does.
- **The query is stopped, or its JVM ends**, and the program goes on: the batch fails, and the
  coordinator aborts it. That needs nothing of this module.

Promised: nothing that may be decided is aborted, for a batch that is under way goes its own way to
its end; no batch begins any more; a second signal ends the process at once, in a state that the
next start mends. Not promised: that it is done within ``STOPS_WITHIN_S``, where a sink or the
user's function doesn't answer; the process then ends, and the next start mends it, too.

A child process made by ``fork`` has no part in this: the queries are its parent's.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, Protocol

from onceforall.common.threads import Threads, start_thread
from onceforall.errors import QueryStoppedError, text_of

logger = logging.getLogger("onceforall")

STOPS_WITHIN_S = 20.0
"""Kubernetes sends SIGKILL 30 seconds after SIGTERM."""


SPARK_ENDS_WITHIN_S = 5.0
"""How long Spark is given for its own part, when everything is done on the sinks."""


class Run(Protocol):
    """A run of a query, as this module sees it; ``runs`` has the real one."""

    def ask_to_stop(self) -> None:
        """Ask Spark to stop the query.

        It may block until the batch has ended, and raise whatever it likes.
        """

    def settle(self, until_s: float) -> None:
        """Finish what is left when no batch is under way: the last DONE, and the sweep of what
        late tasks have opened.
        """


class Stopping:
    """The runs of one process, and whether they are being stopped."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._runs: dict[Run, None] = {}
        self._batches = 0
        self._begun = False
        self._ended = False

    @property
    def begun(self) -> bool:
        """Whether the process is ending, so that no batch may begin."""
        return self._begun

    def refuse_new_work(self) -> None:
        """Refuse to begin what would have to be aborted again.

        Raises:
            QueryStoppedError: the process is ending.
        """
        if self._begun:
            raise QueryStoppedError(
                "the process is ending, so the batch was not begun. Nothing was written; the next "
                "start writes it."
            )

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Mark that a batch is under way, which ``stop_all`` waits for.

        Raises:
            QueryStoppedError: the process is ending.
        """
        with self._changed:
            self.refuse_new_work()
            self._batches += 1
        try:
            yield
        finally:
            with self._changed:
                self._batches -= 1
                self._changed.notify_all()

    def add(self, run: Run) -> None:
        """Let a run be stopped when the process ends."""
        with self._changed:
            self._runs[run] = None

    def remove(self, run: Run) -> None:
        """Forget a run that has ended, with nothing left to do."""
        with self._changed:
            self._runs.pop(run, None)

    def stop_all(self, within_s: float = STOPS_WITHIN_S) -> None:
        """Stop every run in order, and return when that is done, or the time is over.

        Who comes second waits for the first.
        """
        until_s = time.monotonic() + within_s
        with self._changed:
            is_first, self._begun = not self._begun, True
            runs, busy = list(self._runs), self._batches
            if not is_first:
                self._wait(lambda: self._ended, until_s)
                return
        try:
            if runs or busy:
                logger.info("the process is ending: %d queries are stopped in order", len(runs))
                self._stop(runs, until_s)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _stop(self, runs: list[Run], until_s: float) -> None:
        # In threads of their own: the JVM may hang, or be gone, and what is to be done on the sinks
        # needs none.
        asked = [_in_background(run.ask_to_stop) for run in runs]
        with self._changed:
            if not self._wait(lambda: self._batches == 0, until_s):
                logger.warning(
                    "a batch has not ended within %.0f s, and the process ends all the same. "
                    "Nothing is lost or duplicated: the next start of the query "
                    "completes or aborts it. Until then, or until transaction.timeout.ms has "
                    "passed, readers wait behind its open transactions.",
                    STOPS_WITHIN_S,
                )
                return
        with Threads(len(runs) or 1, thread_name_prefix="onceforall-settle") as threads:
            for run in runs:
                threads.submit(_quietly, run, until_s)
        # Spark ends the query by itself meanwhile, and tells its listeners.
        until_s = min(until_s, time.monotonic() + SPARK_ENDS_WITHIN_S)
        for thread in asked:
            if thread is threading.current_thread():
                continue
            thread.join(max(0.0, until_s - time.monotonic()))

    def _wait(self, condition: Callable[[], bool], until_s: float) -> bool:
        while not condition():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            self._changed.wait(left_s)
        return True


PROCESS = Stopping()
"""That of this process."""

_armed = threading.Lock()
_waiter: threading.Thread | None = None


_repeated: signal.Handlers = signal.SIG_DFL
"""What a second signal does."""


def arm(*, repeats: bool = False) -> None:
    """Let this process's queries be stopped in order when it ends; see the module's docstring.
    Worth calling again from the main thread.

    Args:
        repeats: whoever ends this process sends its signal twice, as Spark does to its children,
            and means one end in order.
    """
    global _waiter, _repeated  # noqa: PLW0603  one per process
    _repeated = signal.SIG_IGN if repeats else signal.SIG_DFL
    with _armed:
        if _waiter is None:
            _waiter = threading.Thread(
                target=_wait_for_the_end, name="onceforall-stopper", daemon=False
            )
            _waiter.start()
    stop_on_sigterm()


def stop_on_sigterm() -> bool:
    """Let SIGTERM stop all queries of this process in order before it ends the process, and Ctrl-C,
    too, behind the program's last line; ``start()`` calls it.

    Call it in the main thread where ``start()`` is called in another one. A handler of your own
    stays in force, also when it is installed later; let it raise ``SystemExit`` (``sys.exit(0)``),
    and the queries are stopped in order, too.

    Returns:
        Whether our handler is installed: False in any thread but the main one, and where another
        handler is, or SIGTERM is ignored.

    The handler waits for at most 20 seconds. The process then ends by the signal, as without the
    handler: exit code 143 in a shell and in Kubernetes, a clean end to systemd. No ``finally`` and
    no ``atexit`` of the program is run. A second SIGTERM ends it at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end_in_order)
    _wrap_interrupt()
    return signal.getsignal(signal.SIGTERM) is _end_in_order


def _end_in_order(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    signal.signal(number, _repeated)
    if PROCESS.begun:
        _end(number)
    try:
        # In another thread: this one was interrupted anywhere, and may hold any lock.
        ending = threading.Thread(
            target=_stop_and_end, args=[number], name="onceforall-signal", daemon=True
        )
        ending.start()
        ending.join(STOPS_WITHIN_S + 1)
    finally:
        # Also when Ctrl-C came meanwhile: whoever sends a second signal wants the end.
        _end(number)


def _stop_and_end(number: int) -> None:
    try:
        PROCESS.stop_all()
    finally:
        _end(number)


def _end(number: int) -> NoReturn:
    # To this thread, so that it is delivered before the call returns.
    signal.pthread_kill(threading.get_ident(), number)
    # Process 1 of a container gets no signal that it doesn't handle.
    os._exit(128 + number)


_wrapped: Callable[[int, FrameType | None], Any] = signal.default_int_handler
"""The handler for SIGINT that was there, which is called while the program's main thread is at
work."""


def _wrap_interrupt() -> None:
    global _wrapped  # noqa: PLW0603  one per process
    handler = signal.getsignal(signal.SIGINT)
    # PySpark's cancels all jobs and raises KeyboardInterrupt. One of the user's own is theirs to
    # keep.
    if callable(handler) and (
        handler is signal.default_int_handler
        or str(getattr(handler, "__module__", "")).startswith("pyspark.")
    ):
        _wrapped = handler
        signal.signal(signal.SIGINT, _on_interrupt)


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    if _is_over(frame):
        _end_in_order(number, frame)
    try:
        _wrapped(number, frame)
    except Exception as error:
        # Before 4.2, PySpark's raises what became of cancelling the jobs, which it can't do while
        # the main thread itself waits for the JVM.
        raise KeyboardInterrupt from error


def _is_over(frame: FrameType | None) -> bool:
    """Tell whether the program's last line is done, and the main thread, which runs handlers,
    only waits for others.
    """
    if not threading.main_thread().is_alive():
        return True
    while frame is not None:
        if frame.f_code.co_name == "_shutdown" and frame.f_code.co_filename == threading.__file__:
            return True
        frame = frame.f_back
    return False


def _wait_for_the_end() -> None:
    """Wait until Python would end, as it does when its main thread and every other one that is
    not a daemon have ended; then stop the runs.
    """
    threading.main_thread().join()
    this = threading.current_thread()
    while others := [
        thread
        for thread in threading.enumerate()
        if thread.is_alive() and not thread.daemon and thread not in {this, threading.main_thread()}
    ]:
        others[0].join()
    PROCESS.stop_all()


def _in_background(action: Callable[[], object]) -> threading.Thread:
    def quietly() -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  the JVM may be gone, and the query with it
            logger.debug("asking Spark to stop the query had no answer: %s", text_of(error))

    return start_thread(quietly, "onceforall-stop")


def _quietly(run: Run, until_s: float) -> None:
    try:
        run.settle(until_s)
    except Exception as error:  # noqa: BLE001  the next start does it
        logger.warning(
            "clearing up behind a stopped query did not succeed; its next start does it: %s",
            text_of(error),
        )


def _forget_the_parents() -> None:
    global PROCESS, _armed, _waiter
    # All of it is the parent's.
    PROCESS, _armed, _waiter = Stopping(), threading.Lock(), None
    if signal.getsignal(signal.SIGTERM) is _end_in_order:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is _on_interrupt:
        signal.signal(signal.SIGINT, _wrapped)


os.register_at_fork(after_in_child=_forget_the_parents)
