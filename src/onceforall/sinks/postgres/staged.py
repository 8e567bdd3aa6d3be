"""``mode="staged"``: rows wait in staging tables; one transaction merges all of a batch.

**In the task.** An attempt makes a staging table of its own, fills it by COPY, and commits that (flushed, logged): from then on nothing but a
``DROP`` takes it away, not even the server's crash. No row in it is of any effect, so an attempt that fails, or comes late, leaves
rubbish at the most, which sweeps drop: the table's comment says whose it is.

**confirm** runs on the driver, before the decision. In one transaction it moves the marker row to this batch (module ``markers``), looks
whether each staging table has the rows that its task reported, merges them all, has deferred constraints checked, drops the staging
tables, and then *holds that transaction open*. Every reason to refuse has come up by then, and the first offending row is named.

**commit** is the COMMIT of the transaction held. Where there is none (another process, a lost connection, a server that crashed), the staging
tables are there as they were, for they were dropped in a transaction that was not committed. So the marker is asked, and if it doesn't have the
batch, the same merge is run again. Both ways move the marker row, so only one of any number of transactions for a batch can commit
(``markers``); that of a frozen driver is ended by whoever waits for it (``stale_connections``).

**Lost** is what has neither marker nor staging table, looked at while the marker row is locked: nobody can have merged it, and nobody can any
more. Merging is all or nothing, so if one table is missing, the whole batch is reported as lost on this sink, and all its tasks write again.

**After the decision nothing may be refused**, but a second merge is a new transaction, and in between somebody else may have inserted a row with
the same unique value, or deleted one that a foreign key needs. Then the batch stays decided and incomplete: ``commit`` says in a
``SinkUnavailableError`` which row it is, and asks again until an operator has removed the conflict. Writing around it would break the promise, and so
would giving up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg

from onceforall.common import logs
from onceforall.errors import AttemptFailedError, OnceForAllError, RefusedRecordError, SinkUnavailableError
from onceforall.failpoints import points as failpoints
from onceforall.protocol.entries import Committable
from onceforall.sink import CommitReport, LostTransaction
from onceforall.sinks.postgres import markers, merging, refusals, staging, stale_connections
from onceforall.sinks.postgres.markers import Marker, Owner
from onceforall.sinks.postgres.merging import Target, target_of
from onceforall.sinks.postgres.names import driver_connection, names_digest, parsed, staging_table, whose_code
from onceforall.sinks.postgres.staging import Staged
from onceforall.sinks.postgres.statements import (
    Connection,
    begin,
    close_quietly,
    refuses,
    set_lock_timeout,
    unavailable,
    words,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from onceforall.sinks.postgres.task.copying import CopyStream

_log = logs.logger("onceforall.sinks.postgres")

KIND = "staged"
_MARKER_WAITS = 5
_MARKER_WAIT_S = 1.5

Connect = Callable[[str], Connection]
"""Opens a connection with this application name; raises SinkUnavailableError or SinkCheckError."""


@dataclass(frozen=True)
class Batch:
    """What the committables of a batch on a sink say together.

    Attributes:
        owner: whose markers count.
        batch: Spark's batch id.
        generation: the highest one whose tasks wrote.
        target: where the rows go, and how.
        database: see ``database_of``.
        staged: the staging tables, without their columns.
        names: the committables' names.
        after: the batch before it in this sink, by the commit log; None: not known.
        markers: the object id of the table of markers when it was confirmed; None: not known.
    """

    owner: Owner
    batch: int
    generation: int
    target: Target
    database: str
    staged: tuple[Staged, ...]
    names: tuple[str, ...]
    after: int | None = None
    markers: int | None = None

    @property
    def marker(self) -> Marker:
        """What the marker row says when this batch is complete."""
        return Marker(self.batch, self.generation, names_digest(list(self.names)))

    @property
    def whose(self) -> str:
        """What stands for query and sink in the names of connections."""
        return whose_code(self.owner.query_id, self.owner.sink)

    @property
    def connection_name(self) -> str:
        """The application name of a connection that completes this batch."""
        return driver_connection(self.whose, self.generation)

    def what(self, doing: str) -> str:
        """Return a beginning for messages."""
        return f"{doing} batch {self.batch} into {self.target.schema}.{self.target.table}"


def batch_of(committables: Sequence[Committable]) -> Batch:
    """Read the committables of one batch on one sink."""
    first, names = committables[0], [str(c["name"]) for c in committables]
    parts = [parsed(name) for name in names]
    schema = str(first["staging_schema"])
    return Batch(
        Owner(schema, parts[0].query_id, parts[0].sink_code),
        parts[0].batch,
        max(part.generation for part in parts),
        target_of(first["target"]),
        str(first["database"]),
        tuple(Staged(schema, staging_table(str(c["name"])), (), int(c["count"])) for c in committables),
        tuple(names),
        max((int(c["after"]) for c in committables if c.get("after") is not None), default=None),
        next((int(c["markers"]) for c in committables if c.get("markers") is not None), None),
    )


def joined(reports: Sequence[CommitReport]) -> CommitReport:
    """Return the reports on parts of a batch as one."""
    return CommitReport(
        retired=tuple(c for report in reports for c in report.retired),
        lost=tuple(lost for report in reports for lost in report.lost),
        in_doubt=tuple(doubt for report in reports for doubt in report.in_doubt),
    )


def database_of(connection: Connection) -> str:
    """Return what tells this database from every other one: in another one nothing is proved by what is missing."""
    query = (
        "SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()), oid FROM pg_catalog.pg_database "
        "WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()"
    )
    row = connection.execute(query).fetchone()
    assert row is not None
    return f"{row[0]}/{row[1]}"


@dataclass
class Held:
    """A merge that waits for its COMMIT."""

    connection: Connection
    names: frozenset[str]


class Merger:
    """The driver's side: it merges batches. One per sink and run; not for several threads at once but for ``confirm`` and ``commit`` in turn."""

    def __init__(self, connect: Connect, lock_timeout_s: float) -> None:
        self._connect = connect
        self._lock_timeout_s = lock_timeout_s
        self._held: Held | None = None

    # --- before the decision -----------------------------------------------------------------------------------------------

    def confirm(self, batch: Batch) -> int | None:
        """Merge and hold the transaction.

        Returns:
            The object id of the table of markers.

        Raises:
            RefusedRecordError: the target refuses a row.
            AttemptFailedError: a staging table is gone or has other rows, or another run has completed this batch.
            psycopg.Error, SinkUnavailableError: it can be tried again.
        """
        self.release()
        connection = self._open(batch)
        try:
            begin(connection)
            markers.check_predecessor(connection, batch.owner, batch.after)
            if not self._advance(connection, batch):
                complete = markers.read(connection, batch.owner)
                assert complete is not None
                refuse_old(complete, batch)
            self._apply(connection, batch, self._checked(connection, batch), is_decided=False)
            table = markers.oid_of(connection, batch.owner.schema)
        except BaseException:
            close_quietly(connection)
            raise
        self._held = Held(connection, frozenset(batch.names))
        failpoints.hit("postgres.confirm.merged")
        return table

    def _open(self, batch: Batch) -> Connection:
        return self._connect(batch.connection_name)

    def _advance(self, connection: Connection, batch: Batch) -> bool:
        """Lock and move the marker row; end those that keep it locked in silence. False: it has this batch already."""
        set_lock_timeout(connection, _MARKER_WAIT_S)
        for turn in range(_MARKER_WAITS):
            connection.execute("SAVEPOINT marker")
            try:
                moved = markers.advance(connection, batch.owner, batch.marker)
            except psycopg.errors.LockNotAvailable:
                if turn == _MARKER_WAITS - 1:
                    raise
                connection.execute("ROLLBACK TO SAVEPOINT marker")
                ended = stale_connections.end_silent_merges(connection, batch.whose, batch.generation)
                _log.info("%s: ended %d connections that kept the marker locked", batch.what("Merging"), ended)
            else:
                connection.execute("RELEASE SAVEPOINT marker")
                break
        set_lock_timeout(connection, self._lock_timeout_s)
        failpoints.hit("postgres.merge.marked")
        return moved

    @staticmethod
    def _checked(connection: Connection, batch: Batch) -> tuple[Staged, ...]:
        """Return the staging tables with their columns.

        Raises:
            AttemptFailedError: one is gone, is somebody else's, or doesn't have the rows that its task wrote.
        """
        found = {each.table: each for each in staging.find(connection, batch.owner.schema, [s.table for s in batch.staged])}
        gone = [staged.table for staged in batch.staged if staged.table not in found]
        if gone:
            raise AttemptFailedError(
                f"{batch.what('Merging')}: {len(gone)} of {len(batch.staged)} staging tables are gone (the first is "
                f"{batch.owner.schema}.{gone[0]}). Somebody dropped them; the batch is written again."
            )
        foreign = next((each for each in found.values() if not each.is_own), None)
        if foreign is not None:
            raise AttemptFailedError(
                f"{batch.what('Merging')}: the staging table {batch.owner.schema}.{foreign.table} belongs to the role {foreign.owner}, so somebody has put it in "
                "the place of the task's. It is not read; the batch is written again. See who may create tables in the schema, or owns it."
            )
        filled = tuple(replace(staged, columns=found[staged.table].columns) for staged in batch.staged)
        counted = staging.counts(connection, filled)
        for staged in filled:
            if counted[staged.table] != staged.rows:
                raise AttemptFailedError(
                    f"{batch.what('Merging')}: the staging table {staged.schema}.{staged.table} has {counted[staged.table]} rows, but its task "
                    f"wrote {staged.rows}. Somebody changed it."
                )
        return filled

    @staticmethod
    def _apply(connection: Connection, batch: Batch, staged: Sequence[Staged], *, is_decided: bool) -> None:
        connection.execute("SAVEPOINT merge")
        try:
            merging.merge(connection, batch.target, staged, is_decided=is_decided)
        except psycopg.Error as error:
            if not refuses(error):
                raise
            connection.execute("ROLLBACK TO SAVEPOINT merge")
            raise refusals.refused(connection, error, batch.target, staged) from error
        failpoints.hit("postgres.merge.applied")
        staging.drop(connection, batch.owner.schema, [each.table for each in staged])

    # --- after it ----------------------------------------------------------------------------------------------------------

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
        held, self._held = self._held, None
        if held is None:
            return False
        try:
            if held.names != frozenset(batch.names):
                return False
            failpoints.hit("postgres.commit.before")
            status = held.connection.execute("COMMIT").statusmessage
            failpoints.hit("postgres.commit.after")
        except psycopg.Error as error:
            # Whether it was committed says the marker.
            _log.warning("%s: the answer to COMMIT is lost: %s", batch.what("Committing"), words(error))
            return False
        finally:
            close_quietly(held.connection)
        return status == "COMMIT"

    def _merge_again(self, batch: Batch, committables: Sequence[Committable]) -> CommitReport:
        connection = self._open(batch)
        try:
            found = database_of(connection)
            if found != batch.database:
                return elsewhere(batch, committables, found)
            begin(connection)
            if not self._advance(connection, batch):
                return _complete(markers.read(connection, batch.owner), batch, committables)
            missing = self._missing(connection, batch)
            if missing:
                if moved := markers.moved_to(connection, batch.owner, batch.batch, batch.markers):
                    return told_elsewhere(batch, committables, moved)
                reason = (
                    f"the marker in {batch.owner.schema}.{markers.TABLE} doesn't have batch {batch.batch}, and {len(missing)} of "
                    f"{len(batch.staged)} staging tables are gone, so it was not merged and can't be"
                )
                return CommitReport(lost=tuple(LostTransaction(c, reason) for c in committables))
            self._apply(connection, batch, self._checked(connection, batch), is_decided=True)
            failpoints.hit("postgres.commit.merged_again")
            connection.execute("COMMIT")
            failpoints.hit("postgres.commit.after")
        except (RefusedRecordError, AttemptFailedError) as error:
            raise SinkUnavailableError(_not_now(batch, error)) from error
        finally:
            close_quietly(connection)
        return CommitReport(retired=tuple(committables))

    @staticmethod
    def _missing(connection: Connection, batch: Batch) -> list[str]:
        found = {each.table: each for each in staging.find(connection, batch.owner.schema, [s.table for s in batch.staged])}
        for each in found.values():
            if not each.is_own:
                raise SinkUnavailableError(
                    f"{batch.what('Committing')}: the staging table {batch.owner.schema}.{each.table} belongs to the role {each.owner}. Connect as "
                    f"that role until the batch is complete, or GRANT {each.owner} TO the role that connects now."
                )
        return [staged.table for staged in batch.staged if staged.table not in found]

    def release(self) -> None:
        """Roll back what is held."""
        held, self._held = self._held, None
        if held is not None:
            close_quietly(held.connection)


def refuse_old(complete: Marker, batch: Batch) -> NoReturn:
    """Refuse to write a batch that is complete already.

    Raises:
        AttemptFailedError: always.
    """
    raise AttemptFailedError(
        f"Batch {batch.batch} is not written: the marker in {batch.owner.schema}.{markers.TABLE} says that this query has already completed batch "
        f"{complete.batch} here, in its generation {complete.generation}. Either another run of the query is further, then stop this one; or the "
        "checkpoint is an older copy, then put the newer one back."
    )


def _complete(found: Marker | None, batch: Batch, committables: Sequence[Committable]) -> CommitReport:
    assert found is not None
    if found.batch == batch.batch and found.names not in {"", batch.marker.names}:
        reason = (
            f"the marker says that batch {batch.batch} is complete, but with other transactions (of generation {found.generation}): two runs wrote "
            "this batch from the same checkpoint, or from copies of it. Compare the table with the source, and start with "
            "onceforall.inDoubt=committed if the rows are there"
        )
        return CommitReport(in_doubt=tuple(LostTransaction(c, reason) for c in committables))
    return CommitReport(retired=tuple(committables))


def elsewhere(batch: Batch, committables: Sequence[Committable], found: str) -> CommitReport:
    """Return what is reported where the sink connects to another database than the one that was decided for."""
    reason = (
        f"the batch was decided for the database with the identifier {batch.database}, and the sink now connects to {found}, where nothing is "
        "known of it. Start once more with the old connection; the new one may be used when the batch is complete"
    )
    return CommitReport(in_doubt=tuple(LostTransaction(c, reason) for c in committables))


def told_elsewhere(batch: Batch, committables: Sequence[Committable], place: str) -> CommitReport:
    """Return what is reported where the markers that tell of the batch lie elsewhere now: it may be complete, or be completed there."""
    own = f"{batch.owner.schema}.{markers.TABLE}"
    reason = (
        f"the markers that tell whether batch {batch.batch} is complete lie in {place} now, and not in {own}: the schema or the table was renamed or moved. Put them "
        f"back under that name, with the staging tables beside them (rename away or drop what was made in their place; ALTER SCHEMA … RENAME TO {batch.owner.schema}), "
        "and start again"
    )
    return CommitReport(in_doubt=tuple(LostTransaction(c, reason) for c in committables))


def _not_now(batch: Batch, error: OnceForAllError) -> str:
    return (
        f"Batch {batch.batch} is decided, and its rows wait in staging tables, but they can't be merged: something in the database has changed since "
        f"the decision. {error} Remove the conflict in the database; the merge is tried again until it succeeds."
    )


class StagedTransaction:
    """The task's side: one attempt's staging table."""

    def __init__(self, connection: Connection, name: str, schema: str, target: Target, *, logged: bool = True) -> None:
        self.connection = connection
        self.name = name
        self.target = target
        self.staged = Staged(schema, staging_table(name), (), 0)
        self.is_over = False
        self._copy: CopyStream | None = None
        self._logged = logged
        begin(connection)

    def write(self, rows: pa.RecordBatch, copy: Callable[[Connection, Staged, Sequence[str]], CopyStream]) -> None:
        """Send rows.

        Args:
            rows: to be sent; all record batches of an attempt have the same columns.
            copy: starts a COPY into the staging table's columns.
        """
        if self._copy is None:
            self.staged = replace(self.staged, columns=tuple(rows.schema.names))
            staging.make(self.connection, self.staged, self.target.identifier, logged=self._logged)
            failpoints.hit("postgres.task.staging_made")
            self._copy = copy(self.connection, self.staged, self.staged.columns)
        self._copy.write(rows)
        self.staged = replace(self.staged, rows=self.staged.rows + rows.num_rows)

    def finish(self) -> None:
        """End the COPY; every row is at the server then."""
        if self._copy is None:
            staging.make(self.connection, self.staged, self.target.identifier, logged=self._logged)
        else:
            self._copy.finish()
        failpoints.hit("postgres.task.copied")

    def committable(self, kind: str, database: str) -> dict[str, Any]:
        """Return what the driver needs to know of it."""
        return {
            "name": self.name,
            "kind": kind,
            "count": self.staged.rows,
            "staging_schema": self.staged.schema,
            "database": database,
            "target": self.target.body(),
        }

    def close(self) -> None:
        """End the connection, and with it whatever is not committed."""
        self.is_over = True
        close_quietly(self.connection)


def pre_commit(transaction: StagedTransaction) -> dict[str, Any]:
    """Commit the staging table; return the committable."""
    transaction.finish()
    connection = transaction.connection
    staging.label(connection, transaction.staged, transaction.name)
    database = database_of(connection)
    failpoints.hit("postgres.task.labelled")
    connection.execute("COMMIT")
    failpoints.hit("postgres.task.staged")
    return transaction.committable(KIND, database)
