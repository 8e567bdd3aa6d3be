"""Closes sinks: each of them, whatever another one raises, which would hide why they are closed."""

from __future__ import annotations

from collections.abc import Mapping

from onceforall.common import logs
from onceforall.errors import described
from onceforall.sink import TwoPhaseCommitSink

logger = logs.logger("onceforall")


def close_all(sinks: Mapping[str, TwoPhaseCommitSink]) -> None:
    """Release what the sinks hold on the driver; what one raises is a warning with its name.

    Args:
        sinks: by name.
    """
    for name, sink in sinks.items():
        close(name, sink)


def close(name: str, sink: TwoPhaseCommitSink) -> None:
    """Release what a sink holds; see ``close_all``."""
    try:
        sink.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001  nothing rests on it
        logger.warning(
            "closing sink %s: %s. What it holds is released when the process ends.",
            name,
            described(error),
        )
