"""The file sink under real Spark: whole queries, Spark's own readers, and Spark's own log of its
file sink."""

import json
import os
import re
import signal
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest

import onceforall as ofa
from onceforall.errors import OptionError, SchemaError, SinkCheckError
from onceforall.failpoints import points as failpoints
from onceforall.sink import StartInfo
from onceforall.sinks.files import FileSink, read_files
from sinks.files.building import checked, commit, left_in_staging, numbers, permit, prepared

pytestmark = pytest.mark.spark

WORKER = str(Path(__file__).parent / "worker.py")


@pytest.fixture(scope="module")
def spark(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def in_zone(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda zone: spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.session.timeZone", before)


ALL_TYPES = """
    SELECT value AS n, CAST(value AS STRING) AS text, DATE'2026-11-21' AS day, CAST(value AS DECIMAL(20, 3)) AS money, CAST(value AS DOUBLE) AS number,
        TIMESTAMP'2026-11-21 10:20:30.123456' AS moment, value % 2 = 0 AS flag,
        IF(value = 1, NULL, CONCAT('a/', value % 3)) AS part {more}
    FROM rows
"""
LOCAL = ", TIMESTAMP_NTZ'2026-11-21 10:20:30.123456' AS local"
NESTED = (
    ", CAST('x' AS BINARY) AS blob, ARRAY(value, NULL) AS list, MAP('k', value) AS map, "
    "NAMED_STRUCT('x', value, 'd', DATE'2026-01-01') AS struct"
)


@pytest.mark.parametrize(
    "form",
    ["parquet", *(pytest.param(form, marks=pytest.mark.long) for form in ("orc", "json", "csv"))],
)
def test_a_query_writes_what_spark_reads_back(spark, tmp_path, form):
    source = tmp_path / "in"
    spark.range(6).withColumnRenamed("id", "value").coalesce(1).write.json(str(source))
    spark.readStream.schema("value BIGINT").json(str(source)).createOrReplaceTempView("rows")
    columns = {"csv": LOCAL, "orc": NESTED}.get(form, LOCAL + NESTED)
    events = spark.sql(ALL_TYPES.format(more=columns))
    sink = ofa.FileSink(
        tmp_path / "out", format=form, partition_by=["part"], time_bucket="{moment:%Y-%m-%d--%H}"
    )
    query = (
        ofa.write_stream(events)
        .to(sink)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None
    files = ofa.read_files(tmp_path / "out")
    assert files.rows == 6
    assert all("/2026-11-21--10/" in path for path in files.paths)
    spark.read.schema("value BIGINT").json(str(source)).createOrReplaceTempView("rows")
    wanted = sorted(spark.sql(ALL_TYPES.format(more=columns)).collect())
    assert sorted(files.to_spark(spark).select(*events.columns).collect()) == wanted
    assert len(wanted) == 6
    assert sorted(row["n"] for row in files.to_arrow().to_pylist()) == list(range(6))
    assert left_in_staging(tmp_path / "out") == []
    if form in {"parquet", "orc"}:
        plain = spark.read.format(form).load(str(tmp_path / "out"))
        assert sorted(plain.select(*events.columns).collect()) == wanted


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("1 a, NULL b", {}, "'b' is VOID"),
        ("1 a, INTERVAL '1' DAY b", {}, "'b' is INTERVAL"),
        ("1 a, PARSE_JSON('1') b", {}, "'b' is VARIANT"),
        ("1 a, ARRAY(INTERVAL '1' MONTH) b", {}, "'b.element' is INTERVAL"),
        ("1 a, ARRAY(1) b", {"format": "csv"}, "'b' is ARRAY<INT>, which CSV"),
        (
            "1 a, ARRAY(TIMESTAMP_NTZ'2026-01-01') b",
            {"format": "orc"},
            "'b.element' is TIMESTAMP_NTZ",
        ),
        ("1 a, X'00' b", {"format": "csv"}, "'b' is BINARY, which CSV"),
        ("NULLIF(1, 2) a", {"format": "csv"}, "one column 'a'"),
        ("1 a, 2 b", {"partition_by": ["c"]}, "'c'"),
        ("1 a, 2 b", {"partition_by": ["a", "b"]}, "All columns"),
        ("1 a, NOW() b", {"partition_by": ["b"]}, "time_bucket"),
        ("1 a, 1.5D b", {"partition_by": ["b"]}, "can't be part of a path"),
        ("1 a, 2 b", {"time_bucket": "{t:%Y}"}, "'t'"),
        ("1 a, 2 b", {"time_bucket": "{a:%Y}"}, "must be a TIMESTAMP"),
        ("1 a, NOW() b", {"time_bucket": "a={b:%Y}"}, "two columns"),
        ("1 a, 2 A", {}, "two columns"),
        ("1 a, NAMED_STRUCT('x', 1, 'X', 2) b", {}, "'b' has two fields 'x' and 'X'"),
        ("1 a, NAMED_STRUCT('s', 1, '\u017f', 2) b", {}, "'b' has two fields 's' and '\u017f'"),
        (
            "1 a, NAMED_STRUCT('\u0130', 1, '\u0131', 2) b",
            {},
            "'b' has two fields '\u0130' and '\u0131'",
        ),
        (
            "1 a, ARRAY(NAMED_STRUCT('x', 1, 'X', 2)) b",
            {"format": "json"},
            "'b.element' has two fields",
        ),
        (
            "1 a, MAP(1, 'x') b",
            {"format": "json"},
            "'b' is MAP<INT,STRING>, and Spark reads no JSON map",
        ),
        (
            "1 a, NAMED_STRUCT('m', MAP(DATE'2026-01-01', 'x')) b",
            {"format": "json"},
            "'b.m' is MAP<DATE,STRING>",
        ),
    ],
)
def test_columns_that_cannot_be_stored_are_refused_by_name(
    spark, tmp_path, columns, options, words
):
    with pytest.raises(SchemaError, match=words):
        FileSink(tmp_path, **options).columns(spark.sql(f"SELECT {columns}").schema)


def plain_query(spark, tmp_path, batches, per_batch=3):
    """Spark's own file sink writes so many batches; returns how many rows that were."""
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", per_batch)
        .option("numPartitions", 1)
        .load()
    )
    query = (
        rows.selectExpr("value AS n", "CAST(value % 2 AS INT) AS p")
        .writeStream.format("parquet")
        .partitionBy("p")
        .option("checkpointLocation", str(tmp_path / "plain"))
        .trigger(processingTime="0 seconds")
        .start(str(tmp_path / "out"))
    )
    while (query.lastProgress or {"batchId": -1})["batchId"] < batches - 1 and query.isActive:
        query.awaitTermination(0.05)
    query.stop()
    return spark.read.parquet(str(tmp_path / "out")).count()


def in_sparks_eyes(spark, folder):
    return sorted(row["n"] for row in spark.read.parquet(str(folder)).collect())


@pytest.mark.parametrize(
    "two", ["s\u017f", "k\u212a", "i\u0130", "I\u0131", "\u03c3\u03c2", "\u00b5\u03bc"]
)
def test_two_columns_that_spark_takes_for_one_are_refused(spark, tmp_path, two):
    kinds = spark.createDataFrame([], "a BIGINT, b BIGINT").toDF(*two).schema
    with pytest.raises(SchemaError, match="two columns"):
        FileSink(tmp_path).columns(kinds)


@pytest.mark.parametrize("zone", ["GMT+8", "UTC+01:00", "Z", "PST", "IST", "SystemV/PST8PDT"])
def test_a_time_bucket_in_a_zone_that_only_java_knows_is_refused_at_start(
    spark, tmp_path, in_zone, zone
):
    in_zone(zone)
    schema = "n BIGINT, t TIMESTAMP, l TIMESTAMP_NTZ, d DATE"
    kinds = spark.createDataFrame([], schema).schema
    with pytest.raises(OptionError, match=f"{re.escape(zone)}.*time_bucket_zone="):
        FileSink(tmp_path, time_bucket="{t:%Y}").columns(kinds)
    FileSink(tmp_path, time_bucket="{t:%Y}", time_bucket_zone="Asia/Tokyo").columns(kinds)
    FileSink(tmp_path, time_bucket="{l:%Y}{d:%d}").columns(kinds)


@pytest.mark.long
def test_a_time_bucket_is_what_sparks_date_format_says(spark, tmp_path, in_zone):
    years = (1890, 1950, 2026, 2037, 2038, 2060, 2087, 2088, 2400)
    instants = [
        datetime(year, month, 15, 22, 30, tzinfo=timezone.utc)
        for year in years
        for month in range(1, 13)
    ]
    for zone in ("America/New_York", "Australia/Sydney", "Africa/Casablanca", "+05:45"):
        in_zone(zone)
        rows = numbers(len(instants), t=pa.array(instants, pa.timestamp("us", zone)))
        folder = tmp_path / zone.replace("/", "-")
        commit(checked(folder, time_bucket="at={t:%Y-%m-%d %H}"), 0, rows)
        frame = read_files(folder).to_spark(spark)
        wrong = frame.where("at != date_format(t, 'yyyy-MM-dd HH')").select("t", "at").collect()
        assert (frame.count(), wrong) == (len(instants), []), zone


def test_a_folder_of_sparks_own_sink_is_continued_so_that_spark_sees_all(spark, tmp_path):
    folder = tmp_path / "out"
    rows = plain_query(spark, tmp_path, 4)
    assert rows >= 12
    before = in_sparks_eyes(spark, folder)
    with pytest.raises(SinkCheckError, match="silently"):
        FileSink(folder).check(StartInfo("", "out", spark))
    sink = FileSink(folder, partition_by=["p"], spark_metadata="continue")
    sink.check(StartInfo("", "out", spark))
    mine = []
    for batch in range(23):
        values = [1_000_000 + 2 * batch, 1_000_001 + 2 * batch]
        decided = commit(sink, batch, numbers(2, values[0], p=[0, 1]))
        if batch % 5 == 0:
            assert sink.commit(permit(batch), decided).completed
        mine += values
        if batch in {0, 4, 7, 17}:
            assert in_sparks_eyes(spark, folder) == sorted(before + mine)
    assert in_sparks_eyes(spark, folder) == sorted(before + mine)
    assert ofa.read_files(folder).rows == len(mine)
    compact = [path.name for path in (folder / "_spark_metadata").glob("*.compact")]
    assert len(compact) >= 2


def test_an_entry_of_ours_looks_like_one_of_sparks(spark, tmp_path):
    folder = tmp_path / "out"
    plain_query(spark, tmp_path, 1)
    (theirs,) = [path for path in (folder / "_spark_metadata").iterdir() if path.name == "0"]
    following = (
        max(
            int(path.name)
            for path in (folder / "_spark_metadata").iterdir()
            if path.name.isdecimal()
        )
        + 1
    )
    sink = checked(folder, partition_by=["p"], spark_metadata="continue")
    commit(sink, 0, numbers(1, p=[5]))
    version, line = theirs.read_text().splitlines()[:2]
    ours = (folder / "_spark_metadata" / str(following)).read_text()
    assert ours.splitlines()[0] == version == "v1"
    their_entry, our_entry = json.loads(line), json.loads(ours.splitlines()[1])
    assert list(our_entry) == list(their_entry)
    same = ("isDir", "blockReplication", "blockSize", "action")
    assert [our_entry[key] for key in same] == [their_entry[key] for key in same]
    assert our_entry["path"].split("/part-")[0].replace("p=5", "p=0") == their_entry["path"].split(
        "/part-"
    )[0].replace("p=1", "p=0")


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("file.manifest.after", marks=pytest.mark.long),
        "file.spark_metadata.before",
        pytest.param("file.spark_metadata.after", marks=pytest.mark.long),
    ],
)
def test_sparks_log_is_right_after_a_kill_between_its_steps(spark, tmp_path, point):
    folder = tmp_path / "out"
    (folder / "_spark_metadata").mkdir(parents=True)
    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "10")
    sink = checked(folder, partition_by=["p"], spark_metadata="continue")
    for batch in range(9):
        commit(sink, batch, numbers(2, 2 * batch, p=["a", "b"]))
    kept = sink.confirm(
        [
            prepared(sink, numbers(2, 18, p=["a", "b"]), 9),
            prepared(sink, numbers(2, 20, p=["a", "b"]), 9, partition=1),
        ]
    )
    Path(f"{folder}.json").write_text(json.dumps(kept))
    environment = {**os.environ, failpoints.VARIABLE: f"{point}=kill"}
    command = [
        sys.executable,
        WORKER,
        str(folder),
        "commit",
        json.dumps({"spark_metadata": "continue"}),
    ]
    assert (
        subprocess.run(command, env=environment, timeout=120, check=False).returncode
        == -signal.SIGKILL
    )
    assert sink.commit(permit(9), kept).completed
    commit(sink, 10, numbers(2, 22, p=["a", "b"]))
    names = sorted(path.name for path in (folder / "_spark_metadata").iterdir())
    assert names == sorted([*map(str, range(9)), "9.compact", "10"])
    assert in_sparks_eyes(spark, folder) == list(range(24))


@pytest.mark.parametrize("where", ["entry", "compact", "compact, within"])
def test_a_log_of_sparks_that_is_cut_off_is_refused_at_start(tmp_path, where):
    folder = tmp_path / "out"
    (folder / "_spark_metadata").mkdir(parents=True)
    sink = checked(folder, spark_metadata="continue")
    for batch in range(11 if where == "entry" else 10):
        commit(sink, batch, numbers(1, batch))
    last = folder / "_spark_metadata" / ("10" if where == "entry" else "9.compact")
    whole = last.read_bytes()
    cut = whole[:-10] if where != "compact, within" else whole.replace(b',"size"', b"", 1)
    last.write_bytes(cut)
    with pytest.raises(SinkCheckError, match=f"_spark_metadata/{last.name} is damaged"):
        checked(folder, spark_metadata="continue")
    if where == "entry":
        committables = [prepared(sink, numbers(1, 11), 11)]
        with pytest.raises(SinkCheckError, match="it ends within a line"):
            sink.confirm(committables)
    last.write_bytes(whole)
    checked(folder, spark_metadata="continue")


def test_a_damaged_log_of_sparks_is_refused_at_start(spark, tmp_path):
    folder = tmp_path / "out"
    (folder / "_spark_metadata").mkdir(parents=True)
    sink = checked(folder, spark_metadata="continue")
    for batch in range(3):
        commit(sink, batch, numbers(1, batch))
    assert in_sparks_eyes(spark, folder) == [0, 1, 2]
    (folder / "_spark_metadata" / "1").unlink()
    with pytest.raises(SinkCheckError, match="no 1"):
        FileSink(folder, spark_metadata="continue").check(StartInfo("", "out", spark))
