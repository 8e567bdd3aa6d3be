"""Pravega's controller: streams, their segments, and transactions.

**Transactions.** The controller keeps each one's state, and changes it by compare-and-set: from
OPEN either to COMMITTING and COMMITTED, or to ABORTING and ABORTED, never from one of these lines
to the other. Committing is asked for, and done by the controller on its own; so is aborting, also
when the lease is over. It writes a completed transaction's state down before it takes it from the
open ones, so there is no moment between. It forgets completed ones after
``controller.transaction.ttl.hours`` (24): then it answers UNKNOWN, as for one that never was.
"""

from __future__ import annotations

import enum
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceforall.common.pravega.answers import NoAnswerError, RefusedError
from onceforall.common.pravega.messages import message
from onceforall.common.pravega.names import SegmentOfKeys, StreamName
from onceforall.errors import MissingExtraError

_SERVICE = "/io.pravega.controller.stream.api.grpc.v1.ControllerService/"
_DEADLINE_S = 20.0
_CREATE_S = 2.0
_AGAIN = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "RESOURCE_EXHAUSTED"}
_CREATING, _CREATING_PAUSE_S = "State: CREATING", 0.05
"""What is said of a stream that somebody has begun to create: it exists, and has no segments yet.
That takes a moment."""
_OPTIONS = (
    # A proxy of the environment is for the web.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 30_000),
)

_channels: dict[tuple[int, str], Any] = {}
_lock = threading.Lock()


class State(enum.IntEnum):
    """What the controller says of a transaction."""

    UNKNOWN = 0
    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    ABORTING = 4
    ABORTED = 5


class Ping(enum.IntEnum):
    """What it says to a ping."""

    OK = 0
    LEASE_TOO_LARGE = 1
    MAX_EXECUTION_TIME_EXCEEDED = 2
    SCALE_GRACE_TIME_EXCEEDED = 3
    DISCONNECTED = 4
    COMMITTED = 5
    ABORTED = 6
    UNKNOWN = 7


@dataclass(frozen=True)
class Successor:
    """A segment that takes up where others end: all of them must be read before it."""

    number: int
    predecessors: tuple[int, ...]


class Controller:
    """Asks the controller at an address. Connections are those of the process."""

    def __init__(self, address: str, deadline_s: float = _DEADLINE_S) -> None:
        """Nothing is asked yet.

        Args:
            address: ``host:port``.
            deadline_s: for how long an answer is waited for.
        """
        self.address, self._deadline_s = address, deadline_s

    # --- transactions -----------------------------------------------------------------------------

    def begin(self, stream: StreamName, lease_ms: int) -> tuple[uuid.UUID, list[SegmentOfKeys]]:
        """Open a transaction; return its id and the segments that it writes.

        Raises:
            RefusedError: the controller doesn't: there is no such stream, or no such lease.
            NoAnswerError: nobody answered.
        """
        made = self._ask(
            "createTransaction",
            message("CreateTxn")(streamInfo=_stream(stream), lease=lease_ms),
            "CreatedTxn",
        )
        # Both halves are signed.
        high, low = made.txnId.highBits % 2**64, made.txnId.lowBits % 2**64
        return uuid.UUID(int=high << 64 | low), [_range(each) for each in made.activeSegments]

    def state(self, stream: StreamName, transaction: uuid.UUID) -> State:
        """Return what has become of a transaction.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        request = message("Txn")(streamInfo=_stream(stream), txnId=_txn(transaction))
        return State(self._ask("checkTransactionState", request, "Status").status)

    def ping(self, stream: StreamName, transaction: uuid.UUID, lease_ms: int) -> Ping:
        """Let an open transaction's lease begin anew.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        request = message("PingTxn")(
            streamInfo=_stream(stream), txnId=_txn(transaction), lease=lease_ms
        )
        return Ping(self._ask("pingTransaction", request, "Status").status)

    def commit(self, stream: StreamName, transaction: uuid.UUID) -> None:
        """Ask for a commit; whether it is refused or done, `state` tells.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        request = message("Txn")(streamInfo=_stream(stream), txnId=_txn(transaction))
        self._ask("commitTransaction", request, "Status")

    def abort(self, stream: StreamName, transaction: uuid.UUID) -> None:
        """Ask for an abort; whether it is refused or done, `state` tells.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        request = message("Txn")(streamInfo=_stream(stream), txnId=_txn(transaction))
        self._ask("abortTransaction", request, "Status")

    # --- streams and segments ---------------------------------------------------------------------

    def exists(self, stream: StreamName) -> bool:
        """Tell whether there is such a stream.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        return bool(self._ask("checkStreamExists", _stream(stream), "Exists").exists)

    def create_scope(self, scope: str) -> None:
        """Create a scope; one that is there is left as it is.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        status = self._ask("createScope", message("ScopeInfo")(scope=scope), "Status").status
        if status not in {0, 2}:
            raise RefusedError(f"createScope of {scope}: status {status}")

    def create_stream(self, stream: StreamName, segments: int) -> bool:
        """Create a stream with a fixed number of segments; return False for one that is there.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        config = message("StreamConfig")(
            streamInfo=_stream(stream),
            scalingPolicy=message("ScalingPolicy")(scaleType=0, minNumSegments=segments),
        )
        status = self._ask("createStream", config, "Status").status
        if status not in {0, 2}:
            raise RefusedError(f"createStream of {stream}: status {status}")
        return bool(status == 0)

    def make_stream(self, stream: StreamName) -> None:
        """Create a stream of one segment where there is none.

        Of several that create a stream at once, each is answered later than the one before (of
        eight, the last after 7 to 20 seconds). So it is looked for between short attempts.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        until = time.monotonic() + self._deadline_s
        attempt = Controller(self.address, min(_CREATE_S, self._deadline_s))
        while not self.exists(stream):
            try:
                attempt.create_stream(stream, 1)
            except NoAnswerError:  # noqa: PERF203  each is a request
                if time.monotonic() > until:
                    raise
                # Some refusals come at once.
                time.sleep(_CREATING_PAUSE_S)

    def delete_stream(self, stream: StreamName) -> None:
        """Seal a stream and delete it.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        for request in ("sealStream", "deleteStream"):
            status = self._ask(request, _stream(stream), "Status").status
            if status != 0:
                raise RefusedError(f"{request} of {stream}: status {status}")

    def truncate_stream(self, stream: StreamName, cut: Mapping[int, int]) -> None:
        """Forget what lies before a stream cut.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        status = self._ask("truncateStream", _cut(stream, cut), "Status").status
        if status != 0:
            raise RefusedError(f"truncateStream of {stream}: status {status}")

    def segments(self, stream: StreamName) -> list[SegmentOfKeys]:
        """Return the segments that take events now, by the keys that they take.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        found = self._ask("getCurrentSegments", _stream(stream), "SegmentRanges").segmentRanges
        return sorted(map(_range, found), key=lambda each: each.low)

    def first_segment(self, stream: StreamName) -> int:
        """Return the lowest number of the segments that a stream began with. Scaling, truncating
        and sealing leave it as it is; a stream that was deleted and made again has a higher one,
        for Pravega never numbers two segments of one name alike.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        request = message("EpochRequest")(streamInfo=_stream(stream), epoch=0)
        found = self._ask("getEpochSegments", request, "SegmentRanges").segmentRanges
        if not found:
            raise RefusedError(f"getEpochSegments of {stream}: none, and each stream has some")
        return min(_range(each).number for each in found)

    def is_sealed(self, stream: StreamName) -> bool:
        """Tell whether a stream is sealed: no segment takes events then.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        return not self.segments(stream)

    def head(self, stream: StreamName) -> dict[int, int]:
        """Return the stream cut where what is kept begins.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        request = message("SegmentsRequest")(streamInfo=_stream(stream), timestamp=0)
        found = self._ask("getSegments", request, "SegmentsAtTime").segments
        return {each.segmentId.segmentId: each.offset for each in found}

    def is_cut(self, stream: StreamName, cut: Mapping[int, int]) -> bool:
        """Tell whether some offsets are a stream cut: whether their segments have each key once.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        return bool(self._ask("isStreamCutValid", _cut(stream, cut), "Validity").response)

    def successors(self, stream: StreamName, number: int) -> list[Successor]:
        """Return the segments that follow a sealed one; none where the stream is sealed.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        found = self._ask(
            "getSegmentsImmediatelyFollowing", _segment(stream, number), "Successors"
        ).segments
        return [Successor(each.segment.segmentId.segmentId, tuple(each.value)) for each in found]

    def store_of(self, stream: StreamName, number: int) -> tuple[str, int]:
        """Return host and port of the segment store that has a segment.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        found = self._ask("getURI", _segment(stream, number), "NodeUri")
        return str(found.endpoint), int(found.port)

    def scale(
        self,
        stream: StreamName,
        sealed: Sequence[int],
        ranges: Sequence[tuple[float, float]],
        at: int,
    ) -> int:
        """Begin to put other segments in the place of some; return the new epoch.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        request = message("Scale")(
            streamInfo=_stream(stream),
            sealedSegments=list(sealed),
            newKeyRanges=[message("KeyRange")(start=low, end=high) for low, high in ranges],
            scaleTimestamp=at,
        )
        made = self._ask("scale", request, "Scaled")
        if made.status != 0:
            raise RefusedError(f"scale of {stream}: status {made.status}")
        return int(made.epoch)

    def is_scaled(self, stream: StreamName, epoch: int) -> bool:
        """Tell whether what `scale` began is done.

        Raises:
            RefusedError, NoAnswerError: as `begin`.
        """
        request = message("CheckScale")(streamInfo=_stream(stream), epoch=epoch)
        return bool(self._ask("checkScale", request, "Status").status == 1)

    # --- asking -----------------------------------------------------------------------------------

    def _ask(self, method: str, request: Any, answer: str) -> Any:
        try:
            import grpc
        except ImportError as error:
            raise MissingExtraError("grpcio", "pravega") from error
        call = _channel(grpc, self.address).unary_unary(
            _SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=message(answer).FromString,
        )

        def once(until: float) -> Any:
            try:
                return call(request, timeout=self._deadline_s)
            except grpc.RpcError as error:
                code, details = error.code().name, str(error.details())
                is_creating = _CREATING in details
                if is_creating and time.monotonic() < until:
                    return None
                kind = NoAnswerError if code in _AGAIN or is_creating else RefusedError
                raise kind(f"{method}: {code}: {details}") from None

        deadline = time.monotonic() + self._deadline_s
        while (found := once(deadline)) is None:
            time.sleep(_CREATING_PAUSE_S)
        return found


def close_channels() -> None:
    """Close the connections that this process has."""
    with _lock:
        mine = [key for key in _channels if key[0] == os.getpid()]
        closing = [_channels.pop(key) for key in mine]
    for channel in closing:
        channel.close()


def _channel(grpc: Any, address: str) -> Any:
    # A process that was forked can't use the connections of the other one.
    with _lock:
        key = (os.getpid(), address)
        if key not in _channels:
            _channels[key] = grpc.insecure_channel(address, options=_OPTIONS)
        return _channels[key]


def _stream(stream: StreamName) -> Any:
    return message("StreamInfo")(scope=stream.scope, stream=stream.stream)


def _cut(stream: StreamName, cut: Mapping[int, int]) -> Any:
    entries = [message("CutEntry")(key=key, value=value) for key, value in cut.items()]
    return message("StreamCut")(streamInfo=_stream(stream), cut=entries)


def _segment(stream: StreamName, number: int) -> Any:
    return message("SegmentId")(streamInfo=_stream(stream), segmentId=number)


def _txn(transaction: uuid.UUID) -> Any:
    high, low = transaction.int >> 64, transaction.int & (2**64 - 1)
    signed = [half - 2**64 if half >= 2**63 else half for half in (high, low)]
    return message("TxnId")(highBits=signed[0], lowBits=signed[1])


def _range(found: Any) -> SegmentOfKeys:
    return SegmentOfKeys(found.segmentId.segmentId, found.minKey, found.maxKey)
