"""Several runs of one query on one log, each store operation a step of a schedule that Hypothesis
draws and shrinks.

Fault model. A run can be frozen in front of any store operation, for any time, or die there. An
operation can raise without having happened, raise although it has happened, or raise and happen at
any later time (even after its run died). A create can stand before its sync, where everybody can
read the entry, and a loss of power takes away what was not synced; requests that are under way
survive it. A listing can lack its newest names. The store keeps its four guarantees.

Checked at every operation: no entry follows a SEAL; chains are sealed from the bottom up, and a
SEAL says what its past
decided; neither generations nor chains have gaps; nothing that is needed is deleted, and a whole
chain only below a durable floor. Checked whenever a run learns or does
something: whoever seals learns exactly what was ever appended; an append that returned is there;
one that was fenced is not.

``INTERLEAVINGS=6000 pytest --timeout 3600 tests/commit_log/test_interleavings.py`` looks for more,
some minutes long.

What random schedules hardly ever hit: a sealer that freezes just between its last read and its
create, while the chain grows, is
sealed and is cleaned. ``test_cleaning`` goes through that one step by step.
"""

from __future__ import annotations

import itertools
import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from commit_log.building import NOON, folded
from commit_log.stores import Actor, LostAnswerError, PoweredStore
from onceforall.commit_log.chains import entry_key, sealed_key
from onceforall.commit_log.creating import NoAnswerError
from onceforall.commit_log.envelope import decode, decode_fields
from onceforall.commit_log.log import CommitLog
from onceforall.errors import FencedError, OutcomeUnknownError
from onceforall.protocol.entries import Claim, Commit, Done, Seal
from onceforall.protocol.history import EMPTY, fold, seal_of

MAXIMAL_LIVE_RUNS = 4
KEEP_EACH = 2
EXPECTED = (FencedError, OutcomeUnknownError, NoAnswerError, LostAnswerError)
OPERATION_FAULTS = st.sampled_from(
    [None, None, "before", "after", "late", "lag", "empty", "visible", "visible"]
)


class Ledger(PoweredStore):
    """Remembers every entry in the order in which they became durable, and notes what must never
    happen."""

    def __init__(self):
        super().__init__()
        self.chains: list[list] = []
        self.seals: dict[int, int] = {}
        self.floors = [0]
        self.violations: list[str] = []

    def check(self, condition, message):
        if not condition:
            self.violations.append(message)

    def history(self, below):
        history = EMPTY
        for generation, chain in enumerate(self.chains[:below]):
            history = fold(history, generation, enumerate(chain))
        return history

    def sync(self, key):
        synced = super().sync(key)
        for each in synced:
            if each.startswith("floors/"):
                self.raised(each, int(each.removeprefix("floors/").removesuffix(".json")))
                continue
            _, folder, name = each.split("/")
            if int(folder) >= self.floors[-1] and name != "sealed.json" and each in self.contents:
                generation, index = int(folder), int(name.removesuffix(".json"))
                entry = decode(
                    self.contents[each], where=each, generation=generation, index=index
                ).entry
                self.entered(each, generation, index, entry)
        return synced

    def raised(self, key, number):
        if number < len(self.floors) - 1:
            return  # a create that arrived late
        floor = decode_fields(self.contents[key], key)["generation"]
        decided = self.history(len(self.seals)).decided
        self.check(number == len(self.floors) - 1, f"{key}: floors have a gap")
        self.check(floor > self.floors[-1], f"{key}: {floor} is no higher than {self.floors[-1]}")
        self.check(
            decided is not None and floor <= decided.generation,
            f"{key}: the last decision is below {floor}",
        )
        self.floors.append(floor)

    def entered(self, key, generation, index, entry):
        if index == 0:
            self.check(generation == len(self.chains), f"{key}: generations have a gap")
            self.chains.append([])
        chain, seal = self.chains[generation], self.seals.get(generation)
        if seal is not None:
            marked = sealed_key(generation) in self.contents
            repeated = index < len(chain) and (entry == chain[index] or isinstance(entry, Seal))
            self.check(index < seal, f"{key}: {entry.kind} follows the SEAL at {seal}")
            self.check(
                marked and repeated, f"{key}: {entry.kind} below the SEAL, where no cleaner was"
            )
            return
        self.check(index == len(chain), f"{key}: the chain has a gap")
        chain.append(entry)
        if isinstance(entry, Seal):
            self.seals[generation] = index
            self.check(
                all(g in self.seals for g in range(generation)),
                f"{key}: sealed before the chains below it",
            )
            self.check(
                entry == seal_of(self.history(generation + 1)),
                f"{key}: {entry} is not what was decided",
            )

    def delete(self, key):
        if key.startswith("floors/"):
            number = int(key.removeprefix("floors/").removesuffix(".json"))
            self.check(
                number % KEEP_EACH and number < len(self.floors) - 2,
                f"{key}: deleted a floor that counts",
            )
        elif int(key.split("/")[1]) < self.floors[-1]:
            self.check(key != entry_key(0, 0), f"{key}: deleted the log's first claim")
        elif key in self.contents:
            _, folder, name = key.split("/")
            self.check(name != "sealed.json", f"{key}: deleted a mark")
            generation, index = int(folder), int(name.removesuffix(".json"))
            entry = decode(self.contents[key], where=key, generation=generation, index=index).entry
            self.check(generation in self.seals, f"{key}: deleted in an open chain")
            self.check(
                sealed_key(generation) in self.contents, f"{key}: deleted in an unmarked chain"
            )
            self.check(
                index not in (0, self.seals.get(generation)), f"{key}: deleted a {entry.kind}"
            )
            decided = self.history(len(self.seals)).decided
            needed = (
                decided is not None
                and isinstance(entry, Commit | Done)
                and entry.batch == decided.commit.batch
            )
            is_redone = (
                needed
                and isinstance(entry, Commit)
                and (decided.generation, decided.index) != (generation, index)
            )
            self.check(not needed or is_redone, f"{key}: deleted {entry}, which is needed")
        super().delete(key)


class Interleavings(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.ledger = Ledger()
        self.actors: list[Actor] = []
        self.nonces = itertools.count()
        self.told: dict[int, object] = {}

    def life(self, actor, plan, retain):
        """What a coordinator does with its log; the plan says what happens after each batch."""

        def live():
            log = CommitLog(
                actor,
                retain_commits=retain,
                drop_after=1,
                retry_pauses_ms=(0, 0, 0),
                sleep=lambda _: None,
                new_nonce=lambda: f"{next(self.nonces)}",
                now=lambda: NOON,
            )
            generation, batch = self.begin(log, actor.name)
            for what in plan:
                if what == "clean":
                    log.clean(generation)
                elif what == "roll":
                    generation, batch = self.begin(log, actor.name)
                else:
                    self.append(log, generation, Commit(batch, (actor.name,), {}))
                    self.append(log, generation, Done(batch))
                    batch += 1
            return "finished"

        return live

    def begin(self, log, name):
        log._floors.keep_each = KEEP_EACH
        claimed = log.claim(Claim("query", name, "/c"))
        generation = claimed.generation
        below = self.ledger.chains[generation - 1][0] if generation else None
        assert claimed.previous == below
        history = log.seal_below(generation)
        assert all(g in self.ledger.seals for g in range(generation)), "a chain below is open"
        assert history == self.ledger.history(generation), (
            f"generation {generation} learned {history}"
        )
        assert self.told.setdefault(generation, history) == history, "the past has changed"
        decided = history.decided
        if decided is None:
            return generation, 0
        if not decided.done:
            if decided.index % 2:  # sometimes its transactions are lost, and it is written again
                self.append(log, generation, Commit(decided.commit.batch, (name, "redo"), {}))
            self.append(log, generation, Done(decided.commit.batch))
        return generation, decided.commit.batch + 1

    def append(self, log, generation, entry):
        index = log.chain_length(generation)
        try:
            assert log.append(generation, entry) == index
        except FencedError:
            assert self.ledger.seals[generation] == index, (
                "fenced, though the chain is open or the entry was appended"
            )
            raise
        assert self.ledger.chains[generation][index] == entry
        assert log.chain_length(generation) == index + 1

    def check(self, actor):
        assert not self.ledger.violations, self.ledger.violations
        outcome = actor.outcome
        if (
            not actor.running
            and isinstance(outcome, BaseException)
            and not isinstance(outcome, EXPECTED)
        ):
            raise outcome

    def live_actors(self):
        return [actor for actor in self.actors if actor.running]

    @initialize(batches=st.integers(0, 4))
    def first_run(self, batches):
        self.start(["batch"] * batches, 1)
        self.actors[0].finish()
        self.check(self.actors[0])

    @precondition(lambda self: len(self.live_actors()) < MAXIMAL_LIVE_RUNS)
    @rule(
        plan=st.lists(st.sampled_from(["batch", "batch", "clean", "roll"]), max_size=6),
        retain=st.integers(1, 3),
    )
    def start(self, plan, retain):
        actor = Actor(self.ledger, f"run-{len(self.actors)}")
        self.actors.append(actor)
        actor.start(self.life(actor, plan, retain))

    @precondition(lambda self: self.live_actors())
    @rule(data=st.data(), steps=st.integers(1, 40), fault=OPERATION_FAULTS)
    def step(self, data, steps, fault):
        actor = data.draw(st.sampled_from(self.live_actors()), label=None)
        for _ in range(steps - 1):
            if actor.running:
                actor.step()
                self.check(actor)
        if actor.running:
            actor.step(fault)
            self.check(actor)

    @precondition(lambda self: self.live_actors())
    @rule(
        data=st.data(),
        faults=st.lists(st.sampled_from([None, "before", "after", "late"]), min_size=2, max_size=6),
    )
    def stumble(self, data, faults):
        actor = data.draw(st.sampled_from(self.live_actors()))
        for fault in faults:
            if actor.running:
                actor.step(fault)
                self.check(actor)

    @precondition(lambda self: self.live_actors())
    @rule(data=st.data())
    def finish(self, data):
        actor = data.draw(st.sampled_from(self.live_actors()))
        while actor.running:
            actor.step()
            self.check(actor)

    @precondition(lambda self: self.live_actors())
    @rule(data=st.data())
    def die(self, data):
        data.draw(st.sampled_from(self.live_actors())).kill()

    @precondition(lambda self: self.live_actors())
    @rule(
        data=st.data(),
        passed=st.tuples(*[st.integers(0, 4)] * 2),
        steps=st.integers(0, 20),
        power=st.booleans(),
    )
    def read_what_is_not_durable(self, data, passed, steps, power):
        """A create stands before its sync; another run goes on, and its own creates are on their
        way for long; then the power goes."""
        writer, reader = (
            data.draw(st.sampled_from(self.live_actors())),
            data.draw(st.sampled_from(self.live_actors())),
        )
        fault = data.draw(st.sampled_from([None, "late"]))
        self.pass_creates(reader, passed[0])
        self.pass_creates(writer, passed[1])
        if writer.running:
            writer.step("visible")
        for _ in range(steps):
            if reader.running and reader is not writer:
                reader.step(fault if reader.facing == "create" else None)
        if power:
            self.ledger.lose_power()
        self.check(writer)
        self.check(reader)

    def pass_creates(self, actor, count):
        """Let it do so many creates, and stop before the next one."""
        while actor.running and (count or actor.facing not in {"create", "sync"}):
            count -= actor.facing in {"create", "sync"}
            actor.step()
            self.check(actor)

    @precondition(lambda self: self.ledger.unsynced)
    @rule()
    def lose_power(self):
        self.ledger.lose_power()

    @precondition(lambda self: any(actor.late for actor in self.actors))
    @rule(data=st.data())
    def arrive_late(self, data):
        actor = data.draw(st.sampled_from([actor for actor in self.actors if actor.late]))
        actor.late.pop(data.draw(st.integers(0, len(actor.late) - 1)))()

    @invariant()
    def nothing_forbidden_has_happened(self):
        assert not self.ledger.violations, self.ledger.violations

    @invariant()
    def every_claim_and_seal_is_there(self):
        for generation in range(len(self.ledger.chains)):
            assert (
                0 < generation < self.ledger.floors[-1]
                or entry_key(generation, 0) in self.ledger.contents
            )
        for generation, index in self.ledger.seals.items():
            assert (
                generation < self.ledger.floors[-1]
                or entry_key(generation, index) in self.ledger.contents
            )

    def teardown(self):
        for actor in self.actors:
            actor.kill()
        for actor in self.actors:
            for land in actor.late:
                land()
        assert not self.ledger.violations, self.ledger.violations
        # Healed, the log serves: it tells what was ever decided, before and after it is cleaned.
        for retain in (3, 1):
            log = CommitLog(self.ledger, retain_commits=retain, drop_after=1, sleep=lambda _: None)
            log._floors.keep_each = KEEP_EACH
            generation = log.claim(Claim("query", "last", "/c")).generation
            history = log.seal_below(generation)
            assert history == self.ledger.history(generation)
            assert folded(log, generation) == history
            log.clean(generation)
            assert not self.ledger.violations, self.ledger.violations
            assert folded(log, generation) == history
            assert log.seal_below(generation) == history


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=int(os.environ.get("INTERLEAVINGS", "120")),
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)
