"""Does Spark read each instant as it was written, whatever zone its JVM lives in? In a process of
its own, whose JVM is given one zone after the other.

As a program: ``python -m sinks.files.test_zones FORMAT ZONE …``, or ``all`` for every zone that the
JVM knows; it prints one line per zone in which an instant is read as another.
"""

import os
import subprocess
import sys
import tempfile
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import onceforall
from onceforall.errors import RefusedRecordError
from onceforall.sinks.files.task import orc_values

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 10**6
HOUR = 3600 * SECOND
ZONES = [
    "UTC",
    "America/New_York",
    "Asia/Kolkata",
    "Africa/Monrovia",
    "Pacific/Apia",
    "Europe/Amsterdam",
    "Asia/Manila",
    "Australia/Lord_Howe",
]
"""Those with a local mean time until late, with offsets of seconds, on the other side of the date
line, with half hours."""


def micros(year, month=1, day=1):
    return int((datetime(year, month, day, tzinfo=UTC) - EPOCH).total_seconds()) * SECOND


FIRST = micros(1900)


def instants(first):
    """The hours at the beginning, and those of later years, none at the same time of a day."""
    early = range(first, first + 100 * HOUR, HOUR // 6)
    rest = range(first, micros(2101), 157 * HOUR)
    return sorted({*early, *rest})


def main():
    from onceforall import read_files
    from sinks.files.building import checked, commit
    from support.small_spark import small_spark

    form, *zones = sys.argv[1:]
    with tempfile.TemporaryDirectory() as base:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = small_spark(java_options="-Duser.timezone=UTC").getOrCreate()
        values = instants(FIRST if form == "orc" else micros(1583))
        column = pa.array(values, pa.timestamp("us", "UTC"))
        numbers = pa.array(values, pa.int64())
        rows = pa.RecordBatch.from_arrays(
            [numbers, column], schema=pa.schema([pa.field("u", pa.int64()), pa.field("t", column.type)])
        )  # fmt: skip
        commit(checked(Path(base) / "out", format=form), 0, rows)
        java = spark._jvm.java.util.TimeZone
        if zones == ["all"]:
            zones = sorted(java.getAvailableIDs())
        count = 0
        for zone in zones:
            java.setDefault(java.getTimeZone(zone))
            spark.conf.set("spark.sql.session.timeZone", zone)
            frame = read_files(Path(base) / "out").to_spark(spark)
            seen, wrong, last = frame.selectExpr(
                "count(*)", "count_if(unix_micros(t) <> u)", "max(if(unix_micros(t) <> u, u, null))"
            ).first()
            count += seen == len(values)
            if wrong:
                sys.stdout.write(f"{zone}: {wrong} wrong, the last at {last}\n")
        sys.stdout.write(f"{form}: {count} zones\n")
        spark.stop()


def tried(form, *zones):
    path = os.pathsep.join(
        [str(Path(onceforall.__file__).parents[1]), str(Path(__file__).parents[2])]
    )
    ended = subprocess.run(
        [sys.executable, "-m", "sinks.files.test_zones", form, *zones],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=900,
    )
    return ended.stdout.splitlines()


@pytest.mark.spark
@pytest.mark.parametrize(
    "form",
    [
        pytest.param("orc", marks=pytest.mark.long),
        pytest.param("parquet", marks=pytest.mark.long),
        "json",
        pytest.param("csv", marks=pytest.mark.long),
    ],
)
@pytest.mark.long
def test_an_instant_is_read_as_it_was_written_in_whatever_zone_the_jvm_is(form):
    assert tried(form, *ZONES) == [f"{form}: {len(ZONES)} zones"]


@pytest.mark.spark
@pytest.mark.long
def test_so_it_is_in_every_zone_that_the_jvm_knows():
    (last,) = tried("orc", "all")
    assert int(last.split()[1]) > 500


@pytest.mark.parametrize("micros_before", [1, 6 * HOUR, 10 * 365 * 24 * HOUR])
def test_an_instant_before_1900_is_refused_in_orc_by_its_column(micros_before):
    kind = pa.timestamp("us", "UTC")
    inner = pa.StructArray.from_arrays([pa.array([FIRST - micros_before], kind)], ["t"])
    with pytest.raises(RefusedRecordError, match=r"'s\.t' holds 18.*before 1900.*parquet"):
        orc_values.check_values(pa.table({"s": inner}))


def test_days_before_1900_and_the_first_instant_of_it_are_kept():
    orc_values.check_values(
        pa.table(
            {
                "d": pa.array([date(1582, 10, 15)]),
                "t": pa.array([FIRST], pa.timestamp("us", "UTC")),
            }
        )
    )


if __name__ == "__main__":
    main()
