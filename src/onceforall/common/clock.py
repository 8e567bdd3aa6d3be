"""The clock by which the time that is left of a transaction's timeout is measured."""

from __future__ import annotations

import time

# CLOCK_MONOTONIC stands still on Linux while the machine is suspended (clock_gettime(2)), and the
# brokers' clocks don't; elsewhere there is only that one, and on macOS it goes on.
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Return seconds since some moment before this process began; they go on while the machine
    is suspended.
    """
    return time.clock_gettime(_CLOCK)
