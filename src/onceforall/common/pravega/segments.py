"""Pravega's segment stores: appends to a segment and reads from it, over TCP.

A message is its type, the length of what follows, and its fields, all big-endian; a text has its
length in two bytes before it. A connection has one request at a time, and an answer that carries
another request's number is left aside.

An event in a segment is four bytes of zero, its length in four, and its content.
"""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from onceforall.common.pravega.answers import GoneError, NoAnswerError, RefusedError

if TYPE_CHECKING:
    from typing_extensions import Self

_HELLO, _KEEP_ALIVE = -127, 100
_SETUP_APPEND, _APPEND_SETUP = 1, 2
_APPEND_BLOCK_END = 4
_CONDITIONAL_BLOCK_END, _DATA_APPENDED, _CONDITIONAL_CHECK_FAILED = 89, 7, 8
_READ_SEGMENT, _SEGMENT_READ = 9, 10
_GET_INFO, _INFO = 11, 12
_FAILURES = {
    50: "another segment store has it",
    51: "it is sealed",
    53: "there is no such segment",
    55: "the number of an event is out of order",
    56: "it begins later",
    57: "the request isn't known",
    60: "a token is needed",
    61: "an error",
}
_GONE = {53, 56}
_MOVED = {50}
_OURS, _OLDEST = 17, 5
_LONGEST_ANSWER = 2**24
_PIECE_BYTES = 1 << 20
HEADER = struct.Struct(">iI")
HEADER_BYTES = HEADER.size
LONGEST_EVENT = 8 * 1024 * 1024
"""What Pravega's clients write at most, but for Java's with ``enableLargeEvents``."""


@dataclass(frozen=True)
class Info:
    """A segment: where it begins and ends, and whether it can grow."""

    start: int
    end: int
    sealed: bool


class SegmentStore:
    """A connection to a segment store. Used by one thread."""

    def __init__(self, host: str, port: int, deadline_s: float = 30.0) -> None:
        """Connect.

        Args:
            host: where it is.
            port: its port.
            deadline_s: for how long an answer is waited for.

        Raises:
            NoAnswerError: it can't be reached.
        """
        self._where, self._request = f"{host}:{port}", 0
        try:
            self._socket = socket.create_connection((host, port), timeout=deadline_s)
        # What no address can be, a host or a port, is told by errors of other kinds.
        except (OSError, ValueError, OverflowError) as error:
            raise NoAnswerError(f"The segment store {self._where}: {error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send(_HELLO, struct.pack(">ii", _OURS, _OLDEST))
        kind, said = self._receive()
        if kind != _HELLO or struct.unpack_from(">ii", said)[1] > _OURS:
            self.close()
            raise RefusedError(
                f"{self._where} is no segment store whose protocol is known here (version {_OURS})"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        with suppress(OSError):
            self._socket.close()

    def info(self, segment: str) -> Info:
        """Return what there is of a segment.

        Raises:
            GoneError: there is no such segment.
            RefusedError: the store doesn't say.
            NoAnswerError: no answer.
        """
        self._request += 1
        request = struct.pack(">q", self._request) + _text(segment) + _text("")
        said = self._ask(_GET_INFO, request, _INFO, segment)
        at = _after_text(said, 8)
        exists, sealed, deleted = said[at], said[at + 1], said[at + 2]
        _, end, start = struct.unpack_from(">qqq", said, at + 3)
        if not exists or deleted:
            raise GoneError(f"{segment}: there is no such segment")
        return Info(start, end, bool(sealed))

    def read(self, segment: str, offset: int, length: int) -> bytes:
        """Return some bytes from an offset on, at least one: the caller knows that there are some.

        Raises:
            GoneError: the segment isn't there, or not from there on.
            RefusedError: the store doesn't give any.
            NoAnswerError: no answer.
        """
        self._request += 1
        request = _text(segment) + struct.pack(">qi", offset, length) + _text("")
        request += struct.pack(">q", self._request)
        said = self._ask(_READ_SEGMENT, request, _SEGMENT_READ, segment)
        at = _after_text(said, 0)
        found, _, _, size = struct.unpack_from(">q??i", said, at)
        data = said[at + 14 : at + 14 + size]
        if found != offset or not data:
            raise RefusedError(f"{segment}: nothing was read at {offset}")
        return data

    def begin_append(self, segment: str, writer: uuid.UUID) -> int:
        """Prepare appends to a segment; return the number of the writer's last one that is there.

        Raises:
            GoneError, RefusedError, NoAnswerError: as `info`.
        """
        self._request += 1
        request = struct.pack(">q", self._request) + writer.bytes + _text(segment) + _text("")
        said = self._ask(_SETUP_APPEND, request, _APPEND_SETUP, segment)
        return int(struct.unpack_from(">q", said, _after_text(said, 8) + 16)[0])

    def append(
        self, segment: str, writer: uuid.UUID, number: int, offset: int, block: bytes
    ) -> bool:
        """Append whole events; return, when they are durable, True, or False when the segment
        doesn't end at that offset.

        Args:
            segment: one that `begin_append` was called for.
            writer: the one of that call.
            number: of this append, above that of the one before.
            offset: where the segment ends.
            block: the events, each with its header.

        Raises:
            GoneError, RefusedError, NoAnswerError: as `info`.
        """
        self._request += 1
        request = writer.bytes + struct.pack(">qqi", number, offset, len(block)) + block
        request += struct.pack(">q", self._request)
        kinds = {_DATA_APPENDED, _CONDITIONAL_CHECK_FAILED}
        return self._one_of(_CONDITIONAL_BLOCK_END, request, kinds, segment)[0] == _DATA_APPENDED

    def append_at_end(self, segment: str, writer: uuid.UUID, number: int, event: bytes) -> None:
        """Append an event, wherever the segment ends; return when it is durable.

        Args:
            segment: one that `begin_append` was called for.
            writer: the one of that call.
            number: of this append, above that of the one before.
            event: the event with its header.

        Raises:
            GoneError, RefusedError, NoAnswerError: as `info`.
        """
        self._request += 1
        request = writer.bytes + struct.pack(">ii", len(event), len(event)) + event
        request += struct.pack(">iqq", 1, number, self._request)
        self._ask(_APPEND_BLOCK_END, request, _DATA_APPENDED, segment)

    def everything(self, segment: str, start: int, end: int) -> bytes:
        """Return the bytes between two offsets that a segment is known to reach.

        Raises:
            GoneError, RefusedError, NoAnswerError: as `info`.
        """
        parts: list[bytes] = []
        while start < end:
            parts.append(self.read(segment, start, min(end - start, _PIECE_BYTES)))
            start += len(parts[-1])
        return b"".join(parts)

    def _ask(self, kind: int, request: bytes, expected: int, segment: str) -> bytes:
        return self._one_of(kind, request, {expected}, segment)[1]

    def _one_of(
        self, kind: int, request: bytes, expected: set[int], segment: str
    ) -> tuple[int, bytes]:
        self._send(kind, request)
        while True:
            answer, said = self._receive()
            if answer in expected:
                return answer, said
            if answer in _FAILURES:
                what = f"{segment}: {_FAILURES[answer]}"
                if answer in _GONE:
                    raise GoneError(what)
                raise (NoAnswerError if answer in _MOVED else RefusedError)(what)
            if answer != _KEEP_ALIVE:
                raise RefusedError(f"{segment}: an answer of an unexpected kind, {answer}")

    def _send(self, kind: int, request: bytes) -> None:
        try:
            self._socket.sendall(struct.pack(">ii", kind, len(request)) + request)
        except OSError as error:
            raise self._broken(error) from None

    def _receive(self) -> tuple[int, bytes]:
        kind, length = struct.unpack(">ii", self._exactly(8))
        if not 0 <= length <= _LONGEST_ANSWER:
            raise self._broken("an answer of an impossible length")
        return kind, self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            try:
                part = self._socket.recv(min(count, 1 << 20))
            except OSError as error:
                raise self._broken(error) from None
            if not part:
                raise self._broken("the connection was closed")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _broken(self, what: object) -> NoAnswerError:
        # What comes later belongs to a request that was given up.
        self.close()
        return NoAnswerError(f"The segment store {self._where}: {what}")


def event_bytes(content: bytes) -> bytes:
    """Return an event as it stands in a segment."""
    return HEADER.pack(0, len(content)) + content


def events(data: bytes, longest: int = LONGEST_EVENT) -> Iterator[tuple[int, bytes]]:
    """Yield the whole events at the beginning of some bytes, each with the place where it ends.

    Args:
        data: the bytes.
        longest: how long an event may be.

    Raises:
        RefusedError: there is no event.
    """
    at, end = 0, len(data)
    while end - at >= HEADER_BYTES:
        kind, size = HEADER.unpack_from(data, at)
        if kind != 0 or size > longest:
            raise RefusedError("what stands there is no event: was it written as a byte stream?")
        if end - at - HEADER_BYTES < size:
            return
        at += HEADER_BYTES + size
        yield at, data[at - size : at]


def bytes_missing(data: bytes) -> int:
    """Return how many bytes are missing of the event that some bytes begin; at least one.

    Args:
        data: no whole event.
    """
    if len(data) < HEADER_BYTES:
        return 1
    return int(HEADER.unpack_from(data)[1]) + HEADER_BYTES - len(data)


def _text(value: str) -> bytes:
    encoded = value.encode("ascii")
    return struct.pack(">H", len(encoded)) + encoded


def _after_text(said: bytes, at: int) -> int:
    return int(struct.unpack_from(">H", said, at)[0]) + at + 2
