"""SASL on a new connection to a broker: handshake, PLAIN (RFC 4616), SCRAM (RFC 5802, 7677),
OAUTHBEARER (RFC 7628).

The two requests are encoded here and not by kafka-python, which logs every request it encodes,
passwords included (https://kafka.apache.org/protocol#sasl_handshake, versions 1 of SaslHandshake
and SaslAuthenticate).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_HANDSHAKE_KEY, _AUTHENTICATE_KEY, _VERSION = 17, 36, 1
_UNSUPPORTED_MECHANISM, _ILLEGAL_STATE = 33, 34
_CLIENT_ID = b"onceforall"
_MAX_FRAME_BYTES = 1_000_000
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# A server that asks for fewer wants an answer that is cheap to guess the password from; for more,
# to keep us busy.
_MIN_ITERATIONS, _MAX_ITERATIONS = 4096, 1_000_000


class SaslError(Exception):
    """The broker refused, or did not prove itself; ``mechanisms`` is what it takes, when it
    doesn't take ours.
    """

    def __init__(self, reason: str, mechanisms: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.mechanisms = mechanisms


class Channel:
    """Two requests on a socket, one at a time, none of it logged."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._correlation_id = 0

    def handshake(self, mechanism: str) -> tuple[int, tuple[str, ...]]:
        """Name the mechanism; return Kafka's error code and the mechanisms of the broker."""
        name = mechanism.encode()
        answer = self._ask(_HANDSHAKE_KEY, struct.pack(f">h{len(name)}s", len(name), name))
        code = int(answer.number(">h"))
        return code, tuple(
            (answer.text(">h") or b"").decode() for _ in range(max(0, answer.number(">i")))
        )

    def authenticate(self, message: bytes) -> tuple[bytes, float | None]:
        """Send one message; return the broker's, and for how many seconds the connection then is
        good (None: for ever).

        Raises:
            SaslError: the broker refused.
        """
        answer = self._ask(
            _AUTHENTICATE_KEY, struct.pack(f">i{len(message)}s", len(message), message)
        )
        code = int(answer.number(">h"))
        reason = (answer.text(">h") or b"").decode(errors="replace")
        if code:
            raise SaslError(reason or f"Kafka answered with error {code}")
        reply = answer.text(">i") or b""
        lifetime_ms = answer.number(">q")
        return reply, lifetime_ms / 1000 if lifetime_ms > 0 else None

    def _ask(self, key: int, body: bytes) -> _Reader:
        self._correlation_id += 1
        header = struct.pack(
            f">hhih{len(_CLIENT_ID)}s",
            key,
            _VERSION,
            self._correlation_id,
            len(_CLIENT_ID),
            _CLIENT_ID,
        )
        self._connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        (size,) = struct.unpack(">i", self._receive(4))
        if not 4 <= size <= _MAX_FRAME_BYTES:
            raise SaslError("the broker's answer is no answer to a SASL request")
        reader = _Reader(self._receive(size))
        if reader.number(">i") != self._correlation_id:
            raise SaslError("the broker answered another request")
        return reader

    def _receive(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            part = self._connection.recv(size - len(received))
            if not part:
                raise ConnectionError(
                    "the broker closed the connection while it was being authenticated"
                )
            received += part
        return received


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        try:
            (value,) = struct.unpack_from(form, self._data, self._at)
        except struct.error as error:
            raise SaslError("the broker's answer ends too early") from error
        self._at += struct.calcsize(form)
        return int(value)

    def text(self, form: str) -> bytes | None:
        size = self.number(form)
        if size < 0:
            return None
        self._at += size
        return self._data[self._at - size : self._at]


def handshake(channel: Channel, mechanism: str) -> None:
    """Tell the broker the mechanism.

    Raises:
        SaslError: it takes others, or none at this listener.
    """
    code, mechanisms = channel.handshake(mechanism)
    if code == _UNSUPPORTED_MECHANISM:
        raise SaslError("the broker doesn't take the mechanism", mechanisms)
    if code == _ILLEGAL_STATE:
        raise SaslError(
            "this listener of the broker doesn't use SASL; security.protocol must say so too"
        )
    if code:
        raise SaslError(f"Kafka answered the handshake with error {code}")


def asks_for_sasl(channel: Channel) -> bool:
    """Tell whether a listener that we speak to without SASL wants it."""
    code, _ = channel.handshake("PLAIN")
    return code in {0, _UNSUPPORTED_MECHANISM}


def plain(channel: Channel, user: str, password: str) -> float | None:
    """Authenticate by user and password in clear; return for how long (s) the connection is good.

    Raises:
        SaslError: the broker refused.
    """
    return channel.authenticate(f"\0{user}\0{password}".encode())[1]


def bearer(channel: Channel, token: str, extensions: Mapping[str, str]) -> float | None:
    """Authenticate by a token; return for how long (s) the connection is good.

    Raises:
        SaslError: the broker refused.
    """
    more = "".join(f"{key}={value}\x01" for key, value in extensions.items())
    reply, lifetime_s = channel.authenticate(f"n,,\x01auth=Bearer {token}\x01{more}\x01".encode())
    if reply:
        # The reason; the broker waits for one more byte before it refuses.
        channel.authenticate(b"\x01")
        raise SaslError(f"the broker refused the token: {reply[:200].decode(errors='replace')}")
    return lifetime_s


def scram(channel: Channel, user: str, password: str, mechanism: str) -> float | None:
    """Prove to know the password and have the broker prove it too; return for how long (s) the
    connection is good.

    Raises:
        SaslError: the broker refused, or doesn't know the password itself.
    """
    name = _HASHES[mechanism]
    nonce = secrets.token_urlsafe(24)
    escaped = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={escaped},r={nonce}"
    challenge, _ = channel.authenticate(f"n,,{first}".encode())
    said = _attributes(challenge)
    if (
        not said.get("r", "").startswith(nonce)
        or "s" not in said
        or not said.get("i", "").isdecimal()
    ):
        raise SaslError("the broker's challenge is none of SCRAM")
    if not _MIN_ITERATIONS <= int(said["i"]) <= _MAX_ITERATIONS:
        raise SaslError(
            f"the broker asks for {said['i']} iterations, which is not between {_MIN_ITERATIONS} "
            f"and {_MAX_ITERATIONS}"
        )
    salted = hashlib.pbkdf2_hmac(
        name, password.encode(), base64.b64decode(said["s"]), int(said["i"])
    )
    last = f"c=biws,r={said['r']}"
    signed = b",".join((first.encode(), challenge, last.encode()))
    key = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, key).digest(), signed, name)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    reply, lifetime_s = channel.authenticate(
        f"{last},p={base64.b64encode(proof).decode()}".encode()
    )
    expected = hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name)
    if not hmac.compare_digest(base64.b64decode(_attributes(reply).get("v", "")), expected):
        raise SaslError("the broker doesn't know the password itself; it may be somebody else")
    return lifetime_s


def _attributes(message: bytes) -> dict[str, str]:
    parts = (part.partition("=") for part in message.decode(errors="replace").split(","))
    return {key: value for key, _, value in parts}
