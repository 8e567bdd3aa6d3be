"""Closes sinks: each of them, whatever another one raises, which would hide why they are closed, or
however long another one takes.
"""

from __future__ import annotations

import builtins
import threading
import time
from asyncio import CancelledError
from collections.abc import Mapping
from functools import partial

from onceforall.common import logs
from onceforall.common.threads import start_thread
from onceforall.errors import described
from onceforall.sink import TwoPhaseCommitSink

logger = logs.logger("onceforall")

_GROUP: type[BaseException] = getattr(builtins, "BaseExceptionGroup", Exception)

SINK_ERRORS = (Exception, CancelledError, _GROUP, SystemExit)
"""What a call of a sink raises when it fails. A client that works with asyncio may raise
``CancelledError``, or a group of such, which are no ``Exception``, and ``sys.exit()`` in a sink
ends nothing; a ``KeyboardInterrupt`` is Ctrl-C. Before Python 3.11 there are no groups."""

SLOW_CLOSE_S = 10.0
"""For so long it is waited until sinks are closed: one that hangs must not keep the next start of
the query, nor the end of the process, waiting."""


def close_all(sinks: Mapping[str, TwoPhaseCommitSink]) -> None:
    """Release what the sinks hold on the driver, beside one another; what one raises is a warning
    with its name, and so is that one takes more than ``SLOW_CLOSE_S``, and goes on.

    Args:
        sinks: by name.
    """
    until = time.monotonic() + SLOW_CLOSE_S
    threads = {
        name: start_thread(logs.carried(partial(close, name, sink)), "onceforall-close")
        for name, sink in sinks.items()
    }
    for name, thread in threads.items():
        if thread is threading.current_thread():
            continue
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            logger.warning(
                "closing sink %s has not ended in %.0f s, and is no longer waited for. What it "
                "holds is released when the process ends.",
                name,
                SLOW_CLOSE_S,
            )


def close(name: str, sink: TwoPhaseCommitSink) -> None:
    """Release what a sink holds; see ``close_all``."""
    try:
        sink.close()
    except (*SINK_ERRORS, KeyboardInterrupt) as error:
        logger.warning(
            "closing sink %s: %s. What it holds is released when the process ends.",
            name,
            described(error),
        )
