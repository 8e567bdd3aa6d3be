from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
import math
import random
import uuid
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from onceforall.errors import (
    AttemptFailedError,
    RefusedRecordError,
    SchemaError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.sinks.postgres.driver.table_lookup import describe
from onceforall.sinks.postgres.task import copying
from onceforall.sinks.postgres.task.copying import CopyStream
from support.databases import drop_database, make_database

pytestmark = pytest.mark.postgres

UTC = dt.timezone.utc
EPOCH = dt.datetime.fromisoformat("1970-01-01")
LONG = 2**63 - 1


@pytest.fixture(scope="module")
def shared(postgres):
    """One database for the whole module: each test here rolls back, or drops what it made."""
    name = make_database(postgres)
    yield postgres.url(name)
    assert not drop_database(postgres, name)


@pytest.fixture
def connection(shared):
    with psycopg.connect(shared) as opened:
        # No value may depend on it.
        opened.execute("SET TimeZone = 'America/St_Johns'")
        opened.commit()
        yield opened
        opened.rollback()
        opened.execute("DROP TABLE IF EXISTS t")


def make(connection, types):
    columns = ", ".join(f"c{at} {kind}" for at, kind in enumerate(types))
    connection.execute(f"CREATE TABLE t ({columns})".encode())
    return describe(connection, "t")


def copied(connection, table, rows, stream=None):
    stream = stream or CopyStream(connection, table.identifier, table.columns, shown=table.shown)
    for part in [rows] if isinstance(rows, pa.RecordBatch) else rows:
        stream.write(part)
    return stream.finish()


def batch(*arrays):
    return pa.RecordBatch.from_arrays(list(arrays), names=[f"c{at}" for at in range(len(arrays))])


def round_trip(connection, kind, array, query="c0"):
    table = make(connection, [kind])
    assert copied(connection, table, batch(array)) == len(array)
    return [row[0] for row in connection.execute(f"SELECT {query} FROM t ORDER BY ctid".encode())]


def shuffled(values):
    """The values, with nulls among them."""
    return [
        None,
        *itertools.chain.from_iterable(
            (value, None) if at % 3 == 2 else (value,) for at, value in enumerate(values)
        ),
    ]


def micros(*values):
    return pa.array(values, pa.int64()).cast(pa.timestamp("us"))


EXACT = {
    "smallint": ("smallint", pa.int16(), [0, 1, -1, 32767, -32768]),
    "byte into smallint": ("smallint", pa.int8(), [0, 127, -128]),
    "integer": ("integer", pa.int32(), [0, 2**31 - 1, -(2**31)]),
    "bigint": ("bigint", pa.int64(), [0, LONG, -LONG - 1]),
    "bigint into smallint": ("smallint", pa.int64(), [0, 32767, -32768]),
    "int into double": ("double precision", pa.int32(), [0, 2**31 - 1]),
    "bigint into numeric": (
        "numeric",
        pa.int64(),
        [Decimal(0), Decimal(LONG), Decimal(-LONG - 1), Decimal(-9999), Decimal(10000)],
    ),
    "boolean": ("boolean", pa.bool_(), [True, False]),
    "text": (
        "text",
        pa.string(),
        ["", "a", "ümläut", "\U0001d518nicode", "\x01\x7f", "x" * 100_000, "a\nb\tc\\N", "\N{BOM}"],
    ),
    "large text": ("text", pa.large_string(), ["", "ü", "z" * 70_000]),
    "varchar": ("varchar(3)", pa.string(), ["", "abc", "\U0001d518ab"]),
    "bytea": ("bytea", pa.binary(), [b"", b"\0", bytes(range(256)), b"\\x00"]),
    "date": (
        "date",
        pa.date32(),
        [
            dt.date(1, 1, 1),
            dt.date(1899, 12, 31),
            dt.date(1969, 12, 31),
            dt.date(2000, 1, 1),
            dt.date(9999, 12, 31),
        ],
    ),
    "time": ("time", pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999_999)]),
    "interval": (
        "interval",
        pa.duration("us"),
        [dt.timedelta(0), dt.timedelta(days=400, microseconds=1), dt.timedelta(microseconds=-1)],
    ),
    "uuid": ("uuid", pa.string(), [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), uuid.uuid4()]),
    "integers": (
        "integer[]",
        pa.list_(pa.int32()),
        [[], [1], [None], [1, None, -3], list(range(1000))],
    ),
    "bigints into smallints": ("smallint[]", pa.list_(pa.int64()), [[], [1, None], [-32768]]),
    "texts": ("text[]", pa.list_(pa.string()), [[], [""], [None, "a,b", '"q"', "{}", "NULL"]]),
    "varchars": ("varchar(2)[]", pa.list_(pa.string()), [["ab", None], []]),
    "numerics": (
        "numeric(10,2)[]",
        pa.list_(pa.decimal128(10, 2)),
        [[Decimal("1.10"), None, Decimal("-99999999.99")], []],
    ),
    "booleans": ("boolean[]", pa.list_(pa.bool_()), [[True, None, False], []]),
    "byteas": ("bytea[]", pa.list_(pa.binary()), [[b"", None, b"\0"], []]),
    "dates": ("date[]", pa.list_(pa.date32()), [[dt.date(1, 1, 1), None], []]),
    "doubles": ("double precision[]", pa.list_(pa.float64()), [[1.5, None, math.inf], []]),
    "two dimensions": (
        "integer[]",
        pa.list_(pa.list_(pa.int32())),
        [[], [[1]], [[1, 2, None], [4, 5, 6]], [[7], [8], [9]]],
    ),
    "two dimensions of text": (
        "text[][]",
        pa.list_(pa.list_(pa.string())),
        [[["a", None], ["", "d"]], []],
    ),
}


@pytest.mark.parametrize("case", EXACT)
def test_values_come_back_as_they_were_sent(connection, case):
    kind, arrow, values = EXACT[case]
    values = shuffled(values)
    as_sent = [str(value) if isinstance(value, uuid.UUID) else value for value in values]
    if pa.types.is_integer(arrow):
        as_sent = [None if value is None else int(value) for value in values]
    assert round_trip(connection, kind, pa.array(as_sent, arrow)) == values
    # Without nulls other paths are taken.
    connection.execute("DROP TABLE t")
    plain = [value for value in as_sent if value is not None]
    assert round_trip(connection, kind, pa.array(plain, arrow)) == [
        value for value in values if value is not None
    ]


@pytest.mark.parametrize(
    ("kind", "arrow"), [("real", pa.float32()), ("double precision", pa.float64())]
)
def test_floats_come_back_to_the_bit(connection, kind, arrow):
    small, large = (
        (1.401298464324817e-45, 3.4028234663852886e38)
        if kind == "real"
        else (5e-324, 1.7976931348623157e308)
    )
    values = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, small, large, None, math.nan]
    found = round_trip(connection, kind, pa.array(values, arrow), "c0::double precision")
    assert found[:-1] == values[:-1]
    assert [math.copysign(1, value) for value in found[:2]] == [1, -1]
    assert math.isnan(found[-1])


def test_timestamps_are_the_same_instants_whatever_the_sessions_time_zone(connection):
    times = [
        dt.datetime.fromisoformat("0001-01-01T00:00:00"),
        dt.datetime.fromisoformat("1582-10-04T23:59:59.999999"),
        dt.datetime.fromisoformat("1883-11-18T12:03:57"),
        dt.datetime.fromisoformat("1969-12-31T23:59:59.999999"),
        dt.datetime.fromisoformat("1970-01-01T00:00:00"),
        dt.datetime.fromisoformat("2000-01-01T00:00:00.000001"),
        dt.datetime.fromisoformat("2026-03-29T02:30:00"),
        dt.datetime.fromisoformat("9999-12-31T23:59:59.999999"),
        None,
    ]
    expected = [
        None if time is None else (time - EPOCH) // dt.timedelta(microseconds=1) for time in times
    ]
    table = make(connection, ["timestamp", "timestamptz"])
    plain = pa.array(times, pa.timestamp("us"))
    assert copied(
        connection,
        table,
        batch(plain, plain.cast(pa.int64()).cast(pa.timestamp("us", "Asia/Kathmandu"))),
    ) == len(times)
    rows = connection.execute(
        "SELECT extract(epoch FROM c0) * 1000000, extract(epoch FROM c1) * 1000000, c0, c1 AT "
        "TIME ZONE 'UTC' FROM t ORDER BY ctid"
    ).fetchall()
    assert [row[0] for row in rows] == expected
    assert [row[1] for row in rows] == expected
    assert [row[2] for row in rows] == times
    assert [row[3] for row in rows] == times


def test_timestamps_beyond_pythons_arrive_and_those_beyond_postgresqls_are_refused(connection):
    table = make(connection, ["timestamp"])
    far, early = 9_000_000_000_000_000_000, -62_200_000_000_000_000
    assert copied(connection, table, batch(micros(far, early, LONG))) == 3
    found = connection.execute(
        "SELECT extract(epoch FROM c0) * 1000000, c0::text FROM t ORDER BY ctid"
    ).fetchall()
    assert [row[0] for row in found[:2]] == [far, early]
    assert found[2][1] == "294247-01-10 04:00:54.775807"
    assert (found[0][1][:6], found[1][1][-2:]) == ("287168", "BC")
    with (
        connection.transaction(force_rollback=True),
        pytest.raises(RefusedRecordError, match="column c0 is outside the timestamps"),
    ):
        copied(connection, table, batch(micros(0, -LONG)))


@pytest.mark.parametrize(
    ("precision", "scale"),
    [
        (1, 0),
        (1, 1),
        (5, 2),
        (9, 9),
        (18, 6),
        (19, 0),
        (19, 4),
        (20, 3),
        (28, 27),
        (38, 0),
        (38, 1),
        (38, 2),
        (38, 18),
        (38, 37),
        (38, 38),
    ],
)
def test_decimals_of_every_precision_and_scale_arrive_exactly(connection, precision, scale):
    largest = Decimal(10**precision - 1).scaleb(-scale, decimal.Context(prec=60))
    smallest = Decimal(1).scaleb(-scale, decimal.Context(prec=60))
    chosen = random.Random(precision * 100 + scale)
    some = [
        Decimal(chosen.randrange(-(10**precision) + 1, 10**precision)).scaleb(
            -scale, decimal.Context(prec=60)
        )
        for _ in range(200)
    ]
    some += [
        Decimal(chosen.randrange(0, 10 ** chosen.randrange(1, precision + 1))).scaleb(
            -scale, decimal.Context(prec=60)
        )
        for _ in range(200)
    ]
    values = [
        Decimal(0).scaleb(-scale),
        largest,
        largest.copy_negate(),
        smallest,
        smallest.copy_negate(),
        None,
        *some,
    ]
    array = pa.array(values, pa.decimal128(precision, scale))
    table = make(connection, ["numeric", f"numeric({precision},{scale})"])
    # A slice, so that an offset into the buffers is there.
    padded = pa.concat_arrays([array.slice(0, 3), array]).slice(3)
    assert copied(connection, table, batch(padded, padded)) == len(values)
    rows = connection.execute("SELECT c0, c1, c0::text, c1::text FROM t ORDER BY ctid").fetchall()
    expected = [None if value is None else format(value, f".{scale}f") for value in values]
    assert [row[0] for row in rows] == values
    assert [row[1] for row in rows] == values
    assert [row[2] for row in rows] == expected
    assert [row[3] for row in rows] == expected


@pytest.mark.parametrize("kind", ["json", "jsonb"])
def test_json_arrives(connection, kind):
    texts = [
        '{"b": [1, null, "ü"], "a": 1e3}',
        "[]",
        "null",
        '"\\u00fc"',
        None,
        "12345678901234567890.123456789",
    ]
    assert round_trip(connection, kind, pa.array(texts), "c0::text")[4] is None
    rows = [row[0] for row in connection.execute("SELECT c0 FROM t ORDER BY ctid")]
    assert rows[:4] == [json.loads(text) for text in texts[:4]]
    assert connection.execute("SELECT count(*) FROM t WHERE c0 IS NULL").fetchone() == (1,)
    found = connection.execute("SELECT c0::text FROM t WHERE c0::text LIKE '1%'").fetchone()
    assert found == (texts[5],)


def test_arrays_of_json_uuid_and_timestamps(connection):
    table = make(connection, ["jsonb[]", "uuid[]", "timestamptz[]", "json[]"])
    one = str(uuid.uuid4())
    time = dt.datetime(1899, 1, 2, 3, 4, 5, 6, UTC)
    rows = batch(
        pa.array([['{"a": 1}', None], None, []]),
        pa.array([[one.upper(), None], None, []]),
        pa.array([[time, None], None, []], pa.list_(pa.timestamp("us", "UTC"))),
        pa.array([["1", None], None, []]),
    )
    assert copied(connection, table, rows) == 3
    assert connection.execute("SELECT * FROM t ORDER BY ctid").fetchall() == [
        ([{"a": 1}, None], [uuid.UUID(one), None], [time, None], [1, None]),
        (None, None, None, None),
        ([], [], [], []),
    ]


def test_enums_domains_and_their_arrays(connection):
    connection.execute("CREATE TYPE mood AS ENUM ('sad', 'it''s ü')")
    connection.execute("CREATE DOMAIN positive AS integer CHECK (VALUE > 0)")
    connection.execute("CREATE DOMAIN code AS varchar(2) NOT NULL")
    table = make(connection, ["mood", "mood[]", "positive", "positive[]", "code"])
    rows = batch(
        pa.array(["it's ü", None]),
        pa.array([["sad", None], []]),
        pa.array([1, None]),
        pa.array([[1, 2], None]),
        pa.array(["ab", ""]),
    )
    assert copied(connection, table, rows) == 2
    found = connection.execute(
        "SELECT c0::text, c1::text[], c2, c3::int[], c4 FROM t ORDER BY ctid"
    ).fetchall()
    assert found == [("it's ü", ["sad", None], 1, [1, 2], "ab"), (None, [], None, None, "")]
    for at, value, why in (
        (
            0,
            pa.array(["sad", "glad"]),
            r"'glad' in column c0 is none of the labels that mood had at the query's start: sad, it's ü. If it has more now, start",
        ),
        (
            2,
            pa.array([3, 0], pa.int32()),
            r"\(column c2\).*positive.*The first such row: c0=\"it's ü\".*c2=0",
        ),
        (4, pa.array(["a", None]), "null in column c4 is null, and the column takes no null"),
    ):
        bad = rows.set_column(at, f"c{at}", value)
        bad = bad if at != 2 else bad.set_column(0, "c0", pa.array(["sad", "it's ü"]))
        with (
            connection.transaction(force_rollback=True),
            pytest.raises(RefusedRecordError, match=why),
        ):
            copied(connection, table, bad)


REFUSED = {
    "varchar": (
        "varchar(3)",
        pa.array(["abc", "abcd"]),
        r"'abcd' in column c0 has more than the 3 characters that character varying\(3\) takes",
    ),
    "char": ("char(1)", pa.array(["a", "  "]), r"has more than the 1 characters"),
    "numeric": (
        "numeric(5,2)",
        pa.array([Decimal("999.99"), Decimal("-1000.00")], pa.decimal128(7, 2)),
        r"Decimal\('-1000.00'\) in column c0 has more than the 3 digits",
    ),
    "all decimals": (
        "numeric(2,2)",
        pa.array([Decimal("0.99"), Decimal("1.00")], pa.decimal128(7, 2)),
        r"has more than the 0 digits",
    ),
    "integer in numeric": (
        "numeric(3,1)",
        pa.array([99, 100]),
        r"100 in column c0 has more than the 2 digits",
    ),
    "smallint": (
        "smallint",
        pa.array([32767, 32768]),
        r"32768 in column c0 is out of range for smallint \(-32768 to 32767\)",
    ),
    "negative": ("integer", pa.array([0, -(2**31) - 1]), r"is out of range for integer"),
    "uuid": ("uuid", pa.array([str(uuid.UUID(int=1)), "1234"]), r"'1234' in column c0 is no uuid"),
    "uuid bytes": ("uuid", pa.array([bytes(16), bytes(15)]), r"has other than the 16 bytes"),
    "zero": ("text", pa.array(["a", "a\0b"]), r"'a\\x00b' in column c0 has the character U\+0000"),
    "zero in an array": (
        "text[]",
        pa.array([["a"], ["b", "\0"]]),
        r"column c0 holds an element that has the character U\+0000",
    ),
    "not utf-8": (
        "text",
        pa.array([b"a", b"\xff"]).view(pa.string()),
        r"b'\\xff' in column c0 is no valid UTF-8",
    ),
    "not utf-8 in an array": (
        "text[]",
        pa.ListArray.from_arrays([0, 1, 3], pa.array([b"a", b"b", b"\xff"]).view(pa.string())),
        r"\[b'b', b'\\xff'\] in column c0 holds an element that is no valid UTF-8",
    ),
    "long element": (
        "varchar(1)[]",
        pa.array([["a"], [None, "bc"]]),
        r"\[None, 'bc'\] in column c0 holds an element that has more than the 1 characters",
    ),
    "ragged": (
        "integer[]",
        pa.array([[[1], [2]], [[1], [2, 3]]]),
        r"holds arrays of different lengths",
    ),
    "null array": (
        "integer[]",
        pa.array([[[1], [2]], [[1], None]]),
        r"holds a null in place of an array",
    ),
    "empty arrays": ("integer[]", pa.array([[[1], [2]], [[], []]]), r"holds empty arrays"),
    "not null": (
        "integer NOT NULL",
        pa.array([1, None], pa.int32()),
        r"null in column c0 is null, and the column takes no null",
    ),
    "early date": (
        "date",
        pa.array([0, -3_000_000], pa.int32()).cast(pa.date32()),
        r"is before the first date of PostgreSQL",
    ),
    "json": (
        "json",
        pa.array(["{}", "{nope"]),
        r"\(column c0\): invalid input syntax for type json",
    ),
    "jsonb": (
        "jsonb",
        pa.array(["{}", '{"a": "\\u0000"}']),
        r"\(column c0\): unsupported Unicode escape",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_value_that_the_table_cannot_take_is_named_with_column_and_row(connection, case):
    kind, array, why = REFUSED[case]
    table = make(connection, [kind, "integer"])
    number = pa.array([10, 11], pa.int32())
    with pytest.raises(RefusedRecordError, match=why) as caught:
        copied(connection, table, batch(array, number))
    assert "Table public.t can't take the batch" in str(caught.value)
    assert "c1=11" in str(caught.value)
    connection.rollback()
    connection.execute("SELECT 1")


@pytest.mark.parametrize(
    "raised",
    ["", " USING ERRCODE = '45000'", " USING ERRCODE = 'ZZ001'", " USING ERRCODE = '38000'"],
    ids=["its own code", "a code of SQL's", "a code of the user's", "a routine's code"],
)
def test_a_row_that_the_function_of_a_domain_refuses_is_named(connection, raised):
    connection.execute(
        "CREATE FUNCTION checked(n integer) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN "
        f"IF n < 0 THEN RAISE EXCEPTION '% is below zero', n{raised}; END IF; RETURN true; END $$"
    )
    connection.execute("CREATE DOMAIN checked AS integer CHECK (checked(VALUE))")
    table = make(connection, ["integer", "checked"])
    rows = batch(pa.array([10, 11, 12], pa.int32()), pa.array([1, -7, -8], pa.int32()))
    with pytest.raises(
        RefusedRecordError,
        match=r"Table public.t can't take the batch \(column c1\): -7 is below zero. The first such "
        r"row: c0=11, c1=-7. Mend or filter the data",
    ):
        copied(connection, table, rows)


@pytest.mark.parametrize("statement_bytes", [10_000, copying.STATEMENT_BYTES])
def test_the_first_bad_row_is_named_however_many_follow(connection, monkeypatch, statement_bytes):
    monkeypatch.setattr(copying, "STATEMENT_BYTES", statement_bytes)
    table = make(connection, ["jsonb", "bigint"])
    texts = ["{}"] * 5000
    texts[2345] = "{"
    texts[4000] = "["
    parts = [
        batch(pa.array(texts[at : at + 500]), pa.array(range(at, at + 500), pa.int64()))
        for at in range(0, 5000, 500)
    ]
    with pytest.raises(RefusedRecordError, match=r"The first such row: c0='\{', c1=2345\."):
        copied(connection, table, parts)


def test_rows_keep_their_order_and_number_over_several_copies(connection, monkeypatch):
    monkeypatch.setattr(copying, "STATEMENT_BYTES", 10_000)
    monkeypatch.setattr(copying, "_BATCH_BYTES", 1_000)
    table = make(connection, ["bigint", "text"])
    numbers = list(range(3000))
    rows = batch(
        pa.array(numbers), pa.array([f"row {number}" if number % 7 else None for number in numbers])
    )
    stream = CopyStream(connection, table.identifier, table.columns)
    stream.write(rows.slice(0, 0))
    stream.write(rows.slice(0, 1234))
    stream.write(rows.slice(1234))
    assert stream.finish() == stream.written == 3000
    assert stream.finish() == 3000
    connection.commit()
    found = connection.execute("SELECT c0, c1 FROM t ORDER BY c0").fetchall()
    assert found == [(number, f"row {number}" if number % 7 else None) for number in numbers]


def test_no_rows_are_no_copy(connection):
    table = make(connection, ["bigint"])
    assert CopyStream(connection, table.identifier, table.columns).finish() == 0
    with pytest.raises(SchemaError, match="without columns"):
        CopyStream(connection, table.identifier, [])


def test_a_cancelled_stream_leaves_nothing_and_the_connection_serves_again(connection):
    table = make(connection, ["bigint"])
    connection.commit()
    stream = CopyStream(connection, table.identifier, table.columns)
    stream.write(batch(pa.array([1, 2, 3])))
    stream.cancel()
    stream.cancel()
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
    with pytest.raises(AttemptFailedError, match="is over"):
        stream.write(batch(pa.array([1])))


def test_a_session_that_was_ended_is_a_sink_that_is_away(shared):
    with psycopg.connect(shared) as doomed, psycopg.connect(shared, autocommit=True) as other:
        table = make(doomed, ["bigint"])
        stream = CopyStream(doomed, table.identifier, table.columns)
        stream.write(batch(pa.array([1])))
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [doomed.info.backend_pid])
        endless = itertools.repeat(batch(pa.array(range(10_000))), 1000)
        with pytest.raises(SinkUnavailableError):
            copied(doomed, table, endless, stream)
        stream.cancel()


def test_columns_of_other_names_or_types_are_refused(connection):
    table = make(connection, ["bigint", "text"])
    stream = CopyStream(connection, table.identifier, table.columns)
    with pytest.raises(SchemaError, match="Rows with the columns c0 came for c0, c1"):
        stream.write(batch(pa.array([1])))
    with pytest.raises(
        SchemaError, match=r"'c1' came as int64, which can't be written as text.*restart the query"
    ):
        stream.write(batch(pa.array([1]), pa.array([1])))


@pytest.mark.parametrize("now", ["double precision", "integer", "numeric(7,1)"])
def test_a_column_whose_type_was_changed_since_the_start_is_refused(connection, now):
    table = make(connection, ["numeric(7,2)" if "numeric" in now else "bigint"])
    connection.execute(f"ALTER TABLE t ALTER c0 TYPE {now}".encode())
    with pytest.raises(
        SchemaError,
        match="'c0' of table public.t was .* when the query started, and is something else now. "
        "Restart",
    ):
        copied(connection, table, batch(pa.array([1, 2])))
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_a_column_that_became_wider_is_written(connection):
    table = make(connection, ["varchar(3)"])
    connection.execute("ALTER TABLE t ALTER c0 TYPE varchar")
    assert copied(connection, table, batch(pa.array(["abc"]))) == 1


def test_a_table_that_is_gone_is_told(connection):
    table = make(connection, ["bigint"])
    stream = CopyStream(connection, sql.Identifier("gone"), table.columns)
    with pytest.raises(
        SinkCheckError,
        match='COPY to table "gone" failed: relation "gone" does not exist.*Restart the query',
    ):
        copied(connection, table, batch(pa.array([1])), stream)


def test_half_a_column_of_nulls_of_no_type_is_written_as_nulls(connection):
    table = make(connection, ["bigint", "text[]"])
    assert copied(connection, table, batch(pa.nulls(3), pa.nulls(3))) == 3
    assert connection.execute(
        "SELECT count(*) FROM t WHERE c0 IS NULL AND c1 IS NULL"
    ).fetchone() == (3,)
