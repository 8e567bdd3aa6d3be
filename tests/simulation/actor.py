"""Threads of which only one runs at a time, for so many operations as the scheduler says: a schedule can be replayed."""

from __future__ import annotations

import threading


class Killed(BaseException):
    """Ends an actor in front of an operation, as kill -9 would."""


_local = threading.local()


def point():
    """Stand in front of an operation until the scheduler lets it happen. Outside an actor it happens at once."""
    actor = getattr(_local, "actor", None)
    if actor is not None:
        actor.wait_for_turn()


class Actor:
    """Runs a function in a thread; between steps it stands in front of its next operation."""

    def __init__(self, name, function):
        self.name = name
        self.outcome = None
        self.running = True
        self._credit = 0
        self._killed = False
        self._mine = threading.Semaphore(0)
        self._yours = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True, name=name)
        self._thread.start()
        self._yours.acquire()

    def _run(self, function):
        _local.actor = self
        try:
            self.outcome = function()
        except Killed:
            self.outcome = "killed"
        except BaseException as error:
            self.outcome = error
        self.running = False
        self._yours.release()

    def wait_for_turn(self):
        if self._credit == 0:
            self._yours.release()
            self._mine.acquire()
        if self._killed:
            raise Killed
        self._credit -= 1

    def step(self, operations=1):
        """Let it perform so many operations, and stop in front of the next one (or at its end)."""
        if self.running:
            self._credit = operations
            self._mine.release()
            self._yours.acquire()
            self._credit = 0

    def kill(self):
        """End it where it stands."""
        if self.running:
            self._killed = True
            self.step()
        self._thread.join()
