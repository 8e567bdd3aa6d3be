"""Staging tables: where a task attempt's rows wait.

One is made per attempt, so a retried task never adds to what its predecessor left. It has the
columns that are written, with the target's own types, and none of the target's constraints: what
these refuse is found when all rows are there, where the first offending row can be named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import psycopg
from psycopg import sql

from onceforall.errors import AttemptFailedError
from onceforall.sinks.postgres import own_rights
from onceforall.sinks.postgres.names import is_staging_table, staging_table
from onceforall.sinks.postgres.statements import Connection, identifiers, set_lock_timeout

T = TypeVar("T")

TABLES_PER_STATEMENT = 200
"""A batch may have thousands of tasks, and the server's stack a depth: no statement names more
of their tables."""


_HOLDERS = """
SELECT DISTINCT c.relname::pg_catalog.text, l.pid, a.application_name
FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) l.relation
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
WHERE l.granted AND l.locktype OPERATOR(pg_catalog.=) 'relation' AND l.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()
  AND l.database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
  AND n.nspname OPERATOR(pg_catalog.=) %s AND c.relname OPERATOR(pg_catalog.=) ANY(%s)
"""  # noqa: E501


@dataclass(frozen=True)
class Staged:
    """A staging table with rows.

    Attributes:
        schema: where it lies.
        table: its identifier.
        columns: the columns that were written, in their order.
        rows: how many rows its task wrote.
        collations: columns that are read under another collation than they were written under, each
            with the schema and the name of that; see ``target_changes.collated``.
    """

    schema: str
    table: str
    columns: tuple[str, ...]
    rows: int
    collations: tuple[tuple[str, str, str], ...] = ()

    @property
    def identifier(self) -> sql.Identifier:
        """Its qualified name."""
        return sql.Identifier(self.schema, self.table)

    def selected(self, columns: Sequence[str]) -> sql.Composed:
        """Return these of its columns, as a query names them behind SELECT."""
        if not self.collations:
            return identifiers(columns)
        collations = {column: names for column, *names in self.collations}
        return sql.SQL(", ").join(
            [
                sql.SQL("{0} COLLATE {1} AS {0}").format(
                    sql.Identifier(column), sql.Identifier(*collations[column])
                )
                if column in collations
                else sql.Identifier(column)
                for column in columns
            ]
        )


@dataclass(frozen=True)
class Found:
    """A table of the staging schema, as the catalogue has it."""

    table: str
    columns: tuple[str, ...]
    comment: str | None
    owner: str
    is_own: bool
    is_whole: bool = True
    """It has all columns that it was made with: DROP TYPE or DROP COLLATION with CASCADE takes
    some, with their values."""

    @property
    def name(self) -> str | None:
        """The attempt's name; None when this is no staging table of ours."""
        return self.comment if is_staging_table(self.table, self.comment) else None


def make(connection: Connection, staged: Staged, target: sql.Identifier, *, logged: bool) -> None:
    """Make a staging table, within the caller's transaction.

    Args:
        connection: in a transaction.
        staged: which table; without columns there will be no rows.
        target: the table whose types the columns have.
        logged: whether it survives a crash of the server; one that is dropped in the same
            transaction need not.

    Raises:
        AttemptFailedError: it has other columns than those that it was made with.
    """
    kind = sql.SQL("TABLE" if logged else "UNLOGGED TABLE")
    if staged.columns:
        connection.execute(
            sql.SQL(
                "CREATE {} {} WITH (autovacuum_enabled = false) AS SELECT {} FROM {} WITH NO DATA"
            ).format(kind, staged.identifier, identifiers(staged.columns), target)
        )
    else:
        connection.execute(sql.SQL("CREATE {} {} ()").format(kind, staged.identifier))
    if logged:
        # The others are gone before anybody can see them.
        own_rights.close_table(connection, staged.schema, staged.table)
        _check_columns(connection, staged)


def _check_columns(connection: Connection, staged: Staged) -> None:
    """The merge takes the columns from the catalogue, perhaps in another process."""
    for found in find(connection, staged.schema, [staged.table]):
        if found.columns != staged.columns:
            raise AttemptFailedError(
                f"The staging table {staged.schema}.{staged.table} was made with the columns "
                f"{list(staged.columns)} and has {list(found.columns)}: an event trigger of the "
                "database (\\dy in psql) changes new tables. Let it leave the schema "
                f"{staged.schema} out, or use mode='prepared'."
            )


def label(connection: Connection, staged: Staged, name: str) -> None:
    """Write the attempt's name into the table's comment: sweeps find it by that."""
    connection.execute(
        sql.SQL("COMMENT ON TABLE {} IS {}").format(staged.identifier, sql.Literal(name))
    )


def find(connection: Connection, schema: str, tables: Sequence[str] | None = None) -> list[Found]:
    """Look tables up in the catalogue, whoever owns them.

    Args:
        connection: ours.
        schema: where they lie.
        tables: their identifiers; None: all staging tables that our role owns.
    """
    # By name: a cast to regrole reads it as an identifier, and fails for a role whose name needs
    # quotes.
    chosen = (
        sql.SQL("pg_catalog.pg_get_userbyid(c.relowner) OPERATOR(pg_catalog.=) current_user")
        if tables is None
        else sql.SQL("true")
    )
    query = sql.SQL(
        "SELECT c.relname::pg_catalog.text, ARRAY(SELECT a.attname::pg_catalog.text FROM "
        "pg_catalog.pg_attribute a "
        "WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND "
        "NOT a.attisdropped ORDER BY a.attnum), "
        "pg_catalog.obj_description(c.oid, 'pg_class'), "
        "pg_catalog.pg_get_userbyid(c.relowner)::pg_catalog.text, "
        "pg_catalog.pg_has_role(c.relowner, 'USAGE'), "
        "NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute a "
        "WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attisdropped) "
        "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid "
        "OPERATOR(pg_catalog.=) c.relnamespace "
        "WHERE n.nspname OPERATOR(pg_catalog.=) %s AND c.relkind OPERATOR(pg_catalog.=) 'r' "
        "AND c.relname OPERATOR(pg_catalog.~~) 'stg\\_%%' AND {} "
        "AND (%s::pg_catalog.text[] IS NULL OR c.relname OPERATOR(pg_catalog.=) ANY(%s))"
    ).format(chosen)
    wanted = None if tables is None else list(tables)
    rows = connection.execute(query, [schema, wanted, wanted]).fetchall()
    return [
        Found(table, tuple(columns), comment, owner, is_own, is_whole)
        for table, columns, comment, owner, is_own, is_whole in rows
    ]


def portions(staged: Sequence[T]) -> Iterator[Sequence[T]]:
    """Return tables in portions that one statement takes."""
    for start in range(0, len(staged), TABLES_PER_STATEMENT):
        yield staged[start : start + TABLES_PER_STATEMENT]


def drop(connection: Connection, schema: str, tables: Sequence[str]) -> None:
    """Drop staging tables that may be gone already; no more than one statement takes."""
    all_of_them = sql.SQL(", ").join([sql.Identifier(schema, table) for table in tables])
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(all_of_them))


def drop_unlocked(
    connection: Connection, schema: str, tables: Sequence[str], wait_s: float
) -> list[str]:
    """Drop staging tables that may be gone already, but for those that somebody else keeps locked
    for longer than a wait; return these. A ``pg_dump`` keeps all that it has seen locked to its
    end, against a DROP alone.

    Args:
        connection: in a transaction; its ``lock_timeout`` is changed.
        schema: where they lie.
        tables: their identifiers.
        wait_s: how long to wait for each lock.
    """
    set_lock_timeout(connection, wait_s)
    left: list[str] = []
    for some in portions(tables):
        if _dropped(connection, schema, some):
            continue
        locked = {holder.table for holder in holders(connection, schema, some)}
        others = [table for table in some if table not in locked]
        done = bool(locked and others) and _dropped(connection, schema, others)
        left += [table for table in some if table in locked or not done]
    return left


def _dropped(connection: Connection, schema: str, tables: Sequence[str]) -> bool:
    connection.execute("SAVEPOINT dropping")
    try:
        drop(connection, schema, tables)
    except psycopg.errors.LockNotAvailable:
        connection.execute("ROLLBACK TO SAVEPOINT dropping")
        return False
    connection.execute("RELEASE SAVEPOINT dropping")
    return True


def drop_named(
    connection: Connection, schema: str, names: Sequence[str], wait_s: float
) -> list[str]:
    """Drop the staging tables of these attempts, if they are there and ours; return those that
    somebody keeps locked.

    Args:
        connection: in a transaction; its ``lock_timeout`` is changed.
        schema: where they lie.
        names: of the attempts.
        wait_s: how long to wait for each lock.
    """
    wanted = set(names)
    found = find(connection, schema, [staging_table(name) for name in wanted])
    tables = [each.table for each in found if each.is_own and each.name in wanted]
    return drop_unlocked(connection, schema, tables, wait_s)


class Holder(NamedTuple):
    """A session that has a staging table locked: its process id and its application's name."""

    table: str
    pid: int
    application: str


def holders(connection: Connection, schema: str, tables: Sequence[str]) -> list[Holder]:
    """Return the sessions of others that have these tables locked, in whatever mode."""
    rows = connection.execute(_HOLDERS, [schema, list(tables)]).fetchall()
    return [
        Holder(str(table), int(pid), str(application or "")) for table, pid, application in rows
    ]


def kept_locked(connection: Connection, schema: str, tables: Sequence[str]) -> str:
    """Say which staging tables can't be dropped, who has them locked, and what helps."""
    found = holders(connection, schema, tables)
    sessions = sorted({(each.application, each.pid) for each in found})
    by = ", ".join(
        f"{application or 'a session without a name'} (pid {pid})" for application, pid in sessions
    )
    are_ours = bool(found) and all(each.application.startswith("ofa-") for each in found)
    advice = (
        "It is of a driver or a task of this library: end that process, or its session with "
        "pg_terminate_backend"
        if are_ours
        else f"A pg_dump need not lock them: --exclude-table='{schema}.stg_*'"
    )
    return (
        f"{len(tables)} of the staging tables can't be dropped now (the first is "
        f"{schema}.{tables[0]}): {by or 'another session'} has them locked. They are "
        f"dropped later. {advice}"
    )


def counts(connection: Connection, staged: Sequence[Staged]) -> dict[str, int]:
    """Return the number of rows of each table."""
    result: dict[str, int] = {}
    for some in portions(staged):
        parts = [
            sql.SQL("SELECT {}, pg_catalog.count(*) FROM {}").format(
                sql.Literal(each.table), each.identifier
            )
            for each in some
        ]
        rows = connection.execute(sql.SQL(" UNION ALL ").join(parts)).fetchall()
        result.update({str(table): int(count) for table, count in rows})
    return result
