"""Keys that the server takes for equal and Spark doesn't: brought to one form, or refused."""

import psycopg
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from onceforall.errors import SchemaError
from onceforall.sink import StartInfo
from onceforall.sinks.postgres.sink import PostgresSink
from onceforall.sinks.postgres.tables import describe

pytestmark = [pytest.mark.postgres]

UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
SAME = {
    "uuid": [UUID, UUID.upper(), "{" + UUID + "}", UUID.replace("-", ""), "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11"],
    "char(3)": ["a", "a ", "a  "],
}
DIFFERENT = {
    "uuid": [UUID, UUID[:-1] + "2"],
    "char(3)": ["a", " a", "A"],
    "varchar(3)": ["a", "a ", "A", " a"],
    "text": ["a", "a ", "A"],
}
REFUSED = [
    "citext", "jsonb", "timestamptz(0)", "timestamp(3)", "uuid[]", "char(3)[]", 'text COLLATE "blind"',
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
            connection.execute("CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
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
    forms = [row.k for row in spark.createDataFrame([(text,) for text in SAME[kind]], schema).select(*columns).collect()]
    assert len(set(forms)) == 1
    different = [
        row.k for row in spark.createDataFrame([(text,) for text in DIFFERENT[kind]], schema).select(*columns).collect()
    ]
    assert len(set(different)) == len(DIFFERENT[kind])
    with psycopg.connect(database) as connection:
        for old, new in zip(SAME[kind] + DIFFERENT[kind], forms + different, strict=True):
            connection.execute("CREATE TEMP TABLE IF NOT EXISTS one (LIKE t)")
            connection.execute("INSERT INTO one VALUES (%s)", [old])
            assert connection.execute("SELECT count(*) FROM one WHERE k = %s", [new]).fetchone() == (1,)
            connection.execute("DELETE FROM one")


@pytest.mark.spark
@pytest.mark.parametrize("text", ["", "no uuid", "{" + UUID, UUID + "}", UUID[:-1], None, "abcdefgh"])
def test_what_is_no_uuid_is_left_for_the_server_to_refuse(spark, made, text):
    schema = StructType([StructField("k", StringType())])
    assert [
        row.k for row in spark.createDataFrame([(text,)], schema).select(*made("uuid", "upsert").columns(schema)).collect()
    ] == [text]


@pytest.mark.spark
@pytest.mark.parametrize("kind", REFUSED)
def test_a_key_that_only_the_server_can_compare_is_refused_but_where_it_does(spark, made, kind):
    schema = spark.sql(f"SELECT CAST(NULL AS {SPARK.get(kind, 'string')}) AS k").schema
    sink = made(kind, "prepared")
    with pytest.raises(SchemaError, match="mode='staged'"):
        sink.columns(schema)
    sink._mode = "staged"
    assert len(sink.columns(schema)) == 1


def test_a_collation_of_the_index_alone_counts(database, made):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        connection.execute("CREATE TABLE t (k text NOT NULL, plain text)")
        connection.execute("CREATE UNIQUE INDEX ON t (k COLLATE blind)")
        table = describe(connection, "t")
    assert [column.is_deterministic for column in table.columns] == [False, True]
