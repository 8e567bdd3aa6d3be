"""Both doors on real Spark and a real broker: stateless and stateful queries, triggers, output
modes, several queries and sinks."""

import json
import re
import shutil

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import onceforall as ofa
from onceforall.errors import (
    CommitLogError,
    OptionError,
    RefusedRecordError,
    SchemaError,
    UnsupportedQueryError,
)
from support.reading import read_all, released, values
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture
def sink(broker, topic):
    """Make a sink on a topic of its own: ``sink()`` has the attribute ``topic`` with its name."""

    def make(**kwargs):
        name = topic(partitions=2)
        made = ofa.KafkaSink({"bootstrap.servers": broker.bootstrap_servers}, topic=name, **kwargs)
        made.topic = name
        return made

    return make


def rows(*numbers):
    return [{"key": f"k{n % 2}", "value": f"v{n}"} for n in numbers]


def entries(checkpoint, kind):
    files = sorted((checkpoint / "onceforall" / "chains").glob("*/0*.json"))
    return [
        entry for entry in (json.loads(file.read_text()) for file in files) if entry["kind"] == kind
    ]


def test_a_stateless_query_goes_on_where_it_stopped(broker, source, sink, run, tmp_path):
    out = sink()
    writer = lambda: (
        ofa.write_stream(source.stream()).to(out).option("checkpointLocation", str(tmp_path / "cp"))
    )
    source.add(*rows(1, 2))
    source.add(*rows(3))
    run(writer())
    source.add(*rows(4, 5))
    run(writer())
    assert values(broker.bootstrap_servers, out.topic) == ["v1", "v2", "v3", "v4", "v5"]
    assert len(entries(tmp_path / "cp", "COMMIT")) == len(entries(tmp_path / "cp", "DONE")) == 3


@pytest.mark.parametrize(
    "trigger", [{"processingTime": "50 milliseconds"}, {"availableNow": True}, {"once": True}]
)
def test_every_trigger_that_spark_replays_works(broker, source, sink, tmp_path, trigger):
    out = sink()
    source.add(*rows(1, 2, 3))
    query = (
        ofa.write_stream(source.stream())
        .to(out)
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(**trigger)
        .start()
    )
    try:
        until(
            lambda: query.exception() or len(values(broker.bootstrap_servers, out.topic)) == 3,
            60,
            "the batch is visible",
        )
        assert query.exception() is None
    finally:
        query.stop()


@pytest.mark.long
def test_a_run_that_has_ended_closes_nothing_of_another_query_with_the_same_sink_object(
    source, tmp_path
):
    # Here, so that workers get it by value: they have no module of tests.
    class Watched(ofa.FileSink):
        """Notes on which object of it each batch is committed, and which are closed."""

        def __init__(self, path):
            super().__init__(path)
            self.committing, self.closed = [], []

        def commit(self, *args, **kwargs):
            self.committing.append(self)
            return super().commit(*args, **kwargs)

        def close(self):
            self.closed.append(self)
            super().close()

    out = Watched(str(tmp_path / "lake"))

    def started(name, **trigger):
        @ofa.exactly_once(tmp_path / name, sinks={"out": out})
        def process(batch, batch_id, transaction):
            transaction.write("out", batch)

        writer = source.stream().writeStream.foreachBatch(process)
        return writer.option("checkpointLocation", str(tmp_path / name)).trigger(**trigger)

    source.add(*rows(1, 2))
    lasting = started("lasting", processingTime="50 milliseconds").start()
    try:
        until(lambda: out.committing or lasting.exception(), 60, "a batch is committed")
        (first,) = out.committing
        returning = started("returning", availableNow=True)
        assert returning.start().awaitTermination(60)
        source.add(*rows(3))
        # What is left of the first run is closed by the next one of the same function.
        assert returning.start().awaitTermination(60)
        again = lambda: sum(one is first for one in out.committing) == 2
        until(lambda: again() or lasting.exception(), 60, "the second batch is committed")
        assert lasting.exception() is None
    finally:
        lasting.stop()
    others = [one for one in out.committing if one is not first]
    assert len(others) == 2
    assert others[0] is not others[1]
    assert any(one is others[0] for one in out.closed)
    assert not any(one is first for one in out.closed)


@pytest.mark.parametrize(
    "mode",
    ["append", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("update", "complete"))],
)
def test_every_output_mode_gives_what_spark_gives(broker, source, sink, run, tmp_path, mode):
    out = sink()
    for second, numbers in enumerate([(1, 2, 3), (4, 5), (6,), (7,)]):
        source.add(
            *(
                {"key": f"k{n % 2}", "value": str(n), "at": f"2024-01-01T00:00:{second * 20:02d}Z"}
                for n in numbers
            )
        )
    frame = source.stream()

    def counted(frame):
        return (
            frame.withWatermark("at", "1 second")
            .groupBy(F.window("at", "10 seconds"), "key")
            .agg(F.count("*").alias("n"))
            .select(
                "key",
                F.concat_ws(":", F.col("window.start").cast("long"), "key", "n").alias("value"),
            )
        )

    run(
        ofa.write_stream(counted(frame))
        .outputMode(mode)
        .to(out)
        .option("checkpointLocation", str(tmp_path / "cp"))
    )
    expected = []

    def collect(batch, batch_id):
        expected.extend(row["value"] for row in batch.collect())

    plain = counted(source.stream()).writeStream.outputMode(mode).foreachBatch(collect)
    plain.option("checkpointLocation", str(tmp_path / "plain")).trigger(
        availableNow=True
    ).start().awaitTermination(60)
    assert expected
    assert values(broker.bootstrap_servers, out.topic) == sorted(expected)


def test_a_function_of_ones_own_writes_to_several_sinks_in_one_decision(
    broker, source, sink, run, tmp_path
):
    odd, even = sink(), sink()
    seen = []

    @ofa.exactly_once(tmp_path / "cp", sinks={"odd": odd, "even": even})
    def process(batch, batch_id, transaction):
        seen.append(batch_id)
        transaction.write("odd", batch.where("key = 'k1'"))
        transaction.write("even", batch.where("key = 'k0'"))
        transaction.write(
            "even",
            batch.where("key = 'k0'").withColumn("value", F.concat("value", F.lit("-again"))),
        )

    source.add(*rows(1, 2, 3, 4))
    query = (
        source.stream()
        .writeStream.foreachBatch(process)
        .option("checkpointLocation", str(tmp_path / "cp"))
    )
    assert query.trigger(availableNow=True).start().awaitTermination(60)
    assert values(broker.bootstrap_servers, odd.topic) == ["v1", "v3"]
    assert values(broker.bootstrap_servers, even.topic) == ["v2", "v2-again", "v4", "v4-again"]
    assert seen == [0]
    (commit,) = entries(tmp_path / "cp", "COMMIT")
    assert set(commit["body"]["committables"]) == {"odd", "even"}
    assert set(commit["body"]["digests"]) == {"odd/0", "even/1", "even/2"}


def test_two_sinks_of_the_same_rows_are_written_by_one_job(
    broker, source, sink, run, spark, tmp_path
):
    first, second = sink(), sink()
    source.add(*rows(1, 2, 3))
    query = run(
        ofa.write_stream(source.stream())
        .to(first)
        .to(second)
        .option("checkpointLocation", str(tmp_path / "cp"))
    )
    assert (
        values(broker.bootstrap_servers, first.topic)
        == values(broker.bootstrap_servers, second.topic)
        == ["v1", "v2", "v3"]
    )
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId))) == 1


@pytest.mark.long
def test_a_transform_is_for_its_sink_alone(broker, source, sink, run, tmp_path):
    plain, shouting = sink(), sink()
    source.add(*rows(1))
    writer = (
        ofa.write_stream(source.stream())
        .to(plain)
        .to(shouting, transform=lambda f: f.withColumn("value", F.upper("value")))
    )
    run(writer.option("checkpointLocation", str(tmp_path / "cp")))
    assert values(broker.bootstrap_servers, plain.topic) == ["v1"]
    assert values(broker.bootstrap_servers, shouting.topic) == ["V1"]


def test_a_transform_that_returns_no_frame_is_named(source, sink, run, tmp_path):
    out = sink()
    source.add(*rows(1))
    writer = ofa.write_stream(source.stream()).to(out, transform=lambda _: None)
    with pytest.raises(StreamingQueryException) as caught:
        run(writer.option("checkpointLocation", str(tmp_path / "cp")))
    error = ofa.error_of(caught.value)
    assert f"The transform of sink kafka-{out.topic}: its result is None" in str(error)


def test_several_queries_run_in_one_session(broker, source, sink, tmp_path):
    source.add(*rows(1, 2))
    outs = [sink() for _ in range(3)]
    shared = ofa.KafkaSink({"bootstrap.servers": broker.bootstrap_servers}, topic=outs[0].topic)
    queries = []
    for n, out in enumerate([shared, shared, outs[1]]):
        writer = (
            ofa.write_stream(source.stream())
            .to(out)
            .queryName(f"q{n}")
            .option("checkpointLocation", str(tmp_path / f"cp{n}"))
        )
        queries.append(writer.trigger(availableNow=True).start())
    for query in queries:
        assert query.awaitTermination(120)
    assert values(broker.bootstrap_servers, outs[0].topic) == ["v1", "v1", "v2", "v2"]
    assert values(broker.bootstrap_servers, outs[1].topic) == ["v1", "v2"]


def test_a_writer_that_is_used_again_changes_nothing_of_the_query_that_it_has_started(
    source, tmp_path
):
    lake, other = tmp_path / "lake", tmp_path / "other"
    writer = (
        ofa.write_stream(source.stream())
        .to(ofa.FileSink(str(lake)))
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(processingTime="50 milliseconds")
    )
    source.add(*rows(1))
    query = writer.start()

    def written():
        assert query.exception() is None
        return ofa.read_files(lake).to_arrow().num_rows if lake.exists() else 0

    try:
        until(lambda: written() == 1, 60)
        writer.to(ofa.FileSink(str(other)), name="other")
        writer.option("checkpointLocation", str(tmp_path / "cp of another"))
        source.add(*rows(2))
        until(lambda: written() == 2, 60)
    finally:
        query.stop()
    assert not other.exists()


def test_a_batch_that_writes_nothing_is_decided_and_done(broker, source, sink, run, tmp_path):
    out = sink()
    source.add(*rows(1, 2))
    run(
        ofa.write_stream(source.stream().where("value = 'none'"))
        .to(out)
        .option("checkpointLocation", str(tmp_path / "cp"))
    )
    (commit,) = entries(tmp_path / "cp", "COMMIT")
    assert commit["body"]["committables"].get("out", []) == []
    assert len(entries(tmp_path / "cp", "DONE")) == 1
    assert values(broker.bootstrap_servers, out.topic) == []


def test_a_function_that_writes_nothing_still_commits_the_state_of_a_stateful_query(
    source, sink, run, tmp_path
):
    @ofa.exactly_once(tmp_path / "cp", sinks={"out": sink()})
    def process(batch, batch_id, transaction):
        pass

    counted = source.stream().groupBy("key").count()
    for n in range(3):
        source.add(*rows(n))
    query = (
        counted.writeStream.outputMode("update")
        .foreachBatch(process)
        .option("checkpointLocation", str(tmp_path / "cp"))
    )
    assert query.trigger(availableNow=True).start().awaitTermination(120)
    assert len(entries(tmp_path / "cp", "DONE")) == 3


def test_a_decided_batch_that_spark_replays_is_skipped_without_state_and_digested_with_it(
    broker, source, sink, run, tmp_path
):
    for stateful in (False, True):
        out, checkpoint, calls = sink(), tmp_path / f"cp{stateful}", []

        def frame(stateful=stateful):
            stream = source.stream()
            if not stateful:
                return stream
            return stream.groupBy("key").agg(F.max("value").alias("value"))

        def transform(batch, calls=calls):
            calls.append(1)
            return batch

        def writer(
            frame=frame, out=out, checkpoint=checkpoint, transform=transform, stateful=stateful
        ):
            made = ofa.write_stream(frame()).outputMode("update" if stateful else "append")
            return made.to(out, name="out", transform=transform).option(
                "checkpointLocation", str(checkpoint)
            )

        source.add(*rows(1, 2))
        run(writer())
        before, calls_before = values(broker.bootstrap_servers, out.topic), len(calls)
        assert before
        last = max(
            int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdecimal()
        )
        (checkpoint / "commits" / str(last)).unlink()
        (checkpoint / "commits" / f".{last}.crc").unlink()
        run(writer())
        assert values(broker.bootstrap_servers, out.topic) == before
        assert len(calls) - calls_before == (1 if stateful else 0)


def test_a_replay_that_gives_other_rows_is_reported_and_fails_where_that_is_asked_for(
    broker, source, sink, run, tmp_path, caplog
):
    out, checkpoint = sink(), tmp_path / "cp"
    salt = ["a"]

    def writer(**options):
        frame = source.stream().groupBy("key").agg(F.max("value").alias("value"))
        made = (
            ofa.write_stream(frame)
            .outputMode("update")
            .options(**options)
            .option("checkpointLocation", str(checkpoint))
        )
        return made.to(
            out,
            name="out",
            transform=lambda f: f.withColumn("value", F.concat("value", F.lit(salt[0]))),
        )

    source.add(*rows(1, 2))
    run(writer())
    before = values(broker.bootstrap_servers, out.topic)
    salt[0] = "b"
    for outcome in ("fail", "warn"):
        for name in ("0", ".0.crc"):
            (checkpoint / "commits" / name).unlink(missing_ok=True)
        query = writer(**{"onceforall.onDivergence": outcome}).trigger(availableNow=True).start()
        if outcome == "fail":
            with pytest.raises(Exception, match="DivergenceError"):
                query.awaitTermination(60)
        else:
            assert query.awaitTermination(60)
            assert "divergence in batch 0" in caplog.text
    assert values(broker.bootstrap_servers, out.topic) == before


def test_a_write_that_failed_poisons_the_batch_even_when_the_function_catches_the_error(
    broker, source, sink, tmp_path
):
    out = sink()

    @ofa.exactly_once(tmp_path / "cp", sinks={"out": out})
    def process(batch, batch_id, transaction):
        transaction.write("out", batch)
        try:
            transaction.write("out", batch.drop("value"))
        except ofa.ConfigurationError:
            pass

    source.add(*rows(1))
    query = (
        source.stream()
        .writeStream.foreachBatch(process)
        .option("checkpointLocation", str(tmp_path / "cp"))
        .start()
    )
    with pytest.raises(Exception, match="SchemaError.*value"):
        query.awaitTermination(60)
    assert read_all(broker.bootstrap_servers, out.topic, isolation="read_uncommitted") == []


def test_a_function_that_raises_aborts_the_batch_and_a_restart_writes_it_once(
    broker, source, sink, tmp_path
):
    out, broken = sink(), [True]

    @ofa.exactly_once(tmp_path / "cp", sinks={"out": out})
    def process(batch, batch_id, transaction):
        transaction.write("out", batch)
        if broken[0]:
            raise RuntimeError("the user's own error")

    source.add(*rows(1))
    start = lambda: (
        source.stream()
        .writeStream.foreachBatch(process)
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="the user's own error"):
        start().awaitTermination(60)
    broken[0] = False
    assert start().awaitTermination(60)
    assert values(broker.bootstrap_servers, out.topic) == ["v1"]


def test_a_record_that_is_too_large_is_named_with_topic_size_and_limit_and_nothing_is_held_back(
    broker, topic, source, tmp_path
):
    name = topic(partitions=1)
    out = ofa.KafkaSink(
        {"bootstrap.servers": broker.bootstrap_servers, "message.max.bytes": 2000}, topic=name
    )
    source.add({"key": "k", "value": "x" * 5000}, *rows(1))
    # In two tasks: the other one's row may not be decided either.
    query = (
        ofa.write_stream(source.stream().repartition(2))
        .to(out)
        .option("checkpointLocation", str(tmp_path / "cp"))
        .start()
    )
    with pytest.raises(Exception, match=RefusedRecordError.__name__) as raised:
        query.awaitTermination(60)
    assert name in str(raised.value)
    assert "5001" in str(raised.value)
    assert "2000" in str(raised.value)
    released(broker.bootstrap_servers, name)
    assert values(broker.bootstrap_servers, name) == []


def test_what_cannot_be_exactly_once_is_refused_at_start_with_the_reason(source, sink, tmp_path):
    frame = source.stream()
    with pytest.raises(UnsupportedQueryError, match="continuous"):
        ofa.write_stream(frame).trigger(continuous="1 second")
    with pytest.raises(UnsupportedQueryError, match="realTime"):
        ofa.write_stream(frame).trigger(realTime="5 minutes")
    with pytest.raises(UnsupportedQueryError, match="Async progress"):
        ofa.write_stream(frame).option("asyncProgressTrackingEnabled", value=True)
    with pytest.raises(UnsupportedQueryError, match="local"):
        ofa.write_stream(frame).to(sink()).option("checkpointLocation", "ftp://host/cp").start()
    with pytest.raises(CommitLogError, match=r"no jar for this scheme.*hadoop-aws"):
        ofa.write_stream(frame).to(sink()).option("checkpointLocation", "s3a://bucket/cp").start()
    with pytest.raises(OptionError, match="user and a password"):
        ofa.write_stream(frame).to(sink()).option(
            "checkpointLocation", "s3a://key:secret@bucket/cp"
        ).start()
    with pytest.raises(UnsupportedQueryError, match="streaming"):
        ofa.write_stream(frame.sparkSession.range(1))


def test_bad_settings_are_named_before_any_data_moves(broker, topic, source, sink, tmp_path):
    writer = lambda out: (
        ofa.write_stream(source.stream()).to(out).option("checkpointLocation", str(tmp_path / "cp"))
    )
    with pytest.raises(OptionError, match="checkpointLocation"):
        ofa.write_stream(source.stream()).to(sink()).start()
    with pytest.raises(OptionError, match="No sink"):
        ofa.write_stream(source.stream()).option("checkpointLocation", str(tmp_path / "cp")).start()
    with pytest.raises(OptionError, match="onceforall.nonsense"):
        ofa.write_stream(source.stream()).option("onceforall.nonsense", "1")
    with pytest.raises(OptionError, match="minBatchesToRetain"):
        ofa.write_stream(source.stream()).option("onceforall.minBatchesToRetain", "many")
    with pytest.raises(OptionError, match="Two sinks"):
        ofa.write_stream(source.stream()).to(sink(), name="a").to(sink(), name="a")
    with pytest.raises(ofa.ConfigurationError, match="no-such-topic"):
        writer(
            ofa.KafkaSink({"bootstrap.servers": broker.bootstrap_servers}, topic="no-such-topic")
        ).start()
    with pytest.raises(SchemaError, match="value"):
        ofa.write_stream(source.stream().drop("value")).to(sink()).option(
            "checkpointLocation", str(tmp_path / "cp")
        ).start()
    assert not (tmp_path / "cp").exists()


def test_the_checkpoint_that_the_decorator_names_is_compared_with_the_querys_own(
    source, sink, tmp_path
):
    @ofa.exactly_once(tmp_path / "other", sinks={"out": sink()})
    def process(batch, batch_id, transaction):
        transaction.write("out", batch)

    source.add(*rows(1))
    query = (
        source.stream()
        .writeStream.foreachBatch(process)
        .option("checkpointLocation", str(tmp_path / "cp"))
        .start()
    )
    with pytest.raises(Exception, match="CheckpointMismatchError"):
        query.awaitTermination(60)


class TestCheckpointsThatTellAnotherStory:
    @pytest.fixture
    def ran(self, source, sink, run, tmp_path):
        out = sink()
        make = lambda path=tmp_path / "cp": (
            ofa.write_stream(source.stream())
            .to(out, name="out")
            .option("checkpointLocation", str(path))
        )
        source.add(*rows(1))
        source.add(*rows(2))
        run(make())
        return make, out, tmp_path / "cp"

    def fails(self, writer, match):
        with pytest.raises(Exception) as raised:
            writer.trigger(availableNow=True).start().awaitTermination(60)
        assert re.search(match, f"{type(raised.value).__name__}: {raised.value}")

    def test_a_decided_batch_with_other_offsets_is_refused(self, ran, source, broker):
        make, out, checkpoint = ran
        for folder in ("offsets", "commits"):
            for name in ("1", ".1.crc"):
                (checkpoint / folder / name).unlink()
        (checkpoint / "sources" / "0" / "1").unlink()
        (checkpoint / "sources" / "0" / ".1.crc").unlink()
        metadata = checkpoint / "offsets" / "0"
        text = metadata.read_text().replace('{"logOffset":0}', '{"logOffset":-1}')
        metadata.write_text(text)
        (checkpoint / "offsets" / ".0.crc").unlink()
        for name in ("0", ".0.crc"):
            (checkpoint / "commits" / name).unlink()
        self.fails(make(), "CheckpointMismatchError")
        assert values(broker.bootstrap_servers, out.topic) == ["v1", "v2"]

    def test_a_lost_plan_of_the_last_decided_batch_is_put_back_and_the_batch_is_not_written_again(
        self, ran, source, run, broker
    ):
        make, out, checkpoint = ran
        for folder in ("offsets", "commits"):
            for name in ("1", ".1.crc"):
                (checkpoint / folder / name).unlink()
        for name in ("0", ".0.crc"):
            (checkpoint / "commits" / name).unlink()
        source.add(*rows(3))
        run(make())
        assert values(broker.bootstrap_servers, out.topic) == ["v1", "v2", "v3"]

    def test_a_batch_below_the_last_decided_one_is_refused(self, ran, broker):
        make, out, checkpoint = ran
        for folder in ("offsets", "commits"):
            for name in ("1", ".1.crc"):
                (checkpoint / folder / name).unlink()
        for name in ("0", ".0.crc"):
            (checkpoint / "commits" / name).unlink()
        # Restored from a backup: what the decided batch has read is not known there.
        for name in ("1", ".1.crc"):
            (checkpoint / "sources" / "0" / name).unlink()
        self.fails(make(), "CheckpointMismatchError")
        assert values(broker.bootstrap_servers, out.topic) == ["v1", "v2"]

    @pytest.mark.parametrize("log", [True, False], ids=["its log", "no log"])
    @pytest.mark.long
    def test_commits_that_are_newer_than_the_plans_are_not_taken_for_another_run(
        self, ran, source, run, broker, log
    ):
        """A supervisor that was told of another run would start this one for ever."""
        make, out, checkpoint = ran
        source.add(*rows(3))
        run(make())
        for folder in ("offsets", "sources/0"):
            for batch in (1, 2):
                (checkpoint / folder / f"{batch}").unlink()
                (checkpoint / folder / f".{batch}.crc").unlink()
        if not log:
            shutil.rmtree(checkpoint / "onceforall")
        for _ in range(2):
            self.fails(make(), "CheckpointMismatchError: .* are of different times")
        assert values(broker.bootstrap_servers, out.topic) == ["v1", "v2", "v3"]

    def test_another_querys_checkpoint_over_the_same_log_is_refused_each_time(
        self, ran, source, broker
    ):
        make, out, checkpoint = ran
        for name in ("metadata", "offsets", "commits", "sources"):
            path = checkpoint / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (checkpoint / ".metadata.crc").unlink(missing_ok=True)
        for _ in range(2):
            self.fails(make(), "CheckpointMismatchError.*belongs to the query")
        assert values(broker.bootstrap_servers, out.topic) == ["v1", "v2"]

    def test_a_copied_checkpoint_is_refused_until_it_is_adopted(
        self, ran, source, broker, run, tmp_path
    ):
        make, out, checkpoint = ran
        copied = tmp_path / "copied"
        shutil.move(checkpoint, copied)
        source.add(*rows(3))
        for _ in range(2):
            # By start() itself: while there is no input, no batch would tell anybody.
            with pytest.raises(
                ofa.CheckpointMismatchError, match=r"copied or moved.*onceforall\.adoptCheckpoint"
            ):
                make(copied).start()
        assert values(broker.bootstrap_servers, out.topic) == ["v1", "v2"]
        run(make(copied).option("onceforall.adoptCheckpoint", "true"))
        source.add(*rows(4))
        run(make(copied))
        assert values(broker.bootstrap_servers, out.topic) == ["v1", "v2", "v3", "v4"]

    def test_a_damaged_entry_is_named_with_its_file(self, ran, source):
        make, _, checkpoint = ran
        source.add(*rows(3))
        file = sorted((checkpoint / "onceforall" / "chains").glob("*/0*.json"))[-1]
        file.write_bytes(file.read_bytes()[:-20])
        self.fails(make(), f"CorruptEntryError.*{file.name}")

    def test_a_plain_querys_unfinished_batch_is_refused_until_it_is_accepted(
        self, source, sink, run, broker, tmp_path
    ):
        checkpoint, out = tmp_path / "cp", sink()
        source.add(*rows(1))
        plain = (
            source.stream()
            .writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
        )
        assert plain.start().awaitTermination(60)
        for name in ("0", ".0.crc"):
            (checkpoint / "commits" / name).unlink()
        writer = lambda: (
            ofa.write_stream(source.stream()).to(out).option("checkpointLocation", str(checkpoint))
        )
        with pytest.raises(ofa.CheckpointMismatchError, match="takeover"):
            writer().start()
        run(writer().option("onceforall.takeover", "accept"))
        assert values(broker.bootstrap_servers, out.topic) == ["v1"]
