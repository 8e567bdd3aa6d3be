"""How the values of each type become fields of a binary COPY, and which values PostgreSQL would
refuse.

What can be seen here is refused here, with its column and row: a null, a number out of range, a
text that is too long, a character U+0000, bytes that are no UTF-8, a malformed uuid, an unknown
enum label, a ragged array. What only the server can see (JSON, a domain's checks) it refuses while
it takes the COPY, and module ``copying`` names that row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceforall.sinks.postgres.task import numerics
from onceforall.sinks.postgres.task.encoding import (
    Mask,
    big_endian,
    binary,
    data_of,
    fixed,
    joined,
    nulls,
    offsets_of,
    variable,
)

if TYPE_CHECKING:
    from onceforall.sinks.postgres.tables import TableColumn
    from onceforall.sinks.postgres.types import PgType

_EPOCH_DAYS = 10_957  # from 1970-01-01 to 2000-01-01, PostgreSQL's
_EPOCH_MICROS = 946_684_800_000_000
_FIRST_DAY = -2_451_545 + _EPOCH_DAYS  # 4713-01-01 BC in the Julian calendar (datatype/timestamp.h)
_FIRST_MICRO = -211_813_488_000_000_000 + _EPOCH_MICROS
_INTEGERS = {"int2": (">i2", 16), "int4": (">i4", 32), "int8": (">i8", 64)}
_UUID_PATTERN = r"^(\{([0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}\}|([0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4})$"


class RefusedValueError(Exception):
    """A value that the column can't take.

    Attributes:
        place: its row in the array, counted from 0.
        reason: why, as the end of a sentence that begins with the value.
    """

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


@dataclass(frozen=True)
class UnwritableError(Exception):
    """Values of this Arrow type can't be written to a column of this type: ``columns`` should
    have refused them.
    """

    arrow: str
    postgres: str


def field(array: pa.Array, column: TableColumn) -> list[pa.Array]:
    """Return the pieces (see ``encoding``) of a column's fields.

    Raises:
        RefusedValueError: naming the first row that the column can't take.
        UnwritableError: the Arrow type doesn't belong to this column.
    """
    missing = nulls(array)
    if missing is not None and not column.nullable:
        raise RefusedValueError(int(np.argmax(missing)), "is null, and the column takes no null")
    return _pieces(array, column.type, missing)


def _pieces(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    if pa.types.is_null(array.type):
        return fixed([np.zeros((len(array), 0), np.uint8)], np.ones(len(array), np.bool_))
    encoder = _ENCODERS.get(kind.kind)
    if encoder is None:
        raise UnwritableError(str(array.type), kind.name)
    return encoder(array, kind, missing)


def _refuse(bad: np.ndarray[Any, Any], missing: Mask | None, reason: str) -> None:
    if missing is not None:
        bad = bad & ~missing
    if bad.any():
        raise RefusedValueError(int(np.argmax(bad)), reason)


def _numbers(array: pa.Array, kind: PgType) -> np.ndarray[Any, Any]:
    """Return the values of a fixed-width array; at nulls stands anything."""
    width = array.type.bit_width // 8
    if not pa.types.is_primitive(array.type) or pa.types.is_boolean(array.type):
        raise UnwritableError(str(array.type), kind.name)
    form = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[width]
    if pa.types.is_floating(array.type):
        form = {4: np.float32, 8: np.float64}[width]  # type: ignore[assignment]
    return np.frombuffer(array.buffers()[1] or b"", form, len(array), array.offset * width)


def _integer(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    if not pa.types.is_signed_integer(array.type):
        raise UnwritableError(str(array.type), kind.name)
    form, bits = _INTEGERS[kind.kind]
    values = _numbers(array, kind)
    if array.type.bit_width > bits:
        limit = 1 << (bits - 1)
        bad = (values < -limit) | (values >= limit)
        _refuse(bad, missing, f"is out of range for {kind.name} ({-limit} to {limit - 1})")
    return fixed([big_endian(values, form)], missing)


def _float(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    is_small = pa.types.is_integer(array.type) and array.type.bit_width <= 32
    if kind.kind == "float4" and not pa.types.is_float32(array.type):
        raise UnwritableError(str(array.type), kind.name)
    if not (pa.types.is_floating(array.type) or is_small):
        raise UnwritableError(str(array.type), kind.name)
    return fixed(
        [big_endian(_numbers(array, kind), ">f4" if kind.kind == "float4" else ">f8")], missing
    )


def _boolean(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    if not pa.types.is_boolean(array.type):
        raise UnwritableError(str(array.type), kind.name)
    values = pc.fill_null(array, False).to_numpy(zero_copy_only=False)  # noqa: FBT003
    return fixed([big_endian(values, ">i1")], missing)


def _numeric(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    limits = kind.precision_and_scale
    if pa.types.is_signed_integer(array.type):
        values = _numbers(array, kind).astype(np.int64)
        if limits is not None and (whole := limits[0] - limits[1]) < 19:
            bad = (values <= -(10**whole)) | (values >= 10**whole)
            _refuse(
                bad,
                missing,
                f"has more than the {whole} digits before the point that {kind.name} takes",
            )
        return fixed(numerics.from_integers(values), missing)
    if not pa.types.is_decimal128(array.type):
        raise UnwritableError(str(array.type), kind.name)
    if (
        limits is not None
        and (whole := limits[0] - limits[1]) < array.type.precision - array.type.scale
    ):
        _refuse_long_decimals(array, whole, missing, kind)
    return fixed(numerics.from_decimals(array), missing)


def _refuse_long_decimals(array: pa.Array, whole: int, missing: Mask | None, kind: PgType) -> None:
    # As a number of this very type: 10 to the power of `whole` has one digit too many.
    limit = pa.scalar(10**whole, pa.decimal128(38, 0)).cast(
        pa.decimal128(array.type.precision, array.type.scale)
    )
    bad = pc.or_(pc.greater_equal(array, limit), pc.less_equal(array, pc.negate(limit)))
    found = pc.fill_null(bad, False).to_numpy(zero_copy_only=False)  # noqa: FBT003
    _refuse(
        found, missing, f"has more than the {whole} digits before the point that {kind.name} takes"
    )


def _date(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    if not pa.types.is_date32(array.type):
        raise UnwritableError(str(array.type), kind.name)
    days = _numbers(array, kind).astype(np.int64)
    _refuse(days < _FIRST_DAY, missing, "is before the first date of PostgreSQL, 4713 BC")
    return fixed([big_endian(days - _EPOCH_DAYS, ">i4")], missing)


def _timestamp(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    if not pa.types.is_timestamp(array.type) or (array.type.tz is None) == (
        kind.kind == "timestamptz"
    ):
        raise UnwritableError(str(array.type), kind.name)
    if array.type.unit != "us":
        array = array.cast(pa.timestamp("us", array.type.tz))
    micros = _numbers(array, kind)
    # The last one of 64 bits, counted from 1970, is in the year 294247, and PostgreSQL has more.
    _refuse(
        micros < _FIRST_MICRO, missing, "is outside the timestamps of PostgreSQL, from 4713 BC on"
    )
    with np.errstate(over="ignore"):  # at nulls stands anything
        return fixed([big_endian(micros - _EPOCH_MICROS, ">i8")], missing)


def _time(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    if not pa.types.is_time(array.type):
        raise UnwritableError(str(array.type), kind.name)
    return fixed(
        [big_endian(_numbers(array.cast(pa.time64("us"), safe=False), kind), ">i8")], missing
    )


def _interval(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    """Durations, which have no days but hours; and whole months, as int32."""
    if pa.types.is_duration(array.type):
        micros = big_endian(_numbers(array.cast(pa.duration("us")), kind), ">i8")
        return fixed([micros, np.zeros((len(array), 8), np.uint8)], missing)
    if not pa.types.is_int32(array.type):
        raise UnwritableError(str(array.type), kind.name)
    return fixed(
        [np.zeros((len(array), 12), np.uint8), big_endian(_numbers(array, kind), ">i4")], missing
    )


def _as_binary(array: pa.Array, kind: PgType, *, text: bool) -> pa.Array:
    types = pa.types
    is_text = (
        types.is_string(array.type)
        or types.is_large_string(array.type)
        or types.is_string_view(array.type)
    )
    is_binary = (
        types.is_binary(array.type)
        or types.is_large_binary(array.type)
        or types.is_binary_view(array.type)
    )
    if is_text != text or not (is_text or is_binary or types.is_fixed_size_binary(array.type)):
        raise UnwritableError(str(array.type), kind.name)
    return array.cast(pa.binary())


def _text_bytes(array: pa.Array, kind: PgType) -> pa.Array:
    """Return texts as bytes, having checked that they are UTF-8 without U+0000."""
    payload = _as_binary(array, kind, text=True)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        values = payload.to_pylist()
        raise RefusedValueError(
            [_is_utf8(value) for value in values].index(False), "is no valid UTF-8"
        ) from None
    if b"\0" in bytes(data_of(payload)):
        bad = pc.match_substring(payload, b"\0").fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003
        if bad.any():
            raise RefusedValueError(
                int(np.argmax(bad)), "has the character U+0000, which PostgreSQL can't store"
            )
    return payload


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _text(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    payload = _text_bytes(array, kind)
    if kind.length is not None:
        lengths = pc.utf8_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        _refuse(
            lengths > kind.length,
            missing,
            f"has more than the {kind.length} characters that {kind.name} takes",
        )
    return variable(payload, missing)


def _json(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    # The version of jsonb's binary form (jsonb.c, jsonb_recv).
    return variable(
        _text_bytes(array, kind), missing, before=b"\x01" if kind.kind == "jsonb" else b""
    )


def _enum(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    payload = _text_bytes(array, kind)
    labels = pa.array([label.encode() for label in kind.labels], pa.binary())
    known = pc.is_in(payload, value_set=labels).to_numpy(zero_copy_only=False)
    _refuse(
        ~known,
        missing,
        f"is none of the labels that {kind.name} had at the query's start: "
        f"{', '.join(kind.labels)}. If it has more now, start the query again",
    )
    return variable(payload, missing)


def _bytea(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    return variable(_as_binary(array, kind, text=False), missing)


def _uuid(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        _text_bytes(array, kind)
        good = (
            pc.match_substring_regex(array, _UUID_PATTERN)
            .fill_null(True)  # noqa: FBT003
            .to_numpy(zero_copy_only=False)
        )
        _refuse(~good, missing, "is no uuid")
        plain = pc.replace_substring_regex(array, "[{}-]", "")
        data = np.zeros((len(array), 16), np.uint8)
        present = slice(None) if missing is None else ~missing
        digits = bytes(data_of(pc.drop_null(plain).cast(pa.binary())))
        data[present] = np.frombuffer(bytes.fromhex(digits.decode("ascii")), np.uint8).reshape(
            -1, 16
        )
        return fixed([data], missing)
    payload = _as_binary(array, kind, text=False)
    lengths = pc.binary_length(payload).fill_null(16).to_numpy(zero_copy_only=False)
    _refuse(lengths != 16, missing, "has other than the 16 bytes of a uuid")
    return variable(payload, missing)


def _array(array: pa.Array, kind: PgType, missing: Mask | None) -> list[pa.Array]:
    """Arrays of one or two dimensions (arrayfuncs.c, ``array_recv``).

    A field is the number of dimensions, a flag for nulls, the elements' type, for each dimension
    its size and its lower bound, and the elements, each as a field. An empty array has no
    dimension.
    """
    assert kind.element is not None
    if not _is_list(array.type):
        raise UnwritableError(str(array.type), kind.name)
    lengths, elements = _opened(array)
    sizes = [lengths]
    counts = lengths
    if _is_list(elements.type):
        inner, elements = _opened(elements, lengths)
        sizes.append(_second_size(lengths, inner))
        counts = lengths * sizes[1]
    if _is_list(elements.type):
        raise UnwritableError(str(array.type), kind.name)
    encoded, absent = _elements(elements, kind.element, counts)
    starts = np.zeros(len(array) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    # The elements of an array are neighbours: its bytes are one slice of theirs.
    payload = binary(
        offsets_of(encoded)[starts].astype(np.int32), np.frombuffer(data_of(encoded), np.uint8)
    )
    return _array_pieces(payload, sizes, kind.element.oid, absent, missing)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _opened(array: pa.Array, outer: np.ndarray[Any, Any] | None = None) -> tuple[Any, pa.Array]:
    """Return the length of each list, 0 for a null one, and the elements of all, one after the
    other.
    """
    if outer is not None and (absent := nulls(array)) is not None:
        raise RefusedValueError(
            _row_of(outer, int(np.argmax(absent))),
            "holds a null in place of an array, which PostgreSQL's arrays can't",
        )
    lengths = (
        pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return lengths, array.flatten()


def _row_of(counts: np.ndarray[Any, Any], place: int) -> int:
    """Return in which row an element stands, of rows with so many each."""
    return int(np.searchsorted(np.cumsum(counts), place, side="right"))


def _second_size(outer: np.ndarray[Any, Any], inner: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the length that all the lists within one have."""
    sizes = np.zeros(len(outer), np.int64)
    filled = np.flatnonzero(outer)
    starts = np.zeros(len(outer), np.int64)
    np.cumsum(outer[:-1], out=starts[1:])
    if len(filled):
        least = np.minimum.reduceat(inner, starts[filled])
        most = np.maximum.reduceat(inner, starts[filled])
        for bad, reason in (
            (least != most, "holds arrays of different lengths"),
            (most == 0, "holds empty arrays"),
        ):
            if bad.any():
                raise RefusedValueError(
                    int(filled[np.argmax(bad)]), f"{reason}, which PostgreSQL's arrays can't"
                )
        sizes[filled] = most
    return sizes


def _elements(
    elements: pa.Array, kind: PgType, counts: np.ndarray[Any, Any]
) -> tuple[pa.Array, Mask | None]:
    absent = nulls(elements)
    try:
        if absent is not None and kind.not_null:
            raise RefusedValueError(
                int(np.argmax(absent)), f"holds a null, which {kind.name} takes not"
            )
        return joined(_pieces(elements, kind, absent)), absent
    except RefusedValueError as error:
        raise RefusedValueError(
            _row_of(counts, error.place), f"holds an element that {error.reason}"
        ) from None


def _array_pieces(
    payload: pa.Array,
    sizes: list[np.ndarray[Any, Any]],
    element: int,
    absent: Mask | None,
    missing: Mask | None,
) -> list[pa.Array]:
    rows, dimensions = len(payload), len(sizes)
    head = np.ones((rows, 3 + 2 * dimensions), np.int64)
    head[:, 0] = dimensions
    head[:, 1] = int(absent is not None)
    head[:, 2] = element
    for at, size in enumerate(sizes):
        head[:, 3 + 2 * at] = size
    empty = sizes[0] == 0
    head[empty, 0] = 0
    head_bytes = big_endian(head, ">u4")
    lengths = pc.binary_length(payload).to_numpy(zero_copy_only=False) + np.where(
        empty, 12, head_bytes.shape[1]
    )
    both = np.concatenate([big_endian(lengths, ">i4"), head_bytes], axis=1)
    keep = np.ones(both.shape, np.bool_)
    keep[empty, 16:] = False
    if missing is not None:
        both[missing, :4] = 0xFF
        keep[missing, 4:] = False
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(keep.sum(axis=1), out=offsets[1:])
    return [binary(offsets, both[keep]), payload]


_ENCODERS: dict[str, Callable[[pa.Array, Any, Mask | None], list[pa.Array]]] = {
    "bool": _boolean,
    "int2": _integer,
    "int4": _integer,
    "int8": _integer,
    "float4": _float,
    "float8": _float,
    "numeric": _numeric,
    "text": _text,
    "varchar": _text,
    "bpchar": _text,
    "citext": _text,
    "bytea": _bytea,
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamp,
    "time": _time,
    "interval": _interval,
    "json": _json,
    "jsonb": _json,
    "uuid": _uuid,
    "enum": _enum,
    "array": _array,
}
