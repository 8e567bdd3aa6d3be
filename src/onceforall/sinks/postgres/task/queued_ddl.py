"""A deadlock that the server doesn't see: DDL that queues between the tasks of a batch of
``mode="prepared"``.

An ``ALTER TABLE`` waits for the prepared transactions of the tasks that are through; the next
task's lock on the table waits behind it; and the prepared ones wait for their decision, which waits
for that task. The server finds no circle, because the last link is not a lock. Meanwhile everybody
who wants to write to the table waits, too. So a task takes its lock on the table in short waits,
and looks between them for whom it waits (``pg_locks``); where it is such a circle, it gives up and
says which statement it is. The batch is then aborted, the DDL goes ahead, and the next start writes
the batch.
"""

from __future__ import annotations

import time

import psycopg
from psycopg import sql

from onceforall.errors import AttemptFailedError
from onceforall.protocol.names import TransactionName
from onceforall.sinks.postgres.merging import Target
from onceforall.sinks.postgres.names import parse_gid
from onceforall.sinks.postgres.statements import Connection, set_lock_timeout, words

_WAIT_S = 1.0

# The modes that conflict with ROW EXCLUSIVE
# (https://www.postgresql.org/docs/current/explicit-locking.html). A prepared transaction's locks
# have no pid, and the virtual transaction of the session that prepared it (-1/… after a restart of
# the server); the lock on its own id has both ids.
_QUEUED = """
SELECT a.pid, a.query, ARRAY(
    SELECT p.gid FROM pg_catalog.pg_prepared_xacts p
      JOIN pg_catalog.pg_locks x ON x.pid IS NULL AND x.transactionid OPERATOR(pg_catalog.=) p.transaction
      JOIN pg_catalog.pg_locks h ON h.pid IS NULL AND h.virtualtransaction OPERATOR(pg_catalog.=) x.virtualtransaction
    WHERE h.granted AND h.relation OPERATOR(pg_catalog.=) w.relation AND h.database OPERATOR(pg_catalog.=) w.database)
FROM pg_catalog.pg_locks w JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) w.pid
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) w.relation JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE NOT w.granted AND w.locktype OPERATOR(pg_catalog.=) 'relation' AND n.nspname OPERATOR(pg_catalog.=) %s AND c.relname OPERATOR(pg_catalog.=) %s
  AND w.database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
  AND w.mode OPERATOR(pg_catalog.=) ANY(ARRAY['ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'])
"""


def lock_target(
    connection: Connection, target: Target, own: TransactionName, timeout_s: float
) -> None:
    """Take the lock that writing takes, within the task's transaction.

    Args:
        connection: in a transaction.
        target: the table.
        own: the attempt's name: prepared transactions of its batch wait for it.
        timeout_s: how long to wait where there is no such deadlock.

    Raises:
        AttemptFailedError: DDL has queued between this task and the prepared ones of its batch; or
            the time is over.
    """
    deadline = time.monotonic() + timeout_s
    set_lock_timeout(connection, min(_WAIT_S, timeout_s))
    while True:
        connection.execute("SAVEPOINT target")
        try:
            connection.execute(
                sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(target.identifier)
            )
        except psycopg.errors.LockNotAvailable as error:
            connection.execute("ROLLBACK TO SAVEPOINT target")
            _refuse_circle(connection, target, own)
            if time.monotonic() > deadline:
                raise AttemptFailedError(
                    f"The table {target.schema}.{target.table} stayed locked for as long as "
                    f"lock_timeout_s says: {words(error)}. pg_locks and "
                    "pg_stat_activity show by whom."
                ) from error
        except (
            psycopg.errors.InsufficientPrivilege,
            psycopg.errors.WrongObjectType,
            psycopg.errors.UndefinedTable,
        ):
            # Rights on columns don't suffice for it; the other errors are told where the table is
            # looked at.
            connection.execute("ROLLBACK TO SAVEPOINT target")
            break
        else:
            break
    set_lock_timeout(connection, timeout_s)


def _refuse_circle(connection: Connection, target: Target, own: TransactionName) -> None:
    for pid, statement, gids in connection.execute(
        _QUEUED, [target.schema, target.table]
    ).fetchall():
        names = [name for gid in gids if (name := parse_gid(str(gid), own.query_id)) is not None]
        if any((name.sink_code, name.batch) == (own.sink_code, own.batch) for name in names):
            raise AttemptFailedError(
                f"A statement waits for the prepared transactions of batch {own.batch}, and this "
                f"task would wait behind it: {_shown(statement)} (pid "
                f"{pid}) on {target.schema}.{target.table}. That would be a deadlock, so the "
                "batch is given up; start the query again when the "
                "statement is through. Alter the table while the query stands still, or use "
                "mode='staged'."
            )


def _shown(statement: str | None) -> str:
    text = " ".join((statement or "").split())
    return repr(text[:200] + ("…" if len(text) > 200 else ""))


__all__ = ["lock_target"]
