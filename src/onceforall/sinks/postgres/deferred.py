"""Deferred constraints and triggers, checked before the decision: at COMMIT nothing may be refused
any more. ``PREPARE TRANSACTION`` and the COMMIT of a task run them as well, and triggers without an
end would keep them, and the task, for ever.

``SET CONSTRAINTS ALL IMMEDIATE`` runs what is queued. A trigger that it runs may defer a constraint
again (``SET CONSTRAINTS … DEFERRED`` in its function) and write rows, whose checks are then queued
for the COMMIT. So one pass proves nothing. The server doesn't show what is queued, but only a
command that writes rows queues anything, and each such command of a transaction gets the next
number, which ``cmin`` of its rows shows. So ``exhaust`` writes a row of our own before and behind a
pass. If their numbers are neighbours, the pass wrote nothing, and nothing is queued.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.errors import AttemptFailedError
from onceforall.sinks.postgres import markers

if TYPE_CHECKING:
    from onceforall.sinks.postgres.markers import Owner
    from onceforall.sinks.postgres.statements import Connection

_RUN_WHAT_IS_QUEUED = "SET CONSTRAINTS ALL IMMEDIATE"
_USUAL_PASSES = 3
MOST_PASSES = 50


def check(connection: Connection) -> None:
    """Run what is queued, and what that queues in its turn, while it can still be told which row
    is refused. Usually nothing is left.
    """
    # One request; a pass with nothing queued costs the server nothing.
    connection.execute(";".join([_RUN_WHAT_IS_QUEUED] * _USUAL_PASSES))


def exhaust(connection: Connection, owner: Owner, what: str, name: str = markers.COMPLETE) -> None:
    """Run what is queued until nothing is. To be called behind all that writes, and behind
    ``markers.advance`` or ``markers.put``, in the same transaction.

    Args:
        connection: in the transaction.
        owner: whose marker row this transaction has moved.
        what: is done, as the beginning of a message.
        name: of that marker.

    Raises:
        AttemptFailedError: there is no end. psycopg.Error: something is refused.
    """
    before = markers.command_number(connection, owner, name)
    for _ in range(MOST_PASSES):
        _pass(connection)
        behind = markers.command_number(connection, owner, name)
        if behind == before + 1:
            return
        before = behind
    raise AttemptFailedError(
        f"{what}: its deferred triggers were run {MOST_PASSES} times, and each time they wrote "
        "rows again, so they may never come to an end at COMMIT. Look for a trigger function that "
        "contains SET CONSTRAINTS … DEFERRED, and take that out."
    )


def _pass(connection: Connection) -> None:
    connection.execute(_RUN_WHAT_IS_QUEUED)


__all__ = ["MOST_PASSES", "check", "exhaust"]
