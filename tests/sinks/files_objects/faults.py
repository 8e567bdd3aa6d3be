"""Answers that are lost, requests that are refused or made twice, and answers that lie, between the
file sink and a store of objects: nothing is lost, nothing is there twice.

These are tests; each store's folder has a module that imports them, with its marks. Its conftest
says by ``requests`` which requests are which.
"""

from __future__ import annotations

import os

import pytest

from onceforall import read_files
from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.sink import Sweep
from onceforall.sinks.files.places.objects import staging
from sinks.files.building import QUERY, attempt, numbers, permit, prepared
from sinks.files_objects.sink import files_of

MANY = 1000
ATTEMPTS = 5
"""How often a client makes a request at the most."""


@pytest.fixture
def far(place, proxy):
    """The place, by way of the proxy."""
    place.checked(partition_by=["p"])
    return place.through(proxy.endpoint)


def written(far):
    sink = far.sink(partition_by=["p"])
    return sink, sink.confirm([prepared(sink, numbers(4, p=["a", "b", "a", "b"]))])


def assert_whole(place):
    assert place.numbers() == [0, 1, 2, 3]
    assert place.left() == []


def planned(proxy, does, which):
    return proxy.answer(does, **which) if isinstance(does, int) else getattr(proxy, does)(**which)


FAULTS = ["lose", "twice", 503] + [pytest.param(e, marks=pytest.mark.long) for e in ("cut", 500)]


@pytest.mark.parametrize("does", FAULTS)
@pytest.mark.sample(4)
def test_a_batch_goes_on_over_a_fault_and_leaves_nothing(place, proxy, far, does, which):
    fault = planned(proxy, does, which)
    sink, kept = written(far)
    report = sink.commit(permit(), kept)
    assert len(report.completed) == 1
    assert len(fault.requests) == 1
    if does == "twice" and which.get("kind") == "begin upload":
        # Of the first one's answer nobody learns. It has no parts.
        assert place.numbers() == [0, 1, 2, 3]
        assert len(place.left()) == 1
        return
    assert_whole(place)


@pytest.mark.parametrize(
    "does", ["lose", "cut", *(pytest.param(e, marks=pytest.mark.long) for e in (500, 503))]
)
def test_a_commit_without_an_answer_is_asked_again_and_is_whole_then(
    place, proxy, far, does, requests
):
    sink, kept = written(far)
    fault = planned(proxy, does, {**requests["complete"], "count": MANY})
    with pytest.raises(SinkUnavailableError, match="Cannot commit batch 0"):
        sink.commit(permit(), kept)
    assert place.files().rows == 0
    fault.end()
    assert len(sink.commit(permit(), kept).completed) == 1
    assert_whole(place)


def test_parts_that_vanish_while_they_are_completed_are_asked_for_again_and_lost_then(
    place, proxy, far, requests
):
    sink, kept = written(far)
    proxy.answer(404, **requests["complete"], count=2)
    with pytest.raises(SinkUnavailableError, match="looked for once more"):
        sink.commit(permit(), kept)
    assert place.lose(kept[0]) == 2
    assert len(sink.commit(permit(), kept).lost) == 1
    assert place.data() == []


def test_the_manifest_of_another_writer_is_not_overwritten(place, proxy, far, requests):
    late = proxy.late(**requests["manifest"], count=MANY)
    proxy.cut(**requests["behind the manifest"], count=MANY)
    sink, kept = written(far)
    with pytest.raises(SinkUnavailableError):
        sink.commit(permit(), kept)
    assert len(place.sink().commit(permit(), kept).completed) == 1
    before = place.keys()
    assert {answer.status for answer in late.release()} == {place.taken}
    assert place.keys() == before
    assert_whole(place)


def test_a_commit_that_comes_late_changes_nothing_behind_another_one(place, proxy, far, requests):
    sink, kept = written(far)
    late = proxy.late(**requests["complete"], count=MANY)
    with pytest.raises(SinkUnavailableError):
        sink.commit(permit(), kept)
    assert len(place.sink().commit(permit(), kept).completed) == 1
    before = place.keys()
    assert len(late.release()) >= 2
    assert place.keys() == before
    assert_whole(place)


def test_a_commit_that_comes_late_makes_no_object_behind_an_abort(place, proxy, far, requests):
    sink, kept = written(far)
    late = proxy.late(**requests["complete"], count=MANY)
    with pytest.raises(SinkUnavailableError):
        sink.commit(permit(), kept)
    place.sink().abort(kept)
    assert all(answer.status >= 400 for answer in late.release())
    assert place.data() == []
    assert place.left() == []


@pytest.mark.long
def test_a_task_that_is_refused_fails_its_attempt_and_leaves_nothing(place, proxy, far, requests):
    sink = far.sink(partition_by=["p"])
    fault = proxy.answer(503, **requests["part"], count=MANY)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(2, p=["a", "b"]))
    with pytest.raises(AttemptFailedError, match=r"cannot send a (part|block).*Wait"):
        sink.pre_commit(transaction)
    fault.end()
    sink.discard(transaction)
    assert place.left() == []


@pytest.mark.parametrize("form", ["parquet", "csv", "orc", "json"])
def test_a_part_that_fails_while_rows_are_written_fails_the_attempt_with_the_stores_word(
    place, proxy, far, requests, monkeypatch, form
):
    monkeypatch.setattr(staging, "PART_BYTES", 10_000)
    sink = far.sink(format=form, max_file_bytes=20_000)
    fault = proxy.answer(403, **requests["part"], nth=2, count=MANY)
    transaction = sink.begin_transaction(attempt())
    rows = numbers(2000, t=[os.urandom(20).hex() for _ in range(2000)])
    words = "s3:PutObject|Contributor|Storage Object Admin"
    refused = pytest.raises(AttemptFailedError, match=rf"cannot send a (part|block).*({words})")
    with refused:  # ORC keeps a stripe back
        sink.invoke(transaction, rows)
        sink.pre_commit(transaction)
    fault.end()
    sink.discard(transaction)
    assert place.left() == []


def test_a_record_that_somebody_changed_lets_a_task_give_up_without_an_error(place, far):
    sink = far.sink()
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(1))
    transaction.staging.open("part-x", "")
    (record,) = place.keys("_onceforall/uploads/")
    place.put(record, b"?")
    sink.discard(transaction)


@pytest.mark.parametrize("does", ["cut", pytest.param("lose", marks=pytest.mark.long)])
def test_a_sweep_without_an_answer_is_made_later(place, proxy, far, does, in_a_sweep):
    sink = far.sink()
    prepared(sink, numbers(1))
    fault = planned(proxy, does, {**in_a_sweep, "count": MANY})
    with pytest.raises(SinkUnavailableError):
        sink.recover(Sweep(QUERY, "out", 1))
    fault.end()
    assert sink.recover(Sweep(QUERY, "out", 1)) == 1
    assert place.left() == []


def test_a_404_to_a_deletion_that_is_not_the_stores_own_leaves_no_lost_row_in_the_open(
    place, proxy, far
):
    sink, (kept,) = written(far)
    store = place.store()
    (first, _), (upload, parts) = files_of(kept)[0], kept["uploads"][0]
    store.complete(store.root / first, upload, parts)
    assert place.lose(kept) == 1
    (lost,) = sink.commit(permit(), [kept]).lost
    gateway = proxy.bare_404("DELETE", count=MANY)
    with pytest.raises(SinkUnavailableError):
        sink.retire([lost.committable])
    gateway.end()
    sink.retire([lost.committable])
    assert place.data() == []
    assert place.left() == []


def test_files_that_a_gateway_doesnt_find_are_not_passed_over(place, proxy, far):
    sink, kept = written(far)
    sink.commit(permit(), kept)
    proxy.bare_404(count=MANY, key="part-", kind="head")
    with pytest.raises(OSError, match="not found|404"):
        read_files(far.url, storage=far.storage, skip_deleted=True)


GATEWAYS = [
    {"kind": "list parts"},
    {"kind": "list"},
    {"kind": "head"},
    {"kind": "complete upload"},
    {"kind": "compose"},
    {"key": "part-"},
    {"key": ""},
]


@pytest.mark.parametrize("which", GATEWAYS, ids=str)
@pytest.mark.sample(3)
def test_a_404_that_is_not_the_stores_own_loses_nothing(far, proxy, place, which):
    sink, kept = written(far)
    gateway = proxy.bare_404(count=100_000, **which)
    for _ in range(3):
        # Nothing may be called lost: the parts stand.
        try:
            report = sink.commit(permit(), kept)
        except SinkUnavailableError:
            continue
        assert report.lost == report.in_doubt == ()
    gateway.end()
    assert len(sink.commit(permit(), kept).completed) == len(kept)
    assert_whole(place)


@pytest.mark.parametrize(
    "which", [{"key": "part-"}, {"key": ""}, {"key": "part-", "kind": "head"}], ids=str
)
def test_a_404_that_is_not_the_stores_own_undoes_no_commit(far, proxy, place, which):
    sink, kept = written(far)
    sink.commit(permit(), kept)
    gateway = proxy.bare_404(count=100_000, **which)
    with pytest.raises(SinkUnavailableError):
        far.sink(partition_by=["p"]).commit(permit(), kept)
    gateway.end()
    assert_whole(place)
