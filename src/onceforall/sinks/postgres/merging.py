"""How staged rows reach the target: the statements, and nothing about when they run.

- Without a key: ``INSERT … SELECT``.
- With a key: ``INSERT … SELECT … ON CONFLICT (key) DO UPDATE``, or ``DO NOTHING`` where the row
  that is there shall stay.
- Accumulating: the same, of one row per key, which is added to what is there (module
  ``accumulating``).
- Replacing (the output mode ``complete``): ``DELETE`` of all rows first. A reader sees the old rows
  until the transaction is committed, which ``TRUNCATE`` does not give.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from onceforall.errors import AttemptFailedError, NewerEntryError, RefusedRecordError
from onceforall.sinks.postgres import accumulating, deferred, staging, target_changes
from onceforall.sinks.postgres.accumulating import TARGET
from onceforall.sinks.postgres.staging import Staged
from onceforall.sinks.postgres.statements import Connection, identifiers
from onceforall.sinks.postgres.texts import as_text, types_of

_KNOWN = {"schema", "table", "key", "ignore", "replace", "oid", "accumulate", "added_by"}


@dataclass(frozen=True)
class Target:
    """The table, and how rows are applied to it. A committable carries it: what was decided is
    merged as it was decided.

    Attributes:
        schema: the table's schema.
        table: its name.
        key: the columns of the key; empty: rows are only inserted.
        ignore: a row whose key is there already is passed over, instead of replacing what is there.
        replace: all other rows are deleted.
        oid: the table's object id when the run began; None where a release wrote it that didn't
            say.
        accumulate: columns that are added to, each with how; empty: a row replaces the one of its
            key.
    """

    schema: str
    table: str
    key: tuple[str, ...] = ()
    ignore: bool = False
    replace: bool = False
    oid: int | None = None
    accumulate: tuple[tuple[str, str], ...] = ()

    @property
    def identifier(self) -> sql.Identifier:
        """The table's qualified name."""
        return sql.Identifier(self.schema, self.table)

    def body(self) -> dict[str, Any]:
        """Return a JSON object that ``target_of`` reads."""
        body = {
            "schema": self.schema,
            "table": self.table,
            "key": list(self.key),
            "ignore": self.ignore,
            "replace": self.replace,
            "oid": self.oid,
        }
        if self.accumulate:
            # A release that doesn't know this would replace what is there. It finds no "key", and
            # leaves the batch incomplete.
            body["added_by"] = body.pop("key")
            body["accumulate"] = dict(self.accumulate)
        return body


def target_of(body: Mapping[str, Any]) -> Target:
    """Read back what ``Target.body`` wrote.

    Raises:
        NewerEntryError: it says something that this release doesn't know, and could do wrong.
    """
    unknown = body.keys() - _KNOWN
    if unknown:
        raise NewerEntryError(
            f"A batch for {body.get('schema')}.{body.get('table')} was decided by a newer release "
            "of onceforall, which says how its rows are applied "
            f"({', '.join(sorted(unknown))}). Let that release, or a later one, complete the batch."
        )
    key = tuple(str(column) for column in body["added_by" if "accumulate" in body else "key"])
    oid = body.get("oid")
    names = str(body["schema"]), str(body["table"])
    accumulate = tuple(
        (str(column), str(how)) for column, how in body.get("accumulate", {}).items()
    )
    return Target(
        *names,
        key,
        bool(body["ignore"]),
        bool(body["replace"]),
        None if oid is None else int(oid),
        accumulate,
    )


def merge(
    connection: Connection,
    target: Target,
    staged: Sequence[Staged],
    *,
    is_decided: bool = False,
    is_shuffled: bool = False,
) -> None:
    """Apply all staged rows, and check deferred constraints, within the caller's transaction.

    Args:
        connection: in a transaction.
        target: where the rows go.
        staged: the rows; those that were staged in another transaction as
            ``target_changes.collated`` returns them.
        is_decided: nothing may be refused any more that can be done; see ``target_changes``.
        is_shuffled: a task merges its own rows, and no other task has their keys.

    Raises:
        AttemptFailedError: the table is not the one that it was. psycopg.Error: the server refuses
        a row, or is away.
        RefusedRecordError: a key is there twice.
    """
    before = target_changes.look_before(connection, target)
    clear(connection, target)
    _check_cleared(connection, target)
    filled = [each for each in staged if each.columns]
    statements = _grouped(filled)
    # Within one statement that updates, the server finds this by itself. Rows that are nothing but
    # their key are equal: what an earlier release decided of these is written. Under a collation
    # that came behind the decision they need not be.
    is_new = not is_decided or any(each.collations for each in filled)
    nothing_else = is_new and any(not _replaced(target, each.columns) for each in filled)
    if (
        target.key
        and not target.accumulate
        and (target.ignore or nothing_else or len(statements) > 1)
    ):
        refuse_doubled_keys(connection, target, filled)
    for group in statements:
        source = sql.SQL(" UNION ALL ").join([_rows(each) for each in group])
        connection.execute(insert(target, group[0].columns, source))
    deferred.check(connection)
    target_changes.check(
        connection, target, staged, before, is_decided=is_decided, is_shuffled=is_shuffled
    )


def clear(connection: Connection, target: Target) -> None:
    """Delete what a replacing target has: the rows of its partitions, and not those of tables
    that inherit from it, which are not its own.
    """
    if target.replace:
        connection.execute(sql.SQL("DELETE FROM {}").format(_own_rows(connection, target)))


def _own_rows(connection: Connection, target: Target) -> sql.Composed:
    seen = target_changes.look(connection, target)
    only = sql.SQL("" if seen is not None and seen.kind == "p" else "ONLY ")
    return sql.SQL("{}{}").format(only, target.identifier)


def _check_cleared(connection: Connection, target: Target) -> None:
    """See that the deletion deleted: a trigger or a rule of the table may keep rows, in silence.

    Raises:
        AttemptFailedError: it didn't.
    """
    if not target.replace:
        return
    left = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(_own_rows(connection, target))
    row = connection.execute(left).fetchone()
    if row is not None and row[0]:
        raise AttemptFailedError(
            f"The output mode complete replaces all rows of {target.schema}.{target.table}, and "
            "some are left after its DELETE: a trigger or a rule of the table keeps them, or "
            "another program inserts meanwhile. Drop the trigger or rule (\\dS+ in psql shows "
            "them), or let this query alone write to the table."
        )


def insert(target: Target, columns: Sequence[str], source: sql.Composable) -> sql.Composed:
    """Return the statement that applies the rows of a query."""
    if target.accumulate:
        return sql.SQL("INSERT INTO {} AS {} ({}) {} ON CONFLICT ({}) DO UPDATE SET {}").format(
            target.identifier,
            sql.Identifier(TARGET),
            identifiers(columns),
            accumulating.one_row_per_key(target.key, target.accumulate, columns, source),
            identifiers(target.key),
            accumulating.combined(target.accumulate),
        )
    statement = sql.SQL("INSERT INTO {} AS {} ({}) {}").format(
        target.identifier, sql.Identifier(TARGET), identifiers(columns), source
    )
    if not target.key:
        return statement
    others = _replaced(target, columns)
    if target.ignore or not others:
        return statement + sql.SQL(" ON CONFLICT ({}) DO NOTHING").format(identifiers(target.key))
    updates = sql.SQL(", ").join(
        [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(column)) for column in others]
    )
    return statement + sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(
        identifiers(target.key), updates
    )


def _replaced(target: Target, columns: Sequence[str]) -> list[str]:
    """Return the columns whose value a row replaces; none where the key is all that is written."""
    return [column for column in columns if column not in target.key]


def doubled_key(
    connection: Connection, target: Target, staged: Sequence[Staged]
) -> tuple[list[str], int] | None:
    """Return a key that the staged rows have more than once, as texts, and how often; None when
    there is none.
    """
    keys, filled = identifiers(target.key), [each for each in staged if each.columns]
    sources = [
        sql.SQL(" UNION ALL ").join(
            [
                sql.SQL("SELECT {} FROM {}").format(each.selected(target.key), each.identifier)
                for each in some
            ]
        )
        for some in staging.portions(filled)
    ]
    if not sources:
        return None
    # All staging tables have the target's types.
    types = types_of(connection, target.key, filled[0].identifier)
    gathered = sql.Identifier(filled[0].schema, f"keys_{uuid.uuid4().hex}")
    if len(sources) > 1:
        # More tables than one statement takes. Nobody but this transaction ever sees the table with
        # their keys.
        connection.execute(sql.SQL("CREATE UNLOGGED TABLE {} AS {}").format(gathered, sources[0]))
        for source in sources[1:]:
            connection.execute(sql.SQL("INSERT INTO {} {}").format(gathered, source))
    shown = sql.SQL(", ").join(
        [
            # Named, for the function's own name could be that of a column below.
            sql.SQL("pg_catalog.left({}, 100) AS {}").format(
                as_text(sql.Identifier(column), type_oid), sql.Identifier(f"shown {at}")
            )
            for at, (column, type_oid) in enumerate(zip(target.key, types, strict=True))
        ]
    )
    not_null = sql.SQL(" AND ").join(
        [sql.SQL("{} IS NOT NULL").format(sql.Identifier(column)) for column in target.key]
    )
    query = sql.SQL(
        'SELECT {}, pg_catalog.count(*) AS "times shown" FROM ({}) AS rows WHERE {} GROUP BY {} '
        "HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 1 ORDER BY {} LIMIT 1"
    ).format(
        shown,
        sql.SQL("TABLE {}").format(gathered) if len(sources) > 1 else sources[0],
        not_null,
        keys,
        keys,
    )
    row = connection.execute(query).fetchone()
    if len(sources) > 1:
        connection.execute(sql.SQL("DROP TABLE {}").format(gathered))
    return None if row is None else ([str(value) for value in row[:-1]], int(row[-1]))


def refuse_doubled_keys(connection: Connection, target: Target, staged: Sequence[Staged]) -> None:
    """Refuse rows of which two have the same key.

    Raises:
        RefusedRecordError: naming the key.
    """
    doubled = doubled_key(connection, target, staged)
    if doubled is not None:
        values, times = doubled
        named = ", ".join(
            f"{column}={value!r}" for column, value in zip(target.key, values, strict=True)
        )
        # They may have been different by the collation under which they were written.
        changed = {column for each in staged for column, *_ in each.collations}
        back = [column for column in target.key if column in changed]
        remedy = (
            f"; or give the table's {', '.join(back)} the collation back that it had when the rows "
            "were written"
            if back
            else ""
        )
        raise RefusedRecordError(
            f"The batch has {times} rows with the key {named}, and only one of them can be in "
            f"{target.schema}.{target.table}. Aggregate or "
            f"deduplicate by the key before writing{remedy}."
        )


def _rows(each: Staged) -> sql.Composed:
    return sql.SQL("SELECT {} FROM {}").format(each.selected(each.columns), each.identifier)


def _grouped(staged: Sequence[Staged]) -> list[list[Staged]]:
    """Return tables of the same columns together: as few statements as possible, none of them
    too long.
    """
    groups: list[list[Staged]] = []
    for each in sorted(staged, key=lambda staged: staged.columns):
        if (
            groups
            and groups[-1][0].columns == each.columns
            and len(groups[-1]) < staging.TABLES_PER_STATEMENT
        ):
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups
