"""Whether the server of Spark Connect is there whose child this process is."""

from __future__ import annotations

import os

__all__ = ["server_is_gone"]

_PARENT = os.getppid()


def server_is_gone() -> bool:
    """Tell whether the server whose child this process is has ended; Linux and macOS give the
    child another parent then.
    """
    return os.getppid() != _PARENT
