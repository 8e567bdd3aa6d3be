"""What a sink's ``confirm`` answers is looked at before the batch is decided; what is refused is
aborted as it was prepared."""

import datetime as dt

import pytest

from onceforall.driver.batch_writer import SparkBatchWriter
from onceforall.errors import AttemptFailedError
from onceforall.protocol.decisions import RunWrites, TakeDigests, WriteKept
from onceforall.sink import Capabilities
from onceforall.task.write_task import WriteTask


class Sink:
    lock_order = ()
    capabilities = Capabilities(two_phase=True, empty_batches=True)

    def __init__(self, confirm=lambda committables: committables, committable=None):
        self.confirm = confirm
        self.committable = committable
        self.discarded = []

    def secrets(self):
        return {}

    def begin_transaction(self, attempt):
        return attempt.name

    def pre_commit(self, transaction):
        return self.committable

    def discard(self, transaction):
        self.discarded.append(transaction)


class Jobs:
    def unused_task_attempt_id(self):
        return 9


def writer(sink):
    made = SparkBatchWriter(None, 3, lambda *_: None, {"out": sink}, "query", False, None)
    made.jobs = Jobs()
    made._names = {0: "out"}
    made._results = [
        {"write": 0, "partition": n, "committable": {"name": f"t{n}", "task": [0, n]}}
        for n in range(3)
    ]
    return made


def confirmed(sink):
    written = writer(sink)
    before = {name: [dict(c) for c in cs] for name, cs in written.prepared_so_far().items()}
    try:
        return written._sinks.confirmed(written.prepared_so_far())
    finally:
        assert {name: list(cs) for name, cs in written.prepared_so_far().items()} == before


def emptied(committables):
    for committable in committables:
        committable.clear()
        committable["name"] = "other"
    return committables


@pytest.mark.parametrize(
    "confirm",
    [
        lambda cs: [{**c, "checked": True} for c in cs][:1],
        lambda cs: list(reversed(cs)),
        lambda cs: [{"name": c["name"]} for c in cs],
        lambda cs: [{**c, "at": dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)} for c in cs],
        lambda cs: [{**c, "identity": {"id": float("nan")}} for c in cs],
        lambda cs: None,
        emptied,
    ],
    ids=["part", "order", "keys", "date", "identity", "nothing", "in place"],
)
def test_an_answer_of_confirm_that_would_lose_rows_aborts_the_attempt(confirm):
    with pytest.raises(
        AttemptFailedError, match=r"^Sink out: Sink\.confirm .*Mend the sink's confirm"
    ) as refused:
        confirmed(Sink(confirm))
    assert refused.value.sink == "out"


def test_what_confirm_adds_is_decided_as_the_log_gives_it_back():
    found = confirmed(Sink(lambda cs: [{**c, "proof": (1, 2)} for c in cs]))
    assert found["out"][1] == {"name": "t1", "task": [0, 1], "proof": [1, 2]}


@pytest.mark.parametrize(
    ("after", "places", "first", "others"),
    [
        ({}, {}, {}, {}),
        ({"out": 2}, {}, {"after": 2}, {"after": 2}),
        ({"out": 2}, {"out": {"at": 1}}, {"after": 2, "after_place": {"at": 1}}, {"after": 2}),
        ({"other": 2}, {"other": {"at": 1}}, {}, {}),
    ],
)
def test_confirm_is_given_what_the_log_knows_of_the_batch_before(after, places, first, others):
    given = []
    written = writer(Sink(lambda cs: given.extend(map(dict, cs)) or cs))
    written._attempts_lost = lambda: False
    decision = RunWrites(3, 1, {}, after=after, places=places)
    prepared = written._confirmed(0.0, {}, decision)
    expected = [{"name": f"t{n}", "task": [0, n]} for n in range(3)]
    assert given == [{**expected[0], **first}, *({**c, **others} for c in expected[1:])]
    assert prepared.committables == {"out": tuple(given)}


class Unheard(BaseException):
    """As the time-out of some libraries: no Exception, and nothing that ends a process."""


@pytest.mark.parametrize("batch_is", ["new", "kept", "looked at"])
def test_what_is_no_exception_fails_the_attempt_wherever_a_sink_raises_it(batch_is):
    """Else nobody would abort what the others have prepared until the next start."""

    def timed_out(*_):
        raise Unheard("no answer")

    written = writer(Sink(timed_out))
    written._call_and_write = lambda _: None
    written._write_kept = lambda _: None
    if batch_is == "looked at":
        written._digests = timed_out
        attempt, decision = written.digest, TakeDigests(3, 1, {})
    elif batch_is == "kept":
        attempt, decision = written.write_kept, WriteKept(3, 1, 0, {})
    else:
        attempt, decision = written.write, RunWrites(3, 1, {})
        # What it has prepared is forgotten at its beginning.
        written._call_and_write = lambda _: written._results.extend(writer(Sink())._results)
        written._digests = dict
    with pytest.raises(RuntimeError, match="Unheard: no answer was raised in an attempt") as raised:
        attempt(decision)
    assert type(raised.value.__cause__) is Unheard


@pytest.mark.parametrize(
    "committable", [{"name": "t", "rows": 0}, {"name": "t", "score": float("nan")}, "t"]
)
def test_a_transaction_without_rows_whose_committable_is_refused_is_discarded(committable):
    sink = Sink(committable=committable)
    written = writer(sink)
    task = WriteTask((), "query", 1, 3, 5, digest_only=False)
    with pytest.raises(AttemptFailedError, match=r"^Sink out: Sink\.pre_commit "):
        written._empty_transaction(task, 0)
    assert len(sink.discarded) == 1
    assert written._empty == {}


def test_a_transaction_without_rows_may_need_no_commit():
    written = writer(Sink())
    task = WriteTask((), "query", 1, 3, 5, digest_only=False)
    written._empty_transaction(task, 0)
    assert written._empty == {}


@pytest.mark.parametrize(("redo", "opened"), [(None, True), ({(0, 0)}, True), ({(0, 1)}, False)])
def test_a_transaction_without_rows_is_opened_where_it_is_wanted(monkeypatch, redo, opened):
    """Also again, if it was lost: nobody else would open it, and each start would fail."""
    written, made = writer(Sink()), []
    monkeypatch.setattr(written, "_results", [])
    monkeypatch.setattr(written, "_empty_transaction", lambda _, write: made.append(write))
    task = WriteTask((), "query", 1, 3, 5, digest_only=False, redo=redo and frozenset(redo))
    written._write_empty(task)
    assert made == [0] * opened
