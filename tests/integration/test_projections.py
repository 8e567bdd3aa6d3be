"""What the driver does per batch in Spark's Python API: columns are made once, and calls into
the JVM stay few."""

import threading

import py4j.clientserver
import pytest

import onceforall as ofa
from onceforall.driver import query_run as runs
from onceforall.driver.batch_writer import SparkBatchWriter
from onceforall.errors import SchemaError
from onceforall.task import projections
from onceforall.task.projections import Projections

pytestmark = pytest.mark.spark


class Asked:
    """A sink that counts how often it is asked for its columns, and takes only what has a column
    ``key``."""

    def __init__(self):
        self.times = 0

    def columns(self, schema):
        from pyspark.sql import functions as F

        self.times += 1
        if "key" not in schema.names:
            raise SchemaError("no column 'key'")
        return [F.col("key")]


@pytest.fixture
def made():
    sinks = {"a": Asked(), "b": Asked()}
    return Projections(sinks), sinks


def test_a_sink_is_asked_once_per_schema_and_the_columns_fit_other_frames_of_it(spark, made):
    columns, sinks = made
    for value in ("x", "y"):
        frame = spark.createDataFrame([(value, 1)], "key string, n int")
        made = columns.of_writes(["a", "b"], frame)
        assert [write.names for write in made.writes] == [("key",), ("key",)]
        row = frame.select(*made.columns).first()
        assert row[made.column(0, "key")] == row[made.column(1, "KEY")] == value
    assert [sink.times for sink in sinks.values()] == [1, 1]


def test_what_several_sinks_take_is_there_once_and_each_finds_its_own(spark):
    from pyspark.sql import functions as F

    class Sink:
        def __init__(self, *columns):
            self.columns = lambda schema: list(columns)

    sinks = {
        "all": Sink(F.col("n"), F.col("value"), F.col("key")),
        "kafka": Sink(F.col("value").cast("binary").alias("value"), F.col("key").alias("KEY")),
        "same as all": Sink(F.col("n"), F.col("value"), F.col("key").alias("other_name")),
        "other order": Sink(F.col("key"), F.col("n"), F.col("value")),
        "computed": Sink((F.col("n") + 1).alias("m"), F.col("n"), (F.col("n") + 1).alias("n1")),
        "random": Sink(F.rand(1).alias("r"), F.col("n")),
        "random too": Sink(F.rand(1).alias("r"), F.col("n")),
    }
    frame = spark.createDataFrame([("k", 7, "v")], "key string, n int, value string")
    made = Projections(sinks).of_writes(list(sinks), frame)
    row = frame.select(*made.columns).first()
    seen = {}
    for name, write in zip(sinks, made.writes, strict=True):
        seen[name] = {
            column: row[place] for column, place in zip(write.names, write.places, strict=True)
        }
        # What one write alone takes, and its hash, is what it takes beside others.
        (alone,) = Projections(sinks).of_writes([name], frame).writes
        assert alone.names == write.names
        if "random" not in name:
            single = frame.select(*Projections(sinks).of_writes([name], frame).columns).first()
            assert [single[place] for place in (*alone.places, alone.hash_place)] == [
                row[place] for place in (*write.places, write.hash_place)
            ]
    assert seen["all"] == {"n": 7, "value": "v", "key": "k"}
    assert seen["kafka"] == {"value": bytearray(b"v"), "KEY": "k"}
    assert seen["same as all"] == {"n": 7, "value": "v", "other_name": "k"}
    assert seen["other order"] == seen["all"]
    assert seen["computed"] == {"m": 8, "n": 7, "n1": 8}
    hashes = [write.hash_place for write in made.writes]
    assert hashes[0] == hashes[2]
    assert len(set(hashes)) == 6
    # Three of all, the cast one, the sum, and two random ones: Spark computes each of these anew.
    assert len(made.columns) == 3 + 1 + 1 + 2 + 6


def test_the_sinks_of_this_library_share_what_needs_no_conversion(spark, tmp_path):
    sinks = {
        "files": ofa.FileSink(str(tmp_path)),
        "kafka": ofa.KafkaSink({"bootstrap.servers": "127.0.0.1:1"}, topic="t"),
    }
    frame = spark.createDataFrame(
        [(b"v", b"k", "text", 1)], "value binary, key binary, note string, n int"
    )
    made = Projections(sinks).of_writes(list(sinks), frame)
    assert len(made.columns) == 4 + 2


def test_another_schema_has_columns_of_its_own(spark, made):
    columns, sinks = made
    hashes = {
        frame.select(*columns.of_writes(["a"], frame).columns).first()[1]
        for frame in (
            spark.sql("SELECT 1 AS key"),
            spark.sql("SELECT 1L AS key"),
            spark.sql("SELECT map('a', 1) AS key"),
        )
    }
    assert len(hashes) == sinks["a"].times == 3


def test_columns_that_may_be_null_have_a_hash_of_their_own(spark, made):
    """Of columns that never are, nulls don't count in the hash."""
    columns, sinks = made
    columns.of_writes(["a"], spark.sql("SELECT named_struct('x', 1, 'y', 2) AS key"))
    frame = spark.createDataFrame([((1, None),), ((None, 1),)], "key struct<x: int, y: int>")
    taken = columns.of_writes(["a"], frame).columns
    assert len({row[1] for row in frame.select(*taken).collect()}) == 2
    assert sinks["a"].times == 2


def test_a_sink_that_takes_no_column_is_refused_for_its_rows_would_be_lost(spark, made):
    columns, sinks = made
    sinks["a"].columns = lambda schema: []
    with pytest.raises(SchemaError, match="'a' takes none of the columns id"):
        columns.of_writes(["a"], spark.range(1))


def test_a_refusal_is_not_remembered_as_an_answer(spark, made):
    columns, sinks = made
    for _ in range(2):
        with pytest.raises(SchemaError, match="'key'"):
            columns.taken("a", spark.range(1).schema)
    assert sinks["a"].times == 2


def test_no_more_are_kept_than_so_many(spark, made, monkeypatch):
    monkeypatch.setattr(projections, "KEPT", 3)
    columns, sinks = made
    schemas = [spark.sql(f"SELECT 1 AS key, 2 AS c{n}").schema for n in range(5)]
    for schema in schemas:
        columns.taken("a", schema)
    columns.taken("a", schemas[4])
    assert (sinks["a"].times, len(columns._made)) == (5, 3)
    columns.taken("a", schemas[0])
    assert sinks["a"].times == 6


def test_a_batch_makes_few_calls_into_the_jvm(source, run, tmp_path, monkeypatch):
    """Each takes part of a millisecond: building the columns anew and copying Spark's
    configuration made more than 300 a batch."""
    calls, taken = [], []
    mine = threading.local()
    send, take = py4j.clientserver.ClientServerConnection.send_command, runs.QueryRun.take

    def counted(self, command):
        if getattr(mine, "in_batch", False) and not command.startswith("m\nd"):
            calls.append(command)
        return send(self, command)

    def watched(self, *arguments):
        mine.in_batch = True
        before = len(calls)
        try:
            return take(self, *arguments)
        finally:
            mine.in_batch = False
            taken.append(len(calls) - before)

    monkeypatch.setattr(py4j.clientserver.ClientServerConnection, "send_command", counted)
    monkeypatch.setattr(runs.QueryRun, "take", watched)
    for n in range(4):
        source.add({"key": "k", "value": str(n)})
    sink = ofa.FileSink(str(tmp_path / "out"))
    run(
        ofa.write_stream(source.stream())
        .to(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    assert len(taken) == 4
    assert 20 < max(taken[1:]) < 100, taken


@pytest.mark.parametrize("said", ["true", "false"])
def test_whether_tasks_are_speculative_is_asked_of_the_context_and_not_of_the_session(spark, said):
    session = spark.newSession()
    session._jsparkSession.sessionState().conf().setConfString("spark.speculation", said)
    writer = SparkBatchWriter(
        session.range(1), 0, lambda *_: None, {}, "query", False, Projections({})
    )
    assert not writer._attempts_lost()


def test_frames_of_one_schema_have_the_columns_of_the_sink_that_they_go_to(spark):
    from pyspark.sql import functions as F

    class Sink:
        def __init__(self, name):
            self.columns = lambda _: [F.col(name)]

    columns = Projections({"good": Sink("key"), "bad": Sink("n")})
    frame = spark.createDataFrame([("x", 1)], "key string, n int")
    taken = [columns.of_writes([name], frame).writes[0].names for name in ("good", "bad", "good")]
    assert taken == [("key",), ("n",), ("key",)]
