"""Late requests: sent, then held by the network while the client connects again and repeats them,
and delivered in the next transaction.

Each scenario is run twice: by the rules, and with just the rule that guards it switched off, so
that what is at stake can be seen.
"""

from __future__ import annotations

import threading
from random import Random

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from onceforall.embedded import EmbeddedKafka
from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.sinks.kafka import sink as sink_module
from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient
from onceforall.sinks.kafka.driver.wire import _import_protocol as import_protocol
from onceforall.sinks.kafka.task.live import Watch
from onceforall.sinks.kafka.task.producers import ProducerPool
from support.network_proxy import Api, KafkaProxy

pytestmark = pytest.mark.kafka

OK, INVALID_PRODUCER_EPOCH, FENCED = 0, 47, 90
REFUSED = {INVALID_PRODUCER_EPOCH, FENCED}


@pytest.fixture(scope="module", params=["session", pytest.param("3.9", marks=pytest.mark.long)])
def version(request):
    return request.param


@pytest.fixture(scope="module")
def broker(version, broker):
    """The session's broker, and one without the newer transaction protocol."""
    if version == "session":
        load_coordinators(broker)
        yield broker
    else:
        with EmbeddedKafka(version=version) as running:
            load_coordinators(running)
            yield running


def load_coordinators(broker):
    """Make the first use of all transaction coordinators, so that no request is repeated but
    those that a test has repeated."""
    client = CoordinatorClient(broker.bootstrap_servers, deadline_s=60)
    assert not client.fence([f"nobody-{number}" for number in range(20)]).missing
    client.close()


@pytest.fixture
def unverified(broker):
    """The broker does as releases before 3.6 do: it takes a record without asking the
    coordinator whether its transaction is open."""
    verify(broker, "false")
    yield
    verify(broker, "true")


def verify(broker, value):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    entry = ConfigEntry(
        "transaction.partition.verification.enable",
        value,
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)


@pytest.fixture
def proxy(broker):
    with KafkaProxy(broker.port) as running:
        yield running


@pytest.fixture
def proxied(proxy, query):
    """A query whose tasks and driver both reach the broker through the proxy."""
    return lambda topic, **more: query(topic, servers=proxy.address, **more)


@pytest.fixture
def no_doubt(monkeypatch):
    """Switch the rule off: lost connections and time-outs don't make a producer doubtful."""

    def switch_off():
        monkeypatch.setattr(
            Watch, "doubt", property(lambda watch: None, lambda watch, text: None), raising=False
        )

    return switch_off


@pytest.fixture
def another_process(monkeypatch):
    """From the call on, tasks run in another worker process: its producers are its own."""
    made = []

    def change():
        made.append(ProducerPool())
        monkeypatch.setattr(sink_module, "POOL", made[-1])

    yield change
    for pool in made:
        pool.close()


def by_task(request):
    return request.client_id == "rdkafka"


def by_driver(request):
    return request.client_id == "onceforall"


def late(fault, action):
    """Do something, cut the connection of the request that the fault holds, and return what came
    of it after the repetition."""
    results, errors = [], []

    def run():
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    fault.wait()
    fault.cut()
    thread.join(60)
    assert not thread.is_alive()
    assert errors == []
    return results[0]


def release(fault):
    """Let the late request reach the broker, and return the error code of its answer."""
    import_protocol()
    from kafka.protocol import producer as protocol

    (frame,) = fault.release()
    assert frame is not None
    request = fault.requests[0]
    version = request.api_version
    if request.api_key == Api.PRODUCE:
        answer = protocol.ProduceResponse.decode(frame, version=version, header=True)
        return answer.responses[0].partition_responses[0].error_code
    if request.api_key == Api.ADD_PARTITIONS_TO_TXN:
        answer = protocol.AddPartitionsToTxnResponse.decode(frame, version=version, header=True)
        return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    kind = {
        Api.END_TXN: protocol.EndTxnResponse,
        Api.INIT_PRODUCER_ID: protocol.InitProducerIdResponse,
    }[request.api_key]
    return kind.decode(frame, version=version, header=True).error_code


def values(messages):
    return sorted(m.value() for m in messages)


def missed(report):
    """What is gone, or can't be shown to be there."""
    return [lost.committable for lost in (*report.lost, *report.in_doubt)]


def answered(q, committable):
    """What ``commit`` reports; None while an abort goes on."""
    try:
        return q.commit(committable)
    except SinkUnavailableError:
        return None


def complete(q, *committables, batch=1):
    """Commit as the coordinator does: what is complete without doubt may go on, what is retired
    is fenced."""
    report = q.commit(*committables)
    assert not missed(report)
    q.sink.retire(report.retired)
    q.reusable = tuple({**c, "batch": batch} for c in report.completed)
    return report


# --- the tasks' EndTxn: a reused producer's own commit, which is answered as "already committed" --


def with_a_late_end_txn_of_the_task(q, proxy):
    first = q.prepare(["first"], batch=1)
    assert complete(q, first).completed
    held = proxy.hold(Api.END_TXN, by_task)
    transaction = late(held, lambda: q.sink.begin_transaction(q.attempt(batch=2)))
    return first, held, transaction


def test_a_late_end_txn_of_a_task_finds_another_transaction(
    proxied, proxy, topic, batch_of, committed, sees
):
    name = topic()
    q = proxied(name)
    first, held, transaction = with_a_late_end_txn_of_the_task(q, proxy)
    q.sink.invoke(transaction, batch_of(["second"]))
    second = q.sink.pre_commit(transaction)
    assert second["name"] != first["name"]
    assert release(held) == OK
    assert values(committed(name)) == [b"first"]
    q.sink.abort([second])
    sees(name, ["first"])


def test_without_doubt_a_late_end_txn_of_a_task_commits_the_next_transaction(
    proxied, proxy, topic, batch_of, committed, sees, no_doubt
):
    name = topic()
    q = proxied(name)
    no_doubt()
    first, held, transaction = with_a_late_end_txn_of_the_task(q, proxy)
    q.sink.invoke(transaction, batch_of(["undecided"]))
    transaction.flush()
    assert transaction.producer.name == first["name"]
    assert values(committed(name)) == [b"first"]
    assert release(held) == OK
    sees(name, ["first", "undecided"])
    q.sink.discard(transaction)


# --- the tasks' Produce ---------------------------------------------------------------------------


def with_a_late_produce(q, proxy, batch_of):
    """The first transaction is complete, and its only Produce request was repeated; the first
    sending of it is still under way."""
    held = proxy.hold(Api.PRODUCE, by_task)
    first = late(held, lambda: q.prepare(["first"], batch=1))
    return first, held


def test_a_late_produce_request_finds_another_epoch(
    proxied, proxy, topic, batch_of, committed, sees
):
    name = topic()
    q = proxied(name)
    first, held = with_a_late_produce(q, proxy, batch_of)
    assert first["doubtful"] is True
    assert complete(q, first).retired == (first,)
    second = q.prepare(["second"], batch=2)
    assert second["name"] == first["name"]
    assert second["producer_epoch"] > first["producer_epoch"]
    assert release(held) in REFUSED
    assert complete(q, second, batch=2).completed == (second,)
    sees(name, ["first", "second"])


def test_even_without_doubt_a_late_produce_request_is_known_by_its_sequence_number(
    proxied, proxy, topic, batch_of, committed, sees, no_doubt
):
    name = topic()
    q = proxied(name)
    no_doubt()
    first, held = with_a_late_produce(q, proxy, batch_of)
    assert complete(q, first).completed == (first,)
    second = q.prepare(["second"], batch=2)
    assert second["producer_epoch"] == first["producer_epoch"]
    assert release(held) == OK  # as a duplicate, which is not written again
    assert complete(q, second, batch=2).completed == (second,)
    sees(name, ["first", "second"])


def with_a_late_produce_of_a_transaction_that_is_given_up(q, proxy, batch_of):
    """Its only Produce request is held when the task gives it up."""
    transaction = q.sink.begin_transaction(q.attempt())
    held = proxy.hold(Api.PRODUCE, by_task)
    q.sink.invoke(transaction, batch_of(["never"]))
    held.wait()
    q.sink.discard(transaction)
    return transaction.producer, held


def test_a_late_produce_request_of_a_transaction_that_was_given_up_finds_another_epoch(
    unverified, proxied, proxy, topic, batch_of, sees
):
    name = topic()
    q = proxied(name)
    given_up, held = with_a_late_produce_of_a_transaction_that_is_given_up(q, proxy, batch_of)
    held.cut()
    assert given_up.name in q.sink._connected().open_transactions()
    assert q.sink.recover(q.sweep(1, own=True)) == 1
    assert release(held) in REFUSED
    other = q.prepare(["other"], slot=1)
    assert complete(q, other).completed == (other,)
    sees(name, ["other"])
    assert not [request for request in proxy.requests(Api.END_TXN) if by_task(request)]


def abort_by_end_txn(q, producer):
    """What a producer does that gives its transaction up by itself, when its connection is lost
    at the wrong moment."""
    import_protocol()
    from kafka.protocol.producer import EndTxnRequest

    producer_id, epoch = producer.identify()

    def request(name):
        return EndTxnRequest(
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=False,
            max_version=4,
        )

    assert q.sink._connected()._ask_coordinators([producer.name], request).codes == {
        producer.name: OK
    }


def test_after_an_abort_by_end_txn_a_late_produce_request_blocks_all_readers_for_ever(
    unverified, proxied, proxy, topic, batch_of, committed, uncommitted
):
    name = topic()
    q = proxied(name)
    reconnecting = proxy.hold(
        Api.API_VERSIONS, lambda request: by_task(request) and proxy.requests(Api.PRODUCE)
    )
    given_up, held = with_a_late_produce_of_a_transaction_that_is_given_up(q, proxy, batch_of)
    held.cut()
    reconnecting.wait()
    abort_by_end_txn(q, given_up)
    abort_by_end_txn(q, given_up)  # answered when the first is complete in the partitions
    assert release(held) == OK
    other = q.prepare(["other"], slot=1)
    assert complete(q, other).completed == (other,)
    assert values(uncommitted(name)) == [b"never", b"other"]
    assert values(committed(name)) == []
    assert q.sink.recover(q.sweep(2)) == 0


# --- the tasks' AddPartitionsToTxn ----------------------------------------------------------------


def with_a_late_add_partitions(q, proxy):
    held = proxy.hold(Api.ADD_PARTITIONS_TO_TXN, by_task)
    first = late(held, lambda: q.prepare(["first"], batch=1))
    return first, held


def test_a_late_add_partitions_opens_nothing(proxied, proxy, topic, sees):
    name = topic()
    q = proxied(name)
    first, held = with_a_late_add_partitions(q, proxy)
    assert complete(q, first).retired == (first,)
    assert release(held) in REFUSED
    assert first["name"] not in q.sink._connected().open_transactions()
    sees(name, ["first"])


def test_without_doubt_a_late_add_partitions_opens_a_transaction_that_nobody_began(
    proxied, proxy, topic, sees, no_doubt
):
    """No reader is held up by it, for it has no records; but it is listed, and sweeps and
    operators have to deal with it."""
    name = topic()
    q = proxied(name)
    no_doubt()
    first, held = with_a_late_add_partitions(q, proxy)
    assert complete(q, first).completed == (first,)
    sees(name, ["first"])
    assert release(held) == OK
    assert first["name"] in q.sink._connected().open_transactions()
    second = q.prepare(["second"], batch=2, slot=1, reusable=())
    assert complete(q, second, batch=2).completed == (second,)
    sees(name, ["first", "second"])


# --- the driver's EndTxn --------------------------------------------------------------------------


def with_a_late_end_txn_of_the_driver(q, proxy):
    first = q.prepare(["first"], batch=1)
    held = proxy.hold(Api.END_TXN, by_driver)
    report = late(held, lambda: q.commit(first))
    return first, held, report


def test_a_late_end_txn_of_the_driver_finds_another_epoch(proxied, proxy, topic, committed, sees):
    name = topic()
    q = proxied(name)
    first, held, report = with_a_late_end_txn_of_the_driver(q, proxy)
    assert report.retired == (first,)
    q.sink.retire(report.retired)
    second = q.prepare(["second"], batch=2)
    assert second["name"] == first["name"]
    assert second["producer_epoch"] > first["producer_epoch"]
    assert release(held) in REFUSED
    assert values(committed(name)) == [b"first"]
    q.sink.abort([second])
    sees(name, ["first"])


def test_without_retirement_a_late_end_txn_of_the_driver_commits_the_next_transaction(
    proxied, proxy, topic, committed, sees
):
    name = topic()
    q = proxied(name)
    first, held, report = with_a_late_end_txn_of_the_driver(q, proxy)
    q.reusable = tuple({**c, "batch": 1} for c in report.retired)
    second = q.prepare(["undecided"], batch=2)
    assert (second["name"], second["producer_epoch"]) == (first["name"], first["producer_epoch"])
    assert values(committed(name)) == [b"first"]
    assert release(held) == OK
    sees(name, ["first", "undecided"])


# --- the driver's InitProducerId: a fence or a sweep ----------------------------------------------


def with_a_late_fence(q, proxy):
    first = q.prepare(["first"], batch=1)
    held = proxy.hold(Api.INIT_PRODUCER_ID, by_driver)
    late(held, lambda: q.sink.abort([first]))
    return first, held


def test_a_late_fence_finds_an_id_that_is_given_to_nobody(proxied, proxy, topic, sees):
    name = topic()
    q = proxied(name)
    first, held = with_a_late_fence(q, proxy)
    second = q.prepare(["second"], batch=2)
    assert second["name"] != first["name"]
    assert release(held) == OK
    assert complete(q, second, batch=2).completed == (second,)
    sees(name, ["second"])


def test_without_burning_its_id_a_late_fence_aborts_what_is_decided(
    proxied, proxy, topic, until, sees
):
    name = topic()
    q = proxied(name)
    first, held = with_a_late_fence(q, proxy)
    q.sink._burnt = ()
    second = q.prepare(["decided"], batch=2)
    assert second["name"] == first["name"]
    release(held)
    assert missed(until(lambda: answered(q, second))) == [second]
    sees(name, [])


# --- the tasks' InitProducerId --------------------------------------------------------------------


def with_a_late_init_producer_id(q, proxy):
    held = proxy.hold(Api.INIT_PRODUCER_ID, by_task)
    first = late(held, lambda: q.prepare(["first"], batch=1))
    (transactional_id,) = {
        name for name in (turn(first, 0), turn(first, 1)) if name.encode() in held.requests[0].frame
    }
    return first, held, transactional_id


def turn(committable, number):
    """The transactional id that differs from this one in the turn alone."""
    return f"{committable['name'].rpartition('.')[0]}.{number}:"


def test_a_late_init_producer_id_of_a_task_finds_an_id_that_is_left_alone(
    proxied, proxy, topic, sees
):
    name = topic()
    q = proxied(name)
    first, held, asked = with_a_late_init_producer_id(q, proxy)
    assert (asked, first["name"]) == (turn(first, 0), turn(first, 1))
    assert release(held) == OK
    assert complete(q, first).completed == (first,)
    sees(name, ["first"])


def test_without_doubt_a_late_init_producer_id_of_a_task_aborts_what_is_decided(
    proxied, proxy, topic, until, sees, no_doubt
):
    name = topic()
    q = proxied(name)
    no_doubt()
    first, held, asked = with_a_late_init_producer_id(q, proxy)
    assert asked == first["name"]
    release(held)
    assert missed(until(lambda: answered(q, first))) == [first]
    sees(name, [])


def test_the_id_of_a_late_init_producer_id_is_left_alone_in_later_batches_of_other_processes(
    proxied, proxy, topic, sees, another_process
):
    name = topic()
    q = proxied(name)
    first, held, asked = with_a_late_init_producer_id(q, proxy)
    assert complete(q, first).completed == (first,)
    another_process()
    second = q.prepare(["second"], batch=2)
    release(held)
    assert complete(q, second, batch=2).completed == (second,)
    assert asked not in {first["name"], second["name"]}
    sees(name, ["first", "second"])


# --- before the tasks' InitProducerId -------------------------------------------------------------


@pytest.mark.long
def test_a_broker_that_is_slow_to_answer_a_new_producer_is_waited_for(proxied, proxy, topic, sees):
    """Each connection's first requests for metadata take longer than the first wait; nothing was
    sent in the producer's name then."""
    name = topic()
    q = proxied(name)
    slow = proxy.delay(Api.METADATA, 2.5, by_task, count=1000)
    first = q.prepare(["first"], batch=1)
    assert len(slow.requests) > 1
    assert (first["name"], first.get("burnt")) == (turn(first, 0), None)
    assert complete(q, first).completed == (first,)
    sees(name, ["first"])


def test_a_connection_that_is_lost_before_anything_was_sent_in_the_name_burns_no_id(
    proxied, proxy, topic, sees
):
    name = topic()
    q = proxied(name)
    lost = proxy.reset(Api.METADATA, by_task, count=2)
    first = q.prepare(["first"], batch=1)
    assert len(lost.requests) == 2
    assert (first["name"], first.get("doubtful"), first.get("burnt")) == (
        turn(first, 0),
        None,
        None,
    )
    assert complete(q, first).completed == (first,)
    sees(name, ["first"])


# --- connections that end before they are set up --------------------------------------------------


def test_a_connection_that_ends_in_its_set_up_makes_doubt_for_it_hides_the_end_of_the_next_one(
    proxied, proxy, topic, sees
):
    """librdkafka says the same thing of both, and does not say it three times within 30 s."""

    def by_the_coordinators_connection(request):
        return by_task(request) and any(by_task(r) for r in proxy.requests(Api.FIND_COORDINATOR))

    name = topic()
    q = proxied(name)
    resets = proxy.reset(Api.API_VERSIONS, by_the_coordinators_connection, count=2)
    first = q.prepare(["first"], batch=1)
    assert len(resets.requests) == 2
    assert first["name"] == turn(first, 1)
    assert complete(q, first).completed == (first,)
    sees(name, ["first"])


@pytest.mark.parametrize(
    ("line", "doubtful"),
    [
        (
            (
                "TxnCoordinator: b:9092: Disconnected: connection closed by peer (after 1ms in state "
                "APIVERSION_QUERY)"
            ),
            True,
        ),
        (
            (
                "TxnCoordinator: b:9092: Disconnected: connection closed by peer (after 9ms in state "
                "AUTH_HANDSHAKE)"
            ),
            True,
        ),
        (
            (
                "TxnCoordinator: b:9092: Connect to b:9092 failed: Connection refused (after 0ms in "
                "state CONNECT)"
            ),
            False,
        ),
        (
            (
                "b:9092/bootstrap: Disconnected: connection closed by peer (after 1ms in state "
                "APIVERSION_QUERY)"
            ),
            False,
        ),
    ],
)
def test_a_bootstrap_server_that_is_down_behind_a_load_balancer_makes_no_doubt(line, doubtful):
    watch = Watch()
    watch.on_log(6, "FAIL", f"[thrd:x]: {line}")
    assert (watch.doubt is not None) is doubtful


# --- all of them, at random -----------------------------------------------------------------------

KINDS = [
    (Api.PRODUCE, by_task),
    (Api.END_TXN, by_task),
    (Api.INIT_PRODUCER_ID, by_task),
    (Api.ADD_PARTITIONS_TO_TXN, by_task),
    (Api.END_TXN, by_driver),
    (Api.INIT_PRODUCER_ID, by_driver),
]


class Network:
    """Makes requests late: cuts the connection of each that a fault catches, and releases some
    of them later."""

    def __init__(self, proxy, random):
        self._proxy, self._random = proxy, random
        self._planned, self._cut = [], []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._cut_what_is_caught)
        self._thread.start()
        self.late = []

    def _cut_what_is_caught(self):
        while not self._ended.wait(0.005):
            for fault in [f for f in list(self._planned) if f.requests and f not in self._cut]:
                fault.cut()
                self._cut.append(fault)

    def plan(self):
        for kind in self._random.sample(KINDS, self._random.randint(0, 2)):
            self._planned.append(self._proxy.hold(*kind))

    def release(self, share):
        """Deliver what is held: each with this probability."""
        for fault in [f for f in self._cut if self._random.random() < share]:
            self._cut.remove(fault)
            self._planned.remove(fault)
            self.late.append((fault.requests[0].api_key, release(fault)))

    def end(self):
        self._ended.set()
        self._thread.join()


def decide_at_random(q, name, proxy, committed, seed):
    """Decide or abort batches at random, while requests of tasks and driver are late at random, and
    return how many were.

    Raises:
        AssertionError: a reader saw something else than what was decided, or what was decided is
            lost.
    """
    random = Random(seed)
    network = Network(proxy, random)
    expected, incarnation, generation = [], 0, 1
    try:
        for batch in range(1, 26):
            network.plan()
            committables = []
            for slot in range(2):
                try:
                    more = {"slot": slot, "incarnation": incarnation, "generation": generation}
                    committables.append(
                        q.prepare([f"{batch}.{slot}.{i}" for i in range(3)], batch=batch, **more)
                    )
                except AttemptFailedError:
                    incarnation += 1
                network.release(0.3)
            assert values(committed(name)) == sorted(expected), batch
            if len(committables) == 2 and random.random() < 0.8:
                report = q.commit(*committables)
                assert not missed(report), batch
                expected += [f"{batch}.{slot}.{i}".encode() for slot in range(2) for i in range(3)]
                network.release(0.3)
                q.sink.retire(report.retired)
                q.reusable = tuple({**c, "batch": batch} for c in report.completed)
            else:
                q.sink.abort(committables)
                generation += 1
                q.sink.recover(q.sweep(generation))
                q.reusable = ()
            network.release(0.3)
            assert values(committed(name)) == sorted(expected), batch
        network.release(1)
        assert values(committed(name)) == sorted(expected)
        return len(network.late)
    finally:
        network.end()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_no_late_request_tears_a_transaction(proxied, proxy, topic, committed, seed):
    name = topic(partitions=2)
    assert decide_at_random(proxied(name), name, proxy, committed, seed) >= 5


@pytest.mark.long
def test_without_doubt_late_requests_tear_transactions(proxied, proxy, topic, committed, no_doubt):
    no_doubt()
    torn = 0
    for seed in range(3):
        name = topic(partitions=2)
        try:
            decide_at_random(proxied(name), name, proxy, committed, seed)
        except AssertionError:
            torn += 1
    assert torn > 0


def test_a_start_commits_what_is_decided_also_where_each_request_takes_a_second(
    topic, query, proxy, committed
):
    """Two requests, one after the other, tell where a transaction has written."""
    where = topic()
    before = query(where)
    decided = before.sink.confirm([before.prepare(["a"])])
    before.sink.close()
    successor = query(where, servers=proxy.address)
    successor.id = before.id
    for api in (Api.FIND_COORDINATOR, Api.DESCRIBE_TRANSACTIONS):
        proxy.delay(api, 1.1, count=1000)
    for _ in range(3):
        try:
            report = successor.commit(*decided)
        except SinkUnavailableError:
            continue
        break
    else:
        pytest.fail("no call has more time than the first one")
    assert len(report.completed) + len(report.retired) == 1
    assert [message.value() for message in committed(where)] == [b"a"]
