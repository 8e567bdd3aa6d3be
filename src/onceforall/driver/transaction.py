"""What a user's function gets to write a batch with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from onceforall.common import arguments
from onceforall.errors import OnceForAllError, OptionError, UnsupportedQueryError
from onceforall.sink import TwoPhaseCommitSink
from onceforall.task.projections import Projections

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class BatchTransaction:
    """What a user's function gets as its third argument: the writes of one batch, decided all
    together or not at all.

    ``write`` only registers; the jobs run when the function returns. A frame that reads what the
    function has persisted may be computed at once.
    """

    def __init__(
        self,
        sinks: Mapping[str, TwoPhaseCommitSink],
        projections: Projections,
        pinned: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    ) -> None:
        self._sinks = sinks
        self._projections = projections
        self._pinned = pinned
        self._frames: list[tuple[DataFrame, DataFrame]] = []
        self._writing = threading.RLock()
        self._open = True
        self.writes: list[tuple[str, DataFrame]] = []
        self.failure: Exception | None = None

    def write(self, name: str, frame: DataFrame) -> None:
        """Write a frame's rows to a sink, as part of the batch's one decision.

        Args:
            name: the sink's name in this query.
            frame: its rows; any DataFrame that was derived from the batch. A sink may be written
                several times, but for one that needs all rows of a key in one task.

        Raises:
            OptionError: no sink has this name, it is no frame, or the function has returned.
            SchemaError: the sink cannot write these columns.
            UnsupportedQueryError: the sink needs all rows of a key in one task, and is written a
                second time.

        A write that failed poisons the whole attempt, even when the function catches the error.
        """
        try:
            # One after the other, also in the threads of a function: what is looked at must still
            # hold when the write is registered.
            with self._writing:
                self._write(name, frame)
        except Exception as error:
            # Spark's own as well: Connect finds only here that a frame can't be resolved.
            if isinstance(error, OnceForAllError):
                error.sink = name if isinstance(name, str) and name in self._sinks else None
            self.failure = self.failure or error
            raise

    def _write(self, name: str, frame: DataFrame) -> None:
        if not self._open:
            raise OptionError(
                "transaction.write was called after the function of the batch had returned; "
                "call it inside."
            )
        if not isinstance(name, str) or name not in self._sinks:
            raise OptionError(
                f"There is no sink named {arguments.shown(name)} in this query; its sinks "
                f"are: {', '.join(sorted(self._sinks))}."
            )
        arguments.check_frame(frame, "transaction.write", or_connect=True)
        self._check_first(name)
        self._projections.taken(name, frame.schema)
        self.writes.append((name, self._as_it_is_now(frame)))

    @property
    def given(self) -> list[DataFrame]:
        """The frames that were written, as the function has made them, each once."""
        return [given for given, _ in self._frames]

    def given_for(self, frame: DataFrame) -> DataFrame:
        """Return the frame as the function has made it, for one of ``writes``."""
        return next((given for given, pinned in self._frames if pinned is frame), frame)

    def _as_it_is_now(self, frame: DataFrame) -> DataFrame:
        # A frame that is written to several sinks stays one, which is computed once.
        for given, pinned in self._frames:
            if given is frame:
                return pinned
        pinned = self._pinned(frame)
        self._frames.append((frame, pinned))
        return pinned

    def _check_first(self, name: str) -> None:
        # Each write is shuffled by itself: a key that two of them have is in two tasks.
        keys = self._sinks[name].capabilities.one_task_per_key
        if keys and any(written == name for written, _ in self.writes):
            raise UnsupportedQueryError(
                f"The sink {name} needs all rows of a batch that have the same {', '.join(keys)} "
                "in one task, and the function of the batch writes it a second "
                "time. Bring the frames together, transaction.write(…, "
                "first.unionByName(second)), with each key once; or use a mode of the sink that "
                "does "
                "without: mode='staged' where it has one."
            )

    def close(self) -> None:
        """Refuse further writes, once the one under way has been registered; the function has
        returned.
        """
        with self._writing:
            self._open = False


BatchFunction = Callable[["DataFrame", int, BatchTransaction], object]
