"""Sweeps what earlier runs left, again and again, beside a run's batches: tasks of a dead or
frozen driver may open transactions for a while.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial

from onceforall.commit_log import CommitLog
from onceforall.common import logs
from onceforall.common.threads import start_thread
from onceforall.driver.closing import SINK_ERRORS, close, close_all
from onceforall.driver.swept import swept
from onceforall.errors import text_of
from onceforall.failpoints import points as failpoints
from onceforall.protocol.sweeping import Sweep
from onceforall.sink import TwoPhaseCommitSink

logger = logs.logger("onceforall")

SWEEP_AGAIN_AFTER_S = (1, 2, 4, 8, 15, 30, 60)
"""A dead or frozen predecessor's tasks can open transactions for a while; the last interval
repeats."""

SWEEPS_AFTER_THE_END = 4
"""So many behind the one that finds the run ended, at the first of these intervals: tasks of it may
open transactions until Spark has killed them."""

SLOW_SWEEP_S = 10
"""For so long it is waited for the sweeps of a turn, of a start and of an aborted attempt: a sink
that gives no answer must neither keep the others' transactions open nor the query from ending."""


class Sweeper:
    """The repeated sweeps of one run, and the cleaning of its log.

    Args:
        sinks: the run's sinks, by name.
        log: the run's log.
        is_active: whether Spark still runs the run.
        may_take_another: whether a batch of the run is under way or may still come.
        leftovers: sweeps with the run's own generation; none where it left nothing.
        forget_aborted: deletes the kept rows of an aborted attempt.
    """

    def __init__(
        self,
        sinks: Mapping[str, TwoPhaseCommitSink],
        log: CommitLog,
        *,
        is_active: Callable[[], bool],
        may_take_another: Callable[[], bool],
        leftovers: Callable[[], Mapping[str, Sweep]],
        forget_aborted: Callable[[], None],
    ) -> None:
        self._sinks = sinks
        self._log = log
        self._is_active = is_active
        self._may_take_another = may_take_another
        self._leftovers = leftovers
        self._forget_aborted = forget_aborted
        self._sweeps: Mapping[str, Sweep] = {}
        self._sealed_below = 0
        self._is_clean = True
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._failing: set[str] = set()
        # Per sink: how many have been asked for by ``patiently``, how many of them what is repeated
        # covers, and how many of them are done.
        self._asked: defaultdict[str, int] = defaultdict(int)
        self._covered: Mapping[str, int] = {}
        self._done: defaultdict[str, int] = defaultdict(int)
        self._changed = threading.Event()
        self._closed = threading.Event()

    def close(self) -> None:
        """End the sweeps."""
        self._closed.set()
        self._changed.set()

    def last_sweeps(self) -> Mapping[str, Sweep]:
        """Return the sweeps of a run that is being stopped: with its own generation, if late
        task attempts may still write there.
        """
        if self._may_take_another():
            return self._sweeps
        return self._leftovers() or self._sweeps

    def repeat(self, sweeps: Mapping[str, Sweep], sealed_below: int) -> None:
        """Sweep these from now on, and clean the log below a generation."""
        self._sweeps, self._covered, self._sealed_below = sweeps, dict(self._asked), sealed_below
        self._is_clean = False
        self._changed.set()

    def settle(self, leftovers: Mapping[str, Sweep], within_s: float) -> None:
        """Sweep once more when the process ends: what late task attempts may have opened; and where
        the last sweep or abort failed or goes on, behind it.

        Args:
            leftovers: sweeps with the run's own generation; none where it left nothing.
            within_s: for so many seconds it is waited for.
        """
        again = {
            name: sweep
            for name, sweep in self._sweeps.items()
            if name in self._failing or self._done[name] < self._asked[name]
        }
        self._covered = dict(self._asked)
        self.sweep_all(leftovers or again, within_s)

    def soon(self) -> None:
        """Sweep soon, for a batch has failed: the run may have ended, and a sink may hold a
        transaction with its locks until it is closed.
        """
        self._changed.set()

    def until_the_end(self) -> None:
        """Clean the log after each start or roll, and sweep again and again, until shortly after
        the run has ended; then close the sinks.

        Whoever closes the run closes them too, but only another run of the process does that, and a
        sweep beside it connects again.
        """
        try:
            self._sweep_until_the_end()
        finally:
            if self._closed.is_set() or not self._may_take_another():
                self._close_sinks()

    def _sweep_until_the_end(self) -> None:
        turn = ended = 0
        while not self._closed.is_set():
            if self._changed.wait(
                timeout=SWEEP_AGAIN_AFTER_S[min(turn, len(SWEEP_AGAIN_AFTER_S) - 1)]
            ):
                self._changed.clear()
                turn = 0
                if not self._is_clean:
                    self._is_clean = True
                    self._clean()
                continue
            turn += 1
            last = not self._is_active()
            if last:
                # The intervals begin anew: those of a run that has lived for long are long.
                turn, ended = ended, ended + 1
            self.sweep_all(self._due(self.last_sweeps() if last else self._sweeps))
            self._forget_aborted()
            if ended > SWEEPS_AFTER_THE_END:
                return

    def _close_sinks(self) -> None:
        under_way = {name for name in self._sinks if self._turns[name].locked()}
        for name in under_way:
            # It would connect again.
            start_thread(partial(self._close_behind_its_sweep, name), "onceforall-close")
        close_all({name: sink for name, sink in self._sinks.items() if name not in under_way})

    def _close_behind_its_sweep(self, name: str) -> None:
        with self._turns[name]:
            close(name, self._sinks[name])

    def _due(self, sweeps: Mapping[str, Sweep]) -> Mapping[str, Sweep]:
        """Leave out the sinks whose last sweep has not ended: each would cost one more thread."""
        return {name: sweep for name, sweep in sweeps.items() if not self._turns[name].locked()}

    def sweep_all(self, sweeps: Mapping[str, Sweep], within_s: float | None = None) -> None:
        """Sweep sinks beside one another; what fails is logged, and done by a later turn.

        Args:
            sweeps: by the name of the sink.
            within_s: for so many seconds it is waited for; what takes longer goes on. None:
                ``SLOW_SWEEP_S``.
        """
        # Each on its own: one that is away must not hold back the others.
        self._beside(
            {
                name: partial(
                    self._noting,
                    name,
                    partial(self._sweep, name, sweep),
                    self._covered_by(name, sweep),
                )
                for name, sweep in sweeps.items()
            },
            SLOW_SWEEP_S if within_s is None else within_s,
        )

    def _covered_by(self, name: str, sweep: Sweep) -> int:
        # An older one may have nothing of what was asked for since.
        return self._covered.get(name, 0) if sweep == self._sweeps.get(name) else 0

    def patiently(self, name: str, action: Callable[[], bool]) -> None:
        """Sweep a sink, or abort there, in the order of others who do so; what takes longer than
        ``SLOW_SWEEP_S`` goes on, and is no longer waited for.

        Args:
            name: of the sink.
            action: tells whether it succeeded, and raises nothing.
        """
        # At once: its turn may not come.
        self._asked[name] += 1
        number = self._asked[name]
        self._beside({name: partial(self._noting, name, action, number)}, SLOW_SWEEP_S)

    def _noting(self, name: str, action: Callable[[], bool], number: int) -> None:
        if action():
            self._failing.discard(name)
            self._done[name] = max(self._done[name], number)
        else:
            self._failing.add(name)

    def _beside(self, actions: Mapping[str, Callable[[], object]], within_s: float) -> None:
        until, done = time.monotonic() + within_s, set[str]()
        in_turn = logs.carried(self._in_turn)
        threads = {
            name: start_thread(partial(in_turn, name, action, until, done), "onceforall-sweep")
            for name, action in actions.items()
        }
        for name, thread in threads.items():
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
            if name not in done:
                logger.warning(
                    "sweeping sink %s has not ended in %.0f s, and is no longer waited for",
                    name,
                    max(0.0, within_s),
                )

    def _in_turn(
        self, name: str, action: Callable[[], object], until: float, done: set[str]
    ) -> None:
        turn = self._turns[name]
        if not turn.acquire(timeout=max(0.0, until - time.monotonic())):
            return  # The one before it goes on, and whoever has waited for that has said so.
        try:
            action()
            done.add(name)
        finally:
            turn.release()

    def _sweep(self, name: str, sweep: Sweep) -> bool:
        try:
            failpoints.hit("sweeper.before")
            with logs.about(sink=name):
                swept(self._sinks[name], sweep)
            failpoints.hit("sweeper.after")
        except SINK_ERRORS as error:  # the next turn does it
            logger.warning("sweeping sink %s is tried again later: %s", name, text_of(error))
            return False
        return True

    def _clean(self) -> None:
        try:
            self._log.clean(self._sealed_below)
            failpoints.hit("sweeper.cleaned")
        except Exception as error:  # noqa: BLE001  old entries cost space only
            logger.warning(
                "cleaning the commit log is tried again at the next start: %s", text_of(error)
            )
