"""What became of a prepared transaction that Kafka refuses to commit: found out on a real
broker, by state and by log."""

import struct
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Thread

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from onceforall.embedded import EmbeddedKafka
from onceforall.errors import AttemptFailedError
from onceforall.sinks.kafka.driver.evidence import (
    Marker,
    Outcome,
    TransactionState,
    Unreadable,
    judge_log,
    judge_state,
    proof_of,
)
from onceforall.sinks.kafka.driver.outcomes import withheld
from onceforall.sinks.kafka.driver.record_batches import BATCH_HEADER, record_batches
from support.network_proxy import Api, KafkaProxy
from support.topics import delete_topic

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def quick_broker():
    """A broker that looks for timed-out transactions and for expired ids every moment."""
    config = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        "transactional.id.expiration.ms": "500",
    }
    with EmbeddedKafka(config=config) as broker:
        yield broker


@pytest.fixture
def patient_broker():
    """A broker that looks for timed-out transactions every moment, and forgets no id."""
    with EmbeddedKafka(
        config={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    ) as broker:
        yield broker


def quick_topic(broker):
    name = f"t-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name)
    return name


def confirmed(q, *committables):
    return q.sink.confirm(committables)


def fenced_by_somebody(q, committable):
    """Initialise its id, as a late InitProducerId would."""
    assert not q.sink._connected().fence([committable["name"]]).missing


def words(report):
    (missing,) = (*report.lost, *report.in_doubt)
    return missing.reason


def test_a_confirmed_transaction_says_where_its_proof_will_be(query, topic, sees):
    name = topic(partitions=3)
    q = query(name)
    q.commit(*confirmed(q, q.prepare(["before"])))
    (committable,) = confirmed(q, q.prepare(["a", "b", "c"], slot=1))
    assert committable["proof"]["topic"] == name
    assert committable["proof"]["partition"] in range(3)
    assert committable["proof"]["offset"] > 0
    assert q.commit(committable).completed
    sees(name, ["before", "a", "b", "c"])


def test_topics_that_a_column_names_are_looked_into_too(query, topic, batch_of):
    import pyarrow as pa

    name = topic()
    q = query(None)
    transaction = q.sink.begin_transaction(q.attempt())
    q.sink.invoke(transaction, batch_of(["a"], topic=pa.array([name])))
    committable = q.sink.pre_commit(transaction)
    assert committable["topics"] == [name]
    (committable,) = confirmed(q, committable)
    assert committable["proof"]["topic"] == name
    assert "topics" not in committable
    fenced_by_somebody(q, committable)
    assert len(q.commit(committable).lost) == 1


def test_a_transaction_that_is_not_open_any_more_is_not_confirmed(query, topic):
    q = query(topic())
    committable = q.prepare(["a"])
    fenced_by_somebody(q, committable)
    with pytest.raises(
        AttemptFailedError, match=r"not open any more before the decision.*transaction\.timeout\.ms"
    ):
        confirmed(q, committable)


def test_a_transaction_that_was_aborted_by_a_fence_is_lost(query, topic):
    q = query(topic())
    (committable,) = confirmed(q, q.prepare(["a"]))
    fenced_by_somebody(q, committable)
    report = q.commit(committable)
    assert [lost.committable for lost in report.lost] == [committable]
    assert "PRODUCER_FENCED" in words(report) or "INVALID_PRODUCER_EPOCH" in words(report)
    assert "an abort marker" in words(report)


def test_what_became_of_a_transaction_is_found_out_on_a_topic_that_others_write_to_all_the_time(
    query, topic, broker
):
    name = topic()
    q = query(name)
    (lost, committed) = confirmed(q, q.prepare(["lost"]), q.prepare(["kept"], slot=1))
    q.commit(committed)
    fenced_by_somebody(q, lost)
    fenced_by_somebody(q, committed)
    others = ck.Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    with ThreadPoolExecutor(1) as pool, writing_all_the_time(others, name) as written:
        report = pool.submit(q.commit, lost, committed).result(60)
        assert written
    assert [each.committable for each in report.lost] == [lost]
    assert report.retired == (committed,)


@contextmanager
def writing_all_the_time(producer, topic):
    """Write a record each few milliseconds until the block is left."""
    written, is_over = [], Event()

    def write():
        while not is_over.is_set():
            producer.produce(topic, b"of others")
            producer.flush(10)
            written.append(topic)

    writer = Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        is_over.set()
        writer.join()


def test_a_transaction_that_was_committed_and_then_fenced_is_not_lost(query, topic, sees):
    """Kafka answers as for a lost one; only the log tells them apart."""
    name = topic()
    q = query(name)
    (committable,) = confirmed(q, q.prepare(["a"]))
    assert q.commit(committable).completed
    fenced_by_somebody(q, committable)
    report = q.commit(committable)
    assert report.retired == (committable,)
    assert not report.lost
    sees(name, ["a"])


def test_a_transaction_is_told_from_an_earlier_one_of_the_same_producer(query, topic, sees):
    """Same id, producer id and epoch: the first was committed, the second aborted."""
    name = topic()
    q = query(name)
    (first,) = confirmed(q, q.prepare(["first"], batch=1))
    (done,) = q.commit(first).completed
    (second,) = confirmed(q, q.prepare(["second"], batch=2, reusable=[{**done, "batch": 1}]))
    identity = ("name", "producer_id", "producer_epoch")
    assert [first[k] for k in identity] == [second[k] for k in identity], (
        "no producer was reused; the test proves nothing"
    )
    fenced_by_somebody(q, second)
    assert [lost.committable for lost in q.commit(second).lost] == [second]
    # A leader that was cut off may have told an end of its log that lies before the marker of the
    # first.
    stale = {**second, "proof": {**second["proof"], "offset": first["proof"]["offset"]}}
    assert [lost.committable for lost in q.commit(stale).lost] == [stale]
    sees(name, ["first"])


@pytest.mark.long
def test_a_transaction_that_timed_out_is_lost(query, quick_broker, until):
    q = query(quick_topic(quick_broker), servers=quick_broker.bootstrap_servers, options=SHORT)
    (committable,) = confirmed(q, q.prepare(["a"]))
    until(
        lambda: (
            state_of(q, committable) is None or state_of(q, committable).state == "CompleteAbort"
        )
    )
    assert [lost.committable for lost in q.commit(committable).lost] == [committable]


@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.sample(1)
def test_what_became_of_a_transaction_is_found_out_after_its_id_has_expired(
    query, quick_broker, until, decided, sees
):
    name = quick_topic(quick_broker)
    q = query(name, servers=quick_broker.bootstrap_servers, options={} if decided else SHORT)
    (committable,) = confirmed(q, q.prepare(["a"]))
    if decided:
        first = q.commit(committable)
        # An id that expires between the commit and its confirmation is retired at once.
        assert (*first.completed, *first.retired) == (committable,)
    until(lambda: state_of(q, committable) is None)
    report = q.commit(committable)
    if decided:
        assert report.retired == (committable,)
        sees(name, ["a"], quick_broker.bootstrap_servers)
    else:
        assert [lost.committable for lost in report.lost] == [committable]
        assert "INVALID_PRODUCER_ID_MAPPING" in words(report)
        assert "an abort marker" in words(report)


def test_a_stranger_who_holds_the_id_open_hides_nothing(query, topic, broker):
    """Its transaction has the next epoch, and may be open for as long as the stranger likes."""
    q = query(topic())
    (committable,) = confirmed(q, q.prepare(["a"]))
    q.commit(committable)
    stranger = ck.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": committable["name"]}
    )
    stranger.init_transactions(20)
    stranger.begin_transaction()
    stranger.produce(topic(), b"of a stranger")
    stranger.flush(10)
    known = state_of(q, committable)
    assert (known.state, known.epoch) == ("Ongoing", committable["producer_epoch"] + 1)
    assert q.commit(committable).retired == (committable,)
    stranger.abort_transaction(20)


def test_without_a_proof_a_fenced_transaction_stays_in_doubt(query, topic):
    q = query(topic())
    committable = q.prepare(["a"])
    fenced_by_somebody(q, committable)
    report = q.commit(committable)
    assert [each.committable for each in report.in_doubt] == [committable]
    assert "earlier release" in words(report)


def test_a_proof_that_retention_has_deleted_leaves_the_transaction_in_doubt(query, topic, broker):
    name = topic()
    q = query(name)
    (committable,) = confirmed(q, q.prepare(["a"]))
    q.commit(committable)
    fenced_by_somebody(q, committable)
    q.commit(*confirmed(q, q.prepare(["later"], slot=1)))
    delete_records(broker, name, committable["proof"]["offset"] + 1)
    report = q.commit(committable)
    assert len(report.in_doubt) == 1
    assert "retention" in words(report)


def test_a_topic_that_is_gone_leaves_the_transaction_in_doubt(query, topic, broker):
    name = topic()
    q = query(name)
    (committable,) = confirmed(q, q.prepare(["a"]))
    q.commit(committable)
    fenced_by_somebody(q, committable)
    delete_topic(broker.bootstrap_servers, name)
    q.sink.close()
    report = q.commit(committable)
    assert len(report.in_doubt) == 1
    assert "is not there any more" in words(report)


@pytest.mark.long
def test_a_committed_transaction_that_a_late_request_reopened_is_not_held_for_aborted_where_the_log_is_gone(
    query, patient_broker, until
):
    """The coordinator then says what it says of one that timed out: aborted, under the next
    epoch."""
    name = quick_topic(patient_broker)
    options = {"transaction.timeout.ms": 4000, "message.timeout.ms": 4000}
    with KafkaProxy(patient_broker.port) as proxy:
        q = query(name, servers=proxy.address, options=options)
        held = proxy.hold(Api.ADD_PARTITIONS_TO_TXN, lambda request: request.client_id == "rdkafka")
        with ThreadPoolExecutor(1) as thread:
            preparing = thread.submit(q.prepare, ["a"])
            held.wait()
            held.cut()
            (committable,) = confirmed(q, preparing.result(30))
        assert q.commit(committable).retired == (committable,)
        until(lambda: state_of(q, committable).state == "CompleteCommit")
        held.release()
        assert state_of(q, committable).state == "Ongoing", (
            "nothing was reopened; the test proves nothing"
        )
        until(lambda: state_of(q, committable).state == "CompleteAbort")
        q.commit(*confirmed(q, q.prepare(["later"], slot=1)))
        delete_records(patient_broker, name, committable["proof"]["offset"] + 1)
        report = q.commit(committable)
        assert [each.committable for each in report.in_doubt] == [committable]
        assert "proves nothing" in words(report)


SHORT = {"transaction.timeout.ms": 1500, "message.timeout.ms": 1500}


def state_of(q, committable):
    return q.sink._connected_reader().states([committable])[committable["name"]]


def delete_records(broker, name, offset):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    (future,) = admin.delete_records([ck.TopicPartition(name, 0, offset)]).values()
    assert future.result(20).low_watermark == offset


# --- the judgement alone --------------------------------------------------------------------------

COMMITTABLE = {
    "name": "x",
    "producer_id": 7,
    "producer_epoch": 3,
    "proof": {"topic": "t", "partition": 0, "offset": 10},
}


def state(name, producer_id=7, epoch=3):
    return TransactionState(name, producer_id, epoch)


@pytest.mark.parametrize(
    ("known", "outcome"),
    [
        (state("CompleteCommit"), Outcome.OPEN),
        (state("CompleteAbort"), Outcome.ABORTED),
        (state("Ongoing"), Outcome.OPEN),
        (state("PrepareCommit"), Outcome.OPEN),
        (state("PrepareAbort", epoch=4), Outcome.OPEN),
        (state("PrepareCommit", epoch=4), Outcome.OPEN),
        (state("PrepareEpochFence", epoch=4), Outcome.OPEN),
        (state("Ongoing", epoch=4), None),
        (state("Ongoing", epoch=5), None),
        (state("CompleteAbort", epoch=4), None),
        (state("CompleteCommit", epoch=4), None),
        (state("Empty", epoch=4), None),
        (state("CompleteCommit", producer_id=8), None),
        (None, None),
    ],
)
def test_the_state_alone_decides_only_under_the_very_epoch(known, outcome):
    finding = judge_state(COMMITTABLE, known)
    assert (finding and finding.outcome) == outcome


@pytest.mark.parametrize(
    ("known", "marker", "outcome"),
    [
        (None, Marker(True, 3, 12), Outcome.COMMITTED),
        (None, Marker(False, 3, 12), Outcome.ABORTED),
        (None, Marker(False, 4, 12), Outcome.ABORTED),
        (None, Marker(True, 4, 12), Outcome.UNKNOWN),
        (None, Marker(False, 5, 12), Outcome.UNKNOWN),
        (None, Marker(True, 2, 12), Outcome.UNKNOWN),
        (None, None, Outcome.UNKNOWN),
        (state("CompleteAbort", epoch=4), None, Outcome.UNKNOWN),
        (state("CompleteAbort", epoch=4), Unreadable("no right"), Outcome.ABORTED),
        (state("CompleteAbort", epoch=5), Unreadable("no right"), Outcome.UNKNOWN),
        (state("Empty", epoch=4), Unreadable("no right"), Outcome.UNKNOWN),
        (None, Unreadable("no right"), Outcome.UNKNOWN),
    ],
)
def test_the_first_marker_decides_and_an_unreadable_log_leaves_only_a_time_out(
    known, marker, outcome
):
    finding = judge_log(COMMITTABLE, known, marker)
    assert finding.outcome is outcome
    assert finding.words


@pytest.mark.parametrize(
    ("marker", "doubtful", "outcome"),
    [
        (Marker(False, 4, 12, is_first=False), True, Outcome.UNKNOWN),
        (Marker(False, 4, 12, is_first=False), False, Outcome.ABORTED),
        (Marker(False, 4, 12), True, Outcome.ABORTED),
        (Marker(False, 3, 12, is_first=False), True, Outcome.ABORTED),
        (Marker(True, 3, 12, is_first=False), True, Outcome.COMMITTED),
    ],
)
def test_an_abort_behind_what_compaction_took_proves_nothing_where_a_request_went_unanswered(
    marker, doubtful, outcome
):
    """It may have opened the transaction once more behind its commit, to be aborted by a time-out;
    and the commit marker is gone."""
    finding = judge_log({**COMMITTABLE, "doubtful": doubtful}, None, marker)
    assert finding.outcome is outcome
    assert ("compacted" in finding.words) == (outcome is Outcome.UNKNOWN)


def test_an_abort_under_the_next_epoch_proves_nothing_where_a_request_went_unanswered():
    aborted, unreadable = state("CompleteAbort", epoch=4), Unreadable("no right")
    finding = judge_log({**COMMITTABLE, "doubtful": True}, aborted, unreadable)
    assert finding.outcome is Outcome.UNKNOWN
    assert "no right" in finding.words
    # The log itself still proves it.
    assert (
        judge_log({**COMMITTABLE, "doubtful": True}, aborted, Marker(False, 4, 12)).outcome
        is Outcome.ABORTED
    )


def test_a_marker_of_which_compaction_has_left_only_the_header_tells_nothing():
    """The bytes behind it are another batch's."""

    def batch(base, count, body):
        length = BATCH_HEADER.size - 12 + len(body)
        return BATCH_HEADER.pack(base, length, 0, 2, 0, 0b110000, 0, 0, 0, 7, 3, -1, count) + body

    key = struct.pack(">hh", 0, 1)
    marker = bytes([30, 0, 0, 0, 2 * len(key)]) + key + bytes(10)
    emptied, whole = record_batches(batch(255, 0, b"") + batch(256, 1, marker))
    assert (emptied.commits, whole.commits) == (None, True)
    assert (emptied.next_offset, whole.base_offset) == (256, 256)


def test_the_proof_lies_in_a_partition_of_the_transaction():
    of = TransactionState("Ongoing", 7, 3, (("t", 2), ("t", 1)))
    assert proof_of(of, {("t", 0): 5, ("t", 1): 6, ("t", 2): 7}) == {
        "topic": "t",
        "partition": 1,
        "offset": 6,
    }
    assert proof_of(of, {("t", 0): 5}) is None
    assert proof_of(None, {}) is None


# --- what is withheld -----------------------------------------------------------------------------


class Told:
    """A reader of a cluster in which one coordinator is loading."""

    def states_known_soon(self, names, reasons):
        reasons["untold"] = "the coordinator answered CoordinatorLoadInProgress (14)"
        return {"told": TransactionState("Ongoing", 7, 3, (("t", 1),))}

    def leaderless(self, partitions):
        return []


def test_a_transaction_of_which_nobody_tells_where_it_has_written_is_withheld_and_no_other():
    """A partition of it may have no leader."""
    held = withheld(["told", "untold"], Told())
    assert list(held) == ["untold"]
    assert "CoordinatorLoadInProgress" in held["untold"]
