"""Records that go into a stream while a test kills what reads it."""

from __future__ import annotations

import itertools
import threading


class Feed:
    """Puts records into a stream until the test ends, and changes its parts now and then."""

    def __init__(self, stream, changes):
        self.stream, self._changes, self._over = stream, changes, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        turns = itertools.cycle(self._changes)
        for count in itertools.count(1):
            if self._over.wait(0.3):
                return
            self.stream.put(7)
            if count % 25 == 0:
                next(turns)()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
