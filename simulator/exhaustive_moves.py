"""The moves of the exhaustive search: what may happen next in a state, and what comes of it.

A move is a small number: its kind, whose it is, which of several alternatives, and what befalls it.
So a trace is a list of numbers, and replays.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from simulator.exhaustive_driver import GONE, Automaton
from simulator.exhaustive_world import (
    LOSSES,
    NO_ANSWER,
    Entries,
    Options,
    Violation,
    World,
    name_of,
)

FAILS = 1
"""The variant of a task that opens its transaction and then fails."""

_FATES = {0: "", FAILS: "/fails", **{variant: f"/lost {when}" for variant, when in LOSSES.items()}}
_LATE = ("create", "end", "fence")


class Kind(IntEnum):
    """Who moves."""

    START = 0
    DRIVER = 1
    CRASH = 2
    TIMEOUT = 3
    LATE_TASK = 4
    LATE_REQUEST = 5
    EXPIRY = 6


class Move(NamedTuple):
    """One move; ``who`` is a place in the state's tuple of drivers, transactions, late tasks or
    late requests.
    """

    kind: Kind
    who: int = 0
    alternative: int = 0
    variant: int = 0

    @property
    def number(self) -> int:
        """The move as a number below 2^16."""
        return ((self.kind * 32 + self.who) * 32 + self.alternative) * 8 + self.variant

    @classmethod
    def of(cls, number: int) -> Move:
        """Return the move of a number."""
        return cls(Kind(number // 8192), number // 256 % 32, number // 8 % 32, number % 8)


class Moves:
    """Enumerates and performs moves; ``outcomes`` counts how drivers ended."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.entries = Entries()
        self.automaton = Automaton(options, self.entries)
        self.outcomes: dict[str, int] = {}
        # One that claims now and read Spark's number before is one that starts now with that
        # number: no state needs to hold drivers that have claimed nothing yet.
        self._claims_at_once = not options.fine and not options.lost_answers

    def first(self) -> World:
        """Return the state before everything."""
        return World.new(self.entries, self.options)

    def world(self, packed: tuple[Any, ...]) -> World:
        """Return the state with this content."""
        return World(self.entries, self.options.participants, packed)

    def of(self, world: World) -> Iterator[Move]:
        """Yield all moves of a state."""
        options = self.options
        if world.started < options.generations and world.spark + 1 < options.batches:
            if self._claims_at_once:
                for batch in range(world.spark + 2):
                    yield Move(Kind.START, batch)
            else:
                yield Move(Kind.START, world.spark + 1)
        for position, local in enumerate(world.drivers):
            if local == GONE:
                continue
            if options.crashes:
                yield Move(Kind.CRASH, position)
            yield from self._of_driver(world, position, local)
        yield from self._of_systems(world)

    @staticmethod
    def _of_systems(world: World) -> Iterator[Move]:
        for kind, count in (
            (Kind.TIMEOUT, len(world.opened()) if world.timeouts else 0),
            (Kind.EXPIRY, len(world.idle()) if world.expiries else 0),
            (Kind.LATE_TASK, len(world.late_tasks)),
            (Kind.LATE_REQUEST, len(world.late)),
        ):
            for index in range(count):
                yield Move(kind, index)

    def _of_driver(self, world: World, position: int, local: int) -> Iterator[Move]:
        for alternative, (standing, index) in enumerate(self._ways(world, local)):
            yield Move(Kind.DRIVER, position, alternative)
            request = self.automaton.locals[standing].request
            word = request[0] if request else "ends"
            if word == "tasks" and world.failures and not request[1][index][4]:
                yield Move(Kind.DRIVER, position, alternative, FAILS)
            if world.losses and word in {"create", "end", "fence"}:
                for variant in LOSSES:
                    # A late CLAIM would be of a generation that nobody knows to be its own.
                    if not (word == "create" and request[2] == 0 and LOSSES[variant] == "late"):
                        yield Move(Kind.DRIVER, position, alternative, variant)

    def _ways(self, world: World, local: int) -> list[tuple[int, int]]:
        """Return the requests that a driver may make now: (local state in front of it, which of
        several tasks).
        """
        local = self._read_on(world, local)
        if self.automaton.locals[local].outcome:
            return [(local, 0)]
        request = self.automaton.locals[local].request
        if request[0] == "choose":
            return [
                way
                for choice in range(request[1])
                for way in self._ways(world, self.automaton.after(local, choice))
            ]
        if request[0] == "tasks":
            return [(local, index) for index in range(len(request[1]))]
        return [(local, 0)]

    def _settle(self, world: World, position: int, local: int) -> None:
        """Let a driver do what changes nothing and has an answer that can never change, so that
        it commutes with all other steps.
        """
        now = local
        while request := self.automaton.locals[now].request:
            answer = self._unchanging(world, position, request)
            if answer is None:
                break
            now = self.automaton.after(now, answer)
        if now != local:
            self._put(world, position, now)

    def _unchanging(self, world: World, position: int, request: tuple[Any, ...]) -> Any:  # noqa: PLR0911  one return per request
        """Return the only answer that a request can ever get, or None when it may still change
        or the request changes something.
        """
        word = request[0]
        if word == "read":
            return world.read(request[1], request[2]) or (
                0 if world.is_sealed(request[1]) else None
            )
        if word == "list":
            return self._length(world, request[1]) if world.is_sealed(request[1]) else None
        if word == "create":
            # Entries stay: nobody cleans.
            there = world.losses == 0 and world.read(request[1], request[2])
            return world.create(position, *request[1:])[0] if there else None
        if word == "end":
            # Epochs only go up.
            return 1 if world.losses == 0 and world.epoch(request[1]) > request[2] else None
        if word == "outcome":
            outcome = world.outcome(*request[1:])
            return outcome if outcome < 2 else None
        if word == "spark!":
            return 0 if world.spark >= request[1] else None
        if word == "spark?":
            return world.spark if world.spark + 1 == self.options.batches else None
        return None

    def _read_on(self, world: World, local: int) -> int:
        """Perform the reads that are no steps of their own, outside fine worlds: those of the
        log, and listings of transactions.
        """
        locals_ = self.automaton.locals
        while not self.options.fine:
            request = locals_[local].request
            if not request or request[0] not in {"read", "list", "opened"}:
                break
            local = self.automaton.after(local, self._look(world, request))
        return local

    @staticmethod
    def _length(world: World, generation: int) -> int:
        return len(world.chains[generation]) if generation < len(world.chains) else 0

    def perform(self, world: World, move: Move) -> None:
        """Change a state by a move.

        Raises:
            Violation: the promise is broken by it.
        """
        if move.kind == Kind.DRIVER:
            self._drive(world, move)
        elif move.kind == Kind.START:
            self._start(world, move.who)
        elif move.kind == Kind.CRASH:
            self._put(world, move.who, GONE)
        else:
            self._befall(world, move.kind, move.who)
        for position, local in enumerate(world.drivers):
            if local != GONE:
                self._settle(world, position, local)
        claimed = len(world.chains)
        if len(world.drivers) - claimed > 1:
            world.drivers = (*world.drivers[:claimed], *sorted(world.drivers[claimed:]))

    def _start(self, world: World, batch: int) -> None:
        world.started += 1
        world.drivers = (*world.drivers, self.automaton.start(batch))
        claimed = len(world.chains)
        while self._claims_at_once and len(world.chains) == claimed and world.drivers[-1] != GONE:
            self._drive(world, Move(Kind.DRIVER, len(world.drivers) - 1))

    def _befall(self, world: World, kind: Kind, who: int) -> None:
        """Let happen what no driver does."""
        if kind == Kind.TIMEOUT:
            world.time_out(world.opened()[who])
        elif kind == Kind.EXPIRY:
            world.expire(world.idle()[who])
        elif kind == Kind.LATE_TASK:
            item = world.late_tasks[who]
            world.late_tasks = (*world.late_tasks[:who], *world.late_tasks[who + 1 :])
            world.begin(item)
        else:
            assert kind == Kind.LATE_REQUEST
            request = world.late[who]
            world.late = (*world.late[:who], *world.late[who + 1 :])
            self._deliver(world, request)

    def _drive(self, world: World, move: Move) -> None:
        position = move.who
        local, index = self._ways(world, world.drivers[position])[move.alternative]
        if not self.automaton.locals[local].outcome:
            local, position = self._request(world, position, local, (index, move.variant))
        self._put(world, position, local)

    def _request(
        self, world: World, position: int, local: int, how: tuple[int, int]
    ) -> tuple[int, int]:
        request, (index, variant) = self.automaton.locals[local].request, how
        word = request[0]
        answer: Any
        if word == "tasks":
            answer = (index, self._task(world, request[1], index, fails=variant == FAILS))
        elif variant in LOSSES:
            world.losses -= 1
            if LOSSES[variant] == "after":
                _, position = self._change(world, position, request)
            elif LOSSES[variant] == "late":
                world.late = tuple(sorted((*world.late, _as_numbers(request))))
            answer = NO_ANSWER
        elif word in {"create", "end", "fence"}:
            answer, position = self._change(world, position, request)
        else:
            answer = self._look(world, request)
        return self.automaton.after(local, answer), position

    @staticmethod
    def _change(world: World, position: int, request: tuple[Any, ...]) -> tuple[int, int]:
        if request[0] == "create":
            return world.create(position, *request[1:])
        if request[0] == "end":
            return world.end(*request[1:]), position
        world.fence(*request[1:])
        return 0, position

    def _look(self, world: World, request: tuple[Any, ...]) -> Any:
        word = request[0]
        if word == "spark!":
            return world.commit_spark(request[1])
        if word == "spark?":
            return world.spark
        if word == "opened":
            return world.opened()
        if word == "outcome":
            return world.outcome(*request[1:])
        if word == "read":
            return world.read(*request[1:])
        assert word == "list"
        return self._length(world, request[1])

    @staticmethod
    def _task(world: World, items: tuple[Any, ...], index: int, *, fails: bool) -> int:
        item = items[index]
        epoch = world.pre_commit(item) if item[4] else world.begin(item)
        if fails:
            world.failures -= 1
            epoch = -1
        if epoch < 0:
            # The job has failed, and its other tasks go on for a while.
            others = (each for place, each in enumerate(items) if place != index and not each[4])
            world.late_tasks = tuple(sorted((*world.late_tasks, *others)))
        return epoch

    def _deliver(self, world: World, request: tuple[int, ...]) -> None:
        kind, *arguments = request
        if kind == 0:
            generation, index, entry = arguments
            if not world.read(generation, index):
                world.create(generation, generation, index, entry)
        elif kind == 1:
            world.end_now(*arguments)
        else:
            world.fence(arguments[0], "a late fence")

    def _put(self, world: World, position: int, local: int) -> None:
        outcome = self.automaton.locals[local].outcome
        if outcome:
            if local != GONE:
                self._judge(world, outcome)
            local = GONE
        drivers = world.drivers
        world.drivers = (*drivers[:position], local, *drivers[position + 1 :])

    def _judge(self, world: World, outcome: str) -> None:
        name = outcome.partition(":")[0]
        options = self.options
        timed_out, failed = world.timeouts < options.timeouts, world.failures < options.failures
        expired = world.expiries < options.expiries
        replaced, unanswered = world.started > 1, world.losses < options.lost_answers
        allowed = {
            "finished": True,
            "FencedError": replaced,
            "OvertakenError": replaced,
            "conflict": replaced,
            "TransactionLostError": timed_out,
            # A task fails by itself, or meets an epoch that somebody has raised.
            "AttemptFailedError": replaced or timed_out or failed or unanswered or expired,
            "OutcomeUnknownError": unanswered,
            "CommitLogError": unanswered,
        }.get(name, False)
        if not allowed:
            raise Violation(f"a driver came to {outcome}")
        self.outcomes[name] = self.outcomes.get(name, 0) + 1

    def name(self, world: World, move: Move) -> str:
        """Return what a person reads of a move in this state."""
        kind, who = move.kind, move.who
        if kind not in {Kind.DRIVER, Kind.CRASH}:
            return self._name_of_what_befalls(world, kind, who)
        driver = f"g{who}" if who < len(world.chains) else f"new{who - len(world.chains)}"
        if kind == Kind.CRASH:
            return f"{driver}.crash"
        local, index = self._ways(world, world.drivers[who])[move.alternative]
        request = self.automaton.locals[local].request
        return f"{driver}.{self._words(request, index)}{_FATES[move.variant]}"

    @staticmethod
    def _name_of_what_befalls(world: World, kind: Kind, who: int) -> str:
        if kind == Kind.START:
            return f"start(batch {who})"
        if kind == Kind.TIMEOUT:
            return f"timeout({name_of(world.opened()[who])})"
        if kind == Kind.EXPIRY:
            return f"expiry({name_of(world.idle()[who])})"
        if kind == Kind.LATE_TASK:
            return f"late-task({name_of(world.late_tasks[who][1])})"
        return f"late-{_LATE[world.late[who][0]]}{world.late[who][1:]}"

    def _words(self, request: tuple[Any, ...], index: int) -> str:
        if not request:
            return "ends"
        word = str(request[0])
        if word == "create":
            entry = self.entries.entries[request[3]]
            batch = getattr(entry, "batch", "")
            return f"{entry.kind}{batch}@{request[1]}/{request[2]}"
        if word in {"end", "fence", "outcome"}:
            return f"{word}({name_of(request[1])})"
        if word == "tasks":
            item = request[1][index]
            return f"{'prepare' if item[4] else 'task'}{item[3]}({name_of(item[1])})"
        return word + (
            f"({','.join(str(part) for part in request[1:])})" if len(request) > 1 else ""
        )


def _as_numbers(request: tuple[Any, ...]) -> tuple[int, ...]:
    word = request[0]
    if word == "create":
        return (0, *request[1:4])
    return (1, request[1], request[2]) if word == "end" else (2, request[1])
