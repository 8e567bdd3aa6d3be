"""Pins: what a batch looked up, noted in PostgreSQL before it is used, so that a replay of the
batch uses the same.

One row per (query, lookup, batch, key). It is written by ``INSERT … ON CONFLICT DO NOTHING`` and
then read back, each in a transaction of its own, so of all tasks and attempts that look a key up in
a batch, the first one decides, and all of them go on with its value. That a key was missing is
noted, too.

What no row can be made of (a missing key where that fails the batch, a value that its type can't
hold) is not noted: no attempt ever went on with it, and each replay would fail for it again,
whatever was mended meanwhile. Where such a pin is there, because missing keys or types were treated
otherwise before the restart, it is deleted and the key asked for again.

A batch's pins are needed as long as it may be run again: until the next one has begun, for that
begins when this one is complete in all sinks and in Spark's own log. Older ones are deleted, with a
margin, by each worker in every tenth batch or so. Which numbers those have is left open: batches
without rows have no tasks, and a query may have one behind each with rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from onceforall.errors import RefusedRecordError
from onceforall.operators.identity import record_name

if TYPE_CHECKING:
    import psycopg

    from onceforall.operators.lookups import Key
    from onceforall.operators.postgres_lookup import PostgresLookup

Values: TypeAlias = "tuple[str | None, ...]"
TABLE = "lookups"
KEPT_BATCHES = 10
LONGEST_NAME_BYTES = 1300
"""Of a key or a lookup in the table's index: both together, with the query's id, have to fit in
a third of a page of 8 KiB, less what the page needs."""
_CLEANED_EVERY = 10
_DELETED_AT_ONCE = 10_000
"""By one statement, for which the server has ``timeout_s``."""


def create(connection: psycopg.Connection[Any], schema: str) -> None:
    """Make schema and table where they are missing; several may try at once.

    Raises:
        SinkCheckError: the table is there, and has what could run its owner's code as this role.
    """
    from psycopg import sql

    from onceforall.sinks.postgres import own_rights
    from onceforall.sinks.postgres.driver import own_tables

    columns = {
        "query_id": own_tables.TEXT,
        "lookup": own_tables.TEXT,
        "batch": own_tables.BIGINT,
        "key": own_tables.TEXT,
        "value": own_tables.TEXT,
    }
    form = own_tables.Form(TABLE, columns, ("query_id", "lookup", "batch", "key"), "pin_schema")
    # One at a time: IF NOT EXISTS does not wait for another one's that is being made.
    with connection.transaction():
        connection.execute(
            "SELECT "
            "pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('onceforall.lookups', 0))"
        )
        schemas = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) %s"
        if connection.execute(schemas, [schema]).fetchone() is None:
            connection.execute(
                sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
            )
            own_rights.close_schema(connection, schema)
        known = (
            "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname OPERATOR(pg_catalog.=) %s "
            "AND tablename OPERATOR(pg_catalog.=) %s"
        )
        if connection.execute(known, [schema, TABLE]).fetchone() is None:
            connection.execute(
                sql.SQL(
                    "CREATE TABLE {} (query_id pg_catalog.text NOT NULL, lookup pg_catalog.text "
                    "NOT NULL, batch bigint NOT NULL, "
                    "key pg_catalog.text NOT NULL, value pg_catalog.text, PRIMARY KEY (query_id, "
                    "lookup, batch, key))"
                ).format(sql.Identifier(schema, TABLE))
            )
            own_rights.close_table(connection, schema, TABLE)
    own_tables.warn_of_strangers(own_tables.check(connection, form, schema), form)


class Pins:
    """The pins of one batch of a query, for one lookup; in a task.

    Args:
        lookup: what is asked where nothing is pinned; the pins are in its database.
        schema: of the table.
        query_id: of the query.
        batch: its number.
        cleaned: by query, the batch in which the worker has deleted old pins of this lookup last;
            it is kept for the worker's next task.
    """

    def __init__(
        self,
        lookup: PostgresLookup,
        schema: str,
        query_id: str,
        batch: int,
        cleaned: MutableMapping[str, int] | None = None,
    ) -> None:
        self._lookup = lookup
        self._schema = schema
        self._query_id = query_id
        self._batch = batch
        self._cleaned = {} if cleaned is None else cleaned

    def settle(
        self,
        keys: Sequence[Key],
        looked_up: Callable[[Sequence[Key]], Mapping[Key, Values]],
        check: Callable[[Mapping[Key, Values | None]], object] = lambda _: None,
    ) -> Mapping[Key, Values | None]:
        """Return the batch's values of these keys, as texts; None for one that was missing.

        Args:
            keys: distinct, without nulls.
            looked_up: a function that looks keys up, for those that nobody has pinned yet.
            check: a function that raises ``RefusedRecordError`` for values (None: missing) of which
                no row can be made.

        Raises:
            RefusedRecordError: of `check`, for what was looked up; nothing of it is pinned.
        """
        names = {_bounded(record_name(key)): key for key in keys}
        pinned = self._read(list(names))
        useless = self._useless(names, pinned, check)
        if useless:
            self._delete(useless)
        new = sorted(names.keys() - (pinned.keys() - useless.keys()))
        if new:
            found = looked_up([names[name] for name in new])
            check({names[name]: found.get(names[name]) for name in new})
            self._insert(
                new,
                [
                    None if names[name] not in found else json.dumps(found[names[name]])
                    for name in new
                ],
            )
            pinned |= self._read(new)
        return {names[name]: _values(text) for name, text in pinned.items()}

    @staticmethod
    def _useless(
        names: Mapping[str, Key],
        pinned: Mapping[str, str | None],
        check: Callable[[Mapping[Key, Values | None]], object],
    ) -> dict[str, str | None]:
        """Return those of the pins that `check` refuses."""

        def passes(some: Mapping[str, str | None]) -> bool:
            try:
                check({names[name]: _values(text) for name, text in some.items()})
            except RefusedRecordError:
                return False
            return True

        return (
            {}
            if passes(pinned)
            else {name: text for name, text in pinned.items() if not passes({name: text})}
        )

    def clean(self) -> None:
        """Delete, now and then, what no replay can need."""
        last = self._cleaned.get(self._query_id)
        if last is not None and last <= self._batch < last + _CLEANED_EVERY:
            return
        # In parts: there may be more than the server deletes in time, and the batch would fail.
        deleted = _DELETED_AT_ONCE
        while deleted == _DELETED_AT_ONCE:
            found = self._execute(
                "WITH gone AS (DELETE FROM {0} WHERE ctid OPERATOR(pg_catalog.=) ANY(ARRAY("
                "SELECT ctid FROM {0} WHERE query_id OPERATOR(pg_catalog.=) %s AND lookup "
                "OPERATOR(pg_catalog.=) %s AND batch OPERATOR(pg_catalog.<) %s LIMIT %s)) "
                "RETURNING 1) SELECT pg_catalog.count(*) FROM gone",
                lambda lookup: [
                    self._query_id,
                    lookup,
                    self._batch - KEPT_BATCHES,
                    _DELETED_AT_ONCE,
                ],
            )
            ((deleted,),) = found
        self._cleaned[self._query_id] = self._batch

    def _read(self, names: list[str]) -> dict[str, str | None]:
        rows = self._execute(
            "SELECT key, value FROM {} WHERE query_id OPERATOR(pg_catalog.=) %s AND lookup "
            "OPERATOR(pg_catalog.=) %s "
            "AND batch OPERATOR(pg_catalog.=) %s AND key OPERATOR(pg_catalog.=) "
            "ANY(%s::pg_catalog.text[])",
            lambda lookup: [self._query_id, lookup, self._batch, names],
        )
        return dict(rows)

    def _insert(self, names: list[str], values: list[str | None]) -> None:
        # Sorted: two tasks that insert the same keys wait for each other in one direction only.
        self._execute(
            "INSERT INTO {} (query_id, lookup, batch, key, value) SELECT %s, %s, %s, u.key, "
            "u.value "
            "FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.text[]), "
            "pg_catalog.unnest(%s::pg_catalog.text[])) WITH ORDINALITY u(key, value, place) "
            "ORDER BY u.place ON CONFLICT DO NOTHING",
            lambda lookup: [self._query_id, lookup, self._batch, names, values],
        )

    def _delete(self, pins: Mapping[str, str | None]) -> None:
        """Delete pins, unless another task has put others in their place."""

        # Each alone: there are few, tasks that delete several at once could wait for each other,
        # and locking them in one order takes a right more.
        def of(name: str, text: str | None) -> Callable[[str], list[Any]]:
            return lambda lookup: [self._query_id, lookup, self._batch, name, text, text]

        for name, text in pins.items():
            self._execute(
                "DELETE FROM {} WHERE query_id OPERATOR(pg_catalog.=) %s AND lookup "
                "OPERATOR(pg_catalog.=) %s AND batch OPERATOR(pg_catalog.=) %s "
                "AND key OPERATOR(pg_catalog.=) %s AND (value OPERATOR(pg_catalog.=) %s OR (value "
                "IS NULL AND %s::pg_catalog.text IS NULL))",
                of(name, text),
            )

    def _execute(self, statement: str, arguments: Callable[[str], list[Any]]) -> list[Any]:
        from psycopg import sql

        table = sql.Identifier(
            self._schema.replace("%", "%%"), TABLE
        )  # the driver takes a single % for a parameter

        def action(connection: psycopg.Connection[Any]) -> list[Any]:
            lookup = _bounded(self._lookup.pinned_as(connection))
            cursor = self._lookup.execute(
                connection, sql.SQL(statement).format(table), arguments(lookup)
            )
            return cursor.fetchall() if cursor.description else []

        rows: list[Any] = self._lookup.patiently(action)
        return rows


def _values(text: str | None) -> Values | None:
    return None if text is None else tuple(json.loads(text))


def _bounded(name: str) -> str:
    """Return the name, or for a long one a digest: no name of a key begins with ``#``, and no
    table as SQL writes it.
    """
    plain = name.encode()
    return name if len(plain) <= LONGEST_NAME_BYTES else f"#{hashlib.sha256(plain).hexdigest()}"
