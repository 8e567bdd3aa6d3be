"""What an error of PostgreSQL or libpq means for the sink, and how it is told: the thing, the
remedy, and no password.

A statement's error has a code (https://www.postgresql.org/docs/current/errcodes-appendix.html).
That of a refused connection hasn't: libpq gives its text alone. The texts are looked for in
English; from a server that speaks another language (``lc_messages``) a refusal is taken for a
server that is away, and tried again until the patience ends, and then told with its text.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from onceforall.errors import (
    AttemptFailedError,
    OnceForAllError,
    RefusedRecordError,
    SinkCheckError,
    SinkUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

# 20: a CASE without a fitting branch. 21000: ON CONFLICT met a key twice. 22: a value that its
# type can't take. 23: a constraint. 2F, 38, 39: raised by a function in SQL or another language.
# 44000: a view's check option. 54000: a row, or its part in an index, is larger than a page takes.
# P0: raised by a function in PL/pgSQL, such as a trigger or the check of a domain.
_ABOUT_ROWS = ("20", "21000", "22", "23", "2F", "38", "39", "44000", "54000", "P0")
_AWAY_CLASSES = ("08", "53", "58", "XX")
_AWAY = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "25006", "25P03", "25P04"})
_MISSING = {
    "42P01": "It was dropped or renamed. Restart the query when it is there again.",
    "42703": "It was dropped or renamed. Restart the query, which compares its columns with the "
    "table's.",
    "3F000": "Create it, or correct the table's name.",
}

# Text of the server or of libpq, and the remedy. One pattern and remedy per line of thought; the
# first that fits counts.
_REFUSALS: tuple[tuple[str, str], ...] = (
    (r"password authentication failed", "Correct user and password."),
    (
        r"no password supplied|password is empty",
        "The server asks for one: give password=, as a value or a function.",
    ),
    (
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        (
            "The server's pg_hba.conf allows no such connection: let its administrator add a line "
            "for this user, database and address, "
            "or change sslmode if the line is there for encrypted or for plain connections only."
        ),
    ),
    (r'database ".*" does not exist', "Correct dbname, or create the database."),
    (
        r'database ".*" is not currently accepting connections',
        "Its administrator has closed it (ALTER DATABASE … ALLOW_CONNECTIONS true opens it).",
    ),
    (r'role ".*" does not exist', "Correct the user, or create the role."),
    (r'role ".*" is not permitted to log in', "Allow it: ALTER ROLE … LOGIN."),
    (r'permission denied for database "', "Grant it: GRANT CONNECT ON DATABASE … TO …."),
    (
        (
            r"authentication failed|requires a valid client certificate|no PostgreSQL user name "
            r"specified"
        ),
        "The server doesn't believe who this is. Correct the user, or what proves it.",
    ),
    (r"server does not support SSL", "Let the server have TLS (ssl=on), or lower sslmode."),
    (
        r"certificate verify failed|self-signed certificate",
        "Give sslrootcert=, the file of the authority that signed the server's certificate.",
    ),
    (
        r"does not match host name|certificate could not be obtained",
        "Connect by the name in the server's certificate, or give it another one.",
    ),
    (
        (
            r"root certificate file|could not (read|load|open|access).*(certificate|private "
            r"key|CRL)|private key file|certificate present, but not"
        ),
        (
            "Correct sslrootcert, sslcert and sslkey: they must be readable here and on every "
            "executor, and the key by its owner alone."
        ),
    ),
    (
        r"requirement not met|channel binding required|authentication method requirement",
        "The server offers less than require_auth or channel_binding ask.",
    ),
    (
        (
            r"invalid .* value|invalid integer value|bad value for|invalid port|definition of "
            r"service|could not match \d+ port|could not parse network address|socket path .* too "
            r"long|unrecognized configuration parameter|invalid value for parameter|requires a "
            r"value"
        ),
        "Correct that parameter of the connection.",
    ),
)


def connection_error(error: psycopg.Error, target: str) -> OnceForAllError:
    """Say what a failed attempt to connect means.

    Args:
        error: of psycopg's ``connect``.
        target: host, port and database, as messages name them.

    Returns:
        SinkCheckError for what stays so until somebody mends it, SinkUnavailableError for a server
        that is away, starting, or full.
    """
    text = told(error)
    for pattern, remedy in _REFUSALS:
        if re.search(pattern, text):
            return SinkCheckError(f"PostgreSQL at {target} can't be used: {text}. {remedy}")
    if "session is read-only" in text or "server is in hot standby" in text:
        remedy = (
            "It is a standby, or default_transaction_read_only is on for this user or "
            "database. Give the address of the primary."
        )
    elif "resolve host" in text or "translate host name" in text:
        remedy = "Check the host's name."
    elif re.search(r"too many (connections|clients)|connection slots are reserved", text):
        remedy = (
            "Raise max_connections (or the limit of the role or database), or run fewer "
            "tasks at once."
        )
    else:
        remedy = "See that the server runs and can be reached from here."
    return SinkUnavailableError(
        f"PostgreSQL at {target} did not take the connection: {text}. {remedy}"
    )


def is_refusal(error: psycopg.Error) -> bool:
    """Tell from the code whether the server refused a row: no repetition helps. A code that neither
    SQL nor PostgreSQL has is one that the database's own functions raise (``USING ERRCODE``).
    """
    code = error.sqlstate
    if code is None:
        return False
    return code.startswith(_ABOUT_ROWS) or _is_of_users(code)


def _is_of_users(code: str) -> bool:
    from psycopg.errors import lookup

    try:
        lookup(code)
    except KeyError:
        # An older psycopg doesn't know each code of a newer server.
        return code not in _AWAY and code[:2] not in _AWAY_CLASSES
    return False


def statement_error(error: psycopg.Error, what: str) -> OnceForAllError:
    """Say what a failed statement means.

    Args:
        error: of psycopg.
        what: what was being done, as the beginning of a sentence: ``"Merging into table x"``.

    Returns:
        RefusedRecordError for errors of the data (``is_refusal``), SinkCheckError for missing
        rights and objects, SinkUnavailableError for a lost or overloaded server,
        AttemptFailedError for everything else (locks, deadlocks, cancelled statements).
    """
    code = error.sqlstate
    text = f"{what} failed: {told(error)}"
    if code is None:
        kind, remedy = _without_code(error)
        return kind(f"{text}.{remedy}")
    if is_refusal(error):
        return RefusedRecordError(f"{text}. Correct the data, or the table.")
    if code in _AWAY or code[:2] in _AWAY_CLASSES:
        return SinkUnavailableError(f"{text} (SQLSTATE {code}). See the server's log.")
    if code == "42501":
        return SinkCheckError(f"{text}. Grant the role what it lacks.")
    if code in _MISSING:
        return SinkCheckError(f"{text}. {_MISSING[code]}")
    return AttemptFailedError(f"{text} (SQLSTATE {code})")


def _without_code(error: psycopg.Error) -> tuple[type[OnceForAllError], str]:
    import psycopg

    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return SinkUnavailableError, " The connection to PostgreSQL was lost."
    return AttemptFailedError, ""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise every error of psycopg within as ``statement_error`` says it."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise statement_error(error, what) from error


def told(error: psycopg.Error) -> str:
    """Return the text of an error in one line, with its detail, without a full stop at the end."""
    diagnosis = error.diag
    parts = (
        [diagnosis.message_primary, diagnosis.message_detail]
        if diagnosis.message_primary
        else [str(error)]
    )
    text = " ".join(". ".join(part.strip().rstrip(".") for part in parts if part).split())
    # The address stands in our own message; where several were tried, all that libpq says stays.
    return re.sub(
        r'^connection failed: connection to server at "[^"]*", port \d+ failed: (?!.*Multiple '
        r"connection)",
        "",
        text,
    )
