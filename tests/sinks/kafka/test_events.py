"""What a producer hears while its task is not listening: a task waits for rows, for a broker, or for
what only an event can bring."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import confluent_kafka as ck
import pytest

from onceforall.errors import AttemptFailedError
from onceforall.sink import TaskAttempt
from onceforall.sinks.kafka.access.security import TokenSource
from onceforall.sinks.kafka.options import producer_configuration
from onceforall.sinks.kafka.task.client import Client
from onceforall.sinks.kafka.task.live import LiveProducer
from onceforall.sinks.kafka.task.producers import ProducerPool
from support.waiting import until


@contextmanager
def listener():
    """A port where connections are taken, and nothing is ever answered."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one


def options_of(listening, token):
    return {
        "bootstrap.servers": f"127.0.0.1:{listening.getsockname()[1]}",
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": TokenSource(token),
    }


@pytest.fixture
def pool():
    made = ProducerPool()
    yield made
    made.close()


def plain(pool, configuration):
    attempt = TaskAttempt(str(uuid.uuid4()), "out", 1, 1, 0, 0, 0)
    return pool.plain(attempt, lambda: configuration, None, check_delivery=True)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once", "none"])
@pytest.mark.parametrize("asks", ["for partitions", "for any broker"])
def test_a_broker_is_reached_with_a_token_while_the_task_waits_for_its_first_answer(delivery, asks):
    with listener() as listening:
        options = options_of(listening, lambda _: ("token", time.time() + 3600))
        name = "x" if delivery == "exactly_once" else None
        producer = LiveProducer(producer_configuration(options, delivery, name), name)
        client = producer.client
        ask = partial(client.partitions, "t") if asks == "for partitions" else client.connect
        with pytest.raises(ck.KafkaException):
            ask(1.0)
        listening.settimeout(20)
        listening.accept()[0].close()


def test_a_new_token_is_handed_over_while_the_task_waits_for_an_answer(pool):
    """librdkafka asks for one at four fifths of the last one's time."""
    fetched = []

    def token(_):
        fetched.append(time.time())
        return "token", time.time() + 1

    with listener() as listening:
        producer = plain(pool, producer_configuration(options_of(listening, token), "none"))

        def fetched_while_it_waited():
            asked = time.time()
            with pytest.raises(ck.KafkaException):
                producer.client.partitions("t", 2.0)
            return any(at > asked + 0.2 for at in fetched)

        until(fetched_while_it_waited, 60, "a second token")


def test_a_token_that_is_not_to_be_had_for_a_moment_fails_no_task_while_the_one_of_before_is_good(
    caplog,
):
    """Once a server of tokens that was restarted failed every task that was writing, and the
    producer for good."""
    caplog.set_level("WARNING", "onceforall.sinks.kafka")
    fetched = []

    def token(_):
        fetched.append(time.time())
        if len(fetched) > 1:
            raise OSError
        return "token", time.time() + 60

    def hear_of_failures(producer, count):
        """As librdkafka asks for a token."""
        for _ in range(count):
            producer.client._refresh_token(None)
            producer.poll(0)

    with listener() as listening:
        options = options_of(listening, token)
        producer = LiveProducer(producer_configuration(options, "at_least_once"), None)
        hear_of_failures(producer, 2)
        assert len(fetched) == 3
        assert "raised OSError" in caplog.text
        assert "the token of before is used until it expires" in caplog.text
        producer.client._token_until_s = time.time()
        with pytest.raises(AttemptFailedError, match=r"raised OSError.*oauth_cb"):
            hear_of_failures(producer, 1)


@pytest.mark.parametrize("fatal", [False, True])
def test_a_producer_without_transactions_that_failed_while_nobody_used_it_is_replaced(pool, fatal):
    """Once the next attempt got it, and failed."""
    configuration = producer_configuration({"bootstrap.servers": "127.0.0.1:9"}, "at_least_once")
    key = str(uuid.uuid4()), "out"

    def take():
        attempt = TaskAttempt(*key, 1, 1, 0, 0, 0)
        return pool.plain(attempt, lambda: configuration, None, check_delivery=True)

    first = take()
    pool.release(first)
    assert take() is first
    pool.release(first)
    code = ck.KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER if fatal else ck.KafkaError._AUTHENTICATION
    first.watch.on_error(ck.KafkaError(code, "said while nobody listened", fatal=fatal))
    second = take()
    assert second is not first
    pool.release(second)
    assert take() is second


def test_a_producer_that_is_dropped_for_its_age_is_given_to_nobody_meanwhile(pool, monkeypatch):
    """Once a task could get it just before it was dropped, with the task's records."""
    configuration = producer_configuration({"bootstrap.servers": "127.0.0.1:9"}, "at_least_once")
    attempt = TaskAttempt(str(uuid.uuid4()), "out", 1, 1, 0, 0, 0)
    take = partial(pool.plain, attempt, lambda: configuration, None, check_delivery=True)
    old = take()
    pool.release(old)
    old.idle_since_s = -1e9
    taken = []
    discard = pool.discard

    def take_and_discard(producer, **more):
        taken.append((producer, take()))
        discard(producer, **more)

    monkeypatch.setattr(pool, "discard", take_and_discard)
    until(lambda: taken)
    dropped, got = taken[0]
    assert dropped is old
    assert got is not old


def test_the_statistics_of_a_producer_whose_task_waits_for_rows_do_not_pile_up(pool):
    """librdkafka makes them ten times a second, each of kilobytes for every partition."""
    configuration = producer_configuration({"bootstrap.servers": "127.0.0.1:9"}, "exactly_once")
    producer = plain(pool, configuration)
    heard = []
    take = producer.watch.on_statistics
    producer.watch.on_statistics = lambda text: (heard.append(len(text)), take(text))
    until(lambda: len(heard) >= 30)
    before = len(heard)
    producer.poll(0)
    assert len(heard) - before <= 20, "those of the last moment"


@pytest.mark.parametrize("who", ["takes the idle one", "takes another sink's", "has it"])
def test_a_token_that_is_slow_to_come_holds_up_no_task(pool, who):
    """Once a task waited for a token of whatever producer lay idle in its process, for up to a
    minute."""
    fetched, given = [], threading.Event()

    def token(_):
        fetched.append(time.time())
        if len(fetched) > 1:
            given.wait(30)
        return "token", time.time() + 1

    with listener() as listening:
        configuration = producer_configuration(options_of(listening, token), "at_least_once")
        other = producer_configuration({"bootstrap.servers": "127.0.0.1:9"}, "at_least_once")
        attempt = TaskAttempt(str(uuid.uuid4()), "out", 1, 1, 0, 0, 0)
        first = pool.plain(attempt, lambda: configuration, None, check_delivery=True)
        if who != "has it":
            pool.release(first)
        until(lambda: len(fetched) > 1, what="the second token is fetched")
        try:
            asked = time.monotonic()
            if who == "has it":
                first.poll(0)
            elif who == "takes the idle one":
                assert pool.plain(attempt, dict, None, check_delivery=True) is first
            else:
                another = replace(attempt, sink="another")
                pool.plain(another, lambda: other, None, check_delivery=True)
            assert time.monotonic() - asked < 10
        finally:
            given.set()


def test_a_task_that_writes_fetches_no_token_while_its_own_is_good_for_long():
    """It polls all the time, so that mostly it was the one who heard librdkafka's wish, and waited
    for the slow function."""
    fetched = []

    def token(_):
        fetched.append(time.time())
        return "token", time.time() + 2

    with listener() as listening:
        configuration = producer_configuration(options_of(listening, token), "at_least_once")
        client = LiveProducer(configuration, None).client
        client._token_until_s = time.time() + 600
        until(lambda: client.poll(0) or client._wishes, 60, "librdkafka wishes for a token")
        assert len(fetched) == 1
        client.serve()
        assert len(fetched) == 2
        client._token_until_s = time.time() + 30
        until(lambda: client.poll(0) or len(fetched) == 3, 60, "there is little time left")
        client.close()


class Heard:
    """A listener that notes what it hears, in order."""

    def __init__(self):
        self.all = []

    def on_log(self, level, facility, text):
        self.all.append(facility)

    def on_statistics(self, text):
        self.all.append("statistics")

    def on_error(self, error):
        self.all.append(error.name())

    def on_failure(self, error, topic, partition, size_bytes):
        return True


def test_what_is_no_token_waits_for_the_thread_that_polls_and_keeps_its_order():
    """Whether a request went unanswered must be known when ``poll`` returns, not a moment later."""
    heard = Heard()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{unused.getsockname()[1]}"
        client = Client({"bootstrap.servers": servers, "log.connection.close": True}, heard)
        with suppress(ck.KafkaException):
            client.connect(1.0)
        client.serve()
        assert heard.all == []
        client.poll(0)
    assert heard.all[0] == "FAIL", "the log's line comes first"
    assert "_ALL_BROKERS_DOWN" in heard.all
    client.close()


def test_a_client_is_dropped_with_events_that_nobody_has_heard():
    client = Client({"bootstrap.servers": "127.0.0.1:9", "message.timeout.ms": 100}, Heard())
    with suppress(ck.KafkaException):
        client.connect(0.5)
    client.serve()
    assert client._kept
    client.close()
