"""A deterministic simulator of the whole protocol: ``docs/simulator.md``.

It runs the production code (coordinator, transition table, commit log) over a simulated store,
simulated systems behind the sinks, a simulated clock and a schedule that decides which process goes
on, crashes or stands still, and it checks the promise at every operation::

    from simulator import explore, replay

    explore(7)  # raises Violation if the promise is broken
    replay(7)  # the same schedule, printing every move

``python -m simulator --schedules 1000000`` runs many. Runs in a checkout (``make setup``); the
package doesn't have it.
"""

from simulator.explorer import Outcome, endings_of, explore, first_violation, replay, violation_of
from simulator.simulation import Simulation
from simulator.violation import Violation
from simulator.world import NoFaults, Options

__all__ = [
    "NoFaults",
    "Options",
    "Outcome",
    "Simulation",
    "Violation",
    "endings_of",
    "explore",
    "first_violation",
    "replay",
    "violation_of",
]
