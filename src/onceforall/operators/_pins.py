"""Pins: what a batch looked up, noted in PostgreSQL before it is used, so that a replay of the batch uses the same.

One row per (query, lookup, batch, key). It is written by ``INSERT … ON CONFLICT DO NOTHING`` and then read back, each in a transaction of its own, so of all
tasks and attempts that look a key up in a batch, the first one decides, and all of them go on with its value. That a key was missing is noted, too.

A batch's pins are needed as long as it may be run again: until the next one has begun, for that begins when this one is complete in all sinks and in
Spark's own log. Older ones are deleted, with a margin.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onceforall.operators.identity import record_name

if TYPE_CHECKING:
    import psycopg

    from onceforall.operators.lookups import Key, PostgresLookup, Text

TABLE = "lookups"
KEPT_BATCHES = 10
_CLEANED_EVERY = 10


def create(connection: psycopg.Connection[Any], schema: str) -> None:
    """Make schema and table where they are missing; several may try at once."""
    from psycopg import sql

    # One at a time: IF NOT EXISTS does not wait for another one's that is being made.
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('onceforall.lookups', 0))")
        if connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]).fetchone() is None:
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        known = "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = %s"
        if connection.execute(known, [schema, TABLE]).fetchone() is None:
            connection.execute(
                sql.SQL(
                    "CREATE TABLE {} (query_id text NOT NULL, lookup text NOT NULL, batch bigint NOT NULL, key text NOT NULL, value text, "
                    "PRIMARY KEY (query_id, lookup, batch, key))"
                ).format(sql.Identifier(schema, TABLE))
            )


class Pins:
    """The pins of one batch of a query, for one lookup; in a task."""

    def __init__(self, lookup: PostgresLookup, schema: str, query_id: str, batch: int) -> None:
        self._lookup = lookup
        self._schema = schema
        self._of = [query_id, lookup.name, batch]
        self._batch = batch

    def settle(self, keys: Sequence[Key], looked_up: Any) -> Mapping[Key, tuple[Text, ...] | None]:
        """Return the batch's values of these keys, as texts; None for one that was missing.

        Args:
            keys: distinct, without nulls.
            looked_up: a function that looks keys up, for those that nobody has pinned yet.
        """
        names = {record_name(key): key for key in keys}
        pinned = self._read(list(names))
        new = sorted(names.keys() - pinned.keys())
        if new:
            found = looked_up([names[name] for name in new])
            values = [None if names[name] not in found else json.dumps(found[names[name]]) for name in new]
            self._insert(new, values)
            pinned |= self._read(new)
        return {names[name]: None if value is None else tuple(json.loads(value)) for name, value in pinned.items()}

    def clean(self) -> None:
        """Delete, now and then, what no replay can need."""
        if self._batch % _CLEANED_EVERY == 0:
            self._execute(
                "DELETE FROM {} WHERE query_id = %s AND lookup = %s AND batch < %s", [*self._of[:2], self._batch - KEPT_BATCHES]
            )

    def _read(self, names: list[str]) -> dict[str, str | None]:
        rows = self._execute(
            "SELECT key, value FROM {} WHERE query_id = %s AND lookup = %s AND batch = %s AND key = ANY(%s)", [*self._of, names]
        )
        return dict(rows)

    def _insert(self, names: list[str], values: list[str | None]) -> None:
        # Sorted: two tasks that insert the same keys wait for each other in one direction only.
        self._execute(
            "INSERT INTO {} (query_id, lookup, batch, key, value) SELECT %s, %s, %s, u.key, u.value "
            "FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY u(key, value, place) ORDER BY u.place ON CONFLICT DO NOTHING",
            [*self._of, names, values],
        )

    def _execute(self, statement: str, arguments: list[Any]) -> list[Any]:
        from psycopg import sql

        table = sql.Identifier(self._schema.replace("%", "%%"), TABLE)  # the driver takes a single % for a parameter

        def action(connection: psycopg.Connection[Any]) -> list[Any]:
            cursor = connection.execute(sql.SQL(statement).format(table), arguments)
            return cursor.fetchall() if cursor.description else []

        rows: list[Any] = self._lookup.patiently(action)
        return rows
