"""Which marker of a producer decides, where compaction has taken a part of the log; and how far the
log is read for it."""

from types import SimpleNamespace

import pytest

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
