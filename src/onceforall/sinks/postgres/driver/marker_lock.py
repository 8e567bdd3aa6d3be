"""The row of the marker, which two drivers of one batch want at once: who keeps it locked in
silence is ended.
"""

from __future__ import annotations

import psycopg

from onceforall.common import logs
from onceforall.sinks.postgres import markers, stale_connections
from onceforall.sinks.postgres.driver.batches import Batch
from onceforall.sinks.postgres.markers import Marker
from onceforall.sinks.postgres.statements import Connection, set_lock_timeout

_log = logs.logger("onceforall.sinks.postgres")

_WAITS = 5
_WAIT_S = 1.5


def advance(connection: Connection, batch: Batch, marker: Marker, doing: str) -> bool:
    """Lock and move the marker of a batch, within the caller's transaction; end those that keep it
    locked in silence. The connection's ``lock_timeout`` is a short one then.

    Args:
        connection: within a transaction.
        batch: whose marker.
        marker: what it says then.
        doing: what the caller does, for messages.

    Returns:
        False, and nothing is changed, when the marker has that batch or a later one.

    Raises:
        psycopg.errors.LockNotAvailable: somebody keeps it locked who may be alive.
    """
    set_lock_timeout(connection, _WAIT_S)
    for turn in range(_WAITS):
        connection.execute("SAVEPOINT marker")
        try:
            moved = markers.advance(connection, batch.owner, marker)
        except psycopg.errors.LockNotAvailable:
            if turn == _WAITS - 1:
                raise
            connection.execute("ROLLBACK TO SAVEPOINT marker")
            ended = stale_connections.end_silent_merges(connection, batch.whose, batch.generation)
            _log.info("%s: ended %d connections that kept the marker locked", doing, ended)
        else:
            connection.execute("RELEASE SAVEPOINT marker")
            break
    return moved
