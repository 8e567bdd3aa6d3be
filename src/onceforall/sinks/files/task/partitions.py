"""Which rows go to which folder: by the values of columns, and by a time bucket."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from onceforall.errors import AttemptFailedError, RefusedRecordError
from onceforall.sinks.files.local_times import local_times
from onceforall.sinks.files.paths import LONGEST_NAME, NULL, hive_folder, plain_folder
from onceforall.sinks.files.places import Target
from onceforall.sinks.files.task.texts import check_texts
from onceforall.sinks.files.task.times import check_text, check_times, outside, refuse
from onceforall.sinks.files.time_buckets import TimeBucket

if TYPE_CHECKING:
    from datetime import date

    import pyarrow as pa


@dataclass(frozen=True)
class Destination:
    """A folder for rows: relative, and what it says by column."""

    folder: str
    partition: tuple[tuple[str, str | None], ...]


class Partitioner:
    """Parts record batches by destination."""

    def __init__(
        self, partition_by: Sequence[str], bucket: TimeBucket | None, target: Target
    ) -> None:
        """Take the columns, and the sink's folder: how long a path may be below it."""
        self._partition_by = tuple(partition_by)
        self._bucket = bucket
        self._target = target
        self._known: dict[tuple[str | None, ...], Destination] = {}

    def parts(
        self, rows: pa.RecordBatch, stored: pa.RecordBatch
    ) -> Iterator[tuple[Destination, pa.RecordBatch]]:
        """Return rows by destination, in their order, without the partition columns.

        Args:
            rows: as they came, with the zones of their timestamps: these say where each goes.
            stored: the same rows as they are stored.

        Raises:
            RefusedRecordError: a value makes a folder's name that no file system takes.
        """
        import numpy as np

        data = stored.select([name for name in rows.schema.names if name not in self._partition_by])
        keys = [_texts(name, rows.column(name)) for name in self._partition_by]
        if self._bucket is not None:
            keys += [
                _formatted(c, rows.column(c), f, self._bucket.zone)
                for c, f in _fields(self._bucket)
            ]
        if not keys:
            yield Destination("", ()), data
            return
        encoded = [key.dictionary_encode(null_encoding="encode") for key in keys]
        codes = np.zeros(rows.num_rows, dtype=np.int64)
        for key in encoded:
            codes = codes * len(key.dictionary) + key.indices.to_numpy(zero_copy_only=False)
            # Counted anew each time, so that no product of many columns overflows.
            _, codes = np.unique(codes, return_inverse=True)
        order = np.argsort(codes, kind="stable")
        ends = [*(np.flatnonzero(np.diff(codes[order])) + 1), len(order)]
        start = 0
        for end in ends:
            first = int(order[start])
            values = tuple(key.dictionary[key.indices[first].as_py()].as_py() for key in encoded)
            yield (
                self._destination(values),
                data if end - start == len(order) else data.take(order[start:end]),
            )
            start = end

    def _destination(self, values: tuple[str | None, ...]) -> Destination:
        known = self._known.get(values)
        if known is None:
            if len(self._known) > 10_000:
                self._known.clear()
            known = self._known[values] = self._made(values)
        return known

    def _made(self, values: tuple[str | None, ...]) -> Destination:
        count = len(self._partition_by)
        partition = [
            (name, value or None)
            for name, value in zip(self._partition_by, values[:count], strict=True)
        ]
        folders = [hive_folder(name, value) for name, value in partition]
        if self._bucket is not None:
            formatted = iter(values[count:])
            pieces = (
                piece if isinstance(piece, str) else next(formatted) or NULL
                for piece in self._bucket.pieces
            )
            for text in "".join(pieces).split("/"):
                name, equals, value = text.partition("=")
                folders.append(
                    hive_folder(name, None if value == NULL else value)
                    if equals
                    else plain_folder(text)
                )
                if equals:
                    partition.append((name, None if value == NULL else value))
        folder = self._target.spelled("/".join(folders))
        too_long = [name for name in folders if len(name.encode()) > LONGEST_NAME]
        longest = self._target.longest_path
        if too_long or self._target.root_bytes + len(folder.encode()) > longest - LONGEST_NAME:
            raise RefusedRecordError(
                "A value makes a folder's name that is too long for a file system "
                f"({LONGEST_NAME} bytes for a name, {longest} "
                f"for a path): {(too_long or folders)[0][:80]}… Shorten the value in the query, "
                "or partition by another column."
            )
        unfit = self._target.unfit(folder)
        if unfit is not None:
            raise RefusedRecordError(
                f"A value makes a folder's name with {unfit}: "
                f"{ascii(folder)[:80]}. Replace it in the query, or partition by another column."
            )
        return Destination(folder, tuple(partition))


def _fields(bucket: TimeBucket) -> list[tuple[str, str]]:
    return [piece for piece in bucket.pieces if not isinstance(piece, str)]


def _texts(name: str, column: pa.Array) -> pa.Array:
    """Return the values as a path has them.

    Raises:
        RefusedRecordError: a date has no text.
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string(kind):
        check_texts(name, column)
        return column
    if pa.types.is_decimal(kind):
        return pa.array(
            [None if value is None else format(value, "f") for value in column.to_pylist()],
            pa.string(),
        )
    check_times(
        name,
        column,
        partial(check_text, remedy="Filter such rows out, or partition by another column"),
    )
    return column.cast(pa.string())


def _text_of(value: date, form: str) -> str:
    """Return a time by its format; years have four digits, which C leaves to the system."""
    if value.year > _LAST_SHORT_YEAR:
        return value.strftime(form)
    years = {"%Y": f"{value.year:04}", "%G": f"{value.isocalendar().year:04}"}
    return value.strftime(_DIRECTIVE.sub(lambda found: years.get(found[0], found[0]), form))


_LAST_SHORT_YEAR = 1000  # by weeks, its first days are of the year before
_DIRECTIVE = re.compile("%.")


def _formatted(name: str, column: pa.Array, form: str, zone: str | None) -> pa.Array:
    """Return the values formatted, one text per row.

    Raises:
        RefusedRecordError: a value has no such text.
        AttemptFailedError: the time zone isn't known.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    values: Any = column
    if pa.types.is_timestamp(values.type) and values.type.tz is not None:
        in_zone = values.cast(pa.timestamp(values.type.unit, zone)) if zone is not None else values
        try:
            values = local_times(in_zone)
        except ValueError as error:
            raise AttemptFailedError(str(error)) from error
    try:
        if pa.types.is_timestamp(values.type):
            # Few distinct values are left to be formatted.
            values = pc.floor_temporal(values, unit="second" if "%S" in form else "minute")
            values = values.cast(pa.timestamp("s"))
        encoded = values.dictionary_encode(null_encoding="encode")
        texts = [
            None if value is None else _text_of(value, form)
            for value in encoded.dictionary.to_pylist()
        ]
    except (ValueError, OverflowError) as error:
        # Python's years are 1 to 9999; a zone may move a value by a day.
        refuse(
            name,
            column,
            outside(column, -719_161, 2_932_896),
            "a folder's name of a time bucket has years from 1 to 9999",
            "Filter such rows out",
        )
        raise RefusedRecordError(
            f"Column {name!r} holds a time that can't be formatted for a folder's name: {error}. "
            "Filter out such rows."
        ) from error
    return pa.array(texts, pa.string()).take(encoded.indices)
