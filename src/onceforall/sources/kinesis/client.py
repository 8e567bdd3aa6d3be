"""Kinesis's requests, as a reader needs them: repeated while that helps, at the pace that a shard
allows, and with the errors that a reader tells apart. For the driver and for tasks.

A shard gives five ``GetRecords`` a second and 2 MB a second, to all its readers together. `Shards`
waits before a request so that this reader alone keeps to it; what it can't know, others' reading,
shows as throttling, and is repeated later and later.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from onceforall.common.aws import (
    Access,
    RenewedClient,
    code_of,
    is_said,
    may_succeed,
    remedy,
    request_errors,
    told,
)
from onceforall.errors import (
    SourceError,
    SourceUnavailableError,
)
from onceforall.sources.kinesis.lineage import Shard

MOST_RECORDS = 10_000
_INTERVAL_S = 0.2
_IDLE_INTERVAL_S = 0.5
_BYTES_PER_S = 2 * 1024 * 1024
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_GONE = {"ResourceNotFoundException"}


class ExpiredIteratorError(Exception):
    """An iterator is older than five minutes; open another one."""


class ShardGoneError(Exception):
    """A shard, or its stream, isn't there any more."""


@dataclass(frozen=True)
class Stream:
    """What a reader knows of a stream.

    Attributes:
        arn: its ARN.
        created: when it was created, in milliseconds.
        retention_ms: how long it keeps records.
    """

    arn: str
    created: int
    retention_ms: int

    @property
    def name(self) -> str:
        """Return the stream's name."""
        return self.arn.rpartition("/")[2]


@dataclass(frozen=True)
class Record:
    """A Kinesis record."""

    data: bytes
    partition_key: str
    sequence_number: str
    arrival_ms: int

    @property
    def size(self) -> int:
        """Return its size as Kinesis counts it."""
        return len(self.data) + len(self.partition_key.encode())


@dataclass(frozen=True)
class Page:
    """What one ``GetRecords`` gave.

    Attributes:
        records: perhaps none, though there are more behind.
        following: the next iterator; None: the shard is closed, and this was its end.
        behind_ms: how far behind the newest record this was; 0: nothing came after it.
        at_ms: the server's clock, in whole seconds: not later than it looked.
    """

    records: list[Record]
    following: str | None
    behind_ms: int
    at_ms: int


def patiently(what: str, retry_s: float, request: Callable[[], Any]) -> Any:
    """Send a request until it is answered, or until repeating it can't help.

    Args:
        what: what is asked, for messages: ``GetRecords of shard …``.
        retry_s: for how long it is repeated.
        request: sends it.

    Raises:
        ExpiredIteratorError, ShardGoneError: as Kinesis says.
        SourceUnavailableError: no answer in that time.
        SourceError: Kinesis refuses it.
    """
    failures = request_errors()
    deadline, pause = time.monotonic() + retry_s, _FIRST_PAUSE_S
    while True:
        try:
            return request()
        except failures as error:
            if code_of(error) == "ExpiredIteratorException":
                raise ExpiredIteratorError from None
            if code_of(error) in _GONE:
                raise ShardGoneError(what) from None
            # Without its cause, whose message may hold a secret.
            if not may_succeed(error):
                raise SourceError(_refused(what, error)) from None
            if time.monotonic() + pause > deadline:
                advice = remedy(error, "Check the network and the address.")
                raise SourceUnavailableError(
                    f"Kinesis has not answered {what} in {retry_s:.0f} s: {told(error)}. {advice} "
                    "A restart of the query goes on where it was; the option retrySeconds sets how "
                    "long it waits."
                ) from None
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  no secret
        pause = min(pause * 2, _LONGEST_PAUSE_S)


def _refused(what: str, error: Exception) -> str:
    if is_said(error):
        advice = remedy(
            error,
            "Check the stream, and the rights to DescribeStreamSummary, ListShards, "
            "GetShardIterator and GetRecords.",
        )
        return f"Kinesis refuses {what}: {told(error)}. {advice}"
    advice = remedy(error, "Check the credentials and the region where this Python runs.")
    return f"boto3 can't send {what}: {told(error)}. {advice}"


def _no_stream(stream: str) -> SourceError:
    return SourceError(f"There is no Kinesis stream {stream}. Check its name, region and account.")


class Shards:
    """Reads shards of streams.

    Safe for use by several threads, of which one at a time reads a shard.
    """

    def __init__(self, access: Access) -> None:
        """Nothing is asked yet."""
        self._access = access
        self._next: dict[tuple[str, str], float] = {}

    def _ask(self, what: str, operation: str, **given: Any) -> dict[str, Any]:
        # A client's credentials may have to be fetched, too.
        answer: dict[str, Any] = patiently(
            what,
            self._access.retry_s,
            lambda: getattr(RenewedClient(self._access), operation)(**given),
        )
        return answer

    def describe(self, stream: str) -> tuple[Stream, int]:
        """Return a stream by its name or ARN, and the server's clock.

        Raises:
            SourceError: there is none, or it can't be asked for.
        """
        key = "StreamARN" if stream.startswith("arn:") else "StreamName"
        try:
            answer = self._ask(
                f"DescribeStreamSummary of {stream}", "describe_stream_summary", **{key: stream}
            )
        except ShardGoneError as error:
            raise _no_stream(stream) from error
        found = answer["StreamDescriptionSummary"]
        return Stream(
            arn=found["StreamARN"],
            created=int(found["StreamCreationTimestamp"].timestamp() * 1000),
            retention_ms=int(found["RetentionPeriodHours"]) * 3_600_000,
        ), _clock(answer)

    def listed(self, arn: str) -> dict[str, Shard]:
        """Return all shards of a stream that are there, open or closed, by their ids.

        Raises:
            SourceError: there is no such stream, or it can't be asked for.
        """
        given: dict[str, Any] = {"StreamARN": arn}
        found: dict[str, Shard] = {}
        while True:
            try:
                answer = self._ask(f"ListShards of {arn}", "list_shards", **given)
            except ShardGoneError as error:
                raise _no_stream(arn) from error
            for each in answer["Shards"]:
                parents = (each.get("ParentShardId"), each.get("AdjacentParentShardId"))
                found[each["ShardId"]] = Shard(
                    each["ShardId"],
                    tuple(parent for parent in parents if parent),
                    "EndingSequenceNumber" not in each["SequenceNumberRange"],
                )
            if not answer.get("NextToken"):
                return found
            given = {"NextToken": answer["NextToken"]}

    def iterator(self, arn: str, shard: str, kind: str, **where: Any) -> str:
        """Return an iterator of a shard.

        Args:
            arn: the stream's.
            shard: the shard's id.
            kind: Kinesis's ``ShardIteratorType``.
            where: ``StartingSequenceNumber`` or ``Timestamp``.

        Raises:
            ShardGoneError: the shard isn't there any more.
        """
        answer = self._ask(
            f"GetShardIterator of {shard} of {arn}",
            "get_shard_iterator",
            StreamARN=arn,
            ShardId=shard,
            ShardIteratorType=kind,
            **where,
        )
        return str(answer["ShardIterator"])

    def page(self, arn: str, shard: str, iterator: str, limit: int = MOST_RECORDS) -> Page:
        """Read from an iterator, once the shard's pace allows it.

        Raises:
            ExpiredIteratorError, ShardGoneError: as Kinesis says.
        """
        key = (arn, shard)
        wait = self._next.get(key, 0.0) - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        try:
            answer = self._ask(
                f"GetRecords of {shard} of {arn}",
                "get_records",
                StreamARN=arn,
                ShardIterator=iterator,
                Limit=max(1, min(limit, MOST_RECORDS)),
            )
        finally:
            self._next[key] = time.monotonic() + _INTERVAL_S
        records = [
            Record(
                data=bytes(each["Data"]),
                partition_key=each["PartitionKey"],
                sequence_number=each["SequenceNumber"],
                arrival_ms=round(each["ApproximateArrivalTimestamp"].timestamp() * 1000),
            )
            for each in answer["Records"]
        ]
        behind_ms = int(answer.get("MillisBehindLatest") or 0)
        # Where nothing comes, a query that plans all the time leaves more than half to others.
        least = _INTERVAL_S if records or behind_ms else _IDLE_INTERVAL_S
        pause = sum(record.size for record in records) / _BYTES_PER_S
        self._next[key] = time.monotonic() + max(least, pause)
        return Page(records, answer.get("NextShardIterator"), behind_ms, _clock(answer))


def _clock(answer: dict[str, Any]) -> int:
    """Return the server's clock from an answer, in milliseconds."""
    said = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if said is None:
        return int(time.time()) * 1000
    return int(parsedate_to_datetime(said).timestamp()) * 1000
