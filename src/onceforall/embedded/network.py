"""Loopback ports, and the question whether a Kafka broker answers on one."""

from __future__ import annotations

import secrets
import socket
import struct
from pathlib import Path

HOST = "127.0.0.1"

_CONNECT_DEADLINE_S = 2.0
_METADATA_KEY = 3
_METADATA_VERSION = 1
_ATTEMPTS = 200
_LOWEST_PORT = 10_000
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(besides: int = 0) -> int:
    """Return a port of 127.0.0.1 on which nobody listens now; another program may take it before it
    is used.

    It lies below the range from which the kernel gives ports to outgoing connections. In that range
    a client that tries again and again to reach a broker which is down may connect to itself (a TCP
    simultaneous open), and the broker could not come back.
    """
    top = _first_ephemeral_port()
    for _ in range(_ATTEMPTS):
        port = _LOWEST_PORT + secrets.randbelow(top - _LOWEST_PORT)
        if port != besides and can_listen(port):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _first_ephemeral_port() -> int:
    try:
        first = int(_PORT_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768
    return first if first > _LOWEST_PORT + 1_000 else 32_768


def can_listen(port: int) -> bool:
    """Return whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Java's server sockets do the same on Unix: connections of a broker that was killed may
        # linger.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def broker_answers(port: int) -> bool:
    """Return whether a Kafka broker on this port of 127.0.0.1 answers a Metadata request and knows
    an active broker.

    A listening socket is not enough: a broker that is still fenced listens, and lists no broker
    (https://kafka.apache.org/protocol#The_Messages_Metadata, version 1, with an empty list of
    topics).
    """
    client = b"onceforall"
    header = struct.pack(
        f">hhih{len(client)}s", _METADATA_KEY, _METADATA_VERSION, 1, len(client), client
    )
    request = header + struct.pack(">i", 0)
    try:
        with socket.create_connection((HOST, port), timeout=_CONNECT_DEADLINE_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", _receive(connection, 4))
            correlation_id, brokers = struct.unpack_from(">ii", _receive(connection, size))
    except (OSError, struct.error):
        return False
    return bool(correlation_id == 1 and brokers > 0)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionError("the broker closed the connection")
        received += part
    return received
