"""``mode="upsert"``: no two-phase commit; each task writes by key and commits by itself.

A replay of a batch writes the same keys again, so that a table which holds nothing but the last
value of each key ends up as if every batch had been written once. What that is worth depends on the
query:

- Rows are visible before the batch is decided, and task by task. A batch that is aborted stays
  visible until its replay writes over it.
- A replay that gives other *values* writes over the old ones. One that gives other *keys* leaves
  the old keys there.
- Nothing is ever deleted, and a column that a statement computes from its old value (a trigger that
  counts) is computed twice.

A late task of an earlier batch must not write over a later batch's values. So the tasks of a batch
move a marker row to (generation, batch) before they write, and in the end each looks at it once
more, with a shared lock on it that its COMMIT releases: whoever finds a later one there rolls back,
and a later batch's first task waits, as long as ``lock_timeout_s``, for those who have looked
already.

Nobody moves that row any more where the sink has another mode or another name since. So a second
row, the fence, is one for all sinks of the query: the sweeps of a run, in whatever mode, its first
batch (a start goes on without a sweep that fails), its tasks in this mode, and ``confirm`` in the
others move it to their generation (``markers.fence_out``), and the tasks of an earlier one find it
there; in which schemas, module ``driver.fencing`` tells.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from onceforall.errors import AttemptFailedError
from onceforall.failpoints import points as failpoints
from onceforall.protocol.names import TransactionName
from onceforall.sinks.postgres import deferred, markers, merging, replication, stale_connections
from onceforall.sinks.postgres.markers import Marker, Owner
from onceforall.sinks.postgres.names import parsed
from onceforall.sinks.postgres.statements import Connection, roll_back
from onceforall.sinks.postgres.task.attempts import StagedTransaction, apply


def begin(
    connection: Connection, name: str, schema: str, target: merging.Target
) -> StagedTransaction:
    """Move the marker to this batch, and begin.

    Raises:
        AttemptFailedError: a later batch, or a later run, has begun to write.
    """
    own = parsed(name)
    owner = Owner(schema, own.query_id, own.sink_code)
    mine = (own.generation, own.batch)
    with replication.telling(connection, "The COMMIT of a marker"):
        markers.fence_out(connection, schema, own.query_id, own.generation)
    _check_fence(connection, schema, own)
    if _current(connection, owner) != mine:
        # Looked at first, because the statement locks the row even where it changes nothing, and
        # the other tasks hold it.
        with replication.telling(connection, "The COMMIT of a marker"):
            markers.raise_to(
                connection, owner, markers.UPSERTING, Marker(own.batch, own.generation)
            )
        _check(_current(connection, owner), mine)
    failpoints.hit("postgres.upsert.marked")
    return StagedTransaction(connection, name, schema, target, logged=False)


def pre_commit(transaction: StagedTransaction) -> None:
    """Write the rows and commit.

    Raises:
        RefusedRecordError: the target refuses a row.
        AttemptFailedError: a later batch, or a later run, has begun to write.
    """
    transaction.finish()
    own = parsed(transaction.name)
    try:
        apply(transaction)
        failpoints.hit("postgres.upsert.applied")
    except AttemptFailedError as error:
        if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            # An earlier attempt of this task may be frozen with the rows locked; the next one shall
            # not wait for it. A living one, Spark's speculative twin, is no obstacle: it commits by
            # itself.
            roll_back(transaction.connection)
            stale_connections.end_earlier_attempts(transaction.connection, own)
        raise
    owner = Owner(transaction.staged.schema, own.query_id, own.sink_code)
    _exhaust(transaction, owner, Marker(own.batch, own.generation))
    _check_fence(transaction.connection, owner.schema, own, " FOR SHARE")
    _check(_current(transaction.connection, owner, " FOR SHARE"), (own.generation, own.batch))
    replication.set_again(transaction.connection)
    failpoints.hit("postgres.upsert.before_commit")
    if replication.commits(transaction.connection, sql.SQL("COMMIT")) is None:
        raise AttemptFailedError(f"Committing a task's rows: {replication.CANCELLED}.")
    failpoints.hit("postgres.upsert.after_commit")


def _exhaust(transaction: StagedTransaction, owner: Owner, marker: Marker) -> None:
    """Run what is deferred until nothing is, by a marker that nobody but this transaction sees: the
    one that the tasks share can't be written by several at once.
    """
    what = f"Writing to {transaction.target.schema}.{transaction.target.table}"
    markers.put(transaction.connection, owner, transaction.name, marker)
    deferred.exhaust(transaction.connection, owner, what, transaction.name)
    markers.take_back(transaction.connection, owner, transaction.name)


def _check_fence(connection: Connection, schema: str, own: TransactionName, lock: str = "") -> None:
    """Refuse a task of an earlier run than the latest one that this database has met."""
    owner = markers.fence_of(schema, own.query_id)
    latest = _current(connection, owner, lock, markers.FENCE)
    if latest is None or latest[0] != own.generation:
        raise AttemptFailedError(
            f"This task is too late: it belongs to generation {own.generation} of its query, and "
            f"{'no generation' if latest is None else latest[0]} is the latest one here. Nothing "
            "of it was kept."
        )


def _current(
    connection: Connection, owner: Owner, lock: str = "", name: str = markers.UPSERTING
) -> tuple[int, int] | None:
    query = (
        "SELECT generation, batch FROM {} WHERE (query_id, sink, name) OPERATOR(pg_catalog.=) "
        "(%s, %s, %s){}"
    )
    row = connection.execute(
        sql.SQL(query).format(owner.table, sql.SQL(lock)),
        [owner.query_id, owner.sink, name],
    ).fetchone()
    return None if row is None else (int(row[0]), int(row[1]))


def _check(current: tuple[int, int] | None, mine: tuple[int, int]) -> None:
    if current != mine:
        raise AttemptFailedError(
            f"This task is too late: it belongs to (generation, batch) {mine}, and {current} is "
            "being written. Nothing of it was kept."
        )
