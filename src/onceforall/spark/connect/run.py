"""What a run asks of Spark, with Spark Connect: ``foreachBatch`` is called in a child process of
the server, one for all batches of a run, which is a client of Connect like any other.

The child lives as long as the run. It has no JVM, and its jobs have no local properties of Spark's
stream. So what a classic run asks of Spark's objects comes from elsewhere:

- which query it is, from the checkpoint; name and run, from the session's list of queries;
- output mode, options and kind of execution, from the text in which Spark explains the query
  (``explain``), whose first line shows them;
- whether it was stopped, from a question to the server; or it is seen by the child's parent, which
  is another process as soon as the server's JVM has ended.

Two things are less than there. Spark's counts of tasks can't be asked for: an aborted attempt waits
a fixed time for its tasks, and an attempt of a stage that Spark had to begin anew isn't noticed.
And no plan is read: where rows can be kept, they are kept (``redo="auto"``).
"""

from __future__ import annotations

import contextlib
import io
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from onceforall.common import logs
from onceforall.common.sessions import is_speculative
from onceforall.errors import UnsupportedQueryError, text_of
from onceforall.spark.connect.caches import FunctionCaches, PersistedRows
from onceforall.spark.connect.server import server_is_gone

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from onceforall.spark.surroundings import LocalProperties, Shared

__all__ = ["ConnectJobs", "ConnectRun"]

logger = logs.logger("onceforall")

TASKS_END_WITHIN_S = 3.0
"""Spark kills the Python worker of a cancelled task after ``spark.python.task.killTimeout``, 2
seconds by default."""

_WRITES = re.compile(
    r"^~?WriteToMicroBatchDataSource\S* .*, (?P<mode>Append|Update|Complete)(?:, -?\d+)?$",
    re.MULTILINE,
)
_LOCATION = re.compile(
    r"[\[ ]checkpointLocation=(?P<location>.*?)(?=, [\w.]+=|\], (?:Append|Update|Complete))",
    re.IGNORECASE,
)
_REDACTED = "(redacted)"


class ConnectRun:
    """One run of a query, in the child process that takes its batches; see
    ``surroundings.SparkRun``.

    Args:
        spark: the session of Connect in which the query was started.
        query: the query, as this session lists it.
    """

    def __init__(self, spark: SparkSession, query: Any) -> None:
        self.spark = spark
        self._batch_session = spark
        self.query_id = str(query.id)
        self.run_id = str(query.runId)
        self.name: str | None = query.name
        self._query = query
        self._told = _explained(query)
        self._tag = f"onceforall-{self.run_id}-{uuid.uuid4()}"

    def check(self) -> None:
        """Refuse what is no plain micro-batch; see ``surroundings.SparkRun``."""
        if _WRITES.search(self._told) is None:
            raise UnsupportedQueryError(
                f"The query {self.name or self.query_id} doesn't run in plain micro-batches, as "
                "far as Spark Connect tells. Exactly-once needs them: in async progress tracking, "
                "continuous and real-time mode Spark does not record a batch's offsets before it "
                "runs. Remove asyncProgressTrackingEnabled, or use processingTime, availableNow or "
                "once. If it does run so: Spark tells it in a text, which a line break in the "
                "query's name or in an option breaks, and a small spark.sql.maxPlanStringLength "
                "cuts off."
            )

    def checkpoint_location(self) -> str | None:
        """Return the query's ``checkpointLocation``; None where it isn't among its options, or
        Spark doesn't show it.
        """
        found = _LOCATION.search(self._told)
        location = None if found is None else found["location"]
        return None if not location or _REDACTED in location else location

    def output_mode(self) -> str:
        """Return the query's output mode."""
        found = _WRITES.search(self._told)
        if found is None:
            raise UnsupportedQueryError(
                f"Spark Connect doesn't tell the output mode of the query "
                f"{self.name or self.query_id}. Is the server's Spark between 4.0 and 4.3?"
            )
        return found["mode"].lower()

    def is_active(self) -> bool:
        """Tell whether Spark still runs this run."""
        try:
            return not server_is_gone() and bool(self._query.isActive)
        except Exception as error:  # noqa: BLE001  the server is gone, and so is the query
            logger.debug("whether the query is active had no answer: %s", text_of(error))
            return False

    @staticmethod
    def wants_its_batch() -> bool:
        """Tell whether the server is there.

        A stop ends this process by a signal, where Spark wants the batch ended (4.2 and later).
        Before, it waits for the batch, and would take an error for the query's.
        """
        return not server_is_gone()

    def may_take_another(self) -> bool:
        """Tell whether Spark may call another batch: none that would be written, once the query
        was told to stop.
        """
        return self.is_active()

    def stop(self) -> None:
        """Interrupt the jobs of the batch that is under way, and ask Spark to stop the query."""
        if server_is_gone():
            return
        self._interrupt()
        if self.is_active():
            self._query.stop()

    @staticmethod
    def why_not(batch: DataFrame, frames: Iterable[DataFrame]) -> str:  # noqa: ARG004
        """Return that nothing is known of a replay."""
        return "Spark Connect shows no plan"

    def jobs(self, batch: DataFrame) -> ConnectJobs:
        """Return what starts the jobs of one batch."""
        self._batch_session = batch.sparkSession
        return ConnectJobs(batch, self._tag)

    def _interrupt(self) -> None:
        # Only jobs of the session that is asked end by it, and from Spark 4.3 on a batch has a
        # clone of the query's.
        self._batch_session.interruptTag(self._tag)


class ConnectJobs:
    """The jobs of one batch; see ``surroundings.SparkJobs``.

    Args:
        batch: the batch's frame.
        tag: of all jobs of the run, by which they are interrupted.
    """

    in_session = True

    def __init__(self, batch: DataFrame, tag: str) -> None:
        self._spark = batch.sparkSession
        self._tag = tag
        self._pinned: list[tuple[SparkSession, str]] = []
        self._caches = FunctionCaches(batch.sparkSession)

    @property
    def properties(self) -> LocalProperties:
        """The session's settings: Spark takes those of ``spark.sql.*`` along with each job."""
        return _Settings(self._spark)

    @staticmethod
    def described(text: str) -> AbstractContextManager[None]:  # noqa: ARG004
        """Say nothing: the server describes its jobs itself."""
        return nullcontext()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Give the jobs within the run's tag.

        Nothing but jobs may have it: a query that a tagged call asks about gets the tag, too, and
        the interruption of its jobs would stop it.
        """
        self._spark.addTag(self._tag)
        try:
            yield
        finally:
            self._spark.removeTag(self._tag)

    @staticmethod
    def without_ordering(frame: DataFrame) -> DataFrame:
        """Return the frame as it is: the server's can be persisted."""
        return frame

    def pinned(self, frame: DataFrame, batch: DataFrame) -> DataFrame:  # noqa: ARG002  Connect shows no plan
        """Return a view of the frame, which Spark resolves now. A frame of Connect is only a
        description: views and functions are looked up by name in each job that reads it, and the
        next transform may have made others of these names.
        """
        self._caches.has_written = True
        session, name = frame.sparkSession, f"onceforall_{uuid.uuid4().hex}"
        frame.createTempView(name)
        self._pinned.append((session, name))
        return session.table(name)

    def shared(self, frame: DataFrame) -> PersistedRows:
        """Return what keeps a frame's rows in Spark's cache: nothing below it can be freed by a
        client.
        """
        return PersistedRows(frame, self._caches)

    @staticmethod
    def has_computed() -> bool:
        """Tell that ``pinned`` computes nothing."""
        return False

    def around_the_function(self) -> AbstractContextManager[None]:
        """Put off what the function takes out of Spark's cache: its jobs haven't run yet, and would
        compute a frame that several of them read once for each.
        """
        return self._caches.kept()

    def watching(
        self,
        shared: Sequence[Shared],
        batch: DataFrame,  # noqa: ARG002  Connect doesn't show where its rows are
    ) -> AbstractContextManager[None]:
        """See that what the jobs within read from Spark's cache is still in it behind them."""
        return self._caches.watching(shared)

    def unpin(self) -> None:
        """Drop the views, and take out of the cache what the function has given up."""
        self._caches.release()
        pinned, self._pinned = self._pinned, []
        for session, name in pinned:
            if server_is_gone():
                return
            try:
                session.catalog.dropTempView(name)
            except Exception as error:  # noqa: BLE001  it goes with its session
                logger.debug("dropping the view %s had no answer: %s", name, text_of(error))

    @staticmethod
    def first_task_attempt_id() -> int:
        """Return 0: in the whole life of a server no two attempts have one id."""
        return 0

    def unused_task_attempt_id(self) -> int:
        """Return the id of a task that did nothing else."""
        row = self._spark.range(0, 1, 1, 1).mapInArrow(_own_id, "id bigint").collect()[0]
        return int(row["id"])

    def attempts_lost(
        self,
        results: Sequence[Mapping[str, Any]],
        clock: Callable[[], float],  # noqa: ARG002
    ) -> bool:
        """Tell it by the numbers of the attempts that were counted, and by whether Spark makes
        speculative ones.
        """
        if any(result["attempt"] > 0 for result in results):
            return True
        return is_speculative(self._spark)

    def end_tasks(self, clock: Callable[[], float], within_s: float) -> None:  # noqa: ARG002
        """Interrupt the jobs, and wait for as long as Spark takes to kill their workers."""
        if not server_is_gone():
            try:
                self._spark.interruptTag(self._tag)
            except Exception as error:  # noqa: BLE001  the server is going
                logger.debug("interrupting the jobs had no answer: %s", text_of(error))
        time.sleep(min(TASKS_END_WITHIN_S, within_s))


class _Settings:
    """A session's settings, with the method of local properties."""

    def __init__(self, spark: SparkSession) -> None:
        self._conf = spark.conf

    def setLocalProperty(self, key: str, value: str | None) -> None:  # noqa: N802  Spark's name
        if value is None:
            self._conf.unset(key)
        else:
            self._conf.set(key, value)


def _own_id(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyspark import TaskContext

    for _ in batches:
        pass
    context = TaskContext.get()
    assert context is not None
    yield pa.RecordBatch.from_pydict({"id": [context.taskAttemptId()]})


def _explained(query: Any) -> str:
    """Return what Spark says of a query's plans; Connect offers it as a print only."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        query.explain(True)  # noqa: FBT003  Spark's own
    return told.getvalue()
