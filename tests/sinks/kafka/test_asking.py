"""Whom the driver asks, and how often, where some brokers don't answer or say no; and what it looks
at again before it sends a commit again."""

from __future__ import annotations

import pytest

from onceforall.errors import SinkUnavailableError
from onceforall.sink import CommitPermit, CommitReport
from onceforall.sinks.kafka import KafkaSink
from onceforall.sinks.kafka.driver import broker_client, wire
from onceforall.sinks.kafka.driver.broker_client import AccessRefusedError, BrokerClient
from onceforall.sinks.kafka.driver.coordinator_client import Answers
from onceforall.sinks.kafka.driver.outcomes import unavailable
from onceforall.sinks.kafka.driver.wire import NoAnswer
from onceforall.sinks.kafka.task import librdkafka as lib
from onceforall.sinks.kafka.task.client import Client

A, B = ("a", 1), ("b", 2)


def client_of(answers, deadline_s, monkeypatch):
    """One whose brokers give these answers, one after the other; the last one again and again."""
    monkeypatch.setattr(broker_client, "FIRST_BACKOFF_S", 0.001)
    client = BrokerClient("a:1,b:2", deadline_s=deadline_s)
    left = {address: list(each) for address, each in answers.items()}

    def exchange(calls, deadline_s):
        ((address, _),) = calls
        each = left[address]
        answer = each.pop(0) if len(each) > 1 else each[0]
        if isinstance(answer, str):
            return [NoAnswer(address, answer, sent=False, refused=answer == "untrusted")]
        return [answer]

    monkeypatch.setattr(client, "exchange", exchange)
    return client


def test_one_broker_that_says_no_does_not_end_the_question_while_others_may_answer(monkeypatch):
    """As during a rolling restart with new certificates."""
    answers = {A: ["untrusted"], B: ["reset", "reset", 7]}
    assert client_of(answers, 30, monkeypatch).ask_any(object, [A, B]) == 7


def test_where_every_broker_says_no_that_is_the_answer_at_once(monkeypatch):
    client = client_of({A: ["untrusted"], B: ["untrusted"]}, 600, monkeypatch)
    with pytest.raises(AccessRefusedError, match="untrusted"):
        client.ask_any(object, [A, B])


@pytest.mark.parametrize(
    ("answer", "error"), [("untrusted", AccessRefusedError), ("reset", SinkUnavailableError)]
)
def test_when_the_time_is_over_a_refusal_says_most(monkeypatch, answer, error):
    client = client_of({A: [answer], B: ["reset"]}, 0.05, monkeypatch)
    with pytest.raises(error, match=answer):
        client.ask_any(object, [A, B])


def test_a_commit_that_is_asked_for_again_looks_at_the_cluster_again(monkeypatch):
    """What was confirmed a moment ago needs no look; a while later it does."""
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:9"}, topic="t")
    told = [{"name": name, "burnt": []} for name in ("x", "y")]
    looked = []

    def none_strange(committables):
        looked.append([each["name"] for each in committables])
        return []

    monkeypatch.setattr("onceforall.sinks.kafka.driver.committable.read", lambda given: given)
    monkeypatch.setattr(sink, "_in_other_clusters", none_strange)
    unsure = []

    def unanswered(committables, names):
        unsure.append(set(names))
        if len(unsure) == 1:
            raise SinkUnavailableError("no answer")
        return CommitReport(completed=tuple(committables))

    monkeypatch.setattr(sink, "_commit", unanswered)
    sink._just_confirmed = frozenset({"x", "y"})
    permit = object.__new__(CommitPermit)
    object.__setattr__(permit, "batch", 3)
    with pytest.raises(SinkUnavailableError):
        sink.commit(permit, told)
    sink.commit(permit, told)
    assert looked == [[], ["x", "y"]]
    assert unsure == [set(), {"x", "y"}]


def test_a_fence_that_the_brokers_limit_refuses_names_the_limit():
    options = {"bootstrap.servers": "a:1"}
    error = unavailable("fence", Answers(codes={"x": 50}), {"x": 50}, options)
    assert "INVALID_TRANSACTION_TIMEOUT (50)" in str(error)
    assert "Raise the brokers' transaction.max.timeout.ms" in str(error)
    error = unavailable("commit", Answers(codes={"x": 53}), {"x": 53}, options)
    assert "transaction.max.timeout.ms" not in str(error)


def test_a_request_whose_connection_broke_while_it_was_sent_may_have_arrived(monkeypatch):
    """Its id isn't used again, for it may take effect late."""

    class Breaking:
        closed = 0

        def send(self, requests):
            raise wire._ConnectionLostError("reset")

        def close(self):
            self.closed += 1

    connection, exchange = Breaking(), wire.Wire()
    monkeypatch.setattr(exchange, "_borrow", lambda address: connection)
    answers = exchange.exchange([(A, object()), (A, object())], 0.0)
    assert [(each.sent, each.refused) for each in answers] == [(True, False), (True, False)]
    assert connection.closed


def test_a_request_that_found_no_connection_was_not_sent(monkeypatch):
    exchange = wire.Wire()

    def refused(*_):
        raise wire._ConnectionLostError("refused")

    monkeypatch.setattr(wire, "_Connection", refused)
    (answer,) = exchange.exchange([(A, object())], 0.0)
    assert not answer.sent


def test_a_partition_without_a_leader_gets_no_records_without_a_key():
    led = (lib.MetadataPartition * 3)(
        lib.MetadataPartition(id=0, leader=4),
        lib.MetadataPartition(id=1, leader=-1),
        lib.MetadataPartition(id=2, leader=0),
    )
    topics = (lib.MetadataTopic * 1)(
        lib.MetadataTopic(topic=b"t", partition_cnt=3, partitions=led, err=0)
    )

    class Library:
        def metadata(self, handle, of_all, topic, found, timeout_ms):
            found._obj.contents = lib.Metadata(topic_cnt=1, topics=topics)
            return 0

        def metadata_destroy(self, found):
            pass

    asking = object.__new__(Client)
    asking._lib, asking._handle, asking._topics = Library(), None, {"t": None}
    asking.topic = lambda name: None
    found, error = asking.partitions("t", 1.0)
    assert error is None
    assert (found.count, found.led) == (3, (0, 2))
