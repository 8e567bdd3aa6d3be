from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import uuid

import confluent_kafka as ck
import pytest

from support.network_proxy import Api, KafkaProxy, Request
from support.waiting import until

pytestmark = pytest.mark.kafka


@pytest.fixture
def proxy(broker):
    with KafkaProxy(broker.port) as running:
        yield running


def producer(address, **options):
    return ck.Producer({"bootstrap.servers": address, "acks": "all", "log_level": 0, **options})


def read(address, topic, client_id="rdkafka"):
    consumer = ck.Consumer(
        {
            "bootstrap.servers": address,
            "client.id": client_id,
            "group.id": uuid.uuid4().hex,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
        values = []
        while (message := until(lambda: consumer.poll(0.1), 20, "a message")).error() is None:
            values.append(message.value())
        return values
    finally:
        consumer.close()


def write(address, topic, *values, **options):
    client = producer(address, **options)
    for value in values:
        client.produce(topic, value)
    assert client.flush(20) == 0


class Writing:
    """One record written in a thread, for faults that make that wait."""

    def __init__(self, address, topic, value, **options):
        self.client = producer(address, **options)
        self.client.produce(topic, value)
        self.thread = threading.Thread(target=lambda: self.client.flush(20))
        self.thread.start()

    def end(self):
        self.thread.join(20)
        assert not self.thread.is_alive()
        return len(self.client)


def test_clients_stay_with_the_proxy_and_others_with_the_broker(proxy, broker, topic):
    name = topic()
    write(proxy.address, name, b"a", b"b")
    assert read(proxy.address, name) == [b"a", b"b"]
    seen = {request.api_key for request in proxy.requests()}
    assert {Api.API_VERSIONS, Api.METADATA, Api.PRODUCE} <= seen
    assert {request.client_id for request in proxy.requests(Api.PRODUCE)} == {"rdkafka"}
    assert all(request.frame == b"" for request in proxy.requests())
    # By its name: the last requests of a client that was closed above may still be on their way.
    assert (
        read(proxy.address, name, "through")
        == read(broker.bootstrap_servers, name, "beside")
        == [b"a", b"b"]
    )
    clients = {request.client_id for request in proxy.requests()}
    assert "through" in clients
    assert "beside" not in clients


def test_a_request_without_an_answer_disturbs_nothing(proxy, topic):
    name = topic()
    write(proxy.address, name, b"a", b"b", **{"acks": "0", "batch.num.messages": 1})
    until(lambda: read(proxy.address, name) == [b"a", b"b"], 20, "both records")


def test_a_held_request_waits_and_gets_its_answer(proxy, topic):
    name = topic()
    held = proxy.hold(Api.PRODUCE, lambda request: b"slow" in request.frame)
    writing = Writing(proxy.address, name, b"slow")
    request = held.wait()
    assert isinstance(request, Request)
    assert (request.api_key, request.client_id) == (Api.PRODUCE, "rdkafka")
    assert read(proxy.address, name) == []
    assert len(writing.client) == 1
    (answer,) = held.release()
    assert int.from_bytes(answer[:4], "big") == request.correlation_id
    assert writing.end() == 0
    assert read(proxy.address, name) == [b"slow"]


def test_a_request_that_is_held_over_a_reconnect_reaches_the_broker_late(proxy, topic):
    name = topic()
    held = proxy.hold(Api.PRODUCE)
    writing = Writing(proxy.address, name, b"twice")
    first = held.wait()
    held.cut()
    assert writing.end() == 0
    assert read(proxy.address, name) == [b"twice"]
    assert len({request.connection for request in proxy.requests(Api.PRODUCE)}) == 2
    assert held.requests == (first,)
    (answer,) = held.release()
    assert answer is not None
    assert read(proxy.address, name) == [b"twice", b"twice"]


@pytest.mark.parametrize("alone", [False, True])
def test_later_requests_of_a_connection_wait_behind_a_held_one_unless_it_is_held_alone(
    proxy, topic, alone
):
    name = topic()
    held = proxy.hold(Api.PRODUCE, alone=alone)
    one_by_one = {"batch.num.messages": 1, "linger.ms": 0}
    client = producer(proxy.address, **one_by_one)
    client.produce(name, b"first")
    held.wait()
    client.produce(name, b"second")
    client.poll(0)
    if alone:
        until(lambda: read(proxy.address, name) == [b"second"], 20, "the second record")
    else:
        assert read(proxy.address, name) == []
    held.release()
    assert client.flush(20) == 0
    assert read(proxy.address, name) == ([b"second", b"first"] if alone else [b"first", b"second"])


def test_a_swallowed_answer_is_missed_by_the_client_alone(proxy, topic):
    name = topic()
    swallowed = proxy.swallow(Api.PRODUCE)
    writing = Writing(
        proxy.address, name, b"twice", **{"socket.timeout.ms": 500, "request.timeout.ms": 500}
    )
    swallowed.wait()
    assert writing.end() == 0
    assert read(proxy.address, name) == [b"twice", b"twice"]


def test_a_request_at_which_the_connection_is_reset_does_not_reach_the_broker(proxy, topic):
    name = topic()
    reset = proxy.reset(Api.PRODUCE, count=2)
    write(proxy.address, name, b"once")
    assert len(reset.requests) == 2
    assert len(proxy.requests(Api.PRODUCE)) == 3
    assert read(proxy.address, name) == [b"once"]


def test_a_delayed_request_arrives_later(proxy, topic):
    name = topic()
    delayed = proxy.delay(Api.PRODUCE, 0.4)
    writing = Writing(proxy.address, name, b"slow")
    delayed.wait()
    begun_s = time.monotonic()
    assert writing.end() == 0
    assert time.monotonic() - begun_s > 0.3
    assert read(proxy.address, name) == [b"slow"]


def test_all_connections_can_be_cut_at_once(proxy, topic):
    name = topic()
    client = producer(proxy.address)
    client.produce(name, b"a")
    assert client.flush(20) == 0
    proxy.cut()
    client.produce(name, b"b")
    assert client.flush(20) == 0
    assert read(proxy.address, name) == [b"a", b"b"]


def test_waiting_for_a_fault_that_does_not_happen_says_what_came(proxy, topic):
    held = proxy.hold(Api.END_TXN)
    write(proxy.address, topic(), b"a")
    with pytest.raises(TimeoutError, match=r"'hold'.*api key 26 .*api keys seen: \[0, 3, 18"):
        held.wait(timeout_s=0.1)
    assert held.release() == []


def test_a_predicate_that_fails_is_told_at_the_end(broker, topic):
    proxy = KafkaProxy(broker.port)
    proxy.start()
    proxy.hold(Api.METADATA, lambda request: 1 / 0)
    with pytest.raises(ck.KafkaException):
        ck.Consumer(
            {"bootstrap.servers": proxy.address, "group.id": "g", "log_level": 0}
        ).list_topics(timeout=1)
    with pytest.raises(ZeroDivisionError):
        proxy.stop()
    proxy.stop()


def test_a_proxy_with_held_requests_stops_and_leaves_no_thread(broker, topic):
    before = threading.active_count()
    name = topic()
    with KafkaProxy(broker.port) as proxy:
        held = proxy.hold(Api.PRODUCE)
        client = producer(proxy.address)
        client.produce(name, b"lost")
        held.wait()
        held.cut()
    assert threading.active_count() == before
    client.purge()
    assert read(broker.bootstrap_servers, name) == []


def test_a_held_request_whose_broker_connection_has_ended_has_no_answer(topic, broker):
    with KafkaProxy(1) as proxy:
        client = producer(proxy.address)
        client.produce(topic(), b"nobody")
        assert client.flush(0.3) == 1
        assert proxy.requests() == []
        client.purge()


def test_a_client_that_speaks_tls_is_told_at_the_end(broker):
    proxy = KafkaProxy(broker.port)
    proxy.start()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as client:
        client.sendall(bytes.fromhex("1603010200"))
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    with pytest.raises(ValueError, match="without TLS"):
        proxy.stop()


def test_other_brokers_of_a_cluster_are_replaced_by_their_proxies():
    aliases = {}
    proxy = KafkaProxy(10_001, aliases=aliases)
    proxy.port = 20_001
    aliases |= {10_002: 20_002}

    def answer(*ports):
        return b"".join(b"\x00\x09127.0.0.1" + struct.pack(">i", port) + b"\x00" for port in ports)

    assert proxy._with_own_addresses(answer(10_001, 10_002, 10_003)) == answer(
        20_001, 20_002, 10_003
    )
    proxy._loop.close()
