"""The production sink, with a turn before each statement, and without its waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from unittest import mock

import psycopg

from onceforall.sinks.postgres import prepared_transactions, stale_connections
from onceforall.sinks.postgres import stoppable as stoppable_module
from onceforall.sinks.postgres.driver import marker_lock, prepared, staged, sweeping
from onceforall.sinks.postgres.sink import PostgresSink
from onceforall.sinks.postgres.statements import Connection
from simulator.database.turns import Turns

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")

_SHORT_S = 0.05


class TurnCursor(psycopg.Cursor[Any]):
    """Waits for its turn before each statement."""

    turns: Turns

    def execute(self, query: Any, params: Any = None, **options: Any) -> TurnCursor:
        """Execute a statement, once it is its turn."""
        text = query if isinstance(query, str) else _text(query, self.connection)
        self.turns.gate(text, self.connection.info.backend_pid)
        lost = self.turns.loses(text)
        if lost != "request":
            super().execute(query, params, **options)
        if lost is not None:
            self.turns.count(f"lost {lost}")
            self.connection.pgconn.finish()
            raise psycopg.OperationalError("the connection is lost")
        return self

    def copy(self, statement: Any, *arguments: Any, **options: Any) -> Any:
        """Begin a COPY, once it is its turn."""
        self.turns.gate(_text(statement, self.connection), self.connection.info.backend_pid)
        return super().copy(statement, *arguments, **options)


def _text(query: Any, connection: psycopg.Connection[Any]) -> str:
    if isinstance(query, bytes):
        return query.decode()
    return str(query.as_string(connection))


class TurnSink(PostgresSink):
    """``PostgresSink``, whose connections wait for their turns as soon as it has some."""

    turns: Turns | None = None

    def _connect(
        self,
        application_name: str,
        secrets: Mapping[str, str] | None = None,
        *,
        patience_s: float = 0.0,
    ) -> Connection:
        if self.turns is None:
            return super()._connect(application_name, secrets, patience_s=patience_s)
        self.turns.gate(f"connects as {application_name}")
        connection = super()._connect(application_name, secrets, patience_s=patience_s)
        self.turns.opened(connection)
        connection.cursor_factory = type("Cursor", (TurnCursor,), {"turns": self.turns})
        return connection


class Inline:
    """Threads that do their work at once, in the caller's."""

    def __init__(self, *_: object, **__: object) -> None:
        """Nothing is begun."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def submit(self, action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """Do it."""
        future: Future[T] = Future()
        try:
            future.set_result(action(*arguments, **named))
        except Exception as error:  # noqa: BLE001  as an executor does
            future.set_exception(error)
        return future


@contextmanager
def without_waits(turns: Turns) -> Iterator[None]:
    """Put turns in place of sleeps, and short waits for a lock in place of the long ones."""

    class Clock:
        """``time``, in which a sleep is a turn."""

        @staticmethod
        def sleep(_: float) -> None:
            turns.gate("sleeps")

        @staticmethod
        def monotonic() -> float:
            return float(turns.steps) / 20

    def wait(self: stoppable_module.Stoppable, _: float) -> None:
        turns.gate("waits")
        self.check()

    with (
        mock.patch.object(prepared, "Threads", Inline),
        mock.patch.object(prepared_transactions, "time", Clock),
        mock.patch.object(stoppable_module.Stoppable, "wait", wait),
        mock.patch.object(stale_connections, "SILENT_S", 0.0),
        mock.patch.object(marker_lock, "_WAIT_S", _SHORT_S),
        mock.patch.object(staged, "_DROP_WAIT_S", _SHORT_S),
        mock.patch.object(sweeping, "_WAIT_S", _SHORT_S),
    ):
        yield
