from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import closing
from types import SimpleNamespace

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from onceforall import KafkaSink
from onceforall.embedded import EmbeddedKafka
from onceforall.errors import AttemptFailedError, RefusedRecordError, SinkUnavailableError
from onceforall.sinks.kafka import sink as kafka_sink
from onceforall.sinks.kafka.task import live as live_module
from onceforall.sinks.kafka.task import producers

from .conftest import Query, read, wait_until

pytestmark = pytest.mark.kafka

PREPARE_AND_WAIT = """
import json, pickle, sys, time
import pyarrow as pa
sink, attempt, count = pickle.load(sys.stdin.buffer)
transaction = sink.begin_transaction(attempt)
sink.invoke(transaction, pa.RecordBatch.from_pydict({"value": [b"%d" % i for i in range(count)]}))
print(json.dumps(sink.pre_commit(transaction)), flush=True)
time.sleep(600)
"""


def prepare_in_a_process_that_is_killed(query, count, **attempt):
    process = subprocess.Popen(
        [sys.executable, "-c", PREPARE_AND_WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        process.stdin.write(pickle.dumps((query.sink, query.attempt(**attempt), count)))
        process.stdin.close()
        return json.loads(process.stdout.readline())
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def write_and_prepare(q, transaction, rows):
    q.sink.invoke(transaction, rows)
    return q.sink.pre_commit(transaction)


def live(query):
    return [
        p for key, made in producers.POOL._producers.items() if key[0] == query.id for _, p in made
    ]


def test_a_transaction_whose_process_was_killed_is_committed_by_another(
    query, topic, committed, sees
):
    name = topic(partitions=3)
    q = query(name)
    committable = prepare_in_a_process_that_is_killed(q, 1000)
    assert committable["records"] == 1000
    assert committed(name) == []
    report = q.commit(committable)
    assert report.completed == (committable,)
    sees(name, [str(i) for i in range(1000)])


def test_committing_twice_is_a_success_and_adds_nothing(query, topic, sees):
    name = topic()
    q = query(name)
    committable = q.prepare(["a", "b"])
    assert q.commit(committable).completed == (committable,)
    again = q.commit(committable)
    assert len(again.completed) + len(again.retired) == 1
    assert not again.lost
    sees(name, ["a", "b"])


def test_many_transactions_are_committed_at_once(query, topic, sees):
    name = topic(partitions=2)
    q = query(name)
    committables = [q.prepare([f"{slot}"], slot=slot) for slot in range(12)]
    assert len({c["name"] for c in committables}) == 12
    assert set(map(str, q.commit(*committables).completed)) == set(map(str, committables))
    sees(name, [str(slot) for slot in range(12)])


def test_an_aborted_transaction_is_never_seen_and_its_live_producer_cannot_write_on(
    query, topic, batch_of, sees
):
    name = topic()
    q = query(name)
    transaction = q.sink.begin_transaction(q.attempt())
    q.sink.invoke(transaction, batch_of(["early"]))
    transaction.flush()
    q.sink.abort([{"name": transaction.producer.name}])
    with pytest.raises(AttemptFailedError):
        write_and_prepare(q, transaction, batch_of(["late"]))
    q.sink.discard(transaction)
    q.commit(q.prepare(["after"], slot=1))
    sees(name, ["after"])


def test_a_live_producer_whose_transaction_was_aborted_opens_no_other_one_in_another_partition(
    query, topic, sees
):
    """A broker of today refuses late records in the old partitions, fenced or not; a new
    partition would begin a transaction anew."""
    name = topic(partitions=2)
    q = query(name)

    def rows(value, partition):
        return pa.RecordBatch.from_pydict(
            {"value": [value.encode()], "partition": pa.array([partition], pa.int32())}
        )

    transaction = q.sink.begin_transaction(q.attempt())
    q.sink.invoke(transaction, rows("early", 0))
    transaction.flush()
    q.sink.abort([{"name": transaction.producer.name}])
    with pytest.raises(AttemptFailedError):
        write_and_prepare(q, transaction, rows("late", 1))
    q.sink.discard(transaction)
    q.commit(q.prepare(["after"], slot=1))
    sees(name, ["after"])


def test_committing_an_aborted_transaction_reports_it_as_lost(query, topic, sees):
    name = topic()
    q = query(name)
    (committable,) = q.sink.confirm([q.prepare(["a"])])
    q.sink.abort([committable])
    (lost,) = q.commit(committable).lost
    assert lost.committable == committable
    assert "FENCED" in lost.reason or "EPOCH" in lost.reason
    sees(name, [])


def test_readers_are_past_an_aborted_transaction_when_abort_returns(query, topic, sees):
    name = topic()
    q = query(name)
    blocking, good = q.prepare(["blocking"], slot=0), q.prepare(["good"], slot=1)
    q.commit(good)
    q.sink.abort([blocking])
    sees(name, ["good"])


@pytest.mark.long
def test_brokers_that_allow_short_transactions_only_let_ids_be_fenced():
    with EmbeddedKafka(config={"transaction.max.timeout.ms": "5000"}) as strict:
        strict.create_topic("t")
        options = {"transaction.timeout.ms": 5000, "message.timeout.ms": 5000}
        q = Query(strict.bootstrap_servers, "t", options=options)
        with closing(q.sink):
            q.check()
            (kept,) = q.sink.confirm([q.prepare(["kept"])])
            q.commit(kept)
            q.sink.retire([kept])
            q.sink.abort([q.prepare(["aborted"], slot=1)])
            q.prepare(["swept"], slot=2)
            assert q.sink.recover(q.sweep()) == 1
        seen = read(strict.bootstrap_servers, "t", "read_committed")
        assert [message.value() for message in seen] == [b"kept"]


def test_ids_of_another_query_are_not_fenced(query, topic, sees, caplog):
    name = topic()
    q, other = query(name), query(name)
    foreign = other.prepare(["foreign"])
    q.check()
    q.sink.abort([foreign, {"name": "somebody-else"}])
    q.sink.retire([foreign])
    assert "left alone" in caplog.text
    assert other.commit(foreign).completed == (foreign,)
    sees(name, ["foreign"])


def test_a_sweep_aborts_only_what_it_covers(query, topic, until):
    name = topic()
    q = query(name, sink_name="a.1")
    other_query = query(name, sink_name="a.1")
    other_sink = query(name, sink_name="a.10")
    other_sink.id = q.id
    (older,) = q.sink.confirm([q.prepare(["older"], slot=0, generation=1)])
    own = q.prepare(["own"], slot=0, generation=2)
    spared = q.prepare(["spared"], slot=1, generation=1)
    others_spared = other_sink.prepare(["others"], slot=1, generation=1)
    newer = q.prepare(["newer"], slot=0, generation=3)
    kept = [
        other_query.prepare(["x"]),
        other_sink.prepare(["y"], generation=2),
        own,
        spared,
        others_spared,
        newer,
    ]
    assert (
        q.sink.recover(q.sweep(2, spared=frozenset({spared["name"], others_spared["name"]}))) == 1
    )
    assert [lost.committable for lost in q.commit(older).lost] == [older]
    for committable in kept:
        assert q.commit(committable).completed == (committable,), committable


def test_a_sweep_of_its_own_generation_spares_the_decided(query, topic):
    q = query(topic())
    decided, undecided = q.sink.confirm(
        [q.prepare(["decided"], slot=0), q.prepare(["undecided"], slot=1)]
    )
    assert q.sink.recover(q.sweep(1, own=True, spared=frozenset({decided["name"]}))) == 1
    assert q.commit(undecided).lost
    assert q.commit(decided).completed


def test_a_sweep_finds_nothing_the_second_time(query, topic):
    q = query(topic())
    q.prepare(["a"])
    assert q.sink.recover(q.sweep()) == 1
    assert q.sink.recover(q.sweep()) == 0


def is_gone(query, committable):
    report = query.commit(committable)
    return not report.completed and not report.retired


def test_a_sweep_finds_what_the_query_left_under_a_former_sink_name_and_prefix(query, topic, sees):
    name = topic()
    q = query(name, sink_name="new")
    q.check()
    former = query(name, sink_name="old", transactional_id_prefix="another")
    former.id = q.id
    left = former.prepare(["never decided"])
    good = q.prepare(["good"], generation=2)
    q.commit(good)
    assert q.sink.recover(q.sweep(2)) == 1
    assert is_gone(former, left)
    sees(name, ["good"])


def test_a_sweep_of_its_own_generation_keeps_to_its_own_sink_and_prefix(query, topic):
    name = topic()
    q = query(name)
    others = [query(name, transactional_id_prefix="another"), query(name, sink_name="another")]
    foreign = query(name)
    for other in others:
        other.id = q.id
    kept = [one.prepare(["x"], generation=2) for one in (*others, foreign)]
    undecided = q.prepare(["undecided"], generation=2)
    assert q.sink.recover(q.sweep(2, own=True)) == 1
    assert is_gone(q, undecided)
    for committable in kept:
        assert q.commit(committable).completed == (committable,)


def test_a_committable_under_a_former_prefix_is_committed_and_fenced_all_the_same(
    query, topic, sees
):
    name = topic()
    q = query(name, transactional_id_prefix="new")
    q.check()
    former = query(name, transactional_id_prefix="former")
    former.id = q.id
    decided, undecided = former.prepare(["decided"], slot=0), former.prepare(["undecided"], slot=1)
    assert q.commit(decided).completed == (decided,)
    q.sink.abort([undecided])
    q.sink.retire([decided])
    assert is_gone(q, undecided)
    # Its live producer could go on, were it not fenced.
    assert (
        former.prepare(["next"], batch=2, slot=0, reusable=({**decided, "batch": 1},))["name"]
        != decided["name"]
    )
    sees(name, ["decided"])


def test_only_what_is_of_the_query_and_the_sink_is_aborted(query, topic):
    name = topic()
    q = query(name)
    q.check()
    other_sink, other_query = query(name, sink_name="another"), query(name)
    other_sink.id = q.id
    kept = [other_sink.prepare(["x"]), other_query.prepare(["y"])]
    q.sink.abort(kept)
    q.sink.retire(kept)
    for committable in kept:
        assert q.commit(committable).completed == (committable,)


def run_batches(q, count, slots=1):
    """Prepare and commit batches as the coordinator does; return the committables of each."""
    history = []
    for batch in range(1, count + 1):
        committables = [
            q.prepare([f"{batch}.{slot}"], batch=batch, slot=slot) for slot in range(slots)
        ]
        report = q.commit(*committables)
        assert not report.lost
        q.reusable = tuple({**c, "batch": batch} for c in report.completed)
        history.append(committables)
    return history


def test_a_live_producer_goes_on_over_batches_under_one_id_and_epoch(query, topic, sees):
    name = topic(partitions=2)
    q = query(name)
    history = run_batches(q, 6, slots=2)
    identities = {
        (c["name"], c["producer_id"], c["producer_epoch"]) for batch in history for c in batch
    }
    assert len(identities) == 2
    sees(name, [f"{batch}.{slot}" for batch in range(1, 7) for slot in range(2)])


def test_a_producer_that_is_not_in_the_reusable_set_is_discarded_and_what_it_prepared_can_still_be_committed(
    query, topic, sees
):
    name = topic()
    q = query(name)
    first = q.prepare(["first"], batch=1)
    second = q.prepare(["second"], batch=2, slot=1, reusable=())
    assert second["name"] != first["name"]
    assert [p.name for p in live(q)] == [second["name"]]
    assert q.commit(first).completed == (first,)
    assert q.commit(second).completed == (second,)
    sees(name, ["first", "second"])


@pytest.mark.parametrize("change", [{"producer_epoch": 7}, {"producer_id": 1}, {"batch": 0}])
def test_a_producer_that_differs_from_the_reusable_entry_is_discarded(query, topic, change):
    q = query(topic())
    first = q.prepare(["first"], batch=1)
    q.commit(first)
    second = q.prepare(["second"], batch=2, reusable=({**first, "batch": 1, **change},))
    assert second["name"] != first["name"]


def test_a_producer_of_this_very_batch_is_neither_used_nor_discarded(query, topic):
    q = query(topic())
    first = q.prepare(["first"], batch=1, slot=0)
    second = q.prepare(["second"], batch=1, slot=1)
    assert {p.name for p in live(q)} == {first["name"], second["name"]}


def test_a_fresh_producer_never_takes_an_id_that_is_reusable(query, topic):
    q = query(topic())
    entries = []
    for turn in range(3):
        committable = q.prepare([f"{turn}"], batch=1, slot=0, reusable=entries)
        q.commit(committable)
        for producer in live(q):
            producers.POOL.discard(producer)
        entries.append({**committable, "batch": 0})
    assert [c["name"].rsplit(":", 2)[1] for c in entries] == ["0.0.0", "0.0.1", "0.0.2"]


def test_a_doubtful_producer_says_so_and_is_not_used_again(query, topic):
    q = query(topic())
    transaction = q.sink.begin_transaction(q.attempt())
    transaction.producer.watch.on_log(6, "REQTMOUT", "Timed out EndTxnRequest in flight")
    transaction.records = 1
    committable = q.sink.pre_commit(transaction)
    assert committable["doubtful"] is True
    second = q.prepare(["second"], batch=2, slot=0, reusable=({**committable, "batch": 1},))
    assert second["name"] != committable["name"]


def test_a_committable_that_is_doubtful_is_reported_as_retired_and_can_be_fenced(query, topic):
    q = query(topic())
    committable = {**q.prepare(["a"]), "doubtful": True}
    assert q.commit(committable).retired == (committable,)
    q.sink.retire([committable])
    # Fenced: EndTxn is refused, and this committable has no proof that it was committed before.
    assert q.commit(committable).in_doubt


@pytest.mark.parametrize(
    ("line", "doubtful"),
    [
        (
            ("FAIL", "b:9092/1: Disconnected: connection closed by peer (after 70ms in state UP)"),
            True,
        ),
        (("FAIL", "b:9092/1: 1 request(s) timed out: disconnect (after 60ms in state UP)"), True),
        (("REQTMOUT", "Timed out 1 in-flight, 0 retry-queued"), True),
        (
            (
                "FAIL",
                (
                    "b:9092/bootstrap: Connect to b:9092 failed: Connection refused (after 0ms in "
                    "state CONNECT)"
                ),
            ),
            False,
        ),
        (
            (
                "GETPID",
                "Failed to acquire transactional PID: Coordinator load in progress: retrying",
            ),
            False,
        ),
    ],
)
def test_only_what_may_leave_a_request_unanswered_makes_a_producer_doubtful(line, doubtful):
    watch = live_module.Watch()
    watch.on_log(6, *line)
    assert (watch.doubt is not None) is doubtful


@pytest.mark.parametrize(
    ("counts", "doubtful"),
    [
        ({}, False),
        ({"disconnects": 0, "req_timeouts": 0}, False),
        ({"disconnects": 1, "req_timeouts": 0}, True),
        ({"disconnects": 0, "req_timeouts": 1}, True),
    ],
)
def test_what_only_the_statistics_tell_makes_a_producer_doubtful_too(counts, doubtful):
    """librdkafka logs no connection that it closed by itself."""
    watch = live_module.Watch()
    watch.on_statistics(
        json.dumps(
            {
                "brokers": {"b:1/1": {"name": "b:1/1"}, "b:2/2": {"name": "b:2/2", **counts}},
                "eos": {"producer_id": 7, "producer_epoch": 3},
            }
        )
    )
    assert watch.identity() == (7, 3)
    assert (watch.doubt is not None) is doubtful
    assert not doubtful or "b:2/2" in watch.doubt


def test_a_transaction_without_records_has_nothing_to_commit(query, topic):
    q = query(topic())
    transaction = q.sink.begin_transaction(q.attempt())
    assert q.sink.pre_commit(transaction) is None
    assert live(q) == []


def test_a_reused_producer_may_have_an_empty_transaction_and_goes_on_after_it(query, topic, sees):
    name = topic()
    q = query(name)
    (first,) = run_batches(q, 1)[0]
    empty = q.sink.begin_transaction(q.attempt(batch=2))
    assert q.sink.pre_commit(empty) is None
    third = q.prepare(["third"], batch=3)
    assert third["name"] == first["name"]
    q.commit(third)
    sees(name, ["1.0", "third"])


def test_a_discarded_transaction_is_aborted_by_itself(query, topic, batch_of, sees):
    name = topic()
    q = query(name)
    transaction = q.sink.begin_transaction(q.attempt())
    q.sink.invoke(transaction, batch_of(["never"]))
    transaction.flush()
    q.sink.discard(transaction)
    q.sink.discard(transaction)
    q.commit(q.prepare(["seen"], slot=1))
    sees(name, ["seen"])


def test_discarding_after_pre_commit_does_nothing(query, topic, sees, batch_of):
    name = topic()
    q = query(name)
    transaction = q.sink.begin_transaction(q.attempt())
    q.sink.invoke(transaction, batch_of(["a"]))
    committable = q.sink.pre_commit(transaction)
    q.sink.discard(transaction)
    assert [p.name for p in live(q)] == [committable["name"]]
    q.commit(committable)
    sees(name, ["a"])


def test_a_newer_generation_drops_the_producers_of_the_older_one_without_touching_their_transactions(
    query, topic, sees
):
    name = topic()
    q = query(name)
    old = q.prepare(["old"], generation=1)
    new = q.prepare(["new"], generation=2)
    assert [p.name for p in live(q)] == [new["name"]]
    assert q.commit(old, new).completed
    sees(name, ["old", "new"])


def test_at_least_once_waits_for_the_records_and_needs_no_commit(query, topic, sees):
    name = topic()
    q = query(name, delivery="at_least_once")
    assert not q.sink.capabilities.two_phase
    for batch in range(3):
        assert q.prepare([f"{batch}"], batch=batch) is None
    assert len(live(q)) == 1
    sees(name, ["0", "1", "2"])
    assert q.sink.recover(q.sweep()) == 0


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_record_that_the_broker_refuses_last_of_all_fails_the_attempt(
    query, topic, broker, batch_of, delivery
):
    """Its delivery report comes with the flush, behind everything else that could notice it."""
    name = topic(config={"max.message.bytes": "20000"})
    q = query(name, delivery=delivery)
    transaction = q.sink.begin_transaction(q.attempt())
    q.sink.invoke(transaction, batch_of(["x" * 50_000]))
    with pytest.raises(RefusedRecordError, match="too large"):
        q.sink.pre_commit(transaction)
    q.sink.discard(transaction)


def test_the_newest_burnt_ids_are_kept():
    """Their unanswered requests may still come."""
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1"}, topic="t")
    for start in range(0, 1500, 100):
        sink._burn([str(number) for number in range(start, start + 100)])
    assert set(sink._burnt) == {str(number) for number in range(500, 1500)}


def test_delivery_none_waits_for_nothing(query, topic, sees):
    name = topic()
    q = query(name, delivery="none", options={"acks": "0", "enable.idempotence": False})
    assert q.prepare(["a"]) is None
    sees(name, ["a"])


def test_commit_says_when_no_broker_can_be_reached(query):
    q = query("t", servers="127.0.0.1:1")
    q.sink._client = None
    client = q.sink._connected()
    client._deadline_s = 0.3
    with pytest.raises(SinkUnavailableError, match=r"127\.0\.0\.1:1"):
        q.commit({"name": "n", "producer_id": 1, "producer_epoch": 0})


def test_a_transaction_that_timed_out_at_the_broker_is_reported_as_lost(query, topic, until):
    q = query(topic(), options={"transaction.timeout.ms": 1000})
    committable = q.prepare(["a"])
    name, reader = committable["name"], q.sink._connected_reader()
    # Not sooner: while the abort is under way, the answer is "not ended yet".
    until(lambda: reader.states([committable])[name].state == "CompleteAbort", 30)
    assert q.commit(committable).lost


def test_two_writes_of_a_batch_in_one_process_have_transactions_of_their_own(
    query, topic, batch_of, sees
):
    name = topic()
    q = query(name)
    one, two = (
        q.sink.begin_transaction(q.attempt(slot=0)),
        q.sink.begin_transaction(q.attempt(slot=1)),
    )
    q.sink.invoke(one, batch_of(["one"]))
    q.sink.invoke(two, batch_of(["two"]))
    committables = [q.sink.pre_commit(one), q.sink.pre_commit(two)]
    assert len(q.commit(*committables).completed) == 2
    sees(name, ["one", "two"])


@pytest.mark.parametrize("change", [{"producer_id": 10**6}, {"epoch": 7}])
def test_a_transaction_whose_identity_changed_is_not_handed_over(query, topic, batch_of, change):
    q = query(topic())
    transaction = q.sink.begin_transaction(q.attempt())
    q.sink.invoke(transaction, batch_of(["a"]))
    transaction.producer.identify()
    for name, value in change.items():
        setattr(transaction.producer, name, value)
    with pytest.raises(AttemptFailedError, match="changed its id or epoch"):
        q.sink.pre_commit(transaction)
    q.sink.discard(transaction)


def test_a_transaction_that_librdkafka_has_aborted_is_not_handed_over(query, topic, batch_of, sees):
    name = topic()
    q = query(name)
    transaction = q.sink.begin_transaction(q.attempt())
    q.sink.invoke(transaction, batch_of(["a"]))
    transaction.flush()
    transaction.producer.client.abort_transaction(10)
    with pytest.raises(AttemptFailedError, match="not open"):
        q.sink.pre_commit(transaction)
    q.sink.discard(transaction)
    sees(name, [])


def test_the_pool_is_empty_after_close_and_usable_again(query, topic, sees):
    name = topic()
    q = query(name)
    first = q.prepare(["a"])
    producers.POOL.close()
    assert live(q) == []
    second = q.prepare(["b"], slot=1)
    assert q.commit(first, second).completed
    sees(name, ["a", "b"])


def test_a_late_attempt_of_an_earlier_batch_cannot_abort_what_a_later_batch_prepared(
    query, topic, sees
):
    """Task slots begin anew with each batch; the incarnation, raised after a lost attempt, keeps
    their ids apart."""
    name = topic()
    q = query(name)
    prepared = q.prepare(["decided"], batch=1, slot=1, incarnation=1)
    late = prepare_in_a_process_that_is_killed(q, 1, batch=0, slot=1, incarnation=0)
    assert late["name"] != prepared["name"]
    assert not q.commit(prepared).lost
    assert q.sink.recover(q.sweep(generation=1, own=True)) == 1
    sees(name, ["decided"])


def test_a_new_producer_looks_for_its_coordinator_when_a_broker_has_answered_it(
    query, topic, monkeypatch
):
    """Otherwise librdkafka looks again after 500 ms, within which a batch of few rows would have
    been over twice."""
    called = []
    for name in ("connect", "initialise"):
        real = getattr(live_module.LiveProducer, name)

        def recording(producer, deadline_s, name=name, real=real):
            answer = real(producer, deadline_s)
            # What librdkafka itself knows by then: without any connection it has no broker by its
            # number.
            called.append((name, answer))
            return answer

        monkeypatch.setattr(live_module.LiveProducer, name, recording)
    q = query(topic())
    for slot in range(10):
        assert q.prepare(["one"], slot=slot)["records"] == 1
    # A connection that was lost under load makes another producer, which begins with its
    # connection, too.
    kept = [call for call in called if call != ("connect", False)]
    assert kept == [("connect", True), ("initialise", None)] * 10


def test_a_partition_that_was_added_under_a_running_query_is_confirmed_like_the_others(
    query, topic, broker, batch_of, sees
):
    name = topic()
    q = query(name)
    (first,) = q.sink.confirm([q.prepare(["one"])])
    assert q.commit(first).completed
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(20)
    wait_until(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == 2)
    transaction = q.sink.begin_transaction(q.attempt(slot=1))
    q.sink.invoke(transaction, batch_of(["two", "three"], partition=pa.array([0, 1], pa.int32())))
    (second,) = q.sink.confirm([q.sink.pre_commit(transaction)])
    assert q.commit(second).completed
    sees(name, ["one", "three", "two"])


@pytest.mark.parametrize("under_way", [0, 1])
def test_a_producer_does_not_abort_while_a_request_is_under_way(under_way):
    """A broker before 3.6 takes it behind the abort, and no reader gets past it."""

    class Client:
        """As librdkafka: what is under way has no answer yet, and a purge may forget it."""

        queued, in_flight = 3, under_way

        def purge(self, in_queue=True, in_flight=True):
            self.queued = 0 if in_queue else self.queued
            self.in_flight = 0 if in_flight else self.in_flight

    client = Client()
    producer = SimpleNamespace(
        client=client,
        flush=lambda _: client.queued + client.in_flight,
        watch=SimpleNamespace(doubt=None),
    )
    assert producers._has_all_answers(producer) == (under_way == 0)


@pytest.mark.parametrize("doubt", [None, "EndTxn got no answer"])
def test_a_producer_whose_own_commit_is_in_doubt_begins_no_other_transaction(doubt):
    """That commit may come late, and would end the next transaction of the epoch."""
    watch = SimpleNamespace(doubt=None, failures=[], identity=lambda: (7, 1))
    begun = []
    producer = SimpleNamespace(
        client=SimpleNamespace(
            commit_transaction=lambda _: None, begin_transaction=lambda: begun.append(True)
        ),
        watch=watch,
        name="t",
        producer_id=7,
        epoch=1,
        is_begun=False,
    )
    producer._is_beyond_doubt = lambda: live_module.LiveProducer._is_beyond_doubt(producer)
    # What librdkafka has noted of the commit comes with the poll behind it.
    polls = iter((None, doubt))
    producer.poll = lambda _: setattr(watch, "doubt", next(polls, doubt))
    assert live_module.LiveProducer.advance(producer) == (doubt is None)
    assert bool(begun) == (doubt is None)


def test_what_the_statistics_tell_while_a_producer_is_identified_is_in_the_committable(monkeypatch):
    """That a coordinator has moved is told by them alone."""
    released = []
    watch = SimpleNamespace(doubt=None)

    def identify():
        watch.doubt = "the coordinator has moved"
        return 7, 1

    producer = SimpleNamespace(
        name="n", watch=watch, identify=identify, check_open=lambda: None, burnt=(), topics=set()
    )
    transaction = SimpleNamespace(producer=producer, records=3, batch=0, flush=lambda: None)
    monkeypatch.setattr(kafka_sink.POOL, "release", released.append)
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1"}, topic="t")
    assert sink.pre_commit(transaction)["doubtful"] is True
    assert released == [producer]
