"""A run that is frozen in front of each of its operations in turn, and what others do meanwhile, at
one moment or at two: random schedules hardly ever meet just these.
"""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest

from commit_log.building import CLAIM, commit, open_log
from commit_log.stores import LostAnswerError, Wrapped
from commit_log.test_interleavings import EXPECTED, KEEP_EACH, Ledger
from onceforall.commit_log.chains import entry_key
from onceforall.commit_log.store import Created
from onceforall.errors import FencedError
from onceforall.protocol.entries import Done


class Remembering(Ledger):
    """Notes what was created where something was deleted."""

    def __init__(self):
        super().__init__()
        self.deleted = set()
        self.again = set()

    def delete(self, key):
        self.deleted.add(key)
        super().delete(key)

    def create(self, key, content):
        answer = super().create(key, content)
        if isinstance(answer, Created) and key in self.deleted:
            self.again.add(key)
        return answer


class World:
    """A log with two chains, of which the upper one is open and has one batch, and who acts on it.

    Each act is one of others, as a whole; ``histories`` is what was decided before and after each.
    """

    def __init__(self, keep_ends):
        self.ledger = Remembering()
        self.keep_ends = keep_ends
        self.nonces = itertools.count()
        self.batch = 0
        self.histories = []
        self.run()
        self.owner, self.own = self.run()
        self.newer = None
        self.chain = entry_key(self.own, 0).rpartition("/")[0] + "/"

    def log(self, store, drop_after=100):
        log = open_log(
            store,
            retain_commits=1,
            drop_after=drop_after,
            keep_ends=self.keep_ends,
            retry_pauses_ms=(0, 0, 0),
            new_nonce=lambda: f"{next(self.nonces)}",
        )
        log._floors.keep_each = KEEP_EACH
        return log

    def run(self, **options):
        """A start, and two batches."""
        log, own = self.started(**options)
        self.decide(log, own)
        return log, own

    def started(self, **options):
        log = self.log(self.ledger, **options)
        own = log.claim(CLAIM).generation
        decided = log.seal_below(own).decided
        if decided is not None:
            self.batch = decided.commit.batch + 1
            if not decided.done:
                log.append(own, Done(decided.commit.batch))
        return log, own

    def decide(self, log, own):
        for _ in range(2):
            log.append(own, commit(self.batch, f"{own}"))
            log.append(own, Done(self.batch))
            self.batch += 1

    # The acts.

    def owner_decides(self):
        # Whoever looks may have sealed the chain.
        with suppress(FencedError):
            self.decide(self.owner, self.own)

    def newer_seals(self):
        self.newer = self.started()

    def newer_decides(self):
        self.decide(*self.newer)

    def newer_cleans(self):
        # What is decided in an open chain makes nothing below it superfluous.
        log, own = self.newer = self.started()
        log.clean(own)
        assert any(key.startswith(self.chain) for key in self.ledger.deleted)
        assert self.ledger.floors[-1] == 0, "nothing was dropped"

    def others_drop(self):
        for _ in range(4):
            log, own = self.newer = self.run(drop_after=1)
            log.clean(own)
        assert self.ledger.floors[-1] > self.own, "its chain was dropped"

    def act(self, names):
        for name in names:
            self.remember()
            getattr(self, name)()
            self.remember()

    def remember(self):
        self.histories.append(self.ledger.history(len(self.ledger.chains)))


TAKEN_OVER = ("newer_seals", "newer_decides", "newer_cleans", "others_drop")


APART = pytest.mark.parametrize("apart", [3, pytest.param(None, marks=pytest.mark.long)])
"""By how many operations the two moments differ at most; None: by any number."""


def schedules(acts, operations, apart):
    """In front of which operation the first acts come, and of which later one the others."""
    for first, second in itertools.combinations_with_replacement(range(operations), 2):
        if first == second:
            yield {first: acts}
        elif apart is None or second - first <= apart:
            for split in range(1, len(acts)):
                yield {first: acts[:split], second: acts[split:]}


class Interrupted(Wrapped):
    """Lets others act in front of operations, by their number, and its first create fail."""

    def __init__(self, world, schedule, fault=None):
        super().__init__(world.ledger)
        self.world, self.schedule, self.fault = world, schedule, fault
        self.count = 0

    def around(self, name, perform, *arguments):
        self.world.act(self.schedule.get(self.count, ()))
        self.count += 1
        fault, self.fault = (self.fault, None) if name == "create" else (None, self.fault)
        if fault == "before":
            raise LostAnswerError
        answer = perform()
        if fault == "after":
            raise LostAnswerError
        return answer


def play(world, function, schedule, fault=None):
    """Run the function, and return how many operations it took, and what became of it."""
    store = Interrupted(world, schedule, fault)
    try:
        outcome = function(world, world.log(store))
    except EXPECTED as error:
        outcome = error
    return store.count, outcome


def every_play(make, function, acts, fault=None, apart=None):
    operations, _ = play(make(), function, {}, fault)
    played = 0
    # What others do makes it take some more.
    for schedule in schedules(acts, operations + 4, apart):
        world = make()
        _, outcome = play(world, function, schedule, fault)
        assert not world.ledger.violations, (schedule, world.ledger.violations)
        yield schedule, world, outcome
        played += 1
    assert played > 20, played


@pytest.mark.parametrize("fault", [None, "before", "after"])
@pytest.mark.parametrize("keep_ends", [False, True])
def test_an_append_that_comes_back_was_in_time(keep_ends, fault):
    """An entry that was created where another one was deleted decides nothing; and who is told
    that it was fenced has decided nothing."""
    went_well = fenced = 0

    def append(world, log):
        # As the owner of the chain: it claimed before it was frozen.
        log._lengths.update(world.owner._lengths)
        world.frozen = commit(world.batch, "frozen")
        return log.append(world.own, world.frozen)

    for schedule, world, outcome in every_play(lambda: World(keep_ends), append, TAKEN_OVER, fault):
        entries = world.ledger.chains[world.own]
        if isinstance(outcome, int):
            went_well += 1
            assert not [each for each in world.ledger.again if each.startswith(world.chain)], (
                schedule
            )
            assert entries[outcome] == world.frozen
        elif isinstance(outcome, FencedError):
            fenced += 1
            assert world.frozen not in entries, schedule
    assert went_well
    assert fenced


@APART
@pytest.mark.parametrize("keep_ends", [False, True])
@pytest.mark.sample(1)
def test_who_seals_learns_all_that_was_decided(keep_ends, apart):
    """It was frozen at any place, and others went on, sealed, cleaned and dropped."""
    learned = 0

    def make():
        world = World(keep_ends)
        world.mine = world.log(world.ledger).claim(CLAIM).generation
        return world

    def seal(world, log):
        return log.seal_below(world.mine)

    for schedule, world, outcome in every_play(
        make, seal, ("owner_decides", *TAKEN_OVER), apart=apart
    ):
        if not isinstance(outcome, EXPECTED):
            learned += 1
            assert outcome == world.ledger.history(world.mine), schedule
    assert learned


@APART
@pytest.mark.parametrize("keep_ends", [False, True])
@pytest.mark.sample(1)
def test_who_looks_sees_what_was_decided_at_one_moment_of_the_look(keep_ends, apart):
    def look(world, log):
        world.remember()
        return log.look()

    for schedule, world, outcome in every_play(
        lambda: World(keep_ends), look, ("owner_decides", *TAKEN_OVER), apart=apart
    ):
        world.remember()
        assert outcome in world.histories, schedule
