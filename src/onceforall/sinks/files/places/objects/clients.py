"""Clients of a kind of store, one for each process and settings: making one takes a tenth of a
second, and its connections are kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

Made = tuple[Any, Callable[[], None]]
"""A client, and what closes its connections."""
_KEPT = 8


class Clients:
    """The clients that were used last. Safe for several threads."""

    def __init__(self, make: Callable[[Mapping[str, str]], Made], most: int = _KEPT) -> None:
        """No client is made yet.

        Args:
            make: makes one, from settings.
            most: how many are kept. Of one that is dropped the idle connections are closed; those
                in use are when their request has ended.
        """
        self._make = make
        self._most = most
        self._lock = threading.Lock()
        self._made: dict[tuple[int, tuple[tuple[str, str], ...]], Made] = {}

    def of(self, settings: Mapping[str, str], **more: str) -> Any:
        """Return the client for some settings.

        Args:
            settings: of the client.
            more: what else it depends on.
        """
        key = os.getpid(), tuple(sorted({**settings, **more}.items()))
        with self._lock:
            if key not in self._made:
                while len(self._made) >= self._most:
                    oldest = next(iter(self._made))
                    _, close = self._made.pop(oldest)
                    if oldest[0] == os.getpid():  # a fork has its parent's connections
                        close()
                self._made[key] = self._make(settings)
            return self._made[key][0]
