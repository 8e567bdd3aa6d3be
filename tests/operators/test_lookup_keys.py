"""By which keys PostgresLookup finds a row: those that the key column's value is, and no other.
Every type of keys is tried on every type of column, on a real PostgreSQL."""

from datetime import date, datetime
from decimal import Decimal

import psycopg
import pytest
from psycopg import sql

from onceforall.errors import SchemaError
from onceforall.operators.postgres_lookup import PostgresLookup

pytestmark = pytest.mark.postgres

STORED = {
    "smallint": ["2", "-32768"],
    "integer": ["2", "16777217"],
    "bigint": ["2", "9007199254740993"],
    "numeric": ["2", "1.5", "0.1", "16777217", "9007199254740993"],
    "numeric(5,2)": ["2", "1.01", "1.50"],
    "real": ["2", "1.5", "0.1", "16777216"],
    "double precision": ["2", "1.5", "0.1", "16777217", "9007199254740992"],
    "text": ["2", "true", "2026-01-01", "1.5", "2.00"],
    "varchar(10)": ["2", "true", "2026-01-01", "1.5"],
    "char(10)": ["2", "true", "2026-01-01", "1.5"],
    "name": ["2", "x" * 63],
    '"char"': ["2", "t"],
    "boolean": ["true", "false"],
    "date": ["2026-01-01", "today", "infinity"],
    "timestamp": ["2026-01-01", "2026-01-01 12:00:00.000001", "today", "infinity"],
    "timestamptz": ["2026-01-01 UTC", "2026-01-01 12:00:00.000001 UTC", "epoch", "infinity"],
    "time": ["12:00:00.000001", "00:00"],
    "timetz": ["12:00:00.000001+00", "00:00+00"],
    "interval": ["1 day", "00:00:01.000001"],
    "bytea": ["\\x32", "\\x"],
    "uuid": ["00000000-0000-0000-0000-00000000000a"],
    "inet": ["10.0.0.1"],
    "money": ["2", "1.01"],
    "bit varying": ["10", "1"],
    "mood": ["2", "true"],
    "humour": ["2", "true"],
    "wit": ["2"],
    "positive": ["2"],
    "twice": ["2"],
}
NUMBERS = [2, 5, -32769, 65538, 16777217, 9007199254740993, 2**63 - 1]
DECIMALS = [
    Decimal(text)
    for text in (
        "2.00", "1.5", "2.4", "1.005", "1.01", "0.1", "0.1000000000000000055", "16777217",
        "9007199254740993", "9007199254740993.0", "1E+30", "-0.0",
    )
]  # fmt: skip
OTHERS = [True, False, date(2026, 1, 1), date(2026, 1, 2), b"2", b"", b"\x00" * 15 + b"\x0a"]
TEXTS = {
    # A text, and the columns in which it is a value's; in every other one it is missing.
    "2": {
        "bytea",
        "smallint", "integer", "bigint", "numeric", "numeric(5,2)", "real", "double precision", "text",
        "varchar(10)", "char(10)", "name", '"char"', "mood", "humour", "wit", "positive", "twice",
    },
    "1.5": {"numeric", "numeric(5,2)", "real", "double precision", "text", "varchar(10)", "char(10)"},
    "1.50": {"numeric", "numeric(5,2)", "real", "double precision"},
    "2.00": {"numeric", "numeric(5,2)", "real", "double precision", "text"},
    "0.1": {"numeric", "real", "double precision"},
    "0.1000000000000000055": set(),
    "1.005": set(),
    "1.0100000001": set(),
    "16777217": {"integer", "numeric", "double precision"},
    "9007199254740993": {"bigint", "numeric"},
    "true": {"boolean", "text", "varchar(10)", "char(10)", "mood", "humour"},
    "today": set(), "now": set(), "yesterday": set(), "epoch": set(), "infinity": set(), "allballs": set(),
    "2026-01-01": {"date", "timestamp", "timestamptz", "text", "varchar(10)", "char(10)"},
    "2026-01-01 13:00": set(),
    "2026-01-01 00:00:00+05": set(),
    "2026-01-01 12:00:00.000001": {"timestamp", "timestamptz"},
    "2026-01-01 12:00:00.0000014": set(),
    "2026-01-01T12:00:00.000001Z": {"timestamptz"},
    "12:00:00.000001": {"time", "timetz"},
    "12:00:00.0000014": set(),
    "00:00:01.0000014": set(),
    "1 day": {"interval"},
    "\\x32": {"bytea"},
    "00000000-0000-0000-0000-00000000000A": {"uuid"},
    "10.0.0.1": {"inet"},
    "{2}": set(),
    "x" * 63: {"name"},
    "x" * 64: set(),
    "10": {"bit varying"},
}  # fmt: skip
UNSAID = ("money",)
TEXTS_ONLY = {
    "name", '"char"', "timestamptz", "time", "timetz", "interval", "uuid", "inet", "money",
    "bit varying", "mood", "humour", "wit",
}  # fmt: skip


@pytest.fixture(scope="module")
def looked_up(postgres):
    """Make a function that looks one key up in the column of a type: the stored texts of its
    rows."""
    url = postgres.conninfo
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS keys CASCADE")
        connection.execute("CREATE SCHEMA keys")
        connection.execute("SET search_path = keys; SET timezone = 'UTC'")
        connection.execute("CREATE TYPE mood AS ENUM ('2', 'true')")
        connection.execute("CREATE DOMAIN humour AS mood")
        connection.execute("CREATE DOMAIN wit AS humour CHECK (VALUE::text <> 'true')")
        connection.execute("CREATE DOMAIN positive AS integer CHECK (VALUE > 0)")
        connection.execute("CREATE DOMAIN twice AS positive")
        tables = {}
        for number, (kind, texts) in enumerate(STORED.items()):
            tables[kind] = f"keys.t{number}"
            connection.execute(
                sql.SQL("CREATE TABLE {} (k {}, v text)").format(
                    sql.Identifier("keys", f"t{number}"), sql.SQL(kind)
                )
            )
            for text in texts:
                connection.execute(
                    sql.SQL("INSERT INTO {} VALUES ({}, {})").format(
                        sql.Identifier("keys", f"t{number}"), sql.Literal(text), sql.Literal(text)
                    )
                )
    lookups = {
        kind: PostgresLookup(
            url,
            table,
            key="k",
            columns={"v": "string"},
            retry_for_s=5,
        )
        for kind, table in tables.items()
    }

    def look(kind, key):
        found = lookups[kind].fetch([(key,)])
        return [version.values[0] for version in found.get((key,), ())]

    look.lookups = lookups
    try:
        yield look
    finally:
        for lookup in lookups.values():
            lookup.close()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA keys CASCADE")


def is_same(key, stored, column):
    """Whether a key is the value that was stored, by arithmetic of Python's own."""
    if isinstance(key, bool):
        return stored == str(key).lower()
    if isinstance(key, int | Decimal):
        if column in {"text", "varchar(10)", "char(10)"}:
            return isinstance(key, int) and stored == str(key)
        return Decimal(stored) == key
    if isinstance(key, date):
        return stored == key.isoformat()
    return stored == "\\x" + key.hex()


@pytest.mark.parametrize("column", STORED)
def test_a_key_finds_the_rows_that_it_is_the_key_of_and_no_other(looked_up, column):
    unsaid = set()
    for key in [*NUMBERS, *DECIMALS, *OTHERS]:
        if type(key) in unsaid:
            continue
        try:
            found = looked_up(column, key)
        except SchemaError:
            unsaid.add(type(key))
            continue
        numeric = isinstance(key, int | Decimal) and not isinstance(key, bool)
        expected = [
            stored
            for stored in STORED[column]
            if (not numeric or stored.replace(".", "").lstrip("-").isdigit())
            and is_same(key, stored, column)
        ]
        assert found == expected, (column, key)
    assert len(unsaid) < len({int, Decimal, bool, date, bytes}) or column in TEXTS_ONLY


@pytest.mark.parametrize("column", [kind for kind in STORED if kind not in UNSAID])
def test_a_text_is_read_as_its_column_reads_it_but_where_that_would_lose_something(
    looked_up, column
):
    for key, columns in TEXTS.items():
        assert bool(looked_up(column, key)) == (column in columns), (column, key)


@pytest.mark.parametrize("column", ["integer[]", "text[]", "pair", "json", "point"])
def test_a_key_column_that_nothing_is_compared_with_is_refused_at_start(postgres, column):
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute("CREATE TYPE pair AS (a int, b int)")
        connection.execute(f"CREATE TABLE odd (k {column}, v text)")
        try:
            lookup = PostgresLookup(postgres.conninfo, "odd", key="k", columns={"v": "string"})
            with pytest.raises(SchemaError, match=r"can't be looked up.*Give the lookup a view"):
                lookup.check(1)
        finally:
            connection.execute("DROP TABLE odd; DROP TYPE pair")


@pytest.mark.parametrize("column", ["real", "double precision"])
@pytest.mark.parametrize(
    "key", ["1_6777216", "\u0661\u0666777216", "\u00a016777216", "nan12", "0.1_"]
)
def test_a_text_that_python_alone_takes_for_a_number_finds_no_row(postgres, column, key):
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute(
            f"DROP TABLE IF EXISTS numbers; CREATE TABLE numbers (k {column}, v text)"
        )
        connection.execute("INSERT INTO numbers VALUES (16777216, 'a'), ('NaN', 'b'), (0.1, 'c')")
        with pytest.raises(psycopg.DataError):
            connection.execute("SELECT %s::text::" + column, [key])
    lookup = PostgresLookup(postgres.conninfo, "numbers", key="k", columns={"v": "string"})
    try:
        numbers = [("\t+16777216.0 ",), ("NaN",), ("1E-1",)]
        assert lookup.fetch([(key,), *numbers]).keys() == set(numbers)
    finally:
        lookup.close()
        with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
            connection.execute("DROP TABLE numbers")


def test_of_many_keys_those_that_are_no_values_are_missing_and_the_others_found(looked_up):
    lookup = looked_up.lookups["integer"]
    keys = [(Decimal("2.4"),), (Decimal(2),), (Decimal(2**40),), (Decimal(16777217),)]
    found = lookup.fetch(keys)
    assert {key: versions[0].values for key, versions in found.items()} == {
        (Decimal(2),): ("2",),
        (Decimal(16777217),): ("16777217",),
    }


@pytest.mark.parametrize("key", [1.5, datetime(2026, 1, 1), None, object()])  # noqa: DTZ001
def test_a_key_of_no_type_that_enrich_gives_is_refused(looked_up, key):
    with pytest.raises(SchemaError, match="can't be compared"):
        looked_up("date", key)


@pytest.mark.parametrize(
    ("spark", "column"),
    [
        ("boolean", "integer"),
        ("int", "boolean"),
        ("decimal(10,2)", "text"),
        ("date", "timestamptz"),
        ("binary", "uuid"),
        ("int", "money"),
        ("bigint", "date"),
        ("string", "money"),
        ("int", "inet"),
    ],
)
def test_keys_of_a_type_that_the_column_has_no_values_of_are_refused_at_start(
    looked_up, spark, column
):
    lookup = looked_up.lookups[column]
    lookup.check(1)
    with pytest.raises(SchemaError, match=rf"'c' \({spark.partition('(')[0]}.*'k' of .*Cast"):
        lookup.check_keys({"c": spark})


@pytest.mark.parametrize(
    ("spark", "column"),
    [("string", "uuid"), ("int", "twice"), ("decimal(10,2)", "bigint"), ("int", "real"), ("bigint", "text")],
)  # fmt: skip
def test_keys_of_a_type_that_fits_are_taken_at_start(looked_up, spark, column):
    lookup = looked_up.lookups[column]
    lookup.check(1)
    lookup.check_keys({"c": spark})
