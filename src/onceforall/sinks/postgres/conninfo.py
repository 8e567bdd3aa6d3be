"""The parameters of a connection: how a user may give them, which are refused, and how messages
name the address.

They are libpq's, by their own names
(https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS), parsed by libpq.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from onceforall.common.arguments import is_encodable, shown
from onceforall.errors import MissingExtraError, OptionError, SinkCheckError

Conninfo: TypeAlias = "str | Mapping[str, Any] | Callable[[], str | Mapping[str, Any]]"
"""A URL, a ``key=value`` string, a mapping of libpq's parameters, or a function that returns one
of them."""

SECRET_PARAMETERS = frozenset({"password", "sslpassword", "oauth_client_secret"})

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

    if not isinstance(conninfo, (str, Mapping)):
        raise OptionError(
            f"The conninfo is a {type(conninfo).__name__}. Give a URL (postgresql://…), a string "
            "of key=value, or a dict of libpq's parameters."
        )
    if isinstance(conninfo, str):
        if not is_encodable(conninfo):
            raise OptionError(
                "The conninfo holds half a character (a lone surrogate), which no server "
                "understands. Give a text of whole ones."
            )
        _check_encoded(conninfo)
    given = conninfo_or_functions(conninfo)
    functions = {name: value for name, value in given.items() if callable(value)}
    try:
        if isinstance(conninfo, str):
            parameters = dict(conninfo_to_dict(conninfo))
        else:
            plain = {
                name: str(value)
                for name, value in given.items()
                if name not in functions and value is not None
            }
            parameters = dict(conninfo_to_dict(make_conninfo(**plain)))
    except (psycopg.Error, TypeError) as error:
        # Not chained: libpq quotes what it can't parse, which may be a password.
        reason = re.sub(r'"[^"]*"', '"…"', str(error)).strip()
        unknown = re.fullmatch(
            r'invalid (URI query parameter|connection option):? "(\w+)"\s*', str(error)
        )
        reason = str(error).strip() if unknown else reason
        raise OptionError(
            f"The conninfo can't be parsed: {reason}. See "
            "https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING; in a "
            "URL, "
            "special characters of user and password are percent-encoded."
        ) from None
    parameters |= functions
    _check_parameters(parameters)
    return parameters


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
        if callable(value) and name not in SECRET_PARAMETERS:
            raise OptionError(
                f"Parameter {name!r} of the conninfo can't be a function; "
                f"{', '.join(sorted(SECRET_PARAMETERS))} can, and the whole conninfo."
            )
    return dict(conninfo)


def _check_parameters(parameters: Mapping[str, Any]) -> None:
    for name, reason in _REFUSED.items():
        if name in parameters:
            raise OptionError(f"Parameter {name!r} of the conninfo is refused. {reason}")
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
    """Call a user's function; of its error only the kind and the place are told, for the text
    may hold a secret.
    """
    try:
        return function()
    except Exception as error:  # noqa: BLE001
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = (
            f" in line {trace.tb_lineno} of {Path(trace.tb_frame.f_code.co_filename).name}"
            if trace
            else ""
        )
        message = (
            f"The function given for {name!r} raised {type(error).__name__}{where}. Mend "
            "it, or what it asks."
        )
    raise SinkCheckError(message)
