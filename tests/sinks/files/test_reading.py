"""A folder whose files lie in folders of different kinds: every reader has all rows, and a start says what plain readers make of it."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import onceforall as ofa
from onceforall.errors import ForeignEntryError
from onceforall.sink import StartInfo
from onceforall.sinks.files import FileSink
from sinks.files.building import QUERY, checked, commit, numbers

HOUR, YEAR = "hour={t:%H}", "{t:%Y}"
YEAR_AND_HOUR = f"{YEAR}/{HOUR}"


def row(number, year=2026):
    at = (year - 1970) * 31_557_600 * 10**6 + number * 3_600 * 10**6
    columns = {"n": pa.array([number], pa.int64()), "p": pa.array([f"p{number}"])}
    return pa.RecordBatch.from_pydict({**columns, "t": pa.array([at], pa.timestamp("us", "UTC"))})


P = {"partition_by": ["p"]}
SHAPES = {
    "p, none": [P, {}],
    "none, p": [{}, P],
    "p, another": [P, {"partition_by": ["hour"], "rename": "hour"}],
    "none, hour": [{}, {"time_bucket": HOUR}],
    "p, year": [P, {"time_bucket": YEAR}],
    "none, year": [{}, {"time_bucket": YEAR}],
    "p, p and hour": [P, {**P, "time_bucket": HOUR}],
    "p and hour, hour": [{**P, "time_bucket": HOUR}, {"time_bucket": HOUR}],
    "year and hour": [{"time_bucket": YEAR_AND_HOUR}, {"time_bucket": YEAR_AND_HOUR}],
    "p, year and hour": [{**P, "time_bucket": YEAR_AND_HOUR}, {"time_bucket": YEAR_AND_HOUR}],
}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("shape", "form"),
    [
        *((shape, "parquet") for shape in SHAPES),
        *((shape, form) for form in ("json", "csv", "orc") for shape in ("none, p", "p, p and hour")),
        ("none, hour", "csv"),
    ],
)
def test_spark_has_every_row_whatever_folders_the_files_lie_in(spark, tmp_path, shape, form):
    for i, given in enumerate(SHAPES[shape]):
        options = {"format": form, **given}
        rows = row(i, 2020 + i)
        if renamed := options.pop("rename", None):
            rows = rows.rename_columns(["n", renamed, "t"])
        commit(checked(tmp_path, **options), i, rows)
    files = ofa.read_files(tmp_path)
    frame = files.to_spark(spark)
    assert frame.columns == files.schema.names
    found, wanted = frame.toArrow(), files.to_arrow()
    assert files.rows == found.num_rows == wanted.num_rows == 2
    assert [line["n"] for line in found.sort_by("n").to_pylist()] == [0, 1]
    for line in (*found.to_pylist(), *wanted.to_pylist()):
        line.setdefault("p", None)
    assert sorted(map(repr, map(_known, found.to_pylist()))) == sorted(map(repr, map(_known, wanted.to_pylist())))


def _known(line):
    return sorted((name, value.timestamp() if name == "t" else value) for name, value in line.items())


@pytest.mark.spark
def test_a_csv_column_that_came_later_and_stands_in_the_middle_is_null_before(spark, tmp_path):
    for header in (True, False):
        folder = tmp_path / str(header)
        sink = checked(folder, format="csv", options={"header": header})
        commit(sink, 0, pa.RecordBatch.from_pydict({"a": [1], "c": ["x"]}))
        commit(sink, 1, pa.RecordBatch.from_pydict({"c": ["y"], "b": [2.5], "a": [3]}))
        files = ofa.read_files(folder)
        assert sorted((r.a, r.b or 0, r.c) for r in files.to_spark(spark).collect()) == [(1, 0, "x"), (3, 2.5, "y")]


def told(folder, caplog, sink="out", **options):
    made = FileSink(folder, **options)
    made.check(StartInfo(QUERY, sink))
    caplog.clear()
    with caplog.at_level("WARNING", "onceforall"):
        made.columns(from_arrow_schema(row(0).schema))
    return [record.getMessage() for record in caplog.records]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (P, {}, ["p=…", "no folders"]),
        ({}, P, ["p=…", "no folders"]),
        ({}, {"time_bucket": YEAR}, ["no folders", "…"]),
        ({"time_bucket": HOUR}, {"time_bucket": YEAR_AND_HOUR}, ["hour=…", "…/hour=…"]),
        (P, {**P, "time_bucket": HOUR}, ["p=…/hour=…"]),
    ],
)
def test_a_start_says_that_folders_of_another_kind_are_there(spark, tmp_path, caplog, before, now, words):
    commit(checked(tmp_path, **before), 0, row(0))
    (text,) = told(tmp_path, caplog, **now)
    assert all(word in text for word in [*words, str(tmp_path), "read_files"])
    assert told(tmp_path, caplog, **before) == []


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_csv_rows_of_any_length_are_read(tmp_path, compression):
    sink = checked(tmp_path, format="csv", compression=compression)
    texts = ["a", "x" * (3 << 20), "line\n" * (4 << 20), 'b"', "é" * (20 << 20)]
    for i, text in enumerate(texts):
        commit(sink, i, numbers(3, 3 * i, c=["before", text, "behind"]))
    found = ofa.read_files(tmp_path).to_arrow().sort_by("n")
    assert [text for text in found.column("c").to_pylist() if text not in {"before", "behind"}] == texts
    assert found.num_rows == 15
    some = ofa.read_files(tmp_path, to_batch=1)
    assert some.dataset().to_table().num_rows == 6


@pytest.mark.spark
@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
@pytest.mark.parametrize("place", ["file", "folder"])
def test_no_reader_follows_a_link_out_of_the_folder(spark, tmp_path, form, place):
    root = tmp_path / "sink"
    commit(checked(root, format=form, partition_by=["p"]), 0, numbers(2, p=["a", "b"], c=["x", "y"]))
    files = ofa.read_files(root)
    data = Path(files.paths[0])
    replaced = data if place == "file" else data.parent
    replaced.rename(tmp_path / "elsewhere")
    replaced.symlink_to(tmp_path / "elsewhere")
    for given in (files, ofa.read_files(root), ofa.read_files(root, from_batch=0)):
        for read in (given.to_arrow, given.dataset, lambda given=given: given.to_spark(spark)):
            with pytest.raises((ForeignEntryError, OSError), match=rf"{replaced}.*symbolic link|symbolic link.*{replaced}"):
                read()
    if place == "file":
        assert len(ofa.read_files(root, skip_deleted=True)) == 2
        data.unlink()
        data.symlink_to(tmp_path / "nowhere")
        assert len(ofa.read_files(root, skip_deleted=True)) == 2, "a broken link was taken for a file that is gone"
