"""Ctrl-C for commands that ask a store: its client may wait for an answer outside of Python, where
nobody hears the interrupt, for minutes.

Such a command may be killed at any moment and repeated, so it is ended like that when it hasn't
ended by itself soon.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 128 + signal.SIGINT
"""The exit code after Ctrl-C."""

_SOON_S = 2.0
_SAID = b"onceforall: interrupted while it waited for an answer. The command may be repeated.\n"


@contextmanager
def ends_soon_when_interrupted() -> Iterator[None]:
    """End the process two seconds after Ctrl-C, where the body hasn't ended by then.

    Nothing is done where interrupts are somebody else's: in a thread, in a program with a handler
    of its own, or in the background of a shell, which ignores them.
    """
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    ended = threading.Event()

    def watch() -> None:
        while number := os.read(heard, 1):
            if number[0] == signal.SIGINT and not ended.wait(_SOON_S):
                os.write(2, _SAID)
                os._exit(INTERRUPTED)

    # Python writes there when the signal comes, and not when its main thread looks.
    before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, name="onceforall-interrupt", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        os.close(tell)
        watcher.join()
        os.close(heard)
