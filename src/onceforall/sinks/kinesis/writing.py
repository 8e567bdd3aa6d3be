"""Puts the rows of a task into a stream: in order within a partition key, whatever is refused.

``PutRecords`` takes or refuses each of its records alone, and promises no order among them. If two
records of one key were in a request, and the first were refused, it would come behind the second.
So a request has one record per key at most; the next one of a key goes when the one before it is
taken. A request without an answer is sent again, for nobody knows whether it was carried out: that
is one of the reasons why records may come twice.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceforall.common.arguments import shown
from onceforall.common.aws import is_said, may_succeed, remedy, request_errors, told
from onceforall.common.column_texts import texts_of
from onceforall.errors import AttemptFailedError, RefusedRecordError

if TYPE_CHECKING:
    import pyarrow as pa

MOST_RECORDS = 500
MOST_BYTES = 5 * 1024 * 1024
_HELD_RECORDS = 2_000
_HELD_BYTES = 16 * 1024 * 1024
_LONGEST_KEY = 256
# https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecordsRequestEntry.html
_HASH_KEY = re.compile("0|[1-9][0-9]{0,38}")
_LARGEST_HASH_KEY = 2**128 - 1
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 3.0
_BUSY = "Give it more shards, or the sink a longer retry_s."
_LONGER = "A longer retry_s survives longer outages."


@dataclass(frozen=True)
class Entry:
    """A record to be put."""

    data: bytes
    key: str
    hash_key: str | None

    @property
    def size(self) -> int:
        """Return its size as Kinesis counts it."""
        return len(self.data) + len(self.key.encode())

    def request(self) -> dict[str, Any]:
        """Return it as boto3 wants it."""
        more = {} if self.hash_key is None else {"ExplicitHashKey": self.hash_key}
        return {"Data": self.data, "PartitionKey": self.key, **more}


class KinesisWriting:
    """What a task writes."""

    def __init__(
        self, client: Any, stream: str, *, ordered: bool, max_record_bytes: int, retry_s: float
    ) -> None:
        """Nothing is sent yet.

        Args:
            client: boto3's.
            stream: its name or ARN.
            ordered: keep the order within a partition key.
            max_record_bytes: the largest record that the stream takes.
            retry_s: how long nothing may be taken.
        """
        self._client = client
        self._where = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        self._stream, self._ordered = stream, ordered
        self._max_record_bytes, self._retry_s = max_record_bytes, retry_s
        self._waiting: list[Entry] = []
        self._size = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows, and send when there are many.

        Raises:
            RefusedRecordError: Kinesis can't have a row.
            AttemptFailedError: nothing was taken for too long, or Kinesis refuses.
        """
        data = rows.column("data").to_pylist()
        keys = texts_of("partitionKey", rows.column("partitionKey"))
        hashes: list[str | None] = [None] * len(keys)
        if "explicitHashKey" in rows.schema.names:
            hashes = texts_of("explicitHashKey", rows.column("explicitHashKey"))
        for one in map(self._entry, data, keys, hashes):
            self._waiting.append(one)
            self._size += one.size
            if len(self._waiting) >= _HELD_RECORDS or self._size >= _HELD_BYTES:
                self.flush()

    def flush(self) -> None:
        """Send what is waiting, until all of it is taken.

        Raises:
            AttemptFailedError: nothing was taken for too long, or Kinesis refuses.
        """
        pause, deadline = _FIRST_PAUSE_S, time.monotonic() + self._retry_s
        while self._waiting:
            places = self._next()
            taken, why = self._put([self._waiting[place] for place in places])
            done = {place for place, is_taken in zip(places, taken, strict=True) if is_taken}
            if done:
                self._waiting = [
                    one for place, one in enumerate(self._waiting) if place not in done
                ]
                deadline = time.monotonic() + self._retry_s
            if why is None:
                pause = _FIRST_PAUSE_S
                continue
            if time.monotonic() + pause > deadline:
                raise AttemptFailedError(
                    f"The Kinesis stream {self._stream} has taken nothing for "
                    f"{self._retry_s:.0f} s: {why}"
                )
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  no secret
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        self._size = 0

    def _next(self) -> list[int]:
        """Return the places of what goes into the next request."""
        places: list[int] = []
        keys: set[str] = set()
        size = 0
        for place, one in enumerate(self._waiting):
            if self._ordered and one.key in keys:
                continue
            if len(places) == MOST_RECORDS or (places and size + one.size > MOST_BYTES):
                break
            places.append(place)
            keys.add(one.key)
            size += one.size
        return places

    def _put(self, entries: Sequence[Entry]) -> tuple[list[bool], str | None]:
        """Send a request; return which records were taken, and why others weren't, with what helps
        as a sentence.
        """
        try:
            answer = self._client.put_records(
                Records=[one.request() for one in entries], **self._where
            )
        except request_errors() as error:
            if may_succeed(error):
                away = f"Check the network and the address. {_LONGER}"
                advice = _BUSY if is_said(error) else remedy(error, away)
                return [False] * len(entries), f"{told(error)}. {advice}"
            # Without its cause, whose message may hold a secret.
            raise AttemptFailedError(self._refused(error)) from None
        codes = [each.get("ErrorCode") for each in answer["Records"]]
        why = next((f"{code}. {_BUSY}" for code in codes if code), None)
        return [not code for code in codes], why

    def _refused(self, error: Exception) -> str:
        if is_said(error):
            advice = remedy(
                error, "Check the stream, and the rights to PutRecords and DescribeStreamSummary."
            )
            return f"Kinesis refuses PutRecords to {self._stream}: {told(error)}. {advice}"
        advice = remedy(error, "Check the credentials and the region where the task runs.")
        return f"boto3 can't send PutRecords to {self._stream}: {told(error)}. {advice}"

    def _entry(self, data: bytes | None, key: str | None, hash_key: str | None) -> Entry:
        if data is None or not key or len(key) > _LONGEST_KEY:
            raise RefusedRecordError(
                f"A row with partitionKey {shown(key)} can't be a Kinesis record: it needs data, "
                "a record id that isn't null, texts that are UTF-8 (make_valid_utf8), and a key of "
                f"1 to {_LONGEST_KEY} characters. Filter such rows out, or mend them."
            )
        # By its length first: Python makes no number of a text of thousands of digits.
        if hash_key is not None and not (
            _HASH_KEY.fullmatch(hash_key) and int(hash_key) <= _LARGEST_HASH_KEY
        ):
            raise RefusedRecordError(
                f"A row with partitionKey {shown(key)} has the explicitHashKey {shown(hash_key)}. "
                "It must be a whole number below 2^128 without zeros in front, or null."
            )
        made = Entry(data, key, hash_key)
        if made.size > self._max_record_bytes:
            raise RefusedRecordError(
                f"A row with partitionKey {shown(key)} makes a record of {made.size} bytes, and "
                f"{self._max_record_bytes} are the most. Make it smaller; where the stream takes "
                "larger ones, say so with max_record_bytes."
            )
        return made
