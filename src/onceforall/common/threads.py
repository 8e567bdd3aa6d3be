"""Threads that also do their work while Python ends: a batch that is decided then is still
committed, and what isn't is aborted.

As soon as the main thread has ended, no ``ThreadPoolExecutor`` of Python's takes work any more
("cannot schedule new futures after interpreter shutdown"), though threads may still be running and
the queries are only then being stopped (module ``stopping``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

GIVEN_UP_S = 1.0
"""How long something is still waited for from the moment at which it is given up."""


def start_thread(action: Callable[[], object], name: str) -> threading.Thread:
    """Do something in a daemon thread; where Python starts none any more, which it refuses in
    3.12.0 and 3.12.1 behind the main thread's end, do it before returning.

    Returns:
        The thread, which may have ended.
    """
    thread = threading.Thread(target=action, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        if threading.main_thread().is_alive():
            raise
        action()
        return threading.current_thread()
    return thread


def result_within(action: Callable[[], T], seconds: float, given_up: Callable[[], bool]) -> T:
    """Return what an action comes to, if it does so soon; else it goes on, and nobody waits.

    Args:
        action: done in a daemon thread.
        seconds: for how long it is waited for.
        given_up: whether it is waited for ``GIVEN_UP_S`` at most from now on.

    Raises:
        TimeoutError: it has come to nothing by then.
    """
    future: Future[T] = Future()

    def act() -> None:
        try:
            future.set_result(action())
        except BaseException as error:  # noqa: BLE001  a future hands on whatever was raised
            future.set_exception(error)

    until, hurried = time.monotonic() + seconds, False
    start_thread(act, "onceforall-asks")
    while not wait([future], max(0.0, min(until - time.monotonic(), 0.1))).done:
        if not hurried and given_up():
            until, hurried = min(until, time.monotonic() + GIVEN_UP_S), True
        if time.monotonic() >= until:
            raise TimeoutError("no answer in time")
    return future.result()


class Threads(ThreadPoolExecutor):
    """A ``ThreadPoolExecutor`` whose work is done by the caller, before ``submit`` returns, when
    the main thread has ended.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do the work in a thread, as ``Executor.submit`` does.

        Raises:
            RuntimeError: the pool was shut down.
        """
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            if threading.main_thread().is_alive():
                raise
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  a future hands on whatever was raised
            future.set_exception(error)
        return future
