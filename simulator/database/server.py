"""The PostgreSQL server that schedules are played on, and what an onlooker sees in it."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from onceforall.embedded.postgres import EmbeddedPostgres
from onceforall.sink import StartInfo
from simulator.database.sink import TurnSink

if TYPE_CHECKING:
    from typing_extensions import Self

PLAIN, KEYED = "plain", "keyed"
_SETTINGS = {"max_prepared_transactions": 50, "fsync": "off", "full_page_writes": "off"}


class Server:
    """A server of its own, and the onlooker's connection."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._embedded = EmbeddedPostgres(settings=_SETTINGS)
        self.url = ""
        self._checked: dict[tuple[str, str], TurnSink] = {}
        self.onlooker: psycopg.Connection[Any]

    def __enter__(self) -> Self:
        self._embedded.start()
        self.url = self._embedded.url()
        self.onlooker = psycopg.connect(self.url, autocommit=True)
        for table, key in ((PLAIN, ""), (KEYED, "PRIMARY KEY")):
            self.onlooker.execute(f"CREATE TABLE {table} (id bigint {key}, v text)".encode())
        return self

    def __exit__(self, *_: object) -> None:
        self.onlooker.close()
        self._embedded.stop()

    def prepare(self) -> None:
        """Empty the targets; whatever an earlier schedule has left is removed."""
        look = self.onlooker
        look.execute(
            "SELECT pg_catalog.pg_terminate_backend(pid, 5000) FROM pg_catalog.pg_stat_activity "
            "WHERE application_name LIKE 'ofa-%'"
        )
        for gid in self.prepared():
            look.execute(f"ROLLBACK PREPARED '{gid}'".encode())
        for table in self.staging_tables():
            look.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier("onceforall", table)))
        if self._checked:
            look.execute(b"DELETE FROM onceforall.markers")
        for table in (PLAIN, KEYED):
            look.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))

    def sink(self, mode: str, table: str) -> TurnSink:
        """Return a sink as a new process has it: one that was checked at its start."""
        if (mode, table) not in self._checked:
            options: dict[str, Any] = {"key": "id"} if table == KEYED else {}
            made = TurnSink(
                self.url,
                table,
                mode=mode,  # type: ignore[arg-type]
                retry_for_s=5,
                lock_timeout_s=0.5,
                **options,
            )
            output_mode = "update" if mode == "upsert" else "append"
            made.check(StartInfo(str(uuid.UUID(int=0)), "out", output_mode=output_mode))
            self._checked[mode, table] = made
        checked = self._checked[mode, table]
        copy: TurnSink = pickle.loads(pickle.dumps(checked))  # noqa: S301  our own, of a moment ago
        return copy.restored(checked.secrets(), {})  # type: ignore[return-value]

    @property
    def was_checked(self) -> bool:
        """Whether a sink has made its schema and its table of markers."""
        return bool(self._checked)

    def rows(self, table: str) -> list[tuple[int, str]]:
        """Return what a reader of a target sees."""
        query = sql.SQL("SELECT id, v FROM {} ORDER BY id, v").format(sql.Identifier(table))
        return [(int(number), str(value)) for number, value in self.onlooker.execute(query)]

    def prepared(self) -> list[str]:
        """Return the ids of all prepared transactions."""
        return self._names("SELECT gid FROM pg_catalog.pg_prepared_xacts ORDER BY gid")

    def staging_tables(self) -> list[str]:
        """Return the names of all staging tables."""
        return self._names(
            "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = 'onceforall' AND "
            "tablename LIKE 'stg%' ORDER BY tablename"
        )

    def _names(self, query: str) -> list[str]:
        return [str(name) for (name,) in self.onlooker.execute(query.encode())]

    def waiting(self, pids: Collection[int]) -> set[int]:
        """Return those of the sessions that wait for a lock."""
        return set(
            self._pids(
                "SELECT pid FROM pg_catalog.pg_stat_activity WHERE pid = ANY(%s) AND "
                "state = 'active' AND wait_event_type = 'Lock'",
                pids,
            )
        )

    def alive(self, pids: Collection[int]) -> bool:
        """Tell whether any of the sessions is there."""
        return any(
            self._pids("SELECT pid FROM pg_catalog.pg_stat_activity WHERE pid = ANY(%s)", pids)
        )

    def _pids(self, query: str, pids: Collection[int]) -> Iterable[int]:
        return [int(pid) for (pid,) in self.onlooker.execute(query.encode(), [list(pids)])]
