"""A start costs a bounded number of store operations, however many generations came before.

The bound, for n generations: to claim, 2 log2(n) + 2 reads, and as many for the newest of 64
floors; to seal the one chain of the run before, 16 reads and 4 listings; for
both, 5 creates. To clean: 7 operations for each chain that holds a retained commit and for three
more, and 3 for each entry
deleted (up to 10 in a backlog of chains that have few entries each). To drop chains that have
nothing else than CLAIM and SEAL: 5 operations each, for 64 of them at most, and 10 for the floor;
and for whatever is read of chains, 2 reads of the floor before and 1 or 2 behind.
"""

from __future__ import annotations

import math

import pytest

from commit_log.building import CLAIM, bulk, commit, open_log, run_batches, start
from commit_log.stores import CountingStore, FolderedStore
from onceforall.commit_log import LocalStore
from onceforall.commit_log.chains import entry_key
from onceforall.protocol.entries import Done

GENERATIONS = 10_000
CLAIM_READS = 2 * math.ceil(math.log2(GENERATIONS)) + 2
FLOOR_READS = 2 * math.ceil(math.log2(64)) + 12
DROP = 10 + 5 * 64


def begin(store, retain_commits):
    """Start, and return what each step did to the store."""
    counting = CountingStore(store)
    log, generation, history = start(counting, retain_commits=retain_commits)
    started = counting.take()
    deleted = log.clean(generation)
    return log, generation, history, started, counting.take(), deleted


@pytest.mark.parametrize("batches_each", [0, 1, 3])
def test_a_start_after_10000_generations_is_cheap(batches_each):
    store = FolderedStore()
    batch = bulk(store, GENERATIONS, batches_each)
    for _ in range(20):
        log, generation, history, started, cleaned, deleted = begin(store, retain_commits=5)
        assert started["read"] <= CLAIM_READS + FLOOR_READS + 16
        assert started["create"] <= 5
        assert started["list"] <= 4
        assert sum(cleaned.values()) <= 7 * (5 + 3) + 3 * deleted + DROP
        assert deleted <= 2 * max(batches_each, 1)
        for _ in range(batches_each):
            log.append(generation, commit(batch))
            log.append(generation, Done(batch))
            batch += 1
    assert generation == GENERATIONS + 19
    if batches_each:
        assert history.decided.commit.batch == batch - 1 - batches_each


def test_a_crash_loop_above_the_last_decision_is_cheap():
    store = FolderedStore()
    run_batches(store, range(30))
    for _ in range(1500):
        start(store)
    *_, history, started, cleaned, deleted = begin(store, retain_commits=5)
    assert history.decided.commit.batch == 29
    assert deleted == 50
    assert started["read"] <= CLAIM_READS + FLOOR_READS + 16
    assert sum(cleaned.values()) <= 2 * deleted + 20
    assert sum(begin(store, retain_commits=5)[4].values()) <= 20


def test_claims_that_nobody_sealed_are_sealed_once():
    store = FolderedStore()
    run_batches(store, [0])
    for _ in range(99):
        open_log(store).claim(CLAIM)
    _, _, _, started, _, _ = begin(store, retain_commits=5)
    assert started["create"] <= 100 + 5
    _, _, _, started, _, _ = begin(store, retain_commits=5)
    assert started["create"] <= 5


def test_a_backlog_that_was_never_cleaned_is_cleaned_once():
    store = FolderedStore()
    bulk(store, 2000, 2, cleaned=False)
    *_, cleaned, deleted = begin(store, retain_commits=5)
    assert deleted == 2 * (4000 - 5)
    assert sum(cleaned.values()) <= 10 * deleted
    assert sum(begin(store, retain_commits=5)[4].values()) <= 60 + DROP


def test_a_start_on_a_disk_with_many_generations_is_cheap(tmp_path):
    memory = FolderedStore()
    bulk(memory, 1000, 2)
    for key, content in memory.contents.items():
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert (tmp_path / entry_key(999, 0)).exists()
    *_, history, started, cleaned, _ = begin(LocalStore(tmp_path), retain_commits=5)
    assert history.decided.commit.batch == 1999
    assert sum(started.values()) <= CLAIM_READS + 30
    assert sum(cleaned.values()) <= 60 + DROP


def test_a_log_of_2000_generations_is_dropped_bit_by_bit():
    store = FolderedStore()
    batch = bulk(store, 2000, 1)
    left = len(store.contents)
    for turn in range(40):
        log, generation, history, _, cleaned, _ = begin(store, retain_commits=5)
        assert sum(cleaned.values()) <= 7 * (5 + 3) + DROP
        log.append(generation, commit(batch + turn))
        log.append(generation, Done(batch + turn))
        assert history.decided.commit.batch == batch + turn - 1
        assert len(store.contents) <= left + 10
        left = len(store.contents)
    assert left < 5 * (5 + 8) + 40
