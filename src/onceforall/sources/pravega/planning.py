"""Finds where a batch ends, on the driver.

Pravega tells where a segment ends, and nothing before that ever changes: an append is whole events,
and a transaction's come at once. So without limits a plan reads nothing; with a limit it reads as
far as the batch goes, for nothing else tells where events end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from onceforall.common.logs import logger
from onceforall.common.pravega.answers import GoneError
from onceforall.common.pravega.segments import HEADER_BYTES, Info
from onceforall.errors import OptionError, SourceError
from onceforall.sources.pravega.client import Segments
from onceforall.sources.pravega.options import Options
from onceforall.sources.pravega.positions import Offset, Position, replaced
from onceforall.sources.pravega.reading import kept_from, lost, walk
from onceforall.sources.spark_reader import Limits

_log = logger(__name__)


class _AnotherStreamError(Exception):
    """The stream at the address isn't the one that the query has read."""


@dataclass(frozen=True)
class Cut:
    """Where the stream ended at a moment, by the segments that took events then."""

    ends: Mapping[int, int]

    def limit(self, number: int, end: int) -> int:
        """Return how far a segment may be read that goes to ``end`` by now."""
        if number in self.ends:
            return min(end, self.ends[number])
        # A number's upper half is the epoch that made the segment: it came before these, or later.
        # A stream without ends was sealed: nothing comes later.
        return end if not self.ends or number >> 32 <= max(self.ends) >> 32 else 0


class Planner:
    """Plans the batches of one query. Used by one thread."""

    def __init__(self, options: Options) -> None:
        """Nothing is asked yet."""
        self._options = options
        self._stream = options.access.stream
        self._segments = Segments(options.access)

    def now(self) -> Cut:
        """Return where the stream ends now.

        Raises:
            SourceError: Pravega refuses, or doesn't answer.
        """
        found = self._segments.ask(lambda controller: controller.segments(self._stream))
        return Cut({each.number: self._info(each.number).end for each in found})

    def close(self) -> None:
        """End the connections."""
        self._segments.close()

    def plan(self, start: Offset, limits: Limits, until: Cut | None = None) -> Offset:
        """Return where a batch ends; the start itself when there is nothing new.

        Args:
            start: where it begins.
            limits: how far it may go.
            until: stop there.

        Raises:
            DataLossError: events between here and what is there are gone.
            SourceError: Pravega refuses, or doesn't answer.
        """
        if start.stream not in {None, str(self._stream)}:
            raise SourceError(
                f"The checkpoint is of the Pravega stream {start.stream}, and the query reads "
                f"{self._stream}. Start it with the stream that the checkpoint is of, or with a "
                "new checkpoint."
            )
        first = self._segments.ask(lambda controller: controller.first_segment(self._stream))
        try:
            self._check_stream(start, first)
            found = None if start.stream else self._beginning()
            return self._planned(start, first, found, limits, until)
        except _AnotherStreamError as error:
            self._say(
                f"The Pravega stream {self._stream} is not the one that the query has read: "
                f"{error}. What the query had not read of that one is gone",
                error,
            )
        # What is there is all new.
        kept = self._segments.ask(lambda controller: controller.head(self._stream))
        anew = Offset(str(self._stream), first=first, again=start.again + 1)
        return self._planned(anew, first, _beginnings(kept), limits, until)

    def _planned(
        self,
        start: Offset,
        first: int,
        found: Mapping[int, Position] | None,
        limits: Limits,
        until: Cut | None,
    ) -> Offset:
        """Return where a batch ends that begins at ``found``; None: at the start's own segments."""
        begun = {number: each.begun() for number, each in start.segments.items()}
        found = begun if found is None else found
        looked_at: set[int] = set()
        while True:
            # Also what was closed when the batch began may have successors.
            found = replaced(begun, found, self._successors(found))
            fresh = [
                number
                for number, each in found.items()
                if number not in looked_at and not each.closed
            ]
            if not fresh:
                break
            for number in fresh:
                found[number] = self._read(number, found[number], limits, until, len(fresh))
            looked_at |= set(fresh)
        if start.stream and found == begun:
            return start
        return Offset(str(self._stream), found, first, start.again)

    def _check_stream(self, start: Offset, first: int) -> None:
        """Look whether the stream is the one that an offset is of.

        Raises:
            _AnotherStreamError: it isn't, as far as can be told.
        """
        if start.stream is None:
            return
        if not start.is_of(first):
            raise _AnotherStreamError(f"it was deleted and made again, with segment {first} first")
        if not start.segments and self._takes_events():
            raise _AnotherStreamError("that one was sealed, and this one takes events")
        for number, each in start.segments.items():
            if each.closed and not self._has_ended(number, each.offset):
                raise _AnotherStreamError(
                    f"segment {number} doesn't end at {each.offset}, where the query has read its "
                    "end; was the cluster built anew, or is it another one?"
                )

    def _has_ended(self, number: int, end: int) -> bool:
        """Tell whether a segment has ended there, or was truncated since."""
        try:
            info = self._segments.info(number)
        except GoneError:
            return bool(self._following(number)) or not self._takes_events()
        return info.sealed and info.end == end

    def _takes_events(self) -> bool:
        return bool(self._segments.ask(lambda controller: controller.segments(self._stream)))

    def _beginning(self) -> dict[int, Position]:
        where = self._options.start
        if where == "latest":
            cut: Mapping[int, int] = self.now().ends
        elif where == "earliest":
            cut = self._segments.ask(lambda controller: controller.head(self._stream))
        else:
            assert isinstance(where, Mapping)
            cut = where
            for number, offset in cut.items():
                self._check_given(number, offset)
            if not self._segments.ask(lambda controller: controller.is_cut(self._stream, cut)):
                raise OptionError(
                    f"startingPosition is no stream cut of {self._stream}: the segments that it "
                    "names don't have each routing key once. Name all segments of one moment."
                )
        return _beginnings(cut)

    def _check_given(self, number: int, offset: int) -> None:
        try:
            info = self._segments.info(number)
        except GoneError:
            raise OptionError(
                f"startingPosition names segment {number}, which {self._stream} doesn't have (any "
                "more)."
            ) from None
        if not info.start <= offset <= info.end:
            raise OptionError(
                f"startingPosition has offset {offset} of segment {number} of {self._stream}, "
                f"which has {info.start} to {info.end}."
            )

    def _info(self, number: int) -> Info:
        try:
            return self._segments.info(number)
        except GoneError as error:
            raise SourceError(
                f"Segment {number} of {self._stream} is not there: {error}. Was the stream deleted?"
            ) from error

    def _read(
        self, number: int, position: Position, limits: Limits, until: Cut | None, parts: int
    ) -> Position:
        """Return how far a batch goes in a segment."""
        try:
            info = self._segments.info(number)
        except GoneError as error:
            self._say_lost(f"segment {number} from offset {position.offset} on ({error})", error)
            return replace(position, closed=True)
        offset = position.offset
        if offset > info.end:
            raise _AnotherStreamError(
                f"segment {number} ends at {info.end}, and the query has read it to {offset}; was "
                "the cluster built anew, or is it another one?"
            )
        if offset < info.start:
            self._say_lost(f"segment {number} from offset {offset} to {info.start}", None)
            offset = info.start
        end = info.end if until is None else until.limit(number, info.end)
        try:
            end = self._limited(number, offset, max(end, offset), limits, parts)
        except GoneError as error:
            # It was truncated behind the look at it: another look tells from where it is kept.
            self._say_lost(f"segment {number} from offset {offset} on ({error})", error)
            kept = kept_from(self._segments, number, offset, info.end)
            return self._read(number, replace(position, offset=kept), limits, until, parts)
        return replace(position, offset=end, closed=info.sealed and end == info.end)

    def _say_lost(self, what: str, error: Exception | None) -> None:
        self._say(
            f"Events of the Pravega stream {self._stream} are gone that the query has not read: "
            f"{what}; the stream was truncated, or deleted",
            error,
        )

    def _say(self, said: str, error: Exception | None) -> None:
        if self._options.fail_on_data_loss:
            raise lost(said) from error
        _log.warning("%s. The query goes on with the rest, as failOnDataLoss=false says.", said)

    def _limited(self, number: int, start: int, end: int, limits: Limits, parts: int) -> int:
        """Return the end of the last event within the limits, of which each segment has its part;
        at least that of one event.
        """
        if start == end or (limits.rows is None and limits.size is None):
            return end
        rows = None if limits.rows is None else max(1, limits.rows // parts)
        size = None if limits.size is None else max(1, limits.size // parts)
        at, seen = start, 0
        for event_end, content in walk(self._segments, number, start, end):
            if size is not None and at > start and event_end - start > size:
                return at
            at, seen = event_end, seen + 1
            if seen == rows or (size is not None and len(content) + HEADER_BYTES > size):
                return at
        return at

    def _successors(self, found: Mapping[int, Position]) -> dict[int, dict[int, tuple[int, ...]]]:
        return {number: self._following(number) for number, each in found.items() if each.closed}

    def _following(self, number: int) -> dict[int, tuple[int, ...]]:
        found = self._segments.ask(lambda controller: controller.successors(self._stream, number))
        return {each.number: each.predecessors for each in found}


def _beginnings(cut: Mapping[int, int]) -> dict[int, Position]:
    return {number: Position(offset, first=offset) for number, offset in cut.items()}
