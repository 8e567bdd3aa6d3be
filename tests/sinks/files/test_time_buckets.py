"""What a template of a time bucket may say, and which folders it makes of it."""

from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from onceforall import read_files
from onceforall.errors import OptionError, SchemaError
from onceforall.sinks.files.driver.columns import check_columns
from onceforall.sinks.files.time_buckets import time_bucket
from sinks.files.building import checked, commit, numbers


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("{t:dt=%Y-%m-%d}", "dt={t:%Y-%m-%d}"),
        ("{t:%Y/%m}", "{t:%Y}/{t:%m}"),
        ("{t:a=%Y/b=x%m}/%Y", "a={t:%Y}/b={t:x%m}/%Y"),
        ("{t:dt=x/%H}", "dt=x/{t:%H}"),
        ("{z:a=%Y/%m}", "a={z:%Y}/{z:%m}"),
        # Each of these is refused, by the same words.
        ("{t:n=%Y}", "n={t:%Y}"),
        ("{t:N=%Y}", "N={t:%Y}"),
        ("{t:k=%Y/k=%m}", "k={t:%Y}/k={t:%m}"),
        ("{t:_k=%Y}", "_k={t:%Y}"),
        ("{t:.k=%Y}", ".k={t:%Y}"),
        ("{t:=%Y}", "={t:%Y}"),
        ("{t:%Y=%m}", "{t:%Y}={t:%m}"),
        ("{t:%Y/}", "{t:%Y}/"),
        ("{t:/%Y}", "/{t:%Y}"),
        ("{t:%Y//%m}", "{t:%Y}//{t:%m}"),
        ("{t:_onceforall/%m}", "_onceforall/{t:%m}"),
        ("{t:a/../%m}", "a/../{t:%m}"),
    ],
)
def test_what_parts_folders_and_columns_does_so_inside_a_format_too(tmp_path, inside, outside):
    moment = datetime(2026, 11, 21, 23, tzinfo=timezone.utc)
    rows = numbers(
        1,
        t=pa.array([moment], pa.timestamp("us", "UTC")),
        z=pa.nulls(1, pa.timestamp("us")),
    )
    types = T.StructType(
        [
            T.StructField(name, T.LongType() if name == "n" else T.TimestampType())
            for name in rows.schema.names
        ]
    )

    def outcome(template):
        folder = tmp_path / template.replace("/", "|")
        folder.mkdir()
        try:
            check_columns(types, "parquet", [], time_bucket(template, None))
        except (OptionError, SchemaError) as error:
            return str(error).replace(template, "…")
        commit(checked(folder, time_bucket=template), 0, rows)
        return sorted(
            str(Path(path).parent.relative_to(folder)) for path in read_files(folder).paths
        )

    assert outcome(inside) == outcome(outside)


@pytest.mark.parametrize(
    ("moment", "folder"),
    [
        (datetime(999, 5, 6), "0999-05-06%Y-0999"),  # noqa: DTZ001  of no zone
        (datetime(1, 1, 1), "0001-01-01%Y-0001"),  # noqa: DTZ001
        (datetime(1000, 1, 1), "1000-01-01%Y-1000"),  # noqa: DTZ001
        (datetime(1000, 12, 31), "1000-12-31%Y-1001"),  # noqa: DTZ001
        (datetime(9999, 12, 31), "9999-12-31%Y-9999"),  # noqa: DTZ001
    ],
)
def test_a_year_has_four_digits_as_spark_writes_it(tmp_path, moment, folder):
    rows = numbers(1, t=pa.array([moment], pa.timestamp("us")))
    commit(checked(tmp_path, time_bucket="{t:%Y-%m-%d%%Y-%G}"), 0, rows)
    (path,) = read_files(tmp_path).paths
    assert Path(path).parent.name.replace("%25", "%") == folder
