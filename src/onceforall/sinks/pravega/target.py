"""What lies beside a stream, in the same scope.

``<stream>.onceforall`` holds an id, as its first event: **the target's**. Pravega's controller
tells no id of a cluster or a stream, and it counts its transactions' ids from 1: in a cluster that
was built anew, the id of a decided transaction may be somebody else's. The first start makes the
id. It stays where only the stream is deleted and made again, so the number of the stream's first
segment belongs to the identity, too.

``<stream>.onceforall-open`` holds **who opened which transaction**, an event for each, for Pravega
has no list of open ones: a sweep finds there what nobody decided. A task writes its event before
the transaction has a row; what was opened and not noted is empty, and its lease ends it. What is
before the first transaction that may be open is truncated now and then.
"""

from __future__ import annotations

import itertools
import json
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceforall.common import logs
from onceforall.common.pravega.answers import GoneError, RefusedError
from onceforall.common.pravega.controller import Controller, State
from onceforall.common.pravega.names import StreamName, segment_name
from onceforall.common.pravega.segments import SegmentStore, event_bytes, events
from onceforall.common.threads import Threads
from onceforall.sink import Committable

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logs.logger("onceforall.sinks.pravega")

SUFFIX = ".onceforall"
OPEN_SUFFIX = ".onceforall-open"
FORGOTTEN_FROM = 200  # transactions
_THREADS = 16


@dataclass(frozen=True)
class Identity:
    """What tells a stream from another one that has its name and address.

    Attributes:
        id: of the stream that lies beside it.
        first_segment: the number of its first segment.
    """

    id: str
    first_segment: int

    def body(self) -> dict[str, Any]:
        """Return it as the commit log has it."""
        return {"id": self.id, "first_segment": self.first_segment}

    def of(self, committable: Committable) -> dict[str, Any]:
        """Return a committable that names the stream; see ``wrote``."""
        return {**committable, "target": self.id, "first_segment": self.first_segment}

    def wrote(self, committable: Committable) -> bool:
        """Tell whether a committable is one of this stream, as far as it says: those of releases
        that knew no first segment don't name it.
        """
        first = committable.get("first_segment", self.first_segment)
        return bool(committable.get("target", self.id) == self.id and first == self.first_segment)


def identity(controller: Controller, stream: StreamName) -> Identity | None:
    """Return a stream's identity; None: there is no stream, or no id yet.

    Raises:
        RefusedError: Pravega doesn't say.
        NoAnswerError: nobody answered.
    """
    beside = StreamName(stream.scope, stream.stream + SUFFIX)
    if not controller.exists(stream) or not controller.exists(beside):
        return None
    with Beside(controller, beside) as found:
        made = found.first()
    return None if made is None else Identity(made, controller.first_segment(stream))


def make_target_id(controller: Controller, stream: StreamName) -> str:
    """Return the id, which is made where there is none, with the stream that notes transactions. Of
    several that make one, the first has made it.

    Raises:
        RefusedError: Pravega doesn't do it.
        NoAnswerError: nobody answered.
    """
    beside = StreamName(stream.scope, stream.stream + SUFFIX)
    for each in (StreamName(stream.scope, stream.stream + OPEN_SUFFIX), beside):
        controller.make_stream(each)
    with Beside(controller, beside) as found:
        made = found.first()
        if made is None:
            found.add_first(str(uuid.uuid4()).encode())
            made = found.first()
    if made is None:
        raise RefusedError(f"{beside} has no event, though one was written there")
    return made


class Beside:
    """The only segment of a stream that lies beside another one."""

    def __init__(self, controller: Controller, stream: StreamName) -> None:
        """Connect.

        Args:
            controller: the cluster's.
            stream: which stream.

        Raises:
            RefusedError: it isn't there.
            NoAnswerError: nobody answered.
        """
        segments = controller.segments(stream)
        if not segments:
            raise RefusedError(f"there is no stream {stream}")
        self.number = segments[0].number
        self._segment = segment_name(stream, self.number)
        self._store = SegmentStore(*controller.store_of(stream, self.number))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def first(self) -> str | None:
        """Return its first event as text."""
        content = next((content for _, content in self.events()), None)
        return None if content is None else content.decode("ascii", "replace")

    def add_first(self, content: bytes) -> None:
        """Append an event if there is none."""
        writer = uuid.uuid4()
        self._store.begin_append(self._segment, writer)
        self._store.append(self._segment, writer, 1, 0, event_bytes(content))

    def add(self, content: bytes) -> None:
        """Append an event; return when it is durable."""
        writer = uuid.uuid4()
        self._store.begin_append(self._segment, writer)
        self._store.append_at_end(self._segment, writer, 1, event_bytes(content))

    def events(self) -> list[tuple[int, bytes]]:
        """Return its events, each with the offset where it ends; none that somebody forgets
        meanwhile.
        """
        found = self._store.info(self._segment)
        try:
            data = self._store.everything(self._segment, found.start, found.end)
        except GoneError:
            if self._store.info(self._segment).start == found.start:
                raise
            # Another query of this stream, or this one's own tidying, forgot the first ones.
            return self.events()
        return [(found.start + end, content) for end, content in events(data)]


class OpenTransactions:
    """Who opened which transaction of a stream."""

    def __init__(self, controller: Controller, stream: StreamName) -> None:
        """Nothing is asked yet.

        Args:
            controller: the cluster's.
            stream: the stream that the transactions write to.
        """
        self._controller, self._stream = controller, stream
        self._beside = StreamName(stream.scope, stream.stream + OPEN_SUFFIX)

    def note(self, name: str, transaction: uuid.UUID) -> None:
        """Note an attempt's transaction; return when that is durable.

        Raises:
            RefusedError: Pravega doesn't do it.
            NoAnswerError: nobody answered.
        """
        with Beside(self._controller, self._beside) as found:
            found.add(json.dumps({"name": name, "txn": str(transaction)}).encode())

    def still_open(self) -> list[Committable]:
        """Return what is open of what was noted, each with ``name`` and ``txn``. What was noted
        before the first that is still running is forgotten, when that is much.

        Raises:
            RefusedError: Pravega doesn't say.
            NoAnswerError: nobody answered.
        """
        if not self._controller.exists(self._beside):
            return []
        with Beside(self._controller, self._beside) as found:
            number, noted = found.number, self._events(found)
        each = [self._read(content, end) for end, content in noted]
        if not each:
            return []
        with Threads(max_workers=_THREADS) as pool:
            states = list(pool.map(self._state, each))
        ended = len(list(itertools.takewhile(lambda state: state not in _RUNNING, states)))
        if ended >= FORGOTTEN_FROM:
            self._forget(number, noted[ended - 1][0])
        return [
            one
            for one, state in zip(each, states, strict=True)
            if one is not None and state is State.OPEN
        ]

    def _events(self, beside: Beside) -> list[tuple[int, bytes]]:
        try:
            return beside.events()
        except GoneError:
            raise
        except RefusedError as error:
            raise RefusedError(
                f"{self._beside}, where open transactions are noted, can't be read: {error}. "
                "Delete that stream while no query writes; the next start makes it again, and "
                "leases end what is open"
            ) from error

    def _read(self, content: bytes, end: int) -> Committable | None:
        """Return what is noted in an event; None: it is a stranger's, of which nothing is open."""
        try:
            noted = json.loads(content)
            return {"name": str(noted["name"]), "txn": str(uuid.UUID(str(noted["txn"])))}
        except (ValueError, TypeError, KeyError, RecursionError):
            _log.warning(
                "The event that ends at %d of %s is not one of the sink's, and is passed over: "
                "somebody else writes to the stream where open transactions are noted. If one of "
                "ours was damaged, its lease ends its transaction.",
                end,
                self._beside,
            )
            return None

    def _state(self, noted: Committable | None) -> State:
        if noted is None:
            return State.UNKNOWN
        return self._controller.state(self._stream, uuid.UUID(noted["txn"]))

    def _forget(self, number: int, offset: int) -> None:
        # Another driver may be at it; whoever comes next forgets more.
        with suppress(RefusedError):
            self._controller.truncate_stream(self._beside, {number: offset})


_RUNNING = {State.OPEN, State.COMMITTING, State.ABORTING}
