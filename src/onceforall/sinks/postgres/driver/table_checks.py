"""Whether the table can be written as the sink shall write it: rights, rules, foreign keys, and a
unique index on the key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceforall.common import logs
from onceforall.errors import SinkCheckError
from onceforall.sinks.postgres import references, rules
from onceforall.sinks.postgres.key_indexes import unfit_index
from onceforall.sinks.postgres.server_errors import translated
from onceforall.sinks.postgres.table_names import quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import psycopg

    from onceforall.sinks.postgres.tables import Table

_log = logs.logger("onceforall.sinks.postgres")


def check_writable(
    connection: psycopg.Connection[Any],
    table: Table,
    key: Sequence[str],
    *,
    ignore: bool,
    replaces: bool,
) -> None:
    """Check that rows can be written to the table as the sink's arguments say.

    Args:
        connection: to its database.
        table: as ``describe`` gave it.
        key: the columns of the key; empty without one.
        ignore: a row whose key is there already is passed over.
        replaces: all other rows are deleted.

    Raises:
        SchemaError, SinkCheckError: naming what is in the way, and the statement that mends it.
    """
    if key:
        check_key(table, key)
        if unfit := unfit_index(connection, table.shown, table.oid, key):
            raise SinkCheckError(unfit)
    check_rules(connection, table, keyed=bool(key), replaces=replaces)
    if replaces and table.has_row_security:
        raise SinkCheckError(
            f"Row security hides rows of {table.shown} from this role, and the output mode "
            "complete replaces all rows: those would stay. Give "
            "the role BYPASSRLS, let the table's owner write, or disable row security."
        )
    if replaces:
        check_references(connection, table)
    if table.has_row_security:
        check_row_security(connection, table)
    rights = {"SELECT", "INSERT"}
    rights |= {"UPDATE"} if key and not ignore else set()
    rights |= {"DELETE"} if replaces else set()
    check_privileges(connection, table, rights)


def check_privileges(
    connection: psycopg.Connection[Any], table: Table, privileges: Collection[str]
) -> None:
    """Check that the session's role has privileges on a table.

    Args:
        connection: to its database.
        table: as ``describe`` gave it.
        privileges: such as ``INSERT`` and ``UPDATE``; each on the table as a whole, or on every
            column.

    Raises:
        SinkCheckError: naming those that are missing, and the GRANT.
    """
    missing, role = [], ""
    for privilege in sorted(privileges):
        on_columns = privilege in {"SELECT", "INSERT", "UPDATE", "REFERENCES"}
        by_column = (
            " OR (SELECT "
            "pg_catalog.bool_and(pg_catalog.has_column_privilege(%(oid)s::pg_catalog.oid, "
            "a.attnum, %(privilege)s)) "
            "FROM pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) "
            "%(oid)s::pg_catalog.oid "
            "AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped)"
        )
        query = (
            "SELECT pg_catalog.has_table_privilege(%(oid)s::pg_catalog.oid, "
            f"%(privilege)s){by_column if on_columns else ''}, current_user::pg_catalog.text"
        )
        with translated(f"Looking up the rights on {table.shown}"):
            row = connection.execute(
                query.encode(), {"oid": table.oid, "privilege": privilege}
            ).fetchone()
        assert row is not None
        role = row[1]
        if not row[0]:
            missing.append(privilege)
    if missing:
        raise SinkCheckError(
            f"The role {role!r} lacks {' and '.join(missing)} on table {table.shown}. Grant it: "
            f"GRANT {', '.join(missing)} ON {table.shown} TO "
            f"{quoted(role)};"
        )


def check_rules(
    connection: psycopg.Connection[Any], table: Table, *, keyed: bool, replaces: bool
) -> None:
    """Check that no rule would change what is written; see ``rules``. What a trigger does is its
    owner's own.

    Raises:
        SinkCheckError: naming the rule.
    """
    row = connection.execute(
        f"SELECT {rules.IN_THE_WAY} FROM pg_catalog.pg_class c "  # noqa: S608  our own text
        "WHERE c.oid OPERATOR(pg_catalog.=) %(table)s::pg_catalog.oid",
        {"table": table.oid, **rules.events(keyed=keyed, replaces=replaces)},
    ).fetchone()
    if row is not None and row[0] is not None:
        raise SinkCheckError(rules.told(table.shown, row[0]))


def check_references(connection: psycopg.Connection[Any], table: Table) -> None:
    """Check that deleting all rows changes no other table; tell where it will be refused.

    Raises:
        SinkCheckError: naming the foreign key.
    """
    found = references.to(connection, table.oid)
    if found is None:
        return
    if found.is_harmful:
        raise SinkCheckError(references.told(table.shown, found))
    _log.warning("%s", references.told(table.shown, found))


def check_row_security(connection: psycopg.Connection[Any], table: Table) -> None:
    """Check that the role's sessions may use a table whose policies apply to it.

    Raises:
        SinkCheckError: ``row_security`` is off, so that each statement would fail.
    """
    row = connection.execute(
        "SELECT pg_catalog.current_setting('row_security'), pg_catalog.quote_ident(current_user)"
    ).fetchone()
    assert row is not None
    if row[0] == "off":
        raise SinkCheckError(
            f"Policies of row security of {table.shown} apply to the role {row[1]}, and its "
            "sessions have row_security=off, with which PostgreSQL refuses every statement. Let "
            f"the policies apply (ALTER ROLE {row[1]} SET row_security = on;), or give the role "
            "BYPASSRLS."
        )


def check_key(table: Table, key: Sequence[str]) -> None:
    """Check that an upsert by these columns is possible: a unique index on exactly them, whose
    values are never null.

    Raises:
        SchemaError: a column isn't there.
        SinkCheckError: there is no such index, with the statement that makes one; or a column of it
            may be null.
    """
    columns = table.select(key)
    same = [index for index in table.indexes if sorted(index.columns) == sorted(key)]
    listed = ", ".join(quoted(name) for name in key)
    if not any(not index.unfit for index in same):
        found = "".join(
            f" Index {quoted(index.name)} can't serve: {index.unfit}." for index in same
        )
        others = [f"({', '.join(index.columns)})" for index in table.indexes if not index.unfit]
        has = f"; it has one on {', '.join(others)}" if others else ""
        raise SinkCheckError(
            f"Table {table.shown} has no unique index on exactly ({listed}), which key= "
            f"needs{has}.{found} Make one: "
            f"CREATE UNIQUE INDEX ON {table.shown} ({listed});"
        )
    nullable = [column.name for column in columns if column.nullable]
    if nullable:
        changes = ", ".join(f"ALTER COLUMN {quoted(name)} SET NOT NULL" for name in nullable)
        raise SinkCheckError(
            f"Column {quoted(nullable[0])} of the key of table {table.shown} may be null, and two "
            "nulls are no conflict: such rows would be "
            f"inserted again and again. ALTER TABLE {table.shown} {changes};"
        )
