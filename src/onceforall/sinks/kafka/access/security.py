"""The options for TLS and SASL, what is refused among them, and their secrets.

They serve librdkafka's connections in the tasks and the driver's own, which module
``secure_connections`` makes. The options are those of librdkafka, by their own names. What
librdkafka can do and Python's ``ssl`` can't, or the reverse, is refused by name, and so is
everything that would run or load code that the options name. A secret is a value or a function
without arguments, which is called in the process that connects. A value never leaves the process in
a pickle: ``without_values`` takes it out, and ``onceforall.task.secret_values`` carries it to the
tasks.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onceforall.common import user_functions
from onceforall.errors import AttemptFailedError, OptionError

_log = logging.getLogger("onceforall.sinks.kafka")

PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

SECRET_OPTIONS = frozenset(
    {"sasl.password", "sasl.oauthbearer.config", "ssl.key.password", "ssl.key.pem"}
)
"""Options whose values are secrets."""

CALLABLE_OPTIONS = SECRET_OPTIONS | {"sasl.username", "ssl.certificate.pem", "ssl.ca.pem"}
"""Options whose value may be a function without arguments that returns a string."""

TOKEN_OPTION = "oauth_cb"  # noqa: S105  the name of an option

_SASL_OPTIONS = {
    "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "sasl.oauthbearer.method", "sasl.oauthbearer.config", TOKEN_OPTION,  # noqa: E501
}  # fmt: skip
TLS_OPTIONS = {
    "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem", "ssl.key.password",  # noqa: E501
    "ssl.cipher.suites", "ssl.crl.location", "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification",  # noqa: E501
}  # fmt: skip
_SECURITY_PREFIXES = (
    "sasl.",
    "sasl_",
    "ssl.",
    "ssl_",
    "https.",
    "enable.ssl.",
    "enable.sasl.",
    "security.",
)

_VERIFICATION = "enable.ssl.certificate.verification"
_TRUE, _FALSE = {"true", "t", "1"}, {"false", "f", "0"}

_JAVA = (
    "It is Java's, and could name code to be run. Use sasl.mechanism with sasl.username and "
    "sasl.password, or with oauth_cb."
)
_KERBEROS = (
    "Kerberos runs a command of its own (kinit), and neither confluent-kafka's wheels nor the "
    "driver's client speak it. Use SCRAM over "
    "TLS, PLAIN over TLS, OAUTHBEARER, or a client certificate."
)
_PKCS12 = (
    "The driver's client reads PEM only. Convert the store (openssl pkcs12 -in STORE -out "
    "client.pem) and use ssl.certificate.location, "
    "ssl.key.location and ssl.key.password."
)
_NATIVE = "It would load native code into the driver and the tasks. Leave it out."
_OIDC = (
    "librdkafka would fetch tokens by itself, which the driver's client can't. Give oauth_cb=, a "
    "function that takes the value of "
    "sasl.oauthbearer.config and returns (token, expiry time in seconds)."
)
_ONE_SIDED = "The driver's client can't set it, and both clients must behave alike. Leave it out."
_REFUSED: Mapping[str, str] = {
    "sasl.jaas.config": _JAVA,
    "sasl.login.": _JAVA,
    "sasl.client.callback.handler.class": _JAVA,
    "security.providers": _JAVA,
    "sasl.kerberos.": _KERBEROS,
    "ssl.keystore.": _PKCS12,
    "ssl.truststore.": "It is Java's. Use ssl.ca.location, a file of certificates in PEM.",
    "ssl.engine.": _NATIVE,
    "ssl_engine_": _NATIVE,
    "ssl.providers": _NATIVE,
    "ssl.curves.list": _ONE_SIDED,
    "ssl.sigalgs.list": _ONE_SIDED,
    "ssl.ca.certificate.stores": "It is for Windows only. Use ssl.ca.location, a file of "
    "certificates in PEM.",
    "sasl.oauthbearer.": _OIDC,
    "https.": _OIDC,
    "enable.sasl.oauthbearer.unsecure.jwt": "Such tokens prove nothing. Give oauth_cb=, a "
    "function that returns a real one.",
}


class AccessError(AttemptFailedError):
    """A broker can't be spoken to with these security options; the message names the option.
    Asking again at once helps nobody.
    """


@dataclass(frozen=True)
class Withheld:
    """What stands in a pickled sink where a secret value was."""


def is_security_option(name: str) -> bool:
    """Tell whether this module decides about an option."""
    return name == TOKEN_OPTION or name.startswith(_SECURITY_PREFIXES)


def refuse_by_name(name: str) -> None:
    """Refuse a security option that no value makes acceptable.

    Raises:
        OptionError: naming the reason and what to use instead.
    """
    if name in _SASL_OPTIONS or name in TLS_OPTIONS or name == "security.protocol":
        return
    for refused, reason in _REFUSED.items():
        if name == refused or (refused[-1] in "._" and name.startswith(refused)):
            raise OptionError(f"Option {name!r} is refused. {reason}")
    raise OptionError(
        f"Option {name!r} is not supported. TLS and SASL are set by security.protocol and "
        f"{', '.join(sorted(_SASL_OPTIONS | TLS_OPTIONS))}."
    )


def check_value(name: str, value: object) -> None:
    """Check the type of a security option's value.

    Raises:
        OptionError: naming the option and the type; never the value.
    """
    if name == TOKEN_OPTION:
        if not callable(value):
            raise OptionError(
                f"Option {name!r} is a {type(value).__name__}. Give a function that returns "
                "(token, expiry time)."
            )
    elif callable(value):
        if name not in CALLABLE_OPTIONS:
            raise OptionError(
                f"Option {name!r} can't be a function. Give a string; "
                f"{', '.join(sorted(CALLABLE_OPTIONS))} can."
            )
    elif (
        name in CALLABLE_OPTIONS
        and not isinstance(value, Withheld)
        and (not isinstance(value, str) or not value)
    ):
        raise OptionError(
            f"Option {name!r} is empty or no string. Give a string, or a function without "
            "arguments that returns one."
        )


def check_security(options: Mapping[str, Any]) -> None:
    """Check that the security options make sense together.

    Raises:
        OptionError: naming the option and what to do; never a secret.
    """
    protocol = protocol_of(options)
    if protocol not in PROTOCOLS:
        raise OptionError(
            f"Option 'security.protocol' is none of {', '.join(PROTOCOLS)}. Use one of these."
        )
    _refuse_unused(options, protocol)
    if "sasl" in protocol:
        _check_sasl(options)
    for kind in ("ca", "certificate", "key"):
        if {f"ssl.{kind}.location", f"ssl.{kind}.pem"} <= options.keys():
            raise OptionError(
                f"Options 'ssl.{kind}.location' and 'ssl.{kind}.pem' are both given. Leave one of "
                "them out."
            )
    has_certificate = bool({"ssl.certificate.location", "ssl.certificate.pem"} & options.keys())
    has_key = bool({"ssl.key.location", "ssl.key.pem"} & options.keys())
    if has_certificate != has_key:
        missing, given = (
            ("ssl.key.location", "certificate")
            if has_certificate
            else ("ssl.certificate.location", "key")
        )
        raise OptionError(
            f"Option {missing!r} (or its .pem) is missing, although a client {given} is given. "
            "Give both."
        )
    # The driver would not verify where librdkafka takes the value for none of its own, and a start
    # may send its password before librdkafka is asked.
    if _verification(options) not in _TRUE | _FALSE:
        raise OptionError(f"Option {_VERIFICATION!r} must be true (the default) or false.")
    algorithm = str(options.get("ssl.endpoint.identification.algorithm", "https")).lower()
    if algorithm not in {"https", "none"}:
        raise OptionError(
            "Option 'ssl.endpoint.identification.algorithm' must be 'https' (the default) or "
            "'none'."
        )


def _refuse_unused(options: Mapping[str, Any], protocol: str) -> None:
    unused = [name for name in options if name in TLS_OPTIONS and "ssl" not in protocol]
    unused += [name for name in options if name in _SASL_OPTIONS and "sasl" not in protocol]
    if unused:
        wanted = "sasl_ssl" if unused[0] in _SASL_OPTIONS else "ssl or sasl_ssl"
        raise OptionError(
            f"Option {unused[0]!r} has no effect with security.protocol={protocol}. Set "
            f"security.protocol={wanted}, or leave it out."
        )


def _check_sasl(options: Mapping[str, Any]) -> None:
    given = [name for name in ("sasl.mechanism", "sasl.mechanisms") if name in options]
    if len(given) != 1:
        raise OptionError(
            f"Option 'sasl.mechanism' is {'given twice' if given else 'missing'}. Use one of "
            f"{', '.join(MECHANISMS)}."
        )
    mechanism = mechanism_of(options)
    if mechanism == "GSSAPI":
        raise OptionError(f"Option {given[0]!r}: GSSAPI is refused. {_KERBEROS}")
    if mechanism not in MECHANISMS:
        raise OptionError(
            f"Option {given[0]!r} is none of {', '.join(MECHANISMS)}. Use one of these."
        )
    if str(options.get("sasl.oauthbearer.method", "default")).lower() != "default":
        raise OptionError(f"Option 'sasl.oauthbearer.method' must be 'default'. {_OIDC}")
    needed = [TOKEN_OPTION] if mechanism == "OAUTHBEARER" else ["sasl.username", "sasl.password"]
    for name in needed:
        if name not in options:
            raise OptionError(
                f"Option {name!r} is missing; sasl.mechanism={mechanism} needs it. Give it, as a "
                "value or a function."
            )
    useless = (
        {"sasl.username", "sasl.password"}
        if mechanism == "OAUTHBEARER"
        else {TOKEN_OPTION, "sasl.oauthbearer.config"}
    )
    for name in sorted(useless & options.keys()):
        raise OptionError(
            f"Option {name!r} has no effect with sasl.mechanism={mechanism}. Leave it out."
        )


def protocol_of(options: Mapping[str, Any]) -> str:
    """Return ``security.protocol`` in small letters."""
    return str(options.get("security.protocol", "plaintext")).lower()


def mechanism_of(options: Mapping[str, Any]) -> str:
    """Return the SASL mechanism in capitals; empty without one."""
    return str(options.get("sasl.mechanism", options.get("sasl.mechanisms", ""))).upper()


def principal_of(options: Mapping[str, Any]) -> str:
    """Return the principal as ACLs name it, or a placeholder where only the broker knows it."""
    user = options.get("sasl.username")
    return (
        f"User:{user}"
        if "sasl" in protocol_of(options) and isinstance(user, str)
        else "User:<principal>"
    )


def warn_of_weakness(options: Mapping[str, Any]) -> None:
    """Log what is allowed and unwise."""
    if protocol_of(options) == "sasl_plaintext" and mechanism_of(options) in {
        "PLAIN",
        "OAUTHBEARER",
    }:
        _log.warning(
            "security.protocol=sasl_plaintext with %s sends the secret in clear. Use sasl_ssl.",
            mechanism_of(options),
        )
    if "ssl" in protocol_of(options) and not verifies(options):
        _log.warning(
            "enable.ssl.certificate.verification=false: anybody can pretend to be a broker. Use "
            "ssl.ca.location."
        )


def verifies(options: Mapping[str, Any]) -> bool:
    """Tell whether brokers must prove who they are."""
    return _verification(options) not in _FALSE


def _verification(options: Mapping[str, Any]) -> str:
    return str(options.get(_VERIFICATION, True)).lower()


# --- secrets --------------------------------------------------------------------------------------


def without_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with every secret value taken out; functions stay."""
    return {
        name: Withheld() if name in SECRET_OPTIONS and isinstance(value, str) else value
        for name, value in options.items()
    }


def secret_values(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the secret values that ``without_values`` takes out."""
    return {
        name: value
        for name, value in options.items()
        if name in SECRET_OPTIONS and isinstance(value, str)
    }


def resolved(options: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return the options with every secret in place, having called the functions.

    Args:
        options: as given by the user, or ``without_values`` of it.
        secrets: the values that were taken out.

    Raises:
        AccessError: a function failed or returned no string, or a value is missing here.
    """
    return {name: _resolved(name, value, secrets) for name, value in options.items()}


def _resolved(name: str, value: Any, secrets: Mapping[str, str]) -> Any:
    if isinstance(value, Withheld):
        if name not in secrets:
            raise AccessError(
                f"The value of option {name!r} did not reach this process. Give a function "
                "instead of a value."
            )
        return secrets[name]
    if name not in CALLABLE_OPTIONS or not callable(value):
        return TokenSource(value) if name == TOKEN_OPTION else value
    found = _called(name, value)
    if not isinstance(found, str) or not found:
        raise AccessError(
            f"The function given for option {name!r} returned {_kind(found)}. Let it return a "
            "string."
        )
    return found


def _kind(value: object) -> str:
    return "an empty string" if value == "" else f"a {type(value).__name__}"


def _called(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return user_functions.call(function, *arguments)
    except user_functions.FunctionFailedError as error:
        told = f"The function given for option {name!r} {error}. Mend it, or what it asks."
    raise AccessError(told)


class TokenSource:
    """A user's ``oauth_cb``, with its answer checked."""

    def __init__(self, function: Callable[[str], Any]) -> None:
        self._function = function
        self._first: tuple[Any, ...] | None = None

    def __call__(self, config: str | None) -> tuple[Any, ...]:
        """Return (token, expiry time[, principal[, extensions]]).

        Raises:
            AccessError: the function failed, or returned something else.
        """
        if self._first is not None:
            first, self._first = self._first, None
            return first
        found = _called(TOKEN_OPTION, self._function, config or "")
        is_token = (
            isinstance(found, (tuple, list))
            and 2 <= len(found) <= 4
            and isinstance(found[0], str)
            and bool(found[0])
        )
        if not is_token or not isinstance(found[1], (int, float)):
            raise AccessError(
                f"The function given for option {TOKEN_OPTION!r} returned {_kind(found)} that is "
                "no (token, expiry time in seconds since 1970"
                "[, principal[, extensions]]). Let it return that."
            )
        if found[1] <= time.time():
            raise AccessError(
                f"The function given for option {TOKEN_OPTION!r} returned a token that has "
                "expired. Let it fetch a new one."
            )
        return (str(found[0]), float(found[1]), *found[2:])

    def fetch(self, config: str | None) -> None:
        """Call the function now, for the next call: librdkafka would wait for 10 s for one that
        fails.

        Raises:
            AccessError: see ``__call__``.
        """
        self._first = self(config)


_SALT = os.urandom(16)


def fingerprint(options: Mapping[str, Any], secrets: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return what tells two configurations apart within this process, without a secret in it and
    without calling a function.
    """
    marks = []
    for name, value in sorted(options.items()):
        secret = secrets.get(
            name, value if name in SECRET_OPTIONS and isinstance(value, str) else None
        )
        if secret is not None:
            marks.append((name, hashlib.blake2b(secret.encode(), key=_SALT).hexdigest()))
        elif not callable(value):
            marks.append((name, str(value)))
    return marks
