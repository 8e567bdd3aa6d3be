"""What a task does with an attempt, in whichever mode: it begins one, copies rows, and makes
durable what was copied.
"""

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
    from onceforall.sinks.postgres.options import Options
    from onceforall.sinks.postgres.staging import Staged
    from onceforall.sinks.postgres.tables import Table


def begin(connection: Connection, name: str, options: Options, target: Target) -> StagedTransaction:
    """Begin an attempt.

    Args:
        connection: the attempt's own; closed at an error.
        name: the attempt's.
        options: of the sink.
        target: where the rows go, and how.

    Raises:
        AttemptFailedError: it can't be begun now.
    """
    with in_task(connection, "Beginning a transaction"):
        if options.mode == "staged":
            return StagedTransaction(connection, name, options.staging_schema, target)
        if options.mode == "prepared":
            return prepared.begin(
                connection, name, options.staging_schema, target, options.lock_timeout_s
            )
        return upsert.begin(connection, name, options.staging_schema, target)


def copy(
    transaction: StagedTransaction, rows: pa.RecordBatch, table: Table, options: Options
) -> None:
    """Send rows by COPY.

    Args:
        transaction: of ``begin``.
        rows: to be sent.
        table: as the driver looked it up: the columns have its types.
        options: of the sink.

    Raises:
        RefusedRecordError: a value doesn't fit its column.
        AttemptFailedError: the connection is lost; the task is run again.
    """

    def stream(connection: Connection, staged: Staged, columns: Sequence[str]) -> CopyStream:
        return CopyStream(connection, staged.identifier, table.select(columns), shown=table.shown)

    with in_task(transaction.connection, f"Copying rows for {options.table}"):
        transaction.write(rows, stream)


def pre_commit(transaction: StagedTransaction, options: Options) -> Committable | None:
    """Make the rows durable: staged, prepared, or (in the mode ``upsert``) committed; and close the
    connection.

    Raises:
        RefusedRecordError: the table refuses a row.
        AttemptFailedError: the server can't keep the rows.
    """
    with in_task(transaction.connection, f"Writing to {options.table}"):
        of_mode = {
            "staged": staged.pre_commit,
            "prepared": prepared.pre_commit,
            "upsert": upsert.pre_commit,
        }
        committable: Committable | None = of_mode[options.mode](transaction)
    transaction.close()
    return committable
