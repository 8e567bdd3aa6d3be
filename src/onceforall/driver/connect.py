"""The doors in Spark Connect: a function that the client pickles, and what becomes of it in the
child process of the server that takes the batches.

Spark unpickles the function in that process before it reads the checkpoint, and hands an error of
that to the client's ``start()``. So everything that a start looks at is looked at there, in
``opened``: on the server's machine, with the server's settings, before data moves.

Then the child is what a classic driver is. It has the one coordinator of its run, and ends with it:
its parent, the server, sends SIGTERM when the query has ended (``stopping``). Where the server
was killed, the child lives on for as long as it takes to notice that. What it does meanwhile, the
commit log decides: the next start seals its chain.

The batches run in a thread of their own, for the main thread takes the signal.

Secret values travel in the pickle, for the driver's side needs them. They are combined with random
bytes that travel beside them: that hides them from whoever reads a log, and from nobody else. The
way itself is as safe as the connection of the client is (``use_ssl``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onceforall._version import __version__
from onceforall.common import logs
from onceforall.common.arguments import location_shown
from onceforall.common.threads import start_thread
from onceforall.driver import failures, stopping
from onceforall.driver.query_run import QueryRun, Taking
from onceforall.driver.settings import Settings
from onceforall.driver.starting import WholeQuery, check_start
from onceforall.driver.targets import check_adopted
from onceforall.driver.transaction import BatchFunction
from onceforall.errors import (
    CheckpointMismatchError,
    ExecutorCheckError,
    OnceForAllError,
    OptionError,
    UnsupportedQueryError,
    described,
    text_of,
)
from onceforall.sink import TwoPhaseCommitSink
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark.connect.run import ConnectRun
from onceforall.spark.connect.server import server_is_gone
from onceforall.spark.hadoop_paths import check_absolute
from onceforall.spark.remote_path import AnyPath

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ConnectFunction", "opened", "plain_error"]

logger = logs.logger("onceforall")

_IN_A_CHILD = "SPARK_CONNECT_LOCAL_URL"
"""The server sets it for the processes that it starts."""

_LOOKS_EVERY_S = 0.5

_DOCUMENTATION = "docs/connect.md#what-the-server-needs"

_LACKS_US = re.compile(r"No module named 'onceforall(?:\.[\w.]+)?'")
"""A user's module may have a name that begins like ours."""


@dataclass(frozen=True)
class _Carried:
    """What goes to the server.

    Attributes:
        function: the function of a batch.
        location: the checkpoint's.
        sinks: by name, without secret values.
        secrets: by sink name; see ``TwoPhaseCommitSink.restored``.
        driver_only: the same.
        settings: the user's.
        whole: what ``write_stream`` knows.
    """

    function: BatchFunction
    location: str
    sinks: Mapping[str, TwoPhaseCommitSink]
    secrets: Mapping[str, Mapping[str, str]] = field(repr=False)
    driver_only: Mapping[str, Mapping[str, Any]] = field(repr=False)
    settings: Settings
    whole: WholeQuery | None


class ConnectFunction:
    """The function for ``foreachBatch`` of a query that is started from a client of Spark Connect.

    Args:
        function: the function of a batch.
        location: the checkpoint's.
        sinks: the query's, by name.
        settings: the user's.
        whole: what ``write_stream`` knows; None: the user starts the query.

    Raises:
        OptionError: ``adopt_target`` names no sink, the location or a path of a sink is relative,
            or something can't be pickled.
    """

    def __init__(
        self,
        function: BatchFunction,
        location: str,
        sinks: Mapping[str, TwoPhaseCommitSink],
        settings: Settings,
        whole: WholeQuery | None = None,
    ) -> None:
        check_adopted(settings.adopt_target, sinks)
        check_absolute(f"The checkpoint {location_shown(location)}", location)
        for name, sink in sinks.items():
            for path in sink.local_paths:
                check_absolute(f"The path of the sink {name!r}, {location_shown(path)},", path)
        self._function = function
        self._location = location
        self._sinks = dict(sinks)
        self._settings = settings
        self._whole = whole
        self.__name__ = getattr(function, "__name__", "exactly_once")
        self.__doc__ = getattr(function, "__doc__", None)
        # What Spark says of what can't be pickled names nothing.
        self.__reduce__()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:  # noqa: ARG002  Spark's order
        """Refuse: Spark calls what ``opened`` makes of it, on the server."""
        raise UnsupportedQueryError(
            "An exactly_once function was called outside a streaming query's foreachBatch; "
            "give it to writeStream.foreachBatch."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it for the server.

        Raises:
            OptionError: something that it holds can't be pickled.
        """
        from pyspark import cloudpickle

        carried = _Carried(
            self._function,
            self._location,
            self._sinks,
            {name: dict(sink.secrets()) for name, sink in self._sinks.items()},
            {name: dict(sink.driver_only) for name, sink in self._sinks.items()},
            self._settings,
            self._whole,
        )
        try:
            body = cloudpickle.dumps(carried)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise OptionError(
                "Spark Connect runs the function of a batch on the server, and what it or a sink "
                f"holds can't be taken there: {described(error)}. Let it hold no connection, lock "
                "or open file of the client's, and make them where they are used."
            ) from error
        pad = os.urandom(len(body))
        return opened, (__version__, _combined(body, pad), pad)


def opened(version: str, body: bytes, pad: bytes) -> Any:
    """Begin a start in the child process of the server, which unpickles the client's function.

    Args:
        version: of this library on the client.
        body: what ``ConnectFunction`` has pickled, combined with the pad.
        pad: as many random bytes.

    Returns:
        The function for the batches; in any other process, the client's function again.

    Raises:
        OnceForAllError: what ``check_start`` raises.
        ExecutorCheckError: the server has another version of this library, or lacks a module that
            the query's functions or sinks come from.
    """
    from pyspark import cloudpickle

    if version != __version__:
        raise ExecutorCheckError(
            f"The Spark Connect server has onceforall {__version__}, and the client has {version}. "
            f"Install one version on both ({_DOCUMENTATION})."
        )
    try:
        carried: _Carried = cloudpickle.loads(_combined(body, pad))
    except OnceForAllError:
        raise
    except Exception as error:
        raise ExecutorCheckError(
            "The Python of the Spark Connect server can't make the query's functions and sinks "
            f"anew: {described(error)}. No data has moved. Install the module that they come from "
            "on the server and on every executor, in the client's version, or register it with "
            f"pyspark.cloudpickle.register_pickle_by_value on the client ({_DOCUMENTATION})."
        ) from error
    sinks = {
        name: sink.restored(carried.secrets[name], carried.driver_only[name])
        for name, sink in carried.sinks.items()
    }
    if _IN_A_CHILD not in os.environ:
        return ConnectFunction(
            carried.function, carried.location, sinks, carried.settings, carried.whole
        )
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    assert spark is not None, "the server's child has a session before it has a function"
    _log_to_the_server()
    checkpoint = check_start(spark, carried.location, carried.settings, sinks, carried.whole)
    made = _ServerFunction(carried, sinks, spark, checkpoint)
    stopping.arm(repeats=True)
    start_thread(made.end_with_the_server, "onceforall-server")
    return made


def plain_error(error: Exception) -> OnceForAllError | None:
    """Return the error of ours that Spark Connect has raised in ``start()``, as what it was on the
    server; None: it is another one.
    """
    text = text_of(error)
    if _LACKS_US.search(text):
        return ExecutorCheckError(
            "The Python of the Spark Connect server can't import onceforall, or not this version. "
            f"No data has moved. Install onceforall {__version__} there, for the Python that the "
            f"server starts (spark.pyspark.python, PYSPARK_PYTHON), with the extras of the query's "
            f"sinks ({_DOCUMENTATION})."
        )
    return failures.from_text(text)


class _ServerFunction:
    """The function for the batches of one run, in the child process of the server."""

    def __init__(
        self,
        carried: _Carried,
        sinks: Mapping[str, TwoPhaseCommitSink],
        spark: SparkSession,
        checkpoint: AnyPath,
    ) -> None:
        self._carried = carried
        self._sinks = sinks
        self._spark = spark
        self._batch_session = spark
        self._closed: list[Any] = []
        self._checkpoint = checkpoint
        self._earlier_run = self._running()
        self._spark_run: ConnectRun | None = None
        self._run: QueryRun | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Take one batch to its end; called by Spark."""
        raised: list[BaseException] = []

        def take() -> None:
            try:
                self._take(batch, batch_id)
            except BaseException as error:  # noqa: BLE001  the main thread raises it
                raised.append(error)

        # The main thread takes the signal that ends the process, and must not hold up the batch.
        thread = threading.Thread(target=take, name="onceforall-batch", daemon=True)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        # From Spark 4.3 on a clone of the session in which the query was started, with a client of
        # its own.
        self._batch_session = batch.sparkSession
        spark_run = self._spark_run = self._spark_run or self._found()
        taking = Taking(spark_run.query_id, spark_run.run_id, spark_run.name, batch_id)
        with taking.told():
            if self._run is None:
                self._run = QueryRun.open(
                    spark_run, self._carried.location, self._sinks, self._carried.settings
                )
            # A start takes a while, in which the process may have been told to end.
            stopping.PROCESS.refuse_new_work()
            self._run.take(batch, batch_id, self._carried.function)

    def _found(self) -> ConnectRun:
        """Return the run whose batch this is: the one of the checkpoint's query."""
        query_id = spark_checkpoint.query_id(self._checkpoint)
        query = None if query_id is None else self._spark.streams.get(query_id)
        if query is None or str(query.runId) == self._earlier_run:
            raise CheckpointMismatchError(
                f"exactly_once names the checkpoint {self._checkpoint}, which is not this query's "
                "checkpointLocation, as far as the server's files tell. Name the same one, and let "
                "the driver of the Spark Connect server and its Python see one file system; "
                "nothing was written."
            )
        return ConnectRun(self._spark, query)

    def _running(self) -> str | None:
        """Return the run that has the checkpoint now, before this one: it is ended by Spark when
        this one starts, or it is another query's.
        """
        query_id = spark_checkpoint.query_id(self._checkpoint)
        query = None if query_id is None else self._spark.streams.get(query_id)
        return None if query is None else str(query.runId)

    def end_with_the_server(self) -> None:
        """Wait until the server has ended, and let no call wait for its answer then: the clients
        of Connect ask again for minutes.
        """
        while not server_is_gone():
            time.sleep(_LOOKS_EVERY_S)
        logger.warning("the Spark Connect server has ended, and this run ends with it")
        while True:
            self.close_clients()
            # The server's last breath may have been another batch, with another session.
            time.sleep(_LOOKS_EVERY_S)

    def close_clients(self) -> None:
        """End every call to the server that is under way, and let no other one begin."""
        for session in (self._spark, self._batch_session):
            client: Any = session.client
            if not any(client is each for each in self._closed):
                # It looks through the calls that are under way, and fails where one begins at that
                # moment: the next turn closes it.
                with contextlib.suppress(Exception):
                    client.close()
                    self._closed.append(client)


def _log_to_the_server() -> None:
    """Let what is logged at level INFO reach the server's log, for nobody has set logging up in
    this process.
    """
    if logging.getLogger().handlers or logging.getLogger("onceforall").handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.getLogger("onceforall").addHandler(handler)
    logging.getLogger("onceforall").setLevel(logging.INFO)


def _combined(one: bytes, other: bytes) -> bytes:
    combined = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return combined.to_bytes(len(one), "big")
