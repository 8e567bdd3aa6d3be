"""What two sinks of one query can't have in one batch. Each sink has transactions of its own, which are committed after the decision.

*A foreign key between their tables.* Neither sees the other's rows before they are committed. Each row that refers to a new one is refused before the
decision, at each start. A deferred constraint changes nothing, for it is checked when the transaction is prepared.

*One table with a key.* A row that both write is locked by the one that comes first, until the decision, and the other one waits for it.

Partitions count as their table: a constraint may lie on one of them alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from onceforall.errors import SinkCheckError
from onceforall.sinks.postgres.statements import Connection
from onceforall.sinks.postgres.tables import Table

_REFERRED = """
SELECT conname::pg_catalog.text, confrelid::pg_catalog.int8 FROM pg_catalog.pg_constraint
WHERE contype OPERATOR(pg_catalog.=) 'f' AND conrelid::pg_catalog.int8 OPERATOR(pg_catalog.=) ANY(%s)
  AND confrelid::pg_catalog.int8 OPERATOR(pg_catalog.=) ANY(%s)
ORDER BY conname LIMIT 1
"""
_TREE = "SELECT p.relid::pg_catalog.oid::pg_catalog.int8 FROM pg_catalog.pg_partition_tree(%s::pg_catalog.oid::pg_catalog.regclass) p"


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
    by_oid = {oid: name for name, other in others.items() for oid in _tree(connection, other)}
    row = connection.execute(_REFERRED, [sorted(_tree(connection, table)), sorted(by_oid)]).fetchone()
    if row is None:
        return
    constraint, other = str(row[0]), by_oid[int(row[1])]
    raise SinkCheckError(
        f"Table {table.shown} (sink {sink!r}) has the foreign key {constraint} to {others[other].shown}, which sink {other!r} of this query writes. Neither "
        "sink sees the other's rows before the batch is decided, so a batch with a row and one that refers to it could never be written. Write the two "
        "tables by two queries, the one that is referred to first, or drop the constraint."
    )


def check_own_table(connection: Connection, sink: str, table: Table, others: Mapping[str, Table]) -> None:
    """Refuse a table that another sink of the query writes by key, too.

    Args:
        connection: to the database of all of them.
        sink: this sink's name in its query; it has a key.
        table: what it writes.
        others: the tables of the query's other sinks with a key, by their names.

    Raises:
        SinkCheckError: naming both sinks and what to do.
    """
    own = _tree(connection, table)
    for name, other in others.items():
        if own & _tree(connection, other):
            raise SinkCheckError(
                f"The sinks {sink!r} and {name!r} of this query both write {table.shown} by key. A row that both have is locked by one of them until the batch is "
                "decided, and the other one would wait for it in vain. Bring the rows together by one transform (groupBy, union), and write them by one sink."
            )


def _tree(connection: Connection, table: Table) -> set[int]:
    """Return the object ids of a table and of its partitions."""
    return {table.oid, *(int(oid) for (oid,) in connection.execute(_TREE, [table.oid]).fetchall())}


__all__ = ["check_foreign_keys", "check_own_table"]
