"""The public conformance suite, on each mode of the sink."""

from contextlib import contextmanager

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from onceforall.sinks.postgres.sink import PostgresSink
from onceforall.testing.conformance import SinkUnderTest, cases, check_sink

pytestmark = pytest.mark.postgres

LEFT = """
SELECT 'staging table ' || relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = 'onceforall' AND relname LIKE 'stg%%'
UNION ALL SELECT 'prepared transaction ' || gid FROM pg_prepared_xacts WHERE database = current_database()
UNION ALL SELECT 'open transaction of ' || application_name FROM pg_stat_activity WHERE datname = current_database()
AND application_name LIKE 'ofa-%%' AND state LIKE 'idle in transaction%%'
"""


def under_test(url, password, **options):
    def ask(query):
        with psycopg.connect(url, autocommit=True) as connection:
            return [value for (value,) in connection.execute(query).fetchall()]

    def lose(committables):
        with psycopg.connect(url, autocommit=True) as connection:
            for each in committables:
                connection.execute(f"ROLLBACK PREPARED '{each['name']}'")

    @contextmanager
    def another_target():
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        here, away = sql.Identifier(name), sql.Identifier(f"{name}-away")
        with psycopg.connect(
            psycopg.conninfo.make_conninfo(url, dbname="postgres"), autocommit=True
        ) as connection:
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            connection.execute(end, [name])
            connection.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(here, away))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(here))
            make_table()
            yield
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(here))
            connection.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(away, here))

    def make_table():
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE n (n "
                f"bigint{' PRIMARY KEY' if 'key' in options else ''}{', times int' if times else ''})"
            )

    def rows(numbers):
        return pa.RecordBatch.from_pydict(
            {
                "n": pa.array(numbers, pa.int64()),
                **({"times": pa.array([1] * len(numbers), pa.int32())} if times else {}),
            }
        )

    times = "accumulate" in options
    make_table()
    return SinkUnderTest(
        make_sink=lambda: PostgresSink(url, "n", retry_for_s=10, lock_timeout_s=5, **options),
        rows=rows,
        # What was added twice is there twice.
        read=lambda: ask(
            "SELECT n FROM n CROSS JOIN LATERAL generate_series(1, times)"
            if times
            else "SELECT n FROM n"
        ),
        leftovers=lambda: ask(LEFT),
        # A staged batch is lost as a whole only; test_staged has that.
        lose=lose if options.get("mode") == "prepared" else None,
        secrets=[password],
        twin_attempts=options.get("mode") != "prepared",
        crash_points=2,
        another_target=another_target,
    )


def check(database, postgres, only=None, **options):
    made = under_test(database, postgres.password, **options)
    wanted = set(cases(made.make_sink()))
    report = check_sink(made, only=wanted & only if only else wanted)
    assert report.passed


ADDING = {"key": "n", "accumulate": {"times": "sum"}}


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param(ADDING, marks=pytest.mark.long), {"mode": "upsert", "key": "n"}],
    ids=["staged", "staged-adding", "upsert"],
)
@pytest.mark.sample(1)
def test_the_sink_keeps_the_heart_of_the_contract(database, postgres, options):
    heart = {"commit_in_two_processes_at_once", "recover_beside_everything_else", "written_twice"}
    heart |= {
        "target_has_an_identity",
        "another_target_has_another_identity",
        "missing_predecessor_is_noticed",
    }
    check(database, postgres, heart, **options)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"key": "n"},
        ADDING,
        {"mode": "prepared"},
        {"mode": "prepared", "key": "n"},
        {"mode": "prepared", **ADDING},
        {"mode": "upsert", "key": "n"},
    ],
    ids=[
        "staged",
        "staged-key",
        "staged-adding",
        "prepared",
        "prepared-key",
        "prepared-adding",
        "upsert",
    ],
)
def test_the_sink_keeps_the_contract_in_each_mode(database, postgres, options):
    check(database, postgres, **options)
