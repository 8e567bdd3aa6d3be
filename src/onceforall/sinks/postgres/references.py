"""Which foreign keys of other tables make a replacing target change those tables: looked at when
the query starts, and with each merge.

The output mode ``complete`` deletes all rows and inserts those of the batch. ``ON DELETE CASCADE``,
``SET NULL`` and ``SET DEFAULT`` act on the DELETE, though the same keys come again in the same
transaction: the rows that refer to them are gone, or refer to nothing.

``NO ACTION`` and ``RESTRICT`` harm nothing. PostgreSQL looks at the end of the DELETE whether a row
refers to what was deleted, and refuses the batch; if the constraint is initially deferred, it looks
when the rows are there again.

What counts are the triggers that PostgreSQL makes of a constraint: one that isn't enforced has
none. A table that refers to itself loses all its rows anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from onceforall.sinks.postgres.statements import Connection

_ACTIONS = {
    "a": "NO ACTION",
    "r": "RESTRICT",
    "c": "CASCADE",
    "n": "SET NULL",
    "d": "SET DEFAULT",
}
_HARMLESS = ("NO ACTION", "RESTRICT")

# Rows of tables that inherit from the target stay, those of its partitions don't. Of a constraint
# that PostgreSQL has copied to the partitions the original is the one that can be dropped.
_REFERRING = """
WITH RECURSIVE tree AS (
    SELECT %s::pg_catalog.oid AS oid
    UNION ALL
    SELECT c.oid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent OPERATOR(pg_catalog.=) tree.oid
    JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.inhrelid AND c.relispartition)
SELECT pg_catalog.quote_ident(o.conname::pg_catalog.text), o.conrelid::pg_catalog.regclass::pg_catalog.text,
       o.confdeltype::pg_catalog.text
FROM pg_catalog.pg_trigger g JOIN tree ON tree.oid OPERATOR(pg_catalog.=) g.tgrelid
JOIN pg_catalog.pg_constraint o ON o.oid OPERATOR(pg_catalog.=) g.tgconstraint
  AND o.contype OPERATOR(pg_catalog.=) 'f' AND o.confrelid OPERATOR(pg_catalog.=) g.tgrelid
WHERE (g.tgtype OPERATOR(pg_catalog.&) 8::pg_catalog.int2) OPERATOR(pg_catalog.<>) 0
AND g.tgenabled OPERATOR(pg_catalog.<>) 'D' AND NOT EXISTS (SELECT FROM tree WHERE tree.oid OPERATOR(pg_catalog.=) o.conrelid)
AND NOT (o.confdeltype OPERATOR(pg_catalog.=) 'a' AND o.condeferred)
ORDER BY o.confdeltype OPERATOR(pg_catalog.=) ANY('{a,r}'::pg_catalog."char"[]), o.conparentid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid, 1, 2 LIMIT 1
"""  # noqa: E501


class Reference(NamedTuple):
    """A foreign key of another table.

    Attributes:
        constraint: its name.
        table: the table that refers.
        action: what a DELETE does: ``CASCADE``, ``NO ACTION`` and so on.
    """

    constraint: str
    table: str
    action: str

    @property
    def is_harmful(self) -> bool:
        """Whether a DELETE changes the other table's rows."""
        return self.action not in _HARMLESS


def to(connection: Connection, oid: int) -> Reference | None:
    """Return a foreign key by which a DELETE of all rows changes another table, or else one for
    which PostgreSQL refuses that DELETE; None when there is none.

    Args:
        connection: to its database.
        oid: the object id of the table whose rows are deleted.
    """
    row = connection.execute(_REFERRING, [oid]).fetchone()
    return None if row is None else Reference(str(row[0]), str(row[1]), _ACTIONS[str(row[2])])


def told(table: str, found: Reference) -> str:
    """Return which foreign key is in the way, why, and what to do."""
    does = (
        f"each batch would change rows of {found.table}, though their keys are written again"
        if found.is_harmful
        else f"PostgreSQL refuses each batch while a row of {found.table} refers to one of them"
    )
    return (
        f"{found.table} refers to {table} by the foreign key {found.constraint}, ON DELETE "
        f"{found.action}, and the output mode complete deletes all rows and inserts those of the "
        f"batch: {does}. Make the constraint ON DELETE NO ACTION DEFERRABLE INITIALLY DEFERRED "
        f"(ALTER TABLE {found.table} DROP CONSTRAINT {found.constraint}, ADD …), or use the output "
        "mode update with key=."
    )


__all__ = ["Reference", "to", "told"]
