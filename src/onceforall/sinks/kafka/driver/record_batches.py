"""What the log of a partition tells of a producer's transactions: the headers of its record
batches, and the markers among them. Bytes in, findings out; nothing is asked here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from onceforall.sinks.kafka.driver.evidence import Marker

BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, checksum, attributes, last offset delta, two
timestamps, producer id, epoch, sequence, count."""

_LENGTH_COUNTS_FROM = 12
_IS_CONTROL = 0x20

_ENDS_ASKED = 2


class MarkerScan:
    """What is found of a producer's markers while a log is read, part by part.

    Attributes:
        position: what lies in front of it is read.
        found: the marker; see ``TransactionReader.marker``.
        end: how far to read; -1: nobody has told it.
        ends_left: how often the end is still asked for.
    """

    def __init__(self, offset: int, producer_id: int, epoch: int) -> None:
        self.position = offset
        self.found: Marker | None = None
        self.end, self.ends_left = -1, _ENDS_ASKED
        self._offset, self._producer_id, self._epoch = offset, producer_id, epoch
        self._is_whole = True

    def take(self, records: bytes) -> bool:
        """Take the next record batches; tell whether nothing behind them can matter."""
        for batch in record_batches(records):
            self._is_whole &= batch.base_offset <= self.position
            self.position = batch.next_offset
            if batch.producer_id != self._producer_id or batch.base_offset < self._offset:
                continue
            self._is_whole &= not batch.is_emptied_marker
            self.found = _with_batch(self.found, batch, self._epoch, is_whole=self._is_whole)
            if batch.commits is not None and batch.epoch > self._epoch:
                # Its coordinator gives out a later epoch when all under ours is ended.
                return True
        return False


class RecordBatchHeader:
    """What the header of a record batch says; for a control batch also what its record does
    (KIP-98).
    """

    def __init__(
        self,
        base_offset: int,
        next_offset: int,
        producer_id: int,
        epoch: int,
        commits: bool | None,  # noqa: FBT001
        *,
        is_emptied_marker: bool = False,
    ) -> None:
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.producer_id = producer_id
        self.epoch = epoch
        self.commits = commits
        self.is_emptied_marker = is_emptied_marker


def _with_batch(
    found: Marker | None, batch: RecordBatchHeader, epoch: int, *, is_whole: bool
) -> Marker | None:
    if batch.commits is None:
        return None if batch.epoch == epoch else found
    if found is not None:
        return found
    return Marker(batch.commits, batch.epoch, batch.base_offset, is_first=is_whole)


def record_batches(data: bytes) -> Iterator[RecordBatchHeader]:
    """Read the headers of record batches (format 2); a batch that is cut off at the end is left
    out.

    https://kafka.apache.org/documentation/#recordbatch
    """
    start = 0
    while start + BATCH_HEADER.size <= len(data):
        base, length, _, _, _, attributes, delta, _, _, producer_id, epoch, _, count = (
            BATCH_HEADER.unpack_from(data, start)
        )
        end = start + _LENGTH_COUNTS_FROM + length
        if end > len(data):
            return
        commits = None
        # The cleaner of a compacted topic may leave the header alone: a marker that doesn't tell
        # any more what it did.
        is_control = bool(attributes & _IS_CONTROL)
        if is_control and count:
            commits = _control_type(data, start + BATCH_HEADER.size)
        yield RecordBatchHeader(
            base,
            base + delta + 1,
            producer_id,
            epoch,
            commits,
            is_emptied_marker=is_control and not count,
        )
        start = end


def _control_type(data: bytes, position: int) -> bool | None:
    """Return whether a control record commits; None when it ends no transaction (a leader
    change, a snapshot).
    """
    _, position = _varint(data, position)
    position += 1
    for _ in range(3):
        # Timestamp delta, offset delta, length of the key.
        _, position = _varint(data, position)
    _, kind = struct.unpack_from(">hh", data, position)
    return {0: False, 1: True}.get(kind)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), position
