"""One decision for all sinks of a batch: who is written with whom, in which job, and what
becomes of the others when one fails."""

import uuid

import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F

import onceforall as ofa
from onceforall.driver import stopping
from onceforall.errors import UnsupportedQueryError
from onceforall.failpoints import points as failpoints
from onceforall.sink import Capabilities
from support import recorder
from support.recorder import Recorder
from support.waiting import until

pytestmark = pytest.mark.spark

KEYED = Capabilities(two_phase=True, one_task_per_key=("key",))


@pytest.fixture(autouse=True)
def _shipped_to_workers():
    cloudpickle.register_pickle_by_value(recorder)
    yield
    cloudpickle.unregister_pickle_by_value(recorder)


@pytest.fixture
def make(tmp_path):
    return lambda name, **more: Recorder(tmp_path / name, **more)


def rows(*numbers):
    return [{"key": f"k{n % 3}", "value": f"v{n}"} for n in numbers]


def writer(frame, tmp_path, *sinks, **transforms):
    """Sinks are named by their folders; a transform is for the sink of its name."""
    made = ofa.write_stream(frame).option("checkpointLocation", str(tmp_path / "cp"))
    for sink in sinks:
        made.to(sink, name=sink.folder.name, transform=transforms.get(sink.folder.name))
    return made


def test_the_steps_of_several_sinks_run_at_the_same_time(source, make, run, tmp_path):
    """Each step of one sink waits for the same step of the other: one after the other, none
    would come to an end."""
    both = [make("a", meets=2), make("b", meets=2)]
    source.add(*rows(1))
    run(writer(source.stream(), tmp_path, *both))
    assert both[0].seen("value") == both[1].seen("value") == ["v1"]


@pytest.mark.parametrize("step", ["pre_commit", "confirm"])
def test_a_sink_that_fails_before_the_decision_makes_all_of_them_abort(
    source, make, run, tmp_path, step
):
    good, bad = make("good"), make("bad", fail=step)
    source.add(*rows(1, 2, 3))
    with pytest.raises(Exception, match=f"the recorder fails at {step}"):
        run(writer(source.stream(), tmp_path, good, bad))
    assert good.tasks() == bad.tasks() == good.left() == bad.left() == []
    bad.fail = None
    run(writer(source.stream(), tmp_path, good, bad))
    assert good.seen("value") == bad.seen("value") == ["v1", "v2", "v3"]


def test_a_sink_that_is_away_at_recovery_does_not_hold_back_the_others(
    source, make, run, tmp_path, monkeypatch
):
    here, away = make("here"), make("away")
    source.add(*rows(1, 2))
    monkeypatch.setattr(
        failpoints, "_failpoints", failpoints._Failpoints("append_commit.after=raise", None)
    )
    with pytest.raises(Exception, match="failpoint"):
        run(writer(source.stream(), tmp_path, here, away))
    monkeypatch.setattr(failpoints, "_failpoints", None)
    assert here.tasks() == away.tasks() == []
    away.fail = "commit"
    query = writer(source.stream(), tmp_path, here, away).trigger(availableNow=True).start()
    until(lambda: here.tasks(), 60, "the sink that is there is complete")
    assert away.tasks() == []
    query.stop()
    away.fail = None
    run(writer(source.stream(), tmp_path, here, away))
    assert here.seen("value") == away.seen("value") == ["v1", "v2"]


def test_an_ended_query_logs_nothing_into_the_records_of_a_later_test(
    source, make, run, tmp_path, request
):
    """Its sweeps go on for a while, and may find that the test has taken its tables away."""
    source.add(*rows(1))
    run(writer(source.stream(), tmp_path, make("a")))
    ended = [run for run in stopping.PROCESS._runs if not run.is_active()]
    assert ended
    request.getfixturevalue("caplog")
    assert not set(ended) & set(stopping.PROCESS._runs)


def test_a_restart_gives_the_checks_its_query_id_at_once(source, make, run, tmp_path, monkeypatch):
    """With it a sink can refuse, before it makes anything, what belongs to this query and lies
    elsewhere."""
    asked = []
    monkeypatch.setattr(Recorder, "check", lambda _, start: asked.append(start.query_id))
    source.add(*rows(1))
    run(writer(source.stream(), tmp_path, make("a")))
    assert asked[0] == ""
    query_id = asked[-1]
    del asked[:]
    source.add(*rows(2))
    run(writer(source.stream(), tmp_path, make("a")))
    assert set(asked) == {query_id}


class TestWhoIsWrittenTogether:
    def test_all_rows_of_a_key_come_to_one_task_of_a_sink_that_asks_for_it(
        self, source, make, run, spark, tmp_path
    ):
        keyed, plain = make("keyed", able=KEYED), make("plain")
        for part in range(3):
            source.add(*rows(*range(part * 20, part * 20 + 20)))
        frame = source.stream(files_per_batch=3).repartition(4)
        query = run(writer(frame, tmp_path, keyed, plain))
        assert len(plain.tasks()) > 1
        assert keyed.seen("value") == plain.seen("value") == sorted(f"v{n}" for n in range(60))
        found = [
            row["key"]
            for task in keyed.tasks()
            for row in {row["key"]: row for row in task}.values()
        ]
        assert sorted(found) == ["k0", "k1", "k2"]
        assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId))) >= 2

    @pytest.mark.parametrize(
        "able", [KEYED, Capabilities(two_phase=False, idempotent=True, one_task_per_key=("key",))]
    )
    def test_a_second_write_to_such_a_sink_in_one_batch_is_refused_at_once(
        self, source, make, tmp_path, able
    ):
        """A key that both have would be in two tasks: these wait for each other for ever, or the
        last one wins in silence."""
        keyed, plain = make("keyed", able=able), make("plain")

        @ofa.exactly_once(tmp_path / "cp", sinks={"keyed": keyed, "plain": plain})
        def process(batch, batch_id, transaction):
            transaction.write("plain", batch)
            transaction.write("plain", batch)
            transaction.write("keyed", batch.where("key = 'k1'"))
            transaction.write("keyed", batch)

        source.add(*rows(1, 2))
        query = (
            source.stream()
            .writeStream.foreachBatch(process)
            .option("checkpointLocation", str(tmp_path / "cp"))
        )
        started = query.trigger(availableNow=True).start()
        with pytest.raises(Exception, match="foreachBatch|keyed"):
            started.awaitTermination(60)
        told = str(ofa.error_of(started))
        assert (
            "UnsupportedQueryError: The sink keyed needs all rows of a batch that have the same "
            "key in one task" in told
        )
        assert "unionByName" in told
        assert keyed.tasks() == plain.tasks() == keyed.left() == plain.left() == []

    @pytest.mark.long
    def test_keys_count_as_the_sink_writes_them(self, source, make, run, tmp_path):
        able = Capabilities(two_phase=True, one_task_per_key=("name",))
        keyed = make("keyed", able=able, columns=["upper(value) AS name", "key"])
        source.add(*({"key": str(n), "value": "x" if n % 2 else "X"} for n in range(20)))
        run(writer(source.stream().repartition(4), tmp_path, keyed))
        assert [len(task) for task in keyed.tasks()] == [20]

    def test_keys_of_one_name_count_as_each_of_two_sinks_writes_them(
        self, source, make, run, spark, tmp_path, request
    ):
        """Two of them write the same, and are written in one job."""
        coalesce = "spark.sql.adaptive.coalescePartitions.enabled"
        spark.conf.set(coalesce, "false")
        request.addfinalizer(lambda: spark.conf.unset(coalesce))
        able = Capabilities(two_phase=True, one_task_per_key=("name",))
        plain = make("plain", able=able, columns=["value AS name", "key"])
        shouting = make("shouting", able=able, columns=["upper(value) AS name", "key"])
        again = make("again", able=able, columns=["upper(value) AS name", "value"])
        # Texts of which Spark's hash brings each to another task than its capitals.
        texts = [text for n in range(12) for text in (f"a{n}", f"A{n}")]
        source.add(*({"key": str(n), "value": text} for n, text in enumerate(texts)))
        run(writer(source.stream().repartition(4), tmp_path, plain, shouting, again))
        for sink in (plain, shouting, again):
            tasks_of = [name for task in sink.tasks() for name in {row["name"] for row in task}]
            assert len(tasks_of) == len(set(tasks_of)), sink.folder.name
            assert sum(map(len, sink.tasks())) == 24
        assert len(shouting.tasks()) > 1

    def test_the_rows_of_a_batch_are_computed_once_whatever_the_sinks_make_of_them(
        self, source, make, run, spark, tmp_path
    ):
        """Random rows, and a count of them: a second computation would show in both."""
        computed = spark.sparkContext.accumulator(0)

        @F.udf("string")
        def drawn(_value):
            computed.add(1)
            return uuid.uuid4().hex

        sinks = [make("plain"), make("keyed", able=KEYED), make("half"), make("shouting")]
        transforms = {
            "half": lambda f: f.where("key = 'k1'"),
            "shouting": lambda f: f.withColumn("value", F.upper("value")),
        }
        source.add(*rows(*range(30)))
        frame = source.stream().withColumn("value", drawn.asNondeterministic()("value"))
        run(writer(frame, tmp_path, *sinks, **transforms))
        plain, keyed, half, shouting = (sink.seen("value") for sink in sinks)
        assert len(plain) == 30
        assert plain == keyed == [value.lower() for value in shouting]
        assert len(half) == 10
        assert set(half) < set(plain)
        assert computed.value == 30

    def test_two_jobs_compute_the_batch_once(self, source, make, run, spark, tmp_path):
        computed = spark.sparkContext.accumulator(0)

        @F.udf("string")
        def drawn(_value):
            computed.add(1)
            return uuid.uuid4().hex

        source.add(*rows(*range(30)))
        frame = source.stream().withColumn("value", drawn.asNondeterministic()("value"))
        sinks = [make("plain"), make("half")]
        run(writer(frame, tmp_path, *sinks, half=lambda f: f.where("key = 'k1'")))
        plain, half = (sink.seen("value") for sink in sinks)
        assert (len(plain), len(half)) == (30, 10)
        assert set(half) < set(plain)
        assert computed.value == 30

    @pytest.mark.long
    def test_a_frame_that_two_jobs_read_is_computed_once_as_well(
        self, source, make, run, spark, tmp_path
    ):
        computed = spark.sparkContext.accumulator(0)

        @F.udf("string")
        def drawn(_value):
            computed.add(1)
            return uuid.uuid4().hex

        plain, keyed = make("plain"), make("keyed", able=KEYED)

        @ofa.exactly_once(tmp_path / "cp", sinks={"plain": plain, "keyed": keyed})
        def process(batch, batch_id, transaction):
            derived = batch.withColumn("value", drawn.asNondeterministic()("value"))
            transaction.write("plain", derived)
            transaction.write("keyed", derived)

        source.add(*rows(*range(12)))
        query = (
            source.stream()
            .writeStream.foreachBatch(process)
            .option("checkpointLocation", str(tmp_path / "cp"))
        )
        assert query.trigger(availableNow=True).start().awaitTermination(60)
        assert len(plain.seen("value")) == 12
        assert plain.seen("value") == keyed.seen("value")
        assert computed.value == 12

    def test_a_stateful_batch_behind_several_transforms_counts_each_row_once(
        self, source, make, run, tmp_path
    ):
        sinks = [make("low"), make("high")]
        transforms = {
            "low": lambda f: f.where("count < 3").limit(1),
            "high": lambda f: f.where("count >= 3"),
        }
        for _ in range(3):
            source.add(*rows(0, 1, 2))
        frame = source.stream().groupBy("key").count()
        run(writer(frame, tmp_path, *sinks, **transforms).outputMode("update"))
        assert len(sinks[0].seen("count")) == 2
        assert sinks[1].seen("count") == [3, 3, 3]


class TestBatchesWithoutRows:
    ABLE = Capabilities(two_phase=True, empty_batches=True)

    def test_a_sink_that_replaces_gets_a_transaction_for_a_batch_without_rows(
        self, source, make, run, tmp_path
    ):
        replacing, adding = make("replacing", able=self.ABLE), make("adding")
        source.add(*rows(1))
        run(writer(source.stream().where("key = 'none'"), tmp_path, replacing, adding))
        assert replacing.tasks() == [[]]
        assert adding.tasks() == []

    @pytest.mark.parametrize("kept", [False, True])
    def test_it_is_completed_after_a_crash_too(
        self, source, make, run, tmp_path, monkeypatch, kept
    ):
        replacing = make("replacing", able=self.ABLE)
        source.add(*rows(1))
        start = lambda: writer(source.stream().where("key = 'none'"), tmp_path, replacing).option(
            "onceforall.redo", "durable" if kept else "replay"
        )
        monkeypatch.setattr(
            failpoints, "_failpoints", failpoints._Failpoints("append_commit.after=raise", None)
        )
        with pytest.raises(Exception, match="failpoint"):
            run(start())
        monkeypatch.setattr(failpoints, "_failpoints", None)
        assert replacing.tasks() == []
        run(start())
        assert replacing.tasks() == [[]]
        assert replacing.left() == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("able", "mode", "words"),
        [
            (
                Capabilities(two_phase=False),
                "append",
                "can't be exactly-once.*two_phase.*idempotent.*at_least_once",
            ),
            (
                Capabilities(two_phase=True, output_modes=frozenset({"append"})),
                "update",
                "output mode 'update'.*it serves: append",
            ),
            (
                Capabilities(two_phase=True, delivery="exactly once"),
                "append",
                "none of exactly_once",
            ),
            (Capabilities(two_phase=True, transaction_timeout_ms=0), "append", "must be positive"),
        ],
    )
    def test_a_sink_that_cannot_do_it_is_refused_at_start_with_the_reason(
        self, source, make, tmp_path, able, mode, words
    ):
        frame = source.stream() if mode == "append" else source.stream().groupBy("key").count()
        with pytest.raises(UnsupportedQueryError, match=f"Sink 'out'.*{words}"):
            writer(frame, tmp_path, make("out", able=able)).outputMode(mode).start()
        assert not (tmp_path / "cp").exists()

    def test_the_other_door_refuses_it_at_the_first_batch(self, source, make, run, tmp_path):
        able = Capabilities(two_phase=True, output_modes=frozenset({"append"}))
        out = make("out", able=able)
        source.add(*rows(1))
        process = ofa.exactly_once(tmp_path / "cp", sinks={"out": out})(
            lambda b, _id, t: t.write("out", b)
        )
        query = (
            source.stream()
            .groupBy("key")
            .count()
            .writeStream.outputMode("update")
            .foreachBatch(process)
        )
        with pytest.raises(Exception, match="can't serve the output mode 'update'"):
            query.option("checkpointLocation", str(tmp_path / "cp")).trigger(
                availableNow=True
            ).start().awaitTermination(60)
        assert out.tasks() == []

    @pytest.mark.parametrize(
        "able", [Capabilities(two_phase=False, idempotent=True), Capabilities(False, None, "none")]
    )
    def test_one_without_two_phases_that_is_idempotent_or_promises_less_is_taken(
        self, source, make, tmp_path, able
    ):
        query = writer(source.stream(), tmp_path, make("out", able=able)).start()
        query.stop()


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.long
def test_what_a_function_persists_and_unpersists_is_computed_once_for_all_its_writes(
    source, spark, run, tmp_path, looks
):
    """As functions for foreachBatch do; the jobs run when the function has returned."""
    source.add(*rows(*range(400)))
    low, high = make_files(tmp_path, "low"), make_files(tmp_path, "high")
    before = spark.sparkContext._jsc.getPersistentRDDs().size()

    @ofa.exactly_once(tmp_path / "cp", sinks={"low": low, "high": high})
    def process(batch, batch_id, transaction):
        # Another one each time that it is computed; no Python runs for it.
        token = F.expr("reflect('java.util.UUID', 'randomUUID')")
        drawn = batch.withColumn("token", token).persist()
        if looks:
            drawn.count()
        transaction.write("low", drawn.where("token < '8'"))
        transaction.write("high", drawn.where("token >= '8'"))
        drawn.unpersist()

    run(through(process, source.stream(), tmp_path))
    written = [
        row["value"]
        for name in ("low", "high")
        for row in ofa.read_files(tmp_path / name).to_arrow().to_pylist()
    ]
    assert sorted(written) == sorted(f"v{n}" for n in range(400))
    assert min(ofa.read_files(tmp_path / name).rows for name in ("low", "high")) > 100
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before, "a cache is left"


def test_a_batch_that_a_function_persists_and_unpersists_is_written_as_it_is(
    source, spark, run, tmp_path
):
    source.add(*rows(*range(30)))
    every, some = make_files(tmp_path, "every"), make_files(tmp_path, "some")
    before = spark.sparkContext._jsc.getPersistentRDDs().size()

    @ofa.exactly_once(tmp_path / "cp", sinks={"every": every, "some": some})
    def process(batch, batch_id, transaction):
        batch.persist()
        transaction.write("every", batch)
        transaction.write("some", batch.where("key = 'k1'"))
        batch.unpersist()

    run(through(process, source.stream(), tmp_path))
    assert ofa.read_files(tmp_path / "every").rows == 30
    assert ofa.read_files(tmp_path / "some").rows == 10
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before, "a cache is left"


def through(function, frame, folder):
    checkpoint = str(folder / "cp")
    return frame.writeStream.foreachBatch(function).option("checkpointLocation", checkpoint)


def make_files(folder, name):
    return ofa.FileSink(folder / name)


def test_a_python_udf_over_a_batch_of_numbers_that_several_sinks_take_does_not_hang(
    spark, run, tmp_path
):
    """Spark 4.2.0 reads such a batch from its cache by columns, and hangs (SPARK-58241)."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "0.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(20)))
    frame = spark.readStream.schema("n bigint").json(str(folder))

    @F.udf("bigint")
    def twice(n):
        return 2 * n

    made = ofa.write_stream(frame).option("checkpointLocation", str(tmp_path / "cp"))
    for name in ("a", "b"):
        made.to(
            make_files(tmp_path, name),
            name=name,
            transform=lambda rows: rows.withColumn("n", twice("n")),
        )
    run(made)
    for name in ("a", "b"):
        found = ofa.read_files(tmp_path / name).to_arrow().column("n").to_pylist()
        assert sorted(found) == list(range(0, 40, 2))
