"""What a check says: violations by name, and the numbers of each sink."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from onceforall.testing.checker.rows import Array

NOTHING_READ = "nothing-read"
"""No row was read in a sink, or not its keys or contents, so that nothing was checked there."""

LOST = "lost"
"""A required row isn't there."""

DUPLICATED = "duplicated"
"""A row is there more than once."""

ALIEN = "alien"
"""A row that no input has."""

UNDECIDED = "undecided"
"""A row of a batch, or of an attempt, that nobody decided."""

WRONG_KEY = "wrong-key"
"""A row under another key than its input's."""

WRONG_VALUE = "wrong-value"
"""A row whose other values aren't its input's: a column, a header, a timestamp, a partition."""

TORN = "torn"
"""A part of a batch, where it must be whole."""

DISAGREEING = "disagreeing"
"""A batch that one sink has and another one hasn't, when all is quiet."""

BEHIND = "behind"
"""A sink without a decided batch although a later one is decided: sinks are apart by more than
one."""

MISORDERED = "misordered"
"""Rows of one key in another order than the input's, or in several lanes."""

WENT_BACK = "went-back"
"""Something that was seen is gone."""

LEFTOVER = "leftover"
"""Lag, an open or prepared transaction, a staging table or a temp file, when all is quiet."""

LOG = "log"
"""The commit log contradicts itself, or Spark's: not exactly one effective decision of each
batch."""

UNRESOLVED = "unresolved"
"""A decision whose outcome was unknown to its writer, and that ended as neither, or as both."""

STATE = "state"
"""The state store says something else than the output, or than the input implies."""

KINDS = (
    NOTHING_READ, LOST, DUPLICATED, ALIEN, UNDECIDED, WRONG_KEY, WRONG_VALUE, TORN, DISAGREEING, BEHIND, MISORDERED, WENT_BACK,  # noqa: E501
    LEFTOVER, LOG, UNRESOLVED, STATE,
)  # fmt: skip
"""All names of violations."""

_EXAMPLES = 5


@dataclass(frozen=True)
class Violation:
    """One broken promise.

    Attributes:
        kind: which one: one of ``KINDS``.
        sink: in which sink; empty when it isn't of one sink.
        text: what was found, with the first examples.
    """

    kind: str
    sink: str
    text: str

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.sink}: {self.text}" if self.sink else f"{self.kind}: {self.text}"
        )


@dataclass(frozen=True)
class SinkCounts:
    """The numbers of a sink: of rows, but for ``torn`` (batches) and ``leftovers`` (things).

    Attributes:
        records: rows that were read.
        expected: rows that the decided batches must have there.
        lost: of these, those that aren't there.
        duplicated: rows beyond the first of each.
        alien: rows of no input, or of a batch that nobody decided.
        wrong: rows under another key.
        changed: rows with another content: other values, headers, timestamp or partition.
        torn: batches that were seen in part where they must be whole.
        misordered: rows that stand before one of their key that they should follow.
        leftovers: things that should not be there any more.
    """

    records: int = 0
    expected: int = 0
    lost: int = 0
    duplicated: int = 0
    alien: int = 0
    wrong: int = 0
    changed: int = 0
    torn: int = 0
    misordered: int = 0
    leftovers: int = 0

    def __add__(self, other: SinkCounts) -> SinkCounts:
        mine, theirs = asdict(self), asdict(other)
        return SinkCounts(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True)
class Report:
    """The result of a check.

    Attributes:
        sinks: the numbers of each sink.
        violations: all that is broken; empty when nothing is.
    """

    sinks: Mapping[str, SinkCounts] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether something was read in each sink, and nothing is broken."""
        return (
            not self.violations
            and bool(self.sinks)
            and all(counts.records for counts in self.sinks.values())
        )

    @property
    def total(self) -> SinkCounts:
        """The numbers of all sinks together."""
        return sum(self.sinks.values(), SinkCounts())

    def kinds(self) -> frozenset[str]:
        """Return which kinds of violation there are."""
        return frozenset(each.kind for each in self.violations)

    def with_(self, violations: Collection[Violation]) -> Report:
        """Return the report with more violations."""
        return Report(self.sinks, (*self.violations, *violations))

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "ok": self.ok,
            "sinks": {name: asdict(counts) for name, counts in self.sinks.items()},
            "violations": [str(each) for each in self.violations],
        }

    def raise_if_broken(self) -> None:
        """Do nothing when all is well.

        Raises:
            AssertionError: with every violation in words.
        """
        if not self.ok:
            raise AssertionError(
                "\n".join(str(each) for each in self.violations)
                or "nothing was read, so nothing was checked"
            )


def examples(values: Array) -> str:
    """Return the first few of some values, and how many more there are."""
    named = ", ".join(str(value) for value in np.asarray(values)[:_EXAMPLES].tolist())
    more = len(values) - _EXAMPLES
    return f"{named} and {more} more" if more > 0 else named
