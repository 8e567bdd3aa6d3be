"""One attempt of a task: its connection and its staging table, into which its rows are copied,
in whichever mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg

from onceforall.errors import AttemptFailedError
from onceforall.failpoints import points as failpoints
from onceforall.sinks.postgres import merging, refusals, staging
from onceforall.sinks.postgres.merging import Target
from onceforall.sinks.postgres.names import parse_gid, parsed, staging_table
from onceforall.sinks.postgres.prepared_transactions import how_to_roll_back, others_gids
from onceforall.sinks.postgres.staging import Staged
from onceforall.sinks.postgres.statements import Connection, begin, close_quietly, refuses, words

if TYPE_CHECKING:
    import pyarrow as pa

    from onceforall.sinks.postgres.task.copying import CopyStream


class StagedTransaction:
    """One attempt's staging table."""

    def __init__(
        self, connection: Connection, name: str, schema: str, target: Target, *, logged: bool = True
    ) -> None:
        self.connection = connection
        self.name = name
        self.target = target
        self.staged = Staged(schema, staging_table(name), (), 0)
        self.is_over = False
        self._copy: CopyStream | None = None
        self._logged = logged
        begin(connection)

    def write(
        self, rows: pa.RecordBatch, copy: Callable[[Connection, Staged, Sequence[str]], CopyStream]
    ) -> None:
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


def apply(transaction: StagedTransaction) -> None:
    """Apply an attempt's own rows within its transaction, and drop its staging table."""
    connection, staged = transaction.connection, transaction.staged
    connection.execute("SAVEPOINT merge")
    try:
        merging.merge(connection, transaction.target, [staged], is_shuffled=True)
    except psycopg.errors.LockNotAvailable as error:
        target = transaction.target
        connection.execute("ROLLBACK TO SAVEPOINT merge")
        left = _left_by_other_roles(connection, transaction.name)
        raise AttemptFailedError(
            f"What the rows for {target.schema}.{target.table} need stayed locked for as long as "
            f"lock_timeout_s says: {words(error)}. {left}That is a row of the table, or a row or "
            "table that its triggers and foreign keys need. Another program's transaction or DDL "
            "has it (pg_locks and pg_stat_activity show whose, pg_prepared_xacts what has no "
            "session); or, in mode='prepared', rows of two tasks of the batch have the same value "
            "in a unique index that isn't the key's: then use mode='staged'."
        ) from error
    except psycopg.Error as error:
        if not refuses(error):
            raise
        connection.execute("ROLLBACK TO SAVEPOINT merge")
        raise refusals.refused(connection, error, transaction.target, [staged]) from error
    staging.drop(connection, staged.schema, [staged.table])


def _left_by_other_roles(connection: Connection, name: str) -> str:
    """Return a sentence on what a run of this query has prepared as another role and left."""
    own = parsed(name)
    for gid, role in others_gids(connection):
        found = parse_gid(gid, own.query_id)
        # Of the run's own generation they are another sink's, and may yet be decided.
        if found is not None and found.generation < own.generation:
            return (
                f"The prepared transaction {gid} may have it, which a run of this query has left "
                f"as the role {role}. {how_to_roll_back(gid, role)}. Or: "
            )
    return ""
