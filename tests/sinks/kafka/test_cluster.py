"""The sink on three brokers: replicas, leaders and transaction coordinators are killed, cut off and
moved in the middle of everything.

Every topic has three replicas and needs two in sync. Each test ends with the same check: a
read_committed reader comes to the end of every
partition and sees exactly the committed rows, nothing holds readers back, and no transaction of the
query is open.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from onceforall.embedded import EmbeddedKafkaCluster
from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.sinks.kafka.driver import broker_client, wire
from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient
from support.moving import (
    TRANSACTIONS,
    coordinator_of,
    leaders,
    make_whole,
    move_leader,
    move_leaders,
    transaction_partition,
)
from support.reading import held_back, released

from .conftest import Query, read, rows, wait_until

pytestmark = pytest.mark.kafka

PARTITIONS = 3


@pytest.fixture(scope="module")
def running():
    with EmbeddedKafkaCluster() as cluster:
        # The first id makes __transaction_state.
        cluster.create_topic("first")
        q = Query(cluster.bootstrap_servers, "first")
        q.commit(q.prepare(["x"]))
        q.sink.close()
        cluster.wait_until_whole()
        yield cluster


@pytest.fixture
def cluster(running):
    yield running
    make_whole(running)


class ClusterQuery(Query):
    """A query whose topic has three replicas; it knows what should be visible."""

    def __init__(self, cluster, topic, **arguments):
        super().__init__(cluster.bootstrap_servers, topic, **arguments)
        self.cluster = cluster
        self.topic = topic
        self.expected = []

    def values(self, count):
        """Return new values; they are expected to be visible at the end."""
        new = [f"{len(self.expected) + i}" for i in range(count)]
        self.expected += new
        return new

    def begin(self, slot=0, **more):
        return self.sink.begin_transaction(self.attempt(slot=slot, **more))

    def write(self, transaction, values):
        """Write values to all partitions in turn."""
        partitions = pa.array([i % PARTITIONS for i in range(len(values))], pa.int32())
        self.sink.invoke(transaction, rows(values, partition=partitions))

    def prepared(self, count=30, **more):
        transaction = self.begin(**more)
        self.write(transaction, self.values(count))
        return self.sink.pre_commit(transaction)

    def commit_at_last(self, *committables, deadline_s=60.0):
        """Commit as the driver does: again and again while brokers are away."""
        report = at_last(lambda: self.commit(*committables), deadline_s)
        assert not report.lost
        assert not report.in_doubt
        return report

    def locate(self, *committables):
        """Let the driver's client know the coordinators beforehand, and return it."""
        client = self.sink._connected()
        found = client._locate({c["name"]: "" for c in committables}, time.monotonic() + 30, set())
        assert len(found) == len(committables)
        return client

    def point_to(self, node, *committables):
        """Let the driver's client take a node for the coordinator of these, as it had been;
        return its address."""
        client = self.sink._connected()
        host, port = self.cluster.address(node).split(":")
        client._coordinators.update({c["name"]: (host, int(port)) for c in committables})
        return host, int(port)

    def assert_exactly_once(self):
        def seen():
            return sorted(
                m.value().decode()
                for m in read(self.cluster.bootstrap_servers, self.topic, "read_committed")
            )

        assert self.expected, "nothing was written; the test proves nothing"
        wait_until(lambda: len(seen()) >= len(self.expected), 40)
        assert seen() == sorted(self.expected)
        released(self.cluster.bootstrap_servers, self.topic)
        assert self.open() == []

    def open(self):
        client = CoordinatorClient(self.cluster.bootstrap_servers, deadline_s=40)
        try:
            return [name for name in client.open_transactions() if f":{self.id}:" in name]
        finally:
            client.close()


def at_last(call, deadline_s=60.0):
    end = time.monotonic() + deadline_s
    while True:
        try:
            return call()
        except SinkUnavailableError:  # noqa: PERF203
            assert time.monotonic() < end, f"still away after {deadline_s} s"


@pytest.fixture
def query(cluster):
    made = []

    def make(**arguments):
        name = f"t-{uuid.uuid4().hex[:12]}"
        cluster.create_topic(name, PARTITIONS, config={"min.insync.replicas": "2"})
        made.append(ClusterQuery(cluster, name, **arguments))
        return made[-1]

    yield make
    for one in made:
        one.sink.close()


@pytest.fixture
def on_request(monkeypatch):
    """Run something once, when a request of a kind goes to a broker:
    ``on_request("EndTxnRequest", action, after=False)``."""
    waiting = []
    send = wire._Connection.send

    def sending(self, requests):
        due = [w for w in waiting if any(type(request).__name__ == w[0] for request in requests)]
        for one in due:
            waiting.remove(one)
            if not one[2]:
                one[1](self.address)
        send(self, requests)
        for one in due:
            if one[2]:
                one[1](self.address)

    monkeypatch.setattr(wire._Connection, "send", sending)
    return lambda name, action, after=False: waiting.append((name, action, after))


class InThread:
    """A call in a thread of its own; ``result`` waits for it and raises what it raised."""

    def __init__(self, call):
        self._call = call
        self._outcome = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            self._outcome["result"] = self._call()
        except BaseException as error:
            self._outcome["error"] = error

    @property
    def is_running(self):
        return self._thread.is_alive()

    def result(self, deadline_s=120):
        self._thread.join(deadline_s)
        assert not self._thread.is_alive(), "the call did not return"
        if "error" in self._outcome:
            raise self._outcome["error"]
        return self._outcome["result"]


def cut_off(cluster, node):
    """Pause a node and wait until the others know that it is away."""
    cluster.pause(node)
    cluster.wait_until_whole(without=[node])


# --- in the middle of writing ---------------------------------------------------------------------


def write_through(q, fault):
    """Write half a transaction, let the fault happen, and write the rest; an attempt that fails
    is made again, as Spark does."""
    transaction = q.begin()
    values = q.values(3000)
    q.write(transaction, values[:1500])
    fault()
    try:
        q.write(transaction, values[1500:])
        return q.sink.pre_commit(transaction)
    except AttemptFailedError:
        q.sink.discard(transaction)
        again = q.begin(slot=1)
        q.write(again, values)
        return q.sink.pre_commit(again)


def test_a_leader_killed_in_the_middle_of_writing_loses_and_doubles_nothing(cluster, query):
    q = query()
    committable = write_through(q, lambda: cluster.kill(cluster.leader(q.topic, 0)))
    assert committable["records"] == 3000
    report = q.commit_at_last(committable)
    assert report.completed + report.retired == (committable,)
    q.assert_exactly_once()


@pytest.mark.long
def test_the_coordinator_killed_in_the_middle_of_writing_loses_and_doubles_nothing(cluster, query):
    q = query()
    transaction = q.begin()
    q.write(transaction, q.values(300))
    cluster.kill(coordinator_of(cluster, transaction.producer.name))
    q.write(transaction, q.values(300))
    q.commit_at_last(q.sink.pre_commit(transaction))
    q.assert_exactly_once()


def test_leaders_moved_in_the_middle_of_writing_lose_and_double_nothing(cluster, query):
    q = query()

    def move_all():
        for number in range(PARTITIONS):
            leader = cluster.leader(q.topic, number)
            move_leader(cluster, q.topic, number, leader % len(cluster.nodes) + 1)

    committable = write_through(q, move_all)
    q.commit_at_last(committable)
    q.assert_exactly_once()


# --- in the middle of EndTxn ----------------------------------------------------------------------


@pytest.mark.long
def test_a_coordinator_killed_before_the_commit_is_found_anew(cluster, query):
    q = query()
    committable = q.prepared()
    cluster.kill(coordinator_of(cluster, committable["name"]))
    report = q.commit_at_last(committable)
    assert report.completed + report.retired == (committable,)
    q.assert_exactly_once()


@pytest.mark.long
def test_a_coordinator_killed_with_the_commit_unread_is_asked_again_elsewhere(
    cluster, query, on_request
):
    q = query()
    (committable,) = q.sink.confirm([q.prepared()])
    # Connections to all: a new one would need an answer first.
    q.locate(committable).open_transactions()
    coordinator = coordinator_of(cluster, committable["name"])
    sent, to = threading.Event(), []
    on_request(
        "EndTxnRequest",
        lambda address: (to.append("{}:{}".format(*address)), sent.set()),
        after=True,
    )
    cluster.pause(coordinator)
    commit = InThread(lambda: q.commit_at_last(committable))
    assert sent.wait(30)
    assert to == [cluster.address(coordinator)], "another one was asked; the test proves nothing"
    cluster.kill(coordinator)
    report = commit.result()
    assert report.retired == (committable,), (
        "a request went unanswered; the producer must not go on"
    )
    q.assert_exactly_once()
    following = q.prepared(batch=2, reusable=[{**c, "batch": 1} for c in report.completed])
    q.commit_at_last(following)
    q.assert_exactly_once()


@pytest.mark.long
def test_a_coordinator_killed_with_the_commit_taken_up_and_not_answered(cluster, query, on_request):
    """One follower is paused, so that the coordinator writes the decision down, waits for its
    replication, and dies."""
    q = query()
    (committable,) = q.sink.confirm([q.prepared()])
    q.locate(committable)
    coordinator = coordinator_of(cluster, committable["name"])
    follower = next(node for node in cluster.nodes if node != coordinator)
    sent = threading.Event()
    on_request("EndTxnRequest", lambda address: sent.set(), after=True)
    cluster.pause(follower)
    commit = InThread(lambda: q.commit_at_last(committable))
    assert sent.wait(30)
    cluster.kill(coordinator)
    cluster.resume(follower)
    report = commit.result()
    assert report.retired == (committable,), (
        "a request went unanswered; the producer must not go on"
    )
    q.assert_exactly_once()


def test_a_coordinator_moved_between_prepare_and_commit_is_found_and_the_producer_retired(
    cluster, query
):
    q = query()
    committables = [q.prepared(slot=slot) for slot in range(2)]
    q.commit_at_last(*committables)
    # Now the coordinators are known, and move.
    following = q.sink.confirm([q.prepared(slot=slot, batch=2) for slot in range(2, 4)])
    q.locate(*following)
    for committable in following:
        number = transaction_partition(cluster, committable["name"])
        move_leader(
            cluster,
            TRANSACTIONS,
            number,
            cluster.leader(TRANSACTIONS, number) % len(cluster.nodes) + 1,
        )
    report = q.commit_at_last(*following)
    assert {c["name"] for c in report.retired} == {c["name"] for c in following}
    q.assert_exactly_once()


@pytest.mark.long
def test_coordinators_that_move_all_the_time_lose_and_double_nothing(cluster, query):
    q = query()
    used, moved, stop = set(), set(), threading.Event()

    def move_on():
        while not stop.is_set():
            for name in sorted(used):
                number = transaction_partition(cluster, name)
                move_leader(
                    cluster,
                    TRANSACTIONS,
                    number,
                    cluster.leader(TRANSACTIONS, number) % len(cluster.nodes) + 1,
                )
                moved.add(number)

    mover = InThread(move_on)
    retired, batch = [], 0
    try:
        # A producer whose commit met no move is used again, with a coordinator that is known; so a
        # move is met sooner or later.
        while batch < 20 or len(retired) < 5:
            batch += 1
            assert batch <= 200, f"only {len(retired)} commits met a move; the test proves nothing"
            transactions = [q.begin(slot=slot, batch=batch) for slot in range(2)]
            used = {transaction.producer.name for transaction in transactions}
            for transaction in transactions:
                q.write(transaction, q.values(30))
            report = q.commit_at_last(
                *[q.sink.pre_commit(transaction) for transaction in transactions]
            )
            at_last(lambda report=report: q.sink.retire(report.retired))
            retired += report.retired
            q.reusable = tuple({**c, "batch": batch} for c in report.completed)
    finally:
        stop.set()
        mover.result()
    assert {transaction_partition(cluster, c["name"]) for c in retired} <= moved, (
        "retired for something else than a move"
    )
    q.assert_exactly_once()


# --- in the middle of recovery --------------------------------------------------------------------


def leave_open(q, count=6):
    """Prepare transactions that nobody decides, with coordinators on all nodes where possible."""
    undecided = [q.prepared(slot=slot) for slot in range(count)]
    q.expected = []
    assert len(q.open()) == count
    return [c["name"] for c in undecided]


def assert_swept(q):
    assert q.open() == []
    q.commit_at_last(q.prepared(generation=2))
    q.assert_exactly_once()


@pytest.mark.long
def test_a_coordinator_killed_while_open_transactions_are_fenced(cluster, query, on_request):
    q = query()
    names = leave_open(q)
    # Found by the sweep, and killed when the first fence is on its way to it.
    ports = {cluster.address(node): node for node in cluster.nodes}
    killed = []

    def kill(address):
        killed.append(ports[f"{address[0]}:{address[1]}"])
        cluster.kill(killed[0])

    on_request("InitProducerIdRequest", kill)
    assert at_last(lambda: q.sink.recover(q.sweep(2))) <= len(names)
    assert killed
    assert_swept(q)


@pytest.mark.long
def test_a_coordinator_killed_while_open_transactions_are_listed_hides_none(
    cluster, query, on_request
):
    """The others have said what they coordinate, and take over what the dead one had; it comes
    back and has nothing to say."""
    q = query()
    names = leave_open(q)
    victim = max(
        cluster.nodes, key=lambda node: sum(coordinator_of(cluster, name) == node for name in names)
    )
    hidden = [name for name in names if coordinator_of(cluster, name) == victim]
    assert hidden
    client = q.sink._connected()
    client._deadline_s = 60
    listed = threading.Event()
    on_request("ListTransactionsRequest", lambda address: (cluster.kill(victim), listed.set()))
    sweep = InThread(lambda: at_last(lambda: q.sink.recover(q.sweep(2))))
    assert listed.wait(30)
    # Its coordinators are with others by then.
    others = [node for node in cluster.nodes if node != victim]
    wait_until(
        lambda: cluster.state(others[0]).nodes == set(others) == cluster.state(others[1]).nodes, 30
    )
    cluster.restart(victim)
    sweep.result()
    assert_swept(q)


@pytest.mark.long
def test_a_coordinator_moved_in_the_middle_of_recovery(cluster, query, on_request):
    q = query()
    names = leave_open(q)

    def move(address):
        for number in {transaction_partition(cluster, name) for name in names}:
            move_leader(
                cluster,
                TRANSACTIONS,
                number,
                cluster.leader(TRANSACTIONS, number) % len(cluster.nodes) + 1,
            )

    on_request("InitProducerIdRequest", move)
    assert at_last(lambda: q.sink.recover(q.sweep(2))) == len(names)
    assert_swept(q)


# --- a broker cut off, and too few of them --------------------------------------------------------

# librdkafka waits a minute for a broker that hangs, by default.
IMPATIENT = {"socket.timeout.ms": 3000, "request.timeout.ms": 3000}


def commit_at_the_woken(cluster, q, old, on_request, committable, commit):
    """Commit with a client that takes a broker that was cut off for the coordinator; its request
    waits there when it wakes.

    For a moment the broker still believes in itself, and answers from its old memory.
    """
    sent = threading.Event()
    address = q.point_to(old, committable)
    on_request("EndTxnRequest", lambda to: to == address and sent.set(), after=True)
    commit = InThread(commit)
    wait_until(lambda: sent.is_set() or not commit.is_running, 30)
    cluster.resume(old)
    return commit.result()


@pytest.mark.long
def test_a_broker_cut_off_that_wakes_as_an_old_leader_and_coordinator(cluster, query, on_request):
    q = query(options=IMPATIENT)
    before = q.prepared(slot=0)
    old = coordinator_of(cluster, before["name"])
    known = {number for number in range(6) if cluster.leader(TRANSACTIONS, number) == old}
    transaction = q.begin(slot=1)
    q.write(transaction, q.values(300))
    # Connections to all, from before.
    q.sink._connected().open_transactions()
    cut_off(cluster, old)
    q.write(transaction, q.values(300))
    during = q.sink.pre_commit(transaction)
    q.commit_at_last(before, during)
    for slot in range(2, 30):
        unknown = q.prepared(slot=slot)
        if transaction_partition(cluster, unknown["name"]) in known:
            break
        q.commit_at_last(unknown)
    else:
        raise AssertionError(
            f"no id belongs to a partition that node {old} led ({known}); the test proves nothing"
        )
    # The old coordinator never heard of this one, and calls it lost.
    client = q.sink._connected()
    answers = commit_at_the_woken(
        cluster, q, old, on_request, unknown, lambda: client.end_transactions([unknown])
    )
    assert answers.codes == {unknown["name"]: 0}
    # Whoever answered, it is true: nothing is repeated before the reader looks.
    q.assert_exactly_once()
    cluster.wait_until_whole()
    q.commit_at_last(before, during, unknown)
    q.assert_exactly_once()


@pytest.mark.long
def test_a_woken_coordinator_that_remembers_an_earlier_commit_is_not_believed(
    cluster, query, on_request
):
    """Batch 2 has the producer id and epoch of batch 1, which the old coordinator knows as
    committed: its "done" would be a lie."""
    q = query(options=IMPATIENT)
    first = q.prepared(batch=1)
    assert q.commit_at_last(first).completed == (first,)
    transaction = q.begin(batch=2, reusable=[{**first, "batch": 1}])
    assert transaction.producer.name == first["name"], (
        "the producer was not used again; the test proves nothing"
    )
    q.sink._connected().open_transactions()
    old = coordinator_of(cluster, first["name"])
    cut_off(cluster, old)
    q.write(transaction, q.values(30))
    second = q.sink.pre_commit(transaction)
    assert (second["producer_id"], second["producer_epoch"]) == (
        first["producer_id"],
        first["producer_epoch"],
    )
    assert second["doubtful"] is True
    report = commit_at_the_woken(
        cluster, q, old, on_request, second, lambda: q.commit_at_last(second)
    )
    assert report.retired == (second,)
    at_last(lambda: q.sink.retire(report.retired))
    q.assert_exactly_once()


@pytest.mark.long
@pytest.mark.long
def test_a_broker_that_wakes_and_tells_of_the_topic_that_was_is_not_believed(
    cluster, query, on_request
):
    """The other two would commit into the topic that was made again, without the rows."""
    q, committable, stale = _asked_first(cluster, query)
    others = [node for node in cluster.nodes if node != stale]
    cut_off(cluster, stale)
    make_again(cluster, q.topic, others)
    asked = threading.Event()
    address = q.sink._connected()._askable()[0]
    on_request("MetadataRequest", lambda to: to == address and asked.set(), after=True)
    commit = InThread(lambda: q.commit(committable))
    wait_until(lambda: asked.is_set() or not commit.is_running, 30)
    cluster.resume(stale)
    report = commit.result()
    assert [each.is_open for each in report.in_doubt] == [True]
    at_last(lambda: q.sink.abort([committable]))


def _asked_first(cluster, query):
    """A decided transaction, and the broker that is asked first, which isn't its coordinator."""
    for _ in range(20):
        q = query()
        q.check()
        (committable,) = q.sink.confirm([q.prepared(6)])
        q.locate(committable)
        q.sink._just_confirmed = frozenset()
        client = q.sink._connected()
        first = client._askable()[0]
        if first != client._coordinators[committable["name"]]:
            addresses = {cluster.address(node): node for node in cluster.nodes}
            return q, committable, addresses[f"{first[0]}:{first[1]}"]
        q.sink.abort([committable])
    raise AssertionError("the coordinator is always asked first")


def make_again(cluster, topic, nodes):
    """An admin client may wait for a controller that sleeps: another one is tried then."""
    servers = ",".join(cluster.address(node) for node in nodes)
    new = NewTopic(topic, PARTITIONS, replica_assignment=[nodes] * PARTITIONS)

    def is_done(ask, known):
        admin = AdminClient({"bootstrap.servers": servers})
        with suppress(KafkaException, TimeoutError):
            ask(admin)[topic].result(8)
        with suppress(KafkaException):
            return (topic in admin.list_topics(timeout=8).topics) == known
        return False

    wait_until(lambda: is_done(lambda a: a.delete_topics([topic], request_timeout=6), False), 90)
    wait_until(lambda: is_done(lambda a: a.create_topics([new], request_timeout=6), True), 90)


def test_a_coordinator_cut_off_does_not_hold_up_the_others_transactions(cluster, query):
    q = query()
    committables = [q.prepared(slot=slot) for slot in range(6)]
    coordinators = {c["name"]: coordinator_of(cluster, c["name"]) for c in committables}
    away = coordinators[committables[0]["name"]]
    elsewhere = [c for c in committables if coordinators[c["name"]] != away]
    if not elsewhere:  # faults before have left all coordinators on one node
        number = next(
            n
            for c in committables
            if (n := transaction_partition(cluster, c["name"]))
            != transaction_partition(cluster, committables[0]["name"])
        )
        move_leader(cluster, TRANSACTIONS, number, away % len(cluster.nodes) + 1)
        elsewhere = [c for c in committables if coordinator_of(cluster, c["name"]) != away]
    assert elsewhere
    client = q.locate(*committables)
    cluster.pause(away)
    client._deadline_s = client._answer_timeout_s = 8.0
    # A first call asks for two seconds only, which may pass before a second broker is asked who
    # coordinates the others.
    with pytest.raises(SinkUnavailableError, match=rf"^\d of {len(committables)} Kafka transact"):
        q.commit(*committables)
    q.commit_at_last(*elsewhere)
    answers = client.end_transactions(elsewhere)
    assert set(answers.codes.values()) == {0}
    assert answers.codes.keys() == {c["name"] for c in elsewhere}
    client._deadline_s, client._answer_timeout_s = 10.0, 5.0
    cluster.resume(away)
    q.commit_at_last(*committables)
    q.assert_exactly_once()


@pytest.mark.long
def test_with_two_of_three_brokers_away_pre_commit_names_the_reason_and_all_goes_on_when_they_return(
    cluster, query
):
    q = query(options={"message.timeout.ms": 4000})
    transaction = q.begin()
    leader = cluster.leader(q.topic, 0)
    for node in cluster.nodes:
        if node != leader:
            cluster.kill(node)
    q.write(transaction, ["never"] * 30)
    with pytest.raises(AttemptFailedError, match=rf"topic '{q.topic}'.*min\.insync\.replicas"):
        q.sink.pre_commit(transaction)
    q.sink.discard(transaction)
    make_whole(cluster)
    at_last(lambda: q.sink.recover(q.sweep(2)))
    q.commit_at_last(q.prepared(generation=2))
    q.assert_exactly_once()


@pytest.mark.long
def test_pre_commit_waits_for_brokers_that_return_within_its_patience(cluster, query):
    q = query()
    transaction = q.begin()
    for node in list(cluster.nodes)[1:]:
        cluster.kill(node)
    q.write(transaction, q.values(30))
    pre_commit = InThread(lambda: q.sink.pre_commit(transaction))
    make_whole(cluster)
    q.commit_at_last(pre_commit.result())
    q.assert_exactly_once()


@pytest.mark.long
def test_records_without_a_key_pass_by_a_partition_that_has_no_leader(cluster):
    name = f"t-{uuid.uuid4().hex[:12]}"
    cluster.create_topic(name, PARTITIONS, replication=1)
    q = ClusterQuery(cluster, name, options={"message.timeout.ms": 10_000})
    node = cluster.leader(name, 0)
    gone = {p for p in range(PARTITIONS) if cluster.leader(name, p) == node}
    cluster.kill(node)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    wait_until(
        lambda: (
            {
                p
                for p, found in admin.list_topics(name, timeout=10).topics[name].partitions.items()
                if found.leader < 0
            }
            == gone
        )
    )
    transaction = q.begin()
    for _ in range(2 * PARTITIONS):
        q.sink.invoke(transaction, rows(q.values(5)))
    q.commit_at_last(q.sink.pre_commit(transaction))
    make_whole(cluster)
    q.assert_exactly_once()
    found = {m.partition() for m in read(cluster.bootstrap_servers, name, "read_committed")}
    assert found == set(range(PARTITIONS)) - gone
    q.sink.close()


# --- the leader of the records, which coordinates none of the transactions ------------------------


def kill_leader(cluster, topic, node):
    cluster.kill(node)


def move_leaders_away(cluster, topic, node):
    move_leaders(cluster, topic, node % len(cluster.nodes) + 1)


def pause_leader(cluster, topic, node):
    cluster.pause(node)


def leader_faults(*short):
    """Parametrise by what happens to the leader; only the named ones belong to ``make test``."""
    faults = {"killed": kill_leader, "moved": move_leaders_away, "cut-off": pause_leader}
    marks = {name: () if name in short else (pytest.mark.long,) for name in faults}
    return pytest.mark.parametrize(
        "fault", [pytest.param(f, id=name, marks=marks[name]) for name, f in faults.items()]
    )


def prepared_apart(cluster, q, count=1):
    """Prepare transactions with all their records on one leader that coordinates none of them;
    return them and that node."""
    # Two can't be coordinated by all three nodes.
    assert count < len(cluster.nodes)
    transactions = [q.begin(slot=slot) for slot in range(count)]
    coordinators = {
        coordinator_of(cluster, transaction.producer.name) for transaction in transactions
    }
    leader = min(set(cluster.nodes) - coordinators)
    move_leaders(cluster, q.topic, leader)
    for transaction in transactions:
        q.write(transaction, q.values(30))
    committables = [q.sink.pre_commit(transaction) for transaction in transactions]
    assert leaders(cluster, q.topic) == {leader}
    assert leader not in {coordinator_of(cluster, c["name"]) for c in committables}
    return committables, leader


def assert_led_by_others(cluster, q, leader):
    """Wait until every other node knows that this one leads nothing of the topic any more."""
    others = [node for node in cluster.nodes if node != leader and cluster.is_running(node)]
    wait_until(lambda: not any(leaders(cluster, q.topic, node) & {leader, -1} for node in others))


def assert_ended_by_others(cluster, q, leader, committable):
    """See that readers are past what was said to be ended."""
    # Not waited for, and by the word of the one that has had the markers written.
    assert not leaders(cluster, q.topic, coordinator_of(cluster, committable["name"])) & {
        leader,
        -1,
    }
    # A client can ask for offsets only when whichever broker it asks first knows the leaders.
    assert_led_by_others(cluster, q, leader)
    assert held_back(cluster.bootstrap_servers, q.topic) == 0


def at_request_to(cluster, node, on_request, name, fault):
    """Let a fault happen when the next request of a kind goes out; return the list that then
    holds whether it went to that node."""
    was_to_node = []

    def act(address):
        was_to_node.append("{}:{}".format(*address) == cluster.address(node))
        fault()

    on_request(name, act)
    return was_to_node


@leader_faults("moved")
def test_the_records_leader_away_before_the_commit_changes_nothing_about_it(cluster, query, fault):
    q = query(options=IMPATIENT)
    (committable,), leader = prepared_apart(cluster, q)
    fault(cluster, q.topic, leader)
    report = q.commit_at_last(committable)
    assert report.completed == (committable,), "nothing happened to its coordinator"
    q.assert_exactly_once()
    assert_led_by_others(cluster, q, leader)
    q.commit_at_last(q.prepared(batch=2, reusable=[{**committable, "batch": 1}]))
    q.assert_exactly_once()


@leader_faults()
def test_the_records_leader_lost_while_the_commit_runs_gets_no_record_lost_or_doubled(
    cluster, query, on_request, fault
):
    q = query(options=IMPATIENT)
    (committable,), leader = prepared_apart(cluster, q)
    happened = threading.Event()
    on_request(
        "EndTxnRequest",
        lambda address: (fault(cluster, q.topic, leader), happened.set()),
        after=True,
    )
    report = q.commit_at_last(committable)
    assert happened.is_set()
    assert report.completed == (committable,), "nothing happened to its coordinator"
    q.assert_exactly_once()
    assert_led_by_others(cluster, q, leader)


@pytest.mark.parametrize("fault", [kill_leader, pytest.param(pause_leader, marks=pytest.mark.long)])
@pytest.mark.long
def test_a_commit_is_asked_for_again_until_its_markers_are_written_by_another_leader(
    cluster, query, fault
):
    """The first commit is answered before its markers are written; the next one waits for them,
    and so for another leader."""
    q = query()
    (committable,), leader = prepared_apart(cluster, q)
    # Nobody needs to be asked for the coordinator, who might hang, until another one leads.
    client = q.locate(committable)
    client._deadline_s = 60
    fault(cluster, q.topic, leader)
    answers = client.end_transactions([committable])
    assert answers.codes == {committable["name"]: 0}
    assert not answers.repeated
    again = client.end_transactions([committable])
    assert again.codes == {committable["name"]: 0}
    assert again.repeated == {committable["name"]}, (
        "the markers had a leader at once; the test proves nothing"
    )
    assert not again.unanswered, "the coordinator was asked, and said that it isn't done yet"
    assert_ended_by_others(cluster, q, leader, committable)
    q.assert_exactly_once()


@leader_faults()
def test_recovery_lists_and_aborts_what_lies_on_a_leader_that_is_lost_meanwhile(
    cluster, query, on_request, fault
):
    recover_under(cluster, query(options=IMPATIENT), on_request, "ListTransactionsRequest", fault)


@leader_faults("killed")
@pytest.mark.long
def test_recovery_waits_for_the_markers_on_a_leader_that_is_lost_while_it_aborts(
    cluster, query, on_request, fault
):
    recover_under(cluster, query(options=IMPATIENT), on_request, "InitProducerIdRequest", fault)


def recover_under(cluster, q, on_request, request_name, fault):
    """Sweep two open transactions, and lose the leader of all their records when a request goes
    out."""
    undecided, leader = prepared_apart(cluster, q, 2)
    q.expected = []
    assert held_back(cluster.bootstrap_servers, q.topic) > 0
    q.sink._connected()._deadline_s = 60
    happened = threading.Event()
    on_request(request_name, lambda address: (fault(cluster, q.topic, leader), happened.set()))
    fences = []

    def count(address):
        fences.append(address)
        on_request("InitProducerIdRequest", count)

    on_request("InitProducerIdRequest", count)
    assert q.sink.recover(q.sweep(2)) == 2
    assert happened.is_set()
    # The first answer only says that the abort has begun, as long as its markers are not written.
    assert len(fences) > len(undecided), "a fence was taken at its first answer"
    assert_ended_by_others(cluster, q, leader, undecided[0])
    assert_swept(q)


@leader_faults("moved")
def test_the_place_of_the_proof_is_told_by_another_leader_when_the_known_one_is_lost(
    cluster, query, on_request, fault
):
    q = query()
    committables, leader = prepared_apart(cluster, q, 2)
    before = q.sink.confirm(committables)
    assert [c["proof"]["topic"] for c in before] == [q.topic] * 2
    assert min(c["proof"]["offset"] for c in before) > 0
    was_to_leader = at_request_to(
        cluster, leader, on_request, "ListOffsetsRequest", lambda: fault(cluster, q.topic, leader)
    )
    # Nothing was written in between, so nothing else may be told.
    assert at_last(lambda: q.sink.confirm(committables)) == before
    assert was_to_leader == [True]
    assert_led_by_others(cluster, q, leader)
    q.commit_at_last(*before)
    q.assert_exactly_once()


@leader_faults()  # tests/simulation/test_simulated_kafka.py asks old leaders each time
def test_a_proof_is_read_from_another_leader_when_the_known_one_is_lost(
    cluster, query, on_request, fault
):
    q = query()
    committables, leader = prepared_apart(cluster, q, 2)
    committed, aborted = q.sink.confirm(committables)
    q.commit_at_last(committed)
    # Now EndTxn refuses both with the same words, and only the log tells them apart.
    fence([committed, aborted], cluster)
    q.expected = q.expected[:30]
    was_to_leader = at_request_to(
        cluster, leader, on_request, "FetchRequest", lambda: fault(cluster, q.topic, leader)
    )
    report = at_last(lambda: q.commit(committed, aborted))
    assert was_to_leader == [True]
    assert report.retired == (committed,)
    assert [lost.committable for lost in report.lost] == [aborted]
    assert "an abort marker" in report.lost[0].reason
    assert not report.in_doubt
    assert_led_by_others(cluster, q, leader)
    q.assert_exactly_once()


def fence(committables, cluster):
    """Initialise ids as somebody else would."""
    client = CoordinatorClient(cluster.bootstrap_servers)
    try:
        assert not client.fence([c["name"] for c in committables]).missing
    finally:
        client.close()


# --- as brokers are set by default ----------------------------------------------------------------


@pytest.fixture(scope="module")
def slow_to_notice():
    """A cluster that takes nine seconds to find that a broker is dead, as Kafka's default is."""
    config = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}
    with EmbeddedKafkaCluster(config=config) as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_decision_waits_until_another_coordinator_is_elected(slow_to_notice, fault):
    cluster = slow_to_notice
    cluster.create_topic(fault, PARTITIONS)
    q = ClusterQuery(cluster, fault)
    q.check()
    q.commit_at_last(*q.sink.confirm([q.prepared()]))
    cluster.wait_until_whole()
    committable = q.prepared(slot=1)
    old = coordinator_of(cluster, committable["name"])
    getattr(cluster, fault)(old)
    try:
        (confirmed,) = q.sink.confirm([committable])
        q.commit_at_last(confirmed)
    finally:
        (cluster.resume if fault == "pause" else cluster.restart)(old)
    q.assert_exactly_once()
    q.sink.close()
    cluster.wait_until_whole()


# --- records of which the only replica is away ----------------------------------------------------


@pytest.fixture
def alone(cluster):
    """A transaction whose records have one replica, on a node that doesn't coordinate it: query,
    what was prepared, and that node."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    # The other partitions are led by the others.
    cluster.create_topic(name, len(cluster.nodes), replication=1)
    q = ClusterQuery(cluster, name, options={"transaction.timeout.ms": 20_000})
    transaction = q.begin()
    coordinator = coordinator_of(cluster, transaction.producer.name)
    q.number = next(
        number
        for number in range(len(cluster.nodes))
        if cluster.leader(name, number) != coordinator
    )
    leader = cluster.leader(name, q.number)
    assert len(leaders(cluster, name)) > 1
    q.sink.invoke(transaction, rows(q.values(30), partition=pa.array([q.number] * 30, pa.int32())))
    committable = q.sink.pre_commit(transaction)
    q.sink._connected()._deadline_s = 5
    yield q, committable, leader
    q.sink.close()


def take_away(q, leader):
    q.cluster.kill(leader)
    wait_until(lambda: q.cluster.leader(q.topic, q.number) == -1)


def come_back(q, leader):
    """The node and its partitions are back, for every client."""
    q.cluster.restart(leader)
    q.cluster.wait_until_whole()
    wait_until(lambda: -1 not in leaders(q.cluster, q.topic))


NO_LEADER = r"\[\d\]: no leader at the moment"


def test_nothing_is_decided_while_a_partition_that_was_written_to_has_no_leader(alone):
    q, committable, leader = alone
    take_away(q, leader)
    with pytest.raises(SinkUnavailableError, match=NO_LEADER):
        q.sink.confirm([committable])
    come_back(q, leader)
    (confirmed,) = at_last(lambda: q.sink.confirm([committable]))
    assert confirmed["proof"]["partition"] == q.number
    q.commit_at_last(confirmed)
    released(q.cluster.bootstrap_servers, q.topic)
    q.assert_exactly_once()


@pytest.mark.long
def test_a_decided_transaction_is_not_ended_while_a_partition_of_it_has_no_leader(alone):
    """The coordinator would leave that partition's marker out and call the transaction complete;
    nobody would ever read on there."""
    q, committable, leader = alone
    take_away(q, leader)
    with pytest.raises(SinkUnavailableError, match=NO_LEADER):
        q.commit(committable)
    assert committable["name"] in q.open()
    come_back(q, leader)
    q.commit_at_last(committable)
    released(q.cluster.bootstrap_servers, q.topic)
    q.assert_exactly_once()


@pytest.mark.long
def test_an_undecided_transaction_is_not_aborted_while_a_partition_of_it_has_no_leader(alone):
    q, committable, leader = alone
    q.expected = []
    take_away(q, leader)
    with pytest.raises(SinkUnavailableError, match=NO_LEADER):
        q.sink.recover(q.sweep(2))
    assert committable["name"] in q.open()
    come_back(q, leader)
    assert at_last(lambda: q.sink.recover(q.sweep(2))) == 1
    released(q.cluster.bootstrap_servers, q.topic)
    q.commit_at_last(q.prepare(q.values(5), slot=30, generation=2))
    q.assert_exactly_once()


@pytest.mark.long
def test_a_proof_that_has_no_leader_is_waited_for(alone):
    q, committable, leader = alone
    (committable,) = q.sink.confirm([committable])
    q.commit_at_last(committable)
    released(q.cluster.bootstrap_servers, q.topic)
    fence([committable], q.cluster)
    take_away(q, leader)
    with pytest.raises(SinkUnavailableError, match="it has no leader at the moment"):
        q.commit(committable)
    come_back(q, leader)
    report = at_last(lambda: q.commit(committable))
    assert (report.retired, report.lost, report.in_doubt) == ((committable,), (), ())
    q.assert_exactly_once()


# --- rolling restarts -----------------------------------------------------------------------------


@pytest.mark.long
def test_a_rolling_restart_under_a_loop_of_batches_loses_and_doubles_nothing(cluster, query):
    q = query()
    write_under(q, lambda: restart_all(cluster))
    q.assert_exactly_once()


@pytest.mark.long
def test_a_rolling_upgrade_from_the_oldest_release_under_a_loop_of_batches_loses_and_doubles_nothing(
    monkeypatch,
):
    with EmbeddedKafkaCluster(version="3.9") as cluster:
        cluster.create_topic("t", PARTITIONS, config={"min.insync.replicas": "2"})
        q = ClusterQuery(cluster, "t")
        q.check()
        write_under(q, lambda: restart_all(cluster, "4.3"))
        q.assert_exactly_once()
        # Release 3.9 takes version 17.
        monkeypatch.setattr(broker_client, "_FETCH_OF_OLDEST_RELEASE", 18)
        q.check()
        q.sink.close()


def restart_all(cluster, version=None):
    for node in cluster.nodes:
        cluster.stop(node)
        cluster.restart(node, version)
        cluster.wait_until_whole(120)


def write_under(q, call):
    """Run batch after batch, with producers used again, while a call goes on in another thread."""
    rolling = InThread(call)
    batch = 0
    while rolling.is_running or batch < 20:
        batch += 1
        transactions = [q.begin(slot=slot, batch=batch) for slot in range(2)]
        for transaction in transactions:
            q.write(transaction, q.values(30))
        committables = [q.sink.pre_commit(transaction) for transaction in transactions]
        report = q.commit_at_last(*committables)
        at_last(lambda report=report: q.sink.retire(report.retired))
        q.reusable = tuple({**c, "batch": batch} for c in report.completed)
    rolling.result()
