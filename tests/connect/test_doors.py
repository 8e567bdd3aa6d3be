"""Both doors from a client of a real Spark Connect server: several sinks, transforms, update mode,
and a restart that goes on."""

import psycopg
import pytest

import onceforall as ofa
from support.reading import released, values

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

COUNTS = {"table": "public.counts", "key": ["k"], "mode": "staged", "create_table": True}


def in_files(pipeline):
    rows = ofa.read_files(pipeline.config["files"]).to_arrow().to_pylist()
    return sorted(row["value"] for row in rows)


def in_table(database, columns="value", table="written"):
    with psycopg.connect(database) as connection:
        return sorted(connection.execute(f"SELECT {columns} FROM public.{table}").fetchall())


@pytest.mark.long  # test_kills.py has the same door behind a kill
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
    assert len(pipeline.entries("CLAIM")) == 2, "each run has one generation for all its batches"


@pytest.mark.kafka
@pytest.mark.long
def test_exactly_once_writes_each_row_once_to_kafka_and_files(
    connect_server, pipeline, broker, topic
):
    config = {
        "door": "exactly_once",
        "sinks": ["kafka", "files"],
        "bootstrap": broker.bootstrap_servers,
        "topic": topic(partitions=2),
    }
    pipeline.run(connect_server, until_batch=4, **config)
    released(config["bootstrap"], config["topic"])
    count = 20 * pipeline.batches()
    assert in_files(pipeline) == list(range(count))
    assert values(config["bootstrap"], config["topic"]) == sorted(str(row) for row in range(count))
    decided = [entry["body"]["committables"]["kafka"] for entry in pipeline.entries("COMMIT")]
    ids = {each["name"] for committables in decided for each in committables}
    assert len(decided) > 4
    assert len(ids) <= 10, "live producers go on from batch to batch"


@pytest.mark.long
def test_what_a_function_persists_and_gives_up_is_computed_once_for_all_its_writes(
    connect_server, pipeline, database
):
    """In whichever way it gives it up, and where one job reads the batch more than once; see
    ``connect_program.split_at_random``."""
    config = {
        "door": "exactly_once",
        "sinks": ["files", "postgres"],
        "database": database,
        "splits": True,
        "rows_per_batch": 200,
    }
    pipeline.run(connect_server, until_batch=12, **config)
    count = 200 * pipeline.batches()
    here, there = in_files(pipeline), [row for (row,) in in_table(database)]
    assert sorted(here + there) == list(range(count))
    assert min(len(here), len(there)) > count / 6


@pytest.mark.long
def test_in_complete_mode_a_batch_without_rows_empties_the_table(
    connect_server, pipeline, database
):
    config = {
        "sinks": ["postgres"],
        "database": database,
        "postgres": {"table": "public.counts", "create_table": True},
        "aggregate": True,
        "output_mode": "complete",
    }
    pipeline.run(connect_server, until_batch=0, where="value < 0", **config)
    assert in_table(database, "k, n", "counts") == []
    assert pipeline.entries("COMMIT")[0]["body"]["committables"]["postgres"]


@pytest.mark.long
@pytest.mark.parametrize("door", ["write_stream", "exactly_once"])
def test_counts_in_update_mode_are_those_of_all_batches_after_a_restart(
    connect_server, pipeline, database, door
):
    config = {
        "door": door,
        "sinks": ["postgres"],
        "database": database,
        "postgres": COUNTS,
        "aggregate": True,
        "output_mode": "update",
    }
    pipeline.run(connect_server, until_batch=1, **config)
    pipeline.run(connect_server, until_batch=pipeline.batches(), **config)
    counted = in_table(database, "k, n", "counts")
    assert counted == [(k, 2 * pipeline.batches()) for k in range(10)]
