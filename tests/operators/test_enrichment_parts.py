"""What enrichment is made of, without Spark: the cache, versions by time, the arguments; and
lookups and pins on a real PostgreSQL."""

import math
import pickle
import random
import re
import sys
import threading
import uuid
from datetime import date, datetime, timezone
from decimal import Decimal
from types import SimpleNamespace
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from onceforall.errors import (
    OptionError,
    RefusedRecordError,
    SchemaError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.operators import _enricher, enrichment
from onceforall.operators import _pins as pins
from onceforall.operators._enricher import Enricher, TimedCache, version_at
from onceforall.operators.identity import record_name
from onceforall.operators.lookups import Lookup, Version, read_text
from onceforall.operators.postgres_lookup import PostgresLookup
from support.relay import Relay


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Store(Lookup):
    """A lookup in a dict, that counts what it is asked."""

    name = "store"

    def __init__(self, values):
        self.columns = {"name": "string", "price": "decimal(10,2)"}
        self.values, self.asked = values, []

    def fetch(self, keys):
        self.asked.append(list(keys))
        return {key: [Version(self.values[key])] for key in keys if key in self.values}


def test_what_is_enriched_in_each_batch_is_handed_over_once():
    """A function of a query may call ``enrich``; the thread keeps its properties."""

    def secret(value):
        lookup = Store({})
        lookup.secrets = lambda: {"password": value}
        return lookup

    told = {}
    context = SimpleNamespace(setLocalProperty=told.__setitem__)
    frame = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))
    first = enrichment._hand_over(secret("one"), frame)
    assert [enrichment._hand_over(secret("one"), frame) for _ in range(3)] == [first] * 3
    assert len(told) == 1
    assert enrichment._hand_over(secret("two"), frame) != first
    assert len(told) == 2
    assert enrichment._hand_over(Store({}), frame)[1] is None


def postgres(url="postgresql://u@h/db", table="names", **changes):
    given = {"key": "k", "columns": {"name": "string"}, **changes}
    return PostgresLookup(url, "".join(table), **given)


def test_the_same_call_in_each_batch_is_known_again_and_no_other_one():
    def known(lookup, call="call"):
        return enrichment._known_as(lookup, call)

    token, kind = known(postgres())
    assert kind is None
    # Texts that are equal are equal, be they one object or two.
    assert known(postgres(table=["na", "mes"])) == (token, None)
    assert known(postgres(password="hunter2")) != (token, None)  # it is withheld, and says so
    others = [
        known(postgres("postgresql://u@other/db")),
        known(postgres(table="others")),
        known(postgres(key="l")),
        known(postgres(columns={"name": "binary"})),
        known(postgres(timeout_s=11)),
        known(postgres(), "another call"),
    ]
    assert len({token, *(each for each, _ in others)}) == 7
    by_function = [known(postgres(password=lambda: "hunter2")) for _ in range(3)]
    assert len(set(by_function)) == 1
    assert by_function[0][1] is not None
    assert known(Store(STORE)) == known(Store(dict(STORE)))
    assert known(Store(STORE))[0] != known(Store({}))[0]
    assert known(Store(STORE))[1] == known(Store({}))[1] is not None
    # A notebook makes functions and classes anew, under the same names.
    main = sys.modules["__main__"]
    anew = []
    for host in ("one", "two"):
        exec(f"def where():\n    return 'host={host}'", main.__dict__)
        anew.append(known(postgres(main.where))[0])
    del main.where
    assert anew[0] != anew[1]
    # What can't be pickled at all is Spark's to refuse.
    unfit = Store({"k": threading.Lock()})
    assert known(unfit)[0] != known(unfit)[0]


def test_of_lookups_that_are_perhaps_the_same_a_worker_keeps_the_last_one(monkeypatch):
    monkeypatch.setattr(_enricher, "received", lambda *_: {})
    monkeypatch.setattr(_enricher, "_workers", _enricher.OrderedDict())
    opened = []

    class Open(Store):
        def fetch(self, keys):
            if self not in opened:
                opened.append(self)
            return super().fetch(keys)

        def close(self):
            opened.remove(self)

    for n in range(20):
        list(enricher(Open(STORE), kind="one")([batch("a")]))
        list(enricher(Open(STORE), kind="two")([batch("a")]))
        list(enricher(Open(STORE), token=f"t{n % 3}")([batch("a")]))
    assert len(opened) == 5


def enricher(lookup, **changes):
    settings = {
        "token": uuid.uuid4().hex, "kind": None, "handed_as": "", "pad": None, "lookup": lookup, "by": ("k",), "types": (pa.string(), pa.decimal128(10, 2)), "missing": "null", "defaults": (None, None), "status": None,
        "as_of": None, "pin_schema": None, "cache_keys": 100, "cache_for_s": 60.0,
    }  # fmt: skip
    return Enricher(**{**settings, **changes})


def batch(*keys):
    return pa.RecordBatch.from_pydict(
        {"k": pa.array(keys, pa.string()), "n": pa.array(range(len(keys)), pa.int64())}
    )


STORE = {("a",): ("A", "1.50"), ("b",): ("B", None)}


class TestTheCache:
    def test_it_forgets_what_is_old_and_what_was_not_used_for_longest(self):
        clock = Clock()
        cache = TimedCache(2, 10, clock)
        cache.put(("a",), [Version(("1",))], 0)
        cache.put(("b",), (), 0)
        assert cache.get(("a",)) == [Version(("1",))]
        assert cache.get(("b",)) == ()
        cache.get(("a",))
        cache.put(("c",), (), 5)
        assert (cache.get(("b",)), len(cache)) == (None, 2)
        clock.now = 10
        assert cache.get(("a",)) is None
        assert cache.get(("c",)) == ()
        assert len(cache) == 1

    def test_one_of_no_size_or_no_time_holds_nothing(self):
        for cache in (TimedCache(0, 10, Clock()), TimedCache(10, 0, Clock())):
            cache.put(("a",), (), 0)
            assert cache.get(("a",)) is None


class TestRows:
    def test_distinct_keys_are_asked_for_once_and_remembered_also_the_missing_ones(self):
        store = Store(STORE)
        made = enricher(store, status="s")
        (rows,) = made([batch("a", "b", "a", None, "c")])
        assert rows.to_pydict()["name"] == ["A", "B", "A", None, None]
        assert rows.to_pydict()["price"] == [Decimal("1.50"), None, Decimal("1.50"), None, None]
        assert rows.to_pydict()["s"] == ["found", "found", "found", "missing", "missing"]
        list(made([batch("c", "a"), batch("d")]))
        assert store.asked == [[("a",), ("b",), ("c",)], [("d",)]]

    def test_the_answer_for_a_missing_key_is_the_one_that_was_asked_for(self):
        (rows,) = enricher(Store(STORE), defaults=("none", Decimal("0.00")))([batch("x", "b")])
        assert rows.to_pydict() == {
            "k": ["x", "b"],
            "n": [0, 1],
            "name": ["none", "B"],
            "price": [Decimal("0.00"), None],
        }
        (rows,) = enricher(Store(STORE), missing="drop")([batch("x", "b", None)])
        assert rows.to_pydict()["n"] == [1]
        with pytest.raises(RefusedRecordError, match=r"store has no row for \{'k': 'x'\}"):
            list(enricher(Store(STORE), missing="fail")([batch("a", "x")]))

    def test_a_value_that_does_not_fit_its_type_is_named(self):
        with pytest.raises(RefusedRecordError, match="store, column 'price'"):
            list(enricher(Store({("a",): ("A", "1.505")}))([batch("a")]))

    @pytest.mark.parametrize(
        ("kind", "arrow", "text"),
        [
            ("date", pa.date32(), "infinity"), ("date", pa.date32(), "0044-03-15 BC"), ("date", pa.date32(), "10000-01-01"),
            ("timestamp", pa.timestamp("us", "UTC"), "-infinity"), ("bigint", pa.int64(), "1.5"), ("tinyint", pa.int8(), "128"),
            ("bigint", pa.int64(), str(2**63)), ("decimal(10,2)", pa.decimal128(10, 2), "NaN"), ("decimal(10,2)", pa.decimal128(10, 2), "x"),
        ],
    )  # fmt: skip
    def test_a_text_that_cannot_be_read_is_named_with_its_key(self, kind, arrow, text):
        store = Store({("a",): ("A", None), ("b",): ("B", text)})
        store.columns = {"name": "string", "v": kind}
        with pytest.raises(
            RefusedRecordError,
            match=rf"\{{'k': 'b'\}} in store, column 'v', does not fit the type "
            rf"{re.escape(str(arrow))}",
        ):
            list(enricher(store, types=(pa.string(), arrow))([batch("c", "a", "b", "a")]))

    @pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
    def test_a_string_that_is_no_utf_8_is_a_missing_key(self, kind):
        texts = pa.array(
            [b"a", b"\xff", None, b"a\xc3", b"b"],
            pa.large_binary() if pa.types.is_large_string(kind) else pa.binary(),
        )
        column = pa.Array.from_buffers(
            kind, 5, texts.buffers()
        )  # Spark checks no STRING that is cast from a BINARY
        rows = pa.RecordBatch.from_arrays([column], ["k"])
        store = Store(STORE)
        (made,) = enricher(store, status="s")([rows])
        assert made.column("s").to_pylist() == ["found", "missing", "missing", "missing", "found"]
        assert made.column("name").to_pylist() == ["A", None, None, None, "B"]
        assert made.column("k").equals(column)
        assert store.asked == [[("a",), ("b",)]]
        with pytest.raises(RefusedRecordError, match=r"no row for \{'k': b'\\xff'\}"):
            list(enricher(Store(STORE), missing="fail")([rows]))

    def test_a_day_of_a_year_that_python_has_not_is_a_missing_key(self):
        days = pa.array([0, 2_932_897, None, -719_163, 2**31 - 1, -(2**31), 2_932_896], pa.int32())
        rows = pa.RecordBatch.from_arrays([days.cast(pa.date32())], ["k"])
        store = Store({(date(1970, 1, 1),): ("A", None), (date(9999, 12, 31),): ("B", None)})
        (made,) = enricher(store, status="s")([rows])
        assert made.column("name").to_pylist() == ["A", None, None, None, None, None, "B"]
        assert made.column("s").to_pylist() == ["found", *["missing"] * 5, "found"]
        assert made.column("k").equals(rows.column("k"))
        assert store.asked == [[(date(1970, 1, 1),), (date(9999, 12, 31),)]]
        with pytest.raises(RefusedRecordError, match=r"no row for \{'k': '10000-01-01'\}"):
            list(enricher(Store(STORE), missing="fail")([rows.slice(1)]))

    def test_a_binary_key_is_a_key_whatever_its_bytes_are(self):
        rows = pa.RecordBatch.from_pydict({"k": pa.array([b"\xff", b"a"], pa.binary())})
        (made,) = enricher(Store({(b"\xff",): ("A", None)}), status="s")([rows])
        assert made.column("s").to_pylist() == ["found", "missing"]

    def test_what_failed_a_batch_is_asked_for_again_when_it_is_run_again(self):
        for before, after, missing in [
            ({}, ("A", "1.50"), "fail"),
            ({("a",): ("A", "x")}, ("A", "1.50"), "null"),
        ]:
            store = Store(dict(before))
            made = enricher(store, missing=missing)
            with pytest.raises(RefusedRecordError):
                list(made([batch("a")]))
            store.values["a",] = after
            (rows,) = made([batch("a")])
            assert rows.to_pydict()["price"] == [Decimal("1.50")]

    def test_of_versions_the_one_that_held_at_the_time_is_taken(self):
        draw = random.Random(3)
        for _ in range(2000):
            starts = draw.sample(range(20), draw.randrange(5))
            versions = [
                Version((str(start),), start, draw.choice([None, start + draw.randrange(1, 9)]))
                for start in starts
            ]
            if draw.random() < 0.3:
                versions.append(Version(("first",), None, draw.choice([None, 4])))
            at, held = draw.randrange(-2, 30), None
            for version in sorted(versions, key=lambda v: -1 if v.from_us is None else v.from_us):
                if version.from_us is None or version.from_us <= at:
                    held = version.values if version.to_us is None or at < version.to_us else None
            assert version_at(draw.sample(versions, len(versions)), at) == held
        assert version_at([Version(("x",))], None) is None


@pytest.fixture
def make(database):
    made = []

    def lookup(table="t", key="k", columns=None, **changes):
        settings = {"retry_for_s": 5, **changes}
        made.append(
            PostgresLookup(
                lambda: database, table, key=key, columns=columns or {"v": "string"}, **settings
            )
        )
        return made[-1]

    yield lookup
    for each in made:
        each.close()


@pytest.fixture
def hanging(database, monkeypatch):
    """A relay to the database, and lookups through it that wait for half a second."""

    class Hanging:
        def __init__(self, relay):
            self.relay, self.made = relay, []

        def lookup(self, key="k", retry_for_s=30):
            address = f"{self.relay.url(database)}?connect_timeout=2"
            self.made.append(
                PostgresLookup(
                    address,
                    "t",
                    key=key,
                    columns={"v": "string"},
                    timeout_s=0.2,
                    retry_for_s=retry_for_s,
                )
            )
            return self.made[-1]

    monkeypatch.setattr(PostgresLookup, "_SLACK_S", 0.3, raising=False)
    monkeypatch.setattr(PostgresLookup, "_PATIENCE_AT_START_S", 0.5)
    parts = urlsplit(database)
    with Relay(parts.hostname, parts.port) as relay:
        made = Hanging(relay)
        yield made
        for each in made.made:
            each.close()


@pytest.fixture
def pinned(database, make, monkeypatch):
    """Make functions for batches of a query whose lookups are pinned: ``pinned(missing,
    number)``."""
    with psycopg.connect(database, autocommit=True) as connection:
        pins.create(connection, "pinned")

    def enrich_batch(missing, number):
        made = enricher(
            make(columns={"v": "int"}),
            types=(pa.int32(),),
            defaults=(None,),
            missing=missing,
            pin_schema="pinned",
        )

        def run(batches, number=number):
            def of_this_batch(lookup, schema, cleaned):
                return pins.Pins(lookup, schema, "q", number, cleaned)

            monkeypatch.setattr(_enricher, "_pins_of_this_task", of_this_batch)
            return made(batches)

        return run

    return enrich_batch


def execute(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def rows_of(url, query):
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.postgres
class TestPostgres:
    def test_values_of_all_types_come_back_as_they_are(self, database, make):
        execute(
            database,
            """CREATE TABLE "T 1" (k uuid, "K;2 %s" int, s text, b bool, i bigint, f float8, d numeric(38,18), day date, at timestamptz, x bytea)""",
            """INSERT INTO "T 1" VALUES ('00000000-0000-0000-0000-00000000000A', 1, 'é"\\', true, -9223372036854775808, 0.1, 1e-18, '2026-11-21',
               '2026-11-21 23:10:00.000001+01', '\\x00ff'), ('00000000-0000-0000-0000-00000000000b', 1, null, null, null, null, null, null, null, null)""",
        )
        types = {
            "s": "string", "b": "boolean", "i": "bigint", "f": "double", "d": "decimal(38,18)", "day": "date", "at": "timestamp", "x": "binary",
        }  # fmt: skip
        lookup = make('"T 1"', ["k", "K;2 %s"], types)
        lookup.check(2)
        a, b, c = ((f"00000000-0000-0000-0000-00000000000{end}", 1) for end in "aBc")
        arrow = (
            pa.string(),
            pa.bool_(),
            pa.int64(),
            pa.float64(),
            pa.decimal128(38, 18),
            pa.date32(),
            pa.timestamp("us", "UTC"),
            pa.binary(),
        )
        made = enricher(lookup, by=("k", "n"), types=arrow, defaults=(None,) * 8, status="found")
        rows = pa.RecordBatch.from_pydict(
            {"k": [key[0] for key in (a, b, c)], "n": pa.array([1, 1, 1], pa.int32())}
        )
        (found,) = made([rows])
        first, second, third = found.to_pylist()
        assert first["at"].isoformat() == "2026-11-21T22:10:00.000001+00:00"
        assert [first[name] for name in ("s", "b", "i", "f", "d", "day", "x")] == [
            'é"\\', True, -(2**63), 0.1, Decimal("1e-18"), date(2026, 11, 21), b"\x00\xff",
        ]  # fmt: skip
        assert [row["found"] for row in (first, second, third)] == ["found", "found", "missing"]
        assert {second[name] for name in types} == {third[name] for name in types} == {None}

    def test_a_time_that_spark_does_not_have_is_named_with_column_and_key(self, database, make):
        execute(
            database,
            "CREATE TABLE t (k text, day date, at timestamptz)",
            "INSERT INTO t VALUES ('a', '2026-11-21', '2026-11-21 12:00+00'), ('b', 'infinity', "
            "null), ('c', '0044-03-15 BC', null), "
            "('d', null, 'infinity'), ('e', null, '-infinity')",
        )
        made = enricher(
            make(columns={"day": "date", "at": "timestamp"}),
            types=(pa.date32(), pa.timestamp("us", "UTC")),
        )
        (rows,) = made([batch("a")])
        assert [value.isoformat() for value in rows.to_pylist()[0].values() if isinstance(value, date)] == [
            "2026-11-21", "2026-11-21T12:00:00+00:00",
        ]  # fmt: skip
        for key, column in [("b", "day"), ("c", "day"), ("d", "at"), ("e", "at")]:
            with pytest.raises(
                RefusedRecordError, match=rf"\{{'k': '{key}'\}} in t\(k\):day,at, column '{column}'"
            ):
                list(made([batch("a", key)]))

    def test_history_has_its_times_and_infinity_is_none(self, database, make):
        execute(
            database,
            "CREATE TABLE t (k text, v text, since timestamptz, until timestamptz)",
            "INSERT INTO t VALUES ('a', '1', '-infinity', '1970-01-01 00:00:01+00'), ('a', '2', "
            "'1970-01-01 00:00:01+00', 'infinity'), ('a', '3', 'infinity', null)",
        )
        lookup = make(valid_from="since", valid_to="until")
        versions = lookup.fetch([("a",)])[("a",)]
        held = [version_at(versions, at) for at in (-5, 0, 999_999, 1_000_000, 10**15)]
        assert held == [("1",), ("1",), ("1",), ("2",), ("2",)]

    def test_of_two_versions_that_hold_always_nobody_knows_which_one_counts(self, database, make):
        execute(
            database,
            "CREATE TABLE t (k text, v text, since timestamptz)",
            "INSERT INTO t VALUES ('a', '1', '-infinity'), ('a', '2', null), ('b', '1', null), "
            "('b', '2', 'epoch'), ('c', '1', '-infinity'), ('c', '2', 'epoch')",
        )
        lookup = make(valid_from="since")
        found = lookup.fetch([("b",), ("c",)])
        assert [version_at(found[key,], -1) for key in "bc"] == [("1",), ("1",)]
        assert [version_at(found[key,], 0) for key in "bc"] == [("2",), ("2",)]
        with pytest.raises(RefusedRecordError, match=r"several rows for the key \('a',\)"):
            lookup.fetch([("a",)])

    def test_more_keys_than_one_query_takes_and_two_rows_of_one_key(self, database, make):
        execute(
            database,
            "CREATE TABLE t (k int, v text)",
            "INSERT INTO t SELECT n, n::text FROM generate_series(0, 24) n",
        )
        lookup = make(keys_per_query=7)
        found = lookup.fetch([(n,) for n in range(30)])
        assert found == {(n,): [Version((str(n),))] for n in range(25)}
        execute(database, "INSERT INTO t VALUES (3, 'other')")
        with pytest.raises(RefusedRecordError, match=r"several rows for the key \(3,\)"):
            lookup.fetch([(2,), (3,)])

    def test_a_key_that_the_column_cannot_hold_is_missing_and_a_value_that_cannot_be_read_is_an_error(
        self, database, make
    ):
        execute(
            database,
            "CREATE TABLE t (k uuid, n int2, v text)",
            "INSERT INTO t SELECT gen_random_uuid(), n, n FROM generate_series(0, 9) n",
        )
        with psycopg.connect(database) as connection:
            rows = [(str(k), n) for k, n in connection.execute("SELECT k, n FROM t ORDER BY n")]
        lookup = make("t", ["k", "n"])
        bad = [("no uuid", 1), (rows[0][0], 100_000), ("", 0)]
        asked = random.Random(1).sample([*rows, *bad], 13)
        assert lookup.fetch(asked) == {row: [Version((str(row[1]),))] for row in rows}
        assert lookup.fetch(bad) == {}
        (found,) = enricher(
            lookup, by=("k", "n"), types=(pa.string(),), defaults=(None,), status="s"
        )(
            [
                pa.RecordBatch.from_pydict(
                    {"k": pa.array(["a\0b", rows[3][0]]), "n": pa.array([1, 3])}
                )
            ]
        )
        assert found.to_pydict()["v"] == [None, "3"]
        with pytest.raises(RefusedRecordError, match="boolean"):
            make("t", ["k", "n"], {"v": "boolean"}).fetch([rows[2]])

    def test_keys_of_types_with_a_length_are_compared_whole(self, database, make):
        execute(
            database,
            "CREATE DOMAIN code AS char(4)",
            "CREATE TABLE t (k char(4), d code, b bit(3), w bit varying(3), s varchar(4), n "
            "numeric(4,2), v text)",
            "INSERT INTO t SELECT k, k, b::bit(3), b::varbit, k, n, k FROM (VALUES ('ABCD', "
            "'101', 1.25), ('A', '100', 1.5), ('B ', '001', 2)) r(k, b, n)",
        )

        def fetched(column, *keys):
            return {
                key: versions[0].values[0]
                for (key,), versions in make(key=column).fetch([(key,) for key in keys]).items()
            }

        for column in ("k", "d"):
            # Blanks at the end don't count for this type, however it is asked for: it has them for
            # every text that is shorter.
            assert fetched(column, "ABCD", "A", "A   ", "B", "AB", "ABCDE", " A", "", "X") == {
                "ABCD": "ABCD",
                "A": "A",
                "A   ": "A",
                "B": "B ",
            }
        assert fetched("s", "ABCD", "A", "A   ", "B", "B ") == {
            "ABCD": "ABCD",
            "A": "A",
            "B ": "B ",
        }
        assert fetched("b", "101", "100", "1", "1010", "no") == {"101": "ABCD", "100": "A"}
        assert fetched("w", "101", "100", "1", "1010") == {"101": "ABCD", "100": "A"}
        assert fetched("n", Decimal("1.25"), Decimal("1.50"), Decimal("1.3"), Decimal(2)) == {
            Decimal("1.25"): "ABCD", Decimal("1.50"): "A", Decimal(2): "B ",
        }  # fmt: skip

    def test_what_is_not_there_is_refused_at_start_with_its_name(self, database, make):
        execute(database, "CREATE TABLE t (k int, v text)")
        for lookup, words in [
            (make("nothing"), "nothing"),
            (make(columns={"w": "string"}), "w"),
            (make(key="x"), "x"),
        ]:
            with pytest.raises(SinkCheckError, match=words):
                lookup.check(1)
        with pytest.raises(OptionError, match="asks by 2 columns"):
            make().check(2)

    def test_a_slow_server_is_told_by_the_timeout_and_a_lost_connection_is_made_anew(
        self, database, make
    ):
        execute(database, "CREATE TABLE t (k int, v text)", "INSERT INTO t VALUES (1, 'x')")
        execute(database, "CREATE VIEW slow AS SELECT k, v || pg_sleep(20)::text AS v FROM t")
        with pytest.raises(SinkUnavailableError, match="timeout_s=0.2"):
            make("slow", timeout_s=0.2, retry_for_s=0.5).fetch([(1,)])
        lookup = make()
        assert lookup.fetch([(1,)])
        execute(
            database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
            "'ofa-lookup' AND datname = current_database()",
        )
        assert lookup.fetch([(1,)]) == {(1,): [Version(("x",))]}

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize(
        "step", [b"set_config", b"parse_ident", b"LIMIT 0", b"format_type", b"WITH ORDINALITY w("]
    )
    @pytest.mark.sample(2)
    def test_a_server_that_hangs_is_given_up_in_time_and_asked_again(self, database, hanging, step):
        execute(database, "CREATE TABLE t (k int, v text)", "INSERT INTO t VALUES (1, 'x')")
        lookup = hanging.lookup()
        hanging.relay.hang_at(step, connections=2)
        assert lookup.fetch([(1,)]) == {(1,): [Version(("x",))]}
        assert hanging.relay.hung == 2
        lookup = hanging.lookup(retry_for_s=1)
        hanging.relay.hang_at(step, connections=1000)
        with pytest.raises(SinkUnavailableError, match=r"within 1 s: .* no answer within"):
            lookup.fetch([(1,)])
        with pytest.raises(SinkCheckError, match="can't be asked: .* no answer within"):
            lookup.check(1)

    @pytest.mark.timeout(60)
    def test_a_server_that_takes_connections_and_says_nothing_is_given_up_in_time(
        self, database, hanging
    ):
        hanging.relay.hang_at(b"", connections=1000)
        with pytest.raises(SinkUnavailableError, match=r"within 0\.001 s: .* timeout expired"):
            hanging.lookup(retry_for_s=0.001).fetch([(1,)])

    @pytest.mark.timeout(60)
    def test_a_server_that_begins_to_hang_under_a_connection_is_asked_by_another_one(
        self, database, hanging
    ):
        execute(database, "CREATE TABLE t (k int, v text)", "INSERT INTO t VALUES (1, 'x')")
        lookup = hanging.lookup(key=["k"])
        with psycopg.connect(database, autocommit=True) as connection:
            pins.create(connection, "pinned")
        made = pins.Pins(lookup, "pinned", "q", 1)
        assert lookup.fetch([(1,)])
        hanging.relay.hang_at(b"WITH ORDINALITY w(", connections=1)
        assert lookup.fetch([(1,)])
        for number, step in enumerate([b"SELECT key, value", b"INSERT INTO", b"DELETE"]):
            hanging.relay.hang_at(step, connections=1)
            made.settle([(number,)], lambda keys: dict.fromkeys(keys, ("x",)))
            made.clean()
            pins.Pins(lookup, "pinned", "q", 20).clean()
            assert hanging.relay.hung == 1
        hanging.relay.hang_at(b"pg_namespace", connections=1)
        with pytest.raises(SinkUnavailableError, match="no answer within timeout_s=0.2"):
            enrichment._create_pins(lookup, "others")

    def test_of_many_tasks_that_pin_a_key_the_first_decides_for_all(self, database, make):
        with psycopg.connect(database, autocommit=True) as connection:
            pins.create(connection, "my 5 % pins")
            pins.create(connection, "my 5 % pins")
        keys, answers, barrier = [(f"k{n}", n) for n in range(50)], {}, threading.Barrier(4)

        def task(number):
            lookup = make("t", ["k", "n"])
            mine = {key: (str(number), None) for key in keys if key[1] % 5}
            barrier.wait(20)
            answers[number] = pins.Pins(lookup, "my 5 % pins", "q", 7).settle(
                random.Random(number).sample(keys, 50), lambda _: mine
            )

        threads = [threading.Thread(target=task, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert answers[0] == answers[1] == answers[2] == answers[3]
        assert {key for key, value in answers[0].items() if value is None} == {
            key for key in keys if key[1] % 5 == 0
        }
        nobody_asks = pins.Pins(make("t", ["k", "n"]), "my 5 % pins", "q", 7).settle(keys, None)
        assert nobody_asks == answers[0]
        pins.Pins(make("t", ["k", "n"]), "my 5 % pins", "q", 20).clean()
        assert pins.Pins(make("t", ["k", "n"]), "my 5 % pins", "q", 7).settle(
            keys[:1], lambda _: {keys[0]: ("new",)}
        ) == {keys[0]: ("new",)}

    @pytest.mark.parametrize("begins", [0, 1, 7], ids=["even", "odd", "odd_later"])
    def test_pins_are_deleted_also_where_no_tenth_batch_has_rows(self, database, pinned, begins):
        """Behind each batch with rows Spark may run one without, in which no task looks up."""
        execute(database, "CREATE TABLE t (k text, v text)", "INSERT INTO t VALUES ('a', '1')")
        made, behind = pinned("null", begins), []
        for number in range(begins, begins + 60, 2):
            list(made([batch("a", f"b{number}")], number))
            ((oldest, count),) = rows_of(
                database, "SELECT min(batch), count(*) FROM pinned.lookups"
            )
            behind.append(number - oldest)
            assert count == 2 * (behind[-1] // 2 + 1)
        # All that a replay of the last batch may ask for; and not a deletion in each batch.
        assert min(behind[10:]) == pins.KEPT_BATCHES
        assert max(behind) == 2 * pins.KEPT_BATCHES - 2

    def test_a_worker_deletes_pins_of_each_query_now_and_then_and_not_in_each_batch(
        self, make, monkeypatch
    ):
        cleaned, deletions = {}, []
        tasks = [("q", 5), ("r", 5), ("q", 6), ("q", 6), ("q", 14), ("q", 15), ("q", 2)]
        for task in tasks:
            made = pins.Pins(make("t", ["k"]), "pinned", *task, cleaned)

            def delete(*_, task=task):
                deletions.append(task)
                return [(0,)]

            monkeypatch.setattr(made, "_execute", delete)
            made.clean()
        assert deletions == [("q", 5), ("r", 5), ("q", 15), ("q", 2)]

    def test_more_pins_than_the_server_deletes_in_time_do_not_fail_the_batch(
        self, database, make, monkeypatch
    ):
        with psycopg.connect(database, autocommit=True) as connection:
            pins.create(connection, "pinned")
        lookup = make("t", ["k"], timeout_s=4, retry_for_s=0.001)
        monkeypatch.setattr(pins, "_DELETED_AT_ONCE", 10)
        pins.Pins(lookup, "pinned", "q", 1).settle([(f"k{n}",) for n in range(95)], lambda _: {})
        pins.Pins(lookup, "pinned", "q", 30).settle([("now",)], lambda _: {})
        execute(
            database,
            "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_sleep(0.05); RETURN OLD; END'",
            "CREATE TRIGGER slow BEFORE DELETE ON pinned.lookups FOR EACH ROW EXECUTE FUNCTION "
            "slowly()",
        )
        pins.Pins(lookup, "pinned", "q", 30).clean()
        assert rows_of(database, "SELECT batch FROM pinned.lookups") == [(30,)]

    def test_a_pin_is_that_of_its_table_and_of_its_types(self, database, make):
        """Two lookups of one query may name their tables alike."""
        with psycopg.connect(database, autocommit=True) as connection:
            pins.create(connection, "pinned")
            for schema in ("de", "fr"):
                connection.execute(f"CREATE SCHEMA {schema}")
                connection.execute(f"CREATE TABLE {schema}.names (k text, v text)")
            for schema, table in (("a.b", "c"), ("a", "b.c")):
                connection.execute(f'CREATE SCHEMA "{schema}"')
                connection.execute(f'CREATE TABLE "{schema}"."{table}" (k text, v text)')
        separator = "&" if "?" in database else "?"

        def lookup(schema, kind="string"):
            there = f"{database}{separator}options=-csearch_path%3D{schema}"
            return PostgresLookup(there, "names", key="k", columns={"v": kind})

        key, answers = ("a",), {}
        lookups = [lookup("de"), lookup("fr"), lookup("de", "timestamp"), lookup("de")]
        lookups.append(PostgresLookup(database, "de.names", key="k", columns={"v": "STRING"}))
        for table in ('"a.b".c', 'a."b.c"'):
            lookups.append(PostgresLookup(database, table, key="k", columns={"v": "string"}))
        for number, each in enumerate(lookups):
            made = pins.Pins(each, "pinned", "q", 1)
            answers[number] = made.settle([key], lambda _, n=number: {key: (str(n),)})[key]
            each.close()
        kept = {0: ("0",), 1: ("1",), 2: ("2",), 3: ("0",), 4: ("0",)}
        assert answers == {**kept, 5: ("5",), 6: ("6",)}

    def test_what_another_task_pinned_while_one_was_looking_up_is_what_both_use(
        self, database, make
    ):
        with psycopg.connect(database, autocommit=True) as connection:
            pins.create(connection, "pinned")
        mine, others = (pins.Pins(make("t", ["k"]), "pinned", "q", 1) for _ in range(2))
        key = ("k",)

        def look_up_slowly(_):
            assert others.settle([key], lambda _: {key: ("first",)}) == {key: ("first",)}
            return {key: ("second",)}

        assert mine.settle([key], look_up_slowly) == {key: ("first",)}
        assert others.settle([key], None) == {key: ("first",)}

    def test_a_batch_that_failed_for_what_it_looked_up_finds_what_was_mended(
        self, database, pinned
    ):
        execute(
            database,
            "CREATE TABLE t (k text, v text)",
            "INSERT INTO t VALUES ('a', '1'), ('b', '2')",
        )
        made = pinned("fail", 1)
        with pytest.raises(RefusedRecordError, match=r"no row for \{'k': 'c'\}"):
            list(made([batch("a"), batch("b", "c")]))
        execute(
            database, "INSERT INTO t VALUES ('c', 'three')", "UPDATE t SET v = '10' WHERE k = 'a'"
        )
        with pytest.raises(RefusedRecordError, match=r"\{'k': 'c'\} in t\(k\):v, column 'v'"):
            list(made([batch("a"), batch("b", "c")]))
        execute(database, "UPDATE t SET v = '3' WHERE k = 'c'")
        rows = [batch.to_pydict()["v"] for batch in made([batch("a"), batch("b", "c")])]
        assert rows == [[1], [2, 3]]
        execute(database, "UPDATE t SET v = '30' WHERE k = 'c'")
        assert [batch.to_pydict()["v"] for batch in made([batch("a"), batch("b", "c")])] == rows

    def test_of_what_is_pinned_only_what_no_replay_can_use_is_asked_for_again(
        self, database, pinned
    ):
        execute(
            database,
            "CREATE TABLE t (k text, v text)",
            "INSERT INTO t SELECT k, 9 FROM unnest('{a,b,c,d}'::text[]) k",
        )
        keys = [(key,) for key in "abcd"]
        for number in (1, 2):
            first = pins.Pins(
                PostgresLookup(database, "t", key="k", columns={"v": "int"}), "pinned", "q", number
            )
            assert (
                first.settle(keys, lambda _: {("a",): ("1",), ("b",): ("one",), ("c",): (None,)})[
                    ("d",)
                ]
                is None
            )
            first._lookup.close()
        (rows,) = pinned("fail", 1)([batch("a", "b", "c", "d")])
        assert rows.to_pydict()["v"] == [1, 9, None, 9]
        (rows,) = pinned("null", 2)([batch("a", "b", "c", "d")])
        assert rows.to_pydict()["v"] == [1, 9, None, None]
        execute(database, "UPDATE t SET v = '8'")
        (again,) = pinned("fail", 1)([batch("d", "c", "b", "a")])
        assert again.to_pydict()["v"] == [9, None, 9, 1]

    def test_keys_of_any_length_are_pinned_and_short_ones_by_their_plain_names(
        self, database, make
    ):
        with psycopg.connect(database, autocommit=True) as connection:
            pins.create(connection, "pinned")
        draw, query = random.Random(5), str(uuid.uuid4())

        def text(length):
            return "".join(chr(draw.randrange(0x20, 0x7F)) for _ in range(length))

        longest, longer = (
            text(pins.LONGEST_NAME_BYTES - len("s1294:")),
            text(pins.LONGEST_NAME_BYTES - len("s1294:") + 1),
        )
        far = text(20_000)
        plain = [("short",), ("#",), ("é",), (longest,)]
        keys = [*plain, (longer,), (far,), (far[:-1] + "\t",)]
        execute(database, "CREATE TABLE t (k text)")
        columns = [*(f"{draw.getrandbits(252):063x}" for _ in range(15))]
        with psycopg.connect(database) as connection:
            known = make(columns=[*columns, "x"]).pinned_as(connection)
            columns.append("y" * (pins.LONGEST_NAME_BYTES - len(known) + 1))
            lookups = [make(), make(columns=columns), make(columns=[*columns, "x"])]
            names = [lookup.pinned_as(connection) for lookup in lookups]
        assert names[0] == '[["public", "t"], ["k"], {"v": "string"}]'
        assert len(names[1]) == pins.LONGEST_NAME_BYTES
        for lookup in lookups:
            values = {key: (f"{n} {lookup.name}",) for n, key in enumerate(keys)}
            made = pins.Pins(lookup, "pinned", query, 1).settle(
                keys, lambda asked, values=values: {key: values[key] for key in asked}
            )
            assert made == values
            assert pins.Pins(lookup, "pinned", query, 1).settle(keys, None) == values
        with psycopg.connect(database) as connection:
            noted = connection.execute(
                "SELECT lookup, key FROM pinned.lookups WHERE query_id = %s AND batch = 1", [query]
            ).fetchall()
        assert len(noted) == len(keys) * len(lookups)
        assert {lookup for lookup, _ in noted if not lookup.startswith("#")} == {
            *names[:2],
        }
        assert {key for _, key in noted if not key.startswith("#")} == {
            record_name(key) for key in plain
        }

    def test_a_pin_that_another_task_has_replaced_meanwhile_stays(self, database, make):
        with psycopg.connect(database, autocommit=True) as connection:
            pins.create(connection, "pinned")
        mine, others = (pins.Pins(make("t", ["k"]), "pinned", "q", 1) for _ in range(2))
        keys = [("k",), ("l",)]
        assert others.settle(keys, lambda _: {}) == dict.fromkeys(keys)

        def usable(found):
            if None in found.values():
                raise RefusedRecordError("missing")

        def read_and_be_late(names):
            found = read(names)
            mine._read = read
            assert others.settle(
                keys, lambda _: dict.fromkeys(keys, ("first",)), usable
            ) == dict.fromkeys(keys, ("first",))
            return found

        read, mine._read = mine._read, read_and_be_late
        assert mine.settle(
            keys, lambda _: dict.fromkeys(keys, ("second",)), usable
        ) == dict.fromkeys(keys, ("first",))

    def test_no_secret_is_in_a_pickle_or_a_text(self, postgres, database):
        execute(database, "CREATE TABLE t (k int, v text)", "INSERT INTO t VALUES (1, 'x')")
        password = psycopg.conninfo.conninfo_to_dict(database)["password"]
        lookup = PostgresLookup(database, "t", key="k", columns={"v": "string"}, retry_for_s=1)
        lookup.receive(lookup.secrets())
        assert lookup.fetch([(1,)])
        shipped = pickle.dumps(enricher(lookup))
        assert password.encode() not in shipped
        assert password not in repr(enricher(lookup))
        arrived = pickle.loads(shipped).lookup
        with pytest.raises(
            SinkCheckError, match="'password' for PostgreSQL did not reach this process"
        ):
            arrived.fetch([(1,)])
        arrived.receive(lookup.secrets())
        assert arrived.fetch([(1,)])
        arrived.close()
        lookup.close()

    def test_types_that_are_not_given_are_those_of_the_table(self, database, make):
        execute(
            database,
            "CREATE TABLE t (k int, a varchar(3), b numeric(12,2), c timestamptz, d jsonb, e "
            "int2, f numeric)",
        )
        lookup = make(columns=["a", "b", "c", "d", "e"])
        lookup.check(1)
        assert lookup.columns == {
            "a": "string",
            "b": "decimal(12,2)",
            "c": "timestamp",
            "d": "string",
            "e": "smallint",
        }
        with pytest.raises(SchemaError, match="'f'.*numeric.*Say it"):
            make(columns=["f"]).check(1)

    @pytest.mark.parametrize(
        ("ddl", "value", "kind", "given"),
        [
            ("double precision", "1e300", "float", None),
            ("double precision", "3.4028236e38", "float", None),
            ("numeric", "1e40", "float", None),
            ("numeric", "1e400", "double", None),
            ("bigint", "9007199254740993", "double", None),
            ("integer", "16777217", "float", None),
            ("text", "'1_000'", "int", None),
            ("text", "'٣'", "int", None),
            ("text", "'1_0.5'", "decimal(10,2)", None),
            ("text", "'1_0.5'", "double", None),
            ("text", "'2026-W01-1'", "date", None),
            ("text", "'20260101'", "date", None),
            ("double precision", "1e22", "double", 1e22),
            ("double precision", "'-Infinity'", "float", -math.inf),
            ("real", "3.4028235e38", "float", 3.4028234663852886e38),
            ("real", "0.1", "float", 0.10000000149011612),
            ("bigint", "9007199254740992", "double", 9007199254740992.0),
            ("numeric", "0.1", "double", 0.1),
            ("text", "'1.5e3'", "decimal(10,2)", Decimal("1500.00")),
            ("text", "'-12'", "int", -12),
            (
                "timestamp",
                "'2026-01-01 12:00'",
                "timestamp",
                datetime(2026, 1, 1, 12, tzinfo=timezone.utc),
            ),
        ],
    )
    def test_a_value_that_a_type_cannot_hold_is_refused_and_none_is_changed(
        self, database, make, ddl, value, kind, given
    ):
        execute(
            database, f"CREATE TABLE t (k text, v {ddl})", f"INSERT INTO t VALUES ('a', {value})"
        )
        lookup = make(columns={"v": kind})
        lookup.check(1)
        made = enricher(lookup, types=(ARROW[kind],))
        if given is not None:
            assert next(made([batch("a")])).to_pylist()[0]["v"] == given
        else:
            with pytest.raises(RefusedRecordError, match=r"\{'k': 'a'\} in t\(k\):v, column 'v'"):
                list(made([batch("a")]))

    @pytest.mark.parametrize(
        ("ddl", "kind"),
        [("text", "timestamp"), ("bigint", "Timestamp "), ("bit(3)", "int"), ("bit(3)", "float")],
    )
    def test_what_would_be_read_as_something_else_is_refused_at_start(
        self, database, make, ddl, kind
    ):
        execute(database, f"CREATE DOMAIN d AS {ddl}", "CREATE TABLE t (k text, v d)")
        with pytest.raises(SchemaError, match=r"column 'v' of .* is not read as"):
            make(columns={"v": kind}).check(1)
        make(columns={"v": "string"}).check(1)


ARROW = {
    "float": pa.float32(),
    "double": pa.float64(),
    "int": pa.int32(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


@pytest.mark.parametrize("text", ["True", "t", "1", ""])
def test_a_boolean_of_a_store_is_true_or_false_and_nothing_else_is_taken_for_false(text):
    assert [read_text("boolean", "v")(each) for each in ("true", "false")] == [True, False]
    with pytest.raises(ValueError, match="neither"):
        read_text("boolean", "v")(text)


@pytest.mark.parametrize(
    ("kind", "fits", "others"),
    [
        ("long", [5, 5.0, -(2**63)], [1.5, 2**63, "5", True]),
        ("date", [date(2026, 1, 1)], [datetime(2026, 1, 1, 13), 5, "2026-01-01"]),  # noqa: DTZ001
        ("float", [0.1, 1, float("inf"), float("nan")], [1e300, 16777217, "1"]),
        ("double", [0.1, 1, float("-inf")], [2**53 + 1]),
        ("decimal(10,2)", [Decimal("1.50"), 5], [Decimal("1.005"), 1.5]),
        ("binary", [b"\xff", "x"], [5]),
        ("string", ["x"], [5]),
        ("boolean", [True], [1]),
    ],
)
def test_a_default_is_taken_as_it_is_or_refused(kind, fits, others):
    types = StructType().add("v", kind)
    for value in fits:
        assert enrichment._checked_defaults({"v": value}, types, "null") == (value,)
    for value in others:
        with pytest.raises(RefusedRecordError, match="A value of defaults, column 'v'"):
            enrichment._checked_defaults({"v": value}, types, "null")


def test_types_and_arguments_that_make_no_sense_are_refused():
    for changes, error, words in [
        ({"columns": {"v": "array<int>"}}, SchemaError, "'v' has the type 'array<int>'"),
        ({"valid_to": "u"}, OptionError, "needs valid_from"),
        ({"timeout_s": 0}, OptionError, "timeout_s"),
        ({"key": ()}, OptionError, "key="),
    ]:
        with pytest.raises(error, match=words):
            PostgresLookup("host=h", "t", **{"key": "k", "columns": {"v": "string"}, **changes})
