"""Arrow record batches into a table by binary COPY, and the first row that the table refuses.

A stream is several COPY statements in the caller's transaction, one after the other: after
``STATEMENT_BYTES`` one is ended and the next begun. Only the end of a COPY brings the server's
refusals, with the number of the row since its beginning, and the rows since then are kept to name
that row. After a refusal the transaction is aborted by the server; nothing of the stream is there.

What can be checked without the server is checked before a batch is sent (module ``values``).
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from onceforall.errors import AttemptFailedError, OnceForAllError, RefusedRecordError, SchemaError
from onceforall.sinks.postgres.server_errors import is_refusal, statement_error, told
from onceforall.sinks.postgres.task.encoding import HEADER, TRAILER, rows_of_fields
from onceforall.sinks.postgres.task.values import RefusedValueError, UnwritableError, field

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from onceforall.sinks.postgres.tables import TableColumn

STATEMENT_BYTES = 32 * 2**20
"""After so many bytes of rows a COPY is ended and another begun: as much is kept in memory."""

_BATCH_BYTES = 8 * 2**20
_MOST_COLUMNS = 12
_LONGEST_VALUE = 60
# "COPY name, line 3, column b" in any language that keeps the order (copyfromparse.c,
# CopyFromErrorCallback).
_CONTEXT = re.compile(r"^COPY .*?, [^\d,]*?(\d+)(?:, \S+ (.*))?$", re.MULTILINE)

_TYPES = """
SELECT attname::pg_catalog.text, atttypid::bigint, atttypmod FROM pg_catalog.pg_attribute
WHERE attrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(%s) AND attnum OPERATOR(pg_catalog.>) 0 AND NOT attisdropped
"""  # noqa: E501


class CopyStream:
    """Rows on their way into a table. Not safe for use by several threads.

    Attributes:
        written: rows handed over by ``write``.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        target: sql.Composable,
        columns: Sequence[TableColumn],
        *,
        shown: str = "",
    ) -> None:
        """Nothing is sent yet; the first ``write`` begins the first COPY.

        Args:
            connection: in a transaction, and used by nobody else until ``finish`` or ``cancel``.
            target: the quoted name of the table that takes the rows.
            columns: the columns to be written, as ``describe`` gave them (of the table whose types
                `target` has); the batches have columns of their names, in this order.
            shown: how messages name the table; empty: as `target`.

        Raises:
            SchemaError: no columns.
        """
        if not columns:
            raise SchemaError("A row without columns can't be written to PostgreSQL. Select some.")
        self._connection = connection
        self._columns = tuple(columns)
        self._target = target.as_string(connection)
        self._shown = shown or self._target
        names = sql.SQL(", ").join([sql.Identifier(column.name) for column in columns])
        self._statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(target, names)
        self._manager: AbstractContextManager[psycopg.Copy] | None = None
        self._copy: psycopg.Copy | None = None
        self._cursor: psycopg.Cursor[Any] | None = None
        self._kept: list[pa.RecordBatch] = []
        self._sent_bytes = 0
        self._counted = 0
        self._is_over = False
        self.written = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Send rows.

        Raises:
            RefusedRecordError: a row that the table can't take, named; the stream is cancelled.
            SinkUnavailableError: the connection was lost.
            AttemptFailedError: the server refused for another reason.
            SchemaError: the batch has other columns, or a type that doesn't belong to its column;
                or the column's type has changed.
        """
        if self._is_over:
            raise AttemptFailedError(
                "The COPY is over, and can take no more rows. This is a bug: please report it."
            )
        if rows.schema.names != [column.name for column in self._columns]:
            raise SchemaError(
                f"Rows with the columns {', '.join(rows.schema.names)} came for "
                f"{', '.join(column.name for column in self._columns)}. This is a bug: "
                "please report it."
            )
        for part in _parts(rows):
            self._write(part)

    def _write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        try:
            data = rows_of_fields([self._field(rows, at) for at in range(len(self._columns))])
        except BaseException:
            self.cancel()
            raise
        try:
            if self._copy is None:
                self._begin()
            assert self._copy is not None
            self._copy.write(data)
        except psycopg.Error as error:
            raise self._failure(error) from error
        except SchemaError:
            self.cancel()
            raise
        self.written += rows.num_rows
        self._kept.append(rows)
        self._sent_bytes += len(data)
        if self._sent_bytes >= STATEMENT_BYTES:
            self._end()

    def _field(self, rows: pa.RecordBatch, at: int) -> list[pa.Array]:
        column = self._columns[at]
        try:
            return field(rows.column(at), column)
        except RefusedValueError as error:
            value = _short(_value(rows.column(at), error.place))
            raise RefusedRecordError(
                f"Table {self._shown} can't take the batch: {value} in column {column.name} "
                f"{error.reason}. The first such row: "
                f"{_row(rows, error.place)}. Mend or filter the data, or change the table."
            ) from None
        except UnwritableError as error:
            raise SchemaError(
                f"Column {column.name!r} came as {error.arrow}, which can't be written as "
                f"{error.postgres}. Compare the columns of the rows with those of "
                f"table {self._shown}; if the table was changed, restart the query."
            ) from None

    def _begin(self) -> None:
        if not self.written:
            self._check_types()
        self._cursor = self._connection.cursor()
        manager = self._cursor.copy(self._statement)
        self._copy = manager.__enter__()
        self._manager = manager
        self._copy.write(HEADER)

    def _check_types(self) -> None:
        """Compare the types with those that the columns have now: the binary form of another
        type may be taken for a value of it.
        """
        found = self._connection.execute(_TYPES, [self._target]).fetchall()
        types = {name: (oid, modifier) for name, oid, modifier in found}
        for column in self._columns:
            oid, modifier = types.get(column.name, (column.type.oid, -1))
            # Without a modifier it takes more than before, or is a domain, which has its own.
            if oid != column.type.oid or modifier not in {-1, column.type.modifier}:
                raise SchemaError(
                    f"Column {column.name!r} of table {self._shown} was {column.type.name} when "
                    "the query started, and is something else now. Restart the "
                    "query, which compares its columns with the table's."
                )

    def _end(self) -> None:
        """End the COPY that runs: now the server says whether it took all rows."""
        if self._copy is None or self._manager is None:
            return
        assert self._cursor is not None
        try:
            self._copy.write(TRAILER)
            manager, self._manager = self._manager, None
            manager.__exit__(None, None, None)
        except psycopg.Error as error:
            raise self._failure(error) from error
        self._counted += max(0, self._cursor.rowcount)
        self._cursor.close()
        self._copy, self._kept, self._sent_bytes = None, [], 0

    def finish(self) -> int:
        """End the stream, and return how many rows the server says it has stored: a trigger of the
        table may store fewer.

        Raises:
            RefusedRecordError: a row that the table can't take, named.
            SinkUnavailableError: the connection was lost.
            AttemptFailedError: the server refused for another reason.
        """
        if not self._is_over:
            self._end()
            self._is_over = True
        return self._counted

    def cancel(self) -> None:
        """Give the stream up; its transaction can only be rolled back then. Never raises.

        It waits for the server's answer; closing the connection instead waits for nothing.
        """
        self._is_over = True
        manager, self._manager, self._copy, self._kept = self._manager, None, None, []
        if manager is None:
            return
        with suppress(_Cancelled, psycopg.Error):
            # psycopg ends the COPY with an error message to the server when its context is left by
            # an exception.
            manager.__exit__(_Cancelled, _Cancelled(), None)

    def _failure(self, error: psycopg.Error) -> OnceForAllError:
        kept = self._kept
        self.cancel()
        return diagnose(error, kept, self._shown)


class _Cancelled(Exception):  # noqa: N818  it is no error: it never leaves this module
    """Given to psycopg, which tells the server that the client has ended the COPY."""


def diagnose(
    error: psycopg.Error, batches: Sequence[pa.RecordBatch], shown: str
) -> OnceForAllError:
    """Say which row made a COPY fail.

    Args:
        error: of the COPY.
        batches: all rows since its beginning, in their order.
        shown: how messages name the table.

    Returns:
        RefusedRecordError with the row, for an error of the data (``is_refusal``, and a value that
        is too deep or too long for its type) whose context names one; else ``statement_error``.
    """
    what = f"COPY to table {shown}"
    code = error.sqlstate or ""
    found = _CONTEXT.search(error.diag.context or "")
    if found is None or not (is_refusal(error) or code.startswith("54")):
        return statement_error(error, what)
    number = int(found.group(1)) - 1
    for rows in batches:
        if number < rows.num_rows:
            column = f" (column {found.group(2)})" if found.group(2) else ""
            return RefusedRecordError(
                f"Table {shown} can't take the batch{column}: {told(error)}. The first such row: "
                f"{_row(rows, number)}. Mend or filter the data, or change "
                "the table."
            )
        number -= rows.num_rows
    return statement_error(error, what)


def _parts(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Cut a batch into parts of some megabytes: the pieces of a part must stay below Arrow's 2
    GB, and copies of them small.
    """
    count = min(max(1, -(-rows.nbytes // _BATCH_BYTES)), max(1, rows.num_rows))
    size = -(-rows.num_rows // count) or 1
    return [rows.slice(start, size) for start in range(0, rows.num_rows, size)]


def _row(rows: pa.RecordBatch, place: int) -> str:
    names = rows.schema.names[:_MOST_COLUMNS]
    shown = [f"{name}={_short(_value(rows.column(at), place))}" for at, name in enumerate(names)]
    return ", ".join(shown) + (", …" if len(rows.schema.names) > len(names) else "")


def _value(array: pa.Array, place: int) -> object:
    scalar = array[place]
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return _undecoded(scalar)
    except (ValueError, OverflowError):
        # Python has no such date.
        return getattr(scalar, "value", "?")


def _undecoded(scalar: pa.Scalar) -> object:
    """Return a text that is no UTF-8 as bytes, within an array also those beside it."""
    import pyarrow as pa

    if not scalar.is_valid:
        return None
    if pa.types.is_list(scalar.type) or pa.types.is_large_list(scalar.type):
        return [_undecoded(each) for each in scalar.values]
    return scalar.as_buffer().to_pybytes()


def _short(value: object) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"
