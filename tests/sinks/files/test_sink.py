"""The file sink against a real folder, without Spark: what is committed, what is refused, and
what is left."""

import contextlib
import copy
import errno
import json
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from onceforall import read_files
from onceforall.errors import (
    AttemptFailedError,
    ConfigurationError,
    OptionError,
    RefusedRecordError,
    SinkCheckError,
    SinkUnavailableError,
    UnsupportedQueryError,
)
from onceforall.protocol.names import parse_name
from onceforall.sink import StartInfo, Sweep
from onceforall.sinks.files import FileSink
from onceforall.sinks.files.data_files import attempt_of
from onceforall.sinks.files.driver.staged_files import read_staged
from onceforall.sinks.files.places.local.place import LocalPlace
from onceforall.sinks.files.task import writer
from onceforall.sinks.files.tree import Tree
from sinks.files.building import (
    QUERY,
    attempt,
    checked,
    commit,
    left_in_staging,
    numbers,
    permit,
    prepared,
)
from support.disks import small_disk

FORMATS = ["parquet", "orc", "json", "csv"]


def seen(folder):
    return (
        sorted(read_files(folder).to_arrow().column("n").to_pylist())
        if len(read_files(folder))
        else []
    )


def data_files(folder):
    home = folder / "_onceforall"
    return sorted(path for path in folder.rglob("*") if path.is_file() and home not in path.parents)


# --- a batch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_a_batch_is_there_after_its_commit_and_not_before(tmp_path, form):
    sink = checked(tmp_path, format=form)
    rows = numbers(3, text=["a", "b", "c"]), numbers(2, 3, text=["d", "e"])
    committables = sink.confirm([prepared(sink, each, partition=i) for i, each in enumerate(rows)])
    assert seen(tmp_path) == []
    assert data_files(tmp_path) == []
    report = sink.commit(permit(), json.loads(json.dumps(committables)))
    assert len(report.completed) == 2
    assert seen(tmp_path) == [0, 1, 2, 3, 4]
    assert left_in_staging(tmp_path) == []


def test_a_commit_is_repeated_by_another_sink_object_without_effect(tmp_path):
    sink = checked(tmp_path, partition_by=["p"])
    decided = commit(sink, 0, numbers(4, p=["a", "b", "a", None]), numbers(1, 4, p=["a"]))
    files = data_files(tmp_path)
    before = [(path, path.stat().st_ino, path.stat().st_mtime_ns) for path in files]
    report = pickle.loads(pickle.dumps(sink)).commit(permit(), decided)
    assert len(report.completed) == 2
    assert [
        (path, path.stat().st_ino, path.stat().st_mtime_ns) for path in data_files(tmp_path)
    ] == before
    assert len(before) == 4


def test_each_layout_is_in_the_decision_once(tmp_path):
    sink = checked(tmp_path)
    decided = sink.confirm([prepared(sink, numbers(1, i), partition=i) for i in range(3)])
    assert ["shared" in each for each in decided] == [True, False, False]
    assert {each["layout"] for each in decided} == set(decided[0]["shared"])


def test_a_sink_that_is_written_twice_in_a_batch_may_have_other_columns_the_second_time(tmp_path):
    sink = checked(tmp_path)
    one, two = (
        prepared(sink, numbers(2)),
        prepared(sink, pa.RecordBatch.from_pydict({"m": [1.5]}), write=1),
    )
    sink.commit(permit(), sink.confirm([one, two]))
    table = read_files(tmp_path).to_arrow()
    assert sorted(table.column_names) == ["m", "n"]
    assert table.num_rows == 3


def test_a_task_without_rows_leaves_nothing(tmp_path):
    sink = checked(tmp_path)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(0))
    assert sink.pre_commit(transaction) is None
    assert left_in_staging(tmp_path) == []


def test_a_task_without_rows_whose_folder_cannot_be_deleted_fails_and_names_it(
    tmp_path, monkeypatch
):
    sink = checked(tmp_path)
    transaction = sink.begin_transaction(attempt())

    def refused(path, dir_fd):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refused)
        with pytest.raises(
            AttemptFailedError, match=rf"{tmp_path}/\S*{transaction.name}: .*ESTALE"
        ):
            sink.pre_commit(transaction)


def test_two_queries_and_two_sinks_share_a_folder(tmp_path):
    sink = checked(tmp_path)
    commit(sink, 0, numbers(2))
    commit(sink, 0, numbers(3, 10), query="other")
    commit(sink, 0, numbers(4, 20), sink="out.1")
    assert read_files(tmp_path).rows == 9
    assert read_files(tmp_path, query_id="other").rows == 3
    assert read_files(tmp_path, query_id=QUERY, sink="out.1").rows == 4
    assert read_files(tmp_path, sink="nobody").rows == 0


def test_a_query_that_begins_anew_writes_its_first_batches_beside_those_of_before(tmp_path):
    sink = checked(tmp_path)
    for batch in range(3):
        commit(sink, batch, numbers(1, batch), generation=7)
    for batch in range(2):
        commit(sink, batch, numbers(1, 10 + batch), query="anew", generation=0)
    assert seen(tmp_path) == [0, 1, 2, 10, 11]


def test_a_range_of_batches_can_be_read(tmp_path):
    sink = checked(tmp_path)
    for batch in range(4):
        commit(sink, batch, numbers(1, batch))
    assert read_files(tmp_path, from_batch=1, to_batch=2).to_arrow().column("n").to_pylist() == [
        1,
        2,
    ]


def test_abort_and_discard_delete_temp_files_and_nothing_else(tmp_path):
    sink = checked(tmp_path)
    commit(sink, 0, numbers(2))
    foreign = tmp_path / "_onceforall" / "staging" / "README"
    foreign.write_text("mine")
    aborted = prepared(sink, numbers(1), 1)
    sink.abort([aborted])
    sink.abort([aborted])
    discarded = sink.begin_transaction(attempt(1))
    sink.invoke(discarded, numbers(1))
    sink.discard(discarded)
    sink.discard(discarded)
    assert left_in_staging(tmp_path) == ["README"]
    assert seen(tmp_path) == [0, 1]


def test_a_sweep_takes_what_it_covers_and_nothing_else(tmp_path):
    sink = checked(tmp_path)
    old, new = prepared(sink, numbers(1), generation=1), prepared(sink, numbers(1), generation=3)
    spared, foreign = (
        prepared(sink, numbers(1), generation=1),
        prepared(sink, numbers(1), query="other"),
    )
    (tmp_path / "_onceforall" / "staging" / f"{old['name']}.bak").mkdir()
    assert sink.recover(Sweep(QUERY, "out", 2, spared={spared["name"]})) == 1
    assert sink.recover(Sweep(QUERY, "out", 2, spared={spared["name"]})) == 0
    assert left_in_staging(tmp_path) == sorted(
        [new["name"], spared["name"], foreign["name"], f"{old['name']}.bak"]
    )


def test_a_sweep_takes_what_killed_drivers_left_beside_manifests_and_nothing_else(tmp_path):
    sink = checked(tmp_path)
    commit(sink, 0, numbers(1))
    (folder,) = (tmp_path / "_onceforall" / "manifests" / QUERY).iterdir()
    (folder / f".1.json.{'0' * 32}.tmp").write_text("half")
    (folder / ".notes").write_text("mine")
    sink.recover(Sweep(QUERY, "out", 1))
    assert sorted(path.name for path in folder.iterdir()) == [".newest.0", ".notes", "0.json"]
    old = tmp_path / ".onceforall-probe-0"
    old.touch()
    os.utime(old, (0, 0))
    checked(tmp_path)
    assert not old.exists()


def test_no_attempt_begins_in_the_folder_of_another_nor_deletes_it(tmp_path):
    sink = checked(tmp_path)
    one = attempt()
    transaction = sink.begin_transaction(one)
    sink.invoke(transaction, numbers(2))
    committable = sink.pre_commit(transaction)
    with pytest.raises(AttemptFailedError, match="File exists"):
        sink.begin_transaction(one)
    assert len(sink.commit(permit(), sink.confirm([committable])).completed) == 1
    assert seen(tmp_path) == [0, 1]


def test_a_late_task_whose_folder_was_swept_fails(tmp_path):
    sink = checked(tmp_path)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(5))
    sink.recover(Sweep(QUERY, "out", 9))
    with pytest.raises(AttemptFailedError, match="deleted"):
        sink.pre_commit(transaction)
    assert left_in_staging(tmp_path) == []


# --- what became of a decided batch ---------------------------------------------------------------


def temporary(folder, committable, i=0):
    return (
        folder
        / "_onceforall"
        / "staging"
        / committable["name"]
        / read_staged(committable).files[i].name
    )


def test_a_lost_file_is_reported_and_the_batch_is_completed_with_what_was_written_again(tmp_path):
    sink = checked(tmp_path)
    one, two = sink.confirm(
        [prepared(sink, numbers(1)), prepared(sink, numbers(1, 1), partition=1)]
    )
    temporary(tmp_path, one).unlink()
    report = sink.commit(permit(), [one, two])
    assert [each.committable["name"] for each in report.lost] == [one["name"]]
    assert "somebody deleted it" in report.lost[0].reason
    assert report.completed == (two,)
    assert data_files(tmp_path) == []
    sink.retire([one])
    again = sink.confirm([prepared(sink, numbers(1), generation=1)])
    report = sink.commit(permit(generation=1), [two, *again])
    assert len(report.completed) == 2
    assert seen(tmp_path) == [0, 1]
    # The driver that decided first, and was frozen until now.
    assert [each.committable["name"] for each in sink.commit(permit(), [one, two]).lost] == [
        one["name"]
    ]
    assert seen(tmp_path) == [0, 1]


def test_a_batch_that_was_decided_for_another_folder_is_in_doubt_and_nothing_is_done(tmp_path):
    """The sink's path was changed: the batch may be in the old folder, and must not be written
    again to the new one."""
    decided = checked(tmp_path / "old").confirm([prepared(checked(tmp_path / "old"), numbers(2))])
    elsewhere = checked(tmp_path / "new")
    report = elsewhere.commit(permit(), decided)
    assert [each.committable["name"] for each in report.in_doubt] == [c["name"] for c in decided]
    assert "was decided for the folder with the id" in report.in_doubt[0].reason
    assert not report.lost
    assert len(checked(tmp_path / "old").commit(permit(), decided).completed) == 1
    assert seen(tmp_path / "old") == [0, 1]
    assert data_files(tmp_path / "new") == []


def test_a_folder_that_was_moved_is_still_the_one_that_was_decided_for(tmp_path):
    decided = checked(tmp_path / "old").confirm([prepared(checked(tmp_path / "old"), numbers(2))])
    (tmp_path / "old").rename(tmp_path / "new")
    assert len(checked(tmp_path / "new").commit(permit(), decided).completed) == 1
    assert seen(tmp_path / "new") == [0, 1]


def test_a_volume_that_is_gone_behind_the_decision_is_waited_for(tmp_path):
    """What is then found under the path is the empty mount point: nothing is lost."""
    sink = checked(tmp_path / "volume")
    decided = sink.confirm([prepared(sink, numbers(2))])
    (tmp_path / "volume").rename(tmp_path / "unmounted")
    (tmp_path / "volume").mkdir()
    with pytest.raises(SinkUnavailableError, match="Cannot commit batch 0"):
        sink.commit(permit(), decided)
    (tmp_path / "volume").rmdir()
    (tmp_path / "unmounted").rename(tmp_path / "volume")
    assert len(sink.commit(permit(), decided).completed) == 1
    assert seen(tmp_path / "volume") == [0, 1]


def test_what_is_left_of_a_lost_transaction_never_becomes_visible(tmp_path):
    sink = checked(tmp_path, partition_by=["p"])
    (lost,) = sink.confirm([prepared(sink, numbers(2, p=["a", "b"]))])
    first = read_staged(lost).files[0].path
    os.link(
        temporary(tmp_path, lost), tmp_path / first
    )  # as a driver leaves it that is killed after its first link
    temporary(tmp_path, lost, 1).unlink()
    assert len(sink.commit(permit(), [lost]).lost) == 1
    sink.retire([lost])
    assert data_files(tmp_path) == []
    assert left_in_staging(tmp_path) == []


def test_a_driver_that_wakes_while_a_lost_transaction_is_retired_leaves_nothing_in_the_open(
    tmp_path, monkeypatch
):
    sink = checked(tmp_path, partition_by=["p"])
    (lost,) = sink.confirm([prepared(sink, numbers(2, p=["a", "b"]))])
    first = tmp_path / read_staged(lost).files[0].path
    temporary(tmp_path, lost, 1).unlink()
    assert len(sink.commit(permit(), [lost]).lost) == 1
    real = Tree.delete_folder_of_files

    def beside_the_other_one(tree, folder):
        os.link(temporary(tmp_path, lost), first)
        return real(tree, folder)

    monkeypatch.setattr(Tree, "delete_folder_of_files", beside_the_other_one)
    sink.retire([lost])
    assert data_files(tmp_path) == []


def test_retire_leaves_a_committed_transaction_and_a_waiting_one_alone(tmp_path):
    sink = checked(tmp_path)
    done = commit(sink, 0, numbers(2))
    waiting = sink.confirm([prepared(sink, numbers(1, 2), 1)])
    sink.retire([*done, *waiting])
    sink.commit(permit(1), waiting)
    assert seen(tmp_path) == [0, 1, 2]


def test_what_a_person_calls_aborted_in_a_folder_with_a_new_id_leaves_the_open(tmp_path):
    """A killed driver has published it; its rows are written again, and would be there twice."""
    sink = checked(tmp_path)
    (decided,) = sink.confirm([prepared(sink, numbers(2))])
    os.link(temporary(tmp_path, decided), tmp_path / read_staged(decided).files[0].path)
    (tmp_path / "_onceforall" / "folder.json").unlink()
    later = checked(tmp_path)
    (doubt,) = later.commit(permit(), [decided]).in_doubt
    assert "files mend" in doubt.reason
    assert decided["folder"] in doubt.reason
    later.retire([json.loads(json.dumps(doubt.committable))])
    assert data_files(tmp_path) == []
    assert left_in_staging(tmp_path) == []


def test_a_batch_of_which_the_folders_own_manifest_tells_is_complete_whatever_id_it_has(tmp_path):
    """Names are given out once. Told to be in doubt, its rows would be taken away by hand, and the
    manifest would refuse them for ever."""
    sink = checked(tmp_path)
    decided = sink.confirm([prepared(sink, numbers(2))])
    sink.commit(permit(), decided)
    (tmp_path / "_onceforall" / "folder.json").unlink()
    later = checked(tmp_path)
    assert len(later.commit(permit(), decided).completed) == 1
    other = checked(tmp_path).confirm([prepared(checked(tmp_path), numbers(1, 2), 1)])
    other[0]["folder"] = decided[0]["folder"]
    assert len(later.commit(permit(1), other).in_doubt) == 1
    late = prepared(checked(tmp_path), numbers(1, 5), partition=1)
    beside = [*decided, {**late, "folder": decided[0]["folder"]}]
    assert len(later.commit(permit(), beside).in_doubt) == 2
    assert seen(tmp_path) == [0, 1]


def test_a_foreign_file_in_the_place_of_what_is_called_aborted_is_never_taken_for_ours(
    tmp_path, monkeypatch
):
    """The driver is killed while it deletes the rest: without the temp file, what stands under the
    target's name would count as a link that was there before."""
    sink = checked(tmp_path, format="json")
    (decided,) = sink.confirm([prepared(sink, numbers(2))])
    target = tmp_path / read_staged(decided).files[0].path
    target.write_bytes(temporary(tmp_path, decided).read_bytes().replace(b"1", b"7"))
    later = checked(tmp_path, format="json")
    (doubt,) = later.commit(permit(), [decided]).in_doubt
    assert "isn't ours" in doubt.reason

    class KilledError(Exception):
        pass

    def killed_behind(place, attempt):
        discard(place, attempt)
        raise KilledError

    discard = LocalPlace.discard
    monkeypatch.setattr(LocalPlace, "discard", killed_behind)
    with pytest.raises(KilledError):
        later.retire([doubt.committable])
    monkeypatch.undo()
    third = checked(tmp_path, format="json")
    (lost,) = third.commit(permit(), [decided]).lost
    third.retire([lost.committable])
    assert data_files(tmp_path) == []


def test_retire_leaves_the_files_of_a_committed_transaction_though_one_was_deleted(tmp_path):
    sink = checked(tmp_path, partition_by=["p"])
    done = commit(sink, 0, numbers(2, p=["a", "b"]))
    data_files(tmp_path)[0].unlink()
    sink.retire(done)
    assert len(data_files(tmp_path)) == 1


def test_a_truncated_temp_file_is_lost_and_a_changed_target_is_in_doubt(tmp_path):
    sink = checked(tmp_path)
    (short,) = sink.confirm([prepared(sink, numbers(1))])
    os.truncate(temporary(tmp_path, short), 5)
    assert "has 5 bytes" in sink.commit(permit(), [short]).lost[0].reason
    (changed,) = sink.confirm([prepared(sink, numbers(1), 1)])
    temporary(tmp_path, changed).unlink()
    (tmp_path / read_staged(changed).files[0].path).write_text("other")
    report = sink.commit(permit(1), [changed])
    assert "has 5 bytes" in report.in_doubt[0].reason
    assert not report.lost
    assert (tmp_path / read_staged(changed).files[0].path).read_text() == "other"


def test_a_batch_that_is_complete_is_not_confirmed_again(tmp_path):
    """An older copy of the checkpoint writes it again, by tasks of the same names or of others."""
    first = checked(tmp_path)
    for batch in range(2):
        commit(first, batch, numbers(1, batch))
    for generation in (1, 2):
        again = prepared(checked(tmp_path), numbers(1, 9), 1, generation=generation)
        with pytest.raises(
            AttemptFailedError, match="already got batch 1 of this query.* older copy"
        ):
            first.confirm([again])
    assert sorted(read_files(tmp_path).to_arrow().column("n").to_pylist()) == [0, 1]


def test_a_foreign_file_under_a_targets_name_is_never_overwritten(tmp_path):
    sink = checked(tmp_path)
    committable = prepared(sink, numbers(1))
    target = tmp_path / read_staged(committable).files[0].path
    target.write_text("foreign")
    with pytest.raises(AttemptFailedError, match="no manifest names it.* move the file away"):
        sink.confirm([committable])
    report = sink.commit(permit(), [committable])
    assert "isn't ours" in report.in_doubt[0].reason
    assert target.read_text() == "foreign"
    assert read_files(tmp_path).rows == 0
    target.unlink()
    assert sink.commit(permit(), [committable]).completed
    assert seen(tmp_path) == [0]


@pytest.mark.parametrize("behind_the_look", [False, True])
def test_what_is_not_in_doubt_of_a_batch_is_in_the_open_whatever_is_answered_to_the_doubt(
    tmp_path, behind_the_look
):
    """With onceforall.inDoubt=committed the batch is passed, and temp files are swept: none may
    be the only place of rows."""
    sink = checked(tmp_path)
    decided = sink.confirm([prepared(sink, numbers(1, i), partition=i) for i in range(3)])
    targets = [tmp_path / read_staged(each).files[0].path for each in decided]
    targets[1].write_text("foreign")
    if not behind_the_look:
        temporary(tmp_path, decided[1]).unlink()
    report = sink.commit(permit(), decided)
    assert [each.committable["name"] for each in report.in_doubt] == [decided[1]["name"]]
    assert [c["name"] for c in report.completed] == [decided[0]["name"], decided[2]["name"]]
    assert targets[0].exists()
    assert targets[2].exists()
    assert read_files(tmp_path).rows == 0
    targets[1].unlink()
    if behind_the_look:
        assert len(sink.commit(permit(), decided).completed) == 3
        assert seen(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize(
    "folder",
    [
        "../x",
        "/etc",
        "a/../..",
        "_onceforall/staging",
        "a//b",
        ".",
        "a/.",
        "a\0",
        "_spark_metadata",
    ],
)
def test_a_path_in_a_damaged_decision_never_leads_out_of_the_folder(tmp_path, folder):
    sink = checked(tmp_path / "out")
    committable = prepared(sink, numbers(1))
    committable["files"][0][0] = folder
    report = sink.commit(permit(), [committable])
    assert "damaged" in report.in_doubt[0].reason
    assert data_files(tmp_path) == data_files(tmp_path / "out" / "_onceforall")


@pytest.mark.parametrize("extension", ["/../../x", "", ".parquet/", "parquet", ".PARQUET"])
def test_an_extension_in_a_damaged_decision_is_refused(tmp_path, extension):
    sink = checked(tmp_path)
    committable = {**prepared(sink, numbers(1)), "extension": extension}
    assert "damaged" in sink.commit(permit(), [committable]).in_doubt[0].reason


def test_a_committable_of_many_files_is_small(tmp_path):
    sink = checked(tmp_path, partition_by=["p"])
    committable = prepared(sink, numbers(300, p=[f"value {i}" for i in range(300)]))
    assert len(committable["files"]) == 300
    assert len(json.dumps(committable)) < 20_000


def test_data_deleted_for_retention_does_not_come_back_and_stays_committed(tmp_path):
    sink = checked(tmp_path)
    decided = commit(sink, 0, numbers(1))
    commit(sink, 1, numbers(1, 1))
    data_files(tmp_path)[0].unlink()
    assert sink.commit(permit(), decided).completed
    assert len(data_files(tmp_path)) == 1
    assert read_files(tmp_path, skip_deleted=True).rows == 1
    with pytest.raises(FileNotFoundError):
        read_files(tmp_path).to_arrow()


def test_confirm_refuses_when_a_temp_file_is_gone_and_when_a_folder_is_no_folder(tmp_path):
    sink = checked(tmp_path, partition_by=["p"])
    gone = prepared(sink, numbers(1, p=["a"]))
    temporary(tmp_path, gone).unlink()
    with pytest.raises(AttemptFailedError, match="is missing"):
        sink.confirm([gone])
    (tmp_path / "p=b").write_text("a file")
    with pytest.raises(AttemptFailedError, match="is no folder"):
        sink.confirm([prepared(sink, numbers(1, p=["b"]))])
    (tmp_path / "p=c").symlink_to("/dev/shm")
    with pytest.raises(AttemptFailedError, match="symbolic link"):
        sink.confirm([prepared(sink, numbers(1, p=["c"]))])


def test_the_folders_of_a_batch_are_there_before_it_is_decided(tmp_path):
    sink = checked(tmp_path, partition_by=["p", "q"])
    decided = sink.confirm([prepared(sink, numbers(2, p=["a", "b"], q=["c", "d"]))])
    assert (tmp_path / "p=a" / "q=c").is_dir()
    assert (tmp_path / "p=b" / "q=d").is_dir()
    (query,) = (tmp_path / "_onceforall" / "manifests").iterdir()
    assert len(list(query.iterdir())) == 1
    assert ds.dataset(tmp_path, partitioning="hive").count_rows() == 0
    assert seen(tmp_path) == []
    sink.commit(permit(), decided)
    assert seen(tmp_path) == [0, 1]


@pytest.mark.parametrize("code", [errno.EMLINK, errno.ENAMETOOLONG, errno.EACCES])
@pytest.mark.parametrize("name", ["p=b", QUERY])
def test_a_batch_whose_folders_cannot_be_made_is_not_decided(tmp_path, monkeypatch, name, code):
    """As on ext3 with 32,000 folders in one, on eCryptfs, and in another user's folder."""
    sink = checked(tmp_path, partition_by=["p"])
    mkdir = os.mkdir

    def refusing(path, *args, **named):
        if Path(path).name == name:
            raise OSError(code, os.strerror(code), path)
        mkdir(path, *args, **named)

    committable = prepared(sink, numbers(2, p=["a", "b"]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refusing)
        with pytest.raises(
            AttemptFailedError,
            match=rf"Nothing of this batch is decided: {tmp_path}\S*/{name}: .*"
            + errno.errorcode[code],
        ):
            sink.confirm([committable])
    assert sink.commit(permit(), sink.confirm([committable])).completed
    assert seen(tmp_path) == [0, 1]


def test_a_batch_whose_folders_are_other_peoples_is_not_decided(tmp_path, monkeypatch):
    sink = checked(tmp_path)
    committable = prepared(sink, numbers(2))
    folder = sink._folder.manifests(parse_name(committable["name"])).folder
    folder.mkdir(parents=True)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and access(path, mode))
    with pytest.raises(AttemptFailedError, match=rf"may not write in {folder}. Grant"):
        sink.confirm([committable])


def test_a_name_that_cannot_be_asked_for_is_not_free(tmp_path, monkeypatch):
    sink = checked(tmp_path, partition_by=["p"])
    committable = prepared(sink, numbers(1, p=["a"]))
    folder = tmp_path / "p=a"
    folder.mkdir()

    def refusing(real):
        def asked(path, *args, dir_fd=None, **named):
            whole = (
                str(path) if dir_fd is None else f"{Path(f'/proc/self/fd/{dir_fd}').readlink()}/"
            )
            if whole.startswith(f"{folder}/"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return real(path, *args, dir_fd=dir_fd, **named)

        return asked

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", refusing(os.lstat))
        patch.setattr(os, "stat", refusing(os.stat))
        with pytest.raises(SinkUnavailableError, match=rf"{folder}/part-.*EIO"):
            sink.confirm([committable])


def test_confirm_refuses_a_temp_file_that_is_shorter_or_longer_than_it_was_written(tmp_path):
    sink = checked(tmp_path)
    for change in (-1, 1):
        changed = prepared(sink, numbers(3))
        path = temporary(tmp_path, changed)
        size = path.stat().st_size
        os.truncate(path, size + change)
        with pytest.raises(
            AttemptFailedError, match=f"has {size + change} bytes instead of {size}"
        ):
            sink.confirm([changed])


# --- folders and values ---------------------------------------------------------------------------

VALUES = [
    "..",
    ".",
    "a/b",
    "/etc/passwd",
    "\n\t\x01",
    "x=1",
    "50%",
    "ü €",
    "a b",
    "*?[{\"'\\^:#",
    "__HIVE_DEFAULT_PARTITION__",
    "~",
    "\0",
]


@pytest.mark.parametrize("form", FORMATS)
def test_no_value_escapes_its_folder_and_every_value_comes_back(tmp_path, form):
    sink = checked(tmp_path / "out", format=form, partition_by=["p"])
    values = [*VALUES, None, ""]
    commit(sink, 0, numbers(len(values), m=[1] * len(values), p=values))
    table = read_files(tmp_path / "out").to_arrow().sort_by("n")
    assert table.column("p").to_pylist() == [*VALUES, None, None]
    assert all(tmp_path / "out" in path.parents for path in data_files(tmp_path))
    folders = {path.parent for path in data_files(tmp_path / "out")}
    assert len(folders) == len(VALUES) + 1
    assert {folder.parent for folder in folders} == {tmp_path / "out"}
    assert all(folder.name.startswith("p=") for folder in folders)


def test_a_value_that_no_folders_name_can_hold_is_refused_in_the_task(tmp_path):
    sink = checked(tmp_path, partition_by=["p"])
    transaction = sink.begin_transaction(attempt())
    with pytest.raises(RefusedRecordError, match="too long"):
        sink.invoke(transaction, numbers(1, p=["x" * 300]))


def test_a_value_that_is_too_long_for_this_file_system_is_refused_in_the_task(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "pathconf", lambda path, name: 143)
    sink = checked(tmp_path, partition_by=["p"])
    commit(sink, 0, numbers(1, p=["x" * 141]))
    transaction = sink.begin_transaction(attempt(1))
    with pytest.raises(RefusedRecordError, match="more than 143 bytes"):
        sink.invoke(transaction, numbers(1, p=["x" * 142]))
    sink.discard(transaction)


def test_partition_columns_keep_their_types(tmp_path):
    columns = {
        "i": pa.array([-7, None], pa.int16()),
        "b": pa.array([True, None]),
        "d": pa.array([date(2026, 11, 21), None]),
        "m": pa.array([Decimal("0.00"), None], pa.decimal128(30, 2)),
    }
    sink = checked(tmp_path, partition_by=list(columns))
    commit(sink, 0, numbers(2, **columns))
    table = read_files(tmp_path).to_arrow().sort_by("n")
    assert {name: table.schema.field(name).type for name in columns} == {
        name: column.type for name, column in columns.items()
    }
    assert {name: table.column(name).to_pylist() for name in columns} == {
        name: c.to_pylist() for name, c in columns.items()
    }
    assert (tmp_path / "i=-7/b=true/d=2026-11-21/m=0.00").is_dir()


@pytest.mark.parametrize(
    ("template", "zone", "folder"),
    [
        ("{t:%Y-%m-%d--%H}", None, "2026-11-21--23"),
        ("{t:%Y-%m-%d--%H}", "Asia/Tokyo", "2026-11-22--08"),
        ("dt={t:%Y-%m-%d}/hour={t:%H}", None, "dt=2026-11-21/hour=23"),
        ("{t:%Y/%m}/x-{t:%d}", None, "2026/11/x-21"),
        ("{t:%H:%M}", None, "23%3A30"),
        ("{d:%j}", None, "325"),
        ("when={z:%Y}", None, "when=__HIVE_DEFAULT_PARTITION__"),
        ("{z:%Y}", None, "%5F_HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_a_time_bucket_makes_its_folders(tmp_path, template, zone, folder):
    moment = pa.array(
        [datetime(2026, 11, 21, 23, 30, 59, tzinfo=timezone.utc)], pa.timestamp("us", "UTC")
    )
    columns = {
        "t": moment,
        "d": pa.array([date(2026, 11, 21)]),
        "z": pa.nulls(1, pa.timestamp("us")),
    }
    sink = checked(tmp_path, time_bucket=template, time_bucket_zone=zone, partition_by=["p"])
    commit(sink, 0, numbers(1, p=["a"], **columns))
    assert [str(path.parent.relative_to(tmp_path)) for path in data_files(tmp_path)] == [
        f"p=a/{folder}"
    ]
    table = read_files(tmp_path).to_arrow()
    assert table.column("t").to_pylist() == moment.to_pylist()
    if template.startswith("dt="):
        assert (table.column("dt").to_pylist(), table.column("hour").to_pylist()) == (
            ["2026-11-21"],
            ["23"],
        )


def test_a_time_bucket_is_in_the_zone_that_timestamps_come_with(tmp_path):
    sink = checked(tmp_path, time_bucket="{t:%Y-%m-%d--%H}")
    commit(
        sink,
        0,
        numbers(
            1,
            t=pa.array(
                [datetime(2026, 11, 21, 23, 30, tzinfo=timezone.utc)],
                pa.timestamp("us", "Europe/Berlin"),
            ),
        ),
    )
    (file,) = data_files(tmp_path)
    assert file.parent.name == "2026-11-22--00"


LATE = [
    datetime(year, month, 15, hour, 30, 59, tzinfo=timezone.utc)
    for year in (1890, 2026, 2036, 2037, 2038, 2050, 2400, 9998)
    for month in (1, 4, 7, 10)
    for hour in (4, 22)
]


@pytest.mark.parametrize(
    "zone", ["America/New_York", "Europe/Dublin", "Australia/Lord_Howe", "Asia/Tokyo", "UTC"]
)
def test_a_time_bucket_follows_the_zones_rules_in_the_years_that_no_table_lists(tmp_path, zone):
    form = "at={t:%Y-%m-%d %H:%M:%S}"
    options, given = ({}, zone) if zone.startswith("A") else ({"time_bucket_zone": zone}, "UTC")
    sink = checked(tmp_path, time_bucket=form, format="json", **options)
    commit(
        sink,
        0,
        numbers(len(LATE) + 1, t=pa.array([*LATE, None], pa.timestamp("us", given))),
    )
    found = {row["n"]: row["at"] for row in read_files(tmp_path).to_arrow().to_pylist()}
    local = [each.astimezone(ZoneInfo(zone)) for each in LATE]
    assert found == {n: f"{each:%Y-%m-%d %H:%M:%S}" for n, each in enumerate(local)} | {
        len(LATE): None
    }


def test_a_time_bucket_in_an_offset_or_beyond_its_years_is_as_before(tmp_path):
    sink = checked(tmp_path, time_bucket="{t:%Y-%m-%d--%H}")
    late = pa.array([LATE[-1]], pa.timestamp("us", "+08:00"))
    commit(sink, 0, numbers(1, t=late))
    (file,) = data_files(tmp_path)
    assert file.parent.name == "9998-10-16--06"
    beyond = pa.array([253_402_300_800_000_000], pa.timestamp("us", "Europe/Berlin"))
    with pytest.raises(RefusedRecordError, match="years from 1 to 9999"):
        prepared(sink, numbers(1, t=beyond), 1)
    least = pa.array([-(1 << 63)], pa.timestamp("us", "UTC"))
    with pytest.raises(RefusedRecordError, match="'t' holds .*years from 1 to 9999"):
        prepared(sink, numbers(1, t=least), 2)
    with pytest.raises(AttemptFailedError, match="time zone 'GMT\\+8', .*time_bucket_zone="):
        prepared(sink, numbers(1, t=pa.array([0], pa.timestamp("us", "GMT+8"))), 1)


def test_plain_pyarrow_reads_the_folder_with_its_partition_columns(tmp_path):
    sink = checked(tmp_path, partition_by=["p"])
    commit(sink, 0, numbers(3, p=["a", "b/c", None]))
    prepared(sink, numbers(9, p=["a"] * 9), 1)
    table = ds.dataset(tmp_path, partitioning="hive").to_table().sort_by("n")
    assert table.to_pydict() == {"n": [0, 1, 2], "p": ["a", "b/c", None]}


# --- many files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_a_full_file_is_ended_and_the_next_one_begun(tmp_path, form):
    sink = checked(tmp_path, format=form, max_file_bytes=20_000)
    blob = [os.urandom(50).hex() for _ in range(5000)]
    commit(sink, 0, numbers(5000, blob=blob))
    sizes = [path.stat().st_size for path in data_files(tmp_path)]
    assert len(sizes) >= 4  # an ORC stripe has at least 64 KiB
    assert max(sizes) < 150_000
    table = read_files(tmp_path).to_arrow().sort_by("n")
    assert table.column("n").to_pylist() == list(range(5000))
    assert table.column("blob").to_pylist() == blob


def test_a_task_with_many_folders_keeps_few_files_open(tmp_path):
    sink = checked(tmp_path, partition_by=["p"], max_open_files=3, max_file_bytes=3000)
    transaction = sink.begin_transaction(attempt())

    def open_files():
        # Other tests' threads may open and close something at any time.
        links = [link.resolve() for link in Path("/proc/self/fd").iterdir()]
        return sum(link.is_relative_to(tmp_path) and link.is_file() for link in links)

    most = 0
    for i in range(30):
        sink.invoke(transaction, numbers(200, i * 200, p=[i % 20] * 200))
        most = max(most, open_files())
    assert most == 3
    committable = sink.pre_commit(transaction)
    assert open_files() == 0
    sink.commit(permit(), sink.confirm([committable]))
    assert seen(tmp_path) == list(range(6000))


def test_rows_that_wait_for_a_file_which_is_ended_to_make_room_are_in_the_next_one(tmp_path):
    sink = checked(tmp_path, partition_by=["p"], max_open_files=1, max_file_bytes=100_000)
    transaction = sink.begin_transaction(attempt())

    def write(count, start, folder):
        rows = numbers(count, start, p=[folder] * count, blob=["x" * 100] * count)
        sink.invoke(transaction, rows)

    write(1000, 0, "a")  # enough to be written to a file, and not enough to fill it
    write(10, 1000, "a")
    write(1000, 1010, "b")
    sink.commit(permit(), sink.confirm([sink.pre_commit(transaction)]))
    assert seen(tmp_path) == list(range(2010))
    assert len(data_files(tmp_path)) == 3


def test_names_of_files_are_the_attempts_and_never_the_same(tmp_path):
    sink = checked(tmp_path, partition_by=["p"])
    for batch in range(3):
        commit(
            sink, batch, numbers(2, p=["a", "b"]), numbers(2, p=["a", "b"]), generation=batch // 2
        )
    names = [path.name for path in data_files(tmp_path)]
    assert len(names) == len(set(names)) == 12
    assert len({attempt_of(name) for name in names}) == 6
    assert max(map(len, names)) < 200


# --- types ----------------------------------------------------------------------------------------

MOMENT = datetime(2026, 3, 29, 1, 2, 3, 456789)  # noqa: DTZ001  Arrow's naive ones are UTC
EPOCH, LONG_AGO = datetime(1970, 1, 1), datetime(1900, 1, 1)  # noqa: DTZ001
SIMPLE = {
    "text": pa.array(["", "null", None, 'a,"b"\r\n', "ü"]),
    "number": pa.array([1.5, float("inf"), float("-inf"), None, 0.1]),
    "small": pa.array([0.1, None, 1e-30, 3.0, 4.0], pa.float32()),
    "money": pa.array(
        [Decimal("12345678901234567890.123456789"), None, Decimal(0), Decimal("-1e-9"), None],
        pa.decimal128(38, 9),
    ),
    "moment": pa.array(
        [MOMENT, None, EPOCH, LONG_AGO, MOMENT], pa.timestamp("us", "Europe/Berlin")
    ),
    "local": pa.array([MOMENT, None, EPOCH, LONG_AGO, MOMENT], pa.timestamp("us")),
    "day": pa.array([date(2026, 1, 1), None, date(1, 1, 1), date(9999, 12, 31), None]),
    "flag": pa.array([True, False, None, True, True]),
    "big": pa.array([2**63 - 1, -(2**63), None, 0, 1]),
}
EARLY_IN_ORC = pa.array([date(2026, 1, 1), None, date(1582, 10, 15), date(9999, 12, 31), None])
STRUCT = pa.struct(
    [("x", pa.int32()), ("t", pa.timestamp("us", "Europe/Berlin")), ("l", pa.list_(pa.string()))]
)
NESTED = {
    **SIMPLE,
    "blob": pa.array([b"\x00\xff", b"", None, b"abc", b"a"]),
    "list": pa.array([[1, None], [], None, [3], []], pa.list_(pa.int32())),
    "map": pa.array(
        [[("a", 1.5), ("b", None)], [], None, [], []], pa.map_(pa.string(), pa.float64())
    ),
    "days": pa.array([[(date(2026, 1, 1), 1)], [], None, [], []], pa.map_(pa.date32(), pa.int32())),
    "struct": pa.array(
        [
            {"x": 1, "t": MOMENT, "l": ["a", None]},
            {"x": None, "t": None, "l": None},
            None,
            None,
            None,
        ],
        STRUCT,
    ),
}


@pytest.mark.parametrize(
    ("form", "compression"),
    [
        ("parquet", "zstd"),
        ("orc", None),
        ("json", None),
        ("json", "gzip"),
        ("csv", None),
        ("csv", "zstd"),
        ("csv", "gzip"),
    ],
)
def test_every_value_of_every_type_arrives_right(tmp_path, form, compression):
    sink = checked(tmp_path, format=form, compression=compression)
    columns = SIMPLE if form == "csv" else NESTED
    if form == "orc":  # Earlier days and fractions of a second are refused there.
        columns = {**columns, "day": EARLY_IN_ORC}
    rows = numbers(5, **columns)
    commit(sink, 0, rows)
    table = read_files(tmp_path).to_arrow()
    assert table.to_pylist() == rows.to_pylist()
    assert str(table.schema.field("moment").type) == "timestamp[us, tz=UTC]"


@pytest.mark.parametrize("form", FORMATS)
def test_nan_arrives_as_nan(tmp_path, form):
    sink = checked(tmp_path, format=form)
    commit(sink, 0, numbers(2, x=[float("nan"), None]))
    nan, null = read_files(tmp_path).to_arrow().column("x").to_pylist()
    assert math.isnan(nan)
    assert null is None


def test_json_lines_are_those_that_spark_would_write_with_all_microseconds(tmp_path):
    sink = checked(tmp_path, format="json")
    commit(sink, 0, numbers(1, **{name: column[:1] for name, column in NESTED.items()}))
    (file,) = data_files(tmp_path)
    line = (
        '{"n":0,"text":"","number":1.5,"small":0.1,"money":12345678901234567890.123456789,"moment":"2026-03-29T01:02:03.456789Z",'
        '"local":"2026-03-29T01:02:03.456789","day":"2026-01-01","flag":true,"big":9223372036854775807,"blob":"AP8=","list":[1,null],'
        '"map":{"a":1.5,"b":null},"days":{"2026-01-01":1},"struct":{"x":1,"t":"2026-03-29T01:02:03.456789Z","l":["a",null]}}\n'
    )
    assert file.read_text() == line


def test_slices_of_nested_rows_are_written_as_they_are(tmp_path):
    sink = checked(tmp_path, format="json")
    rows = numbers(5, **NESTED)
    commit(sink, 0, rows.slice(1, 3))
    assert read_files(tmp_path).to_arrow().to_pylist() == rows.slice(1, 3).to_pylist()


# --- at start -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"path": "oss://bucket/x"}, UnsupportedQueryError, "oss:"),
        ({"path": ""}, OptionError, "path"),
        ({"path": "file://host/x"}, OptionError, "host"),
        ({"format": "avro"}, OptionError, "parquet, orc, json, csv"),
        ({"compression": "lzo"}, OptionError, "snappy"),
        ({"format": "csv", "compression": "snappy"}, OptionError, "gzip"),
        ({"options": {"colour": 1}}, OptionError, "colour"),
        ({"options": {"use_dictionary": "yes"}}, OptionError, "use_dictionary"),
        ({"options": {"version": "9"}}, OptionError, "version"),
        ({"format": "csv", "options": {"delimiter": "ab"}}, OptionError, "delimiter"),
        ({"partition_by": ["a", "A"]}, OptionError, "partition_by"),
        ({"partition_by": ["a", "_b"]}, OptionError, "readers pass over: '_b'"),
        ({"partition_by": [".b"]}, OptionError, "readers pass over: '.b'"),
        ({"partition_by": [".."]}, OptionError, r"withColumnRenamed\('..', 'part'\)"),
        ({"max_file_bytes": 0}, OptionError, "max_file_bytes"),
        ({"max_open_files": True}, OptionError, "max_open_files"),
        ({"spark_metadata": "ignore"}, OptionError, "spark_metadata"),
        ({"on_new_partitions": 3}, OptionError, "on_new_partitions"),
        ({"time_bucket": "{t}"}, OptionError, "time_bucket"),
        ({"time_bucket": "{t:%q}"}, OptionError, "time_bucket"),
        ({"time_bucket": "{t:%A}"}, OptionError, "time_bucket"),
        ({"time_bucket": "{t:%Y"}, OptionError, "time_bucket"),
        ({"time_bucket": "fixed"}, OptionError, "no field"),
        ({"time_bucket": "../{t:%Y}"}, OptionError, "pass over"),
        ({"time_bucket": "_x/{t:%Y}"}, OptionError, "pass over"),
        ({"time_bucket": "{t:%Y}//a"}, OptionError, "pass over"),
        ({"time_bucket": "{t:%Y}", "time_bucket_zone": "Mars"}, OptionError, "Mars"),
        ({"time_bucket_zone": "UTC"}, OptionError, "time_bucket_zone"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(tmp_path, arguments, error, words):
    with pytest.raises(error, match=words):
        FileSink(**{"path": tmp_path, **arguments})


def start(folder, **options):
    FileSink(folder, **options).check(StartInfo("", "out"))


def test_a_folder_that_cannot_be_used_is_refused_at_start(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SinkCheckError, match="is a file"):
        start(file)
    with pytest.raises(SinkCheckError, match="can't be made"):
        start(file / "below")
    with pytest.raises(SinkCheckError, match="/proc/onceforall can't be made"):
        start("/proc/onceforall")


def test_a_folder_of_somebody_else_is_refused_at_start(tmp_path, monkeypatch):
    """No restart helps, and nobody asks again."""
    lstat = Path.lstat

    def refusing(self):
        if self.parent == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return lstat(self)

    monkeypatch.setattr(Path, "lstat", refusing)
    with pytest.raises(SinkCheckError, match=rf"{tmp_path}.*EACCES.*\. Grant .* there\.$"):
        start(tmp_path)


def test_temp_files_on_another_file_system_are_refused_at_start(tmp_path):
    with (
        small_disk(tmp_path / "_onceforall"),
        pytest.raises(SinkCheckError, match="another file system"),
    ):
        start(tmp_path)


def test_a_folder_that_is_a_symbolic_link_is_written_through_it(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    commit(checked(tmp_path / "link"), 0, numbers(2))
    assert seen(tmp_path / "real") == [0, 1]


@pytest.mark.parametrize(
    "name",
    [
        "_onceforall",
        "_onceforall/notes.txt",
        "_onceforall/manifests/x",
        "_onceforall/manifests/q/s/x.txt",
    ],
)
def test_foreign_files_under_our_names_are_refused_at_start(tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(SinkCheckError, match="Move it away"):
        start(tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_the_check_leaves_no_trace_but_its_folders_and_is_repeatable(tmp_path):
    ids = set()
    for _ in range(2):
        start(tmp_path / "a" / "b")
        ids.add((tmp_path / "a" / "b" / "_onceforall" / "folder.json").read_bytes())
    assert len(ids) == 1
    assert data_files(tmp_path / "a" / "b") == []
    assert left_in_staging(tmp_path / "a" / "b") == []


def test_sparks_own_log_is_refused_at_start_and_before_a_decision(tmp_path):
    sink = checked(tmp_path)
    committable = prepared(sink, numbers(1))
    (tmp_path / "_spark_metadata").mkdir()
    with pytest.raises(SinkCheckError, match="spark_metadata='continue'"):
        sink.confirm([committable])
    with pytest.raises(SinkCheckError, match="silently"):
        start(tmp_path)


# --- faults ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_files():
    """A real limit of the kernel on the size of files; it holds for what pytest writes, too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_system_that_refuses_fails_the_attempt_and_names_the_folder(tmp_path, form):
    sink = checked(tmp_path, format=form)
    rows = numbers(20_000, t=[os.urandom(20).hex() for _ in range(20_000)])
    with small_files():
        transaction = sink.begin_transaction(attempt())
        sink.invoke(transaction, rows)
        with pytest.raises(AttemptFailedError, match=f"{tmp_path}.*EFBIG"):
            sink.pre_commit(transaction)
    sink.discard(transaction)
    assert left_in_staging(tmp_path) == []


def test_a_manifest_that_cannot_be_written_is_asked_for_again(tmp_path):
    sink = checked(tmp_path)
    decided = sink.confirm([prepared(sink, numbers(2))])
    manifests = tmp_path / "_onceforall" / "manifests"
    manifests.rename(tmp_path / "away")
    manifests.write_text("in the way")
    with pytest.raises(SinkUnavailableError, match=str(tmp_path)):
        sink.commit(permit(), decided)
    manifests.unlink()
    (tmp_path / "away").rename(manifests)
    assert sink.commit(permit(), decided).completed
    assert seen(tmp_path) == [0, 1]
    assert left_in_staging(tmp_path) == []


# --- new partitions -------------------------------------------------------------------------------


def test_new_partitions_are_announced_once_and_again_after_a_failure(tmp_path):
    calls, fail = [], [True]

    def announce(partitions):
        calls.append(
            [(Path(p.path).relative_to(tmp_path).as_posix(), p.values) for p in partitions]
        )
        if fail.pop() if fail else False:
            raise RuntimeError("the catalogue is away")

    sink = copy.copy(
        checked(tmp_path, partition_by=["p"], time_bucket="{t:%Y}", on_new_partitions=announce)
    )
    t = pa.array([MOMENT], pa.timestamp("us"))
    for batch, value in enumerate("abab"):
        commit(sink, batch, numbers(1, p=[value], t=t))
    a, b = ("p=a", {"p": "a"}), ("p=b", {"p": "b"})
    assert calls == [[a], [a, b]], "also where no later batch writes to it"
    assert seen(tmp_path) == [0, 0, 0, 0]


def test_partitions_of_a_commit_that_was_killed_are_announced_by_the_next_start(tmp_path):
    class Killed(BaseException):
        pass

    def dies(partitions):
        raise Killed

    told = []
    options = {"partition_by": ["p"], "on_new_partitions": dies}
    sink = checked(tmp_path, **options)
    decided = sink.confirm([prepared(sink, numbers(2, p=["a", "b"]))])
    with pytest.raises(Killed):
        sink.commit(permit(), decided)
    assert seen(tmp_path) == [0, 1]
    again = checked(tmp_path, **{**options, "on_new_partitions": told.extend})
    assert again.commit(permit(), decided).completed
    assert [partition.values for partition in told] == [{"p": "a"}, {"p": "b"}]


def test_a_function_that_cannot_be_pickled_stays_on_the_driver(tmp_path):
    sink = FileSink(tmp_path, on_new_partitions=lambda partitions: partitions)
    assert pickle.loads(pickle.dumps(sink))._on_new_partitions is None
    assert copy.copy(sink)._on_new_partitions is not None


# --- reading --------------------------------------------------------------------------------------


def test_a_folder_without_batches_is_empty_and_one_of_others_is_refused(tmp_path):
    checked(tmp_path / "new")
    empty = read_files(tmp_path / "new")
    assert (empty.rows, empty.paths, empty.to_arrow().num_rows, len(empty)) == (0, [], 0, 0)
    with pytest.raises(ConfigurationError, match="does not exist"):
        read_files(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="no FileSink"):
        read_files(tmp_path)


def test_reading_needs_no_spark(tmp_path):
    commit(checked(tmp_path), 0, numbers(2))
    code = (
        "import sys; from onceforall import read_files; assert "
        "read_files(sys.argv[1]).to_arrow().num_rows == 2; "
        "assert not {m for m in sys.modules if m.startswith('pyspark.sql')}"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)


def test_columns_that_came_later_are_null_before(tmp_path):
    sink = checked(tmp_path)
    commit(sink, 0, numbers(1))
    commit(sink, 1, numbers(1, 1, later=["x"]))
    assert read_files(tmp_path).to_arrow().sort_by("n").to_pydict() == {
        "n": [0, 1],
        "later": [None, "x"],
    }


def test_formats_and_partitions_may_change_between_batches(tmp_path):
    for batch, form in enumerate(FORMATS):
        commit(
            checked(tmp_path, format=form, partition_by=["p"] if batch % 2 else []),
            batch,
            numbers(1, batch, p=["x"]),
        )
    assert read_files(tmp_path).to_arrow().sort_by("n").to_pydict() == {
        "n": [0, 1, 2, 3],
        "p": ["x"] * 4,
    }


@pytest.mark.parametrize("form", ["json", "parquet", "orc"])
@pytest.mark.parametrize("depth", ["column", "value of a map", "field of a list"])
def test_a_map_with_a_key_twice_is_refused_where_readers_would_not_agree(tmp_path, form, depth):
    """Spark reads such maps from Parquet, and asks them for the first."""
    kind = pa.map_(pa.string(), pa.int64())
    plain, doubled = [("a", 1), ("b", 1)], [("a", 1), ("b", 2), ("a", 3)]
    if depth == "column":
        values = pa.array([plain, None, doubled], kind)
    elif depth == "value of a map":
        values = pa.array([[("x", plain)], None, [("x", doubled)]], pa.map_(pa.string(), kind))
    else:
        of = pa.struct([("m", kind)])
        values = pa.array([[{"m": plain}, {"m": plain}], None, [{"m": doubled}]], pa.list_(of))
    sink = checked(tmp_path, format=form)
    commit(sink, 0, numbers(2, m=values[:2]))
    if form == "json":
        with pytest.raises(RefusedRecordError, match=r"Column 'm.*key 'a' twice"):
            prepared(sink, numbers(3, m=values), 1)
    else:
        commit(sink, 1, numbers(3, m=values))
        assert read_files(tmp_path).to_arrow().num_rows == 5


def test_a_file_in_several_chunks_has_the_rows_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "CHUNK_BYTES", 2_000)
    sink = checked(tmp_path / "out")
    transaction = sink.begin_transaction(attempt())
    for start in range(0, 3_000, 300):
        sink.invoke(transaction, numbers(300, start))
    committable = sink.pre_commit(transaction)
    ((_, _, rows, _),) = committable["files"]
    assert rows == 3_000
    sink.discard(transaction)
    sink.close()
