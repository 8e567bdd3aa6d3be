"""Which row it was: the server says that a constraint was violated, and seldom by which row of a
million.

The rows are applied once more, in a transaction that is rolled back whatever comes of it: table by
table, and within the table that fails by halves, each under a savepoint; halves that succeed stay,
so that each row is applied about twice in all. This finds the first row that fails for any reason
there is: null, unique, foreign key (deferred ones, too), check, exclusion, a value out of range, a
trigger's exception.

Not promised: a row, where the constraint is one between rows of the batch (a row that refers to a
later one); then the server's words must do.

One violation is no row's fault: ``INSERT ... ON CONFLICT (key)`` judges by the valid indexes on the
key, and fails on one that ``REINDEX CONCURRENTLY`` builds, or has just swapped, where two sessions
write the same new key. The same rows are taken at the next try.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from onceforall.errors import RefusedRecordError, SinkUnavailableError
from onceforall.sinks.postgres import deferred, merging
from onceforall.sinks.postgres.merging import Target
from onceforall.sinks.postgres.staging import Staged
from onceforall.sinks.postgres.statements import Connection, identifiers, words
from onceforall.sinks.postgres.texts import as_text, types_of

_LONGEST_VALUE = 60
_MOST_COLUMNS = 12
_NUMBER = "onceforall row number"

_WHY = {
    "23502": "a null is not allowed",
    "23505": "a unique constraint is violated",
    "23503": "a foreign key is violated",
    "23514": "a check is violated",
    "23P01": "an exclusion constraint is violated",
    "21000": "a key is there twice",
    "54000": "a row, or what an index keeps of it, is too large",
    "P0001": "a trigger raised an exception",
    "42501": "a policy of row security refuses it",
}

_REMEDIES = {
    "54000": (
        "Shorten or filter the value, or drop the index, or make it one of a hash of the value "
        "(md5(column))."
    ),
    "23503": (
        "If another sink of this query writes the rows that are referred to: two sinks of a batch "
        "have transactions of their own, and neither sees the "
        "other's rows before they are committed. Write the two tables by two queries, the one "
        "that is referred to first, or drop the constraint. Else "
        "mend or filter the data."
    ),
}

_REMEDY = "Mend or filter the data, or change the table."
_OF_ITS_OWN = (
    "If another row of this batch is the one that is referred to: with mode='prepared' or 'upsert' "
    "each task has a transaction of its own, and doesn't see what the others write. Use "
    "mode='staged'. Else mend or filter the data."
)


def refused(
    connection: Connection, error: psycopg.Error, target: Target, staged: Sequence[Staged]
) -> RefusedRecordError | SinkUnavailableError:
    """Return the error that names the first offending row; where no row is to blame, one that says
    that it is worth another try.

    Args:
        connection: in a transaction in which the rows are staged and not applied; it is left as it
            was.
        error: what the server said to all rows at once.
        target: where they shall go.
        staged: the rows.
    """
    row, remedy = None, _REMEDIES.get(error.sqlstate or "", _REMEDY)
    try:
        connection.execute("SAVEPOINT refusal")
        try:
            if error.sqlstate == "21000" and target.key:
                merging.refuse_doubled_keys(connection, target, staged)
            found = _first(connection, target, staged)
            if _is_no_rows_fault(connection, error, target, is_found=found is not None):
                return SinkUnavailableError(
                    f"The table {target.schema}.{target.table} could not take the batch: another "
                    "session wrote the same key at that moment, and PostgreSQL judged by an index "
                    f"that is being built, or was just replaced. It says: {words(error)}. It is "
                    "tried again."
                )
            if found is not None and _same(found[1], error):
                row, error = found
            if _refers_to_itself(connection, target, error):
                remedy = _OF_ITS_OWN
        finally:
            connection.execute("ROLLBACK TO SAVEPOINT refusal")
    except RefusedRecordError as named:
        return named
    except psycopg.Error:  # a time-out, a lost connection: the first words must do
        pass
    return RefusedRecordError(_message(error, target, row, remedy))


def _is_no_rows_fault(
    connection: Connection, error: psycopg.Error, target: Target, *, is_found: bool
) -> bool:
    """Tell whether another session's row was in the way, and is worth another try.

    A unique index was violated, and all rows are taken now; or one of them is not yet, by an index
    on just the key's columns that is being built. A valid one is violated only by what goes round
    ``ON CONFLICT``, such as a trigger.
    """
    if error.sqlstate != psycopg.errors.UniqueViolation.sqlstate or not target.key:
        return False
    if not is_found:
        return True
    query = (
        "SELECT pg_catalog.array_agg(a.attname::pg_catalog.text) FROM pg_catalog.pg_index i "
        "JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.indexrelid "
        "JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace "
        "JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) i.indrelid AND "
        "a.attnum OPERATOR(pg_catalog.=) ANY "
        "((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts OPERATOR(pg_catalog.-) 1]) "
        "WHERE c.relname OPERATOR(pg_catalog.=) %s AND n.nspname OPERATOR(pg_catalog.=) %s "
        "AND NOT i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid"
    )
    said = error.diag
    row = connection.execute(query, [said.constraint_name, said.schema_name]).fetchone()
    return row is not None and set(row[0]) == set(target.key)


def _refers_to_itself(connection: Connection, target: Target, error: psycopg.Error) -> bool:
    if error.sqlstate != psycopg.errors.ForeignKeyViolation.sqlstate:
        return False
    query = (
        "SELECT 1 FROM pg_catalog.pg_constraint k WHERE k.conname OPERATOR(pg_catalog.=) %s AND "
        "k.conrelid OPERATOR(pg_catalog.=) %s::pg_catalog.oid AND k.confrelid "
        "OPERATOR(pg_catalog.=) k.conrelid"
    )
    return (
        connection.execute(query, [error.diag.constraint_name, target.oid]).fetchone() is not None
    )


def _message(error: psycopg.Error, target: Target, row: str | None, remedy: str) -> str:
    state = error.sqlstate or ""
    why = _WHY.get(state, "a value is refused" if state.startswith("22") else "a row is refused")
    constraint = error.diag.constraint_name
    column = error.diag.column_name
    where = f" (constraint {constraint})" if constraint else f" (column {column})" if column else ""
    shown = f" The first such row: {row}." if row is not None else ""
    return (
        f"The table {target.schema}.{target.table} can't take the batch: {why}{where}. PostgreSQL "
        f"says: {words(error)}.{shown} {remedy}"
    )


def _same(one: psycopg.Error, other: psycopg.Error) -> bool:
    return one.sqlstate == other.sqlstate and one.diag.constraint_name == other.diag.constraint_name


def _first(
    connection: Connection, target: Target, staged: Sequence[Staged]
) -> tuple[str, psycopg.Error] | None:
    """Return the first row that the target refuses, as text, and why; None when none does by
    itself.
    """
    merging.clear(connection, target)
    for each in staged:
        if each.columns and (error := _tried(connection, target, each, 0, each.rows)) is not None:
            first, error = _halved(connection, target, each, error)
            return _shown(connection, each, first), error
    return None


def _halved(
    connection: Connection, target: Target, staged: Staged, error: psycopg.Error
) -> tuple[int, psycopg.Error]:
    """Return the number of the first row that fails, counted from 1, and its error."""
    applied, failing = 0, staged.rows
    while failing - applied > 1:
        middle = (applied + failing) // 2
        found = _tried(connection, target, staged, applied, middle)
        if found is None:
            applied = middle
        else:
            failing, error = middle, found
    return failing, error


def _tried(
    connection: Connection, target: Target, staged: Staged, after: int, up_to: int
) -> psycopg.Error | None:
    """Apply some rows of a table; None when they are applied, else the error, and they are not."""
    source = sql.SQL(
        "SELECT {} FROM ({}) AS numbered WHERE {} OPERATOR(pg_catalog.>) {} AND {} "
        "OPERATOR(pg_catalog.<=) {}"
    ).format(
        identifiers(staged.columns),
        _numbered(staged),
        sql.Identifier(_NUMBER),
        sql.Literal(after),
        sql.Identifier(_NUMBER),
        sql.Literal(up_to),
    )
    connection.execute("SAVEPOINT some_rows")
    try:
        connection.execute(merging.insert(target, staged.columns, source))
        deferred.check(connection)
    except psycopg.Error as error:
        connection.execute("ROLLBACK TO SAVEPOINT some_rows")
        return error
    connection.execute("RELEASE SAVEPOINT some_rows")
    return None


def _numbered(staged: Staged) -> sql.Composed:
    # A staging table is filled by one COPY and never changed, so the places of its rows are in the
    # order in which they came.
    return sql.SQL("SELECT {}, pg_catalog.row_number() OVER (ORDER BY ctid) AS {} FROM {}").format(
        staged.selected(staged.columns), sql.Identifier(_NUMBER), staged.identifier
    )


def _shown(connection: Connection, staged: Staged, number: int) -> str:
    columns = staged.columns[:_MOST_COLUMNS]
    types = types_of(connection, columns, staged.identifier)
    texts = sql.SQL(", ").join(
        [
            sql.SQL("pg_catalog.left({}, {})").format(
                as_text(sql.Identifier(column), type_oid), sql.Literal(_LONGEST_VALUE + 1)
            )
            for column, type_oid in zip(columns, types, strict=True)
        ]
    )
    query = sql.SQL("SELECT {} FROM ({}) AS numbered WHERE {} OPERATOR(pg_catalog.=) {}").format(
        texts, _numbered(staged), sql.Identifier(_NUMBER), sql.Literal(number)
    )
    row = connection.execute(query).fetchone() or ()
    shown = [f"{column}={_short(value)}" for column, value in zip(columns, row, strict=False)]
    return ", ".join(shown) + (", …" if len(staged.columns) > len(columns) else "")


def _short(value: str | None) -> str:
    if value is None:
        return "null"
    return repr(value) if len(value) <= _LONGEST_VALUE else repr(value[:_LONGEST_VALUE]) + "…"
