"""What two sinks of one query can't have in one batch. Each sink has transactions of its own, which
are committed after the decision.

*A foreign key between their tables.* Neither sees the other's rows before they are committed. Each
row that refers to a new one is refused before the decision, at each start. A deferred constraint
changes nothing, for it is checked when the transaction is prepared.

*One table, where one of them has a key.* A row that both write is locked by the one that comes
first, until the decision, and the other one waits for it. One that only inserts locks its row, too:
the key has a unique index. In the output mode ``complete`` each would wait for the rows that the
other one deletes. Two that only insert don't wait but for rows that a unique index refuses anyway.

What tasks write by ``upsert`` is committed before another sink's rows are merged, but not before
another sink's tasks are prepared.

Partitions count as their table: a constraint may lie on one of them alone. A table that isn't there
yet counts as the name under which it will be made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from onceforall.errors import SinkCheckError
from onceforall.sinks.postgres.statements import Connection
from onceforall.sinks.postgres.table_names import quoted
from onceforall.sinks.postgres.tables import Table

_REFERRED = """
SELECT conname::pg_catalog.text, confrelid::pg_catalog.int8 FROM pg_catalog.pg_constraint
WHERE contype OPERATOR(pg_catalog.=) 'f' AND conrelid::pg_catalog.int8 OPERATOR(pg_catalog.=) ANY(%s)
  AND confrelid::pg_catalog.int8 OPERATOR(pg_catalog.=) ANY(%s)
ORDER BY conname LIMIT 1
"""  # noqa: E501
_TREE = (
    "SELECT p.relid::pg_catalog.oid::pg_catalog.int8 FROM "
    "pg_catalog.pg_partition_tree(%s::pg_catalog.oid::pg_catalog.regclass) p"
)


def check(connection: Connection, sink: str, own: Writer, others: Mapping[str, Writer]) -> None:
    """Refuse what two sinks can't have in one batch.

    Args:
        connection: to the database of all of them.
        sink: this sink's name in its query.
        own: this sink.
        others: the query's other sinks of this database, by their names.

    Raises:
        SinkCheckError: naming both sinks and what to do.
    """
    # What tasks write by upsert is committed before another sink's rows are merged.
    pending = {
        name: writer.table
        for name, writer in others.items()
        if writer.table is not None and not (own.mode == "staged" and writer.mode == "upsert")
    }
    if own.table is not None and pending:
        _check_foreign_keys(connection, sink, own.table, pending)
    _check_own_table(connection, sink, own, others)


def _check_foreign_keys(
    connection: Connection, sink: str, table: Table, others: Mapping[str, Table]
) -> None:
    """Refuse a table with a foreign key to the table of another sink.

    Args:
        connection: to the database of all of them.
        sink: this sink's name in its query.
        table: what it writes.
        others: the tables of other sinks, by their names, whose rows aren't there before the
            decision.

    Raises:
        SinkCheckError: naming the constraint, both sinks and what to do.
    """
    by_oid = {oid: name for name, other in others.items() for oid in _tree(connection, other)}
    row = connection.execute(
        _REFERRED, [sorted(_tree(connection, table)), sorted(by_oid)]
    ).fetchone()
    if row is None:
        return
    constraint, other = str(row[0]), by_oid[int(row[1])]
    raise SinkCheckError(
        f"Table {table.shown} (sink {sink!r}) has the foreign key {constraint} to "
        f"{others[other].shown}, which sink {other!r} of this query writes. Neither "
        "sink sees the other's rows before the batch is decided, so a batch with a row and one "
        "that refers to it could never be written. Write the two "
        "tables by two queries, the one that is referred to first, or drop the constraint."
    )


class Writer(NamedTuple):
    """What a sink says of itself to the others.

    Attributes:
        mode: of the sink.
        has_key: whether rows are applied by key.
        replaces: whether all other rows are deleted.
        table: what it writes; None where it isn't there yet.
        place: schema and name of the table, or of the one that will be made; None where no schema
            is found.
    """

    mode: str
    has_key: bool
    replaces: bool
    table: Table | None
    place: tuple[str, str] | None


def _check_own_table(
    connection: Connection, sink: str, own: Writer, others: Mapping[str, Writer]
) -> None:
    """Refuse a table that another sink of the query writes, too, where one would wait for the
    other's rows.

    Args:
        connection: to the database of all of them.
        sink: this sink's name in its query.
        own: this sink.
        others: the query's other sinks of this database, by their names.

    Raises:
        SinkCheckError: naming both sinks and what to do.
    """
    for name, other in others.items():
        by_key = [repr(each) for each, writer in ((sink, own), (name, other)) if writer.has_key]
        waits = (bool(by_key) or own.replaces) and {own.mode, other.mode} not in (
            {"upsert"},
            {"upsert", "staged"},
        )
        if not waits or own.place is None or not _is_one_table(connection, own, other):
            continue
        how = (
            " by key"
            if len(by_key) == 2
            else f", {by_key[0]} by key"
            if by_key
            else ", and each replaces all rows of it"
        )
        raise SinkCheckError(
            f"The sinks {sink!r} and {name!r} of this query both write "
            f"{'.'.join(map(quoted, own.place))}{how}. A row that both have is locked by one of "
            "them "
            "until the batch is decided, and the other one would wait for it in vain. Bring the "
            "rows together by one transform (groupBy, union), and write "
            "them by one sink."
        )


def _is_one_table(connection: Connection, own: Writer, other: Writer) -> bool:
    if own.table is None or other.table is None:
        return own.place == other.place
    return bool(_tree(connection, own.table) & _tree(connection, other.table))


def _tree(connection: Connection, table: Table) -> set[int]:
    """Return the object ids of a table and of its partitions."""
    return {table.oid, *(int(oid) for (oid,) in connection.execute(_TREE, [table.oid]).fetchall())}


__all__ = ["Writer", "check"]
