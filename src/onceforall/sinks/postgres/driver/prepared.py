"""``mode="prepared"`` on the driver: it counts prepared transactions before the decision, and
commits them behind it. Module ``task.prepared`` tells the whole of the mode.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from onceforall.common.threads import Threads
from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.failpoints import points as failpoints
from onceforall.protocol.entries import Committable
from onceforall.sink import CommitReport, LostTransaction
from onceforall.sinks.postgres import markers, replication
from onceforall.sinks.postgres.driver import marker_lock, marker_proofs, marker_table
from onceforall.sinks.postgres.driver.batches import Batch, Connect
from onceforall.sinks.postgres.driver.outcomes import (
    elsewhere,
    joined,
    not_known,
    refuse_old,
    told_without_markers,
    without_right,
)
from onceforall.sinks.postgres.identity import database_of
from onceforall.sinks.postgres.markers import Marker
from onceforall.sinks.postgres.prepared_transactions import finish, locked, own_gids
from onceforall.sinks.postgres.statements import (
    Connection,
    close_quietly,
    role_of,
    unavailable,
    words,
)

_CONNECTIONS = 4


def confirm(connection: Connection, batch: Batch) -> int | None:
    """Close the batch for attempts that come late, and see that every prepared transaction is
    there.

    Returns:
        The object id of the table of markers.

    Raises:
        AttemptFailedError: one isn't, or this batch is complete already. psycopg.Error: it can be
        tried again.
    """
    complete = markers.read(connection, batch.owner)
    if complete is not None and complete.batch >= batch.batch:
        refuse_old(complete, batch)
    marker_proofs.check_predecessor(connection, batch)
    markers.fence_out(connection, batch.owner.schema, batch.owner.query_id, batch.generation)
    with locked(connection, batch.owner, batch.generation, batch.batch, shared=False):
        if not markers.raise_to(
            connection, batch.owner, markers.CONFIRMED, Marker(batch.batch, batch.generation)
        ):
            raise AttemptFailedError(
                f"A later run of this query has confirmed batch {batch.batch} or a later one. "
                "Stop this run."
            )
    failpoints.hit("postgres.confirm.closed")
    gone = sorted(set(batch.names) - set(own_gids(connection)))
    if gone:
        raise AttemptFailedError(
            f"{len(gone)} of {len(batch.names)} prepared transactions of batch {batch.batch} are "
            f"gone (the first is {gone[0]}). Somebody rolled "
            "them back; the batch is written again."
        )
    # The batch before this one has its DONE, or this one would not have been written.
    markers.advance(connection, batch.owner, Marker(batch.batch - 1, batch.generation))
    failpoints.hit("postgres.confirm.counted")
    marker_table.forget_before(connection, batch.owner, batch.batch)
    failpoints.hit("postgres.confirm.forgotten")
    return marker_table.oid_of(connection, batch.owner.schema)


def commit(
    connect: Connect, batch: Batch, committables: Sequence[Committable], *, are_all: bool
) -> CommitReport:
    """Commit prepared transactions, several at once, and mark the batch as complete behind them.

    Args:
        connect: opens a connection.
        batch: what they say together.
        committables: at least one.
        are_all: whether the batch has nothing else in this sink.

    Raises:
        SinkUnavailableError: at least one has no answer.
    """
    parts = [
        list(committables[at::_CONNECTIONS]) for at in range(min(_CONNECTIONS, len(committables)))
    ]
    connections: list[Connection] = []
    try:
        with Threads(len(parts), thread_name_prefix="onceforall-postgres") as threads:
            futures = [
                threads.submit(_commit_some, connect, batch, part, connections) for part in parts
            ]
        report = joined([future.result() for future in futures])
        if are_all and not report.lost and not report.in_doubt:
            failpoints.hit("postgres.mark_complete.before")
            _mark_complete(connections[0], batch)
            failpoints.hit("postgres.mark_complete.after")
        return report
    finally:
        for connection in connections:
            close_quietly(connection)


def _mark_complete(connection: Connection, batch: Batch) -> None:
    """Move the marker that says of the whole batch that it is here, behind all of its
    transactions: a standby has what it has in this order.

    Raises:
        SinkUnavailableError: it has no answer.
    """
    doing, marker = batch.what("Committing"), Marker(batch.batch, batch.generation)
    try:
        connection.execute("BEGIN")
        marker_lock.advance(connection, batch, marker, doing)
        failpoints.hit("postgres.mark_complete.marked")
        is_replicated = replication.commits(connection, sql.SQL("COMMIT")) is not None
    except psycopg.errors.InsufficientPrivilege as error:
        raise _without_right(connection, batch, error) from error
    except psycopg.Error as error:
        raise unavailable(error, doing) from error
    if not is_replicated:
        raise SinkUnavailableError(f"{doing} has no answer yet: {replication.CANCELLED}")


def _without_right(
    connection: Connection, batch: Batch, error: psycopg.Error
) -> SinkUnavailableError:
    return SinkUnavailableError(
        without_right(batch, words(error), role_of(connection), what="the commit")
    )


def _commit_some(
    connect: Connect, batch: Batch, committables: list[Committable], opened: list[Connection]
) -> CommitReport:
    try:
        connection = connect(batch.connection_name)
        opened.append(connection)
        found = database_of(connection)
        if found != batch.database:
            return elsewhere(batch, committables, found)
        missing = []
        strange = _of_other_roles(connection, [str(c["name"]) for c in committables])
        for committable in committables:
            failpoints.hit("postgres.commit_prepared.before")
            name = str(committable["name"])
            # Another role's may be ours from before the role was changed, or anybody's: only the
            # marker that it has written tells.
            if not _committed(connection, name) or name in strange:
                missing.append(committable)
            failpoints.hit("postgres.commit_prepared.after")
        return _with_proofs(connection, batch, committables, missing)
    except psycopg.errors.InsufficientPrivilege as error:
        raise _without_right(connection, batch, error) from error
    except psycopg.Error as error:
        raise unavailable(error, batch.what("Committing")) from error


def _of_other_roles(connection: Connection, gids: list[str]) -> set[str]:
    """Return those that another role has prepared, some of which this one may commit."""
    query = (
        "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE gid OPERATOR(pg_catalog.=) ANY(%s) "
        "AND owner OPERATOR(pg_catalog.<>) current_user"
    )
    return {str(gid) for (gid,) in connection.execute(query, [gids]).fetchall()}


def _committed(connection: Connection, gid: str) -> bool:
    """Commit it; False when there is none by that name, or none that this role may commit, or
    when it is committed and no standby need have it.

    Anybody may prepare a transaction under any name that is free. What proves a commit is the
    marker.
    """
    try:
        return finish(connection, "COMMIT", gid)
    except psycopg.errors.InsufficientPrivilege:
        return False


def _with_proofs(
    connection: Connection,
    batch: Batch,
    committables: list[Committable],
    missing: list[Committable],
) -> CommitReport:
    if not missing:
        return CommitReport(retired=tuple(committables))
    names = [str(c["name"]) for c in missing]
    try:
        complete = markers.read(connection, batch.owner)
    except marker_proofs.NO_TABLE:
        told = told_without_markers(connection, batch, missing)
        if told is None:
            raise
        if not marker_proofs.were_dropped(connection, batch.markers):
            raise SinkUnavailableError(not_known(batch, told)) from None
        _wait_where_it_is(connection, batch, names)
        return joined([_without(committables, missing), told])
    if complete is not None and complete.batch >= batch.batch:
        replication.wait(connection, batch.what("Committing"))
        return CommitReport(retired=tuple(committables))
    committed = marker_proofs.present(connection, batch.owner, names)
    if committed:
        replication.wait(connection, batch.what("Committing"))
    _wait_where_it_is(connection, batch, [name for name in names if name not in committed])
    gone = [c for c in missing if str(c["name"]) not in committed]
    retired = _without(committables, gone)
    if gone and (told := told_without_markers(connection, batch, gone)):
        return joined([retired, told])
    reason = (
        f"neither the prepared transaction nor its marker in {batch.owner.schema}.{markers.TABLE} "
        "exists, so it was rolled back by somebody, "
        "or the server was restored from an earlier state"
    )
    return joined([retired, CommitReport(lost=tuple(LostTransaction(c, reason) for c in gone))])


def _without(committables: list[Committable], missing: list[Committable]) -> CommitReport:
    names = {str(c["name"]) for c in missing}
    return CommitReport(retired=tuple(c for c in committables if str(c["name"]) not in names))


def _wait_where_it_is(connection: Connection, batch: Batch, names: list[str]) -> None:
    """Refuse an answer where one of them is prepared, and can't be committed from here.

    Raises:
        SinkUnavailableError: so it is.
    """
    elsewhere_now = connection.execute(
        "SELECT gid, owner, database FROM pg_catalog.pg_prepared_xacts WHERE gid "
        "OPERATOR(pg_catalog.=) ANY(%s)",
        [names],
    ).fetchone()
    if elsewhere_now is not None:
        gid, role, database = elsewhere_now
        raise SinkUnavailableError(
            f"{batch.what('Committing')}: the prepared transaction {gid} belongs to the role "
            f"{role} in the database {database}, and could not be "
            "committed from here. Connect as that role, to that database, until the batch is "
            "complete; if that role is none of yours, roll its transaction back."
        )
