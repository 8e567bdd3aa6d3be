"""How the sink reaches PostgreSQL: its secrets, the patience, and the settings of each session. The
parameters are of module ``conninfo``.

TLS parameters (``sslmode``, ``sslrootcert``, ``sslcert``, ``sslkey`` …) pass through; files must be
there on every executor, too.

A password is a value or a function without arguments, called at each connect in the process that
connects. A value never leaves the process in a pickle: ``Access.__getstate__`` leaves it out, and
``onceforall.task.secret_values`` carries it to the tasks.

A role's, database's or server's defaults may not change what the sink does, so each session sets
what matters:

- *setting*: *why*
- ``TimeZone`` UTC, ``DateStyle`` ISO, ``IntervalStyle`` postgres, ``extra_float_digits`` 1,
  ``bytea_output`` hex, ``xmloption``, ``xmlbinary``, ``array_nulls``: no value may depend on them,
  where it becomes a text or is read from one
- ``standard_conforming_strings``, ``transform_null_equals``, ``gin_fuzzy_search_limit``: statements
  mean what they say
- ``exit_on_error`` off: a row that is refused ends no session
- ``synchronous_commit`` not ``off``: what was committed must survive a crash of the server;
  stricter values stay
- ``statement_timeout`` 0: a large COPY or merge may take long
- ``idle_in_transaction_session_timeout`` 0, ``transaction_timeout`` 0, ``idle_session_timeout`` 0:
  a transaction is held open between ``confirm`` and the decision
- ``lock_timeout`` 30 s: nobody waits for another's lock for ever
- ``tcp_keepalives_*``: the server ends the session of a machine that is gone in about two minutes
- ``default_transaction_isolation`` ``read committed``: the protocol's own checks need no other, and
  no statement may fail for it
- ``session_replication_role`` not ``replica``, where the role may change it: foreign keys and
  triggers hold. A start refuses a role that may not
- ``default_transaction_read_only`` off, ``default_transaction_deferrable`` off: each transaction
  writes, and begins at once
- ``client_min_messages`` warning: notices go to nobody

Connections that a pooler shares between clients by transaction or statement (PgBouncer's
``pool_mode=transaction``) can't be used: the settings above and open transactions belong to the
session.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from onceforall.common import logs
from onceforall.common.arguments import shown
from onceforall.errors import (
    OnceForAllError,
    OptionError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.sinks.postgres.conninfo import (
    Conninfo,
    address_of,
    called,
    is_secret,
    parsed,
    unfit,
)
from onceforall.sinks.postgres.replication import remembering
from onceforall.sinks.postgres.server_errors import connection_error, statement_error

if TYPE_CHECKING:
    import psycopg

_log = logs.logger("onceforall.sinks.postgres")

OLDEST_VERSION = 140000
"""PostgreSQL 14, the oldest that its makers still mend."""

_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
    # Not "read-write": libpq asks for the defaults that each session of ours overrides.
    "target_session_attrs": "primary",
}
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_SESSION = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmloption": "content",
    "xmlbinary": "base64",
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "gin_fuzzy_search_limit": "0",
    "exit_on_error": "off",
    "quote_all_identifiers": "off",
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "statement_timeout": "0",
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "tcp_keepalives_idle": "60",
    "tcp_keepalives_interval": "15",
    "tcp_keepalives_count": "4",
}
_SESSION_SINCE_17 = {"transaction_timeout": "0"}
_MAY_SET_ROLE_OF_REPLICATION = (
    "(SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) current_user)"
)
_MAY_SINCE_15 = "pg_catalog.has_parameter_privilege('session_replication_role', 'SET')"


class Access:
    """Everything that is needed to connect; made once, pickled to the tasks, without secret
    values there.
    """

    def __init__(
        self,
        conninfo: Conninfo,
        *,
        password: str | Callable[[], str] | None = None,
        patience_s: float = 30.0,
    ) -> None:
        """Nothing is connected yet.

        Args:
            conninfo: see ``Conninfo``; a function is called at each connect.
            password: a value or a function, in place of one in `conninfo`.
            patience_s: how many seconds ``connect`` tries to reach a server that is away.

        Raises:
            OptionError: `conninfo` can't be parsed, or has a parameter that would break the sink;
                no message holds a secret.
            MissingExtraError: psycopg is not installed.
        """
        if (
            password is not None
            and not callable(password)
            and (not isinstance(password, str) or not password)
        ):
            raise OptionError(
                "password= is empty or no string. Give a string, or a function without arguments "
                "that returns one."
            )
        if isinstance(password, str) and unfit(password):
            raise OptionError(f"password= {unfit(password)}")
        self._function = conninfo if callable(conninfo) else None
        self._parameters: dict[str, Any] = {} if callable(conninfo) else parsed(conninfo)
        self._password = password
        self._withheld: tuple[str, ...] = ()
        if password is not None and "password" in self._parameters:
            raise OptionError(
                "The password is given twice: in the conninfo and as password=. Leave one of them "
                "out."
            )
        if (
            isinstance(patience_s, bool)
            or not isinstance(patience_s, int | float)
            or not 0 <= patience_s < float("inf")
        ):
            raise OptionError(
                f"patience_s={shown(patience_s)} is no number of seconds. Give one from 0 up."
            )
        self.patience_s = float(patience_s)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_parameters"] = {
            name: value
            for name, value in self._parameters.items()
            if callable(value) or not is_secret(name)
        }
        state["_withheld"] = tuple(sorted({*self._withheld, *self.secret_values()}))
        if not callable(self._password):
            state["_password"] = None
        return state

    def __copy__(self) -> Access:
        # A copy stays in this process, so it keeps the secret values.
        made = Access.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Access:
        return self.__copy__()

    def __repr__(self) -> str:
        return f"Access({self.target})"

    @property
    def target(self) -> str:
        """``host:port/database as user``, for messages; without secrets."""
        return (
            address_of(self._parameters)
            if self._function is None
            else "(the address that a function gives)"
        )

    @property
    def database(self) -> str | None:
        """The database's name; None when libpq or a function decides."""
        name = self._parameters.get("dbname")
        return None if name is None else str(name)

    def secret_values(self) -> dict[str, str]:
        """Return the secret values that a pickle leaves out, by parameter; functions go to the
        tasks as they are.
        """
        values = {
            name: value
            for name, value in self._parameters.items()
            if is_secret(name) and isinstance(value, str)
        }
        if isinstance(self._password, str):
            values["password"] = self._password
        return values

    def restore(self, secrets: Mapping[str, str]) -> None:
        """Take back, in another driver's process, the secret values that a pickle left out."""
        self._parameters = {**self._parameters, **secrets}
        self._withheld = ()

    def connect(
        self,
        secrets: Mapping[str, str] | None = None,
        *,
        application_name: str,
        autocommit: bool = False,
        patience_s: float | None = None,
        settings: Mapping[str, str] | None = None,
        set_up_within_s: float | None = None,
    ) -> psycopg.Connection[tuple[Any, ...]]:
        """Open a connection whose session has the settings of the module's docstring.

        A server that is away, starting or full is tried again, with growing pauses, until the
        patience ends.

        Args:
            secrets: in a task, those of its ``TaskAttempt``; on the driver none.
            application_name: as ``pg_stat_activity`` shows it, at most 63 bytes; longer ones are
                cut by the server.
            autocommit: of the connection.
            patience_s: in place of the access's own.
            settings: session settings that replace those of this module, and more.
            set_up_within_s: how long setting them may take, beyond libpq's ``connect_timeout`` for
                what is before; None: as long as that says, too.

        Raises:
            SinkCheckError: wrong password, unknown database, no right, bad certificate, a server
                that is too old.
            SinkUnavailableError: away for all of that time.
        """
        deadline = time.monotonic() + (self.patience_s if patience_s is None else patience_s)
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return self._connect_once(
                    secrets or {},
                    application_name,
                    settings or {},
                    set_up_within_s,
                    autocommit=autocommit,
                )
            except SinkUnavailableError as error:
                if time.monotonic() + pause > deadline:
                    raise
                _log.info("%s", error)
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  many tasks shall not come back at the same moment
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _connect_once(
        self,
        secrets: Mapping[str, str],
        application_name: str,
        settings: Mapping[str, str],
        set_up_within_s: float | None,
        *,
        autocommit: bool,
    ) -> psycopg.Connection[tuple[Any, ...]]:
        import psycopg

        parameters = self._resolved(secrets)
        try:
            connection: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(
                **parameters,
                application_name=application_name,
                autocommit=True,
                prepare_threshold=None,
            )
        except psycopg.Error as error:
            # Not chained: the driver's error has the connection with it.
            raise connection_error(error, address_of(parameters)) from None
        except UnicodeError as error:
            # psycopg looks hosts up itself.
            raise SinkCheckError(
                f"PostgreSQL at {address_of(parameters)} can't be looked for: {error}. Correct the "
                "host of the conninfo (or PGHOST); its parts have 1 to 63 characters."
            ) from None
        try:
            _check_version(connection, address_of(parameters))
            within_s = _seconds_of(parameters) if set_up_within_s is None else set_up_within_s
            with (
                nullcontext()
                if within_s is None
                else answering(connection, within_s, late(address_of(parameters), within_s))
            ):
                _set_up(connection, settings)
            connection.autocommit = autocommit
        except psycopg.Error as error:
            connection.close()
            raise statement_error(
                error, f"Setting up a session at {address_of(parameters)}"
            ) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _resolved(self, secrets: Mapping[str, str]) -> dict[str, Any]:
        parameters = dict(self._parameters)
        if self._function is not None:
            parameters = parsed(called("conninfo", self._function))
        if self._password is not None:
            parameters["password"] = self._password
        for name in self._withheld:
            if name not in parameters:
                if name not in secrets:
                    raise SinkCheckError(
                        f"The value of {name!r} for PostgreSQL did not reach this process. Give a "
                        "function in place of the value."
                    )
                parameters[name] = secrets[name]
        for name, value in parameters.items():
            if callable(value):
                parameters[name] = called(name, value)
                if not isinstance(parameters[name], str) or not parameters[name]:
                    raise SinkCheckError(
                        f"The function given for {name!r} returned no string, or an empty one. "
                        "Let it return one."
                    )
            if unfit(str(parameters[name])):
                raise SinkCheckError(
                    f"The value of {name!r} for PostgreSQL {unfit(str(parameters[name]))}"
                )
        return {**_DEFAULTS, **parameters, "client_encoding": "UTF8"}


def late(target: str, within_s: float) -> str:
    """Return what is told of a server that takes connections and doesn't answer."""
    return (
        f"PostgreSQL at {target} took the connection and gave no answer within {within_s:g} s. "
        "See whether the server, or a proxy before it, hangs, or a synchronous standby is away "
        "(pg_stat_activity shows the wait_event SyncRep then)."
    )


def _seconds_of(parameters: Mapping[str, Any]) -> float | None:
    """Return libpq's ``connect_timeout``; None where it is none."""
    try:
        seconds = float(parameters["connect_timeout"])
    except ValueError:
        return None
    return seconds if seconds > 0 else None


@contextmanager
def answering(connection: psycopg.Connection[Any], within_s: float, message: str) -> Iterator[None]:
    """Cut a connection off when what is done with it takes longer: where the server itself hangs,
    its own time-outs end nothing.

    Nor do keep-alives and ``tcp_user_timeout``: the system of a server that is frozen answers in
    its place.

    Raises:
        SinkUnavailableError: with this message, in place of the error of the connection that was
            cut off.
    """
    import psycopg

    is_cut = threading.Event()

    def cut_off() -> None:
        is_cut.set()
        with suppress(OSError):
            duplicate.shutdown(socket.SHUT_RDWR)

    # A descriptor of its own: whatever is done with the connection meanwhile, no other one can have
    # this number.
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        watchdog = threading.Timer(within_s, cut_off)
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        except (psycopg.Error, OnceForAllError) as error:
            if not is_cut.is_set():
                raise
            raise SinkUnavailableError(message) from error
        finally:
            watchdog.cancel()
            watchdog.join()


def _check_version(connection: psycopg.Connection[Any], target: str) -> None:
    version = connection.info.server_version
    if version < OLDEST_VERSION:
        raise SinkCheckError(
            f"PostgreSQL at {target} has version {version // 10000}, and the sink needs "
            f"{OLDEST_VERSION // 10000} or newer. Upgrade the server."
        )


def _set_up(connection: psycopg.Connection[Any], settings: Mapping[str, str]) -> None:
    wanted = dict(_SESSION)
    if connection.info.server_version >= 170000:
        wanted |= _SESSION_SINCE_17
    wanted |= settings
    # set_config's third argument: for the session. One round trip for all.
    calls = ["pg_catalog.set_config(%s, %s, false)"] * len(wanted)
    now = "pg_catalog.current_setting('synchronous_commit')"
    durable = remembering(
        f"pg_catalog.set_config('synchronous_commit', CASE WHEN {now} "
        f"OPERATOR(pg_catalog.=) 'off' THEN 'on' ELSE {now} END, false)"
    )
    # Who may not set it is refused it even where it has that value already.
    allowed = (
        _MAY_SINCE_15 if connection.info.server_version >= 150000 else _MAY_SET_ROLE_OF_REPLICATION
    )
    as_origin = (
        "CASE WHEN pg_catalog.current_setting('session_replication_role') "
        f"OPERATOR(pg_catalog.=) 'replica' AND {allowed} "
        "THEN pg_catalog.set_config('session_replication_role', 'origin', false) END"
    )
    values = [part for pair in wanted.items() for part in pair]
    connection.execute(f"SELECT {', '.join([*calls, durable, as_origin])}".encode(), values)
