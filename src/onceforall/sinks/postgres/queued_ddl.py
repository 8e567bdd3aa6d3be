"""A deadlock that the server doesn't see: DDL that queues between two transactions of one batch.

An ``ALTER TABLE`` waits for a transaction of the batch that is through: one that a task has
prepared, or a merge that another sink of the query holds open until the decision. The next lock on
the table, of another task or of this sink's merge, waits behind it; and the ones that are through
wait for the decision, which waits for that. The server finds no circle, because the last link is
not a lock. Meanwhile everybody who wants to write to the table waits, too. So the lock on the table
is taken in short waits, with a look between them for whom it waits (``pg_locks``). Where it is such
a circle, the batch is given up, with an error that says which statement it is. The batch is then
aborted, the DDL goes ahead, and the next start writes the batch.

A merge that one sink alone holds is in no such circle: it has all locks that its batch needs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import psycopg
from psycopg import sql

from onceforall.errors import AttemptFailedError
from onceforall.sinks.postgres.merging import Target
from onceforall.sinks.postgres.names import parse_gid
from onceforall.sinks.postgres.statements import Connection, set_lock_timeout

_WAIT_S = 1.0

# The modes that conflict with ROW EXCLUSIVE
# (https://www.postgresql.org/docs/current/explicit-locking.html). A prepared transaction's locks
# have no pid, and the virtual transaction of the session that prepared it (-1/… after a restart of
# the server); the lock on its own id has both ids.
_QUEUED = """
WITH RECURSIVE target AS (
    SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
    WHERE n.nspname OPERATOR(pg_catalog.=) %s AND c.relname OPERATOR(pg_catalog.=) %s
    UNION ALL
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN target ON i.inhparent OPERATOR(pg_catalog.=) target.oid)
SELECT a.pid, a.query, ARRAY(
    SELECT p.gid FROM pg_catalog.pg_prepared_xacts p
      JOIN pg_catalog.pg_locks x ON x.pid IS NULL AND x.transactionid OPERATOR(pg_catalog.=) p.transaction
      JOIN pg_catalog.pg_locks h ON h.pid IS NULL AND h.virtualtransaction OPERATOR(pg_catalog.=) x.virtualtransaction
    WHERE h.granted AND h.relation OPERATOR(pg_catalog.=) w.relation AND h.database OPERATOR(pg_catalog.=) w.database), ARRAY(
    SELECT s.application_name FROM pg_catalog.pg_locks h JOIN pg_catalog.pg_stat_activity s ON s.pid OPERATOR(pg_catalog.=) h.pid
    WHERE h.granted AND h.locktype OPERATOR(pg_catalog.=) 'relation' AND h.relation OPERATOR(pg_catalog.=) w.relation
      AND h.database OPERATOR(pg_catalog.=) w.database AND h.mode OPERATOR(pg_catalog.<>) 'AccessShareLock'),
  n.nspname::pg_catalog.text, c.relname::pg_catalog.text
FROM pg_catalog.pg_locks w JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) w.pid
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) w.relation JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE NOT w.granted AND w.locktype OPERATOR(pg_catalog.=) 'relation'
  AND (%s OR EXISTS (SELECT FROM target WHERE target.oid OPERATOR(pg_catalog.=) w.relation))
  AND w.database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
  AND w.mode OPERATOR(pg_catalog.=) ANY(ARRAY['ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'])
"""


@dataclass(frozen=True)
class Pending:
    """What waits for the decision of a batch.

    Attributes:
        query_id: whose batch; all transactions that its tasks have prepared count.
        batch: its number.
        waiting: who would wait behind the DDL, as in "the merge of this sink".
        merges: the application names of the connections on which the query's other sinks hold
            merges.
    """

    query_id: str
    batch: int
    waiting: str
    merges: tuple[str, ...] = ()

    def has(self, gids: Iterable[str], applications: Iterable[str]) -> bool:
        """Tell whether a prepared transaction or a connection is the batch's."""
        names = (parse_gid(gid, self.query_id) for gid in gids)
        return any(name is not None and name.batch == self.batch for name in names) or any(
            name in self.merges for name in applications
        )


def lock_target(
    connection: Connection,
    target: Target,
    pending: Pending,
    timeout_s: float,
    *,
    with_partitions: bool = True,
) -> None:
    """Take the lock that writing takes, within the caller's transaction.

    Args:
        connection: in a transaction; its ``lock_timeout`` is changed.
        target: the table.
        pending: what waits for the decision that waits for the caller.
        timeout_s: how long to wait where there is no such deadlock.
        with_partitions: whether each partition is locked, too.

    Raises:
        AttemptFailedError: DDL has queued between the caller and what is pending.
        psycopg.errors.LockNotAvailable: the time is over.
    """
    deadline = time.monotonic() + timeout_s
    set_lock_timeout(connection, min(_WAIT_S, timeout_s))
    only = sql.SQL("" if with_partitions else "ONLY ")
    statement = sql.SQL("LOCK TABLE {}{} IN ROW EXCLUSIVE MODE").format(only, target.identifier)
    while True:
        connection.execute("SAVEPOINT target")
        try:
            connection.execute(statement)
        except psycopg.errors.LockNotAvailable:
            connection.execute("ROLLBACK TO SAVEPOINT target")
            refuse_circle(connection, pending, target)
            if time.monotonic() > deadline:
                raise
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


def refuse_circle(connection: Connection, pending: Pending, target: Target | None = None) -> None:
    """Give the batch up where DDL waits for what is pending, and the caller has waited in vain.

    Args:
        connection: in no failed transaction.
        pending: what waits for the decision that waits for the caller.
        target: the table for which, or for a partition of which, the caller has waited; None: any.

    Raises:
        AttemptFailedError: naming the statement.
    """
    where = [None, None, True] if target is None else [target.schema, target.table, False]
    for pid, statement, gids, applications, *names in connection.execute(_QUEUED, where).fetchall():
        if pending.has(map(str, gids), map(str, applications)):
            is_prepared = pending.has(map(str, gids), ())
            held = "the prepared transactions" if is_prepared else "another sink's merge"
            raise AttemptFailedError(
                f"A statement waits for {held} of batch {pending.batch}, and {pending.waiting} "
                f"would wait behind it: {_shown(statement)} (pid {pid}) on {'.'.join(names)}. "
                "That would be a deadlock, so the batch is given up; start the query again when "
                "the statement is through. Alter the table while the query stands still"
                f"{', or use mode=' + repr('staged') if is_prepared else ''}."
            )


def _shown(statement: str | None) -> str:
    text = " ".join((statement or "").split())
    return repr(text[:200] + ("…" if len(text) > 200 else ""))


__all__ = ["Pending", "lock_target", "refuse_circle"]
