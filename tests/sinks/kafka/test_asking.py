"""Whom the driver asks, and how often, where some brokers don't answer or say no; and what it looks
at again before it sends a commit again."""

from __future__ import annotations

import pytest

from onceforall.errors import SinkUnavailableError
from onceforall.sink import CommitPermit, CommitReport
from onceforall.sinks.kafka import KafkaSink
from onceforall.sinks.kafka.driver import broker_client
from onceforall.sinks.kafka.driver.broker_client import AccessRefusedError, BrokerClient
from onceforall.sinks.kafka.driver.wire import NoAnswer

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
