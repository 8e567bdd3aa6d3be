"""Enrichment in Spark, from a real PostgreSQL whose values change between an attempt and its
replay."""

from collections import Counter
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
from pyspark.sql import functions as F

import onceforall as ofa
from onceforall.errors import OptionError, SchemaError, SinkCheckError
from onceforall.operators.enrichment import enrich
from onceforall.operators.postgres_lookup import PostgresLookup

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

DECIDED = "append_commit.after=raise"


def execute(url, statement, *arguments):
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, arguments or None)
        return cursor.fetchall() if cursor.description else []


class Job:
    """A query that enriches keys with a name from a table, and writes to another table of that
    database."""

    def __init__(self, url, events, tmp_path, runs):
        self.url, self.events, self.runs, self.checkpoint = url, events, runs, tmp_path / "cp"
        execute(url, "CREATE TABLE names (k text PRIMARY KEY, name text)")
        execute(url, "INSERT INTO names VALUES ('a', 'old'), ('b', 'other')")
        execute(
            url,
            "CREATE TABLE history (k text, name text, since timestamptz, PRIMARY KEY (k, since))",
        )
        execute(
            url,
            "INSERT INTO history VALUES ('a', 'old', '-infinity'), ('b', 'other', '2020-01-01')",
        )

    def lookup(self, table="names", **changes):
        return PostgresLookup(
            self.url, table, key="k", columns={"name": "string"}, **{"retry_for_s": 5, **changes}
        )

    def enriched(self, way):
        frame = self.events.stream(2)
        if way == "as_of":
            return enrich(
                frame,
                self.lookup("history", valid_from="since"),
                "key",
                as_of="at",
                status="found",
                # A worker that is used again would remember what was there before ``rename``.
                cache_for_s=0,
            )
        return enrich(
            frame, self.lookup(), "key", pin=way == "pinned", status="found", cache_for_s=0
        )

    def writer(self, frame, mode="append", **options):
        sink = ofa.PostgresSink(
            self.url,
            "out",
            create_table=True,
            retry_for_s=10,
            key=None if mode == "append" else "name",
        )
        made = (
            ofa.write_stream(frame)
            .to(sink)
            .outputMode(mode)
            .option("checkpointLocation", str(self.checkpoint))
        )
        for name, value in options.items():
            made.option(f"onceforall.{name}", value)
        return made

    def rename(self):
        execute(self.url, "UPDATE names SET name = 'new' WHERE k = 'a'")
        execute(self.url, "INSERT INTO names VALUES ('c', 'late')")
        execute(self.url, "INSERT INTO history VALUES ('a', 'new', '2026-01-01 12:00+00')")

    def lose(self):
        """Drop what the decided batch has prepared, when the sessions of its run are gone, as
        those of a dead driver are."""
        execute(
            self.url,
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name "
            "LIKE 'ofa-m-%'",
        )
        tables = execute(
            self.url,
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE tablename ~ '^stg_'",
        )
        assert tables
        for (table,) in tables:
            execute(self.url, f"DROP TABLE {table}")


@pytest.fixture
def job(database, folder, runs, tmp_path):
    return Job(database, folder("events", "key string, at timestamp, n int"), tmp_path, runs)


def row(key, n, at="2026-01-01T11:00:00Z"):
    return {"key": key, "at": at, "n": n}


NEW = [
    (1, "a", "new", "found"),
    (2, "b", "other", "found"),
    (3, "c", "late", "found"),
    (4, None, None, "missing"),
]
OLD = [
    (1, "a", "old", "found"),
    (2, "b", "other", "found"),
    (3, "c", None, "missing"),
    (4, None, None, "missing"),
]


@pytest.mark.parametrize("way", ["pinned", "as_of"])
def test_a_decided_batch_that_is_written_again_has_the_values_that_were_decided(job, way):
    job.events.add(row("a", 1), row("b", 2))
    job.events.add(row("c", 3), row(None, 4))
    job.runs.failing(job.writer(job.enriched(way)), DECIDED)
    job.rename()
    job.lose()
    job.runs.whole(job.writer(job.enriched(way)))
    seen = "SELECT n, key, name, found FROM out ORDER BY n"
    assert execute(job.url, seen) == OLD
    pinned = execute(
        job.url,
        "SELECT count(*) FROM pg_tables WHERE schemaname = 'onceforall' AND tablename = 'lookups'",
    )
    assert pinned == [(int(way == "pinned"),)]
    job.events.add(row("a", 5, "2026-01-01T12:00:00Z"), row("a", 6, "2026-01-01T11:59:59.999999Z"))
    job.runs.whole(job.writer(job.enriched(way)))
    assert execute(job.url, seen)[4:] == [
        (5, "a", "new", "found"),
        (6, "a", "old" if way == "as_of" else "new", "found"),
    ]


@pytest.mark.long
def test_a_key_that_is_missing_or_no_text_fails_a_pinned_batch_until_it_is_mended(job):
    def enriched():
        # As what is read from Kafka, nobody has looked at whether it is a text.
        keyed = job.events.stream(2).withColumn("key", F.unhex("key").cast("string"))
        return enrich(keyed, job.lookup(), "key", pin=True, missing=missing, status="found").drop(
            "at"
        )

    job.events.add(row("61", 1), row("FF", 2), row("63", 3))
    missing = "null"
    job.runs.failing(job.writer(enriched().drop("key")), DECIDED)
    job.rename()
    job.runs.whole(job.writer(enriched().drop("key")))
    seen = "SELECT n, name, found FROM out ORDER BY n"
    assert execute(job.url, seen) == [
        (1, "old", "found"),
        (2, None, "missing"),
        (3, None, "missing"),
    ]

    missing = "fail"
    job.events.add(row("61", 4), row("64", 5))
    for _ in range(2):
        with pytest.raises(Exception, match=r"has no row for \{'key': 'd'\}"):
            job.runs.whole(job.writer(enriched().drop("key")))
    execute(job.url, "INSERT INTO names VALUES ('d', 'added')")
    job.runs.whole(job.writer(enriched().drop("key")))
    assert execute(job.url, seen)[3:] == [(4, "new", "found"), (5, "added", "found")]


@pytest.mark.long  # what is not promised
def test_without_it_such_a_batch_gets_other_values_unless_its_rows_are_kept(job):
    job.events.add(row("a", 1), row("b", 2))
    job.events.add(row("c", 3), row(None, 4))
    job.runs.failing(job.writer(job.enriched("as it is"), redo="replay"), DECIDED)
    job.rename()
    job.lose()
    # All of it is lost: nobody has seen the decided values.
    job.runs.whole(job.writer(job.enriched("as it is"), redo="replay"))
    assert execute(job.url, "SELECT n, key, name, found FROM out ORDER BY n") == NEW

    execute(job.url, "DELETE FROM out")
    job.checkpoint = job.checkpoint.with_name("cp2")
    execute(job.url, "UPDATE names SET name = 'old' WHERE k = 'a'")
    execute(job.url, "DELETE FROM names WHERE k = 'c'")
    job.runs.failing(job.writer(job.enriched("as it is")), DECIDED)
    execute(job.url, "UPDATE names SET name = 'new' WHERE k = 'a'")
    job.lose()
    job.runs.whole(job.writer(job.enriched("as it is")))
    assert execute(job.url, "SELECT n, key, name, found FROM out ORDER BY n") == OLD


@pytest.mark.long  # test_enrichment_parts.py has the same without Spark
def test_a_function_that_enriches_each_batch_keeps_one_connection_per_worker(job, spark):
    frame = spark.createDataFrame([("a",), ("b",)], "key string").coalesce(1)
    url, ways = job.url, ("a table", "an address by a function", "the table's types")
    for n in range(6):
        for way in ways:
            lookup = PostgresLookup(
                (lambda: url) if "function" in way else url,
                "names",
                key="k",
                columns=["name"] if "types" in way else {"name": "string"},
            )
            found = {row.key: row.name for row in enrich(frame, lookup, "key").collect()}
            assert found == {"a": "old", "b": "other"}, n
    # However many workers a busy machine has made.
    ports = {
        port
        for (port,) in execute(
            job.url,
            "SELECT client_port FROM pg_stat_activity WHERE application_name = 'ofa-lookup' "
            "AND datname = current_database()",
        )
    }
    opened_by = Counter(
        each.pid
        for each in psutil.net_connections("tcp")
        if each.raddr and each.raddr.port == urlsplit(url).port and each.laddr.port in ports
    )
    assert opened_by.total() == len(ports) > 0
    assert max(opened_by.values()) <= len(ways)


@pytest.mark.parametrize(
    ("way", "counts"),
    [
        ("pinned", {"old": 1, "new": 1}),
        pytest.param("as it is", {"old": 1, "new": 2}, marks=pytest.mark.long),
    ],
)
def test_a_state_behind_it_is_rebuilt_from_the_same_values_only_when_they_are_pinned(
    job, way, counts
):
    def counted():
        return job.enriched(way).groupBy("name").agg(F.count("*").alias("rows"))

    job.events.add(row("a", 1))
    job.runs.failing(job.writer(counted(), "update"), DECIDED)
    job.rename()
    job.runs.whole(job.writer(counted(), "update"))
    job.events.add(row("a", 2))
    job.runs.whole(job.writer(counted(), "update"))
    assert dict(execute(job.url, "SELECT name, rows FROM out")) == counts


def test_what_cannot_be_is_refused_before_the_query_starts(job):
    frame = job.events.stream()
    for error, words, call in [
        (SinkCheckError, "nothing", lambda: enrich(frame, job.lookup("nothing"), "key")),
        (
            OptionError,
            "has several versions",
            lambda: enrich(frame, job.lookup("history", valid_from="since"), "key"),
        ),
        (
            OptionError,
            "Leave pin= out",
            lambda: enrich(
                frame, job.lookup("history", valid_from="since"), "key", as_of="at", pin=True
            ),
        ),
        (OptionError, "missing='no'", lambda: enrich(frame, job.lookup(), "key", missing="no")),
        (
            OptionError,
            "'x', which is not looked up",
            lambda: enrich(frame, job.lookup(), "key", defaults={"x": 1}),
        ),
        (
            SchemaError,
            "there already",
            lambda: enrich(frame.withColumn("NAME", F.lit(1)), job.lookup(), "key"),
        ),
        (SchemaError, "'at' is timestamp", lambda: enrich(frame, job.lookup(), "at")),
    ]:
        with pytest.raises(error, match=words):
            call()
    assert execute(job.url, "SELECT count(*) FROM pg_tables WHERE tablename = 'lookups'") == [(0,)]
