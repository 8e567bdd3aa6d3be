"""Which rules of a table would change what the sink writes: looked at when the query starts, and
with each merge, for anybody may make one in between.

A rule that does something *instead* takes rows out of a statement, and the statement succeeds. With
a key, PostgreSQL refuses ``ON CONFLICT`` where a rule on INSERT or UPDATE adds statements
(https://www.postgresql.org/docs/current/sql-insert.html), and not where it does nothing instead.
What a rule does *also* comes on top of what is written, as what a trigger does. Rules of partitions
don't apply to what is written to their table.
"""

from __future__ import annotations

# Of pg_rewrite.ev_type.
_UPDATE, _INSERT, _DELETE = "2", "3", "4"
_NAMES = {_UPDATE: "UPDATE", _INSERT: "INSERT", _DELETE: "DELETE"}

IN_THE_WAY = """(
SELECT ARRAY[pg_catalog.quote_ident(r.rulename::pg_catalog.text), r.ev_type::pg_catalog.text,
             CASE WHEN r.is_instead THEN 'INSTEAD' ELSE 'ALSO' END]
FROM pg_catalog.pg_rewrite r WHERE r.ev_class OPERATOR(pg_catalog.=) c.oid AND r.ev_enabled OPERATOR(pg_catalog.<>) 'D'
AND (r.is_instead AND r.ev_type::pg_catalog.text OPERATOR(pg_catalog.=) ANY(%(instead)s)
     OR r.ev_type::pg_catalog.text OPERATOR(pg_catalog.=) ANY(%(any)s))
ORDER BY r.rulename LIMIT 1)"""  # noqa: E501
"""Of the relation ``c``: the rule's name, its event, and what it does; null when there is none."""


def events(*, keyed: bool, replaces: bool) -> dict[str, list[str]]:
    """Return the parameters of ``IN_THE_WAY``: the events for which a rule is in the way if it does
    something instead, and whatever it does.

    Args:
        keyed: rows are written by ``ON CONFLICT``.
        replaces: all other rows are deleted.
    """
    instead = [_INSERT, _DELETE] if replaces else [_INSERT]
    return {"instead": instead, "any": [_INSERT, _UPDATE] if keyed else []}


def told(table: str, rule: tuple[str, str, str]) -> str:
    """Return which rule is in the way, why, and what to do."""
    name, event, does = rule
    found = f"Table {table} has the rule {name} on {_NAMES[event]}, DO {does}"
    drop = f"DROP RULE {name} ON {table};"
    if event == _DELETE:
        return (
            f"{found}, and the output mode complete replaces all rows: those that the rule keeps "
            f"would stay. Drop it ({drop}), or use another output mode."
        )
    if does == "INSTEAD" and event == _INSERT:
        return (
            f"{found}: rows would be lost that PostgreSQL reports as written. Drop it ({drop}), or "
            "make a trigger of it."
        )
    return (
        f"{found}, and PostgreSQL takes no ON CONFLICT then, which key= needs. Drop it ({drop}), "
        "make a trigger of it, or write without key=."
    )


__all__ = ["IN_THE_WAY", "events", "told"]
