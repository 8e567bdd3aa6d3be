"""The log of a partition: records, markers, and what a reader at read_committed sees of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

Partition = tuple[str, int]

DUPLICATE, APPENDED = 0, 0
INVALID_EPOCH, OUT_OF_ORDER = 47, 45

_HEADER = struct.Struct(">qiibIhiqqqhii")
_COUNTED_FROM = 12
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


@dataclass
class Entry:
    """One batch of the log, with one record: a task's, or a marker.

    Attributes:
        offset: its place.
        producer_id: whose it is.
        epoch: the producer's.
        commits: what a marker does; None for a task's record.
        transaction: which transaction the record belongs to, by the truth; 0 for a stranger's.
        sequence: the record's, as the producer counts.
        emptied: compaction has left only the header.
    """

    offset: int
    producer_id: int
    epoch: int
    commits: bool | None = None
    transaction: int = 0
    sequence: int = -1
    emptied: bool = False

    def encoded(self) -> bytes:
        """Return the record batch, format 2."""
        attributes, body = _TRANSACTIONAL, b"\x10\x00\x00\x00\x01\x02x\x00"
        if self.commits is not None:
            attributes |= _CONTROL
            key = struct.pack(">hh", 0, int(self.commits))
            body = bytes([30, 0, 0, 0, 2 * len(key)]) + key + bytes(10)
        count = 1
        if self.emptied:
            body, count = b"", 0
        header = _HEADER.pack(
            self.offset,
            _HEADER.size - _COUNTED_FROM + len(body),
            0,
            2,
            0,
            attributes,
            0,
            0,
            0,
            self.producer_id,
            self.epoch,
            self.sequence,
            count,
        )
        return header + body


@dataclass
class PartitionLog:
    """One partition, as all in-sync replicas have it.

    Attributes:
        seen: called with the transaction of each record that becomes visible.
        entries: since the beginning.
        start: the first offset that retention has left.
        shown: the end that a new leader knows of; None: the true one.
        open: the records of each producer since its last marker.
        visible: transaction and sequence of what a reader at read_committed sees.
    """

    seen: Callable[[int], None]
    entries: list[Entry] = field(default_factory=list)
    start: int = 0
    shown: int | None = None
    open: dict[int, list[Entry]] = field(default_factory=dict)
    visible: list[tuple[int, int]] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return len(self.entries)

    def produce(self, producer_id: int, epoch: int, transaction: int, sequence: int) -> int:
        """Append a record unless the producer is fenced or the request is a repeated one; return
        the error code.
        """
        known = self.epochs.get(producer_id, -1)
        if epoch < known:
            return INVALID_EPOCH
        last = self.sequences.get(producer_id, -1) if epoch == known else -1
        if sequence <= last:
            return DUPLICATE
        if sequence != last + 1:
            return OUT_OF_ORDER
        self.epochs[producer_id], self.sequences[producer_id] = epoch, sequence
        entry = Entry(self.end, producer_id, epoch, transaction=transaction, sequence=sequence)
        self.entries.append(entry)
        self.open.setdefault(producer_id, []).append(entry)
        return APPENDED

    def mark(self, producer_id: int, epoch: int, *, commits: bool) -> None:
        """Append a marker; what it commits becomes visible."""
        if epoch > self.epochs.get(producer_id, -1):
            self.epochs[producer_id], self.sequences[producer_id] = epoch, -1
        self.entries.append(Entry(self.end, producer_id, epoch, commits))
        records = self.open.pop(producer_id, [])
        if commits:
            for record in records:
                self.visible.append((record.transaction, record.sequence))
                self.seen(record.transaction)

    def encoded(self, offset: int, end: int) -> bytes:
        """Return the record batches from ``offset`` to ``end``."""
        return b"".join(entry.encoded() for entry in self.entries[offset:end])
