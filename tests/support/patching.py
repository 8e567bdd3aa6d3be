"""Replacements of what a whole process shares, for the thread that asks for them alone.

Threads of earlier tests, of py4j's and of servers go on beside a test; a `time.sleep` that returns
at once makes them spin, and their calls would be counted as the test's.
"""

from __future__ import annotations

import functools
import threading


def replace_here(monkeypatch, owner, name, replacement):
    """Replace a function of a shared module until the test's end; other threads get the real one.

    Args:
        monkeypatch: pytest's.
        owner: the module or class.
        name: the function's name.
        replacement: what this thread calls.
    """
    real, mine = getattr(owner, name), threading.get_ident()

    @functools.wraps(real)
    def either(*args, **named):
        called = replacement if threading.get_ident() == mine else real
        return called(*args, **named)

    monkeypatch.setattr(owner, name, either)
