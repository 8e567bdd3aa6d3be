"""Streams of a Pravega server, written and read without this library's sink and source."""

from __future__ import annotations

import uuid

from onceforall.common.pravega.controller import Controller
from onceforall.common.pravega.messages import message
from onceforall.common.pravega.names import StreamName, segment_name, segment_of
from onceforall.common.pravega.segments import SegmentStore, event_bytes, events
from onceforall.sinks.pravega.target import OpenTransactions


class EventStream:
    """A stream, what a test does to it, and what is in it."""

    def __init__(self, server, segments):
        self.server, self.scope, self.stream = server, "tests", f"s-{uuid.uuid4().hex[:12]}"
        self.name = StreamName(self.scope, self.stream)
        self.controller = Controller(server.address)
        server.create_stream(self.scope, self.stream, segments=segments)
        self.written = 0

    @property
    def target(self):
        """The arguments of a sink."""
        return {"controller": self.server.uri, "scope": self.scope, "stream": self.stream}

    def store(self, number=0):
        return SegmentStore(*self.controller.store_of(self.name, number))

    def put(self, count, keys=7):
        """Put so many events with the next numbers; return the numbers."""
        numbers = list(range(self.written, self.written + count))
        self._put([(number, f"k{number % keys}") for number in numbers])
        return numbers

    def put_with(self, key, count):
        """Put so many events with one key."""
        self._put([(number, key) for number in range(self.written, self.written + count)])

    def _put(self, events_of):
        segments = self.controller.segments(self.name)
        with self.store() as store:
            for number, key in events_of:
                segment = segment_name(self.name, segment_of(key, segments))
                writer = uuid.uuid4()
                store.begin_append(segment, writer)
                end = store.info(segment).end
                assert store.append(segment, writer, 1, end, event_bytes(b"%d" % number))
                self.written = number + 1

    def noted(self):
        """The transactions that tasks have noted."""
        return OpenTransactions(self.controller, self.name)

    def scale(self, segments):
        self.server.scale(self.scope, self.stream, segments=segments)

    def seal(self):
        stream = message("StreamInfo")(scope=self.scope, stream=self.stream)
        assert self.controller._ask("sealStream", stream, "Status").status == 0

    def make_again(self, segments=2):
        """Delete the stream alone, not what lies beside it, and create it."""
        self.controller.delete_stream(self.name)
        self.server.create_stream(self.scope, self.stream, segments=segments)

    def segments_in_order(self):
        """All segments that are kept, each behind its predecessors."""
        found = sorted(self.controller.head(self.name).items())
        seen = {number for number, _ in found}
        for number, _ in found:
            for each in sorted(
                self.controller.successors(self.name, number), key=lambda one: one.number
            ):
                if each.number not in seen and set(each.predecessors) <= seen:
                    seen.add(each.number)
                    found.append((each.number, 0))
        return found

    def contents(self):
        """All events, segment by segment."""
        found = []
        with self.store() as store:
            for number, start in self.segments_in_order():
                segment = segment_name(self.name, number)
                end, data = store.info(segment).end, b""
                while start + len(data) < end:
                    more = end - start - len(data)
                    data += store.read(segment, start + len(data), min(more, 1 << 20))
                found += [content for _, content in events(data)]
        return found
