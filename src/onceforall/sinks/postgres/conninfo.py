"""The parameters of a connection: how a user may give them, which are refused, and how messages
name the address.

They are libpq's, by their own names
(https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS), parsed by libpq.

libpq takes each text up to its first U+0000, and a whole conninfo is one text: what stands behind
one is dropped in silence, be it the database or ``sslmode=verify-full``. So no value reaches libpq
that ``unfit`` hasn't seen.

No message has a word of a text that libpq couldn't parse, nor of libpq's own about it: where a
password isn't quoted, any part of the text may be one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from onceforall.common import user_functions
from onceforall.common.arguments import is_encodable, shown
from onceforall.errors import MissingExtraError, OptionError, SinkCheckError

Conninfo: TypeAlias = "str | Mapping[str, Any] | Callable[[], str | Mapping[str, Any]]"
"""A URL, a ``key=value`` string, a mapping of libpq's parameters, or a function that returns one
of them."""

SECRET_PARAMETERS = frozenset(
    {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
)
_NO_SECRETS = frozenset({
    "application_name", "authtype", "channel_binding", "client_encoding", "connect_timeout",
    "dbname", "fallback_application_name", "gssdelegation", "gssencmode", "gsslib", "host",
    "hostaddr", "keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval",
    "krbsrvname", "load_balance_hosts", "max_protocol_version", "min_protocol_version",
    "oauth_client_id", "oauth_issuer", "oauth_scope", "options", "passfile", "port",
    "replication", "require_auth", "requirepeer", "requiressl", "service", "servicefile",
    "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert", "sslcertmode",
    "sslcompression", "sslcrl", "sslcrldir", "sslkey", "sslkeylogfile", "sslmode",
    "sslnegotiation", "sslrootcert", "sslsni", "target_session_attrs", "tcp_user_timeout",
    "tty", "user",
})  # fmt: skip
"""libpq's parameters up to version 18 that may be seen. One that a later libpq adds may be secret
until somebody has looked: libpq itself marks not all that are."""

_REASONS = {
    'missing "="': "a part of it has no '='. A value with a blank stands in single quotes",
    "unterminated quoted string": "a single quote isn't closed",
    "invalid connection option": "it names an option that this libpq doesn't know",
    "invalid URI query parameter": "its URL names a parameter that this libpq doesn't know",
    "missing key/value separator": "a parameter behind its '?' has no '='",
    "extra key/value separator": "a parameter behind its '?' has two '='",
    "invalid percent-encoded token": "a '%' in its URL begins no percent-encoded character",
    "forbidden value %00": "its URL has the character U+0000",
}
"""Beginnings of what libpq says, in our words."""

_IN_ADDRESS = ("host", "hostaddr", "port", "dbname", "user", "service")

_REFUSED = {
    "replication": "The sink needs ordinary sessions. Leave it out.",
    "application_name": "The sink sets it, so that its sessions can be told apart. Leave it out.",
    "fallback_application_name": "The sink sets application_name. Leave it out.",
}


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtraError("psycopg", "postgres") from error
    return psycopg


def parsed(conninfo: object) -> dict[str, Any]:
    """Return the parameters by name, checked."""
    psycopg = _psycopg()
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq import Conninfo

    if not isinstance(conninfo, (str, Mapping)):
        raise OptionError(
            f"The conninfo is a {type(conninfo).__name__}. Give a URL (postgresql://…), a string "
            "of key=value, or a dict of libpq's parameters."
        )
    given = conninfo_or_functions(conninfo)
    functions = {name: value for name, value in given.items() if callable(value)}
    try:
        if isinstance(conninfo, str):
            if unfit(conninfo):
                raise OptionError(f"The conninfo {unfit(conninfo)}")
            if conninfo.lower().lstrip().startswith("jdbc:"):
                raise OptionError(
                    "The conninfo is an address of JDBC's, and libpq has its own: "
                    "postgresql://user@host:5432/database. Drop 'jdbc:', and put user and password "
                    "where libpq has them, or give password=."
                )
            _check_encoded(conninfo)
            parameters = dict(conninfo_to_dict(conninfo))
        else:
            plain = _plain(given, {option.keyword.decode() for option in Conninfo.parse(b"")})
            parameters = dict(conninfo_to_dict(make_conninfo(**plain)))
            if parameters != plain:
                changed = sorted(
                    name
                    for name in {*plain, *parameters}
                    if plain.get(name) != parameters.get(name)
                )
                raise OptionError(
                    f"libpq understands {', '.join(changed)} of the conninfo in another way than "
                    "was given. Correct the value."
                )
    except (psycopg.Error, TypeError) as error:
        # Neither chained nor quoted.
        reason = next(
            (ours for theirs, ours in _REASONS.items() if str(error).startswith(theirs)),
            "it is neither a URL (postgresql://…) nor a string of key=value",
        )
        raise OptionError(
            f"The conninfo can't be parsed: {reason}. See "
            "https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING; in a "
            "URL, special characters of user and password are percent-encoded."
        ) from None
    parameters |= functions
    _check_parameters(parameters)
    return parameters


def is_secret(name: str) -> bool:
    """Tell whether the value of a parameter may be secret: it is in no pickle."""
    return name not in _NO_SECRETS


def unfit(value: str) -> str:
    """Return why libpq can't have a text as it is, with the remedy and without any of it; empty
    where it can.
    """
    if "\0" in value:
        return (
            "has the character U+0000, which ends a text for libpq: everything behind it would be "
            "dropped. Remove it; files of secrets are often padded with it."
        )
    if not is_encodable(value):
        return (
            "holds half a character (a lone surrogate), which no server understands. Give a text "
            "of whole ones."
        )
    return ""


def _plain(given: Mapping[str, Any], known: Collection[str]) -> dict[str, str]:
    """Return the values of a mapping as the texts that libpq gets, without functions.

    Raises:
        OptionError: a name that libpq doesn't know, or a value that it can't have as it is.
    """
    plain = {}
    for name, value in given.items():
        if name not in known:
            raise OptionError(
                f"Parameter {shown(name)} of the conninfo is unknown to this libpq. Correct it; "
                "https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS "
                "lists them."
            )
        if value is None or callable(value):
            continue
        plain[name] = str(value)
        if unfit(plain[name]):
            raise OptionError(f"Parameter {name!r} of the conninfo {unfit(plain[name])}")
    return plain


def _check_encoded(conninfo: str) -> None:
    """See that a URL's password ends where libpq takes it to end: the rest of it would be a part of
    the address, which messages show.

    Raises:
        OptionError: showing nothing of it.
    """
    scheme, is_url, rest = conninfo.partition("://")
    place, _, path = rest.partition("?")[0].partition("/")
    if is_url and "=" not in scheme and ("@" in path or place.count("@") > 1):
        raise OptionError(
            "The conninfo's URL has an '@' too many: user and password can't be told from the "
            "address. Percent-encode them, '@' as %40 and '/' as %2F "
            "(urllib.parse.quote(password, safe='')), or give password=."
        )


def conninfo_or_functions(conninfo: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a mapping, having checked that only secrets are functions.

    Raises:
        OptionError: another parameter is a function.
    """
    if isinstance(conninfo, str):
        return {}
    for name, value in conninfo.items():
        if not isinstance(name, str) or not (
            value is None or callable(value) or isinstance(value, str | int | float)
        ):
            raise OptionError(
                f"Parameter {shown(name)} of the conninfo is a {type(value).__name__}. Give a "
                "text, a number or, for a secret, a function."
            )
        if callable(value) and not is_secret(name):
            raise OptionError(
                f"Parameter {shown(name)} of the conninfo can't be a function; "
                f"{', '.join(sorted(SECRET_PARAMETERS))} can, and the whole conninfo."
            )
    return dict(conninfo)


def _check_parameters(parameters: Mapping[str, Any]) -> None:
    for name, reason in _REFUSED.items():
        if name in parameters:
            raise OptionError(f"Parameter {name!r} of the conninfo is refused. {reason}")
    for name in _IN_ADDRESS:
        if any(sign in str(parameters.get(name, "")) for sign in ("://", "password=")):
            raise OptionError(
                f"Parameter {name!r} of the conninfo is a whole address, which would be shown with "
                "its password. Give the address as the conninfo itself, or each part by its name."
            )
    if str(parameters.get("client_encoding", "UTF8")).upper().replace("-", "") not in {
        "UTF8",
        "AUTO",
    }:
        raise OptionError(
            "Parameter 'client_encoding' of the conninfo is refused: the sink sends UTF-8. Leave "
            "it out."
        )
    if not all(
        port.strip().isdecimal() for port in str(parameters.get("port") or "0").split(",") if port
    ):
        raise OptionError(
            "Parameter 'port' of the conninfo is no number. Give one, such as 5432; of several "
            "hosts, with commas."
        )
    if parameters.get("target_session_attrs", "primary") not in {"read-write", "primary", "any"}:
        raise OptionError(
            "Parameter 'target_session_attrs' must be primary (the default) or read-write: the "
            "sink writes."
        )


def address_of(parameters: Mapping[str, Any]) -> str:
    """Return ``host:port/database as user``, for messages; without secrets."""
    hosts = str(parameters.get("host") or parameters.get("hostaddr") or "").split(",")
    ports = str(parameters.get("port") or "").split(",")
    places = [
        f"{host or 'localhost'}:{ports[min(at, len(ports) - 1)] or '5432'}"
        for at, host in enumerate(hosts)
    ]
    if "service" in parameters and hosts == [""]:
        places = [f"service {parameters['service']}"]
    user = f" as {parameters['user']!r}" if "user" in parameters else ""
    return f"{','.join(places)}/{parameters.get('dbname', '')}{user}"


def called(name: str, function: Callable[[], Any]) -> Any:
    """Call a user's function; see ``user_functions.call``.

    Raises:
        SinkCheckError: it failed, or hangs.
    """
    try:
        return user_functions.call(function)
    except user_functions.FunctionFailedError as error:
        message = f"The function given for {name!r} {error}. Mend it, or what it asks."
    raise SinkCheckError(message)
