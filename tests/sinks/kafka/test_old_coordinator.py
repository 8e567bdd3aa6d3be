"""A broker that was cut off and wakes answers from its old memory, as if it still led and
coordinated what it did. ``Cluster`` lets one do so for as long as a test likes; brokers 1 and 2 tell
the truth. Real brokers do it for a moment in ``test_cluster.py``."""

from types import SimpleNamespace as Answer

import pytest

from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.sinks.kafka.driver import outcomes
from onceforall.sinks.kafka.driver.broker_client import AccessRefusedError
from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient
from onceforall.sinks.kafka.driver.evidence import TransactionState
from onceforall.sinks.kafka.driver.outcomes import confirmed, look_at_topics, withheld
from onceforall.sinks.kafka.driver.retry import Retry
from onceforall.sinks.kafka.driver.transaction_reader import TransactionReader
from onceforall.sinks.kafka.driver.wire import NO_STEPS, NoAnswer

pytestmark = pytest.mark.kafka

ID, OLD, NEW = "onceforall:q:out:1:0.0.0:", 0, 1
OK, NOT_LEADER, NOT_FOUND = 0, 6, 105
OPEN = TransactionState("Ongoing", 7, 3, (("t", 0),))
COMMITTABLE = {"name": ID, "producer_id": 7, "producer_epoch": 3, "records": 1}
KNOWN = {"t": "new"}


class Cluster(CoordinatorClient):
    """Three brokers. All but the first follow ``truth``, and name broker 1 the coordinator."""

    def __init__(self, *, brokers=(0, 1, 2), **old):
        self.nodes = brokers
        super().__init__(",".join(f"b{n}:9092" for n in brokers), deadline_s=0.5)
        self.memory = {"coordinator": OLD, "state": None, "topic_id": "new", **old}
        self.truth = {"coordinator": NEW, "state": OPEN, "topic_id": "new"}
        self.leaders = {0: NEW, 1: 2}
        self.silent = set()
        self.asked = []

    def exchange(self, calls, deadline_s, steps=NO_STEPS):
        return [self._answer(int(address[0][1:]), address, request) for address, request in calls]

    def _answer(self, number, address, request):
        kind = type(request).__name__
        self.asked.append((kind, number))
        if number in self.silent:
            return NoAnswer(address, "no answer in time", sent=True)
        told = self.memory if number == OLD else self.truth
        return getattr(self, kind)(number, told, request)

    def MetadataRequest(self, number, told, request):  # noqa: N802
        partitions = [Answer(partition_index=p, leader_id=n) for p, n in self.leaders.items()]
        topic = Answer(name="t", error_code=OK, topic_id=told["topic_id"], partitions=partitions)
        if told["topic_id"] is None:
            topic = Answer(name="t", error_code=3, topic_id=None, partitions=[])
        return Answer(
            cluster_id="c",
            brokers=[Answer(node_id=n, host=f"b{n}", port=9092) for n in self.nodes],
            topics=[topic] if request.topics else [],
        )

    def FindCoordinatorRequest(self, number, told, request):  # noqa: N802
        host = f"b{told['coordinator']}"
        return Answer(
            coordinators=[
                Answer(key=key, error_code=OK, host=host, port=9092)
                for key in request.coordinator_keys
            ]
        )

    def DescribeTransactionsRequest(self, number, told, request):  # noqa: N802
        (name,) = request.transactional_ids
        state = told["state"]
        if state is None:
            return Answer(transaction_states=[Answer(transactional_id=name, error_code=NOT_FOUND)])
        topics = [Answer(topic=t, partitions=[p]) for t, p in state.partitions]
        return Answer(
            transaction_states=[
                Answer(
                    transactional_id=name,
                    error_code=OK,
                    transaction_state=state.state,
                    producer_id=state.producer_id,
                    producer_epoch=state.epoch,
                    topics=topics,
                )
            ]
        )

    def ListOffsetsRequest(self, number, told, request):  # noqa: N802
        (topic,) = request.topics
        parts = [
            Answer(
                partition_index=wanted.partition_index,
                error_code=OK if self.leaders[wanted.partition_index] == number else NOT_LEADER,
                offset=10 + wanted.partition_index,
            )
            for wanted in topic.partitions
        ]
        return Answer(topics=[Answer(name=topic.name, partitions=parts)])


def retry(is_stopped=lambda: False):
    return Retry(0.5, "It can't be told", "Nothing is decided.", is_stopped)


OVER = TransactionState("CompleteCommit", 7, 3, ())
ANOTHER = TransactionState("Ongoing", 7, 2, (("t", 0),))
EARLIER = TransactionState("Ongoing", 7, 3, (("t", 1),))


@pytest.mark.parametrize("memory", [None, OVER, ANOTHER])
def test_that_a_transaction_is_over_is_believed_of_a_coordinator_that_another_broker_names(memory):
    client = Cluster(state=memory)
    assert TransactionReader(client, None).states([COMMITTABLE]) == {ID: OPEN}
    assert ("DescribeTransactionsRequest", OLD) in client.asked


@pytest.mark.parametrize("memory", [None, OVER, EARLIER])
def test_of_a_doubtful_one_nothing_is_believed_of_another_coordinator(memory):
    client = Cluster(state=memory)
    reader = TransactionReader(client, None)
    client.coordinators([ID], {}, 1e12)
    assert reader.states([COMMITTABLE], [ID]) == {ID: OPEN}
    client.coordinators([ID], {}, 1e12)
    assert reader.states_known_soon([ID], {}) == {ID: OPEN}
    assert ("DescribeTransactionsRequest", OLD) not in client.asked


def test_a_coordinator_that_nobody_else_names_is_not_believed():
    client = Cluster(state=OVER)
    client.silent = {1, 2}
    with pytest.raises(SinkUnavailableError, match="could not be read: .*may have been cut off"):
        TransactionReader(client, None).states([COMMITTABLE])
    reasons = {}
    assert not TransactionReader(client, None).states_known_soon([ID], reasons)
    assert "may have been cut off" in reasons[ID]


def test_the_only_broker_is_believed():
    client = Cluster(brokers=(0,), state=OVER)
    assert TransactionReader(client, None).states([COMMITTABLE], [ID]) == {ID: OVER}


def test_an_open_transaction_is_confirmed_though_its_old_coordinator_calls_it_over():
    reader = TransactionReader(Cluster(state=OVER), None)
    (found,) = confirmed([COMMITTABLE], {"t"}, reader, KNOWN, retry())
    assert found["proof"] == {"topic": "t", "topic_id": "new", "partition": 0, "offset": 10}


def test_one_that_is_over_is_not_confirmed():
    client = Cluster(state=OVER)
    client.truth["state"] = OVER
    with pytest.raises(AttemptFailedError, match="its state is CompleteCommit"):
        confirmed([COMMITTABLE], {"t"}, TransactionReader(client, None), KNOWN, retry())


@pytest.mark.parametrize("memory", [None, OVER, EARLIER])
def test_what_has_a_partition_without_a_leader_is_withheld_whatever_an_old_coordinator_says(memory):
    client = Cluster(state=memory)
    client.leaders = {0: -1, 1: 2}
    assert list(withheld([ID], TransactionReader(client, None))) == [ID]


# --- whose answers the decision needs -------------------------------------------------------------


def test_a_leader_of_what_no_transaction_has_written_to_holds_no_decision_up():
    client = Cluster(coordinator=NEW)
    client.silent = {2}
    (found,) = confirmed([COMMITTABLE], {"t"}, TransactionReader(client, None), KNOWN, retry())
    assert found["proof"]["offset"] == 10
    assert client.asked.count(("ListOffsetsRequest", 2)) == 1


@pytest.mark.parametrize(
    ("leaders", "silent"),
    [({0: OLD, 1: 2}, {OLD}), ({0: -1, 1: 2}, set()), ({1: 2}, set())],
    ids=["silent", "none", "not there yet"],
)
def test_the_end_of_a_partition_is_asked_for_until_its_leader_tells_it(
    monkeypatch, leaders, silent
):
    client = Cluster(coordinator=NEW)
    reader = TransactionReader(client, None)
    client.leaders, client.silent = leaders, silent
    reader.end_offsets({"t"}, {}, again=False)

    def elected(_):
        client.leaders = {0: NEW, 1: 2}

    monkeypatch.setattr(Retry, "pause", elected)
    (found,) = confirmed([COMMITTABLE], {"t"}, reader, KNOWN, retry())
    assert found["proof"] == {"topic": "t", "topic_id": "new", "partition": 0, "offset": 10}


def test_leaders_that_were_elected_since_are_found():
    client = Cluster(coordinator=NEW)
    reader = TransactionReader(client, None)
    client.leaders[0] = 2
    reader.end_offsets({"t"}, {}, again=False)
    client.leaders[0] = NEW
    (found,) = confirmed([COMMITTABLE], {"t"}, reader, KNOWN, retry())
    assert found["proof"]["partition"] == 0


def test_a_leader_that_did_not_answer_is_looked_up_anew_by_the_next_batch():
    client = Cluster(coordinator=NEW)
    reader = TransactionReader(client, None)
    client.silent = {2}
    assert reader.end_offsets({"t"}, {}, again=False) == {("t", 0): 10}
    client.leaders[1] = NEW
    assert reader.end_offsets({"t"}, {}, again=False) == {("t", 0): 10, ("t", 1): 11}
    client.asked.clear()
    reader.end_offsets({"t"}, {}, again=False)
    assert client.asked == [("ListOffsetsRequest", NEW)]


def test_a_stop_ends_the_wait_for_a_leader():
    client = Cluster()
    client.leaders[0] = -1
    stopped = iter([False, False, True])
    with pytest.raises(SinkUnavailableError, match=r"told: t \[0\]: no leader .*is decided\.$"):
        confirmed(
            [COMMITTABLE],
            {"t"},
            TransactionReader(client, None),
            KNOWN,
            retry(lambda: next(stopped)),
        )
    assert next(stopped, None) is None


def test_a_topic_that_is_gone_is_named_sooner_than_a_leader_is_given_up():
    client = Cluster(coordinator=NEW, topic_id=None)
    client.leaders[0] = -1
    client.truth["topic_id"] = None
    reader = TransactionReader(client, None)
    with pytest.raises(AttemptFailedError, match="^Topic t was deleted while"):
        confirmed([COMMITTABLE], {"t"}, reader, dict(KNOWN), Retry(100, "It can't be told"))


def test_a_leader_that_is_lost_while_a_coordinator_is_awaited_is_noticed(monkeypatch):
    """The coordinator would leave its marker out, and call the transaction complete."""
    client = Cluster(coordinator=NEW)
    client.silent = {NEW}
    client.leaders = {0: OLD, 1: 2}

    def comes_back(waited):
        waited.turn_s += 1
        client.silent, client.leaders = set(), {0: -1, 1: 2}

    monkeypatch.setattr(Retry, "pause", comes_back)
    with pytest.raises(SinkUnavailableError, match=r"t \[0\]: no leader at the moment"):
        confirmed([COMMITTABLE], {"t"}, TransactionReader(client, None), KNOWN, retry())


def test_brokers_that_are_all_away_are_awaited_too(monkeypatch):
    client = Cluster(coordinator=NEW)
    client.silent = {0, 1, 2}
    reader, patient = TransactionReader(client, None), Retry(100, "It can't be told")
    monkeypatch.setattr(Retry, "pause", lambda _: client.silent.clear())
    (found,) = confirmed([COMMITTABLE], {"t"}, reader, KNOWN, patient)
    assert found["proof"]["offset"] == 10


def test_whoever_lacks_a_right_is_told_at_once():
    client = Cluster(coordinator=NEW)

    def refuses(*_):
        raise AccessRefusedError("no right")

    client.ListOffsetsRequest = refuses
    with pytest.raises(AccessRefusedError, match="^no right$"):
        confirmed([COMMITTABLE], {"t"}, TransactionReader(client, None), KNOWN, retry())


@pytest.mark.parametrize("ago_s", [0.0, 60.0])
def test_a_commit_goes_by_a_confirmation_of_a_moment_ago_only(query, topic, monkeypatch, ago_s):
    """Another sink of the batch may have confirmed for a minute."""
    q = query(topic())
    q.check()
    (confirmed,) = q.sink.confirm([q.prepare(["a"])])
    q.sink._sure_until_s -= ago_s
    asked = []
    monkeypatch.setattr(outcomes, "withheld", lambda names, *_: asked.extend(names) or {})
    assert q.commit(confirmed).completed
    assert asked == ([confirmed["name"]] if ago_s else [])


# --- topics ---------------------------------------------------------------------------------------


def test_the_id_of_a_topic_that_was_made_again_is_not_taken_from_one_that_woke(monkeypatch):
    """Decided with the old id, a healthy transaction would be in doubt at the next start."""
    client = Cluster(topic_id="old")
    monkeypatch.setattr(Retry, "pause", lambda _: client.memory.update(topic_id="new"))
    known = {}
    look_at_topics({"t"}, TransactionReader(client, None), known)
    assert known == {"t": "new"}


def test_a_leader_that_is_lost_while_the_ids_of_topics_are_asked_for_again_is_noticed(monkeypatch):
    """For what was asked before says nothing of the moment at which they agree."""
    client = Cluster(coordinator=NEW, topic_id="old")

    def comes_back(waited):
        waited.turn_s += 1
        client.memory["topic_id"], client.leaders = "new", {0: -1, 1: 2}

    monkeypatch.setattr(Retry, "pause", comes_back)
    with pytest.raises(SinkUnavailableError, match=r"t \[0\]: no leader at the moment"):
        confirmed([COMMITTABLE], {"t"}, TransactionReader(client, None), {}, retry())


def test_a_topic_that_one_broker_does_not_know_yet_is_there():
    client = Cluster(topic_id=None)
    assert client.describe_topic("t").topic_id == "new"


def test_a_topic_that_nobody_knows_is_missing():
    client = Cluster(topic_id=None)
    client.truth["topic_id"] = None
    assert client.describe_topic("t").error_code == 3
