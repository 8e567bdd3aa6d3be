"""What all simulated systems behind sinks have in common, the driver's side of a sink, and the
attempt of a task.

Names are ``TransactionName``'s, as in production, so that the real rule of sweeps reads them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.protocol.entries import Committable
from onceforall.protocol.history import CommitPermit
from onceforall.protocol.names import sink_code
from onceforall.sink import CommitReport, LostTransaction, Sweep
from simulator.drivers_half import DriversHalf
from simulator.strands import point
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import SimulatedWorld

QUERY = "query"
BY_THE_CLOCK = "timeout by the clock"
"""Why something was aborted that was older than its timeout."""

T = TypeVar("T")


class Owner(NamedTuple):
    """Which attempt of which task wrote something, and which rows of the batch: a bit for each."""

    batch: int
    generation: int
    rows: int
    slot: int

    @property
    def each_row(self) -> list[int]:
        """The numbers of the rows."""
        return [row for row in range(self.rows.bit_length()) if self.rows >> row & 1]


class FencedAttemptError(AttemptFailedError):
    """A task finds that somebody has ended its transaction."""


@dataclass(frozen=True)
class Assignment:
    """What a task attempt is given.

    Attributes:
        owner: batch, generation, rows and slot.
        place: the ordinal of its write, and the number that Spark gives the task.
        incarnation: see ``onceforall.sink.TaskAttempt``.
        worker: which worker process runs it.
        reusable: handles that are complete without doubt.
        avoided: names in doubt.
    """

    owner: Owner
    place: tuple[int, int]
    incarnation: int
    worker: int
    reusable: tuple[Committable, ...]
    avoided: frozenset[str]


class System(ABC):
    """A system behind one sink.

    Attributes:
        sink: the sink's name.
        code: what stands for it in names.
        visible: which attempt's rows readers see, by batch and row.
        late: requests without an answer that are still on their way.
    """

    def __init__(self, sink: str, world: SimulatedWorld) -> None:
        self.sink = sink
        self.code = sink_code(sink)
        self.world = world
        self.visible: dict[tuple[int, int], Owner] = {}
        self.late: list[Callable[[], object]] = []

    @abstractmethod
    def begin(self, assignment: Assignment) -> Any:
        """Open a transaction: a task's first operation."""

    @abstractmethod
    def write(self, transaction: Any) -> None:
        """Write rows: its second one."""

    @abstractmethod
    def pre_commit(self, transaction: Any) -> dict[str, Any]:
        """Make it ready to be committed: its third one. Returns the fields of the committable
        that are the system's own.
        """

    def failed(self, transaction: Any) -> None:
        """Hear that the task has failed."""

    @abstractmethod
    def left_over(self) -> list[str]:
        """Return the names of what is neither committed nor aborted, nor cleared up."""

    @abstractmethod
    def driver_side(self) -> SimulatedSink:
        """Return the sink of a new driver."""

    def pass_time(self) -> None:
        """Do what the system does by itself when the clock has moved."""

    def show(self, owner: Owner) -> None:
        """Make rows visible to readers."""
        self.world.check_may_be_seen(self.sink, owner)
        for row in owner.each_row:
            if (owner.batch, row) in self.visible:
                raise Violation(
                    f"batch {owner.batch}, row {row} becomes visible twice on {self.sink}"
                )
            self.visible[owner.batch, row] = owner

    def deliver_late(self, index: int) -> None:
        """Let a request happen whose caller has long given up."""
        self.late.pop(index)()


class Task:
    """One attempt of one task: three operations, then a committable or an error. It belongs to
    the world, and outlives its driver.
    """

    def __init__(self, system: System, assignment: Assignment) -> None:
        self.system, self.assignment, self.owner = system, assignment, assignment.owner
        self.sink, self.batch = system.sink, assignment.owner.batch
        self.committable: dict[str, Any] | None = None
        self.failed = False
        self._transaction: Any = None
        self._written = False

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.failed or self.committable is not None

    def advance(self) -> None:
        """Perform the next operation; raises what a task raises."""
        try:
            if self._transaction is None:
                self._transaction = self.system.begin(self.assignment)
            elif not self._written:
                self.system.world.check_may_write(self.owner)
                self.system.write(self._transaction)
                self._written = True
            else:
                own = self.system.pre_commit(self._transaction)
                self.committable = {
                    **own,
                    "owner": list(self.owner),
                    "task": list(self.assignment.place),
                    "rows": {},
                }
        except AttemptFailedError:
            self.fail()
            raise

    def fail(self) -> None:
        """End it with an error."""
        self.failed = True
        self.system.failed(self._transaction)


class SimulatedSink(DriversHalf):
    """The driver's side of a sink, of one driver: what all kinds share. Tasks are simulated by
    ``Task`` instead.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self.burnt: set[str] = set()

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:
        """Check the permit, then commit as the kind does."""
        if permit is None or (permit.generation, permit.index) not in self.system.world.commits:
            raise Violation(f"{permit} permits what no COMMIT decides")
        return self.commit_all(permit, committables)

    @abstractmethod
    def commit_all(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:
        """Commit as the kind does."""

    def recover(self, sweep: Sweep) -> int:
        """List what there is, and end what the sweep covers."""
        self.system.world.check_may_sweep(sweep)
        point()
        if self.system.world.take("look") is not None:
            raise SinkUnavailableError("no answer to the listing")
        # Sinks of one kind write to one system, and each sees what any of them has open.
        alike = [s for s in self.system.world.systems.values() if type(s) is type(self.system)]
        covered = [(s, name) for s in alike for name in s.left_over() if sweep.covers_name(name)]
        for system, name in covered:
            self.end_one(system, name, "a sweep")
        return len(covered)

    @abstractmethod
    def end_one(self, system: Any, name: str, why: str) -> None:
        """Abort, fence or drop one thing by its name."""

    def ask(self, kind: str, name: str, perform: Callable[[], T]) -> T:
        """Send a request: an operation, whose answer may get lost, and which may happen never,
        at once or some day.
        """
        point()
        fault = self.system.world.take(kind)
        if fault is None:
            return perform()
        if fault == "after":
            perform()
        if fault == "late":
            self.system.late.append(perform)
        self.doubt(kind, name)
        raise SinkUnavailableError(f"{name}: no answer to {kind} ({fault})")

    def doubt(self, kind: str, name: str) -> None:
        """Hear that a request got no answer."""


def report(outcomes: Mapping[str, list[Any]]) -> CommitReport:
    """Make a report of lists by the names of its fields; for a loss and a doubt, of
    committables.
    """
    lost = tuple(LostTransaction(c, "aborted") for c in outcomes["lost"])
    in_doubt = tuple(LostTransaction(c, "nobody knows it") for c in outcomes["in_doubt"])
    return CommitReport(tuple(outcomes["completed"]), tuple(outcomes["retired"]), lost, in_doubt)
