"""Sinks that keep locks until the decision begin and confirm in an order that is the same in
every query; the others do so beside them."""

import threading

from onceforall.driver.batch_writer import SparkBatchWriter
from onceforall.protocol.decisions import RunWrites, TakeDigests
from onceforall.sink import Capabilities


class Locking:
    """Stands for a sink, and writes down when it is called."""

    capabilities = Capabilities(two_phase=True)

    def __init__(self, calls, order, *, waits_for=None, lets_go=None):
        self.calls, self.lock_order, self.waits_for, self.lets_go = calls, order, waits_for, lets_go

    def begin_batch(self, batch):
        self.calls.append(("begin", batch.sink))

    def end_batch(self, batch):
        self.calls.append(("end", batch.sink))

    def confirm(self, committables):
        self.calls.append(("confirm", *names(committables)))
        if self.lets_go is not None:
            self.lets_go.set()
        if self.waits_for is not None:
            assert self.waits_for.wait(10)
        self.calls.append(("confirmed", *names(committables)))
        return committables


def names(committables):
    return [committable["name"] for committable in committables]


def writer(sinks):
    return SparkBatchWriter(None, 3, lambda *_: None, sinks, "query", False, None)


def test_locks_are_taken_in_the_order_of_what_is_locked_and_not_of_names():
    calls = []
    sinks = {
        "a": Locking(calls, ("postgres", "db", "2")),
        "z": Locking(calls, ("postgres", "db", "1")),
    }
    written = writer(sinks)
    written._begin(RunWrites(3, 1, {}), ["a", "z"])
    prepared = {name: ({"name": name},) for name in ("a", "z")}
    assert written._sinks.confirmed(prepared) == prepared
    written.close()
    begun = [("begin", "z"), ("begin", "a")]
    assert calls == [
        *begun,
        ("confirm", "z"),
        ("confirmed", "z"),
        ("confirm", "a"),
        ("confirmed", "a"),
        ("end", "z"),
        ("end", "a"),
    ]


def test_a_sink_without_locks_does_not_wait_for_those_with():
    calls, other_began = [], threading.Event()
    sinks = {
        "locks": Locking(calls, ("postgres", "db", "1"), waits_for=other_began),
        "files": Locking(calls, (), lets_go=other_began),
    }
    prepared = {"locks": ({"name": "x"},), "files": ({"name": "y"},)}
    assert writer(sinks)._sinks.confirmed(prepared) == prepared


def test_a_look_at_a_replay_begins_no_batch():
    calls = []
    written = writer({"a": Locking(calls, ())})
    written._begin(TakeDigests(3, 1), ["a"])
    written.close()
    assert calls == []
