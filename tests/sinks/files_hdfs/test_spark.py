"""A query that writes to HDFS with a session's settings, and is read by Spark."""

from __future__ import annotations

import pytest

import onceforall as ofa

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]


@pytest.mark.long  # the one on S3 does so; test_sink.py writes without Spark
def test_a_query_writes_to_hdfs_and_spark_reads_what_is_committed(place, spark, tmp_path):
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "one.json").write_text('{"n": 0, "day": "a"}\n{"n": 1, "day": "ü/*"}')

    def run():
        rows = spark.readStream.schema("n BIGINT, day STRING").json(str(tmp_path / "input"))
        query = (
            ofa.write_stream(rows)
            .to(ofa.FileSink(place.url, partition_by=["day"]))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert query.exception() is None, query.exception()

    run()
    (tmp_path / "input" / "two.json").write_text('{"n": 2, "day": "b"}')
    run()
    files = place.files()
    assert sorted([row.n, row.day] for row in files.to_spark(spark).collect()) == [
        [0, "a"],
        [1, "ü/*"],
        [2, "b"],
    ]
    assert place.numbers() == [0, 1, 2]
    assert len(files.batches) == 2
    assert place.left() == []
