"""What a task writes: a transaction, and the segments of it.

Each block of events is appended at the offset where the one before it ended, and answered when it
is durable. So when the last one is answered, the transaction has the task's rows, all of them, once
and in their order.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from onceforall.common.arguments import shown
from onceforall.common.column_texts import texts_of
from onceforall.common.pravega.answers import NoAnswerError, RefusedError
from onceforall.common.pravega.controller import Controller
from onceforall.common.pravega.names import (
    StreamName,
    segment_of,
    transaction_segment_name,
)
from onceforall.common.pravega.segments import LONGEST_EVENT, SegmentStore, event_bytes
from onceforall.errors import AttemptFailedError, RefusedRecordError
from onceforall.sinks.pravega.target import OpenTransactions

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 512 * 1024


class _Part:
    """What the transaction writes for one segment."""

    def __init__(self, store: SegmentStore, segment: str) -> None:
        self._store, self._segment, self._writer = store, segment, uuid.uuid4()
        self._block, self._offset, self._number = bytearray(), 0, 0
        store.begin_append(segment, self._writer)

    def add(self, content: bytes) -> None:
        self._block += event_bytes(content)
        if len(self._block) >= _BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._block:
            return
        block, self._number = bytes(self._block), self._number + 1
        if not self._store.append(self._segment, self._writer, self._number, self._offset, block):
            raise RefusedError(f"{self._segment} doesn't end at {self._offset}: who wrote to it?")
        self._offset += len(block)
        self._block.clear()


class PravegaWriting:
    """A transaction while its task writes it."""

    def __init__(
        self, controller: Controller, stream: StreamName, name: str, lease_ms: int
    ) -> None:
        """Open a transaction.

        Args:
            controller: the cluster's.
            stream: where to.
            name: the attempt's.
            lease_ms: how long the transaction is kept open.

        Raises:
            AttemptFailedError: it can't be opened.
        """
        self._controller, self._stream, self._name = controller, stream, name
        self._stores: dict[tuple[str, int], SegmentStore] = {}
        self._parts: dict[int, _Part] = {}
        try:
            self._id, self._segments = controller.begin(stream, lease_ms)
            OpenTransactions(controller, stream).note(name, self._id)
        except (NoAnswerError, RefusedError) as error:
            raise self._failed(error) from error
        self._turns = itertools.cycle([each.number for each in self._segments])

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows, and append what makes whole blocks.

        Raises:
            RefusedRecordError: Pravega can't have a row.
            AttemptFailedError: Pravega refuses, or doesn't answer.
        """
        contents = rows.column("event").to_pylist()
        keys: Sequence[str | None] = [None] * len(contents)
        if "routingKey" in rows.schema.names:
            keys = texts_of("routingKey", rows.column("routingKey"))
        try:
            for content, key in zip(contents, keys, strict=True):
                self._part(key).add(_checked(content, key))
        except (NoAnswerError, RefusedError) as error:
            raise self._failed(error) from error

    def finish(self) -> dict[str, Any]:
        """Return the committable, when all rows are durable.

        Raises:
            AttemptFailedError: Pravega refuses, or doesn't answer.
        """
        try:
            for part in self._parts.values():
                part.flush()
        except (NoAnswerError, RefusedError) as error:
            raise self._failed(error) from error
        self._disconnect()
        return {"name": self._name, "txn": str(self._id)}

    def give_up(self) -> None:
        """Abort the transaction if the controller answers; otherwise its lease ends it."""
        self._disconnect()
        with suppress(NoAnswerError, RefusedError):
            self._controller.abort(self._stream, self._id)

    def _part(self, key: str | None) -> _Part:
        number = next(self._turns) if key is None else segment_of(key, self._segments)
        if number not in self._parts:
            where = self._controller.store_of(self._stream, number)
            if where not in self._stores:
                self._stores[where] = SegmentStore(*where)
            name = transaction_segment_name(self._stream, number, self._id)
            self._parts[number] = _Part(self._stores[where], name)
        return self._parts[number]

    def _disconnect(self) -> None:
        for store in self._stores.values():
            store.close()

    def _failed(self, error: Exception) -> AttemptFailedError:
        return AttemptFailedError(
            f"Writing to the Pravega stream {self._stream} failed: {error}. If the transaction was "
            "gone, the batch took longer than lease_s or the stream was sealed; otherwise check "
            "the segment stores and the controller."
        )


def _checked(content: bytes | None, key: str | None) -> bytes:
    if content is None:
        raise RefusedRecordError(
            f"A row with routingKey {shown(key)} has no event. Filter such rows out, or mend them."
        )
    if len(content) > LONGEST_EVENT:
        raise RefusedRecordError(
            f"A row with routingKey {shown(key)} makes an event of {len(content)} bytes, and "
            f"{LONGEST_EVENT} are the most that Pravega's clients write by default. Make it "
            "smaller."
        )
    return content
