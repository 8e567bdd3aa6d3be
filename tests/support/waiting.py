"""Waiting for a state, never for a time."""

import time


def until(condition, deadline_s=20.0, what="the condition"):
    """Poll until the condition holds, and return what it gave."""
    end = time.monotonic() + deadline_s
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < end, (
            f"not within {deadline_s} s: {what}; the last answer was {result!r}"
        )
        time.sleep(0.02)


class Story:
    """A text that is made when it is wanted."""

    def __init__(self, tell):
        self._tell = tell

    def __str__(self):
        return str(self._tell())
