"""Rows come back from all three sinks as the same records, and what is left there is found."""

from __future__ import annotations

import datetime as dt
import json

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceforall.demo import onlooker
from onceforall.demo.outputs import Output, Record, as_record, data_files, kafka_record, stray_files
from onceforall.protocol.history import CommitPermit
from onceforall.sink import StartInfo, TaskAttempt
from onceforall.sinks.files import FileSink

HOUR = dt.datetime(2013, 1, 1, 10, tzinfo=dt.timezone.utc)
ROW = {"origin": "EWR", "day": "2013-01-01", "hour": "2013-01-01T10:00", "flights": 2}
FIELDS = {
    "origin": "EWR",
    "day": dt.date(2013, 1, 1),
    "hour": HOUR,
    "flights": 2,
    "minutes_late": None,
    "batch": 3,
}
QUERY = "6f1c2d3e-0000-4000-8000-000000000001"


@pytest.fixture
def output(tmp_path):
    """Make an output in a folder: ``output(has_manifests, database="")``."""
    return lambda has_manifests, database="": Output(
        "", "", tmp_path / "files", has_manifests, database, "windows"
    )


def table_of(*rows):
    return pa.Table.from_pylist(
        list(rows),
        schema=pa.schema({"origin": pa.string(), "day": pa.date32(), "batch": pa.int64()}),
    )


def commit(folder, batch, rows):
    """Commit one task's rows as a batch."""
    sink = FileSink(folder, partition_by=["day"])
    sink.check(StartInfo(QUERY, "files"))
    transaction = sink.begin_transaction(TaskAttempt(QUERY, "files", 0, batch, 0, 0, batch))
    for each in rows.to_batches():
        sink.invoke(transaction, each)
    report = sink.commit(CommitPermit(0, 1, batch), sink.confirm([sink.pre_commit(transaction)]))
    assert len(report.completed) == 1


def test_the_same_row_gives_the_same_record_from_typed_columns_and_from_json():
    assert (
        as_record(FIELDS)
        == kafka_record(json.dumps({**ROW, "batch": 3}).encode())
        == Record(3, ROW)
    )


@pytest.mark.parametrize(
    "moment", [HOUR.replace(second=1), HOUR.replace(tzinfo=None), HOUR + dt.timedelta(hours=1)]
)
def test_another_moment_and_one_without_a_zone_are_other_records(moment):
    assert as_record({**FIELDS, "hour": moment}) != Record(3, ROW)


@pytest.mark.parametrize("value", [b"", b"{torn", b'"text"', b"[1]", b"{}"])
def test_a_value_that_is_no_row_bears_no_batch(value):
    assert kafka_record(value).batch is None


def test_files_are_read_by_manifest_and_any_other_one_is_a_stray(output):
    ours = output(has_manifests=True)
    assert (list(ours.records("files")), stray_files(ours), data_files(ours)) == ([], [], [])
    first = {"origin": "EWR", "day": dt.date(2013, 1, 1), "batch": 0}
    commit(ours.folder, 0, table_of(first, {**first, "day": dt.date(2013, 1, 2)}))
    commit(ours.folder, 1, table_of({**first, "batch": 1}))
    days = sorted((record.batch, record.row["day"]) for record in ours.records("files"))
    assert days == [(0, "2013-01-01"), (0, "2013-01-02"), (1, "2013-01-01")]
    assert stray_files(ours) == []
    strays = [
        ours.folder / "day=2013-01-01" / "part-x.parquet",
        ours.folder / "_onceforall" / "staging" / "x" / "part-y",
    ]
    strays.append(ours.folder / "_onceforall" / "manifests" / ".0.json.12.tmp")
    for stray in strays:
        stray.parent.mkdir(exist_ok=True)
        stray.write_bytes(b"")
    assert sorted(stray_files(ours)) == sorted(strays)
    with onlooker.looks_at({"windows": ours}) as looks:
        assert looks["files", "windows"]() == {0: 2, 1: 1}


def test_files_of_spark_are_all_that_do_not_hide(output):
    theirs = output(has_manifests=False)
    assert (list(theirs.records("files")), stray_files(theirs)) == ([], [])
    for name in ("day=2013-01-01/part-1.parquet", "_temporary/0/day=2013-01-02/part-2.parquet"):
        path = theirs.folder / name
        path.parent.mkdir(parents=True)
        pq.write_table(table_of({"origin": "EWR", "batch": 5}).drop_columns("day"), path)
    assert list(theirs.records("files")) == [Record(5, {"origin": "EWR", "day": "2013-01-01"})]
    assert [path.name for path in stray_files(theirs)] == ["part-2.parquet"]
    with onlooker.looks_at({"windows": theirs}) as looks:
        assert looks["files", "windows"]() == {5: 1}


@pytest.mark.postgres
def test_a_table_is_read_whole_and_the_onlooker_counts_its_newest_batches(output, database):
    ours = output(has_manifests=True, database=database)
    assert list(ours.records("postgres")) == []
    with (
        onlooker.looks_at({"windows": ours}) as looks,
        psycopg.connect(database, autocommit=True) as connection,
    ):
        look = looks["postgres", "windows"]
        assert look() == {}
        connection.execute(
            "CREATE TABLE windows (origin text, day date, hour timestamptz, flights int, "
            "minutes_late int, batch bigint)"
        )
        insert = (
            "INSERT INTO windows VALUES ('EWR', '2013-01-01', '2013-01-01T10:00Z', 2, NULL, %s)"
        )
        for batch in (3, 3, 4):
            connection.execute(insert, [batch])
        assert look() == {3: 2, 4: 1}
        connection.execute(insert, [4])
        assert look() == {4: 2}
    assert (
        sorted(ours.records("postgres"), key=lambda record: record.batch)
        == [Record(3, ROW)] * 2 + [Record(4, ROW)] * 2
    )
