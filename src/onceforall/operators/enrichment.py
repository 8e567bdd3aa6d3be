"""Enrichment: values from an external store, looked up in batches by the tasks.

Each task looks up the distinct keys of an Arrow batch with one query, and keeps what it found for a while. What a replay then finds is another matter,
and there are three ways; docs/operators.md tells when which one is needed:

- *as it is now* (the default): a replay looks up again, and may find other values. Nobody ever saw those of an attempt that was not decided; but a decided
  batch whose transaction was lost can then be written again from kept rows only (``onceforall.redo=durable``), and a stateful operator behind this one
  would rebuild another state than the one that its output was made of.
- ``as_of=``: the values that held at a row's time, from a table with history. The same at any time, as long as the past is not rewritten and no row is
  dated ahead of the clock: of its time, the table doesn't know all yet.
- ``pin=True``: what a batch looked up is noted in PostgreSQL before it is used, and a replay uses that. Every way of running the batch again, on other
  executors too, gives the same. What fails the batch is not noted: its replay asks again, and finds what was mended.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from onceforall.errors import OptionError, RefusedRecordError, SchemaError, UnsupportedQueryError
from onceforall.operators.lookups import Key, Lookup, PostgresLookup, Text, Version, read_text
from onceforall.secrets import Handover, received

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from onceforall.operators._pins import Pins

FOUND, MISSING = "found", "missing"
_LOOKUPS_PER_WORKER = 16


def enrich(
    frame: DataFrame,
    lookup: Lookup,
    keys: str | Sequence[str],
    *,
    missing: str = "null",
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
        frame: batch or streaming. A watermark on it is not seen behind this operator: call ``withWatermark`` behind it.
        lookup: where values come from.
        keys: the columns by which a row is looked up, in the order of the lookup's key: strings, whole numbers, decimals, booleans, dates, binaries.
        missing: what becomes of a row whose key is not there, null, or a STRING that is no UTF-8: ``"null"`` keeps it, with nulls (or `defaults`); ``"drop"`` leaves it out;
            ``"fail"`` fails the batch.
        defaults: values for the columns of a missing key, by name; the others are null.
        status: a name for one more column, ``found`` or ``missing``, by which missing rows go to a sink of their own:
            ``.to(sink, transform=lambda rows: rows.where("status = 'missing'"))``.
        as_of: a TIMESTAMP column; the version that held at that time is taken. The lookup must have ``valid_from``. Rows without a time are missing. A row
            whose time is ahead of the clock may find another version on a replay: one that was added meanwhile and begins before that time.
        pin: note what a batch looked up, and use it on each replay; for streaming queries and ``PostgresLookup``, whose role may then create and
            write the table ``lookups`` in `pin_schema`. Two more round trips per Arrow batch, and a row per key and batch that lives for ten batches.
        pin_schema: of that table; made where it is missing.
        cache_keys: how many keys a Python worker remembers; 0: none.
        cache_for_s: for how long, in seconds: so old a value may be, and so early must a new version be in the table before it begins to hold.

    Raises:
        OptionError: arguments that don't go together.
        SchemaError: a column is missing, of a type that doesn't fit, or there already.
        SinkCheckError: the store refuses.

    In a task: ``RefusedRecordError`` for a missing key with ``"fail"``, ``SinkUnavailableError`` for a store that stays away; the batch is aborted, and its
    replay looks up again.
    """
    from pyspark.sql.types import DataType, StringType, StructField, StructType

    names = [keys] if isinstance(keys, str) else list(keys)
    _check_options(lookup, missing, as_of, cache_keys, cache_for_s, pin=pin)
    lookup.check(len(names))
    _check_columns(frame, lookup, names, as_of, status)
    types = StructType([StructField(name, DataType.fromDDL(kind)) for name, kind in lookup.columns.items()])
    given = _checked_defaults(defaults or {}, types, missing)
    if pin:
        assert isinstance(lookup, PostgresLookup)
        _create_pins(lookup, pin_schema)
    token = uuid.uuid4().hex
    enricher = Enricher(
        token, _hand_over(lookup, token, frame), lookup, tuple(names), tuple(_arrow_type(each.dataType, each.name) for each in types.fields), missing, given, status, as_of,
        pin_schema if pin else None, cache_keys, cache_for_s,
    )  # fmt: skip
    added = [*types.fields, *([] if status is None else [StructField(status, StringType(), nullable=False)])]
    plain = [StructField(each.name, each.dataType, each.nullable) for each in frame.schema.fields]
    return frame.mapInArrow(enricher, StructType([*plain, *added]))


class TimedCache:
    """What was found of keys, for a while: the least recently used one goes first."""

    def __init__(self, keys: int, for_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is in it.

        Args:
            keys: how many it holds at most.
            for_s: how long after ``put`` a value is given, in seconds.
            clock: seconds, monotonic.
        """
        self._keys, self._for_s, self._clock = keys, for_s, clock
        self._found: OrderedDict[Key, tuple[float, Sequence[Version]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Key) -> Sequence[Version] | None:
        """Return what was put for a key; None when it isn't there (any more). An empty sequence: the key is known to be missing."""
        entry = self._found.get(key)
        if entry is None:
            return None
        if entry[0] <= self._clock():
            del self._found[key]
            return None
        self._found.move_to_end(key)
        return entry[1]

    def put(self, key: Key, versions: Sequence[Version], asked_at: float) -> None:
        """Remember what a key had when it was asked for (by the cache's clock)."""
        self._found[key] = (asked_at + self._for_s, versions)
        self._found.move_to_end(key)
        while len(self._found) > self._keys:
            self._found.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._found.clear()

    def now(self) -> float:
        """Return the time by the cache's clock."""
        return self._clock()


_workers: OrderedDict[str, tuple[Lookup, TimedCache]] = OrderedDict()
"""What this process keeps from task to task and batch to batch, by ``Enricher.token``; of queries that have ended, too, so their number is bounded."""


@dataclass
class Enricher:
    """The function of ``mapInArrow``; see ``enrich`` for its attributes."""

    token: str
    pad: bytes | None = field(repr=False)
    lookup: Lookup
    by: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    missing: str
    defaults: tuple[Any, ...]
    status: str | None
    as_of: str | None
    pin_schema: str | None
    cache_keys: int
    cache_for_s: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Enrich the batches of a task."""
        lookup, cache = self._kept()
        readers = [read_text(kind, name) for name, kind in lookup.columns.items()]
        pins = None if self.pin_schema is None else _pins_of_this_task(lookup, self.pin_schema)
        # For one task, whatever the cache's limits are: a key has one value in it.
        settled: dict[Key, tuple[Text, ...] | None] = {}
        try:
            for batch in batches:
                keys = list(zip(*(_key_parts(batch.column(name)) for name in self.by), strict=True))
                wanted = [key for key in dict.fromkeys(keys) if _is_whole(key) and lookup.takes(key)]
                if pins is not None:
                    new = [key for key in wanted if key not in settled]
                    settled |= pins.settle(
                        new,
                        lambda asked: _latest(_looked_up(lookup, cache, asked)),
                        lambda found: self._columns(list(found), list(found.values()), readers),
                    )
                    texts = [settled.get(key) for key in keys]
                elif self.as_of is None:
                    values = _latest(_looked_up(lookup, cache, wanted))
                    texts = [values.get(key) for key in keys]
                else:
                    history = _looked_up(lookup, cache, wanted)
                    times = _micros_of(batch.column(self.as_of))
                    texts = [version_at(history.get(key, ()), at) for key, at in zip(keys, times, strict=True)]
                yield self._with_values(batch, keys, texts, readers)
        except RefusedRecordError:
            # What is mended in the store counts from the next attempt on, which may be that of this same process.
            cache.clear()
            raise
        if pins is not None:
            pins.clean()

    def _kept(self) -> tuple[Lookup, TimedCache]:
        if self.token not in _workers:
            while len(_workers) >= _LOOKUPS_PER_WORKER:
                _workers.popitem(last=False)[1][0].close()
            self.lookup.receive(received(_property_of(self.token), self.pad))
            _workers[self.token] = (self.lookup, TimedCache(self.cache_keys, self.cache_for_s))
        _workers.move_to_end(self.token)
        return _workers[self.token]

    def _with_values(
        self,
        batch: pa.RecordBatch,
        keys: Sequence[Key],
        texts: Sequence[tuple[Text, ...] | None],
        readers: Sequence[Callable[[str], Any]],
    ) -> pa.RecordBatch:
        import pyarrow as pa

        found = [text is not None for text in texts]
        arrays = [*batch.columns, *self._columns(keys, texts, readers)]
        names = [*batch.schema.names, *self.lookup.columns]
        if self.status is not None:
            arrays.append(pa.array([FOUND if each else MISSING for each in found], pa.string()))
            names.append(self.status)
        made = pa.RecordBatch.from_arrays(arrays, names=names)
        return made.filter(pa.array(found)) if self.missing == "drop" else made

    def _columns(
        self, keys: Sequence[Key], texts: Sequence[tuple[Text, ...] | None], readers: Sequence[Callable[[str], Any]]
    ) -> list[pa.Array]:
        """Return the looked-up columns of rows with these keys, or raise ``RefusedRecordError`` for what can't become a row."""
        if self.missing == "fail" and None in texts:
            raise RefusedRecordError(
                f"{self.lookup.name} has no row for {self._told(keys[texts.index(None)])}, and missing='fail' was asked for. Add it, or choose another "
                "answer for missing keys (null, defaults=, drop, status=)."
            )
        return [self._column(n, keys, texts, reader) for n, reader in enumerate(readers)]

    def _column(
        self, n: int, keys: Sequence[Key], texts: Sequence[tuple[Text, ...] | None], reader: Callable[[str], Any]
    ) -> pa.Array:
        try:
            return _array([self.defaults[n] if text is None else _read(text[n], reader) for text in texts], self.types[n])
        except _UNFIT:
            # Whose it is isn't told by an error about the whole column: each value is tried alone.
            for key, found in zip(keys, texts, strict=True):
                text = None if found is None else found[n]
                try:
                    _array([_read(text, reader)], self.types[n])
                except _UNFIT as error:
                    raise RefusedRecordError(
                        f"The value of {self._told(key)} in {self.lookup.name}, column {list(self.lookup.columns)[n]!r}, does not fit the type "
                        f"{self.types[n]}: {text!r} ({error}). Correct it, or the type in columns=, or let a view give another value."
                    ) from error
            raise

    def _told(self, key: Key) -> str:
        return str(dict(zip(self.by, key, strict=True)))


_UNFIT = (ValueError, ArithmeticError, TypeError)
"""What readers and pyarrow raise for a text or a value that a type can't hold; pyarrow's own errors are of these kinds."""


def _read(text: Text, reader: Callable[[str], Any]) -> Any:
    return None if text is None else reader(text)


def _hand_over(lookup: Lookup, token: str, frame: DataFrame) -> bytes | None:
    """Put one half of the lookup's secret values in a local property of this thread, and return the other; see ``onceforall.secrets``.

    The thread of a query inherits the properties of the one that starts it, and all its jobs have them.
    """
    name = _property_of(token)
    handover = Handover({name: cast("Any", lookup)})  # all it asks of a sink are its secrets
    if name in handover.pads:
        # For as long as the query runs, and not just around a job: whose job it will be isn't known here.
        handover._set(frame.sparkSession.sparkContext, handover._properties)  # noqa: SLF001
    return handover.pads.get(name)


def _property_of(token: str) -> str:
    return f"lookup-{token}"


def version_at(versions: Iterable[Version], at_us: int | None) -> tuple[Text, ...] | None:
    """Return the values that held at a time; None when none did, or without a time."""
    if at_us is None:
        return None
    begun = [version for version in versions if version.from_us is None or version.from_us <= at_us]
    latest = max(begun, key=lambda version: (version.from_us is not None, version.from_us or 0), default=None)
    return None if latest is None or (latest.to_us is not None and at_us >= latest.to_us) else latest.values


def _looked_up(lookup: Lookup, cache: TimedCache, keys: Sequence[Key]) -> dict[Key, Sequence[Version]]:
    """Return what is known of keys, from the cache where it has them; an empty sequence for a missing one."""
    known = {key: versions for key in keys if (versions := cache.get(key)) is not None}
    new = [key for key in keys if key not in known]
    if new:
        asked_at = cache.now()
        found = lookup.fetch(new)
        for key in new:
            known[key] = found.get(key, ())
            cache.put(key, known[key], asked_at)
    return known


def _latest(found: Mapping[Key, Sequence[Version]]) -> dict[Key, tuple[Text, ...]]:
    return {key: versions[0].values for key, versions in found.items() if versions}


def _pins_of_this_task(lookup: Lookup, schema: str) -> Pins:
    from pyspark import TaskContext

    from onceforall.operators._pins import Pins

    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        raise UnsupportedQueryError(
            "enrich(pin=True) needs a streaming query: what is looked up is noted by its id and batch. Leave pin= out."
        )
    assert isinstance(lookup, PostgresLookup)
    return Pins(lookup, schema, query, int(batch))


class _NoText(bytes):
    """What a STRING has where it is no valid UTF-8, which Spark lets be: no store has such a key, and Python no text for it."""

    __slots__ = ()


def _key_parts(column: pa.Array) -> list[Any]:
    """Return the values of a key's column: Python's for its type, None, or ``_NoText``."""
    import pyarrow as pa

    try:
        parts: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        binary = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
        parts = [None if part is None else _text(part) for part in column.cast(binary).to_pylist()]
    return parts


def _text(part: bytes) -> str | _NoText:
    try:
        return part.decode()
    except UnicodeDecodeError:
        return _NoText(part)


def _is_whole(key: Key) -> bool:
    return not any(part is None or isinstance(part, _NoText) for part in key)


def _micros_of(times: pa.Array) -> list[int | None]:
    import pyarrow as pa

    numbers: list[int | None] = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).to_pylist()
    return numbers


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


def _arrow_type(kind: DataType, name: str) -> pa.DataType:
    import pyarrow as pa
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    simple = {
        "string": pa.string(), "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(),
        "float": pa.float32(), "double": pa.float64(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "binary": pa.binary(),
    }  # fmt: skip
    if kind.simpleString() not in simple:
        raise SchemaError(
            f"The looked-up column {name!r} has the type {kind.simpleString()}, and can have: {', '.join(simple)}, decimal."
        )
    return simple[kind.simpleString()]


def _create_pins(lookup: PostgresLookup, schema: str) -> None:
    from contextlib import closing

    import psycopg

    from onceforall.operators import _pins
    from onceforall.sinks.postgres.server_errors import statement_error

    with closing(lookup.connect(10.0)) as connection:
        try:
            with lookup.answering(connection):
                _pins.create(connection, schema)
        except psycopg.Error as error:
            raise statement_error(error, f"Making the table {schema}.{_pins.TABLE}, which pin=True needs,") from error


def _check_options(lookup: Lookup, missing: str, as_of: str | None, cache_keys: int, cache_for_s: float, *, pin: bool) -> None:
    if missing not in {"null", "drop", "fail"}:
        raise OptionError(
            f"missing={missing!r} is none of 'null', 'drop' and 'fail'. A default is missing='null' with defaults=."
        )
    if cache_keys < 0 or not 0 <= cache_for_s < float("inf"):
        raise OptionError(f"cache_keys={cache_keys!r} and cache_for_s={cache_for_s!r} must be numbers from 0 on.")
    if lookup.versioned != (as_of is not None):
        raise OptionError(
            "as_of= needs a lookup with valid_from=: it takes the version that held at that time."
            if as_of is not None
            else "The lookup has several versions of a key (valid_from=): say by as_of= which column has the time whose version is taken."
        )
    if pin and not isinstance(lookup, PostgresLookup):
        raise OptionError(
            "pin=True needs a PostgresLookup, in whose database it notes what was found. With another one use onceforall.redo=durable."
        )
    if pin and as_of is not None:
        raise OptionError("as_of= gives the same on each replay by itself. Leave pin= out.")


def _check_columns(frame: DataFrame, lookup: Lookup, names: Sequence[str], as_of: str | None, status: str | None) -> None:
    from pyspark.sql import types as T  # noqa: N812

    from onceforall.operators._checks import columns_named

    columns_named(frame, names, "keys")
    allowed = (
        T.StringType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType, T.BooleanType, T.DateType, T.BinaryType,
    )  # fmt: skip
    for name in names:
        kind = frame.schema[name].dataType
        if not isinstance(kind, allowed):
            raise SchemaError(
                f"keys: the column {name!r} is {kind.simpleString()}, by which nothing is looked up. Cast it to a STRING or a number before."
            )
    if as_of is not None:
        columns_named(frame, as_of, "as_of")
        if not isinstance(frame.schema[as_of].dataType, T.TimestampType):
            raise SchemaError(
                f"as_of: the column {as_of!r} is {frame.schema[as_of].dataType.simpleString()}, not timestamp. Cast it before."
            )
    taken = [name.lower() for name in frame.columns]
    for name in [*lookup.columns, *([] if status is None else [status])]:
        if name.lower() in taken:
            raise SchemaError(
                f"enrich would add a column {name!r}, which is there already. Rename that one before, or the looked-up one in a view."
            )
        taken.append(name.lower())


def _checked_defaults(defaults: Mapping[str, Any], types: StructType, missing: str) -> tuple[Any, ...]:
    unknown = [name for name in defaults if name not in types.names]
    if unknown:
        raise OptionError(f"defaults= names {unknown[0]!r}, which is not looked up; the lookup has: {', '.join(types.names)}.")
    if defaults and missing != "null":
        raise OptionError(f"defaults= have no use with missing={missing!r}. Leave one of them out.")
    for each in types.fields:
        value = defaults.get(each.name)
        if value is not None and each.dataType.simpleString() == "timestamp":
            raise OptionError(f"defaults={{{each.name!r}: …}}: a TIMESTAMP has no default here; use coalesce() behind enrich.")
        kind = _arrow_type(each.dataType, each.name)
        try:
            _array([value], kind)
        except _UNFIT as error:
            raise RefusedRecordError(
                f"A value of defaults, column {each.name!r} does not fit the type {kind}: {error}. Correct it, or the type in columns=."
            ) from error
    return tuple(defaults.get(name) for name in types.names)
