"""Which marker of a producer decides, where compaction has taken a part of the log."""

from types import SimpleNamespace

import pytest

from onceforall.sinks.kafka.driver.evidence import Marker
from onceforall.sinks.kafka.driver.transaction_reader import TransactionReader
from simulator.brokers.records import Entry

PARTITION = ("out", 0)
OURS, EPOCH, OTHERS = 7, 3, 8


def entry(offset, producer_id=OTHERS, epoch=0, **more):
    return Entry(offset, producer_id, epoch, **more)


def marker_in(entries, offset=10):
    """The marker that is found in a log, which is told in two parts."""
    reader = object.__new__(TransactionReader)
    reader._client = SimpleNamespace(deadline_s=10)
    reader._leaders_of = lambda topics, *, look: {PARTITION: ("broker", 1)}
    reader.end_offsets = lambda topics: {PARTITION: entries[-1].offset + 1}

    def fetched(address, partition, position, deadline_s):
        rest = [each for each in entries if each.offset >= position]
        return b"".join(each.encoded() for each in rest[:2])

    reader._fetch = fetched
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
