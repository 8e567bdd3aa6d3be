"""Builds the streaming DataFrame of a window operator: columns in, ``transformWithState``,
columns out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceforall.common import arguments
from onceforall.errors import OptionError, SchemaError
from onceforall.operators import _checks as checks
from onceforall.operators import _columns as columns
from onceforall.operators._core import Spec
from onceforall.operators._events import Value
from onceforall.operators._folding import Column as Folded
from onceforall.operators._sequential import SequentialRules
from onceforall.operators._sliding import SlidingRules
from onceforall.operators.aggregates import Aggregate, Count, First, Last, Max, Min, Rows, Sum
from onceforall.operators.outputs import KIND, LATE
from onceforall.spark.row_hashes import row_hash

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# Without late rows, too: what is called as their column is would go with it in `results`.
_OWN = (KIND, "window_start", "window_end", "window_index", "revision", "events", "closed_by", LATE)


@dataclass(frozen=True)
class _Column:
    """One aggregate between Spark and the core."""

    folded: Folded
    source: Column
    travel: columns.Travel

    @property
    def wire(self) -> DataType:
        from pyspark.sql.types import ArrayType

        return ArrayType(self.travel.wire) if self.folded.fold == "rows" else self.travel.wire

    def out(self, column: Column) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        return (
            F.transform(column, self.travel.decode)
            if self.folded.fold == "rows"
            else self.travel.decode(column)
        )


def windows(  # noqa: PLR0917
    frame: DataFrame,
    operator: str,
    rules: SequentialRules | SlidingRules,
    key: str | Sequence[str],
    time: str | None,
    order_by: str | Sequence[str],
    aggregates: Mapping[str, Aggregate],
    name: str,
) -> DataFrame:
    """Return the operator's output; see ``count_window`` for its columns and errors."""
    checks.check_frame(frame, operator)
    keys = checks.columns_named(frame, key, "key")
    checks.check_key(frame, keys)
    if time is not None:
        checks.check_time(frame, time)
        if time in keys:
            raise SchemaError(
                f"key: {time!r} is the time column; a key that is a time would never have a "
                "second event."
            )
        for field in frame.schema.fields:
            columns.check_carried(field.dataType, f"The column {field.name!r}")
    order_names = checks.columns_named(frame, order_by, "order_by")
    order = [_order(frame, column) for column in order_names]
    aggregates = checks.given(
        aggregates, "aggregates", "Give a dict, such as {'spend': Sum('price')}; {} for none."
    )
    if not isinstance(aggregates, Mapping):
        raise arguments.wrong(
            "aggregates", aggregates, "a dictionary, such as {'spend': Sum('price')}; {} for none"
        )
    arguments.text("name", name, "the name under which the query's progress counts")
    made = [_column(frame, column, aggregate) for column, aggregate in aggregates.items()]
    checks.check_outputs([*_OWN, *keys, *aggregates])
    inputs = (
        "key",
        *keys,
        "time",
        time or "",
        "order",
        *order_names,
        *(repr(aggregate) for aggregate in aggregates.values()),
    )
    spec = Spec(
        rules,
        tuple(column.folded for column in made),
        tuple(value for value, _ in order),
        time is not None,
        inputs,
        columns.families(frame, keys),
    )
    prepared = _prepared(frame, keys, time, [column for _, column in order], made)
    return _decoded(
        _run(prepared, spec), frame, keys, made, aggregates, late=time is not None, name=name
    )


def _order(frame: DataFrame, name: str) -> tuple[Value, Column]:
    from pyspark.sql import functions as F  # noqa: N812

    travel = columns.sortable(frame.schema[name].dataType)
    if travel is None or travel.value.kind == "double":
        raise SchemaError(
            f"order_by: the column {name!r} is {frame.schema[name].dataType.simpleString()}; "
            "events are put in order by strings (without "
            "a collation), whole numbers, decimals, booleans, dates, timestamps or binaries."
        )
    return travel.value, travel.encode(F.col(columns.quoted(name)))


def _column(frame: DataFrame, name: str, aggregate: Aggregate) -> _Column:
    from pyspark.sql import functions as F  # noqa: N812

    if isinstance(aggregate, Rows):
        names = checks.columns_named(
            frame, aggregate.columns or frame.columns, f"Rows for {name!r}"
        )
        struct = F.struct(*[F.col(columns.quoted(column)) for column in names])
        travel = columns.carried(frame.select(struct.alias("x")).schema["x"].dataType, f"{name!r}")
        return _Column(Folded(name, "rows", travel.value), struct, travel)
    folds = {Count: "count", Sum: "sum", Min: "min", Max: "max", First: "first", Last: "last"}
    fold = folds.get(type(aggregate))
    if fold is None:
        raise OptionError(
            f"aggregates: {name!r} is {aggregate!r}; use Count, Sum, Min, Max, First, Last or "
            "Rows of onceforall.operators."
        )
    checks.columns_named(frame, aggregate.column, f"{type(aggregate).__name__} for {name!r}")
    kind = frame.schema[aggregate.column].dataType
    travel, limit = _travel(fold, kind, f"{type(aggregate).__name__}({aggregate.column!r})")
    return _Column(
        Folded(name, fold, travel.value, limit), F.col(columns.quoted(aggregate.column)), travel
    )


def _travel(fold: str, kind: DataType, what: str) -> tuple[columns.Travel, int]:
    """Return how an aggregate's input and output travel, and what a sum must stay below."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    if fold == "count":
        # Only whether it is null matters, whatever its type is.
        return columns.Travel(
            Value("int"), T.LongType(), lambda c: F.when(c.isNotNull(), F.lit(1)), lambda c: c
        ), 2**63
    if fold in {"first", "last"}:
        return columns.carried(kind, what), 2**63
    widened: DataType | None = None
    limit = 2**63
    if fold == "sum":
        if isinstance(kind, T.DecimalType):
            widened = T.DecimalType(min(38, kind.precision + 10), kind.scale)
            limit = 10**widened.precision
        elif isinstance(kind, T.FloatType | T.DoubleType):
            widened = T.DoubleType()
        elif isinstance(kind, T.ByteType | T.ShortType | T.IntegerType | T.LongType):
            widened = T.LongType()
        else:
            raise SchemaError(
                f"{what}: the column is {kind.simpleString()}; only numbers have a sum. Cast it "
                "before."
            )
    travel = columns.sortable(kind, widened)
    if travel is None:
        raise SchemaError(
            f"{what}: values of the type {kind.simpleString()} have no order here. Cast it "
            "before, or use First, Last or Rows."
        )
    return travel, limit


def _prepared(
    frame: DataFrame,
    keys: Sequence[str],
    time: str | None,
    order: Sequence[Column],
    made: Sequence[_Column],
) -> DataFrame:
    """Return the operator's input: the key, the event and the whole row as JSON texts.

    The time column is not among them, and with it goes Spark's mark of the watermark: by that mark
    ``transformWithState`` would drop late rows before a processor sees them. The watermark itself
    lives in the plan, not in the column.
    """
    from pyspark.sql import functions as F  # noqa: N812

    everything = [F.col(columns.quoted(column)) for column in frame.columns]
    at = F.current_timestamp() if time is None else F.col(columns.quoted(time))
    event = [
        F.unix_micros(at).alias("t"),
        row_hash(frame, everything).alias("h"),
        *(column.alias(f"o{number}") for number, column in enumerate(order)),
        *(
            column.travel.encode(column.source).alias(f"v{number}")
            for number, column in enumerate(made)
        ),
    ]
    return frame.select(
        columns.key_text(frame, keys).alias("key"),
        columns.to_json(F.struct(*event)).alias("event"),
        (
            F.lit(None).cast("string") if time is None else columns.to_json(F.struct(*everything))
        ).alias("row"),
    )


def _run(prepared: DataFrame, spec: Spec) -> DataFrame:
    """Return the operator's output as texts: key, result, late row.

    PySpark 4.1 and later have the Row variant of ``transformWithState``, which costs less than a
    pandas DataFrame for every key; 4.0 has the pandas variant alone. Count windows of processing
    time without a time trigger run without a
    clock: with one, Spark would run a
    batch at every trigger, whether there is data or not.
    """
    from onceforall.operators import _processors as processors

    timed = spec.event_time or spec.rules.timed
    mode = "EventTime" if spec.event_time else "ProcessingTime" if timed else "None"
    grouped = prepared.groupBy("key")
    if hasattr(grouped, "transformWithState"):
        return grouped.transformWithState(
            processors.WindowProcessor(spec, timed=timed), processors.OUTPUT, "Append", mode
        )
    return grouped.transformWithStateInPandas(
        processors.PandasWindowProcessor(spec, timed=timed), processors.OUTPUT, "Append", mode
    )


def _decoded(
    texts: DataFrame,
    frame: DataFrame,
    keys: Sequence[str],
    made: Sequence[_Column],
    names: Mapping[str, Aggregate],
    *,
    late: bool,
    name: str,
) -> DataFrame:
    """Return the texts as columns, and let Spark count what comes out."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    fields = [
        *((field, T.StringType()) for field in ("kind", "closed_by")),
        *((field, T.LongType()) for field in ("index", "start", "end", "events", "revision")),
        *((f"v{number}", column.wire) for number, column in enumerate(made)),
    ]
    key_schema = columns.key_schema(frame, keys)
    # Without its metadata: by that, Spark would take a late row's time for a column that has a
    # watermark.
    row_schema = T.StructType(
        [T.StructField(field.name, field.dataType) for field in frame.schema.fields]
    )
    parsed = texts.select(
        columns.from_json(F.col("key"), key_schema).alias("k"),
        columns.from_json(
            F.col("result"), T.StructType([T.StructField(n, kind) for n, kind in fields])
        ).alias("r"),
        (columns.from_json(F.col("late"), row_schema) if late else F.lit(None)).alias("l"),
    )
    result = F.col("r")
    out = parsed.select(
        *(columns.key_column(F.col("k"), key_schema, n).alias(key) for n, key in enumerate(keys)),
        F.coalesce(result.getField("kind"), F.lit(LATE)).alias(KIND),
        F.timestamp_micros(result.getField("start")).alias("window_start"),
        F.timestamp_micros(result.getField("end")).alias("window_end"),
        result.getField("index").alias("window_index"),
        result.getField("revision").alias("revision"),
        result.getField("events").alias("events"),
        result.getField("closed_by").alias("closed_by"),
        *(
            column.out(result.getField(f"v{n}")).alias(as_)
            for n, (column, as_) in enumerate(zip(made, names, strict=True))
        ),
        *((F.col("l").alias(LATE),) if late else ()),
    )
    counts = [F.count_if(F.col(KIND) == kind).alias(kind) for kind in ("window", "early", LATE)]
    return out.observe(name, *counts)
