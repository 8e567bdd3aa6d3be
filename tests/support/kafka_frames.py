"""The framing of Kafka's protocol: a size before each frame, and in each request a header that says
what kind it is.

Nothing of the bodies is understood, but for the addresses that some answers give
(https://kafka.apache.org/protocol).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from onceforall.embedded.network import HOST

_MAX_FRAME_BYTES = 128 << 20


class Api(IntEnum):
    """The kinds of requests for which faults are usually planned
    (https://kafka.apache.org/protocol#protocol_api_keys)."""

    PRODUCE = 0
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    DESCRIBE_CLUSTER = 60
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


ANSWERS_WITH_ADDRESSES = {Api.METADATA, Api.FIND_COORDINATOR, Api.DESCRIBE_CLUSTER}


@dataclass(frozen=True)
class Request:
    """One request of a client.

    Attributes:
        connection: number of the client's connection, counted from 1.
        api_key: what kind of request, see ``Api``.
        api_version: version of its body.
        correlation_id: the client's number for it, on that connection.
        client_id: what the client calls itself; None when it doesn't say.
        frame: all of it, header included, without the leading size; empty in the list of all
            requests.
    """

    connection: int
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    frame: bytes = field(default=b"", repr=False)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Read one frame, and return it without its size.

    Raises:
        ValueError: this is not Kafka's protocol, but TLS, for instance.
        EOFError: the connection has ended.
    """
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > _MAX_FRAME_BYTES:
        raise ValueError(
            f"{size} bytes are no frame of Kafka's protocol. Connect without TLS, which can't be "
            "proxied."
        )
    return await reader.readexactly(size)


def with_size(frame: bytes) -> bytes:
    """Return a frame as it is sent, with its size before it."""
    return struct.pack(">i", len(frame)) + frame


def parse_request(connection: int, frame: bytes) -> Request:
    """Read the header of a request that came on a connection of this number."""
    api_key, api_version, correlation_id, length = struct.unpack_from(">hhih", frame)
    client_id = frame[10 : 10 + length].decode() if length >= 0 else None
    return Request(connection, api_key, api_version, correlation_id, client_id, frame)


def with_other_ports(frame: bytes, ports: Mapping[int, int]) -> bytes:
    """Return one of the ``ANSWERS_WITH_ADDRESSES`` with other ports of 127.0.0.1 in the place of
    the brokers' own."""
    # In every version of these answers a port, as four bytes, follows the host's text.
    for port, other in ports.items():
        frame = frame.replace(
            HOST.encode() + struct.pack(">i", port), HOST.encode() + struct.pack(">i", other)
        )
    return frame
