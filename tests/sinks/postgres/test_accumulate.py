"""``accumulate=``: rows add to the row of their key, once, through everything."""

from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from onceforall.errors import (
    NewerEntryError,
    OptionError,
    RefusedRecordError,
    SchemaError,
    SinkCheckError,
)
from onceforall.sinks.postgres.sink import PostgresSink
from support.postgres_sink import Query

pytestmark = pytest.mark.postgres

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, n int, least int, greatest int)"
ACCUMULATE = {"n": "sum", "least": "min", "greatest": "max"}


def counted(*numbers, n=1):
    """One row per number, with `n` as its value in all columns."""
    values = pa.array([n] * len(numbers), pa.int32())
    return pa.RecordBatch.from_pydict(
        {"id": pa.array(numbers, pa.int64()), "n": values, "least": values, "greatest": values}
    )


def accumulating(url, **options):
    return Query(url, TABLE, **{"key": "id", "accumulate": ACCUMULATE, **options})


def table(query):
    return sorted(query.execute("SELECT id, n, least, greatest FROM t"))


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_rows_add_to_what_is_there_and_to_each_other(database, mode):
    query = accumulating(database, mode=mode)
    # In the mode prepared Spark brings each key to one task.
    parts = (
        [counted(1, 1, 2, n=5), counted(3, n=7)]
        if mode == "prepared"
        else [counted(1, 2, n=5), counted(1, n=5), counted(3, n=7)]
    )
    query.commit(0, query.prepare(0, *parts))
    assert table(query) == [(1, 10, 5, 5), (2, 5, 5, 5), (3, 7, 7, 7)]
    query.commit(1, query.prepare(1, counted(1, 4, n=-3)))
    assert table(query) == [(1, 7, -3, 5), (2, 5, 5, 5), (3, 7, 7, 7), (4, -3, -3, -3)]


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_second_commit_adds_nothing_also_in_another_run_and_much_later(database, mode):
    query = accumulating(database, mode=mode)
    first = query.prepare(0, counted(1, n=5))
    query.commit(0, first)
    assert query.successor().commit(0, first).lost == ()
    assert table(query) == [(1, 5, 5, 5)]
    second = query.prepare(1, counted(1, n=5))
    query.commit(1, second)
    assert query.successor().commit(1, second).lost == ()
    assert table(query) == [(1, 10, 5, 5)]


def test_a_merge_that_another_process_makes_again_adds_once(database):
    query = accumulating(database)
    query.commit(0, query.prepare(0, counted(1, n=5)))
    decided = query.prepare(1, counted(1, 1, n=5))
    query.sink.close()
    # The merge that was held is gone; the table has changed since the decision.
    query.execute("UPDATE t SET n = n + 100")
    other = query.successor()
    other.commit(1, decided)
    other.successor().commit(1, decided)
    assert table(query) == [(1, 115, 5, 5)]


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_nulls_add_nothing(database, mode):
    query = accumulating(database, mode=mode)
    nulls = pa.array([None, None], pa.int32())
    empty = pa.RecordBatch.from_pydict(
        {"id": pa.array([1, 2], pa.int64()), "n": nulls, "least": nulls, "greatest": nulls}
    )
    query.commit(0, query.prepare(0, empty))
    assert table(query) == [(1, None, None, None), (2, None, None, None)]
    query.commit(1, query.prepare(1, counted(1, n=4)))
    query.commit(2, query.prepare(2, empty))
    assert table(query) == [(1, 4, 4, 4), (2, None, None, None)]


def test_each_type_is_added_as_the_server_adds(database):
    columns = {
        "s": "smallint",
        "i": "int",
        "b": "bigint",
        "d": "numeric(10,2)",
        "e": "numeric",
        "f": "real",
        "g": "double precision",
    }
    columns |= {"v": "interval", "day": "date", "at": "timestamptz", "text": "varchar(20)"}
    ddl = (
        "CREATE TABLE t (id bigint PRIMARY KEY, "
        f"{', '.join(f'{name} {kind}' for name, kind in columns.items())})"
    )
    how = {name: "max" if name in {"day", "at", "text"} else "sum" for name in columns}
    query = Query(database, ddl, key="id", accumulate=how)
    noon = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    row = {
        "id": pa.array([1, 1], pa.int64()), "s": pa.array([2, 3], pa.int16()), "i": pa.array([2, 3], pa.int32()), "b": pa.array([2**40, 1], pa.int64()),
        "d": pa.array([Decimal("0.10"), Decimal("0.25")], pa.decimal128(10, 2)), "e": pa.array([Decimal("1.123456789"), Decimal(2)], pa.decimal128(20, 9)),
        "f": pa.array([0.5, 0.25], pa.float32()), "g": pa.array([0.5, 0.25], pa.float64()),
        "v": pa.array([timedelta(hours=1), timedelta(minutes=1)], pa.duration("us")), "day": pa.array([noon.date(), noon.date() + timedelta(1)]),
        "at": pa.array([noon, noon - timedelta(1)], pa.timestamp("us", "UTC")), "text": ["b", "a"],
    }  # fmt: skip
    for batch in range(2):
        query.commit(batch, query.prepare(batch, pa.RecordBatch.from_pydict(row)))
    [got] = query.execute(f"SELECT {', '.join(columns)} FROM t")
    assert got[:3] == (10, 10, 2 * (2**40 + 1))
    assert [str(value) for value in got[3:5]] == ["0.70", "6.246913578"]
    assert got[5:] == (
        1.5,
        1.5,
        timedelta(hours=2, minutes=2),
        noon.date() + timedelta(1),
        noon,
        "b",
    )


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_sum_that_its_column_cannot_hold_is_refused_before_the_decision(database, mode):
    query = accumulating(database, mode=mode)
    query.commit(0, query.prepare(0, counted(1, n=2**31 - 1)))
    with pytest.raises(RefusedRecordError, match=r"integer out of range.*id='1', n='1'"):
        query.prepare(1, counted(2, 1))
    assert table(query) == [(1, 2**31 - 1, 2**31 - 1, 2**31 - 1)]
    query.sweep(own=True)


def test_more_staging_tables_than_one_statement_takes_add_up(database, monkeypatch):
    monkeypatch.setattr("onceforall.sinks.postgres.staging.TABLES_PER_STATEMENT", 2)
    query = accumulating(database)
    query.commit(0, query.prepare(0, *[counted(1, 2, n=5)] * 5))
    assert table(query) == [(1, 25, 5, 5), (2, 25, 5, 5)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "upsert"}, "a batch that is replayed would be added twice"),
        ({"key": None}, "needs key="),
        ({"on_conflict": "ignore"}, "Leave one of them out"),
        ({"accumulate": {"n": "avg"}}, "none of 'sum', 'min' and 'max'"),
        ({"accumulate": {"id": "sum"}}, "which is in key="),
        ({"accumulate": {}}, "at least one column"),
        ({"accumulate": "n"}, "at least one column"),
        ({"accumulate": {1: "sum"}}, "no name of a column"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_arguments_that_make_no_sense_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        PostgresSink(
            "postgresql://h/d", "t", **{"key": "id", "accumulate": {"n": "sum"}, **options}
        )


def schema_of(**types):
    return StructType([StructField(name, kind()) for name, kind in types.items()])


def test_columns_that_do_not_fit_are_refused_at_start(database):
    query = Query(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY, n int, w text, j jsonb)",
        key="id",
        accumulate={"n": "sum"},
    )
    with pytest.raises(SchemaError, match="'w' is neither in key= nor in accumulate="):
        query.sink.columns(schema_of(id=LongType, n=IntegerType, w=StringType))
    with pytest.raises(SchemaError, match="names the column 'n'"):
        query.sink.columns(schema_of(id=LongType))
    with pytest.raises(SinkCheckError, match="'w' of .* there is no 'sum'"):
        query.successor(accumulate={"n": "sum", "w": "sum"}).sink.columns(
            schema_of(id=LongType, n=IntegerType, w=StringType)
        )
    with pytest.raises(SinkCheckError, match="'j' of .* there is no 'max'"):
        query.successor(accumulate={"n": "sum", "j": "max"}).sink.columns(
            schema_of(id=LongType, n=IntegerType, j=StringType)
        )


def test_a_release_that_does_not_know_of_adding_leaves_the_batch_alone(database):
    """Releases before this one look for ``key``, and would replace what is there; what a later
    one says is not overlooked either."""
    query = accumulating(database)
    [decided] = query.prepare(0, counted(1, n=5))
    assert "key" not in decided["target"]
    newer = {**decided, "target": {**decided["target"], "weighted": True}}
    with pytest.raises(NewerEntryError, match=r"newer release.*\(weighted\)"):
        query.commit(0, [newer])
    query.commit(0, [decided])
    assert table(query) == [(1, 5, 5, 5)]


def test_a_domain_over_an_enum_has_no_greatest_value(database):
    ddl = (
        "CREATE TYPE mood AS ENUM ('low', 'high'); CREATE DOMAIN shown AS mood; CREATE TABLE t "
        "(id bigint PRIMARY KEY, m mood, d shown)"
    )
    query = Query(database, ddl, key="id", accumulate={"m": "max"})
    with pytest.raises(SinkCheckError, match="'d' of .* there is no 'max'"):
        query.successor(accumulate={"m": "max", "d": "max"}).sink.columns(
            schema_of(id=LongType, m=StringType, d=StringType)
        )


def test_totals_are_not_added_and_the_sink_says_which_rows_it_replaces(database):
    capabilities = accumulating(database).sink.capabilities
    assert capabilities.output_modes == {"append"}
    assert capabilities.replaces_by == ()
    assert PostgresSink("postgresql://h/d", "t", key="id").capabilities.replaces_by == ("id",)
    assert (
        PostgresSink(
            "postgresql://h/d", "t", key="id", on_conflict="ignore"
        ).capabilities.replaces_by
        == ()
    )
