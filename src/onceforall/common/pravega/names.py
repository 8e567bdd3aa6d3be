"""Names of scopes, streams and segments, and which segment takes a routing key. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from onceforall.common.arguments import shown
from onceforall.errors import OptionError

_NAME = re.compile(r"[A-Za-z0-9.-]{1,255}")
_ADDRESS = re.compile(
    r"(?:tcp://)?(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>\d{1,5})/?"
)
_64 = 2**64 - 1


@dataclass(frozen=True)
class StreamName:
    """A stream: its scope and its name in it."""

    scope: str
    stream: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.stream}"


@dataclass(frozen=True)
class SegmentOfKeys:
    """A segment that takes routing keys whose place lies in ``[low, high)``."""

    number: int
    low: float
    high: float


def stream_name(scope: object, stream: object, options: Sequence[str]) -> StreamName:
    """Return a stream's name, as Pravega takes it of a user.

    Args:
        scope: the scope's name.
        stream: the stream's.
        options: what the two are called where they were given.

    Raises:
        OptionError: one of them is no name.
    """
    for option, value in zip(options, (scope, stream), strict=True):
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise OptionError(
                f"{option}={shown(value)} is no name of Pravega's. It has 1 to 255 letters, "
                "digits, dots and hyphens."
            )
    return StreamName(str(scope), str(stream))


def address(option: str, value: object) -> str:
    """Return ``host:port`` of a controller.

    Raises:
        OptionError: it is no such address, or one with TLS.
    """
    found = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 0 < int(found["port"]) <= 65535:
        # What is no address may have a password in it.
        raise OptionError(
            f"{option} is no address of a Pravega controller. Give tcp://host:port, without a user "
            "and a password; TLS and authentication are not supported."
        )
    return f"{found['host']}:{found['port']}"


def segment_name(stream: StreamName, number: int) -> str:
    """Return the name of a segment: its number's upper half is the epoch that made it."""
    return f"{stream}/{number & 0xFFFFFFFF}.#epoch.{number >> 32}"


def transaction_segment_name(stream: StreamName, number: int, transaction: uuid.UUID) -> str:
    """Return the name of what a transaction writes for a segment."""
    return f"{segment_name(stream, number)}#transaction.{transaction.hex}"


def segment_of(key: str, segments: Sequence[SegmentOfKeys]) -> int:
    """Return which segment takes a routing key.

    Raises:
        ValueError: none does.
    """
    place = key_place(key)
    for each in segments:
        if each.low <= place < each.high:
            return each.number
    raise ValueError(f"no segment takes keys at {place}")


@lru_cache(maxsize=65_536)
def key_place(key: str) -> float:
    """Return where a routing key lies in ``[0, 1)``, as in Pravega's clients."""
    # Java's hash of "EventRouter" is the seed.
    return (_murmur3(key.encode("utf-16-le", "surrogatepass"), 0x67D2C263) >> 12) / 2**52


def _murmur3(data: bytes, seed: int) -> int:
    """Return the first half of MurmurHash3's 128 bits, x64, as Guava's ``asLong``."""
    first, second = 0x87C37B91114253D5, 0x4CF5AD432745937F
    one = two = seed
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        low, high = (int.from_bytes(data[i : i + 8], "little") for i in (at, at + 8))
        one ^= _turned(low * first & _64, 31) * second & _64
        one = ((_turned(one, 27) + two) * 5 + 0x52DCE729) & _64
        two ^= _turned(high * second & _64, 33) * first & _64
        two = ((_turned(two, 31) + one) * 5 + 0x38495AB5) & _64
    rest = data[whole:].ljust(16, b"\0")
    low, high = int.from_bytes(rest[:8], "little"), int.from_bytes(rest[8:], "little")
    two ^= _turned(high * second & _64, 33) * first & _64
    one ^= _turned(low * first & _64, 31) * second & _64
    one, two = one ^ len(data), two ^ len(data)
    one = (one + two) & _64
    two = (two + one) & _64
    one, two = _mixed(one), _mixed(two)
    return (one + two) & _64


def _turned(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _64


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _64
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _64
    return value ^ value >> 33
