"""Both doors from a client of a real Spark Connect server: several sinks, transforms, update mode,
and a restart that goes on."""

import psycopg
import pytest

import onceforall as ofa

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


def in_files(pipeline):
    return sorted(
        row["value"] for row in ofa.read_files(pipeline.config["files"]).to_arrow().to_pylist()
    )


def in_table(database, columns="value"):
    with psycopg.connect(database) as connection:
        return sorted(connection.execute(f"SELECT {columns} FROM public.written").fetchall())


def test_write_stream_writes_each_row_once_to_several_sinks_and_a_restart_goes_on(
    connect_server, pipeline, database
):
    config = {"sinks": ["files", "postgres"], "database": database, "transform": True}
    pipeline.run(connect_server, until_batch=1, **config)
    between = pipeline.batches()
    pipeline.run(connect_server, until_batch=between + 1, **config)
    count = 20 * pipeline.batches()
    assert pipeline.batches() > between
    assert in_files(pipeline) == list(range(count))
    assert in_table(database) == [(2 * row,) for row in range(count)]
    claims = pipeline.entries("CLAIM")
    assert len(claims) == 2, "each run has one generation for all its batches"
