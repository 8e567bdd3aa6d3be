"""The actors of the conformance suite's cases: a driver, the tasks in its process, and what the
contract says of each answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceforall.protocol import contract
from onceforall.protocol.answers import name_of
from onceforall.protocol.entries import Committable
from onceforall.testing.conformance.process import CallError, RemoteProcess

if TYPE_CHECKING:
    from onceforall.testing.conformance.world import Case

_PAUSE_S = 0.02


class Mismatch(Exception):  # noqa: N818  not an error of the suite's user
    """What was seen is not what the contract says."""


@dataclass(frozen=True)
class Report:
    """A ``CommitReport``, every committable of which was accounted for."""

    completed: tuple[Committable, ...]
    retired: tuple[Committable, ...]
    missing: tuple[Committable, ...]


class Task:
    """A transaction of one task attempt."""

    def __init__(self, driver: Driver, number: int, attempt: Mapping[str, Any]) -> None:
        self._driver = driver
        self.number = number
        self.attempt = attempt
        self._rows: list[int] = []

    def invoke(self, numbers: Sequence[int]) -> Task:
        """Write rows, in two record batches where there are enough."""
        half = (len(numbers) + 1) // 2
        for part in (numbers[:half], numbers[half:]):
            if part:
                self._driver.call("invoke", transaction=self.number, numbers=part)
        self._rows += numbers
        return self

    def pre_commit(self) -> Committable | None:
        """Return the committable, with what the library adds."""
        return self.accepted(self._driver.call("pre_commit", transaction=self.number))

    def accepted(self, text: str | None) -> Committable | None:
        """Check what ``pre_commit`` returned, as JSON, and add what the library adds."""
        if text is None:
            return None
        committable = json.loads(text)
        attempt = self.attempt
        self._driver.case.check_committable(committable, attempt["generation"], attempt["batch"])
        self._driver.case.rows_of[name_of(committable)] = tuple(self._rows)
        return {**committable, "task": [attempt["write"], attempt["partition"]]}

    def prepared(self) -> Committable:
        """Return the committable of a transaction that has rows."""
        committable = self.pre_commit()
        if committable is None:
            raise Mismatch(
                "pre_commit returned None though rows were written: nobody could commit them."
            )
        return committable

    def discard(self) -> None:
        """Give it up."""
        try:
            self._driver.call("discard", transaction=self.number)
        except CallError as error:
            raise Mismatch(f"discard must not raise, but raised {error}") from error


class Driver:
    """A process that acts as one generation's driver, and as a process of its tasks."""

    def __init__(
        self, case: Case, process: RemoteProcess, query: str, sink: str, generation: int
    ) -> None:
        self.case = case
        self.process = process
        self.query = query
        self.sink = sink
        self.generation = generation
        self.kill = process.kill
        self.freeze = process.freeze
        self.wake = process.wake

    def call(self, method: str, **arguments: Any) -> Any:
        """Call in the process; what goes wrong there must not show a secret."""
        try:
            return self.process.call(method, **arguments)
        except CallError as error:
            self.case.no_secret(str(error), f"The error of {method}")
            raise

    # --- tasks ------------------------------------------------------------------------------------

    def attempt(self, **parts: Any) -> dict[str, Any]:
        """Return the fields of a task attempt; each that isn't given is the first."""
        attempt = {
            "batch": 1,
            "write": 0,
            "partition": 0,
            "slot": 0,
            "incarnation": 0,
            "reusable": (),
            **parts,
        }
        return {**attempt, "query_id": self.query, "sink": self.sink, "generation": self.generation}

    def begin(self, **parts: Any) -> Task:
        """Begin the transaction of a task attempt."""
        attempt = self.attempt(**parts)
        return Task(self, self.call("begin", attempt=attempt), attempt)

    def prepared(self, numbers: Sequence[int], **parts: Any) -> Committable:
        """Write rows in one task attempt, up to its committable."""
        return self.begin(**parts).invoke(numbers).prepared()

    # --- the driver's own -------------------------------------------------------------------------

    def confirm(self, *committables: Committable) -> tuple[Committable, ...]:
        """Return the committables as they would be decided."""
        answer = json.loads(self.call("confirm", committables=committables))
        try:
            confirmed = contract.confirmed(committables, answer)
        except contract.BrokenContractError as error:
            raise Mismatch(f"confirm {error}.") from None
        self.case.no_secret(json.dumps(confirmed), "A confirmed committable")
        return confirmed

    def commit(self, *committables: Committable, batch: int = 1) -> Report:
        """Commit until there is an answer, look whether readers see its rows, and only then fence
        what must not be used again, as after DONE.
        """
        report = self.commit_only(*committables, batch=batch)
        if report.missing:
            raise Mismatch(
                "commit reports as lost or in doubt what nothing has touched: "
                f"{list(report.missing)}."
            )
        if report.retired:
            self.case.shown(*committables)
            self.retire(*report.retired)
        return report

    def commit_only(self, *committables: Committable, batch: int = 1) -> Report:
        """Commit until there is an answer that names each committable once."""
        arguments = {"committables": committables, "generation": self.generation, "batch": batch}
        try:
            given = self.asked_again("commit", **arguments)
        except CallError as error:
            raise Mismatch(
                f"After the decision commit may only raise SinkUnavailableError, but raised {error}"
            ) from error
        self.case.no_secret(json.dumps(given), "A commit report")
        completed, retired = given["completed"], given["retired"]
        missing = [each["committable"] for kind in ("lost", "in_doubt") for each in given[kind]]
        answered = sorted(json.dumps(c, sort_keys=True) for c in (*completed, *retired, *missing))
        asked = sorted(json.dumps(c, sort_keys=True) for c in committables)
        self.case.expect(
            answered == asked,
            f"commit was asked for {len(asked)} committables and must report each once, "
            f"unchanged; it was asked for {asked} and reported {answered}.",
        )
        return Report(tuple(completed), tuple(retired), tuple(missing))

    def abort(self, *committables: Committable) -> None:
        """Abort, again while the sink says that it is away."""
        self._allowed("abort", committables=committables)

    def together(self, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
        """Do several things at once on one object, as a driver does beside its sweeps, and a
        task with its writes.
        """
        try:
            return list(self.call("together", calls=calls))
        except CallError as error:
            raise Mismatch(
                f"{' and '.join(method for method, _ in calls)} at once failed: {error}"
            ) from error

    def sweep(self, *, own: bool = False, spared: Collection[str] = ()) -> dict[str, Any]:
        """Return the fields of this driver's sweep."""
        return {
            "query_id": self.query,
            "sink": self.sink,
            "generation": self.generation,
            "own": own,
            "spared": sorted(spared),
        }

    def retire(self, *committables: Committable) -> None:
        """Fence handles, again while the sink says that it is away."""
        self._allowed("retire", committables=committables)

    def recover(self, *, own: bool = False, spared: Collection[str] = ()) -> int:
        """Sweep, again while the sink says that it is away, and return how many were aborted."""
        found = self._allowed("recover", sweep=self.sweep(own=own, spared=spared))
        self.case.expect(
            isinstance(found, int) and found >= 0,
            f"recover must return how many it aborted, but returned {found!r}.",
        )
        return int(found)

    def _allowed(self, method: str, **arguments: Any) -> Any:
        try:
            return self.asked_again(method, **arguments)
        except CallError as error:
            raise Mismatch(
                f"{method} may only raise SinkUnavailableError, but raised {error}"
            ) from error

    def asked_again(self, method: str, **arguments: Any) -> Any:
        """Call until the sink is there."""
        deadline = time.monotonic() + self.case.under.patience_s
        while True:
            try:
                return self.call(method, **arguments)
            except CallError as error:  # noqa: PERF203  it waits on purpose
                if not error.unavailable or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    def lines(self, method: str, **arguments: Any) -> int:
        """Do it, and return how many lines of the sink's own code ran."""
        return int(self.call(method, crash_at=0, **arguments))

    def crashes_in(self, method: str, line: int, **arguments: Any) -> None:
        """Do it, but kill the process before the given line, unless the call returned, or raised,
        before it came to that; ``Case.kills`` counts.
        """
        try:
            self.call(method, crash_at=line, **arguments)
        except CallError as error:
            self.case.kills += error.died


def names(*committables: Committable) -> frozenset[str]:
    """Return the names of transactions."""
    return frozenset(name_of(c) for c in committables)
