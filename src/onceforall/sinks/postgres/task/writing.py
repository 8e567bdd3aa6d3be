"""What a task does with an attempt, in whichever mode: it begins one, copies rows, and makes durable what was copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onceforall.sinks.postgres.statements import Connection, in_task
from onceforall.sinks.postgres.task import prepared, staged, upsert
from onceforall.sinks.postgres.task.attempts import StagedTransaction
from onceforall.sinks.postgres.task.copying import CopyStream

if TYPE_CHECKING:
    import pyarrow as pa

    from onceforall.protocol.entries import Committable
    from onceforall.sinks.postgres.merging import Target
    from onceforall.sinks.postgres.options import Mode
    from onceforall.sinks.postgres.staging import Staged
    from onceforall.sinks.postgres.tables import Table


def begin(
    connection: Connection, name: str, mode: Mode, schema: str, target: Target, *, lock_timeout_s: float
) -> StagedTransaction:
    """Begin an attempt.

    Args:
        connection: the attempt's own; closed at an error.
        name: the attempt's.
        mode: of the sink.
        schema: of staging tables and markers.
        target: where the rows go, and how.
        lock_timeout_s: how long one statement waits for a lock.

    Raises:
        AttemptFailedError: it can't be begun now.
    """
    with in_task(connection, "Beginning a transaction"):
        if mode == "staged":
            return StagedTransaction(connection, name, schema, target)
        if mode == "prepared":
            return prepared.begin(connection, name, schema, target, lock_timeout_s)
        return upsert.begin(connection, name, schema, target)


def copy(transaction: StagedTransaction, rows: pa.RecordBatch, table: Table, shown: str) -> None:
    """Send rows by COPY.

    Args:
        transaction: of ``begin``.
        rows: to be sent.
        table: as the driver looked it up: the columns have its types.
        shown: how the table was given, for messages.

    Raises:
        RefusedRecordError: a value doesn't fit its column.
        AttemptFailedError: the connection is lost; the task is run again.
    """

    def stream(connection: Connection, staged: Staged, columns: Sequence[str]) -> CopyStream:
        return CopyStream(connection, staged.identifier, table.select(columns), shown=table.shown)

    with in_task(transaction.connection, f"Copying rows for {shown}"):
        transaction.write(rows, stream)


def pre_commit(transaction: StagedTransaction, mode: Mode, shown: str) -> Committable | None:
    """Make the rows durable: staged, prepared, or (in the mode ``upsert``) committed; and close the connection.

    Raises:
        RefusedRecordError: the table refuses a row.
        AttemptFailedError: the server can't keep the rows.
    """
    with in_task(transaction.connection, f"Writing to {shown}"):
        of_mode = {"staged": staged.pre_commit, "prepared": prepared.pre_commit, "upsert": upsert.pre_commit}
        committable: Committable | None = of_mode[mode](transaction)
    transaction.close()
    return committable
