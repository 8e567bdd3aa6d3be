"""``mode="prepared"``: PostgreSQL's own two-phase commit, one prepared transaction per task.

**In the task.** An attempt copies its rows into a table that it makes and drops in the same
transaction (a temporary one would forbid ``PREPARE``), applies them to the target, writes a marker
row that bears its name, has deferred constraints checked, and says ``PREPARE TRANSACTION`` with
that name. From then on the transaction belongs to the server: it survives the task, the connection
and the server's crash.

Its locks survive, too. An attempt would wait for the rows of an earlier attempt of the same task,
which nobody may ever commit. So before it writes it ends the connections of earlier attempts and
rolls back what they prepared. **May one of those be decided?** An attempt of an
earlier generation may not: a decided batch is complete before another is written, and what is
written again of it was proved to be lost. In its own generation Spark may still take the earlier
attempt's result (after a fetch failure a stage is run again beside attempts that go on). So an
attempt rolls back only those with a lower slot, holding a shared advisory lock of the server's on
(query, sink, generation, batch), and only where the marker row ``confirmed`` doesn't name this
batch; ``confirm`` (module ``driver.prepared``) takes that lock alone for a moment, writes that row,
and then looks whether all are still there. Behind it nobody rolls back what is going to be decided;
before it, a rolled back one is missed and the attempt is aborted. The lock and the ``ROLLBACK
PREPARED`` are of one session, so the lock can't be gone while that is still to come.

With a key, each key must be in one task, or two tasks of one batch would wait for each other's rows
until both are prepared, which is never. Speculative execution has two live attempts of one task and
is refused for the same reason. Where rows of two tasks meet for another reason (a second unique
index), the lock's time-out fails the attempt, and the message says so.

**commit** says ``COMMIT PREPARED`` for each. "Does not exist" proves nothing: it is also what a
second ``COMMIT PREPARED`` hears. The marker row, which was written in that transaction, proves that
it was committed, and so does a marker of a later batch (module ``markers``). No marker, and no
prepared transaction by that name in this database: it is lost, for a transaction can't come back.
(The server makes the rows of a prepared transaction visible before it forgets its name, so the
order of looking, first the name and then the marker, is safe.) Behind the last one the driver moves
the row with the empty name: that alone proves that all of the batch is here, for a standby that is
promoted between two of these commits has the marker of the first one only.

Not promised: that the tasks' rows become visible in one instant; for that there is
``mode="staged"``.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from onceforall.errors import AttemptFailedError
from onceforall.failpoints import points as failpoints
from onceforall.protocol.entries import Committable
from onceforall.protocol.names import TransactionName, parse_name
from onceforall.sinks.postgres import (
    deferred,
    markers,
    merging,
    queued_ddl,
    replication,
    stale_connections,
)
from onceforall.sinks.postgres.identity import database_of
from onceforall.sinks.postgres.markers import Marker, Owner
from onceforall.sinks.postgres.names import parsed
from onceforall.sinks.postgres.options import PREPARED
from onceforall.sinks.postgres.partitions import has_few_partitions
from onceforall.sinks.postgres.prepared_transactions import locked, own_gids, roll_back_prepared
from onceforall.sinks.postgres.statements import Connection, roll_back, words
from onceforall.sinks.postgres.task.attempts import StagedTransaction, apply


def begin(
    connection: Connection, name: str, schema: str, target: merging.Target, lock_timeout_s: float
) -> StagedTransaction:
    """Clear away what earlier attempts of this task left, and begin.

    Raises:
        AttemptFailedError: the table is locked, or another attempt of this task was taken already.
    """
    own = parsed(name)
    stale_connections.end_earlier_attempts(connection, own)
    for gid in _predecessors(connection, own):
        _roll_back_predecessor(connection, own, gid, schema)
        failpoints.hit("postgres.task.predecessor_rolled_back")
    failpoints.hit("postgres.task.predecessors_gone")
    begun = StagedTransaction(connection, name, schema, target, logged=False)
    pending = queued_ddl.Pending(own.query_id, own.batch, "this task")
    try:
        queued_ddl.lock_target(
            connection,
            target,
            pending,
            lock_timeout_s,
            # Of more, each is locked when a row goes there; DDL that queues on one of them is found
            # when the task has waited for it in vain.
            with_partitions=target.oid is None or has_few_partitions(connection, target.oid),
        )
    except psycopg.errors.LockNotAvailable as error:
        raise AttemptFailedError(
            f"The table {target.schema}.{target.table} stayed locked for as long as "
            f"lock_timeout_s says: {words(error)}. pg_locks and pg_stat_activity show by whom."
        ) from error
    return begun


def _predecessors(connection: Connection, own: TransactionName) -> list[TransactionName]:
    found = (parse_name(gid) for gid in own_gids(connection))
    return [other for other in found if other is not None and _is_predecessor(other, own)]


def _is_predecessor(other: TransactionName, own: TransactionName) -> bool:
    same_task = (other.query_id, other.sink_code, other.batch, other.write, other.partition) == (
        own.query_id,
        own.sink_code,
        own.batch,
        own.write,
        own.partition,
    )
    return same_task and (other.generation, other.incarnation, other.slot) < (
        own.generation,
        own.incarnation,
        own.slot,
    )


def _roll_back_predecessor(
    connection: Connection, own: TransactionName, other: TransactionName, schema: str
) -> None:
    if other.generation < own.generation:
        roll_back_prepared(connection, str(other))
        return
    owner = Owner(schema, own.query_id, own.sink_code)
    with locked(connection, owner, own.generation, own.batch, shared=True):
        confirmed = markers.read(connection, owner, markers.CONFIRMED)
        if confirmed is not None and (confirmed.generation, confirmed.batch) >= (
            own.generation,
            own.batch,
        ):
            raise AttemptFailedError(
                f"Another attempt of the task {own.write}/{own.partition} of batch {own.batch} "
                "was taken already."
            )
        roll_back_prepared(connection, str(other))


def _put_marker(connection: Connection, owner: Owner, name: str, own: TransactionName) -> None:
    try:
        markers.put(connection, owner, name, Marker(own.batch, own.generation, markers.PART))
    except psycopg.errors.UniqueViolation as error:
        raise AttemptFailedError(
            f"Batch {own.batch} is not written: the marker in {owner.schema}.{markers.TABLE} says "
            f"that a transaction of this very name was committed here ({name}), and no run uses a "
            "name twice. So the checkpoint is an older copy: put the newer one back."
        ) from error


def pre_commit(transaction: StagedTransaction) -> Committable:
    """Apply the rows and prepare the transaction; return its committable.

    Raises:
        RefusedRecordError: the target refuses a row.
        AttemptFailedError: the server can't prepare it.
        psycopg.Error: anything else.
    """
    transaction.finish()
    connection, own = transaction.connection, parsed(transaction.name)
    owner = Owner(transaction.staged.schema, own.query_id, own.sink_code)
    try:
        apply(transaction)
        _put_marker(connection, owner, transaction.name, own)
    except (AttemptFailedError, psycopg.errors.LockNotAvailable) as error:
        cause = error if isinstance(error, psycopg.Error) else error.__cause__
        if isinstance(cause, psycopg.errors.LockNotAvailable):
            # DDL may have queued on another table: that of a trigger, a foreign key, the markers.
            roll_back(connection)
            pending = queued_ddl.Pending(own.query_id, own.batch, "this task")
            queued_ddl.refuse_circle(connection, pending)
        raise
    what = f"Writing to {transaction.target.schema}.{transaction.target.table}"
    deferred.exhaust(connection, owner, what, transaction.name)
    database = database_of(connection)
    failpoints.hit("postgres.task.applied")
    statement = sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(transaction.name))
    try:
        with replication.telling(connection, "PREPARE TRANSACTION"):
            connection.execute(statement)
    except psycopg.errors.OutOfMemory as error:
        raise AttemptFailedError(
            f"The server has no room for one more prepared transaction: {words(error)}. Raise "
            "max_prepared_transactions, or use mode='staged'."
        ) from error
    except psycopg.errors.FeatureNotSupported as error:
        raise AttemptFailedError(
            f"A trigger does what can't be prepared: {words(error)}. Use mode='staged' for this "
            "table."
        ) from error
    failpoints.hit("postgres.task.prepared")
    return transaction.committable(PREPARED, database)
