from __future__ import annotations

import pytest

from commit_log.building import CLAIM, commit, content_of, folded, open_log, run_batches, start
from commit_log.stores import Actor, CountingStore, FlakyStore, MemoryStore, Wrapped
from onceforall.commit_log.chains import Chains, entry_key, sealed_key
from onceforall.errors import (
    CommitLogError,
    CorruptEntryError,
    FencedError,
    ForeignEntryError,
    OutcomeUnknownError,
    ProtocolViolationError,
)
from onceforall.protocol.entries import Commit, Done, Seal


@pytest.fixture
def store():
    return MemoryStore()


def kinds(store, generation):
    return {index: entry.kind for index, entry in open_log(store).entries(generation)}


def commits(store):
    newest = open_log(store).newest_generation()
    chains = range(newest + 1)
    return [
        entry.batch
        for g in chains
        for _, entry in open_log(store).entries(g)
        if isinstance(entry, Commit)
    ]


@pytest.mark.parametrize("retain", [1, 2, 3, 7, 100])
def test_the_newest_commits_stay_with_their_dones_and_with_every_claim_and_seal(store, retain):
    for first in range(0, 20, 4):
        run_batches(store, range(first, first + 4))
    log, generation, history = start(store, retain_commits=retain)
    seals = {g: max(kinds(store, g)) for g in range(generation)}
    deleted = log.clean(generation)
    assert commits(store) == list(range(max(0, 20 - retain), 20))
    assert deleted == 2 * max(0, 20 - retain)
    for g in range(generation):
        there = kinds(store, g)
        assert (there[0], there[seals[g]]) == ("CLAIM", "SEAL")
        assert list(there.values()).count("DONE") == list(there.values()).count("COMMIT")
    assert folded(open_log(store), generation) == history
    assert log.clean(generation) == 0
    assert start(store)[2] == history


class CleanedBehindTheMark(Chains):
    """Chains that a cleaner meets right behind the look for its mark."""

    def __init__(self, store, clean):
        super().__init__(store)
        self.clean = clean

    def marked_end(self, generation):
        found = super().marked_end(generation)
        if self.clean is not None:
            clean, self.clean = self.clean, None
            assert clean() > 0
        return found


def test_whoever_reads_a_chain_while_it_is_cleaned_reads_all_or_its_end(store):
    """The mark comes before the first deletion, so it is looked for behind the reading."""
    run_batches(store, range(5))
    log, generation, _ = start(store, retain_commits=1)
    whole = open_log(store).entries(0)
    chains = CleanedBehindTheMark(store, lambda: log.clean(generation))
    assert chains.remaining(0) == whole
    assert chains.clean is None
    assert [entry.kind for _, entry in chains.remaining(0)] == ["CLAIM", "COMMIT", "DONE", "SEAL"]


def test_what_a_lagging_listing_hides_is_read_before_the_mark_is_looked_for(store):
    """Else what was decided last is missed, where a cleaner has deleted it meanwhile."""

    class Lags(Wrapped):
        def list(self, folder):
            return sorted(super().list(folder))[:3]

    run_batches(store, range(5))
    log, generation, _ = start(store)
    run_batches(store, range(5, 9))
    log, generation, _ = start(store, retain_commits=1)
    chains = CleanedBehindTheMark(Lags(store), lambda: log.clean(generation))
    found = chains.since_last_commit(0)
    assert chains.clean is None
    assert [entry.kind for _, entry in found][-3:] == ["COMMIT", "DONE", "SEAL"]
    assert chains.since_last_commit(0) == chains.marked_end(0)


def test_the_last_decision_stays_even_if_nothing_is_to_be_retained(store):
    log, generation = run_batches(store, range(5))
    log.append(generation, commit(5))
    log, generation, history = start(store, retain_commits=0)
    log.clean(generation)
    assert history.decided.commit == commit(5)
    assert not history.decided.done
    assert start(store)[2] == history
    assert 5 in commits(store)


def test_the_last_decision_stays_under_repeated_dones(store):
    log, generation = run_batches(store, range(5))
    for _ in range(5):
        log.append(generation, Done(4))
    log, generation, history = start(store, retain_commits=1)
    log.clean(generation)
    assert commits(store) == [4]
    assert start(store)[2] == history


def test_a_commit_and_its_done_are_kept_or_deleted_together(store):
    run_batches(store, [0, 1])
    log, generation = run_batches(store, [2])
    log.append(generation, commit(3))
    log, generation, _ = start(store, retain_commits=2)
    assert log.clean(generation) == 4
    assert kinds(store, 0) == {0: "CLAIM", 5: "SEAL"}
    assert kinds(store, 1) == {0: "CLAIM", 1: "COMMIT", 2: "DONE", 3: "COMMIT", 4: "SEAL"}


def test_a_cleaned_chain_is_known_to_be_sealed_after_one_read_between_two_looks_at_the_floor(store):
    run_batches(store, range(5))
    run_batches(store, range(5, 8))
    log, generation, _ = start(store, retain_commits=1)
    log.clean(generation)
    counting = CountingStore(store)
    open_log(counting).oldest_generation()
    floor = counting.take()["read"]
    assert open_log(counting).is_sealed(0)
    assert counting.take() == {"read": 1 + 2 * floor}


def test_the_last_decision_stays_under_many_generations_that_decided_nothing(store):
    run_batches(store, range(5))
    for _ in range(50):
        log, generation, history = start(store, retain_commits=1)
        log.clean(generation)
        assert history.decided.commit.batch == 4
    assert commits(store) == [4]


def test_the_done_of_a_deleted_commit_goes_too_though_a_later_run_wrote_it(store):
    log, generation = run_batches(store, [0])
    log.append(generation, commit(1))
    for _ in range(3):
        start(store)
    recovering, above, _ = start(store)
    recovering.append(above, Done(1))
    for _ in range(3):
        start(store)
    run_batches(store, [2, 3])
    log, generation, history = start(store, retain_commits=1, drop_after=100)
    assert kinds(store, above) == {0: "CLAIM", 1: "DONE", 2: "SEAL"}
    log.clean(generation)
    assert kinds(store, 0) == {0: "CLAIM", 4: "SEAL"}
    assert kinds(store, above) == {0: "CLAIM", 2: "SEAL"}
    assert start(store)[2] == history


def test_the_done_of_a_kept_commit_stays_though_a_later_run_wrote_it(store):
    log, generation, _ = start(store)
    for batch in range(10):
        log.append(generation, commit(batch))
        if batch < 9:
            log.append(generation, Done(batch))
    recovering, above, _ = start(store)
    recovering.append(above, Done(9))
    run_batches(store, [10])
    cleaner, newest, _ = start(store, retain_commits=6)
    assert cleaner.clean(newest) > 0
    kept = [entry.batch for _, entry in cleaner.entries(0) if isinstance(entry, Commit)]
    assert kept[-1] == 9
    assert kept[0] > 0
    dones = [
        entry.batch
        for generation in (0, above, newest - 1)
        for _, entry in cleaner.entries(generation)
        if isinstance(entry, Done)
    ]
    assert set(dones) >= {*kept, 10}


def test_nothing_is_deleted_in_or_above_our_own_generation(store):
    log, generation = run_batches(store, range(5), retain_commits=1)
    assert log.clean(generation) == 0
    assert commits(store) == list(range(5))


def test_nothing_is_cleaned_before_the_past_is_sealed(store):
    run_batches(store, range(5))
    log = open_log(store, retain_commits=1)
    generation = log.claim(CLAIM).generation
    with pytest.raises(ProtocolViolationError, match="is not sealed, so nothing may be deleted"):
        log.clean(generation)
    assert commits(store) == list(range(5))


def test_a_crash_anywhere_in_cleaning_is_made_good_by_the_next_clean(store):
    # Die at the Nth operation, for N = 0, 1, …, until it is through.
    def build():
        world = MemoryStore()
        for first in range(0, 9, 3):
            log, generation = run_batches(world, range(first, first + 3))
            if first == 3:
                log.append(generation, commit(first + 3, "undone"))
            start(world)
        return world

    expected = build()
    log, generation, history = start(expected, retain_commits=2)
    log.clean(generation)
    for operations in range(1000):
        world = build()
        claimed = start(world)[1]
        actor = Actor(world)
        actor.start(
            lambda actor=actor, claimed=claimed: open_log(actor, retain_commits=2).clean(claimed)
        )
        for _ in range(operations):
            if actor.running:
                actor.step()
        through = not actor.running
        actor.kill()
        assert folded(open_log(world), claimed) == history
        open_log(world, retain_commits=2).clean(claimed)
        assert world.contents.keys() - {entry_key(claimed + 1, 0)} == expected.contents.keys()
        if through:
            break
    else:
        pytest.fail("it never came through")
    assert operations > 20


def test_two_cleaners_at_once_delete_no_more_than_one(store):
    for first in range(0, 12, 3):
        run_batches(store, range(first, first + 3))
    older = start(store)[1]
    run_batches(store, range(12, 15))
    newer, history = start(store)[1:]
    actors = [Actor(store), Actor(store)]
    actors[0].start(lambda: open_log(actors[0], retain_commits=2).clean(older))
    actors[1].start(lambda: open_log(actors[1], retain_commits=2).clean(newer))
    while any(actor.running for actor in actors):
        for actor in actors:
            if actor.running:
                actor.step()
    assert commits(store) == [13, 14]
    assert start(store)[2] == history


def zombie_sealer(store, steps):
    """A start that freezes in the middle of sealing, while its successors seal, go on, and clean.

    Returns the frozen one.
    """
    run_batches(store, [0])
    log, generation = run_batches(store, [])
    for batch in range(1, 5):
        log.append(generation, commit(batch))
        log.append(generation, Done(batch))
    frozen = Actor(store)
    claimed = open_log(frozen).claim(CLAIM).generation
    frozen.start(lambda: open_log(frozen).seal_below(claimed))
    for _ in range(steps):
        if frozen.running:
            frozen.step()
    return frozen, log, generation


def test_a_sealer_that_was_frozen_while_its_chain_was_cleaned_does_not_take_a_deleted_entry_for_the_tail(
    store,
):
    # Without ``sealed.json`` it would seal the chain a second time, and believe that an old batch
    # is the last decision.
    outcomes, restored = set(), {}
    for steps in range(40):
        world = MemoryStore()
        frozen, log, generation = zombie_sealer(world, steps)
        try:
            log.append(generation, commit(5))
            log.append(generation, Done(5))
            decided = commit(5)
        except FencedError:
            decided = commit(4)
        run_batches(world, [6, 7])
        log, generation, history = start(world, retain_commits=1)
        log.clean(generation)
        before = dict(world.contents)
        outcome = frozen.finish()
        outcomes.add(type(outcome).__name__)
        if isinstance(outcome, Exception):
            assert isinstance(outcome, FencedError)
        else:
            assert outcome.decided.commit == decided
            assert outcome.decided.done
        # What it had read, and the cleaner has deleted since, it may have made durable.
        left = {key: content for key, content in world.contents.items() if key not in before}
        assert left.items() <= world.ever.items(), "it left a second SEAL behind"
        restored.update(left)
        assert start(world)[2] == history
        assert folded(open_log(world), generation) == history
    assert outcomes == {"FencedError", "History"}
    assert len(restored) == 1


def test_a_seal_that_lands_where_an_entry_was_deleted_means_nothing(store):
    for first in range(0, 9, 3):
        run_batches(store, range(first, first + 3))
    log, generation, history = start(store, retain_commits=1)
    log.clean(generation)
    before = [open_log(store).entries(g) for g in range(generation)]
    for index in (1, 2, 5):
        store.create(entry_key(0, index), content_of(Seal(None, None, done=False), 0, index))
    store.create(entry_key(1, 5), content_of(Seal(0, 1, done=False), 1, 5))
    assert [open_log(store).entries(g) for g in range(generation)] == before
    assert open_log(store).is_sealed(0)
    again, generation, same = start(store, retain_commits=1)
    assert same == history
    again.clean(generation)
    assert start(store)[2] == history


def test_a_chain_that_is_sealed_and_cleaned_while_it_is_read_counts_as_sealed():
    class Slow(MemoryStore):
        during = None

        def read(self, key):
            content = super().read(key)
            if self.during and key == entry_key(generation, 2):
                during, self.during = self.during, None
                during()
            return content

    world = Slow()
    log, generation = run_batches(world, [0])

    def meanwhile():
        log.append(generation, commit(1))
        log.append(generation, Done(1))
        run_batches(world, [2, 3])
        cleaner, above, _ = start(world, retain_commits=1)
        cleaner.clean(above)
        assert world.read(entry_key(generation, 3)) is None

    world.during = meanwhile
    assert open_log(world).is_sealed(generation)
    assert world.during is None


def test_a_sealer_that_lost_its_chain_to_a_cleaner_goes_on_from_the_new_frontier(store):
    # The cleaner is *older* than the sealer here, which is therefore not fenced.
    for batch in range(4):
        run_batches(store, [batch])
    cleaner = start(store, retain_commits=1)
    sealer = Actor(store)
    claimed = open_log(store).claim(CLAIM).generation
    sealer.start(
        lambda: open_log(sealer)._history_at(1, open_log(sealer)._chains.end(1), cleaner[2])
    )
    cleaner[0].clean(cleaner[1])
    assert isinstance(sealer.finish(), CommitLogError)
    assert open_log(store).seal_below(claimed) == cleaner[2]


def test_a_lost_append_that_was_decided_and_cleaned_meanwhile_is_not_reported_as_appended(store):
    class LateAnswer(MemoryStore):
        during = None

        def create(self, key, content):
            answer = super().create(key, content)
            if self.during:
                during, self.during = self.during, None
                during()
                raise ConnectionError("timed out")
            return answer

    world = LateAnswer()
    log, generation = run_batches(world, [0])
    histories = []

    def meanwhile():
        run_batches(world, [2, 3])
        cleaner, above, history = start(world, retain_commits=1)
        assert cleaner.clean(above) > 0
        assert world.read(entry_key(generation, 3)) is None
        histories.append(history)

    world.during = meanwhile
    with pytest.raises(
        OutcomeUnknownError,
        match="A newer run of this query has taken over meanwhile.* Do not restart this run",
    ):
        log.append(generation, commit(1))
    assert start(world)[2] == histories[0]


def test_nothing_is_deleted_in_a_chain_before_its_end_is_marked(store):
    for first in range(0, 6, 3):
        run_batches(store, range(first, first + 3))
    log, generation, _ = start(flaky := FlakyStore(store), retain_commits=1)
    flaky.faults.extend(["before"] * 5)
    with pytest.raises(CommitLogError, match=rf"memory:{sealed_key(0)}"):
        log.clean(generation)
    assert commits(store) == list(range(6))
    assert log.clean(generation) == 10


def test_a_damaged_mark_is_named(store):
    for first in range(0, 6, 3):
        run_batches(store, range(first, first + 3))
    log, generation, _ = start(store, retain_commits=1)
    log.clean(generation)
    mark = store.contents[sealed_key(0)]
    store.contents[sealed_key(0)] = mark[:-5]
    with pytest.raises(CorruptEntryError, match=r"00000000/sealed\.json"):
        open_log(store).is_sealed(0)
    store.contents[sealed_key(0)] = content_of(Done(3), 0, 3)
    with pytest.raises(
        ForeignEntryError, match=r"00000000/sealed\.json is a DONE entry and not a SEAL"
    ):
        open_log(store).is_sealed(0)
    store.contents[sealed_key(0)] = store.contents[sealed_key(1)]
    with pytest.raises(
        ForeignEntryError, match=r"00000000/sealed\.json was written as entry 7 of generation 1"
    ):
        open_log(store).is_sealed(0)


def test_what_is_retained_costs_no_reads(store):
    for first in range(0, 400, 20):
        run_batches(store, range(first, first + 20))
    log, generation, _ = start(store, retain_commits=100)
    log.clean(generation)
    counting = CountingStore(store)
    assert open_log(counting, retain_commits=100).clean(generation) == 0
    assert counting.counts["read"] <= 6 * 6
