from __future__ import annotations

import pickle

import pytest

from onceforall.errors import OptionError, SinkCheckError, SinkUnavailableError
from onceforall.sink import StartInfo
from onceforall.sinks.kafka import KafkaSink
from onceforall.sinks.kafka.options import (
    check_accepted,
    checked_options,
    parse_servers,
    producer_configuration,
)

SERVERS = {"bootstrap.servers": "127.0.0.1:9092"}


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("transactional.id", "x", "transactional_id_prefix="),
        ("enable.idempotence", False, "Leave it out"),
        ("enable.idempotence", "false", "Leave it out"),
        ("acks", "1", "'all'"),
        ("acks", 0, "'all'"),
        ("request.required.acks", 1, "'all'"),
        ("max.in.flight", 6, "at most 5"),
        ("max.in.flight.requests.per.connection", "6", "at most 5"),
        ("retries", 0, "Leave it out"),
        ("message.send.max.retries", "0", "Leave it out"),
        ("error_cb", print, "callback"),
        ("stats_cb", print, "callback"),
        ("on_delivery", print, "callback"),
        ("dr_cb", print, "callback"),
        ("throttle_cb", print, "callback"),
        ("logger", print, "callback"),
        ("statistics.interval.ms", 5, "Leave it out"),
        ("delivery.report.only.error", False, "Leave it out"),
        ("log.connection.close", False, "Leave it out"),
        ("socket.max.fails", 3, "Leave it out"),
        ("plugin.library.paths", "x", "in Spark instead"),
        ("test.mock.num.brokers", 3, "EmbeddedKafka"),
        ("allow.auto.create.topics", "true", "beforehand"),
        ("message.timeout.ms", 900_001, "transaction.timeout.ms"),
        ("delivery.timeout.ms", 900_001, "transaction.timeout.ms"),
        ("message.timeout.ms", 0, "transaction.timeout.ms"),
        ("group.id", "g", "for consumers"),
        ("auto.offset.reset", "earliest", "for consumers"),
        ("sasl.password", "hunter2", "no effect with security.protocol=plaintext"),
        ("ssl.ca.location", "x", "no effect with security.protocol=plaintext"),
        ("kafka.acks", "all", "use 'acks'"),
        ("metadata.broker.list", "x", "bootstrap.servers"),
        ("default.topic.config", {}, "directly"),
        ("linger.ms", None, "a string, a number or a boolean"),
        ("linger.ms", print, "a string, a number or a boolean"),
        ("transaction.timeout.ms", "soon", "whole number"),
    ],
)
def test_an_option_that_would_break_the_promise_is_refused_by_name_with_a_remedy(
    option, value, remedy
):
    with pytest.raises(OptionError, match=remedy) as caught:
        KafkaSink({**SERVERS, option: value}, topic="t")
    assert repr(option) in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_weak_acknowledgement_is_refused_for_each_promise(delivery):
    with pytest.raises(OptionError, match="acks"):
        KafkaSink({**SERVERS, "acks": "1"}, topic="t", delivery=delivery)


def test_delivery_none_may_choose_its_acknowledgement():
    KafkaSink({**SERVERS, "acks": "0", "enable.idempotence": False}, topic="t", delivery="none")


@pytest.mark.parametrize("servers", [{}, {"bootstrap.servers": ""}, {"bootstrap.servers": " "}])
def test_missing_servers_are_named(servers):
    with pytest.raises(OptionError, match=r"bootstrap\.servers"):
        KafkaSink(servers, topic="t")


@pytest.mark.parametrize("servers", ["host:port", "host:0", "host:65536", ":9092", ","])
def test_an_impossible_address_is_named(servers):
    with pytest.raises(OptionError, match=r"bootstrap\.servers"):
        KafkaSink({"bootstrap.servers": servers}, topic="t")


@pytest.mark.parametrize("servers", ["http://u:s3cret@host:1", "a:1,u:s3cret@b:1", "s3cret@"])
def test_a_user_in_an_address_is_refused_and_not_shown(servers):
    with pytest.raises(OptionError, match=r"sasl\.username") as raised:
        KafkaSink({"bootstrap.servers": servers}, topic="t")
    assert "s3cret" not in str(raised.value)


IMPOSSIBLE = ["broker..example:9092", ".a:9092", "a" * 64 + ".example:9092", "b:1,a..b", "a\0b:1"]


@pytest.mark.parametrize("servers", IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_an_address_that_no_host_can_have_is_named(servers):
    with pytest.raises(OptionError, match="'bootstrap.servers': .*is no address") as raised:
        KafkaSink({"bootstrap.servers": servers}, topic="t")
    assert repr(servers.rpartition(",")[2]) in str(raised.value)


def test_addresses_are_read_as_librdkafka_reads_them():
    assert parse_servers("a:1, PLAINTEXT://b:2,c,[::1]:3,[::1]") == [
        ("a", 1),
        ("b", 2),
        ("c", 9092),
        ("::1", 3),
        ("::1", 9092),
    ]


@pytest.mark.parametrize(
    "arguments",
    [{"topic": ""}, {"topic": 3}, {"delivery": "twice"}, {"transactional_id_prefix": "a:b"}],
)
def test_an_impossible_argument_is_named(arguments):
    with pytest.raises(OptionError, match=next(iter(arguments))):
        KafkaSink(SERVERS, **{"topic": "t", **arguments})


def test_the_defaults_are_those_that_the_promise_needs():
    configuration = producer_configuration(
        checked_options(SERVERS, "exactly_once"), "exactly_once", "id"
    )
    assert configuration["transaction.timeout.ms"] == 900_000
    assert configuration["acks"] == "all"
    assert configuration["enable.idempotence"] is True
    assert configuration["partitioner"] == "murmur2_random"
    assert configuration["transactional.id"] == "id"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 30_000),
        ({"transaction.timeout.ms": 20_000}, 20_000),
        ({"socket.timeout.ms": 5_000}, 5_000),
    ],
)
def test_a_broker_that_hangs_is_left_long_before_the_transaction_times_out(given, expected):
    """librdkafka's own default, with transactions, is the transaction's timeout: a record is
    given up before that."""
    configuration = producer_configuration(
        checked_options({**SERVERS, **given}, "exactly_once"), "exactly_once", "id"
    )
    assert configuration["socket.timeout.ms"] == expected
    check_accepted(configuration)


def test_a_user_option_wins_over_a_default():
    options = checked_options({**SERVERS, "partitioner": "random", "linger.ms": 50}, "exactly_once")
    configuration = producer_configuration(options, "exactly_once", "id")
    assert configuration["partitioner"] == "random"
    assert configuration["linger.ms"] == 50


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once", "none"])
def test_librdkafka_accepts_the_defaults(delivery):
    check_accepted(producer_configuration(checked_options(SERVERS, delivery), delivery))


@pytest.mark.parametrize(
    "option", [{"no.such.option": 1}, {"linger.ms": "often"}, {"compression.type": "zip"}]
)
def test_what_librdkafka_refuses_is_named_at_check(option):
    sink = KafkaSink({**SERVERS, **option}, topic="t")
    with pytest.raises(OptionError, match=next(iter(option))):
        sink.check(StartInfo("q", "s"))


def test_the_representation_shows_no_option_but_the_servers():
    sink = KafkaSink({**SERVERS, "client.id": "secret-name"}, topic="t")
    assert (
        repr(sink)
        == "KafkaSink(bootstrap.servers='127.0.0.1:9092', topic='t', delivery='exactly_once')"
    )


def test_the_default_name_is_made_of_the_topic():
    assert KafkaSink(SERVERS, topic="ads.v1").default_name == "kafka-ads.v1"
    assert KafkaSink(SERVERS).default_name == "kafka"


def test_capabilities_follow_delivery():
    sink = KafkaSink({**SERVERS, "transaction.timeout.ms": "60000"}, topic="t")
    assert (sink.capabilities.two_phase, sink.capabilities.transaction_timeout_ms) == (True, 60_000)
    other = KafkaSink(SERVERS, topic="t", delivery="at_least_once").capabilities
    assert (other.two_phase, other.transaction_timeout_ms, other.delivery) == (
        False,
        None,
        "at_least_once",
    )


def test_a_pickled_sink_is_the_same_sink():
    sink = KafkaSink({**SERVERS, "linger.ms": 7}, topic="t", timestamp_column="at")
    copy = pickle.loads(pickle.dumps(sink))
    assert repr(copy) == repr(sink)
    assert copy._configuration("x") == sink._configuration("x")


@pytest.mark.kafka
def test_a_sink_that_has_talked_to_the_brokers_can_be_pickled(query, topic):
    q = query(topic())
    q.check()
    assert pickle.loads(pickle.dumps(q.sink))._client is None


@pytest.mark.kafka
def test_check_is_content_with_a_good_sink(query, topic):
    query(topic()).check()
    query(None).check()
    query(topic(), delivery="at_least_once").check()


@pytest.mark.kafka
def test_check_names_a_topic_that_does_not_exist_and_does_not_create_it(query):
    for _ in range(2):
        with pytest.raises(SinkCheckError, match="'no-such-topic'"):
            query("no-such-topic").check()


@pytest.mark.kafka
def test_check_refuses_a_transaction_timeout_above_the_brokers_limit(query, topic):
    q = query(topic(), options={"transaction.timeout.ms": 900_001})
    with pytest.raises(SinkCheckError, match=r"transaction\.max\.timeout\.ms=900000"):
        q.check()


def test_check_names_servers_that_cannot_be_reached():
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1"}, topic="t")
    sink._connected()._deadline_s = 0.3
    with pytest.raises(SinkUnavailableError, match=r"bootstrap\.servers=127\.0\.0\.1:1"):
        sink.check(StartInfo("q", "s"))
