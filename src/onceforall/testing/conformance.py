"""A conformance suite for sinks: one call checks any ``TwoPhaseCommitSink`` against the contract of module ``onceforall.sink``.

It needs no Spark. Drivers and tasks are real processes: they are killed with SIGKILL between any two calls and at lines within them, frozen
with SIGSTOP, and their work is completed or swept by others, from committables that went through JSON. What a reader of the target sees,
and what is left over in it, is told by two functions of the caller's::

    from onceforall.testing.conformance import SinkUnderTest, check_sink

    def test_my_sink_keeps_the_contract(tmp_path):
        check_sink(SinkUnderTest(
            make_sink=lambda: MySink(tmp_path),
            rows=lambda numbers: pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())}),
            read=lambda: [row["n"] for row in read_my_target(tmp_path)],
            leftovers=lambda: [path.name for path in tmp_path.glob("*.tmp")],
        ))

Each case has a query id and rows of its own, so that all may run on one target. What the suite can't know it skips, and says so in its
report: ``lose``, ``another_target`` and ``secrets`` give it more to do. A sink without two-phase commit that is idempotent (``Capabilities``) gets the cases
for those. ``TwoPhaseCommitSink.columns`` isn't called, for it needs a Spark session.

Processes are forked from a helper process without threads, so a POSIX system is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onceforall.protocol.entries import Committable
from onceforall.sink import TwoPhaseCommitSink
from onceforall.testing import conformance_crashes, conformance_idempotent, conformance_targets, conformance_two_phase
from onceforall.testing.conformance_driver import Mismatch
from onceforall.testing.conformance_process import CallError, Nursery
from onceforall.testing.conformance_world import CaseFunction, SkipCase, World

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ConformanceError", "ConformanceReport", "Failure", "SinkUnderTest", "cases", "check_sink"]


@dataclass(frozen=True)
class SinkUnderTest:
    """What the suite must be told of a sink. Rows are numbers to it: each non-negative integer is one row, and never written twice on purpose.

    Attributes:
        make_sink: makes a new sink on the same target, each time it is called. It is called in other processes, too, as a restarted
            program would make its sink anew: it is pickled by cloudpickle, so close over paths and addresses, not over connections.
        rows: makes the rows of these numbers, as ``invoke`` gets them; pickled in the same way.
        read: the numbers of all rows that a reader sees at this moment, with those that it sees twice twice.
        leftovers: a word for each thing that lies in the target and is no result: a temp file, an open or prepared transaction, a staging
            table. The suite expects none after each case (and forgives those that were there before).
        lose: destroys prepared transactions as the system itself may do it, by a timeout for instance; None: it never does.
        secrets: values that must not appear in pickles, representations, committables and errors.
        twin_attempts: False for a sink that doesn't serve two living attempts of one task, and refuses speculative execution in ``check``.
        crash_points: at how many lines within each method a process is killed; each costs a few processes. 0: only between calls.
        preload: modules that the sink imports late and that take long; they are imported once instead of in each process.
        another_target: returns a context manager: while it is entered, another target, new and empty, lies under the name and address of the
            sink's own, which comes back as it was at the end. None: the suite doesn't look whether ``identity`` tells them apart.
        patience_s: how long a reader's view, a clean-up or an answer may take, in seconds, from the last call on.
    """

    make_sink: Callable[[], TwoPhaseCommitSink]
    rows: Callable[[Sequence[int]], pa.RecordBatch]
    read: Callable[[], Iterable[int]]
    leftovers: Callable[[], Iterable[str]]
    lose: Callable[[Sequence[Committable]], object] | None = None
    secrets: Sequence[str] = field(default=(), repr=False)
    twin_attempts: bool = True
    crash_points: int = 5
    preload: Sequence[str] = ()
    patience_s: float = 20.0
    another_target: Callable[[], AbstractContextManager[object]] | None = None


@dataclass(frozen=True)
class Failure:
    """A case that failed: its name, what the contract says, and what was expected and seen instead."""

    case: str
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.case}: {self.rule}\n    {self.what}"


@dataclass(frozen=True)
class ConformanceReport:
    """What was run.

    Attributes:
        passed: the names of the cases that ran, in their order.
        skipped: the names of those that did not, each with the reason.
    """

    passed: tuple[str, ...]
    skipped: Mapping[str, str]


class ConformanceError(AssertionError):
    """The sink doesn't keep the contract; ``failures`` has every case that failed."""

    def __init__(self, message: str, failures: tuple[Failure, ...] = ()) -> None:
        super().__init__(message)
        self.failures = failures


def cases(sink: TwoPhaseCommitSink) -> tuple[str, ...]:
    """Return the names of the cases that this sink's capabilities ask for; none when it promises nothing that could be checked."""
    return tuple(_cases(sink))


def _cases(sink: TwoPhaseCommitSink) -> dict[str, CaseFunction]:
    can = sink.capabilities
    if can.delivery != "exactly_once":
        return {}
    if can.two_phase:
        targets = {**conformance_targets.CASES, **conformance_targets.TWO_PHASE_CASES}
        return {**conformance_two_phase.CASES, **targets, **conformance_crashes.CASES}
    return {**conformance_idempotent.CASES, **conformance_targets.CASES} if can.idempotent else {}


def check_sink(sink: SinkUnderTest, *, only: Collection[str] | None = None) -> ConformanceReport:
    """Run every case on a sink.

    Args:
        sink: the sink, and how to see what it does.
        only: the names of the cases to run; None: all.

    Returns:
        What was run, and what was skipped.

    Raises:
        ConformanceError: at least one case failed, or none ran; it tells of each what was expected and what was seen.
        ValueError: ``only`` has a name that is no case of this sink.
    """
    made = sink.make_sink()
    todo = _cases(made)
    made.close()
    if only is not None:
        if unknown := sorted(set(only) - set(todo)):
            raise ValueError(f"No such cases for {made!r}: {', '.join(unknown)}. There are: {', '.join(todo)}.")
        todo = {name: function for name, function in todo.items() if name in only}
    passed, skipped, failures = _run(sink, todo)
    if failures:
        listing = "\n".join(f"- {failure}" for failure in failures)
        raise ConformanceError(f"{made!r} fails {len(failures)} of {len(todo)} cases.\n{listing}", tuple(failures))
    if not passed:
        raise ConformanceError(
            f"Not one case ran for {made!r}: its capabilities are {made.capabilities}. The suite checks sinks with delivery='exactly_once' "
            f"that have two_phase or idempotent. Skipped: {dict(skipped)}."
        )
    return ConformanceReport(tuple(passed), skipped)


def _run(sink: SinkUnderTest, todo: Mapping[str, CaseFunction]) -> tuple[list[str], dict[str, str], list[Failure]]:
    passed: list[str] = []
    skipped: dict[str, str] = {}
    failures: list[Failure] = []
    if not todo:
        return passed, skipped, failures
    with Nursery(sink.make_sink, sink.rows, sink.preload) as nursery:
        world = World(sink, nursery)
        for name, function in todo.items():
            rule = (function.__doc__ or "").strip().splitlines()[0]
            try:
                world.run(function)
            except SkipCase as reason:
                skipped[name] = str(reason)
            except (Mismatch, CallError) as error:
                failures.append(Failure(name, rule, str(error)))
            else:
                passed.append(name)
        try:
            world.nothing_has_changed()
        except Mismatch as error:
            failures.append(
                Failure("all_together", "What one query has committed stays, whatever another one does.", str(error))
            )
    return passed, skipped, failures
