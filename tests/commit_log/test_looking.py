"""What a tool sees of a log without writing is what the next start learns by sealing, as long as
nobody writes."""

import pytest

from commit_log.building import commit, open_log, run_batches, start
from commit_log.stores import MemoryStore
from onceforall.protocol.entries import Done
from onceforall.protocol.history import EMPTY


def decided_not_done(store):
    log, generation, _ = start(store)
    log.append(generation, commit(7))


def claimed_only(store):
    log = open_log(store)
    log.claim(log.newest_claim())


def done_by_another(store):
    decided_not_done(store)
    log, generation, _ = start(store)
    log.append(generation, Done(7))


def cleaned(store):
    run_batches(store, range(50), retain_commits=1)
    log, generation, _ = start(store, retain_commits=1)
    assert log.clean(generation) > 0


@pytest.mark.parametrize(
    "prepare",
    [
        [lambda store: run_batches(store, range(3))],
        [decided_not_done],
        [lambda store: run_batches(store, range(7)), decided_not_done],
        [lambda store: run_batches(store, range(3)), start],
        [decided_not_done, start, start],
        [decided_not_done, start, claimed_only, claimed_only],
        [done_by_another],
        [done_by_another, claimed_only, start],
        [
            lambda store: run_batches(store, range(3)),
            lambda store: run_batches(store, range(3, 5)),
            start,
        ],
        [cleaned],
        [cleaned, start, claimed_only],
        [start],
    ],
)
def test_looking_tells_what_the_next_start_learns_and_writes_nothing(prepare):
    store = MemoryStore()
    for step in prepare:
        step(store)
    before = dict(store.contents)
    seen = open_log(store).look()
    assert store.contents == before
    assert seen == start(store)[2]
    assert (seen == EMPTY) == (prepare == [start])


def test_an_empty_log_decided_nothing():
    assert open_log(MemoryStore()).look() == EMPTY
