"""What the tasks of ``enrich`` do: look keys up, remember them for a while, and add the columns
to each Arrow batch.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from onceforall.errors import RefusedRecordError, UnsupportedQueryError
from onceforall.operators.lookups import Key, Lookup, Text, Version, read_text
from onceforall.operators.postgres_lookup import PostgresLookup
from onceforall.task.secret_values import received

if TYPE_CHECKING:
    import pyarrow as pa

    from onceforall.operators._pins import Pins

FOUND, MISSING = "found", "missing"
_LOOKUPS_PER_WORKER = 16


class TimedCache:
    """What was found of keys, for a while: the least recently used one goes first."""

    def __init__(
        self, keys: int, for_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
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
        """Return what was put for a key; None when it isn't there (any more). An empty sequence:
        the key is known to be missing.
        """
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


class _Kept(NamedTuple):
    lookup: Lookup
    cache: TimedCache
    kind: str | None
    cleaned: dict[str, int]
    """By query, the batch in which this process has deleted old pins of the lookup last."""


_workers: OrderedDict[str, _Kept] = OrderedDict()
"""What this process keeps from task to task and batch to batch, by ``Enricher.token``; of
queries that have ended, too, so their number is bounded."""


@dataclass
class Enricher:
    """The function of ``mapInArrow``; see ``enrich`` for its attributes.

    Attributes:
        token: the same for the same call, so that a worker has one lookup and one cache for all.
        kind: the same for calls that are perhaps the same, of which a worker keeps the last one;
            None: the token tells.
    """

    token: str
    kind: str | None
    handed_as: str
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
        lookup, cache, _, cleaned = self._kept()
        readers = [read_text(kind, name) for name, kind in lookup.columns.items()]
        pins = (
            None
            if self.pin_schema is None
            else _pins_of_this_task(lookup, self.pin_schema, cleaned)
        )
        # For one task, whatever the cache's limits are: a key has one value in it.
        settled: dict[Key, tuple[Text, ...] | None] = {}
        try:
            for batch in batches:
                keys = list(zip(*(_key_parts(batch.column(name)) for name in self.by), strict=True))
                wanted = [
                    key for key in dict.fromkeys(keys) if _is_whole(key) and lookup.takes(key)
                ]
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
                    texts = [
                        version_at(history.get(key, ()), at)
                        for key, at in zip(keys, times, strict=True)
                    ]
                yield self._with_values(batch, keys, texts, readers)
        except RefusedRecordError:
            # What is mended in the store counts from the next attempt on, which may be that of this
            # same process.
            cache.clear()
            raise
        if pins is not None:
            pins.clean()

    def _kept(self) -> _Kept:
        if self.token not in _workers:
            before = [
                token
                for token, kept in _workers.items()
                if self.kind is not None and kept.kind == self.kind
            ]
            for token in before:
                _workers.pop(token).lookup.close()
            while len(_workers) >= _LOOKUPS_PER_WORKER:
                _workers.popitem(last=False)[1].lookup.close()
            self.lookup.receive(received(self.handed_as, self.pad))
            cache = TimedCache(self.cache_keys, self.cache_for_s)
            _workers[self.token] = _Kept(self.lookup, cache, self.kind, {})
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
        self,
        keys: Sequence[Key],
        texts: Sequence[tuple[Text, ...] | None],
        readers: Sequence[Callable[[str], Any]],
    ) -> list[pa.Array]:
        """Return the looked-up columns of rows with these keys, or raise ``RefusedRecordError``
        for what can't become a row.
        """
        if self.missing == "fail" and None in texts:
            raise RefusedRecordError(
                f"{self.lookup.name} has no row for {self._told(keys[texts.index(None)])}, and "
                "missing='fail' was asked for. Add it, or choose another "
                "answer for missing keys (null, defaults=, drop, status=)."
            )
        return [self._column(n, keys, texts, reader) for n, reader in enumerate(readers)]

    def _column(
        self,
        n: int,
        keys: Sequence[Key],
        texts: Sequence[tuple[Text, ...] | None],
        reader: Callable[[str], Any],
    ) -> pa.Array:
        try:
            return array_of(
                [self.defaults[n] if text is None else _read(text[n], reader) for text in texts],
                self.types[n],
            )
        except UNFIT:
            # Whose it is isn't told by an error about the whole column: each value is tried alone.
            for key, found in zip(keys, texts, strict=True):
                text = None if found is None else found[n]
                try:
                    array_of([_read(text, reader)], self.types[n])
                except UNFIT as error:
                    raise RefusedRecordError(
                        f"The value of {self._told(key)} in {self.lookup.name}, column "
                        f"{list(self.lookup.columns)[n]!r}, does not fit the type "
                        f"{self.types[n]}: {text!r} ({error}). Correct it, or the type in "
                        "columns=, or let a view give another value."
                    ) from error
            raise

    def _told(self, key: Key) -> str:
        return str(dict(zip(self.by, key, strict=True)))


UNFIT = (ValueError, ArithmeticError, TypeError)
"""What readers and pyarrow raise for a text or a value that a type can't hold; pyarrow's own
errors are of these kinds."""


def _read(text: Text, reader: Callable[[str], Any]) -> Any:
    return None if text is None else reader(text)


def version_at(versions: Iterable[Version], at_us: int | None) -> tuple[Text, ...] | None:
    """Return the values that held at a time; None when none did, or without a time."""
    if at_us is None:
        return None
    begun = [version for version in versions if version.from_us is None or version.from_us <= at_us]
    latest = max(
        begun, key=lambda version: (version.from_us is not None, version.from_us or 0), default=None
    )
    return (
        None
        if latest is None or (latest.to_us is not None and at_us >= latest.to_us)
        else latest.values
    )


def _looked_up(
    lookup: Lookup, cache: TimedCache, keys: Sequence[Key]
) -> dict[Key, Sequence[Version]]:
    """Return what is known of keys, from the cache where it has them; an empty sequence for a
    missing one.
    """
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


def _pins_of_this_task(lookup: Lookup, schema: str, cleaned: dict[str, int]) -> Pins:
    from pyspark import TaskContext

    from onceforall.operators._pins import Pins

    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        raise UnsupportedQueryError(
            "enrich(pin=True) needs a streaming query: what is looked up is noted by its id and "
            "batch. Leave pin= out."
        )
    assert isinstance(lookup, PostgresLookup)
    return Pins(lookup, schema, query, int(batch), cleaned)


class _NoText(bytes):
    """What a STRING has where it is no valid UTF-8, which Spark lets be: no store has such a
    key, and Python no text for it.
    """

    __slots__ = ()


class _NoDay(str):
    """What a DATE has where its year isn't of 1 to 9999, for which Python has no day."""

    __slots__ = ()


def _key_parts(column: pa.Array) -> list[Any]:
    """Return a key's column: values of Python's for its type, None, ``_NoText``, ``_NoDay``."""
    import pyarrow as pa

    try:
        parts: list[Any] = column.to_pylist()
    except (OverflowError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            binary = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
            texts = column.cast(binary).to_pylist()
            return [None if part is None else _text(part) for part in texts]
        if not pa.types.is_date(column.type):
            raise
        parts = [_day(part) for part in column]
    return parts


def _day(part: pa.Scalar) -> Any:
    try:
        return part.as_py()
    except (OverflowError, ValueError):
        import pyarrow as pa

        return _NoDay(part.cast(pa.string()).as_py())


def _text(part: bytes) -> str | _NoText:
    try:
        return part.decode()
    except UnicodeDecodeError:
        return _NoText(part)


def _is_whole(key: Key) -> bool:
    return not any(part is None or isinstance(part, _NoText | _NoDay) for part in key)


def _micros_of(times: pa.Array) -> list[int | None]:
    import pyarrow as pa

    numbers: list[int | None] = (
        times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).to_pylist()
    )
    return numbers


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array; a timestamp is its microseconds since 1970. Raises one of
    ``UNFIT`` for a value that the type can't hold.
    """
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)
