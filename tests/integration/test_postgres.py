"""PostgresSink in a query: modes and output modes, tables that it makes, and what it refuses
before data moves or the batch is decided."""

import psycopg
import pytest
from psycopg import sql
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import onceforall as ofa
from onceforall.errors import CheckpointMismatchError, SchemaError, UnsupportedQueryError

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


def ask(url, query):
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query).fetchall()


def writer(frame, tmp_path, output_mode, *args, **options):
    made = ofa.write_stream(frame).to(
        ofa.PostgresSink(*args, create_table=True, retry_for_s=10, **options)
    )
    return made.outputMode(output_mode).option("checkpointLocation", str(tmp_path / "cp"))


def add_two(source):
    source.add(*[{"key": f"k{n % 3}", "value": f"v{n}"} for n in range(30)])
    source.add(*[{"key": f"k{n % 3}", "value": f"v{n}"} for n in range(30, 60)])


@pytest.mark.parametrize(
    "mode", ["staged", pytest.param("prepared", marks=pytest.mark.long), "upsert"]
)
def test_counts_are_updated_by_their_key(source, run, tmp_path, database, mode):
    add_two(source)
    counts = source.stream().groupBy("key").count()
    run(writer(counts, tmp_path, "update", database, 'public."My Counts"', key="key", mode=mode))
    assert sorted(ask(database, 'SELECT * FROM "My Counts"')) == [
        ("k0", 20),
        ("k1", 20),
        ("k2", 20),
    ]
    left = (
        "SELECT tablename FROM pg_tables WHERE tablename LIKE 'stg%' UNION ALL SELECT gid FROM "
        "pg_prepared_xacts WHERE database = current_database()"
    )
    assert ask(database, left) == []


def test_rows_are_appended_and_complete_replaces_them(source, run, tmp_path, database):
    add_two(source)
    run(writer(source.stream(), tmp_path / "a", "append", database, "rows"))
    assert ask(database, "SELECT count(*), count(DISTINCT value) FROM rows") == [(60, 60)]
    run(
        writer(
            source.stream().groupBy("key").count(), tmp_path / "c", "complete", database, "counts"
        )
    )
    assert sorted(ask(database, "SELECT * FROM counts")) == [("k0", 20), ("k1", 20), ("k2", 20)]


def test_what_cannot_be_is_refused_at_start(source, tmp_path, database):
    counts = source.stream().groupBy("key").count()
    with pytest.raises(UnsupportedQueryError, match="can't serve the output mode 'update'"):
        writer(counts, tmp_path, "update", database, "t").start()
    with pytest.raises(UnsupportedQueryError, match="can't serve the output mode 'complete'"):
        writer(counts, tmp_path, "complete", database, "t", mode="prepared").start()
    with pytest.raises(SchemaError, match="'nothing'"):
        writer(counts, tmp_path, "update", database, "t", key="nothing").start()


def test_a_refused_row_stops_the_query_and_a_corrected_table_lets_it_go_on(
    source, run, tmp_path, database
):
    ask_nothing = "CREATE TABLE t (key text, value text CHECK (value <> 'v7'), at timestamptz)"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(ask_nothing)
    add_two(source)
    made = writer(
        source.stream().select("key", "value", F.col("at")), tmp_path, "append", database, "t"
    )
    with pytest.raises(StreamingQueryException, match="The first such row: key='k1', value='v7'"):
        run(made)
    assert ask(database, "SELECT count(*) FROM t") == [(0,)]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("ALTER TABLE t DROP CONSTRAINT t_value_check")
    run(made)
    assert ask(database, "SELECT count(*), count(DISTINCT value) FROM t") == [(60, 60)]


def test_a_database_that_was_made_again_is_refused_until_it_is_adopted(
    source, run, tmp_path, database
):
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    source.add({"key": "k", "value": "v0"})
    run(writer(source.stream(), tmp_path, "append", database, "rows"))
    with psycopg.connect(
        psycopg.conninfo.make_conninfo(database, dbname="postgres"), autocommit=True
    ) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    source.add({"key": "k", "value": "v1"})
    with pytest.raises(
        CheckpointMismatchError, match=r"Sink postgres-rows.*onceforall\.adoptTarget=postgres-rows"
    ):
        run(writer(source.stream(), tmp_path, "append", database, "rows"))
    assert (
        ask(
            database, "SELECT tablename FROM pg_tables WHERE schemaname IN ('public', 'onceforall')"
        )
        == []
    )
    run(
        writer(source.stream(), tmp_path, "append", database, "rows").option(
            "onceforall.adoptTarget", "postgres-rows"
        )
    )
    source.add({"key": "k", "value": "v2"})
    run(writer(source.stream(), tmp_path, "append", database, "rows"))
    assert sorted(ask(database, "SELECT value FROM rows")) == [("v1",), ("v2",)]


def test_a_database_that_lost_its_newest_batch_is_behind_the_log(source, run, tmp_path, database):
    for number in range(2):
        source.add({"key": "k", "value": f"v{number}"})
        run(writer(source.stream(), tmp_path, "append", database, "rows"))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DELETE FROM rows WHERE value = 'v1'")
        connection.execute("UPDATE onceforall.markers SET batch = 0, names = ''")
    source.add({"key": "k", "value": "v2"})
    with pytest.raises(CheckpointMismatchError, match="behind the commit log: batch 1 is complete"):
        run(writer(source.stream(), tmp_path, "append", database, "rows"))
    assert ask(database, "SELECT value FROM rows") == [("v0",)]


@pytest.mark.long
def test_a_transform_that_aggregates_is_warned_of_once_where_its_rows_replace_each_other(
    source, run, tmp_path, database, caplog
):
    add_two(source)

    def counts(batch):
        return batch.groupBy("key").agg(F.count("*").alias("n"))

    def warnings(name, transform, **options):
        caplog.clear()
        made = ofa.write_stream(source.stream()).to(
            ofa.PostgresSink(database, name, create_table=True, **options), transform=transform
        )
        run(made.option("checkpointLocation", str(tmp_path / name)))
        return [
            record.getMessage()
            for record in caplog.records
            if "aggregates each batch by itself" in record.getMessage()
        ]

    [warning] = warnings("replaced", counts, key="key")
    assert "sink 'postgres-replaced'" in warning
    assert "['key']" in warning
    assert "docs/aggregates.md" in warning
    assert warnings("added", counts, key="key", accumulate={"n": "sum"}) == []
    assert (
        warnings("projected", lambda batch: batch.dropDuplicates(["key"]).select("key"), key="key")
        == []
    )
    assert ask(database, "SELECT key, n FROM replaced ORDER BY key") == [
        ("k0", 10),
        ("k1", 10),
        ("k2", 10),
    ]
    assert ask(database, "SELECT key, n FROM added ORDER BY key") == [
        ("k0", 20),
        ("k1", 20),
        ("k2", 20),
    ]


WATCHED = """
CREATE TABLE watched (key text PRIMARY KEY, value text);
CREATE TABLE turns (held bigint);
CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO turns SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.granted AND a.application_name LIKE 'ofa-q-%';
  RETURN NEW;
END $$;
CREATE TRIGGER look BEFORE INSERT ON watched FOR EACH ROW EXECUTE FUNCTION look();
"""


def test_a_query_has_its_turn_at_the_table_while_its_tasks_write_by_key(
    source, run, tmp_path, database
):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(WATCHED)
    add_two(source)
    rows = source.stream().select("key", F.col("value")).dropDuplicates(["key"])
    run(writer(rows, tmp_path, "update", database, "watched", key="key", mode="prepared"))
    assert ask(database, "SELECT count(*), min(held), max(held) FROM turns") == [(3, 1, 1)]
    assert ask(database, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]
