"""What the driver does per batch in Spark's Python API: columns are made once, and calls into the JVM stay few."""

import threading

import py4j.clientserver
import pytest

import onceforall as ofa
from onceforall import projections, runs
from onceforall.errors import SchemaError
from onceforall.projections import Projections
from onceforall.writing import SparkBatchWriter

pytestmark = pytest.mark.spark


class Asked:
    """A sink that counts how often it is asked for its columns, and takes only what has a column ``key``."""

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
        assert made.names == (("key",), ("key",))
        row = frame.select(*made.columns).first()
        assert row[made.column(0, "key")] == row[made.column(1, "KEY")] == value
        assert row["h0"] == row["h1"]
    assert [sink.times for sink in sinks.values()] == [1, 1]


def test_another_schema_has_columns_of_its_own(spark, made):
    columns, sinks = made
    hashes = {
        frame.select(*columns.of_writes(["a"], frame).columns).first()["h0"]
        for frame in (spark.sql("SELECT 1 AS key"), spark.sql("SELECT 1L AS key"), spark.sql("SELECT map('a', 1) AS key"))
    }
    assert len(hashes) == sinks["a"].times == 3


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
    """Each takes part of a millisecond: building the columns anew and copying Spark's configuration made more than 300 a batch."""
    calls, taken = [], []
    mine = threading.local()
    send, take = py4j.clientserver.ClientServerConnection.send_command, runs._QueryRun.take

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
    monkeypatch.setattr(runs._QueryRun, "take", watched)
    for n in range(4):
        source.add({"key": "k", "value": str(n)})
    sink = ofa.FileSink(str(tmp_path / "out"))
    run(ofa.write_stream(source.stream()).to(sink).option("checkpointLocation", str(tmp_path / "checkpoint")))
    assert len(taken) == 4
    assert 20 < max(taken[1:]) < 100, taken


@pytest.mark.parametrize("said", ["true", "false"])
def test_whether_tasks_are_speculative_is_asked_of_the_context_and_not_of_the_session(spark, said):
    session = spark.newSession()
    session._jsparkSession.sessionState().conf().setConfString("spark.speculation", said)
    writer = SparkBatchWriter(session.range(1), 0, lambda *_: None, {}, "query", False, Projections({}))
    assert not writer._attempts_lost()
