"""Enrichment: values from an external store, looked up in batches by the tasks.

Each task looks up the distinct keys of an Arrow batch with one query, and keeps what it found for a
while. What a replay then finds is another matter, and there are three ways; docs/operators.md tells
when which one is needed:

- *as it is now* (the default): a replay looks up again, and may find other values. Nobody ever saw
  those of an attempt that was not decided; but a decided batch whose transaction was lost can then
  be written again from kept rows only (``onceforall.redo``), and a stateful operator behind this
  one would rebuild another state than the one that its output was made of.
- ``as_of=``: the values that held at a row's time, from a table with history. The same at any time,
  as long as the past is not rewritten and no row is dated ahead of the clock: of its time, the
  table doesn't know all yet.
- ``pin=True``: what a batch looked up is noted in PostgreSQL before it is used, and a replay uses
  that. Every way of running the batch again, on other executors too, gives the same. What fails the
  batch is not noted: its replay asks again, and finds what was mended.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import pickle
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from onceforall.common import arguments
from onceforall.errors import OptionError, RefusedRecordError, SchemaError
from onceforall.operators._enricher import UNFIT, Enricher, array_of
from onceforall.operators.lookups import Lookup
from onceforall.operators.postgres_lookup import PostgresLookup
from onceforall.task.secret_values import Handover

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType


def enrich(
    frame: DataFrame,
    lookup: Lookup,
    keys: str | Sequence[str],
    *,
    missing: Literal["null", "drop", "fail"] = "null",
    defaults: Mapping[str, Any] | None = None,
    status: str | None = None,
    as_of: str | None = None,
    pin: bool = False,
    pin_schema: str = "onceforall",
    cache_keys: int = 100_000,
    cache_for_s: float = 60.0,
) -> DataFrame:
    """Return the frame with the lookup's columns.

    Args:
        frame: batch or streaming. A watermark on it is not seen behind this operator, and Spark
            takes no second one over it: call ``withWatermark`` behind this, and not before.
        lookup: where values come from.
        keys: the columns by which a row is looked up, in the order of the lookup's key: strings,
            whole numbers, decimals, booleans, dates, binaries.
        missing: what becomes of a row whose key is not there, null, or a STRING that is no UTF-8:
            ``"null"`` keeps it, with nulls (or `defaults`); ``"drop"`` leaves it out; ``"fail"``
            fails the batch.
        defaults: values for the columns of a missing key, by name; the others are null.
        status: a name for one more column, ``found`` or ``missing``, by which missing rows go to a
            sink of their own: ``.to(sink, transform=lambda rows: rows.where("status =
            'missing'"))``.
        as_of: a TIMESTAMP column; the version that held at that time is taken. The lookup must have
            ``valid_from``. Rows without a time are missing. A row whose time is ahead of the clock
            may find another version on a replay: one that was added meanwhile and begins before
            that time.
        pin: note what a batch looked up, and use it on each replay; for streaming queries and
            ``PostgresLookup``, whose role may then create and write the table ``lookups`` in
            `pin_schema`. Two more round trips per Arrow batch, and a row per key and batch that
            lives for ten batches.
        pin_schema: of that table; made where it is missing.
        cache_keys: how many keys a Python worker remembers; 0: none.
        cache_for_s: for how long, in seconds: so old a value may be, and so early must a new
            version be in the table before it begins to hold.

    Raises:
        OptionError: arguments that don't go together.
        SchemaError: a column is missing, of a type that doesn't fit, or there already.
        SinkCheckError: the store refuses.

    In a task: ``RefusedRecordError`` for a missing key with ``"fail"``, ``SinkUnavailableError``
    for a store that stays away; the batch is aborted, and its replay looks up again.
    """
    from pyspark.sql.types import DataType, StringType, StructField, StructType

    arguments.check_frame(frame, "enrich")
    names = list(arguments.names("keys", keys, "the name of a column, or a list of names"))
    _check_options(lookup, missing, as_of, cache_keys, cache_for_s, pin=pin)
    for what, column in (("status", status), ("as_of", as_of)):
        if column is not None:
            arguments.text(what, column, "the name of a column, or leave it out")
    arguments.text("pin_schema", pin_schema, "the name of a schema")
    defaults = arguments.mapping(
        "defaults", {} if defaults is None else defaults, "a dictionary from column to value"
    )
    lookup.check(len(names))
    _check_columns(frame, lookup, names, as_of, status)
    lookup.check_keys({name: frame.schema[name].dataType.simpleString() for name in names})
    types = StructType(
        [StructField(name, DataType.fromDDL(kind)) for name, kind in lookup.columns.items()]
    )
    given = _checked_defaults(defaults, types, missing)
    if pin:
        assert isinstance(lookup, PostgresLookup)
        _create_pins(lookup, pin_schema)
    handed_as, pad = _hand_over(lookup, frame)
    asked = [(name, frame.schema[name].dataType.simpleString()) for name in names]
    call = repr(
        (
            handed_as,
            asked,
            types.simpleString(),
            missing,
            given,
            status,
            as_of,
            pin_schema if pin else None,
            cache_keys,
            cache_for_s,
        )
    )
    token, kind = _known_as(lookup, call)
    enricher = Enricher(
        token, kind, handed_as, pad, lookup, tuple(names), tuple(_arrow_type(each.dataType, each.name) for each in types.fields), missing, given, status, as_of,  # noqa: E501
        pin_schema if pin else None, cache_keys, cache_for_s,
    )  # fmt: skip
    added = [
        *types.fields,
        *([] if status is None else [StructField(status, StringType(), nullable=False)]),
    ]
    plain = [StructField(each.name, each.dataType, each.nullable) for each in frame.schema.fields]
    return frame.mapInArrow(enricher, StructType([*plain, *added]))


def _known_as(lookup: Lookup, call: str) -> tuple[str, str | None]:
    """Return by what a worker knows a lookup again, and of what kind it is.

    A function of a query may call ``enrich`` in each batch. The same call has the same token, so
    that a worker has one connection and one cache for all of them. What a pickle has of a function
    or of somebody's own object may differ each time though nothing has changed: of those a worker
    keeps the last one of a kind. Of plain data that isn't so, and there is no kind.

    Args:
        lookup: without its secret values, which no pickle has.
        call: everything else that tells calls apart; it has the name under which the secret values
            are handed over, and so nothing can be guessed from the token.
    """
    from pyspark import cloudpickle

    whose = f"{type(lookup).__module__}.{type(lookup).__qualname__}"
    content = _plainly(lookup)
    is_plain = content is not None and type(lookup) is PostgresLookup
    if content is None:
        try:
            content = cloudpickle.dumps(lookup)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001  of somebody's own code; Spark will say it
            content = uuid.uuid4().bytes
    named = repr(lookup) if isinstance(lookup, PostgresLookup) else ""
    kind = _digest(whose, lookup.name, named, repr(dict(lookup.columns)), call)
    return _digest(kind, content.hex()), None if is_plain else kind


def _plainly(lookup: Lookup) -> bytes | None:
    """Pickle without noting which objects are the same one: equal texts are equal. None where that
    can't be, or where it names something of the program that runs, which a notebook makes anew
    under the same name: Spark's pickles have what is in it.
    """
    made = io.BytesIO()
    pickler = pickle.Pickler(made, protocol=4)
    pickler.fast = True
    try:
        pickler.dump(lookup)
    except Exception:  # noqa: BLE001  of whatever kind somebody's own class raises
        return None
    return None if b"__main__" in made.getvalue() else made.getvalue()


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


_handed: dict[bytes, tuple[str, Handover]] = {}
"""By a digest of the secret values: a function of a query may call ``enrich`` in each batch, and
nobody takes a property out again."""


def _hand_over(lookup: Lookup, frame: DataFrame) -> tuple[str, bytes | None]:
    """Put one half of the lookup's secret values in a local property of this thread, and return its
    name and the other half; see ``onceforall.task.secret_values``.

    The thread of a query inherits the properties of the one that starts it, and all its jobs have
    them.
    """
    values = json.dumps(dict(lookup.secrets()), sort_keys=True)
    digest = hashlib.sha256(values.encode()).digest()
    if digest not in _handed:
        name = f"lookup-{uuid.uuid4().hex}"
        # All it asks of a sink are its secrets.
        _handed.setdefault(digest, (name, Handover({name: cast("Any", lookup)})))
    name, handover = _handed[digest]
    if name in handover.pads:
        # For as long as the query runs, and not just around a job: whose job it will be isn't known
        # here.
        handover._set(frame.sparkSession.sparkContext, handover._properties)  # noqa: SLF001
    return name, handover.pads.get(name)


def _arrow_type(kind: DataType, name: str) -> pa.DataType:
    import pyarrow as pa
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    simple = {
        "string": pa.string(), "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(),  # noqa: E501
        "float": pa.float32(), "double": pa.float64(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "binary": pa.binary(),  # noqa: E501
    }  # fmt: skip
    if kind.simpleString() not in simple:
        raise SchemaError(
            f"The looked-up column {name!r} has the type {kind.simpleString()}, and can have: "
            f"{', '.join(simple)}, decimal."
        )
    return simple[kind.simpleString()]


def _create_pins(lookup: PostgresLookup, schema: str) -> None:
    from onceforall.operators import _pins

    def create(connection: psycopg.Connection[Any]) -> None:
        with lookup.answering(connection):
            _pins.create(connection, schema)

    lookup.at_start(create, f"Making the table {schema}.{_pins.TABLE}, which pin=True needs,")


def _check_options(
    lookup: Lookup,
    missing: str,
    as_of: str | None,
    cache_keys: int,
    cache_for_s: float,
    *,
    pin: bool,
) -> None:
    if not isinstance(lookup, Lookup):
        raise arguments.wrong("lookup", lookup, "a Lookup, such as PostgresLookup(…)")
    arguments.flag("pin", pin)
    if not isinstance(missing, str) or missing not in {"null", "drop", "fail"}:
        raise OptionError(
            f"missing={arguments.shown(missing)} is none of 'null', 'drop' and 'fail'. A default "
            "is missing='null' with defaults=."
        )
    arguments.whole("cache_keys", cache_keys, 0)
    arguments.number("cache_for_s", cache_for_s, positive=False)
    if lookup.versioned != (as_of is not None):
        raise OptionError(
            "as_of= needs a lookup with valid_from=: it takes the version that held at that time."
            if as_of is not None
            else "The lookup has several versions of a key (valid_from=): say by as_of= which "
            "column has the time whose version is taken."
        )
    if pin and not isinstance(lookup, PostgresLookup):
        raise OptionError(
            "pin=True needs a PostgresLookup, in whose database it notes what was found. With "
            "another one use onceforall.redo=durable."
        )
    if pin and as_of is not None:
        raise OptionError("as_of= gives the same on each replay by itself. Leave pin= out.")


def _check_columns(
    frame: DataFrame, lookup: Lookup, names: Sequence[str], as_of: str | None, status: str | None
) -> None:
    from pyspark.sql import types as T  # noqa: N812

    from onceforall.operators._checks import columns_named

    columns_named(frame, names, "keys")
    allowed = (
        T.StringType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType, T.BooleanType, T.DateType, T.BinaryType,  # noqa: E501
    )  # fmt: skip
    for name in names:
        kind = frame.schema[name].dataType
        if not isinstance(kind, allowed):
            raise SchemaError(
                f"keys: the column {name!r} is {kind.simpleString()}, by which nothing is looked "
                "up. Cast it to a STRING or a number before."
            )
    if as_of is not None:
        columns_named(frame, as_of, "as_of")
        if not isinstance(frame.schema[as_of].dataType, T.TimestampType):
            raise SchemaError(
                f"as_of: the column {as_of!r} is {frame.schema[as_of].dataType.simpleString()}, "
                "not timestamp. Cast it before."
            )
    taken = [name.lower() for name in frame.columns]
    for name in [*lookup.columns, *([] if status is None else [status])]:
        if name.lower() in taken:
            raise SchemaError(
                f"enrich would add a column {name!r}, which is there already. Rename that one "
                "before, or the looked-up one in a view."
            )
        taken.append(name.lower())


def _checked_defaults(
    defaults: Mapping[str, Any], types: StructType, missing: str
) -> tuple[Any, ...]:
    unknown = [name for name in defaults if name not in types.names]
    if unknown:
        raise OptionError(
            f"defaults= names {unknown[0]!r}, which is not looked up; the lookup has: "
            f"{', '.join(types.names)}."
        )
    if defaults and missing != "null":
        raise OptionError(f"defaults= have no use with missing={missing!r}. Leave one of them out.")
    for each in types.fields:
        value = defaults.get(each.name)
        if value is not None and each.dataType.simpleString() == "timestamp":
            raise OptionError(
                f"defaults={{{each.name!r}: …}}: a TIMESTAMP has no default here; use coalesce() "
                "behind enrich."
            )
        kind = _arrow_type(each.dataType, each.name)
        try:
            (held,) = array_of([value], kind).to_pylist()
            if not _is_same(value, held):
                raise ValueError(f"{value!r} would become {held!r}.")
        except UNFIT as error:
            raise RefusedRecordError(
                f"A value of defaults, column {each.name!r} does not fit the type {kind}: "
                f"{error}. Correct it, or the type in columns=."
            ) from error
    return tuple(defaults.get(name) for name in types.names)


def _is_same(value: Any, held: Any) -> bool:
    """Tell whether a value is what its type holds of it: digits behind the point may be lost where
    the point floats, as of any value that is looked up, and nothing else.
    """
    if isinstance(held, float):
        return math.isinf(held) == math.isinf(value)
    return isinstance(held, bytes) or bool(held == value)
