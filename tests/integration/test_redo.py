"""Transactions of a decided batch are lost before they are committed: the next start writes them
again, and nothing else."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as F

import onceforall as ofa
from onceforall.embedded import EmbeddedKafka
from onceforall.failpoints import points as failpoints
from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient
from onceforall.spark.remote_path import RemotePath
from onceforall.task.kept_rows import RowKeeper
from onceforall.task.row_places.local import LocalRows
from support.places import s3_client
from support.reading import read_all, released, values
from support.waiting import until
from support.web_hdfs import WebHdfs

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

FILES = 3
ROWS = [f"v{n}" for n in range(3 * FILES)]


@contextmanager
def failing(specification):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "_failpoints", failpoints._Failpoints(specification, None))
        yield


class Job:
    """A query whose one batch has three tasks, with a transaction each."""

    def __init__(self, broker, source, topic, checkpoint, run):
        self.broker, self.source, self.topic, self.checkpoint, self._run = (
            broker,
            source,
            topic,
            checkpoint,
            run,
        )
        self.sink = ofa.KafkaSink({"bootstrap.servers": broker.bootstrap_servers}, topic=topic)
        for file in range(FILES):
            source.add(*({"key": str(file), "value": f"v{3 * file + n}"} for n in range(3)))

    def writer(self, transform=None, frame=None, mode="append", **options):
        frame = self.source.stream(files_per_batch=FILES) if frame is None else frame
        writer = (
            ofa.write_stream(frame).to(self.sink, name="out", transform=transform).outputMode(mode)
        )
        for key, value in options.items():
            writer = writer.option(f"onceforall.{key}", value)
        return writer.option("checkpointLocation", str(self.checkpoint))

    def start(self, transform=None, **more):
        return self._run(self.writer(transform, **more))

    def fail(self, failpoint, transform=None, **more):
        with failing(failpoint), pytest.raises(Exception, match="failpoint"):
            self.start(transform, **more)

    def error_of(self, transform=None, **more):
        with pytest.raises(Exception) as caught:
            self.start(transform, **more)
        return str(caught.value)

    @property
    def log(self):
        return self.checkpoint / "onceforall"

    def entries(self, kind):
        chains = self.log / "chains"
        files = (file for chain in chains.iterdir() for file in chain.glob("0*.json"))
        return [
            entry
            for entry in (json.loads(file.read_bytes()) for file in sorted(files, key=str))
            if entry["kind"] == kind
        ]

    def prepared(self):
        return self.entries("COMMIT")[-1]["body"]["committables"]["out"]

    def lose(self, count=1):
        """Abort decided transactions, as a time-out does."""
        client = CoordinatorClient(self.broker.bootstrap_servers)
        lost = [c["name"] for c in self.prepared()[:count]]
        try:
            assert not client.fence(lost).missing
        finally:
            client.close()
        return lost

    def messages(self, isolation="read_committed"):
        return read_all(self.broker.bootstrap_servers, self.topic, isolation)

    def seen(self):
        return values(self.broker.bootstrap_servers, self.topic)

    def written(self):
        return values(self.broker.bootstrap_servers, self.topic, isolation="read_uncommitted")

    def assert_no_kept_rows(self):
        # A task that was killed may keep another row; what a run does after its end takes that
        # away, too.
        until(
            lambda: not self.rows(),
            20,
            "no rows are kept",
        )

    def assert_complete(self, expected=ROWS):
        released(self.broker.bootstrap_servers, self.topic)
        assert self.seen() == sorted(expected)
        assert len(self.entries("DONE")) == 1
        assert not self.rows(), "kept rows are left"

    def rows(self):
        rows = self.log / "rows"
        return list(rows.iterdir()) if rows.exists() else []


class JobWithItsLogOnAStore(Job):
    """Its checkpoint is local."""

    def __init__(self, log, options, *arguments):
        self._log = log
        self._options = options
        super().__init__(*arguments)

    @property
    def log(self):
        return self._log

    def writer(self, transform=None, frame=None, mode="append", **options):
        return super().writer(
            transform, frame, mode, **self._options, commitLog=str(self._log), **options
        )


def log_on(request, kind):
    """A place for a log, and the options that it needs."""
    if kind == "hdfs":
        server, url = (
            request.getfixturevalue("hdfs_server"),
            request.getfixturevalue("hdfs_folder"),
        )
        return RemotePath(WebHdfs(server.web_url, url)), {}
    server, bucket = request.getfixturevalue("s3_server"), request.getfixturevalue("s3_bucket")
    settings = {
        "client": "obstore",
        "endpoint": server.endpoint,
        "region": server.region,
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
    }
    return RemotePath(s3_client(server, bucket)), {
        f"store.{name}": value for name, value in settings.items()
    }


@pytest.fixture
def one_task_per_file(spark):
    spark.conf.set("spark.sql.files.openCostInBytes", "128MB")
    yield
    spark.conf.unset("spark.sql.files.openCostInBytes")


@pytest.fixture
def job(one_task_per_file, broker, source, topic, run, tmp_path):
    return Job(broker, source, topic(), tmp_path / "cp", run)


@pytest.fixture(params=["s3", pytest.param("hdfs", marks=pytest.mark.long)])
def job_on_a_store(request, one_task_per_file, broker, source, topic, run, tmp_path):
    place, options = log_on(request, request.param)
    arguments = (broker, source, topic(), tmp_path / "cp", run)
    return JobWithItsLogOnAStore(place, options, *arguments)


@pytest.fixture
def decided(job):
    """A batch that is decided and not committed: three prepared transactions."""
    job.fail("append_commit.after=raise")
    assert len(job.prepared()) == FILES
    assert job.seen() == []
    return job


def random_part(frame):
    return frame.withColumn("value", F.concat("value", F.lit("/"), F.expr("uuid()")))


@pytest.mark.parametrize("lost", [1, FILES])
@pytest.mark.sample(1)
def test_only_what_is_lost_is_written_again(decided, lost):
    decided.lose(lost)
    decided.start()
    decided.assert_complete()
    again = len(decided.written()) - len(ROWS)
    assert again == 3 * lost, "each lost transaction held three rows"
    first, second = decided.entries("COMMIT")
    names = [{c["name"] for c in entry["body"]["committables"]["out"]} for entry in (first, second)]
    assert len(names[0] & names[1]) == FILES - lost
    assert first["body"]["digests"] == second["body"]["digests"]


@pytest.fixture
def forgetful():
    """A broker that forgets a transactional id when its transaction has been over for three
    seconds, and not while it is open."""
    config = {
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        "transactional.id.expiration.ms": "3000",
    }
    with EmbeddedKafka(config=config) as broker:
        yield broker


@pytest.mark.long
def test_what_is_lost_is_written_again_after_its_id_has_expired(job, forgetful):
    job.broker = forgetful
    forgetful.create_topic(job.topic)
    job.sink = ofa.KafkaSink({"bootstrap.servers": forgetful.bootstrap_servers}, topic=job.topic)
    job.fail("append_commit.after=raise")
    (lost,) = job.lose()
    witness = ofa.KafkaSink({"bootstrap.servers": forgetful.bootstrap_servers}, topic=job.topic)
    reader = witness._connected_reader()

    def known(names):
        asked = [{"name": name, "producer_id": 0, "producer_epoch": 0} for name in names]
        return reader.states(asked)

    original, fenced = CoordinatorClient.fence, []

    def fence(self, names):
        before = known(names)
        answers = original(self, names)
        fenced.extend((name, before[name], answers.codes.get(name)) for name in names)
        return answers

    try:
        until(lambda: known([lost])[lost] is None, 30, "the broker has forgotten the id")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CoordinatorClient, "fence", fence)
            job.start()
    finally:
        witness.close()
    assert (lost, None, 0) in fenced, (
        "the id was not fenced, or was known to the broker; the test proves nothing"
    )
    job.assert_complete()
    assert len(job.written()) == len(ROWS) + 3, "one transaction of three rows is written again"


def test_the_query_goes_on_after_a_redo(decided):
    decided.lose()
    decided.source.add({"key": "k", "value": "later"})
    decided.start()
    assert decided.seen() == sorted([*ROWS, "later"])
    assert len(decided.entries("DONE")) == 2


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("fence_lost.before", marks=pytest.mark.long),
        "fence_lost.after",
        pytest.param("write.after", marks=pytest.mark.long),
        pytest.param("append_commit.before", marks=pytest.mark.long),
        "append_commit.after",
        pytest.param("commit.after", marks=pytest.mark.long),
    ],
)
def test_a_redo_that_fails_at_any_step_is_redone(decided, step):
    decided.lose()
    decided.fail(f"{step}=raise")
    decided.start()
    decided.assert_complete()


def test_a_redo_whose_own_transactions_are_lost_is_redone(decided):
    decided.lose()
    decided.fail("append_commit.after=raise")
    decided.lose(FILES)
    decided.start()
    decided.assert_complete()
    assert len(decided.entries("COMMIT")) == 3


def test_a_loss_that_the_running_query_meets_stops_it_and_a_restart_redoes(job):
    original = ofa.KafkaSink.commit

    def commit(sink, permit, committables):
        if not job.entries("DONE") and len(job.entries("COMMIT")) == 1:
            job.lose()
        return original(sink, permit, committables)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ofa.KafkaSink, "commit", commit)
        error = job.error_of()
    assert "TransactionLostError" in error
    assert "Restart it" in error
    job.start()
    job.assert_complete()


def test_a_transaction_that_is_gone_before_the_decision_is_not_decided(job):
    original = ofa.KafkaSink.confirm

    def confirm(sink, committables):
        client = CoordinatorClient(job.broker.bootstrap_servers)
        assert not client.fence([committables[0]["name"]]).missing
        client.close()
        return original(sink, committables)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ofa.KafkaSink, "confirm", confirm)
        error = job.error_of()
    assert "AttemptFailedError" in error
    assert "not open any more before the decision" in error
    assert job.entries("COMMIT") == []
    released(job.broker.bootstrap_servers, job.topic)
    job.start()
    job.assert_complete()


def test_a_query_that_gives_other_rows_is_not_redone_and_the_message_says_which(job):
    job.fail("append_commit.after=raise", random_part, redo="replay")
    before = job.written()
    lost = job.lose()
    error = job.error_of(random_part, redo="replay")
    assert "NondeterministicReplayError" in error
    assert "The rows themselves differ" in error
    assert "of the lost ones task 0 (3 rows) has no match" in error
    assert "onceforall.lostRows=giveUp:0" in error
    assert lost[0] not in [c["name"] for c in job.prepared()[1:]]
    assert len(job.entries("COMMIT")) == 1
    # What was not lost is committed; what the replay wrote is aborted; and so it stays.
    assert set(job.seen()) < set(before)
    assert len(job.seen()) == 2 * 3
    released(job.broker.bootstrap_servers, job.topic)
    assert "NondeterministicReplayError" in job.error_of(random_part, redo="replay")
    assert len(job.seen()) == 2 * 3


@pytest.mark.parametrize("lost", [1, FILES])
def test_a_query_that_gives_other_rows_is_redone_from_kept_rows_without_an_option(job, lost):
    job.fail("append_commit.after=raise", random_part)
    before = job.written()
    job.lose(lost)
    job.start(random_part)
    job.assert_complete(before)


@pytest.mark.long
def test_a_query_whose_replays_are_the_same_keeps_no_rows(job):
    job.fail("append_commit.after=raise", lambda frame: frame.where("key >= 0"))
    assert [set(c) & {"rows", "task"} for c in job.prepared()] == [{"task"}] * FILES
    job.assert_no_kept_rows()
    job.lose()
    job.start(lambda frame: frame.where("key >= 0"))
    job.assert_complete()


def test_the_time_of_a_batch_is_the_same_in_its_replay_and_its_rows_are_not_kept(job):
    def frame():
        return job.source.stream(files_per_batch=FILES).withColumn(
            "value", F.concat("value", F.lit("/"), F.current_timestamp())
        )

    job.fail("append_commit.after=raise", frame=frame())
    job.assert_no_kept_rows()
    before = job.written()
    job.lose()
    job.start(frame=frame(), onDivergence="fail")
    job.assert_complete(before)


def _no_folder_on_executors(keeping, tmp_path):
    (folder,) = keeping.place.folder.iterdir()
    folder.rmdir()
    return keeping


def _a_folder_of_the_same_name_on_executors(keeping, tmp_path):
    (folder,) = keeping.place.folder.iterdir()
    elsewhere = tmp_path / "elsewhere" / folder.name
    elsewhere.mkdir(parents=True, exist_ok=True)
    return replace(keeping, place=LocalRows(elsewhere.parent))


@pytest.mark.parametrize(
    "of_executors", [_no_folder_on_executors, _a_folder_of_the_same_name_on_executors]
)
def test_where_executors_do_not_share_the_folder_the_query_goes_on_without_kept_rows(
    job, tmp_path, caplog, of_executors
):
    original = RowKeeper.keeping
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            RowKeeper, "keeping", lambda *arguments: of_executors(original(*arguments), tmp_path)
        )
        job.source.add({"key": "k", "value": "later"})
        job.start(random_part)
    assert [bool(c.get("rows")) for c in job.prepared()] == [False]
    assert len(job.entries("DONE")) == 2
    warned = [record for record in caplog.records if "rows are not kept" in record.getMessage()]
    assert len(warned) == 1, "once per run, and not once per task or batch"
    assert len(job.seen()) == len(ROWS) + 1


@pytest.mark.long
def test_rows_that_are_only_divided_in_another_way_are_told_apart(job):
    job.fail("append_commit.after=raise", lambda frame: frame.repartition(3), redo="replay")
    job.lose()
    error = job.error_of(lambda frame: frame.repartition(2), redo="replay")
    assert "The rows are the same, but they are divided among tasks in another way" in error
    assert "3 tasks with 9 rows then, 2 with 9 now" in error
    assert len(job.entries("COMMIT")) == 1
    job.start(lambda frame: frame.repartition(3), redo="replay")
    job.assert_complete()


def test_lost_rows_that_the_replay_splits_are_found(job, spark):
    job.fail("append_commit.after=raise")
    job.lose()
    hashes = [
        row[0]
        for row in spark.createDataFrame([(row,) for row in ROWS], "value string")
        .select(F.hash("value"))
        .collect()
    ]
    apart = next(
        n for n in range(len(ROWS), 1000) if len({each % n for each in hashes}) == len(ROWS)
    )
    job.start(lambda frame: frame.repartition(apart, "value"))
    job.assert_complete()
    second = job.entries("COMMIT")[1]["body"]["digests"]["out/0"]
    assert sum(rows for rows, _ in second) == len(ROWS), "the new decision has each row once"


def test_a_query_that_gives_other_rows_heals_by_itself_when_all_of_a_batch_is_lost(job):
    job.fail("append_commit.after=raise", random_part, redo="replay")
    before = job.written()
    job.lose(FILES)
    job.start(random_part, redo="replay")
    released(job.broker.bootstrap_servers, job.topic)
    after = job.seen()
    assert sorted(value.partition("/")[0] for value in after) == ROWS
    assert not set(after) & set(before), "they are the replay's rows, each once"
    assert len(job.entries("DONE")) == 1


def test_lost_rows_are_given_up_by_a_persons_word_and_stay_on_record(job):
    job.fail("append_commit.after=raise", random_part, redo="replay")
    before = job.written()
    (lost,) = job.lose()
    job.source.add({"key": "k", "value": "later"})
    job.start(random_part, redo="replay", lostRows="giveUp:0")
    released(job.broker.bootstrap_servers, job.topic)
    seen = job.seen()
    assert len(seen) == 2 * 3 + 1
    assert len(set(before) & set(seen)) == 2 * 3
    (loss,) = job.entries("COMMIT")[-1]["body"]["losses"]
    assert (loss["batch"], loss["choice"], loss["lost_rows"], loss["visible_rows"]) == (
        0,
        "giveUp",
        3,
        6,
    )
    assert [each["name"] for each in loss["lost"]] == [lost]
    assert len(job.entries("DONE")) == 2


@pytest.mark.long
def test_a_batch_is_written_beside_what_is_visible_of_it_by_a_persons_word(job):
    job.fail("append_commit.after=raise", random_part, redo="replay")
    before = job.written()
    job.lose()
    job.start(random_part, redo="replay", lostRows="writeAll:0")
    released(job.broker.bootstrap_servers, job.topic)
    seen = job.seen()
    assert len(set(before) & set(seen)) == 2 * 3
    assert sorted(value.partition("/")[0] for value in set(seen) - set(before)) == ROWS
    assert job.entries("COMMIT")[-1]["body"]["losses"][0]["choice"] == "writeAll"


@pytest.mark.parametrize("lost", [1, FILES])
def test_a_durable_redo_writes_the_very_rows_that_were_decided(job, lost):
    job.fail("append_commit.after=raise", random_part, redo="durable")
    before = job.written()
    job.lose(lost)
    job.start(random_part, redo="durable")
    job.assert_complete(before)


@pytest.mark.long
def test_rows_are_kept_on_the_store_of_the_log(job_on_a_store):
    job = job_on_a_store
    job.fail("append_commit.after=raise", random_part)
    assert len(job.rows()) == 1
    before = job.written()
    job.lose(2)
    job.start(random_part)
    job.assert_complete(before)
    assert not (job.checkpoint / "onceforall" / "rows").exists()


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("write_kept.after", marks=pytest.mark.long),
        pytest.param("append_commit.before", marks=pytest.mark.long),
        "append_commit.after",
        pytest.param("commit.after", marks=pytest.mark.long),
    ],
)
def test_a_durable_redo_that_fails_at_any_step_is_redone(job, step):
    job.fail("append_commit.after=raise", random_part, redo="durable")
    before = job.written()
    job.lose(2)
    job.fail(f"{step}=raise", random_part, redo="durable")
    job.start(random_part, redo="durable")
    job.assert_complete(before)


@pytest.mark.long
@pytest.mark.parametrize(("first", "second"), [(1, FILES), (2, FILES), (FILES, 1)])
def test_a_durable_redo_whose_own_transactions_are_lost_writes_the_same_rows_once_more(
    job, first, second
):
    job.fail("append_commit.after=raise", random_part, redo="durable")
    before = job.written()
    job.lose(first)
    job.fail("append_commit.after=raise", random_part, redo="durable")
    job.lose(second)
    job.start(random_part, redo="durable")
    job.assert_complete(before)
    assert len(job.entries("COMMIT")) == 3


@pytest.mark.long
def test_kept_rows_that_are_damaged_are_not_written_and_the_replay_can_take_their_place(job):
    job.fail("append_commit.after=raise", redo="durable")
    job.lose()
    files = sorted((job.checkpoint / "onceforall" / "rows").rglob("*.arrow"))
    assert len(files) == FILES
    for file in files:
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert "damaged" in job.error_of(redo="durable")
    assert job.seen() != []
    job.start(redo="replay")
    job.assert_complete()


@pytest.mark.long
def test_an_attempt_that_the_driver_aborts_leaves_no_kept_rows(job):
    job.fail("write.confirm.after=raise", redo="durable")
    assert not job.entries("COMMIT")
    job.assert_no_kept_rows()
    job.start(redo="durable")
    job.assert_complete()


def test_an_attempt_of_which_a_task_fails_leaves_no_kept_rows(job):
    def failing_in_the_last_task(rows):
        refused = F.raise_error(F.lit("not this one")).cast("string")
        return rows.withColumn(
            "value", F.when(F.col("value") == ROWS[-1], refused).otherwise(F.col("value"))
        )

    assert "not this one" in job.error_of(failing_in_the_last_task, redo="durable")
    job.assert_no_kept_rows()
    job.start(redo="durable")
    job.assert_complete()


def test_the_rows_of_an_attempt_in_doubt_are_kept(job):
    job.fail("append_commit.before=raise", redo="durable")
    assert len(list((job.checkpoint / "onceforall").glob("rows/*/*.arrow"))) == FILES
    job.start(redo="durable")
    job.assert_complete()


@pytest.mark.parametrize("redo", ["replay", "durable"])
@pytest.mark.sample(1)
def test_a_stateful_query_is_redone_and_its_state_goes_on(job, redo):
    def counted():
        frame = job.source.stream(files_per_batch=FILES)
        return (
            frame.groupBy("key")
            .count()
            .select("key", F.concat_ws(":", "key", "count").alias("value"))
        )

    job.fail("append_commit.after=raise", frame=counted(), mode="update", redo=redo)
    job.lose()
    job.source.add({"key": "0", "value": "later"})
    job.start(frame=counted(), mode="update", redo=redo, onDivergence="fail")
    assert job.seen() == ["0:3", "0:4", "1:3", "2:3"]


@pytest.mark.parametrize("answer", ["committed", "aborted"])
@pytest.mark.sample(1)
def test_what_can_be_proved_by_nobody_stops_the_query_until_a_person_says_what_became_of_it(
    job, topic, answer
):
    # A partition for each file, and so for each transaction: what is deleted is the lost one and
    # its marker, and nothing of the others.
    job.topic = topic(partitions=FILES)
    job.sink = ofa.KafkaSink({"bootstrap.servers": job.broker.bootstrap_servers}, topic=job.topic)
    apart = lambda frame: frame.withColumn("partition", F.col("key").cast("int"))
    job.fail("append_commit.after=raise", apart)
    first = job.prepared()[0]
    rows = {
        p: [m.value().decode() for m in job.messages("read_uncommitted") if m.partition() == p]
        for p in range(FILES)
    }
    assert sorted(map(sorted, rows.values())) == [ROWS[:3], ROWS[3:6], ROWS[6:]]
    lost = rows.pop(first["proof"]["partition"])
    others = sorted(value for values_of_one in rows.values() for value in values_of_one)
    assert job.lose() == [first["name"]]
    _delete_records(job, first["proof"]["partition"], first["proof"]["offset"] + 1)
    error = job.error_of(apart)
    assert "InDoubtError" in error
    assert first["name"] in error
    assert "onceforall.inDoubt=committed" in error
    assert job.entries("DONE") == []
    released(job.broker.bootstrap_servers, job.topic)
    assert job.seen() == others, "what is not in doubt is committed, and nobody has guessed"
    job.start(apart, inDoubt=answer)
    # Who says "committed" has rows that were there until they were deleted; who says "aborted" gets
    # them again, and those alone.
    again = lost if answer == "aborted" else []
    job.assert_complete([*others, *again])
    assert job.written() == sorted([*others, *again])
    assert [m.partition() for m in job.messages() if m.value().decode() in lost] == [
        first["proof"]["partition"]
    ] * len(again)


def _delete_records(job, partition, offset):
    admin = AdminClient({"bootstrap.servers": job.broker.bootstrap_servers})
    (future,) = admin.delete_records([TopicPartition(job.topic, partition, offset)]).values()
    assert future.result(20).low_watermark == offset
