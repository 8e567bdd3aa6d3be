"""What is checked before a query with an operator starts."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from onceforall.common import arguments
from onceforall.errors import MissingExtraError, OptionError, SchemaError, UnsupportedQueryError
from onceforall.operators.outputs import LATE
from onceforall.operators.triggers import Trigger, micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_Given = TypeVar("_Given")

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_OF_LATE_ROWS = " (that of the late rows, whose name is kept in processing time, too)"
_WATERMARK = (
    "spark.watermarkDelayMs"  # the metadata by which Spark itself knows a column with a watermark
)
_MULTIPLE = "spark.sql.streaming.statefulOperator.allowMultiple"
_KEEPING = ("TransformWithState", "FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState")


def check_frame(frame: DataFrame, operator: str) -> None:
    """Check that Spark can run ``transformWithState`` on this frame.

    Raises:
        MissingExtraError: protobuf is not installed, through which PySpark speaks with the state
            store.
        OptionError: it is no DataFrame.
        UnsupportedQueryError: the frame is not streaming or of Spark Connect, or the session's
            state store is not RocksDB.
        SchemaError: two columns have the same name.
    """
    arguments.check_frame(frame, operator)
    check_protobuf()
    if not frame.isStreaming:
        raise UnsupportedQueryError(
            f"{operator} takes a streaming DataFrame (spark.readStream); this one is not streaming."
        )
    provider = frame.sparkSession.conf.get(_PROVIDER)
    if provider != _ROCKSDB:
        raise UnsupportedQueryError(
            f"{operator} needs the RocksDB state store: Spark's transformWithState runs on no "
            f"other, and this session has {provider}. "
            f'Set spark.conf.set("{_PROVIDER}", "{_ROCKSDB}").'
        )
    names = [name.lower() for name in frame.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(
            f"{operator}: two columns are named {twice[0]!r}; rename one of them before."
        )


def check_protobuf() -> None:
    """Check that PySpark's messages to the state store can be built.

    Raises:
        MissingExtraError: protobuf is not installed.
        UnsupportedQueryError: it is too old for this PySpark.
    """
    try:
        importlib.import_module("google.protobuf")
    except ImportError as error:
        raise MissingExtraError("protobuf", "operators") from error
    try:
        importlib.import_module("pyspark.sql.streaming.proto.StateMessage_pb2")
    except ImportError:
        return  # another PySpark has it elsewhere, and will say itself what it lacks
    except Exception as error:
        raise UnsupportedQueryError(
            f"The installed protobuf does not fit this PySpark: {error} Install: pip install "
            "'onceforall[operators]'"
        ) from error


def given(value: _Given | None, what: str, remedy: str) -> _Given:
    """Return a value that an operator can't do without.

    Args:
        value: of the argument; None comes of a setting that is not set, say, and would be taken for
            "no such rule".
        what: the name of the argument.
        remedy: what to give, as a sentence.

    Raises:
        OptionError: it is None.
    """
    if value is None:
        raise OptionError(f"{what} is None, and this operator can't do without it. {remedy}")
    return value


def trigger_of(trigger: Trigger | None) -> tuple[int | None, int | None]:
    """Return after how many events, and after how many microseconds, a window says something early.

    Raises:
        OptionError: it is no ``Trigger``.
    """
    if trigger is not None and not isinstance(trigger, Trigger):
        raise arguments.wrong(
            "trigger", trigger, "a Trigger, such as Trigger(count=100), or leave it out"
        )
    return (
        (None, None)
        if trigger is None
        else (trigger.count, micros(trigger.every, "Trigger(every=…)"))
    )


def columns_named(frame: DataFrame, names: str | Iterable[str], what: str) -> list[str]:
    """Return names as a list, and check that the frame has them.

    Raises:
        OptionError: there is None instead of a name.
        SchemaError: a column is missing, or named twice.
    """
    names = given(names, what, "Give the name of a column, or leave it out where it has a default.")
    listed = list(arguments.names(what, names, "the name of a column, or a list of names"))
    for name in listed:
        if name not in frame.columns:
            raise SchemaError(
                f"{what}: there is no column {name!r}; there are: {', '.join(frame.columns)}."
            )
        if listed.count(name) > 1:
            raise SchemaError(f"{what}: {name!r} is named twice.")
    return listed


def check_time(frame: DataFrame, time: str) -> None:
    """Check that a column can be the events' time.

    Raises:
        SchemaError: it is missing, or no TIMESTAMP.
        UnsupportedQueryError: it has no watermark, or one over another.
    """
    from pyspark.sql.types import TimestampType

    arguments.text("time", time, "the name of a TIMESTAMP column, or leave it out")
    columns_named(frame, time, "time")
    field = frame.schema[time]
    if not isinstance(field.dataType, TimestampType):
        raise SchemaError(
            f"time: the column {time!r} is {field.dataType.simpleString()}, not timestamp. Cast "
            "it before withWatermark: "
            f".withColumn({time!r}, F.col({time!r}).cast('timestamp'))."
        )
    if _WATERMARK not in field.metadata:
        raise UnsupportedQueryError(
            f"time: the column {time!r} has no watermark, and without one no window would ever "
            "know that it is complete. Call "
            f".withWatermark({time!r}, '10 minutes') before, with as long as events may come "
            "behind others; or leave time= out, for "
            "windows of processing time."
        )
    check_hidden_watermark(
        frame,
        1,
        "Set it once, behind enrich. What another window, attribute or deduplicate gives needs a "
        "query of its own: write it to a topic or table, and read that.",
    )


def check_hidden_watermark(frame: DataFrame, most: int, remedy: str) -> None:
    """Check that no operator behind which a watermark isn't seen has hidden one of this frame.

    Spark runs a query with one watermark over another until the first of them is above 0, and then
    fails: "Redefining watermark is disallowed". Where the upper one waits for rows that come when
    the lower one has passed them, neither is ever above 0: then nothing comes out, and no error.

    Args:
        frame: of Spark Connect, too, whose plan isn't known here.
        most: how many watermarks it has that are seen.
        remedy: what to do, as a sentence.

    Raises:
        UnsupportedQueryError: it has more, one over the other.
    """
    if not hasattr(frame, "_jdf") or frame.sparkSession.conf.get(_MULTIPLE, "true") == "false":
        return
    if _watermarks_of(frame._jdf.queryExecution().analyzed()) > most:  # noqa: SLF001  Spark offers this in no other way
        raise UnsupportedQueryError(
            "A watermark has been set before an operator behind which it isn't seen (enrich, "
            "attribute, windows, deduplicate with late='keep'), and Spark takes no second one over "
            f"it: the query would stand still, or fail in its second batch. {remedy}"
        )


def _watermarks_of(plan: Any) -> int:
    """Return how many watermarks are one over the other."""
    name = plan.nodeName()
    if name.startswith(_KEEPING) and "ProcessingTime" in plan.simpleString(2**31 - 1):
        return 0  # no watermark passes
    children = plan.children()
    below = [_watermarks_of(children.apply(number)) for number in range(children.size())]
    return int(name == "EventTimeWatermark") + max(below, default=0)


def check_key(frame: DataFrame, key: Sequence[str]) -> None:
    """Check that these columns can be a key.

    Raises:
        SchemaError: there is none, or one has a type that two equal values may be written
            differently in.
    """
    from pyspark.sql import types as T  # noqa: N812

    if not key:
        raise SchemaError(
            "key: name at least one column; for one window over everything, add a column that is "
            "the same in every row."
        )
    allowed = (
        T.StringType | T.ByteType | T.ShortType | T.IntegerType | T.LongType | T.BooleanType | T.DateType | T.DecimalType | T.BinaryType  # noqa: E501
        | T.TimestampType
    )  # fmt: skip
    for name in key:
        field = frame.schema[name]
        if not isinstance(field.dataType, allowed) or _is_collated(field.dataType):
            raise SchemaError(
                f"key: the column {name!r} is {field.dataType.simpleString()}; keys are strings "
                "(without a collation), whole numbers, "
                "decimals, booleans, dates, timestamps or binaries. Cast it before."
            )


def check_outputs(names: Sequence[str]) -> None:
    """Check that no two columns of the output have the same name, those included that only some
    outputs have.

    Raises:
        OptionError: two have.
    """
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str):
            raise OptionError(
                f"aggregates has {arguments.shown(name)} for a name. Give the names of the "
                "output's columns as texts."
            )
        if not name or name.lower() in seen:
            raise OptionError(
                "The output would have two columns "
                f"{name!r}{_OF_LATE_ROWS if name.lower() == LATE else ''}: call the aggregate "
                "otherwise, or "
                "rename the key column before."
                if name
                else "An aggregate needs a name: it is its column in the output."
            )
        seen.add(name.lower())


def _is_collated(kind: DataType) -> bool:
    from pyspark.sql.types import StringType

    return isinstance(kind, StringType) and kind != StringType()
