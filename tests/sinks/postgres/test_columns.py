from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

import psycopg
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, TimeType

from onceforall.errors import RefusedRecordError, SchemaError
from onceforall.sinks.postgres.driver import columns as columns_module
from onceforall.sinks.postgres.driver.columns import postgres_columns
from onceforall.sinks.postgres.driver.json_text import as_json
from onceforall.sinks.postgres.driver.table_creation import create
from onceforall.sinks.postgres.driver.table_lookup import describe
from onceforall.sinks.postgres.task.copying import CopyStream
from support.databases import drop_database, make_database

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

UTC = dt.timezone.utc


@pytest.fixture(scope="module")
def spark(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture(scope="module")
def shared(postgres):
    name = make_database(postgres)
    yield postgres.url(name)
    assert not drop_database(postgres, name)


@pytest.fixture
def connection(shared):
    with psycopg.connect(shared) as opened:
        yield opened
        opened.rollback()


def written(connection, table, frame):
    """Write a frame as the sink's tasks do, with the Arrow that Spark gives to them."""
    rows = frame.select(postgres_columns(frame.schema, table)).toArrow()
    stream = CopyStream(
        connection, table.identifier, table.select(rows.schema.names), shown=table.shown
    )
    for batch in rows.to_batches():
        stream.write(batch)
    return stream.finish()


WIDE = """
SELECT 1Y b, 2S s, 3 i, 4L l, 1.5F f, 2.5D d, 12.34BD n, 123456789012345678901234.56789BD big, true o, 'ü' t, X'00ff' x, DATE'0001-01-01' day,
  TIMESTAMP'1899-12-31 23:59:59.999999 UTC' z, TIMESTAMP_NTZ'9999-12-31 23:59:59.999999' p,
  INTERVAL '1 02:03:04.5' DAY TO SECOND iv, INTERVAL '-1-2' YEAR TO MONTH im, array(1, null) ai, array(array('a', null), array('c', 'd')) aa,
  named_struct('a', 1, 'n', null, 't', TIMESTAMP'2026-01-01 00:00:00 UTC') st, map('k', array(1)) m, parse_json('{"x": [1, null]}') v,
  array(named_struct('a', 1)) js, 'f81d4fae-7dec-11d0-a765-00a0c91e6bf6' u, '{"y": 1}' jt, array(INTERVAL '1-0' YEAR TO MONTH) ims,
  array(array(named_struct('q', 2))) deep
"""


def test_every_spark_type_arrives_and_so_does_a_row_of_nulls(spark, connection):
    frame = spark.sql(WIDE)
    nulls = frame.select([F.when(F.lit(False), F.col(name)).alias(name) for name in frame.columns])
    table = create(connection, "wide", frame.drop("u", "jt", "ims", "deep").schema, [])
    connection.execute(
        "ALTER TABLE wide ADD u uuid, ADD jt jsonb, ADD ims interval[], ADD deep jsonb[]"
    )
    table = describe(connection, "wide")
    assert written(connection, table, frame.union(nulls)) == 2
    names = ", ".join(column.name for column in table.columns if column.name not in {"im", "ims"})
    rows = connection.execute(f"SELECT {names} FROM wide ORDER BY b NULLS LAST".encode()).fetchall()
    found = dict(zip(names.split(", "), rows[0], strict=True))
    time = found["st"].pop("t")
    assert dt.datetime.fromisoformat(time) == dt.datetime(2026, 1, 1, tzinfo=UTC)
    assert {**found, "u": str(found["u"])} == {
        "b": 1, "s": 2, "i": 3, "l": 4, "f": 1.5, "d": 2.5, "n": Decimal("12.34"), "big": Decimal("123456789012345678901234.56789"), "o": True, "t": "ü",
        "x": b"\0\xff", "day": dt.date(1, 1, 1), "z": dt.datetime(1899, 12, 31, 23, 59, 59, 999_999, UTC),
        "p": dt.datetime.fromisoformat("9999-12-31T23:59:59.999999"), "iv": dt.timedelta(days=1, hours=2, minutes=3, seconds=4.5), "ai": [1, None],
        "aa": [["a", None], ["c", "d"]], "st": {"a": 1, "n": None}, "m": {"k": [1]}, "v": {"x": [1, None]}, "js": [{"a": 1}],
        "u": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "jt": {"y": 1}, "deep": [[{"q": 2}]],
    }  # fmt: skip
    intervals = connection.execute("SELECT im::text, ims::text FROM wide WHERE b = 1").fetchone()
    assert intervals == ("-1 years -2 mons", '{"1 year"}')
    assert rows[1] == (None,) * len(rows[1])


def test_json_keeps_microseconds_and_the_instant(spark, connection):
    """Spark's own ``to_json`` has milliseconds, and here an offset of -07:52:58 cut to minutes."""
    moment = "TIMESTAMP'1880-01-01 00:00:00.123456 UTC'"
    local = "TIMESTAMP_NTZ'2026-01-01 00:00:00.000001'"
    both = f"'z', {moment}, 'p', {local}"
    frame = spark.sql(
        f"SELECT {moment} z, {local} p, named_struct({both}) s, array(named_struct({both})) a, "
        f"map('k', {moment}) m, map(1.50BD, 1, 2BD, 2) n"
    )
    table = create(connection, "moments", frame.schema, [])
    assert written(connection, table, frame) == 1
    assert connection.execute(
        "SELECT z = (s->>'z')::timestamptz, p = (s->>'p')::timestamp, z = (a->0->>'z')::timestamptz, "
        "p = (a->0->>'p')::timestamp, z = (m->>'k')::timestamptz, n FROM moments"
    ).fetchall() == [(True, True, True, True, True, {"1.50": 1, "2.00": 2})]


BAD = "cast(X'61ff62' as string)"


@pytest.mark.parametrize(
    "value",
    [
        f"named_struct('x', {BAD}, 'X', 'ok')",
        f"map({BAD}, 1)",
        f"array(named_struct('m', map(1, {BAD})))",
        f"named_struct('b', X'ff', 's', named_struct('t', {BAD}))",
        f"named_struct('b', X'ff', 'l', array('ok', {BAD}))",
        f"array(named_struct('b', map('k', X'ff'), 't', {BAD}))",
        f"named_struct('b', X'ff', 'm', map({BAD}, 1))",
    ],
)
def test_a_text_within_json_that_is_no_utf8_is_refused_and_not_replaced(spark, connection, value):
    connection.execute("CREATE TABLE texts (id int, j jsonb)")
    good = value.replace(BAD, "'a\ufffdb'")
    table = describe(connection, "texts")
    assert written(connection, table, spark.sql(f"SELECT 1 id, {good} j")) == 1
    nothing = spark.sql(f"SELECT 2 id, if(false, {good}, null) j")
    assert written(connection, table, nothing) == 1
    with pytest.raises(RefusedRecordError, match="column j is no valid UTF-8"):
        written(connection, table, spark.sql(f"SELECT 3 id, {value} j"))


def _shapes(depth):
    """Values with one text each, which ``{}`` stands for, at every place that a type has."""
    yield "{}"
    if depth == 0:
        return
    for inner in _shapes(depth - 1):
        yield f"array('ok', {inner})" if inner == "{}" else f"array({inner})"
        yield f"map(1, {inner})"
        yield f"named_struct('a', {inner}, 'A', 'ok')"
        yield f"named_struct('A', X'ff', 'a', {inner})"
        yield f"named_struct('a', X'ff', 'b.`c', {inner}, 'n', cast(null AS STRING))"
    yield "map({}, X'ff')"


@pytest.mark.parametrize(
    ("depth", "fewest"), [(2, 25), pytest.param(3, 150, marks=pytest.mark.long)]
)
def test_a_bad_text_is_found_wherever_a_type_has_one(spark, depth, fewest):
    shapes = [shape for shape in _shapes(depth) if shape != "{}"]
    assert len(shapes) > fewest
    for text, is_good in ((BAD, False), ("'ü'", True)):
        frame = spark.sql(
            "SELECT " + ", ".join(f"{shape.format(text)} c{n}" for n, shape in enumerate(shapes))
        )
        found = frame.select(
            [
                F.is_valid_utf8(as_json(F.col(field.name), field.dataType)).alias(field.name)
                for field in frame.schema.fields
            ]
        ).first()
        wrong = [shape for shape, valid in zip(shapes, found, strict=True) if valid is not is_good]
        assert not wrong


@pytest.mark.parametrize(
    ("sort", "value", "arrives"),
    [
        ("YEAR", "INTERVAL '-3' YEAR", "-3 years"),
        ("MONTH", "INTERVAL '-14' MONTH", "-1 years -2 mons"),
        ("YEAR TO MONTH", "INTERVAL '178956970-7' YEAR TO MONTH", "178956970 years 7 mons"),
        ("DAY", "INTERVAL '-3' DAY", "-72:00:00"),
        ("HOUR", "INTERVAL '30' HOUR", "30:00:00"),
        ("MINUTE", "INTERVAL '61' MINUTE", "01:01:00"),
        ("SECOND", "INTERVAL '1.000001' SECOND", "00:00:01.000001"),
        ("DAY TO HOUR", "INTERVAL '1 2' DAY TO HOUR", "26:00:00"),
        ("HOUR TO SECOND", "INTERVAL '1:2:3.5' HOUR TO SECOND", "01:02:03.5"),
        ("MINUTE TO SECOND", "INTERVAL '-2:3' MINUTE TO SECOND", "-00:02:03"),
    ],
)
def test_an_interval_of_any_fields_arrives(spark, connection, sort, value, arrives):
    frame = spark.sql(f"SELECT {value} v, array({value}, null) vs, cast(null AS INTERVAL {sort}) n")
    assert f"interval {sort}".lower() == frame.schema["v"].dataType.simpleString()
    table = create(connection, "intervals", frame.schema, [])
    assert written(connection, table, frame) == 1
    found = connection.execute(
        "SELECT v::text, vs[1]::text, vs[2], n, v = vs[1] FROM intervals"
    ).fetchone()
    assert found == (arrives, arrives, None, None, True)


def test_columns_are_matched_by_name_exactly_first_and_then_without_case(spark, connection):
    connection.execute(
        'CREATE TABLE t (id serial PRIMARY KEY, campaignid int, "Mixed" int, mixed int)'
    )
    table = describe(connection, "t")
    frame = spark.sql("SELECT 1 AS campaignId, 2 AS mixed")
    assert written(connection, table, frame) == 1
    assert connection.execute('SELECT campaignid, "Mixed", mixed FROM t').fetchall() == [
        (1, None, 2)
    ]
    with pytest.raises(
        SchemaError, match="'MIXED' could be any of 'Mixed', 'mixed' of table public.t"
    ):
        postgres_columns(spark.sql("SELECT 1 AS MIXED").schema, table)
    connection.execute('CREATE TABLE odd ("a.b`c" int)')
    assert (
        written(
            connection,
            describe(connection, "odd"),
            spark.range(3).select(F.col("id").alias("a.b`c")),
        )
        == 3
    )


TABLE = (
    "CREATE TABLE t (a int NOT NULL, b varchar(3), n numeric(5,2), f real, z timestamptz, p "
    "timestamp, j jsonb, arr int[], pt point, neg numeric(3,5), "
    "g int GENERATED ALWAYS AS (a + 1) STORED, d int NOT NULL DEFAULT 5)"
)
REFUSED = {
    "missing": (
        "SELECT 'x' b",
        (
            r"'a' of table public.t \(integer\) takes no null and has no default, and the rows have "
            r"only b. Add it"
        ),
    ),
    "extra": (
        "SELECT 1 a, 2L extra",
        (
            r"has no column 'extra'; it has a, b, .*\.drop\('extra'\).*ALTER TABLE public.t ADD "
            r"COLUMN extra bigint;"
        ),
    ),
    "system column": (
        "SELECT 1 a, 2 xmin",
        "Column 'xmin' can't be a column of PostgreSQL: each table has a system column of that",
    ),
    "generated": ("SELECT 1 a, 2 g", r"'g' of table public.t is generated.*\.drop\('g'\)"),
    "string for int": (
        "SELECT '1' a",
        "Column 'a' is STRING, and column 'a' of table public.t is integer. Cast it to INT",
    ),
    "int for string": (
        "SELECT 1 a, 2 b",
        r"'b' is INT, and column 'b' of table public.t is character varying\(3\). Cast it to STRING",
    ),
    "scale": (
        "SELECT 1 a, 1.234BD n",
        r"DECIMAL\(4,3\).*numeric\(5,2\). Its values would be rounded.*DECIMAL\(4,2\)",
    ),
    "double for numeric": ("SELECT 1 a, 1D n", r"Digits would be lost. Cast it to DECIMAL\(5,2\)"),
    "double for real": ("SELECT 1 a, 1D f", "Digits would be lost. Cast it to FLOAT"),
    "instant": (
        "SELECT 1 a, current_timestamp() p",
        "depends on a time zone.*cast to TIMESTAMP_NTZ",
    ),
    "local time": (
        "SELECT 1 a, TIMESTAMP_NTZ'2026-01-01 00:00:00' z",
        "depends on a time zone.*cast to TIMESTAMP,",
    ),
    "struct for text": (
        "SELECT 1 a, named_struct('x', 1) b",
        "Make it jsonb, or turn it to text with to_json",
    ),
    "number for json": ("SELECT 1 a, 2 j", "Cast it to STRING"),
    "no array": ("SELECT 1 a, 2 arr", r"integer\[\]. Give an array"),
    "wrong elements": ("SELECT 1 a, array('x') arr", r"ARRAY<STRING>.*integer\[\]. Cast it to INT"),
    "three dimensions": ("SELECT 1 a, array(array(array(1))) arr", "At most two dimensions"),
    "unknown type": (
        "SELECT 1 a, '(1,2)' pt",
        "is point. The sink can't write this type. Use a text column",
    ),
    "odd numeric": ("SELECT 1 a, 2 neg", "negative or above its precision"),
    "void": ("SELECT 1 a, null b", "It is null always. Cast it"),
    "binary keys": ("SELECT 1 a, map(X'01', 1) j", "MAP whose keys are BINARY.*Cast the keys"),
    "keys of time": (
        "SELECT 1 a, array(named_struct('m', map(current_timestamp(), 1))) j",
        "MAP whose keys are TIMESTAMP.*Cast the keys to STRING",
    ),
    "two fields": ("SELECT 1 a, named_struct('x', 1, 'x', 2) j", "STRUCT with two fields 'x'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_before_data_moves_with_both_types_and_the_remedy(
    spark, connection, case
):
    query, why = REFUSED[case]
    connection.execute(TABLE)
    with pytest.raises(SchemaError, match=why):
        postgres_columns(spark.sql(query).schema, describe(connection, "t"))


def test_two_columns_for_one_are_refused(spark, connection):
    connection.execute("CREATE TABLE t (a int)")
    with pytest.raises(SchemaError, match="'a' and 'A' both belong to column 'a'"):
        postgres_columns(spark.sql("SELECT 1 a, 2 A").schema, describe(connection, "t"))


@pytest.mark.parametrize(
    "kind",
    ["interval(0)", "interval(3)", "interval year", "interval hour to minute", "interval(0)[]"],
)
def test_an_interval_that_cuts_its_values_is_refused(spark, connection, kind):
    connection.execute(f"CREATE TABLE cut (v {kind})")
    from pyspark.sql.types import ArrayType, DayTimeIntervalType, StructField, StructType

    written = ArrayType(DayTimeIntervalType()) if kind.endswith("[]") else DayTimeIntervalType()
    with pytest.raises(
        SchemaError, match="rounded or cut to what the column keeps. Make it a plain interval"
    ):
        postgres_columns(StructType([StructField("v", written)]), describe(connection, "cut"))


KINDS = [
    "smallint", "integer", "bigint", "numeric", "numeric(5,2)", "real", "double precision", "boolean", "text", "varchar(9)",
    "char(3)", "bytea", "date", "timestamp", "timestamptz", "time", "interval", "json", "jsonb", "uuid",
]  # fmt: skip
SORTS = [
    "TINYINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(9,4)", "BOOLEAN", "STRING", "BINARY", "DATE", "TIMESTAMP",
    "TIMESTAMP_NTZ", "INTERVAL DAY TO SECOND", "INTERVAL YEAR TO MONTH", "INTERVAL MONTH", "ARRAY<INT>", "STRUCT<x: INT>",
    "MAP<STRING, INT>", "VARIANT", "INTERVAL",
]  # fmt: skip


def test_a_cast_that_an_error_advises_leads_to_a_type_that_fits(spark, connection):
    """Of every type to every other one: who follows the advice gets no second error."""
    columns = ", ".join(f"c{at} {kind}" for at, kind in enumerate(KINDS))
    connection.execute(f"CREATE TABLE t ({columns})")
    table = describe(connection, "t")
    advised, wrong = 0, []
    for at, kind in enumerate(KINDS):
        (target,) = table.select([f"c{at}"])
        for sort in SORTS:
            source = spark.sql(f"SELECT CAST(NULL AS {sort}) a").schema["a"].dataType
            problem = columns_module._problem(source, target.type)
            found = re.search(r"[Cc]ast (?:it )?to ([A-Z_]+(?:\(\d+,\d+\))?)", problem or "")
            if found is None:
                continue
            advised += 1
            name = found.group(1)
            cast = TimeType() if name == "TIME" else DataType.fromDDL(name)
            if name != "TIME":  # which a setting must allow
                try:
                    _ = spark.sql(f"SELECT CAST(CAST(NULL AS {sort}) AS {name}) a").schema
                except AnalysisException as error:
                    wrong.append((sort, kind, error.getCondition()))
            if columns_module._problem(cast, target.type) is not None:
                wrong.append((sort, kind, problem))
    assert wrong == []
    assert advised > 100
