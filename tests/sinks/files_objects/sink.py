"""What the file sink does on any store of objects: data that nobody sees before the commit, parts that
were lost, sweeps, late tasks, and what a start refuses.

These are tests; each store's folder has a module that imports them, with its marks.
"""

from __future__ import annotations

import pytest

from onceforall.errors import (
    AttemptFailedError,
    ConfigurationError,
    RefusedRecordError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.sink import StartInfo, Sweep
from onceforall.sinks.files.driver import manifest_writing
from onceforall.sinks.files.driver.staged_files import read_staged
from onceforall.sinks.files.places.objects import staging
from sinks.files.building import QUERY, attempt, commit, numbers, permit, prepared


def files_of(committable):
    """The paths and sizes of its files, below the prefix."""
    return [(file.path, file.bytes) for file in read_staged(committable).files]


def test_rows_are_seen_behind_the_commit_only_and_nothing_is_left(place):
    sink = place.checked(partition_by=["p"])
    assert place.keys("_onceforall/probes/") == []
    assert place.begun() == []
    kept = sink.confirm([prepared(sink, numbers(4, p=["a", "b", "a/..", None]))])
    assert place.data() == []
    assert place.files().rows == 0
    assert len(place.begun()) == 4
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
    report = place.checked().commit(permit(0), first)
    assert report.completed == tuple(first)
    assert place.keys() == before
    assert place.numbers() == [0, 1, 2, 3]


def test_completing_again_is_told_by_the_mark(place):
    """The manifest isn't there yet: nothing but the object says that it was done."""
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    store = place.store()
    ((upload, parts),) = kept["uploads"]
    store.complete(store.root / files_of(kept)[0][0], upload, parts)
    assert sink.commit(permit(), [kept]).completed == (kept,)
    assert place.numbers() == [0, 1]
    assert place.left() == []


def test_a_file_of_many_parts_is_read_as_it_was_written(place, monkeypatch):
    monkeypatch.setattr(staging, "PART_BYTES", place.part_bytes)
    sink = place.checked(format="csv")
    rows = numbers(100_000, t=[f"{number:0150d}" for number in range(100_000)])
    (committable,) = commit(sink, 0, rows)
    ((_, parts),) = committable["uploads"]
    assert len(parts) == -(-files_of(committable)[0][1] // place.part_bytes) > 3
    assert place.files().to_arrow().column("t").to_pylist() == rows.column("t").to_pylist()
    assert place.left() == []


def test_parts_that_are_gone_are_lost_and_only_their_rows_are_written_again(place):
    sink = place.checked()
    kept = sink.confirm([prepared(sink, numbers(2)), prepared(sink, numbers(2, 2), partition=1)])
    assert place.lose(kept[0]) == 1
    report = sink.commit(permit(), kept)
    assert [each.committable for each in report.lost] == [kept[0]]
    assert place.takers in report.lost[0].reason
    assert place.data() == [], "a batch that lost a file leaves no other one in the open"
    sink.retire([kept[0]])
    again = sink.confirm([prepared(sink, numbers(2), generation=1)])
    report = sink.commit(permit(), [*again, kept[1]])
    assert not report.lost
    assert place.numbers() == [0, 1, 2, 3]
    assert place.left() == []


def test_of_a_lost_transaction_that_was_completed_in_part_the_rest_is_deleted(place):
    sink = place.checked(partition_by=["p"])
    (kept,) = sink.confirm([prepared(sink, numbers(2, p=["a", "b"]))])
    store = place.store()
    upload, parts = kept["uploads"][0]
    store.complete(store.root / files_of(kept)[0][0], upload, parts)
    assert len(place.data()) == 1
    assert place.lose(kept) == 1
    (lost,) = sink.commit(permit(), [kept]).lost
    assert len(place.data()) == 1
    sink.retire([lost.committable])
    assert place.data() == []
    assert place.left() == []


def test_parts_that_wait_for_their_commit_outlive_the_sink_that_made_them(place):
    sink = place.checked()
    kept = sink.confirm([prepared(sink, numbers(2))])
    sink.close()
    del sink
    assert len(place.begun()) == 1
    assert place.checked().commit(permit(), kept).completed == tuple(kept)
    assert place.numbers() == [0, 1]
    assert place.left() == []


def test_retire_leaves_what_is_committed_and_what_waits_for_its_commit(place):
    sink = place.checked()
    done = commit(sink, 0, numbers(2))
    waiting = sink.confirm([prepared(sink, numbers(2, 2), 1)])
    sink.retire([*done, *waiting])
    assert len(sink.commit(permit(1), waiting).completed) == 1
    assert place.numbers() == [0, 1, 2, 3]


def test_an_object_of_somebody_else_under_a_files_name_is_in_doubt_and_stays(place):
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    place.lose(kept)
    ((name, size),) = files_of(kept)
    place.put(name, b"x" * size)
    report = sink.commit(permit(), [kept])
    assert [each.committable["name"] for each in report.in_doubt] == [kept["name"]]
    assert "isn't ours" in report.in_doubt[0].reason
    sink.retire([kept])
    assert place.get(name) == b"x" * size


def test_an_object_of_another_size_under_our_mark_is_in_doubt(place):
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    place.lose(kept)
    place.put(files_of(kept)[0][0], b"tampered", mark=kept["mark"])
    assert len(sink.commit(permit(), [kept]).in_doubt) == 1


@pytest.mark.parametrize("what", ["lost", "taken", "grown", "replaced"])
def test_confirm_refuses_parts_that_could_not_be_completed(place, what):
    sink = place.checked()
    committable = prepared(sink, numbers(2))
    ((name, size),) = files_of(committable)
    ((upload, _),) = committable["uploads"]
    store = place.store()
    if what == "lost":
        place.lose(committable)
    elif what == "taken":
        place.put(name, b"x" * size)
    elif what == "grown":
        store.send_part(store.root / name, upload, 2, b"more")
    else:
        store.send_part(store.root / name, upload, 1, b"x")
        store.send_part(store.root / name, upload, 2, b"x" * (size - 1))
    with pytest.raises(AttemptFailedError, match="Nothing of this batch is decided"):
        sink.confirm([committable])


def test_a_sweep_aborts_the_parts_that_it_covers_and_nobody_elses(place):
    sink = place.checked()
    place.begin_theirs("part-theirs")
    theirs = place.begun()
    assert len(theirs) == 1
    spared = prepared(sink, numbers(1))
    prepared(sink, numbers(1, 1))
    prepared(sink, numbers(1, 2), query="6f1c2d3e-0000-4000-8000-000000000002")
    prepared(sink, numbers(1, 3), generation=2)
    assert len(place.begun()) == 5
    assert sink.recover(Sweep(QUERY, "out", 1, spared={spared["name"]})) == 1
    assert len(place.begun()) == 4
    assert sink.recover(Sweep(QUERY, "out", 1, spared={spared["name"]})) == 0
    assert sink.recover(Sweep(QUERY, "out", 3, spared={spared["name"]})) == 1
    assert set(theirs) < set(place.begun())
    assert place.data() == []
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


def test_a_late_task_whose_record_was_swept_sends_nothing(place, monkeypatch):
    sink = place.checked()
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(2))
    store = type(place.store())
    begin = store.begin_upload

    def begin_late(store, path, metadata):
        # The sweep comes between the record and the upload.
        assert place.sink().recover(Sweep(QUERY, "out", 1)) == 1
        return begin(store, path, metadata)

    monkeypatch.setattr(store, "begin_upload", begin_late)
    with pytest.raises(AttemptFailedError, match="swept"):
        sink.pre_commit(transaction)
    sink.discard(transaction)
    assert place.left() == []


def test_a_sweep_that_was_killed_behind_its_word_stops_the_late_task_too(place, monkeypatch):
    sink = place.checked()
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(2))
    store = type(place.store())
    begin, list_uploads = store.begin_upload, store.uploads

    def no_answer(store, path):
        raise OSError(f"killed when it had listed {list_uploads(store, path)}")

    def begin_late(its_store, path, metadata):
        with monkeypatch.context() as here, pytest.raises(SinkUnavailableError):  # noqa: PT012
            here.setattr(store, "uploads", no_answer)
            place.sink().recover(Sweep(QUERY, "out", 1))
        return begin(its_store, path, metadata)

    monkeypatch.setattr(store, "begin_upload", begin_late)
    with pytest.raises(AttemptFailedError, match="swept"):
        sink.pre_commit(transaction)
    assert place.begun() == []
    assert place.sink().recover(Sweep(QUERY, "out", 1)) == 1
    assert place.left() == []


def test_a_record_that_names_another_key_aborts_nothing(place):
    sink = place.checked()
    committable = prepared(sink, numbers(1))
    (record,) = place.keys("_onceforall/uploads/")
    place.begin_theirs("theirs")
    place.put(record, b'{"key": "%s/theirs"}' % place.key.encode())
    with pytest.raises(SinkUnavailableError, match="not written by FileSink"):
        sink.abort([committable])
    assert "theirs" in place.begun()


def test_manifests_are_merged_and_read_whole(place, monkeypatch):
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)
    sink = place.checked()
    for batch in range(7):
        commit(sink, batch, numbers(1, batch))
    assert place.numbers() == list(range(7))
    assert any("-" in key.rpartition("/")[2] for key in place.keys("_onceforall/manifests/"))
    (newest,) = [key for key in place.keys("_onceforall/manifests/") if key.endswith("/6.json")]
    place.delete(newest)
    with pytest.raises(Exception, match="second name"):
        place.files()


@pytest.mark.parametrize("form", ["parquet", "orc", "json", "csv"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_each_format_is_read_back(place, form, compression):
    sink = place.checked(format=form, compression=compression, partition_by=["p"])
    values = ["a", "ü +%/?", None, "Inc.", "..."]
    commit(sink, 0, numbers(5, p=values))
    table = place.files().to_arrow().sort_by("n")
    assert table.column("n").to_pylist() == [0, 1, 2, 3, 4]
    assert table.column("p").to_pylist() == values
    assert sum(batch.num_rows for batch in place.files().dataset().to_batches()) == 5


@pytest.mark.parametrize("character", ["\ufffe", "\uffff"])
def test_a_partition_that_no_listing_could_show_is_refused_with_its_row(place, character):
    """One such key, and moto can list nothing of the bucket any more."""
    sink = place.checked(partition_by=["p"])
    with pytest.raises(RefusedRecordError, match=r"U\+FFF[EF], which .*(can't|be) list"):
        prepared(sink, numbers(1, p=[f"a{character}b"]))
    assert sink.recover(Sweep(QUERY, "out", 1)) == 0
    commit(sink, 0, numbers(2, p=["\ufffd", "ü"]))
    assert place.numbers() == [0, 1]


def test_another_id_means_another_target(place):
    sink = place.checked()
    kept = sink.confirm([prepared(sink, numbers(1))])
    other = place.elsewhere("lake/other")
    assert other.sink().identity(StartInfo(QUERY, "out")) is None
    assert sink.identity(StartInfo(QUERY, "out")) != other.checked().identity(
        StartInfo(QUERY, "out")
    )
    (doubt,) = other.sink().commit(permit(), kept).in_doubt
    assert "was decided for the folder with the id" in doubt.reason
    assert other.data() == []


def refused(place, match):
    """What a start says."""
    sink = place.sink()
    with pytest.raises(SinkCheckError, match=match) as caught:  # noqa: PT012  either raises
        sink.identity(StartInfo(QUERY, "out"))
        sink.check(StartInfo(QUERY, "out"))
    for secret in place.secrets:
        assert secret not in str(caught.value)
    return caught.value


def test_a_start_refuses_a_log_of_sparks_own_sink(place):
    place.put("_spark_metadata/0", b"v1\n")
    refused(place, "_spark_metadata")


def test_a_start_refuses_something_foreign_under_our_name(place):
    place.put("_onceforall/x", b"")
    refused(place, "was not written by FileSink")


def test_what_is_not_there_says_so(place):
    place.checked()
    with pytest.raises(ConfigurationError, match="holds no folder _onceforall|does not exist"):
        place.elsewhere("nothing").files()
