"""What the cases of the conformance suite work with: queries, drivers, tasks, and what a reader
must see.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from onceforall.protocol import contract
from onceforall.protocol.answers import name_of
from onceforall.protocol.entries import Committable
from onceforall.testing.conformance.driver import Driver, Mismatch
from onceforall.testing.conformance.process import CallError, Nursery
from onceforall.testing.conformance.spellings import spellings

if TYPE_CHECKING:
    from onceforall.testing.conformance.under_test import SinkUnderTest

MAX_COMMITTABLE_BYTES = 64 * 1024

_PAUSE_S = 0.02
_NAMED_AT_MOST = 10


class SkipCase(Exception):  # noqa: N818
    """This case doesn't apply, and why."""


class World:
    """The sink under test, the numbers that are used up, and what must be visible of them."""

    def __init__(self, sink: SinkUnderTest, nursery: Nursery) -> None:
        self.sink = sink
        self.nursery = nursery
        self._next_number = 0
        self._given: set[int] = set()
        self._settled: Counter[int] = Counter()
        self._used: set[int] = set()
        self._strangers: Counter[int] = Counter()
        self._knows_strangers = False

    def run(self, function: CaseFunction) -> int:
        """Run one case.

        Returns:
            How many processes were killed within a call.

        Raises:
            Mismatch, CallError: it fails.
            SkipCase: it doesn't apply.
        """
        case = Case(self)
        try:
            function(case)
            case.end()
        except (Mismatch, CallError):
            # What this case is blamed for, the next one isn't.
            self._knows_strangers = False
            raise
        finally:
            self.nursery.end_all()
        self._settled += case.expected
        self._used |= case.numbers_used
        return case.kills

    def numbers(self, count: int) -> list[int]:
        """Return numbers that nobody has had, and that weren't in the target either."""
        made: list[int] = []
        while len(made) < count:
            if self._next_number not in self._strangers:
                made.append(self._next_number)
            self._next_number += 1
        self._given |= set(made)
        return made

    def note_strangers(self) -> None:
        """Note the rows in the target that aren't of the suite, once: from now on, none may come
        and none may go.
        """
        if not self._knows_strangers:
            self._strangers = Counter(n for n in self.sink.read() if n not in self._given)
            self._knows_strangers = True

    def seen(self, numbers: Collection[int]) -> Counter[int]:
        """Return what a reader sees of these numbers, and of those that the suite never gave and
        that weren't there before.
        """
        return self._read(numbers) - self._strangers

    def _read(self, numbers: Collection[int]) -> Counter[int]:
        return Counter(n for n in self.sink.read() if n in numbers or n not in self._given)

    def nothing_has_changed(self) -> None:
        """Check that what the passed cases had left to see is still what is seen, and what was
        there before.

        Raises:
            Mismatch: it is not.
        """
        self.note_strangers()
        expected, seen = self._settled + self._strangers, self._read(self._used)
        if seen != expected:
            raise Mismatch(f"After all cases, a reader sees {_difference(expected, seen)}.")


class Case:
    """One case: a query with drivers, tasks and rows of its own.

    Attributes:
        expected: what a reader must see of the case's rows.
        rows_of: the rows of each transaction that was prepared, by its name.
        kills: how many processes were killed within a call.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.under = world.sink
        self.query = str(uuid.uuid4())
        self.expected: Counter[int] = Counter()
        self.numbers_used: set[int] = set()
        self.rows_of: dict[str, Sequence[int]] = {}
        self.kills = 0
        self._left_before = set(world.sink.leftovers())
        self._names: dict[tuple[str, int, int], set[str]] = {}

    # --- actors -----------------------------------------------------------------------------------

    def driver(self, generation: int = 1, *, sink: str = "out", query: str | None = None) -> Driver:
        """Start a driver's process, with a sink that is made and checked anew."""
        process = self._world.nursery.new()
        query = query or self.query
        self._guarded("check", lambda: process.call("start", query=query, sink=sink))
        # Nothing could be read before: it may be ``check`` that makes the target.
        self._world.note_strangers()
        return Driver(self, process, query, sink, generation)

    def unchecked(self, asked: str) -> Any:
        """Start a process with a sink that is made anew and not checked, and call a method of it
        that gets a ``StartInfo``.
        """
        return self._world.nursery.new().call(
            "unchecked", asked=asked, query=self.query, sink="out"
        )

    def task_process(self, driver: Driver) -> Driver:
        """Start a process that has nothing but a pickled sink of the driver, as a Python worker
        of Spark's.
        """
        process = self._world.nursery.new()
        pickled, secrets = driver.call("pickled")
        self._guarded(
            "unpickling", lambda: process.call("start_task", pickled=pickled, secrets=secrets)
        )
        return Driver(self, process, driver.query, driver.sink, driver.generation)

    @staticmethod
    def _guarded(what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except CallError as error:
            raise Mismatch(f"{what} failed: {error}") from error

    def numbers(self, count: int = 3) -> list[int]:
        """Return rows that nobody has written."""
        made = self._world.numbers(count)
        self.numbers_used |= set(made)
        return made

    # --- what is checked --------------------------------------------------------------------------

    def visible(self, *parts: Iterable[int]) -> None:
        """Check that a reader sees these rows once each, and no other row, but for other cases'
        and for those that were there before.

        Raises:
            Mismatch: it doesn't, within the patience of the suite.
        """
        self.expected = Counter(number for part in parts for number in part)
        deadline = self._deadline()
        while (seen := self._seen()) != self.expected:
            # What should not be there does not go away; what should may take a moment.
            if seen - self.expected or time.monotonic() > deadline:
                raise Mismatch(f"A reader sees {_difference(self.expected, seen)}.")
            time.sleep(_PAUSE_S)

    def at_least(self, *parts: Iterable[int]) -> None:
        """Check that a reader sees each of these rows, perhaps more than once, and no other row,
        as ``visible`` does.

        Raises:
            Mismatch: it doesn't, within the patience of the suite.
        """
        rows = Counter(number for part in parts for number in part)
        deadline = self._deadline()
        while (seen := self._seen()).keys() != rows.keys():
            if seen.keys() - rows.keys() or time.monotonic() > deadline:
                raise Mismatch(f"A reader sees {_difference(rows, Counter(seen.keys()))}.")
            time.sleep(_PAUSE_S)
        self.expected = seen

    def shown(self, *committables: Committable) -> None:
        """Check that a reader sees the rows of transactions that ``commit`` has reported.

        Raises:
            Mismatch: one is missing when the patience of the suite has ended.
        """
        names = [name_of(committable) for committable in committables]
        rows = Counter({number for name in names for number in self.rows_of.get(name, ())})
        deadline = self._deadline()
        while rows.keys() - (seen := self._seen()).keys():
            made_up = seen.keys() - self.numbers_used
            if made_up or time.monotonic() > deadline:
                seen = Counter(dict.fromkeys((rows.keys() & seen.keys()) | made_up, 1))
                raise Mismatch(
                    "commit has returned, and before any retire, which may never come, a reader "
                    f"sees {_difference(rows, seen)}."
                )
            time.sleep(_PAUSE_S)

    def at_most(self, rows: Collection[int]) -> None:
        """Check that a reader sees no row but some of these, and none twice, as ``visible`` does.

        Raises:
            Mismatch: it does.
        """
        seen = self._seen()
        if seen - Counter(rows):
            raise Mismatch(
                f"A reader sees {_difference(Counter(n for n in rows if n in seen), seen)}."
            )

    def _seen(self) -> Counter[int]:
        return self._world.seen(self.numbers_used)

    def clean(self) -> None:
        """Check that nothing is left over.

        Raises:
            Mismatch: there is, also when the patience of the suite has ended.
        """
        self.until(
            lambda: not self._left(),
            lambda: f"Left over are {_listed(self._left())}; nothing was expected.",
        )

    def not_clean(self) -> None:
        """Check that something is left over, as it must be while a transaction is prepared.

        Raises:
            Mismatch: there is nothing, also when the patience of the suite has ended.
        """
        self.until(
            lambda: bool(self._left()),
            lambda: (
                "leftovers returned nothing while transactions were prepared, so no case could "
                "see what the sink leaves: it looks in the wrong place, or not at all."
            ),
        )

    def _left(self) -> set[str]:
        return set(self.under.leftovers()) - self._left_before

    def swept(self, driver: Driver, *, own: bool = False, spared: Collection[str] = ()) -> None:
        """Let a driver recover again and again, as it does, until nothing is left over.

        Raises:
            Mismatch: there is something left when the patience of the suite has ended.
        """

        def clean() -> bool:
            driver.recover(own=own, spared=spared)
            return not self._left()

        self.until(
            clean,
            lambda: f"After recover: left over are {_listed(self._left())}; nothing was expected.",
        )

    def until(self, condition: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        """Wait until the condition holds.

        Raises:
            Mismatch: with the words of ``otherwise``, when the patience of the suite has ended.
        """
        deadline = self._deadline()
        while not condition():
            if time.monotonic() > deadline:
                raise Mismatch(otherwise())
            time.sleep(_PAUSE_S)

    def _deadline(self) -> float:
        return time.monotonic() + self.under.patience_s

    def expect(self, condition: object, otherwise: str) -> None:
        """Raise ``Mismatch`` with these words unless the condition holds."""
        if not condition:
            raise Mismatch(otherwise)

    def end(self) -> None:
        """Check once more, at the end of the case: what is seen is what was seen, and nothing is
        left over.

        Raises:
            Mismatch: it is not so.
        """
        self.visible(self.expected.elements())
        self.clean()

    def check_committable(self, committable: Any, generation: int, batch: int) -> None:
        """Check the form of a new committable.

        Raises:
            Mismatch: it can't go into the commit log as it is.
        """
        try:
            name = str(contract.prepared(committable)["name"])
        except contract.BrokenContractError as error:
            raise Mismatch(f"pre_commit {error}.") from None
        text = json.dumps(committable)
        size = len(text.encode())
        self.expect(
            size <= MAX_COMMITTABLE_BYTES,
            f"A committable has {size} bytes; it must be small, for all go in one log entry.",
        )
        self.no_secret(text, "A committable")
        names = self._names.setdefault((self.query, generation, batch), set())
        self.expect(
            name not in names,
            f"Two task attempts of one batch have the name {name!r}; use attempt.name.",
        )
        names.add(name)

    def no_secret(self, text: str, where: str) -> None:
        """Check that none of the secrets is in a text, in whichever spelling; the message doesn't
        quote it.

        Raises:
            Mismatch: one is.
        """
        for number, secret in enumerate(self.under.secrets, start=1):
            found = any(spelling in text for spelling in spellings(secret))
            self.expect(not found, f"{where} has the secret number {number} in it.")


def _listed(values: Collection[object]) -> str:
    shown = sorted(map(str, values))
    more = f" and {len(shown) - _NAMED_AT_MOST} more" if len(shown) > _NAMED_AT_MOST else ""
    return f"{len(shown)} things: {', '.join(shown[:_NAMED_AT_MOST])}{more}"


def _difference(expected: Counter[int], seen: Counter[int]) -> str:
    def counted(numbers: Counter[int]) -> str:
        return _listed(
            [
                f"{number} ({times} times)" if times > 1 else number
                for number, times in numbers.items()
            ]
        )

    parts = []
    if missing := expected - seen:
        parts.append(f"not the rows that it should: missing are {counted(missing)}")
    if extra := seen - expected:
        again = Counter({number: seen[number] for number in extra if expected[number]})
        foreign = Counter(
            {number: times for number, times in extra.items() if not expected[number]}
        )
        if again:
            parts.append(f"rows more than once: {counted(again)}")
        if foreign:
            parts.append(f"rows that nobody has committed: {counted(foreign)}")
    return " and ".join(parts) or "what it should"


CaseFunction = Callable[[Case], None]


def register(cases: dict[str, CaseFunction]) -> Callable[[CaseFunction], CaseFunction]:
    """Return a decorator that adds a case under its function's name; the docstring's first line
    is the rule.
    """

    def add(function: CaseFunction) -> CaseFunction:
        cases[function.__name__] = function
        return function

    return add
