"""A log that keeps the last two entries of each chain: an append needs one request and no look
afterwards, whatever was cleaned and dropped while it was under way."""

from __future__ import annotations

import itertools

import pytest

from commit_log.building import CLAIM, commit, folded, open_log, run_batches, start
from commit_log.stores import Actor, CountingStore, MemoryStore
from onceforall.commit_log.chains import Chains, entry_key, sealed_key
from onceforall.commit_log.floors import Floors
from onceforall.errors import FencedError
from onceforall.protocol.entries import Commit, Done, Seal

SOON = {"retain_commits": 1, "drop_after": 1, "keep_ends": True}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(Floors, "keep_each", 2)


def live(store, batches):
    log, generation = run_batches(store, [], **SOON)
    log.clean(generation)
    for batch in batches:
        log.append(generation, commit(batch, f"g{generation}"))
        log.append(generation, Done(batch))
    return log, generation


def stand_in(store, generation):
    prefix = f"chains/{generation:08d}/"
    return sorted(key.removeprefix(prefix) for key in store.contents if key.startswith(prefix))


def test_of_a_dropped_chain_the_last_two_entries_stay_and_nothing_else():
    store = MemoryStore()
    for batch in range(12):
        live(store, [2 * batch, 2 * batch + 1])
    log, generation = live(store, [])
    dropped = range(1, log.oldest_generation())
    assert len(dropped) > 5
    for chain in dropped:
        assert stand_in(store, chain) == ["00000004.json", "00000005.json"]
        assert Chains(store).end(chain).index == 5
    # The log's first CLAIM stays as well, as ever.
    assert stand_in(store, 0) == ["00000000.json", "00000004.json", "00000005.json"]
    assert folded(log, generation).decided.commit == commit(23, f"g{generation - 1}")


def test_a_cleaned_chain_keeps_what_stands_before_its_seal():
    store = MemoryStore()
    # Each run is killed behind a decision, and the next one writes the DONE.
    for batch in range(5):
        log, generation = run_batches(store, [], retain_commits=1, keep_ends=True)
        log.append(generation, commit(batch, f"g{generation}"))
    log, generation = run_batches(store, [], retain_commits=1, keep_ends=True)
    assert log.clean(generation) >= 3
    for chain in range(generation - 1):
        end = Chains(store).end(chain)
        assert entry_key(chain, end.index - 1) in store.contents
    assert folded(log, generation).decided.commit.batch == 4


def test_an_append_is_one_request():
    store = CountingStore(MemoryStore())
    log, generation, _ = start(store, **SOON)
    log.append(generation, commit(0))
    store.take()
    for batch in range(1, 4):
        log.append(generation, commit(batch))
        assert store.take() == {"create": 1}
        log.append(generation, Done(batch))
        assert store.take() == {"create": 1}


@pytest.mark.parametrize("successors", [1, 2, 5, 9])
def test_an_append_that_was_frozen_meets_the_seal_however_long_ago_its_chain_was_dropped(
    successors,
):
    store = MemoryStore()
    frozen = Actor(store)
    log = open_log(frozen, **SOON)

    def run():
        claimed = log.claim(CLAIM)
        log.seal_below(claimed.generation)
        log.append(claimed.generation, commit(0, "frozen"))
        log.append(claimed.generation, Done(0))
        return log.append(claimed.generation, commit(1, "frozen"))

    frozen.start(run)
    creates = 0
    while True:
        creates += frozen.facing == "create"
        if creates == 4:
            break
        frozen.step()
    for batch in range(1, successors + 1):
        live(store, [batch])
    last, _ = live(store, [])
    assert last.oldest_generation() > 0
    while frozen.running:
        frozen.step()
    assert isinstance(frozen.outcome, FencedError), frozen.outcome
    assert not any(
        isinstance(entry, Commit) and entry == commit(1, "frozen")
        for chain in range(successors + 2)
        for _, entry in last.entries(chain)
    )


@pytest.mark.parametrize("successors", [1, 2, 5, 9])
def test_a_request_that_arrives_again_changes_nothing_however_late(successors):
    """Every create of a run is repeated by the network after its chain was sealed, cleaned and
    dropped."""
    store = MemoryStore()
    sent = []

    class Recording(MemoryStore):
        def create(self, key, content, in_time=None):
            sent.append((key, content))
            return store.create(key, content, in_time)

    recording = Recording()
    recording.contents = store.contents
    live(recording, [0, 1])
    for batch in range(2, successors + 2):
        live(store, [batch])
    last, generation = live(store, [])
    before = folded(last, generation).decided
    floor = last.oldest_generation()
    for key, content in sent:
        store.create(key, content)
    again, newest, history = start(store, **SOON)
    assert history.decided == before
    assert newest == generation + 1
    assert again.oldest_generation() == floor
    live(store, [successors + 2])


def test_a_drop_that_was_killed_anywhere_is_finished_by_the_next_one():
    for kill_at in itertools.count():
        store = MemoryStore()
        for batch in range(3):
            live(store, [batch])
        _, generation = run_batches(store, [], **SOON)
        actor = Actor(store)
        cleaner = open_log(actor, **SOON)
        actor.start(lambda c=cleaner, g=generation: c.clean(g))
        for _ in range(kill_at):
            if actor.running:
                actor.step()
        finished = not actor.running
        if not finished:
            actor.kill()
        live(store, [3])
        live(store, [4])
        last, _ = live(store, [])
        for chain in range(1, last.oldest_generation()):
            names = stand_in(store, chain)
            assert len(names) == 2, (kill_at, chain, names)
            assert isinstance(Chains(store).end(chain).seal, Seal)
            assert sealed_key(chain) not in store.contents
        if finished:
            assert kill_at > 5
            break
