"""PostgreSQL's types as the sink knows them, read from the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

_QUERY = """
SELECT t.oid::bigint, t.typname::pg_catalog.text, n.nspname::pg_catalog.text, t.typtype::pg_catalog.text, t.typbasetype::bigint, t.typtypmod, t.typnotnull,
       CASE WHEN e.typarray OPERATOR(pg_catalog.=) t.oid THEN t.typelem::bigint ELSE 0 END,
       ARRAY(SELECT enumlabel::pg_catalog.text FROM pg_catalog.pg_enum WHERE enumtypid OPERATOR(pg_catalog.=) t.oid ORDER BY enumsortorder)
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) t.typnamespace
LEFT JOIN pg_catalog.pg_type e ON e.oid OPERATOR(pg_catalog.=) t.typelem
WHERE t.oid OPERATOR(pg_catalog.=) ANY(%s::pg_catalog.oid[])
"""  # noqa: E501
# Types whose binary form is their text, or for which this module knows it (src/backend/utils/adt of
# postgres/postgres, the *_recv functions).
KNOWN = frozenset({
    "bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "varchar", "bpchar", "bytea", "date", "timestamp", "timestamptz",  # noqa: E501
    "time", "interval", "json", "jsonb", "uuid",
})  # fmt: skip
TEXTS = frozenset({"text", "varchar", "bpchar", "citext"})


@dataclass(frozen=True)
class PgType:
    """A type as a column has it.

    Attributes:
        oid: its object id, of a domain the domain's own: elements of arrays are announced by it.
        name: as SQL writes it, with its modifier: ``character varying(3)``.
        kind: the name of the base type that decides about its binary form (``int4``), ``enum``,
            ``array``, or ``other``.
        modifier: of the base type, as ``atttypmod`` has it; -1 without one.
        element: of an array.
        labels: of an enum.
        not_null: a domain that takes no null.
        is_domain: whether it is a domain over that type.
    """

    oid: int
    name: str
    kind: str
    modifier: int = -1
    element: PgType | None = None
    labels: tuple[str, ...] = ()
    not_null: bool = False
    is_domain: bool = False

    @property
    def length(self) -> int | None:
        """The most characters of a ``varchar(n)`` or ``char(n)``; None without a limit."""
        return (
            self.modifier - 4 if self.kind in {"varchar", "bpchar"} and self.modifier >= 4 else None
        )

    @property
    def precision_and_scale(self) -> tuple[int, int] | None:
        """Of a ``numeric(p, s)``; None without. The scale has eleven bits with a sign
        (numeric.c).
        """
        if self.kind != "numeric" or self.modifier < 4:
            return None
        value = self.modifier - 4
        return (value >> 16) & 0xFFFF, ((value & 0x7FF) ^ 1024) - 1024


def read_types(
    connection: psycopg.Connection[Any], wanted: Iterable[tuple[int, int, str]]
) -> list[PgType]:
    """Read types from the catalogue.

    Args:
        connection: to the database.
        wanted: (type's oid, modifier, name in SQL) of each.
    """
    asked = list(wanted)
    rows: dict[int, tuple[Any, ...]] = {}
    missing = {oid for oid, _, _ in asked}
    while missing:
        found = connection.execute(_QUERY, [sorted(missing)]).fetchall()
        rows |= {row[0]: row for row in found}
        missing = {oid for row in found for oid in (row[4], row[7]) if oid} - rows.keys()
    return [_made(rows, oid, modifier, name) for oid, modifier, name in asked]


def _made(rows: dict[int, tuple[Any, ...]], oid: int, modifier: int, name: str) -> PgType:
    _, own_name, schema, sort, base, base_modifier, not_null, element, labels = rows[oid]
    if sort == "d":
        inner = _made(rows, base, base_modifier, name)
        is_not_null = not_null or inner.not_null
        return PgType(
            oid,
            name,
            inner.kind,
            inner.modifier,
            inner.element,
            inner.labels,
            is_not_null,
            is_domain=True,
        )
    if element:
        # The modifier of an array is that of its elements.
        return PgType(
            oid, name, "array", modifier, _made(rows, element, modifier, name.removesuffix("[]"))
        )
    if sort == "e":
        return PgType(oid, name, "enum", modifier, labels=tuple(labels))
    is_known = schema == "pg_catalog" and own_name in KNOWN
    # A composite type of that name is none; to make a base type, one must be a superuser.
    is_citext = own_name == "citext" and sort == "b"
    return PgType(oid, name, own_name if is_known or is_citext else "other", modifier)
