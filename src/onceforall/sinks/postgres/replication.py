"""Synchronous replication: a COMMIT succeeds when the standbys have it, and until then it can be
seen here without them.

A COMMIT is in the server's own log first, and waits for the standbys then. When the server crashes
meanwhile, or the session is ended, or its wait is cancelled, the transaction is committed and
visible, and no standby need have it: a standby that is promoted next lacks it. Two rules follow.

- *A COMMIT whose wait was cancelled is no success.* The server says so by a warning only
  (``commits``).
- *A marker that is only read proves nothing of the standbys.* Before a batch is reported as
  complete by it, a transaction of our own that writes to the log is committed behind it: the log is
  replicated in its order, so when that has come to the standbys, the marker has, too (``wait``).
- *A transaction that ran others' triggers waits as its session does, and hears the warning*,
  whatever a trigger has set for it (``set_again``).

What is left: the settings are those of the moment. Whoever empties ``synchronous_standby_names``
takes it upon himself that what waited is complete without a standby.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from onceforall.errors import SinkUnavailableError

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

_log = logging.getLogger("onceforall.sinks.postgres")

CANCELLED = (
    "the wait for a synchronous standby was cancelled, so the COMMIT may be here alone, and lost "
    "when a standby is promoted"
)
# The server gives this warning no code of its own.
_WARNING = "01000"
# A COMMIT takes milliseconds.
_TELL_AFTER_S = 10.0
_TELL_EVERY_S = 60.0
_KEPT = "onceforall.synchronous_commit"
_WITHOUT_STANDBYS = ("off", "local")


def remembering(value: str) -> str:
    """Return an SQL expression that keeps the ``synchronous_commit`` of a session for
    ``set_again``.

    Args:
        value: an expression that returns it.
    """
    return f"pg_catalog.set_config('{_KEPT}', {value}, false)"


def set_again(connection: psycopg.Connection[Any]) -> None:
    """Set again, for the transaction that is about to be committed, what a trigger in it may have
    set: whether its COMMIT waits for standbys, and whether it is heard when it didn't.

    Args:
        connection: in a transaction in which nothing else is to run; of ``Access.connect``.
    """
    connection.execute(
        "SELECT pg_catalog.set_config('client_min_messages', 'warning', true), "
        "pg_catalog.set_config('synchronous_commit', "
        f"pg_catalog.current_setting('{_KEPT}'), true)".encode()
    )


@contextmanager
def telling(connection: psycopg.Connection[Any], what: str) -> Iterator[None]:
    """Say in the log, while a statement runs that waits for standbys, that it takes long, and what
    may be why.

    Args:
        connection: which executes it.
        what: the statement, in a word or two.
    """
    done = threading.Event()
    info, begun = connection.info, time.monotonic()
    session = f"session {info.backend_pid} of {info.dbname} at {info.host}:{info.port}"

    def tell() -> None:
        pause = _TELL_AFTER_S
        while not done.wait(pause):
            pause = _TELL_EVERY_S
            _log.warning(
                "%s has no answer for %.0f s (%s). If pg_stat_activity shows the wait_event "
                "SyncRep there, a synchronous standby is away: bring it back, or change "
                "synchronous_standby_names on the primary. The query waits for it",
                what,
                time.monotonic() - begun,
                session,
            )

    thread = threading.Thread(target=tell, name="onceforall-telling", daemon=True)
    with suppress(RuntimeError):  # while Python ends, it starts no more threads: nothing is told
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()


def commits(connection: psycopg.Connection[Any], statement: sql.SQL | sql.Composed) -> str | None:
    """Execute a statement that commits.

    Whoever waits long is told so in the log.

    Returns:
        The status that the server gives; None where it has committed without the standbys for
        which it should have waited.
    """
    heard: list[str | None] = []

    def hear(diagnosis: psycopg.errors.Diagnostic) -> None:
        heard.append(diagnosis.sqlstate)

    connection.add_notice_handler(hear)
    try:
        with telling(connection, "COMMIT"):
            status = connection.execute(statement).statusmessage
    finally:
        connection.remove_notice_handler(hear)
    return None if _WARNING in heard else status


def wait(connection: psycopg.Connection[Any], what: str) -> None:
    """See that the standbys have all that is committed here.

    Args:
        connection: in no transaction.
        what: is done, as the beginning of a message.

    Raises:
        SinkUnavailableError: the wait was cancelled. psycopg.Error: it has no answer.
    """
    from psycopg import sql

    row = connection.execute(
        "SELECT pg_catalog.current_setting('synchronous_standby_names'), "
        "pg_catalog.current_setting('synchronous_commit')"
    ).fetchone()
    assert row is not None
    if not row[0].strip() or row[1] in _WITHOUT_STANDBYS:
        return
    # With "true" it is of a transaction, whose COMMIT waits; without, nothing would.
    message = "SELECT pg_catalog.pg_logical_emit_message(true, 'onceforall', ''::pg_catalog.text)"
    if commits(connection, sql.SQL(message)) is None:
        raise SinkUnavailableError(f"{what} has no answer yet: {CANCELLED}")


__all__ = ["CANCELLED", "commits", "remembering", "set_again", "telling", "wait"]
