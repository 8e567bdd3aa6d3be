"""The suite itself: which cases there are, and what a run of them came to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onceforall.sink import TwoPhaseCommitSink
from onceforall.testing.conformance import at_least_once, crashes, idempotent, two_phase
from onceforall.testing.conformance import targets as target_cases
from onceforall.testing.conformance.driver import Mismatch
from onceforall.testing.conformance.process import CallError, Nursery
from onceforall.testing.conformance.under_test import SinkUnderTest
from onceforall.testing.conformance.world import CaseFunction, SkipCase, World

if TYPE_CHECKING:
    pass

__all__ = [
    "ConformanceError",
    "ConformanceReport",
    "Failure",
    "SinkUnderTest",
    "cases",
    "check_sink",
]


@dataclass(frozen=True)
class Failure:
    """A case that failed: its name, what the contract says, and what was expected and seen
    instead.
    """

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
        kills: how many processes were killed within a call, in each case that passed and does
            that.
    """

    passed: tuple[str, ...]
    skipped: Mapping[str, str]
    kills: Mapping[str, int] = field(default_factory=dict)


class ConformanceError(AssertionError):
    """The sink doesn't keep the contract; ``failures`` has every case that failed."""

    def __init__(self, message: str, failures: tuple[Failure, ...] = ()) -> None:
        super().__init__(message)
        self.failures = failures


def cases(sink: TwoPhaseCommitSink) -> tuple[str, ...]:
    """Return the names of the cases that this sink's capabilities ask for; none when it promises
    nothing that could be checked.
    """
    return tuple(_cases(sink))


def _cases(sink: TwoPhaseCommitSink) -> dict[str, CaseFunction]:
    can = sink.capabilities
    if can.delivery == "at_least_once":
        return {**at_least_once.CASES, **target_cases.CASES}
    if can.delivery != "exactly_once":
        return {}
    if can.two_phase:
        targets = {**target_cases.CASES, **target_cases.TWO_PHASE_CASES}
        return {**two_phase.CASES, **targets, **crashes.CASES}
    return {**idempotent.CASES, **target_cases.CASES} if can.idempotent else {}


def check_sink(sink: SinkUnderTest, *, only: Collection[str] | None = None) -> ConformanceReport:
    """Run every case on a sink.

    Args:
        sink: the sink, and how to see what it does.
        only: the names of the cases to run; None: all.

    Returns:
        What was run, and what was skipped.

    Raises:
        ConformanceError: at least one case failed, or none ran; it tells of each what was expected
            and what was seen.
        ValueError: ``only`` has a name that is no case of this sink.
    """
    made = sink.make_sink()
    todo = _cases(made)
    made.close()
    if only is not None:
        if unknown := sorted(set(only) - set(todo)):
            raise ValueError(
                f"No such cases for {made!r}: {', '.join(unknown)}. There are: {', '.join(todo)}."
            )
        todo = {name: function for name, function in todo.items() if name in only}
    failures, report = _run(sink, todo)
    if failures:
        listing = "\n".join(f"- {failure}" for failure in failures)
        raise ConformanceError(
            f"{made!r} fails {len(failures)} of {len(todo)} cases.\n{listing}", tuple(failures)
        )
    if not report.passed:
        raise ConformanceError(
            f"Not one case ran for {made!r}: its capabilities are {made.capabilities}. The suite "
            "checks sinks with delivery='exactly_once' "
            "that have two_phase or idempotent, and sinks with delivery='at_least_once'. "
            f"Skipped: {dict(report.skipped)}."
        )
    return report


def _run(
    sink: SinkUnderTest, todo: Mapping[str, CaseFunction]
) -> tuple[list[Failure], ConformanceReport]:
    passed: list[str] = []
    skipped: dict[str, str] = {}
    kills: dict[str, int] = {}
    failures: list[Failure] = []
    if not todo:
        return failures, ConformanceReport((), {})
    with Nursery(sink.make_sink, sink.rows, sink.preload) as nursery:
        world = World(sink, nursery)
        for name, function in todo.items():
            rule = (function.__doc__ or "").strip().splitlines()[0]
            try:
                killed = world.run(function)
            except SkipCase as reason:
                skipped[name] = str(reason)
            except (Mismatch, CallError) as error:
                failures.append(Failure(name, rule, str(error)))
            else:
                passed.append(name)
                if killed:
                    kills[name] = killed
        try:
            world.nothing_has_changed()
        except Mismatch as error:
            failures.append(
                Failure(
                    "all_together",
                    "What one query has committed stays, whatever another one does.",
                    str(error),
                )
            )
    return failures, ConformanceReport(tuple(passed), skipped, kills)
