"""Arrow columns as the arrays that librdkafka's C interface takes: addresses and lengths into
Arrow's own buffers, made by numpy.

Nothing here is done per row in Python. The arrays point into the Arrow batch (and into what is kept
beside them), which must live until librdkafka has taken the records: it copies them.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceforall.common.column_texts import texts_of
from onceforall.errors import RefusedRecordError, SchemaError
from onceforall.sinks.kafka.task import librdkafka as lib

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_EMPTY = ctypes.create_string_buffer(1)
"""What an empty value points to: a null pointer would make it a null."""

_FIXED_ARGUMENTS = 6
_ARGUMENT_BYTES = 72


@dataclass(frozen=True)
class Bytes:
    """A column of byte strings: where each begins, and how long it is; a null is at address 0."""

    addresses: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, column: pa.Array) -> Bytes:
        """Point into a column of strings or binaries.

        Raises:
            SchemaError: it is of another type.
        """
        import numpy as np

        first, lengths, data = bytes_of(column)
        base = data.address if data is not None and data.size else ctypes.addressof(_EMPTY)
        addresses = first.astype(np.uint64) + np.uint64(base)
        sizes = lengths.astype(np.uint64)
        if column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            addresses, sizes = (
                np.where(valid, addresses, np.uint64(0)),
                np.where(valid, sizes, np.uint64(0)),
            )
        return cls(addresses, sizes)

    def take(self, order: npt.NDArray[np.intp]) -> Bytes:
        """Return them in another order."""
        return Bytes(self.addresses[order], self.sizes[order])


def bytes_of(
    column: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], pa.Buffer | None]:
    """Return where each byte string of a column begins in its buffer, how long it is, and the
    buffer; of a null nothing is promised.

    Raises:
        SchemaError: the column has neither strings nor binaries.
    """
    import numpy as np
    import pyarrow as pa

    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    if not (wide or pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        raise SchemaError(
            f"A column of type {column.type} reached the Kafka sink, which writes binary. Write "
            "what columns() returned."
        )
    count = len(column)
    _, where, data = column.buffers()
    kind = np.int64 if wide else np.int32
    offsets = (
        np.frombuffer(where, kind, count + 1, column.offset * np.dtype(kind).itemsize)
        if count
        else np.zeros(1, kind)
    )
    return offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64), data


def message_dtype() -> Any:
    """Return ``librdkafka.Message`` as a type of numpy."""
    import numpy as np

    return np.dtype(lib.Message)


def messages(value: Bytes, key: Bytes | None) -> npt.NDArray[np.void]:
    """Return records for ``Client.produce``, still without a partition."""
    import numpy as np

    made = np.zeros(len(value.sizes), message_dtype())
    made["payload"], made["len"] = value.addresses, value.sizes
    if key is not None:
        made["key"], made["key_len"] = key.addresses, key.sizes
    return made


def partitions_of(column: pa.Array) -> npt.NDArray[np.int32]:
    """Return a column of partitions, -1 where it is null."""
    import numpy as np

    found: npt.NDArray[np.int32] = (
        column.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    )
    return found


class Headers:
    """A column ``array<struct<key: string, value: binary>>``."""

    def __init__(self, column: pa.Array) -> None:
        """Point into it.

        Raises:
            RefusedRecordError: a header is null, or has no key that librdkafka can have.
        """
        import numpy as np

        count = len(column)
        bounds = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        if not count:  # Arrow lets such a one have no offsets at all.
            bounds = np.zeros(1, np.int64)
        self.first = bounds[:-1] - bounds[0]
        self.counts = np.diff(bounds)
        if column.null_count:
            self.counts = np.where(column.is_valid().to_numpy(zero_copy_only=False), self.counts, 0)
        # Of a slice, the entries of the whole are its values.
        entries = column.values.slice(bounds[0], bounds[-1] - bounds[0])
        keys = entries.field(0)
        used = np.zeros(len(entries), bool)
        for start, length in (
            zip(self.first.tolist(), self.counts.tolist(), strict=True)
            if entries.null_count or keys.null_count
            else ()
        ):
            used[start : start + length] = True
        whole = np.ones(len(entries), bool)
        for part in (entries, keys):
            if part.null_count:
                whole &= part.is_valid().to_numpy(zero_copy_only=False)
        if (used & ~whole).any():
            raise RefusedRecordError(
                "A row has a header that is null or has no key. Kafka's headers need one: filter "
                "the array."
            )
        # C strings: each name once, with its end.
        encoded = keys.fill_null("").dictionary_encode()
        names = [name or "" for name in texts_of("headers.key", encoded.dictionary)]
        cut = next((name for name in names if "\0" in name), None)
        if cut is not None:
            raise RefusedRecordError(
                f"A row has a header with the key {cut!r}; librdkafka's end at a zero character. "
                "Take that out."
            )
        self._names = [ctypes.create_string_buffer(name.encode()) for name in names]
        addresses = np.array([ctypes.addressof(name) for name in self._names] or [0], np.uint64)
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        self.names = addresses[codes] if len(entries) else np.zeros(0, np.uint64)
        self.values = Bytes.of(entries.field(1))
        assert len(self.counts) == count

    def reorder(self, order: npt.NDArray[np.intp]) -> None:
        """Put the rows in another order."""
        self.first, self.counts = self.first[order], self.counts[order]


@dataclass(frozen=True)
class Arguments:
    """Records for ``Client.produce_each``: the address of each one's arguments, and how many
    these are; ``memory`` holds them.
    """

    addresses: list[int]
    counts: list[int]
    memory: Any

    def behind(self, position: int) -> Arguments:
        """Return those from a position on."""
        return Arguments(self.addresses[position:], self.counts[position:], self.memory)


def arguments(columns: Mapping[str, Any]) -> Arguments:
    """Return records with headers or timestamps.

    Args:
        columns: ``topic`` (an array of handles), ``value`` and ``key`` (``Bytes``; ``key`` may be
            None), ``partition`` (an array or None), ``timestamp`` (an array of milliseconds or
            None) and ``headers`` (``Headers`` or None).
    """
    import numpy as np

    value, headers = columns["value"], columns["headers"]
    count = len(value.sizes)
    extra = headers.counts if headers is not None else np.zeros(count, np.int64)
    counts = extra + _FIXED_ARGUMENTS
    first = (
        np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64)
        if count
        else np.zeros(0, np.int64)
    )
    kind = np.dtype(
        {
            "names": ["type", "a", "b", "c"],
            "formats": ["i4", "u8", "u8", "u8"],
            "offsets": [0, 8, 16, 24],
            "itemsize": _ARGUMENT_BYTES,
        }
    )
    made = np.zeros(int(counts.sum()), kind)
    whose_key = columns["key"]
    fixed: list[tuple[int, Any, Any]] = [
        (lib.VTYPE_RKT, columns["topic"], 0),
        (lib.VTYPE_PARTITION, _unsigned(columns["partition"], count, lib.PARTITION_UNASSIGNED), 0),
        (lib.VTYPE_VALUE, value.addresses, value.sizes),
        (
            lib.VTYPE_KEY,
            0 if whose_key is None else whose_key.addresses,
            0 if whose_key is None else whose_key.sizes,
        ),
        (lib.VTYPE_MSGFLAGS, lib.MSG_F_COPY, 0),
        (lib.VTYPE_TIMESTAMP, _unsigned(columns["timestamp"], count, 0), 0),
    ]
    for position, (kind_of_argument, a, b) in enumerate(fixed):
        made["type"][first + position] = kind_of_argument
        made["a"][first + position] = a
        made["b"][first + position] = b
    if headers is not None and extra.sum():
        owner = np.repeat(np.arange(count), extra)
        within = np.arange(int(extra.sum())) - np.repeat(np.cumsum(extra) - extra, extra)
        entry = headers.first[owner] + within
        to = first[owner] + _FIXED_ARGUMENTS + within
        made["type"][to] = lib.VTYPE_HEADER
        made["a"][to] = headers.names[entry]
        made["b"][to] = headers.values.addresses[entry]
        made["c"][to] = headers.values.sizes[entry]
    addresses = made.ctypes.data + first * _ARGUMENT_BYTES
    return Arguments(addresses.tolist(), counts.tolist(), (made, headers))


def _unsigned(numbers: npt.NDArray[Any] | None, count: int, default: int) -> npt.NDArray[np.uint64]:
    """Return numbers as the 64 bits that the C union is read from, whatever their sign."""
    import numpy as np

    signed = np.full(count, default, np.int64) if numbers is None else numbers.astype(np.int64)
    return signed.view(np.uint64)
