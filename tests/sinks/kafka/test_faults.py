from __future__ import annotations

import threading

import pytest

from onceforall.embedded import EmbeddedKafka
from onceforall.errors import AttemptFailedError, SinkUnavailableError

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def own_broker():
    with EmbeddedKafka() as running:
        yield running


@pytest.fixture
def own_query(own_broker, query):
    def make(name, **arguments):
        own_broker.create_topic(name)
        return query(name, servers=own_broker.bootstrap_servers, **arguments)

    return make


def hurry(q):
    client = q.sink._connected()
    client._deadline_s, client._answer_timeout_s = 1.0, 0.5
    return client


def test_a_prepared_transaction_survives_a_restart_of_the_broker(own_query, own_broker, sees):
    q = own_query("restarted")
    committable = q.prepare(["a", "b"])
    own_broker.kill()
    own_broker.restart()
    report = q.commit(committable)
    assert report.completed + report.retired == (committable,)
    sees("restarted", ["a", "b"], own_broker.bootstrap_servers)


@pytest.mark.long
def test_an_idle_connection_that_the_broker_ended_is_replaced_without_a_request_being_lost_on_it(
    own_query, own_broker
):
    q = own_query("idle")
    client = q.sink._connected()
    client.metadata()
    assert client._wire._idle
    own_broker.restart()
    addresses = [(host, port) for host, port in client._wire._idle]
    for address in addresses:
        assert client._wire._borrow(address) is None


def test_a_frozen_broker_makes_the_sink_unavailable_and_the_transaction_retired(
    own_query, own_broker, sees
):
    q = own_query("frozen")
    one, two = q.sink.confirm([q.prepare(["one"], slot=0), q.prepare(["two"], slot=1)])
    assert q.commit(two).completed == (two,)
    assert q.commit(one).completed == (one,)
    client = q.sink._connected()
    end = client.end_transactions

    def freeze_and_end(committables):
        # Not before: what is asked for first would be what isn't answered, on a slow machine also
        # in a hurry, and no EndTxn would go out.
        own_broker.freeze()
        hurry(q)
        return end(committables)

    client.end_transactions = freeze_and_end
    try:
        with pytest.raises(SinkUnavailableError, match=own_broker.bootstrap_servers):
            q.commit(one)
    finally:
        own_broker.thaw()
    client.end_transactions = end
    client._deadline_s, client._answer_timeout_s = 10, 5
    assert q.commit(one).retired == (one,)
    q.sink.retire([one])
    # Fenced, and committed before that, as the log proves.
    assert q.commit(one).retired == (one,)
    sees("frozen", ["one", "two"], own_broker.bootstrap_servers)


def test_an_id_whose_fence_was_not_answered_is_given_to_nobody_in_this_run(own_query, own_broker):
    q = own_query("burnt")
    committable = q.prepare(["one"])
    client = q.sink._connected()
    client._locate({committable["name"]: ""}, float("inf"), set())
    fence = client.fence

    def freeze_and_fence(names):
        # Not before: what is asked for first would be what isn't answered, on a slow machine also
        # in a hurry, and no InitProducerId would go out.
        own_broker.freeze()
        hurry(q)
        return fence(names)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "fence", freeze_and_fence)
            with pytest.raises(SinkUnavailableError):
                q.sink.abort([committable])
    finally:
        own_broker.thaw()
    client._deadline_s, client._answer_timeout_s = 10, 5
    q.sink.abort([committable])
    again = q.prepare(["two"], batch=2)
    assert again["name"] != committable["name"]


def test_a_recovery_and_a_commit_may_run_at_once(own_query, own_broker, sees):
    q = own_query("both")
    committables = [q.prepare([f"{slot}"], slot=slot, generation=2) for slot in range(4)]
    errors = []

    def sweep_again_and_again():
        try:
            for _ in range(20):
                q.sink.recover(q.sweep(2))
        except Exception as error:
            errors.append(error)

    sweeper = threading.Thread(target=sweep_again_and_again)
    sweeper.start()
    for _ in range(5):
        assert not q.commit(*committables).lost
    sweeper.join()
    assert errors == []
    sees("both", ["0", "1", "2", "3"], own_broker.bootstrap_servers)


@pytest.mark.long
def test_a_broker_that_is_restarted_during_a_transaction_makes_it_doubtful_but_loses_nothing(
    own_query, own_broker, batch_of, sees
):
    q = own_query("during")
    transaction = q.sink.begin_transaction(q.attempt())
    q.sink.invoke(transaction, batch_of(["before"]))
    transaction.flush()
    own_broker.kill()
    own_broker.restart()
    q.sink.invoke(transaction, batch_of(["after"]))
    committable = q.sink.pre_commit(transaction)
    assert committable["doubtful"] is True
    assert q.commit(committable).retired == (committable,)
    following = q.prepare(["next"], batch=2, reusable=({**committable, "batch": 1},))
    assert following["name"] != committable["name"]
    q.commit(following)
    sees("during", ["before", "after", "next"], own_broker.bootstrap_servers)


def test_a_frozen_broker_at_prepare_is_waited_for(own_query, own_broker, batch_of, sees):
    q = own_query("slow")
    transaction = q.sink.begin_transaction(q.attempt())
    q.sink.invoke(transaction, batch_of(["a"]))
    own_broker.freeze()
    thawed = threading.Event()

    def thaw():
        thawed.set()
        own_broker.thaw()

    timer = threading.Timer(1.5, thaw)
    timer.start()
    try:
        committable = q.sink.pre_commit(transaction)
        assert thawed.is_set(), "nobody can have acknowledged the record before"
    finally:
        timer.cancel()
        own_broker.thaw()
    q.commit(committable)
    sees("slow", ["a"], own_broker.bootstrap_servers)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_record_that_timed_out_in_the_client_fails_the_attempt(
    own_query, own_broker, batch_of, sees, delivery
):
    """The client tells it in a delivery report, and goes on as if nothing were missing."""
    name = f"timed-out-{delivery}"
    q = own_query(name, delivery=delivery, options={"message.timeout.ms": 1500})
    transaction = q.sink.begin_transaction(q.attempt())
    q.sink.invoke(transaction, batch_of(["acknowledged"]))
    transaction.flush()
    own_broker.freeze()
    try:
        q.sink.invoke(transaction, batch_of(["never"]))
        with pytest.raises(AttemptFailedError, match=f"topic '{name}'"):
            q.sink.pre_commit(transaction)
    finally:
        own_broker.thaw()
    q.sink.discard(transaction)
    if delivery == "exactly_once":
        q.sink.recover(q.sweep())
        sees(name, [], own_broker.bootstrap_servers)
