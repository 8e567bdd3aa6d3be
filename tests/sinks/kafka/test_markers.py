"""Which marker of a producer decides, where compaction has taken a part of the log; and how far the
log is read for it."""

import time
import warnings
from types import SimpleNamespace

import pytest

from onceforall.sinks.kafka.driver.broker_client import ClusterIdentity
from onceforall.sinks.kafka.driver.evidence import Marker
from onceforall.sinks.kafka.driver.transaction_reader import TransactionReader, _Leaders
from simulator.brokers.records import Entry

PARTITION = ("out", 0)
OURS, EPOCH, OTHERS = 7, 3, 8


def entry(offset, producer_id=OTHERS, epoch=0, **more):
    return Entry(offset, producer_id, epoch, **more)


def marker_in(entries, offset=10, others_write=lambda: None, ends=None):
    """The marker that is found in a log, which is told in parts of two.

    Others may write before each fetch; ``ends`` are what is told in turn of where the log ends, the
    last one again and again.
    """
    reader = object.__new__(TransactionReader)
    reader._client = SimpleNamespace(deadline_s=10)
    reader._leaders_of = lambda topics, *, look: _Leaders({PARTITION: ("broker", 1)}, frozenset())
    told = list(ends or ())

    def end_offsets(topics, reasons, *, again):
        if not told:
            return {PARTITION: entries[-1].offset + 1}
        return {PARTITION: told.pop(0) if len(told) > 1 else told[0]}

    def fetched(address, partition, position, deadline_s):
        others_write()
        rest = [each for each in entries if each.offset >= position]
        return b"".join(each.encoded() for each in rest[:2])

    reader.end_offsets, reader._fetch = end_offsets, fetched
    return reader.marker(PARTITION, offset, OURS, EPOCH)


ABORT = entry(13, OURS, EPOCH + 1, commits=False)
WHOLE = [entry(9), entry(10), entry(11), entry(12, OTHERS, commits=True)]


@pytest.mark.parametrize("gone", [None, *range(4)])
def test_an_abort_marker_is_the_first_only_where_nothing_is_gone_before_it(gone):
    before = [each for number, each in enumerate(WHOLE) if number != gone]
    # What stood in front of the proof may go.
    assert marker_in([*before, ABORT]) == Marker(False, EPOCH + 1, 13, is_first=gone in {None, 0})


@pytest.mark.parametrize("whose", [OURS, OTHERS])
def test_a_marker_of_which_the_header_is_left_may_have_committed(whose):
    emptied = entry(11, whose, EPOCH, commits=True, emptied=True)
    found = marker_in([entry(10), emptied, entry(12), ABORT])
    assert found == Marker(False, EPOCH + 1, 13, is_first=whose == OTHERS)


def test_the_first_marker_counts_and_what_is_gone_behind_it_is_no_matter():
    commit = entry(10, OURS, EPOCH, commits=True)
    assert marker_in([commit, ABORT]) == Marker(True, EPOCH, 10)


COMMIT = entry(11, OURS, EPOCH, commits=True)


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ([entry(10), entry(11)], None),
        ([entry(10), COMMIT], Marker(True, EPOCH, 11)),
        ([entry(10), entry(11, OURS, EPOCH + 1, commits=False)], Marker(False, EPOCH + 1, 11)),
        ([entry(10), COMMIT, entry(12, OURS, EPOCH)], None),
    ],
)
def test_a_topic_that_others_write_to_all_the_time_is_read_to_the_end_that_it_had(log, found):
    """Once it was read for as long as they went on: a commit and a start hung."""
    fetches = []

    def others_write():
        fetches.append(log)
        assert len(fetches) < 100, "the log is read without an end"
        log.append(entry(log[-1].offset + 1))

    assert marker_in(log, others_write=others_write) == found


@pytest.mark.parametrize(
    ("whose", "epoch", "is_enough"),
    [(OURS, EPOCH + 1, True), (OURS, EPOCH, False), (OTHERS, EPOCH + 1, False)],
)
def test_behind_a_marker_under_a_later_epoch_nothing_more_is_read(whose, epoch, is_enough):
    """Whatever the producer had written under ours is over there."""
    log = [entry(10, OURS, EPOCH), COMMIT, entry(12, whose, epoch, commits=False)]
    log += [entry(offset) for offset in range(13, 30)]
    fetches = []
    found = marker_in(log, others_write=lambda: fetches.append(1))
    assert found == Marker(True, EPOCH, 11)
    assert (len(fetches) == 2) == is_enough


def test_an_end_that_an_old_leader_told_at_first_is_not_the_end():
    """It was cut off before this transaction, and knows of an earlier one under the same epoch."""
    earlier, ours = entry(11, OURS, EPOCH, commits=True), entry(12, OURS, EPOCH)
    log = [entry(10, OURS, EPOCH), earlier, ours, entry(13), entry(14)]
    log.append(entry(15, OURS, EPOCH + 1, commits=False))
    assert marker_in(log, ends=[12, 16]) == Marker(False, EPOCH + 1, 15)


def test_a_partition_that_is_gone_is_not_one_without_a_leader(monkeypatch):
    """What is withheld for a leader that never comes would never be seen."""
    reader = TransactionReader(None, None)
    told = {("t", 0): ("127.0.0.1", 9092), ("t", 1): None}
    monkeypatch.setattr(reader, "identify_patiently", lambda topics: None)
    monkeypatch.setattr(reader, "_leaders_of", lambda topics, look: _Leaders(told, frozenset()))
    found = reader.leaderless([("t", 0), ("t", 1), ("t", 2), ("gone", 0)])
    assert found == {("t", 1): "t [1]: no leader at the moment"}


NAME, NUMBER = PARTITION
OLD_LEADER, LEADER = ("broker", 1), ("broker", 2)


class Brokers:
    """A client of a cluster, some of whose brokers are behind the others: what each knows of."""

    deadline_s = answer_timeout_s = 1.0

    def __init__(self, log, *, told, leaders, short=0, start=0):
        """``told`` says in turn whether who is asked for metadata knows the topic, and ``leaders``
        whom it names; the old leader lacks the last ``short`` records, and the log begins at
        ``start``."""
        self.log, self.told, self.leaders = log, list(told), list(leaders)
        self.short, self.start = short, start

    def metadata(self, topic):
        brokers = [
            SimpleNamespace(node_id=a[1], host=a[0], port=a[1]) for a in (OLD_LEADER, LEADER)
        ]
        leader = self.leaders.pop(0) if len(self.leaders) > 1 else self.leaders[0]
        knows = self.told.pop(0) if len(self.told) > 1 else self.told[0]
        partitions = [SimpleNamespace(partition_index=NUMBER, leader_id=leader[1])]
        found = SimpleNamespace(
            name=topic, error_code=0 if knows else 3, partitions=partitions if knows else []
        )
        return SimpleNamespace(brokers=brokers, topics=[found])

    def identify_everywhere(self, topics, answer_timeout_s):
        return [
            ClusterIdentity("c", {NAME: "id"} if knows else {}, frozenset(() if knows else topics))
            for knows in sorted({*self.told})
        ]

    def exchange(self, calls, deadline_s):
        return [self._answer(*call) for call in calls]

    def _answer(self, address, request):
        known = self.log[: len(self.log) - (self.short if address == OLD_LEADER else 0)]
        end = known[-1].offset + 1
        part = request.topics[0].partitions[0]
        if type(request).__name__.startswith("ListOffsets"):
            found = SimpleNamespace(partition_index=NUMBER, error_code=0, offset=end)
            return SimpleNamespace(topics=[SimpleNamespace(name=NAME, partitions=[found])])
        position = part.fetch_offset
        in_range = self.start <= position <= end
        records = b"".join(each.encoded() for each in known if each.offset >= position)
        found = SimpleNamespace(error_code=0 if in_range else 1, records=records)
        return SimpleNamespace(responses=[SimpleNamespace(partitions=[found])])


def marker_of(brokers):
    with warnings.catch_warnings():
        # kafka-python's, when it loads a request.
        warnings.simplefilter("ignore", DeprecationWarning)
        return TransactionReader(brokers, None).marker(PARTITION, 10, OURS, EPOCH)


LOG = [*(entry(offset) for offset in range(5, 11)), COMMIT]


def test_a_broker_that_does_not_know_the_topic_yet_is_not_believed_where_another_one_does():
    """One that has just started, or was cut off, may be behind. Once that stopped the query, which
    said that the partition is not there any more."""
    assert marker_of(Brokers(LOG, told=[False, True], leaders=[LEADER])) == Marker(True, EPOCH, 11)


def test_a_topic_that_no_broker_knows_is_gone():
    found = marker_of(Brokers(LOG, told=[False], leaders=[LEADER]))
    assert "is not there any more" in found.reason


@pytest.mark.parametrize("answer", [0, 1])
def test_that_a_topic_is_gone_is_not_believed_of_one_broker_while_others_are_slow(
    monkeypatch, answer
):
    """It may have just started. Once that alone stopped the query, with a transaction in doubt."""
    brokers = Brokers(LOG, told=[False, True], leaders=[LEADER])
    missing = ClusterIdentity("c", {}, frozenset({NAME}), brokers=3)
    monkeypatch.setattr(brokers, "identify_everywhere", lambda *_: [missing] * answer)
    assert marker_of(brokers) == Marker(True, EPOCH, 11)


def test_a_leader_that_was_cut_off_and_lacks_the_proof_is_not_believed():
    """Once that stopped the query, which said that retention had deleted the proof."""
    brokers = Brokers(LOG, told=[True], leaders=[OLD_LEADER, OLD_LEADER, LEADER], short=4)
    assert marker_of(brokers) == Marker(True, EPOCH, 11)


@pytest.mark.parametrize("leader", [OLD_LEADER, LEADER])
def test_a_proof_that_is_not_in_the_log_of_the_leader_that_stays_is_gone(leader):
    shortened = {"short": 4} if leader == OLD_LEADER else {"start": 11}
    found = marker_of(Brokers(LOG, told=[True], leaders=[leader], **shortened))
    assert "is not in the log any more (retention), or is lost" in found.reason


def test_what_the_last_turn_finds_is_the_verdict_however_long_it_takes(monkeypatch):
    """Once the log "could not be read" where the deadline passed within a turn."""
    marker_of(Brokers(LOG, told=[True], leaders=[LEADER]))  # the requests' modules are loaded then
    brokers = Brokers(LOG, told=[True], leaders=[OLD_LEADER], short=4)
    answers, brokers.deadline_s = brokers.exchange, 0.1

    def ends_of_the_log_take_long(calls, deadline_s):
        if type(calls[0][1]).__name__.startswith("ListOffsets"):
            time.sleep(2 * brokers.deadline_s)
        return answers(calls, deadline_s)

    monkeypatch.setattr(brokers, "exchange", ends_of_the_log_take_long)
    found = marker_of(brokers)
    assert "is not in the log any more (retention), or is lost" in found.reason
