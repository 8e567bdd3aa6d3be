"""How a table's name is written and read.

It is written as in SQL: ``spend``, ``ads.spend``, ``ads."Spend 2026"``; without quotes it is in
small letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceforall.errors import OptionError

if TYPE_CHECKING:
    import psycopg

LONGEST_NAME_BYTES = 63
"""PostgreSQL cuts longer identifiers silently."""

# SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T'), in versions 15 and 18.
_RESERVED = frozenset(
    """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation column
    concurrently constraint create cross current_catalog current_date current_role current_schema current_time current_timestamp
    current_user default deferrable desc distinct do else end except false fetch for foreign freeze from full grant group having ilike
    in initially inner intersect into is isnull join lateral leading left like limit localtime localtimestamp natural not notnull null
    offset on only or order outer overlaps placing primary references returning right select session_user similar some symmetric
    system_user table tablesample then to trailing true union unique user using variadic verbose when where window with
    """.split()  # noqa: SIM905  a list literal would be four times as long
)


def quoted(name: str) -> str:
    """Return an identifier in quotes where it needs them; for messages only, statements are
    composed by psycopg.
    """
    plain = (
        name.isascii()
        and name.replace("_", "a").isalnum()
        and name == name.lower()
        and not name[:1].isdigit()
        and name not in _RESERVED
    )
    return name if plain else '"' + name.replace('"', '""') + '"'


def parse_name(connection: psycopg.Connection[Any], table: str) -> tuple[str | None, str]:
    """Split a table's name, as SQL writes it, into schema and name.

    Raises:
        OptionError: it is none, or too long.
    """
    import psycopg

    if not isinstance(table, str) or not table.strip() or "\0" in table:
        raise OptionError(
            f"table={table!r} is no table's name. Give table or schema.table, as SQL writes it."
        )
    try:
        with connection.transaction():
            row = connection.execute("SELECT pg_catalog.parse_ident(%s)", [table]).fetchone()
    except psycopg.errors.InvalidParameterValue as error:
        raise OptionError(
            f"table={table!r} is no table's name: {error.diag.message_primary}. Write it as in "
            "SQL; names with other characters than letters, "
            'digits and _ need double quotes: ads."Spend 2026".'
        ) from error
    assert row is not None
    parts: list[str] = row[0]
    if len(parts) > 2:
        raise OptionError(
            f"table={table!r} has {len(parts)} parts. Give table or schema.table; the conninfo "
            "names the database."
        )
    for part in parts:
        if len(part.encode()) > LONGEST_NAME_BYTES:
            raise OptionError(
                f"table={table!r} is longer than PostgreSQL's {LONGEST_NAME_BYTES} bytes for a "
                "name. Shorten it."
            )
    return (parts[0] if len(parts) == 2 else None), parts[-1]
