"""What a run asks of Spark: two interfaces, for a classic session and for Spark Connect.

A run's coordinator is the same in both. What surrounds it differs. With a classic session
``foreachBatch`` is called in the driver's Python, which shares objects with the JVM
(``classic``). With Spark Connect it is called in a child process of the server, which has
Connect's own calls and nothing else (``connect.run``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LocalProperties", "Shared", "SparkJobs", "SparkRun"]


class LocalProperties(Protocol):
    """Takes what goes with each job to its tasks."""

    def setLocalProperty(self, key: str, value: Any) -> None:  # noqa: N802  Spark's name
        """Set it for the jobs that this thread starts from now on; None takes it away."""


class SparkRun(Protocol):
    """One run of a query, as Spark tells of it where its batches are called.

    Attributes:
        spark: the session of its batches.
        query_id: Spark's id of the query.
        run_id: Spark's id of the run.
        name: the query's name, where it has one.
    """

    spark: SparkSession
    query_id: str
    run_id: str
    name: str | None

    def check(self) -> None:
        """Refuse kinds of execution in which Spark does not replay a batch with the same offsets.

        Raises:
            UnsupportedQueryError: naming what to use instead.
        """

    def checkpoint_location(self) -> str | None:
        """Return where Spark keeps the query's checkpoint; None where it doesn't tell."""

    def output_mode(self) -> str:
        """Return the query's output mode: ``append``, ``update`` or ``complete``.

        Raises:
            UnsupportedQueryError: Spark doesn't tell.
        """

    def is_active(self) -> bool:
        """Tell whether Spark still runs this run; no error, also where Spark is gone."""

    def wants_its_batch(self) -> bool:
        """Tell whether Spark waits for the end of the batch under way; no error."""

    def may_take_another(self) -> bool:
        """Tell whether Spark may call another batch of this run; no error."""

    def stop(self) -> None:
        """Ask Spark to stop the query.

        It may block until the batch has ended, and raise whatever it likes.
        """

    def why_not(self, batch: DataFrame, frames: Iterable[DataFrame]) -> str | None:
        """Return why a replay may give other rows; None: it gives the same ones
        (``determinism``).
        """

    def jobs(self, batch: DataFrame) -> SparkJobs:
        """Return what starts the jobs of one batch."""


class Shared(Protocol):
    """The rows of one frame, which all that is derived from it share.

    Attributes:
        frame: the frame to derive from. What its user says by ``persist``, ``cache`` and
            ``unpersist`` is understood; its rows stay until ``release``.
    """

    frame: DataFrame

    def is_read_often(self, frames: Sequence[DataFrame]) -> bool:
        """Tell whether jobs that read these frames, each one, would compute the rows more than once
        if they weren't kept.
        """

    def keep(self, *, needed: bool) -> bool:
        """Say that all that reads the rows is known, and whether they are needed more than once;
        return whether they are kept.
        """

    def release(self) -> None:
        """Free the rows; no error."""


class SparkJobs(Protocol):
    """The jobs of one batch, which run in the thread that calls it."""

    @property
    def properties(self) -> LocalProperties:
        """What takes the tasks' half of secret values."""

    @property
    def in_session(self) -> bool:
        """Whether ``properties`` are seen by other jobs of the session, too, so that their names
        must be the batch's own.
        """

    def described(self, text: str) -> AbstractContextManager[None]:
        """Say in Spark's user interface what the jobs within do."""

    def interruptible(self) -> AbstractContextManager[None]:
        """Let ``SparkRun.stop`` interrupt the jobs within."""

    def without_ordering(self, frame: DataFrame) -> DataFrame:
        """Return the same rows as a frame that can be persisted."""

    def shared(self, frame: DataFrame) -> Shared:
        """Return what lets all that is derived from a frame share one computation of its rows."""

    def pinned(self, frame: DataFrame, batch: DataFrame) -> DataFrame:
        """Return the same rows as a frame that means what this one means now, whatever becomes of
        the views, functions and settings that it names, and of what is persisted.

        Args:
            frame: what the function writes; it may be computed now.
            batch: the batch as the function has it.
        """

    def has_computed(self) -> bool:
        """Tell whether ``pinned`` has computed rows, which no job may compute again."""

    def around_the_function(self) -> AbstractContextManager[None]:
        """See what the function of the batch, which runs within, does with Spark's caches; where
        ``pinned`` can't keep what it takes out of them, put that off until ``unpin``.
        """

    def watching(self, shared: Sequence[Shared], batch: DataFrame) -> AbstractContextManager[None]:
        """See that nothing which the jobs within share is computed anew between them.

        Args:
            shared: the rows that they share.
            batch: the batch as its function has it.

        Raises:
            AttemptFailedError: it was, or may have been: somebody has emptied Spark's cache, an
                executor was lost.
        """

    def unpin(self) -> None:
        """Forget what ``pinned`` has made; no error."""

    def first_task_attempt_id(self) -> int:
        """Return an id that no task attempt of a later job is below. The difference to it is a
        number that no two task attempts have that can live at the same time.
        """

    def unused_task_attempt_id(self) -> int:
        """Return an id that no task attempt has or gets, not below the one above."""

    def attempts_lost(
        self, results: Sequence[Mapping[str, Any]], clock: Callable[[], float]
    ) -> bool:
        """Tell whether an attempt may live beside those that were counted: a failed, a
        speculative or a resubmitted one.
        """

    def end_tasks(self, clock: Callable[[], float], within_s: float) -> None:
        """End the batch's tasks, and wait for a bounded time until none is active any more."""
