"""Answers that are lost, requests that are refused or made twice, and answers that lie, between the
file sink and S3: nothing is lost, nothing is there twice."""

from __future__ import annotations

import os

import pytest

from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.sink import Sweep
from onceforall.sinks.files.places.objects import staging
from sinks.files.building import QUERY, attempt, numbers, permit, prepared

pytestmark = pytest.mark.s3

ERROR_IN_200 = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b"<Error><Code>InternalError</Code><Message>by the test</Message></Error>"
)
ATTEMPTS = 5
"""How often boto3 makes a request."""


@pytest.fixture
def far(place, proxy):
    """The prefix, by way of the proxy."""
    place.checked(partition_by=["p"])
    return place.through(proxy.endpoint)


def written(far):
    sink = far.sink(partition_by=["p"])
    return sink, sink.confirm([prepared(sink, numbers(4, p=["a", "b", "a", "b"]))])


def assert_whole(place):
    assert place.numbers() == [0, 1, 2, 3]
    assert place.left() == []


COMPLETE = {"method": "POST", "kind": "complete upload"}
MANIFEST = {"method": "PUT", "key": r"/0\.json$", "kind": "create"}
BEGIN = {"method": "POST", "kind": "begin upload"}


@pytest.mark.parametrize(
    ("does", "which"),
    [
        pytest.param(lambda proxy, which: proxy.lose(**which), which, id=f"lose-{which['kind']}")
        for which in (COMPLETE, MANIFEST, BEGIN)
    ]
    + [
        pytest.param(lambda proxy, which: proxy.twice(**which), which, id=f"twice-{which['kind']}")
        for which in (COMPLETE, MANIFEST, {"method": "PUT", "kind": "part"})
    ]
    + [
        pytest.param(
            lambda proxy, which: proxy.answer(503, **which), which, id=f"503-{which['kind']}"
        )
        for which in (COMPLETE, MANIFEST, BEGIN, {"method": "PUT", "kind": "part"})
    ]
    + [
        pytest.param(
            lambda proxy, which: proxy.say(ERROR_IN_200, **which), COMPLETE, id="error-in-a-200"
        ),
        pytest.param(lambda proxy, which: proxy.answer(409, **which), MANIFEST, id="409-manifest"),
        pytest.param(lambda proxy, which: proxy.cut(**which), MANIFEST, id="cut-manifest"),
    ],
)
def test_a_batch_goes_on_over_a_fault_and_leaves_nothing(place, proxy, far, does, which):
    fault = does(proxy, which)
    sink, kept = written(far)
    report = sink.commit(permit(), kept)
    assert len(report.completed) == 1
    assert len(fault.requests) == 1
    assert_whole(place)


@pytest.mark.parametrize(
    "does", ["lose", "cut", pytest.param(503, marks=pytest.mark.long), "error in a 200"]
)
def test_a_commit_without_an_answer_is_asked_again_and_is_whole_then(place, proxy, far, does):
    sink, kept = written(far)
    which = {**COMPLETE, "count": 2 * ATTEMPTS}
    if does == "error in a 200":
        fault = proxy.say(ERROR_IN_200, **which)
    elif does == 503:
        fault = proxy.answer(503, **which)
    else:
        fault = getattr(proxy, does)(**which)
    with pytest.raises(SinkUnavailableError, match="Cannot commit batch 0"):
        sink.commit(permit(), kept)
    assert place.files().rows == 0
    fault.end()
    assert len(sink.commit(permit(), kept).completed) == 1
    assert_whole(place)


def test_completing_again_is_a_success_where_the_server_forgets_what_it_completed(
    place, proxy, far
):
    """As MinIO does; moto remembers."""
    sink, kept = written(far)
    for key in ("p=a/", "p=b/"):
        proxy.lose(**COMPLETE, key=key)
    gone = proxy.answer(404, **COMPLETE, count=2)
    assert len(sink.commit(permit(), kept).completed) == 1
    assert len(gone.requests) == 2
    assert_whole(place)


def test_an_upload_that_vanishes_while_it_is_completed_is_asked_for_again_and_lost_then(
    place, proxy, far
):
    sink, kept = written(far)
    proxy.answer(404, **COMPLETE, count=2)
    with pytest.raises(SinkUnavailableError, match="looked for once more"):
        sink.commit(permit(), kept)
    place.abort(kept[0])
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
    assert {answer.status for answer in late.release()} == {412}
    assert place.keys() == before
    assert_whole(place)


@pytest.mark.long
def test_a_task_that_is_refused_fails_its_attempt_and_leaves_nothing(place, proxy, far):
    sink = far.sink(partition_by=["p"])
    fault = proxy.answer(503, "PUT", kind="part", count=1000)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(2, p=["a", "b"]))
    with pytest.raises(AttemptFailedError, match=r"cannot send a part.*Wait"):
        sink.pre_commit(transaction)
    fault.end()
    sink.discard(transaction)
    assert place.left() == []


@pytest.mark.parametrize("form", ["parquet", "csv", "orc", "json"])
def test_a_part_that_fails_while_rows_are_written_fails_the_attempt_with_the_stores_word(
    place, proxy, far, monkeypatch, form
):
    monkeypatch.setattr(staging, "PART_BYTES", 10_000)
    sink = far.sink(format=form, max_file_bytes=20_000)
    fault = proxy.answer(403, "PUT", kind="part", count=1000)
    transaction = sink.begin_transaction(attempt())
    rows = numbers(2000, t=[os.urandom(20).hex() for _ in range(2000)])
    refused = pytest.raises(AttemptFailedError, match=r"cannot send a part.*s3:PutObject")
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
    with place.client() as client:
        client.put_object(Bucket=place.bucket, Key=f"{place.key}/{record}", Body=b"?")
    sink.discard(transaction)


def test_a_sweep_without_an_answer_is_made_later(place, proxy, far):
    sink = far.sink()
    prepared(sink, numbers(1))
    fault = proxy.cut("DELETE", kind="abort upload", count=1000)
    with pytest.raises(SinkUnavailableError):
        sink.recover(Sweep(QUERY, "out", 1))
    fault.end()
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
def test_a_404_that_is_not_the_stores_own_loses_nothing(far, proxy, place, which):
    sink, kept = written(far)
    gateway = proxy.bare_404(count=100_000, **which)
    for _ in range(3):
        # Nothing may be called lost: the uploads stand.
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
