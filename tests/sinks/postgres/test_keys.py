"""Keys that the server takes for equal and Spark doesn't: brought to one form, or refused."""

from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from onceforall.errors import AttemptFailedError, SchemaError, SinkCheckError
from onceforall.sink import StartInfo
from onceforall.sinks.postgres.driver.table_lookup import describe
from onceforall.sinks.postgres.sink import PostgresSink
from support.postgres_sink import Query

pytestmark = [pytest.mark.postgres]

UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
SAME = {
    "uuid": [
        UUID,
        UUID.upper(),
        "{" + UUID + "}",
        UUID.replace("-", ""),
        "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11",
    ],
    "char(3)": ["a", "a ", "a  "],
}
DIFFERENT = {
    "uuid": [UUID, UUID[:-1] + "2"],
    "char(3)": ["a", " a", "A"],
    "varchar(3)": ["a", "a ", "A", " a"],
    "text": ["a", "a ", "A"],
}
REFUSED = [
    "citext", "jsonb", "timestamptz(0)", "timestamp(3)", "uuid[]", "char(3)[]", ('text COLLATE '
                                                                                '"blind"'),
]  # fmt: skip
SPARK = {
    "timestamptz(0)": "timestamp",
    "timestamp(3)": "timestamp_ntz",
    "time(2)": "time(6)",
    "uuid[]": "array<string>",
    "char(3)[]": "array<string>",
}


@pytest.fixture
def made(database):
    def make(kind, mode):
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', "
                "deterministic = false)"
            )
            connection.execute("CREATE EXTENSION IF NOT EXISTS citext")
            connection.execute(f"CREATE TABLE t (k {kind} PRIMARY KEY)")
        sink = PostgresSink(database, "t", key="k", mode=mode)
        sink.check(StartInfo("q", "out"))
        return sink

    return make


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["prepared", "upsert"])
@pytest.mark.parametrize("kind", SAME)
def test_what_the_server_takes_for_equal_is_equal_for_spark(spark, database, made, kind, mode):
    """And each form is still the same value in the table; other keys stay different."""
    schema = StructType([StructField("k", StringType())])
    sink = made(kind, mode)
    columns = sink.columns(schema)
    forms = [
        row.k
        for row in spark.createDataFrame([(text,) for text in SAME[kind]], schema)
        .select(*columns)
        .collect()
    ]
    assert len(set(forms)) == 1
    different = [
        row.k
        for row in spark.createDataFrame([(text,) for text in DIFFERENT[kind]], schema)
        .select(*columns)
        .collect()
    ]
    assert len(set(different)) == len(DIFFERENT[kind])
    with psycopg.connect(database) as connection:
        for old, new in zip(SAME[kind] + DIFFERENT[kind], forms + different, strict=True):
            connection.execute("CREATE TEMP TABLE IF NOT EXISTS one (LIKE t)")
            connection.execute("INSERT INTO one VALUES (%s)", [old])
            assert connection.execute(
                "SELECT count(*) FROM one WHERE k = %s", [new]
            ).fetchone() == (1,)
            connection.execute("DELETE FROM one")


@pytest.mark.spark
@pytest.mark.parametrize(
    "text", ["", "no uuid", "{" + UUID, UUID + "}", UUID[:-1], None, "abcdefgh"]
)
def test_what_is_no_uuid_is_left_for_the_server_to_refuse(spark, made, text):
    schema = StructType([StructField("k", StringType())])
    assert [
        row.k
        for row in spark.createDataFrame([(text,)], schema)
        .select(*made("uuid", "upsert").columns(schema))
        .collect()
    ] == [text]


@pytest.mark.spark
@pytest.mark.parametrize("kind", REFUSED)
def test_a_key_that_only_the_server_can_compare_is_refused_but_where_it_does(spark, made, kind):
    schema = spark.sql(f"SELECT CAST(NULL AS {SPARK.get(kind, 'string')}) AS k").schema
    sink = made(kind, "prepared")
    with pytest.raises(SchemaError, match="mode='staged'"):
        sink.columns(schema)
    sink._options = replace(sink._options, mode="staged")
    assert len(sink.columns(schema)) == 1


def test_a_collation_of_the_index_alone_counts(database, made):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = "
            "false)"
        )
        connection.execute("CREATE TABLE t (k text NOT NULL, plain text)")
        connection.execute("CREATE UNIQUE INDEX ON t (k COLLATE blind)")
        table = describe(connection, "t")
    assert [column.is_deterministic for column in table.columns] == [False, True]


BLIND = (
    "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
)
DEAF = "CREATE COLLATION deaf (provider = icu, locale = 'und-u-ks-level1', deterministic = false);"
UNFIT_INDEXES = {
    "strict column": (
        "k text NOT NULL",
        "k COLLATE blind",
        'has the collation blind for k, and the column has "default"',
    ),
    "loose column": (
        "k text COLLATE blind NOT NULL",
        'k COLLATE "C"',
        'has the collation "C" for k, and the column has blind',
    ),
    "two loose ones": (
        "k text COLLATE deaf NOT NULL",
        "k COLLATE blind",
        "has the collation blind for k, and the column has deaf",
    ),
    "citext": (
        "k citext NOT NULL",
        "k text_ops",
        "compares k by the operator class text_ops, and citext has another equality",
    ),
    "domain of citext": (
        "k name_of NOT NULL",
        "k text_ops",
        "compares k by the operator class text_ops, and name_of has",
    ),
    "domain of a domain of citext": (
        "k name_of_name NOT NULL",
        "k text_ops",
        "compares k by the operator class text_ops, and name_of_name has",
    ),
    "varchar": (
        "k varchar(10) NOT NULL",
        "k bpchar_ops",
        "compares k by the operator class bpchar_ops, and character varying",
    ),
    "domain of a domain of text": (
        "k word_of_word NOT NULL",
        "k bpchar_ops",
        "compares k by the operator class bpchar_ops, and word_of_word has",
    ),
    "domain of varchar": (
        "k short NOT NULL",
        "k bpchar_ops",
        "compares k by the operator class bpchar_ops, and short has",
    ),
    "second index": ("k text PRIMARY KEY", "k COLLATE blind", "has the collation blind for k"),
}
FIT_INDEXES = {
    "deterministic ones": ('k text COLLATE "C" NOT NULL', 'k COLLATE "POSIX"'),
    "the same loose one": ("k text COLLATE blind NOT NULL", "k"),
    "patterns": ("k text NOT NULL", "k text_pattern_ops"),
    "varchar": ("k varchar(10) NOT NULL", "k"),
    "domain": ("k name_of NOT NULL", "k"),
    "domain of a domain": ("k name_of_name NOT NULL", "k"),
    "domain of a domain of text": ("k word_of_word NOT NULL", "k varchar_ops"),
    "domain of varchar": ("k short NOT NULL", "k"),
    "patterns of varchar": ("k varchar NOT NULL", "k varchar_pattern_ops"),
    "char": ("k char(5) NOT NULL", "k"),
    "patterns of char": ("k char(5) NOT NULL", "k bpchar_pattern_ops"),
    "integer": ("k int NOT NULL", "k"),
    "uuid": ("k uuid NOT NULL", "k"),
    "range": ("k int4range NOT NULL", "k"),
    "domain of an array": ("k words NOT NULL", "k"),
    "composite": ("k pair NOT NULL", "k"),
    "jsonb": ("k jsonb NOT NULL", "k"),
    "time": ("k timestamptz NOT NULL", "k"),
    "number": ("k numeric(10, 2) NOT NULL", "k"),
    "array": ("k text[] NOT NULL", "k"),
    "enum": ("k mood NOT NULL", "k"),
    "citext": ("k citext NOT NULL", "k"),
    "included": ("k text NOT NULL, w text COLLATE blind", "k) INCLUDE (w"),
}


def table_with(database, column, index):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS citext")
        connection.execute(
            f"{BLIND} {DEAF} CREATE TYPE mood AS ENUM ('low'); CREATE DOMAIN name_of AS citext"
        )
        connection.execute(
            "CREATE DOMAIN name_of_name AS name_of; CREATE DOMAIN word AS text; CREATE DOMAIN "
            "word_of_word AS word"
        )
        connection.execute(
            "CREATE DOMAIN short AS varchar(10); CREATE DOMAIN words AS text[]; CREATE TYPE pair "
            "AS (a int, b int)"
        )
        connection.execute(
            f"CREATE TABLE t ({column}, n int); CREATE UNIQUE INDEX made ON t ({index})"
        )


@pytest.mark.parametrize("what", UNFIT_INDEXES)
@pytest.mark.parametrize(
    "options", [{}, {"accumulate": {"n": "sum"}}, {"accumulate": {"n": "sum"}, "mode": "prepared"}]
)
@pytest.mark.sample(10)
def test_an_index_that_calls_other_keys_equal_than_its_column_is_refused(database, what, options):
    """A batch with "a" and "A" would be added up as one key, and two batches with one each as
    two; or it would be stuck."""
    column, index, words = UNFIT_INDEXES[what]
    table_with(database, column, index)
    with pytest.raises(
        SinkCheckError, match=f"unique index made of public.t {words}.*DROP INDEX made"
    ):
        PostgresSink(database, "t", key="k", **options).check(StartInfo("q", "out"))
    PostgresSink(database, "t").check(StartInfo("q", "out"))


def test_an_index_whose_columns_equality_is_not_known_is_refused(database):
    table_with(database, "k cidr NOT NULL", "k")
    with pytest.raises(
        SinkCheckError,
        match="index made of public.t compares k .* and which equality cidr has of itself isn't "
        "known",
    ):
        PostgresSink(database, "t", key="k").check(StartInfo("q", "out"))


@pytest.mark.parametrize("what", FIT_INDEXES)
@pytest.mark.parametrize("mode", ["staged", "prepared"])
@pytest.mark.sample(15)
def test_an_index_that_calls_the_same_keys_equal_is_not_refused(database, what, mode):
    table_with(database, *FIT_INDEXES[what])
    PostgresSink(database, "t", key="k", mode=mode).check(StartInfo("q", "out"))


def test_a_deferrable_index_beside_the_keys_own_is_refused(database):
    """PostgreSQL would refuse each batch."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t (k int PRIMARY KEY, v int, CONSTRAINT late UNIQUE (k) DEFERRABLE, "
            "UNIQUE (k, v) DEFERRABLE)"
        )
        with pytest.raises(
            SinkCheckError,
            match="unique index late of public.t is on the columns of key= and deferrable.*NOT "
            "DEFERRABLE",
        ):
            PostgresSink(database, "t", key="k").check(StartInfo("q", "out"))
        connection.execute("ALTER TABLE t DROP CONSTRAINT late")
    PostgresSink(database, "t", key="k").check(StartInfo("q", "out"))


@pytest.mark.parametrize("mode", ["staged", "prepared", "upsert"])
def test_an_index_that_calls_other_keys_equal_is_found_while_the_query_runs(database, mode):
    query = Query(
        database, f"{BLIND} CREATE TABLE t (id text PRIMARY KEY, n int)", key="id", mode=mode
    )
    one = pa.RecordBatch.from_pydict({"id": ["a"], "n": pa.array([1], pa.int32())})
    query.execute("CREATE UNIQUE INDEX made ON t (id COLLATE blind)")
    with pytest.raises(
        AttemptFailedError,
        match="unique index made of public.t has the collation blind for id, and the column has "
        '"default"',
    ):
        query.write(0, one) if mode == "upsert" else query.prepare(0, one)
    assert query.execute("TABLE t") == []
    query.sweep(own=True)
