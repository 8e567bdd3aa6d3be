"""Columns that readers can't take together with those of the files that are there: told at
start."""

import pyarrow as pa
import pytest
from pyspark.sql.types import _parse_datatype_string

from sinks.files.building import checked, commit

UTC = pa.timestamp("us", "UTC")
BEFORE = {
    "n": pa.array([1], pa.int64()),
    "f": pa.array([1.0], pa.float32()),
    "at": pa.array([0], UTC),
    "local": pa.array([0], pa.timestamp("us")),
    "text": pa.array(["a"]),
    "s": pa.array([{"x": 1}], pa.struct([("x", pa.int32())])),
    "l": pa.array([[1]], pa.list_(pa.int32())),
}
SAME = (
    "n bigint, f float, at timestamp, local timestamp_ntz, text string, s struct<x:int>, l "
    "array<int>"
)


def told(folder, caplog, columns):
    sink = checked(folder)
    with caplog.at_level("WARNING", "onceforall"):
        for _ in range(2):
            sink.columns(_parse_datatype_string(columns))
    return [record.getMessage() for record in caplog.records]


@pytest.fixture
def folder(tmp_path):
    commit(checked(tmp_path), 0, pa.RecordBatch.from_pydict(BEFORE))
    return tmp_path


@pytest.mark.spark
@pytest.mark.parametrize(
    "columns",
    [
        SAME,
        "n int",
        "n bigint, more string",
        "f double",
        "s struct<x:bigint,y:string>",
        "l array<bigint>",
        "other map<int,int>",
    ],
)
def test_what_readers_join_is_passed_in_silence(spark, folder, caplog, columns):
    assert told(folder, caplog, columns) == []


@pytest.mark.spark
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("N bigint", "the column 'n' is 'N' now"),
        ("n double", "the column 'n' was BIGINT, and is DOUBLE now"),
        ("n string", "was BIGINT, and is"),
        ("local timestamp", "was TIMESTAMP_NTZ, and is TIMESTAMP now"),
        ("at timestamp_ntz", "was TIMESTAMP, and is TIMESTAMP_NTZ now"),
        ("s struct<x:string>", "the column 's' was STRUCT<X:INT>"),
        ("l array<string>", "the column 'l' was"),
    ],
)
def test_what_they_cannot_join_is_told_once(spark, folder, caplog, columns, words):
    (text,) = told(folder, caplog, columns)
    assert words in text
    assert str(folder) in text


@pytest.mark.spark
def test_a_folder_without_files_and_one_with_a_damaged_manifest_stop_nobody(
    spark, folder, tmp_path_factory, caplog
):
    assert told(tmp_path_factory.mktemp("empty"), caplog, SAME) == []
    (manifest,) = (folder / "_onceforall" / "manifests").rglob("0.json")
    manifest.write_text("{}")
    (text,) = told(folder, caplog, SAME)
    assert "can't be compared" in text
