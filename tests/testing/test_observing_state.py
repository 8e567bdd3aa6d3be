"""The state store of a real stateful query, read by the observer and judged by the checker."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.sql import functions as F

from onceforall.testing.checker import (
    Rows,
    check_quiet,
    check_state,
    findings,
    last_counts,
    running_counts,
)
from onceforall.testing.observers import read_state

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROWS, BUCKETS = 20, 7


def test_state_store_output_and_input_agree_and_a_batch_that_is_missing_is_found(spark, tmp_path):
    written = []

    def collect(batch, batch_id):
        written.extend((row["bucket"], row["n"], row["last"], batch_id) for row in batch.collect())

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    counted = rows.groupBy((F.col("value") % BUCKETS).alias("bucket")).agg(
        F.count("*").alias("n"), F.max("value").alias("last")
    )
    query = (
        counted.writeStream.outputMode("update")
        .option("checkpointLocation", str(tmp_path))
        .foreachBatch(collect)
    )
    for _ in range(2):
        query.trigger(once=True).start().awaitTermination(120)
    state = read_state(spark, tmp_path)
    output = {str(bucket): (n, last) for bucket, n, last, _ in written}
    assert check_state(state, last_counts(ROWS, 2, BUCKETS), output) == ()
    assert [
        each.kind
        for each in check_state(
            read_state(spark, tmp_path, batch=0), last_counts(ROWS, 2, BUCKETS), output
        )
    ] == [
        findings.STATE,
        findings.STATE,
    ]
    ids = np.asarray([f"{bucket}:{n}:{last}" for bucket, n, last, _ in written])
    rows = Rows(ids, keys=np.asarray([str(bucket) for bucket, *_ in written]))
    assert check_quiet(running_counts(ROWS, 2, BUCKETS), {"out": rows}, range(2)).ok
