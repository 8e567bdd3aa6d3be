"""What a run does when it ends: sweeps of its own generation only when Spark can't call for
another batch, and no error that ends the others."""

import gc
import json
import pickle
import signal
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from onceforall.driver import query_run, stopping, sweeper
from onceforall.driver.query_run import ExactlyOnceFunction, QueryRun, shortest_timeout_ms
from onceforall.driver.settings import Settings
from onceforall.driver.sweeper import Sweeper
from onceforall.driver.transaction import BatchTransaction
from onceforall.errors import (
    CheckpointMismatchError,
    FencedError,
    OptionError,
    SinkCheckError,
    SinkUnavailableError,
    UnsupportedQueryError,
)
from onceforall.protocol.sweeping import Sweep
from onceforall.spark.classic import ClassicRun
from support.waiting import until

OLDER = {"out": Sweep("query", "out", 3)}
OWN = {"out": Sweep("query", "out", 3, own=True)}


class Execution:
    """Spark's execution of a query that was told to stop: not active, and its thread may still
    begin a batch."""

    def __init__(self, alive):
        self.alive = alive

    def isActive(self):  # noqa: N802  Spark's own name
        return False

    def queryExecutionThread(self):  # noqa: N802
        if self.alive is None:
            raise ConnectionError("the JVM is gone")
        return self

    def isAlive(self):  # noqa: N802
        return self.alive


class Coordinator:
    def __init__(self, leftovers):
        self._leftovers = leftovers

    def leftovers(self):
        return self._leftovers


def run_of(execution, leftovers):
    run = QueryRun(ClassicRun(None, "query", "run", execution=execution), Path("checkpoint"), {})
    run._coordinator = Coordinator(leftovers)
    return run


def sweeper_of(run):
    """The sweeper that a run makes for itself, with the sweeps of its start; it has no log to
    clean."""
    made = Sweeper(
        {},
        None,
        is_active=run.is_active,
        may_take_another=run._may_take_another,
        leftovers=run._leftovers,
        forget_aborted=run._forget_aborted,
    )
    made.repeat(OLDER, 0)
    made._changed.clear()
    return made


@pytest.mark.parametrize(
    ("alive", "leftovers", "due"),
    [(True, OWN, OLDER), (False, OWN, OWN), (None, OWN, OWN), (False, {}, OLDER)],
)
def test_a_run_sweeps_its_own_generation_only_when_no_batch_can_come(alive, leftovers, due):
    assert sweeper_of(run_of(Execution(alive), leftovers)).last_sweeps() == due


def test_the_sweep_of_a_process_that_ends_is_for_its_own_generation_too():
    """It is the last one until the next start, also while Spark's thread may still be alive."""
    run, swept = run_of(Execution(True), OWN), []
    run._coordinator.settled = lambda seconds: True
    run._sweeper = sweeper_of(run)
    run._sweeper.sweep_all = lambda sweeps, within_s: swept.append(sweeps)
    run._forget_aborted = lambda: None
    run.settle(time.monotonic() + 5)
    assert swept == [OWN]


@pytest.mark.parametrize(
    ("times", "shortest"),
    [([60_000, 900_000], 60_000), ([900_000, None, 60_000], 60_000), ([None], None), ([], None)],
)
def test_the_first_of_the_sinks_transactions_to_time_out_limits_the_decision(times, shortest):
    sinks = {
        str(number): SimpleNamespace(
            capabilities=SimpleNamespace(transaction_timeout_ms=milliseconds)
        )
        for number, milliseconds in enumerate(times)
    }
    assert shortest_timeout_ms(sinks) == shortest


class CannotDelete:
    """A writer whose kept rows stay."""

    asked = 0

    def forget_aborted(self):
        self.asked += 1
        raise PermissionError("rows")


@pytest.mark.parametrize(("query", "asked"), [("query", 1), ("another", 0), (None, 0)])
def test_kept_rows_in_a_folder_that_another_query_has_by_now_are_that_ones(tmp_path, query, asked):
    """Generation and batch begin anew with it, and rows are kept by these."""
    run = run_of(Execution(False), {})
    run._checkpoint, run._writer = tmp_path, CannotDelete()
    if query is not None:
        (tmp_path / "metadata").write_text(json.dumps({"id": query}))
    run._forget_aborted()
    assert run._writer.asked == asked


def test_kept_rows_that_cannot_be_deleted_do_not_end_the_sweeps(monkeypatch, tmp_path):
    run = run_of(Execution(False), {})
    run._checkpoint, run._writer = tmp_path, CannotDelete()
    (tmp_path / "metadata").write_text('{"id":"query"}')
    sweeps = sweeper_of(run)
    swept = []
    monkeypatch.setattr(sweeps, "sweep_all", swept.append)
    monkeypatch.setattr(sweeper, "SWEEP_AGAIN_AFTER_S", (0,))
    sweeps.until_the_end()
    assert len(swept) == run._writer.asked == sweeper.SWEEPS_AFTER_THE_END + 1
    assert swept == [OLDER] * len(swept)


def test_a_run_that_has_ended_sweeps_its_own_generation_and_not_before(monkeypatch):
    run = run_of(Execution(False), OWN)
    alive = [True, True, False]
    run.is_active = lambda: alive.pop(0) if alive else False
    sweeps, swept = sweeper_of(run), []
    monkeypatch.setattr(sweeps, "sweep_all", swept.append)
    monkeypatch.setattr(sweeper, "SWEEP_AGAIN_AFTER_S", (0,))
    sweeps.until_the_end()
    assert swept[:3] == [OLDER, OLDER, OWN]
    assert set(map(str, swept[3:])) == {str(OWN)}


@pytest.mark.parametrize("lived", [0, 2, 50])
def test_the_end_of_a_run_is_followed_by_sweeps_soon_however_long_it_lived(monkeypatch, lived):
    """A task of it may open a transaction until Spark has killed it."""
    run = run_of(Execution(False), OWN)
    alive = [True] * lived
    run.is_active = lambda: alive.pop() if alive else False
    sweeps, swept, waits = sweeper_of(run), [], []

    class Changed:
        def wait(self, timeout):
            waits.append(timeout)

    sweeps._changed = Changed()
    monkeypatch.setattr(sweeps, "sweep_all", swept.append)
    sweeps.until_the_end()
    assert swept == [*[OLDER] * lived, *[OWN] * (sweeper.SWEEPS_AFTER_THE_END + 1)]
    assert waits[lived + 1 :] == [1, 2, 4, 8]


def test_a_batch_that_fails_is_followed_by_a_sweep_soon_and_by_no_cleaning(monkeypatch):
    """A sink may hold a merge, with its locks, until it is closed behind the last sweep."""
    run = run_of(Execution(False), OWN)
    alive = [True]
    run.is_active = lambda: bool(alive)
    sweeps, done = sweeper_of(run), []
    run._sweeper, sweeps._is_clean = sweeps, True
    monkeypatch.setattr(run, "_take", lambda *_: 1 / 0)

    class Changed:
        is_set = False

        def set(self):
            self.is_set = True

        def clear(self):
            self.is_set = False

        def wait(self, timeout):
            if len(done) == 4:
                with pytest.raises(ZeroDivisionError):
                    run.take(None, 1, None)
                alive.clear()
            done.append(timeout)
            return self.is_set

    sweeps._changed = Changed()
    monkeypatch.setattr(sweeps, "sweep_all", lambda _: None)
    monkeypatch.setattr(sweeps, "_clean", lambda: done.append("cleaned"))
    sweeps.until_the_end()
    # In the fifth turn it has failed.
    assert done == [1, 2, 4, 8, 15, 1, 1, 2, 4, 8]


@pytest.mark.parametrize(
    ("alive", "closed", "closes"),
    [(False, False, True), (None, False, True), (True, True, True), (True, False, False)],
)
def test_the_sinks_of_a_run_that_has_ended_are_closed_behind_its_last_sweep(
    monkeypatch, alive, closed, closes
):
    """Another run of the process may never come; and a sweep beside a close connects again."""
    run = run_of(Execution(alive), OWN)
    run.is_active = lambda: False
    sweeps, done = sweeper_of(run), []
    sinks = [
        SimpleNamespace(close=lambda: done.append("closed") or 1 / 0),
        SimpleNamespace(close=lambda: done.append("closed")),
    ]
    sweeps._sinks = dict(enumerate(sinks))
    monkeypatch.setattr(sweeps, "sweep_all", lambda _: done.append("swept"))
    monkeypatch.setattr(sweeper, "SWEEP_AGAIN_AFTER_S", (0,))
    if closed:
        sweeps.close()
    sweeps.until_the_end()
    swept = [] if closed else ["swept"] * (sweeper.SWEEPS_AFTER_THE_END + 1)
    assert done == swept + ["closed"] * 2 * closes


def test_a_sweeper_that_is_closed_ends_at_once(monkeypatch):
    waits = threading.Event()

    class Changed(threading.Event):
        def wait(self, timeout=None):
            waits.set()
            return super().wait(timeout)

    sweeps = sweeper_of(run_of(Execution(True), {}))
    sweeps._clean, sweeps._changed = (lambda: None), Changed()
    monkeypatch.setattr(sweeper, "SWEEP_AGAIN_AFTER_S", (600,))
    thread = threading.Thread(target=sweeps.until_the_end, daemon=True)
    thread.start()
    assert waits.wait(20)
    sweeps.close()
    thread.join(20)
    assert not thread.is_alive()


def test_a_start_tells_of_every_sink_that_is_to_be_mended():
    def fails(text):
        def check():
            raise SinkCheckError(text)

        return check

    checked = []
    with pytest.raises(SinkCheckError, match=r"^no right\. Sink c, too: no table\.$"):
        query_run._check_each(
            {"a": fails("no right."), "b": lambda: checked.append("b"), "c": fails("no table.")}
        )
    assert checked == ["b"]
    with pytest.raises(SinkCheckError, match=r"^no right\.$"):
        query_run._check_each({"a": fails("no right.")})


def test_what_is_to_be_mended_is_told_before_a_sink_that_gives_no_answer():
    """It may pass by itself; the other does not."""

    def wrong():
        raise SinkCheckError("no right.")

    def away():
        raise SinkUnavailableError("no answer.")

    with pytest.raises(SinkCheckError, match=r"^no right\. Sink b, too: no answer\.$"):
        query_run._check_each({"a": wrong, "b": away, "c": away})
    with pytest.raises(SinkUnavailableError, match=r"^no answer\.$"):
        query_run._check_each({"b": away, "a": wrong})


class Swept:
    """A sink whose sweeps are counted, and end when they may."""

    def __init__(self, may_end):
        self.may_end, self.begun = may_end, threading.Semaphore(0)
        self.count = 0

        self.closed, self.told = threading.Event(), []

    def recover(self, sweep):
        self.count += 1
        self.begun.release()
        assert self.may_end.wait(60)
        self.told.append("swept")
        return 0

    def close(self):
        self.told.append("closed")
        self.closed.set()


@pytest.fixture
def slow_and_quick():
    """Sinks of which one's sweep hangs until the test is over."""
    over, at_once = threading.Event(), threading.Event()
    at_once.set()
    yield {"slow": Swept(over), "quick": Swept(at_once)}
    over.set()


def test_neither_a_start_nor_an_abort_waits_for_a_sink_whose_sweep_hangs(
    monkeypatch, slow_and_quick, caplog
):
    """The first one's is under way when the second one is due."""
    sweeps = sweeper_of(run_of(Execution(True), {}))
    sweeps._sinks = slow_and_quick
    monkeypatch.setattr(sweeper, "SLOW_SWEEP_S", 0.05)
    slow = slow_and_quick["slow"]
    for _ in range(2):
        sweeps.patiently("slow", lambda: slow.recover(Sweep("query", "slow", 3)))
    assert slow.count == 1
    assert [r.getMessage() for r in caplog.records] == [
        "sweeping sink slow has not ended in 0 s, and is no longer waited for"
    ] * 2
    slow.may_end.set()
    until(lambda: slow.told, 20, "the sweep ends")
    again = threading.Event()
    sweeps.patiently("slow", again.set)
    # Behind the first one, and perhaps behind the second, which was no longer waited for either.
    assert again.wait(20)


def test_the_end_of_a_process_waits_for_an_abort_that_goes_on_and_repeats_what_failed(
    monkeypatch, slow_and_quick
):
    """Else the program ends in the middle of it, and what it holds stays until the next start."""
    run = run_of(Execution(True), {})
    run._coordinator.settled = lambda seconds: True
    run._forget_aborted = lambda: None
    run._sweeper = sweeps = sweeper_of(run)
    sweeps._sinks = slow_and_quick
    sweeps.repeat({name: Sweep("query", name, 3) for name in slow_and_quick}, 3)
    monkeypatch.setattr(sweeper, "SLOW_SWEEP_S", 0.05)
    slow, quick = slow_and_quick["slow"], slow_and_quick["quick"]

    def abort():
        slow.begun.release()
        assert slow.may_end.wait(60)
        slow.told.append("aborted")
        return True

    sweeps.patiently("slow", abort)
    sweeps.patiently("quick", lambda: True)
    ending = threading.Thread(target=run.settle, args=(time.monotonic() + 60,))
    ending.start()
    assert not slow.told
    slow.may_end.set()
    ending.join(20)
    assert slow.told == ["aborted", "swept"]
    assert quick.told == []
    sweeps.patiently("quick", lambda: False)
    for _ in range(2):
        run.settle(time.monotonic() + 60)
    assert (slow.told, quick.told) == (["aborted", "swept"], ["swept"])
    del quick.begun  # Its next sweep fails, in a turn of the background.
    sweeps.sweep_all({"quick": Sweep("query", "quick", 3)})
    quick.begun = threading.Semaphore(0)
    run.settle(time.monotonic() + 60)
    assert quick.told == ["swept"] * 2
    sweeps.patiently("quick", lambda: False)
    sweeps.sweep_all({"quick": Sweep("query", "quick", 2)})  # Older: it need not have that.
    run.settle(time.monotonic() + 60)
    assert quick.told == ["swept"] * 4


def test_the_end_of_a_process_repeats_an_abort_whose_turn_never_came(monkeypatch, slow_and_quick):
    """An older sweep that hung, and then succeeded, had nothing of what was to be aborted."""
    run = run_of(Execution(True), {})
    run._coordinator.settled = lambda seconds: True
    run._forget_aborted = lambda: None
    run._sweeper = sweeps = sweeper_of(run)
    slow = slow_and_quick["slow"]
    sweeps._sinks = {"slow": slow}
    sweeps.repeat({"slow": Sweep("query", "slow", 3)}, 3)
    monkeypatch.setattr(sweeper, "SLOW_SWEEP_S", 0.05)
    sweeps.sweep_all({"slow": Sweep("query", "slow", 3)})
    aborted = threading.Event()
    sweeps.patiently("slow", aborted.set)
    sweeps.repeat({"slow": Sweep("query", "slow", 3, own=True)}, 3)
    slow.may_end.set()
    until(lambda: slow.told, 20, "the older sweep ends")
    until(lambda: not sweeps._turns["slow"].locked(), 20, "its turn is over")
    assert not aborted.is_set()
    for _ in range(2):
        run.settle(time.monotonic() + 60)
    assert slow.told == ["swept"] * 2
    assert slow.count == 2


def test_a_sink_whose_sweep_hangs_holds_up_no_other_and_has_one_sweep_at_a_time(
    monkeypatch, slow_and_quick, caplog
):
    run = run_of(Execution(True), {})
    run.is_active = lambda: True
    sweeps = sweeper_of(run)
    sweeps._sinks = slow_and_quick
    sweeps._sweeps = {name: Sweep("query", name, 3) for name in slow_and_quick}
    sweeps._is_clean = True
    monkeypatch.setattr(sweeper, "SWEEP_AGAIN_AFTER_S", (0.01,))
    monkeypatch.setattr(sweeper, "SLOW_SWEEP_S", 0.05)
    thread = threading.Thread(target=sweeps.until_the_end, daemon=True)
    thread.start()
    for _ in range(3):
        assert slow_and_quick["quick"].begun.acquire(timeout=20)
    assert slow_and_quick["slow"].count == 1
    # Later turns neither wait for it nor say so again.
    assert caplog.text.count("has not ended") == 1
    slow_and_quick["slow"].may_end.set()
    for _ in range(3):
        assert slow_and_quick["slow"].begun.acquire(timeout=20)
    sweeps.close()
    thread.join(20)
    assert not thread.is_alive()


def test_a_process_that_ends_waits_for_a_hanging_sweep_no_longer_than_it_may(slow_and_quick):
    own = {name: Sweep("query", name, 3, own=True) for name in slow_and_quick}
    run = run_of(Execution(False), own)
    run._coordinator.settled = lambda seconds: True
    run._sweeper = sweeper_of(run)
    run._sweeper._sinks, run._forget_aborted = slow_and_quick, lambda: None
    settled = threading.Thread(target=run.settle, args=(time.monotonic() + 0.2,), daemon=True)
    settled.start()
    settled.join(9)
    assert not settled.is_alive()
    assert [sink.count for sink in slow_and_quick.values()] == [1, 1]


def test_a_sink_whose_sweep_hangs_is_closed_behind_its_sweep(monkeypatch, slow_and_quick):
    """And the others at once: what they hold is nobody's any more."""
    own = {name: Sweep("query", name, 3, own=True) for name in slow_and_quick}
    run = run_of(Execution(False), own)
    run.is_active = lambda: False
    sweeps = sweeper_of(run)
    sweeps._sinks = slow_and_quick
    monkeypatch.setattr(sweeper, "SWEEP_AGAIN_AFTER_S", (0,))
    monkeypatch.setattr(sweeper, "SLOW_SWEEP_S", 0.05)
    sweeps.until_the_end()
    slow, quick = slow_and_quick["slow"], slow_and_quick["quick"]
    assert quick.told[-1] == "closed"
    assert slow.told == []
    slow.may_end.set()
    assert slow.closed.wait(20)
    assert slow.told == ["swept", "closed"]


class Keys:
    """A frame of nothing, and sinks of which one has a key in one task."""

    def __init__(self):
        frame = SimpleNamespace(_jdf=None, isStreaming=False, schema="its schema")
        self.frame, self.other = frame, SimpleNamespace(**vars(frame))
        self.seen = []
        projections = SimpleNamespace(taken=lambda *seen: self.seen.append(seen))
        sink = lambda *keys: SimpleNamespace(capabilities=SimpleNamespace(one_task_per_key=keys))
        sinks = {"keyed": sink("k"), "plain": sink()}
        self.transaction = BatchTransaction(sinks, projections, lambda frame: ("pinned", frame))


def test_a_sink_with_a_key_is_written_once_in_a_batch_and_others_again():
    made = Keys()
    made.transaction.write("plain", made.frame)
    made.transaction.write("keyed", made.frame)
    made.transaction.write("plain", made.other)
    with pytest.raises(UnsupportedQueryError, match="keyed needs all rows") as raised:
        made.transaction.write("keyed", made.other)
    assert raised.value.sink == "keyed"
    assert made.transaction.failure is raised.value
    assert [name for name, _ in made.transaction.writes] == ["plain", "keyed", "plain"]
    assert made.seen == [(name, "its schema") for name in ("plain", "keyed", "plain")]


def test_two_threads_of_a_function_cannot_both_be_the_first_to_write_a_sink_with_a_key():
    made, both = Keys(), threading.Barrier(2)
    raised = []

    def meet(frame):
        # In one thread alone, for the other one waits for it.
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return frame

    def write(frame):
        try:
            made.transaction.write("keyed", frame)
        except UnsupportedQueryError as error:
            raised.append(error)

    made.transaction._pinned = meet
    threads = [threading.Thread(target=write, args=[each]) for each in (made.frame, made.other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(raised) == len(made.transaction.writes) == 1


def test_a_write_that_is_under_way_when_the_function_returns_is_registered():
    made, registered = Keys(), []

    def close():
        made.transaction.close()
        registered.append(len(made.transaction.writes))

    closing = threading.Thread(target=close)

    def return_meanwhile(frame):
        closing.start()
        closing.join(0.5)  # Only a close that doesn't wait ends within.
        return frame

    made.transaction._pinned = return_meanwhile
    made.transaction.write("plain", made.frame)
    closing.join(30)
    assert registered == [1]
    with pytest.raises(OptionError, match="after the function of the batch had returned"):
        made.transaction.write("plain", made.frame)


@pytest.mark.parametrize("name", ["absent", None, 7, ["plain"]])
def test_a_sink_that_is_not_there_is_named_with_those_that_are(name):
    made = Keys()
    with pytest.raises(OptionError, match="its sinks are: keyed, plain") as raised:
        made.transaction.write(name, made.frame)
    assert raised.value.sink is None


@pytest.mark.parametrize("frame", [None, "rows", 7])
def test_what_is_no_frame_is_refused(frame):
    with pytest.raises(OptionError, match=r"transaction\.write"):
        Keys().transaction.write("plain", frame)


def test_a_batch_that_is_under_way_keeps_its_own_generation_from_being_swept_when_the_jvm_is_gone(
    monkeypatch,
):
    run = run_of(Execution(None), OWN)
    seen = []
    monkeypatch.setattr(run, "_take", lambda *_: seen.append(run._may_take_another()))
    run.take(None, 0, None)
    assert seen == [True]
    assert not run._may_take_another()


class Batch:
    """A frame of a run, with what the driver asks it for."""

    _jdf = None

    def __init__(self, run_id):
        told = {"sql.streaming.queryId": "query", "spark.jobGroup.id": run_id}
        self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=told.get))


def fail(tmp_path, run_id, monkeypatch):
    """Let a query fail in its first batch; return its run, and references to run and batch."""
    function = ExactlyOnceFunction(lambda *_: None, str(tmp_path), {}, Settings())
    run = QueryRun(ClassicRun(None, "query", run_id, execution=Execution(False)), tmp_path, {})
    run._coordinator, run._sweeper = Coordinator({}), SimpleNamespace(soon=lambda: None)
    run._sweeper.until_the_end = lambda: None
    function._runs[run_id] = run

    def failing(*_):
        raise FencedError("a newer run")

    monkeypatch.setattr(run, "_take", failing)
    batch = Batch(run_id)
    with pytest.raises(FencedError):
        function(batch, 0)
    monkeypatch.undo()
    return run, weakref.ref(batch)


def test_the_error_of_a_run_that_has_ended_holds_no_batch(tmp_path, monkeypatch):
    """A process that starts a query that fails again and again would keep the frames of a hundred
    runs, and their threads."""
    run, batch = fail(tmp_path, "a run that fails", monkeypatch)
    assert batch() is not None
    run._housekeeping()
    gc.collect()
    assert batch() is None


def test_the_error_of_a_run_that_never_began_holds_no_batch_from_the_next_failure_on(
    tmp_path, monkeypatch
):
    _, batch = fail(tmp_path, "one run", monkeypatch)
    fail(tmp_path, "another run", monkeypatch)
    gc.collect()
    assert batch() is None


def test_a_function_of_a_query_lets_sigterm_stop_it_in_order(tmp_path):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        ExactlyOnceFunction(lambda *_: None, str(tmp_path), {}, Settings())
        assert signal.getsignal(signal.SIGTERM) is stopping._end_in_order
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_classic_sessions_function_is_not_sent_to_a_server(tmp_path):
    function = ExactlyOnceFunction(lambda *_: None, str(tmp_path), {}, Settings())
    with pytest.raises(UnsupportedQueryError, match="set SPARK_REMOTE, and decorate the function"):
        pickle.dumps(function)


def test_a_frame_that_spark_cannot_resolve_poisons_the_batch_though_the_function_catches_it():
    """In Spark Connect a write is the first to ask the server about its frame."""

    def unresolved(_):
        raise LookupError("TABLE_OR_VIEW_NOT_FOUND")

    frame = SimpleNamespace(_jdf=None, isStreaming=False, schema=None)
    projections = SimpleNamespace(taken=lambda *_: None)
    sink = SimpleNamespace(capabilities=SimpleNamespace(one_task_per_key=()))
    transaction = BatchTransaction({"out": sink}, projections, unresolved)
    with pytest.raises(LookupError):
        transaction.write("out", frame)
    assert isinstance(transaction.failure, LookupError)
    assert transaction.writes == []


@pytest.mark.parametrize(
    ("committed", "planned", "error", "words"),
    [
        ([0, 1, 2, 3], [3], FencedError, "asks for batch 2, but its own commit log has batch 3 by"),
        # Purged between two looks.
        ([0, 1, 2, 3], [5, 6], FencedError, "asks for batch 2, but its own commit log has batch 3"),
        ([0, 1, 2, 3], [1], CheckpointMismatchError, "offsets/2 can't be read"),
        ([0, 1], [1], CheckpointMismatchError, "offsets/2 can't be read"),
        ([], [], CheckpointMismatchError, "offsets/2 can't be read"),
    ],
)
def test_a_plan_that_is_gone_is_another_runs_doing_where_that_has_gone_further(
    tmp_path, committed, planned, error, words
):
    """Spark deletes old plans: a run that was overtaken finds its own one gone."""
    for folder, batches in (("commits", committed), ("offsets", planned)):
        (tmp_path / folder).mkdir()
        for batch in batches:
            (tmp_path / folder / str(batch)).write_text("v1\n{}")
    run = QueryRun(ClassicRun(None, "query", "run", execution=Execution(None)), tmp_path, {})
    with pytest.raises(error, match=words):
        run._plan(2)
