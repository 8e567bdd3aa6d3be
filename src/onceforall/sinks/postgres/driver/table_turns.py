"""Queries that write the same table by key with ``mode="prepared"`` take turns, a batch at a time.

A prepared transaction keeps its rows locked until the batch is decided, and a batch is decided when
all its tasks are prepared. So two queries whose batches have keys in common could wait for each
other: the first query's next task for a row of the second, and the other way round. The server
finds no circle, because prepared transactions wait for nothing; both batches would fail by
time-out, and again at the next start. A driver therefore takes an advisory lock on the table before
the first task of a batch, and releases it when the batch is complete or aborted.

This is for progress only, and nothing's correctness rests on it. A lock that is lost with its
connection is not missed. A driver that doesn't get its turn within ``lock_timeout_s`` says who has
it and goes on without: rows that meet then wait for each other as before. Sinks of one query share
a turn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg

from onceforall.sinks.postgres import stale_connections
from onceforall.sinks.postgres.names import lock_number, query_connection
from onceforall.sinks.postgres.statements import close_quietly, set_lock_timeout, words

if TYPE_CHECKING:
    from onceforall.sinks.postgres.statements import Connection
    from onceforall.sinks.postgres.stoppable import Stoppable

_log = logging.getLogger("onceforall.sinks.postgres")

_WAIT_S = 1.0
_LOCK = 2**32

_HOLDERS = """
SELECT a.application_name FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
WHERE l.granted AND l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.objsubid OPERATOR(pg_catalog.=) 1
  AND l.classid::pg_catalog.int8 OPERATOR(pg_catalog.=) %s AND l.objid::pg_catalog.int8 OPERATOR(pg_catalog.=) %s
  AND l.database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
"""


class Turn:
    """One sink's turn at its table.

    Used by the driver's thread that goes through the batch, and by ``close``.
    """

    def __init__(
        self, connect: Callable[[str], Connection], table: int, shown: str, lock_timeout_s: float
    ) -> None:
        """Nothing is connected yet.

        Args:
            connect: opens a connection with this application name.
            table: its object id; of a partition that of the table at the top.
            shown: its name, for messages.
            lock_timeout_s: how long to wait for the turn.
        """
        self._connect = connect
        self._number = lock_number(f"turn at table {table}")
        self._shown = shown
        self._lock_timeout_s = lock_timeout_s
        self._connection: Connection | None = None
        self._is_held = False
        self._is_closed = False

    def take(self, query_id: str, generation: int, stoppable: Stoppable) -> None:
        """Wait for the turn, for ``lock_timeout_s`` at the longest. One that was closed, before or
        meanwhile, takes none.

        Raises:
            SinkUnavailableError: the server is away. psycopg.Error: the connection was lost
            meanwhile, or a stop has cancelled the wait.
        """
        own = query_connection(query_id, generation)
        connection = stoppable.opened(self._opened(own))
        if self._is_held:
            return
        deadline = time.monotonic() + self._lock_timeout_s
        while not self._is_closed and not self._got(connection):
            holders = self._holders(connection)
            if own in holders:
                return
            if stale_connections.end_older_turns(connection, query_id, generation):
                continue
            if time.monotonic() > deadline:
                _log.warning(
                    "%s is being written by another query in mode='prepared', or the server has "
                    "not ended the session of an earlier run of this one (connection %s), for "
                    "longer than lock_timeout_s=%s. This batch goes on without "
                    "waiting for its end; rows that meet will wait for each other.",
                    self._shown, ", ".join(holders) or "unknown", self._lock_timeout_s,
                )  # fmt: skip
                return

    def _opened(self, name: str) -> Connection:
        """Return the connection, which stays open from batch to batch; a new one where it was
        lost, and with it the turn.
        """
        if self._connection is None or self._connection.broken:
            self._drop()
            self._connection = self._connect(name)
            set_lock_timeout(self._connection, min(_WAIT_S, self._lock_timeout_s))
            if self._is_closed:
                self._drop()
        return self._connection

    def _got(self, connection: Connection) -> bool:
        try:
            connection.execute("SELECT pg_catalog.pg_advisory_lock(%s)", [self._number])
        except psycopg.errors.LockNotAvailable:
            return False
        except psycopg.Error:
            # Cancelled, perhaps with the lock just taken: it is the session's, and goes with that.
            self._drop()
            raise
        self._is_held = True
        if self._is_closed:
            # Closed while it waited: nobody would give it back.
            self._drop()
        return True

    def _holders(self, connection: Connection) -> list[str]:
        high, low = divmod(self._number % 2**64, _LOCK)
        return [str(name) for (name,) in connection.execute(_HOLDERS, [high, low]).fetchall()]

    def release(self) -> None:
        """Let the next query go on; its connection stays for the next batch."""
        if not self._is_held or self._connection is None:
            return
        self._is_held = False
        try:
            self._connection.execute("SELECT pg_catalog.pg_advisory_unlock(%s)", [self._number])
        except psycopg.Error as error:
            # The lock is gone with the session.
            _log.debug("releasing the turn at %s: %s", self._shown, words(error))
            self._drop()

    def close(self) -> None:
        """Give up the turn for good, with the connection; who waits for it in another thread
        gets none.
        """
        self._is_closed = True
        self._drop()

    def _drop(self) -> None:
        connection, self._connection, self._is_held = self._connection, None, False
        if connection is not None:
            close_quietly(connection)


__all__ = ["Turn"]
