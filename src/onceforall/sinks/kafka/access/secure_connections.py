"""Makes the driver's own connections to brokers secure: TLS and SASL, as librdkafka's options say.

Module ``security`` has the options and what is refused among them. What fails is told with the
option that mends it, and never with a secret.
"""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
import struct
import tempfile
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceforall.sinks.kafka.access.sasl import Channel, SaslError, bearer, handshake, plain, scram
from onceforall.sinks.kafka.access.security import (
    TLS_OPTIONS,
    TOKEN_OPTION,
    AccessError,
    is_security_option,
    mechanism_of,
    protocol_of,
    resolved,
    verifies,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_SALT = os.urandom(16)
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""A whole request (ApiVersions, version 0) without a client id."""


class Access:
    """Makes the driver's connections secure, as the options say; secrets are resolved at each
    connection.
    """

    def __init__(
        self, options: Mapping[str, Any], secrets: Mapping[str, str] | None = None
    ) -> None:
        """Nothing is read or called yet.

        Args:
            options: what ``checked_options`` returned.
            secrets: values that were taken out of them.
        """
        self._options = {name: value for name, value in options.items() if is_security_option(name)}
        self._secrets = dict(secrets or {})
        self._contexts: dict[str, ssl.SSLContext] = {}

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return "ssl" in protocol_of(self._options)

    @property
    def uses_sasl(self) -> bool:
        """Whether connections authenticate by SASL."""
        return "sasl" in protocol_of(self._options)

    def called(self) -> Mapping[str, Any]:
        """Return the options for one connection, having called the functions that give secrets,
        however long they take.

        Raises:
            AccessError: one failed.
        """
        options = resolved(self._options, self._secrets)
        if self.uses_sasl and mechanism_of(options) == "OAUTHBEARER":
            options[TOKEN_OPTION].fetch(options.get("sasl.oauthbearer.config"))
        return options

    def secured(
        self, connection: socket.socket, host: str, options: Mapping[str, Any]
    ) -> tuple[socket.socket, float | None]:
        """Encrypt and authenticate a new connection.

        Args:
            connection: just connected, with its timeout set.
            host: the broker's name, which its certificate must bear.
            options: of ``called``.

        Returns:
            The connection to use, and for how many seconds the broker will accept it (None: for
            ever).

        Raises:
            AccessError: the broker or an option says no; asking again helps only once something is
                mended.
            OSError: the connection was lost.
        """
        if self.uses_tls:
            connection = self._encrypted(connection, host, options)
        if not self.uses_sasl:
            return connection, None
        try:
            return connection, self._authenticated(connection, options)
        except BaseException:
            connection.close()
            raise

    @staticmethod
    def _authenticated(connection: socket.socket, options: Mapping[str, Any]) -> float | None:
        try:
            return _authenticated(Channel(connection), options)
        except SaslError as error:
            names = (
                "oauth_cb"
                if mechanism_of(options) == "OAUTHBEARER"
                else "sasl.username and sasl.password"
            )
            if error.mechanisms:
                raise AccessError(
                    f"the broker doesn't take sasl.mechanism={mechanism_of(options)}; it takes "
                    f"{', '.join(error.mechanisms)}. Change sasl.mechanism"
                ) from error
            raise AccessError(
                f"authentication failed: {error}. Check {names} "
                f"(sasl.mechanism={mechanism_of(options)})"
            ) from error

    def _encrypted(
        self, connection: socket.socket, host: str, options: Mapping[str, Any]
    ) -> socket.socket:
        context = self._context(options)
        try:
            return context.wrap_socket(connection, server_hostname=host)
        except ssl.SSLEOFError as error:
            # So does a broker end a connection that just ends itself.
            raise ConnectionError("the broker ended the TLS handshake without a word") from error
        except ssl.SSLError as error:
            raise tls_refusal(error, host) from error

    def _context(self, options: Mapping[str, Any]) -> ssl.SSLContext:
        mark = hashlib.blake2b(key=_SALT)
        for name in sorted(TLS_OPTIONS & options.keys()):
            mark.update(f"{name}={options[name]}\0".encode())
            if name.endswith(".location") and Path(str(options[name])).is_file():
                mark.update(str(Path(str(options[name])).stat().st_mtime_ns).encode())
        key = mark.hexdigest()
        if key not in self._contexts:
            # A certificate that was renewed replaces the one before; connections made with that
            # stay as they are.
            self._contexts = {key: tls_context(options)}
        return self._contexts[key]


def speaks_tls(address: tuple[str, int], timeout_s: float) -> bool:
    """Tell whether what listens at an address answers a TLS handshake, be it with a refusal."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection(address, timeout_s) as connection,
            context.wrap_socket(connection, server_hostname=address[0]),
        ):
            return True
    except ssl.SSLEOFError:
        return False
    except ssl.SSLError as error:
        return error.reason not in _NOT_TLS
    except OSError:
        return False


def speaks_plainly(address: tuple[str, int], timeout_s: float) -> bool:
    """Tell whether a broker at an address answers without TLS; it says which versions it takes also
    where it wants SASL.
    """
    try:
        with socket.create_connection(address, timeout_s) as connection:
            connection.sendall(_API_VERSIONS)
            return len(connection.recv(8)) == 8
    except OSError:
        return False


def _authenticated(channel: Channel, options: Mapping[str, Any]) -> float | None:
    mechanism = mechanism_of(options)
    handshake(channel, mechanism)
    if mechanism == "OAUTHBEARER":
        token, _, *more = options[TOKEN_OPTION](options.get("sasl.oauthbearer.config"))
        return bearer(channel, token, more[1] if len(more) > 1 else {})
    user, password = str(options["sasl.username"]), str(options["sasl.password"])
    return (
        plain(channel, user, password)
        if mechanism == "PLAIN"
        else scram(channel, user, password, mechanism)
    )


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return Python's TLS settings for librdkafka's options, all secrets resolved.

    Raises:
        AccessError: a file or PEM text can't be read; the message names the option.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not verifies(options):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif str(options.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    with _naming("ssl.ca.pem" if "ssl.ca.pem" in options else "ssl.ca.location"):
        location = str(options.get("ssl.ca.location", "probe"))
        if "ssl.ca.pem" in options:
            context.load_verify_locations(cadata=str(options["ssl.ca.pem"]))
        elif location == "probe":
            context.load_default_certs()
        elif Path(location).is_dir():
            context.load_verify_locations(capath=location)
        else:
            context.load_verify_locations(cafile=location)
    if "ssl.crl.location" in options:
        with _naming("ssl.crl.location"):
            context.load_verify_locations(cafile=str(options["ssl.crl.location"]))
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if "ssl.cipher.suites" in options:
        with _naming("ssl.cipher.suites"):
            context.set_ciphers(str(options["ssl.cipher.suites"]))
    if {"ssl.certificate.location", "ssl.certificate.pem"} & options.keys():
        with (
            _naming("ssl.certificate.… or ssl.key.…"),
            _as_file(options, "ssl.certificate") as certificate,
            _as_file(options, "ssl.key") as key,
        ):
            # Without a password, OpenSSL would ask for one at the terminal.
            context.load_cert_chain(
                certificate, key, password=lambda: str(options.get("ssl.key.password", ""))
            )
    return context


@contextmanager
def _naming(option: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = (
            error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
        )
        reason = reason or type(error).__name__
        hint = " (is ssl.key.password right?)" if "ssl.key" in option else ""
    else:
        return
    raise AccessError(
        f"option {option} can't be used: {reason}{hint}. Give a readable file or text in PEM"
    )


@contextmanager
def _as_file(options: Mapping[str, Any], name: str) -> Iterator[str]:
    """Give a certificate or key as a file, as Python's ``ssl`` wants it; text is kept in memory
    where the system can do that.
    """
    if f"{name}.location" in options:
        yield str(options[f"{name}.location"])
        return
    text = str(options[f"{name}.pem"]).encode()
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("onceforall")
        try:
            os.write(descriptor, text)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile(prefix="onceforall-") as file:
        file.write(text)
        file.flush()
        yield file.name


_NOT_TLS = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNEXPECTED_MESSAGE",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
}
_WRONG_NAME = {62, 64}


def tls_refusal(error: ssl.SSLError, host: str) -> AccessError:
    """Say what a failed handshake or a TLS alert means, and which option to mend."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _WRONG_NAME:
            return AccessError(
                f"the broker's certificate is not for {host!r}. Use the name that is in the "
                "certificate in bootstrap.servers (and in the "
                "broker's advertised.listeners); ssl.endpoint.identification.algorithm=none would "
                "switch the check off"
            )
        return AccessError(
            f"the broker's certificate can't be verified: {error.verify_message}. Check "
            "ssl.ca.location (or ssl.ca.pem), which must hold the "
            "authority that signed it"
        )
    if reason in _NOT_TLS:
        return AccessError(
            "the broker doesn't speak TLS at this port. Check the port in bootstrap.servers, and "
            "security.protocol"
        )
    if "CERTIFICATE" in reason:
        return AccessError(
            f"the broker refuses the client's certificate ({reason}). Check "
            "ssl.certificate.location and ssl.key.location (or their .pem): "
            "its listener asks for a certificate of an authority that it trusts"
        )
    return AccessError(
        f"the TLS handshake failed: {reason}. Check security.protocol and the ssl.… options "
        "against the broker's listener"
    )
