"""``mode="prepared"``: PostgreSQL's own two-phase commit, one prepared transaction per task.

**In the task.** An attempt copies its rows into a table that it makes and drops in the same transaction (a temporary one would forbid ``PREPARE``),
applies them to the target, writes a marker row that bears its name, has deferred constraints checked, and says ``PREPARE TRANSACTION`` with that
name. From then on the transaction belongs to the server: it survives the task, the connection and the server's crash.

Its locks survive, too. An attempt would wait for the rows of an earlier attempt of the same task, which nobody may ever commit. So before
it writes it ends the connections of earlier attempts and rolls back what they prepared. **May one of those be decided?** An attempt of an
earlier generation may not: a decided batch is complete before another is written, and what is written again of it was proved to be lost.
In its own generation Spark may still take the earlier attempt's result (after a fetch failure a stage is run again beside attempts that go on). So
an attempt rolls back only those with a lower slot, holding a shared advisory lock of the server's on (query, sink, generation, batch), and only
where the marker row ``confirmed`` doesn't name this batch; ``confirm`` takes that lock alone for a moment, writes that row, and then looks whether all
are still there. Behind it nobody rolls back what is going to be decided; before it, a rolled back one is missed and the attempt is aborted. The lock
and the ``ROLLBACK PREPARED`` are of one session, so the lock can't be gone while that is still to come.

With a key, each key must be in one task, or two tasks of one batch would wait for each other's rows until both are prepared, which is never.
Speculative execution has two live attempts of one task and is refused for the same reason. Where rows of two tasks meet for another reason (a second
unique index), the lock's time-out fails the attempt, and the message says so.

**commit** says ``COMMIT PREPARED`` for each. "Does not exist" proves nothing: it is also what a second ``COMMIT PREPARED`` hears. The marker row, which was
written in that transaction, proves that it was committed, and so does a marker of a later batch (module ``markers``). No marker, and no prepared transaction
by that name in this database: it is lost, for a transaction can't come back. (The server makes the rows of a prepared transaction visible before it
forgets its name, so the order of looking, first the name and then the marker, is safe.)

Not promised: that the tasks' rows become visible in one instant; for that there is ``mode="staged"``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from onceforall.common.threads import Threads
from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.failpoints import points as failpoints
from onceforall.protocol.entries import Committable
from onceforall.protocol.names import TransactionName, parse_name
from onceforall.sink import CommitReport, LostTransaction
from onceforall.sinks.postgres import markers, merging, refusals, staging, stale_connections
from onceforall.sinks.postgres.markers import Marker, Owner
from onceforall.sinks.postgres.names import lock_number, parsed
from onceforall.sinks.postgres.staged import (
    Batch,
    Connect,
    StagedTransaction,
    database_of,
    elsewhere,
    joined,
    refuse_old,
    told_elsewhere,
)
from onceforall.sinks.postgres.statements import Connection, close_quietly, refuses, unavailable, words
from onceforall.sinks.postgres.task import queued_ddl

KIND = "prepared"
_CONNECTIONS = 4
_BUSY_FOR_S = 3.0


# --- in the task -----------------------------------------------------------------------------------------------------------


def begin(connection: Connection, name: str, schema: str, target: merging.Target, lock_timeout_s: float) -> StagedTransaction:
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
    queued_ddl.lock_target(connection, target, own, lock_timeout_s)
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
    return same_task and (other.generation, other.incarnation, other.slot) < (own.generation, own.incarnation, own.slot)


def _roll_back_predecessor(connection: Connection, own: TransactionName, other: TransactionName, schema: str) -> None:
    if other.generation < own.generation:
        roll_back_prepared(connection, str(other))
        return
    owner = Owner(schema, own.query_id, own.sink_code)
    with _locked(connection, owner, own.generation, own.batch, shared=True):
        confirmed = markers.read(connection, owner, markers.CONFIRMED)
        if confirmed is not None and (confirmed.generation, confirmed.batch) >= (own.generation, own.batch):
            raise AttemptFailedError(
                f"Another attempt of the task {own.write}/{own.partition} of batch {own.batch} was taken already."
            )
        roll_back_prepared(connection, str(other))


@contextmanager
def _locked(connection: Connection, owner: Owner, generation: int, batch: int, *, shared: bool) -> Iterator[None]:
    kind = "_shared" if shared else ""
    number = [lock_number(f"{owner.query_id}.{owner.sink}.{generation}.{batch}")]
    connection.execute(f"SELECT pg_catalog.pg_advisory_lock{kind}(%s)".encode(), number)
    try:
        yield
    finally:
        if not connection.broken:
            connection.execute(f"SELECT pg_catalog.pg_advisory_unlock{kind}(%s)".encode(), number)


def pre_commit(transaction: StagedTransaction) -> Committable:
    """Apply the rows and prepare the transaction; return its committable.

    Raises:
        RefusedRecordError: the target refuses a row.
        AttemptFailedError: the server can't prepare it.
        psycopg.Error: anything else.
    """
    transaction.finish()
    connection, own = transaction.connection, parsed(transaction.name)
    apply(transaction)
    owner = Owner(transaction.staged.schema, own.query_id, own.sink_code)
    markers.put(connection, owner, transaction.name, Marker(own.batch, own.generation))
    database = database_of(connection)
    failpoints.hit("postgres.task.applied")
    try:
        connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(transaction.name)))
    except psycopg.errors.OutOfMemory as error:
        raise AttemptFailedError(
            f"The server has no room for one more prepared transaction: {words(error)}. Raise max_prepared_transactions, or use mode='staged'."
        ) from error
    except psycopg.errors.FeatureNotSupported as error:
        raise AttemptFailedError(
            f"A trigger does what can't be prepared: {words(error)}. Use mode='staged' for this table."
        ) from error
    failpoints.hit("postgres.task.prepared")
    return transaction.committable(KIND, database)


def apply(transaction: StagedTransaction) -> None:
    """Apply an attempt's own rows within its transaction, and drop its staging table."""
    connection, staged = transaction.connection, transaction.staged
    connection.execute("SAVEPOINT merge")
    try:
        merging.merge(connection, transaction.target, [staged])
    except psycopg.errors.LockNotAvailable as error:
        target = transaction.target
        raise AttemptFailedError(
            f"A row of {target.schema}.{target.table} stayed locked for as long as lock_timeout_s says: {words(error)}. Another "
            "program's transaction has it; or, in mode='prepared', rows of two tasks of the batch have the same value in a unique index "
            "that isn't the key's: then use mode='staged'."
        ) from error
    except psycopg.Error as error:
        if not refuses(error):
            raise
        connection.execute("ROLLBACK TO SAVEPOINT merge")
        raise refusals.refused(connection, error, transaction.target, [staged]) from error
    staging.drop(connection, staged.schema, [staged.table])


# --- on the driver ---------------------------------------------------------------------------------------------------------


def own_gids(connection: Connection) -> list[str]:
    """Return the ids of the prepared transactions of our role in our database, whatever their names."""
    query = (
        "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE owner OPERATOR(pg_catalog.=) current_user "
        "AND database OPERATOR(pg_catalog.=) pg_catalog.current_database()"
    )
    return [str(gid) for (gid,) in connection.execute(query).fetchall()]


def roll_back_prepared(connection: Connection, gid: str) -> bool:
    """Roll a prepared transaction back; False when there is none by that name."""
    return _finish(connection, "ROLLBACK", gid)


def _finish(connection: Connection, how: str, gid: str) -> bool:
    deadline = time.monotonic() + _BUSY_FOR_S
    while True:
        try:
            connection.execute(sql.SQL("{} PREPARED {}").format(sql.SQL(how), sql.Literal(gid)))
        except psycopg.errors.UndefinedObject:  # noqa: PERF203
            return False
        except psycopg.errors.ObjectNotInPrerequisiteState:  # somebody else is just finishing it
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return True


def confirm(connection: Connection, batch: Batch) -> int | None:
    """Close the batch for attempts that come late, and see that every prepared transaction is there.

    Returns:
        The object id of the table of markers.

    Raises:
        AttemptFailedError: one isn't, or this batch is complete already.
        psycopg.Error: it can be tried again.
    """
    complete = markers.read(connection, batch.owner)
    if complete is not None and complete.batch >= batch.batch:
        refuse_old(complete, batch)
    markers.check_predecessor(connection, batch.owner, batch.after)
    with _locked(connection, batch.owner, batch.generation, batch.batch, shared=False):
        if not markers.raise_to(connection, batch.owner, markers.CONFIRMED, Marker(batch.batch, batch.generation)):
            raise AttemptFailedError(
                f"A later run of this query has confirmed batch {batch.batch} or a later one. Stop this run."
            )
    failpoints.hit("postgres.confirm.closed")
    gone = sorted(set(batch.names) - set(own_gids(connection)))
    if gone:
        raise AttemptFailedError(
            f"{len(gone)} of {len(batch.names)} prepared transactions of batch {batch.batch} are gone (the first is {gone[0]}). Somebody rolled "
            "them back; the batch is written again."
        )
    # The batch before this one has its DONE, or this one would not have been written.
    markers.advance(connection, batch.owner, Marker(batch.batch - 1, batch.generation))
    failpoints.hit("postgres.confirm.counted")
    markers.forget_before(connection, batch.owner, batch.batch)
    failpoints.hit("postgres.confirm.forgotten")
    return markers.oid_of(connection, batch.owner.schema)


def commit(connect: Connect, batch: Batch, committables: Sequence[Committable]) -> CommitReport:
    """Commit prepared transactions, several at once.

    Raises:
        SinkUnavailableError: at least one has no answer.
    """
    parts = [list(committables[at::_CONNECTIONS]) for at in range(min(_CONNECTIONS, len(committables)))]
    with Threads(len(parts), thread_name_prefix="onceforall-postgres") as threads:
        futures = [threads.submit(_commit_some, connect, batch, part) for part in parts]
    reports = [future.result() for future in futures]
    return joined(reports)


def _commit_some(connect: Connect, batch: Batch, committables: list[Committable]) -> CommitReport:
    connection = None
    try:
        connection = connect(batch.connection_name)
        found = database_of(connection)
        if found != batch.database:
            return elsewhere(batch, committables, found)
        missing = []
        for committable in committables:
            failpoints.hit("postgres.commit_prepared.before")
            if not _finish(connection, "COMMIT", str(committable["name"])):
                missing.append(committable)
            failpoints.hit("postgres.commit_prepared.after")
        return _with_proofs(connection, batch, committables, missing)
    except psycopg.Error as error:
        raise unavailable(error, batch.what("Committing")) from error
    finally:
        close_quietly(connection)


def _with_proofs(
    connection: Connection, batch: Batch, committables: list[Committable], missing: list[Committable]
) -> CommitReport:
    if not missing:
        return CommitReport(retired=tuple(committables))
    names = [str(c["name"]) for c in missing]
    elsewhere_now = connection.execute(
        "SELECT gid, owner, database FROM pg_catalog.pg_prepared_xacts WHERE gid OPERATOR(pg_catalog.=) ANY(%s)", [names]
    ).fetchone()
    if elsewhere_now is not None:
        gid, role, database = elsewhere_now
        raise SinkUnavailableError(
            f"{batch.what('Committing')}: the prepared transaction {gid} belongs to the role {role} in the database {database}, and could not be "
            "committed from here. Connect as that role, to that database, until the batch is complete."
        )
    complete = markers.read(connection, batch.owner)
    if complete is not None and complete.batch >= batch.batch:
        return CommitReport(retired=tuple(committables))
    committed = markers.present(connection, batch.owner, names)
    gone = [c for c in missing if str(c["name"]) not in committed]
    lost_names = {str(c["name"]) for c in gone}
    retired = CommitReport(retired=tuple(c for c in committables if str(c["name"]) not in lost_names))
    if gone and (moved := markers.moved_to(connection, batch.owner, batch.batch, batch.markers)):
        return joined([retired, told_elsewhere(batch, gone, moved)])
    reason = (
        f"neither the prepared transaction nor its marker in {batch.owner.schema}.{markers.TABLE} exists, so it was rolled back by somebody, "
        "or the server was restored from an earlier state"
    )
    return joined([retired, CommitReport(lost=tuple(LostTransaction(c, reason) for c in gone))])
