"""From a plain query to onceforall and back, a switched delivery, and a log elsewhere: on real
Spark and a real broker."""

import json
import re
import shutil

import pytest
from confluent_kafka import Producer

import onceforall as ofa
from onceforall.driver import sweeper
from onceforall.errors import CommitLogError, OptionError
from onceforall.failpoints import points as failpoints
from onceforall.spark import checkpoint as spark_checkpoint
from support.reading import held_back, values
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


class Pipeline:
    """One query on one checkpoint, from a folder of files to one topic, started with onceforall
    or plainly."""

    def __init__(self, broker, topic, source, folder):
        self.servers = broker.bootstrap_servers
        self.topic = topic(partitions=2)
        self.source = source
        self.checkpoint = folder / "cp"
        self.begun = []

    def sink(self, **more):
        return ofa.KafkaSink({"bootstrap.servers": self.servers}, topic=self.topic, **more)

    def add(self, *numbers):
        self.source.add(*({"key": f"k{n % 2}", "value": f"v{n}"} for n in numbers))

    def writer(self, frame=None, delivery="exactly_once", mode="append", **options):
        made = ofa.write_stream(self.source.stream() if frame is None else frame).to(
            self.sink(delivery=delivery), name="out"
        )
        named = {f"onceforall.{name}": value for name, value in options.items()}
        return (
            made.outputMode(mode)
            .options(**named)
            .option("checkpointLocation", str(self.checkpoint))
        )

    def run(self, *args, **more):
        assert self.writer(*args, **more).trigger(availableNow=True).start().awaitTermination(120)

    def plain(self, frame=None, mode="append", fail_after_batch=None):
        """Run a plain query to its end: it writes each row when its batch runs, like Spark's own
        sink."""

        def write(batch, batch_id):
            self.begun.append(batch_id)
            producer = Producer({"bootstrap.servers": self.servers})
            for row in batch.collect():
                producer.produce(self.topic, value=row["value"], key=row["key"])
            assert producer.flush(30) == 0
            if batch_id == fail_after_batch:
                raise RuntimeError("the plain query fails")

        stream = (
            (self.source.stream() if frame is None else frame)
            .writeStream.outputMode(mode)
            .foreachBatch(write)
        )
        return (
            stream.option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
            .awaitTermination(60)
        )

    def detach(self, **more):
        return ofa.detach(self.checkpoint, {"out": self.sink()}, **more)

    def abort_what_is_decided(self):
        """What the brokers do by themselves when the timeout of a prepared transaction has
        passed."""
        entries = (
            json.loads(file.read_text())
            for file in self.checkpoint.glob("onceforall/chains/*/0*.json")
        )
        (decision,) = (entry["body"] for entry in entries if entry["kind"] == "COMMIT")
        assert decision["committables"]["out"]
        sink = self.sink()
        sink.abort(decision["committables"]["out"])
        sink.close()

    def visible(self):
        return values(self.servers, self.topic)

    def settled(self):
        """What is visible as soon as no transaction holds a reader back: the brokers answer a
        commit before its markers are written."""
        until(lambda: held_back(self.servers, self.topic) == 0, 60, "no transaction is open")
        return self.visible()


@pytest.fixture
def pipeline(broker, topic, source, tmp_path):
    return Pipeline(broker, topic, source, tmp_path)


@pytest.fixture
def crash(monkeypatch):
    """Let a query fail at a failpoint: ``with crash("append_commit.after"): …``."""

    class Crash:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            monkeypatch.setattr(
                failpoints, "_failpoints", failpoints._Failpoints(f"{self.name}=raise", None)
            )

        def __exit__(self, kind, error, trace):
            monkeypatch.setattr(failpoints, "_failpoints", None)
            assert error is not None, f"nothing failed at {self.name}"
            return f"failpoint {self.name}" in str(error)

    return Crash


def named(*numbers):
    return sorted(f"v{n}" for n in numbers)


def counted(pipeline):
    """A stateful query: how often each key was seen."""
    from pyspark.sql import functions as F

    frame = pipeline.source.stream().groupBy("key").count()
    return frame.select("key", F.concat_ws(":", "key", "count").alias("value"))


class TestDetaching:
    @pytest.mark.parametrize("point", ["write.after", "append_commit.after", "commit.after"])
    @pytest.mark.sample(1)
    def test_a_plain_query_goes_on_after_a_crash_at_any_point_without_loss_or_duplicate(
        self, pipeline, crash, point
    ):
        pipeline.add(1, 2)
        pipeline.run()
        pipeline.add(3, 4)
        with crash(point):
            pipeline.run()
        pipeline.add(5)
        decided = point != "write.after"
        done = pipeline.detach()
        assert pipeline.settled() == (named(1, 2, 3, 4) if decided else named(1, 2))
        assert (done.completed, done.passed) == ((1, 1) if decided else (None, None))
        assert not spark_checkpoint.is_ours(pipeline.checkpoint)
        assert done.log == pipeline.checkpoint / "onceforall"
        pipeline.plain()
        assert pipeline.begun == ([2] if decided else [1, 2])
        assert pipeline.settled() == named(1, 2, 3, 4, 5)

    def test_the_very_first_batch_is_passed_too(self, pipeline, crash):
        pipeline.add(1)
        with crash("append_commit.after"):
            pipeline.run()
        pipeline.detach()
        pipeline.add(2)
        pipeline.plain()
        assert (pipeline.settled(), pipeline.begun) == (named(1, 2), [1])

    def test_an_orderly_stop_needs_nothing_but_the_pointer(self, pipeline):
        pipeline.add(1)
        pipeline.run()
        before = {
            file: file.read_bytes() for file in pipeline.checkpoint.glob("*/*") if file.is_file()
        }
        told = pipeline.detach(dry_run=True)
        assert told.log is None
        assert spark_checkpoint.is_ours(pipeline.checkpoint)
        done = pipeline.detach()
        assert (done.completed, done.passed) == (None, None)
        assert all(file.read_bytes() == content for file, content in before.items())
        shutil.rmtree(done.log)
        with pytest.raises(ofa.ConfigurationError, match="no commit log.*plain query's already"):
            pipeline.detach()

    @pytest.mark.long
    def test_an_entry_for_sparks_commit_log_is_what_spark_writes_itself(self, pipeline, crash):
        frame = lambda: pipeline.source.stream().withWatermark("at", "1 second").drop("at")
        for second in range(2):
            pipeline.source.add(
                {"key": "k", "value": f"v{second}", "at": f"2024-01-01T00:00:0{second}Z"}
            )
            pipeline.run(frame())
        ours = pipeline.checkpoint / "commits" / "1"
        sparks = ours.read_bytes()
        for name in ("1", ".1.crc"):
            (pipeline.checkpoint / "commits" / name).unlink()
        assert pipeline.detach().passed == 1
        # The first batch's watermark was known when the second was planned; what the second adds is
        # not.
        version, fields = ours.read_text().splitlines()
        theirs, spark_fields = sparks.decode().splitlines()
        assert version == theirs
        assert json.loads(fields).keys() == json.loads(spark_fields).keys()
        assert ours.read_bytes() == (pipeline.checkpoint / "commits" / "0").read_bytes()
        pipeline.source.add({"key": "k", "value": "v2", "at": "2024-01-01T00:00:02Z"})
        pipeline.plain(frame())
        assert pipeline.settled() == named(0, 1, 2)

    @pytest.mark.parametrize(
        "point",
        [
            *(pytest.param(p, marks=pytest.mark.long) for p in ("claim.after", "recover.after")),
            "detach.passed",
            "detach.pointed",
        ],
    )
    def test_a_detachment_that_crashed_is_repeated(self, pipeline, crash, point):
        pipeline.add(1)
        with crash("append_commit.after"):
            pipeline.run()
        with crash(point):
            pipeline.detach()
        assert spark_checkpoint.is_ours(pipeline.checkpoint) == (point != "detach.pointed")
        pipeline.detach()
        pipeline.detach()
        pipeline.add(2)
        pipeline.plain()
        assert (pipeline.settled(), pipeline.begun) == (named(1, 2), [1])

    @pytest.mark.parametrize(
        "point", [pytest.param("recover.after", marks=pytest.mark.long), "detach.recovered"]
    )
    def test_after_a_detachment_that_crashed_onceforall_goes_on_too(self, pipeline, crash, point):
        pipeline.add(1)
        with crash("append_commit.after"):
            pipeline.run()
        with crash(point):
            pipeline.detach()
        pipeline.add(2)
        pipeline.run()
        assert pipeline.settled() == named(1, 2)

    def test_a_query_that_keeps_state_must_pass_the_batch_itself_first(self, pipeline, crash):
        pipeline.add(1, 2)
        pipeline.run(counted(pipeline), mode="update")
        pipeline.add(1)
        with crash("append_commit.after"):
            pipeline.run(counted(pipeline), mode="update")
        with pytest.raises(ofa.CheckpointMismatchError, match="keeps state.*availableNow"):
            pipeline.detach()
        assert spark_checkpoint.is_ours(pipeline.checkpoint)
        assert pipeline.settled() == ["k0:1", "k1:1", "k1:2"]
        pipeline.run(counted(pipeline), mode="update")
        assert pipeline.detach().passed is None
        pipeline.add(1)
        pipeline.plain(counted(pipeline), mode="update")
        assert pipeline.settled() == ["k0:1", "k1:1", "k1:2", "k1:3"]

    def test_a_lost_transaction_is_for_the_query_to_write_again_before_it_is_detached(
        self, pipeline, crash
    ):
        pipeline.add(1, 2)
        with crash("append_commit.after"):
            pipeline.run()
        pipeline.abort_what_is_decided()
        with pytest.raises(ofa.TransactionLostError, match="Start the query once more"):
            pipeline.detach()
        assert spark_checkpoint.is_ours(pipeline.checkpoint)
        assert not (pipeline.checkpoint / "commits" / "0").exists()
        pipeline.run()
        pipeline.detach()
        pipeline.add(3)
        pipeline.plain()
        assert pipeline.settled() == named(1, 2, 3)

    def test_a_run_that_is_alive_is_fenced(self, pipeline):
        pipeline.add(1)
        query = pipeline.writer().trigger(processingTime="50 milliseconds").start()
        try:
            until(
                lambda: query.exception() or pipeline.visible() == named(1),
                60,
                "the first batch is visible",
            )
            pipeline.detach()
            pipeline.add(2)
            with pytest.raises(Exception, match="FencedError"):
                query.awaitTermination(60)
        finally:
            query.stop()
        assert not spark_checkpoint.is_ours(pipeline.checkpoint)
        pipeline.plain()
        assert pipeline.settled() == named(1, 2)

    def test_a_batch_that_the_plain_query_began_is_not_taken_for_one_of_ours_on_the_way_back(
        self, pipeline
    ):
        pipeline.add(1)
        pipeline.run()
        pipeline.detach()
        pipeline.add(2)
        with pytest.raises(Exception, match="the plain query fails"):
            pipeline.plain(fail_after_batch=1)
        with pytest.raises(
            ofa.CheckpointMismatchError, match=r"Batch 1 .*begun without onceforall.*000001\.json"
        ):
            pipeline.run()
        with pytest.raises(ofa.CheckpointMismatchError, match="begun without onceforall"):
            ofa.exactly_once(pipeline.checkpoint, sinks={"out": pipeline.sink()})(
                lambda batch, batch_id, transaction: None
            )
        pipeline.plain()
        pipeline.add(3)
        pipeline.run()
        # Batch 1 twice by the plain query itself: that is what at-least-once means.
        assert pipeline.settled() == named(1, 2, 2, 3)

    @pytest.mark.long
    def test_a_plain_query_that_ran_without_a_detachment_is_mended_by_one(
        self, pipeline, monkeypatch
    ):
        # The runs before the detachment go on sweeping the generations below their own, all the
        # time and to the end of the test.
        monkeypatch.setattr(sweeper, "SWEEP_AGAIN_AFTER_S", (0.02,))
        monkeypatch.setattr(sweeper, "SWEEPS_AFTER_THE_END", 100_000)
        pipeline.add(1)
        pipeline.run()
        for n in (2, 3):
            pipeline.add(n)
        pipeline.plain()
        pipeline.add(4)
        with pytest.raises(Exception, match="CheckpointMismatchError.*without onceforall"):
            pipeline.run()
        pipeline.detach()
        with pytest.raises(ofa.CheckpointMismatchError, match="Batch 3 .*begun without onceforall"):
            pipeline.run()
        pipeline.run(takeover="accept")
        assert pipeline.settled() == named(1, 2, 3, 4)

    def test_no_generation_has_the_number_of_one_before_the_detachment(self, pipeline):
        """The last sweep of a run, or a task of it that wakes, must not meet ids that are in use
        again."""
        pipeline.add(1)
        pipeline.run()
        pipeline.detach()
        before = spark_checkpoint.detached_generation(pipeline.checkpoint)
        pipeline.add(2)
        pipeline.run()
        [again] = pipeline.checkpoint.glob("onceforall/again-*")
        assert again.name == f"again-{before + 1}"
        assert sorted(int(chain.name) for chain in again.glob("chains/*")) == [before + 1]
        assert pipeline.settled() == named(1, 2)

    @pytest.mark.long
    def test_the_first_run_behind_a_return_keeps_its_rows_beside_its_log(self, pipeline, crash):
        """The next one looks for them there. A function has begun no log before its first batch."""

        @ofa.exactly_once(
            pipeline.checkpoint,
            sinks={"out": pipeline.sink()},
            redo="durable",
            takeover="accept",
        )
        def process(batch, batch_id, transaction):
            transaction.write("out", batch)

        def run():
            query = (
                pipeline.source.stream()
                .writeStream.foreachBatch(process)
                .option("checkpointLocation", str(pipeline.checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(60)

        pipeline.add(1)
        run()
        pipeline.detach()
        pipeline.add(2)
        with crash("append_commit.after"):
            run()
        [again] = pipeline.checkpoint.glob("onceforall/again-*")
        assert any(file.is_file() for file in (again / "rows").rglob("*"))
        run()
        assert pipeline.settled() == named(1, 2)

    @pytest.mark.long
    def test_a_function_that_was_decorated_before_the_detachment_is_refused_as_well(self, pipeline):
        @ofa.exactly_once(pipeline.checkpoint, sinks={"out": pipeline.sink()})
        def process(batch, batch_id, transaction):
            transaction.write("out", batch)

        stream = lambda: (
            pipeline.source.stream()
            .writeStream.foreachBatch(process)
            .option("checkpointLocation", str(pipeline.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        pipeline.add(1)
        assert stream().awaitTermination(60)
        pipeline.detach()
        pipeline.add(2)
        with pytest.raises(Exception, match="the plain query fails"):
            pipeline.plain(fail_after_batch=1)
        with pytest.raises(Exception, match="begun without onceforall"):
            stream().awaitTermination(60)
        assert pipeline.settled() == named(1, 2)

    @pytest.mark.long
    def test_a_plain_querys_finished_batches_are_no_obstacle_after_a_detachment(self, pipeline):
        pipeline.add(1)
        pipeline.run()
        pipeline.detach()
        for n in (2, 3, 4):
            pipeline.add(n)
        pipeline.plain()
        pipeline.add(5)
        pipeline.run()
        assert pipeline.settled() == named(1, 2, 3, 4, 5)
        pipeline.detach()
        assert spark_checkpoint.detached_generation(pipeline.checkpoint) == 3


@pytest.mark.long
def test_the_refusal_of_a_plain_querys_unfinished_batch_names_its_input_until_it_is_accepted(
    pipeline,
):
    pipeline.add(1)
    pipeline.plain()
    pipeline.add(2)
    with pytest.raises(Exception, match="the plain query fails"):
        pipeline.plain(fail_after_batch=1)
    with pytest.raises(ofa.CheckpointMismatchError) as raised:
        pipeline.writer().start()
    assert re.search(
        r"Batch 1 .*source 0: the file file:.*/source/000001\.json\. Let", str(raised.value)
    )
    assert "000000.json" not in str(raised.value)
    assert not (pipeline.checkpoint / "onceforall").exists()
    pipeline.run(takeover="accept")
    assert pipeline.settled() == named(1, 2, 2)


class TestSwitchingTheDelivery:
    @pytest.mark.parametrize("delivery", ["at_least_once", "none"])
    def test_what_is_decided_is_completed_first(self, pipeline, crash, delivery):
        pipeline.add(1, 2)
        with crash("append_commit.after"):
            pipeline.run()
        assert pipeline.visible() == []
        pipeline.add(3)
        pipeline.run(delivery=delivery)
        until(lambda: pipeline.visible() == named(1, 2, 3), 30, "each row is there once")

    def test_what_is_undecided_is_aborted_first(self, pipeline, crash):
        pipeline.add(1, 2)
        with crash("write.after"):
            pipeline.run()
        assert held_back(pipeline.servers, pipeline.topic) > 0
        pipeline.run(delivery="at_least_once")
        assert pipeline.settled() == named(1, 2)

    @pytest.mark.long
    def test_and_back(self, pipeline, crash):
        pipeline.add(1)
        with crash("append_commit.after"):
            pipeline.run(delivery="at_least_once")
        pipeline.add(2)
        pipeline.run()
        # Batch 0 was decided: at_least_once acknowledges before the decision, so it isn't written
        # again.
        assert pipeline.settled() == named(1, 2)


class TestTheLogElsewhere:
    def test_a_query_finds_its_log_by_the_pointer_and_completes_what_is_in_doubt(
        self, pipeline, crash, tmp_path
    ):
        elsewhere = tmp_path / "volume" / "log"
        pipeline.add(1)
        with crash("append_commit.after"):
            pipeline.run(commitLog=str(elsewhere))
        assert not (pipeline.checkpoint / "onceforall" / "chains").exists()
        assert pipeline.visible() == []
        pipeline.add(2)
        pipeline.run()
        pipeline.add(3)
        pipeline.run(commitLog=elsewhere.as_uri())
        assert pipeline.settled() == named(1, 2, 3)
        assert len(list((elsewhere / "chains").iterdir())) == 3

    def test_a_copy_of_a_checkpoint_with_a_pointer_is_refused_unless_it_is_adopted(
        self, pipeline, tmp_path
    ):
        elsewhere = tmp_path / "log"
        pipeline.add(1)
        pipeline.run(commitLog=str(elsewhere))
        original = pipeline.checkpoint
        pipeline.checkpoint = shutil.copytree(original, tmp_path / "copy")
        pipeline.add(2)
        with pytest.raises(ofa.CheckpointMismatchError, match="copied or moved"):
            pipeline.run()
        assert pipeline.settled() == named(1)
        pipeline.run(adoptCheckpoint=True)
        pipeline.add(3)
        pipeline.run()
        pipeline.checkpoint = original
        with pytest.raises(ofa.CheckpointMismatchError, match="copied or moved"):
            pipeline.run()
        assert pipeline.settled() == named(1, 2, 3)

    def test_two_queries_on_one_folder_and_folders_in_the_checkpoint_are_refused_at_start(
        self, pipeline, tmp_path
    ):
        pipeline.add(1)
        pipeline.run(commitLog=str(tmp_path / "log"))
        with pytest.raises(OptionError, match="in the checkpoint"):
            pipeline.writer(commitLog=str(pipeline.checkpoint / "log")).start()
        pipeline.checkpoint = tmp_path / "cp2"
        with pytest.raises(ofa.CheckpointMismatchError, match="not share"):
            ofa.exactly_once(
                pipeline.checkpoint, sinks={"out": pipeline.sink()}, commit_log=tmp_path / "log"
            )(print)
        with pytest.raises(ofa.CheckpointMismatchError, match="not share"):
            pipeline.writer(commitLog=str(tmp_path / "log")).start()
        with pytest.raises(CommitLogError, match="s3a://bucket/log: Spark has no jar"):
            pipeline.writer(commitLog="s3a://bucket/log").start()
        assert not pipeline.checkpoint.exists()

    @pytest.mark.long
    def test_it_is_detached_too_and_a_return_finds_room_in_its_place(
        self, pipeline, crash, tmp_path
    ):
        elsewhere = tmp_path / "log"
        pipeline.add(1)
        with crash("append_commit.after"):
            pipeline.run(commitLog=str(elsewhere))
        with crash("detach.pointed"):
            pipeline.detach()
        pipeline.detach()
        pipeline.add(2)
        pipeline.plain()
        pipeline.add(3)
        pipeline.run(commitLog=str(elsewhere))
        pipeline.add(4)
        pipeline.run(commitLog=str(elsewhere))
        assert [folder.name for folder in elsewhere.glob("again-*")] == ["again-2"]
        assert pipeline.settled() == named(1, 2, 3, 4)
