"""Plays seeded schedules: a query that writes, confirms, decides, commits and recovers with the
production sink, in a world with faults; and judges what the sink says by what is true.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.protocol.history import CommitPermit
from onceforall.protocol.sweeping import Sweep
from onceforall.sink import CommitReport
from onceforall.sinks.kafka import KafkaSink
from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient
from simulator.brokers.cluster import ONGOING
from simulator.brokers.events import Events
from simulator.brokers.judge import Committables, Judge
from simulator.brokers.network import simulated
from simulator.brokers.tasks import QUERY, SINK, TaskFailedError, Tasks
from simulator.brokers.world import BROKERS, KINDS, KINDS_OF_LATE, TOPIC, Killed, Truth, World
from simulator.violation import Violation

_SERVERS = ",".join(f"broker{number}:9092" for number in range(BROKERS))
_DEADLINE_S = 1.0
_OPTIONS = {"bootstrap.servers": _SERVERS, "transaction.timeout.ms": 8000}
_TRIES = 3
_LATE_SHARE = 0.2
_TRIES_WHEN_CALM = 8


class Stopped(Exception):  # noqa: N818  no error: the run ends, and another one begins
    """A run ends; the next one finds what it has left."""


class SimulatedSink(KafkaSink):
    """The production sink, with a simulated network."""

    def connect(self) -> None:
        """Connect, with little patience, as the query's sink."""
        self._client = CoordinatorClient(_SERVERS, deadline_s=_DEADLINE_S)
        self._start = (QUERY, SINK)

    @property
    def burnt(self) -> tuple[str, ...]:
        """The ids that no task may take."""
        return self._burnt


@dataclass(frozen=True)
class Outcome:
    """How a schedule went.

    Attributes:
        seed: which.
        faults: how often each kind happened.
        reports: how many transactions the sink reported, by kind of report.
        story: what happened, if it was kept.
    """

    seed: int
    faults: Mapping[str, int]
    reports: Mapping[str, int]
    story: Sequence[str] = ()


class Play:
    """One schedule."""

    def __init__(
        self, seed: int, kinds: Collection[str] | None = None, *, tell: bool = False
    ) -> None:
        rng = random.Random(seed)  # noqa: S311  not for secrets
        share = rng.choice((0.15, 0.3, 0.5))
        chosen = {kind for kind in KINDS if kind not in KINDS_OF_LATE and rng.random() < share}
        late = random.Random(f"late {seed}")  # noqa: S311
        chosen |= {kind for kind in KINDS_OF_LATE if late.random() < _LATE_SHARE}
        self.world = World(rng, chosen if kinds is None else set(kinds), tell=tell)
        Events(self.world)
        self.rng = rng
        self.generation = 0
        self.zombies = 0
        self.judge = Judge(self.world)
        self.batch = 0
        self.sink: SimulatedSink
        self.tasks: Tasks

    def run(self) -> None:
        """Play it.

        Raises:
            Violation: the sink said something false, or came to no end.
        """
        world = self.world
        for _ in range(self.rng.randint(1, 3)):
            if world.calm:
                break
            try:
                self._one_run()
            except (Killed, Stopped) as end:
                world.tell(f"the run ends: {type(end).__name__}")
            world.killable = world.steady = False
            world.swap_in = world.move_in = 0
            world.come_home()
            self._between_runs()
        self._heal()
        self._start()
        self._complete(final=True)
        self._sweep()
        if world.late:
            while world.late:
                world.arrive()
                world.stir()
            self._sweep()
        self.judge.end()

    def _heal(self) -> None:
        self.world.tell("--- all faults end")
        self.world.heal()
        while self.world.late and self.rng.random() < 0.7:
            self.world.arrive()

    def _one_run(self) -> None:
        world = self.world
        self._start()
        world.killable = True
        if self.judge.decision and world.happens("other cluster", 0.5):
            world.lead_elsewhere(self._names())
            self._complete()
            raise Stopped
        if self.judge.decision and world.happens("other cluster", 0.5):
            # It is rebuilt while it is asked.
            world.swap_in, world.swapped = self.rng.randint(2, 12), self._names()
        elif self.judge.decision and self.rng.random() < 0.1:
            self._sweep()  # as one in the background
        self._complete()
        world.swap_in = 0
        if world.brokers is not world.home:
            raise Stopped
        if self.rng.random() < 0.4:
            self._sweep()
        reusable: dict[str, Any] = {}
        for _ in range(self.rng.randint(1, 3)):
            reusable = self._write_batch(reusable)
            if self.rng.random() < 0.1:
                self._sweep()

    def _start(self) -> None:
        self.generation += 1
        self.world.tell(f"--- generation {self.generation} starts")
        self.sink = SimulatedSink(_OPTIONS, topic=TOPIC)
        self.sink.connect()
        self.tasks = Tasks(self.world, self.generation)

    def _between_runs(self) -> None:
        world = self.world
        # Brokers before release 3.6 would append a late Produce request there: a new log knows no
        # epochs.
        made_again = world.happens("topic made again", 0.3)
        if made_again and world.cluster.refuses_late_produce:
            world.make_topic_again()
            if world.home.cut is not None and self.rng.random() < 0.7:
                # It wakes while the next start asks, and goes on for a while.
                world.home.asleep, world.wakes = False, 0.002
        world.stir_up(self.rng.choice((0, 5, 20)))
        if (
            world.home.cut is None
            and not world.cluster.leaderless
            and world.happens("cut off", 0.2)
        ):
            world.home.cut_off(0, asleep=False)
        if self.rng.random() < 0.5:
            world.home.asleep = False

    def _names(self) -> dict[str, tuple[int, int]]:
        return {c["name"]: (c["producer_id"], c["producer_epoch"]) for c in self.judge.decision}

    # --- one batch --------------------------------------------------------------------------------

    def _write_batch(self, reusable: dict[str, Any]) -> dict[str, Any]:
        world, sink = self.world, self.sink
        world.steady = False
        self.batch += 1
        self.tasks.forget()
        prepared: list[dict[str, Any]] = []
        left = dict(reusable)
        try:
            for slot in range(self.rng.randint(1, 2)):
                committable, _ = self.tasks.write(self.batch, slot, left, sink.burnt)
                left.pop(str(committable["name"]), None)
                prepared.append(committable)
        except TaskFailedError:
            self._give_up(prepared)
        if world.happens("zombie", 0.5):
            self._leave_a_zombie(left)
        if self.rng.random() < 0.2:
            world.stir_up(8)
        if self.rng.random() < 0.05:
            self._heal()
        confirmed = self._confirm(prepared)
        if self.rng.random() < 0.1:
            raise Stopped
        for committable in confirmed:
            world.truths[int(committable["transaction"])].decided = True
        self.judge.decision = json.loads(json.dumps(confirmed))
        world.tell(f"batch {self.batch} is decided")
        world.maybe_leave_alone()
        if self.rng.random() < 0.3:
            raise Stopped
        if self.rng.random() < 0.1:
            # The same run sees the end of it.
            world.stir_up(10)
            self._heal()
        return self._complete(final=world.calm)

    def _look_at_ids(self, confirmed: list[dict[str, Any]]) -> None:
        """A broker that was cut off may have told the id that the topic had before: what has noted
        it is in doubt later.
        """
        for committable in confirmed:
            noted = committable.get("proof", {}).get("topic_id")
            if noted not in {None, self.world.cluster.topic_ids[TOPIC]}:
                truth = self.world.truths[int(committable["transaction"])]
                truth.whole = truth.provable = False

    def _leave_a_zombie(self, reusable: Mapping[str, Any]) -> None:
        """Another attempt begins, and goes on whenever it pleases."""
        found: list[Any] = []
        self.zombies += 1
        steps = self.tasks.writing(
            self.batch, 1 + self.zombies, {}, {*self.sink.burnt, *reusable}, found
        )

        def step() -> bool:
            self.world.zombies.remove(step)  # it doesn't move while it waits for an answer
            try:
                next(steps)
            except (StopIteration, TaskFailedError):
                return False
            self.world.zombies.append(step)
            return True

        self.world.zombies.append(step)
        step()

    def _confirm(self, prepared: list[dict[str, Any]]) -> list[dict[str, Any]]:
        world = self.world
        world.steady = True
        for _ in range(_TRIES_WHEN_CALM if world.calm else _TRIES):
            numbers = [int(c["transaction"]) for c in prepared]
            open_before = {n for n in numbers if world.is_open(n)}
            was_cut = world.home.cut
            cuts, alone = world.counts["cut off"], world.counts["alone with the cut off"]
            was_alone = world.home.alone
            believed = self.sink._topic_ids.get(TOPIC)  # noqa: SLF001
            is_told = not world.cluster.untold and believed in {
                None,
                world.cluster.topic_ids[TOPIC],
            }
            try:
                confirmed = [dict(c) for c in self.sink.confirm(prepared)]
            except SinkUnavailableError as error:
                world.tell(f"confirm: {error}")
                continue
            except AttemptFailedError as error:
                world.tell(f"confirm: {error}")
                # The only one that answers is believed in the end.
                was_alone |= alone != world.counts["alone with the cut off"]
                if is_told and not was_alone and all(world.is_open(n) for n in numbers):
                    raise Violation(f"confirm refuses what is open: {error}") from error
                self._give_up(prepared)
            if was_cut is not None or cuts != world.counts["cut off"]:
                # A coordinator that was cut off may have called open what was over by then; the
                # proof lies behind its marker.
                for number in numbers:
                    world.truths[number].provable &= world.is_open(number)
            elif len(open_before) < len(prepared):
                raise Violation("confirm passes what was not open any more when it was called")
            self._look_at_ids(confirmed)
            if {int(c["transaction"]) for c in confirmed} != set(numbers):
                raise Violation("confirm changes which transactions there are")
            return confirmed
        if world.calm:
            raise Violation("confirm comes to no end, though nothing is wrong any more")
        self._give_up(prepared)
        raise AssertionError

    def _give_up(self, prepared: Committables) -> None:
        """Abort an attempt, and end the run."""
        self._until_done("abort", lambda: self.sink.abort(prepared))
        self.judge.fenced(prepared, "abort")
        raise Stopped

    def _until_done(self, what: str, action: Callable[[], Any]) -> Any:
        """Call the sink until it answers, or the run is stopped."""
        world = self.world
        # Between the sink's look at the leaders and the markers nothing can protect a partition.
        world.steady = True
        for _ in range(_TRIES_WHEN_CALM if world.calm else _TRIES):
            world.fetches = 0
            try:
                return action()
            except SinkUnavailableError as error:
                world.tell(f"{what}: {error}")
                last = error
                world.pass_time(1.0)
        if world.calm:
            raise Violation(f"{what} comes to no end, though nothing is wrong any more: {last}")
        raise Stopped

    # --- completing what is decided ---------------------------------------------------------------

    def _complete(self, *, final: bool = False) -> dict[str, Any]:
        """Commit the decided batch, fence what has to be, and write DONE; return what was completed
        without doubt.
        """
        if not self.judge.decision:
            return {}
        world, batch = self.world, self.judge.decision
        permit = CommitPermit(self.generation, 1, int(batch[0]["batch"]))
        report = self._until_done("commit", lambda: self._commit(permit, batch))
        world.swap_in = 0
        if world.brokers is not world.home or (report.in_doubt and not final):
            raise Stopped
        lost = [each.committable for each in report.lost]
        if lost:
            self._until_done("retire what is lost", lambda: self.sink.retire(lost))
            self.judge.fenced(lost, "retire")
        doubtful = any(c.get("doubtful") for c in batch)
        if not final and world.rng.random() < (0.6 if doubtful else 0.2):
            raise Stopped
        self.judge.decision = []
        world.tell("DONE")
        if report.retired:
            self._until_done("retire", lambda: self.sink.retire(report.retired))
            self.judge.fenced(report.retired, "retire")
        return {str(c["name"]): c for c in report.completed}

    def _commit(self, permit: CommitPermit, batch: Committables) -> CommitReport:
        """Commit, and judge the report."""
        world = self.world
        unsure = world.counts["cut off"] + world.counts["topic hidden"]
        hidden = world.home.told_by_the_cut_off()
        if world.home.hidden:
            hidden = set(world.cluster.logs)
        is_cut = world.home.cut is not None
        known = {n for n, truth in world.truths.items() if self._is_known(truth)}
        just_confirmed = self.sink._just_confirmed  # noqa: SLF001
        gone = {
            number
            for number, truth in world.truths.items()
            if truth.end is None and not truth.whole and truth.name not in just_confirmed
        }
        report = self.sink.commit(permit, batch)
        for each in (*report.completed, *report.retired):
            truth = world.truths[int(each["transaction"])]
            # One that is cut off speaks of what it knew then, and that is true; but of a
            # producer in doubt another one is asked.
            is_old = is_cut and not each.get("doubtful")
            if not truth.whole and truth.number not in known and not is_old:
                raise Violation(f"the log of another topic proves transaction {truth.number}")
            if truth.number in gone:
                raise Violation(f"transaction {truth.number} is committed in another topic")
        now = world.counts["cut off"] + world.counts["topic hidden"]
        if world.brokers is not world.home or unsure != now:
            hidden = set(world.cluster.logs)
        self.judge.report(report, batch, hidden)
        return report

    def _is_known(self, truth: Truth) -> bool:
        """Tell whether the coordinator still speaks of a transaction's epoch."""
        known = truth.cluster.transactions.get(truth.name)
        of_it = (truth.producer_id, truth.epoch)
        return known is not None and (known.producer_id, known.epoch) == of_it

    def _sweep(self) -> None:
        world = self.world
        sweep = Sweep(
            QUERY, SINK, self.generation, spared=frozenset(c["name"] for c in self.judge.decision)
        )

        def recover() -> list[tuple[str, int]]:
            cluster = world.cluster
            due = [
                (name, known.number)
                for name, known in cluster.transactions.items()
                if known.state == ONGOING
                and known.number > 0
                and world.truths[known.number].generation < self.generation
                and name not in sweep.spared
            ]
            cuts = world.counts["cut off"] if world.home.cut is None else -1
            if due and world.happens("coordinator moves", 0.7):
                world.move_in = self.rng.randint(1, 16)
            self.sink.recover(sweep)
            world.move_in = 0
            return due if cuts == world.counts["cut off"] else []

        for name, number in self._until_done("sweep", recover):
            if world.is_open(number):
                raise Violation(f"a sweep leaves transaction {number} ({name}) open")


def play(seed: int, kinds: Collection[str] | None = None, *, tell: bool = False) -> Outcome:
    """Play one schedule.

    Args:
        seed: which; the same seed plays the same schedule.
        kinds: the faults, of ``KINDS``; None: the seed chooses them.
        tell: keep the story.

    Raises:
        Violation: the sink said something false, or came to no end. The message names the seed, and
            ends with the story if it was kept.
    """
    one = Play(seed, kinds, tell=tell)
    with simulated(one.world):
        try:
            one.run()
        except Violation as violation:
            story = "".join(f"\n  {line}" for line in one.world.story or ())
            raise Violation(f"seed {seed}: {violation}{story}") from violation
        except Exception as error:
            raise Violation(f"seed {seed}: the sink raises {error!r}") from error
    return Outcome(seed, dict(one.world.counts), dict(one.judge.reports), one.world.story or ())


def played(seed: int, kinds: Collection[str] | None = None) -> Outcome | Violation:
    """Play one schedule; return how it went, or how it broke the promise."""
    try:
        return play(seed, kinds)
    except Violation as violation:
        return violation


def first_violation(
    schedules: int, first_seed: int = 0, kinds: Collection[str] | None = None
) -> Violation | None:
    """Play schedules until one breaks the promise; return how, or None."""
    for seed in range(first_seed, first_seed + schedules):
        outcome = played(seed, kinds)
        if isinstance(outcome, Violation):
            return outcome
    return None
