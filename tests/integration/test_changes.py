"""Changing a running query between a crash and the restart, while a transaction is in doubt.

Each case crashes in batch 1 with its transactions prepared and open, once right behind the decision
(they must be committed) and once in front of it (they must be aborted), changes something, and
starts again. Then every input row is in every sink once, no transaction of the query is open, and
readers reach the end.
"""

import contextlib
import json
import re
import shutil
import uuid

import psycopg
import pytest
from pyspark.sql import functions as F

import onceforall as ofa
from onceforall.embedded import EmbeddedKafka
from onceforall.errors import InDoubtError, OptionError, SinkCheckError
from onceforall.failpoints import points as failpoints
from onceforall.operate.detaching import detach
from support.reading import held_back, released, values
from support.secured_broker import PASSWORD, Secured
from support.topics import delete_topic

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

BOTH = pytest.mark.parametrize("doubt", ["decided", "undecided"])
# Where the change has nothing to do with who is swept.
# What the decision tells of one sink is lost; how it comes back.
LOST = pytest.mark.parametrize(
    "redo",
    [
        pytest.param("replay", id="replayed"),
        pytest.param("durable", id="kept", marks=pytest.mark.long),
    ],
)
DECIDED = pytest.mark.parametrize(
    "doubt", ["decided", pytest.param("undecided", marks=pytest.mark.long)]
)
CRASH = {"decided": "append_commit.after", "undecided": "append_commit.before"}


def rows(*numbers):
    return [{"key": f"k{n % 2}", "value": f"v{n}"} for n in numbers]


@contextlib.contextmanager
def failing(failpoint):
    """The driver (its tasks are other processes) fails there, and does nothing more: no abort,
    no sweep."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "_failpoints", failpoints._Failpoints(failpoint, None))
        yield


class Place:
    """A broker, a source of which each file is a batch, and a checkpoint: what stays over the
    restarts of a query."""

    def __init__(self, broker, topic, source, checkpoint):
        self.broker = broker
        self.servers = broker.bootstrap_servers
        self.topic = topic
        self.source = source
        self.checkpoint = checkpoint
        self.sinks = 0

    def make_again(self, topic):
        """Delete a topic, and create another one under its name."""
        delete_topic(self.servers, topic)
        self.broker.create_topic(topic)

    def sink(self, topic, **arguments):
        return ofa.KafkaSink({"bootstrap.servers": self.servers}, topic=topic, **arguments)

    def query(self, *sinks, frame=None, mode="append", transform=None):
        """A query whose sinks are (name, sink), with None for the default name."""
        self.sinks = sum(isinstance(sink, ofa.KafkaSink) for _, sink in sinks)
        writer = ofa.write_stream(self.source.stream() if frame is None else frame).outputMode(mode)
        for name, sink in sinks:
            writer = writer.to(sink, name=name, transform=transform)
        return writer.option("checkpointLocation", str(self.checkpoint))

    def crash(self, writer, doubt, batch=1):
        """Run two batches, and crash in the second one with a transaction of each Kafka sink
        prepared."""
        self.source.add(*rows(1, 2))
        self.source.add(*rows(3, 4))
        with failing(f"{CRASH[doubt]}=raise@{batch + 1}"):
            fails(writer, "FailpointError")
        in_doubt = {name.partition(f":{self.id}:")[2].partition(":")[0] for name in self.open()}
        assert len(in_doubt) == self.sinks, "a sink has nothing in doubt; the test proves nothing"

    def lose(self, sink):
        """Abort what is decided and open of a sink, as a time-out does."""
        listing = self.sink("any")
        try:
            lost = [name for name in self.open() if f":{sink}:" in name]
            assert lost
            assert not listing._connected().fence(lost).missing
        finally:
            listing.close()

    def end(self, writer, run):
        """Run to the end of the input, with another batch behind the one in doubt."""
        self.source.add(*rows(5, 6))
        run(writer)

    @property
    def id(self):
        return json.loads((self.checkpoint / "metadata").read_text())["id"]

    def open(self):
        """The open transactions of the query."""
        listing = self.sink("any")
        try:
            names = listing._connected().open_transactions()
        finally:
            listing.close()
        return sorted(name for name in names if f":{self.id}:" in name)

    def assert_complete(self, **topics):
        """Every topic has exactly these rows, nothing is open, and nothing is held back."""
        assert self.open() == []
        for topic, expected in topics.values():
            released(self.servers, topic)
            assert values(self.servers, topic) == [f"v{n}" for n in expected]


def fails(writer, match):
    """What a start, or else its first batch, is refused with."""
    queries = []

    def run():
        queries.append(writer.trigger(availableNow=True).start())
        queries[0].awaitTermination(60)

    try:
        with pytest.raises(Exception) as raised:
            run()
    finally:
        for query in queries:
            query.stop()
    text = f"{type(raised.value).__name__}: {raised.value}"
    assert re.search(match, text), text
    return text


def lose_rows(database):
    """Take away what is prepared in a database, as somebody could who tidies up there."""
    ours = "SELECT quote_literal(gid) FROM pg_prepared_xacts WHERE database = current_database()"
    staged = (
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables "
        "WHERE schemaname = 'onceforall' AND tablename LIKE 'stg%'"
    )
    with psycopg.connect(database, autocommit=True) as connection:
        lost = [f"ROLLBACK PREPARED {gid}" for (gid,) in connection.execute(ours)]
        lost += [f"DROP TABLE {name}" for (name,) in connection.execute(staged)]
        assert lost
        for statement in lost:
            connection.execute(statement)


def values_of(database, table):
    with psycopg.connect(database) as connection:
        return [value for (value,) in connection.execute(f"SELECT value FROM {table} ORDER BY 1")]


def in_topic(place, topic):
    """A frame whose rows name this topic."""
    return place.source.stream().withColumn(
        "topic", F.lit(topic) if isinstance(topic, str) else topic
    )


@pytest.fixture
def place(broker, topic, source, tmp_path):
    return Place(broker, topic, source, tmp_path / "checkpoint")


@pytest.mark.long
def test_a_topic_that_is_made_again_gets_a_decided_batch_when_a_person_says_so(place, run):
    """Kafka would commit the transaction there without its rows, and say that all is well."""
    one, two = place.topic(), place.topic()

    def query():
        return place.query(("one", place.sink(one)), ("two", place.sink(two)))

    place.crash(query(), "decided")
    place.make_again(one)
    fails(query(), rf"InDoubtError.*topic {one} .* deleted and made again.*inDoubt=aborted")
    run(query().option("onceforall.inDoubt", "aborted"))
    place.end(query(), run)
    place.assert_complete(one=(one, range(3, 7)), two=(two, range(1, 7)))


@pytest.mark.parametrize("what", ["a start", pytest.param("a detachment", marks=pytest.mark.long)])
def test_while_the_topic_is_deleted_a_decided_batch_is_not_complete(place, run, what):
    """Kafka would leave the topic out, and say that all is well."""
    one = place.topic()

    def query():
        return place.query((None, place.sink(None)), frame=in_topic(place, one))

    place.crash(query(), "decided")
    delete_topic(place.servers, one)
    in_doubt = place.open()
    if what == "a start":
        fails(query(), rf"InDoubtError.*topic {one} .*deleted; make it again.*inDoubt=aborted")
    else:
        with pytest.raises(InDoubtError, match=f"topic {one}"):
            detach(place.checkpoint, {"kafka": place.sink(None)})
    assert place.open() == in_doubt
    place.broker.create_topic(one)
    run(query().option("onceforall.inDoubt", "aborted"))
    place.end(query(), run)
    place.assert_complete(one=(one, range(3, 7)))


def test_an_open_transaction_is_not_held_for_committed(place, run):
    """It would stay open, and hold back the readers of the topic that is still there."""
    first, second = place.topic(), place.topic()

    def query():
        topic = F.when(F.col("key") == "k1", first).otherwise(second)
        return place.query((None, place.sink(None)), frame=in_topic(place, topic))

    place.crash(query(), "decided")
    place.make_again(second)
    fails(query().option("onceforall.inDoubt", "committed"), "InDoubtError.*inDoubt=aborted")
    assert place.open()
    run(query().option("onceforall.inDoubt", "aborted"))
    place.end(query(), run)
    place.assert_complete(first=(first, [1, 3, 5]), second=(second, [4, 6]))


@pytest.mark.long  # what is lost and given up is tested in test_redo.py
def test_the_rows_of_a_topic_that_stays_deleted_can_be_given_up(place, run):
    gone, other = place.topic(), place.topic()

    def query(topic):
        return place.query((None, place.sink(None)), frame=in_topic(place, topic))

    place.crash(query(gone), "decided")
    delete_topic(place.servers, gone)
    fails(query(other), "InDoubtError.*inDoubt=aborted.*lostRows=giveUpUnseen:1")
    aborted = query(other).option("onceforall.inDoubt", "aborted")
    run(aborted.option("onceforall.lostRows", "giveUpUnseen:1"))
    place.end(query(other), run)
    place.assert_complete(other=(other, [5, 6]))


@pytest.mark.long
def test_a_redo_that_fails_says_that_the_next_start_needs_the_same_word(place, run):
    one = place.topic()

    def query(is_broken=False):
        frame = place.source.stream()
        if is_broken:
            frame = frame.withColumn("value", F.raise_error(F.lit("boom")).cast("string"))
        writer = place.query(("one", place.sink(one)), frame=frame)
        return writer.option("onceforall.redo", "replay")

    place.crash(query(), "decided")
    place.make_again(one)
    message = fails(query(is_broken=True).option("onceforall.inDoubt", "aborted"), "boom")
    assert "Each start needs onceforall.inDoubt=aborted, too" in message
    fails(query(), "InDoubtError")
    run(query().option("onceforall.inDoubt", "aborted"))
    place.end(query(), run)
    place.assert_complete(one=(one, range(3, 7)))


@pytest.mark.long
def test_a_topic_that_is_made_again_before_the_decision_gets_the_whole_batch(place, run):
    one = place.topic()
    place.crash(place.query(("one", place.sink(one))), "undecided")
    place.make_again(one)
    place.end(place.query(("one", place.sink(one))), run)
    place.assert_complete(one=(one, range(3, 7)))


@DECIDED
def test_a_sink_is_added(place, run, doubt):
    one, two = place.topic(), place.topic()
    place.crash(place.query(("one", place.sink(one))), doubt)
    place.end(place.query(("one", place.sink(one)), ("two", place.sink(two))), run)
    # It gets what is decided from now on: the batch that was decided without it stays without it.
    since = [5, 6] if doubt == "decided" else [3, 4, 5, 6]
    place.assert_complete(one=(one, range(1, 7)), two=(two, since))


def test_a_sink_with_a_decided_transaction_cannot_be_removed_before_it_is_complete(place, run):
    one, two = place.topic(), place.topic()
    both = lambda: place.query(("one", place.sink(one)), ("two", place.sink(two)))
    place.crash(both(), "decided")
    in_doubt = place.open()
    message = fails(place.query(("one", place.sink(one))), "FormerSinkError")
    assert "two" in message
    assert "same name" in message
    assert place.open() == in_doubt
    run(both())
    place.assert_complete(one=(one, range(1, 5)), two=(two, range(1, 5)))
    place.end(place.query(("one", place.sink(one))), run)
    place.assert_complete(one=(one, range(1, 7)), two=(two, range(1, 5)))


def test_what_a_removed_sink_left_undecided_is_swept_by_another_one(place, run):
    one, two = place.topic(), place.topic()
    place.crash(place.query(("one", place.sink(one)), ("two", place.sink(two))), "undecided")
    place.end(place.query(("one", place.sink(one))), run)
    place.assert_complete(one=(one, range(1, 7)), two=(two, range(1, 3)))


def test_a_sink_with_a_decided_transaction_cannot_be_renamed_before_it_is_complete(place, run):
    out = place.topic()
    place.crash(place.query(("old", place.sink(out))), "decided")
    in_doubt = place.open()
    assert "old" in fails(place.query(("new", place.sink(out))), "FormerSinkError")
    assert place.open() == in_doubt
    run(place.query(("old", place.sink(out))))
    place.end(place.query(("new", place.sink(out))), run)
    place.assert_complete(out=(out, range(1, 7)))


@pytest.mark.long
def test_what_a_renamed_sink_left_undecided_is_swept_under_its_new_name(place, run):
    out = place.topic()
    place.crash(place.query(("old", place.sink(out))), "undecided")
    place.end(place.query(("new", place.sink(out))), run)
    place.assert_complete(out=(out, range(1, 7)))


@DECIDED
@pytest.mark.long
def test_sinks_are_reordered(place, run, doubt):
    one, two = place.topic(), place.topic()
    place.crash(place.query(("one", place.sink(one)), ("two", place.sink(two))), doubt)
    place.end(place.query(("two", place.sink(two)), ("one", place.sink(one))), run)
    place.assert_complete(one=(one, range(1, 7)), two=(two, range(1, 7)))


@BOTH
def test_the_topic_of_a_sink_with_a_name_of_its_own_is_changed(place, run, doubt):
    before, after = place.topic(), place.topic()
    place.crash(place.query(("out", place.sink(before))), doubt)
    place.end(place.query(("out", place.sink(after))), run)
    decided = 4 if doubt == "decided" else 2
    place.assert_complete(
        before=(before, range(1, decided + 1)), after=(after, range(decided + 1, 7))
    )


@pytest.mark.long  # one with a name of its own is changed as well
@BOTH
def test_the_topic_of_a_sink_with_the_default_name_is_changed(place, run, doubt):
    before, after = place.topic(), place.topic()
    place.crash(place.query((None, place.sink(before))), doubt)
    if doubt == "decided":
        assert f"kafka-{before}" in fails(place.query((None, place.sink(after))), "FormerSinkError")
        run(place.query((None, place.sink(before))))
    place.end(place.query((None, place.sink(after))), run)
    decided = 4 if doubt == "decided" else 2
    place.assert_complete(
        before=(before, range(1, decided + 1)), after=(after, range(decided + 1, 7))
    )


@BOTH
def test_the_transactional_id_prefix_is_changed_and_the_old_one_is_swept(place, run, doubt):
    out = place.topic()
    place.crash(place.query(("out", place.sink(out, transactional_id_prefix="before"))), doubt)
    assert all(name.startswith("before:") for name in place.open())
    place.end(place.query(("out", place.sink(out, transactional_id_prefix="after"))), run)
    place.assert_complete(out=(out, range(1, 7)))


@DECIDED
def test_the_delivery_is_changed(place, run, doubt):
    out = place.topic()
    place.crash(place.query(("out", place.sink(out))), doubt)
    place.end(place.query(("out", place.sink(out, delivery="at_least_once"))), run)
    place.assert_complete(out=(out, range(1, 7)))


@LOST
@pytest.mark.parametrize(
    "delivery", ["at_least_once", pytest.param("none", marks=pytest.mark.long)]
)
def test_the_delivery_is_changed_while_a_decided_transaction_is_lost(place, run, redo, delivery):
    """What needs no commit is written again as it is written now."""
    one, two = place.topic(), place.topic()

    def query(**changed):
        writer = place.query(("one", place.sink(one, **changed)), ("two", place.sink(two)))
        return writer.option("onceforall.redo", redo)

    place.crash(query(), "decided")
    place.lose("one")
    place.end(query(delivery=delivery), run)
    place.assert_complete(one=(one, range(1, 7)), two=(two, range(1, 7)))


@LOST
def test_the_topic_is_changed_while_a_decided_transaction_is_lost(place, run, redo):
    before, after, two = place.topic(), place.topic(), place.topic()

    def query(one):
        writer = place.query(("one", place.sink(one)), ("two", place.sink(two)))
        return writer.option("onceforall.redo", redo)

    place.crash(query(before), "decided")
    place.lose("one")
    place.end(query(after), run)
    place.assert_complete(
        before=(before, range(1, 3)), after=(after, range(3, 7)), two=(two, range(1, 7))
    )


@pytest.mark.long
@LOST
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("staged", "upsert"),
        ("prepared", "upsert"),
        ("staged", "prepared"),
        ("prepared", "staged"),
    ],
)
def test_the_mode_of_a_table_is_changed_while_its_decided_rows_are_lost(
    place, run, database, redo, before, after
):
    out = place.topic()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (key text, value text PRIMARY KEY)")

    def query(mode):
        table = ofa.PostgresSink(database, table="t", key="value", mode=mode)
        writer = place.query(
            ("out", place.sink(out)),
            ("table", table),
            transform=lambda frame: frame.select("key", "value"),
        )
        return writer.option("onceforall.redo", redo)

    place.crash(query(before), "decided")
    lose_rows(database)
    place.end(query(after), run)
    place.assert_complete(out=(out, range(1, 7)))
    assert values_of(database, "t") == [f"v{n}" for n in range(1, 7)]


@pytest.mark.long  # a topic is changed in the same way
def test_the_table_is_changed_while_its_decided_rows_are_lost(place, run, database):
    out = place.topic()
    with psycopg.connect(database, autocommit=True) as connection:
        for table in ("t", "u"):
            connection.execute(f"CREATE TABLE {table} (key text, value text PRIMARY KEY)")

    def query(table):
        return place.query(
            ("out", place.sink(out)),
            ("table", ofa.PostgresSink(database, table=table, key="value")),
            transform=lambda frame: frame.select("key", "value"),
        )

    place.crash(query("t"), "decided")
    lose_rows(database)
    place.end(query("u"), run)
    place.assert_complete(out=(out, range(1, 7)))
    assert values_of(database, "t") == ["v1", "v2"]
    assert values_of(database, "u") == ["v3", "v4", "v5", "v6"]


@pytest.fixture(scope="module")
def secured():
    with EmbeddedKafka(users={"ads": PASSWORD}) as kafka:
        yield Secured(kafka)


@DECIDED
@pytest.mark.long
def test_the_password_is_rotated(secured, source, run, doubt, tmp_path):
    place = Place(secured.kafka, secured.topic, source, tmp_path / "checkpoint")
    out, user = place.topic(), f"u{uuid.uuid4().hex[:6]}"
    secured.grant(secured.for_topic(out, user), secured.for_ids("onceforall", user))
    query = lambda password: place.query(
        ("out", ofa.KafkaSink(secured.scram(user, password), topic=out))
    )
    secured.kafka.set_password(user, "first")
    place.crash(query("first"), doubt)
    in_doubt = place.open()
    secured.kafka.set_password(user, "second")
    # Whoever forgets to give the new one is told so, and what is in doubt waits for the start that
    # has it.
    with pytest.raises(SinkCheckError, match=r"Check sasl\.username and sasl\.password"):
        query("first").trigger(availableNow=True).start()
    assert place.open() == in_doubt
    place.end(query("second"), run)
    place.assert_complete(out=(out, range(1, 7)))


@DECIDED
@pytest.mark.long
def test_the_number_of_tasks_of_a_query_without_state_is_changed(place, run, doubt):
    out = place.topic(partitions=3)
    place.crash(
        place.query(("out", place.sink(out)), transform=lambda frame: frame.repartition(2)), doubt
    )
    place.end(
        place.query(("out", place.sink(out)), transform=lambda frame: frame.repartition(5)), run
    )
    place.assert_complete(out=(out, range(1, 7)))


@DECIDED
def test_the_number_of_shuffle_partitions_of_a_query_with_state_is_changed(
    place, run, doubt, spark, caplog
):
    out = place.topic(partitions=3)
    largest = lambda: place.source.stream().groupBy("key").agg(F.max("value").alias("value"))
    query = lambda: place.query(("out", place.sink(out)), frame=largest(), mode="update")
    place.crash(query(), doubt)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        spark.conf.set("spark.sql.shuffle.partitions", "5")
        place.end(query(), run)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    # Spark keeps the number with which the state began. A decided batch is run again to rebuild it,
    # and gives the same rows.
    assert {
        folder.name
        for folder in (place.checkpoint / "state" / "0").iterdir()
        if folder.name.isdecimal()
    } == {"0", "1"}
    assert "divergence" not in caplog.text
    place.assert_complete(out=(out, range(1, 7)))


@pytest.mark.long
def test_two_queries_to_one_topic_with_something_in_doubt_touch_only_their_own(
    broker, place, source, topic, run, tmp_path
):
    out = place.topic(partitions=2)
    other = Place(broker, topic, source, tmp_path / "other")
    query = lambda where: where.query(("out", where.sink(out)))
    place.crash(query(place), "decided")
    with failing(f"{CRASH['undecided']}=raise@2"):
        fails(query(other), "FailpointError")
    in_doubt = other.open()
    assert in_doubt
    place.end(query(place), run)
    assert place.open() == []
    assert other.open() == in_doubt
    assert held_back(place.servers, out) > 0
    run(query(other))
    assert other.open() == []
    released(place.servers, out)
    assert values(place.servers, out) == sorted(f"v{n}" for n in range(1, 7) for _ in range(2))


@DECIDED
@pytest.mark.long
def test_two_sinks_to_one_topic_need_a_name_and_are_then_two(place, run, doubt):
    out = place.topic()
    with pytest.raises(OptionError, match=r"Two sinks are named .*\.to\(sink, name="):
        place.query((None, place.sink(out)), (None, place.sink(out)))
    query = lambda: place.query((None, place.sink(out)), ("again", place.sink(out)))
    place.crash(query(), doubt)
    assert len(place.open()) == 2
    place.end(query(), run)
    place.assert_complete()
    released(place.servers, out)
    assert values(place.servers, out) == sorted(f"v{n}" for n in range(1, 7) for _ in range(2))


@BOTH
def test_a_copied_checkpoint_is_refused_and_touches_nothing_until_it_is_adopted(
    broker, place, source, topic, run, doubt, tmp_path
):
    out = place.topic()
    query = lambda where: where.query(("out", where.sink(out)))
    place.crash(query(place), doubt)
    in_doubt = place.open()
    copy = Place(broker, topic, source, tmp_path / "copy")
    shutil.copytree(place.checkpoint, copy.checkpoint)
    assert str(place.checkpoint) in fails(query(copy), "CheckpointMismatchError.*adoptCheckpoint")
    assert place.open() == in_doubt
    copy.end(query(copy).option("onceforall.adoptCheckpoint", "true"), run)
    copy.assert_complete(out=(out, range(1, 7)))


def test_an_original_that_is_started_again_after_its_copy_was_adopted_commits_nothing_that_the_copy_aborted(
    broker, place, source, topic, run, tmp_path
):
    out = place.topic()
    query = lambda where: where.query(("out", where.sink(out)))
    place.crash(query(place), "undecided")
    copy = Place(broker, topic, source, tmp_path / "copy")
    shutil.copytree(place.checkpoint, copy.checkpoint)
    run(query(copy).option("onceforall.adoptCheckpoint", "true"))
    copy.assert_complete(out=(out, range(1, 5)))
    # Two owners write everything twice, which is why the copy has to be adopted on purpose; but
    # each of them whole.
    run(query(place))
    assert values(place.servers, out) == ["v1", "v2", "v3", "v3", "v4", "v4"]
    assert place.open() == []
