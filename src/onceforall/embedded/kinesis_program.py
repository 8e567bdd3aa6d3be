"""The program of the embedded Kinesis server: moto's server on one port of 127.0.0.1, until
SIGTERM.

It is run as a process of its own (``python -m onceforall.embedded.kinesis_program PORT``). moto
5.2 differs from what Kinesis's documentation says where a reader's safety depends on it, so this
program replaces these parts:

- Records went on to closed shards after a split or merge, and a merge copied the old ones into the
  child. Here a closed shard keeps its records, and the new ones go to its children.
- A closed shard's ``NextShardIterator`` was never null, so a reader couldn't see its end. Here it
  is null behind the last record, and ``ChildShards`` names the children.
- Sequence numbers began with 1 in each shard. Here they increase over the whole stream, and have 56
  digits.
- Nothing was ever forgotten. Here retention counts, by a clock that tests can set ahead: older
  records and closed shards without records are gone. An iterator for a position that is gone begins
  at the oldest record, without an error.
- A hash range lacked its last key.

Tests order faults by ``POST /onceforall/…`` (`EmbeddedKinesis.fail` and the others).
"""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import json
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from onceforall.embedded.network import HOST
from onceforall.embedded.s3_program import OneAtATime

if TYPE_CHECKING:
    from collections.abc import Callable

_ACCOUNT = "123456789012"
_FIRST_NUMBER = 49_600_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000
_MOST_BYTES = 10 * 1024 * 1024
_SETS_LIMIT = 2 * 1024 * 1024


class World:
    """What tests order: the clock, faults, and a record of the requests."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.faults: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.iterators = 0
        self.limits = False
        self.used: dict[str, list[tuple[float, int]]] = {}
        self.numbers = itertools.count(_FIRST_NUMBER, 1_000_003)

    def now(self) -> float:
        """Return the server's time."""
        return time.time() + self.ahead_s

    def fault(self, operation: str) -> dict[str, Any] | None:
        """Return the fault that this request meets, and count it."""
        for fault in self.faults:
            if fault["operation"] != operation or fault["times"] <= 0:
                continue
            if fault["after"] > 0:
                fault["after"] -= 1
                continue
            fault["times"] -= 1
            return fault
        return None

    def throttled(self, shard: str) -> bool:
        """Tell whether a shard of a stream has no more ``GetRecords`` to give now; count it if it
        has.
        """
        if not self.limits:
            return False
        recent = [one for one in self.used.get(shard, []) if one[0] > time.monotonic() - 1]
        self.used[shard] = recent
        return len(recent) >= 5 or sum(size for _, size in recent) >= _SETS_LIMIT

    def use(self, shard: str, size: int) -> None:
        """Count what a ``GetRecords`` gave."""
        self.used.setdefault(shard, []).append((time.monotonic(), size))


WORLD = World()


def _iterator(stream: str, shard: str, after: int) -> str:
    text = json.dumps([stream, shard, after, WORLD.iterators])
    return base64.b64encode(text.encode()).decode()


def _error(code: str, message: str) -> Exception:
    from moto.core.exceptions import JsonRESTError

    made: Exception = JsonRESTError(code, message)
    return made


def _mend_shards(models: Any) -> None:
    """Replace what moto's shards and streams do otherwise than Kinesis's."""
    shard, stream = models.Shard, models.Stream
    made = shard.__init__

    def begin(self: Any, *given: Any, **more: Any) -> None:
        made(self, *given, **more)
        self.first_number = next(WORLD.numbers)
        self.last_number = self.closed_at = None

    def put_record(self: Any, partition_key: str, data: str, explicit_hash_key: str) -> str:
        number = next(WORLD.numbers)
        self.records[number] = models.Record(partition_key, data, number, explicit_hash_key)
        return f"{number}"

    def close(self: Any) -> None:
        self.is_open, self.last_number, self.closed_at = False, next(WORLD.numbers), WORLD.now()

    def for_key(self: Any, partition_key: str, explicit_hash_key: str | None) -> Any:
        place = (
            int(explicit_hash_key)
            if explicit_hash_key
            else int(models.md5_hash(partition_key.encode("utf-8")).hexdigest(), 16)
        )
        for one in self.shards.values():
            if one.is_open and one.starting_hash <= place <= one.ending_hash:
                return one
        raise AssertionError("no open shard has this hash")

    def described(self: Any) -> dict[str, Any]:
        about: dict[str, Any] = told(self)
        numbers = about["SequenceNumberRange"]
        numbers["StartingSequenceNumber"] = f"{self.first_number}"
        if not self.is_open:
            numbers["EndingSequenceNumber"] = f"{self.last_number}"
        return about

    told = shard.to_json
    shard.__init__, shard.put_record, shard.to_json = begin, put_record, described
    stream.get_shard_for_key = for_key

    def next_id(self: Any) -> int:
        return max(int(name.rpartition("-")[2]) for name in self.shards) + 1

    def split(self: Any, name: str, key: str) -> None:
        old, first = self.shards[name], next_id(self)
        middle = int(key)
        if not old.is_open or not old.starting_hash < middle <= old.ending_hash:
            raise _error("InvalidArgumentException", "that shard can't be split there")
        close(old)
        for number, (low, high) in enumerate(
            [(old.starting_hash, middle - 1), (middle, old.ending_hash)], start=first
        ):
            child = models.Shard(number, low, high, parent=old.shard_id)
            self.shards[child.shard_id] = child

    def merge(self: Any, name: str, other: str) -> None:
        low, high = self.shards[name], self.shards[other]
        if not (low.is_open and high.is_open and low.ending_hash + 1 == high.starting_hash):
            raise _error("InvalidArgumentException", "those shards can't be merged")
        number = next_id(self)
        close(low)
        close(high)
        child = models.Shard(
            number,
            low.starting_hash,
            high.ending_hash,
            parent=low.shard_id,
            adjacent_parent=high.shard_id,
        )
        self.shards[child.shard_id] = child

    stream.split_shard, stream.merge_shards = split, merge


def _mend_reading(models: Any) -> None:
    """Replace what moto's iterators and reads do otherwise than Kinesis's."""
    backend = models.KinesisBackend

    def shard_iterator(
        self: Any,
        stream_arn: str | None,
        stream_name: str | None,
        shard_id: str,
        shard_iterator_type: str,
        starting_sequence_number: str | None,
        at_timestamp: Any,
    ) -> str:
        stream = self.describe_stream(stream_arn=stream_arn, stream_name=stream_name)
        forget(stream)
        if shard_id not in stream.shards:
            raise models.ResourceNotFoundError(
                message=f"Shard {shard_id} in stream {stream.stream_name} under account "
                f"{self.account_id} does not exist"
            )
        shard = stream.shards[shard_id]
        number = int(starting_sequence_number or 0)
        if shard_iterator_type.endswith("SEQUENCE_NUMBER") and number < shard.first_number:
            raise _error("InvalidArgumentException", "the sequence number isn't of this shard")
        if shard_iterator_type == "AT_TIMESTAMP":
            after = _before(shard, at_timestamp)
        else:
            after = {
                "AT_SEQUENCE_NUMBER": number - 1,
                "AFTER_SEQUENCE_NUMBER": number,
                "TRIM_HORIZON": 0,
                "LATEST": max(shard.records, default=0),
            }[shard_iterator_type]
        return _iterator(stream.arn, shard_id, after)

    def get_records(
        self: Any, stream_arn: str | None, shard_iterator: str, limit: int | None
    ) -> tuple[str | None, list[Any], int]:
        arn, shard_id, after, born = json.loads(base64.b64decode(shard_iterator))
        if born < WORLD.iterators:
            raise _error("ExpiredIteratorException", "Iterator expired.")
        stream = self.describe_stream(stream_arn=stream_arn or arn, stream_name=None)
        forget(stream)
        if shard_id not in stream.shards:
            raise models.ResourceNotFoundError(message=f"Shard {shard_id} does not exist")
        place = f"{arn}/{shard_id}"
        if WORLD.throttled(place):
            raise _error(
                "ProvisionedThroughputExceededException", f"Rate exceeded for shard {shard_id}"
            )
        found: list[Any] = []
        shard, size = stream.shards[shard_id], 0
        left = [record for number, record in shard.records.items() if number > after]
        for record in left:
            more = len(record.data) * 3 // 4 + len(record.partition_key)
            if found and (size + more > _MOST_BYTES or len(found) >= min(limit or 10_000, 10_000)):
                break
            found.append(record)
            size += more
        WORLD.use(place, size)
        rest = left[len(found) :]
        following = None
        if shard.is_open or rest:
            following = _iterator(arn, shard_id, found[-1].sequence_number if found else after)
        behind = max(int((WORLD.now() - rest[0].created_at) * 1000), 1) if rest else 0
        return following, found, behind

    def response(self: Any) -> Any:
        given = self._get_param("ShardIterator")
        following, records, behind = self.kinesis_backend.get_records(
            self._get_param("StreamARN"), given, self._get_param("Limit")
        )
        answer: dict[str, Any] = {
            "Records": [record.to_json() for record in records],
            "MillisBehindLatest": behind,
        }
        if following is not None:
            answer["NextShardIterator"] = following
        else:
            arn, shard_id, *_ = json.loads(base64.b64decode(given))
            shards = self.kinesis_backend.describe_stream(arn, None).shards.values()
            answer["ChildShards"] = [
                {
                    "ShardId": one.shard_id,
                    "ParentShards": [p for p in (one.parent, one.adjacent_parent) if p],
                    "HashKeyRange": one.to_json()["HashKeyRange"],
                }
                for one in shards
                if shard_id in {one.parent, one.adjacent_parent}
            ]
        return ActionResult(answer)

    def put_records(
        self: Any, stream_arn: str, stream_name: str, records: list[dict[str, Any]]
    ) -> dict[str, Any]:
        fault = WORLD.fault("PutRecords.records") or {"records": []}
        accepted = [one for place, one in enumerate(records) if place not in set(fault["records"])]
        answers = iter(put(self, stream_arn, stream_name, accepted)["Records"])
        throttled = {
            "ErrorCode": "ProvisionedThroughputExceededException",
            "ErrorMessage": "Rate exceeded for shard in stream",
        }
        told = [
            throttled if place in set(fault["records"]) else next(answers)
            for place in range(len(records))
        ]
        return {"FailedRecordCount": len(records) - len(accepted), "Records": told}

    def list_shards(self: Any, *given: Any, **more: Any) -> Any:
        forget(self.describe_stream(more.get("stream_arn"), more.get("stream_name")))
        return listed(self, *given, **more)

    from moto.core.responses import ActionResult
    from moto.kinesis import responses

    put, listed = backend.put_records, backend.list_shards
    backend.get_shard_iterator, backend.get_records = shard_iterator, get_records
    backend.put_records, backend.list_shards = put_records, list_shards
    vars_of: Any = responses.KinesisResponse
    vars_of.get_records = response


def _before(shard: Any, timestamp: Any) -> int:
    """Return the number behind which the first record that isn't older than a time stands."""
    at = timestamp.timestamp() if isinstance(timestamp, dt.datetime) else float(timestamp)
    older = 0
    for number, record in shard.records.items():
        if record.created_at >= at:
            break
        older = number
    return older


def forget(stream: Any) -> None:
    """Drop what retention has passed."""
    oldest = WORLD.now() - stream.retention_period_hours * 3600
    for name, shard in list(stream.shards.items()):
        for number in [n for n, one in shard.records.items() if one.created_at < oldest]:
            del shard.records[number]
        if shard.closed_at is not None and shard.closed_at < oldest and not shard.records:
            del stream.shards[name]


class Ordered:
    """A WSGI application in front of moto's, which carries out what tests order."""

    def __init__(self, application: Callable[..., Any], backends: Any) -> None:
        self._application, self._backends = application, backends

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """Answer one request."""
        path = environ["PATH_INFO"]
        if path.startswith("/onceforall/"):
            body = json.loads(environ["wsgi.input"].read() or b"{}")
            said = self._order(path.rpartition("/")[2], body)
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(said).encode()]
        operation = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        call = {"operation": operation, "time": time.monotonic(), "error": None}
        WORLD.calls.append(call)

        def begin(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            call["error"] = None if status.startswith("2") else status
            return start_response(status, headers, *more)

        fault = WORLD.fault(operation)
        if fault is None:
            return self._application(environ, begin)
        if fault["done"]:
            list(self._application(environ, lambda *_: None))
        status = "500 Error" if fault["error"] == "InternalFailure" else "400 Error"
        begin(status, [("Content-Type", "application/x-amz-json-1.1")])
        return [json.dumps({"__type": fault["error"], "message": "ordered by a test"}).encode()]

    def _order(self, verb: str, what: dict[str, Any]) -> dict[str, Any]:
        if verb == "create":
            backend = self._backends[_ACCOUNT]["us-east-1"]
            return {"arn": backend.create_stream(what["stream"], what["shards"]).arn}
        if verb == "fail":
            if what["records"]:
                what["operation"] += ".records"
            WORLD.faults.append(what)
        elif verb == "heal":
            WORLD.faults.clear()
            WORLD.limits = False
        elif verb == "advance":
            WORLD.ahead_s += what["seconds"]
        elif verb == "expire":
            WORLD.iterators += 1
        elif verb == "limits":
            WORLD.limits = True
        elif verb == "calls":
            calls, WORLD.calls = WORLD.calls, []
            return {"calls": calls}
        return {"ready": True}


def main(port: int) -> None:
    """Serve until SIGTERM."""
    from moto.kinesis import models
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    mended: Any = models
    mended.utcnow = lambda: dt.datetime.fromtimestamp(WORLD.now(), tz=dt.timezone.utc).replace(
        tzinfo=None
    )
    _mend_shards(mended)
    _mend_reading(mended)

    class Handler(MotoRequestHandler):
        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(WORLD.now() if timestamp is None else timestamp)

    moto = Ordered(DomainDispatcherApplication(create_backend_app), models.kinesis_backends)
    server = make_server(HOST, port, OneAtATime(moto), threaded=True, request_handler=Handler)
    # An ordinary end would wait for the threads of connections that are still open.
    server.daemon_threads = True  # type: ignore[attr-defined]
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
