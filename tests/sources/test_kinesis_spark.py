"""The Kinesis source in Spark: batches that are replayed, restarts, errors, progress."""

from __future__ import annotations

import json
import shutil

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

    def go(options, checkpoint="cp"):
        batches = {}

        def keep(frame, number):
            batches[number] = sorted(int(row.data) for row in frame.collect())

        frame = spark.readStream.format("kinesis").options(**options).load()
        query = (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return batches, query

    return go


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
    progress = query.recentProgress[0]["sources"][0]
    assert (
        json.loads(progress["endOffset"])["millisBehindLatest"] > 0
        if isinstance(progress["endOffset"], str)
        else progress["endOffset"]["millisBehindLatest"] > 0
    )
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


def test_the_first_batch_is_replayed_from_the_same_beginning(run, stream, tmp_path):
    source = stream(shards=2)
    options = source.options(startingPosition="LATEST")
    first, _ = run(options)
    assert all(rows == [] for rows in first.values())
    source.put(10)
    shutil.rmtree(tmp_path / "cp" / "commits")
    again, _ = run(options)
    assert sorted(n for rows in again.values() for n in rows) == list(range(10))


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
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        source.put(10)
    found = ofa.read_files(tmp_path / "out").to_arrow()["data"].to_pylist()
    assert len(found) == 30
    assert len(set(found)) == 30
