"""``mode="staged"`` in a task: it commits a staging table. Module ``driver.staged`` tells the
whole of the mode.
"""

from __future__ import annotations

from typing import Any

from onceforall.failpoints import points as failpoints
from onceforall.sinks.postgres import replication, staging
from onceforall.sinks.postgres.identity import database_of
from onceforall.sinks.postgres.options import STAGED
from onceforall.sinks.postgres.task.attempts import StagedTransaction


def pre_commit(transaction: StagedTransaction) -> dict[str, Any]:
    """Commit the staging table; return the committable."""
    transaction.finish()
    connection = transaction.connection
    staging.label(connection, transaction.staged, transaction.name)
    database = database_of(connection)
    failpoints.hit("postgres.task.labelled")
    with replication.telling(connection, "COMMIT"):
        connection.execute("COMMIT")
    failpoints.hit("postgres.task.staged")
    return transaction.committable(STAGED, database)
