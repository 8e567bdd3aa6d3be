"""Answers that are lost, requests that are refused or made twice, and answers that lie, between the
file sink and Azure: nothing is lost, nothing is there twice."""

from __future__ import annotations

import os

import pytest

from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.sink import Sweep
from onceforall.sinks.files.places.objects import staging
from sinks.files.building import QUERY, attempt, numbers, permit, prepared

pytestmark = [pytest.mark.azure, pytest.mark.long]

ATTEMPTS = 5
"""How often the client makes a request."""


@pytest.fixture
def far(place, proxy):
    """The folder, by way of the proxy."""
    place.checked(partition_by=["p"])
    return place.through(proxy.endpoint)


def written(far):
    sink = far.sink(partition_by=["p"])
    return sink, sink.confirm([prepared(sink, numbers(4, p=["a", "b", "a", "b"]))])


def assert_whole(place):
    assert place.numbers() == [0, 1, 2, 3]
    assert place.left() == []


COMPLETE = {"method": "PUT", "kind": "complete upload"}
MANIFEST = {"method": "PUT", "key": r"/0\.json$", "kind": "create"}
BLOCK = {"method": "PUT", "kind": "part"}
BLOCKS = {"method": "GET", "kind": "list parts"}
RECORD = {"method": "PUT", "key": "/uploads/", "kind": "put"}
LOOK = {"method": "HEAD"}
READ = {"method": "GET", "kind": "get"}
DELETE = {"method": "DELETE"}
LIST = {"method": "GET", "kind": "list"}
EVERY = (COMPLETE, MANIFEST, BLOCK, BLOCKS, RECORD, LOOK, READ, DELETE, LIST)


@pytest.mark.parametrize(
    "which", EVERY, ids=lambda which: which.get("key", "") + which["method"] + which.get("kind", "")
)
@pytest.mark.parametrize("does", ["lose", "cut", "twice", 500, 503])
def test_a_batch_goes_on_over_a_fault_and_leaves_nothing(place, proxy, far, does, which):
    fault = proxy.answer(does, **which) if isinstance(does, int) else getattr(proxy, does)(**which)
    sink, kept = written(far)
    report = sink.commit(permit(), kept)
    assert len(report.completed) == 1
    assert len(fault.requests) == 1
    assert_whole(place)


@pytest.mark.parametrize("does", ["lose", "cut", 500, 503])
def test_a_commit_without_an_answer_is_asked_again_and_is_whole_then(place, proxy, far, does):
    sink, kept = written(far)
    which = {**COMPLETE, "count": 2 * ATTEMPTS}
    fault = proxy.answer(does, **which) if isinstance(does, int) else getattr(proxy, does)(**which)
    with pytest.raises(SinkUnavailableError, match="Cannot commit batch 0"):
        sink.commit(permit(), kept)
    assert place.files().rows == 0
    fault.end()
    assert len(sink.commit(permit(), kept).completed) == 1
    assert_whole(place)


def test_blocks_that_vanish_while_they_are_completed_are_asked_for_again_and_lost_then(
    place, proxy, far
):
    sink, kept = written(far)
    proxy.answer(404, **COMPLETE, count=2)
    with pytest.raises(SinkUnavailableError, match="looked for once more"):
        sink.commit(permit(), kept)
    place.lose(kept[0])
    assert len(sink.commit(permit(), kept).lost) == 1
    assert place.data() == []


def test_the_manifest_of_another_writer_is_not_overwritten(place, proxy, far):
    late = proxy.late(**MANIFEST, count=ATTEMPTS)
    proxy.cut("GET", r"/0\.json$", nth=3, count=1000)  # behind the look whether it is there
    sink, kept = written(far)
    with pytest.raises(SinkUnavailableError):
        sink.commit(permit(), kept)
    assert len(place.sink().commit(permit(), kept).completed) == 1
    before = place.keys()
    assert {answer.status for answer in late.release()} == {409}
    assert place.keys() == before
    assert_whole(place)


def test_a_commit_that_comes_late_changes_nothing_behind_an_abort_and_nothing_behind_a_commit(
    place, proxy, far
):
    sink, kept = written(far)
    late = proxy.late(**COMPLETE, count=2 * ATTEMPTS)
    with pytest.raises(SinkUnavailableError):
        sink.commit(permit(), kept)
    assert len(place.sink().commit(permit(), kept).completed) == 1
    before = place.keys()
    assert {answer.status for answer in late.release()} == {409}
    assert place.keys() == before
    assert_whole(place)


def test_a_commit_of_a_batch_that_was_aborted_meanwhile_makes_no_blob(place, proxy, far):
    sink, kept = written(far)
    late = proxy.late(**COMPLETE, count=2 * ATTEMPTS)
    with pytest.raises(SinkUnavailableError):
        sink.commit(permit(), kept)
    place.sink().abort(kept)
    assert {answer.status for answer in late.release()} == {400}
    assert place.data() == []
    assert place.left() == []


def test_a_block_that_arrives_late_changes_nothing_of_the_blob(place, proxy, far):
    late = proxy.late(**BLOCK)
    sink, kept = written(far)
    assert len(sink.commit(permit(), kept).completed) == 1
    late.release()
    assert place.numbers() == [0, 1, 2, 3]
    assert place.sink().recover(Sweep(QUERY, "out", 1)) == 0
    assert_whole(place)


def test_a_block_that_was_changed_on_its_way_is_refused(place, far, monkeypatch):
    """By its MD5, which Azure compares."""
    from azure.storage.blob import BlobClient

    stage = BlobClient.stage_block
    sent = []

    def tampered(blob, block_id, data, length=None, **options):
        sent.append(options)
        return stage(blob, block_id, data, length, **options)

    monkeypatch.setattr(BlobClient, "stage_block", tampered)
    written(far)
    assert all(options["validate_content"] for options in sent)


def test_a_task_that_is_refused_fails_its_attempt_and_leaves_nothing(place, proxy, far):
    sink = far.sink(partition_by=["p"])
    fault = proxy.answer(503, "PUT", kind="part", count=1000)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(2, p=["a", "b"]))
    with pytest.raises(AttemptFailedError, match=r"cannot send a block.*Wait"):
        sink.pre_commit(transaction)
    fault.end()
    sink.discard(transaction)
    assert place.left() == []


@pytest.mark.parametrize("form", ["parquet", "csv", "orc", "json"])
def test_a_block_that_fails_while_rows_are_written_fails_the_attempt_with_azures_word(
    place, proxy, far, monkeypatch, form
):
    monkeypatch.setattr(staging, "PART_BYTES", 10_000)
    sink = far.sink(format=form, max_file_bytes=20_000)
    fault = proxy.answer(403, "PUT", kind="part", nth=2, count=1000)
    transaction = sink.begin_transaction(attempt())
    rows = numbers(2000, t=[os.urandom(20).hex() for _ in range(2000)])
    refused = pytest.raises(AttemptFailedError, match=r"cannot send a block.*Contributor")
    with refused:  # ORC keeps a stripe back
        sink.invoke(transaction, rows)
        sink.pre_commit(transaction)
    fault.end()
    sink.discard(transaction)
    assert place.left() == []


@pytest.mark.parametrize("fault", [COMPLETE, DELETE, LOOK, BLOCKS], ids=str)
@pytest.mark.parametrize("does", ["cut", "lose"])
def test_a_sweep_without_an_answer_is_made_later(place, proxy, far, does, fault):
    sink = far.sink()
    prepared(sink, numbers(1))
    planned = getattr(proxy, does)(**fault, count=1000)
    with pytest.raises(SinkUnavailableError):
        sink.recover(Sweep(QUERY, "out", 1))
    planned.end()
    assert sink.recover(Sweep(QUERY, "out", 1)) == 1
    assert place.left() == []


@pytest.mark.parametrize(
    "which",
    [
        {"kind": "list parts"},
        {"kind": "head"},
        {"kind": "complete upload"},
        {"key": "part-"},
        {"key": ""},
    ],
    ids=str,
)
def test_a_404_that_is_not_azures_own_loses_nothing(far, proxy, place, which):
    sink, kept = written(far)
    gateway = proxy.bare_404(count=100_000, **which)
    for _ in range(3):
        # Nothing may be called lost: the blocks stand.
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
def test_a_404_that_is_not_azures_own_undoes_no_commit(far, proxy, place, which):
    sink, kept = written(far)
    sink.commit(permit(), kept)
    gateway = proxy.bare_404(count=100_000, **which)
    with pytest.raises(SinkUnavailableError):
        far.sink(partition_by=["p"]).commit(permit(), kept)
    gateway.end()
    assert_whole(place)
