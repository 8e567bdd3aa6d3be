"""Record identity: a UUID from the columns that say which record it is, the same on every replay.

The id is a UUID of version 5 (RFC 9562 §5.5: SHA-1 of a namespace and a name), so that every other
system can compute it, too: in Python it is ``uuid.uuid5(namespace, name)``. Version 5 and not 8,
for that reason; SHA-1's weakness (two inputs made on purpose to have one hash) matters only where
somebody who may choose keys gains from a collision with a key of his own.

The *name* is made of the columns, in their order, each as ``<letter><bytes>:<text>``, in which
``<bytes>`` is the length of the text in UTF-8; a null is ``-``. So no two different rows of columns
have one name: ``("a", "bc")`` is ``s1:as2:bc``, ``("ab", "c")`` is ``s2:abs1:c``, a null is not an
empty string (``s0:``), and the number 1 (``i1:1``) is not the text (``s1:1``).

- *type* (*letter*): *text*
- STRING, CHAR, VARCHAR (``s``): as it is, byte by byte
- TINYINT to BIGINT (``i``): decimal; all widths alike, so that a wider column keeps its ids
- DECIMAL (``d``): as ``java.math.BigDecimal.toString`` and Python's ``str(Decimal)`` have it; its
  scale counts (``1.5``, ``1.50``)
- BOOLEAN (``b``): ``true`` or ``false``
- DATE (``D``): ``2026-11-21``
- TIMESTAMP (``t``): ``2026-11-21T22:10:00.123456Z``: in UTC, whatever the session's time zone
- TIMESTAMP_NTZ (``n``): ``2026-11-21T22:10:00.123456``
- BINARY (``x``): Base64, with padding

Refused are FLOAT and DOUBLE (``-0.0``, ``NaN`` and the last bits of a sum have no one form: cast to
DECIMAL), MAP (its entries have no order), and ARRAY, STRUCT, VARIANT, TIME and intervals (give
their fields as columns, or a STRING of one's own making).

Everything is made of Spark's own expressions; no Python runs per row.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

from onceforall.common import arguments
from onceforall.errors import OptionError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Namespace: TypeAlias = "str | uuid.UUID"
"""A UUID, or a text of which one is made: ``uuid5(NAMESPACE, text)``."""

NAMESPACE = uuid.UUID("11149d28-6a21-5f5e-9dce-3513607a732d")
"""The namespace in which texts given as ``namespace=`` become UUIDs; itself made of the
project's address."""

# The types as ``typeof`` names them (LIKE patterns), and their letters.
_LETTERS: tuple[tuple[str, str], ...] = (
    ("string%", "s"),
    ("char%", "s"),
    ("varchar%", "s"),
    ("tinyint", "i"),
    ("smallint", "i"),
    ("int", "i"),
    ("bigint", "i"),
    ("decimal%", "d"),
    ("boolean", "b"),
    ("date", "D"),
    ("timestamp", "t"),
    ("timestamp_ntz", "n"),
    ("binary", "x"),
)
_BY_CAST = "sibD"
_REASONS = {
    "float": "its last bits, -0.0 and NaN have no one form. Cast it to DECIMAL",
    "double": "its last bits, -0.0 and NaN have no one form. Cast it to DECIMAL",
    "map": "its entries have no order. Give the values that count as columns",
}
_OTHER_REASON = "it has no canonical text. Give its fields as columns, or a STRING made of it"
_JSON = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def record_id(*columns: str | Column, namespace: Namespace) -> Column:
    """Return the id of a record, as a STRING of 36 characters, from the columns that identify it.

    Args:
        columns: names or expressions, of the types in the module's table; their order counts, their
            names don't. Either the business key, or the place in Kafka: ``record_id("topic",
            "partition", "offset", namespace=…)``, which tells records apart that a producer sent
            twice.
        namespace: what the key identifies (``"orders"``), so that an order and a click with one key
            have different ids; a UUID is taken as it is. For places in Kafka it should name the
            cluster, and be changed when a topic is made anew, for then its offsets begin again.

    Raises:
        OptionError: no column, or an empty namespace.

    A column of a type that is refused fails the first row, for an expression doesn't know its
    frame; ``with_record_id`` refuses it before.
    """
    if not columns:
        raise OptionError("record_id got no column. Name the columns that identify a record.")
    _check_columns("record_id", columns)
    return _formatted(_digest((_encoded(_column(column)) for column in columns), namespace))


def with_record_id(
    frame: DataFrame, name: str, *columns: str | Column, namespace: Namespace
) -> DataFrame:
    """Return the frame with a column `name` of ``record_id``, having checked the columns' types.

    The same id as that of ``record_id``, for less: the frame says of which type each column is, so
    that the plan has no branch per type, and names the digest once.

    Args:
        frame: batch or streaming.
        name: of the new column; one that is there is replaced.
        columns: see ``record_id``.
        namespace: see ``record_id``.

    Raises:
        SchemaError: a column is missing, or has a type that has no canonical form; the message says
            which and why.
        OptionError: as ``record_id``.
    """
    if not columns:
        raise OptionError("with_record_id got no column. Name the columns that identify a record.")
    arguments.check_frame(frame, "with_record_id", or_connect=True)
    arguments.text("name", name, "the name of the new column")
    _check_columns("with_record_id", columns)
    _namespace(namespace)
    from pyspark.errors import AnalysisException

    try:
        fields = frame.select(*columns).schema.fields
    except AnalysisException as error:
        raise SchemaError(
            f"with_record_id can't take these columns: {str(error).splitlines()[0]} The frame "
            f"has: {', '.join(frame.columns)}."
        ) from None
    if len(fields) != len(columns):
        raise SchemaError(
            "with_record_id got a column that stands for several, such as '*'. Name each of them: "
            f"the frame has {', '.join(frame.columns)}."
        )
    texts = []
    for column, field in zip(columns, fields, strict=True):
        type_name = field.dataType.simpleString()
        letter = _letter_of(type_name)
        if letter is None:
            raise SchemaError(
                f"record_id can't take column {field.name!r} of type {type_name}: "
                f"{refusal(type_name)}."
            )
        texts.append(_encoded_as(letter, _column(column)))
    # A column of its own: inlined, it would be planned as often as it is named. It is dropped
    # behind, so its name must only be free.
    digest = "record_id_digest"
    taken = {other.lower() for other in (*frame.columns, name)}
    while digest in taken:
        digest += "_"
    return (
        frame.withColumn(digest, _digest(texts, namespace))
        .withColumn(name, _formatted(_column(digest)))
        .drop(digest)
    )


def _check_columns(what: str, columns: Sequence[str | Column]) -> None:
    from pyspark.sql import Column

    for column in columns:
        # One of Spark Connect is one, too, and will do.
        if not isinstance(column, Column):
            arguments.text(f"{what}: a column", column, "the name of a column, or an expression")


def _column(column: str | Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by

    return F.col(column) if isinstance(column, str) else column


def _digest(texts: Iterable[Column], namespace: Namespace) -> Column:
    """Return SHA-1 of namespace and name, in hexadecimal digits."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.sha1(
        F.concat(F.lit(bytearray(_namespace(namespace).bytes)), F.concat(*texts).cast("binary"))
    )


def _formatted(digest: Column) -> Column:
    """Return the UUID of a digest."""
    from pyspark.sql import functions as F  # noqa: N812

    # RFC 9562: the version in the first digit of the third group, the variant (10 in binary) in the
    # top bits of the fourth.
    variant = F.translate(F.substring(digest, 17, 1), "0123456789abcdef", "89ab" * 4)
    return F.concat_ws(
        "-",
        F.substring(digest, 1, 8),
        F.substring(digest, 9, 4),
        F.concat(F.lit("5"), F.substring(digest, 14, 3)),
        F.concat(variant, F.substring(digest, 18, 3)),
        F.substring(digest, 21, 12),
    )


def record_name(values: Sequence[object]) -> str:
    """Return the *name* of a record in plain Python, as ``record_id`` makes it in Spark; for tests
    and for programs without Spark.

    Args:
        values: of str, int, Decimal, bool, date, datetime (with a time zone, or without one for
            TIMESTAMP_NTZ), bytes or None. A Decimal must have the scale of its column.

    Raises:
        SchemaError: a value of another type.
        OptionError: `values` is no list.
    """
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise arguments.wrong("values", values, "a list of the values that identify a record")
    return "".join(_named(value) for value in values)


def record_uuid(values: Sequence[object], *, namespace: Namespace) -> uuid.UUID:
    """Return the id of a record in plain Python; see ``record_name`` and ``record_id``."""
    return uuid.uuid5(_namespace(namespace), record_name(values))


def refusal(type_name: str) -> str | None:
    """Return why a column of this type can't be part of an id, or None.

    Args:
        type_name: as ``simpleString`` has it.
    """
    if _letter_of(type_name) is not None:
        return None
    return _REASONS.get(type_name.partition("<")[0], _OTHER_REASON)


def _letter_of(type_name: str) -> str | None:
    for pattern, letter in _LETTERS:
        if type_name == pattern or (pattern.endswith("%") and type_name.startswith(pattern[:-1])):
            return letter
    return None


def _encoded(column: Column) -> Column:
    """Return ``<letter><bytes>:<text>`` or ``-``.

    The type isn't known here: ``typeof`` is a constant that the optimizer folds, and every branch
    is valid for every type.
    """
    from pyspark.sql import functions as F  # noqa: N812

    kind = F.typeof(column)
    refused = F.raise_error(
        F.concat(
            F.lit("record_id can't take a column of type "),
            kind,
            F.lit(
                ". It takes STRING, integers, DECIMAL, BOOLEAN, DATE, TIMESTAMP, TIMESTAMP_NTZ "
                "and BINARY; with_record_id says why."
            ),
        )
    ).cast("string")
    text, letter = refused, F.lit("?")
    for pattern, sign in _LETTERS:
        fits = kind.like(pattern) if pattern.endswith("%") else kind == pattern
        text = F.when(fits, _text(sign, column)).otherwise(text)
        letter = F.when(fits, F.lit(sign)).otherwise(letter)
    return _with_length(letter, text, column)


def _encoded_as(letter: str, column: Column) -> Column:
    """Return what ``_encoded`` does, for a column of which the type is known."""
    from pyspark.sql import functions as F  # noqa: N812

    return _with_length(F.lit(letter), _text(letter, column), column)


def _text(letter: str, column: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if letter in _BY_CAST:
        return column.cast("string")
    # Decimals by CAST differ with spark.sql.ansi.enabled, timestamps with the session's time zone;
    # JSON has one form. It is {"v":…}.
    json = F.to_json(F.struct(column.alias("v")), _JSON)
    return F.trim(F.substring(json, F.lit(6), F.length(json) - 6), F.lit('"'))


def _with_length(letter: Column, text: Column, column: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    whole = F.concat(letter, F.octet_length(text).cast("string"), F.lit(":"), text)
    return F.when(column.isNull(), F.lit("-")).otherwise(whole)


def _named(value: object) -> str:
    if value is None:
        return "-"
    letter, text = _letter_and_text(value)
    return f"{letter}{len(text.encode())}:{text}"


def _letter_and_text(value: object) -> tuple[str, str]:  # noqa: PLR0911  a table of types
    if isinstance(value, str):
        return "s", value
    if isinstance(value, bool):
        return "b", str(value).lower()
    if isinstance(value, int):
        return "i", str(value)
    if isinstance(value, Decimal):
        return "d", str(value)
    if isinstance(value, datetime):
        plain = (
            value if value.tzinfo is None else value.astimezone(timezone.utc).replace(tzinfo=None)
        )
        text = plain.isoformat(timespec="microseconds")
        return ("n", text) if value.tzinfo is None else ("t", f"{text}Z")
    if isinstance(value, date):
        return "D", value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return "x", base64.b64encode(value).decode()
    kind = type(value).__name__
    raise SchemaError(
        f"record_id can't take a value of type {kind}: {_REASONS.get(kind, _OTHER_REASON)}."
    )


def _namespace(namespace: Namespace) -> uuid.UUID:
    if isinstance(namespace, uuid.UUID):
        return namespace
    if not isinstance(namespace, str) or not namespace or not arguments.is_encodable(namespace):
        raise OptionError(
            "namespace= is empty or no text. Say what the columns identify: namespace='orders', "
            "or give a uuid.UUID."
        )
    return uuid.uuid5(NAMESPACE, namespace)
