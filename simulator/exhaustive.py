"""Exhaustive search of small worlds, over the real protocol, the real coordinator and the real
commit log.

    python -m simulator.exhaustive --generations 3 --batches 2 --participants 2 --timeouts 2
    [--fine] [--minutes M] python -m simulator.exhaustive --standard

Every interleaving of live drivers is explored, every crash, drivers that freeze and wake at any
time, and so many time-outs of the systems, forgotten ids, failed task attempts and lost answers as
are asked for. ``exhaustive_driver`` says how the production code becomes an automaton,
``exhaustive_world`` which promises are checked at each operation, and ``exhaustive_world.Options``
what a step is.

**Crashes** need no moves of their own: a crashed driver is one that never moves again, and nobody
can tell it from a frozen one. All states are checked, so also those behind which some drivers never
move. (``--crashes`` makes them moves; a test shows that the same worlds are met.)

**Liveness** is checked in every state: with all drivers dead, a fresh one without faults must bring
the query to its end, with every batch visible once in each participant. That depends on the world
alone, so it is done once for each.

**What is one step.** Each operation of a driver that changes something, or reads Spark's number or
the fate of a transaction. Reads of the log and listings of transactions are fused with the
operation that follows, unless ``--fine``: then each is a step, and so is each half of a task.

**What is not explored twice.** A step that changes nothing and whose answer can never change (an
entry that is there, anything of a sealed chain, an epoch that was passed: nothing is deleted here,
and epochs only go up) commutes with every other step, so a driver takes it at once. A start that
read Spark's number and claims later is a start with that older number that claims at once. Tests
show that the same worlds are met without this.

A state is remembered as a digest of 16 bytes. The search is breadth-first, so the trace of a
violation is a shortest one.

Not covered: cleaning of the log, rolling into a new generation, several tasks per participant,
speculative attempts. These are the random simulator's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import marshal
import resource
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from simulator.exhaustive_driver import GONE
from simulator.exhaustive_moves import Kind, Move, Moves
from simulator.exhaustive_world import Options, Violation, World
from simulator.page import WORLDS, digest_of_today

__all__ = ["STANDARD", "Options", "Result", "Violation", "explore", "main", "replay"]

STANDARD = (
    Options(generations=2, participants=2, timeouts=2),
    Options(generations=2, participants=2, timeouts=1, durable=True),
    Options(generations=2, participants=1, timeouts=1, stateful=True),
    Options(generations=2, participants=1, timeouts=1, expiries=1, failures=1),
    Options(generations=2, participants=1, timeouts=1, lost_answers=1),
    Options(generations=2, participants=1, timeouts=1, fine=True),
    Options(generations=2, participants=2, timeouts=1, fine=True),
    Options(generations=2, participants=1, timeouts=2, lost_answers=1, fine=True),
    Options(
        generations=2, batches=1, participants=1, timeouts=1, expiries=1, failures=1, lost_answers=1
    ),
    Options(generations=2, participants=2, timeouts=1, failures=1),
    Options(generations=3, participants=1, timeouts=2),
    Options(generations=3, participants=2, timeouts=2),
)
"""The worlds that are worth a search, the last one being that of the model with which the
protocol was designed."""

_LONGEST_HEALING = 1000
_ASK_CLOCK_EVERY = 2048


@dataclass
class Result:
    """What a search came to.

    Attributes:
        options: the world.
        states: distinct states met.
        transitions: moves performed.
        complete: states in which Spark's commit log has every batch.
        worlds: states that differ in more than what drivers remember; liveness was checked in each.
        local_states: of drivers.
        depth: moves of the longest shortest way to a state.
        seconds: how long it took.
        exhausted: there is no state that was not met; false when the time was over or a violation
            ended the search.
        violation: the first one, or empty.
        trace: the moves to it, for ``replay``.
        story: the same for people.
        outcomes: how drivers ended, by number of moves that ended one.
    """

    options: Options
    states: int = 0
    transitions: int = 0
    complete: int = 0
    worlds: int = 0
    local_states: int = 0
    depth: int = 0
    seconds: float = 0.0
    exhausted: bool = False
    violation: str = ""
    trace: list[int] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        world = dataclasses.asdict(self.options)
        return {
            **fields,
            "options": world,
            "violations": int(bool(self.violation)),
            "seconds": round(self.seconds, 1),
        }


def explore(
    options: Options,
    *,
    minutes: float | None = None,
    progress: Callable[[Result, int], None] = lambda *_: None,
) -> Result:
    """Search a world to its end, to a first violation, or until the time is over.

    Args:
        options: the world.
        minutes: how long at the most; None: to the end.
        progress: called now and then with what is known and the number of states that wait to be
            expanded.
    """
    with _quiet():
        return _Search(options).run(minutes, progress)


def replay(options: Options, trace: Sequence[int]) -> list[str]:
    """Play a trace again, and return its moves for people.

    Raises:
        Violation: what the trace leads to, if it does.
    """
    with _quiet():
        moves = Moves(options)
        world, story = moves.first(), []
        for number in trace:
            move = Move.of(number)
            story.append(moves.name(world, move))
            try:
                moves.perform(world, move)
            except Violation as violation:
                raise Violation(f"{violation}\n  {' '.join(story)}") from None
        _heal(moves, world)
        return story


@contextmanager
def _quiet() -> Iterator[None]:
    """Retries are logged, and there are thousands."""
    logger = logging.getLogger("onceforall")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


class _Search:
    def __init__(self, options: Options) -> None:
        self._moves = Moves(options)
        self._result = Result(options)
        self._seen: set[bytes] = set()
        self._healed: set[bytes] = set()
        self._parents = array("I")
        self._numbers = array("H")
        self._waiting: deque[tuple[bytes, int]] = deque()

    def run(self, minutes: float | None, progress: Callable[[Result, int], None]) -> Result:
        began = time.monotonic()
        deadline = None if minutes is None else began + 60 * minutes
        result, turns = self._result, 0
        try:
            self._meet(self._moves.first(), 0, 0)
        except Violation as violation:
            result.violation = str(violation)
        while self._waiting and not result.violation:
            turns += 1
            if turns % _ASK_CLOCK_EVERY == 0:
                self._count(began)
                progress(result, len(self._waiting))
                if deadline is not None and time.monotonic() > deadline:
                    break
            content, ordinal = self._waiting.popleft()
            try:
                self._expand(content, ordinal)
            except Violation as violation:
                result.violation = str(violation)
        result.exhausted = not self._waiting and not result.violation
        self._count(began)
        if result.violation:
            result.story = _story(result)
        return result

    def _count(self, began: float) -> None:
        result = self._result
        result.states, result.worlds, result.seconds = (
            len(self._seen),
            len(self._healed),
            time.monotonic() - began,
        )
        result.local_states, result.outcomes = (
            len(self._moves.automaton.locals),
            dict(sorted(self._moves.outcomes.items())),
        )
        result.depth = len(self._trace(len(self._parents) - 1))

    def _expand(self, content: bytes, ordinal: int) -> None:
        moves, packed = self._moves, marshal.loads(content)  # noqa: S302  our own bytes, from this process
        for move in moves.of(moves.world(packed)):
            world = moves.world(packed)
            self._result.transitions += 1
            try:
                moves.perform(world, move)
                self._meet(world, ordinal, move.number)
            except Violation:
                self._result.trace = [*self._trace(ordinal), move.number]
                raise

    def _meet(self, world: World, parent: int, number: int) -> None:
        content = world.bytes()
        digest = blake2b(content, digest_size=16).digest()
        if digest in self._seen:
            return
        self._seen.add(digest)
        ordinal = len(self._parents)
        self._parents.append(parent)
        self._numbers.append(number)
        self._waiting.append((content, ordinal))
        self._result.complete += world.spark + 1 == self._result.options.batches
        shared = blake2b(marshal.dumps(world.shared(), 2), digest_size=16).digest()
        if shared not in self._healed:
            self._healed.add(shared)
            _heal(self._moves, world)

    def _trace(self, ordinal: int) -> list[int]:
        numbers = []
        while ordinal:
            numbers.append(self._numbers[ordinal])
            ordinal = self._parents[ordinal]
        return numbers[::-1]


def _heal(moves: Moves, world: World) -> None:
    """With all drivers dead, a fresh one without faults must bring the query to its end."""
    try:
        _bring_to_an_end(moves, world)
    except Violation as violation:
        raise Violation(
            f"all drivers die there and a fresh one starts; then: {violation}"
        ) from None


def _bring_to_an_end(moves: Moves, world: World) -> None:
    batches = moves.options.batches
    healed = moves.world((*world.shared(), (GONE,) * len(world.chains), 0, 0, 0, 0, 0))
    if healed.spark + 1 < batches:
        position = len(healed.chains)
        healed.drivers = (*healed.drivers, moves.automaton.start(healed.spark + 1))
        outcomes = dict(moves.outcomes)
        for _ in range(_LONGEST_HEALING):
            if healed.drivers[position] == GONE:
                break
            moves.perform(healed, Move(Kind.DRIVER, position))
        else:
            raise Violation("a fresh driver without faults does not come to an end")
        ended = [name for name, count in moves.outcomes.items() if outcomes.get(name, 0) != count]
        moves.outcomes = outcomes
        if ended != ["finished"]:
            raise Violation(f"a fresh driver without faults came to {ended}")
    while healed.late:
        moves.perform(healed, Move(Kind.LATE_REQUEST, 0))
    if healed.spark + 1 != batches:
        raise Violation(f"Spark's commit log ends with {healed.spark} after healing")
    for batch in range(batches):
        healed.check_complete(batch, "after healing")


def _story(result: Result) -> list[str]:
    moves = Moves(result.options)
    world, story = moves.first(), []
    for number in result.trace:
        move = Move.of(number)
        story.append(moves.name(world, move))
        try:
            moves.perform(world, move)
        except Violation:
            break
    return story


def _show(result: Result, waiting: int) -> None:
    rate = result.states / max(result.seconds, 0.001)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    sys.stdout.write(
        f"{result.seconds:7.0f} s  {result.states:>11,} states  {result.transitions:>12,} "
        f"transitions  {waiting:>10,} waiting  "
        f"depth {result.depth:>3}  {result.local_states:>7,} local  {result.worlds:>9,} worlds  "
        f"{rate:>8,.0f}/s  {memory:.1f} GB\n"
    )
    sys.stdout.flush()


def _every(seconds: float, show: Callable[[Result, int], None]) -> Callable[[Result, int], None]:
    last = 0.0

    def now_and_then(result: Result, waiting: int) -> None:
        nonlocal last
        if result.seconds - last >= seconds:
            last = result.seconds
            show(result, waiting)

    return now_and_then


def _save(path: Path, result: Result) -> None:
    """Put a world's result into the file, in the place of an earlier one of the same world, and of
    all that is of other code.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else []
    version = digest_of_today(WORLDS)
    new = {**result.as_json(), "version": version}
    known = [each for each in known if each.get("version") == version]
    path.write_text(
        json.dumps([*(each for each in known if each["options"] != new["options"]), new], indent=1)
        + "\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Search one world, or the standard ones, from the command line; returns 1 for a violation."""
    first_line = str(__doc__).partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m simulator.exhaustive", description=first_line)
    for option in dataclasses.fields(Options):
        flag = f"--{option.name.replace('_', '-')}"
        if isinstance(option.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=int, default=option.default)
    parser.add_argument(
        "--standard", action="store_true", help="all worlds of STANDARD, whatever else is given"
    )
    parser.add_argument(
        "--minutes", type=float, help="how long at the most for each world; by default to the end"
    )
    parser.add_argument("--output", type=Path, default=Path("build/simulator/exhaustive.json"))
    chosen = vars(parser.parse_args(arguments))
    minutes, output = chosen.pop("minutes"), chosen.pop("output")
    worlds = STANDARD if chosen.pop("standard") else (Options(**chosen),)
    return max([_search_one(world, minutes, output) for world in worlds])


def _search_one(options: Options, minutes: float | None, output: Path) -> int:
    sys.stdout.write(f"{options}\n")
    result = explore(options, minutes=minutes, progress=_every(10, _show))
    _show(result, 0)
    _save(output, result)
    if result.violation:
        sys.stdout.write(
            f"VIOLATION: {result.violation}\n  {' '.join(result.story)}\n  trace: {result.trace}\n"
        )
        return 1
    word = "exhausted" if result.exhausted else "time is over"
    sys.stdout.write(
        f"{word}: {result.complete:,} states with all batches committed; drivers ended "
        f"{result.outcomes}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
