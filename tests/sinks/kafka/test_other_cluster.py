"""Another cluster, or another topic, where the decided one was: nothing that is found there
proves anything."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from onceforall.embedded import EmbeddedKafka
from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.sink import StartInfo
from onceforall.sinks.kafka.driver import retry, transaction_reader
from onceforall.sinks.kafka.driver.broker_client import ClusterIdentity, agreed
from onceforall.sinks.kafka.driver.transaction_reader import TransactionReader
from support.topics import delete_topic

pytestmark = pytest.mark.kafka

TOPIC = "events"
START = StartInfo("", "out")


class Replaced:
    """A cluster that another one follows under the same address, with a topic of the same name."""

    def __init__(self):
        self._first = self._start(0)
        self._port = self._first.port
        self.servers = self._first.bootstrap_servers
        self._second = None

    @staticmethod
    def _start(port):
        made = EmbeddedKafka(port=port)
        made.start()
        made.create_topic(TOPIC)
        return made

    def replace(self):
        self._first.stop()
        self._second = self._start(self._port)

    def stop(self):
        for each in (self._first, self._second):
            if each is not None:
                each.stop()


@pytest.fixture
def cluster():
    made = Replaced()
    yield made
    made.stop()


def written_by_a_stranger(stranger, committable):
    """Let somebody commit in the new cluster under the very producer id and epoch of a decided
    transaction of the old one."""
    for slot in range(50):
        (theirs,) = stranger.sink.confirm([stranger.prepare(["x", "y", "z"], slot=slot)])
        done = stranger.commit(theirs)
        # A new cluster may let a request be repeated.
        assert [*done.completed, *done.retired] == [theirs]
        if (theirs["producer_id"], theirs["producer_epoch"]) == (
            committable["producer_id"],
            committable["producer_epoch"],
        ):
            return
    raise AssertionError("no stranger got the producer id; the test proves nothing")


@pytest.mark.long
def test_a_strangers_marker_in_another_cluster_under_the_same_address_proves_nothing(
    query, cluster, monkeypatch
):
    q = query(TOPIC, cluster.servers)
    (committable,) = q.sink.confirm([q.prepare(["a"])])
    expected = q.sink.identity(START)["cluster"]
    assert committable["cluster"] == expected
    cluster.replace()
    found = q.sink.identity(START)["cluster"]
    assert found != expected
    written_by_a_stranger(query(TOPIC, cluster.servers), committable)
    # The first call comes from the process that has confirmed it; the second one could be any
    # other's.
    for again in (False, True):
        if again:
            monkeypatch.setattr(
                q.sink._connected(), "end_transactions", lambda _: pytest.fail("sent to a stranger")
            )
        report = q.commit(committable)
        assert not report.completed
        assert not report.retired
        assert not report.lost
        assert [each.committable for each in report.in_doubt] == [committable]
        assert expected in report.in_doubt[0].reason
        assert found in report.in_doubt[0].reason


def test_transactions_without_a_clusters_id_are_judged_as_before(query, topic):
    q = query(topic())
    (committable,) = q.sink.confirm([q.prepare(["a"])])
    old = {key: value for key, value in committable.items() if key not in {"cluster", "identity"}}
    q.sink._just_confirmed = frozenset()
    assert q.commit(old).completed == (old,)


def test_of_two_transactions_only_that_of_the_other_cluster_is_in_doubt(query, topic):
    q = query(topic())
    here, there = q.sink.confirm([q.prepare(["a"]), q.prepare(["b"], slot=1)])
    there = {**there, "cluster": "another"}
    q.sink._just_confirmed = frozenset()
    report = q.commit(here, there)
    assert report.completed == (here,)
    assert [each.committable for each in report.in_doubt] == [there]
    q.sink.abort([there])


@pytest.fixture
def make_again(broker):
    """Deletes a topic, and creates another one under its name."""

    def again(name):
        delete_topic(broker.bootstrap_servers, name)
        broker.create_topic(name)

    return again


def columns(batch_of, *topics):
    import pyarrow as pa

    return batch_of([f"v{i}" for i in range(len(topics))], topic=pa.array(topics))


def prepared_for(q, rows, **attempt):
    transaction = q.sink.begin_transaction(q.attempt(**attempt))
    q.sink.invoke(transaction, rows)
    return q.sink.pre_commit(transaction)


@pytest.mark.parametrize("with_the_proof", [True, False])
def test_a_decided_transaction_is_not_committed_in_a_topic_that_was_made_again(
    query, topic, batch_of, make_again, monkeypatch, with_the_proof
):
    first, second = sorted((topic(), topic()))
    q = query(None)
    (committable,) = q.sink.confirm([prepared_for(q, columns(batch_of, first, second))])
    make_again(first if with_the_proof else second)
    # As another process finds it, behind a kill.
    q.sink._just_confirmed = frozenset()
    with monkeypatch.context() as patch:
        patch.setattr(
            q.sink._connected(), "end_transactions", lambda _: pytest.fail("sent to a new topic")
        )
        report = q.commit(committable)
    assert [each.committable for each in report.in_doubt] == [committable]
    assert (report.completed, report.retired, report.lost) == ((), (), ())
    assert "deleted and made again" in report.in_doubt[0].reason
    q.sink.abort([committable])


def test_a_decided_transaction_is_not_committed_while_its_topic_is_deleted(
    query, topic, batch_of, broker, monkeypatch
):
    first, second = sorted((topic(), topic()))
    q = query(None)
    (committable,) = q.sink.confirm([prepared_for(q, columns(batch_of, first, second))])
    delete_topic(broker.bootstrap_servers, second)
    q.sink._just_confirmed = frozenset()
    monkeypatch.setattr(type(q.sink._connected()), "deadline_s", 1)
    report = q.commit(committable)
    assert [each.committable for each in report.in_doubt] == [committable]
    assert report.in_doubt[0].is_open
    assert f"topic {second} is not the one" in report.in_doubt[0].reason
    assert "it was deleted; make it again" in report.in_doubt[0].reason
    q.sink.abort([committable])


def test_a_topic_that_a_broker_does_not_know_yet_is_waited_for(query, topic, monkeypatch, sees):
    name = topic()
    q = query(name)
    (committable,) = q.sink.confirm([q.prepare(["a"])])
    q.sink._just_confirmed = frozenset()
    client, asked = q.sink._connected(), []
    identify = client.identify_everywhere

    def just_started(topics, answer_timeout_s):
        asked.append(topics)
        (found,) = identify(topics, answer_timeout_s)
        if len(asked) > 3:
            return [found]
        return [replace(found, topics={}, missing=frozenset(topics))]

    monkeypatch.setattr(client, "identify_everywhere", just_started)
    report = q.commit(committable)
    assert (*report.completed, *report.retired) == (committable,)
    assert len(asked) > 3
    sees(name, ["a"])


def test_a_topic_that_only_earlier_transactions_of_a_producer_wrote_to_may_be_made_again(
    query, topic, batch_of, make_again, sees
):
    first, second = topic(), topic()
    q = query(None)
    (before,) = q.sink.confirm([prepared_for(q, columns(batch_of, first))])
    assert q.commit(before).completed
    again = {"batch": 2, "reusable": [{**before, "batch": 1}]}
    written = prepared_for(q, columns(batch_of, second), **again)
    assert written["producer_epoch"] == before["producer_epoch"], "it is another producer"
    make_again(first)
    # The attempt is not aborted for it,
    (committable,) = q.sink.confirm([written])
    assert committable["proof"]["topic"] == second
    assert "topic_ids" not in committable
    make_again(first)
    # and another process is not in doubt.
    q.sink._just_confirmed = frozenset()
    report = q.commit(committable)
    assert (*report.completed, *report.retired) == (committable,)
    sees(second, ["v0"])


def test_what_was_committed_before_its_topic_was_made_again_is_complete(query, topic, make_again):
    name = topic()
    q = query(name)
    (committable,) = q.sink.confirm([q.prepare(["a"])])
    assert q.commit(committable).completed
    make_again(name)
    report = q.commit(committable)
    assert (*report.completed, *report.retired) == (committable,)


def test_an_attempt_whose_topic_is_made_again_while_it_writes_is_aborted(
    query, topic, batch_of, make_again, sees
):
    name = topic()
    q = query(None)
    (before,) = q.sink.confirm([prepared_for(q, columns(batch_of, name))])
    q.commit(before)
    written = prepared_for(q, columns(batch_of, name))
    make_again(name)
    with pytest.raises(AttemptFailedError, match=f"Topic {name} was deleted and made again"):
        q.sink.confirm([written])
    q.sink.abort([written])
    (again,) = q.sink.confirm([prepared_for(q, columns(batch_of, name))])
    assert q.commit(again).completed
    sees(name, ["v0"])


def test_an_attempt_whose_topic_is_deleted_while_it_is_confirmed_is_aborted(
    query, topic, broker, monkeypatch
):
    name = topic()
    q = query(name)
    written = q.prepare(["a"])
    reader = q.sink._connected_reader()
    states = reader.states_now

    def deleted_behind_it(*arguments, **more):
        found = states(*arguments, **more)
        delete_topic(broker.bootstrap_servers, name)
        return found

    monkeypatch.setattr(reader, "states_now", deleted_behind_it)
    monkeypatch.setattr(type(q.sink._connected()), "deadline_s", 1)
    with pytest.raises(AttemptFailedError, match=f"Topic {name} was deleted while"):
        q.sink.confirm([written])
    q.sink.abort([written])


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_topic_that_goes_before_its_attempt_is_confirmed_is_named(
    query, topic, broker, monkeypatch, is_made_again
):
    """And not the leaders, which such a topic doesn't have either."""
    name = topic(partitions=3)
    q = query(name)
    q.sink.check(START)
    written = q.prepare(["a", "b", "c", "d", "e", "f"])
    delete_topic(broker.bootstrap_servers, name)
    if is_made_again:
        broker.create_topic(name, partitions=1)
    monkeypatch.setattr(type(q.sink._connected()), "deadline_s", 1)
    with pytest.raises(AttemptFailedError, match=f"Topic {name} was deleted"):
        q.sink.confirm([written])
    q.sink.abort([written])


def identity(topic_id, brokers=3, **more):
    return ClusterIdentity("c", {"t": topic_id}, brokers=brokers, **more)


@pytest.mark.parametrize(
    ("told", "is_sure"),
    [
        ([identity("1", brokers=1)], True),
        ([identity("1"), identity("1", brokers=2)], True),
        ([identity("1")], False),
        ([identity("1"), identity("1"), identity("2")], False),
        ([identity("1"), ClusterIdentity("c", {}, frozenset({"t"}), brokers=3)], False),
        ([identity("1"), ClusterIdentity("c", {}, hidden={"t": 29}, brokers=3)], False),
    ],
)
def test_a_topics_id_is_what_all_brokers_tell(told, is_sure):
    assert isinstance(agreed(told), ClusterIdentity) == is_sure


SURE, OTHER = identity("1"), identity("2")


@pytest.mark.parametrize(
    ("rounds", "found"),
    [
        ([[], [SURE, SURE]], SURE),
        ([[SURE, OTHER], [OTHER, OTHER]], OTHER),
        ([[SURE], [SURE, SURE]], SURE),
        ([[SURE], [SURE]], SURE),
        ([[SURE, OTHER], [SURE, OTHER]], None),
        ([[SURE, OTHER], [SURE]], None),
        ([[], []], None),
    ],
)
def test_brokers_are_asked_until_they_agree_or_patience_is_over(rounds, found):
    """With three of them, of which the last answers are given again."""
    told = iter(rounds)
    client = SimpleNamespace(
        deadline_s=0.05,
        answer_timeout_s=5,
        identify_everywhere=lambda topics, timeout_s: next(told, rounds[-1]),
    )
    reader = TransactionReader(client, None)
    if found is None:
        with pytest.raises(SinkUnavailableError, match="ids of Kafka topics could not be read"):
            reader.identify_surely(["t"])
    else:
        assert reader.identify_surely(["t"]) == found


def test_the_only_broker_that_answers_is_believed_in_the_end_however_long_others_take(monkeypatch):
    """Each turn takes as long as one that hangs is waited for. Once the turn behind the deadline,
    in which the one is believed, never came where the turn before it had ended behind that."""
    monkeypatch.setattr(transaction_reader, "QUICK_ANSWER_S", 0.02)

    def everywhere(topics, timeout_s):
        time.sleep(timeout_s)
        return [SURE]

    client = SimpleNamespace(deadline_s=0.1, answer_timeout_s=0.05, identify_everywhere=everywhere)
    assert TransactionReader(client, None).identify_surely(["t"]) == SURE


def test_a_batch_waits_for_no_more_than_one_broker(query, topic, monkeypatch):
    """One that is down, or has just joined, must not hold up what has nothing to do with it."""
    q = query(topic())
    q.check()
    everywhere = lambda *_: pytest.fail("all brokers are asked")
    monkeypatch.setattr(q.sink._connected(), "identify_everywhere", everywhere)
    (committable,) = q.sink.confirm([q.prepare(["a"])])
    assert q.commit(committable).completed


def test_a_start_notes_the_topics_id(query, topic, make_again):
    name = topic()
    q = query(name)
    q.sink.check(START)
    written = q.prepare(["a"])
    make_again(name)
    with pytest.raises(AttemptFailedError, match="deleted and made again"):
        q.sink.confirm([written])
    q.sink.abort([written])


def test_a_topic_that_was_made_again_has_no_proof(query, topic, make_again, monkeypatch):
    """The last turn begins behind the deadline here, and what the leader says then counts, too."""
    monkeypatch.setattr(retry, "FIRST_BACKOFF_S", 1.0)
    name = topic()
    q = query(name)
    (committable,) = q.sink.confirm([q.prepare(["a"])])
    q.commit(committable)
    assert not q.sink._connected().fence([committable["name"]]).missing
    make_again(name)
    monkeypatch.setattr(type(q.sink._connected()), "deadline_s", 0.5)
    report = q.commit(committable)
    assert len(report.in_doubt) == 1
    assert committable["proof"]["topic_id"] in report.in_doubt[0].reason
