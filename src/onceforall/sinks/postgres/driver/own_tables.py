"""Whether a table that the library keeps for itself is as it makes them: one that runs nobody's
code, and whose rows somebody trusted wrote.

Reading and writing a table runs what its owner has put on it as the role that reads or writes:
triggers, policies of row security, rules, checks, defaults, expressions of indexes, casts from
another type, and all of that on tables that inherit from it. Whoever may create a schema in the
database, or a table in one, could make the library's table before the library does. So the table's
shape is looked at before its first use, in the catalogue alone, and one that has anything that we
don't make is refused.

Its owner, and that of its schema, can put such things on it later. Whom that is left to is the
user's choice of a schema (``docs/postgres.md``, Rights); an owner whom the role need not trust is
told. Where the library looks for a table in schemas that nobody has named, only those of trusted
owners count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceforall.common import logs
from onceforall.errors import SinkCheckError

if TYPE_CHECKING:
    import psycopg

_log = logs.logger("onceforall.sinks.postgres")

TEXT, BIGINT, TIMESTAMPTZ = 25, 20, 1184
"""Of pg_type.dat: the same in every server. Not by name: another type may have the same one."""

# A superuser is a member of every role, and trusts only those that have his own rights. An
# expression is shown as one of no table: else the server waits for the table's lock, and any
# application may have a table of this name. Only that of a generated column names columns.
_LOOK = """
WITH roles AS (
    SELECT r.oid, r.rolname::pg_catalog.text AS name,
           r.rolsuper OR r.rolname OPERATOR(pg_catalog.=) current_user OR r.rolname OPERATOR(pg_catalog.=) 'pg_database_owner'
           OR EXISTS (SELECT FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() AND d.datdba OPERATOR(pg_catalog.=) r.oid)
           OR (pg_catalog.pg_has_role(r.oid, 'MEMBER')
               AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles me WHERE me.rolname OPERATOR(pg_catalog.=) current_user AND me.rolsuper)) AS trusted
    FROM pg_catalog.pg_roles r
)
SELECT n.nspname::pg_catalog.text, o.name, o.trusted, s.name, s.trusted,
       pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT'),
       c.relkind OPERATOR(pg_catalog.=) 'r' AND c.relpersistence OPERATOR(pg_catalog.=) 'p' AND NOT c.relispartition,
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute a
             WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped ORDER BY a.attnum),
       ARRAY(SELECT CASE WHEN a.atttypmod OPERATOR(pg_catalog.=) -1 AND a.attcollation OPERATOR(pg_catalog.=) t.typcollation
                          AND a.attgenerated OPERATOR(pg_catalog.=) '' AND a.attidentity OPERATOR(pg_catalog.=) '' THEN a.atttypid::bigint ELSE 0 END
             FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
             WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped ORDER BY a.attnum),
       c.relrowsecurity OR c.relforcerowsecurity,
       ARRAY(SELECT g.tgname::pg_catalog.text FROM pg_catalog.pg_trigger g WHERE g.tgrelid OPERATOR(pg_catalog.=) c.oid ORDER BY 1),
       ARRAY(SELECT w.rulename::pg_catalog.text FROM pg_catalog.pg_rewrite w WHERE w.ev_class OPERATOR(pg_catalog.=) c.oid ORDER BY 1),
       ARRAY(SELECT k.conname::pg_catalog.text FROM pg_catalog.pg_constraint k WHERE k.conrelid OPERATOR(pg_catalog.=) c.oid
             AND k.contype OPERATOR(pg_catalog.<>) 'p' AND k.contype OPERATOR(pg_catalog.<>) 'n' AND k.contype OPERATOR(pg_catalog.<>) 'u' ORDER BY 1),
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attrdef e JOIN pg_catalog.pg_attribute a
             ON a.attrelid OPERATOR(pg_catalog.=) e.adrelid AND a.attnum OPERATOR(pg_catalog.=) e.adnum
             WHERE e.adrelid OPERATOR(pg_catalog.=) c.oid
             AND (CASE WHEN a.attgenerated OPERATOR(pg_catalog.<>) '' THEN true ELSE pg_catalog.pg_get_expr(e.adbin, 0::pg_catalog.oid) OPERATOR(pg_catalog.!~) '^(pg_catalog[.])?clock_timestamp[(][)]$' END
                  OR EXISTS (SELECT FROM pg_catalog.pg_depend p WHERE p.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_attrdef'::pg_catalog.regclass
                             AND p.objid OPERATOR(pg_catalog.=) e.oid AND p.refclassid OPERATOR(pg_catalog.<>) 'pg_catalog.pg_class'::pg_catalog.regclass))
             ORDER BY 1),
       ARRAY(SELECT x.relname::pg_catalog.text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid OPERATOR(pg_catalog.=) i.indexrelid
             WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL) ORDER BY 1),
       EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE c.oid OPERATOR(pg_catalog.=) ANY (ARRAY[h.inhparent, h.inhrelid])),
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_constraint k CROSS JOIN pg_catalog.unnest(k.conkey) WITH ORDINALITY u(attnum, place)
             JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.=) u.attnum
             WHERE k.conrelid OPERATOR(pg_catalog.=) c.oid AND k.contype OPERATOR(pg_catalog.=) 'p' AND NOT k.condeferrable ORDER BY u.place),
       ARRAY(SELECT DISTINCT CASE WHEN x.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(x.grantee)) END
             FROM pg_catalog.aclexplode(c.relacl) x LEFT JOIN roles w ON w.oid OPERATOR(pg_catalog.=) x.grantee
             WHERE x.grantee OPERATOR(pg_catalog.<>) c.relowner AND NOT COALESCE(w.trusted, false)
               AND (x.privilege_type OPERATOR(pg_catalog.=) ANY(ARRAY['TRIGGER', 'TRUNCATE', 'REFERENCES'])
                    OR (x.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid AND x.privilege_type OPERATOR(pg_catalog.=) ANY(ARRAY['INSERT', 'UPDATE', 'DELETE'])))
             ORDER BY 1)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
JOIN roles o ON o.oid OPERATOR(pg_catalog.=) c.relowner JOIN roles s ON s.oid OPERATOR(pg_catalog.=) n.nspowner
WHERE c.relname OPERATOR(pg_catalog.=) %s AND (%s::pg_catalog.text IS NULL OR n.nspname OPERATOR(pg_catalog.=) %s)
ORDER BY 1
"""


@dataclass(frozen=True)
class Form:
    """What a table of ours looks like.

    Attributes:
        name: its name, in whichever schema.
        columns: in their order, each with the object id of its type.
        key: the columns of its primary key, in their order.
        option: the argument that names its schema.
    """

    name: str
    columns: Mapping[str, int]
    key: tuple[str, ...]
    option: str


@dataclass(frozen=True)
class Found:
    """A table of that name.

    Attributes:
        schema: where it lies.
        strangers: who owns it or its schema and need not be trusted by this role; mostly nobody.
        is_readable: whether this role may read it.
        flaws: what it has that we don't make; empty: it is as we make it.
        open_to: who is neither its owner nor trusted, and may do more with it than a role that
            shares it needs (a trigger, say, which runs his code as each role that writes); or
            ``PUBLIC``, where everybody may write it.
    """

    schema: str
    strangers: tuple[str, ...]
    is_readable: bool
    flaws: tuple[str, ...]
    open_to: tuple[str, ...] = ()


def find(connection: psycopg.Connection[Any], form: Form, schema: str | None = None) -> list[Found]:
    """Look tables of a form's name up in the catalogue, whoever owns them and whatever they look
    like. Nothing of them is read.

    Args:
        connection: ours.
        form: what they should look like.
        schema: where; None: in every schema.
    """
    rows = connection.execute(_LOOK, [form.name, schema, schema]).fetchall()
    return [_found(form, row) for row in rows]


def _found(form: Form, row: Sequence[Any]) -> Found:
    (
        schema,
        owner,
        is_trusted,
        schemas_owner,
        is_schema_trusted,
        is_readable,
        is_plain,
        names,
        types,
        *more,
    ) = row
    has_row_security, triggers, rules, constraints, defaults, indexes, inherits, key, open_to = more
    flaws = []
    if not is_plain:
        flaws.append("is no plain, permanent table")
    if dict(zip(names, types, strict=True)) != dict(form.columns):
        flaws.append("has other columns, or columns of other types")
    if has_row_security:
        flaws.append("has row security")
    told = {
        "trigger": triggers,
        "rule": rules,
        "constraint": constraints,
        "default of column": defaults,
        "index": indexes,
    }
    flaws += [f"has the {what} {', '.join(some)}" for what, some in told.items() if some]
    if inherits:
        flaws.append("has tables that inherit from it, or inherits itself")
    if tuple(key) != form.key:
        flaws.append(f"lacks the primary key ({', '.join(form.key)})")
    strangers = {
        name
        for name, trusted in ((owner, is_trusted), (schemas_owner, is_schema_trusted))
        if not trusted
    }
    return Found(
        str(schema), tuple(sorted(strangers)), bool(is_readable), tuple(flaws), tuple(open_to)
    )


def check(connection: psycopg.Connection[Any], form: Form, schema: str) -> Found | None:
    """See that a table of ours, where it is there, is as we make it.

    Raises:
        SinkCheckError: it isn't; naming what it has, and the remedy.
    """
    for found in find(connection, form, schema):
        if found.flaws:
            whose = f" (of the role {', '.join(found.strangers)})" if found.strangers else ""
            raise SinkCheckError(
                f"The table {schema}.{form.name}{whose} {'; it '.join(found.flaws)}. The library "
                "makes none of that, and it could run its owner's code "
                "as this role, so the table is not touched. Remove it from the table, or name a "
                f"schema of your own with {form.option}=."
            )
        return found
    return None


def warn_of_strangers(found: Found | None, form: Form) -> None:
    """Tell who else may do with the table what he likes."""
    if found is not None and found.strangers:
        _log.warning(
            "The schema %s or its table %s belongs to %s, and this role is no member of that "
            "role. Whoever owns them can have code of his run as each role that "
            "writes there: share them only with roles that trust their owner, or name another "
            "schema with %s=.",
            found.schema, form.name, ", ".join(found.strangers), form.option,
        )  # fmt: skip
    if found is not None and found.open_to:
        whom = ", ".join(found.open_to)
        _log.warning(
            "The table %s.%s is open to %s, who may put a trigger on it that runs as each role that "
            "writes there, or change what it proves. If nobody meant that (default privileges of an "
            "earlier release's table): REVOKE ALL ON %s.%s FROM %s; and GRANT SELECT, INSERT, "
            "UPDATE, DELETE to a role that shares it.",
            found.schema, form.name, whom, found.schema, form.name, whom,
        )  # fmt: skip


__all__ = ["BIGINT", "TEXT", "TIMESTAMPTZ", "Form", "Found", "check", "find", "warn_of_strangers"]
