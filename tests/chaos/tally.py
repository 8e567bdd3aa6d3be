"""Counts of what a part of the campaign did and found."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """What was done to one query.

    Attributes:
        kills: SIGKILLs by kind of process: driver, worker, executor, broker, backend, postmaster.
        faults: all faults by name, kills included.
    """

    kills: Counter = field(default_factory=Counter)
    faults: Counter = field(default_factory=Counter)
