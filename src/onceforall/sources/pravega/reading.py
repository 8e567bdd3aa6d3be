"""Reads the events of a range of a segment: the same ones each time, or an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from onceforall.common.logs import logger
from onceforall.common.pravega.answers import GoneError, RefusedError
from onceforall.common.pravega.segments import HEADER_BYTES, bytes_missing, events
from onceforall.errors import DataLossError, SourceError
from onceforall.sources.arrow_batches import in_batches
from onceforall.sources.pravega.client import Segments
from onceforall.sources.pravega.options import Access
from onceforall.sources.pravega.positions import Range

if TYPE_CHECKING:
    import pyarrow as pa

_log = logger(__name__)

_PIECE_BYTES = 1 << 20
SCHEMA = "event BINARY, stream STRING, segmentId BIGINT, offset BIGINT"


def walk(segments: Segments, number: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the events between two offsets of a segment, each with the offset where it ends,
    however large they are.

    Args:
        segments: reads them.
        number: the segment's.
        start: where an event begins.
        end: where one ends.

    Raises:
        GoneError: some are there no more.
        SourceError: there are no events, or Pravega doesn't answer.
    """
    held, at, missing = b"", start, 1
    try:
        while at + len(held) < end:
            held += _read(segments, number, at + len(held), missing, end)
            used = 0
            for used, content in events(held, longest=end - at):
                yield at + used, content
            held, at = held[used:], at + used
            missing = bytes_missing(held)
    except RefusedError as error:
        if isinstance(error, GoneError):
            raise
        raise SourceError(f"Segment {number} can't be read at {at}: {error}.") from error
    if held:
        raise SourceError(
            f"Segment {number} has an event across offset {end}. Look who has changed the "
            "checkpoint, and whether the stream holds events, and no bytes."
        )


def _read(segments: Segments, number: int, start: int, least: int, end: int) -> bytes:
    """Return at least so many bytes of a segment, as far as the end."""
    parts, at = [], start
    while at < min(start + least, end):
        parts.append(segments.read(number, at, min(end - at, _PIECE_BYTES)))
        at += len(parts[-1])
    return b"".join(parts)


def batches(
    access: Access, todo: Range, *, fail_on_data_loss: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range as Arrow batches.

    Args:
        access: how to reach the stream.
        todo: the range.
        fail_on_data_loss: raise where events are gone; otherwise what is there is all.

    Raises:
        DataLossError: some are gone.
        SourceError: Pravega refuses, or doesn't answer.
    """
    import pyarrow as pa

    schema = pa.schema(
        [
            ("event", pa.binary()),
            ("stream", pa.string()),
            ("segmentId", pa.int64()),
            ("offset", pa.int64()),
        ]
    )
    segments = Segments(access)
    try:
        rows = _rows(segments, access, todo, fail_on_data_loss=fail_on_data_loss)
        yield from in_batches(rows, schema)
    finally:
        segments.close()


def _rows(
    segments: Segments, access: Access, todo: Range, *, fail_on_data_loss: bool
) -> Iterator[tuple[object, ...]]:
    stream, start = str(access.stream), todo.start
    if start >= todo.end:
        return
    try:
        _check_end(segments, todo)
        for end, content in walk(segments, todo.segment, start, todo.end):
            start = end
            yield content, stream, todo.segment, end - len(content) - HEADER_BYTES
    except GoneError as error:
        said = (
            f"Events of the Pravega stream {access.stream} are gone that a batch has: segment "
            f"{todo.segment} from offset {todo.start} to {todo.end} ({error}); the stream was "
            "truncated, or made again"
        )
        if fail_on_data_loss:
            raise lost(said) from error
        _log.warning("%s. The batch goes on without them, as failOnDataLoss=false says.", said)
        rest = replace(todo, start=kept_from(segments, todo.segment, start, todo.end))
        yield from _rows(segments, access, rest, fail_on_data_loss=False)


def _check_end(segments: Segments, todo: Range) -> None:
    """Look whether a segment has what was planned: a read behind its end waits for what comes."""
    end = segments.info(todo.segment).end
    if end < todo.end:
        raise GoneError(f"the segment ends at {end}: was the cluster built anew?")


def kept_from(segments: Segments, number: int, start: int, end: int) -> int:
    """Return the offset between two at which a segment's kept events begin."""
    try:
        info = segments.info(number)
    except GoneError:
        return end
    return min(max(start, info.start), end) if info.end >= end else end


def lost(said: str) -> DataLossError:
    """Return the error for events that are gone.

    Args:
        said: which, and why.
    """
    return DataLossError(
        f"{said}. To go on with what is there, set the option failOnDataLoss to false for one "
        "start; the rest is lost."
    )
