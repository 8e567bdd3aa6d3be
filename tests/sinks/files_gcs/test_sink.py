"""What the file sink does in a bucket of Google's: as on any store of objects; composing, late tasks,
and what a start refuses.

On fake-gcs-server, which lets a compose overwrite: that one doesn't is not shown here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onceforall.errors import AttemptFailedError, SinkCheckError
from onceforall.sink import Sweep
from onceforall.sinks.files.places.gcs import client
from onceforall.sinks.files.places.gcs.client import GcsBucket, GcsError
from onceforall.sinks.files.places.objects import staging
from sinks.files.building import QUERY, attempt, commit, numbers, permit, prepared
from sinks.files_gcs.place import Folder
from sinks.files_objects.sink import *  # noqa: F403
from sinks.files_objects.sink import files_of, refused
from support.pages import ROOT

pytestmark = [pytest.mark.gcs, pytest.mark.long]


class KilledError(BaseException):
    """The process ends here."""


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


@pytest.mark.parametrize("at_once", [2, 3])
def test_parts_are_composed_level_by_level(place, monkeypatch, at_once):
    monkeypatch.setattr(staging, "PART_BYTES", 1 << 20)
    monkeypatch.setattr(client, "_AT_ONCE", at_once)
    sink = place.checked(format="csv")
    rows = numbers(100_000, t=[f"{number:0150d}" for number in range(100_000)])
    (committable,) = commit(sink, 0, rows)
    ((_, parts),) = committable["uploads"]
    assert len(parts) == 16
    assert place.files().to_arrow().column("t").to_pylist() == rows.column("t").to_pylist()
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


@pytest.fixture
def large(place, monkeypatch):
    """A decided file of so many parts that some are composed to larger ones first: its path, the
    upload's id, and the parts."""
    monkeypatch.setattr(staging, "PART_BYTES", 1 << 10)
    monkeypatch.setattr(client, "_AT_ONCE", 3)
    sink = place.checked(format="csv")
    (kept,) = sink.confirm([prepared(sink, numbers(100, t=["x" * 50] * 100))])
    ((upload, parts),) = kept["uploads"]
    store = place.store()
    return store, (store.root / files_of(kept)[0][0], upload), parts


def at_the_listing_of_an_abort(monkeypatch, do):
    """Do something behind the first listing, before what is listed is deleted."""
    below, seen = GcsBucket._below, []

    def listed(bucket, folder):
        found = below(bucket, folder)
        if not seen:
            seen.append(folder)
            do()
        return found

    monkeypatch.setattr(GcsBucket, "_below", listed)
    return seen


def test_a_compose_of_levels_that_an_abort_overtakes_gives_up(place, large, monkeypatch):
    store, upload, parts = large
    composed = []

    def late_driver():
        with pytest.raises(FileNotFoundError, match="gone"):
            place.store().complete(*upload, parts)
        composed.extend(place.data())

    seen = at_the_listing_of_an_abort(monkeypatch, late_driver)
    store.abort(*upload)
    assert len(seen) == 1
    assert composed == place.data() == place.parts() == []


def test_a_bare_404_deletes_no_parts_of_a_decided_file(place, large, monkeypatch):
    """As of a gateway, which google-cloud-storage takes for the store's."""
    store, upload, parts = large
    with monkeypatch.context() as patch:
        patch.setattr(GcsBucket, "head", lambda bucket, path: None)
        with pytest.raises(GcsError, match="404"):
            store.complete(*upload, parts)
        with pytest.raises(GcsError, match="404"):
            store.send_part(*upload, 1, b"again")
    store.send_part(*upload, 1, b"n,t\n")  # what the last request has overwritten
    assert len(store.parts(*upload)) == len(parts)


def test_who_finds_that_begun_is_gone_deletes_no_parts(place, large):
    store, upload, parts = large
    path, name = upload
    store.delete(store._uploads_of(path) / name / "begun")
    with pytest.raises(FileNotFoundError, match="gone"):
        store.complete(*upload, parts)
    assert [etag for etag, _ in store.parts(*upload)] == parts
    assert len(place.parts()) == len(parts)


def test_an_abort_looks_again_for_what_came_behind_its_listing(place, large, monkeypatch):
    store, (path, upload), _ = large
    stray = f"_onceforall/parts/{path.name}/{upload}/level-0-0"
    at_the_listing_of_an_abort(monkeypatch, lambda: place.put(stray, b"x"))
    store.abort(path, upload)
    assert place.parts() == []


def test_parts_that_arrive_when_their_batch_is_done_are_swept(place):
    sink = place.checked()
    (kept,) = commit(sink, 0, numbers(2))
    ((name, _),), ((upload, _),) = files_of(kept), kept["uploads"]
    place.put(f"_onceforall/parts/{name}/{upload}/00001", b"late")
    theirs = name.replace(QUERY, "6f1c2d3e-0000-4000-8000-000000000002")
    place.put(f"_onceforall/parts/{theirs}/{upload}/00001", b"of another query")
    place.put("_onceforall/parts/strange/x/00001", b"of nobody")
    assert sink.recover(Sweep(QUERY, "out", 1, spared={kept["name"]})) == 0
    assert len(place.parts()) == 3
    assert sink.recover(Sweep(QUERY, "out", 1)) == 1
    assert sorted(key.split("/")[2] for key in place.parts()) == sorted(["strange", theirs])
    assert sink.recover(Sweep(QUERY, "out", 1)) == 0
    assert place.numbers() == [0, 1]


def test_the_page_says_how_many_requests_a_file_and_a_part_take(place, proxy, monkeypatch):
    place.checked(partition_by=["p"], format="csv")
    sink = place.through(proxy.endpoint).sink(partition_by=["p"], format="csv")
    commit(sink, 0, numbers(1, p=["a"]))

    def requests(batch, rows):
        proxy.forget()
        (kept,) = commit(sink, batch, rows)
        return sum(len(parts) for _, parts in kept["uploads"]), proxy.count()

    (two, few), (five, more) = (
        requests(count, numbers(count, p=[str(each) for each in range(count)])) for count in (2, 5)
    )
    assert (two, five) == (2, 5)
    each_file = (more - few) // 3
    monkeypatch.setattr(staging, "PART_BYTES", 1 << 10)
    one, of_one = requests(6, numbers(1, p=["a"]))
    many, of_many = requests(7, numbers(40, p=["a"] * 40, t=["x" * 100] * 40))
    assert one == 1 < many
    each_part = (of_many - of_one) // (many - one)
    page = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    said = re.search(
        r"A file of one part takes (\d+) requests, and each further part .* (\w+) more", page
    )
    assert (int(said[1]), said[2]) == (each_file, {2: "two", 3: "three", 4: "four"}[each_part])


def test_many_files_are_read_with_few_connections(place):
    sink = place.checked(partition_by=["p"])
    commit(sink, 0, numbers(120, p=[str(number) for number in range(120)]))
    before = len(list(Path("/proc/self/fd").iterdir()))
    table = place.files().to_arrow()
    assert table.num_rows == 120
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 60


def test_a_bucket_that_is_missing_is_named(place):
    refused(Folder("no-such-bucket", place.endpoint), "no such bucket")


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
