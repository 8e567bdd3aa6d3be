"""Requests to brokers, sent by ourselves: each is either answered, or known not to be.

kafka-python gives the encoding (``kafka.protocol``); its own connection manager reconnects and
times out behind one's back, and whether a request was *sent and not answered* is just what must be
known here: such a request may take effect later. Requests go out on several connections to a broker
at once, because a broker works on one request per connection at a time.

Safe to use from several threads: a connection belongs to one call at a time.

A connection is encrypted and authenticated by module ``secure_connections``. A broker ends one
whose authentication has run out (``connections.max.reauth.ms``); ours is not used any more by then,
and the next call opens another.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from select import select
from typing import Any

from onceforall.errors import MissingExtraError
from onceforall.sinks.kafka.access.sasl import Channel, SaslError, asks_for_sasl
from onceforall.sinks.kafka.access.secure_connections import (
    Access,
    speaks_plainly,
    speaks_tls,
    tls_refusal,
)
from onceforall.sinks.kafka.access.security import AccessError

Address = tuple[str, int]

CONNECTIONS_PER_BROKER = 8
_CONNECT_TIMEOUT_S = 5.0
_RECEIVE_BYTES = 65_536
# A broker that ends is no broker that refuses, and before one that is away a load balancer may take
# each connection, and end it: behind so many ends without a word it is tried what the listener
# speaks.
_SILENT_REFUSALS = 3
_REAUTHENTICATE_AT = 0.8


_TLS_ALERT = b"\x15\x03"
_SPEAKS_TLS = (
    "its listener speaks TLS. Check the port in bootstrap.servers, and set "
    "security.protocol (ssl or sasl_ssl)"
)
_SPEAKS_PLAINLY = (
    "the broker doesn't speak TLS at this port. Check the port in bootstrap.servers, and "
    "security.protocol"
)


@dataclass(frozen=True)
class NoAnswer:
    """A request that got no answer.

    Attributes:
        address: of the broker.
        reason: what happened to the connection.
        sent: whether the broker may have got it, and may act on it even later.
        refused: the broker, or a security option, said no: asking again helps only once something
            is mended.
    """

    address: Address
    reason: str
    sent: bool
    refused: bool = False


@dataclass(frozen=True)
class Steps:
    """What is called within an exchange: tests have a process die between two requests of many that
    are under way.

    Attributes:
        sending: called for each request before it is sent.
        answered: called for each request whose answer has come, or will not come.
    """

    sending: Callable[[], None]
    answered: Callable[[], None]


NO_STEPS = Steps(lambda: None, lambda: None)


class _ConnectionLostError(Exception):
    def __init__(self, reason: str, *, refused: bool = False, silent: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused
        self.silent = silent


class _Connection:
    """One connection; it is closed at the first thing that goes wrong.

    Attributes:
        address: of the broker.
        called_s: for how long functions of the user were called for its secrets, which is no time
            that the broker took.
        has_answered: anything came.
    """

    def __init__(self, address: Address, deadline_s: float, access: Access) -> None:
        from kafka.protocol.broker_version_data import BrokerVersionData
        from kafka.protocol.metadata import ApiVersionsRequest
        from kafka.protocol.parser import KafkaProtocol

        self.address = address
        self._parser: Any = KafkaProtocol(client_id="onceforall")
        self._waiting = 0
        self._answers: list[Any] = []
        self._good_until_s = float("inf")
        self.has_answered = False
        self.called_s = 0.0
        try:
            self._socket: socket.socket = _connected(address, deadline_s)
        # What no address can be, a host or a port, is told by errors of other kinds; brokers
        # advertise what stands in their configuration.
        except (OSError, ValueError, OverflowError) as error:
            raise _ConnectionLostError(f"no connection: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._versions: Any = None
            self._secure(access, deadline_s)
            self.send([ApiVersionsRequest(version=0)])
            keys = self.receive(deadline_s + self.called_s)[0].api_keys
            self._versions = BrokerVersionData(
                api_versions={key.api_key: (key.min_version, key.max_version) for key in keys}
            )
            self.has_answered = False
        except BaseException:
            self.close()
            raise

    def _secure(self, access: Access, deadline_s: float) -> None:
        started_s = time.monotonic()
        self._socket.settimeout(max(0.01, deadline_s - started_s))
        try:
            options = access.called()
            self.called_s = time.monotonic() - started_s
            self._socket, lifetime_s = access.secured(self._socket, self.address[0], options)
        except AccessError as error:
            raise _ConnectionLostError(str(error), refused=True) from error
        except ssl.SSLError as error:
            raise _ConnectionLostError(
                str(tls_refusal(error, self.address[0])), refused=True
            ) from error
        except TimeoutError as error:
            raise _ConnectionLostError(
                "no answer in time while the connection was made secure"
            ) from error
        except OSError as error:
            raise _ConnectionLostError(
                f"the connection ended while it was made secure: {error}", silent=True
            ) from error
        if lifetime_s is not None:
            self._good_until_s = started_s + _REAUTHENTICATE_AT * lifetime_s

    def asks_for_sasl(self, deadline_s: float) -> bool:
        """Tell whether the broker's listener wants SASL, which this connection was made without;
        nothing else may follow.
        """
        self._socket.settimeout(max(0.01, deadline_s - time.monotonic()))
        try:
            return asks_for_sasl(Channel(self._socket))
        except (OSError, SaslError):
            return False

    def send(self, requests: Sequence[Any]) -> None:
        for request in requests:
            if request.API_VERSION is None:
                request.API_VERSION = self._versions.api_version(request)
            self._parser.send_request(request)
            self._waiting += 1
        try:
            self._socket.sendall(self._parser.send_bytes())
        except OSError as error:
            raise _ConnectionLostError(f"the connection ended: {error}") from error

    def receive(self, deadline_s: float) -> list[Any]:
        """Return the answers to all that was sent, in order; on an error, ``partial`` has those
        that came.
        """
        from kafka.errors import KafkaError

        while len(self._answers) < self._waiting:
            try:
                self._socket.settimeout(max(0.001, deadline_s - time.monotonic()))
                data = self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError as error:
                raise _ConnectionLostError("no answer in time") from error
            except ssl.SSLError as error:
                raise _ConnectionLostError(
                    str(tls_refusal(error, self.address[0])), refused=not self.has_answered
                ) from error
            except OSError as error:
                raise _ConnectionLostError(
                    f"the connection ended: {error}", silent=not self.has_answered
                ) from error
            if not data:
                raise self._closed()
            if not self.has_answered and self._versions is None and data.startswith(_TLS_ALERT):
                raise _ConnectionLostError(_SPEAKS_TLS, refused=True)
            self.has_answered = True
            try:
                self._answers += [answer for _, answer in self._parser.receive_bytes(data)]
            except KafkaError as error:
                raise _ConnectionLostError(f"an answer that can't be read: {error}") from error
        return self.partial()

    def _closed(self) -> _ConnectionLostError:
        if self.has_answered:
            return _ConnectionLostError("the broker closed the connection")
        return _ConnectionLostError(
            "the broker closed the connection without an answer", silent=True
        )

    def partial(self) -> list[Any]:
        answers, self._answers, self._waiting = self._answers, [], 0
        return answers

    def is_usable(self) -> bool:
        """Tell whether an idle connection is still open: the end of one, as brokers end idle
        ones, can be read.
        """
        if time.monotonic() > self._good_until_s:
            return False
        try:
            return not select([self._socket], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        self._socket.close()


def _connected(address: Address, deadline_s: float) -> socket.socket:
    """Connect to the first address of a host that takes the connection. Each may take its share of
    the time: an address whose host is down must not leave nothing to a healthy one.
    """
    left = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    while True:
        share_s = (deadline_s - time.monotonic()) / len(left)
        family, kind, protocol, _, where = left.pop(0)
        with ExitStack() as opened:
            try:
                connection = opened.enter_context(socket.socket(family, kind, protocol))
                connection.settimeout(max(0.01, min(_CONNECT_TIMEOUT_S, share_s)))
                connection.connect(where)
            except OSError:
                if not left:
                    raise
            else:
                opened.pop_all()
                return connection


def _import_protocol() -> None:
    # kafka-python reads its schemas in a way that Python 3.11 deprecates; its users can do nothing
    # about it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            for module in (
                "admin",
                "broker_version_data",
                "consumer",
                "metadata",
                "parser",
                "producer",
            ):
                import_module(f"kafka.protocol.{module}")
        except ImportError as error:
            raise MissingExtraError("kafka-python", "kafka") from error


class Wire:
    """Connections to the brokers of one cluster, kept open between calls."""

    def __init__(self, access: Access | None = None) -> None:
        """Nothing is connected yet.

        Args:
            access: how connections are made secure; None: they are not.

        Raises:
            MissingExtraError: kafka-python is not installed.
        """
        _import_protocol()
        self._access = access or Access({})
        self._silent: dict[Address, int] = {}
        self._lock = threading.Lock()
        self._idle: dict[Address, list[_Connection]] = {}
        self._is_closed = False

    def exchange(
        self, calls: Sequence[tuple[Address, Any]], deadline_s: float, steps: Steps = NO_STEPS
    ) -> list[Any]:
        """Send requests and wait for the answers, in parallel over connections.

        Args:
            calls: broker and request (a ``kafka.protocol`` message, with ``max_version`` where it
                matters).
            deadline_s: until when, of ``time.monotonic``; functions of the user that are called
                for secrets have their own time.
            steps: what is called in between.

        Returns:
            For each call, the response, or a ``NoAnswer``.

        Raises:
            kafka.errors.IncompatibleBrokerVersion: a broker is too old for a request.
        """
        results: list[Any] = [None] * len(calls)
        by_address: dict[Address, list[int]] = {}
        for index, (address, _) in enumerate(calls):
            by_address.setdefault(address, []).append(index)
        sent: list[tuple[_Connection, list[int]]] = []
        try:
            for address, indices in by_address.items():
                width = min(CONNECTIONS_PER_BROKER, len(indices))
                for share in (indices[start::width] for start in range(width)):
                    for _ in share:
                        steps.sending()
                    connection = self._send(
                        address, [calls[i][1] for i in share], share, results, deadline_s
                    )
                    if connection is not None:
                        deadline_s += connection.called_s
                        connection.called_s = 0.0
                        sent.append((connection, share))
        finally:
            for connection, share in sent:
                self._collect(connection, share, results, deadline_s)
                for _ in share:
                    steps.answered()
        return results

    def _send(
        self,
        address: Address,
        requests: list[Any],
        share: list[int],
        results: list[Any],
        deadline_s: float,
    ) -> _Connection | None:
        try:
            connection = self._borrow(address) or _Connection(address, deadline_s, self._access)
        except _ConnectionLostError as error:
            reason, refused = str(error), self._is_refusal(address, error)
            if refused and error.silent:
                spoken = self._spoken_instead(address, deadline_s)
                reason, refused = spoken or reason, spoken is not None
            for i in share:
                results[i] = NoAnswer(address, reason, sent=False, refused=refused)
            return None
        try:
            connection.send(requests)
        except _ConnectionLostError as error:
            connection.close()
            for i in share:
                results[i] = NoAnswer(address, str(error), sent=True)
            return None
        except BaseException:
            connection.close()
            raise
        return connection

    def _collect(
        self, connection: _Connection, share: list[int], results: list[Any], deadline_s: float
    ) -> None:
        try:
            answers: list[Any] = connection.receive(deadline_s)
        except _ConnectionLostError as error:
            answers = connection.partial()
            connection.close()
            missing = self._unanswered(connection, error, deadline_s)
            answers += [missing] * (len(share) - len(answers))
        except BaseException:
            connection.close()
            raise
        else:
            with self._lock:
                self._silent.pop(connection.address, None)
                keep = not self._is_closed
                if keep:
                    self._idle.setdefault(connection.address, []).append(connection)
            if not keep:
                connection.close()
        for i, answer in zip(share, answers, strict=True):
            results[i] = answer

    def _is_refusal(self, address: Address, error: _ConnectionLostError) -> bool:
        with self._lock:
            if not error.silent:
                self._silent.pop(address, None)
                return error.refused
            self._silent[address] = self._silent.get(address, 0) + 1
            return self._silent[address] >= _SILENT_REFUSALS

    def _spoken_instead(self, address: Address, deadline_s: float) -> str | None:
        """Say that a listener speaks TLS where we don't, or the reverse; None where it doesn't."""
        timeout_s = max(0.01, min(_CONNECT_TIMEOUT_S, deadline_s - time.monotonic()))
        if self._access.uses_tls:
            return _SPEAKS_PLAINLY if speaks_plainly(address, timeout_s) else None
        return _SPEAKS_TLS if speaks_tls(address, timeout_s) else None

    def _unanswered(
        self, connection: _Connection, error: _ConnectionLostError, deadline_s: float
    ) -> NoAnswer:
        """Say why a request that was sent got no answer; a listener that wants SASL just closes
        the connection.
        """
        address = connection.address
        if not error.silent or not self._is_refusal(address, error) or self._access.uses_sasl:
            return NoAnswer(address, str(error), sent=True, refused=error.refused)
        try:
            probe = _Connection(address, deadline_s, self._access)
        except _ConnectionLostError:
            return NoAnswer(address, str(error), sent=True)
        try:
            wants_sasl = probe.asks_for_sasl(deadline_s)
        finally:
            probe.close()
        if not wants_sasl:
            return NoAnswer(address, str(error), sent=True)
        protocol = "sasl_ssl" if self._access.uses_tls else "sasl_plaintext"
        reason = (
            f"its listener wants authentication. Set security.protocol={protocol}, "
            "sasl.mechanism and what that needs"
        )
        return NoAnswer(address, reason, sent=True, refused=True)

    def _borrow(self, address: Address) -> _Connection | None:
        while True:
            with self._lock:
                idle = self._idle.get(address)
                connection = idle.pop() if idle else None
            if connection is None or connection.is_usable():
                return connection
            connection.close()

    def close(self) -> None:
        """Close the connections. Calls that are under way, and later ones, close theirs."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, {}, True
        for connections in idle.values():
            for connection in connections:
                connection.close()
