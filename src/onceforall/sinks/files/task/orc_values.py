"""Values that Spark reads from pyarrow's ORC files as others, or not at all: refused in the task,
before anything is decided.

ORC's readers take days before 1582-10-15 for those of the Julian calendar, unless the file says
that they are proleptic; pyarrow writes proleptic ones and says nothing (``calendar`` in the footer
of the ORC specification, https://orc.apache.org/specification/ORCv1/), so that Spark reads
0001-01-01 as 0001-01-03. An instant goes through ``java.sql.Timestamp`` there: Spark shifts it by
what the calendars and offsets of ``java.util.TimeZone`` and ``java.time`` differ in, in the zone of
the *reading* JVM (``RebaseDateTime``), which nobody knows beforehand; its own files have the same
fault. In 596 of 631 zones an instant before 1900 is read as another one, for the local mean time of
most of them, and in none a later one (``tests/sinks/files/test_zones.py``). And of a moment before
1970 with a fraction of a second it writes negative nanoseconds, of which ORC's Java reader says
``nanos > 999999999 or < 0``: Spark can't read any row of such a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.sinks.files.task.times import PER_SECOND, check_times, outside, refuse

if TYPE_CHECKING:
    import pyarrow as pa

_GREGORIAN_DAY, _DAY_1900 = -141_427, -25_567
"""1582-10-15 and 1900-01-01, in days since 1970."""


def check_values(rows: pa.Table) -> None:
    """See that Spark reads each value as it is.

    Args:
        rows: all columns that go into the file.

    Raises:
        RefusedRecordError: naming the column and the value.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        check_times(name, column, _check)


def _check(path: str, values: pa.Array) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    refuse(path, values, outside(values, _GREGORIAN_DAY), _TOO_EARLY)
    if pa.types.is_timestamp(values.type):
        refuse(path, values, outside(values, _DAY_1900), _LOCAL_MEAN_TIME)
        second = PER_SECOND[values.type.unit]
        units = values.cast(pa.int64())
        whole = pc.multiply(pc.divide(units, second), second)
        refuse(path, values, pc.and_(pc.less(units, 0), pc.not_equal(units, whole)), _FRACTION)


_TOO_EARLY = (
    "Spark would read another day from an ORC file: pyarrow's have no mark of the "
    "calendar before 1582-10-15"
)
_LOCAL_MEAN_TIME = (
    "Spark would read another instant before 1900 from an ORC file, by the zone of the JVM that "
    "reads"
)
_FRACTION = "Spark can't read an ORC file of pyarrow's with a fraction of a second before 1970"
