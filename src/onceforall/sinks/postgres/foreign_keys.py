"""A foreign key between the tables of two sinks of one query: rows of one batch that refer to each other can never be written.

Each sink has transactions of its own, and none sees another's rows before they are committed, which is after the decision. Before it, each row that
refers to a new one is refused, at each start. A deferred constraint changes nothing, for it is checked when the transaction is prepared.
"""

from __future__ import annotations

from collections.abc import Mapping

from onceforall.errors import SinkCheckError
from onceforall.sinks.postgres.statements import Connection
from onceforall.sinks.postgres.tables import Table

_REFERRED = """
SELECT conname::pg_catalog.text, confrelid::pg_catalog.int8 FROM pg_catalog.pg_constraint
WHERE contype OPERATOR(pg_catalog.=) 'f' AND conrelid OPERATOR(pg_catalog.=) %s::pg_catalog.oid
  AND confrelid OPERATOR(pg_catalog.<>) conrelid AND confrelid::pg_catalog.int8 OPERATOR(pg_catalog.=) ANY(%s)
ORDER BY conname
"""


def check_foreign_keys(connection: Connection, sink: str, table: Table, others: Mapping[str, Table]) -> None:
    """Refuse a table with a foreign key to the table of another sink.

    Args:
        connection: to the database of all of them.
        sink: this sink's name in its query.
        table: what it writes.
        others: the tables of other sinks, by their names, whose rows aren't there before the decision.

    Raises:
        SinkCheckError: naming the constraint, both sinks and what to do.
    """
    by_oid = {other.oid: name for name, other in others.items()}
    row = connection.execute(_REFERRED, [table.oid, list(by_oid)]).fetchone()
    if row is None:
        return
    constraint, other = str(row[0]), by_oid[int(row[1])]
    raise SinkCheckError(
        f"Table {table.shown} (sink {sink!r}) has the foreign key {constraint} to {others[other].shown}, which sink {other!r} of this query writes. Neither "
        "sink sees the other's rows before the batch is decided, so a batch with a row and one that refers to it could never be written. Write the two "
        "tables by two queries, the one that is referred to first, or drop the constraint."
    )


__all__ = ["check_foreign_keys"]
