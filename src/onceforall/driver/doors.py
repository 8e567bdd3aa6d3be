"""The doors: ``write_stream`` for whole queries, and ``exactly_once`` for a ``foreachBatch``
function of one's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from onceforall.common import arguments, logs
from onceforall.driver.connect import ConnectFunction, plain_error
from onceforall.driver.query_run import ExactlyOnceFunction, shortest_timeout_ms
from onceforall.driver.settings import InDoubt, OnDivergence, Redo, Settings
from onceforall.driver.starting import WholeQuery, check_start
from onceforall.driver.targets import check_adopted
from onceforall.driver.transaction import BatchFunction, BatchTransaction
from onceforall.errors import OptionError, UnsupportedQueryError
from onceforall.sink import TwoPhaseCommitSink
from onceforall.spark.hadoop_paths import absolute_location
from onceforall.spark.plans import aggregates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logs.logger("onceforall")

Transform = Callable[["DataFrame"], "DataFrame"]


def _whole(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError("a whole number") from None


def _flag(value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return value.lower() == "true"


_OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "onceforall.onDivergence": ("on_divergence", str),
    "onceforall.minBatchesToRetain": ("min_batches_to_retain", _whole),
    "onceforall.decisionReserveMs": ("decision_reserve_ms", _whole),
    "onceforall.adoptCheckpoint": ("adopt_checkpoint", _flag),
    "onceforall.takeover": ("takeover", str),
    "onceforall.commitLog": ("commit_log", str),
    "onceforall.redo": ("redo", str),
    "onceforall.inDoubt": ("in_doubt", str),
    "onceforall.lostRows": ("lost_rows", str),
    # Which names these are is known when the sinks are.
    "onceforall.adoptTarget": ("adopt_target", lambda value: (value,)),
}


def write_stream(frame: DataFrame) -> StreamWriter:
    """Write a streaming DataFrame to one or several sinks, exactly once.

    Args:
        frame: any streaming DataFrame, of a classic session or of Spark Connect.

    Returns:
        A writer with these methods of Spark's ``DataStreamWriter``: ``queryName``, ``outputMode``,
        ``trigger``, ``option``, ``options`` and ``start``. Call ``to`` at least once, which takes
        the place of ``format``, ``foreachBatch`` and the like, then ``start``.

    Raises:
        UnsupportedQueryError: the frame is not streaming.
    """
    return StreamWriter(frame)


def exactly_once(
    checkpoint: str | os.PathLike[str],
    *,
    sinks: Mapping[str, TwoPhaseCommitSink],
    on_divergence: OnDivergence = "warn",
    min_batches_to_retain: int = 100,
    decision_reserve_ms: int | None = None,
    adopt_checkpoint: bool = False,
    takeover: Literal["accept"] | None = None,
    commit_log: str | os.PathLike[str] | None = None,
    redo: Redo = "auto",
    in_doubt: InDoubt | None = None,
    lost_rows: str | None = None,
    adopt_target: Collection[str] = (),
    store: Mapping[str, str] | None = None,
) -> Callable[[BatchFunction], ExactlyOnceFunction | ConnectFunction]:
    """Make a function ``(batch, batch_id, transaction)`` fit for ``writeStream.foreachBatch``, with
    one decision for all its writes.

    Args:
        checkpoint: the query's ``checkpointLocation``; it is compared with the query's own at the
            first batch.
        sinks: the query's sinks by name. The names are what the commit log knows: keep them over
            restarts.
        on_divergence: ``warn`` or ``fail``, when the replay of a decided batch gives other rows.
        min_batches_to_retain: how many decided batches stay in the commit log.
        decision_reserve_ms: how much of the transaction timeout must be left at the decision; by
            default a third.
        adopt_checkpoint: take over a commit log whose checkpoint was moved here.
        takeover: ``accept`` takes over a plain query's checkpoint whose last batch is unfinished.
        commit_log: where a new query's commit log lies, if not in the checkpoint; a pointer in the
            checkpoint then leads to it.
        redo: how the rows of a transaction come back that was lost after the decision: ``replay``
            runs the batch again, which must give the very same rows; ``durable`` keeps the prepared
            rows beside the commit log until the batch is complete; ``auto`` keeps them where
            Spark's plan doesn't show that a replay gives the same ones.
        in_doubt: for one start only: what to hold a decided transaction for of which no proof can
            be had, ``committed`` or ``aborted``.
        lost_rows: for one batch only: what to do where a part of its transactions is lost and a
            replay can't write the same rows again: ``giveUp:<batch>`` (these rows stay missing),
            ``giveUpUnseen:<batch>`` (the same without a replay) or ``writeAll:<batch>`` (each sink
            that has lost some gets the whole batch again, so what is visible there is duplicated).
            The choice stays on record in the commit log.
        adopt_target: for one start only: the names of sinks whose target was replaced, or put back
            to an older state, on purpose.
        store: how a commit log on an object store is reached, where Spark's own settings don't
            tell; see ``docs/stores.md``.

    Returns:
        A decorator. The decorated function takes (batch, batch_id). In a client of Spark Connect
        Spark pickles it in ``foreachBatch``, and what is said below to be raised by the decorator
        is raised by the query's ``start()``: ask ``error_of`` for it.

    Raises:
        OptionError: an argument is out of its range.
        UnsupportedQueryError: the checkpoint is not on a local (or locally mounted) file system.
        CheckpointMismatchError: the checkpoint is a plain query's, and its last batch is
            unfinished; or checkpoint and commit log are not bound to each other, or the checkpoint
            was moved, copied or cloned.

    Side effects of the function other than ``transaction.write`` are not covered: a replay does
    them again.
    """
    settings = Settings(
        on_divergence,
        min_batches_to_retain,
        decision_reserve_ms,
        adopt_checkpoint,
        takeover,
        None if commit_log is None else arguments.path("commit_log", commit_log),
        redo,
        in_doubt,
        lost_rows,
        arguments.sinks("adopt_target", adopt_target, sinks if isinstance(sinks, Mapping) else ()),
        store or {},
    )
    location = arguments.path("checkpoint", checkpoint)
    if not arguments.mapping(
        "sinks", sinks, "a dictionary from name to sink: sinks={'name': sink}"
    ):
        raise OptionError("exactly_once needs at least one sink: sinks={'name': sink}.")
    for name, sink in sinks.items():
        _check_name(name)
        arguments.check_sink(f"sinks[{arguments.shown(name)}]", sink)
    session = _session()
    if session is not None:
        location = absolute_location(session, location)
    if not _is_connect(session):
        _use_this_python(session)

    def decorate(function: BatchFunction) -> ExactlyOnceFunction | ConnectFunction:
        arguments.function(
            "What exactly_once decorates", function, "batch", "batch_id", "transaction"
        )
        spark = _session()
        if _is_connect(spark):
            settings.reserve_ms(shortest_timeout_ms(sinks))
            return ConnectFunction(function, location, sinks, settings)
        check_start(spark, location, settings, sinks, None)
        return ExactlyOnceFunction(function, location, sinks, settings)

    return decorate


class StreamWriter:
    """Builds and starts an exactly-once query, with those methods of Spark's ``DataStreamWriter``
    that don't say where rows go: that is ``to``. Each of them, but ``start``, returns the writer
    itself.
    """

    def __init__(self, frame: DataFrame) -> None:
        arguments.check_frame(frame, "write_stream", or_connect=True)
        if not frame.isStreaming:
            raise UnsupportedQueryError(
                "write_stream takes a streaming DataFrame (spark.readStream); this one is not "
                "streaming."
            )
        self._frame = frame
        self._sinks: dict[str, TwoPhaseCommitSink] = {}
        self._transforms: dict[str, Transform | None] = {}
        self._settings: dict[str, Any] = {}
        self._checkpoint: str | None = None
        self._query_name: str | None = None
        self._output_mode = "append"
        self._apply: list[Callable[[DataStreamWriter], DataStreamWriter]] = []

    def to(
        self,
        sink: TwoPhaseCommitSink,
        *,
        name: str | None = None,
        transform: Transform | None = None,
    ) -> StreamWriter:
        """Add a sink.

        Args:
            sink: where each batch goes.
            name: the sink's name in this query, under which the commit log knows it; by default its
                kind and target. Keep it over restarts.
            transform: a function DataFrame -> DataFrame that is applied to each batch for this sink
                alone.

        Raises:
            OptionError: the name is taken or malformed, or an argument is of a wrong type.
        """
        arguments.check_sink("to: sink", sink)
        if transform is not None:
            arguments.function("to: transform", transform, "batch")
        name = sink.default_name if name is None else name
        _check_name(name)
        if name in self._sinks:
            raise OptionError(
                f"Two sinks are named {name!r}; give one of them another name: .to(sink, name='…')."
            )
        self._sinks[name] = sink
        self._transforms[name] = transform
        return self

    def queryName(self, queryName: str) -> StreamWriter:  # noqa: N802, N803  Spark's own name
        """Name the query, as in Spark."""
        self._query_name = arguments.text("queryName", queryName, "the query's name")
        self._apply.append(lambda writer: writer.queryName(queryName))
        return self

    def outputMode(self, outputMode: str) -> StreamWriter:  # noqa: N802, N803
        """Set the output mode (``append``, ``update`` or ``complete``), as in Spark."""
        arguments.text("outputMode", outputMode, "'append', 'update' or 'complete'")
        self._output_mode = arguments.choice(
            "outputMode", outputMode.lower(), ("append", "update", "complete")
        )
        self._apply.append(lambda writer: writer.outputMode(outputMode))
        return self

    def trigger(self, **kwargs: Any) -> StreamWriter:
        """Set the trigger, as in Spark: ``processingTime``, ``availableNow`` or ``once``.

        Raises:
            UnsupportedQueryError: continuous and real-time triggers cannot be exactly-once.
            OptionError: Spark refuses these arguments.
        """
        for kind in ("continuous", "realTime"):
            if kwargs.get(kind) is not None:
                raise UnsupportedQueryError(
                    f"trigger({kind}=…) can't be exactly-once: in that mode Spark does not record "
                    "a batch's offsets before it runs, so "
                    "a batch can't be replayed as it was. Use processingTime, availableNow or once."
                )
        # Of a writer that nobody starts: what Spark refuses is told here, and not by start().
        writer = self._frame.writeStream
        try:
            writer.trigger(**kwargs)
        except Exception as error:
            given = ", ".join(f"{name}={arguments.shown(value)}" for name, value in kwargs.items())
            raise OptionError(
                f"Spark refuses trigger({given}). Give one of processingTime='10 seconds', "
                "availableNow=True and once=True."
            ) from error
        self._apply.append(lambda writer: writer.trigger(**kwargs))
        return self

    def option(self, key: str, value: Any) -> StreamWriter:
        """Set an option: ``checkpointLocation``, one of ``onceforall.*``, or any of Spark's.

        Raises:
            OptionError: an unknown or malformed option of ``onceforall.*``.
            UnsupportedQueryError: ``asyncProgressTrackingEnabled``.
        """
        arguments.text("option: key", key, "the name of an option, such as 'checkpointLocation'")
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        ours = key.lower().startswith("onceforall.") or key.lower() == "checkpointlocation"
        if not isinstance(value, str | bool | int | float) and (ours or value is not None):
            raise arguments.wrong(
                f"option: the value of {key!r}",
                value,
                "a text, a number or a boolean, or leave the option out",
            )
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if key.lower().startswith("onceforall."):
            self._set(key, text)
        elif key.lower() == "asyncprogresstrackingenabled" and text.lower() == "true":
            raise UnsupportedQueryError(
                "Async progress tracking can't be exactly-once: Spark then records offsets after "
                "the batch, so that it can't be replayed "
                "as it was. Remove asyncProgressTrackingEnabled."
            )
        else:
            if key.lower() == "checkpointlocation":
                self._checkpoint = arguments.path("checkpointLocation", value)
            self._apply.append(lambda writer: writer.option(key, value))
        return self

    def options(self, **options: Any) -> StreamWriter:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def start(self) -> StreamingQuery:
        """Check everything that can be checked before data moves, then start the query.

        Returns:
            Spark's own ``StreamingQuery``.

        Raises:
            ConfigurationError: something must be mended first; the message names it.
            CheckpointMismatchError: the checkpoint is a plain query's, and its last batch is
                unfinished; or checkpoint and commit log are not bound to each other, or the
                checkpoint was moved, copied or cloned.
        """
        if not self._sinks:
            raise OptionError("No sink: call .to(sink) before .start().")
        spark = self._frame.sparkSession
        location = absolute_location(spark, self._checkpoint_location())
        settings = Settings(**self._settings)
        adopted = arguments.sinks("adopt_target", settings.adopt_target, self._sinks)
        settings = replace(settings, adopt_target=adopted)
        settings.reserve_ms(shortest_timeout_ms(self._sinks))
        check_adopted(settings.adopt_target, self._sinks)
        as_they_are = [name for name, transform in self._transforms.items() if transform is None]
        whole = WholeQuery(self._output_mode, self._frame.schema, tuple(as_they_are))
        writes = _Writes(
            dict(self._transforms),
            {name: sink.capabilities.replaces_by for name, sink in self._sinks.items()},
        )
        function: ExactlyOnceFunction | ConnectFunction
        if arguments.is_connect(self._frame):
            function = ConnectFunction(writes, location, self._sinks, settings, whole)
        else:
            _use_this_python(spark)
            check_start(spark, location, settings, self._sinks, whole)
            function = ExactlyOnceFunction(writes, location, self._sinks, settings)
        writer = self._frame.writeStream
        for apply in self._apply:
            writer = apply(writer)
        # The absolute one: what Spark shows of the query says where it is.
        writer = writer.option("checkpointLocation", location).foreachBatch(function)
        return _started_by_connect(writer) if arguments.is_connect(spark) else writer.start()

    def _checkpoint_location(self) -> str:
        if self._checkpoint is not None:
            return self._checkpoint
        root = self._frame.sparkSession.conf.get("spark.sql.streaming.checkpointLocation", None)
        if root and self._query_name:
            return f"{root.rstrip('/')}/{self._query_name}"
        raise OptionError(
            "No checkpointLocation: exactly-once needs one that stays the same over restarts. Set "
            ".option('checkpointLocation', '…')."
        )

    def _set(self, key: str, text: str) -> None:
        prefix = "onceforall.store."
        if key.lower().startswith(prefix):
            store = self._settings.setdefault("store", {})
            store[key[len(prefix) :].lower()] = text
            return
        known = {name.lower(): (name, *rest) for name, rest in _OPTIONS.items()}
        if key.lower() not in known:
            raise OptionError(f"Unknown option {key!r}; known are: {', '.join(sorted(_OPTIONS))}.")
        name, field, read = known[key.lower()]
        try:
            self._settings[field] = read(text)
        except ValueError as error:
            raise OptionError(
                f"{name}={text!r:.100} can't be read. Give {error} (docs/options.md#options)."
            ) from None


@dataclass
class _Writes:
    """The function of a batch of ``write_stream``; with Spark Connect it goes to the server.

    Attributes:
        transforms: by sink name; None: the sink gets the batch's rows as they are.
        replaces_by: by sink name, the columns by which a row takes the place of an earlier one.
    """

    transforms: Mapping[str, Transform | None]
    replaces_by: Mapping[str, tuple[str, ...]]
    _looked_at: set[str] = field(default_factory=set)

    def __call__(self, batch: DataFrame, batch_id: int, transaction: BatchTransaction) -> None:  # noqa: ARG002
        for name, transform in self.transforms.items():
            rows = batch
            if transform is not None:
                rows = transform(batch)
                arguments.check_frame(
                    rows, f"The transform of sink {name}", "its result", or_connect=True
                )
                self._warn_of_aggregate(name, rows)
            transaction.write(name, rows)

    @property
    def writes_as_it_is(self) -> bool:
        """Whether each sink gets the batch itself, and nothing else reads it."""
        return all(transform is None for transform in self.transforms.values())

    def _warn_of_aggregate(self, name: str, rows: DataFrame) -> None:
        """Say once that a batch's aggregate replaces what earlier batches wrote.

        Not at ``start()``: only Spark may call a user's function.
        """
        key = self.replaces_by[name]
        if key and name not in self._looked_at and aggregates(rows):
            _log.warning(
                "The transform of sink %r aggregates each batch by itself, and the sink replaces "
                "rows by %s: a row then holds the aggregate of the last batch "
                "that had its key, and not a total. If totals are meant, let the sink add them "
                "up: accumulate={…}; see docs/aggregates.md.",
                name, list(key),
            )  # fmt: skip
        self._looked_at.add(name)


def _started_by_connect(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query whose checks are made on the server, and raise what they raise."""
    try:
        return writer.start()
    except Exception as error:
        ours = plain_error(error)
        if ours is None:
            raise
        raise ours from error


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name or len(name) > 200 or not name.isprintable():
        raise OptionError(
            f"The sink name {arguments.shown(name)} is not usable: it must be 1 to 200 printable "
            "characters."
        )


def _session() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _is_connect(session: SparkSession | None) -> bool:
    """Tell whether queries of this process are Spark Connect's; without a session, whether it is
    set up for that.
    """
    from pyspark.sql.utils import is_remote

    return is_remote() if session is None else arguments.is_connect(session)


def _use_this_python(spark: SparkSession | None) -> None:
    """Let local Python workers be started with the interpreter that has this library, unless the
    user chose one.
    """
    if "PYSPARK_PYTHON" in os.environ:
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    context = None if spark is None else spark.sparkContext
    # A context that is there has read the variable already. On a cluster this path may not exist.
    if (
        context is not None
        and context.pythonExec == "python3"
        and str(context.master).startswith("local")
    ):
        context.pythonExec = sys.executable
