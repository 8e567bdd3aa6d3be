"""Chains that nobody needs go as a whole, and whoever was frozen meanwhile, at whatever step,
takes nothing that is gone for an end."""

from __future__ import annotations

import itertools

import pytest

from commit_log.building import (
    CLAIM,
    NOON,
    commit,
    content_of,
    folded,
    open_log,
    run_batches,
    start,
)
from commit_log.stores import Actor, CountingStore, MemoryStore, PoweredStore
from onceforall.commit_log import LocalStore, binding
from onceforall.commit_log.chains import entry_key
from onceforall.commit_log.floors import Floors, floor_key
from onceforall.errors import CorruptEntryError, FencedError, ForeignEntryError, OutcomeUnknownError
from onceforall.protocol.entries import Commit, Done, Seal

SOON = {"retain_commits": 1, "drop_after": 1}


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture(autouse=True)
def keep_each(monkeypatch, request):
    """Of two floors one stays, so that they go soon; a test may want another number."""
    number = getattr(request, "param", 2)
    monkeypatch.setattr(Floors, "keep_each", number)
    return number


def live(store, batches, **options):
    """A run that decides some batches, and cleans behind each start, as a run does."""
    log, generation = run_batches(store, [], **(SOON | options))
    log.clean(generation)
    for batch in batches:
        log.append(generation, commit(batch, f"g{generation}"))
        log.append(generation, Done(batch))
    return log, generation


def lives(store, batches, **options):
    """A run for each batch, and one more that decides nothing."""
    for batch in batches:
        live(store, [batch], **options)
    return live(store, [], **options)


def generations(store):
    return sorted({int(key.split("/")[1]) for key in store.contents if key.startswith("chains/")})


def floors(store):
    return sorted(
        int(key.split("/")[1].removesuffix(".json"))
        for key in store.contents
        if key.startswith("floors/")
    )


def seen(store):
    """What a tool finds, and a new start: generation of the last decision, and its batch."""
    looked = open_log(store).look()
    history = start(store, **SOON)[2]
    assert looked.decided.commit == history.decided.commit
    return history.decided.generation, history.decided.commit.batch


def test_many_runs_leave_no_more_than_a_few(store):
    log, generation = lives(store, range(300))
    assert generation == 300
    assert generations(store) == [0, 299, 300]
    assert [key for key in store.contents if key.startswith("chains/00000000")] == [entry_key(0, 0)]
    # Of each two floors one stays.
    assert floors(store) == list(range(0, 299, 2))
    assert log.oldest_generation() == open_log(store).oldest_generation() == 299
    assert seen(store) == (299, 299)
    assert folded(open_log(store), 300).decided.commit == commit(299, "g299")


@pytest.mark.parametrize("keep_each", [64], indirect=True)
@pytest.mark.long
def test_with_the_usual_settings_an_age_of_runs_leaves_some_hundred_files(store):
    for batch in range(2000):
        log, generation = run_batches(store, [batch], retain_commits=100)
        log.clean(generation)
    assert len(store.contents) < 5 * 100 + 3 * 2 * 8 + 2 * 64
    assert min(set(generations(store)) - {0}) >= 2000 - 100 - 2 * 8
    assert open_log(store).look().decided.commit.batch == 1999


def test_decisions_that_are_to_be_retained_stay_with_all_above_them(store):
    for batch in range(30):
        live(store, [batch], retain_commits=10)
    log, generation, _ = start(store, retain_commits=10)
    log.clean(generation)
    kept = [e.batch for g in range(generation) for _, e in log.entries(g) if isinstance(e, Commit)]
    assert kept == list(range(20, 30))


def test_a_floor_rises_only_above_what_has_decided(store):
    live(store, range(3))
    for _ in range(20):
        live(store, [])
    assert floors(store) == []
    assert seen(store) == (0, 2)
    live(store, [3])
    log, generation, _ = start(store, **SOON)
    log.clean(generation)
    # From one decision to the next, by no more than eight times the number of chains that may wait.
    assert [log.oldest_generation(), *generations(store)[:2]] == [8, 0, 8]
    for _ in range(10):
        log.clean(generation)
    assert log.oldest_generation() == 22
    assert seen(store) == (22, 3)


def freeze(store, action, steps):
    """Let an actor do so many store operations of an action; None when it was through before."""
    actor = Actor(store)
    actor.start(lambda: action(actor))
    for _ in range(steps):
        if not actor.running:
            return None
        actor.step()
    return actor if actor.running else None


def frozen_at_each_step(action, before, meanwhile):
    """Freeze an action in front of each of its operations in turn, and wake it after something
    else; yields store and outcome."""
    for steps in itertools.count():
        store = MemoryStore()
        before(store)
        actor = freeze(store, action, steps)
        if actor is None:
            assert steps > 3
            return
        meanwhile(store)
        yield store, actor.finish()


def three_runs(store):
    lives(store, range(3))


def many_runs(store):
    first = seen(store)[1] + 1
    lives(store, range(first, first + 12))


def test_a_claim_that_was_frozen_takes_the_next_free_generation():
    for store, claimed in frozen_at_each_step(
        lambda s: open_log(s, **SOON).claim(CLAIM), three_runs, many_runs
    ):
        assert claimed.previous == CLAIM
        assert claimed.generation >= open_log(store, **SOON).oldest_generation()
        assert claimed.generation == max(
            g for g in generations(store) if entry_key(g, 0) in store.contents
        )


def test_an_append_that_was_frozen_is_fenced_or_unknown():
    def run(store):
        log, generation, history = start(store, **SOON)
        log.append(generation, commit(history.decided.commit.batch + 1, "frozen"))
        return "appended"

    outcomes = set()
    for store, outcome in frozen_at_each_step(run, three_runs, many_runs):
        outcomes.add(outcome if isinstance(outcome, str) else type(outcome))
        if outcome == "appended":  # it was frozen before it had claimed
            assert seen(store)[1] == 3 + 12
        else:
            assert isinstance(outcome, FencedError | OutcomeUnknownError), outcome
            assert "frozen-" not in str(folded(open_log(store), 100))
    assert outcomes == {"appended", FencedError, OutcomeUnknownError}


def test_a_run_whose_chain_is_gone_knows_that_it_is_sealed(store):
    log, generation = lives(store, range(3))
    assert not log.is_sealed(generation)
    many_runs(store)
    assert generation not in generations(store)
    assert log.is_sealed(generation)
    with pytest.raises(OutcomeUnknownError, match=r"dropped.*newer run"):
        log.append(generation, commit(3))
    with pytest.raises(FencedError, match="dropped"):
        log.seal_below(generation)


@pytest.mark.parametrize(
    "action",
    [
        lambda s: open_log(s, **SOON).newest_generation(),
        lambda s: open_log(s, **SOON).newest_claim(),
        lambda s: open_log(s, **SOON).look(),
    ],
    ids=["newest_generation", "newest_claim", "look"],
)
def test_who_looks_sees_what_was_there_before_or_behind(action):
    reference = MemoryStore()
    three_runs(reference)
    before = action(reference)
    for store, seen_by_it in frozen_at_each_step(action, three_runs, many_runs):
        assert (
            seen_by_it in {before, action(store)}
            if isinstance(before, int)
            else seen_by_it in [before, action(store)]
        )


@pytest.mark.parametrize("generation", [2, 3])
def test_who_reads_a_chain_while_it_is_dropped_gets_it_or_nothing(generation):
    def read(store):
        return open_log(store, **SOON).entries(generation)

    reference = MemoryStore()
    three_runs(reference)
    before = read(reference)
    assert before
    seen_by_it = [outcome for _, outcome in frozen_at_each_step(read, three_runs, many_runs)]
    assert all(outcome in [before, []] for outcome in seen_by_it), seen_by_it
    assert [] in seen_by_it


def test_who_asks_for_a_seal_while_the_chain_is_dropped_hears_that_it_is_sealed():
    for store, is_sealed in frozen_at_each_step(
        lambda s: open_log(s, **SOON).is_sealed(2), three_runs, many_runs
    ):
        assert 2 not in generations(store)
        assert is_sealed is True


def test_who_seals_while_others_drop_learns_what_was_decided():
    def some_open(store):
        for batch in range(6):
            log = open_log(store, **SOON)
            generation = log.claim(CLAIM).generation
            log.append(generation, commit(batch))
            log.append(generation, Done(batch))
        open_log(store).claim(CLAIM)

    def another(store):
        for _ in range(6):
            live(store, [])

    for store, history in frozen_at_each_step(
        lambda s: open_log(s, **SOON).seal_below(6), some_open, another
    ):
        assert open_log(store, **SOON).oldest_generation() == 5
        assert history.decided.commit == commit(5)


def test_who_seals_while_others_decide_and_drop_is_fenced_or_learns_the_same():
    def run(store):
        _, generation, history = start(store, **SOON)
        return generation, history

    for store, outcome in frozen_at_each_step(run, three_runs, many_runs):
        if isinstance(outcome, FencedError):
            continue
        generation, history = outcome
        assert history.decided.commit.batch == (2 if generation < 10 else 14), (generation, history)
        assert (
            len(
                {
                    index
                    for index, e in open_log(store).entries(generation - 1)
                    if isinstance(e, Seal)
                }
            )
            == 1
        )


def test_a_cleaner_that_was_frozen_deletes_nothing_that_counts():
    def clean(store):
        log, generation, _ = start(store, **SOON)
        return log.clean(generation)

    for store, outcome in frozen_at_each_step(clean, three_runs, many_runs):
        assert isinstance(outcome, int | FencedError), outcome
        assert seen(store)[1] == 3 + 12 - 1
        many_runs(store)
        assert seen(store)[1] == 3 + 24 - 1


def test_a_create_that_arrives_below_the_floor_disturbs_nobody(store):
    live(store, range(3))
    for _ in range(20):
        live(store, [])
    live(store, [3])
    before = dict(store.contents)
    log, generation, _ = start(store, **SOON)
    log.clean(generation)
    assert 0 < log.oldest_generation() < 21
    # The request of a decision that was under way for long: SEALs above the floor still point at
    # it.
    store.create(entry_key(0, 5), before[entry_key(0, 5)])
    for _ in range(10):
        log.clean(generation)
    assert log.oldest_generation() == 21
    assert seen(store) == (21, 3)


@pytest.mark.parametrize("torn", ["killed", "before", "after"])
def test_a_crash_while_chains_go_leaves_what_the_next_run_clears(torn):
    def last_clean(store):
        log, generation, _ = start(store, **SOON)
        log.clean(generation)

    for steps in itertools.count():
        store = MemoryStore()
        for batch in range(8):
            run_batches(store, [batch])
        actor = freeze(store, last_clean, steps)
        if actor is None:
            break
        if torn == "killed":
            actor.kill()
        else:
            actor.step(torn)
            actor.finish()
        decided = seen(store)
        assert decided == (7, 7)
        lives(store, [8, 9])
        assert seen(store)[1] == 9
        assert generations(store)[:2] == [0, open_log(store, **SOON).oldest_generation()]
    assert steps > 50


class EachForItself(PoweredStore):
    """What a create makes durable is its own key, and not what else is in the folder: the store
    promises no more."""

    def sync(self, key):
        synced = [each for each in self.unsynced if each == key]
        self.unsynced = [each for each in self.unsynced if each != key]
        return synced


@pytest.mark.parametrize("rests_on_it", ["drop", "raise_to"])
def test_a_floor_that_was_only_read_is_durable_before_anything_rests_on_it(rests_on_it):
    store = EachForItself()
    lives(store, range(3))
    log, generation = live(store, [3])
    log, generation, _ = start(store, **SOON)
    # Another cleaner stands between the creation of a floor and its sync.
    actor = Actor(store)
    actor.start(lambda: open_log(actor, **SOON).clean(generation))
    while not (actor.facing == "create" and actor.about(floor_key(2))):
        actor.step()
    actor.step("visible")
    floor = open_log(store, **SOON).oldest_generation()
    assert floor == 4
    if rests_on_it == "drop":
        log._floors.drop()
        assert 3 not in generations(store)
    else:
        floor = 5
        log._floors.raise_to(floor)
    store.lose_power()
    assert open_log(store, **SOON).oldest_generation() == floor
    actor.kill()


@pytest.mark.parametrize("generation", [0, 4, 5])
def test_a_floor_that_is_there_is_not_raised_again(store, generation):
    log = open_log(store)
    log._floors.raise_to(5)
    before = dict(store.contents)
    log._floors.raise_to(generation)
    assert store.contents == before
    log._floors.raise_to(6)
    assert len(floors(store)) == 2


def test_what_was_dropped_is_not_looked_for_again(store):
    counting = CountingStore(store)
    log = open_log(counting)
    log._floors.raise_to(5)
    log._floors.drop()
    counting.take()
    log._floors.drop()
    assert counting.take() == {"read": 2}
    log._floors.raise_to(6)
    log._floors.drop()
    assert counting.take()["list"] > 0


def test_a_look_at_a_log_whose_chains_below_the_floor_are_gone_and_none_decides_tells_of_damage(
    store,
):
    """Below a floor something was decided, and the seal above it says so."""
    lives(store, range(4))
    oldest = open_log(store).oldest_generation()
    assert oldest > 1
    for key in list(store.contents):
        if key.startswith("chains/") and not key.endswith("/00000000.json"):
            del store.contents[key]
    with pytest.raises(CorruptEntryError):
        open_log(store).look()


@pytest.mark.parametrize("keep_each", [64], indirect=True)
def test_the_newest_floor_is_found_with_few_reads_whatever_was_deleted(store):
    for number in range(500):
        log = open_log(store)
        log._floors.raise_to(number + 1)
        log._floors.drop()
    assert len(floors(store)) == len(range(0, 500, 64)) + 500 - 64 * 7 - 1
    counting = CountingStore(store)
    log = open_log(counting)
    assert log.oldest_generation() == 500
    assert counting.take()["read"] <= 25
    assert log.oldest_generation() == 500
    assert counting.take() == {"read": 2}


@pytest.mark.parametrize("again", [None, 1])
def test_nothing_rests_on_a_floor_that_was_read_and_went_with_the_power(again):
    """Found by ``test_interleavings``: the SEALs below it were deleted."""
    store = PoweredStore()
    for batch in range(3):
        live(store, [batch], drop_after=100)
    floors = Floors(store, 0, store.create, now=lambda: NOON)
    store.link(floor_key(0), floors._content(0, 2, 0))
    assert floors.newest().generation == 2
    store.lose_power()
    if again is not None:
        store.create(floor_key(0), floors._content(0, again, 0))
    before = generations(store)
    floors.drop()
    assert generations(store) == before
    floors.raise_to(2)
    number = 0 if again is None else 1
    assert floors.newest() == Floors(store, 0, store.create, now=lambda: NOON).newest()
    assert (floors.newest().number, floors.newest().generation) == (number, 2)
    floors.drop()
    assert generations(store)[:2] == [0, 2]


@pytest.mark.parametrize("known", [0, 1, 2])
def test_a_floor_that_goes_with_the_power_while_it_is_looked_for_is_none(known):
    """Found by ``test_interleavings``: who had seen it looked for it for ever."""
    store = PoweredStore()
    reader = Actor(store, "reader")
    floors = Floors(reader, 0, store.create, now=lambda: NOON)
    for number in range(known):
        floors.raise_to(number + 1)
    before = floors.newest()
    store.link(floor_key(known), floors._content(known, known + 1, known))
    reader.start(floors.newest)
    while not reader.about(floor_key(known)):
        reader.step()
    reader.step()  # It is there.
    store.lose_power()
    assert reader.finish() == before
    assert before.number == known - 1


def test_a_floor_without_its_chain_is_a_damaged_log(store):
    _, generation = lives(store, range(5))
    for key in [
        key for key in store.contents if key.startswith("chains/") and key != entry_key(0, 0)
    ]:
        del store.contents[key]
    log = open_log(store)
    for action in (
        log.newest_generation,
        log.newest_claim,
        log.look,
        lambda: log.claim(CLAIM),
        lambda: log.seal_below(generation),
    ):
        with pytest.raises(
            CorruptEntryError, match=r"00000004/00000000\.json.*missing.*[Rr]estore"
        ):
            action()


def test_a_floor_whose_chain_lost_its_end_is_a_damaged_log(store):
    _, generation = lives(store, range(5))
    for key in [key for key in store.contents if key.startswith("chains/00000004/")]:
        if key != entry_key(4, 0):
            del store.contents[key]
    with pytest.raises(CorruptEntryError, match=r"00000004/00000000\.json.*no SEAL"):
        open_log(store).seal_below(generation)


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"", CorruptEntryError, "is empty"),
        (b"{", CorruptEntryError, "torn or damaged"),
        (content_of(CLAIM, 0, 0), ForeignEntryError, "is not floor 3"),
        (None, ForeignEntryError, "is not floor 3"),
    ],
)
def test_a_damaged_or_foreign_floor_is_named(store, content, error, words):
    lives(store, range(5))
    assert floors(store)[-1] == 3
    store.contents[floor_key(3)] = store.contents[floor_key(2)] if content is None else content
    with pytest.raises(error, match=rf"floors/00000003\.json.*{words}"):
        start(store, **SOON)


def test_a_store_that_fails_after_the_entry_was_written_leaves_its_outcome_unknown(store):
    class Failing(MemoryStore):
        fails = False

        def read(self, key):
            if self.fails and key.startswith("floors/"):
                raise ConnectionError("reset")
            return super().read(key)

    failing = Failing()
    log, generation, _ = start(failing)
    failing.fails = True
    with pytest.raises(OutcomeUnknownError, match="reset"):
        log.append(generation, commit(0))
    assert failing.contents[entry_key(generation, 1)]


def test_on_a_disk_the_folders_go_too_and_a_frozen_run_is_told(tmp_path):
    store = LocalStore(tmp_path)
    frozen = open_log(LocalStore(tmp_path), **SOON)
    run_batches(store, [0])
    generation = frozen.claim(CLAIM).generation
    frozen.seal_below(generation)
    frozen.append(generation, commit(1))
    frozen.append(generation, Done(1))
    lives(store, range(2, 12))
    assert sorted(path.name for path in (tmp_path / "chains").iterdir()) == [
        "00000000",
        "00000011",
        "00000012",
    ]
    with pytest.raises(OutcomeUnknownError, match="dropped"):
        frozen.append(generation, commit(2))
    assert open_log(store).look().decided.commit.batch == 11
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_log_whose_chains_were_dropped_is_still_found(tmp_path):
    home = LocalStore(tmp_path / "onceforall")
    bound = binding.bind(home, "/c", None, query_id=None)
    lives(bound.store, range(12))
    assert binding.find(home) == bound
    pointer = tmp_path / "onceforall" / "pointer" / "00000000.json"
    pointer.unlink()
    # That of an earlier release has none.
    assert binding.find(home) is not None


def test_a_log_that_begins_later_drops_none_below_its_beginning(store):
    for batch in range(8):
        log, generation, _ = start(store, first_generation=7, **SOON)
        log.clean(generation)
        log.append(generation, commit(batch))
        log.append(generation, Done(batch))
    assert generations(store) == [7, 13, 14]
    assert open_log(store, first_generation=7).look().decided.commit.batch == 7
