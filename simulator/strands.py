"""Strands of execution of which only one runs at a time, one operation at a time, as the schedule
says: a schedule can be replayed.

Theory of operation. Whatever a process does that others can see is an *operation*, and stands
behind a call of ``point``. A strand runs from one ``point`` to the next and then gives control back
to whoever resumed it; so everything between two operations is one step, and a strand that is not
resumed any more is a process that was killed, or frozen, in front of its next operation. The
strands of a ``Crew`` are the threads of one process. Strands are greenlets: changing from one to
another costs less than a microsecond, and needs neither locks nor the operating system.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

from simulator.violation import Violation


class Killed(BaseException):
    """Ends a strand in front of an operation, as kill -9 would."""


_running: Strand | None = None


def point() -> None:
    """Stand in front of an operation until the schedule lets it happen.

    Outside a strand it happens at once.
    """
    strand = _running
    if strand is None:
        return
    if strand.credit:
        strand.credit -= 1
        strand.used += 1
    else:
        strand.pause()


def running() -> Strand | None:
    """Return the strand that calls; None outside of strands."""
    return _running


class Strand:
    """Runs a function in a greenlet; between steps it stands in front of its next operation.

    Attributes:
        name: for people.
        owner: whose it is: a driver.
        outcome: what the function returned or raised, ``"killed"`` after a kill.
        failed: whether it raised.
        running: whether it has an operation in front of it.
        wakes_at: it sleeps until the clock says so, in ms; None: it doesn't sleep.
        joins: the strand whose end it waits for.
        credit: so many operations it performs without giving control back, where nobody else could
            have it.
        used: so many of them it has performed.
    """

    def __init__(self, name: str, owner: object, function: Callable[[], object]) -> None:
        self.name = name
        self.owner = owner
        self.outcome: Any = None
        self.failed = False
        self.running = True
        self.wakes_at: int | None = None
        self.joins: Strand | None = None
        self.credit = 0
        self.used = 0
        self._killed = False
        self._function = function
        self._greenlet = greenlet(self._run)
        self.resume()

    def is_ready(self, now_ms: int) -> bool:
        """Tell whether it could go on."""
        if self.joins is not None and self.joins.running:
            return False
        return self.wakes_at is None or self.wakes_at <= now_ms

    def resume(self) -> None:
        """Let it perform the operation that it stands in front of, and come to the next one, or to
        its end.

        Raises:
            Violation: it found one.
        """
        global _running  # noqa: PLW0603  only one strand runs, and nothing else
        if not self.running:
            return
        before, _running = _running, self
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()
        _running = before
        if self.failed and isinstance(self.outcome, Violation):
            raise self.outcome

    def pause(self) -> None:
        """Give control back; called by the strand itself."""
        if not self._killed:
            self._greenlet.parent.switch()
        if self._killed:
            raise Killed

    def kill(self) -> None:
        """End it where it stands."""
        self._killed = True
        self.resume()
        assert not self.running, f"{self.name} survived"

    def _run(self) -> None:
        try:
            self.outcome = self._function()
        except Killed:
            self.outcome = "killed"
        except BaseException as error:  # noqa: BLE001  its owner judges it
            self.outcome, self.failed = error, True
        self.running = False


class _Result:
    """What ``Executor.submit`` returns: as much of a future as the coordinator uses."""

    def __init__(self, strand: Strand) -> None:
        self._strand = strand

    def result(self) -> Any:
        """Wait for the strand, and return or raise what it came to."""
        waiting = _running
        while self._strand.running:
            assert waiting is not None
            waiting.joins = self._strand
            waiting.pause()
            waiting.joins = None
        if self._strand.failed:
            raise self._strand.outcome
        return self._strand.outcome


class Crew:
    """The threads of one process.

    Args:
        owner: the process.
        choose: which of so many strands goes next; called only where there are several.
        now_ms: reads the world's clock.
        pass_time: moves the clock on to a time in ms.
    """

    def __init__(
        self,
        owner: object,
        choose: Callable[[int], int],
        now_ms: Callable[[], int],
        pass_time: Callable[[int], None],
    ) -> None:
        self.strands: list[Strand] = []
        self.operations = 0
        self._owner, self._choose, self._now_ms, self._pass_time = owner, choose, now_ms, pass_time

    def spawn(self, name: str, function: Callable[[], object]) -> Strand:
        """Start a strand, up to its first operation."""
        strand = Strand(name, self._owner, function)
        if strand.running:
            self.strands.append(strand)
            if _running is not None:
                # From now on there is another one that could go on.
                _running.credit = 0
        return strand

    def sleep(self, seconds: float) -> None:
        """Sleep by the world's clock: an operation; called by a strand of this crew."""
        strand = _running
        assert strand is not None
        strand.wakes_at = self._now_ms() + round(seconds * 1000)
        strand.pause()
        strand.wakes_at = None

    def step(self, operations: int) -> None:
        """Perform so many operations, or fewer when nothing is left to do.

        Where all sleep, time passes.
        """
        left = operations
        while left > 0:
            strand = self._next()
            if strand is None:
                return
            strand.credit, strand.used = (left - 1 if len(self.strands) == 1 else 0), 0
            strand.resume()
            strand.credit = 0
            left -= 1 + strand.used
            self.operations += 1 + strand.used
            if not strand.running:
                self.strands.remove(strand)

    def kill(self) -> None:
        """End all strands where they stand."""
        for strand in self.strands:
            strand.kill()
        self.strands = []

    # What the coordinator needs of an executor.

    def submit(self, function: Callable[..., object], *arguments: object) -> _Result:
        """Start a function in a strand of its own."""
        return _Result(self.spawn("thread", lambda: function(*arguments)))

    def shutdown(self, *, wait: bool = False) -> None:
        """Nothing to release."""

    def _next(self) -> Strand | None:
        if len(self.strands) == 1:
            (only,) = self.strands
            # The usual case, which costs most of a schedule's time.
            if only.wakes_at is None and only.joins is None:
                return only
        now = self._now_ms()
        ready = [s for s in self.strands if s.is_ready(now)]
        if not ready:
            wakes = [s.wakes_at for s in self.strands if s.wakes_at is not None]
            if not wakes:
                return None
            self._pass_time(min(wakes))
            ready = [s for s in self.strands if s.is_ready(min(wakes))]
        return ready[self._choose(len(ready))] if len(ready) > 1 else ready[0]
