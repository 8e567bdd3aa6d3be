"""Looking values up in a table or view of PostgreSQL; see ``Lookup`` for what ``enrich`` asks of
it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from onceforall.common import arguments
from onceforall.errors import OptionError, SchemaError, SinkCheckError, SinkUnavailableError
from onceforall.operators._lookup_keys import Reader, python_type, reader
from onceforall.operators.lookups import Key, Lookup, Version, read_text
from onceforall.sinks.postgres.texts import as_text, is_built_in

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql
    from typing_extensions import LiteralString

    from onceforall.sinks.postgres.conninfo import Conninfo


class PostgresLookup(Lookup):
    """A table or view of PostgreSQL, asked for many keys at once."""

    _PATIENCE_AT_START_S: ClassVar[float] = 10.0
    # How long after timeout_s, at which the server ends a statement itself, one that didn't is
    # given up.
    _SLACK_S: ClassVar[float] = 5.0

    def __init__(
        self,
        conninfo: Conninfo,
        table: str,
        *,
        key: str | Sequence[str],
        columns: Mapping[str, str] | Sequence[str],
        valid_from: str | None = None,
        valid_to: str | None = None,
        password: str | Callable[[], str] | None = None,
        timeout_s: float = 10.0,
        retry_for_s: float = 60.0,
        keys_per_query: int = 5_000,
    ) -> None:
        """Nothing is connected yet.

        Args:
            conninfo: a URL, ``key=value`` string or mapping of libpq's parameters; or a function
                that returns one, called at each connect.
            table: ``table`` or ``schema.table``, as SQL writes it; a view may be one.
            key: the columns by which a row is found; at most one row for each key (and time).
            columns: what is looked up: names, whose types are then those of the table at the
                query's start; or, by name, the types they get in Spark: STRING, BOOLEAN, the
                integers, FLOAT, DOUBLE, DECIMAL, DATE, TIMESTAMP (from ``timestamptz``) or BINARY.
            valid_from: for a table with history, the column since when a row holds
                (``timestamptz``; null or ``-infinity``: always).
            valid_to: until when, that moment not included (null or ``infinity``: until the next one
                begins).
            password: a value, or a function that returns one. A value is handed over by the thread
                that calls ``enrich``, which must also be the one that starts the query. Without
                either, libpq looks for ``PGPASSWORD`` and ``~/.pgpass`` on each executor.
            timeout_s: for one query of the server, in seconds. One that hangs, so that it doesn't
                even end the query, is given up five seconds later.
            retry_for_s: for how long a server that is away or too slow is asked again, with growing
                pauses, in seconds; then the batch fails.
            keys_per_query: how many keys one query asks for at most.

        Raises:
            OptionError: an argument makes no sense.
            SchemaError: a type that can't be looked up.
            MissingExtraError: psycopg is not installed (extra ``postgres``).
        """
        from onceforall.sinks.postgres.connections import Access
        from onceforall.sinks.postgres.options import check_seconds

        check_seconds("timeout_s", timeout_s)
        check_seconds("retry_for_s", retry_for_s)
        self._access = Access(conninfo, password=password, patience_s=retry_for_s)
        self._key = arguments.names("key", key, "the name of a column, or a list of names")
        arguments.text("table", table, "table or schema.table")
        arguments.whole("keys_per_query", keys_per_query, 1)
        for what, column in (("valid_from", valid_from), ("valid_to", valid_to)):
            if column is not None:
                arguments.text(what, column, "the name of a column, or leave it out")
        if isinstance(columns, Mapping):
            for column, kind in arguments.mapping(
                "columns", columns, "names of columns, or a dictionary from name to type"
            ).items():
                arguments.text(f"columns[{column!r}]", kind, "a type of Spark's, such as 'string'")
        else:
            columns = arguments.names(
                "columns", columns, "names of columns, or a dictionary from name to type"
            )
        if not self._key or not columns or "://" in table:
            raise OptionError(
                "A lookup needs table= (a table's name), key= and columns=, each with one name at "
                "least."
            )
        if valid_to is not None and valid_from is None:
            raise OptionError("valid_to= needs valid_from=: a version is found by when it began.")
        self._untyped = () if isinstance(columns, Mapping) else tuple(columns)
        self.columns = (
            dict(columns)
            if isinstance(columns, Mapping)
            else dict.fromkeys(self._untyped, "string")
        )
        for name, kind in self.columns.items():
            read_text(kind, name)
        self.name = f"{table}({','.join(self._key)}):{','.join(self.columns)}"
        self.versioned = valid_from is not None
        self._table, self._from, self._to = table, valid_from, valid_to
        self._timeout_s, self._retry_for_s, self._keys_per_query = (
            timeout_s,
            retry_for_s,
            keys_per_query,
        )
        self._received: Mapping[str, str] = {}
        self._connection: psycopg.Connection[Any] | None = None
        self._statement: sql.Composed | None = None
        self._casts: sql.Composed | None = None
        self._pinned_as: str | None = None
        self._key_types: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_received": {},
            "_connection": None,
            "_statement": None,
            "_casts": None,
            "_pinned_as": None,
        }

    def __repr__(self) -> str:
        return f"PostgresLookup({self.name} at {self._access.target})"

    def check(self, key_count: int) -> None:
        """Connect, and see that table and columns are there and may be read; see
        ``Lookup.check``.
        """
        if key_count != len(self._key):
            raise OptionError(
                f"enrich asks by {key_count} columns, and {self!r} has {len(self._key)} of key."
            )

        def look(connection: psycopg.Connection[Any]) -> None:
            import psycopg

            self.columns = {**self.columns, **self._types(connection)}
            self._check_types(connection)
            statement = self._composed(connection)
            try:
                self._run(connection, statement, [[] for _ in self._key])
            except psycopg.errors.UndefinedFunction as error:
                raise SchemaError(
                    f"A key column of {self!r} is of a type whose values can't be looked up, as "
                    f"arrays, composite types, json and points are ({error.diag.message_primary}). "
                    "Give the lookup a view with a key of another type, such as its text."
                ) from error

        try:
            self.at_start(look, f"Looking at {self!r}")
        except SinkUnavailableError as error:
            raise SinkCheckError(f"{self!r} can't be asked: {error}") from error

    def check_keys(self, types: Mapping[str, str]) -> None:
        """See that keys of these types are values of the key columns' types; see
        ``Lookup.check_keys``.
        """
        for (name, kind), column, key in zip(
            types.items(), self._key_types, self._key, strict=True
        ):
            whose = f"The column {name!r} ({kind}) of keys= and {key!r} of {self!r}"
            reader(python_type(kind), column, whose)

    def at_start(self, action: Callable[[psycopg.Connection[Any]], None], what: str) -> None:
        """Do something that may be done twice, with a connection of its own; where that breaks,
        again, for ten seconds.
        """
        from onceforall.sinks.postgres.server_errors import translated
        from onceforall.sinks.postgres.statements import patiently

        def once() -> None:
            with contextlib.closing(self.connect(0.0)) as connection, translated(what):
                action(connection)

        patiently(once, self._PATIENCE_AT_START_S, what)

    def fetch(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Version]]:
        """Return what is known of these keys; see ``Lookup.fetch``.

        Raises:
            SinkUnavailableError: no answer within ``retry_for_s``.
            SinkCheckError: table, column or right is missing.
            RefusedRecordError: the server can't take a key, or two rows have one key.
        """
        found: dict[Key, list[Version]] = {}
        for start in range(0, len(keys), self._keys_per_query):
            part = keys[start : start + self._keys_per_query]
            for place, from_us, to_us, values in self.patiently(partial(self._ask, part)):
                # Both ways to write that a row has always held are one: there may be one such row.
                since_us = None if from_us == _MINUS_INFINITY else from_us
                version = Version(tuple(values), since_us, to_us)
                found.setdefault(part[place - 1], []).append(version)
        self._check_unique(found)
        return found

    def close(self) -> None:
        """Close the connection, if there is one."""
        from onceforall.sinks.postgres.statements import close_quietly

        close_quietly(self._connection)
        self._connection = self._statement = self._casts = None

    def secrets(self) -> Mapping[str, str]:
        """Return the secret values; see ``Lookup.secrets``."""
        return self._access.secret_values()

    def receive(self, secrets: Mapping[str, str]) -> None:
        """Take them; see ``Lookup.receive``."""
        self._received = dict(secrets)

    def patiently(self, action: Callable[[psycopg.Connection[Any]], Any]) -> Any:
        """Do something with the connection, again and again while the server is away or too
        slow, for ``retry_for_s``.
        """
        import psycopg

        from onceforall.sinks.postgres.server_errors import statement_error
        from onceforall.sinks.postgres.statements import patiently

        def once() -> Any:
            try:
                if self._connection is None:
                    # Its own patience is none: the pauses are those of patiently.
                    self._connection = self.connect(0.0)
                return action(self._connection)
            except psycopg.errors.QueryCanceled as error:
                raise SinkUnavailableError(self._late()) from error
            except psycopg.Error as error:
                raise statement_error(error, f"Looking up in {self!r}") from error

        def closing() -> Any:
            try:
                return once()
            except BaseException:
                self.close()
                raise

        return patiently(closing, self._retry_for_s, f"Looking up in {self!r}")

    def connect(self, patience_s: float) -> psycopg.Connection[Any]:
        """Open a connection of its own; autocommit."""
        settings = {"statement_timeout": str(max(1, int(self._timeout_s * 1000)))}
        return self._access.connect(
            self._received,
            application_name="ofa-lookup",
            autocommit=True,
            patience_s=patience_s,
            settings=settings,
            set_up_within_s=self._timeout_s + self._SLACK_S,
        )

    def answering(
        self, connection: psycopg.Connection[Any]
    ) -> contextlib.AbstractContextManager[None]:
        """Give up, within, a server that has neither answered nor ended the statement a while
        after ``timeout_s``, as one that hangs.
        """
        from onceforall.sinks.postgres.connections import answering

        return answering(connection, self._timeout_s + self._SLACK_S, self._late())

    def execute(
        self,
        connection: psycopg.Connection[Any],
        statement: LiteralString | sql.Composed,
        arguments: Sequence[Any],
    ) -> psycopg.Cursor[Any]:
        """Run a statement, and return when its rows are here; see ``answering``."""
        with self.answering(connection):
            return connection.execute(statement, arguments)

    def pinned_as(self, connection: psycopg.Connection[Any]) -> str:
        """Return what tells this lookup from others whose values can't stand for its own: by the
        table that is found, however it is written, and with the columns' types.
        """
        if self._pinned_as is None:
            found = self.execute(connection, _FOUND_AS, [self._table]).fetchone()
            columns = {name: kind.strip().lower() for name, kind in self.columns.items()}
            parts = [found or [self._table], self._key, columns]
            self._pinned_as = json.dumps(parts, ensure_ascii=False)
        return self._pinned_as

    def _late(self) -> str:
        return f"{self!r} gave no answer within timeout_s={self._timeout_s:g}."

    def _types(self, connection: psycopg.Connection[Any]) -> dict[str, str]:
        """Return the types of the columns that were given without one."""
        from psycopg import sql

        if not self._untyped:
            return {}
        names = sql.SQL(", ").join([_named(name) for name in self._untyped])
        query = sql.SQL("SELECT {} FROM {} LIMIT 0").format(names, self._identifier(connection))
        return {
            column.name: _spark_type(column)
            for column in self.execute(connection, query, []).description or []
        }

    def _check_types(self, connection: psycopg.Connection[Any]) -> None:
        """See that no column's values are read as something else than they are.

        Raises:
            SchemaError: naming the column.
        """
        from psycopg import sql

        names = sql.SQL(", ").join([_named(name) for name in self.columns])
        query = sql.SQL("SELECT {} FROM {} LIMIT 0").format(names, self._identifier(connection))
        found = self.execute(connection, query, []).description or []
        for column, (name, kind) in zip(found, self.columns.items(), strict=True):
            wanted = kind.strip().lower()
            if (wanted == "timestamp" and column.type_code not in _TIMES) or (
                wanted not in _NOT_OF_NUMBERS and column.type_code in _BITS
            ):
                raise SchemaError(
                    f"The looked-up column {name!r} of {self!r} is {column.type_display} in "
                    f"PostgreSQL, which is not read as {kind.strip().upper()}: words such as "
                    "'tomorrow' would become other instants each day, and bits a decimal number. "
                    "Look it up as 'string', or let a view cast it to the type that is meant."
                )

    def _identifier(self, connection: psycopg.Connection[Any]) -> sql.Identifier:
        from psycopg import sql

        from onceforall.sinks.postgres.table_names import parse_name

        with self.answering(connection):
            parts = parse_name(connection, self._table)
        return sql.Identifier(*(part.replace("%", "%%") for part in parts if part is not None))

    def takes(self, key: Key) -> bool:
        """Tell that no text of PostgreSQL has a zero byte; see ``Lookup.takes``."""
        return not any(isinstance(part, str) and "\0" in part for part in key)

    def _ask(self, keys: Sequence[Key], connection: psycopg.Connection[Any]) -> list[Any]:
        import psycopg

        if self._statement is None:
            self._statement = self._composed(connection)
        held = self._held(keys)
        places = list(held)
        try:
            found = self._run(connection, self._statement, self._arrays(list(held.values())))
        except psycopg.DataError:
            # A key that the column's type can't hold (a text that is no uuid) is missing. Anything
            # else in this class is a value's fault.
            places = self._castable(connection, held, places)
            if len(places) == len(held):
                raise
            found = self._run(
                connection, self._statement, self._arrays([held[place] for place in places])
            )
        return [(places[place - 1], *rest) for place, *rest in found]

    def _held(self, keys: Sequence[Key]) -> dict[int, Key]:
        """Return what is asked for, by the key's place: the keys that are values of their columns'
        types, as such.
        """
        readers: list[dict[type, Reader]] = [{} for _ in self._key_types]
        held: dict[int, Key] = {}
        for place, key in enumerate(keys, 1):
            values = []
            for part, column, known in zip(key, self._key_types, readers, strict=True):
                kind = type(part)
                if kind not in known:
                    known[kind] = reader(kind, column)
                values.append(known[kind](part))
            if None not in values:
                held[place] = tuple(values)
        return held

    def _arrays(self, keys: Sequence[Key]) -> list[list[Any]]:
        return [[key[n] for key in keys] for n in range(len(self._key))]

    def _castable(
        self, connection: psycopg.Connection[Any], keys: Mapping[int, Key], places: list[int]
    ) -> list[int]:
        """Return the places of the keys that the server can read as its columns' types, found by
        halving.
        """
        import psycopg

        assert self._casts is not None
        try:
            self.execute(connection, self._casts, self._arrays([keys[place] for place in places]))
        except psycopg.DataError:
            half = len(places) // 2
            if half == 0:
                return []
            return [
                *self._castable(connection, keys, places[:half]),
                *self._castable(connection, keys, places[half:]),
            ]
        return places

    def _run(
        self, connection: psycopg.Connection[Any], statement: sql.Composed, arrays: list[list[Any]]
    ) -> list[Any]:
        return self.execute(connection, statement, arrays).fetchall()

    def _composed(self, connection: psycopg.Connection[Any]) -> sql.Composed:
        """Return the query: (place of the key, from, to, values as texts), for one array of
        values per key column.
        """
        from psycopg import sql

        table = self._identifier(connection)
        keys = [sql.SQL("t.{}").format(_named(name)) for name in self._key]
        times = [name for name in (self._from, self._to) if name is not None]
        looked = [sql.SQL("t.{}").format(_named(name)) for name in [*self.columns, *times]]
        look = sql.SQL("SELECT {} FROM {} t LIMIT 0").format(
            sql.SQL(", ").join([*keys, *looked]), table
        )
        described = self.execute(connection, look, []).description or []
        types = [column.type_code for column in described]
        oids, others = types[: len(keys)], types[len(keys) :]
        self._check_casts(others)
        found = self.execute(connection, _KEY_TYPES, [oids, oids]).fetchall()
        # The server's own names of its own types: text that comes from nobody else.
        arrays = sql.SQL(", ").join(
            [sql.SQL("%s::{}[]").format(sql.SQL(name)) for name, _, _ in found]
        )
        self._key_types = tuple(str(base) for _, _, base in found)
        aliases = [sql.Identifier(f"k{n}") for n in range(len(keys))]
        # A domain over an enum has no "=" of its own, and is of the enum's type from here on. No
        # function is called for that, and whoever owns a type can't make one.
        joined = [
            sql.SQL("{}::{} OPERATOR({}.=) w.{}").format(key, sql.SQL(name), _named(schema), alias)
            for key, alias, (name, schema, _) in zip(keys, aliases, found, strict=True)
        ]
        values = [
            _as_text(column, kind, oid)
            for column, kind, oid in zip(looked, self.columns.values(), others, strict=False)
        ]
        self._casts = sql.SQL("SELECT {}").format(arrays)
        # Several arrays at once: of that form of unnest there is no qualified one.
        each = [sql.SQL("pg_catalog.unnest(%s::{}[])").format(sql.SQL(name)) for name, *_ in found]
        unnested = sql.SQL("ROWS FROM ({})").format(sql.SQL(", ").join(each))
        return sql.SQL("SELECT w.place, {}, {}, ARRAY[{}]::pg_catalog.text[] FROM {} WITH "
                       "ORDINALITY w({}, place) JOIN {} t ON {}").format(
            _micros(self._from), _micros(self._to), sql.SQL(", ").join(values), unnested, sql.SQL(", ").join(aliases), table,  # noqa: E501
            sql.SQL(" AND ").join(joined),
        )  # fmt: skip

    def _check_casts(self, types: Sequence[int]) -> None:
        """See that no value needs a cast that whoever owns its type could have made.

        Args:
            types: of the looked-up columns, and of those with times.

        Raises:
            SchemaError: naming the column.
        """
        times = [(name, "timestamp") for name in (self._from, self._to) if name is not None]
        for (name, kind), oid in zip([*self.columns.items(), *times], types, strict=True):
            if not is_built_in(oid) and kind.strip().lower() in {"timestamp", "binary"}:
                raise SchemaError(
                    f"The column {name!r} of {self!r} would be cast to {kind.strip().upper()}, and "
                    "its type is none of PostgreSQL's own: whoever owns it can make such a cast of "
                    "any function, which would run as the lookup's role. Look it up as 'string', "
                    "or give the lookup a view that casts it."
                )

    def _check_unique(self, found: Mapping[Key, list[Version]]) -> None:
        from onceforall.errors import RefusedRecordError

        for key, versions in found.items():
            times = {version.from_us for version in versions}
            if len(times) < len(versions):
                raise RefusedRecordError(
                    f"{self!r} has several rows for the key "
                    f"{key!r}{' and one time' if self.versioned else ''}, so that nobody could "
                    "say which one counts. "
                    "Make it unique."
                )


_KEY_TYPES: LiteralString = """
WITH RECURSIVE base AS (
    SELECT u.oid::pg_catalog.oid AS of_type, t.oid AS type, t.typtype, t.typbasetype FROM pg_catalog.unnest(%s::bigint[]) u(oid)
    JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) u.oid::pg_catalog.oid
  UNION
    SELECT base.of_type, t.oid, t.typtype, t.typbasetype FROM base JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) base.typbasetype
    WHERE base.typtype OPERATOR(pg_catalog.=) 'd'
)
SELECT pg_catalog.format_type(u.oid::pg_catalog.oid, -1), COALESCE((
    SELECT n.nspname::pg_catalog.text FROM pg_catalog.pg_type b
    JOIN pg_catalog.pg_operator o ON o.oprname OPERATOR(pg_catalog.=) '=' AND o.oprleft OPERATOR(pg_catalog.=) b.oid AND o.oprright OPERATOR(pg_catalog.=) b.oid
      AND o.oprnamespace OPERATOR(pg_catalog.=) b.typnamespace
      AND EXISTS (SELECT FROM pg_catalog.pg_amop m WHERE m.amopopr OPERATOR(pg_catalog.=) o.oid)
    JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) o.oprnamespace
    WHERE b.oid OPERATOR(pg_catalog.=) base.type), 'pg_catalog'),
    (SELECT CASE WHEN b.typname OPERATOR(pg_catalog.=) 'citext' THEN 'citext' ELSE pg_catalog.format_type(b.oid, NULL) END
     FROM pg_catalog.pg_type b WHERE b.oid OPERATOR(pg_catalog.=) base.type)
FROM pg_catalog.unnest(%s::bigint[]) WITH ORDINALITY u(oid, n)
JOIN base ON base.of_type OPERATOR(pg_catalog.=) u.oid::pg_catalog.oid AND base.typtype OPERATOR(pg_catalog.<>) 'd'
ORDER BY u.n
"""  # noqa: E501
"""Of each key column the type's name, and the schema of its ``=``: that of the type, for a type of
an extension's, such as citext, which is in an operator family, as only a superuser puts one there;
and the name of the type below its domains. Format -1, of no
length: "character" (as NULL has it) would be a cast to character(1), and "bit" one to bit(1).
"""

_TYPES: Mapping[int, str] = {
    16: "boolean", 17: "binary", 18: "string", 19: "string", 20: "bigint", 21: "smallint", 23: "int", 25: "string", 114: "string", 700: "float",  # noqa: E501
    701: "double", 1042: "string", 1043: "string", 1082: "date", 1184: "timestamp", 2950: "string", 3802: "string",  # noqa: E501
}  # fmt: skip
"""By oid, PostgreSQL's types that have one of Spark's: SELECT oid, typname FROM pg_type."""
_NUMERIC = 1700
_MINUS_INFINITY = -(2**63)
_TIMES = frozenset({1082, 1114, 1184})
_BITS = frozenset({1560, 1562})
_NOT_OF_NUMBERS = frozenset({"string", "binary", "boolean"})


def _spark_type(column: psycopg.Column) -> str:
    if (
        column.type_code == _NUMERIC
        and column.precision
        and 0 <= (column.scale or 0) <= column.precision <= 38
    ):
        return f"decimal({column.precision},{column.scale or 0})"
    if column.type_code not in _TYPES:
        raise SchemaError(
            f"The type of the looked-up column {column.name!r} ({column.type_display}) says not "
            "which one of Spark's it becomes. Say it: "
            f"columns={{{column.name!r}: 'decimal(20,6)', …}}."
        )
    return _TYPES[column.type_code]


_FOUND_AS: LiteralString = """
    SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
    WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(%s)
"""


def _named(name: str) -> sql.Identifier:
    """Return an identifier for a statement with parameters, in which the driver takes a single
    ``%`` for one.
    """
    from psycopg import sql

    return sql.Identifier(name.replace("%", "%%"))


def _as_text(column: sql.Composable, kind: str, oid: int) -> sql.Composed:
    from psycopg import sql

    reader = read_text(kind, "")
    if kind.strip().lower() == "timestamp":
        # Infinity has no number: it comes as the word that it is, and whoever reads it can say
        # whose it was.
        return sql.SQL(
            "CASE WHEN pg_catalog.isfinite({0}::pg_catalog.timestamptz) "
            "THEN (EXTRACT(epoch FROM {0}::pg_catalog.timestamptz) OPERATOR(pg_catalog.*) "
            "1000000)::bigint::pg_catalog.text "
            "ELSE ({0}::pg_catalog.timestamptz)::pg_catalog.text END"
        ).format(column)
    if reader is read_text("binary", ""):
        return sql.SQL("pg_catalog.encode({}::pg_catalog.bytea, 'hex')").format(column)
    if reader is not read_text("boolean", ""):
        return as_text(column, oid)
    # A text of another type is read as any text is: no cast of that type to boolean is called.
    value = column if is_built_in(oid) else sql.SQL("({})").format(as_text(column, oid))
    return sql.SQL("{}::boolean::pg_catalog.text").format(value)


def _micros(name: str | None) -> sql.Composable:
    """Return a time in microseconds; null where there is none. No ``timestamptz`` is as late, or
    as early, as the numbers for infinity.
    """
    from psycopg import sql

    if name is None:
        return sql.SQL("NULL::bigint")
    column = sql.SQL("t.{}::pg_catalog.timestamptz").format(_named(name))
    return sql.SQL(
        "CASE WHEN pg_catalog.isfinite({0}) THEN (EXTRACT(epoch FROM {0}) OPERATOR(pg_catalog.*) "
        "1000000)::bigint "
        "WHEN {0} OPERATOR(pg_catalog.>) pg_catalog.now() THEN 9223372036854775807 "
        "WHEN {0} OPERATOR(pg_catalog.<) pg_catalog.now() THEN -9223372036854775808 END"
    ).format(column)
