"""Windows on real streaming queries, with RocksDB state, restarts and replayed batches."""

import datetime as dt
import itertools
import json
import os
import random
import re
from decimal import Decimal
from pathlib import Path

import pyspark
import pytest

import onceforall as ofa
from onceforall import operators as ops
from onceforall.errors import MissingExtraError, OptionError, SchemaError, UnsupportedQueryError
from onceforall.operators import _checks, _columns
from onceforall.operators.lookups import Lookup, Version
from operators.window_reference import Rules, outputs, split_late
from support.waiting import until

pytestmark = pytest.mark.spark

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
SCHEMA = "user string, at timestamp, seq long, price decimal(10,2)"


@pytest.fixture
def session(spark):
    """A session of the tests' Spark with RocksDB for its state, in a time zone that is not UTC."""
    made = spark.newSession()
    made.conf.set(PROVIDER, ROCKSDB)
    made.conf.set("spark.sql.session.timeZone", "America/New_York")
    return made


class Files:
    """A folder of JSON files that a query streams, a file per batch."""

    def __init__(self, session, folder, schema=SCHEMA):
        self.folder, self.session, self.schema, self.number = folder, session, schema, 0
        folder.mkdir()

    def add(self, rows):
        new = self.folder.parent / "new.json"
        new.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(new, (1_700_000_000 + self.number,) * 2)
        new.rename(self.folder / f"{self.number:06d}.json")
        self.number += 1

    def stream(self):
        return (
            self.session.readStream.schema(self.schema)
            .option("maxFilesPerTrigger", 1)
            .json(str(self.folder))
        )


@pytest.fixture
def files(session, tmp_path):
    return Files(session, tmp_path / "source")


def numbers(folder):
    return sorted(int(file.name) for file in folder.iterdir() if file.name.isdecimal())


def rewind(checkpoint, batch):
    """Let Spark believe that it died in this batch, before it was committed: the next start runs
    it again."""
    for folder, first in (("commits", batch), ("offsets", batch + 1)):
        for number in numbers(checkpoint / folder):
            if number >= first:
                (checkpoint / folder / str(number)).unlink()
                (checkpoint / folder / f".{number}.crc").unlink(missing_ok=True)


def forget_last_commit(checkpoint):
    last = numbers(checkpoint / "commits")[-1]
    rewind(checkpoint, last)
    return last


def watermarks_us(checkpoint):
    logs = [checkpoint / "offsets" / str(number) for number in numbers(checkpoint / "offsets")]
    return [int(re.search(r'"batchWatermarkMs":(\d+)', log.read_text())[1]) * 1000 for log in logs]


def collected(frame, checkpoint, **trigger):
    """Run a query to the end of its input, and return its rows by batch; a replay must give the
    rows it gave before."""
    batches = {}

    def collect(batch, number):
        rows = sorted(batch.collect(), key=repr)
        assert batches.setdefault(number, rows) == rows
        batches[number] = rows

    query = (
        frame.writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
    )
    query = query.start()
    try:
        assert query.awaitTermination(120), "the query did not end"
    finally:
        query.stop()
    return batches, query


@pytest.mark.long  # test_windows_core.py does it without Spark
def test_sessions_of_event_time_through_two_sinks_are_those_of_the_reference_over_a_replayed_batch(
    files, tmp_path
):
    """One stateful pass, two outputs; a replay that gave other rows than were decided would fail
    the query."""
    rng = random.Random(8)
    now, batches = 1_700_000_000_000, []
    for number in range(6):
        events = [
            (
                rng.choice("abc"),
                now + rng.randint(-9_000, 3_000),
                100 * number + n,
                rng.randint(0, 999),
            )
            for n in range(8)
        ]
        batches.append(
            [
                event if rng.random() < 0.85 else (event[0], event[1] - 60_000, *event[2:])
                for event in events
            ]
        )
        now += rng.choice([2_000, 9_000, 30_000])
    checkpoint = tmp_path / "checkpoint"

    def run():
        stream = files.stream().withWatermark("at", "5 seconds")
        sessions = ops.session_window(
            stream,
            key="user",
            time="at",
            gap="4 seconds",
            max_events=4,
            max_duration="9 seconds",
            order_by="seq",
            trigger=ops.Trigger(count=3, every="3 seconds"),
            aggregates={
                "spend": ops.Sum("price"),
                "first": ops.First("price"),
                "rows": ops.Rows("seq", "price"),
            },
        )
        query = (
            ofa.write_stream(sessions)
            .to(ofa.FileSink(tmp_path / "sessions"), name="sessions", transform=ops.results)
            .to(ofa.FileSink(tmp_path / "late"), name="late", transform=ops.late_rows)
            .option("checkpointLocation", str(checkpoint))
            .option("onceforall.onDivergence", "fail")
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120), "the query did not end"
        finally:
            query.stop()
        return query

    def add(some):
        for batch in some:
            files.add(
                {
                    "user": user,
                    "at": (EPOCH + dt.timedelta(milliseconds=at)).isoformat(),
                    "seq": seq,
                    "price": cents / 100,
                }
                for user, at, seq, cents in batch
            )

    add(batches[:4])
    progress = run().recentProgress
    replayed = forget_last_commit(checkpoint)
    add(batches[4:])
    query = run()
    assert query.recentProgress[0]["batchId"] == replayed

    watermarks = watermarks_us(checkpoint)
    with_data = data_batches(checkpoint, len(watermarks))
    assert len(with_data) == len(batches)
    expected, late = [], []
    for user in "abc":
        shares = dict(zip(with_data, batches, strict=True))
        history = [
            (
                watermark,
                [
                    (at * 1000, seq, 0, cents)
                    for who, at, seq, cents in shares.get(number, [])
                    if who == user
                ],
            )
            for number, watermark in enumerate(watermarks)
        ]
        on_time, too_late = split_late(history)
        rules = Rules(events=4, gap=4_000_000, duration=9_000_000, early_events=3, early=3_000_000)
        expected += [(user, row) for row in outputs(rules, on_time, watermarks[-1])]
        late += [(user, event[1]) for event in too_late]
    seen = ofa.read_files(tmp_path / "sessions").to_arrow().to_pylist()
    assert sorted(map(repr, map(plain, seen))) == sorted(
        repr(
            (
                u,
                r["kind"],
                r["index"],
                r["revision"],
                r["start"],
                r["end"],
                r["events"],
                r["closed_by"],
                int(r["sum"]),
                r["first"],
                r["rows"],
            )
        )
        for u, r in expected
    )
    assert {row["closed_by"] for row in seen} >= {None, "gap", "count"}
    assert late
    seen_late = ofa.read_files(tmp_path / "late").to_arrow().to_pylist()
    assert sorted((row["user"], row["seq"]) for row in seen_late) == sorted(late)
    counted = [
        p["observedMetrics"]["session_window"]["late"] for p in [*progress, *query.recentProgress]
    ]
    assert sum(counted) >= len(late)


def data_batches(checkpoint, batches):
    """Return the numbers of the batches that read a file: those whose offset differs from that
    before."""
    offsets = [
        (checkpoint / "offsets" / str(number)).read_text().splitlines()[-1]
        for number in range(batches)
    ]
    return [
        number
        for number, offset in enumerate(offsets)
        if number == 0 or offset != offsets[number - 1]
    ]


def plain(row):
    micros = [
        None if row[name] is None else (row[name] - EPOCH) // dt.timedelta(microseconds=1)
        for name in ("window_start", "window_end")
    ]
    cents = [int(value * 100) for value in (row["spend"], row["first"])]
    rows = [int(one["price"] * 100) for one in row["rows"]]
    return (
        row["user"],
        row["kind"],
        row["window_index"],
        row["revision"],
        *micros,
        row["events"],
        row["closed_by"],
        *cents,
        rows,
    )


@pytest.mark.long
@pytest.mark.parametrize("variant", ["rows", "pandas"])
def test_sliding_count_windows_go_on_over_a_restart(files, tmp_path, variant, monkeypatch):
    if variant == "pandas":
        from pyspark.sql import GroupedData

        owners = [cls for cls in GroupedData.__mro__ if "transformWithState" in vars(cls)]
        assert owners or pyspark.__version__ < "4.1"
        for owner in owners:
            monkeypatch.delattr(owner, "transformWithState")

    def frame():
        aggregates = {"spend": ops.Sum("price"), "most": ops.Max("price"), "rows": ops.Rows("seq")}
        return ops.count_window(
            files.stream(), key=["user"], size=4, slide=2, order_by=["seq"], aggregates=aggregates
        )

    checkpoint = tmp_path / "checkpoint"
    prices = [None, Decimal("1.25"), Decimal("-3.00"), *(Decimal(n) for n in range(1, 12))]
    rows = [
        {"user": user, "seq": n, "price": None if p is None else float(p)}
        for n, p in enumerate(prices)
        for user in ("a", None)
    ]
    files.add(rows[:10])
    first, _ = collected(frame(), checkpoint)
    replayed = forget_last_commit(checkpoint)
    files.add(rows[10:])
    second, _ = collected(frame(), checkpoint)
    assert second[replayed] == first[replayed]
    for user in ("a", None):
        expected = outputs(Rules(sliding=(4, 2)), [(0, n, 0, p) for n, p in enumerate(prices)], 0)
        seen = [row for batch in {**first, **second}.values() for row in batch if row.user == user]
        seen.sort(key=lambda row: row.window_index)
        assert [row.spend for row in seen] == [
            None if r["sum"] is None else Decimal(int(r["sum"] * 100)) / 100 for r in expected
        ]
        assert [row.most for row in seen] == [r["max"] for r in expected]
        assert [[one.seq for one in row.rows] for row in seen] == [
            list(range(2 * r["index"], 2 * r["index"] + 4)) for r in expected
        ]
        assert all(
            row.kind == "window" and row.closed_by == "count" and row.events == 4 for row in seen
        )
        assert len(seen) == 6


@pytest.mark.long
def test_state_of_a_column_of_another_type_is_refused_and_whole_numbers_may_become_wider(
    session, tmp_path
):
    from pyspark.errors import StreamingQueryException

    files = Files(session, tmp_path / "source", "user string, on date, seq int")

    def run(on, seq):
        files.schema = f"user string, on {on}, seq {seq}"
        least = {"least": ops.Min("on"), "most": ops.Max("seq")}
        frame = ops.count_window(files.stream(), key="user", size=2, aggregates=least)
        batches, _ = collected(frame, tmp_path / "checkpoint")
        return [(str(row.least), row.most) for rows in batches.values() for row in rows]

    files.add([{"user": "a", "on": "2026-01-02", "seq": 1}])
    assert run("date", "int") == []
    files.add([{"user": "a", "on": "2026-01-03", "seq": 2**40}])
    with pytest.raises(StreamingQueryException, match="CheckpointMismatchError: .* another type"):
        run("timestamp", "bigint")
    assert run("date", "bigint") == [("2026-01-02", 2**40)]


@pytest.mark.usefixtures("session")  # in whose JVM types are parsed
def test_only_types_whose_values_are_the_same_in_the_state_have_one_family():
    from pyspark.sql.types import _parse_datatype_string as parsed

    def families(*kinds):
        return [_columns.carried(parsed(kind), "x").value for kind in kinds]

    assert len(set(families("tinyint", "smallint", "int", "bigint"))) == 1
    assert len(set(families("float", "double"))) == 1
    assert len(set(families("decimal(10,2)", "decimal(20,2)"))) == 1
    assert (
        len(set(families("struct<a:int,b:array<float>>", "struct<a:bigint,b:array<double>>"))) == 1
    )
    kinds = [
        *("bigint", "date", "timestamp", "timestamp_ntz", "boolean", "string", "binary", "double"),
        *("string collate UTF8_LCASE", "decimal(10,2)", "decimal(10,3)", "map<string,int>"),
        *(
            "array<string>",
            "array<binary>",
            "struct<a:date>",
            "struct<b:date>",
            "struct<a:timestamp>",
        ),
    ]
    assert len(set(families(*kinds))) == len(kinds)


@pytest.mark.long
def test_in_processing_time_the_first_rule_of_time_cannot_come_over_a_restart_nor_the_last_one_go(
    files, tmp_path
):
    from pyspark.errors import StreamingQueryException

    def run(checkpoint, **rules):
        frame = ops.session_window(files.stream(), key="user", max_events=3, aggregates={}, **rules)
        # One batch per run, whether there is a clock or not.
        collected(frame, tmp_path / checkpoint, once=True)

    clock = {"gap": "1 hour"}
    files.add([{"user": "a", "seq": 1, "price": 1}])
    run("without", trigger=ops.Trigger(count=2))
    run("with", **clock)
    files.add([{"user": "a", "seq": 2, "price": 1}])
    for checkpoint, rules in [("without", clock), ("with", {})]:
        with pytest.raises(
            StreamingQueryException, match="STATE_STORE_INVALID_CONFIG_AFTER_RESTART"
        ):
            run(checkpoint, **rules)
    run("without")
    run("with", max_duration="2 hours")


@pytest.mark.long
def test_processing_time_is_the_batchs_own_and_the_same_in_a_replay(files, tmp_path):
    def frame():
        return ops.session_window(
            files.stream(),
            key="user",
            max_events=3,
            max_duration="1 second",
            trigger=ops.Trigger(count=1),
            aggregates={"spend": ops.Sum("price")},
        )

    checkpoint = tmp_path / "checkpoint"
    batches = {}
    running = []

    def collect(batch, number):
        rows = batch.collect()
        batches.setdefault(number, []).append(rows)

    def start():
        query = (
            frame().writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint))
        )
        running.append(query.trigger(processingTime="2 seconds").start())
        return running[-1]

    def stop(query):
        """Stop it between two batches: in the middle of one, the interrupted ``collect`` would
        fill the log."""
        until(
            lambda: not query.status["isTriggerActive"] or not query.isActive,
            60,
            "the end of the batch",
        )
        query.stop()

    def said():
        return [row for attempts in list(batches.values()) for row in attempts[-1]]

    try:
        query = start()
        files.add([{"user": "a", "seq": 1, "price": 1}])
        until(
            lambda: any(row.kind == "early" for row in said()), 60, "the first event's early result"
        )
        until(
            lambda: any(row.closed_by == "duration" for row in said()),
            60,
            "the session's end, by time alone",
        )
        files.add([{"user": "b", "seq": n, "price": 1} for n in range(3)])
        until(lambda: any(row.closed_by == "count" for row in said()), 60, "the full session's end")
        stop(query)
        closed = next(
            number
            for number, attempts in batches.items()
            if any(row.closed_by == "count" for row in attempts[-1])
        )
        rewind(checkpoint, closed)
        start()
        until(lambda: len(batches[closed]) > 1, 60, "the replayed batch")
    finally:
        for query in running:
            stop(query)
    assert sorted(batches[closed][0], key=repr) == sorted(batches[closed][1], key=repr)
    by_time = next(row for row in said() if row.closed_by == "duration")
    assert by_time.window_end - by_time.window_start == dt.timedelta(seconds=1)
    full = [row for row in batches[closed][1] if row.user == "b"]
    assert [
        (row.kind, row.events, row.revision) for row in sorted(full, key=lambda row: row.revision)
    ] == [
        ("early", 1, 0),
        ("early", 2, 1),
        ("window", 3, 2),
    ]


def test_with_a_clock_of_processing_time_available_now_never_ends(files, tmp_path):
    """As the page says; it is Spark that asks for another batch each time."""
    files.add([{"user": "a", "seq": 1, "price": 1}])
    writer = (
        windowed(files.stream(), key="user", gap="1 hour")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    query = writer.trigger(availableNow=True).start()
    try:
        until(lambda: len(query.recentProgress) > 3, 120, "batches without rows")
        assert query.isActive
        assert [progress.numInputRows for progress in query.recentProgress][:3] == [1, 0, 0]
    finally:
        query.stop()


def test_a_tumbling_window_of_event_time_has_its_bounds_and_its_early_results(files, tmp_path):
    start = 1_700_000_040_000  # a multiple of a minute
    files.add(
        {"user": "a", "at": (EPOCH + dt.timedelta(milliseconds=start + ms)).isoformat(), "price": 1}
        for ms in (0, 20_000, 59_999)
    )
    files.add(
        [
            {
                "user": "a",
                "at": (EPOCH + dt.timedelta(milliseconds=start + 200_000)).isoformat(),
                "price": 1,
            }
        ]
    )
    frame = ops.tumbling_window(
        files.stream().withWatermark("at", "1 second"),
        key="user",
        time="at",
        size="1 minute",
        trigger=ops.Trigger(every="30 seconds"),
        aggregates={"spend": ops.Sum("price")},
    )
    batches, _ = collected(frame, tmp_path / "checkpoint")
    seen = sorted((row for rows in batches.values() for row in rows), key=lambda row: row.revision)
    assert [(row.kind, row.events, row.spend, row.closed_by) for row in seen] == [
        ("early", 2, Decimal("2.00"), None),
        ("window", 3, Decimal("3.00"), "time"),
    ]
    assert seen[1].window_end - seen[1].window_start == dt.timedelta(minutes=1)
    assert seen[1].window_start.timestamp() * 1000 == start


@pytest.mark.long  # test_keyed.py does it without Spark
def test_events_before_1970_are_late_only_when_a_watermark_has_passed_them(session, tmp_path):
    files = Files(session, tmp_path / "source", "user string, at timestamp")
    for seconds in ((-30, 0), (-20, 1), (200,), (-10,)):
        files.add(
            {"user": "a", "at": (EPOCH + dt.timedelta(seconds=second)).isoformat()}
            for second in seconds
        )
    frame = ops.tumbling_window(
        files.stream().withWatermark("at", "1 minute"),
        key="user",
        time="at",
        size="1 minute",
        aggregates={},
    )
    batches, _ = collected(frame, tmp_path / "checkpoint")
    seen = [row for rows in batches.values() for row in rows]
    windows = [(row.window_start.timestamp(), row.events) for row in seen if row.kind == "window"]
    assert sorted(windows) == [(-60.0, 2), (0.0, 2)]
    assert [row.late.at.timestamp() for row in seen if row.kind == "late"] == [-10.0]


def test_every_type_comes_back_as_it_went_in(session):
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    schema = T._parse_datatype_string(
        "i tinyint, s smallint, n int, l bigint, f float, d double, p decimal(38,18), q "
        "decimal(5,0), t string, b binary, o boolean, "
        "day date, ts timestamp, ntz timestamp_ntz, a array<struct<x:decimal(10,4),y:timestamp>>, "
        "m map<string,array<double>>, "
        "r struct<z:struct<w:string>,v:float,_corrupt_record:string>, _corrupt_record string, "
        "_corrupt_record_ int"
    )
    naive = dt.datetime  # as Spark gives them back
    moment = naive(1853, 7, 4, 1, 2, 3, 456789)
    rows = [
        (1, -2, 3, -(2**63), 0.1, float("nan"), Decimal("-1E-18"), Decimal(7), 'é"\\\n\u2028𝄞', b"\x00\xff", True, dt.date(1, 1, 1), moment,
         moment, [(Decimal("0.0001"), moment), None, (None, None)], {"": [float("inf"), None], "x": None}, ((None,), 3.4e38, "["), "{", 5),
        (127, 0, -1, 2**63 - 1, float("-inf"), 4.9e-324, Decimal("9" * 20), Decimal(0), "", b"", False, dt.date(9999, 12, 31),
         naive(9999, 12, 30), naive(2024, 3, 10, 2, 30), [], {}, (None, None, None), "", 0),
        (None,) * 19,
    ]  # fmt: skip
    frame = session.createDataFrame(rows, schema)
    made = [_columns.carried(field.dataType, field.name) for field in schema.fields]
    sent = frame.select(
        _columns.to_json(
            F.struct(
                *[
                    way.encode(F.col(f.name)).alias(f"v{n}")
                    for n, (f, way) in enumerate(zip(schema.fields, made, strict=True))
                ]
            )
        ),
        _columns.to_json(F.struct(*frame.columns)),
    )
    through = []
    for text, whole in sent.collect():
        fields = json.loads(text)
        back = {
            f"v{n}": way.value.dump(way.value.load(fields.get(f"v{n}")))
            for n, way in enumerate(made)
        }
        through.append((json.dumps(back), whole))
    wire = T.StructType([T.StructField(f"v{n}", way.wire) for n, way in enumerate(made)])
    parsed = session.createDataFrame(through, "j string, w string").select(
        _columns.from_json(F.col("j"), wire).alias("j"),
        _columns.from_json(F.col("w"), schema).alias("w"),
    )
    out = parsed.select(
        *[
            way.decode(F.col("j").getField(f"v{n}")).alias(f.name)
            for n, (f, way) in enumerate(zip(schema.fields, made, strict=True))
        ]
    )
    assert out.schema.simpleString() == frame.schema.simpleString()
    before = [repr(row) for row in frame.collect()]
    assert [repr(row) for row in out.collect()] == before
    assert [repr(row) for row in parsed.select("w.*").collect()] == before


def test_a_column_that_spark_would_keep_for_texts_it_cannot_read_comes_back_as_it_went_in(session):
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    session.conf.set("spark.sql.columnNameOfCorruptRecord", "price")
    schema = T._parse_datatype_string("_corrupt_record string, price decimal(10,2), v0 string")
    rows = [("{", Decimal("1.50"), "x")]
    frame = session.createDataFrame(rows, schema).select(
        _columns.to_json(F.struct("*")).alias("text")
    )
    (back,) = (
        frame.select(_columns.from_json(F.col("text"), schema).alias("r")).select("r.*").collect()
    )
    assert tuple(back) == rows[0]


def test_a_text_that_is_longer_than_sparks_reader_takes_by_itself_comes_back_as_it_went_in(session):
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    long = session.range(1).select(F.expr("repeat('x', 20000001)").alias("text"))
    text = long.select(_columns.to_json(F.struct("text")).alias("json"))
    schema = T.StructType([T.StructField("text", T.StringType())])
    back = text.select(_columns.from_json(F.col("json"), schema).getField("text").alias("text"))
    assert back.select(F.length("text"), F.md5("text")).first() == tuple(
        long.select(F.length("text"), F.md5("text")).first()
    )


def test_a_struct_with_two_fields_of_one_name_is_refused_wherever_it_is():
    from pyspark.sql import types as T

    two = T.StructType([T.StructField("a", T.IntegerType()), T.StructField("a", T.DateType())])
    for kind in (
        two,
        T.ArrayType(two),
        T.MapType(T.StringType(), two),
        T.StructType([T.StructField("both", two)]),
    ):
        with pytest.raises(SchemaError, match="'x'.*two fields named 'a'"):
            _columns.check_carried(kind, "The column 'x'")


BYTES = [
    b"",
    b"a",
    b"\xff",
    b"\xfe",
    b"a\xff",
    b"a\xfe",
    b"\xed\xa0\x80",
    "\ufffd".encode(),
    b"FF",
    b"\xc3",
    "é".encode(),
    None,
]
"""Keys of which most are no UTF-8; each differs from the others."""


def test_a_key_of_strings_comes_back_byte_for_byte_and_no_two_have_one_text(session):
    from pyspark.sql import functions as F

    rows = [
        (number, one, other)
        for number, (one, other) in enumerate(itertools.product(BYTES, [*BYTES[1:4], None]))
    ]
    raw = session.createDataFrame(rows, "number int, a binary, b binary")
    frame = raw.select(
        "number", F.col("a").cast("string").alias("a.`b"), F.col("b").cast("string").alias("c")
    )
    names = ["a.`b", "number", "c"]
    found = frame.select(
        "number",
        _columns.key_text(frame, ["a.`b", "c"]).alias("two"),
        _columns.key_text(frame, names).alias("key"),
    )
    assert len({row.two for row in found.collect()}) == len(rows)
    schema = _columns.key_schema(frame, names)
    parsed = found.select(_columns.from_json(F.col("key"), schema).alias("k"))
    one, number, other = (_columns.key_column(F.col("k"), schema, n) for n in range(3))
    back = parsed.select(number, one.cast("binary"), other.cast("binary")).collect()
    assert sorted(tuple(row) for row in back) == [tuple(row) for row in rows]


def test_the_text_of_a_key_that_is_utf8_is_what_the_state_of_former_releases_has(session):
    rows = [('é"\u2028', None, 5), (None, "", None)]
    frame = session.createDataFrame(rows, "a string, b string, c int")
    texts = [row[0] for row in frame.select(_columns.key_text(frame, frame.columns)).collect()]
    assert texts == ['{"k0":"é\\"\u2028","k2":5}', '{"k1":""}']


def test_windows_do_not_add_up_two_keys_that_are_no_utf8(files, tmp_path):
    from pyspark.sql import functions as F

    files.add([{"user": user, "seq": n, "price": n} for n in (1, 2) for user in ("FF", "FE", "61")])
    frame = files.stream().withColumn("user", F.unhex("user").cast("string"))
    counted = ops.count_window(frame, key="user", size=2, aggregates={"spend": ops.Sum("price")})
    batches, _ = collected(counted.withColumn("user", F.hex("user")), tmp_path / "checkpoint")
    seen = [(row.user, row.events, row.spend) for rows in batches.values() for row in rows]
    assert sorted(seen) == [(user, 2, Decimal("3.00")) for user in ("61", "FE", "FF")]


def rate(session):
    return session.readStream.format("rate").load()


def windowed(frame, **more):
    return ops.session_window(
        frame, **{"key": "value", "gap": "1 minute", "aggregates": {}, **more}
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"key": "nobody"}, SchemaError, "no column 'nobody'"),
        ({"key": []}, SchemaError, "at least one"),
        ({"key": "d"}, SchemaError, "double"),
        ({"time": "value"}, SchemaError, "not timestamp"),
        ({"time": "timestamp"}, UnsupportedQueryError, "withWatermark"),
        ({"gap": None}, OptionError, "gap=, max_events= or max_duration="),
        ({"gap": "soon"}, OptionError, "30 minutes"),
        ({"gap": "1 month"}, OptionError, "30 minutes"),
        ({"gap": "0 seconds"}, OptionError, "longer"),
        ({"max_events": 0}, OptionError, "max_events"),
        ({"order_by": "d"}, SchemaError, "order_by"),
        ({"aggregates": {"x": ops.Sum("text")}}, SchemaError, "only numbers"),
        ({"aggregates": {"x": ops.Min("list")}}, SchemaError, "no order"),
        ({"aggregates": {"x": ops.Rows("odd")}}, SchemaError, "map"),
        ({"aggregates": {"kind": ops.Max("d")}}, OptionError, "two columns"),
        ({"aggregates": {"Value": ops.Max("d")}}, OptionError, "two columns"),
        ({"aggregates": {"late": ops.Max("d")}}, OptionError, "'late'"),
        ({"key": "Late"}, OptionError, "'Late'"),
        ({"aggregates": {"x": "sum"}}, OptionError, "Count, Sum"),
        ({"aggregates": None}, OptionError, "aggregates is None"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_the_query_starts(session, change, error, message):
    from pyspark.sql import functions as F

    frame = rate(session).select(
        "*",
        F.lit(1.0).alias("d"),
        F.lit("x").alias("text"),
        F.array(F.lit(1)).alias("list"),
        F.create_map(F.lit(1), F.lit(2)).alias("odd"),
        F.lit("x").alias("Late"),
    )
    with pytest.raises(error, match=re.escape(message)):
        windowed(frame, **change)


def test_another_state_store_is_refused_and_named(spark):
    with pytest.raises(
        UnsupportedQueryError, match=f"HDFSBackedStateStoreProvider.*{re.escape(ROCKSDB)}"
    ):
        windowed(rate(spark.newSession()))


def test_a_frame_that_is_not_streaming_is_refused(session):
    with pytest.raises(UnsupportedQueryError, match="streaming"):
        windowed(session.range(3).withColumnRenamed("id", "value"))


def test_without_protobuf_the_extra_is_named(session, monkeypatch):
    real = _checks.importlib.import_module

    def without(name, *rest):
        if name == "google.protobuf":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(_checks.importlib, "import_module", without)
    with pytest.raises(MissingExtraError, match=re.escape("onceforall[operators]")):
        windowed(rate(session))


def test_the_time_column_cannot_be_a_key(session):
    with pytest.raises(SchemaError, match="time column"):
        windowed(
            rate(session).withWatermark("timestamp", "1 minute"),
            time="timestamp",
            key=["value", "timestamp"],
        )


def test_the_outputs_of_something_else_are_refused(session):
    with pytest.raises(SchemaError, match="not the output"):
        ops.results(session.range(1))
    with pytest.raises(SchemaError, match="no late rows"):
        ops.late_rows(windowed(rate(session)))


@pytest.mark.long
def test_the_examples_of_the_page_run(session, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "operators-windows.md"
    blocks = re.findall(
        r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) >= 4
    clicks = Files(
        session,
        tmp_path / "source",
        "visitor string, campaign string, click_id long, clicked_at timestamp, price "
        "decimal(10,2), page string",
    )
    clicks.add(
        [
            {
                "visitor": "v",
                "click_id": n,
                "clicked_at": f"2026-01-0{n}T00:00:00Z",
                "price": n,
                "page": "/",
            }
            for n in (1, 2)
        ]
    )
    clicks.add(
        [
            {
                "visitor": "v",
                "click_id": 3,
                "clicked_at": "2026-01-01T00:00:00Z",
                "price": 3,
                "page": "/late",
            }
        ]
    )
    names = {"spark": session, "clicks": clicks.stream()}
    for block in blocks:
        exec(re.sub(r'"/(lake|checkpoints)/', f'"{tmp_path}/', block), names)
    query = names["query"]
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    (visit,) = [
        row
        for row in ofa.read_files(tmp_path / "visits").to_arrow().to_pylist()
        if row["kind"] == "window"
    ]
    assert (visit["events"], visit["closed_by"], visit["spend"]) == (1, "gap", Decimal("1.00"))
    assert [
        row["page"] for row in ofa.read_files(tmp_path / "late_clicks").to_arrow().to_pylist()
    ] == ["/late"]
    assert "checkout" in names["steps"].columns
    assert "dearest" in names["per_hundred"].columns
    assert names["batches"].isStreaming


class Everything(Lookup):
    """A lookup that finds every key."""

    name, columns = "everything", {"found": "string"}

    def fetch(self, keys):
        return {key: [Version(("yes",))] for key in keys}


@pytest.mark.parametrize("between", ["enrich", "window", "attribute", "deduplicate"])
def test_a_watermark_over_one_that_an_operator_hides_is_refused(session, between):
    marked = rate(session).withWatermark("timestamp", "1 minute")
    counted = {"timestamp": ops.Max("timestamp")}
    hidden = {
        "enrich": lambda: ops.enrich(marked, Everything(), "value"),
        "window": lambda: windowed(marked, time="timestamp", aggregates=counted),
        "attribute": lambda: ops.attribute(
            marked,
            marked,
            user="value",
            order_time="timestamp",
            click_time="timestamp",
            window="1 day",
        ),
        "deduplicate": lambda: ops.deduplicate(
            rate(session), "value", "timestamp", "1 hour", late="keep"
        ),
    }[between]().select("value", "timestamp")
    again = hidden.withWatermark("timestamp", "1 minute")
    for call in (
        lambda: windowed(again, time="timestamp", name="again"),
        lambda: ops.attribute(
            again,
            marked,
            user="value",
            order_time="timestamp",
            click_time="timestamp",
            window="1 day",
        ),
        lambda: ops.deduplicate(hidden, "value", "timestamp", "1 hour"),
    ):
        with pytest.raises(UnsupportedQueryError, match="second one over it"):
            call()
    session.conf.set("spark.sql.streaming.statefulOperator.allowMultiple", "false")
    windowed(again, time="timestamp", name="again")


def test_a_watermark_behind_what_hides_none_is_taken(session):
    plain = rate(session)
    windowed(plain, max_events=2)
    marked = plain.withWatermark("timestamp", "1 minute")
    for frame in (
        ops.enrich(plain, Everything(), "value").withWatermark("timestamp", "1 minute"),
        ops.results(ops.count_window(plain, key="value", size=1, aggregates={})).withWatermark(
            "window_end", "1 minute"
        ),
        marked.unionByName(marked),
        ops.deduplicate(plain, "value", "timestamp", "1 hour"),
    ):
        time = "window_end" if "window_end" in frame.columns else "timestamp"
        assert windowed(frame.select("value", time), time=time).isStreaming
    # The clock of processing time lets no watermark pass.
    timed = ops.results(
        windowed(marked, aggregates={"timestamp": ops.Max("timestamp")}, name="timed")
    )
    again = timed.select("value", "timestamp").withWatermark("timestamp", "1 minute")
    assert windowed(again, time="timestamp", name="again").isStreaming
