from __future__ import annotations

import pytest

from commit_log.building import CLAIM, commit, content_of, open_log, put, run_batches, start
from commit_log.stores import Actor, CountingStore, FlakyStore, MemoryStore, PoweredStore, Wrapped
from onceforall.commit_log import Claimed, CommitLog
from onceforall.commit_log.chains import Chains, entry_key, leading
from onceforall.errors import (
    CommitLogError,
    ConfigurationError,
    CorruptEntryError,
    FencedError,
    ForeignEntryError,
    NewerEntryError,
    OutcomeUnknownError,
    ProtocolViolationError,
)
from onceforall.protocol.entries import Claim, Commit, Done, Seal
from onceforall.protocol.history import EMPTY, Decided, History


@pytest.fixture
def store():
    return MemoryStore()


@pytest.mark.parametrize("limit", [None, 0, 1, 5, 33, 10_000])
def test_galloping_counts_the_leading_truths(limit):
    for count in [*range(40), 1000, 9999]:
        asked = []

        def predicate(number, count=count, asked=asked):
            asked.append(number)
            assert limit is None or number < limit
            return number < count

        assert leading(predicate, limit) == (count if limit is None else min(count, limit))
        assert len(asked) <= 2 * (count + 1).bit_length() + 1


def test_generations_are_numbered_from_0_without_gaps(store):
    assert open_log(store).newest_generation() is None
    assert open_log(store).newest_claim() is None
    claims = [Claim("q", f"run-{n}", "/c") for n in range(5)]
    log = open_log(store)
    assert [log.claim(claim) for claim in claims] == [
        Claimed(n, claims[n - 1] if n else None) for n in range(5)
    ]
    assert open_log(store).newest_generation() == 4
    assert open_log(store).newest_claim() == claims[4]


def test_a_log_that_begins_at_a_later_generation_does_all_that_one_from_0_does(store):
    """The log of a checkpoint that was detached before: its generations and names go on where
    the old log ended."""
    assert open_log(store, first_generation=7).newest_generation() is None
    assert open_log(store, first_generation=7).look() == EMPTY
    for n in range(4):
        log, generation, history = start(store, first_generation=7, retain_commits=1)
        assert generation == 7 + n
        assert (history.decided.commit.batch if history.decided else None) == (n - 1 if n else None)
        log.append(generation, commit(n))
        assert log.look().decided.commit == commit(n)
        log.append(generation, Done(n))
        log.clean(generation)
    assert open_log(store, first_generation=7).newest_generation() == 10
    assert store.contents.get(entry_key(7, 0)) is not None
    assert store.contents.get(entry_key(7, 1)) is None
    assert not any(
        key.startswith("chains/0000000") and key < "chains/00000007" for key in store.contents
    )


def test_claims_at_the_same_moment_get_different_generations(store):
    actors = [Actor(store) for _ in range(3)]
    for actor in actors:
        actor.start(lambda actor=actor: open_log(actor).claim(CLAIM).generation)
    while any(actor.running for actor in actors):
        for actor in actors:
            if actor.running:
                actor.step()
    assert sorted(actor.outcome for actor in actors) == [0, 1, 2]


def test_the_claim_below_is_made_durable_before_ours_stands_above_it(store):
    # To lose a create is what makes another's entry durable (see the store's guarantees).
    run_batches(store, [])
    created = []

    class Recording(MemoryStore):
        def create(self, key, content):
            created.append(key)
            return super().create(key, content)

    recording = Recording()
    recording.contents = store.contents
    assert open_log(recording).claim(CLAIM).generation == 1
    assert created == [entry_key(0, 0), entry_key(1, 0)]


def test_a_seal_that_was_only_read_is_made_durable_before_it_is_believed(store):
    for _ in range(3):
        start(store)
    created = []

    class Recording(MemoryStore):
        def create(self, key, content):
            created.append(key)
            return super().create(key, content)

    recording = Recording()
    recording.contents = store.contents
    open_log(recording).seal_below(3)
    assert created == [entry_key(1, 1), entry_key(2, 1)]


def a_decision_that_is_not_durable(powered):
    """A writer that stands before the sync of its COMMIT, and a successor that has claimed;
    returns their generations."""
    generation = start(powered)[1]
    # Behind the claim, which syncs the folder of the chain below it.
    successors = open_log(powered).claim(CLAIM).generation
    powered.link(
        entry_key(generation, 1), content_of(commit(0), generation, 1, nonce="the writer's")
    )
    return generation, successors


def test_a_seal_is_not_sent_before_what_it_stands_behind_is_durable():
    powered = PoweredStore()
    generation, successors = a_decision_that_is_not_durable(powered)
    sealer = Actor(powered)
    sealer.start(lambda: open_log(sealer).seal_below(successors))
    assert powered.unsynced == [entry_key(generation, 1)]
    while not (sealer.facing == "create" and sealer.about(entry_key(generation, 2))):
        sealer.step()
    # Wherever the power goes, and whenever this request arrives, an entry stands below it.
    assert powered.unsynced == []
    assert sealer.finish().decided == Decided(commit(0), generation, 1, done=False)


@pytest.mark.parametrize("sealed_meanwhile", [False, True])
def test_an_entry_that_went_with_the_power_while_its_chain_was_sealed(sealed_meanwhile):
    powered = PoweredStore()
    generation, successors = a_decision_that_is_not_durable(powered)
    sealer = Actor(powered)
    sealer.start(lambda: open_log(sealer).seal_below(successors))
    while sealer.facing != "create":
        sealer.step()
    powered.lose_power()
    last = successors
    if sealed_meanwhile:
        _, last, history = start(powered)
        assert history == EMPTY
    # It stands again, as a create of its writer that came late could have brought it, or it never
    # was.
    expected = EMPTY if sealed_meanwhile else History(Decided(commit(0), generation, 1, done=False))
    assert sealer.finish() == expected
    assert start(powered)[2] == expected
    assert [kind for _, kind in kinds(powered, generation)] == (
        ["CLAIM", "SEAL"] if sealed_meanwhile else ["CLAIM", "COMMIT", "SEAL"]
    )
    assert open_log(powered).is_sealed(last)


@pytest.mark.parametrize("call", ["seal_below", "entries"])
def test_an_entry_that_went_with_the_power_behind_the_listing_is_not_missed(call):
    """It was the chain's last one, and nobody's decision: no backup has it."""

    class GoesBehindTheListing(Wrapped):
        def around(self, name, perform, *arguments):
            answer = perform()
            if (name, *arguments) == ("list", "chains/00000000"):
                self.store.lose_power()
            return answer

    powered = PoweredStore()
    open_log(powered).claim(CLAIM)
    claimed = open_log(powered).claim(CLAIM).generation
    powered.link(entry_key(0, 1), content_of(commit(0), 0, 1))
    log = open_log(GoesBehindTheListing(powered))
    if call == "entries":
        assert [each.kind for _, each in log.entries(0)] == ["CLAIM"]
    else:
        assert log.seal_below(claimed) == EMPTY
    assert powered.losses


def test_a_writer_recognises_its_entry_that_a_sealer_has_made_durable():
    powered = PoweredStore()
    log, generation, _ = start(powered)
    writer = Actor(powered)
    log._store = log._ask.store = writer
    log._chains.store = writer
    successors = open_log(powered).claim(CLAIM).generation
    writer.start(lambda: log.append(generation, commit(0)))
    writer.step("visible")
    sealer = Actor(powered)
    sealer.start(lambda: open_log(sealer).seal_below(successors))
    while sealer.facing != "create":
        sealer.step()
    powered.lose_power()
    sealer.step()
    writer.step("after")
    assert writer.finish() == 1
    assert sealer.finish().decided == Decided(commit(0), generation, 1, done=False)


def test_a_seal_that_was_only_read_fences_nobody():
    """A fenced run aborts what it prepared; were the SEAL lost with the power, this run's late
    COMMIT could still arrive."""
    powered = PoweredStore()
    log, generation, _ = start(flaky := FlakyStore(powered))
    powered.link(entry_key(generation, 1), content_of(Seal(None, None, done=False), generation, 1))
    flaky.faults.extend(["before"] * 5)
    with pytest.raises(
        OutcomeUnknownError, match=r"connection reset\..*A newer run .* Do not restart this run"
    ) as caught:
        log.append(generation, commit(0))
    assert "restart the query" not in str(caught.value)
    powered.lose_power()
    assert start(powered)[2] == EMPTY


def test_a_claim_that_takes_the_place_of_one_that_went_with_the_power_tells_what_is_below_it():
    powered = PoweredStore()
    first = Claim("query", "first", "/checkpoints/ads")
    open_log(powered).claim(first)
    powered.link(entry_key(1, 0), content_of(Claim("query", "lost", "/checkpoints/ads"), 1, 0))
    claimer = Actor(powered)
    claimer.start(lambda: open_log(claimer).claim(CLAIM))
    while claimer.facing != "create":
        claimer.step()
    powered.lose_power()
    assert claimer.finish() == Claimed(1, first)


def kinds(store, generation):
    return [(index, entry.kind) for index, entry in open_log(store).entries(generation)]


def test_a_run_learns_what_its_predecessors_decided(store):
    log, generation = run_batches(store, [0, 1])
    assert log.append(generation, commit(2)) == 5
    assert log.chain_length(generation) == 6
    history = start(store)[2]
    assert history.decided == Decided(commit(2), generation, 5, done=False)
    successor, its_generation, same = start(store)
    assert same == history
    successor.append(its_generation, Done(2))
    assert start(store)[2].decided == Decided(commit(2), generation, 5, done=True)


def test_a_redo_in_a_later_chain_replaces_the_decision(store):
    log, generation, _ = start(store)
    log.append(generation, commit(0, "first"))
    redo, its_generation, _ = start(store)
    redo.append(its_generation, commit(0, "second"))
    assert start(store)[2].decided == Decided(commit(0, "second"), its_generation, 1, done=False)


def test_nothing_was_decided_in_an_empty_past(store):
    assert start(store)[2] == EMPTY
    assert start(store)[2] == EMPTY


def test_a_sealed_writer_is_fenced_and_changes_nothing(store):
    log, generation = run_batches(store, [0])
    successor, its_generation, history = start(store)
    assert log.is_sealed(generation)
    assert not successor.is_sealed(its_generation)
    for _ in range(2):
        with pytest.raises(FencedError, match=r"00000003\.json is a SEAL.*Do not restart"):
            log.append(generation, commit(1))
    assert successor.seal_below(its_generation) == history


def test_a_live_writer_that_is_faster_than_the_sealer_is_heard(store):
    log, generation = run_batches(store, [0])
    sealer = Actor(store)
    claimed = open_log(store).claim(CLAIM).generation
    sealer.start(lambda: open_log(sealer).seal_below(claimed))
    appended = 0
    while sealer.running:
        if sealer.facing == "create" and appended < 3:
            appended += 1
            log.append(generation, commit(appended))
        sealer.step()
    assert sealer.outcome.decided == Decided(commit(3), generation, 5, done=False)
    with pytest.raises(FencedError):
        log.append(generation, commit(4))


def test_chains_are_sealed_from_the_bottom_up(store):
    for _ in range(6):
        open_log(store).claim(CLAIM)
    sealer = Actor(store)
    sealer.start(lambda: open_log(sealer).seal_below(6))
    while sealer.running:
        sealer.step()
        sealed = [open_log(store).is_sealed(generation) for generation in range(6)]
        assert sealed == sorted(sealed, reverse=True)
    assert all(sealed)


def test_a_sealer_that_died_halfway_is_continued(store):
    for _ in range(6):
        open_log(store).claim(CLAIM)
    open_log(store).seal_below(3)
    assert open_log(store).seal_below(6) == EMPTY
    assert all(open_log(store).is_sealed(generation) for generation in range(6))


def test_a_seal_that_contradicts_its_chain_is_a_violation(store):
    run_batches(store, [0, 1])
    sealer = Actor(store)
    claimed = open_log(store).claim(CLAIM).generation
    sealer.start(lambda: open_log(sealer).seal_below(claimed))
    for _ in range(7):
        sealer.step()
    put(store, 0, 5, Seal(0, 1, done=True))
    with pytest.raises(
        ProtocolViolationError, match=r"00000005\.json says .*but the entries before it say"
    ):
        raise sealer.finish()


def test_batches_only_go_up(store):
    log, generation = run_batches(store, [5])
    for entry in (commit(4), Done(4)):
        with pytest.raises(ProtocolViolationError, match="batches only go up"):
            log.append(generation, entry)
    assert log.append(generation, commit(5)) == 3


def test_only_a_claimed_chain_can_be_appended_to(store):
    _, generation = run_batches(store, [0])
    for call in (
        lambda log: log.append(generation, Done(0)),
        lambda log: log.chain_length(generation),
    ):
        with pytest.raises(ProtocolViolationError, match="was not claimed by this run"):
            call(open_log(store))


def test_an_entry_of_another_writer_in_our_chain_is_a_violation(store):
    log, generation, _ = start(store)
    put(store, generation, 1, commit(0, "stranger"), nonce="stranger")
    with pytest.raises(
        ProtocolViolationError,
        match=r"00000001\.json holds a COMMIT entry that this run did not write",
    ):
        log.append(generation, commit(0))


def test_a_committable_that_is_not_json_leaves_the_chain_as_it_was(store):
    log, generation, _ = start(store)
    with pytest.raises(ConfigurationError):
        log.append(generation, Commit(0, (), {"out": ({"at": float("nan")},)}))
    assert log.append(generation, commit(0)) == 1


@pytest.mark.parametrize(
    "faults", [["before"], ["after"], ["before", "after"], ["after", "after", "before", "after"]]
)
def test_an_append_whose_answers_were_lost_is_repeated_until_it_is_known_who_won(store, faults):
    log, generation, _ = start(flaky := FlakyStore(store))
    flaky.faults.extend(faults)
    assert log.append(generation, commit(0)) == 1
    assert log.append(generation, Done(0)) == 2
    assert start(store)[2].decided == Decided(commit(0), generation, 1, done=True)


@pytest.mark.parametrize("faults", [["before"], ["after"], ["before", "after"]])
def test_an_append_that_is_repeated_where_a_seal_stands_by_now_is_fenced(store, faults):
    log, generation, _ = start(flaky := FlakyStore(store))
    start(store)
    flaky.faults.extend(faults)
    with pytest.raises(FencedError):
        log.append(generation, commit(0))


@pytest.mark.parametrize("faults", [["before"], ["after"], ["after", "before"]])
def test_a_claim_whose_answer_was_lost_recognises_itself(store, faults):
    run_batches(store, [])
    flaky = FlakyStore(store, [None, *faults])
    assert open_log(flaky).claim(CLAIM).generation == 1
    assert open_log(store).newest_generation() == 1


@pytest.mark.parametrize("faults", [["before"], ["after"], ["after", "before"]])
def test_a_seal_whose_answer_was_lost_is_repeated(store, faults):
    run_batches(store, [0])
    generation = open_log(store).claim(CLAIM).generation
    history = open_log(FlakyStore(store, faults)).seal_below(generation)
    assert history.decided.done
    assert open_log(store).entries(0)[-1] == (3, Seal(0, 1, done=True))


@pytest.mark.parametrize("happened", [True, False])
def test_an_append_that_never_gets_an_answer_is_unknown_and_the_next_start_finds_out(
    store, happened
):
    log, generation, _ = start(flaky := FlakyStore(store))
    flaky.faults.extend(["after" if happened else "before", *["before"] * 4])
    with pytest.raises(OutcomeUnknownError, match=r"00000001\.json.*nothing was aborted.*Restart"):
        log.append(generation, commit(0))
    with pytest.raises(OutcomeUnknownError, match="the append before got no answer"):
        log.append(generation, Done(0))
    decided = start(store)[2].decided
    assert (decided is not None) == happened


def test_an_append_that_was_interrupted_is_unknown_for_the_next_one(store):
    class Interrupted(MemoryStore):
        armed = False

        def create(self, key, content):
            if self.armed:
                raise KeyboardInterrupt
            return super().create(key, content)

    interrupted = Interrupted()
    log, generation, _ = start(interrupted)
    interrupted.armed = True
    with pytest.raises(KeyboardInterrupt):
        log.append(generation, commit(0))
    interrupted.armed = False
    with pytest.raises(OutcomeUnknownError):
        log.append(generation, commit(0))


def test_an_unreadable_answer_to_an_append_is_unknown_and_not_a_failure(store):
    log, generation, _ = start(store)
    store.contents[entry_key(generation, 1)] = b"torn"
    with pytest.raises(OutcomeUnknownError, match="is not JSON"):
        log.append(generation, commit(0))


@pytest.mark.parametrize("call", ["claim", "seal"])
def test_a_claim_or_seal_that_never_gets_an_answer_is_an_error_that_names_the_file(store, call):
    run_batches(store, [0])
    generation = open_log(store).claim(CLAIM).generation
    log = open_log(FlakyStore(store, ["before"] * 5))
    with pytest.raises(CommitLogError, match=r"memory:chains.*connection reset.*restart the query"):
        log.claim(CLAIM) if call == "claim" else log.seal_below(generation)


def test_pauses_between_retries_are_as_configured(store):
    pauses = []
    flaky = FlakyStore(store, ["before"] * 3)
    CommitLog(flaky, sleep=pauses.append).claim(CLAIM)
    assert pauses == [0.05, 0.2, 1.0]


def damaged(store, generation, index, how):
    key = entry_key(generation, index)
    content = store.contents[key]
    store.contents[key] = {
        "torn": content[: len(content) // 2],
        "empty": b"",
        "bit-flipped": content.replace(b'"out"', b'"ouu"')
        .replace(b'"batch":1', b'"batch":3')
        .replace(b"/ads", b"/adz"),
        "foreign": b'{"version": 3}',
        "newer": b'{"onceforall": 3}',
        "copied": store.contents[entry_key(generation, index - 1 if index else 1)],
    }[how]
    return key


@pytest.mark.parametrize("index", [0, 3, 4])
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("torn", CorruptEntryError),
        ("empty", CorruptEntryError),
        ("bit-flipped", CorruptEntryError),
        ("foreign", ForeignEntryError),
        ("newer", NewerEntryError),
        ("copied", ForeignEntryError),
    ],
)
def test_a_damaged_entry_is_named_with_its_file(store, index, how, error):
    run_batches(store, [0, 1])
    before = dict(store.contents)
    key = damaged(store, 0, index, how)
    with pytest.raises(error, match=rf"memory:{key}"):
        open_log(store).entries(0)
    with pytest.raises(error, match=rf"memory:{key}"):
        # Entry 0 is looked at by the next claim, the last COMMIT and what follows it by the sealer.
        start(store)
    assert [k for k in store.contents if k not in before and "chains/00000000" in k] == []


def test_damage_in_an_entry_that_no_longer_matters_does_not_stop_the_query(store):
    run_batches(store, [0, 1, 2])
    damaged(store, 0, 1, "torn")
    assert start(store)[2].decided.commit.batch == 2


@pytest.mark.parametrize("index", [0, 1, 3, 5])
def test_a_missing_entry_is_named_with_its_file(store, index):
    run_batches(store, [0, 1, 2])
    claimed = open_log(store).claim(CLAIM).generation
    del store.contents[entry_key(0, index)]
    for call in (lambda: open_log(store).seal_below(claimed), lambda: open_log(store).entries(0)):
        with pytest.raises(
            CorruptEntryError, match=rf"0{index}\.json is missing.*Restore it from a backup"
        ):
            call()


@pytest.mark.parametrize("batches", [[], [0], [0, 1, 2]])
@pytest.mark.parametrize("hidden", [0, 1])
def test_a_chain_is_read_from_its_last_commit_on_and_each_entry_once(store, batches, hidden):
    """Also where the listing lags."""
    run_batches(store, batches)

    class Lags(Wrapped):
        def list(self, folder):
            found = sorted(super().list(folder))
            return found[: len(found) - hidden]

    found = Chains(Lags(store)).since_last_commit(0)
    last = 2 * len(batches)
    assert [index for index, _ in found] == list(range(found[0][0], last + 1))
    assert found[0][0] <= max(0, last - 1)
    assert isinstance(found[-1][1], Done if batches else Claim)


class ListsPhantoms(Wrapped):
    """Lists, some times, an entry that isn't there: it went with the power, before it was durable."""

    def __init__(self, store, folder, name, times):
        super().__init__(store)
        self.folder, self.name, self.times = folder, name, times

    def list(self, folder):
        found = list(super().list(folder))
        if folder == self.folder and self.times > 0:
            self.times -= 1
            found.append(self.name)
        return found


@pytest.mark.parametrize(("times", "missing"), [(1, False), (2, False), (3, True)])
@pytest.mark.parametrize("looks", [True, False], ids=["who looks", "who seals"])
def test_a_last_entry_that_is_listed_and_gone_is_looked_for_again(store, times, missing, looks):
    run_batches(store, [0, 1])
    claimed = open_log(store).claim(CLAIM).generation
    lying = ListsPhantoms(store, "chains/00000000", "00000005.json", times)
    find = open_log(lying).look if looks else lambda: open_log(lying).seal_below(claimed)
    if missing:
        with pytest.raises(CorruptEntryError, match=r"05\.json is missing"):
            find()
    else:
        assert find().decided.commit.batch == 1
    assert lying.times == 0


@pytest.mark.parametrize(("times", "missing"), [(1, False), (2, False), (3, True)])
def test_whether_a_chain_is_sealed_is_asked_again_where_its_last_entry_is_listed_and_gone(
    store, times, missing
):
    run_batches(store, [0])
    lying = ListsPhantoms(store, "chains/00000000", "00000003.json", times)
    if missing:
        with pytest.raises(CorruptEntryError, match=r"03\.json is missing"):
            open_log(lying).is_sealed(0)
    else:
        assert not open_log(lying).is_sealed(0)
    assert lying.times == 0


@pytest.mark.parametrize("content", [b"{}", b"", None], ids=["JSON", "empty", "a copy"])
@pytest.mark.parametrize("looks", [True, False], ids=["who looks", "who starts"])
def test_a_file_that_somebody_left_with_the_number_of_a_day_is_named_at_once(store, content, looks):
    """Not after a read of each of the millions of entries that would have to stand before it."""
    run_batches(store, [0, 1])
    stray = "chains/00000000/20261130.json"
    store.contents[stray] = store.contents[entry_key(0, 4)] if content is None else content
    read: list[str] = []

    class Counts(Wrapped):
        def read(self, key):
            read.append(key)
            assert len(read) < 100
            return super().read(key)

    counted = Counts(store)
    with pytest.raises(CommitLogError, match=stray):
        open_log(counted).look() if looks else start(counted)
    assert store.contents[stray] is not None


def test_a_number_with_more_zeros_than_an_entry_has_is_nobodys(store):
    """It would count as an entry that stands elsewhere, or twice."""
    run_batches(store, [0, 1])
    for name in ("000000002.json", "000000007.json"):
        store.contents[f"chains/00000000/{name}"] = b"{}"
    assert open_log(store).look().decided.commit.batch == 1
    assert start(store) is not None


def test_an_entry_that_is_gone_is_named_with_the_one_that_stands_behind_it(store):
    run_batches(store, [0, 1])
    del store.contents[entry_key(0, 3)]
    with pytest.raises(
        CorruptEntryError,
        match=r"00000003\.json is missing, though its chain goes on behind it, at "
        r"chains/00000000/00000004\.json: an entry is lost",
    ):
        open_log(store).look()


def test_a_missing_chain_is_named(store):
    for _ in range(3):
        open_log(store).claim(CLAIM)
    del store.contents[entry_key(1, 0)]
    with pytest.raises(CorruptEntryError, match=r"00000001/00000000\.json is missing"):
        open_log(store).seal_below(3)


def test_the_lost_decision_of_the_newest_seal_is_named(store):
    run_batches(store, [0])
    start(store)
    del store.contents[entry_key(0, 1)]
    with pytest.raises(
        CorruptEntryError,
        match=r"00000000/00000001\.json is missing, though the newest SEAL points at it",
    ):
        start(store)


def test_an_entry_behind_a_seal_is_named(store):
    _, generation = run_batches(store, [0])
    start(store)
    put(store, generation, 4, commit(1))
    with pytest.raises(CommitLogError, match=r"00000004\.json follows the SEAL"):
        open_log(store).seal_below(1)
    with pytest.raises(CommitLogError, match=r"00000004\.json follows the SEAL"):
        open_log(store).entries(generation)


@pytest.mark.parametrize(("index", "entry"), [(0, Done(1)), (1, CLAIM)])
def test_a_claim_stands_at_0_and_nowhere_else(store, index, entry):
    run_batches(store, [0])
    claimed = open_log(store).claim(CLAIM).generation
    store.contents[entry_key(0, index)] = content_of(entry, 0, index)
    with pytest.raises(ForeignEntryError, match="entry 0 of a chain is its CLAIM"):
        open_log(store).entries(0)
    if index == 0:
        del store.contents[entry_key(0, 1)], store.contents[entry_key(0, 2)]
        with pytest.raises(ForeignEntryError, match="entry 0 of a chain is its CLAIM"):
            open_log(store).seal_below(claimed)


def test_names_that_are_no_entries_are_left_alone(store):
    run_batches(store, [0])
    store.contents["chains/00000000/00000001.json.orig"] = b"?"
    store.contents["chains/00000000/notes.txt"] = b"?"
    assert start(store)[2].decided.commit.batch == 0
    assert [index for index, _ in open_log(store).entries(0)] == [0, 1, 2, 3]


def test_a_lagging_listing_changes_nothing(store):
    class Lagging(MemoryStore):
        def list(self, folder):
            return super().list(folder)[:-2]

    lagging = Lagging()
    lagging.contents = store.contents
    for batch in range(5):
        run_batches(lagging, [batch])
    log, generation, history = start(lagging, retain_commits=1)
    assert history.decided.commit.batch == 4
    assert log.clean(generation) > 0
    assert start(lagging)[2] == history
    assert start(store)[2] == history


def test_entries_of_a_chain_that_is_not_there_are_none(store):
    assert open_log(store).entries(3) == []
    assert not open_log(store).is_sealed(3)


def test_a_long_chain_is_sealed_with_few_reads(store):
    log, generation, _ = start(store)
    for batch in range(500):
        log.append(generation, commit(batch))
        log.append(generation, Done(batch))
    counting = CountingStore(store)
    assert start(counting)[2].decided.commit.batch == 499
    assert counting.counts["list"] <= 2
    # Of them nine for the floor, once before and once behind what it is read for.
    assert counting.counts["read"] <= 25


@pytest.mark.parametrize("steps", range(16))
def test_a_seal_in_the_place_of_an_entry_that_went_with_the_power_is_not_taken_for_it(steps):
    """Found by ``test_interleavings``: a sealer that had read a COMMIT, before a loss of power took
    it and another run sealed the chain in its place, believed that the COMMIT was decided.
    """
    store = PoweredStore()
    _, first, _ = start(store)
    sealer = Actor(store, "sealer")
    log = open_log(sealer)
    second = log.claim(CLAIM).generation
    store.link(entry_key(first, 1), content_of(commit(0), first, 1))
    sealer.start(lambda: log.seal_below(second))
    for _ in range(steps):
        if sealer.facing != "create":  # From there on it is durable, or stands again.
            sealer.step()
    store.lose_power()
    _, _, other = start(store)
    assert sealer.finish() == other == EMPTY
    assert [kind for _, kind in kinds(store, first)] == ["CLAIM", "SEAL"]


@pytest.mark.parametrize("steps", range(16))
def test_an_entry_in_the_place_of_a_seal_that_went_with_the_power_is_not_taken_for_it(steps):
    """Found by the simulator: a sealer that had read a SEAL, before a loss of power took it and the
    chain's writer decided in its place, sealed the next chain without that decision.
    """
    store = PoweredStore()
    writer, first, _ = start(store)
    second = open_log(store).claim(CLAIM).generation
    third = open_log(store).claim(CLAIM).generation
    store.link(entry_key(first, 1), content_of(Seal(None, None, done=False), first, 1))
    sealer = Actor(store, "sealer")
    log = open_log(sealer)
    sealer.start(lambda: log.seal_below(third))
    for _ in range(steps):
        if sealer.facing != "create":  # From there on it is durable, or stands again.
            sealer.step()
    store.lose_power()
    writer.append(first, commit(0))
    history = sealer.finish()
    assert (history.decided.generation, history.decided.index) == (first, 1)
    assert kinds(store, first) == [(0, "CLAIM"), (1, "COMMIT"), (2, "SEAL")]
    assert kinds(store, second) == [(0, "CLAIM"), (1, "SEAL")]
