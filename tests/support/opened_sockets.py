"""Sockets that tell where they were opened, for the warning that nobody has closed one.

Python warns when it collects a socket that is still open, and that may be many tests later: without
this the message names two ports, and a test that has nothing to do with it.
"""

from __future__ import annotations

import socket
import traceback
from itertools import islice

_FRAMES = 8
_opened: dict[int, str] = {}
"""By ``id``: what is in a cycle has lost its weak references when it is warned of."""


def tell_where_sockets_are_opened() -> None:
    """From now on the ``repr`` of each new socket ends with who has opened it."""
    make, show = socket.socket.__init__, socket.socket.__repr__

    def made(self, *arguments, **options):
        make(self, *arguments, **options)
        frames = islice(traceback.walk_stack(None), _FRAMES)
        _opened[id(self)] = " < ".join(f"{frame.f_code.co_filename}:{n}" for frame, n in frames)

    def shown(self):
        return f"{show(self)} opened at {_opened.get(id(self), 'an unknown place')}"

    socket.socket.__init__, socket.socket.__repr__ = made, shown
