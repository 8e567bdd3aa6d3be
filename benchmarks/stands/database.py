"""The PostgreSQL server of a measurement, which keeps its promises, and its tables."""

from __future__ import annotations

import itertools

import psycopg
from psycopg import sql
from typing_extensions import Self

from onceforall.embedded import EmbeddedPostgres

_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "max_prepared_transactions": 60,
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    # It would run in some measurements and not in others.
    "autovacuum": "off",
}
_COLUMNS = (
    "id bigint, campaign_id integer, user_id text, amount double precision, at "
    "timestamptz, note text"
)  # as in spark_job.shaped


class Database:
    """A server with one database and tables as they are needed. A context manager."""

    def __init__(self) -> None:
        self._server = EmbeddedPostgres(settings=_SETTINGS)
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def url(self) -> str:
        """The database's URL, with the superuser's password."""
        return self._server.conninfo

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._server.pid

    def make_table(self, *, with_value: bool = False) -> str:
        """Create an empty table and return its name."""
        name = f"events_{next(self._numbers)}"
        self._run(
            "CREATE TABLE {} (" + _COLUMNS + (", value bytea" if with_value else "") + ")", name
        )
        return name

    def drop_table(self, name: str) -> None:
        """Drop a table, and write everything out, so that the next contender doesn't pay for it."""
        self._run("DROP TABLE {}", name)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("CHECKPOINT")

    def _run(self, statement: str, table: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(table)))
