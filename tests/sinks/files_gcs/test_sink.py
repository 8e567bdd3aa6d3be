"""What the file sink does in a bucket of Google's: data that nobody sees before the commit, parts
that were lost, sweeps, late tasks, and what a start refuses.

On fake-gcs-server, which lets a compose overwrite: that one doesn't is not shown here.
"""

from __future__ import annotations

import pytest

from onceforall.errors import (
    AttemptFailedError,
    ConfigurationError,
    RefusedRecordError,
    SinkCheckError,
)
from onceforall.sink import Sweep
from onceforall.sinks.files.driver import manifest_writing
from onceforall.sinks.files.places.gcs import client
from onceforall.sinks.files.places.gcs.client import GcsBucket, GcsError
from onceforall.sinks.files.places.objects import staging
from sinks.files.building import QUERY, attempt, commit, numbers, permit, prepared

pytestmark = [pytest.mark.gcs, pytest.mark.long]


class KilledError(BaseException):
    """The process ends here."""


def test_rows_are_seen_behind_the_commit_only_and_nothing_is_left(place):
    sink = place.checked(partition_by=["p"])
    assert place.keys("_onceforall/probes/") == []
    assert place.parts() == []
    kept = sink.confirm([prepared(sink, numbers(4, p=["a", "b", "a/..", None]))])
    assert place.data() == []
    assert place.files().rows == 0
    assert len(place.parts()) == 8, "a part and what says that it was begun, of each file"
    report = sink.commit(permit(), kept)
    assert len(report.completed) == 1
    assert place.numbers() == [0, 1, 2, 3]
    assert place.left() == []


def test_what_was_committed_is_a_success_when_it_is_committed_again_also_behind_later_batches(
    place,
):
    sink = place.checked()
    first = commit(sink, 0, numbers(2))
    commit(sink, 1, numbers(2, 2))
    before = place.keys()
    assert place.checked().commit(permit(0), first).completed == tuple(first)
    assert place.keys() == before
    assert place.numbers() == [0, 1, 2, 3]


@pytest.mark.parametrize("left", ["all parts", "begun and a part", "a part"])
def test_a_driver_that_was_killed_behind_the_compose_is_followed_by_one_that_clears_up(
    place, monkeypatch, left
):
    monkeypatch.setattr(staging, "PART_BYTES", 1 << 10)
    sink = place.checked(format="csv")
    (kept,) = sink.confirm([prepared(sink, numbers(100, t=["x" * 50] * 100))])
    abort, delete, deleted = GcsBucket.abort, GcsBucket.delete, []

    def killed(*_):
        raise KilledError

    def delete_some(bucket, path):
        if "/parts/" in path.key:
            if len(deleted) == (1 if left == "a part" else 2):
                raise KilledError
            deleted.append(path)
            if left == "begun and a part" and path.name == "begun":
                return
        delete(bucket, path)

    monkeypatch.setattr(GcsBucket, "abort", killed if left == "all parts" else abort)
    if left != "all parts":
        monkeypatch.setattr(GcsBucket, "delete", delete_some)
    with pytest.raises(KilledError):
        sink.commit(permit(), [kept])
    monkeypatch.setattr(GcsBucket, "abort", abort)
    monkeypatch.setattr(GcsBucket, "delete", delete)
    assert place.parts() != []
    assert place.checked().commit(permit(), [kept]).completed == (kept,)
    assert place.numbers() == list(range(100))
    assert place.left() == []


@pytest.mark.parametrize("at_once", [2, 3, 32])
def test_a_file_of_many_parts_is_read_as_it_was_written(place, monkeypatch, at_once):
    monkeypatch.setattr(staging, "PART_BYTES", 1 << 20)
    monkeypatch.setattr(client, "_AT_ONCE", at_once)
    sink = place.checked(format="csv")
    rows = numbers(100_000, t=[f"{number:0150d}" for number in range(100_000)])
    (committable,) = commit(sink, 0, rows)
    ((_, parts),) = committable["uploads"]
    assert len(parts) == 16
    assert place.files().to_arrow().column("t").to_pylist() == rows.column("t").to_pylist()
    assert place.left() == []


def test_parts_that_somebody_deleted_are_lost_and_only_their_rows_are_written_again(place):
    sink = place.checked()
    kept = sink.confirm([prepared(sink, numbers(2)), prepared(sink, numbers(2, 2), partition=1)])
    assert place.lose(kept[0]) == 2
    report = sink.commit(permit(), kept)
    assert [each.committable for each in report.lost] == [kept[0]]
    assert "somebody deleted its parts" in report.lost[0].reason
    assert place.data() == [], "a batch that lost a file leaves no other one in the open"
    sink.retire([kept[0]])
    again = sink.confirm([prepared(sink, numbers(2), generation=1)])
    assert not sink.commit(permit(), [*again, kept[1]]).lost
    assert place.numbers() == [0, 1, 2, 3]
    assert place.left() == []


def test_an_object_of_somebody_else_under_a_files_name_is_in_doubt_and_stays(place):
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    name = place.parts()[0].split("/")[2]
    place.lose(kept)
    place.bucket().blob(f"{place.key}/{name}").upload_from_string(b"x" * kept["files"][0][3])
    report = sink.commit(permit(), [kept])
    assert [each.committable for each in report.in_doubt] == [kept]
    assert "isn't ours" in report.in_doubt[0].reason
    sink.retire([kept])
    assert len(place.data()) == 1


def test_a_compose_that_finds_an_object_that_isnt_ours_deletes_no_parts(place):
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    bucket = sink._given.bucket()
    ((mark, parts),) = kept["uploads"]
    name = place.parts()[0].split("/")[2]
    place.bucket().blob(f"{place.key}/{name}").upload_from_string(b"theirs")
    before = place.parts()
    with pytest.raises(FileNotFoundError):
        bucket.complete(bucket.root / name, mark, [*parts, "another part"])
    assert place.parts() == before


def test_a_compose_is_asked_for_with_the_condition_that_nothing_stands_there(place, monkeypatch):
    """That Google keeps it, the emulator can't show."""
    asked = []
    composed = GcsBucket._composed

    def noted(bucket, path, parts, metadata, **condition):
        asked.append((path.name.startswith("part-"), condition))
        return composed(bucket, path, parts, metadata, **condition)

    monkeypatch.setattr(GcsBucket, "_composed", noted)
    commit(place.checked(), 0, numbers(2))
    assert (True, {"if_generation_match": 0}) in asked


@pytest.mark.parametrize("what", ["lost", "taken", "grown", "replaced"])
def test_confirm_refuses_parts_that_could_not_be_composed(place, what):
    sink = place.checked()
    committable = prepared(sink, numbers(2))
    part = next(key for key in place.parts() if key.endswith("/00001"))
    bucket = place.bucket()
    if what == "lost":
        place.lose(committable)
    elif what == "taken":
        bucket.blob(f"{place.key}/{part.split('/')[2]}").upload_from_string(b"theirs")
    elif what == "grown":
        bucket.blob(f"{place.key}/{part[:-1]}2").upload_from_string(b"more")
    else:
        size = committable["files"][0][3]
        bucket.blob(f"{place.key}/{part}").upload_from_string(b"x" * size)
    with pytest.raises(AttemptFailedError, match="Nothing of this batch is decided"):
        sink.confirm([committable])


def test_a_sweep_deletes_the_parts_that_it_covers_and_nobody_elses(place):
    sink = place.checked()
    spared = prepared(sink, numbers(1))
    prepared(sink, numbers(1, 1))
    prepared(sink, numbers(1, 2), query="6f1c2d3e-0000-4000-8000-000000000002")
    prepared(sink, numbers(1, 3), generation=2)
    assert len(place.parts()) == 8
    assert sink.recover(Sweep(QUERY, "out", 1, spared={spared["name"]})) == 1
    assert len(place.parts()) == 6
    assert sink.recover(Sweep(QUERY, "out", 1, spared={spared["name"]})) == 0
    assert sink.recover(Sweep(QUERY, "out", 3, spared={spared["name"]})) == 1
    assert len(place.parts()) == 4
    (kept,) = sink.confirm([spared])
    assert len(sink.commit(permit(), [kept]).completed) == 1


def test_abort_and_discard_leave_nothing_and_may_come_again(place):
    sink = place.checked(partition_by=["p"])
    committable = prepared(sink, numbers(2, p=["a", "b"]))
    sink.abort([committable])
    sink.abort([committable])
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(2, p=["a", "b"]))
    sink.discard(transaction)
    sink.discard(transaction)
    assert place.left() == []


@pytest.mark.parametrize("when", ["before it begins", "behind its first part", "behind its last"])
def test_a_late_task_that_was_swept_gives_up_and_leaves_nothing(place, monkeypatch, when):
    monkeypatch.setattr(staging, "PART_BYTES", 1 << 10)
    sink = place.checked(format="csv")
    transaction = sink.begin_transaction(attempt())
    begin, put, sent = GcsBucket.begin_upload, GcsBucket.send_part, []

    def begin_late(bucket, path, metadata):
        if when == "before it begins":
            assert place.sink().recover(Sweep(QUERY, "out", 1)) == 1
        return begin(bucket, path, metadata)

    def send_late(bucket, path, upload, number, content):
        if (when, len(sent)) in {("behind its first part", 1), ("behind its last", 5)}:
            assert place.sink().recover(Sweep(QUERY, "out", 1)) == 1
        sent.append(number)
        return put(bucket, path, upload, number, content)

    monkeypatch.setattr(GcsBucket, "begin_upload", begin_late)
    monkeypatch.setattr(GcsBucket, "send_part", send_late)
    sink.invoke(transaction, numbers(100, t=["x" * 50] * 100))
    with pytest.raises(AttemptFailedError, match="swept"):
        sink.pre_commit(transaction)
    assert len(sent) == {"before it begins": 0, "behind its first part": 2}.get(when, 6)
    sink.discard(transaction)
    assert place.left() == []


def test_manifests_are_merged_and_read_whole(place, monkeypatch):
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)
    sink = place.checked()
    for batch in range(7):
        commit(sink, batch, numbers(2, 2 * batch))
    assert place.numbers() == list(range(14))


@pytest.mark.parametrize(
    ("form", "compression"),
    [("parquet", None), ("json", "gzip"), ("csv", "zstd"), ("orc", None)],
)
def test_each_format_is_read_back(place, form, compression):
    sink = place.checked(format=form, compression=compression)
    commit(sink, 0, numbers(5, t=["a", "ü", "", "x" * 1000, "ü\n"]))
    assert place.numbers() == list(range(5))
    assert sorted(place.files().to_arrow().column("t").to_pylist())[0] in ("", "a")


def test_a_partition_that_no_listing_could_show_is_refused_with_its_row(place):
    sink = place.checked(partition_by=["p"])
    transaction = sink.begin_transaction(attempt())
    with pytest.raises(RefusedRecordError, match="U\\+FFFF"):
        sink.invoke(transaction, numbers(1, p=["\uffff"]))
    sink.discard(transaction)


def test_what_is_not_there_says_so(place):
    with pytest.raises(ConfigurationError, match="does not exist"):
        place.files().to_arrow()
    nowhere = type(place)("no-such-bucket", place.endpoint)
    with pytest.raises(SinkCheckError, match="no such bucket"):
        nowhere.checked()


def test_a_file_of_credentials_that_is_missing_is_named(place):
    from onceforall import FileSink
    from onceforall.sink import StartInfo

    sink = FileSink(place.url, storage={"credentials_file": "/no/such/file.json"})
    with pytest.raises(SinkCheckError, match="credentials"):
        sink.check(StartInfo(QUERY, "out"))


def test_a_store_that_does_not_answer_is_told_so(place, monkeypatch):
    monkeypatch.setattr(client, "_RETRY_FOR_S", 1.0)
    away = type(place)(place.name, "http://127.0.0.1:1")
    with pytest.raises(SinkCheckError, match="doesn't answer"):
        away.checked()
    with pytest.raises(GcsError, match="doesn't answer"):
        away.sink()._given.bucket().get(away.sink()._given.root / "x")
