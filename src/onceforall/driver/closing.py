"""Closes sinks: each of them, whatever another one raises, which would hide why they are closed."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Mapping
from contextlib import ExitStack

from onceforall.common import logs
from onceforall.errors import described
from onceforall.sink import TwoPhaseCommitSink

logger = logs.logger("onceforall")

SINK_ERRORS = (Exception, CancelledError)
"""What a call of a sink raises when it fails. A client that works with asyncio may raise
``CancelledError``, which is no ``Exception``; a ``KeyboardInterrupt`` is Ctrl-C."""


def close_all(sinks: Mapping[str, TwoPhaseCommitSink]) -> None:
    """Release what the sinks hold on the driver; what one raises is a warning with its name, and
    Ctrl-C is raised behind the last.

    Args:
        sinks: by name.
    """
    with ExitStack() as stack:
        for name, sink in reversed([*sinks.items()]):
            stack.callback(close, name, sink)


def close(name: str, sink: TwoPhaseCommitSink) -> None:
    """Release what a sink holds; see ``close_all``."""
    try:
        sink.close()
    except (*SINK_ERRORS, SystemExit) as error:
        logger.warning(
            "closing sink %s: %s. What it holds is released when the process ends.",
            name,
            described(error),
        )
