"""``mode="staged"``: rows wait in staging tables; one transaction merges all of a batch.

**In the task** (module ``task.staged``). An attempt makes a staging table of its own, fills it by
COPY, and commits that (flushed, logged): from then on nothing but a ``DROP`` takes it away, not
even the server's crash. No row in it is of any effect, so an attempt that fails, or comes late,
leaves rubbish at the most, which sweeps drop: the table's comment says whose it is.

**confirm** runs on the driver, before the decision. In one transaction it moves the marker row to
this batch (module ``markers``), looks whether each staging table has the rows that its task
reported, merges them all, drops the staging tables, has deferred constraints checked until none is
left (module ``deferred``), and then *holds that transaction open*. Every reason to refuse has come
up by then, and the first offending row is named.

**commit** is the COMMIT of the transaction held. Where there is none (another process, a lost
connection, a server that crashed), the staging tables are there as they were, for they were dropped
in a transaction that was not committed. So the marker is asked, and if it doesn't have the batch,
the same merge is run again. Both ways move the marker row, so only one of any number of
transactions for a batch can commit (``markers``); that of a frozen driver is ended by whoever waits
for it (``stale_connections``).

**A staging table that somebody keeps locked**, as a ``pg_dump`` does to its end, is not waited for:
the merge leaves it there. Its rows are of no effect any more, for the marker has the batch. A later
batch of this run drops it, or a sweep of the next run.

**Lost** is what has neither marker nor staging table, looked at while the marker row is locked:
nobody can have merged it, and nobody can any more. Merging is all or nothing, so if one table is
missing, the whole batch is reported as lost on this sink, and all its tasks write again.

**After the decision nothing may be refused**, but a second merge is a new transaction, and in
between somebody else may have inserted a row with the same unique value, or deleted one that a
foreign key needs. Then the batch stays decided and
incomplete: ``commit`` says in a ``SinkUnavailableError`` which row it is, and asks again until an
operator has removed the conflict. Writing around it would break the promise, and so would giving
up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from onceforall.common import logs
from onceforall.errors import AttemptFailedError, RefusedRecordError, SinkUnavailableError
from onceforall.failpoints import points as failpoints
from onceforall.protocol.entries import Committable
from onceforall.sink import CommitReport, LostTransaction
from onceforall.sinks.postgres import (
    deferred,
    markers,
    merging,
    queued_ddl,
    refusals,
    replication,
    staging,
    target_changes,
)
from onceforall.sinks.postgres.driver import marker_lock, marker_proofs, marker_table
from onceforall.sinks.postgres.driver.batches import Batch, Connect
from onceforall.sinks.postgres.driver.outcomes import (
    changed_since,
    elsewhere,
    not_known,
    not_now,
    refuse_old,
    refused_at_commit,
    told_complete,
    told_without_markers,
    without_right,
)
from onceforall.sinks.postgres.identity import database_of
from onceforall.sinks.postgres.names import driver_connection, whose
from onceforall.sinks.postgres.staging import Staged
from onceforall.sinks.postgres.statements import (
    Connection,
    begin,
    close_quietly,
    is_answer,
    passes,
    refuses,
    role_of,
    roll_back,
    set_lock_timeout,
    transaction,
    unavailable,
    words,
)
from onceforall.sinks.postgres.table_names import quoted

_log = logs.logger("onceforall.sinks.postgres")

_COMMIT = sql.SQL("COMMIT")
_DROP_WAIT_S = 1.0
_LEFT_WAIT_S = 0.01


@dataclass
class Held:
    """A merge that waits for its COMMIT.

    Attributes:
        connection: in the transaction.
        names: of the batch's attempts.
        left: the staging tables that it could not drop.
    """

    connection: Connection
    names: frozenset[str]
    left: tuple[str, ...] = ()


class Merger:
    """It merges batches.

    One per sink and run; not for several threads at once but for ``confirm`` and ``commit`` in
    turn.
    """

    def __init__(self, connect: Connect, lock_timeout_s: float, beside: Sequence[str] = ()) -> None:
        self._connect = connect
        self._beside = tuple(beside)
        self._lock_timeout_s = lock_timeout_s
        self.held: Held | None = None
        self._left: dict[str, list[str]] = {}

    # --- before the decision ----------------------------------------------------------------------

    def confirm(self, batch: Batch) -> int | None:
        """Merge and hold the transaction.

        Returns:
            The object id of the table of markers.

        Raises:
            RefusedRecordError: the target refuses a row.
            AttemptFailedError: a staging table is gone or has other rows, or another run has
                completed this batch.
            psycopg.Error, SinkUnavailableError: it can be tried again.
        """
        self.release()
        connection = self._open(batch)
        try:
            self._drop_left(connection)
            markers.fence_out(
                connection, batch.owner.schema, batch.owner.query_id, batch.generation
            )
            begin(connection)
            marker_proofs.check_predecessor(connection, batch)
            if not self._advance(connection, batch):
                complete = markers.read(connection, batch.owner)
                assert complete is not None
                refuse_old(complete, batch)
            staged = self._checked(connection, batch)
            self._lock_target(connection, batch)
            left = self._apply(connection, batch, staged, is_decided=False)
            self._finish(connection, batch)
            table = marker_table.oid_of(connection, batch.owner.schema)
        except psycopg.errors.LockNotAvailable:
            try:
                self._refuse_circle(connection, batch)
            finally:
                close_quietly(connection)
            raise
        except BaseException:
            close_quietly(connection)
            raise
        self.held = Held(connection, frozenset(batch.names), tuple(left))
        failpoints.hit("postgres.confirm.merged")
        return table

    def _open(self, batch: Batch) -> Connection:
        return self._connect(batch.connection_name)

    def _advance(self, connection: Connection, batch: Batch) -> bool:
        """Lock and move the marker row; end those that keep it locked in silence. False: it has
        this batch already.
        """
        moved = marker_lock.advance(connection, batch, batch.marker, batch.what("Merging"))
        set_lock_timeout(connection, self._lock_timeout_s)
        failpoints.hit("postgres.merge.marked")
        return moved

    def _pending(self, batch: Batch) -> queued_ddl.Pending:
        query_id = batch.owner.query_id
        merges = (
            driver_connection(whose(query_id, name), batch.generation) for name in self._beside
        )
        return queued_ddl.Pending(query_id, batch.batch, "the merge of this sink", tuple(merges))

    def _lock_target(self, connection: Connection, batch: Batch) -> None:
        """Lock the target where other sinks hold merges, or have prepared transactions, meanwhile;
        see module ``queued_ddl``.
        """
        if self._beside:
            queued_ddl.lock_target(
                connection,
                batch.target,
                self._pending(batch),
                self._lock_timeout_s,
                with_partitions=False,
            )

    def _refuse_circle(self, connection: Connection, batch: Batch) -> None:
        """See whether a lock was waited for in vain because of DDL that waits for another sink;
        that of a partition, or of a table that triggers write, was not looked at before.
        """
        if self._beside:
            roll_back(connection)
            queued_ddl.refuse_circle(connection, self._pending(batch))

    @staticmethod
    def _checked(
        connection: Connection, batch: Batch, *, is_decided: bool = False
    ) -> tuple[Staged, ...]:
        """Return the staging tables with their columns.

        Raises:
            AttemptFailedError: one is gone, is somebody else's, or doesn't have the rows that its
                task wrote.
        """
        found = {
            each.table: each
            for each in staging.find(
                connection, batch.owner.schema, [s.table for s in batch.staged]
            )
        }
        gone = _gone(batch, found)
        if gone:
            raise AttemptFailedError(
                f"{batch.what('Merging')}: {len(gone)} of {len(batch.staged)} staging tables are "
                "gone, or have lost a column (the first is "
                f"{batch.owner.schema}.{gone[0]}). Somebody dropped them; the batch is written "
                "again."
            )
        foreign = next((each for each in found.values() if not each.is_own), None)
        if foreign is not None:
            raise AttemptFailedError(
                f"{batch.what('Merging')}: the staging table {batch.owner.schema}.{foreign.table} "
                f"belongs to the role {foreign.owner}, so somebody has put it in "
                "the place of the task's. It is not read; the batch is written again. See who may "
                "create tables in the schema, or owns it."
            )
        filled = tuple(
            replace(staged, columns=found[staged.table].columns) for staged in batch.staged
        )
        counted = staging.counts(connection, filled)
        for staged in filled:
            if counted[staged.table] != staged.rows:
                remedy = (
                    f" If they can't be put back, DROP TABLE {quoted(staged.schema)}."
                    f"{quoted(staged.table)}; the batch then counts as lost, and is written again."
                )
                raise AttemptFailedError(
                    f"{batch.what('Merging')}: the staging table {staged.schema}.{staged.table} "
                    f"has {counted[staged.table]} rows, but its task wrote {staged.rows}. "
                    f"Somebody changed it.{remedy if is_decided else ''}"
                )
        return filled

    @staticmethod
    def _apply(
        connection: Connection, batch: Batch, staged: Sequence[Staged], *, is_decided: bool
    ) -> list[str]:
        """Merge; return the staging tables that could not be dropped: they are of no effect any
        more, for the marker says that the batch is complete.
        """
        staged = target_changes.collated(connection, batch.target, staged)
        connection.execute("SAVEPOINT merge")
        try:
            merging.merge(connection, batch.target, staged, is_decided=is_decided)
        except psycopg.Error as error:
            if not refuses(error):
                raise
            connection.execute("ROLLBACK TO SAVEPOINT merge")
            raise refusals.refused(connection, error, batch.target, staged) from error
        failpoints.hit("postgres.merge.applied")
        tables, schema = [each.table for each in staged], batch.owner.schema
        left = staging.drop_unlocked(connection, schema, tables, _DROP_WAIT_S)
        if left:
            told = staging.kept_locked(connection, schema, left)
            _log.info("%s: %s", batch.what("Merging"), told)
        return left

    def _finish(self, connection: Connection, batch: Batch) -> None:
        """Have checked what is deferred, behind the last statement that may run a trigger, those on
        ``sql_drop`` included.
        """
        set_lock_timeout(connection, self._lock_timeout_s)
        deferred.exhaust(connection, batch.owner, batch.what("Merging"))
        replication.set_again(connection)

    def _keep_left(self, batch: Batch, tables: Sequence[str]) -> None:
        """Remember staging tables of a batch that is complete."""
        if tables:
            self._left.setdefault(batch.owner.schema, []).extend(tables)

    def _drop_left(self, connection: Connection) -> None:
        """Drop what earlier batches of this run have left. What is left at its end, a sweep of the
        next run drops.
        """
        for schema, tables in list(self._left.items()):
            own = [each for each in staging.find(connection, schema, tables) if each.is_own]
            names = [each.table for each in own if each.name]
            with transaction(connection):
                left = staging.drop_unlocked(connection, schema, names, _LEFT_WAIT_S)
            if left:
                self._left[schema] = left
            else:
                del self._left[schema]
        set_lock_timeout(connection, self._lock_timeout_s)

    # --- after it ---------------------------------------------------------------------------------

    def commit(self, batch: Batch, committables: Sequence[Committable]) -> CommitReport:
        """Commit what is held, or merge again; see the module.

        Raises:
            SinkUnavailableError: no answer yet.
        """
        try:
            if self._commit_held(batch):
                return CommitReport(retired=tuple(committables))
            return self._merge_again(batch, committables)
        except psycopg.Error as error:
            raise unavailable(error, batch.what("Committing")) from error

    def _commit_held(self, batch: Batch) -> bool:
        held, self.held = self.held, None
        if held is None:
            return False
        try:
            if held.names != frozenset(batch.names):
                return False
            failpoints.hit("postgres.commit.before")
            status = replication.commits(held.connection, _COMMIT)
            failpoints.hit("postgres.commit.after")
        except psycopg.Error as error:
            # Whether it was committed says the marker.
            said = (
                "the server refused the COMMIT: %s. The staged rows are merged again"
                if is_answer(error)
                else "the answer to COMMIT is lost: %s"
            )
            _log.warning(f"%s: {said}", batch.what("Committing"), words(error))
            return False
        finally:
            close_quietly(held.connection)
        if status is None:
            _log.warning(
                "%s: %s. It is asked again", batch.what("Committing"), replication.CANCELLED
            )
        elif status == "COMMIT":
            self._keep_left(batch, held.left)
        return status == "COMMIT"

    def _merge_again(self, batch: Batch, committables: Sequence[Committable]) -> CommitReport:
        connection = self._open(batch)
        try:
            found = database_of(connection)
            if found != batch.database:
                return elsewhere(batch, committables, found)
            begin(connection)
            if known := self._known_already(connection, batch, committables):
                return known
            missing = self._missing(connection, batch)
            # Staging tables that are there prove nothing either: a merge leaves those that somebody
            # has locked.
            if told := told_without_markers(connection, batch, committables):
                return told
            if missing:
                reason = (
                    f"the marker in {batch.owner.schema}.{markers.TABLE} doesn't have batch "
                    f"{batch.batch}, and {len(missing)} of "
                    f"{len(batch.staged)} staging tables are gone, so it was not merged and can't "
                    "be"
                )
                return CommitReport(lost=tuple(LostTransaction(c, reason) for c in committables))
            staged = self._checked(connection, batch, is_decided=True)
            left = self._apply(connection, batch, staged, is_decided=True)
            self._finish(connection, batch)
            failpoints.hit("postgres.commit.merged_again")
            self._commit_merged(connection, batch)
            self._keep_left(batch, left)
            failpoints.hit("postgres.commit.after")
        except (RefusedRecordError, AttemptFailedError) as error:
            raise SinkUnavailableError(not_now(batch, error)) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise SinkUnavailableError(
                without_right(batch, words(error), role_of(connection))
            ) from error
        except psycopg.Error as error:
            if passes(error):
                raise
            raise SinkUnavailableError(changed_since(batch, error)) from error
        finally:
            close_quietly(connection)
        return CommitReport(retired=tuple(committables))

    def _known_already(
        self, connection: Connection, batch: Batch, committables: Sequence[Committable]
    ) -> CommitReport | None:
        """Lock and move the marker row. Return what is reported where it has the batch, or where
        nothing in the database can tell, or be merged, any more; None: it is moved.
        """
        try:
            if self._advance(connection, batch):
                return None
        except marker_proofs.NO_TABLE:
            roll_back(connection)
            told = told_without_markers(connection, batch, committables)
            if told is None:
                raise
            if marker_proofs.were_dropped(connection, batch.markers):
                return told
            raise SinkUnavailableError(not_known(batch, told)) from None
        complete = markers.read(connection, batch.owner)
        roll_back(connection)
        replication.wait(connection, batch.what("Committing"))
        return told_complete(complete, batch, committables)

    @staticmethod
    def _commit_merged(connection: Connection, batch: Batch) -> None:
        try:
            status = replication.commits(connection, _COMMIT)
        except psycopg.Error as error:
            if passes(error):
                raise
            raise SinkUnavailableError(refused_at_commit(batch, error)) from error
        if status is None:
            raise SinkUnavailableError(
                f"{batch.what('Committing')} has no answer yet: {replication.CANCELLED}"
            )

    @staticmethod
    def _missing(connection: Connection, batch: Batch) -> list[str]:
        found = {
            each.table: each
            for each in staging.find(
                connection, batch.owner.schema, [s.table for s in batch.staged]
            )
        }
        for each in found.values():
            if not each.is_own:
                raise SinkUnavailableError(
                    f"{batch.what('Committing')}: the staging table "
                    f"{batch.owner.schema}.{each.table} belongs to the role {each.owner}. Connect "
                    "as "
                    f"that role until the batch is complete, or GRANT {each.owner} TO the role "
                    "that connects now."
                )
        return _gone(batch, found)

    def release(self) -> None:
        """Roll back what is held."""
        held, self.held = self.held, None
        if held is not None:
            close_quietly(held.connection)


def _gone(batch: Batch, found: Mapping[str, staging.Found]) -> list[str]:
    """Return the staging tables that don't have all that their tasks wrote any more."""
    return [
        staged.table
        for staged in batch.staged
        if staged.table not in found or not found[staged.table].is_whole
    ]
