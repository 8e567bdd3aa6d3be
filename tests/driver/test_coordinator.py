from __future__ import annotations

import itertools
import logging
import sys
import threading
from asyncio import CancelledError
from dataclasses import astuple, replace

import pytest

from commit_log.stores import FlakyStore, MemoryStore
from onceforall.commit_log import CommitLog
from onceforall.driver import coordinator as coordinator_module
from onceforall.driver.coordinator import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    Coordinator,
    Prepared,
    Resources,
)
from onceforall.errors import (
    AttemptFailedError,
    BatchTooSlowError,
    CheckpointMismatchError,
    FencedError,
    InDoubtError,
    OutcomeUnknownError,
    OvertakenError,
    ProtocolViolationError,
    QueryStoppedError,
    RefusedRecordError,
    SinkUnavailableError,
    TransactionLostError,
)
from onceforall.protocol import decisions as do
from onceforall.protocol import phases as P
from onceforall.protocol.entries import Claim, Commit, Digest, Done
from onceforall.protocol.state import RunConfig
from onceforall.protocol.sweeping import Sweep
from onceforall.sink import Capabilities, CommitReport, LostTransaction, TwoPhaseCommitSink


class FakeSink(TwoPhaseCommitSink):
    """Answers as it is told, and writes down what it was asked.

    ``answers``: what the next commits raise or return.
    """

    kind = "fake"
    default_name = "fake"
    capabilities = Capabilities(two_phase=True)

    def __init__(self, *answers, recover=None, abort=None, retire=None):
        self.answers = list(answers)
        self.raises = {"recover": recover, "abort": abort, "retire": retire}
        self.asked = []
        self.is_closed = False

    def columns(self, schema):
        raise NotImplementedError

    begin_transaction = invoke = pre_commit = discard = columns

    def commit(self, permit, committables):
        self.asked.append(("commit", permit.batch, names(committables)))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return (
            CommitReport(completed=tuple(committables)) if answer is None else answer(committables)
        )

    def _record(self, what, argument, answer=None):
        self.asked.append((what, argument))
        if self.raises[what] is not None:
            raise self.raises[what]
        return answer

    def abort(self, committables):
        return self._record("abort", names(committables))

    def retire(self, committables):
        return self._record("retire", names(committables))

    def recover(self, sweep):
        return self._record("recover", sweep, 0)

    def close(self):
        self.is_closed = True

    def of(self, what):
        return [asked[1:] for asked in self.asked if asked[0] == what]


class FakeWriter:
    """Prepares these names per sink, or raises after having prepared them."""

    def __init__(self, error=None, digests=None, attempts_lost=False, **prepared):
        self.error, self.attempts_lost = error, attempts_lost
        self.digests = digests or {"a/0": (Digest(1, 1),)}
        self.prepared = {
            sink: tuple({"name": name} for name in names) for sink, names in prepared.items()
        }
        self.decision = None
        self.waited_for_tasks = self.forgotten = 0

    def write(self, decision):
        self.decision = decision
        if self.error is not None:
            raise self.error
        return Prepared(self.prepared, self.digests, 0, self.attempts_lost)

    def digest(self, decision):
        self.decision = decision
        if self.error is not None:
            raise self.error
        return self.digests

    def prepared_so_far(self):
        return self.prepared

    def forget_aborted(self):
        self.forgotten += 1

    def wait_for_tasks(self):
        self.waited_for_tasks += 1
        raise TimeoutError("tasks still run")


def names(committables):
    return [c["name"] for c in committables]


def lost(committables):
    return CommitReport(lost=tuple(LostTransaction(c, "PRODUCER_FENCED") for c in committables))


def doubtful(committables):
    return CommitReport(in_doubt=tuple(LostTransaction(c, "nobody knows") for c in committables))


def a_part_lost(committables):
    first, *others = committables
    return CommitReport(completed=tuple(others), lost=(LostTransaction(first, "PRODUCER_FENCED"),))


def retired(committables):
    return CommitReport(retired=tuple(committables))


AWAY = SinkUnavailableError("the sink is away")


class Query:
    """A coordinator over a real commit log in memory, with fake sinks."""

    def __init__(
        self,
        store=None,
        sinks=None,
        stop=lambda: False,
        spark_committed=-1,
        spark_planned=True,
        **config,
    ):
        self.store = store if store is not None else MemoryStore()
        self.sinks = sinks if sinks is not None else {"a": FakeSink()}
        self.waits = []
        self.sweeps = []
        self.sealed_below = []
        self.log = open_log(self.store)
        world = Resources(
            self.log,
            self.sinks,
            lambda: spark_committed,
            lambda _: spark_planned,
            stop,
            self.waits.append,
            self._sweeps_changed,
        )
        self.coordinator = Coordinator(
            RunConfig("query", "run", "/checkpoint", tuple(self.sinks), **config), world
        )
        opened.append(self.coordinator)

    def _sweeps_changed(self, sweeps, sealed_below):
        self.sweeps.append(sweeps)
        self.sealed_below.append(sealed_below)

    def batch(self, batch=0, writer=None, stateful=False):
        self.coordinator.run_batch(
            batch, (f"offsets {batch}",), stateful, writer or FakeWriter(a=(f"t{batch}",))
        )

    def entries(self, generation=0):
        self.coordinator.finish_background()
        return [entry.kind for _, entry in self.log.entries(generation)]


def open_log(store):
    return CommitLog(store, retry_pauses_ms=(0,), sleep=lambda _: None)


opened = []


@pytest.fixture(autouse=True)
def closed():
    yield
    while opened:
        opened.pop().close()


def replace_run(store):
    """What another start does first."""
    log = open_log(store)
    generation = log.claim(Claim("query", "other run", "/checkpoint")).generation
    return log.seal_below(generation)


# --- a batch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
def test_what_spark_asks_for_is_handed_on_as_it_is(whole, monkeypatch):
    query, seen = Query(), []
    feed = query.coordinator._feed
    monkeypatch.setattr(query.coordinator, "_feed", lambda event: (seen.append(event), feed(event)))
    ask = query.coordinator.run_batch if whole else query.coordinator.request
    ask(0, ("o",), True, FakeWriter(a=("t0",)), ("s",), header=("h",), before=("b",))
    # Not by ==, which looks at what tells one request from another.
    assert astuple(seen[0]) == (0, ("o",), True, ("s",), ("h",), ("b",))


def test_each_step_of_a_batch_is_timed_anew(monkeypatch):
    seconds = itertools.count()
    monkeypatch.setattr(coordinator_module.clock, "now_s", lambda: float(next(seconds)))
    query = Query()
    steps = {"write": 1000, "append_commit": 1000, "commit": 1000, "return_batch": 1000}
    query.batch(0)
    start = {"inspect": 1000, "claim": 1000, "seal": 1000, "recover": 1000}
    assert query.coordinator.phase_ms == {**start, **steps}
    query.batch(1)
    assert query.coordinator.phase_ms == steps


def test_all_sinks_of_a_query_commit_at_the_same_time():
    together = threading.Barrier(6, timeout=20)

    class Waits(FakeSink):
        def commit(self, permit, committables):
            together.wait()
            return super().commit(permit, committables)

    names = "abcdef"
    query = Query(sinks={name: Waits() for name in names})
    query.batch(0, FakeWriter(**{name: (f"{name}0",) for name in names}))
    assert query.entries() == ["CLAIM", "COMMIT", "DONE"]


def test_whoever_keeps_something_for_a_batch_is_told_when_it_is_done():
    query, done = Query(), []
    query.coordinator._resources = replace(query.coordinator._resources, batch_done=done.append)
    query.batch(0)
    query.batch(1)
    query.coordinator.finish_background()
    assert done == [0, 1]


def test_batches_are_decided_committed_and_done_in_the_log():
    query = Query()
    query.batch(0)
    query.batch(1)
    assert query.entries() == ["CLAIM", "COMMIT", "DONE", "COMMIT", "DONE"]
    assert query.sinks["a"].of("commit") == [(0, ["t0"]), (1, ["t1"])]
    assert query.waits == []


def test_the_batch_returns_while_its_done_is_still_being_written():
    class SlowDone(MemoryStore):
        def create(self, key, content):
            if b'"DONE"' in content:
                reached.set()
                assert go_on.wait(20)
            return super().create(key, content)

    reached, go_on = threading.Event(), threading.Event()
    query = Query(SlowDone())
    query.batch(0)
    assert reached.wait(20)
    assert type(query.coordinator.run.phase) is P.Closing
    go_on.set()
    query.batch(1)
    assert query.entries() == ["CLAIM", "COMMIT", "DONE", "COMMIT", "DONE"]


def test_completed_handles_come_back_to_the_next_batch():
    query = Query()
    query.batch(0)
    writer = FakeWriter(a=("t1",))
    query.batch(1, writer)
    assert writer.decision.reusable == {"a": ({"name": "t0", "batch": 0},)}


def test_handles_in_doubt_are_fenced_after_done_and_do_not_come_back():
    seen_done = []

    class Sink(FakeSink):
        def retire(self, committables):
            seen_done.append([e.kind for _, e in open_log(query.store).entries(0)][-1])
            super().retire(committables)

    query = Query(sinks={"a": Sink(retired, retire=AWAY)})
    query.batch(0)
    writer = FakeWriter(a=("t1",))
    query.batch(1, writer)
    assert query.sinks["a"].of("retire") == [(["t0"],)]
    assert seen_done == ["DONE"]
    assert writer.decision.reusable == {"a": ()}


def test_a_handle_whose_commit_had_to_be_repeated_is_fenced_and_does_not_come_back():
    """Whatever the sink says the second time: a request of the first one may still be on its
    way."""
    query = Query(sinks={"a": FakeSink(AWAY)})
    query.batch(0)
    writer = FakeWriter(a=("t1",))
    query.batch(1, writer)
    assert query.sinks["a"].of("commit")[:2] == [(0, ["t0"]), (0, ["t0"])]
    assert query.sinks["a"].of("retire") == [(["t0"],)]
    assert writer.decision.reusable == {"a": ()}


def test_a_lost_task_attempt_makes_the_run_sweep_its_own_generation_before_done():
    query = Query()
    query.batch(0, FakeWriter(a=("t0",), attempts_lost=True))
    older, own = (sweep for (sweep,) in query.sinks["a"].of("recover"))
    assert (older.own, own.own, own.spared) == (False, True, {"t0"})


def test_closing_closes_the_sinks():
    query = Query()
    query.coordinator.close()
    assert query.sinks["a"].is_closed


# --- a sink that is away --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [AWAY, OSError("reset"), ValueError("a bug in a sink"), AttemptFailedError("no")]
)
def test_a_commit_is_tried_again_until_the_sink_answers(error):
    query = Query(sinks={"a": FakeSink(error, error, error)})
    query.batch(0)
    assert query.sinks["a"].of("commit") == [(0, ["t0"])] * 4
    assert query.sinks["a"].of("abort") == []
    assert query.entries() == ["CLAIM", "COMMIT", "DONE"]


@pytest.mark.parametrize(
    ("report", "what"),
    [
        (None, "returned no CommitReport: NoneType None"),
        (CommitReport(completed=("t0",)), "'completed' what is no committable"),
        (CommitReport(lost=({"name": "t0"},)), "'lost' what is no LostTransaction"),
    ],
)
def test_a_commit_that_returns_no_report_stops_the_run_at_once_and_the_next_start_asks_again(
    report, what
):
    other = FakeSink()
    query = Query(sinks={"a": FakeSink(lambda _: report), "b": other})
    with pytest.raises(ProtocolViolationError, match=f"Sink a was asked .*{what}") as stopped:
        query.batch(0, FakeWriter(a=("t0",), b=("u0",)))
    assert stopped.value.sink == "a"
    assert (query.sinks["a"].of("commit"), query.waits) == ([(0, ["t0"])], [])
    assert (query.sinks["a"].of("abort"), other.of("abort")) == ([], [])
    assert other.of("commit") == [(0, ["u0"])]
    assert query.entries() == ["CLAIM", "COMMIT"]
    again = Query(query.store, {"a": FakeSink(lambda _: report), "b": FakeSink()})
    with pytest.raises(ProtocolViolationError, match=what):
        again.batch(0)
    mended = Query(query.store, {"a": FakeSink(), "b": FakeSink()})
    mended.batch(0)
    assert mended.sinks["a"].of("commit") == [(0, ["t0"])]


def test_a_decision_that_cannot_be_written_as_json_is_none_and_its_attempt_is_aborted():
    """It was taken for an append without an answer, whose transactions nobody aborts."""
    query = Query()
    writer = FakeWriter(a=("t0",))
    writer.prepared["a"][0]["score"] = float("nan")
    with pytest.raises(AttemptFailedError, match="a COMMIT entry cannot be written as JSON"):
        query.batch(0, writer)
    assert query.sinks["a"].of("abort") == [(["t0"],)]
    assert query.entries() == ["CLAIM"]


def test_the_pauses_grow_up_to_a_limit_and_never_delay_a_stop_for_long():
    query = Query(sinks={"a": FakeSink(*[AWAY] * 12)})
    query.batch(0)
    assert query.waits[0] == pytest.approx(FIRST_WAIT_S)
    assert max(query.waits) <= 0.2
    total = sum(min(FIRST_WAIT_S * 2**i, LONGEST_WAIT_S) for i in range(12))
    assert sum(query.waits) == pytest.approx(total, rel=0.1)


def test_one_sink_that_is_away_holds_back_done_but_not_the_other_sinks():
    committed, stopped = threading.Event(), threading.Event()

    class Other(FakeSink):
        def commit(self, permit, committables):
            report = super().commit(permit, committables)
            committed.set()
            return report

    query = Query(sinks={"a": FakeSink(AWAY), "b": Other()}, stop=stopped.is_set)

    def wait(_):
        # The pause after the one answer of "a": the stop comes when "b" has committed, whichever
        # thread was the first.
        assert committed.wait(20)
        stopped.set()

    query.coordinator._resources = replace(query.coordinator._resources, wait=wait)
    with pytest.raises(InDoubtError, match="waited for a"):
        query.batch(0, FakeWriter(a=("t0",), b=("u0",)))
    assert query.sinks["b"].of("commit") == [(0, ["u0"])]
    assert query.entries() == ["CLAIM", "COMMIT"]


@pytest.mark.parametrize("gives_up_after_s", [None, 8.0])
def test_a_sink_that_did_not_commit_until_the_stop_is_told_with_its_own_words(gives_up_after_s):
    class Refuses(FakeSink):
        def commit(self, permit, committables):
            super().commit(permit, committables)
            if len(self.of("commit")) > 2:
                # As a connection does that the stop has ended.
                stop.append(True)
                raise SinkUnavailableError("the connection was cut off")
            raise SinkUnavailableError("the table refuses row 7")

    stop = []
    query = Query(
        sinks={"a": Refuses()}, stop=lambda: bool(stop), gives_up_after_s=gives_up_after_s
    )
    with pytest.raises(InDoubtError) as caught:
        query.batch(0)
    told = str(caught.value)
    assert "batch 0" in told.lower()
    assert told.endswith("a said last: the table refuses row 7")
    assert ("within 8 s, the timeout of the detachment" in told) == (gives_up_after_s is not None)
    assert ("The query was stopped" in told) == (gives_up_after_s is None)


class SaysNo(FakeSink):
    """At each call but one, with its number; at one of them the query is asked to stop."""

    def __init__(self, stops_at, completes_at=None):
        super().__init__()
        self.stops_at, self.completes_at, self.stop = stops_at, completes_at, []

    def commit(self, permit, committables):
        super().commit(permit, committables)
        call = len(self.of("commit"))
        if call == self.completes_at:
            return CommitReport(completed=tuple(committables))
        if call == self.stops_at:
            self.stop.append(True)
        raise SinkUnavailableError(f"no {call}")


@pytest.mark.parametrize(
    ("stops_at", "completes_at", "said"),
    [
        pytest.param(3, None, "no 2", id="the last of several"),
        pytest.param(4, 2, "no 3", id="nothing of an earlier batch"),
        pytest.param(3, 2, "no 3", id="what it says behind the stop, where it said nothing else"),
    ],
)
def test_what_a_sink_said_last_of_this_batch_is_told(stops_at, completes_at, said, caplog):
    sink = SaysNo(stops_at, completes_at)
    query = Query(sinks={"a": sink}, stop=lambda: bool(sink.stop))
    if completes_at is not None:
        query.batch(0)
    with pytest.raises(InDoubtError) as caught:
        query.batch(0 if completes_at is None else 1)
    assert str(caught.value).endswith(f"a said last: {said}")
    assert "batch 0 is decided; its commit on sink a is tried again: no 1" in caplog.text


def test_a_stop_while_a_sink_is_away_is_in_doubt_and_the_next_start_completes():
    asked = iter([False, True])
    query = Query(sinks={"a": FakeSink(AWAY)}, stop=lambda: next(asked, True))
    with pytest.raises(InDoubtError, match="batch 0"):
        query.batch(0)
    assert query.sinks["a"].of("abort") == []
    again = Query(query.store)
    writer = FakeWriter(a=("again",))
    again.batch(0, writer)
    assert again.sinks["a"].of("commit") == [(0, ["t0"])]
    assert writer.decision is None
    assert again.entries(1) == ["CLAIM", "DONE"]


def test_a_run_that_stopped_in_doubt_says_so_again():
    query = Query(sinks={"a": FakeSink(AWAY)}, stop=lambda: True)
    for _ in range(2):
        with pytest.raises(InDoubtError):
            query.batch(0)
    assert len(query.sinks["a"].of("commit")) == 1


def test_recovery_waits_for_a_sink_that_is_away():
    store = decided_but_not_done()
    query = Query(store, {"a": FakeSink(AWAY, AWAY)})
    query.batch(1)
    assert query.sinks["a"].of("commit") == [(0, ["t0"])] * 3 + [(1, ["t1"])]
    assert query.entries(1) == ["CLAIM", "DONE", "COMMIT", "DONE"]


def test_a_stop_while_recovery_waits_is_in_doubt():
    query = Query(decided_but_not_done(), {"a": FakeSink(*[AWAY] * 9)}, stop=lambda: True)
    with pytest.raises(InDoubtError, match="batch 0"):
        query.batch(0)
    assert query.entries(1) == ["CLAIM"]
    assert query.sinks["a"].of("recover") == []


def decided_but_not_done(*names):
    """A log whose only batch is decided and may be incomplete."""
    committables = tuple({"name": name} for name in names or ("t0",))
    store = MemoryStore()
    log = open_log(store)
    generation = log.claim(Claim("query", "older run", "/checkpoint")).generation
    log.append(generation, Commit(0, ("offsets 0",), {"a": committables}, {"a/0": (Digest(1, 1),)}))
    return store


# --- recovery -------------------------------------------------------------------------------------


def test_a_failing_sweep_does_not_stop_recovery():
    query = Query(
        decided_but_not_done(),
        {"a": FakeSink(recover=AWAY), "b": FakeSink(recover=OSError("reset"))},
    )
    query.batch(1)
    assert query.entries(1) == ["CLAIM", "DONE", "COMMIT", "DONE"]
    assert len(query.sinks["b"].of("recover")) == 1


def test_a_start_tells_once_which_sinks_of_the_run_before_it_does_not_have(caplog):
    store = MemoryStore()
    kinds = {"a": "fake", "pg": "postgres"}
    first = Query(store, {"a": FakeSink(), "pg": FakeSink()}, kinds=kinds, roll_after_entries=2)
    first.batch(0)
    first.batch(1)  # in a generation of its own
    assert "sinks that this one doesn't have" not in caplog.text
    for told in (1, 0):
        caplog.clear()
        later = Query(store, kinds={"a": "fake"}, roll_after_entries=2)
        later.batch(3 - told)
        warnings = [r.getMessage() for r in caplog.records if "doesn't have" in r.getMessage()]
        assert len(warnings) == told
        assert all("pg (postgres). If" in warning for warning in warnings)


def test_sweeps_come_after_the_completion_spare_it_and_are_handed_on_to_be_repeated():
    query = Query(decided_but_not_done())
    query.batch(0)
    assert [asked[0] for asked in query.sinks["a"].asked] == ["commit", "recover"]
    (sweeps,) = query.sweeps
    assert sweeps["a"].spared == {"t0"}
    assert sweeps["a"].generation == 1


def test_a_decided_batch_of_a_query_with_state_is_digested_and_a_divergence_is_logged(caplog):
    query = Query(decided_but_not_done())
    with caplog.at_level(logging.WARNING, "onceforall"):
        query.batch(0, FakeWriter(digests={"a/0": (Digest(2, 2),)}), stateful=True)
    assert "divergence in batch 0" in caplog.text
    assert query.entries(1) == ["CLAIM", "DONE"]


def test_a_replay_that_fails_has_the_users_error_as_its_cause():
    error = ValueError("in the function")
    with pytest.raises(AttemptFailedError) as raised:
        Query(decided_but_not_done()).batch(0, FakeWriter(error), stateful=True)
    assert raised.value.__cause__ is error


def test_a_lost_transaction_of_the_past_stops_every_start():
    store = decided_but_not_done("t0", "t1")
    for generation in (1, 2):
        query = Query(store, {"a": FakeSink(a_part_lost)})
        with pytest.raises(TransactionLostError, match="t0"):
            query.batch(0)
        assert query.entries(generation) == ["CLAIM"]


def test_what_is_lost_as_a_whole_is_written_anew_by_the_next_start():
    query = Query(decided_but_not_done(), {"a": FakeSink(lost)})
    query.batch(0, FakeWriter(a=("new",), digests={"a/0": (Digest(7, 7),)}))
    assert query.sinks["a"].of("commit") == [(0, ["t0"]), (0, ["new"])]
    assert query.sinks["a"].of("retire") == [(["t0"],)], "nothing may commit the lost one any more"
    assert query.entries(1) == ["CLAIM", "COMMIT", "DONE"]


# --- a decision that comes too late ---------------------------------------------------------------


class Slow(MemoryStore):
    """Time passes in front of each create of a COMMIT; ``lost``: the first answer to one is
    lost, with what was asked done or not."""

    def __init__(self, passing_ms, lost=None):
        super().__init__()
        self.now_ms, self.passing_ms, self.lost = 0, passing_ms, lost

    def create(self, key, content, in_time=None):
        if b'"COMMIT"' not in content:
            return super().create(key, content)
        self.now_ms += self.passing_ms
        lost, self.lost = self.lost, None
        if lost == "before":
            raise OSError("no answer")
        answer = super().create(key, content, in_time)
        if lost == "after":
            raise OSError("no answer")
        return answer


def timed(store):
    query = Query(store, transaction_timeout_ms=100, decision_reserve_ms=30)
    query.coordinator._resources = replace(
        query.coordinator._resources, now_ms=lambda: store.now_ms
    )
    return query


def test_a_decision_is_not_taken_when_its_time_passed_between_the_last_look_and_the_entry():
    query = timed(Slow(71))
    with pytest.raises(BatchTooSlowError, match="held up"):
        query.batch(0)
    assert query.entries() == ["CLAIM"]
    assert query.sinks["a"].of("abort") == [(["t0"],)]
    assert query.sinks["a"].of("commit") == []


def test_a_decision_is_taken_as_long_as_there_is_time():
    query = timed(Slow(70))
    query.batch(0)
    assert query.entries() == ["CLAIM", "COMMIT", "DONE"]


@pytest.mark.parametrize("lost", ["before", "after"])
def test_what_was_asked_in_time_and_not_answered_is_found_out_when_it_is_too_late_to_ask_again(
    lost,
):
    query = timed(Slow(70, lost))
    if lost == "before":
        with pytest.raises(OutcomeUnknownError):
            query.batch(0)
        assert query.entries() == ["CLAIM"]
        assert query.sinks["a"].of("abort") == [], "a create that was sent may still arrive"
    else:
        query.batch(0)
        assert query.entries() == ["CLAIM", "COMMIT", "DONE"]


def test_a_failed_look_at_sparks_commit_log_touches_no_sink():
    query = Query()

    def unreadable():
        raise OSError("commits can't be read")

    world = replace(query.coordinator._resources, spark_committed=unreadable)
    query.coordinator._resources = world
    with pytest.raises(OSError, match="commits"):
        query.batch(0)
    assert query.sinks["a"].asked == []


class WaitingSink(FakeSink):
    """Its commit waits until it is told to end that."""

    def __init__(self):
        super().__init__()
        self.waits, self.ended = threading.Event(), threading.Event()

    def commit(self, permit, committables):
        self.asked.append(("commit", permit.batch, names(committables)))
        self.waits.set()
        if self.ended.wait(10):
            raise SinkUnavailableError("it was told to end")
        return CommitReport(completed=tuple(committables))

    def stop_committing(self):
        self.asked.append(("stop_committing",))
        self.ended.set()


@pytest.mark.parametrize("in_recovery", [False, True])
def test_a_commit_that_waits_is_ended_some_time_after_a_stop_and_done_by_the_next_run(
    monkeypatch, in_recovery
):
    monkeypatch.setattr(coordinator_module, "COMMITS_END_WITHIN_S", 0.5)
    sink = WaitingSink()
    query = Query(sinks={"a": sink}, stop=sink.waits.is_set)
    if in_recovery:
        store = MemoryStore()
        with pytest.raises(InDoubtError):
            Query(store, {"a": FakeSink(AWAY)}, stop=lambda: True).batch(0)
        query = Query(store, {"a": sink}, stop=sink.waits.is_set)
    with pytest.raises(InDoubtError):
        query.batch(0)
    assert sink.of("stop_committing")
    later = Query(query.store)
    later.batch(1 if in_recovery else 0)
    assert later.sinks["a"].of("commit")[0] == (0, ["t0"])


def test_a_sweep_between_two_batches_that_waits_is_ended_some_time_after_a_stop(monkeypatch):
    """No batch comes behind it whose names it could meet."""
    monkeypatch.setattr(coordinator_module, "COMMITS_END_WITHIN_S", 0.5)
    sink = WaitingSink()

    def recover(_sweep):
        sink.waits.set()
        if sink.ended.wait(10):
            raise SinkUnavailableError("it was told to end")
        return 0

    sink.recover = recover
    query = Query(sinks={"a": sink}, stop=sink.waits.is_set)
    query.coordinator.pending.append(do.SweepOwn({"a": Sweep("query", "a", 1, own=True)}))
    query.coordinator.step()
    assert sink.of("stop_committing")


# --- attempts that fail ---------------------------------------------------------------------------


def test_the_users_exception_aborts_and_is_the_cause():
    error = ValueError("in the function")
    query = Query()
    with pytest.raises(AttemptFailedError, match="ValueError: in the function") as raised:
        query.batch(0, FakeWriter(error))
    assert raised.value.__cause__ is error
    assert query.entries() == ["CLAIM"]
    assert query.sinks["a"].of("recover")[-1][0].own


class UnreadableError(Exception):
    def __str__(self):
        raise AttributeError("response")


@pytest.mark.parametrize(
    "error",
    [UnreadableError(), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), CancelledError()],
    ids=lambda e: type(e).__name__,
)
def test_whatever_a_function_raises_aborts_what_is_prepared_and_is_the_cause(error):
    """Also what has no text, and what would end a process: the thread of the batch is Spark's,
    and nobody else aborts."""
    query = Query()
    with pytest.raises(AttemptFailedError, match=type(error).__name__) as raised:
        query.batch(0, FakeWriter(error, a=("t0",)))
    assert raised.value.__cause__ is error
    assert query.sinks["a"].of("abort") == [(["t0"],)]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UnreadableError, "its text can't be read: AttributeError"),
        (CancelledError, "CancelledError"),
        (SystemExit, "SystemExit"),
        pytest.param(
            lambda: BaseExceptionGroup("two calls", [CancelledError()]),  # noqa: F821
            "two calls",
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no groups"),
        ),
    ],
)
def test_an_error_of_an_odd_kind_holds_up_no_step_of_the_protocol(caplog, error, told):
    """Wherever a sink raises it: behind the decision, in a sweep, in an abort, when handles are
    fenced. One has no text, and those of a client that works with asyncio, or that ends programs,
    are no Exceptions."""
    query = Query(
        sinks={
            "a": FakeSink(error(), doubtful, recover=error(), retire=error()),
            "b": FakeSink(abort=error()),
        }
    )
    with pytest.raises(InDoubtError):
        query.batch(0)
    assert query.sinks["a"].of("commit") == [(0, ["t0"])] * 2
    again = Query(
        query.store,
        sinks={
            "a": FakeSink(error(), recover=error(), abort=error()),
            "b": FakeSink(),
        },
    )
    again.batch(0)
    with pytest.raises(AttemptFailedError, match="ValueError: no"):
        again.batch(1, FakeWriter(ValueError("no"), a=("t1",), b=("u1",)))
    assert again.sinks["b"].of("abort") == [(["u1"],)]
    assert told in caplog.text


def test_an_error_of_our_own_is_raised_as_it_is():
    error = RefusedRecordError("record 7 is too large")
    with pytest.raises(RefusedRecordError) as raised:
        Query().batch(0, FakeWriter(error))
    assert raised.value is error


def test_a_failed_write_aborts_what_other_sinks_have_prepared():
    query = Query(sinks={"a": FakeSink(), "b": FakeSink(), "c": FakeSink()})
    with pytest.raises(AttemptFailedError):
        query.batch(0, FakeWriter(ValueError("sink c"), a=("t0", "t1"), b=("u0",)))
    assert query.sinks["a"].of("abort") == [(["t0", "t1"],)]
    assert query.sinks["b"].of("abort") == [(["u0"],)]
    assert query.sinks["c"].of("abort") == []
    assert all(sink.of("commit") == [] for sink in query.sinks.values())
    assert all(sink.of("recover")[-1][0].own for sink in query.sinks.values())


def test_tasks_are_waited_for_before_an_abort_and_ones_own_sweep_is_handed_on_to_be_repeated():
    query = Query()
    writer, aborted_by_then = FakeWriter(ValueError("no"), a=("t0",)), []
    wait_for_tasks = writer.wait_for_tasks

    def waiting():
        aborted_by_then.append(len(query.sinks["a"].of("abort")))
        wait_for_tasks()

    writer.wait_for_tasks = waiting
    with pytest.raises(AttemptFailedError):
        query.batch(0, writer)
    assert writer.waited_for_tasks == 1
    assert aborted_by_then == [0]
    assert len(query.sinks["a"].of("abort")) == 1
    older, own = (sweeps["a"] for sweeps in query.sweeps)
    assert (older.own, own.own) == (False, True)


def test_an_abort_that_fails_does_not_hide_why_the_attempt_failed():
    query = Query(sinks={"a": FakeSink(abort=AWAY, recover=AWAY), "b": FakeSink()})
    with pytest.raises(AttemptFailedError, match="ValueError: no"):
        query.batch(0, FakeWriter(ValueError("no"), a=("t0",), b=("u0",)))
    assert query.sinks["b"].of("abort") == [(["u0"],)]


def test_an_aborted_batch_is_written_by_the_next_start():
    query = Query()
    with pytest.raises(AttemptFailedError):
        query.batch(0, FakeWriter(ValueError("no"), a=("t0",)))
    again = Query(query.store)
    again.batch(0, FakeWriter(a=("t1",)))
    assert again.sinks["a"].of("commit") == [(0, ["t1"])]


# --- the log --------------------------------------------------------------------------------------


def test_a_decision_without_an_answer_aborts_nothing():
    store = FlakyStore(MemoryStore())
    query = Query(store)
    query.batch(0)
    query.coordinator.finish_background()
    store.faults.extend(["before", "before"])
    with pytest.raises(OutcomeUnknownError, match=r"nothing was aborted"):
        query.batch(1)
    assert query.sinks["a"].of("abort") == []
    assert [s.own for (s,) in query.sinks["a"].of("recover")] == [False]
    assert query.sinks["a"].of("commit") == [(0, ["t0"])]


@pytest.mark.parametrize("fault", ["before", "after"])
def test_the_next_start_finds_out_what_became_of_a_decision_without_an_answer(fault):
    store = FlakyStore(MemoryStore())
    query = Query(store)
    query.batch(0)
    query.coordinator.finish_background()
    store.faults.extend([fault, "before"])
    with pytest.raises(OutcomeUnknownError):
        query.batch(1)
    again = Query(store)
    again.batch(1, FakeWriter(a=("again",)))
    assert again.sinks["a"].of("commit") == [(1, ["t1"] if fault == "after" else ["again"])]


def test_any_error_of_the_log_at_the_decision_leaves_the_batch_in_doubt():
    query = Query()
    query.batch(0)
    query.coordinator.finish_background()
    error = RuntimeError("a bug in a store")

    def broken(generation, entry, in_time):
        raise error

    query.log.append = broken
    with pytest.raises(OutcomeUnknownError, match="a bug in a store") as raised:
        query.batch(1)
    assert raised.value.__cause__ is error
    assert query.sinks["a"].of("abort") == []


def test_a_replaced_run_is_fenced_at_its_decision_and_aborts_only_what_nobody_can_decide():
    query = Query()
    query.batch(0)
    query.coordinator.finish_background()
    replace_run(query.store)
    with pytest.raises(FencedError, match="newer run"):
        query.batch(1)
    assert query.sinks["a"].of("abort") == [(["t1"],)]
    assert query.sinks["a"].of("commit") == [(0, ["t0"])]


@pytest.mark.parametrize("newer", [False, True])
def test_a_start_whose_batch_another_run_has_completed_says_whether_that_one_is_fenced(newer):
    store = MemoryStore()
    Query(store).batch(0)
    query = Query(store, spark_committed=0)
    if newer:
        sealed = query.coordinator._resources.log.seal_below

        def overtaken(generation):
            history = sealed(generation)
            replace_run(query.store)
            return history

        query.coordinator._resources.log.seal_below = overtaken
    with pytest.raises(FencedError) as raised:
        query.batch(0)
    assert type(raised.value) is (FencedError if newer else OvertakenError)


@pytest.mark.parametrize("decided", [False, True])
def test_a_start_of_a_checkpoint_that_lacks_the_plan_of_its_last_batch_tells_of_no_other_run(
    decided,
):
    store = MemoryStore()
    if decided:
        Query(store).batch(0)
    query = Query(store, spark_committed=0, spark_planned=False)
    with pytest.raises(CheckpointMismatchError, match="its offset log doesn't have that batch"):
        query.batch(0)


class FailsWhenReplaced(FakeWriter):
    """Its tasks miss what a newer run has swept."""

    def __init__(self, query, **more):
        super().__init__(**more)
        self._query = query

    def write(self, decision):
        replace_run(self._query.store)
        raise AttemptFailedError("the upload is gone")


def test_tasks_that_fail_because_a_newer_run_has_swept_end_a_run_that_is_fenced():
    query = Query()
    with pytest.raises(FencedError, match=r"newer run.*the upload is gone") as raised:
        query.batch(0, FailsWhenReplaced(query))
    assert isinstance(raised.value.__cause__, AttemptFailedError)


class GivesUp:
    """Whatever asks the log's store has no answer in time."""

    def __init__(self, query):
        self.query, self.seconds, self.by_then = query, [], []
        query.coordinator._resources = replace(query.coordinator._resources, within=self)

    def __call__(self, action, seconds):
        self.seconds.append(seconds)
        self.by_then.append(len(self.query.sinks["a"].of("abort")))
        raise TimeoutError("no answer in time")


def test_an_attempt_that_failed_waits_for_no_store_before_its_sinks_are_aborted_nor_for_long(
    caplog,
):
    caplog.set_level(logging.INFO)
    query = Query()
    query.batch(0)
    caplog.clear()
    asked, writer = GivesUp(query), FakeWriter(ValueError("of its own"), a=("t0",))
    with pytest.raises(AttemptFailedError, match="of its own"):
        query.batch(1, writer)
    assert asked.seconds == [coordinator_module.ABORT_ASKS_STORE_S] * 2
    assert asked.by_then == [1, 1]
    assert writer.forgotten == 0
    lines = [record.getMessage() for record in caplog.records]
    assert all(line.startswith("[generation 0]") for line in lines), "the first one is 0"
    assert any(
        "tasks of the aborted attempt did not succeed and is tried again" in line for line in lines
    )
    assert any("whether a newer run has taken over is not known" in line for line in lines)
    assert any("the attempt is aborted: ValueError: of its own" in line for line in lines)


@pytest.mark.parametrize(
    ("error", "level"), [(ValueError("no"), "WARNING"), (QueryStoppedError("asked to"), "INFO")]
)
def test_why_an_attempt_is_aborted_is_no_warning_where_somebody_asked_for_it(error, level, caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises((AttemptFailedError, QueryStoppedError)):
        Query().batch(0, FakeWriter(error, a=("t0",)))
    (record,) = [each for each in caplog.records if "the attempt is aborted" in each.getMessage()]
    assert record.levelname == level


def test_the_kept_rows_of_an_aborted_attempt_are_deleted():
    query, writer = Query(), FakeWriter(ValueError("no"), a=("t0",))
    with pytest.raises(AttemptFailedError):
        query.batch(0, writer)
    assert writer.forgotten == 1


def test_a_query_that_is_stopped_asks_no_log_who_owns_it():
    query = Query(stop=lambda: True)
    with pytest.raises(AttemptFailedError, match="the upload is gone"):
        query.batch(0, FailsWhenReplaced(query))


def test_a_done_in_the_background_that_meets_a_seal_makes_the_next_batch_raise():
    class ReplacesAtCommit(FakeSink):
        def commit(self, permit, committables):
            replace_run(query.store)
            return super().commit(permit, committables)

    query = Query(sinks={"a": ReplacesAtCommit()})
    query.batch(0)
    writer = FakeWriter(a=("t1",))
    for _ in range(2):
        with pytest.raises(FencedError):
            query.batch(1, writer)
    assert writer.decision is None, "a batch is written only behind the DONE of the one before"
    assert query.sinks["a"].of("commit") == [(0, ["t0"])]
    assert query.entries(0) == ["CLAIM", "COMMIT", "SEAL"]


def test_a_done_in_the_background_without_an_answer_makes_the_next_batch_raise():
    store = FlakyStore(MemoryStore())

    class NoAnswerAfterCommit(FakeSink):
        def commit(self, permit, committables):
            store.faults.extend(["after", "before"])
            return super().commit(permit, committables)

    query, forgotten, writer = Query(store, {"a": NoAnswerAfterCommit()}), [], FakeWriter(a=("t1",))
    told = replace(query.coordinator._resources, batch_done=forgotten.append)
    query.coordinator._resources = told
    query.batch(0)
    with pytest.raises(OutcomeUnknownError):
        query.batch(1, writer)
    assert writer.decision is None
    assert forgotten == [], "what was kept for the batch may be needed"
    assert query.sinks["a"].of("commit") == [(0, ["t0"])]
    again = Query(store, spark_committed=0)
    again.batch(1)
    assert again.sinks["a"].of("commit") == [(1, ["t1"])]


@pytest.mark.parametrize(
    ("answer", "error"), [(lost, TransactionLostError), (doubtful, InDoubtError)]
)
def test_a_lost_or_doubtful_transaction_is_that_unless_a_newer_run_owns_the_query(answer, error):
    with pytest.raises(error, match="t0") as raised:
        Query(sinks={"a": FakeSink(answer)}).batch(0)
    assert (raised.value.sink, raised.value.transaction) == ("a", "t0"), (
        "a program takes them from there"
    )

    class ReplacesAtCommit(FakeSink):
        def commit(self, permit, committables):
            replace_run(query.store)
            return super().commit(permit, committables)

    query = Query(sinks={"a": ReplacesAtCommit(answer), "b": FakeSink()})
    with pytest.raises(FencedError):
        query.batch(0, FakeWriter(a=("t0",), b=("u0",)))
    assert query.entries() == ["CLAIM", "COMMIT", "SEAL"]


@pytest.mark.parametrize("answer", [lost, doubtful])
def test_what_looks_lost_to_a_replaced_run_in_recovery_is_its_successors_business(answer):
    class ReplacesAtCommit(FakeSink):
        def commit(self, permit, committables):
            successor = open_log(query.store)
            generation = successor.claim(Claim("query", "other run", "/checkpoint")).generation
            successor.seal_below(generation)
            successor.append(generation, Done(0))
            return super().commit(permit, committables)

    query = Query(decided_but_not_done(), {"a": ReplacesAtCommit(answer)})
    with pytest.raises(FencedError):
        query.batch(0)


class LosesOnce(FakeSink):
    """The first transaction that it is asked to commit is lost; everything else is committed."""

    def commit(self, permit, committables):
        first = not self.of("commit")
        super().commit(permit, committables)
        return a_part_lost(committables) if first else CommitReport(tuple(committables))


TWO_TASKS = {"a/0": (Digest(1, 1), Digest(2, 2))}


def by_tasks(*names):
    """A writer whose transactions say which task's they are."""
    writer = FakeWriter(a=names, digests=TWO_TASKS)
    for place, committable in enumerate(writer.prepared["a"]):
        committable["task"] = [0, place]
    return writer


def decided_by_two_tasks():
    """A store with a batch that is decided and not done, whose two transactions say which task's
    they are."""
    store = MemoryStore()
    with pytest.raises(InDoubtError):
        Query(store, {"a": FakeSink(AWAY)}, stop=lambda: True).batch(0, by_tasks("t0", "t1"))
    return store


def rewriting(name="again"):
    return by_tasks(name)


def test_a_sweep_of_names_that_the_next_batch_writes_under_is_waited_for_to_its_end():
    """One that goes on behind would abort what the next batch has decided."""
    query = Query()
    coordinator = query.coordinator
    coordinator._resources = replace(coordinator._resources, patiently=lambda _name, _action: None)
    own = Sweep("query", "a", 1, own=True)
    coordinator.pending.append(do.SweepOwn({"a": own}))
    coordinator.step()
    assert query.sinks["a"].asked == [("recover", own)]


def test_a_lost_transaction_is_fenced_and_written_again_under_a_decision_of_its_own():
    query, writer = Query(decided_by_two_tasks(), {"a": LosesOnce()}), rewriting()
    query.batch(0, writer)
    sink = query.sinks["a"]
    assert sink.of("retire") == [(["t0"],)]
    assert writer.decision.redo == {(0, 0)}
    assert [what for what, *_ in sink.asked if what in {"commit", "retire"}] == [
        "commit",
        "retire",
        "commit",
    ]
    assert sink.of("commit")[1][-1] == ["t1", "again"]
    assert query.entries(1) == ["CLAIM", "COMMIT", "DONE"]


def test_an_error_of_a_users_own_class_does_not_hide_what_is_lost():
    class OfTheUserError(RefusedRecordError):
        def __init__(self, host, code=0):
            super().__init__(f"{host} said {code}")

    query = Query(decided_by_two_tasks(), {"a": LosesOnce()})
    writer = FakeWriter(error=OfTheUserError("db", 5), digests=TWO_TASKS)
    with pytest.raises(RefusedRecordError, match=r"batch 0 is lost.*db said 5") as caught:
        query.batch(0, writer)
    assert type(caught.value) is RefusedRecordError
    assert caught.value.__cause__ is writer.error


def test_nothing_is_written_again_before_the_lost_transactions_are_fenced():
    class AwayForTwoFences(LosesOnce):
        def retire(self, committables):
            super().retire(committables)
            if len(self.of("retire")) < 3:
                raise AWAY

    query, writer = Query(decided_by_two_tasks(), {"a": AwayForTwoFences()}), rewriting()
    query.batch(0, writer)
    assert len(query.sinks["a"].of("retire")) == 3
    assert len(query.waits) > 0
    stopped = Query(decided_by_two_tasks(), {"a": AwayForTwoFences()}, stop=lambda: True)
    writer = rewriting()
    with pytest.raises(InDoubtError, match="still waited for a"):
        stopped.batch(0, writer)
    assert writer.decision is None


def test_a_redo_that_fails_aborts_what_it_wrote_and_nothing_that_was_decided():
    class FailsAtTheWrite(FakeWriter):
        def write(self, decision):
            raise ValueError("in the function")

    query = Query(decided_by_two_tasks(), {"a": LosesOnce()})
    writer = FailsAtTheWrite(a=("again",), digests=TWO_TASKS)
    with pytest.raises(AttemptFailedError):
        query.batch(0, writer)
    assert query.sinks["a"].of("abort") == [(["again"],)]
    assert query.entries(1) == ["CLAIM"]


@pytest.mark.parametrize("kind", [AttemptFailedError, RefusedRecordError])
@pytest.mark.parametrize("fails", ["digest", "write"])
def test_a_redo_that_fails_says_what_is_lost_and_how_to_give_it_up_whatever_the_cause(fails, kind):
    def raises(decision):
        raise kind("the source has gone")

    query = Query(decided_by_two_tasks(), {"a": LosesOnce()})
    writer = rewriting()
    setattr(writer, fails, raises)
    with pytest.raises(
        AttemptFailedError,
        match=r"(?s)decided batch 0 (is|are) lost.*onceforall\.lostRows=giveUpUnseen:0",
    ) as raised:
        query.batch(0, writer)
    assert type(raised.value) is kind
    assert "the source has gone" in str(raised.value)
    assert str(raised.value.__cause__) == "the source has gone"


def test_a_replaced_run_that_would_roll_claims_nothing_above_its_successor():
    query = Query(roll_after_entries=3)
    query.batch(0)
    query.coordinator.finish_background()
    replace_run(query.store)
    with pytest.raises(FencedError):
        query.batch(1)
    assert query.entries(1) == ["CLAIM"]
    assert query.entries(2) == []


def test_a_long_run_goes_on_in_a_new_generation():
    query = Query(roll_after_entries=5)
    for batch in range(5):
        query.batch(batch)
    assert query.entries(0) == ["CLAIM", "COMMIT", "DONE", "COMMIT", "DONE", "SEAL"]
    assert query.entries(1) == ["CLAIM", "COMMIT", "DONE", "COMMIT", "DONE", "SEAL"]
    assert query.entries(2) == ["CLAIM", "COMMIT", "DONE"]
    # Names stay as they are; what is superseded is cleaned below the run's own chain all the same.
    assert [sweeps["a"].generation for sweeps in query.sweeps] == [0, 0, 0]
    assert query.sealed_below == [0, 1, 2]
    assert query.sinks["a"].of("commit") == [(b, [f"t{b}"]) for b in range(5)]
