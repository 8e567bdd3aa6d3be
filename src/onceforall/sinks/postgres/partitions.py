"""Whether the partitions of a table can keep rows as a commit promises: looked at when the query
starts, and behind each merge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

# No pg_partition_tree: it would lock each partition until the transaction's end, also those that
# get no row.
_TREE = """
WITH RECURSIVE tree AS (
    SELECT %s::pg_catalog.oid AS oid
    UNION ALL
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent OPERATOR(pg_catalog.=) tree.oid)
"""  # noqa: E501
_UNFIT_PARTITION = (
    _TREE
    + """
SELECT c.oid::pg_catalog.regclass::pg_catalog.text, c.relkind::pg_catalog.text FROM tree
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) tree.oid
WHERE c.relpersistence OPERATOR(pg_catalog.=) 'u' OR c.relkind OPERATOR(pg_catalog.=) 'f' LIMIT 1
"""
)


_MOST_LOCKED = 64
_MORE_THAN_A_FEW = (
    _TREE + "SELECT pg_catalog.count(*) FROM (SELECT FROM tree LIMIT %s) AS counted"  # noqa: S608  constants
)


def has_few_partitions(connection: psycopg.Connection[Any], oid: int) -> bool:
    """Tell whether a table has at most 64 partitions, or none.

    Each transaction that locks more of them takes so many places of the server's table of locks
    (``max_locks_per_transaction`` times ``max_connections``, for everybody): one task of 3,000
    partitions is half of it.

    Args:
        connection: to its database.
        oid: the table's object id.
    """
    row = connection.execute(_MORE_THAN_A_FEW, [oid, _MOST_LOCKED + 2]).fetchone()
    assert row is not None
    return int(row[0]) <= _MOST_LOCKED + 1


def unfit_partition(connection: psycopg.Connection[Any], table: str, oid: int) -> str:
    """Return what is wrong with a partition that can't keep rows as a commit promises, with its
    remedy; empty when there is none.

    Args:
        connection: to its database.
        table: the partitioned table's name, for the message.
        oid: its object id.
    """
    row = connection.execute(_UNFIT_PARTITION, [oid]).fetchone()
    if row is None:
        return ""
    if row[1] == "f":
        return (
            f"The partition {row[0]} of {table} is a foreign table, which takes no part in a "
            "two-phase commit. Detach it"
        )
    return (
        f"The partition {row[0]} of {table} is unlogged: PostgreSQL empties it after a crash, "
        f"committed rows included. ALTER TABLE {row[0]} SET LOGGED"
    )
