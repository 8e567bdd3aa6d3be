"""Whom the driver asks, and how often, where some brokers don't answer or say no; and what it looks
at again before it sends a commit again."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from onceforall.errors import (
    AttemptFailedError,
    RefusedRecordError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.sink import CommitPermit, CommitReport
from onceforall.sinks.kafka import KafkaSink
from onceforall.sinks.kafka.access.secure_connections import Access
from onceforall.sinks.kafka.driver import broker_client, coordinator_client, wire
from onceforall.sinks.kafka.driver.broker_client import AccessRefusedError, BrokerClient
from onceforall.sinks.kafka.driver.coordinator_client import Answers, CoordinatorClient
from onceforall.sinks.kafka.driver.outcomes import unavailable
from onceforall.sinks.kafka.driver.start_checks import check_topic
from onceforall.sinks.kafka.driver.wire import NoAnswer
from onceforall.sinks.kafka.task import librdkafka as lib
from onceforall.sinks.kafka.task import writer
from onceforall.sinks.kafka.task.client import Client
from onceforall.sinks.kafka.task.live import DeliveryFailure, Watch
from onceforall.sinks.kafka.task.partitioning import Partitions
from onceforall.sinks.kafka.task.writer import KafkaTransaction
from support.kafka_frames import Api
from support.network_proxy import KafkaProxy
from support.silent_address import silent_address

A, B, C = ("a", 1), ("b", 2), ("c", 3)


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


def test_every_broker_is_asked_once_also_where_others_take_all_the_time(monkeypatch):
    """Two hosts that are down, of five: once a start failed each time, for the first two that
    bootstrap.servers names were waited for until the deadline, and nobody else was asked."""
    client = client_of({A: ["no answer in time"], B: [7]}, 0.0, monkeypatch)
    assert client.ask_any(object, [A, B]) == 7


def test_an_address_whose_host_is_down_leaves_time_for_another_one_of_the_name(broker, monkeypatch):
    """As the name of a whole cluster has one for each broker. Once the first took all the time, and
    the healthy one was connected to, and called silent."""
    look_up = socket.getaddrinfo
    with silent_address() as silent, KafkaProxy(broker.port) as proxy:
        # As a healthy one that is not on the same machine: it takes a moment.
        proxy.delay(Api.API_VERSIONS, 0.1, count=99)
        host, _, port = proxy.address.rpartition(":")
        addresses = [silent, (host, int(port))]

        def looked_up(host, *more, **named):
            if host != "cluster.example":
                return look_up(host, *more, **named)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", looked_up)
        client = BrokerClient(f"cluster.example:{port}", deadline_s=3.0)
        assert client.metadata().brokers
        client.close()


def test_an_address_of_a_kind_that_the_machine_lacks_leaves_the_others_of_its_name(
    broker, monkeypatch
):
    """As where IPv6 is off in the kernel, and a name has such an address first."""
    where = ("127.0.0.1", broker.port)
    make, look_up = socket.socket, socket.getaddrinfo
    lacking = []

    class Lacking(make):
        def __init__(self, family=-1, *more, **named):
            if family == socket.AF_INET6:
                lacking.append(family)
                raise OSError(97, "Address family not supported by protocol")
            super().__init__(family, *more, **named)

    def looked_up(host, *more, **named):
        if host != "cluster.example":
            return look_up(host, *more, **named)
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", broker.port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", where),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    monkeypatch.setattr(socket, "socket", Lacking)
    client = BrokerClient(f"cluster.example:{broker.port}", deadline_s=3.0)
    assert client.metadata().brokers
    client.close()
    assert lacking


class Fenced:
    """A cluster whose only broker the controller has fenced: it tells of no broker, and of
    transactions' partitions without leaders, until ``turns`` such answers were given."""

    def __init__(self, monkeypatch, turns, deadline_s=30.0):
        monkeypatch.setattr(broker_client, "FIRST_BACKOFF_S", 0.001)
        self.turns, self.asked = turns, []
        self.client = CoordinatorClient("a:1", deadline_s=deadline_s)
        monkeypatch.setattr(self.client, "exchange", self.exchange)

    def exchange(self, calls, deadline_s, steps=None):
        return [self.answer(request) for _, request in calls]

    def answer(self, request):
        kind = type(request).__name__
        self.asked.append(kind)
        if kind == "MetadataRequest":
            self.turns -= 1
            brokers = [] if self.turns >= 0 else [SimpleNamespace(node_id=1, host="a", port=1)]
            topic = SimpleNamespace(name="t", topic_id="1", error_code=0, partitions=[])
            return SimpleNamespace(brokers=brokers, topics=[topic], cluster_id="x")
        if kind == "ListTransactionsRequest":
            state = SimpleNamespace(transactional_id="open")
            return SimpleNamespace(error_code=0, transaction_states=[state])
        if kind == "DescribeConfigsRequest":
            config = SimpleNamespace(name="n", value="7")
            return SimpleNamespace(results=[SimpleNamespace(error_code=0, configs=[config])])
        keys = [SimpleNamespace(api_key=1, min_version=0, max_version=18)]
        return SimpleNamespace(error_code=0, api_keys=keys)


OF_ALL_BROKERS = [
    ("open_transactions", (), ["open"]),
    ("check_versions", (), None),
    ("broker_setting", ("n",), "7"),
]


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize(("name", "given", "answer"), OF_ALL_BROKERS)
def test_metadata_without_a_broker_are_asked_for_again(monkeypatch, name, given, answer, turns):
    """Whoever asks every broker of none would take silence for an answer of all."""
    cluster = Fenced(monkeypatch, turns)
    assert getattr(cluster.client, name)(*given) == answer
    assert cluster.asked[:turns] == ["MetadataRequest"] * turns
    assert cluster.asked[-1] != "MetadataRequest" or name == "open_transactions"


class Restarted:
    """A cluster of one broker, which coordinates an open transaction, and lists none when it is
    asked for the first time behind a restart: it has not begun to read."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(coordinator_client, "_SETTLING_S", 0.001)
        monkeypatch.setattr(coordinator_client, "LAST_BACKOFF_S", 0.001)
        self.client = CoordinatorClient("a:1", deadline_s=0.1)
        self.epoch, self.is_up, self.has_read, self.takes_s = 1, True, True, 0.0
        monkeypatch.setattr(self.client, "exchange", self.exchange)

    def restart(self):
        self.epoch, self.has_read = self.epoch + 1, False

    def exchange(self, calls, deadline_s, steps=None):
        time.sleep(self.takes_s)
        return [self.answer(address, request) for address, request in calls]

    def answer(self, address, request):
        if not self.is_up:
            return NoAnswer(address, "reset", sent=False)
        if type(request).__name__ == "MetadataRequest":
            led = SimpleNamespace(partition_index=0, leader_id=1, leader_epoch=self.epoch)
            return SimpleNamespace(
                brokers=[SimpleNamespace(node_id=1, host="a", port=1)],
                topics=[SimpleNamespace(partitions=[led])],
            )
        states = [SimpleNamespace(transactional_id="open")] if self.has_read else []
        self.has_read = True
        return SimpleNamespace(error_code=0, transaction_states=states)


@pytest.mark.parametrize("was_asked_while_it_was_away", [False, True])
def test_a_coordinator_that_was_restarted_between_two_calls_hides_no_open_transaction(
    monkeypatch, was_asked_while_it_was_away
):
    """Once a sweep that was asked again, because a broker was away, found nothing right behind the
    broker's restart, and said that all was swept."""
    cluster = Restarted(monkeypatch)
    if was_asked_while_it_was_away:
        cluster.is_up = False
        with pytest.raises(SinkUnavailableError):
            cluster.client.open_transactions()
        cluster.is_up = True
    else:
        assert cluster.client.open_transactions() == ["open"]
    cluster.restart()
    assert cluster.client.open_transactions() == ["open"]


def test_behind_a_failure_slow_brokers_are_asked_twice_also_where_once_takes_all_the_time(
    monkeypatch,
):
    cluster = Restarted(monkeypatch)
    cluster.is_up = False
    with pytest.raises(SinkUnavailableError):
        cluster.client.open_transactions()
    cluster.is_up, cluster.takes_s = True, 0.06
    assert cluster.client.open_transactions() == ["open"]


@pytest.mark.parametrize(
    ("name", "given"),
    [*(each[:2] for each in OF_ALL_BROKERS), ("identify", (["t"],)), ("metadata", ())],
)
def test_metadata_that_name_no_broker_for_long_are_no_answer(monkeypatch, name, given):
    cluster = Fenced(monkeypatch, 10**9, deadline_s=0.05)
    with pytest.raises(SinkUnavailableError, match="a:1: the metadata name no broker"):
        getattr(cluster.client, name)(*given)
    assert set(cluster.asked) == {"MetadataRequest"}


def test_brokers_that_are_known_stay_so_while_one_names_none(monkeypatch):
    """As one that looks at the cluster again before a commit is sent again."""
    cluster = Fenced(monkeypatch, 0)
    cluster.client.metadata()
    cluster.turns = 1
    cluster.client._look_for_brokers(time.monotonic() + 1)
    assert cluster.client._brokers == {1: A}


def test_every_broker_is_not_answered_for_by_one_that_names_none(monkeypatch):
    """In the middle of a list of open transactions the controller fences the broker."""
    cluster = Fenced(monkeypatch, 0, deadline_s=0.05)
    cluster.client.metadata()
    cluster.turns = 10**9
    leaders, reason = cluster.client._transaction_leaders(time.monotonic() + 1)
    assert leaders == {}
    assert "name no broker" in reason
    cluster.client.close()
    answers, reason = cluster.client._ask_every_broker(object, time.monotonic() + 1)
    assert answers == {}
    assert "name no broker" in reason


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
    sink._just_confirmed, sink._sure_until_s = frozenset({"x", "y"}), float("inf")
    permit = object.__new__(CommitPermit)
    object.__setattr__(permit, "batch", 3)
    with pytest.raises(SinkUnavailableError):
        sink.commit(permit, told)
    sink.commit(permit, told)
    assert looked == [[], ["x", "y"]]
    assert unsure == [set(), {"x", "y"}]


class Cluster:
    """Brokers, of which each says where it takes the coordinator to be (None: it is silent), and
    what it answers to EndTxn."""

    def __init__(self, named, codes, bootstrap="a:1,b:2,c:3", brokers=(A, B, C)):
        self.named, self.codes, self.brokers = named, codes, brokers
        self.asked = []
        self.client = CoordinatorClient(bootstrap, deadline_s=0.1)
        self.client.exchange = self.exchange

    def exchange(self, calls, deadline_s, steps=None):
        return [self.answer(address, request) for address, request in calls]

    def answer(self, address, request):
        named = self.named.get(address)
        if named is None:
            return NoAnswer(address, "no answer in time", sent=True)
        kind = type(request).__name__
        if kind == "MetadataRequest":
            brokers = [
                SimpleNamespace(node_id=number, host=host, port=port)
                for number, (host, port) in enumerate(self.brokers)
            ]
            return SimpleNamespace(brokers=brokers, topics=[])
        if kind == "FindCoordinatorRequest":
            found = [
                SimpleNamespace(key=key, error_code=0, host=named[0], port=named[1])
                for key in request.coordinator_keys
            ]
            return SimpleNamespace(coordinators=found)
        self.asked.append(address)
        return SimpleNamespace(error_code=self.codes[address])

    def end(self, *, doubtful=True, name="x"):
        committable = {"name": name, "producer_id": 7, "producer_epoch": 0}
        return self.client.end_transactions([{**committable, "doubtful": doubtful}])


def test_a_doubtful_producers_coordinator_is_not_believed_where_no_other_broker_names_it():
    """It may have been cut off, and remember an earlier commit under the same id and epoch."""
    cluster = Cluster({A: A}, {A: 0})
    answers = cluster.end()
    assert not answers.codes
    assert not cluster.asked
    assert "a:1 names itself" in answers.missing["x"]
    assert cluster.end(doubtful=False, name="y").codes == {"y": 0}


def test_a_doubtful_producers_coordinator_is_the_one_that_another_broker_names():
    cluster = Cluster({A: A, B: C, C: C}, {A: 0, C: 48})
    assert cluster.end().codes == {"x": 48}
    assert set(cluster.asked) == {C}


def test_the_right_coordinator_is_not_suspected_in_favour_of_one_that_was_cut_off():
    """The third broker is down, so nobody names the right one until the other has heard of it."""
    cluster = Cluster({A: C, B: C, C: C}, {A: 0, C: 0})
    assert cluster.end().codes == {"x": 0}
    cluster.named = {A: A, C: C}
    cluster.asked.clear()
    assert set(cluster.end().missing) == {"x"}
    assert not cluster.asked
    cluster.named = {A: C, C: C}
    assert cluster.end().codes == {"x": 0}
    assert cluster.asked == [C]


def test_the_only_broker_of_a_cluster_names_itself_under_whatever_address():
    answers = Cluster({A: B, B: B}, {B: 0}, bootstrap="a:1", brokers=(B,)).end()
    assert answers.codes == {"x": 0}


def test_another_address_of_the_same_broker_is_no_other_broker():
    """``bootstrap.servers`` names A, which is B's address in front of a load balancer."""
    cluster = Cluster({A: B, B: B}, {B: 0}, bootstrap="a:1", brokers=(B, C))
    assert set(cluster.end().missing) == {"x"}
    assert not cluster.asked


def test_a_refusal_counts_when_another_broker_names_who_refuses():
    cluster = Cluster({A: A}, {A: 90})
    answers = cluster.end(doubtful=False)
    assert not answers.codes
    assert set(answers.missing) == {"x"}
    cluster = Cluster({A: A, B: A}, {A: 90})
    assert cluster.end(doubtful=False).codes == {"x": 90}


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
        closed, called_s = 0, 0.0

        def send(self, requests):
            raise wire._ConnectionLostError("reset")

        def close(self):
            self.closed += 1

    connection, exchange = Breaking(), wire.Wire()
    monkeypatch.setattr(exchange, "_borrow", lambda address: connection)
    answers = exchange.exchange([(A, object()), (A, object())], 0.0)
    assert [(each.sent, each.refused) for each in answers] == [(True, False), (True, False)]
    assert connection.closed


@pytest.mark.parametrize(
    ("left_s", "answer_timeout_s", "waited_s"),
    [(-5, 30, 1), (0.2, 30, 1), (9, 30, 9), (-5, 0.3, 0.3)],
)
def test_a_broker_that_is_asked_at_the_deadline_has_a_moment_to_answer(
    monkeypatch, left_s, answer_timeout_s, waited_s
):
    """Turns pause between each other, so that the last one begins at or behind the deadline."""
    client = BrokerClient("a:1", answer_timeout_s=answer_timeout_s)
    until = []

    def exchange(calls, until_s, steps):
        until.append(until_s)
        return ["answer"]

    monkeypatch.setattr(client._wire, "exchange", exchange)
    begun_s = time.monotonic()
    assert client.exchange([(A, object())], begun_s + left_s) == ["answer"]
    ended_s = time.monotonic()
    # Of a deadline that is kept, it is what was given; else it counts from the call.
    assert begun_s + waited_s <= until[0] <= (begun_s if waited_s == left_s else ended_s) + waited_s


def test_a_request_that_found_no_connection_was_not_sent(monkeypatch):
    exchange = wire.Wire()

    def refused(*_):
        raise wire._ConnectionLostError("refused")

    monkeypatch.setattr(wire, "_Connection", refused)
    (answer,) = exchange.exchange([(A, object())], 0.0)
    assert not answer.sent


@pytest.mark.parametrize(
    "advertised",
    [
        ("broker..example", 9092),
        ("a" * 64, 1),
        ("a\0b", 1),
        ("127.0.0.1", -1),
        ("127.0.0.1", 1 << 16),
    ],
    ids=range(5),
)
def test_a_broker_that_advertises_what_no_address_can_be_gives_no_answer(advertised):
    (answer,) = wire.Wire().exchange([(advertised, object())], time.monotonic() + 5)
    assert isinstance(answer, NoAnswer)
    assert "no connection: " in answer.reason
    assert not answer.sent
    assert not answer.refused


@pytest.mark.parametrize("when", ["at once", "at the first request"])
@pytest.mark.parametrize("protocol", ["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"])
def test_a_load_balancer_whose_broker_is_away_refuses_nothing(protocol, when):
    """Once its broker was said to speak TLS, or not to: a start said that no restart helps, and a
    batch did not wait for the broker before its decision."""
    options = {"security.protocol": protocol}
    if "sasl" in protocol:
        options |= {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"}
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def take_and_end():
            with suppress(OSError):
                while True:
                    with listening.accept()[0] as connection, suppress(OSError):
                        if when == "at the first request":
                            connection.recv(1)

        threading.Thread(target=take_and_end, daemon=True).start()
        servers = f"127.0.0.1:{listening.getsockname()[1]}"
        client = BrokerClient(servers, access=Access(options), deadline_s=1.0)
        with pytest.raises(SinkUnavailableError, match="No Kafka broker answered") as caught:
            client.metadata()
        assert not isinstance(caught.value, AccessRefusedError)
        listening.shutdown(socket.SHUT_RDWR)


def test_a_connection_that_is_in_use_while_all_are_closed_is_closed_when_it_comes_back(monkeypatch):
    class Answering:
        def __init__(self, address, *_):
            self.address, self.closed, self.called_s = address, 0, 0.0

        def send(self, requests):
            pass

        def receive(self, deadline_s):
            if closes.pop():
                exchange.close()
            return ["answer"]

        def is_usable(self):
            return not self.closed

        def close(self):
            self.closed += 1

    made, closes = [], []
    exchange = wire.Wire()
    monkeypatch.setattr(
        wire, "_Connection", lambda *given: made.append(Answering(*given)) or made[-1]
    )
    for during in (True, False, False):
        closes.append(during)
        assert exchange.exchange([(A, object())], 0.0) == ["answer"]
    assert [connection.closed for connection in made] == [1, 1, 1], "nobody closes all once more"


@pytest.mark.parametrize("code", [-190, -188])
def test_records_to_a_topic_that_was_deleted_meanwhile_name_it(code):
    """As librdkafka tells it when message.timeout.ms is over."""
    failure = DeliveryFailure(KafkaError(code), "ads", 2, 10)
    producer = SimpleNamespace(watch=SimpleNamespace(failures=[failure]))
    transaction = SimpleNamespace(producer=producer)
    with pytest.raises(AttemptFailedError, match="'ads' has no partition 2 any more.*deleted"):
        KafkaTransaction._raise_failures(transaction)


def test_records_that_no_broker_took_in_time_name_the_one_that_hung():
    """It may be the transaction's coordinator, and the partition be well."""
    watch = Watch()
    watch.on_log(5, "REQTMOUT", "TxnCoordinator/1: Timed out AddPartitionsToTxnRequest in flight")
    watch.on_failure(KafkaError(KafkaError._MSG_TIMED_OUT), "ads", 2, 10)
    transaction = SimpleNamespace(producer=SimpleNamespace(watch=watch))
    with pytest.raises(AttemptFailedError, match="'ads' partition 2.*TxnCoordinator/1: Timed out"):
        KafkaTransaction._raise_failures(transaction)


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


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (KafkaError.LEADER_NOT_AVAILABLE, AttemptFailedError, "LEADER_NOT_AVAILABLE.*repeated"),
        (KafkaError.UNKNOWN, AttemptFailedError, "UNKNOWN.*repeated"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, RefusedRecordError, "'ads' does not exist"),
    ],
)
def test_a_topic_that_brokers_cannot_tell_of_is_not_said_to_be_missing(
    monkeypatch, code, kind, said
):
    """Once no supervisor started the query again, for no replay writes to a topic that isn't
    there."""
    monkeypatch.setattr(writer, "_TOPIC_DEADLINE_S", 0)
    told = Partitions(0, (), 0.0), KafkaError(code)
    client = SimpleNamespace(partitions=lambda topic, timeout_s: told)
    producer = SimpleNamespace(client=client, poll=lambda timeout_s: None, topics={})
    with pytest.raises(AttemptFailedError, match=said) as caught:
        KafkaTransaction._ask_partitions(SimpleNamespace(producer=producer), "ads")
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (5, SinkUnavailableError, "told no partitions of topic 'ads': LEADER_NOT_AVAILABLE"),
        (17, SinkCheckError, "'ads' can't be used: INVALID_TOPIC.*Correct topic="),
    ],
)
def test_a_start_says_a_topics_name_is_wrong_only_where_it_is(code, error, said):
    told = SimpleNamespace(error_code=code, partitions=[], authorized_operations=0)
    client = SimpleNamespace(describe_topic=lambda topic: told)
    with pytest.raises(error, match=said):
        check_topic(client, "ads", {"bootstrap.servers": "a:1"})


def test_a_topic_that_librdkafka_has_no_handle_for_leaves_nothing_to_be_dropped():
    client = Client({"bootstrap.servers": "127.0.0.1:9"}, Watch())
    refused = []
    try:
        client.topic("x" * 513)
    except KafkaException as error:
        refused.append(error)
    # Taken out of the client, which would die of a null when it is closed, and the tests with it.
    kept, client._topics = client._topics, {}
    assert kept == {}
    assert "no topic's name" in str(refused[0])
    client.topic("x" * 512)
    client.close()
