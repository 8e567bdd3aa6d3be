"""The Kinesis source in Spark: batches that are replayed, restarts, errors, progress."""

from __future__ import annotations

import ast
import json
import shutil

import pyspark
import pytest
from pyspark.errors import StreamingQueryException

import onceforall as ofa
from onceforall import sources

pytestmark = pytest.mark.spark


@pytest.fixture
def run(spark, tmp_path):
    """Run a query to the end of what there is: ``run(options, …)`` returns the rows of each batch,
    with the numbers of the batches, and the query."""
    sources.register(spark)

    def go(options, checkpoint="cp", trigger=None, schema=None):
        batches = {}

        def keep(frame, number):
            batches[number] = sorted(int(row.data) for row in frame.collect())

        reader = spark.readStream.format("kinesis").options(**options)
        frame = (reader if schema is None else reader.schema(schema)).load()
        query = (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(**(trigger or {"processingTime": "0 seconds"}))
            .start()
        )
        try:
            query.processAllAvailable() if trigger is None else query.awaitTermination()
        finally:
            query.stop()
        return batches, query

    return go


def read(offset):
    """An offset of a progress, which Spark's versions give in two ways."""
    if not isinstance(offset, str):
        return offset
    # Spark 4.1 shows it as Python does.
    return ast.literal_eval(offset) if offset.startswith("{'") else json.loads(offset)


def forget_commits(folder, after):
    """Leave a checkpoint as a crash does before batch `after` + 1 has ended."""
    for file in (folder / "commits").iterdir():
        if (
            file.name.strip(".").removesuffix(".crc").isdigit()
            and int(file.name.strip(".").removesuffix(".crc")) > after
        ):
            file.unlink()


def test_a_query_reads_all_in_limited_batches_and_replays_the_last_one(run, stream, tmp_path):
    source = stream(shards=2)
    source.put(10)
    source.split(1)
    source.put(10)
    options = source.options(maxRecordsPerTrigger="8")
    first, query = run(options)
    assert sorted(n for rows in first.values() for n in rows) == list(range(20))
    assert len(first) >= 3
    assert read(query.recentProgress[0]["sources"][0]["endOffset"])["millisBehindLatest"] > 0
    last = max(first)
    forget_commits(tmp_path / "cp", last - 1)
    source.put(5)
    again, _ = run(options)
    assert again[last] == first[last]
    assert sorted(n for number, rows in again.items() if number > last for n in rows) == [
        20,
        21,
        22,
        23,
        24,
    ]


@pytest.mark.long  # test_kinesis_reading.py has its limits
@pytest.mark.skipif(pyspark.__version__ < "4.2", reason="Spark asks for one end there")
def test_available_now_reads_all_in_limited_batches_and_ends(run, stream):
    source = stream(shards=2)
    source.put(10)
    source.split(1)
    source.put(10)
    batches, query = run(source.options(maxRecordsPerTrigger="8"), trigger={"availableNow": True})
    assert sorted(n for rows in batches.values() for n in rows) == list(range(20))
    assert len(batches) >= 3
    latest = read(query.lastProgress["sources"][0]["latestOffset"])
    assert latest["millisBehindLatest"] == {source.arn: 0}


@pytest.mark.long  # test_kinesis_reading.py does it without Spark
def test_the_first_batch_is_replayed_from_the_same_beginning(run, stream, tmp_path):
    source = stream(shards=2)
    options = source.options(startingPosition="LATEST")
    first, _ = run(options)
    assert all(rows == [] for rows in first.values())
    source.put(10)
    shutil.rmtree(tmp_path / "cp" / "commits")
    again, _ = run(options)
    assert sorted(n for rows in again.values() for n in rows) == list(range(10))


@pytest.mark.long
def test_an_error_of_the_source_is_one_of_ours_to_the_program(run, stream):
    source = stream()
    source.put(3)
    run(source.options())
    source.client.delete_stream(StreamName=source.name)
    source.server.create_stream(source.name)
    with pytest.raises(StreamingQueryException) as raised:
        run(source.options())
    error = ofa.error_of(raised.value)
    assert isinstance(error, ofa.errors.DataLossError)
    assert "was deleted, and another one has its name now" in str(error)
    assert source.server.secret_key not in str(raised.value)


@pytest.mark.long  # the page's programs write to one
def test_a_file_sink_has_each_record_once(spark, stream, tmp_path):
    sources.register(spark)
    source = stream(shards=2)
    source.put(20)
    for _ in range(2):
        frame = spark.readStream.format("kinesis").options(
            **source.options(maxRecordsPerTrigger="9")
        )
        query = (
            ofa.write_stream(frame.load())
            .to(ofa.FileSink(tmp_path / "out", format="json"), name="files")
            .option("checkpointLocation", str(tmp_path / "cp"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        query.processAllAvailable()
        query.stop()
        source.put(10)
    found = ofa.read_files(tmp_path / "out").to_arrow()["data"].to_pylist()
    assert len(found) == 30
    assert len(set(found)) == 30


COLUMNS = (
    "data BINARY, streamName STRING, partitionKey STRING, sequenceNumber STRING, "
    "subSequenceNumber BIGINT, approximateArrivalTimestamp TIMESTAMP, shardId STRING"
)


def test_another_schema_than_the_sources_is_refused(run, stream):
    """Where names and their number fit, pyspark 4.0 and 4.1 would read values as other columns'."""
    source = stream()
    source.put(2)
    turned = COLUMNS.replace("streamName", "x").replace("shardId", "streamName")
    with pytest.raises(StreamingQueryException, match="was given the schema data BINARY, shardId"):
        run(source.options(), schema=turned.replace("x", "shardId"))
    batches, _ = run(source.options(), schema=COLUMNS)
    assert batches == {0: [0, 1]}


def test_times_are_instants_also_where_a_timestamp_is_none(run, stream, spark):
    source = stream()
    source.put(2)
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        batches, _ = run(source.options())
    finally:
        spark.conf.unset("spark.sql.timestampType")
    assert batches == {0: [0, 1]}
