"""By which unique indexes ``ON CONFLICT (key)`` finds the row that is there, and whether they call
the same keys equal as everybody else does.

Rows of one batch are brought together by the equality of the key's columns: ``GROUP BY``, and the
search for a key that is there twice. The row that is there is found by the equality of *each*
unique index on exactly these columns, whatever collation or operator class it has: PostgreSQL takes
all of them. Where the two differ, a sum counts one batch's "a" and "A" together and two batches'
apart, or a batch with both can never be written. Two collations differ in what is equal only where
one of them is not deterministic.

Looked at when the query starts, and behind each merge, for anybody may make an index in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from onceforall.sinks.postgres.table_names import quoted

if TYPE_CHECKING:
    import psycopg

# Those that PostgreSQL would choose among: plan/infer_arbiter_indexes passes over what is invalid,
# partial, or has an expression. A domain has the equality of the type below all its domains, and
# varchar that of text. Arrays, enums, ranges and composite types have none of their own but that of
# the polymorphic class (any array's, any enum's); an index by another class, or by one whose
# equality isn't known, is unfit.
_INDEXES = """
WITH RECURSIVE base AS (
    SELECT t.oid AS of_type, t.oid AS type FROM pg_catalog.pg_type t
    WHERE t.oid OPERATOR(pg_catalog.=) ANY (SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) %s::pg_catalog.oid)
  UNION ALL
    SELECT base.of_type, t.typbasetype FROM base JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) base.type
    WHERE t.typtype OPERATOR(pg_catalog.=) 'd'
)
SELECT i.indexrelid::pg_catalog.regclass::pg_catalog.text, a.attname::pg_catalog.text, i.indimmediate,
       k.coll OPERATOR(pg_catalog.<>) a.attcollation
           AND EXISTS (SELECT FROM pg_catalog.pg_collation n WHERE n.oid OPERATOR(pg_catalog.=) ANY(ARRAY[k.coll, a.attcollation]) AND NOT n.collisdeterministic),
       k.coll::pg_catalog.regcollation::pg_catalog.text, a.attcollation::pg_catalog.regcollation::pg_catalog.text,
       its.amopopr OPERATOR(pg_catalog.<>) own.amopopr, x.opcname::pg_catalog.text, pg_catalog.format_type(a.atttypid, a.atttypmod)
FROM pg_catalog.pg_index i
CROSS JOIN ROWS FROM (pg_catalog.unnest(i.indkey::pg_catalog.int2[]), pg_catalog.unnest(i.indcollation::pg_catalog.oid[]),
                      pg_catalog.unnest(i.indclass::pg_catalog.oid[])) WITH ORDINALITY k(attnum, coll, class, place)
JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) i.indrelid AND a.attnum OPERATOR(pg_catalog.=) k.attnum
JOIN base ON base.of_type OPERATOR(pg_catalog.=) a.atttypid
JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) base.type AND t.typtype OPERATOR(pg_catalog.<>) 'd'
JOIN pg_catalog.pg_opclass x ON x.oid OPERATOR(pg_catalog.=) k.class
LEFT JOIN pg_catalog.pg_amop its ON its.amopfamily OPERATOR(pg_catalog.=) x.opcfamily AND its.amopstrategy OPERATOR(pg_catalog.=) 3
     AND its.amoplefttype OPERATOR(pg_catalog.=) x.opcintype AND its.amoprighttype OPERATOR(pg_catalog.=) x.opcintype
LEFT JOIN pg_catalog.pg_opclass d ON d.opcmethod OPERATOR(pg_catalog.=) x.opcmethod AND d.opcdefault
     AND d.opcintype OPERATOR(pg_catalog.=) CASE
         WHEN t.oid OPERATOR(pg_catalog.=) 'pg_catalog.varchar'::pg_catalog.regtype THEN 'pg_catalog.text'::pg_catalog.regtype
         WHEN t.typcategory OPERATOR(pg_catalog.=) 'A' THEN 'pg_catalog.anyarray'::pg_catalog.regtype
         WHEN t.typtype OPERATOR(pg_catalog.=) 'e' THEN 'pg_catalog.anyenum'::pg_catalog.regtype
         WHEN t.typtype OPERATOR(pg_catalog.=) 'r' THEN 'pg_catalog.anyrange'::pg_catalog.regtype
         WHEN t.typtype OPERATOR(pg_catalog.=) 'c' THEN 'pg_catalog.record'::pg_catalog.regtype
         ELSE t.oid END
LEFT JOIN pg_catalog.pg_amop own ON own.amopfamily OPERATOR(pg_catalog.=) d.opcfamily AND own.amopstrategy OPERATOR(pg_catalog.=) 3
     AND own.amoplefttype OPERATOR(pg_catalog.=) d.opcintype AND own.amoprighttype OPERATOR(pg_catalog.=) d.opcintype
WHERE i.indrelid OPERATOR(pg_catalog.=) %s::pg_catalog.oid AND i.indisunique AND i.indisvalid AND i.indexprs IS NULL AND i.indpred IS NULL
  AND k.place OPERATOR(pg_catalog.<=) i.indnkeyatts
ORDER BY 1, k.place
"""


class _IndexColumn(NamedTuple):
    """A column of a unique index: one row of the query above."""

    name: str
    column: str
    is_immediate: bool
    is_collated_otherwise: bool
    its_collation: str
    own_collation: str
    has_another_equality: bool | None
    """None: which equality its type has of itself isn't known."""
    its_class: str
    type: str


def unfit_index(
    connection: psycopg.Connection[Any], table: str, oid: int, key: Sequence[str]
) -> str:
    """Return which unique index on the key makes it unusable, why, and what to do; empty when none
    does.

    Args:
        connection: to its database.
        table: the table's name, for the message.
        oid: its object id.
        key: the columns of the key.
    """
    found = [_IndexColumn(*row) for row in connection.execute(_INDEXES, [oid, oid]).fetchall()]
    for _, group in groupby(found, key=lambda each: each.name):
        columns = list(group)
        if {each.column for each in columns} == set(key):
            reason = next((reason for each in columns if (reason := _unfit(table, each))), "")
            if reason:
                return reason
    return ""


def _unfit(table: str, at: _IndexColumn) -> str:
    column = quoted(at.column)
    if not at.is_immediate:
        return (
            f"The unique index {at.name} of {table} is on the columns of key= and deferrable, and "
            "PostgreSQL takes no ON CONFLICT then, also where another "
            "index would do. Make it NOT DEFERRABLE: drop the constraint, and add it again."
        )
    if at.is_collated_otherwise:
        return (
            f"The unique index {at.name} of {table} has the collation {at.its_collation} for "
            f"{column}, and the column has {at.own_collation}: what one takes for "
            "equal is different for the other, so two rows of a batch would count as one key, and "
            "a row of the table as another. Give both one collation: "
            f"DROP INDEX {at.name}; and make it again without COLLATE, or ALTER TABLE {table} "
            f"ALTER COLUMN {column} TYPE {at.type} COLLATE {at.its_collation};"
        )
    if at.has_another_equality:
        return (
            f"The unique index {at.name} of {table} compares {column} by the operator class "
            f"{at.its_class}, and {at.type} has another equality: two rows "
            "of a batch would count as one key, and a row of the table as another. DROP INDEX "
            f"{at.name}; and make it again without an operator class."
        )
    if at.has_another_equality is None:
        return (
            f"The unique index {at.name} of {table} compares {column} by the operator class "
            f"{at.its_class}, and which equality {at.type} has of itself isn't known: "
            "two rows of a batch could count as one key, and a row of the table as another. Give "
            "the key a column of another type, such as text."
        )
    return ""


__all__ = ["unfit_index"]
