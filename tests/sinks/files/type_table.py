"""What becomes of each type in each format, by reader: what the property test asserts, and what the
table in ``docs/files.md`` is drawn from.

A value is plain here: a number of days or microseconds since 1970 for a date or timestamp, the
digits of a decimal as a whole number, the bytes
of a text, a tuple for a struct, a list of pairs for a map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

FORMATS = {
    "parquet": "Parquet",
    "orc": "ORC",
    "json": "JSON",
    "csv": "CSV",
    "path": "a folder's name",
}
SPARK, SPARK_ALONE, ARROW = "to_spark", "spark.read", "to_arrow"
"""The readers; what holds for ``to_arrow`` holds for pyarrow's dataset."""

DAY = 86_400 * 10**6
GREGORIAN, YEAR_1900 = -141_427, -25_567
CSV_NULL = "\u0001 no value \u0001".encode()


@dataclass(frozen=True)
class Cell:
    """What becomes of one type in one format.

    Attributes:
        words: what the table says.
        at_start: the column is refused at start.
        refuses: tells which values are refused, before anything is decided.
        unread: tells which values pyarrow refuses to read.
        reads: what a reader makes of a value, where that is another one.
        note: the number of a note in ``NOTES``.
    """

    words: str = "kept"
    at_start: bool = False
    refuses: Callable[[Any], bool] = lambda _: False
    unread: Callable[[Any], bool] = lambda _: False
    reads: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Row:
    """Types that are treated alike.

    Attributes:
        title: what the table calls them.
        members: Spark's words for each, with its Arrow type; None: there is no value to be written.
        cells: by format.
    """

    title: str
    members: Mapping[str, pa.DataType | None]
    cells: Mapping[str, Cell]


NOTES = {
    "orc-days": "Refused before 1582-10-15, where Spark would read another day.",
    "orc-times": "Refused before 1900-01-01 (UTC), where Spark would read another instant, by the "
    "zone of the JVM that reads; and before 1970 with a fraction of a second, where it would not "
    "read the file at all. "
    "`to_arrow` and pyarrow raise an error where a file holds a timestamp outside the years 1678 "
    "to 2261; Spark reads it.",
    "orc-local": "Spark refuses to read it.",
    "text-years": "Refused outside the years -32767 to 32767.",
    "csv-years": "Refused outside the years 0 to 9999: CSV's readers know four digits.",
    "text": "Refused where it is no UTF-8: Spark's STRING may hold any bytes, and Parquet and ORC "
    "keep them.",
    "csv-text": "As JSON; and `'\\u0001 no value \\u0001'` is refused, which stands for a null in "
    '`to_spark`. The empty string is `""`, and null is nothing: '
    "`spark.read` takes both for null.",
    "json-keys": "Spark's own JSON writer takes such keys, and its reader fails on them.",
    "path-text": "Refused where it is no UTF-8, or the folder's name is longer than 255 bytes. "
    "The empty string is read as null.",
    "nan": 'As `"NaN"`, `"Infinity"`, `"-Infinity"`.',
    "csv-nan": "NaN and infinity as `NaN`, `Inf`, `-Inf`.",
    "json-times": 'As `"2026-11-21T10:00:00.123456Z"`, without `Z` for TIMESTAMP_NTZ; refused '
    "outside the years -32767 to 32767.",
    "csv-times": "As `2026-11-21 10:00:00.123456Z`, without `Z` for TIMESTAMP_NTZ; refused "
    "outside the years 0 to 9999.",
    "base64": "In Base64, as Spark writes it.",
    "utc": "In UTC.",
    "inside": "What is refused of a type is refused inside too, and what a note says holds there.",
}


def _is_no_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return True
    return False


def _outside(first: int, behind: int, per_day: int = 1) -> Callable[[int], bool]:
    return lambda value: not first * per_day <= value < behind * per_day


KEPT = Cell()
REFUSED = Cell("refused at start", at_start=True)
TEXT_DAYS, CSV_DAYS = (-12_687_428, 11_248_738), (-719_528, 2_932_897)


def _except(note: str, refuses: Callable[[Any], bool], **more: Any) -> Cell:
    return Cell("kept, or refused", refuses=refuses, note=note, **more)


ORC_TIMES = _except(
    "orc-times",
    lambda value: value < YEAR_1900 * DAY or (value < 0 and value % 10**6 != 0),
    unread=lambda value: not -(1 << 63) <= value * 1000 < 1 << 63,
)
JSON_TIMES = _except("json-times", _outside(*TEXT_DAYS, DAY))
CSV_TIMES = _except("csv-times", _outside(*CSV_DAYS, DAY))
PATH_TEXT = _except(
    "path-text",
    lambda value: _is_no_text(value) or len(value) > 250,
    reads=dict.fromkeys((SPARK, SPARK_ALONE, ARROW), lambda value: value or None),
)
CSV_TEXT = _except(
    "csv-text",
    lambda v: _is_no_text(v) or v == CSV_NULL,
    reads={SPARK_ALONE: lambda value: value or None},
)
EVERYWHERE = dict.fromkeys(FORMATS, KEPT)
NOWHERE = dict.fromkeys(FORMATS, REFUSED)
NOT_FLAT = {"parquet": KEPT, "orc": KEPT, "json": KEPT, "csv": REFUSED, "path": REFUSED}
INSIDE = Cell("kept", note="inside")

ROWS = (
    Row("BOOLEAN", {"BOOLEAN": pa.bool_()}, EVERYWHERE),
    Row(
        "TINYINT, SMALLINT, INT, BIGINT",
        {"TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64()},
        EVERYWHERE,
    ),
    Row(
        "FLOAT, DOUBLE",
        {"FLOAT": pa.float32(), "DOUBLE": pa.float64()},
        {**EVERYWHERE, "json": Cell("kept", note="nan"), "csv": Cell("kept", note="csv-nan"), "path": REFUSED},
    ),
    Row("DECIMAL", {f"DECIMAL({p}, {s})": pa.decimal128(p, s) for p, s in ((1, 0), (9, 2), (18, 18), (38, 0), (38, 10), (38, 38))}, EVERYWHERE),
    Row(
        "STRING, CHAR, VARCHAR",
        {"STRING": pa.string()},
        {**EVERYWHERE, "json": _except("text", _is_no_text), "csv": CSV_TEXT, "path": PATH_TEXT},
    ),
    Row("BINARY", {"BINARY": pa.binary()}, {**NOT_FLAT, "json": Cell("kept", note="base64")}),
    Row(
        "DATE",
        {"DATE": pa.date32()},
        {
            "parquet": KEPT,
            "orc": _except("orc-days", lambda value: value < GREGORIAN),
            "json": _except("text-years", _outside(*TEXT_DAYS)),
            "csv": _except("csv-years", _outside(*CSV_DAYS)),
            "path": _except("text-years", _outside(*TEXT_DAYS)),
        },
    ),
    Row(
        "TIMESTAMP",
        {"TIMESTAMP": pa.timestamp("us", "UTC")},
        {"parquet": Cell("kept", note="utc"), "orc": ORC_TIMES, "json": JSON_TIMES, "csv": CSV_TIMES, "path": REFUSED},
    ),
    Row(
        "TIMESTAMP_NTZ",
        {"TIMESTAMP_NTZ": pa.timestamp("us")},
        {
            "parquet": KEPT,
            "orc": Cell("refused at start", at_start=True, note="orc-local"),
            "json": JSON_TIMES,
            "csv": CSV_TIMES,
            "path": REFUSED,
        },
    ),
    Row("ARRAY, STRUCT", {"ARRAY<INT>": None, "STRUCT<x: INT>": None}, {f: INSIDE if not c.at_start else c for f, c in NOT_FLAT.items()}),
    Row("MAP with STRING keys", {"MAP<STRING, INT>": None}, {f: INSIDE if not c.at_start else c for f, c in NOT_FLAT.items()}),
    Row(
        "MAP with other keys",
        {"MAP<INT, INT>": None, "MAP<DATE, STRING>": None, "MAP<BOOLEAN, INT>": None, "MAP<BINARY, INT>": None, "MAP<STRUCT<x: INT>, INT>": None},
        {**NOT_FLAT, "parquet": INSIDE, "orc": INSIDE, "json": Cell("refused at start", at_start=True, note="json-keys")},
    ),
    Row(
        "VOID, VARIANT, intervals, TIME",
        {"VOID": None, "VARIANT": None, "INTERVAL DAY TO SECOND": None, "INTERVAL YEAR TO MONTH": None, "INTERVAL": None, "TIME(6)": None},
        NOWHERE,
    ),
)  # fmt: skip


def drawn() -> str:
    """Return the table and its notes as Markdown."""
    numbers: dict[str, int] = {}
    lines = ["| | " + " | ".join(FORMATS.values()) + " |", "|---|" + "---|" * len(FORMATS)]
    for row in ROWS:
        cells = []
        for form in FORMATS:
            cell = row.cells[form]
            mark = f" [{numbers.setdefault(cell.note, len(numbers) + 1)}]" if cell.note else ""
            cells.append(f"{cell.words}{mark}")
        lines.append(f"| {row.title} | " + " | ".join(cells) + " |")
    notes = [f"{number}. {NOTES[note]}" for note, number in numbers.items()]
    return "\n".join([*lines, "", *notes]) + "\n"
