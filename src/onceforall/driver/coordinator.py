"""The only driver of the protocol: it observes facts, feeds them to ``protocol.machine``, and
executes what comes out.

It decides nothing. The caller's sequence, once per call of ``foreachBatch``::

    coordinator.request(batch, offsets, stateful, writer)    # feeds the fact in
    while coordinator.pending:                               # or run_batch(), which does all this
        coordinator.step()                                   # executes exactly one decision

``run_batch`` executes the ``AppendDone`` behind ``ReturnBatch`` on a thread of its own, while Spark
writes its own commit log; the next request waits for it first. Storage, sinks, clock, waiting and
the writing of a batch are handed in, so that a simulator can drive the very same code.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from onceforall.common import clock, logs
from onceforall.common.threads import Threads, start_thread
from onceforall.driver.closing import SINK_ERRORS, close_all
from onceforall.driver.swept import swept
from onceforall.errors import (
    BatchTooSlowError,
    ConfigurationError,
    FencedError,
    OnceForAllError,
    ProtocolViolationError,
    QueryStoppedError,
    described,
    text_of,
)
from onceforall.failpoints import points as failpoints
from onceforall.protocol import contract
from onceforall.protocol import decisions as do
from onceforall.protocol import events as saw
from onceforall.protocol.due_sweeps import leftovers
from onceforall.protocol.entries import Claim, Commit, Committable, Digest, Done
from onceforall.protocol.history import CommitPermit, History
from onceforall.protocol.judgement import gone_sinks
from onceforall.protocol.machine import step
from onceforall.protocol.state import Run, RunConfig
from onceforall.protocol.sweeping import Sweep
from onceforall.sink import CommitReport, TwoPhaseCommitSink

logger = logs.logger("onceforall")

T = TypeVar("T")

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 5.0
ABORT_ASKS_STORE_S = 5.0
"""So long does an attempt that failed wait for the log's store, for what would be nice to have,
before its error is told."""
STOP_LOOKED_FOR_EVERY_S = 0.3
"""How often it is asked, while sinks are waited for, whether the query is to stop.

A sink that answers before that costs a thread's start, and no question.
"""
COMMITS_END_WITHIN_S = 5.0
"""How long behind a request to stop a sink may go on with a commit: most succeed meanwhile."""


class Log(Protocol):
    """What the coordinator needs of the commit log; ``commit_log.CommitLog`` is the real one."""

    def newest_claim(self) -> Claim | None:
        """Return entry 0 of the newest chain; None when the log is new."""

    def claim(self, claim: Claim) -> Any:
        """Create entry 0 of the next chain; the answer has ``generation`` and ``previous``."""

    def seal_below(self, generation: int) -> History:
        """Seal every chain below and return what they decided."""

    def append(
        self, generation: int, entry: Commit | Done, in_time: Callable[[], bool] | None = None
    ) -> int:
        """Append to our chain.

        FencedError when it is sealed, BatchTooSlowError when ``in_time`` said no,
        OutcomeUnknownError when there was no answer, ConfigurationError when the entry can't be
        written as JSON, and nothing was.
        """

    def is_sealed(self, generation: int) -> bool:
        """Tell whether our chain is sealed."""


@dataclass(frozen=True)
class Prepared:
    """What the writing of a batch came to; see ``protocol.events.WritesPrepared``."""

    committables: Mapping[str, tuple[Committable, ...]]
    digests: Mapping[str, tuple[Digest, ...]]
    elapsed_ms: int
    attempts_lost: bool
    began_ms: int = 0


class BatchWriter(Protocol):
    """Runs the user's function and the jobs of its writes."""

    def write(self, decision: do.RunWrites) -> Prepared:
        """Write and pre-commit; whatever it raises aborts the attempt, and ``prepared_so_far``
        tells what is prepared.
        """

    def write_kept(self, decision: do.WriteKept) -> Prepared:
        """Write and pre-commit lost transactions again, from the rows that were kept."""

    def digest(self, decision: do.TakeDigests) -> Mapping[str, tuple[Digest, ...]]:
        """Run the batch again without writing."""

    def prepared_so_far(self) -> Mapping[str, tuple[Committable, ...]]:
        """Return the committables of the jobs that ended before another one failed."""

    def wait_for_tasks(self) -> None:
        """Wait, for a bounded time, until no task of the batch runs any more: a live one would
        open its transaction anew.
        """

    def forget_aborted(self) -> None:
        """Delete the rows that the aborted attempt kept; whoever sweeps does so again."""


@dataclass(frozen=True)
class Resources:
    """Everything outside the protocol that the coordinator touches.

    Attributes:
        log: the commit log.
        sinks: the query's sinks by name.
        spark_committed: reads the last batch in Spark's commit log; -1 when there is none.
        spark_planned: whether Spark's offset log has a batch.
        stop_requested: whether the query was asked to stop.
        wait: sleeps for so many seconds.
        sweeps_changed: told of the sweeps of older generations, to be repeated in the background,
            and below which generation every chain is sealed (ours), so that what is superseded
            there can be cleaned.
        batch_done: told of a batch whose DONE is durable: nothing that was kept for it is needed
            any more.
        now_ms: the clock of ``Prepared.began_ms``; it goes on while the machine is suspended.
        within: does what may wait for the log's store, for so many seconds at most, and not much
            longer than until the query is asked to stop; TimeoutError when there is no answer by
            then.
        patiently: does what sweeps a sink, given its name, or aborts there, and tells whether it
            did; returns also where that takes long, and goes on. Only for what covers no name that
            is still written under.
    """

    log: Log
    sinks: Mapping[str, TwoPhaseCommitSink]
    spark_committed: Callable[[], int]
    spark_planned: Callable[[int], bool]
    stop_requested: Callable[[], bool]
    wait: Callable[[float], None]
    sweeps_changed: Callable[[Mapping[str, Sweep], int], None] = lambda _sweeps, _sealed_below: None
    batch_done: Callable[[int], None] = lambda _: None
    now_ms: Callable[[], int] = lambda: int(clock.now_s() * 1000)
    within: Callable[[Callable[[], Any], float], Any] = lambda action, _seconds: action()
    patiently: Callable[[str, Callable[[], bool]], object] = lambda _name, action: action()


_RAISED = (*SINK_ERRORS, KeyboardInterrupt, GeneratorExit)
"""What code of others raises.

Not whatever else there is: the simulator takes a driver out of the middle of a batch by an
exception of its own.
"""


class Coordinator:
    """Drives one run of a query; see the module's docstring for the sequence."""

    def __init__(self, config: RunConfig, resources: Resources) -> None:
        self.run = Run(config)
        self.pending: deque[do.Decision] = deque()
        self._resources = resources
        self._writer: BatchWriter | None = None
        self._cause: BaseException | None = None
        self._said: dict[str, str] = {}
        self._background: Future[None] | None = None
        self.phase_ms: dict[str, float] = {}
        """How long the steps of the last request took, in milliseconds; what runs behind it is
        not among them."""
        self._threads = Threads(
            max_workers=max(4, len(resources.sinks) + 1), thread_name_prefix="onceforall"
        )

    def request(
        self,
        batch: int,
        offsets: tuple[str, ...],
        stateful: bool,  # noqa: FBT001
        writer: BatchWriter,
        start: tuple[str, ...] = (),
        *,
        header: tuple[str, ...] = (),
        before: tuple[str, ...] = (),
    ) -> None:
        """Feed in that Spark asks for a batch; ``pending`` then holds what is to be done.

        Args:
            batch: Spark's batch id.
            offsets: the batch's lines in Spark's offset log.
            stateful: whether the query keeps state, so that a decided batch must run again to
                rebuild it.
            writer: what runs the batch's jobs.
            start: the lines for the batch before, where they are known.
            header: the lines before the offsets there.
            before: those for the batch before.
        """
        self.finish_background()
        self._writer = writer
        self._feed(saw.BatchRequested(batch, offsets, stateful, start, header, before))

    def run_batch(
        self,
        batch: int,
        offsets: tuple[str, ...],
        stateful: bool,  # noqa: FBT001
        writer: BatchWriter,
        start: tuple[str, ...] = (),
        *,
        header: tuple[str, ...] = (),
        before: tuple[str, ...] = (),
    ) -> None:
        """Take one call of ``foreachBatch`` to its end.

        Raises:
            OnceForAllError: why the run stopped; its docstring says what was aborted and what was
                not.
        """
        self.request(batch, offsets, stateful, writer, start, header=header, before=before)
        self.phase_ms = {}
        while self.pending:
            returned = isinstance(self.pending[0], do.ReturnBatch)
            name, started = self._executors[type(self.pending[0])][1], clock.now_s()
            self.step()
            self.phase_ms[name] = self.phase_ms.get(name, 0.0) + (clock.now_s() - started) * 1000
            if returned:
                break
        if self.pending:
            self._background = self._threads.submit(logs.carried(self._drain))

    def finish_background(self) -> None:
        """Wait until the DONE of the last batch is durable (or is known not to be)."""
        background, self._background = self._background, None
        if background is not None:
            background.result()

    def settled(self, within_s: float) -> bool:
        """Wait for that time until the DONE of the last batch is durable (or is known not to
        be), beside the thread of the batches; tell whether it is.
        """
        background = self._background
        return background is None or not wait([background], max(0.0, within_s)).not_done

    def leftovers(self) -> Mapping[str, Sweep]:
        """Return the sweeps that are due when the run has ended; see ``protocol.due_sweeps``."""
        return leftovers(self.run)

    def close(self) -> None:
        """Release threads and the sinks' connections."""
        self._threads.shutdown(wait=False)
        close_all(self._resources.sinks)

    def step(self) -> None:
        """Execute the next pending decision, and feed its answer in."""
        decision = self.pending.popleft()
        execute, name = self._executors[type(decision)]
        failpoints.hit(f"{name}.before")
        with logs.about(generation=self.run.generation if self.run.generation >= 0 else None):
            event = execute(self, decision)
        failpoints.hit(f"{name}.after")
        if event is not None:
            self._feed(event)

    def _drain(self) -> None:
        try:
            while self.pending:
                self.step()
            failpoints.hit("return_batch.after_done")
        except OnceForAllError:
            # The run is stopped; the next request raises the same again.
            logger.exception("the run stopped behind a batch that is complete on every sink")

    def _feed(self, event: saw.Event) -> None:
        self.run, todo = step(self.run, event)
        self.pending.extend(todo)

    # --- one method per decision ------------------------------------------------------------------

    def _inspect(self, decision: do.InspectLog) -> saw.Event:
        sealed = decision.generation >= 0 and self._resources.log.is_sealed(decision.generation)
        return saw.LogInspected(self._resources.log.newest_claim(), sealed)

    def _claim(self, decision: do.ClaimGeneration) -> saw.Event:
        claimed = self._resources.log.claim(decision.claim)
        logger.info("query %s: generation %d claimed", decision.claim.query_id, claimed.generation)
        gone = gone_sinks(self.run.config, claimed.previous)
        if gone:
            logger.warning(
                "The run before had sinks that this one doesn't have: %s. If it did not end in an "
                "orderly stop, a batch that was never decided may have left something there, which "
                "this run finds only where another sink of it writes to the same system. A "
                "prepared transaction of PostgreSQL keeps its rows locked until somebody rolls it "
                'back: docs/changing.md, "What a removed sink leaves", says how.',
                ", ".join(f"{name} ({kind})" for name, kind in sorted(gone.items())),
            )
        return saw.GenerationClaimed(claimed.generation, claimed.previous)

    def _seal(self, decision: do.SealPast) -> saw.Event:
        history = self._resources.log.seal_below(decision.generation)
        committed = self._resources.spark_committed()
        asked = getattr(self.run.phase, "request", None)
        if asked is None or asked.batch > committed:
            return saw.PastSealed(history, committed)
        return saw.PastSealed(
            history,
            committed,
            sealed=self._resources.log.is_sealed(self.run.generation),
            spark_unplanned=not self._resources.spark_planned(committed),
        )

    def _recover(self, decision: do.RecoverSinks) -> saw.Event:
        def one(name: str) -> Callable[[], saw.SinkAnswers] | None:
            answer: Callable[[], saw.SinkAnswers] | None = saw.SinkAnswers
            with self._stoppable(name):
                if decision.commit is not None and name in decision.commit.committables:
                    answer = self._until_answered(
                        name, decision.commit.permit, decision.commit.committables[name]
                    )
                if answer is not None:
                    self._sweep(name, decision.sweeps[name])
            return answer

        answers = self._per_sink(decision.sweeps, one)
        self._resources.sweeps_changed(decision.sweeps, self.run.generation)
        waiting = tuple(name for name, answer in answers.items() if answer is None)
        if waiting:
            return self._stopped(waiting)
        known = {name: answer() for name, answer in answers.items() if answer is not None}
        return saw.SinksRecovered(known, self._sealed_if_lost(known))

    def _fence_lost(self, decision: do.FenceLost) -> saw.Event:
        def one(name: str) -> bool:
            def fence() -> bool:
                self._resources.sinks[name].retire(decision.committables[name])
                return True

            with self._stoppable(name):
                return bool(
                    self._until_done(name, fence, f"fencing lost transactions of sink {name}")
                )

        answers = self._per_sink(decision.committables, one)
        waiting = tuple(name for name, answer in answers.items() if not answer)
        return self._stopped(waiting) if waiting else saw.LostFenced()

    def _write(self, decision: do.RunWrites) -> saw.Event:
        assert self._writer is not None
        return self._prepare(partial(self._writer.write, decision))

    def _write_kept(self, decision: do.WriteKept) -> saw.Event:
        assert self._writer is not None
        return self._prepare(partial(self._writer.write_kept, decision))

    def _prepare(self, write: Callable[[], Prepared]) -> saw.Event:
        assert self._writer is not None
        try:
            prepared = write()
        except (
            _RAISED
        ) as error:  # whatever a user's function or a job raises aborts the attempt, sys.exit() too
            self._cause = error
            return saw.WritesFailed(described(error), self._writer.prepared_so_far())
        return saw.WritesPrepared(
            prepared.committables,
            prepared.digests,
            prepared.elapsed_ms,
            prepared.attempts_lost,
            prepared.began_ms,
        )

    def _digest(self, decision: do.TakeDigests) -> saw.Event:
        assert self._writer is not None
        try:
            return saw.DigestsTaken(self._writer.digest(decision))
        except _RAISED as error:
            self._cause = error
            return saw.WritesFailed(described(error))

    def _append_commit(self, decision: do.AppendCommit) -> saw.Event:
        until, now_ms = decision.not_after_ms, self._resources.now_ms
        in_time = None if until is None else lambda: now_ms() <= until
        try:
            index = self._resources.log.append(decision.generation, decision.commit, in_time)
        except FencedError:
            return saw.AppendFenced()
        except BatchTooSlowError:
            return saw.AppendTooLate()
        except ConfigurationError as error:
            # It is encoded before it is sent: see CommitLog.append.
            self._cause = error
            return saw.AppendRefused(described(error))
        except Exception as error:  # noqa: BLE001  anything but a clear answer leaves the batch in doubt
            self._cause = error
            return saw.AppendUnknown(described(error))
        return saw.DecisionAppended(index)

    def _commit(self, decision: do.CommitSinks) -> saw.Event:
        def one(name: str) -> Callable[[], saw.SinkAnswers] | None:
            with self._stoppable(name):
                return self._until_answered(name, decision.permit, decision.committables[name])

        answers = self._per_sink(decision.committables, one)
        waiting = tuple(name for name, answer in answers.items() if answer is None)
        if waiting:
            return self._stopped(waiting)
        known = {name: answer() for name, answer in answers.items() if answer is not None}
        return saw.SinksCommitted(known, self._sealed_if_lost(known))

    def _append_done(self, decision: do.AppendDone) -> saw.Event:
        try:
            self._resources.log.append(decision.generation, Done(decision.batch))
        except FencedError:
            return saw.AppendFenced()
        except Exception as error:  # noqa: BLE001
            self._cause = error
            return saw.AppendUnknown(described(error))
        self._best_effort(
            f"clearing up after batch {decision.batch}",
            partial(self._resources.batch_done, decision.batch),
        )
        return saw.DoneAppended()

    def _sweep_own(self, decision: do.SweepOwn) -> None:
        # To its end, however long that takes: it covers names that the next batch writes under.
        # Behind a stop there is none.
        def sweep(name: str) -> None:
            with self._stoppable(name):
                self._sweep_now(name, decision.sweeps[name])

        self._per_sink(decision.sweeps, sweep)

    def _retire(self, decision: do.RetireHandles) -> None:
        def one(name: str) -> None:
            retire = partial(self._resources.sinks[name].retire, decision.committables[name])
            self._best_effort(f"fencing handles of sink {name}", retire)

        self._per_sink(decision.committables, one)

    def _abort(self, decision: do.AbortAttempt) -> saw.Event:
        writer = self._writer
        if self._cause is not None:
            # What follows may take a while, and only then is the error told.
            level = logging.INFO if isinstance(self._cause, QueryStoppedError) else logging.WARNING
            logger.log(level, "the attempt is aborted: %s", described(self._cause))
        if writer is not None:
            self._best_effort("waiting for the tasks of the aborted attempt", writer.wait_for_tasks)

        def abort(name: str) -> bool:
            committables = decision.committables.get(name, ())
            if committables:
                self._best_effort(
                    f"aborting on sink {name}",
                    partial(self._resources.sinks[name].abort, committables),
                )
            return self._sweep_now(name, decision.sweeps[name])

        self._per_sink(
            decision.sweeps, lambda name: self._resources.patiently(name, partial(abort, name))
        )
        # A killed worker may write for another moment; this run never writes again, so its own ids
        # may be swept until it ends.
        self._resources.sweeps_changed(decision.sweeps, self.run.generation)
        # Behind the sinks: readers wait for what is open there.
        if writer is not None:
            self._best_effort(
                "deleting the rows that the aborted attempt kept",
                lambda: self._resources.within(writer.forget_aborted, ABORT_ASKS_STORE_S),
            )
        return saw.AttemptAborted(self._seen_sealed())

    def _return(self, decision: do.ReturnBatch) -> None:
        logger.debug("batch %d is complete on every sink", decision.batch)

    def _report(self, decision: do.ReportDivergence) -> None:
        logger.warning("divergence in batch %d: %s", decision.batch, decision.message)

    def _stop(self, decision: do.StopRun) -> None:
        cause, self._cause = self._cause, None
        kind = decision.error
        if isinstance(cause, OnceForAllError) and issubclass(type(cause), decision.error):
            if not decision.in_own_words:
                raise cause
            # Not a class that a user has derived from one of ours: it may be made otherwise.
            kind = next(
                c for c in type(cause).__mro__ if c.__module__ == OnceForAllError.__module__
            )
        error = kind(decision.message)
        ours = cause if isinstance(cause, OnceForAllError) else error
        error.sink, error.transaction = (
            decision.sink or ours.sink,
            decision.transaction or ours.transaction,
        )
        raise error from cause

    # --- helpers ----------------------------------------------------------------------------------

    def _sealed_if_lost(self, answers: Mapping[str, saw.SinkAnswers]) -> bool:
        missing = any(answer.lost or answer.in_doubt for answer in answers.values())
        return missing and self._resources.log.is_sealed(self.run.generation)

    def _seen_sealed(self) -> bool:
        """Tell whether the chain is sealed; a query that was asked to stop waits for no log, and
        no other one for long.
        """
        if self._resources.stop_requested():
            return False
        look = partial(self._resources.log.is_sealed, self.run.generation)
        try:
            return bool(self._resources.within(look, ABORT_ASKS_STORE_S))
        except Exception as error:  # noqa: BLE001  it would only have told the reason better
            logger.info("whether a newer run has taken over is not known: %s", text_of(error))
            return False

    def _until_answered(
        self, name: str, permit: CommitPermit, committables: tuple[Committable, ...]
    ) -> Callable[[], saw.SinkAnswers] | None:
        """Commit on one sink, again and again; None when the query is asked to stop before there
        is an answer.

        What it returned is looked at by the caller, when every sink has returned: to ask again
        would not mend a sink that answers what is none.
        """
        calls, sink = 0, self._resources.sinks[name]

        def commit() -> Callable[[], saw.SinkAnswers]:
            nonlocal calls
            calls += 1
            report = sink.commit(permit, committables)
            return partial(_answers, name, permit.batch, report, again=calls > 1)

        # After the decision there is no error that makes it undecided.
        return self._until_done(
            name, commit, f"batch {permit.batch} is decided; its commit on sink {name}"
        )

    @contextmanager
    def _stoppable(self, name: str) -> Iterator[None]:
        """Let a sink that can do so end its commit, or a sweep that is waited for, some time after
        the query is asked to stop.
        """
        sink = self._resources.sinks[name]
        if type(sink).stop_committing is TwoPhaseCommitSink.stop_committing:
            yield
            return
        over, own = threading.Event(), threading.current_thread()

        def watch() -> None:
            if threading.current_thread() is own:
                return  # Where no thread can be started, nobody watches.
            left_s = COMMITS_END_WITHIN_S
            while not over.wait(STOP_LOOKED_FOR_EVERY_S):
                if self._resources.stop_requested():
                    left_s -= STOP_LOOKED_FOR_EVERY_S
                    if left_s <= 0:
                        self._best_effort("ending a commit", sink.stop_committing)

        start_thread(watch, "onceforall-stops")
        try:
            yield
        finally:
            over.set()

    def _stopped(self, waiting: tuple[str, ...]) -> saw.StopRequested:
        return saw.StopRequested(waiting, dict(self._said))

    def _until_done(self, name: str, action: Callable[[], T], what: str) -> T | None:
        """Try again and again; None when the query is asked to stop before it succeeds."""
        wait_s = FIRST_WAIT_S
        self._said.pop(name, None)
        while True:
            try:
                return action()
            except SINK_ERRORS as error:  # whatever it is, the sink is asked again
                logger.warning("%s is tried again: %s", what, text_of(error))
                # What comes behind a stop is its own doing: it ends what a sink waits for.
                if name not in self._said or not self._resources.stop_requested():
                    self._said[name] = text_of(error)
            if self._wait_or_stop(wait_s):
                return None
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _wait_or_stop(self, seconds: float) -> bool:
        while seconds > 0 and not self._resources.stop_requested():
            self._resources.wait(min(seconds, 0.2))
            seconds -= 0.2
        return self._resources.stop_requested()

    def _sweep(self, name: str, sweep: Sweep) -> None:
        self._resources.patiently(name, partial(self._sweep_now, name, sweep))

    def _sweep_now(self, name: str, sweep: Sweep) -> bool:
        return self._best_effort(
            f"sweeping sink {name}", partial(swept, self._resources.sinks[name], sweep)
        )

    @staticmethod
    def _best_effort(what: str, action: Callable[[], object]) -> bool:
        try:
            action()
        except SINK_ERRORS as error:  # a sweep repeats it; nothing rests on this one
            logger.warning("%s did not succeed and is tried again later: %s", what, text_of(error))
            return False
        return True

    def _per_sink(self, names: Mapping[str, object], one: Callable[[str], T]) -> dict[str, T]:
        def told(name: str) -> T:
            with logs.about(sink=name):
                return one(name)

        if len(names) == 1:
            return {name: told(name) for name in names}
        futures = {name: self._threads.submit(logs.carried(told), name) for name in names}
        return {name: future.result() for name, future in futures.items()}

    _executors: Mapping[type[Any], tuple[Callable[[Coordinator, Any], saw.Event | None], str]] = {
        do.InspectLog: (_inspect, "inspect"),
        do.ClaimGeneration: (_claim, "claim"),
        do.SealPast: (_seal, "seal"),
        do.RecoverSinks: (_recover, "recover"),
        do.FenceLost: (_fence_lost, "fence_lost"),
        do.RunWrites: (_write, "write"),
        do.WriteKept: (_write_kept, "write_kept"),
        do.TakeDigests: (_digest, "digest"),
        do.AppendCommit: (_append_commit, "append_commit"),
        do.CommitSinks: (_commit, "commit"),
        do.SweepOwn: (_sweep_own, "sweep_own"),
        do.ReturnBatch: (_return, "return_batch"),
        do.AppendDone: (_append_done, "append_done"),
        do.RetireHandles: (_retire, "retire"),
        do.AbortAttempt: (_abort, "abort"),
        do.ReportDivergence: (_report, "report"),
        do.StopRun: (_stop, "stop"),
    }


def _answers(sink: str, batch: int, report: CommitReport, *, again: bool) -> saw.SinkAnswers:
    try:
        contract.check_report(report)
    except contract.BrokenContractError as error:
        broken = ProtocolViolationError(
            f"Sink {sink} was asked to commit batch {batch}, and its commit() {error}. Mend the "
            "sink: its commit() must return a CommitReport that has each committable once. "
            "Nothing is lost; the next start asks again."
        )
        broken.sink = sink
        raise broken from None
    lost = tuple(saw.Lost(sink, lost.committable, lost.reason) for lost in report.lost)
    in_doubt = tuple(
        saw.Lost(sink, lost.committable, lost.reason, lost.is_open) for lost in report.in_doubt
    )
    if again:
        # A commit that raised may have left a request on its way, whatever the sink remembers of
        # it.
        return saw.SinkAnswers((), (*report.completed, *report.retired), lost, in_doubt)
    return saw.SinkAnswers(tuple(report.completed), tuple(report.retired), lost, in_doubt)
