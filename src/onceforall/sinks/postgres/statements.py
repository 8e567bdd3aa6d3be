"""Small helpers of all that talks to the server: transactions, and what an error means before and
after the decision.

Every connection is in autocommit mode, so that transactions begin and end where it is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from onceforall.errors import AttemptFailedError, RefusedRecordError, SinkUnavailableError
from onceforall.sinks.postgres.server_errors import is_refusal
from onceforall.sinks.postgres.stoppable import Stoppable

T = TypeVar("T")
Connection = psycopg.Connection[Any]

_LOCKED = (
    ". Another transaction, or a statement such as VACUUM FULL or CREATE INDEX on the table or on "
    "one of ours, has what is needed locked for longer than lock_timeout_s: pg_locks and "
    "pg_stat_activity show whose. Two queries, or "
    "two sinks of one, that write the same rows stop one another in this way: the same keys of a "
    "table, or one row that triggers or cascades of both tables write. Two sinks of one query that "
    "do can't both be merged: write their tables by two queries"
)
# Classes: 08 connection, 25006 a server that became read-only (a standby), 40 deadlock and
# serialization, 53 out of something, 55P03 a lock's time-out, 57 the operator's doing (shutdown, a
# cancelled statement), 58 the system's, XX the server's own.
_PASSING = ("08", "25006", "40", "53", "55P03", "57", "58", "XX")


def refuses(error: psycopg.Error) -> bool:
    """Tell whether the server refused a row: no repetition helps."""
    return is_refusal(error) or is_by_policy(error)


def is_by_policy(error: psycopg.Error) -> bool:
    """Tell whether a policy of row security refused a row. Its code is that of a missing right."""
    return error.sqlstate == "42501" and error.diag.source_function == "ExecWithCheckOptions"


def passes(error: psycopg.Error) -> bool:
    """Tell whether an error may be gone at the next try: a lost connection, a lock, a server
    that restarts.
    """
    return error.sqlstate is None or error.sqlstate.startswith(_PASSING)


def is_answer(error: psycopg.Error) -> bool:
    """Tell whether the server refused the statement, and lives on with its session: a statement
    that is refused has no effect. Else the connection is lost, and what came of it isn't known.
    """
    return error.diag.severity_nonlocalized == "ERROR"


def words(error: BaseException) -> str:
    """Return the server's words in one line, with its detail, shortened."""
    text = " ".join(str(error).split())
    return text if len(text) <= 500 else text[:500] + "…"


def set_lock_timeout(connection: Connection, seconds: float) -> None:
    """Set how long a lock is waited for, from the next statement on."""
    connection.execute(
        "SELECT pg_catalog.set_config('lock_timeout', %s, false)",
        [f"{max(1, int(seconds * 1000))}ms"],
    )


def begin(connection: Connection) -> None:
    """Begin a transaction.

    Whatever the role's defaults are, it writes, and each statement sees what is committed by then.
    """
    connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")


def roll_back(connection: Connection) -> None:
    """End a transaction without effect, if the connection still lives."""
    if not connection.closed:
        connection.execute("ROLLBACK")


def close_quietly(connection: Connection | None) -> None:
    """Close a connection, which ends its transaction; it may be broken already."""
    if connection is not None:
        with suppress(psycopg.Error):
            connection.close()


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Commit at the end, roll back at an error."""
    begin(connection)
    try:
        yield
    except BaseException:
        try:
            roll_back(connection)
        except psycopg.Error:
            close_quietly(connection)
        raise
    connection.execute("COMMIT")


def identifiers(names: Sequence[str]) -> sql.Composed:
    """Return quoted identifiers with commas between them."""
    return sql.SQL(", ").join([sql.Identifier(name) for name in names])


def patiently(
    action: Callable[[], T], patience_s: float, what: str, stoppable: Stoppable | None = None
) -> T:
    """Do something, again and again while its error may pass, for so many seconds; before a
    decision only. A stop of the query ends it.

    Raises:
        SinkUnavailableError: the time is over.
        AttemptFailedError: the server refuses for another reason than a row, or the query is asked
            to stop.
    """
    stoppable = stoppable or Stoppable()
    with stoppable.work():
        return _again(action, patience_s, what, stoppable)


def _again(action: Callable[[], T], patience_s: float, what: str, stoppable: Stoppable) -> T:
    deadline, wait_s = time.monotonic() + patience_s, 0.1
    while True:
        try:
            return action()
        except SinkUnavailableError as error:
            cause: Exception = error
        except psycopg.Error as error:
            if not passes(error):
                raise failed(error, what) from error
            cause = error
        # Also where the time is over: the stop has ended the wait, and no server that is away.
        stoppable.check()
        if time.monotonic() + wait_s > deadline:
            locked = _LOCKED if isinstance(cause, psycopg.errors.LockNotAvailable) else ""
            raise SinkUnavailableError(
                f"{what} did not succeed within {patience_s:g} s: {words(cause)}{locked}"
            ) from cause
        stoppable.wait(wait_s)
        wait_s = min(2 * wait_s, 2.0)


def failed(error: psycopg.Error, what: str) -> AttemptFailedError:
    """Return what is raised for an error before the decision that is neither a passing one nor
    explained by a row.
    """
    kind = RefusedRecordError if refuses(error) else AttemptFailedError
    return kind(f"{what} failed; PostgreSQL says: {words(error)}")


def unavailable(error: psycopg.Error, what: str) -> SinkUnavailableError:
    """Return what is raised for any error after the decision."""
    came_to = "did not succeed yet" if is_answer(error) else "has no answer yet"
    return SinkUnavailableError(f"{what} {came_to}; PostgreSQL says: {words(error)}")


def role_of(connection: Connection) -> str:
    """Return as whom a connection works, which may be another role than it has logged in as; what
    it had begun is rolled back.
    """
    try:
        roll_back(connection)
        row = connection.execute("SELECT current_user::pg_catalog.text").fetchone()
    except psycopg.Error:
        row = None
    return connection.info.user if row is None else str(row[0])


@contextmanager
def in_task(connection: Connection, what: str) -> Iterator[None]:
    """Close the connection at an error, and raise one that says whether Spark should run the task
    again.

    Raises:
        RefusedRecordError, AttemptFailedError: for what the server said.
    """
    try:
        yield
    except psycopg.Error as error:
        close_quietly(connection)
        raise failed(error, what) from error
    except SinkUnavailableError as error:
        close_quietly(connection)
        raise AttemptFailedError(str(error)) from error
    except BaseException:
        close_quietly(connection)
        raise
