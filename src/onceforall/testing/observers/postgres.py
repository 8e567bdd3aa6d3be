"""Reads a table, and finds prepared transactions, staging tables and open sessions of ours in
its database.

Every function, operator and relation of its own statements is qualified, and no value cast whose
type isn't the server's own: whoever may create in a schema of the ``search_path``, or owns a type,
must not run code as the observer, or change what it sees.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from onceforall.protocol.names import parse_name
from onceforall.sinks.postgres.connections import Access
from onceforall.sinks.postgres.conninfo import Conninfo
from onceforall.sinks.postgres.texts import as_text, types_of
from onceforall.testing.checker import UNREADABLE, Rows
from onceforall.testing.observers.base import Ids, decoded
from onceforall.testing.observers.postgres_contents import content_expression

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

_APPLICATION = "onceforall-observer"
_HEADER_BYTES = 19
_TRAILER_BYTES = 2
_FIELD = [("length", ">i4"), ("number", ">i8")]


class PostgresObserver:
    """An observer of one table. Each look is one statement, so it sees one moment of the table.

    Args:
        conninfo: as for ``PostgresSink``.
        table: its name, with its schema where that isn't on the search path: ``table`` or
            ``schema.table``.
        column: the column with the ids.
        key_column: the column with the keys; None: keys are not looked at.
        query_id: the query whose prepared transactions and staging tables are left over; a function
            that returns it (None: not yet known); None: any query's of onceforall in this database.
        ids: how ids are read.
        keys: how keys are read.
        content: the columns whose values make up the content of a row (``contents_of``), in this
            order; none: contents are not looked at. The server computes them. Values of other
            types than booleans, numbers, texts, bytes, dates and timestamps count as the texts that
            PostgreSQL writes.
        deadline_s: how long a look may take, in seconds: a server that is frozen ends no statement.

    Raises:
        OptionError: ``conninfo`` can't be parsed.
        MissingExtraError: psycopg is not installed.
    """

    def __init__(
        self,
        conninfo: Conninfo,
        table: str,
        *,
        column: str = "value",
        key_column: str | None = "key",
        query_id: str | Callable[[], str | None] | None = None,
        ids: Ids = "numbers",
        keys: Ids = "numbers",
        content: Sequence[str] = (),
        deadline_s: float = 30.0,
    ) -> None:
        self._deadline_s = deadline_s
        self._access = Access(conninfo, patience_s=0)
        self._table = tuple(table.split("."))
        self._columns = (column,) if key_column is None else (column, key_column)
        self._kinds: tuple[Ids, ...] = (ids, keys)[: len(self._columns)]
        self._content = tuple(content)
        self._query_id = query_id

    def __repr__(self) -> str:
        return f"PostgresObserver({self._access.target}, {'.'.join(self._table)!r})"

    def rows(self) -> Rows:
        """Return all rows of the table.

        Raises:
            SinkUnavailableError: the server does not answer.
            SinkCheckError: there is no such table, or no right to read it.
        """
        with self._connected() as connection:
            content = (
                content_expression(connection, self._table, self._content)
                if self._content
                else None
            )
            numbers = all(kind == "numbers" for kind in self._kinds)
            columns = (
                _numbers(connection, self._table, self._columns, content)
                if numbers
                else self._texts(connection, content)
            )
        contents = columns.pop() if self._content else None
        return Rows(columns[0], keys=columns[1] if len(columns) > 1 else None, contents=contents)

    def leftovers(self) -> list[str]:
        """Return prepared transactions, staging tables, and sessions of ours that hold a
        transaction open, in this database.

        Raises:
            SinkUnavailableError: the server does not answer.
        """
        query_id = self._query_id() if callable(self._query_id) else self._query_id
        with self._connected() as connection:
            gids = connection.execute(
                "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database "
                "OPERATOR(pg_catalog.=) pg_catalog.current_database()"
            ).fetchall()
            tables = connection.execute(
                "SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text, "
                "COALESCE(pg_catalog.obj_description(c.oid, 'pg_class'), '') "
                "FROM pg_catalog.pg_class c "
                "JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace "
                "WHERE c.relkind OPERATOR(pg_catalog.=) 'r' AND "
                "c.relname OPERATOR(pg_catalog.~) '^stg_[0-9a-f]{40}$' ORDER BY 1, 2"
            ).fetchall()
            sessions = connection.execute(
                "SELECT pid, application_name, state FROM pg_catalog.pg_stat_activity "
                "WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database() "
                "AND application_name OPERATOR(pg_catalog.~) '^ofa-[mt]-' "
                "AND (state OPERATOR(pg_catalog.~~) 'idle in transaction%%' OR "
                "xact_start IS NOT NULL) ORDER BY 1"
            ).fetchall()
        left = [f"prepared transaction {gid}" for (gid,) in gids if _is_of(str(gid), query_id)]
        # A staging table without a comment that can be read is of nobody, and must not be there
        # either.
        left += [
            f"staging table {schema}.{table}"
            for schema, table, name in tables
            if not parse_name(name) or _is_of(name, query_id)
        ]
        return left + [f"session {pid} ({name}) is {state}" for pid, name, state in sessions]

    def close(self) -> None:
        """Nothing is held between looks."""

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        import psycopg

        from onceforall.sinks.postgres.server_errors import statement_error

        with self._access.connect(application_name=_APPLICATION, autocommit=True) as connection:
            # The deadline is the reader's own: what a frozen server would have to end, it can't
            # end.
            watchdog = threading.Timer(self._deadline_s, _cut_off, [connection])
            watchdog.daemon = True
            watchdog.start()
            try:
                yield connection
            except psycopg.Error as error:
                raise statement_error(error, f"Reading {'.'.join(self._table)}") from error
            finally:
                watchdog.cancel()

    def _texts(
        self, connection: psycopg.Connection[Any], content: sql.Composable | None
    ) -> list[Any]:
        from psycopg import sql

        wanted: list[sql.Composable] = [sql.Identifier(name) for name in self._columns]
        wanted += [] if content is None else [content]
        rows = connection.execute(
            sql.SQL("SELECT {} FROM {}").format(
                sql.SQL(", ").join(wanted), sql.Identifier(*self._table)
            )
        ).fetchall()
        found = [decoded([row[at] for row in rows], kind) for at, kind in enumerate(self._kinds)]
        if content is not None:
            found.append(np.fromiter((row[-1] for row in rows), np.int64, len(rows)))
        return found


def _numbers(
    connection: psycopg.Connection[Any],
    table: tuple[str, ...],
    columns: tuple[str, ...],
    content: sql.Composable | None,
) -> list[Any]:
    """Read whole numbers in PostgreSQL's binary COPY format: a header, and per row the number of
    fields and each field's length and value.

    See https://www.postgresql.org/docs/current/sql-copy.html. What is no number in decimal digits
    becomes ``UNREADABLE`` on the server, so that all rows have the same length.
    """
    from psycopg import sql

    types = types_of(connection, columns, sql.Identifier(*table))
    each: list[sql.Composable] = [
        sql.SQL(
            "CASE WHEN ({0}) OPERATOR(pg_catalog.~) '^(0|[1-9][0-9]{{0,17}})$' "
            "THEN ({0})::bigint ELSE {1} END"
        ).format(as_text(sql.Identifier(column), type_oid), sql.Literal(UNREADABLE))
        for column, type_oid in zip(columns, types, strict=True)
    ]
    each += [] if content is None else [content]
    source = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT binary)").format(
        sql.SQL(", ").join(sql.SQL("({})::bigint").format(one) for one in each),
        sql.Identifier(*table),
    )
    with connection.cursor() as cursor, cursor.copy(source) as copy:
        answer = b"".join(bytes(block) for block in copy)
    fields = [(f"{part}{at}", kind) for at in range(len(each)) for part, kind in _FIELD]
    found = np.frombuffer(
        answer[_HEADER_BYTES:-_TRAILER_BYTES], np.dtype([("fields", ">i2"), *fields])
    )
    return [found[f"number{at}"].astype(np.int64) for at in range(len(each))]


def _cut_off(connection: psycopg.Connection[Any]) -> None:
    """End a connection under a thread that waits for it."""
    with (
        contextlib.suppress(OSError, ValueError),
        socket.socket(fileno=os.dup(connection.fileno())) as copy,
    ):
        copy.shutdown(socket.SHUT_RDWR)


def _is_of(name: str, query_id: str | None) -> bool:
    parts = parse_name(name)
    return parts is not None and query_id in {None, parts.query_id}
