"""Ends what the driver waits for before a decision, when the query is asked to stop: a lock that a
session of others keeps, or a server that doesn't answer.

A statement is cancelled, as a person would do it. A server that doesn't answer that either is left:
the connection's socket is shut down, and the session ends when the server finds that out. So is
every server with a libpq before 17, whose ``PQcancel`` waits without end, and psycopg holds the
interpreter's lock meanwhile.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from onceforall.common.threads import start_thread
from onceforall.errors import AttemptFailedError, SinkUnavailableError

if TYPE_CHECKING:
    from onceforall.sinks.postgres.statements import Connection

_log = logging.getLogger("onceforall.sinks.postgres")

_CANCEL_WITHIN_S = 2.0


class _Work:
    """What one thread does."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.asked = threading.Event()
        self.asked_s = 0.0
        self.cancelling: list[threading.Thread] = []


class Stoppable:
    """What threads wait for, which another one may end: a batch, and a sweep beside it."""

    def __init__(self) -> None:
        """Nothing is waited for."""
        self._lock = threading.Lock()
        self._works: dict[int, _Work] = {}

    @contextmanager
    def work(self) -> Iterator[None]:
        """Mark what may be ended: what this thread does within, with the connections that it opens.

        Raises:
            AttemptFailedError: behind work that succeeded all the same: a stop was asked for, and
                its request to cancel may have been late. It could hit what is done next with the
                connection, such as a COMMIT behind the decision that waits for a standby.
        """
        me, work = threading.get_ident(), _Work()
        with self._lock:
            around = self._works.get(me)
            self._works[me] = work
        try:
            yield
            self.check()
        finally:
            with self._lock:
                if around is None:
                    del self._works[me]
                else:
                    self._works[me] = around
                cancelling = list(work.cancelling)
            for thread in cancelling:
                if thread is not threading.current_thread():
                    thread.join(2 * _CANCEL_WITHIN_S)

    def opened(self, connection: Connection) -> Connection:
        """Take a connection that was opened; where it belongs to the work, it may be cancelled."""
        with self._lock:
            work = self._mine()
            if work is not None:
                work.connections.append(connection)
        return connection

    def wait(self, seconds: float) -> None:
        """Wait, unless a stop is asked for.

        Raises:
            AttemptFailedError: it is.
        """
        work = self._mine()
        if work is None:
            time.sleep(seconds)
        else:
            work.asked.wait(seconds)
        self.check()

    def check(self) -> None:
        """See that no stop is asked for.

        Raises:
            AttemptFailedError: it is.
        """
        work = self._mine()
        if work is not None and work.asked.is_set():
            raise AttemptFailedError(
                "The query was asked to stop while its sink waited for PostgreSQL."
            )

    def _mine(self) -> _Work | None:
        return self._works.get(threading.get_ident())

    def end(self) -> None:
        """Ask the work to end soon; called again, it does more. It never raises."""
        with self._lock:
            works = list(self._works.values())
        for work in works:
            self._end(work)

    def _end(self, work: _Work) -> None:
        with self._lock:
            connections = list(work.connections)
            is_first, is_late = (
                not work.asked.is_set(),
                time.monotonic() - work.asked_s > _CANCEL_WITHIN_S,
            )
            if is_first:
                work.asked_s = time.monotonic()
                work.asked.set()
        import psycopg

        for connection in connections:
            if is_first and psycopg.capabilities.has_cancel_safe():
                # It waits for the server, and a frozen one takes the request and doesn't answer.
                thread = start_thread(partial(_cancel, connection), "onceforall-cancel")
                with self._lock:
                    work.cancelling.append(thread)
            elif is_first or is_late:
                _cut_off(connection)


class CommitsStoppable:
    """What waits behind a decision, in any number of threads, which another thread may end.

    Nothing is cancelled there, for a COMMIT that waits for a standby would succeed without it: the
    connections are cut off, and what becomes of a COMMIT on its way says the marker.
    """

    def __init__(self) -> None:
        """Nothing is waited for."""
        self._lock = threading.Lock()
        self._connections: list[Connection] = []
        self._works = 0
        self._asked = False

    @contextmanager
    def work(self) -> Iterator[None]:
        """Mark what may be ended: what is done within with the connections that are opened."""
        with self._lock:
            self._works += 1
        try:
            yield
        finally:
            with self._lock:
                self._works -= 1
                if not self._works:
                    self._connections, self._asked = [], False

    def connected(self, connect: Callable[[], Connection]) -> Connection:
        """Open a connection; none behind the stop.

        Raises:
            SinkUnavailableError: a stop was asked for.
        """
        self._check()
        connection = self.opened(connect())
        try:
            self._check()
        except SinkUnavailableError:
            connection.close()
            raise
        return connection

    def opened(self, connection: Connection) -> Connection:
        """Take a connection; where it belongs to the work, it may be cut off."""
        with self._lock:
            if self._works:
                self._connections.append(connection)
        return connection

    def _check(self) -> None:
        if self._asked:
            raise SinkUnavailableError(
                "The query was asked to stop while its sink waited for PostgreSQL."
            )

    def end(self) -> None:
        """Ask the work to end; called again, it does so again. It never raises."""
        with self._lock:
            if not self._works:
                return
            self._asked = True
            connections = list(self._connections)
        for connection in connections:
            _cut_off(connection)


def _cancel(connection: Connection) -> None:
    try:
        connection.cancel_safe(timeout=_CANCEL_WITHIN_S)
    except Exception as error:  # noqa: BLE001  the connection is cut off next
        _log.debug("cancelling what is waited for: %s", error)


def _cut_off(connection: Connection) -> None:
    # As in connections.answering: a descriptor of its own, which no other connection can have
    # meanwhile.
    with suppress(Exception):
        descriptor = socket.socket(fileno=os.dup(connection.fileno()))
        with descriptor:
            descriptor.shutdown(socket.SHUT_RDWR)


__all__ = ["CommitsStoppable", "Stoppable"]
