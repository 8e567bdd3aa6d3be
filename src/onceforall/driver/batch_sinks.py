"""What the sinks of a batch are told on the driver, and what becomes of their answers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from onceforall.common import logs
from onceforall.common.threads import Threads, start_thread
from onceforall.driver.closing import SINK_ERRORS
from onceforall.driver.coordinator import STOP_LOOKED_FOR_EVERY_S
from onceforall.errors import AttemptFailedError, OnceForAllError, RefusedRecordError, text_of
from onceforall.protocol import contract
from onceforall.protocol.entries import Committable
from onceforall.sink import BatchAttempt, TwoPhaseCommitSink
from onceforall.spark import errors as spark_errors

logger = logs.logger("onceforall")


class BatchSinks:
    """The sinks of one batch.

    Args:
        sinks: the query's sinks by name.
        query_id: Spark's query id.
        batch: its id.
        stop_requested: whether the query was asked to stop.
    """

    def __init__(
        self,
        sinks: Mapping[str, TwoPhaseCommitSink],
        query_id: str,
        batch: int,
        stop_requested: Callable[[], bool],
    ) -> None:
        self._sinks = sinks
        self._query_id = query_id
        self._batch = batch
        self._stop_requested = stop_requested
        self._begun: dict[str, BatchAttempt] = {}

    def begin(self, generation: int, names: Iterable[str]) -> None:
        """Tell sinks that the batch is about to be written; see ``TwoPhaseCommitSink.lock_order``
        for the order.

        Args:
            generation: that of the attempt.
            names: the sinks'.
        """
        ordered = self._in_lock_order(names)
        with self._stoppable(ordered):
            for name in ordered:
                self._begun[name] = BatchAttempt(self._query_id, name, generation, self._batch)
                self._sinks[name].begin_batch(self._begun[name])

    def confirmed(
        self, prepared: Mapping[str, tuple[Committable, ...]]
    ) -> dict[str, tuple[Committable, ...]]:
        """Let the sinks confirm: at once, but one after the other where they keep locks, in an
        order that is the same in every query.

        The first error, if any, is raised when every sink has an answer or isn't asked any more, so
        that all can be aborted.
        """
        with self._stoppable(prepared):
            return self._all_confirmed(prepared)

    def _all_confirmed(
        self, prepared: Mapping[str, tuple[Committable, ...]]
    ) -> dict[str, tuple[Committable, ...]]:
        in_turn = [name for name in self._in_lock_order(prepared) if self._sinks[name].lock_order]
        lanes = [
            *([in_turn] if in_turn else []),
            *([name] for name in prepared if name not in in_turn),
        ]

        def confirm(names: list[str]) -> dict[str, tuple[Committable, ...]]:
            return {name: self._confirm(name, prepared[name]) for name in names}

        if len(lanes) < 2:
            return confirm(in_turn or list(prepared))
        with Threads(len(lanes), thread_name_prefix="onceforall-confirm") as threads:
            carried = logs.carried(confirm)
            futures = [threads.submit(carried, names) for names in lanes]
        return {
            name: committables
            for future in futures
            for name, committables in future.result().items()
        }

    def _in_lock_order(self, names: Iterable[str]) -> list[str]:
        return sorted(set(names), key=lambda name: (self._sinks[name].lock_order, name))

    def _confirm(self, name: str, committables: tuple[Committable, ...]) -> tuple[Committable, ...]:
        sink = self._sinks[name]
        try:
            with logs.about(sink=name):
                # Of its own: should the answer be refused, what was prepared is aborted as it was.
                answer = sink.confirm(copy.deepcopy(committables))
                return contract.confirmed(committables, answer)
        except contract.BrokenContractError as error:
            refused = AttemptFailedError(
                f"Sink {name}: {type(sink).__name__}.confirm {error}. Mend the sink's confirm: it "
                "must return the committables that it is given, in their order, and keep what it "
                "doesn't know in each."
            )
            refused.sink = name
            raise refused from None
        except OnceForAllError as error:
            error.sink = error.sink or name
            raise

    @contextmanager
    def _stoppable(self, names: Iterable[str]) -> Iterator[None]:
        """Let the sinks end their waiting when the query is asked to stop; what they raise then is
        a stop's.

        Raises:
            QueryStoppedError: in place of what a sink raised.
        """
        over, batch = threading.Event(), threading.current_thread()
        sinks = [self._sinks[name] for name in names]

        def watch() -> None:
            if threading.current_thread() is batch:
                return  # Where no thread can be started, nobody watches.
            while not over.wait(STOP_LOOKED_FOR_EVERY_S):
                if self._stop_requested():
                    for sink in sinks:
                        _stop_waiting(sink)

        start_thread(watch, "onceforall-stops")
        try:
            yield
        except RefusedRecordError:
            raise
        except Exception as error:
            if self._stop_requested():
                raise spark_errors.stopped() from error
            raise
        finally:
            over.set()

    def end(self) -> None:
        """Tell the sinks that were told of the batch that it is over."""
        for begun in self._begun.values():
            self._end(begun)

    def _end(self, begun: BatchAttempt) -> None:
        try:
            self._sinks[begun.sink].end_batch(begun)
        except SINK_ERRORS as error:  # whatever became of the batch, this doesn't change it
            logger.warning(
                "sink %s, at the end of batch %d: %s", begun.sink, self._batch, text_of(error)
            )


def _stop_waiting(sink: TwoPhaseCommitSink) -> None:
    try:
        sink.stop_waiting()
    except SINK_ERRORS as error:  # the stop then waits for it
        logger.debug("ending the waiting of a sink: %s", text_of(error))
