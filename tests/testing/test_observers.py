"""Observers on real servers, with what they must find planted there: what no transaction ended,
what was aborted, what is there twice."""

from __future__ import annotations

import itertools
import json
import operator
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import confluent_kafka as ck
import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from onceforall.commit_log import CommitLog, LocalStore
from onceforall.errors import CorruptEntryError, SinkCheckError, SinkUnavailableError
from onceforall.protocol.entries import Claim, Commit, Done
from onceforall.protocol.history import CommitPermit
from onceforall.protocol.names import TransactionName
from onceforall.sink import StartInfo, Sweep, TaskAttempt
from onceforall.sinks.files import FileSink
from onceforall.sinks.kafka.names import TransactionalId as KafkaName
from onceforall.sinks.kafka.names import format_name
from onceforall.sinks.postgres.names import staging_table, task_connection
from onceforall.testing import observers
from onceforall.testing.checker import (
    UNREADABLE,
    RunningCheck,
    UniformTruth,
    check_log,
    check_quiet,
    findings,
)
from onceforall.testing.observers import (
    NULL,
    CommitLogObserver,
    FileObserver,
    KafkaObserver,
    PostgresObserver,
    decoded,
    settled,
)
from support.topics import delete_topic
from support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

ROWS, KEYS = 20, 7
TRUTH = UniformTruth(ROWS, keys=KEYS, tasks=1)
QUERY = "7f000001-0000-4000-8000-000000000001"


def check(rows, batches, leftovers=()):
    return check_quiet(TRUTH, {"out": rows}, range(batches), {"out": list(leftovers)})


# --- Kafka ----------------------------------------------------------------------------------------


class Topic:
    """A topic and producers that write rows into it, in transactions of a query's names."""

    def __init__(self, broker, name):
        self.servers = broker.bootstrap_servers
        self.name = name
        self.query = str(uuid.uuid4())
        self._slots = iter(range(100))

    def ends(self):
        """Return where each partition ends, behind what is open as well; none for a topic so new
        that no broker leads it yet."""
        consumer = ck.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "ends",
                "isolation.level": "read_uncommitted",
            }
        )
        try:
            found = [
                consumer.get_watermark_offsets(ck.TopicPartition(self.name, p), timeout=20)
                for p in range(2)
            ]
        except ck.KafkaException as error:
            if error.args[0].code() not in {
                ck.KafkaError.NOT_LEADER_FOR_PARTITION,
                ck.KafkaError.LEADER_NOT_AVAILABLE,
            }:
                raise
            return []
        finally:
            consumer.close()
        return [high for _, high in found]

    def write(self, rows, end="commit_transaction"):
        """Write rows in one transaction, whose markers are in the partitions on return.

        The broker answers that a transaction is committed before its markers are written, and until
        then no reader sees the rows.
        """
        rows = list(rows)
        written = [[row for row in rows if row % KEYS % 2 == p] for p in range(2)]
        marked = [
            start + len(part) + bool(part)
            for start, part in zip(
                until(self.ends, 20, "the topic has leaders"), written, strict=True
            )
        ]
        id_ = format_name("onceforall", KafkaName(self.query, "out", 0, 0, next(self._slots), 0))
        producer = ck.Producer(
            {"bootstrap.servers": self.servers, "transactional.id": id_, "linger.ms": 0}
        )
        producer.init_transactions(20)
        producer.begin_transaction()
        for row in rows:
            # Each key in one partition, as a partitioner would have it.
            producer.produce(self.name, str(row), str(row % KEYS), partition=row % KEYS % 2)
        assert producer.flush(20) == 0
        if end:
            getattr(producer, end)(20)
            until(
                lambda: (ends := self.ends()) and all(map(operator.ge, ends, marked)),
                20,
                "the markers are written",
            )
        return producer

    def observer(self, **more):
        return KafkaObserver(self.servers, self.name, query_id=self.query, **more)


@pytest.fixture
def out(broker, topic):
    return Topic(broker, topic(partitions=2))


@pytest.fixture
def observer(out):
    made = out.observer()
    yield made
    made.close()


def test_a_topic_is_read_on_from_look_to_look(out, observer):
    assert len(observer.rows()) == 0
    out.write(range(20))
    assert settled({"out": observer}) == {"out": []}
    assert check(observer.rows(), 1).ok
    out.write(range(20, 40))
    settled({"out": observer})
    rows = observer.rows()
    assert check(rows, 2).ok
    assert sorted(rows.ids.tolist()) == list(range(40))
    assert len(set(zip(rows.lanes.tolist(), rows.positions.tolist(), strict=True))) == 40
    assert len(observer.rows()) == 40


@dataclass(frozen=True)
class Given:
    """What a consumer hands out: a record, or that a partition's end was there."""

    at: int
    is_end: bool = False

    def error(self):
        return ck.KafkaError(ck.KafkaError._PARTITION_EOF) if self.is_end else None

    def partition(self):
        return 0

    def offset(self):
        return self.at

    def key(self):
        return b"0"

    def value(self):
        return str(self.at).encode()


@pytest.mark.parametrize(
    ("given", "behind"),
    [
        # Of a batch that was committed between the end's notice and the same call's return.
        ([Given(0), Given(1, is_end=True), Given(1), Given(2)], 3),
        # The end lies behind a transaction's marker, which is no record.
        ([Given(0), Given(1), Given(3, is_end=True)], 3),
        ([Given(3, is_end=True), Given(3), Given(5, is_end=True)], 5),
    ],
)
def test_what_comes_behind_an_end_in_one_call_is_not_read_twice(given, behind):
    observer = KafkaObserver("127.0.0.1:9", "nothing")
    observer._take(given, {0})
    assert observer._next == {0: behind}


class NeverAtItsEnd:
    """A consumer of a topic that grows as fast as it is read: it never tells of an end."""

    def __init__(self, consumer, grow):
        self._consumer = consumer
        self._grow = grow
        self.calls = 0

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    def consume(self, *how, **more):
        self.calls += 1
        assert self.calls < 50, "the observer runs after the end of the topic"
        self._grow()
        return [
            message for message in self._consumer.consume(*how, **more) if message.error() is None
        ]


def test_a_topic_that_grows_as_fast_as_it_is_read_is_read_to_where_it_ended_when_it_was_asked(
    out, observer
):
    """A query at full speed: the look at its topic came to no end, and nothing was judged any
    more."""
    out.write(range(20))
    assert settled({"out": observer}) == {"out": []}
    assert len(observer.rows()) == 20
    numbers = iter(range(20, 10_000, 20))

    def grow():
        first = next(numbers)
        out.write(range(first, first + 20))

    grow()
    observer._consumer = NeverAtItsEnd(observer._consumer, grow)
    assert set(range(40)) <= set(observer.rows().ids.tolist())


class OutOfRange:
    """An error that librdkafka gives between two records: what was read is of another cluster,
    or was deleted since."""

    def error(self):
        return ck.KafkaError(ck.KafkaError.OFFSET_OUT_OF_RANGE)


class OutOfRangeOnce:
    """A consumer that tells with its first records that its position is none of the topic's."""

    def __init__(self, consumer):
        self._consumer = consumer
        self.told = False

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    def consume(self, *how, **more):
        found = self._consumer.consume(*how, **more)
        if not self.told and any(message.error() is None for message in found):
            self.told = True
            return [*found, OutOfRange()]
        return found


def test_a_topic_that_is_another_one_since_is_read_from_its_beginning(out, observer):
    """Its cluster was another one meanwhile, and is itself again: the position is forgotten
    while records are taken."""
    out.write(range(20))
    assert len(observer.rows()) == 20
    out.write(range(20, 40))
    observer._consumer = OutOfRangeOnce(observer._consumer)
    assert sorted(observer.rows().ids.tolist()) == list(range(40))
    assert observer._consumer.told


def test_an_open_transaction_is_hidden_from_readers_and_reported(out, observer):
    out.write(range(20))
    settled({"out": observer})
    open_one = out.write(range(20, 40), end=None)
    rows = observer.rows()
    assert check(rows, 1).ok
    left = observer.leftovers()
    assert sum("behind an open transaction" in text for text in left) == 2
    (name,) = [text for text in left if text.startswith("open transaction ")]
    assert out.query in name
    assert check(rows, 1, left).kinds() == {findings.LEFTOVER}
    # Another query's observer isn't concerned with its name; that readers of the topic are held
    # back concerns every one.
    other = KafkaObserver(out.servers, out.name, query_id=str(uuid.uuid4()))
    assert not any(text.startswith("open transaction ") for text in other.leftovers())
    other.close()
    assert settled({"out": observer}, 0.2) == {"out": left}
    open_one.commit_transaction(20)
    assert settled({"out": observer}) == {"out": []}
    assert check(observer.rows(), 2).ok


def test_a_record_behind_an_open_transaction_counts_as_lost_until_readers_see_it(out, observer):
    blocker = out.write(range(20, 40), end=None)
    out.write(range(20))
    assert check(observer.rows(), 1).kinds() == {findings.NOTHING_READ, findings.LOST}
    blocker.abort_transaction(20)
    settled({"out": observer})
    assert check(observer.rows(), 1).ok


def test_an_aborted_transaction_is_never_read(out, observer):
    out.write(range(20))
    out.write(range(20, 40), end="abort_transaction")
    assert settled({"out": observer}) == {"out": []}
    assert check(observer.rows(), 1).ok
    assert check(observer.rows(), 2).kinds() == {findings.LOST}
    out.write(range(20, 40))
    settled({"out": observer})
    assert check(observer.rows(), 2).ok


def test_a_record_that_was_written_twice_is_found(out, observer):
    out.write(range(20))
    out.write([3])
    settled({"out": observer})
    report = check(observer.rows(), 1)
    assert report.kinds() == {findings.DUPLICATED}
    assert report.sinks["out"].duplicated == 1


def test_batches_in_the_wrong_order_are_found_by_their_offsets(out, observer):
    out.write(range(20, 40))
    out.write(range(20))
    settled({"out": observer})
    assert check(observer.rows(), 2).kinds() == {findings.MISORDERED}


def test_a_value_or_key_that_no_row_has_is_found(out, observer):
    producer = ck.Producer({"bootstrap.servers": out.servers})
    for row in range(20):
        producer.produce(
            out.name,
            f"x{row}" if row == 4 else str(row),
            None if row == 5 else str(row % KEYS),
            row % KEYS % 2,
        )
    producer.flush(20)
    report = check(observer.rows(), 1)
    assert report.kinds() == {findings.ALIEN, findings.LOST, findings.TORN, findings.WRONG_KEY}
    assert (report.sinks["out"].alien, report.sinks["out"].wrong) == (1, 1)


def test_texts_are_read_as_they_are(out):
    producer = ck.Producer({"bootstrap.servers": out.servers})
    producer.produce(out.name, "3:1:3", "3")
    producer.flush(20)
    observer = out.observer(ids="texts", keys="texts")
    rows = observer.rows()
    observer.close()
    assert (rows.ids.tolist(), rows.keys.tolist()) == (["3:1:3"], ["3"])


def test_records_that_were_deleted_after_they_were_read_make_the_reads_go_back(
    broker, out, observer
):
    watch = RunningCheck(TRUTH)
    out.write(range(20))
    settled({"out": observer})
    watch.observe({"out": observer.rows()}, range(1), at_s=0)
    delete_topic(out.servers, out.name)
    broker.create_topic(out.name, partitions=2)
    out.write(range(5))
    found = until(
        lambda: (rows := observer.rows()) and len(rows) == 5 and rows, 20, "the new records"
    )
    watch.observe({"out": found}, range(1), at_s=1)
    assert findings.WENT_BACK in watch.report().kinds()


@pytest.fixture
def hurrying_clock(monkeypatch):
    """Each look at the clock finds that a tenth of a second has passed; little is read between
    two."""
    ticks = itertools.count()
    monkeypatch.setattr(
        observers.kafka, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 10)
    )
    monkeypatch.setattr(observers.kafka, "_READ_AT_ONCE", 10)


def test_a_topic_that_takes_long_is_read_as_long_as_records_come(out, hurrying_clock):
    out.write(range(2_000))
    observer = KafkaObserver(out.servers, out.name, deadline_s=5)
    assert len(observer.rows()) == 2_000
    observer.close()


def test_a_topic_whose_records_do_not_come_is_given_up(out, hurrying_clock, monkeypatch):
    out.write(range(20))
    observer = KafkaObserver(out.servers, out.name, deadline_s=5)
    monkeypatch.setattr(observer, "_take", lambda messages, unfinished: None)
    with pytest.raises(SinkUnavailableError, match="nothing came for 5 s"):
        observer.rows()
    observer.close()


def test_a_broker_that_is_away_is_told_from_an_empty_topic():
    observer = KafkaObserver("127.0.0.1:9", "nothing", deadline_s=0.5)
    with pytest.raises(SinkUnavailableError, match="nothing"):
        observer.rows()
    observer.close()


# --- PostgreSQL -----------------------------------------------------------------------------------


@pytest.fixture
def filled(database):
    """A database with a table of one batch, and the way to it."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE out (key text, value text)")
        connection.execute(
            f"INSERT INTO out SELECT n % {KEYS}, n FROM generate_series(0, {ROWS - 1}) n"
        )
        yield database, connection


def test_a_table_is_read_at_one_moment(filled):
    database, connection = filled
    observer = PostgresObserver(database, "out")
    assert check(observer.rows(), 1, observer.leftovers()).ok
    with psycopg.connect(database) as open_one:
        open_one.execute("INSERT INTO out VALUES ('6', '20')")
        assert check(observer.rows(), 1).ok
        open_one.rollback()
    connection.execute(
        "INSERT INTO out VALUES ('3', '3'), ('0', 'x'), ('0', NULL), ('0', '9999999999999999999')"
    )
    report = check(observer.rows(), 1)
    assert report.kinds() == {findings.DUPLICATED, findings.ALIEN}
    assert (report.sinks["out"].duplicated, report.sinks["out"].alien) == (1, 3)
    assert "password" not in repr(observer)


def test_a_table_may_have_numbers_texts_and_any_name(filled):
    database, connection = filled
    connection.execute('CREATE SCHEMA "Odd"; CREATE TABLE "Odd"."Tab le" (n bigint)')
    connection.execute('INSERT INTO "Odd"."Tab le" SELECT generate_series(0, 19)')
    rows = PostgresObserver(database, "Odd.Tab le", column="n", key_column=None).rows()
    assert check_quiet(UniformTruth(ROWS), {"out": rows}, range(1)).ok
    assert rows.keys is None
    texts = PostgresObserver(database, "out", ids="texts").rows()
    assert sorted(texts.ids.tolist()) == sorted(str(n) for n in range(20))
    connection.execute("TRUNCATE out")
    assert check(PostgresObserver(database, "out").rows(), 1).kinds() == {
        findings.NOTHING_READ,
        findings.LOST,
    }
    with pytest.raises(SinkCheckError, match="nothere"):
        PostgresObserver(database, "nothere").rows()
    with pytest.raises(SinkUnavailableError, match="127.0.0.1"):
        PostgresObserver("postgresql://127.0.0.1:9/x", "out").rows()


def test_prepared_transactions_staging_tables_and_open_sessions_are_left_over(filled):
    database, connection = filled
    name = str(TransactionName(QUERY, "out-abc", 0, 1, 0, 0, 0, 1))
    observer = PostgresObserver(database, "out", query_id=QUERY)
    other = PostgresObserver(database, "out", query_id=str(uuid.uuid4()))
    staging = sql.Identifier(staging_table(name))
    connection.execute(sql.SQL("CREATE TABLE {} (v text)").format(staging))
    connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(staging, sql.Literal(name)))
    with psycopg.connect(database) as task:
        task.execute("INSERT INTO out VALUES ('6', '20')")
        task.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(name)))
        task.rollback()
    with psycopg.connect(database, application_name=task_connection(name)) as idle:
        idle.execute("SELECT 1")
        left = observer.leftovers()
        assert [text.split()[0] for text in left] == ["prepared", "staging", "session"]
        assert "idle in transaction" in left[-1]
        assert [text.split()[0] for text in other.leftovers()] == ["session"]
    assert check(observer.rows(), 1, left).kinds() == {findings.LEFTOVER}
    connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(name)))
    connection.execute(sql.SQL("DROP TABLE {}").format(staging))
    assert settled({"out": observer}) == {"out": []}


def test_a_server_that_does_not_answer_holds_nobody_up(filled):
    database, connection = filled
    # As a frozen server would: nothing comes back before the deadline.
    with connection.transaction():
        connection.execute("LOCK TABLE out IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SinkUnavailableError, match="Reading out failed"):
            PostgresObserver(database, "out", deadline_s=0.5).rows()
    assert check(PostgresObserver(database, "out").rows(), 1).ok


# --- files ----------------------------------------------------------------------------------------


class Folder:
    """A FileSink's folder, written to by hand as the coordinator and Spark's tasks would."""

    def __init__(self, path, sink="files"):
        self.path, self.name = path, sink
        self.sink = FileSink(path, format="json", partition_by=["key"])
        self.sink.check(StartInfo(QUERY, sink))

    def prepare(self, rows, batch, slot=0, generation=0):
        transaction = self.sink.begin_transaction(
            TaskAttempt(QUERY, self.name, generation, batch, 0, slot, slot)
        )
        columns = {
            "value": pa.array([str(n) for n in rows]),
            "key": pa.array([str(n % KEYS) for n in rows]),
        }
        self.sink.invoke(transaction, pa.RecordBatch.from_pydict(columns))
        return self.sink.pre_commit(transaction)

    def commit(self, batch):
        half = batch * ROWS + ROWS // 2
        parts = range(batch * ROWS, half), range(half, (batch + 1) * ROWS)
        committables = [self.prepare(rows, batch, slot) for slot, rows in enumerate(parts)]
        self.sink.commit(CommitPermit(0, 1, batch), self.sink.confirm(committables))
        return committables


def test_committed_files_are_read_and_what_lies_beside_them_is_left_over(tmp_path):
    observer = FileObserver(tmp_path / "out")
    assert len(observer.rows()) == 0
    assert observer.leftovers() == []
    folder = Folder(tmp_path / "out")
    decided = {batch: folder.commit(batch) for batch in range(2)}
    assert check(observer.rows(), 2, observer.leftovers()).ok
    undecided = folder.prepare(range(40, 60), 2, slot=9)
    decided[2] = folder.commit(2)
    rows = observer.rows()
    assert check(rows, 3).ok
    (left,) = observer.leftovers()
    assert left.startswith("staging folder ")
    assert undecided["name"] in left
    assert check(rows, 3, [left]).kinds() == {findings.LEFTOVER}
    folder.sink.recover(Sweep(QUERY, "files", 1))
    assert settled({"out": observer}) == {"out": []}
    (some, *_) = Path(tmp_path / "out" / "key=3").iterdir()
    (tmp_path / "out" / "_spark_metadata").mkdir()
    (tmp_path / "out" / "_spark_metadata" / "0").write_text("v1")
    assert observer.leftovers() == []
    for stray in ("key=3/part-x.json", "_onceforall/manifests/.x.tmp", "_spark_metadata/.1.tmp"):
        (tmp_path / "out" / stray).write_text("{}")
        assert observer.leftovers() == [f"file {stray}"]
        (tmp_path / "out" / stray).unlink()
    names = {batch: {c["name"] for c in committables} for batch, committables in decided.items()}
    assert {batch: set(found) for batch, found in observer.attempts().items()} == names
    some.unlink()
    with pytest.raises(SinkUnavailableError, match="missing or damaged"):
        FileObserver(tmp_path / "out").rows()


def test_attempts_of_two_sinks_of_one_folder_are_all_told(tmp_path):
    one, other = Folder(tmp_path / "out"), Folder(tmp_path / "out", sink="other")
    names = {c["name"] for folder in (one, other) for c in folder.commit(0)}
    assert len(names) == 4
    assert FileObserver(tmp_path / "out").attempts() == {0: names}
    (alone,) = FileObserver(tmp_path / "out", sink="other").attempts().values()
    assert len(alone) == 2


def test_a_damaged_manifest_is_an_error_and_not_an_empty_folder(tmp_path):
    folder = Folder(tmp_path)
    folder.commit(0)
    (manifest,) = (tmp_path / "_onceforall" / "manifests").rglob("*.json")
    manifest.write_bytes(manifest.read_bytes()[:-9])
    with pytest.raises(CorruptEntryError):
        FileObserver(tmp_path).rows()


def test_only_one_query_or_sink_may_be_looked_at(tmp_path):
    folder = Folder(tmp_path)
    folder.commit(0)
    assert len(FileObserver(tmp_path, query_id=QUERY, sink="files").rows()) == ROWS
    assert len(FileObserver(tmp_path, sink="other").rows()) == 0
    assert len(FileObserver(tmp_path, query_id="other", key_column=None).rows()) == 0
    assert FileObserver(tmp_path, query_id="other").leftovers() == []


# --- the commit log -------------------------------------------------------------------------------


def test_the_logs_of_a_checkpoint_are_read(tmp_path):
    observer = CommitLogObserver(tmp_path)
    assert (observer.decided(), observer.view().decided(), observer.query_id()) == (
        range(0),
        range(0),
        None,
    )
    assert (observer.spark_committed(), observer.spark_planned()) == (-1, -1)
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    log = CommitLog(LocalStore(tmp_path / "onceforall"))
    for generation in range(3):
        assert log.claim(Claim(QUERY, "run", str(tmp_path))).generation == generation
        history = log.seal_below(generation)
        if history.decided is not None:
            log.append(generation, Done(history.decided.commit.batch))
        for batch in (2 * generation, 2 * generation + 1):
            log.append(generation, Commit(batch, (str(batch),), {}))
            if batch % 2 == 0:
                log.append(generation, Done(batch))
            assert observer.decided() == range(batch + 1)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "5").write_text("v1\n{}")
    view = observer.view()
    assert view.decided() == range(6)
    assert view.newest_done == 4
    assert observer.query_id() == QUERY
    assert check_log(view, spark_committed=observer.spark_committed()) == ()
    assert CommitLogObserver(tmp_path, first_batch=2).decided() == range(2, 6)


def test_decided_batches_are_read_while_a_run_seals_decides_and_cleans(tmp_path):
    home = tmp_path / "onceforall"
    log = CommitLog(LocalStore(home), retain_commits=1)
    ended = threading.Event()

    def runs():
        batch = 0
        for _ in range(12):
            generation = log.claim(Claim(QUERY, "run", str(tmp_path))).generation
            log.seal_below(generation)
            for _ in range(3):
                log.append(generation, Commit(batch, (str(batch),), {}))
                log.append(generation, Done(batch))
                batch += 1
            log.clean(generation)
        ended.set()

    thread = threading.Thread(target=runs)
    thread.start()
    observer, seen = CommitLogObserver(tmp_path), [0]
    while not ended.is_set():
        seen.append(observer.decided().stop)
    thread.join()
    assert seen == sorted(seen)
    assert observer.decided() == range(36)
    assert len(set(seen)) > 2


# --- in common ------------------------------------------------------------------------------------


def test_texts_that_differ_stay_different():
    values = [None, b"", b"o-1", b"o-1\0", b"\0", b"\xff", "\ufffd", b"\0null", "ü☃"]
    texts = decoded(values, "texts").tolist()
    assert len(set(texts)) == len(values)
    assert texts[1:3] + texts[6:7] + texts[8:] == ["", "o-1", "\ufffd", "ü☃"]


def test_only_decimal_digits_are_numbers():
    values = [
        b"12",
        "7",
        5,
        None,
        b"",
        "-1",
        "1_0",
        "²",
        " 3",
        "0" * 30,
        -4,
        10**18,
        "4.0",
        "0017",
        b"00",
        True,
    ]
    assert decoded(values, "numbers").tolist() == [12, 7, 5] + [UNREADABLE] * 13
    assert decoded([b"0", "0", 0], "numbers").tolist() == [0, 0, 0]
    assert decoded([b"a", None, 3], "texts").tolist() == ["a", NULL, "3"]
    assert decoded([], "numbers").dtype == np.int64
