"""Finds where a batch ends, on the driver: it reads the shards as far as the batch may go, and
keeps nothing but the sequence number of the last record, their number and its time.

An end must be a record that was seen, or a replay could read on to another one. Nothing but reading
finds one: Kinesis has no index by number. The tasks then read the same records again. So a query
uses twice what it takes in: of the 2 MB a second that a shard gives, it takes in 1 MB at most. What
was weighed against it:

- To send the records on with the plan makes the driver the way for all data, and a replay would go
  another way than the first run.
- To ask for one record at a time near now (``AT_TIMESTAMP``) finds an end without reading all, but
  then nobody knows how many records a range has. That number is what limits a batch, and what
  proves that a replay has found all of them.

**Retention.** Kinesis begins at its oldest record, and says nothing, where an iterator's place is
older. So each position has a time before which everything was read. If retention still reached back
to it when the server answered, nothing can be missing. Otherwise the record of the position itself
is looked for, behind the answer: it is there, or something may be lost. Before the answer neither
proves anything: a request may be repeated for minutes, and retention goes on. For a shard where
nothing comes, that time is renewed when a quarter of retention has passed, with an empty batch: so
a query may be stopped for three quarters of it.

**Beginnings.** What was forgotten before a query began is no loss. But until something of a shard
was seen, nobody knows where its oldest record is, and from an offset that says no more than "from
there on" nobody could tell later what was forgotten since. So the plan that begins a shard goes on
until it has seen a first record, or that there is none, and its end has a time for each shard. Only
where a time to begin with is one that retention surely has is it that time itself. Of positions
without any, which earlier releases have written, that time counts, or the stream's creation.

Retention may be made shorter while a query runs, and longer while it is stopped, which brings
nothing back. So an offset carries it, and what counts is the least of this one and of what the
stream says before and behind the answer. Kinesis has no retention of less than a day: where a
position is younger than that, the stream needn't be asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from onceforall.common.logs import logger
from onceforall.errors import DataLossError, OptionError, SourceError
from onceforall.sources.kinesis import lineage
from onceforall.sources.kinesis.aggregates import unpacked
from onceforall.sources.kinesis.client import (
    MOST_RECORDS,
    ExpiredIteratorError,
    Page,
    Record,
    ShardGoneError,
    Shards,
    Stream,
)
from onceforall.sources.kinesis.lineage import Shard
from onceforall.sources.kinesis.options import Options
from onceforall.sources.kinesis.positions import Offset, Position, StreamPositions, close
from onceforall.sources.spark_reader import Limits

_log = logger(__name__)

_THREADS = 16
_DESCRIBED_FOR_S = 300.0
_RENEWED_AFTER = 4  # a part of retention
_HORIZON_MS = 600_000
"""What is forgotten within the next ten minutes isn't begun with: it would be gone when the batch
is read or replayed.
"""
_LEAST_RETENTION_MS = 24 * 3_600_000
_MARGIN_MS = 60_000
"""Times that are compared with retention are the server's, in whole seconds and of several of its
machines. So near the limit a position's record is looked for.
"""


@dataclass
class _Cursor:
    """A shard while a batch is planned."""

    arn: str
    shard: str
    begun: Position
    position: Position
    retention_ms: int
    iterator: str | None = None
    behind_ms: int = 0
    rows: int = 0
    size: int = 0
    over: bool = False
    doubts: list[tuple[Position, int]] = field(default_factory=list)

    @property
    def has_records(self) -> bool:
        return self.position.count > self.begun.count

    @property
    def is_unseen(self) -> bool:
        """Nothing of it was seen, and nothing would tell later what was forgotten until then."""
        return self.position.is_beginning


@dataclass
class _Kept:
    """What is kept of a stream from one plan to the next, to ask less often."""

    stream: Stream
    described: float
    clock_ms: int
    listed: dict[str, Shard] = field(default_factory=dict)


class Planner:
    """Plans the batches of one query. Used by one thread."""

    def __init__(self, options: Options) -> None:
        """Nothing is asked yet."""
        self._options = options
        self._shards = Shards(options.access)
        self._kept: dict[str, _Kept] = {}
        self._arns: dict[str, str] = {}
        # An iterator, and the place it stands at: a plan that was thrown away leaves others.
        self._iterators: dict[tuple[str, str], tuple[object, str]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self.behind_ms: dict[str, int] = {}

    def now(self) -> int:
        """Return the server's clock in milliseconds: it is not later than this."""
        return max(self._shards.describe(one)[1] for one in self._options.streams) + 999

    def close(self) -> None:
        """Release threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def plan(self, start: Offset, limits: Limits, until: int | None = None) -> Offset:
        """Return where a batch ends; the start itself when there is nothing new.

        Args:
            start: where it begins.
            limits: how far it may go.
            until: stop before what arrived after this time, in milliseconds.

        Raises:
            DataLossError: something between here and what is there may be gone.
            SourceError: Kinesis refuses, or doesn't answer.
        """
        # Of one stream there may be a name and an ARN.
        names = {self._described(name): name for name in self._options.streams}
        arns = list(names)
        self._check_streams(start, arns)
        cursors: dict[tuple[str, str], _Cursor] = {}
        found: dict[str, dict[str, Position]] = {}
        retentions = {arn: self._kept[arn].stream.retention_ms for arn in arns}
        for arn, positions in start.streams.items():
            retentions[arn] = positions.retention_ms or _LEAST_RETENTION_MS
        deadline = None if limits.seconds is None else time.monotonic() + limits.seconds
        waiting = {}
        for arn, name in names.items():
            if arn in start.streams:
                found[arn] = self._grown(arn, _dated(start.streams[arn]), set())
            else:
                found[arn] = self._beginning(name, arn)
            waiting[arn] = True
        while any(waiting.values()):
            fresh = [
                _Cursor(arn, shard, position, position, retentions[arn])
                for arn in arns
                for shard, position in found[arn].items()
                if not position.closed and (arn, shard) not in cursors
            ]
            cursors.update({(one.arn, one.shard): one for one in fresh})
            self._read(fresh, limits, deadline, until, list(cursors.values()))
            for arn in arns:
                here = {one.shard: one for one in cursors.values() if one.arn == arn}
                after = {
                    shard: here[shard].position if shard in here else position
                    for shard, position in found[arn].items()
                }
                after = self._replaced(arn, after, here)
                read_now = {shard for shard, one in here.items() if one.has_records}
                grown = self._grown(arn, after, read_now)
                # Heirs of a shard that is gone, too, which are no children of one that was read.
                waiting[arn] = any(
                    shard not in here and not each.closed for shard, each in grown.items()
                )
                found[arn] = grown
        self.behind_ms = {
            arn: max((one.behind_ms for one in cursors.values() if one.arn == arn), default=0)
            for arn in arns
        }
        about = {arn: self._kept[arn].stream for arn in arns}
        streams = {
            arn: StreamPositions(one.created, found[arn], one.retention_ms)
            for arn, one in about.items()
        }
        if streams == dict(start.streams):
            return start
        return Offset(streams, max(self.behind_ms.values(), default=0))

    # --- streams and their shards -----------------------------------------------------------------

    def _described(self, name: str) -> str:
        arn = self._arns.get(name)
        kept = self._kept.get(arn) if arn is not None else None
        if kept is not None and time.monotonic() - kept.described < _DESCRIBED_FOR_S:
            return kept.stream.arn
        stream, clock_ms = self._shards.describe(name)
        self._arns[name] = stream.arn
        now = time.monotonic()
        if kept is None:
            kept = self._kept[stream.arn] = _Kept(stream, now, clock_ms)
            self._list(stream.arn)
        kept.stream, kept.described, kept.clock_ms = stream, now, clock_ms
        return stream.arn

    def _list(self, arn: str) -> dict[str, Shard]:
        listed = self._shards.listed(arn)
        self._kept[arn].listed = listed
        return listed

    def _check_streams(self, start: Offset, arns: list[str]) -> None:
        for arn, positions in start.streams.items():
            if arn not in arns:
                self._lost(
                    f"The checkpoint has positions of {arn}, which streamName and streamArn don't "
                    "name any more"
                )
            else:
                self._check_created(arn, positions.created)

    def _check_created(self, arn: str, created: int) -> None:
        if created != self._kept[arn].stream.created:
            raise DataLossError(
                f"The stream {arn} of the checkpoint was deleted, and another one has its name "
                "now. Where it is the query's only one, start with a new checkpoint; else leave it "
                "out of streamName for one batch, with failOnDataLoss=false, and name it again: it "
                "is begun as a new one, and the others keep their positions."
            )

    def _beginning(self, name: str, arn: str) -> dict[str, Position]:
        """Return where a stream that the query hasn't read yet is begun."""
        start, listed = self._options.start, self._list(arn)
        if start.kind == "given":
            return _given(name, arn, start.given, listed)
        if start.kind == "latest":
            return self._latest(arn, [name for name, shard in listed.items() if shard.is_open])
        kept = self._kept[arn]
        oldest = kept.clock_ms - kept.stream.retention_ms + _HORIZON_MS
        timestamp = oldest if start.timestamp is None else start.timestamp
        # Without a time for what is about to be forgotten: it would be called lost at once.
        time = timestamp if timestamp > oldest else None
        return {shard: Position(timestamp=timestamp, time=time) for shard in lineage.roots(listed)}

    def _latest(self, arn: str, shards: list[str]) -> dict[str, Position]:
        """Return the end of each shard at this moment, by the server's clock; this process reads
        on from there by an iterator, which is exact.
        """
        _, now = self._shards.describe(arn)
        found = {}
        for shard in shards:
            position = found[shard] = Position(timestamp=now, time=now)
            iterator = self._shards.iterator(arn, shard, "LATEST")
            self._iterators[arn, shard] = (position.place, iterator)
        return found

    def _grown(
        self, arn: str, positions: dict[str, Position], read_now: set[str]
    ) -> dict[str, Position]:
        """Return the positions with the children that may begin."""
        if not any(position.closed for position in positions.values()):
            return positions
        listed = self._kept[arn].listed
        for name, position in positions.items():
            if position.closed and not any(name in child.parents for child in listed.values()):
                listed = self._list(arn)
                break
        if gaps := [one for one in lineage.gaps(positions, listed) if one not in read_now]:
            self._lost(
                f"Between {', '.join(gaps)} of {arn} and the shards that take records now, some "
                "are gone that were not read: retention has passed what they had"
            )
            # What came of them is there, and reached from no position.
            left = lineage.orphans(positions, listed)
            positions = {**positions, **dict.fromkeys(left, Position())}
        found = lineage.advance(positions, listed, read_now)
        for name in list(found):
            heirs = any(name in child.parents for child in listed.values())
            if found[name].closed and not heirs and name not in read_now:
                self._lost(
                    f"Shard {name} of {arn} was read to its end, and the shards that it was split "
                    "or merged into are gone: retention has passed what they had"
                )
                del found[name]
                found.update({one: Position() for one in lineage.orphans(found, listed)})
        return found

    def _replaced(
        self, arn: str, positions: dict[str, Position], cursors: Mapping[str, _Cursor]
    ) -> dict[str, Position]:
        """Return the positions without shards that are gone, and with what comes after these."""
        gone = [shard for shard, one in cursors.items() if one.behind_ms < 0]
        if not any(shard in positions for shard in gone):
            return positions
        left = {shard: each for shard, each in positions.items() if shard not in gone}
        listed = self._list(arn)
        return {**left, **{one: Position() for one in lineage.orphans(left, listed)}}

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{what}. To go on with what is there, set the option failOnDataLoss to false for "
                "one start; the rest is lost."
            )
        _log.warning(
            "%s. The query goes on with what is there, as failOnDataLoss=false says.", what
        )

    # --- reading ----------------------------------------------------------------------------------

    def _read(
        self,
        cursors: list[_Cursor],
        limits: Limits,
        deadline: float | None,
        until: int | None,
        every: list[_Cursor],
    ) -> None:
        """Read shards, page by page, in threads, until the batch is full or they have no more.

        Of a shard of which nothing was seen yet one record is read, whatever the limits are. And
        where a query reads what is there and ends, a plan without anything would end it: behind
        the pages without records that there was time for the next run would stand no further.
        """
        active = cursors
        first = True
        while active:
            rows = _left(limits.rows, sum(one.rows for one in every), len(active))
            size = _left(limits.size, sum(one.size for one in every), len(active))
            late = deadline is not None and time.monotonic() > deadline
            if not first and (rows == 0 or size == 0 or late):
                found = until is None or any(one.position != one.begun for one in every)
                active = [one for one in active if one.is_unseen or not found]
            if not active:
                return
            share = (max(1, rows or 1) if rows is not None else None, size)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, "onceforall-kinesis")
            for done in [self._pool.submit(self._read_page, one, share, until) for one in active]:
                done.result()
            self._check_retention(active)
            active = [one for one in active if not one.over]
            first = False

    def _read_page(
        self, one: _Cursor, share: tuple[int | None, int | None], until: int | None
    ) -> None:
        rows, size = share
        try:
            page = self._page(one, min(rows or MOST_RECORDS, MOST_RECORDS))
        except ShardGoneError:
            # Where the stream is deleted, or made again, no retention has passed the shard.
            self._least_retention(one.arn)
            self._lost(
                f"Shard {one.shard} of {one.arn}, of which {one.position.count} records were read, "
                f"is gone{_since(one.position)}: retention has passed what was left of it"
            )
            one.over, one.behind_ms, one.iterator = True, -1, None
            return
        taken: list[Record] = []
        left: Record | None = None
        taken_rows, taken_size = 0, 0
        for record in page.records:
            full = (bool(taken) or one.has_records) and (
                (rows is not None and taken_rows >= rows)
                or (size is not None and taken_size + record.size > size)
            )
            if full or (until is not None and record.arrival_ms > until):
                one.over, left = True, record
                break
            taken.append(record)
            taken_rows += len(unpacked(record.data, record.partition_key))
            taken_size += record.size
        whole = len(taken) == len(page.records)
        one.rows += taken_rows
        one.size += taken_size
        one.behind_ms = page.behind_ms
        if taken:
            before = one.position if one.has_records else one.begun.begun()
            one.position = before.read(
                taken[0].sequence_number,
                taken[-1].sequence_number,
                len(taken),
                taken[-1].arrival_ms,
            )
        if left is not None:
            # What was read last may be about to be forgotten, or be a parent's.
            self._renew(one, left.arrival_ms)
        one.iterator = page.following if whole else None
        if whole:
            self._at_end(one, page)
        key = (one.arn, one.shard)
        if one.iterator is not None:
            self._iterators[key] = (one.position.place, one.iterator)
        else:
            self._iterators.pop(key, None)

    def _at_end(self, one: _Cursor, page: Page) -> None:
        """Note what it says of a shard that everything on a page was taken."""
        if page.following is None:
            one.position, one.over, one.behind_ms = close(one.position), True, 0
        elif page.behind_ms == 0:
            one.over = True
            # Whatever comes next arrives after the server has looked.
            self._renew(one, page.at_ms)

    def _renew(self, one: _Cursor, at_ms: int) -> None:
        """Note that what a shard has next arrived at a time or later. Of a shard of which nothing
        was read only where that is much later than what its position says: it makes a batch.
        """
        since = one.position.time
        old = self._kept[one.arn].stream.retention_ms // _RENEWED_AFTER
        if one.has_records or since is None or at_ms - since > old:
            one.position = replace(one.position, time=max(at_ms, since or 0))

    def _page(self, one: _Cursor, limit: int) -> Page:
        """Read a page where a shard was left; `page` waits for the shard's pace."""
        for _ in range(3):
            place, left = self._iterators.get((one.arn, one.shard), (None, None))
            iterator = left if place == one.position.place else None
            if iterator is None:
                iterator = self._opened(one)
            try:
                page = self._shards.page(one.arn, one.shard, iterator, limit)
            except ExpiredIteratorError:
                self._iterators.pop((one.arn, one.shard), None)
                continue
            self._kept[one.arn].clock_ms = page.at_ms
            if one.position.at is None:
                self._note_doubt(one, page)
            elif page.records:
                self._check_at(one, page)
            return page
        raise SourceError(f"Iterators of {one.shard} of {one.arn} expire as soon as they are made.")

    def _opened(self, one: _Cursor) -> str:
        """Return an iterator of a shard's position."""
        position, read = one.position, self._shards
        if position.at is not None:
            where = {"StartingSequenceNumber": position.at}
            return read.iterator(one.arn, one.shard, "AT_SEQUENCE_NUMBER", **where)
        if position.after is not None:
            where = {"StartingSequenceNumber": position.after}
            return read.iterator(one.arn, one.shard, "AFTER_SEQUENCE_NUMBER", **where)
        if position.timestamp is not None:
            at = {"Timestamp": position.timestamp / 1000}
            return read.iterator(one.arn, one.shard, "AT_TIMESTAMP", **at)
        return read.iterator(one.arn, one.shard, "TRIM_HORIZON")

    def _note_doubt(self, one: _Cursor, page: Page) -> None:
        """Note a position whose next records may have been gone when a page was read from it."""
        position = one.position
        if position.is_beginning:
            return  # whatever is there
        if position.time is None or not _reaches(_LEAST_RETENTION_MS, page.at_ms, position.time):
            one.doubts.append((position, page.at_ms))

    def _check_retention(self, cursors: list[_Cursor]) -> None:
        """Settle the doubts of pages that were read: only what is asked after a page was read says
        anything of it.
        """
        retentions: dict[str, int] = {}
        for one in cursors:
            doubts, one.doubts = one.doubts, []
            for position, at_ms in doubts:
                if one.arn not in retentions:
                    retentions[one.arn] = self._least_retention(one.arn)
                self._settle(one, position, at_ms, min(retentions[one.arn], one.retention_ms))

    def _least_retention(self, arn: str) -> int:
        kept = self._kept[arn]
        before = kept.stream
        kept.stream, kept.clock_ms = self._shards.describe(arn)
        kept.described = time.monotonic()
        # No plan looks again for a while, and the offset would say that it is of this stream.
        self._check_created(arn, before.created)
        return min(before.retention_ms, kept.stream.retention_ms)

    def _settle(self, one: _Cursor, position: Position, at_ms: int, retention_ms: int) -> None:
        if position.time is not None and _reaches(retention_ms, at_ms, position.time):
            return
        if position.after is not None:
            for _ in range(3):
                with suppress(ExpiredIteratorError, ShardGoneError):
                    if self._is_there(one.arn, one.shard, position.after):
                        return
                    break
        self._lost(
            f"Shard {one.shard} of {one.arn} was read {_where(position)}{_since(position)}, and "
            f"the stream keeps records for {retention_ms // 3_600_000} hours: what came next may "
            "be gone"
        )

    def _is_there(self, arn: str, shard: str, number: str) -> bool:
        iterator: str | None = self._shards.iterator(
            arn, shard, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=number
        )
        while iterator is not None:
            page = self._shards.page(arn, shard, iterator, 1)
            if page.records:
                return page.records[0].sequence_number == number
            if page.behind_ms == 0:
                return False
            iterator = page.following
        return False

    def _check_at(self, one: _Cursor, page: Page) -> None:
        if page.records[0].sequence_number != one.position.at:
            self._lost(
                f"Shard {one.shard} of {one.arn} has no record {one.position.at}, where "
                "startingPosition says that it begins"
            )


def _left(limit: int | None, used: int, shards: int) -> int | None:
    """Return each shard's share of what a batch may still take; 0: it is full."""
    if limit is None:
        return None
    left = limit - used
    return 0 if left <= 0 else max(1, left // shards)


def _dated(stream: StreamPositions) -> dict[str, Position]:
    """Return the positions of an offset, those of which earlier releases had seen nothing with a
    time: they are no beginnings any more.
    """
    return {
        shard: replace(position, time=position.timestamp or stream.created)
        if position.is_beginning
        else position
        for shard, position in stream.shards.items()
    }


def _reaches(retention_ms: int, at_ms: int, time_ms: int) -> bool:
    """Tell whether retention surely reached back to a time when the server's clock said another."""
    return at_ms + _MARGIN_MS - retention_ms < time_ms


def _where(position: Position) -> str:
    if position.after is None:
        return "not at all"
    return f"up to record {position.after}"


def _since(position: Position) -> str:
    if position.time is None:
        return ""
    shown = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(position.time / 1000))
    return f" (and up to {shown} UTC)"


def _given(
    name: str,
    arn: str,
    given: Mapping[str, Mapping[str, tuple[str, str]]],
    listed: Mapping[str, Shard],
) -> dict[str, Position]:
    """Return the positions that the user has given for a stream.

    Raises:
        OptionError: they name a shard that isn't there, or leave one out.
    """
    places = given.get(name) or given.get(arn) or given.get(arn.rpartition("/")[2])
    if places is None and "" in given:
        places = given[""]
    if places is None:
        raise OptionError(f"startingPosition says nothing of the stream {name}. Name its shards.")
    if unknown := sorted(set(places) - set(listed)):
        raise OptionError(
            f"startingPosition names {', '.join(unknown)}, which {arn} doesn't have (any more)."
        )
    older = lineage.ancestors(listed, places)
    left_out = [
        shard
        for shard in listed
        if shard not in places
        and shard not in older
        and not lineage.ancestors(listed, [shard]) & set(places)
    ]
    if left_out:
        raise OptionError(
            f"startingPosition says nothing of {', '.join(sorted(left_out))} of {arn}. Name each "
            'shard, or one that it came from; {"iteratorType": "TRIM_HORIZON"} begins with its '
            "oldest record."
        )
    found = {}
    for shard, (kind, number) in places.items():
        if lineage.ancestors(listed, [shard]) & set(places):
            raise OptionError(
                f"startingPosition names {shard} and a shard that it came from. Name one of them: "
                "a child is read after its parents."
            )
        at = number if kind == "AT_SEQUENCE_NUMBER" else None
        after = number if kind == "AFTER_SEQUENCE_NUMBER" else None
        found[shard] = Position(at=at, after=after)
    return found
