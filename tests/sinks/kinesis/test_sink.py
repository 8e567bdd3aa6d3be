"""The Kinesis sink: at least once, in order within a key, each record with its id."""

from __future__ import annotations

import json
import pickle
import uuid

import pyarrow as pa
import pytest

import onceforall as ofa
from onceforall.errors import (
    AttemptFailedError,
    OptionError,
    RefusedRecordError,
    SchemaError,
    SinkCheckError,
)
from onceforall.operators import with_record_id
from onceforall.sink import StartInfo, TaskAttempt
from onceforall.testing.conformance import SinkUnderTest, check_sink
from support.kinesis import Stream

ATTEMPT = TaskAttempt("9f2b1c1e-1111-4222-8333-444455556666", "out", 0, 0, 0, 0, 0)


def arguments(server):
    given = server.source_options
    return {
        "region": given["region"],
        "endpoint_url": given["endpointUrl"],
        "credentials_function": given["credentialsFunction"],
    }


@pytest.fixture
def stream(ordered_server):
    """A stream, and sinks to it: ``stream.sink(…)``."""
    made = Stream(ordered_server, shards=2)
    made.sink = lambda **more: ofa.KinesisSink(made.name, **arguments(ordered_server), **more)
    yield made
    ordered_server.heal()


def rows(entries):
    keys, data = zip(*entries, strict=True)
    return pa.RecordBatch.from_pydict({"data": list(data), "partitionKey": list(keys)})


def written(sink, *batches):
    writing = sink.begin_transaction(ATTEMPT)
    for entries in batches:
        sink.invoke(writing, rows(entries))
    return sink.pre_commit(writing)


def by_key(stream):
    found = {}
    for record in stream.records():
        found.setdefault(record["PartitionKey"], []).append(int(record["Data"]))
    return found


@pytest.mark.long
def test_the_sink_passes_the_conformance_suite(kinesis_server):
    name = f"s-{uuid.uuid4().hex[:12]}"
    stream = Stream(kinesis_server, shards=2)
    target, given = stream.name, arguments(kinesis_server)
    report = check_sink(
        SinkUnderTest(
            make_sink=lambda: ofa.KinesisSink(target, **given),
            rows=lambda numbers: rows([(f"k{n % 3}", b"%d" % n) for n in numbers]),
            read=lambda: [int(record["Data"]) for record in stream.records()],
            leftovers=list,
            secrets=[kinesis_server.secret_key],
            preload=["boto3"],
            crash_points=1,
        )
    )
    assert set(report.skipped) == {"another_target_has_another_identity"}, name
    assert len(report.passed) == 9


def test_what_is_refused_within_a_request_is_sent_again_in_order_within_its_key(
    stream, ordered_server
):
    sink = stream.sink()
    entries = [(f"k{n % 5}", b"%d" % n) for n in range(60)]
    ordered_server.fail("PutRecords", records=[0, 3], times=3)
    ordered_server.fail("PutRecords", records=[1, 2, 4], times=2)
    assert written(sink, entries[:30], entries[30:]) is None
    assert by_key(stream) == {f"k{k}": [n for n in range(60) if n % 5 == k] for k in range(5)}


def test_without_order_a_request_has_as_many_records_as_it_may(stream, ordered_server):
    ordered_server.calls()
    entries = [("k", b"%d" % n) for n in range(1200)]
    written(stream.sink(ordered=False), entries)
    puts = [c for c in ordered_server.calls() if c["operation"] == "PutRecords"]
    assert len(puts) == 3
    assert sorted(by_key(stream)["k"]) == list(range(1200))


def test_a_request_has_5_mib_at_the_most(stream):
    entries = [(f"k{n}", b"7" * 1_000_000) for n in range(12)]
    written(stream.sink(), entries)
    assert len(stream.records()) == 12


def test_a_small_record_does_not_overtake_a_large_one_of_its_key(stream):
    """Though it would fit into the request, and the large one doesn't."""
    entries = [
        *((f"other{n}", b"7" * 1_000_000) for n in range(5)),
        ("k", b"1" * 1_000_000),
        ("k", b"2"),
    ]
    written(stream.sink(), entries)
    sizes = [len(record["Data"]) for record in stream.records() if record["PartitionKey"] == "k"]
    assert sizes == [1_000_000, 1]


@pytest.mark.parametrize("error", ["InternalFailure", "ProvisionedThroughputExceededException"])
def test_a_request_without_an_answer_is_sent_again(stream, ordered_server, error):
    ordered_server.fail("PutRecords", error, times=2, done=True)
    written(stream.sink(), [("a", b"1"), ("b", b"2")])
    assert by_key(stream) == {"a": [1, 1, 1], "b": [2, 2, 2]}


def test_a_stream_that_takes_nothing_fails_the_attempt_in_the_end(stream, ordered_server):
    ordered_server.fail("PutRecords", records=[0], times=100)
    with pytest.raises(AttemptFailedError, match=r"has taken nothing for 1 s: Provisioned"):
        written(stream.sink(retry_s=0.6), [("a", b"1")])
    ordered_server.heal()
    ordered_server.fail("PutRecords", "AccessDeniedException")
    with pytest.raises(
        AttemptFailedError, match=r"Kinesis refuses PutRecords .*rights to PutRecords"
    ):
        written(stream.sink(), [("a", b"1")])


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (("", b"1"), "a key of 1 to 256"),
        ((None, b"1"), "a key of 1 to 256"),
        (("k" * 257, b"1"), "a key of 1 to 256"),
        (("k", None), "needs data"),
        (("k", b"7" * 1024 * 1024), "1048577 bytes, and 1048576 are the most"),
    ],
    ids=range(5),
)
def test_a_row_that_kinesis_cannot_have_is_refused_and_named(stream, entry, words):
    with pytest.raises(RefusedRecordError, match=words):
        written(stream.sink(), [entry])
    assert stream.records() == []


def test_an_explicit_hash_key_chooses_the_shard(stream):
    sink = stream.sink()
    writing = sink.begin_transaction(ATTEMPT)
    hashes = ["0", str(2**128 - 1), None]
    batch = {"data": [b"1", b"2", b"3"], "partitionKey": ["a", "b", "c"], "explicitHashKey": hashes}
    sink.invoke(writing, pa.RecordBatch.from_pydict(batch))
    sink.pre_commit(writing)
    query = stream.query()
    assert query.plan()
    found = {row["partitionKey"]: row["shardId"][-1] for row in query.rows()}
    assert (found["a"], found["b"]) == ("0", "1")
    with pytest.raises(RefusedRecordError, match="below 2\\^128"):
        sink.invoke(
            sink.begin_transaction(ATTEMPT),
            pa.RecordBatch.from_pydict({**batch, "explicitHashKey": [str(2**128)] * 3}),
        )


def test_the_start_looks_at_the_stream(stream):
    start = StartInfo("", "out")
    stream.sink().check(start)
    assert stream.sink().identity(start)["stream"] == stream.arn
    missing = ofa.KinesisSink("nowhere", **arguments(stream.server))
    assert missing.identity(start) is None
    with pytest.raises(SinkCheckError, match="There is no Kinesis stream nowhere"):
        missing.check(start)
    stream.server.fail("DescribeStreamSummary", "AccessDeniedException")
    with pytest.raises(SinkCheckError, match="rights to DescribeStreamSummary"):
        stream.sink().check(start)
    stream.server.fail("DescribeStreamSummary", "ThrottlingException")
    with pytest.raises(ofa.SinkUnavailableError):
        stream.sink().check(start)


def test_the_sink_says_what_it_can_and_shows_no_secret(stream):
    sink = stream.sink()
    assert (sink.capabilities.two_phase, sink.capabilities.delivery) == (False, "at_least_once")
    assert sink.default_name == f"kinesis-{stream.name}"
    assert ofa.KinesisSink(stream.arn).default_name == sink.default_name
    assert stream.server.secret_key.encode() not in pickle.dumps(sink) + repr(sink).encode()
    with pytest.raises(OptionError, match="stream is 7"):
        ofa.KinesisSink(7)


@pytest.mark.spark
class TestInSpark:
    @pytest.fixture
    def frame(self, spark):
        return spark.createDataFrame([(1, "a"), (2, "b")], "n INT, user STRING")

    def test_the_other_columns_become_json_with_the_record_id_in_it(self, frame, stream):
        ready = with_record_id(frame, "record_id", "n", namespace="tests").withColumnRenamed(
            "user", "partitionKey"
        )
        (row, _) = ready.select(*stream.sink().columns(ready.schema)).collect()
        assert row.partitionKey == "a"
        assert json.loads(bytes(row.data)) == {"n": 1, "record_id": ready.first().record_id}

    VALUES = (
        *("timestamp'2026-01-02 03:04:05.123456'", "timestamp'1800-01-02 03:04:05.000001'"),
        *("timestamp_ntz'2026-01-02 03:04:05.123456'", "date'2026-01-02'", "date'0001-01-01'"),
        *("array(timestamp'2026-01-02 03:04:05.000001')", "X'00ff'", "true", "1Y", "2S", "3"),
        *("map('t', timestamp_ntz'2026-01-02 03:04:05.000001', 'n', null)", "double('NaN')"),
        *("9223372036854775807", "float('0.1')", "double('-Infinity')", "double('-0.0')"),
        "cast('12345678901234567890.123456789' as decimal(29,9))",
        "cast('1E-18' as decimal(38,18))",
        *("interval '1 2:3:4.123456' day to second", "interval '-1-2' year to month"),
        *("make_interval(1,2,3,4,5,6,7.000001)", "'ü\"\\n'", "cast(null as struct<a:int>)"),
        *("named_struct('a', cast(null as int), 'b', array(null, 1))", "array()", "null"),
    )

    @pytest.fixture
    def zone(self, spark):
        """A zone whose old offset has seconds; and settings that the test changes."""
        names = ("spark.sql.session.timeZone", "spark.sql.legacy.timeParserPolicy")
        before = {name: spark.conf.get(name) for name in names}
        spark.conf.set(names[0], "Europe/Berlin")
        yield
        for name, value in before.items():
            spark.conf.set(name, value)

    def test_every_value_comes_back_from_json_as_it_was(self, spark, zone):
        values = [f"{value} AS c{place}" for place, value in enumerate(self.VALUES)]
        rows = spark.range(1).selectExpr("'k' AS partitionKey", "'r' AS record_id", *values)
        (data, _) = ofa.KinesisSink("s").columns(rows.schema)
        fields = [f"c{place}" for place in range(len(self.VALUES))]
        types = ", ".join(f"{name} {rows.schema[name].dataType.simpleString()}" for name in fields)
        read = rows.select("*", data).selectExpr(
            "*", f"from_json(cast(data AS STRING), '{types}') AS j"
        )
        same = [f"CAST({name} AS STRING) <=> CAST(j.{name} AS STRING)" for name in fields]
        found = read.selectExpr(*same).first()
        assert [self.VALUES[at] for at, is_same in enumerate(found) if not is_same] == []

    @pytest.mark.parametrize("policy", ["CORRECTED", "LEGACY"])
    def test_times_are_the_same_text_with_each_of_sparks_formatters(self, spark, zone, policy):
        spark.conf.set("spark.sql.legacy.timeParserPolicy", policy)
        at = "2026-01-02 03:04:05.123456"
        rows = spark.range(1).selectExpr(
            *("'k' AS partitionKey", "'r' AS record_id"),
            *(f"TIMESTAMP'{at} UTC' AS t", f"TIMESTAMP_NTZ'{at}' AS n"),
        )
        (row,) = rows.select(*ofa.KinesisSink("s").columns(rows.schema)).collect()
        text = at.replace(" ", "T")
        assert json.loads(bytes(row.data)) == {"record_id": "r", "t": f"{text}Z", "n": text}

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ("map(date'2026-01-02', 1)", "'v' has maps whose keys are DATE"),
            ("array(named_struct('m', map(X'00', 1)))", "'v.m' has maps whose keys are BINARY"),
            ("named_struct('a', 1, 'a', 2)", "'v' has several fields of one name"),
            ("parse_json('1')", "'v' is VARIANT, whose values"),
        ],
        ids=range(4),
    )
    def test_what_json_cannot_bear_is_refused_by_name(self, spark, value, words):
        rows = spark.range(1).selectExpr("'k' AS partitionKey", "'r' AS record_id", f"{value} AS v")
        with pytest.raises(SchemaError, match=words):
            ofa.KinesisSink("s").columns(rows.schema)

    def test_fields_that_differ_in_case_alone_are_both_written(self, spark):
        rows = spark.range(1).selectExpr(
            "'k' AS partitionKey", "'r' AS record_id", "named_struct('a', 'x', 'A', 'y') AS v"
        )
        (row,) = rows.select(*ofa.KinesisSink("s").columns(rows.schema)).collect()
        assert json.loads(bytes(row.data)) == {"record_id": "r", "v": {"a": "x", "A": "y"}}

    def test_numbers_as_keys_of_a_map_become_texts(self, spark):
        rows = spark.range(1).selectExpr(
            "'k' AS partitionKey", "'r' AS record_id", "map(7, 1) AS v"
        )
        (row,) = rows.select(*ofa.KinesisSink("s").columns(rows.schema)).collect()
        assert json.loads(bytes(row.data)) == {"record_id": "r", "v": {"7": 1}}

    def test_a_key_that_is_the_record_id_is_in_the_json_too(self, frame, stream):
        rows = frame.withColumnRenamed("user", "partitionKey")
        (row, _) = rows.select(
            *stream.sink(record_id="partitionKey").columns(rows.schema)
        ).collect()
        assert json.loads(bytes(row.data)) == {"n": 1, "partitionKey": "a"}

    def test_a_row_without_a_record_id_is_refused(self, spark, stream):
        rows = spark.sql("SELECT 'k' AS partitionKey, CAST(NULL AS STRING) AS record_id, 1 AS n")
        sink = stream.sink()
        (row,) = rows.select(*sink.columns(rows.schema)).collect()
        assert row.data is None
        with pytest.raises(RefusedRecordError, match="a record id that isn't null"):
            written(sink, [(row.partitionKey, row.data)])

    BROKEN = "cast(X'61ff' AS STRING)"

    @pytest.mark.parametrize(
        "value",
        [
            *("{}", "array(null, {})", "map({}, 1)", "map(1, {})", "named_struct('a b', {})"),
            "array(map('k', array(named_struct('a', array({})))))",
        ],
        ids=range(6),
    )
    @pytest.mark.parametrize("record_id", ["record_id", None])
    def test_a_row_with_a_text_that_is_none_is_refused(self, spark, stream, value, record_id):
        """JSON has no such text: Spark writes another one, and of two record ids one."""
        rows = spark.range(3).selectExpr(
            *("concat('k', id) AS partitionKey", "'r' AS record_id"),
            f"if(id = 1, {value.format(self.BROKEN)}, {value.format(repr('b'))}) AS v",
            "cast(null as array<string>) AS n",
        )
        rows = rows.selectExpr("*", "if(partitionKey = 'k2', null, v) AS w")
        sink = stream.sink(record_id=record_id)
        found = rows.select(*sink.columns(rows.schema)).collect()
        assert [row.data is None for row in found] == [False, True, False]
        with pytest.raises(RefusedRecordError, match=r"'k1' .* UTF-8 \(make_valid_utf8\)"):
            written(sink, [(row.partitionKey, row.data) for row in found])

    def test_beside_a_column_with_the_data_others_are_ignored_as_kafka_does(self, frame):
        rows = frame.selectExpr("user AS partitionKey", "user AS data", "n")
        columns = ofa.KinesisSink("s", record_id=None).columns(rows.schema)
        assert rows.select(*columns).columns == ["data", "partitionKey"]

    def test_columns_are_found_in_upper_and_lower_case(self, frame):
        sink = ofa.KinesisSink("s", record_id=None)
        rows = frame.selectExpr("user AS PARTITIONKEY", "'7' AS explicithashkey", "user AS Data")
        written = rows.select(sink.columns(rows.schema))
        assert written.columns == ["data", "partitionKey", "explicitHashKey"]
        assert {row.explicitHashKey for row in written.collect()} == {"7"}

    @pytest.mark.parametrize(
        ("columns", "record_id", "words"),
        [
            (["n"], "record_id", "needs a column 'partitionKey'"),
            (["n AS partitionKey"], "record_id", "is of type int"),
            (["user AS partitionKey", "n"], "record_id", "needs a column 'record_id'"),
            (
                ["user AS partitionKey", "user AS data"],
                "record_id",
                "no other place for the record id",
            ),
            (["user AS partitionKey", "n AS data"], None, "Column 'data' is of type int"),
            (["user AS partitionKey"], None, "nothing but keys"),
            (["user AS partitionkey", "n AS EXPLICITHASHKEY"], None, "'EXPLICITHASHKEY' is of"),
            (["user AS Partitionkey", "user AS partitionkey"], None, "Rename one to 'partitionK"),
        ],
        ids=range(8),
    )
    def test_columns_that_do_not_fit_are_named(self, frame, columns, record_id, words):
        sink = ofa.KinesisSink("s", record_id=record_id)
        with pytest.raises(SchemaError, match=words):
            sink.columns(frame.selectExpr(*columns).schema)
