"""A real PostgreSQL under the production code of its sink, with one thing taken away from chance:
which process sends its next statement. ``docs/simulator.md`` says what it shows.

Drivers, tasks, late attempts and replaced runs are threads. Each waits before every statement until
a seeded schedule lets it go on, or kills it there, or keeps the answer from it. The server's own
row locks, shared locks and advisory locks hold them up as they would any client::

    from simulator.database import Server, play

    with Server() as server:
        play(server, 7)  # raises Violation if the table has what it may not have

``python -m simulator.database --schedules 10000`` plays many.
"""

from simulator.database.schedule import Outcome, first_violation, play
from simulator.database.server import Server
from simulator.violation import Violation

__all__ = ["Outcome", "Server", "Violation", "first_violation", "play"]
