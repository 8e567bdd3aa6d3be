"""Two simulated systems in which an attempt's rows lie aside until they are committed: a database
with markers, and a folder of files.

Both forget nothing by themselves: what is decided can always be completed, and so a loss here is a
violation.

- ``Database``: a table per attempt. A commit merges all of a batch in one transaction of the server
  that first moves the sink's marker from an earlier batch to this one; a batch at or below the
  marker is complete. Then the tables are dropped.
- ``Files``: a temporary file per attempt. A commit links each to the place that its name gives,
  which may be repeated, and then removes the temporary name.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from onceforall.errors import SinkUnavailableError
from onceforall.protocol.entries import Committable
from onceforall.protocol.history import CommitPermit
from onceforall.protocol.names import TransactionName
from onceforall.sink import CommitReport
from simulator.strands import point
from simulator.systems import (
    QUERY,
    Assignment,
    FencedAttemptError,
    Owner,
    SimulatedSink,
    System,
    report,
)
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import SimulatedWorld


class Staging(NamedTuple):
    """An attempt's rows that lie aside."""

    name: str
    owner: Owner


class StagedSystem(System):
    """What both kinds share: ``staged`` has what lies aside, by name."""

    def __init__(self, sink: str, world: SimulatedWorld) -> None:
        super().__init__(sink, world)
        self.staged: dict[str, Owner] = {}
        self._ever: set[str] = set()

    def begin(self, assignment: Assignment) -> Staging:
        """Make an empty place for the attempt, under a name that nobody ever had."""
        owner = assignment.owner
        parts = (
            owner.generation,
            owner.batch,
            assignment.place[0],
            assignment.place[1],
            assignment.incarnation,
            owner.slot,
        )
        name = str(TransactionName(QUERY, self.code, *parts))
        if name in self._ever:
            raise Violation(f"two attempts share the place {name}")
        self._ever.add(name)
        self.staged[name] = owner
        return Staging(name, owner)

    def write(self, transaction: Staging) -> None:
        """Write rows; somebody may have dropped the place."""
        if transaction.name not in self.staged:
            raise FencedAttemptError(f"{transaction.name} is gone")

    def pre_commit(self, transaction: Staging) -> dict[str, Any]:
        """Make them durable."""
        self.write(transaction)
        return {"name": transaction.name}

    def left_over(self) -> list[str]:
        """Return what lies aside."""
        return sorted(self.staged)

    def drop(self, name: str, why: str) -> None:
        """Drop a place. Rows that are visible already stay so."""
        owner = self.staged.pop(name, None)
        if owner is not None and owner not in self.visible.values():
            self.world.aborted(self.sink, owner, name, why)

    def driver_side(self) -> StagedSink:
        """Return the sink of a new driver."""
        return StagedSink(self)

    @abstractmethod
    def complete(self, batch: int, committables: Sequence[Committable]) -> list[Committable]:
        """Make these rows visible, in one operation; return what is lost."""

    @property
    @abstractmethod
    def completes_at_once(self) -> bool:
        """Whether one request completes the whole batch."""


class Database(StagedSystem):
    """A database with a marker for the sink."""

    completes_at_once = True

    def __init__(self, sink: str, world: SimulatedWorld) -> None:
        super().__init__(sink, world)
        self.marker = -1

    def complete(self, batch: int, committables: Sequence[Committable]) -> list[Committable]:
        """Merge, unless the marker says that it was done."""
        if self.marker >= batch:
            return []
        lost = [c for c in committables if c["name"] not in self.staged]
        if not lost:
            for committable in committables:
                self.show(self.staged[committable["name"]])
            self.marker = batch
        return lost


class Files(StagedSystem):
    """A folder."""

    completes_at_once = False

    def __init__(self, sink: str, world: SimulatedWorld) -> None:
        super().__init__(sink, world)
        self.linked: set[str] = set()

    def complete(self, batch: int, committables: Sequence[Committable]) -> list[Committable]:  # noqa: ARG002
        """Link each, unless it is linked."""
        lost = []
        for committable in committables:
            name = committable["name"]
            if name in self.linked:
                continue
            if name not in self.staged:
                lost.append(committable)
                continue
            self.show(self.staged[name])
            self.linked.add(name)
        return lost


class StagedSink(SimulatedSink):
    """The driver's side of both."""

    system: StagedSystem

    def confirm(self, committables: Sequence[Committable]) -> Sequence[Committable]:
        """Look whether all is there, right before the decision."""
        point()
        if self.system.world.take("look") is not None:
            raise SinkUnavailableError("no answer to the question what is there")
        for committable in committables:
            if committable["name"] not in self.system.staged:
                raise FencedAttemptError(f"{committable['name']} is gone")
        return committables

    def commit_all(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:
        """Complete, then clear up."""
        outcomes: dict[str, list[Committable]] = {
            "completed": [],
            "retired": [],
            "lost": [],
            "in_doubt": [],
        }
        groups = (
            [tuple(committables)] if self.system.completes_at_once else [(c,) for c in committables]
        )
        for group in groups:
            lost = self.ask(
                "end",
                str(group[0]["name"]),
                lambda group=group: self.system.complete(permit.batch, group),  # type: ignore[misc]
            )
            outcomes["lost"] += lost
            outcomes["completed"] += [c for c in group if c not in lost]
        for committable in outcomes["completed"]:
            with suppress(SinkUnavailableError):  # a later sweep finds it
                self.end_one(self.system, committable["name"], "clearing up")
        return report(outcomes)

    def abort(self, committables: Sequence[Committable]) -> None:
        """Drop each."""
        for committable in committables:
            self.end_one(self.system, committable["name"], "an abort")

    def end_one(self, system: StagedSystem, name: str, why: str) -> None:
        """Drop a place."""
        self.ask("fence", name, lambda: system.drop(name, why))
