"""What one Kafka broker knows of its cluster: brokers, leaders and in-sync replicas, asked of that
very broker.

Clients ask whichever broker answers first; who waits for a cluster to be whole again must know what
each of them says. The request is Metadata, version 1
(https://kafka.apache.org/protocol#The_Messages_Metadata).
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import NamedTuple

from onceforall.embedded.network import HOST

_METADATA_KEY = 3
_METADATA_VERSION = 1
_ALL_TOPICS = -1
_DEADLINE_S = 2.0


class PartitionState(NamedTuple):
    """One partition, as a broker sees it. ``leader`` is -1 when there is none."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True)
class ClusterState:
    """A broker's view of its cluster: the nodes that are alive, and all partitions by (topic,
    number).
    """

    nodes: frozenset[int]
    partitions: dict[tuple[str, int], PartitionState]


def cluster_state(port: int) -> ClusterState | None:
    """Ask the broker on this port of 127.0.0.1 what it knows; None when it does not answer
    within 2 s.
    """
    client = b"onceforall"
    header = struct.pack(
        f">hhih{len(client)}s", _METADATA_KEY, _METADATA_VERSION, 1, len(client), client
    )
    request = header + struct.pack(">i", _ALL_TOPICS)
    try:
        with socket.create_connection((HOST, port), timeout=_DEADLINE_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as answer:
                (size,) = struct.unpack(">i", answer.read(4))
                return _parse(_Reader(answer.read(size)))
    except (OSError, struct.error):
        return None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, kind: str) -> int:
        (value,) = struct.unpack_from(f">{kind}", self._data, self._at)
        self._at += struct.calcsize(f">{kind}")
        return int(value)

    def text(self) -> str:
        size = max(0, self.number("h"))
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.number("i") for _ in range(self.number("i")))


def _parse(reader: _Reader) -> ClusterState:
    reader.number("i")
    nodes = set()
    for _ in range(reader.number("i")):
        nodes.add(reader.number("i"))
        reader.text()
        reader.number("i")
        reader.text()
    reader.number("i")
    partitions = {}
    for _ in range(reader.number("i")):
        reader.number("h")
        topic = reader.text()
        reader.number("b")
        for _ in range(reader.number("i")):
            reader.number("h")
            number = reader.number("i")
            partitions[topic, number] = PartitionState(
                reader.number("i"), reader.numbers(), reader.numbers()
            )
    return ClusterState(frozenset(nodes), partitions)
