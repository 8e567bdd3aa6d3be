"""Which rows of a batch several jobs read, so that they are computed once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from onceforall.driver.batch_jobs import JobGroup, written_often

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from onceforall.spark.surroundings import Shared, SparkJobs


class BatchRows:
    """The rows of one batch, as its function gets them and as its jobs read them.

    Args:
        frame: the batch, as Spark hands it over.
        jobs: starts the batch's jobs.
        for_state: whether a job may read the batch for its state alone.
        is_one_job: whether the function writes the batch as it is, to be read by one job.
    """

    def __init__(
        self, frame: DataFrame, jobs: SparkJobs, *, for_state: bool, is_one_job: bool
    ) -> None:
        self._frame = frame
        self._jobs = jobs
        self._for_state = for_state
        self._is_one_job = is_one_job
        self._is_plain = False
        self._batch: Shared | None = None
        self._several: dict[int, Shared] = {}
        self._made: list[Shared] = []

    @property
    def handed_out(self) -> DataFrame:
        """The batch as its function has it."""
        return self._frame if self._batch is None else self._batch.frame

    def given(self, *, again: bool) -> DataFrame:
        """Return what the function of the batch gets: rows that it shares with all jobs, unless
        there is one job, which reads the batch as it is.

        Args:
            again: the batch is read in another pass, too.
        """
        if self._batch is not None:
            return self._batch.frame
        if self._for_state and not self._is_plain:
            self._is_plain = True
            self._frame = self._jobs.without_ordering(self._frame)
        if self._is_one_job and not again:
            return self._frame
        self._batch = self._jobs.shared(self._frame)
        return self._batch.frame

    def share(
        self, groups: Sequence[JobGroup], reads: Sequence[DataFrame], *, needed: bool
    ) -> None:
        """Decide which rows the jobs of a pass share; ``of`` says what each reads.

        Args:
            groups: the jobs.
            reads: what they read of that which the function was given.
            needed: the batch is read in another pass, too.
        """
        self._several = {}
        batch = self._batch
        if batch is not None:
            is_needed = needed or batch.is_read_often(reads)
            if batch.keep(needed=is_needed):
                self._several[id(batch.frame)] = batch
        for frame in written_often(groups, self.handed_out):
            rows = self._several[id(frame)] = self._jobs.shared(frame)
            self._made.append(rows)

    def of(self, frame: DataFrame) -> DataFrame:
        """Return what a job is to read for a frame."""
        if id(frame) in self._several:
            return self._several[id(frame)].frame
        if self._batch is not None and frame is self._batch.frame:
            return self._frame  # Nobody shares them.
        return frame

    def watched(self, *, several: bool) -> AbstractContextManager[None]:
        """See that shared rows are computed once while the jobs run.

        Args:
            several: there is more than one job.
        """
        if not several and not self._several and not self._jobs.has_computed():
            return nullcontext()  # One job reads everything once.
        return self._jobs.watching([*self._several.values()], self.handed_out)

    def release(self) -> None:
        """Give up what is shared; the next pass begins anew."""
        self._jobs.unpin()
        made, self._made, self._several = self._made, [], {}
        for rows in made:
            rows.release()
        if self._batch is not None:
            self._batch.release()
            self._batch = None
